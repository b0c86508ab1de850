//! `waggle plan`: the traffic of a session, computed without running it.

mod against;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use waggle::program::LAN;
use waggle::{DEFAULT_MODEL, Helper, Network, Plan};
use waggle_files::{check_writable, load, write_json};
use waggle_model::Parts;
use waggle_mpcache::PolicySpec;
use waggle_report::Seconds;
use waggle_study::cost::Phases;

use super::advice::policy;
use super::helper::PartiesArgs;
use super::machine::CalibrationArgs;
use super::options::{DraftArgs, FormatArgs, LINKS, OperationsArgs, PriceArgs, TermsArgs, set};
use super::progress::Progress;
use super::record::RecordError;
use super::report_tables::document;
use super::{Error, out};

/// Predicts the exact bytes and flows of a session from shapes alone. (A flow is a maximal run of messages in one
/// direction.) The session is that of `demo`, where the client has the tokenizer.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// Hugging Face directory, a `config.json` alone, the name of a bundled model, or that of a published shape, such
    /// as gpt2, bert-base or llama-2-7b; a wrong name lists all. The number of fractional bits of a matrix follows
    /// from its weights; from a configuration alone all weights are assumed to be below 16.
    #[arg(long, value_name = "DIR|CONFIG", default_value = DEFAULT_MODEL)]
    model: String,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 32)]
    prompt_len: usize,
    /// Public tokens before the prompt, as of `generate --public-prefix`.
    #[arg(long, value_name = "N", default_value_t = 0)]
    public_len: usize,
    /// The policy by which the server prunes what its model keeps of public text. The client learns how much stays,
    /// not what.
    #[arg(long, value_name = "POLICY", default_value = "full", value_parser = policy)]
    prefix_policy: PolicySpec,
    /// Texts of that length that the model reads side by side, as with `classify --file` and `generate --prompts`: so
    /// many, no fewer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    texts: usize,
    /// Tokens to generate [default: 32, of an encoder 1].
    #[arg(long, value_name = "N")]
    tokens: Option<usize>,
    /// Plan one decoding step after so many tokens, and its preparation, without the pass over the prompt.
    #[arg(long, value_name = "N", conflicts_with_all = ["prompt_len", "tokens", "stop_at_eos", "pad_prompt", "pad_answer"])]
    cached: Option<usize>,
    /// Count the byte after each token by which a client says whether it goes on.
    #[arg(long)]
    stop_at_eos: bool,
    /// Count that byte after 16, 32, 64... tokens alone, as with `generate --pad-answer`.
    #[arg(long, requires = "stop_at_eos")]
    pad_answer: bool,
    /// The prompt is padded, as by `generate --pad-prompt`; --prompt-len is the padded length.
    #[arg(long)]
    pad_prompt: bool,
    /// Parts of the models that both parties have, as with `serve --public`.
    #[arg(long, value_name = "PARTS", default_value = "")]
    public: Parts,
    /// The server adds a LoRA of this rank to every matrix of the layers. All weights are then assumed to be below
    /// 16.
    #[arg(long, value_name = "R", default_value_t = 0)]
    rank: usize,
    /// A LoRA in PEFT's form that is added to the matrices of the model: a directory with `adapter_config.json` and
    /// `adapter_model.safetensors`. Clients learn which matrices it adapts and the largest rank of each kind.
    #[arg(long, value_name = "DIR", conflicts_with = "rank")]
    adapter: Option<PathBuf>,
    /// Network of the session. Its rate decides which matrix products are packed, and rate and delay decide how many
    /// rounds a maximum takes. Without a calibration the seconds are its transfer and delay, without computation
    /// [default: lan, or what the parties of --as-in measured].
    #[arg(long, value_name = LINKS)]
    link: Option<Network>,
    /// Plan with the cores, the kernels and the link that the parties of a session found out, from its report.
    #[arg(long, value_name = "REPORT")]
    as_in: Option<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    operations: OperationsArgs,
    #[command(flatten)]
    price: PriceArgs,
    /// Who prepares: the two parties; a helper (`waggle helper`) what contains no weight (`helper`), or everything
    /// (`helper-weights`). A helper implies --preprocess, and the bytes of its links stand apart.
    #[arg(long, value_enum, value_name = "BY", default_value = "parties", conflicts_with = "parties")]
    preparation: Preparation,
    #[command(flatten)]
    parties: PartiesArgs,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Plan the sessions of these reports of `demo --json` instead, and write a table of what they took and what is
    /// predicted.
    #[arg(long, value_name = "REPORT", num_args = 1..)]
    against: Vec<PathBuf>,
    #[command(flatten)]
    calibration: CalibrationArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

/// Who prepares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Preparation {
    /// The two parties.
    Parties,
    /// A helper, but for products with weights.
    #[value(alias = "dealer")]
    Helper,
    /// A helper.
    #[value(alias = "dealer-weights")]
    HelperWeights,
}

impl Preparation {
    fn helper(self) -> Option<Helper> {
        match self {
            Preparation::Parties => None,
            Preparation::Helper => Helper::for_phases(Phases::Dealt),
            Preparation::HelperWeights => Helper::for_phases(Phases::DealtWeights),
        }
    }
}

pub(super) fn run(args: PlanArgs) -> Result<(), Error> {
    if !args.against.is_empty() {
        let calibrated = args.calibration.open()?.map_err(Error::NotCalibrated)?;
        out::line(&calibrated.line)?;
        return against::run(&args.against, &calibrated);
    }
    check_writable(args.json.as_deref())?;
    let mut progress = Progress::bars(0);
    progress.spin("reading the model");
    let calibrated = args.calibration.open()?;
    let third = args.parties.are_three().then_some(Phases::Three).and_then(Helper::for_phases);
    let mut terms = args.terms.terms()?.helper(third.or(args.preparation.helper()));
    if let Some(path) = &args.as_in {
        let unread = |what: String| RecordError::NotReport { path: path.clone(), what };
        let report = serde_json::from_slice(&load(path)?).map_err(|e| unread(e.to_string()))?;
        terms = terms.as_in(&report).map_err(|e| unread(e.to_string()))?;
    }
    let found = args.as_in.is_some().then_some(terms.plan_for).flatten().map(Network::Imitated);
    let link = args.link.or(found).unwrap_or(LAN);
    let plan = Plan::of(&*args.model).prompt(args.prompt_len).terms(terms).network(link);
    let plan = set!(plan, args => public_len, prefix_policy, texts, tokens, cached, stop_at_eos, pad_answer, pad_prompt, public, rank, adapter)
        .draft(args.draft.draft());
    let plan = plan.machines(calibrated.as_ref().ok().map(|calibrated| calibrated.machines.clone()));
    let report = plan.run_with(&mut |event| progress.hear(event))?;
    drop(progress);
    let mut notes = Vec::new();
    if report.estimated.iter().any(|name| name == "bytes") {
        notes.push("the traffic of this policy is random: bytes and flows are means (estimated)".to_owned());
    }
    let predicted = report.seconds_are == Some(Seconds::Predicted);
    let seconds =
        if predicted { "seconds and memory are estimated" } else { "seconds are those of the network alone" };
    notes.push(match calibrated {
        Ok(calibrated) if predicted => calibrated.line,
        Ok(calibrated) => format!("{}: not used for other cores", calibrated.line),
        Err(line) => line,
    });
    notes.push(format!("predicted: {seconds}"));
    args.format.show(document(&report, &args.operations, &args.price.price(), &notes))?;
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    Ok(())
}
