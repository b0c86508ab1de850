//! `waggle classify`: the party with a text or an image, whose class or masked word a server's encoder gives.

use std::path::PathBuf;

use clap::Args;

use super::connect::ConnectArgs;
use super::options::TermsArgs;
use super::pools::warn_of_others;
use super::progress::Progress;
use super::report_tables::cost_line;
use super::{Error, out};
use crate::disk::{check_writable, write_json};
use crate::{Generate, Pads, Prompt, TokenizerOf};

/// Asks the encoder of a server for the class of a text or of an image. The server learns neither it nor the class.
///
/// A model with the head of a masked word gives the word in the place of the text's one mask, which is written as
/// the tokenizer does: [MASK] or <mask>. The server does not learn where it is.
///
/// With `--reveal logits` the client learns the logits of all classes, and with `--reveal token` the class alone.
#[derive(Args, Debug)]
pub(super) struct ClassifyArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// The text; needs a tokenizer.
    #[arg(long, value_name = "TEXT", required_unless_present_any = ["text_ids", "image"])]
    text: Option<String>,
    /// A second text, beside which the encoder reads the first: an answer, a claim, a translation.
    #[arg(long, value_name = "TEXT", requires = "text")]
    pair: Option<String>,
    /// The text as token ids, those that begin and end it included, for models without a tokenizer.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', num_args = 1, conflicts_with = "text")]
    text_ids: Option<Vec<u32>>,
    /// Hide how long the text is: pad it to the next of these lengths, which anybody may know, or with `auto` to the
    /// next power of two from 16 on. The server sees the padded length alone.
    #[arg(long, value_name = "auto|N,N", num_args = 0..=1, default_missing_value = "auto")]
    pad: Option<Pads>,
    /// An image, a PNG or a JPEG, for a model that reads images.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["text", "text_ids", "pad"])]
    image: Option<PathBuf>,
    /// Use this `tokenizer.json` instead of the server's.
    #[arg(long, value_name = "FILE", conflicts_with = "image")]
    tokenizer: Option<PathBuf>,
    /// Use this `preprocessor_config.json` instead of the server's.
    #[arg(long, value_name = "FILE", requires = "image")]
    preprocessor: Option<PathBuf>,
    /// Take the correlations from this file of `waggle preprocess`, as `generate` does.
    #[arg(long, value_name = "FILE")]
    pool: Option<PathBuf>,
    /// Write the report here.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    #[command(flatten)]
    terms: TermsArgs,
}

pub(super) fn run(args: ClassifyArgs) -> Result<(), Error> {
    check_writable(args.json.as_deref())?;
    args.pool.iter().for_each(|path| warn_of_others(path));
    let tokenizer = args.tokenizer.or(args.preprocessor).map_or(TokenizerOf::Server, TokenizerOf::File);
    let input = match (args.image, args.text_ids, args.text.unwrap_or_default(), args.pair) {
        (Some(image), ..) => Prompt::Image(image),
        (None, Some(ids), ..) => Prompt::Ids(ids),
        (None, None, text, None) => Prompt::Text(text),
        (None, None, text, Some(pair)) => Prompt::Pair(text, pair),
    };
    let asked = Generate::after(input).tokens(1).pad_prompt(args.pad).pool(args.pool).tokenizer(tokenizer);
    let client = args.connect.client(args.terms.terms()?);
    let mut progress = Progress::of_text(1);
    let generated = client.generate(&asked, &mut progress);
    let generated = progress.finish(generated)?;
    out::note(cost_line(&generated));
    if let Some(path) = &args.json {
        write_json(path, &generated.report)?;
    }
    Ok(())
}
