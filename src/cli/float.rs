//! `waggle float`: the plaintext engine alone.

use std::path::PathBuf;

use clap::Args;
use engine::{Float, FloatLoader, FloatWeight};
use model::{GenerateOptions, Input, Model, NoHooks, Sampler, generate};
use report::provenance::Provenance;
use serde::Serialize;
use tokenizer::Tokenizer;

use super::Error;
use super::draft::{DraftArgs, next};
use super::files::{DEFAULT_MODEL, check_writable, open_model, write_json};
use super::options::PolicyArgs;
use super::prompt::PromptArgs;
use super::report::guesses;

/// Writes text with a model in the clear, in f32. The protocols are compared with this.
#[derive(Args, Debug)]
pub(super) struct FloatArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    draft: DraftArgs,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Write `tokens` and `logits` here: one row of logits for every position that went through the model.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What `--json` writes.
#[derive(Serialize)]
struct FloatReport<'a> {
    provenance: Option<Provenance>,
    model: report::ModelInfo,
    prompt_tokens: usize,
    prompt_ids: &'a [u32],
    tokens: &'a [u32],
    /// How many tokens each pass after the first one gave.
    passes: &'a [usize],
    text: Option<&'a str>,
    /// One row per position, those of the prompt first.
    logits: Vec<Vec<f32>>,
}

/// A model on the plaintext engine.
pub(super) type FloatModel = Model<FloatWeight>;

pub(super) fn run(args: FloatArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let files = open_model(&args.model)?;
    let tokenizer = files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?;
    let prompt = args.prompt.read()?.ids(tokenizer.as_ref())?;
    let policy = args.policy.spec()?;
    let model: FloatModel = Model::load_for(&policy, &mut FloatLoader, &files.spec, Some(&files.checkpoint))?;
    let all_positions = args.json.is_some();
    let draft = args.draft.drafts()?;
    let mut guess = args.draft.guess(&files.spec)?;
    let options = GenerateOptions { tokens: args.tokens, all_positions, policy, draft, ..Default::default() };
    let input = Input { ids: Some(&prompt), count: prompt.len() };
    let mut sampler = Sampler::greedy();
    let next = next(&mut sampler, &mut guess);
    let out = generate(&mut Float::default(), &model, input, &options, next, &mut NoHooks)?;
    let text = tokenizer.as_ref().map(|tokenizer| tokenizer.decode(&out.tokens)).transpose()?;
    match &text {
        Some(text) => super::out::line(super::progress::harmless(text))?,
        None => super::out::line(super::prompt::join(&out.tokens))?,
    }
    if draft.is_some() {
        super::out::note(guesses(&out.passes))
    }
    if let (Some(path), Some(logits)) = (&args.json, &out.logits) {
        let report = FloatReport {
            provenance: super::machine::provenance(),
            model: report::ModelInfo::new(&files.name, &files.spec),
            prompt_tokens: prompt.len(),
            prompt_ids: &prompt,
            tokens: &out.tokens,
            passes: &out.passes,
            text: text.as_deref(),
            logits: logits.rows().into_iter().map(|row| row.to_vec()).collect(),
        };
        write_json(path, &report)?;
    }
    Ok(())
}
