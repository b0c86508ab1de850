//! `waggle generate`: the party with the prompt.

use std::path::PathBuf;

use clap::Args;
use net::Role;
use serde_json::Value;
use session::party::ClientOptions;
use session::pool::PoolSet;
use tokenizer::Tokenizer;

use super::connect::{ConnectArgs, warn_of_plaintext};
use super::draft::{DraftArgs, next};
use super::files::{check_writable, read, write_json};
use super::options::{SamplingArgs, TermsArgs};
use super::padding::PaddingArgs;
use super::pools::warn_of_others;
use super::progress::Progress;
use super::prompt::PromptArgs;
use super::report::{cost_line, report};
use super::{Error, out, tokenizer_worker};

/// Generates text with the model of a server, which learns neither the prompt nor the text.
#[derive(Args, Debug)]
pub(super) struct GenerateArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    padding: PaddingArgs,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Use this `tokenizer.json` instead of the server's.
    #[arg(long, value_name = "FILE")]
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
    draft: DraftArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: GenerateArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let terms = if args.pool.is_some() { args.terms.two_phases()? } else { args.terms.clone() };
    let terms = terms.terms(args.connect.link)?;
    let mut sampler = args.sampling.sampler(&terms)?;
    args.draft.check_pool(args.pool.is_some())?;
    let drafts = args.draft.drafts()?;
    let prompt = args.prompt.read()?;
    let own = args.tokenizer.as_deref().map(read).transpose()?;
    let own = own.as_deref().map(Tokenizer::from_bytes).transpose()?;
    // A bad file is reported before a server is bothered.
    let pool = args.pool.as_ref().map(|path| PoolSet::open(path, Role::Client)).transpose()?;
    args.pool.iter().for_each(|path| warn_of_others(path));
    warn_of_plaintext(args.connect.is_plaintext());
    let session = args.connect.open(&terms, ClientOptions { tokenizer: own.is_none(), ..Default::default() })?;

    let model = session.model().clone();
    let tokenizer = match (own, &model.tokenizer) {
        (Some(own), _) => Some(own),
        (None, Some(bytes)) => Some(tokenizer_worker::foreign(bytes)?),
        (None, None) => None,
    };
    let prompt = prompt.ids(tokenizer.as_ref())?;
    let room = (model.spec.max_positions() + 1).saturating_sub(args.tokens);
    let whole = args.padding.prompt(&prompt, room)?;
    let mut guess = args.draft.guess(&model.spec)?;
    let session = match drafts {
        Some(drafts) => session.drafting(drafts),
        None => session,
    };
    let session = if args.padding.pad_answer { session.padding_answers() } else { session };
    let mut progress = Progress::of_text(tokenizer.as_ref(), &prompt, args.tokens);
    let next = next(&mut sampler, &mut guess);
    let stop = args.sampling.stop_at_eos;
    let padded = whole.padding().map(|_| whole.ids().len());
    let pool_ids = pool.as_ref().map(|pool| match &pool.ids()[..] {
        [id] => id.to_string().into(),
        ids => ids.iter().map(ToString::to_string).collect::<Value>(),
    });
    let outcome = match pool {
        Some(pool) => session.spend(pool, whole, args.tokens, stop, next, &mut progress),
        None => session.generate(whole, args.tokens, stop, next, &mut progress),
    };
    let outcome = progress.finish(outcome)?;
    out::note(cost_line(&outcome));
    if let Some(path) = &args.json {
        let chosen = [
            ("link", args.connect.link.to_string().into()),
            ("tokens", args.tokens.into()),
            ("padded_prompt", padded.into()),
            ("pool", pool_ids.into()),
        ];
        let chosen = args.sampling.reported().into_iter().chain(args.draft.reported()).chain(chosen);
        let chosen = chosen.chain(args.padding.pad_answer.then_some(("pad_answer", true.into())));
        let mut report = report(&model, tokenizer.as_ref(), prompt.len(), &outcome, &terms, chosen)?;
        report.peak_memory_bytes.client = net::peak_memory_bytes();
        write_json(path, &report)?;
    }
    Ok(())
}
