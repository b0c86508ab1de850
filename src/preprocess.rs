//! `waggle preprocess`: the offline phase alone, into files.

use std::path::PathBuf;

use clap::Args;
use waggle::Fill;
use waggle_files::{check_writable, write_json};
use waggle_protocols::Part;
use waggle_session::pool::part_path;

use super::connect::ConnectArgs;
use super::helper::HelpedArgs;
use super::options::TermsArgs;
use super::pools::warn_of_others;
use super::progress::Progress;
use super::prompt::{OfferArgs, PublicArgs};
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
    /// Texts of that length that the model reads side by side, as with `classify --file` and `generate --prompts`: so
    /// many, no fewer.
    #[arg(long, value_name = "N", default_value_t = 1)]
    texts: usize,
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
    public: PublicArgs,
    #[command(flatten)]
    offer: OfferArgs,
    #[command(flatten)]
    helped: HelpedArgs,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: PreprocessArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    warn_of_others(&part_path(&args.pool, args.part));
    let fill = Fill::default()
        .pool(args.pool)
        .prompt(args.prompt_len)
        .texts(args.texts)
        .tokens(args.tokens)
        .public(args.public.read()?)
        .part(args.part)
        .forget_all_but(args.forget_all_but);
    let client = args.connect.client(args.terms.terms()?.helper(args.helped.helper()?));
    let client = client.offers(!args.offer.no_public_prefix);
    let mut progress = Progress::bars(0);
    let prepared = client.preprocess_with(&fill, &mut |event| progress.hear(event));
    let prepared = progress.finish(prepared)?;
    if let Some(path) = &args.json {
        write_json(path, &prepared.report)?;
    }
    prepared.filled.map_or(Ok(()), out::line)
}
