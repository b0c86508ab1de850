//! `waggle generate`: the party with the prompt.

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use model::party::{Opened, Wishes};
use model::{ModelSpec, Next, Tokenizer, bundled, bundled_names};
use net::tcp::{self, ConnectOptions};
use net::{Channel, Role};

use super::Error;
use super::files::{check_writable, read, write_json};
use super::options::{LINKS, LinkArg, SamplingArgs, TermsArgs, link_between_processes, seconds};
use super::progress::Progress;
use super::prompt::PromptArgs;
use super::report::{options, report};

/// Generates text with the model of a server, which does not learn prompt and text.
#[derive(Args, Debug)]
pub(super) struct GenerateArgs {
    /// Address of the server.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:7411")]
    connect: String,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Tokens to generate.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Insist on the shape of this `config.json` (or of the one in this directory, or of this bundled model).
    #[arg(long, value_name = "CONFIG")]
    expect: Option<String>,
    /// Use this `tokenizer.json` instead of the server's.
    #[arg(long, value_name = "FILE")]
    tokenizer: Option<PathBuf>,
    /// Slow what this party sends to a network; the server must do the same.
    #[arg(long, value_name = LINKS, value_parser = link_between_processes, default_value = "loopback")]
    link: LinkArg,
    /// Give up on a server that is silent for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "120")]
    timeout: Duration,
    /// Give up on a server that cannot be reached for this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "30")]
    connect_timeout: Duration,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: GenerateArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    let terms = args.terms.terms(args.link)?;
    let mut sampler = args.sampling.sampler(&terms)?;
    let expected = args.expect.as_deref().map(expected_shape).transpose()?;
    let own = args.tokenizer.as_deref().map(read).transpose()?;

    let timeouts = ConnectOptions { connect_timeout: args.connect_timeout, read_timeout: args.timeout };
    let link = tcp::connect(args.connect.as_str(), timeouts)?;
    let channel = Channel::new(Role::Client, args.link.wrap(link)?);
    let wishes = Wishes { expected: expected.as_ref(), tokenizer: own.is_none() };
    let session = Opened::open(channel, &terms, &wishes)?;

    let model = session.model().clone();
    let tokenizer = own.as_deref().or(model.tokenizer.as_deref()).map(Tokenizer::from_bytes).transpose()?;
    let prompt = args.prompt.ids(tokenizer.as_ref())?;
    let mut progress = Progress::of_text(tokenizer.as_ref(), &prompt, args.tokens);
    let next = Next::Pick(&mut sampler);
    let outcome = session.generate(&prompt, args.tokens, args.sampling.stop_at_eos, next, &mut progress)?;
    progress.finish();
    if let Some(path) = &args.json {
        let mut chosen = options([
            ("link", args.link.to_string().into()),
            ("tokens", args.tokens.into()),
            ("temperature", args.sampling.temperature.into()),
            ("top_p", args.sampling.top_p.into()),
            ("seed", args.sampling.seed.into()),
            ("stop_at_eos", args.sampling.stop_at_eos.into()),
        ]);
        chosen.extend(args.terms.reported(&terms));
        let mut report = report(&model, tokenizer.as_ref(), prompt.len(), &outcome, chosen)?;
        report.peak_memory_bytes.client = net::peak_memory_bytes();
        write_json(path, &report)?;
    }
    Ok(())
}

fn expected_shape(name: &str) -> Result<ModelSpec, Error> {
    let path = Path::new(name);
    if !path.exists() && bundled_names().any(|bundled| bundled == name) {
        return Ok(bundled(name)?.spec);
    }
    Ok(ModelSpec::open(path)?)
}
