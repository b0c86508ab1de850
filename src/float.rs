//! `waggle float`: the plaintext engine alone.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use waggle::DEFAULT_MODEL;
use waggle::program::{Reader, harmless, open_adapted, provenance, text_of};
use waggle_files::{check_writable, write_json};
use waggle_model::{FloatModel, GenerateOptions, Next, Sampler};
use waggle_report::provenance::Provenance;

use super::Error;
use super::options::{DraftArgs, PolicyArgs};
use super::prompt::{PromptArgs, join};
use super::report_tables::guesses;

/// Writes text with a model in the clear, in f32. The protocols are compared with this.
#[derive(Args, Debug)]
pub(super) struct FloatArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    /// A LoRA in PEFT's form that is added to the matrices of the model: a directory with `adapter_config.json` and
    /// `adapter_model.safetensors`. Clients learn which matrices it adapts and the largest rank of each kind.
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Tokens to generate [default: 32, of an encoder 1].
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Write `tokens` and `logits` here: one row of logits for every position that went through the model.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// The document that `--json` writes.
#[derive(Serialize)]
struct FloatReport<'a> {
    provenance: Option<Provenance>,
    model: waggle_report::ModelInfo,
    prompt_tokens: usize,
    prompt_ids: &'a [u32],
    tokens: &'a [u32],
    /// Number of tokens that each pass after the first one kept.
    passes: &'a [usize],
    text: Option<&'a str>,
    /// A row of logits for each position, those of the prompt first.
    logits: Vec<Vec<f32>>,
}

pub(super) fn run(args: FloatArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let files = open_adapted(&args.model, args.adapter.as_deref())?;
    let reader = Reader::of(&files)?;
    let tokenizer = reader.tokenizer();
    let prompt = args.prompt.read()?.ready(&files.spec, &reader)?;
    let policy = args.policy.spec()?;
    let model = FloatModel::open(&policy, &files)?;
    let all_positions = args.json.is_some();
    let draft = args.draft.draft();
    let mut guess = draft.as_ref().map(|draft| draft.guess(&files.spec)).transpose()?;
    let draft = draft.map(|draft| draft.drafts()).transpose()?;
    let tokens = args.tokens.unwrap_or(if files.spec.is_encoder() { 1 } else { 32 });
    let options = GenerateOptions { tokens, all_positions, policy, draft, ..Default::default() };
    let mut sampler = Sampler::greedy();
    let next = match &mut guess {
        Some(guess) => Next::Drafted { sampler: &mut sampler, guess: &mut **guess },
        None => Next::Pick(&mut sampler),
    };
    let out = model.generate(prompt.input(), &options, next)?;
    let text = text_of(&files.spec, tokenizer, &out.tokens)?;
    match &text {
        Some(text) => super::out::line(harmless(text))?,
        None => super::out::line(join(&out.tokens))?,
    }
    if draft.is_some() {
        super::out::note(guesses(&out.passes))
    }
    if let (Some(path), Some(logits)) = (&args.json, &out.logits) {
        let report = FloatReport {
            provenance: provenance(),
            model: waggle_report::ModelInfo::new(&files.name, &files.spec),
            prompt_tokens: prompt.input().count,
            prompt_ids: prompt.ids(),
            tokens: &out.tokens,
            passes: &out.passes,
            text: text.as_deref(),
            logits: logits.rows().into_iter().map(|row| row.to_vec()).collect(),
        };
        write_json(path, &report)?;
    }
    Ok(())
}
