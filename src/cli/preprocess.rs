//! `waggle preprocess`: the offline phase alone, into files.

use std::path::PathBuf;

use clap::Args;
use model::Lengths;
use protocols::Part;
use session::party::ClientOptions;
use session::pool::{Draft, part_path};

use super::connect::ConnectArgs;
use super::files::{check_writable, write_json};
use super::options::TermsArgs;
use super::pools::{own_pools, warn_of_others};
use super::progress::Progress;
use super::report::report;
use super::{Error, out};

/// Makes the correlations of a generation before its prompt is known. This party's part goes into a file, the
/// server's (`serve --pools`) into a file of its own. `generate --pool` uses both up, once. The file is as secret as
/// the prompt: never copy or restore it.
///
/// With --part it makes one part of several, in a file of its own beside FILE, for example FILE.2-of-4. Any number of
/// parts can be made at once, in any order and on any host, as long as both parties keep the keys of their identity.
/// A part that failed is made again alone. `generate --pool FILE` takes them all.
#[derive(Args, Debug)]
pub(super) struct PreprocessArgs {
    /// The file to write; it must not exist.
    #[arg(long, value_name = "FILE")]
    pool: PathBuf,
    /// Tokens of the prompt, at most. A prompt of exactly this length takes everything from the pool. For a shorter
    /// one, products with keys and values are made on the spot.
    #[arg(long, value_name = "N")]
    prompt_len: usize,
    /// Tokens to generate, at most.
    #[arg(long, value_name = "N", default_value_t = 32)]
    tokens: usize,
    /// Make part I of N alone, from 1/N to N/N; N is at most 256. All parts take the same bounds and terms.
    #[arg(long, value_name = "I/N", default_value_t = Part::WHOLE)]
    part: Part,
    /// Before that, give up all pools that this identity had with the server, but those in this directory or file;
    /// may be repeated. It makes room for pools that were lost here: damaged, deleted, or used up by a client that
    /// was killed. Run nothing else with this identity meanwhile.
    #[arg(long, value_name = "PATH")]
    forget_all_but: Vec<PathBuf>,
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
    let path = part_path(&args.pool, args.part);
    // This draft is gone at once. The one that stays is made when the server has agreed.
    Draft::create(&path).map_err(|e| e.at(&path))?;
    warn_of_others(&path);
    let terms = args.terms.two_phases()?.terms(args.connect.link)?;
    let session = args.connect.open(&terms, ClientOptions::default())?;
    let model = session.model().clone();
    let session = match &args.forget_all_but[..] {
        [] => session,
        // Looked for only now that the session has begun: the server keeps what is made from here on.
        paths => session.having_only(own_pools(paths)?),
    };
    let mut progress = Progress::bars(0);
    let bound = Lengths { prompt: args.prompt_len, tokens: args.tokens };
    let outcome = session.fill_part(bound, args.part, &path, &mut progress);
    let outcome = progress.finish(outcome)?;
    if let Some(path) = &args.json {
        let part = Some(args.part.to_string()).filter(|_| !args.part.is_whole());
        let chosen =
            [("link", args.connect.link.to_string().into()), ("tokens", args.tokens.into()), ("part", part.into())];
        let mut report = report(&model, None, args.prompt_len, &outcome, &terms, chosen)?;
        report.peak_memory_bytes.client = net::peak_memory_bytes();
        write_json(path, &report)?;
    }
    outcome.filled.map_or(Ok(()), out::line)
}
