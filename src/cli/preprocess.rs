//! `waggle preprocess`: the offline phase alone, into files.

use std::path::PathBuf;

use clap::Args;
use model::Lengths;
use model::pool::{Draft, PoolId};

use super::connect::ConnectArgs;
use super::files::{check_writable, write_json};
use super::options::TermsArgs;
use super::pools::warn_of_others;
use super::progress::Progress;
use super::report::{options, report};
use super::{Error, out};

/// Makes the correlations of a generation before its prompt is known: this party's go into a file, the server's (`serve
/// --pools`) into one of its own. `generate --pool` uses both up, once. The file is as secret as the prompt: never copy or
/// restore it.
#[derive(Args, Debug)]
pub(super) struct PreprocessArgs {
    /// The file to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pool: PathBuf,
    /// Tokens of the prompt, at most. A prompt of exactly this length takes everything from the pool; for a shorter one
    /// products with keys and values are made on the spot.
    #[arg(long, value_name = "N")]
    prompt_len: usize,
    /// Tokens to generate, at most.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    connect: ConnectArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: PreprocessArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    // Gone at once; what is made here for good is made when the server has agreed.
    Draft::create(&args.pool).map_err(|e| e.at(&args.pool))?;
    warn_of_others(&args.pool);
    let chosen_terms = args.terms.two_phases()?;
    let terms = chosen_terms.terms(args.connect.link)?;
    let session = args.connect.open(&terms, false)?;
    let model = session.model().clone();
    let mut progress = Progress::bars(0);
    let bound = Lengths { prompt: args.prompt_len, tokens: args.tokens };
    let outcome = session.fill(bound, &args.pool, &mut progress);
    let outcome = progress.finish(outcome)?;
    if let Some(path) = &args.json {
        let mut chosen = options([("link", args.connect.link.to_string().into()), ("tokens", args.tokens.into())]);
        chosen.extend(chosen_terms.reported(&terms));
        let mut report = report(&model, None, args.prompt_len, &outcome, chosen)?;
        report.peak_memory_bytes.client = net::peak_memory_bytes();
        write_json(path, &report)?;
    }
    outcome.filled.map_or(Ok(()), |id| out::line(filled(id)))
}

/// A line for either party.
pub(super) fn filled(id: PoolId) -> String {
    format!("pool {id} filled")
}
