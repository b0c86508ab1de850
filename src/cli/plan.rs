//! `waggle plan`: what a session would send, without one.

use std::path::PathBuf;

use clap::Args;
use model::Lengths;
use planner::Footprint;
use session::party::{ClientOptions, Request, plan, plan_step, plan_timed};

use super::draft::DraftArgs;
use super::files::{DEFAULT_MODEL, check_writable, mapped_bytes, public_model, write_json};
use super::machine::CalibrationArgs;
use super::options::{FormatArgs, LINKS, LinkArg, OperationsArgs, TermsArgs};
use super::progress::Progress;
use super::report::{planned, predict_seconds, report, set_estimates};
use super::{Error, against, out};

/// Predicts the exact bytes and flows of a session from shapes alone. (A flow is a maximal run of messages in one
/// direction.) The session is that of `demo`, where the client has the tokenizer.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// Hugging Face directory, a `config.json` alone, the name of a bundled model, or that of a published shape:
    /// gpt2, llama-2-7b, llama-3-8b. The number of fractional bits of a matrix follows from its weights; from a
    /// configuration alone all weights are assumed to be below 16.
    #[arg(long, value_name = "DIR|CONFIG", default_value = DEFAULT_MODEL)]
    model: String,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 32)]
    prompt_len: usize,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
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
    /// Network of the session. Its rate decides which matrix products are packed, and rate and delay decide how many
    /// rounds a maximum takes. Without a calibration the seconds are its transfer and delay, without computation.
    #[arg(long, value_name = LINKS, default_value = "lan")]
    link: LinkArg,
    #[command(flatten)]
    format: FormatArgs,
    #[command(flatten)]
    operations: OperationsArgs,
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

pub(super) fn run(args: PlanArgs) -> Result<(), Error> {
    if !args.against.is_empty() {
        let calibrated = args.calibration.open()?.map_err(|what| Error::NotCalibrated { what })?;
        out::line(&calibrated.line)?;
        return against::run(&args.against, &calibrated);
    }
    check_writable(args.json.as_deref())?;
    let mut progress = Progress::bars(args.tokens);
    progress.spin("reading the model");
    let terms = args.terms.terms(args.link)?;
    let model = public_model(&args.model, &terms.policy)?;
    let draft = args.draft.drafts()?;
    // The step after a prompt makes the second token.
    let (prompt, tokens) = args.cached.map_or((args.prompt_len, args.tokens), |cached| (cached, 2));
    let lengths = Lengths { prompt, tokens };
    let PlanArgs { stop_at_eos, pad_answer, pad_prompt, .. } = args;
    let request = Request { lengths, stop_at_eos, pad_answer, padded: pad_prompt, draft };
    request.check_draft(&terms)?;
    let calibrated = args.calibration.open()?;
    let options = ClientOptions::default();
    let setting = calibrated.as_ref().ok().map(|calibrated| calibrated.setting(args.link.shape()));
    let (outcome, footprint) = match (args.cached, &setting) {
        (Some(cached), setting) => {
            plan_step(&model, &terms, &options, cached, draft, setting.as_ref(), &mut progress)?
        }
        (None, Some(setting)) => plan_timed(&model, &terms, &options, &request, setting, &mut progress)?,
        (None, None) => (plan(&model, &terms, &options, &request, &mut progress)?, Footprint::default()),
    };
    drop(progress);
    let chosen = [
        ("link", args.link.to_string().into()),
        ("tokens", tokens.into()),
        ("stop_at_eos", stop_at_eos.into()),
        ("pad_prompt", pad_prompt.into()),
    ];
    let chosen = chosen.into_iter().chain(args.cached.map(|cached| ("cached", cached.into())));
    let chosen = chosen.chain(args.draft.reported()).chain(pad_answer.then_some(("pad_answer", true.into())));
    let mut report = report(&model, None, prompt, &outcome, &terms, chosen)?;
    report.predicted = true;
    report.kernels = None;
    report.estimated = ["seconds", "cpu_seconds"].map(String::from).to_vec();
    if let Some(draft) = &mut report.draft {
        // How many guesses are right no plan knows.
        draft.tokens_per_pass = draft.rate;
        report.estimated.push("tokens_per_pass".into());
    }
    let mut notes = Vec::new();
    if terms.policy.random_traffic() {
        // Quickselect sends what its coins say: the plan states the mean.
        report.estimated.extend(["bytes", "messages", "flows"].map(String::from));
        notes.push("the traffic of this policy is random: bytes and flows are means (estimated)".to_owned());
    }
    let seconds = match &calibrated {
        Ok(calibrated) => {
            // Without weights, two bytes for each.
            let mapped = mapped_bytes(&args.model).unwrap_or(2 * model.spec.parameters() as u64);
            set_estimates(&mut report, footprint, calibrated.base_bytes(), mapped);
            "seconds and memory are estimated"
        }
        Err(_) => {
            predict_seconds(&mut report, args.link.shape());
            "seconds are those of the network alone"
        }
    };
    notes.push(match calibrated {
        Ok(calibrated) => calibrated.line,
        Err(line) => line,
    });
    notes.push(format!("predicted for {} over {}; {seconds}", model.name, args.link));
    out::line(planned(&report, &args.operations, &notes, args.format.format))?;
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    Ok(())
}
