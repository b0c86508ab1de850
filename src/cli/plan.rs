//! `waggle plan`: what a session would send, without one.

use std::path::{Path, PathBuf};

use clap::Args;
use model::party::{ClientOptions, ModelServer, PublicModel, Request, plan};
use model::{Lengths, ModelSpec};

use super::files::{DEFAULT_MODEL, check_writable, open_model, write_json};
use super::options::{LINKS, LinkArg, TermsArgs};
use super::progress::Progress;
use super::report::{options, predict_seconds, report, tables};
use super::{Error, out};

/// Predicts bytes and flows of a session, to the byte, from shapes alone: of `demo`, where the client has the tokenizer.
#[derive(Args, Debug)]
pub(super) struct PlanArgs {
    /// Hugging Face directory, a `config.json` alone, or the name of a bundled model. With the weights the fixed point
    /// of each is known; from a configuration alone all are assumed to be below 16.
    #[arg(long, value_name = "DIR|CONFIG", default_value = DEFAULT_MODEL)]
    model: String,
    /// Tokens of the prompt.
    #[arg(long, value_name = "N", default_value_t = 32)]
    prompt_len: usize,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Count the byte after each token with which a client says whether it goes on.
    #[arg(long)]
    stop_at_eos: bool,
    /// The prompt is one of `generate --pad-prompt`, of which --prompt-len is the padded length.
    #[arg(long)]
    pad_prompt: bool,
    /// Network of the session: its rate decides what matrix products pack, rate and delay how many rounds a maximum takes,
    /// and the seconds are predicted for it, transfer and delay without computation.
    #[arg(long, value_name = LINKS, default_value = "lan")]
    link: LinkArg,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: PlanArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let mut progress = Progress::bars(args.tokens);
    progress.spin("reading the model");
    let model = describe(&args.model)?;
    let request = Request {
        lengths: Lengths { prompt: args.prompt_len, tokens: args.tokens },
        stop_at_eos: args.stop_at_eos,
        padded: args.pad_prompt,
    };
    let terms = args.terms.terms(args.link)?;
    let outcome = plan(&model, &terms, &ClientOptions::default(), &request, &mut progress)?;
    drop(progress);
    let mut chosen = options([
        ("link", args.link.to_string().into()),
        ("tokens", args.tokens.into()),
        ("stop_at_eos", args.stop_at_eos.into()),
        ("pad_prompt", args.pad_prompt.into()),
    ]);
    chosen.extend(args.terms.reported(&terms));
    let mut report = report(&model, None, args.prompt_len, &outcome, chosen)?;
    report.predicted = true;
    report.estimated = ["seconds", "cpu_seconds"].map(String::from).to_vec();
    if terms.policy.random_traffic() {
        // Quickselect sends what its coins say: the plan states the mean.
        report.estimated.extend(["bytes", "messages", "flows"].map(String::from));
        out::line("the traffic of this policy is random: bytes and flows are means (estimated)")?;
    }
    predict_seconds(&mut report, args.link.shape());
    let what =
        format_args!("predicted for {} over {}; seconds are those of the network alone", model.name, args.link);
    out::line(format_args!("{what}\n{}", tables(&report)))?;
    if let Some(path) = &args.json {
        write_json(path, &report)?;
    }
    Ok(())
}

/// What is public about a model that may be a configuration alone.
fn describe(name: &str) -> Result<PublicModel, Error> {
    let path = Path::new(name);
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let only_config = path.is_file() || path.is_dir() && !weights.iter().any(|file| path.join(file).is_file());
    if !only_config {
        return Ok(ModelServer::load(open_model(name)?)?.public().clone());
    }
    let spec = ModelSpec::open(path)?;
    let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
    let frac_bits = vec![protocols::DEFAULT_WEIGHT_FRAC; spec.weight_specs().len()];
    Ok(PublicModel { name, spec, frac_bits, tokenizer: None })
}
