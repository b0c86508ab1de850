//! `waggle heads`: which heads of a model need every token.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use waggle::DEFAULT_MODEL;
use waggle::program::{open_model, provenance};
use waggle_files::{check_writable, write_json};
use waggle_model::{FloatModel, ModelFiles};
use waggle_mpcache::PolicySpec;
use waggle_report::ModelInfo;
use waggle_report::provenance::Provenance;
use waggle_study::eval::{HeadMeasure, HeadScores, InSight, Sequence, judge_heads, repetitions};

use super::error::EvalError;
use super::eval::{cut_text, own_text};
use super::progress::passes;
use super::{Error, out};

/// Finds the heads of a model that need every token, and prints the policy in which the others stream: a text for
/// --policy. Nothing is trained, and all is in the clear.
///
/// The policy is public, and so are the heads that it names: they tell something about the weights. Judge them on a
/// text that may be known.
#[derive(Args, Debug)]
pub(super) struct HeadsArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    /// Text to judge heads by: a file, or with the ending .json a list of texts, which are joined [default: of a
    /// bundled model its own].
    #[arg(long, value_name = "FILE")]
    text: Option<PathBuf>,
    /// Measure of a head: how much its output changes when it streams, the attention that it loses then, or, without
    /// a text, how it attends to repetitions in random words [default: output].
    #[arg(long, value_name = "output|mass|echo")]
    by: Option<HeadMeasure>,
    /// The policy that is printed.
    #[arg(long, value_parser = ["duo", "razor"], default_value = "duo")]
    policy: String,
    /// Share of the heads that keep every token.
    #[arg(long, value_name = "SHARE", default_value_t = 0.5)]
    share: f64,
    /// Tokens that a head holds that streams [default: a quarter of the context].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..1 << 20))]
    budget: Option<u32>,
    /// Tokens of the budget that stand at the start of the text [default: those of the policy].
    #[arg(long, value_name = "N")]
    sinks: Option<u32>,
    /// Tokens of a sequence.
    #[arg(long, value_name = "N", default_value_t = 256)]
    context: usize,
    /// Sequences.
    #[arg(long, value_name = "S", default_value_t = 8)]
    sequences: usize,
    /// Write the scores of all heads here, with the policy.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Serialize)]
struct HeadsReport {
    provenance: Option<Provenance>,
    model: ModelInfo,
    by: String,
    share: f64,
    /// Number of tokens of the first text.
    context: usize,
    sequences: usize,
    policy: PolicySpec,
    #[serde(flatten)]
    scores: HeadScores,
}

pub(super) fn run(args: HeadsArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let files = open_model(&args.model)?;
    // The options are checked before long work.
    let spec = args.policy("0")?;
    let sinks = spec.settings().iter().find(|setting| setting.key == "sinks").and_then(|s| s.value.parse().ok());
    let sinks = sinks.unwrap_or(0);
    let sight = InSight { sinks, recent: args.budget().saturating_sub(sinks).max(1) };
    let measure = args.by.unwrap_or_default();
    let texts = args.texts(&files)?;
    let model = FloatModel::open(&PolicySpec::default(), &files)?;
    let bar = passes(texts.len());
    let scores = judge_heads(&model, &texts, measure, sight, &|| bar.inc(1))?;
    bar.finish_and_clear();
    let policy = args.policy(&scores.pattern(args.share)?.to_string())?;
    if let Some(path) = &args.json {
        let report = HeadsReport {
            provenance: provenance(),
            model: ModelInfo::new(&files.name, &files.spec),
            by: measure.to_string(),
            share: args.share,
            context: texts.first().map_or(0, Vec::len),
            sequences: texts.len(),
            policy: policy.clone(),
            scores,
        };
        write_json(path, &report)?;
    }
    out::line(policy)
}

impl HeadsArgs {
    fn budget(&self) -> usize {
        self.budget.map_or((self.context / 4).max(2), |budget| budget as usize)
    }

    fn policy(&self, heads: &str) -> Result<PolicySpec, Error> {
        let spec: PolicySpec = format!("{}:heads={heads},budget={}", self.policy, self.budget()).parse()?;
        Ok(match self.sinks {
            Some(sinks) => spec.with("sinks", &sinks.to_string())?,
            None => spec,
        })
    }

    fn texts(&self, files: &ModelFiles) -> Result<Vec<Vec<u32>>, Error> {
        let path = match (self.by, &self.text) {
            (Some(HeadMeasure::Echo), None) => {
                return Ok(repetitions(files.spec.vocabulary(), self.context, self.sequences)?);
            }
            (Some(HeadMeasure::Echo), Some(_)) => return Err(EvalError::TextBesideEcho.into()),
            (_, path) => path.as_deref().or(own_text(&self.model)).ok_or(EvalError::NoText)?,
        };
        let sequences = cut_text(files, path, self.context, 1, self.sequences)?;
        Ok(sequences.iter().map(|sequence: &Sequence| sequence.ids().to_vec()).collect())
    }
}
