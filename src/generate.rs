//! `waggle generate`: the party with the prompt.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use waggle::program::harmless;
use waggle::{Generated, Pads, Prompt, Request, TokenizerOf};
use waggle_files::{check_writable, write_json};

use super::classify::{Inputs, by_line};
use super::connect::ConnectArgs;
use super::helper::HelpedArgs;
use super::options::{DraftArgs, SamplingArgs, TermsArgs};
use super::pools::warn_of_others;
use super::progress::Progress;
use super::prompt::{OfferArgs, PromptArgs, PublicArgs};
use super::report_tables::{cost_line, write_logits};
use super::{Error, out};

/// Generates text with the model of a server, which learns neither the prompt nor the text.
#[derive(Args, Debug)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    text: TextArgs,
    #[command(flatten)]
    offer: OfferArgs,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Use the tokenizer of this directory, or this `tokenizer.json` alone, instead of the server's.
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
    /// Take the correlations from this file of `waggle preprocess`, or from all parts of it that lie beside its place
    /// (FILE.1-of-4 and so on), and use them up. The prompt may be shorter than the file was made for. Implies
    /// --preprocess.
    #[arg(long, value_name = "FILE")]
    pool: Option<PathBuf>,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    helped: HelpedArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// The text that is generated.
#[derive(Args, Clone, Debug)]
pub(super) struct TextArgs {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Many prompts, a JSON object a line: {"text": ..} or {"ids": [..]}. The model reads them side by side, in the
    /// flows of one; prompts of several lengths are padded to the longest. The server learns how many there are. Each
    /// text is a line of JSON, whose `prompt` is the number of its prompt's line. With --stop-at-eos they stop
    /// together, when the last of them has ended.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["prompt", "prompt_file", "prompt_ids", "image"])]
    prompts: Option<PathBuf>,
    /// Texts after each prompt, side by side like those of --prompts. They differ where tokens are sampled; the seed
    /// of a text is --seed and its place from 0 on.
    #[arg(long, value_name = "N", default_value = "1")]
    samples: NonZeroUsize,
    #[command(flatten)]
    public: PublicArgs,
    /// Hide how long the prompt is. It is padded to the next power of two from 16 on, or to the next of these
    /// lengths. No token attends to the padding, so the text stays the same; the longer prompt costs more. Needs the
    /// policy `full`.
    #[arg(long, value_name = "LENGTHS", num_args = 0..=1, default_missing_value = "auto")]
    pad_prompt: Option<Pads>,
    /// With --stop-at-eos: let the text go on behind its end, unseen, to the next power of two from 16 on or to
    /// --tokens. The server learns that number in the place of the text's length. Takes no draft.
    #[arg(long, requires = "stop_at_eos")]
    pad_answer: bool,
    /// Write the logits of every token here, where the client learns them (--reveal logits).
    #[arg(long, value_name = "FILE")]
    pub(super) logits: Option<PathBuf>,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
}

impl TextArgs {
    /// The request without its number of tokens, and the inputs of --prompts. Reads a prompt from a file.
    pub(super) fn request(&self) -> Result<(Request, Option<Inputs>), Error> {
        let inputs = self.prompts.as_deref().map(Inputs::open).transpose()?;
        let prompt = match &inputs {
            Some(inputs) => Prompt::Several(inputs.prompts.clone()),
            None => self.prompt.read()?,
        };
        let request = Request::after(prompt)
            .public(self.public.read()?)
            .samples(self.samples.get())
            .sampling(self.sampling.sampling())
            .stop_at_eos(self.sampling.stop_at_eos)
            .pad_prompt(self.pad_prompt.clone())
            .pad_answer(self.pad_answer)
            .draft(self.draft.draft());
        Ok((request, inputs))
    }
}

/// Prints several texts, each as a line of JSON with the number of its prompt's line. A single text was printed while
/// it grew.
pub(super) fn tell(request: &Request, inputs: Option<&Inputs>, generated: &Generated) -> Result<(), Error> {
    if request.texts() == 1 {
        return Ok(());
    }
    for (at, ids) in generated.ids().enumerate() {
        let text = generated.texts().get(at).map(|text| harmless(text));
        let (prompt, sample) = (at / request.samples, 1 + at % request.samples);
        let prompt = inputs.and_then(|inputs| inputs.lines.get(prompt)).copied().unwrap_or(1 + prompt);
        out::line(json!({ "prompt": prompt, "sample": sample, "text": text, "ids": ids }))?;
    }
    Ok(())
}

/// The progress of `tokens` tokens of each text. Only a single text is shown as it grows.
pub(super) fn progress(request: &Request, tokens: usize) -> Progress {
    let texts = request.texts();
    match texts {
        1 => Progress::of_text(tokens).after(&request.prompt),
        _ => Progress::bars(tokens.saturating_mul(texts)),
    }
}

pub(super) fn run(args: GenerateArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    check_writable(args.text.logits.as_deref())?;
    args.pool.iter().for_each(|path| warn_of_others(path));
    let tokenizer = args.tokenizer.map_or(TokenizerOf::Server, TokenizerOf::File);
    let (request, inputs) = args.text.request()?;
    let request = request.tokens(args.tokens).pool(args.pool).tokenizer(tokenizer);
    let client = args.connect.client(args.terms.terms()?.helper(args.helped.helper()?));
    let client = client.offers(!args.offer.no_public_prefix);
    let mut progress = progress(&request, args.tokens);
    let generated =
        client.generate_with(&request, &mut |event| progress.hear(event)).map_err(|e| by_line(inputs.as_ref(), e));
    let generated = progress.finish(generated)?;
    tell(&request, inputs.as_ref(), &generated)?;
    out::note(cost_line(&generated));
    write_logits(args.text.logits.as_deref(), &generated)?;
    if let Some(path) = &args.json {
        write_json(path, &generated.report)?;
    }
    Ok(())
}
