//! `waggle quantize`: weights of 8 bits.

use std::path::PathBuf;

use clap::Args;
use waggle::program::{mapped_bytes, open_model};

use super::together::clean_up_on_signals;
use super::{Error, out};

/// Writes a model directory whose matrices have 8 bits an entry, and a scale for every row as it is stored.
///
/// Entries are rounded to the nearest of 255 multiples of the scale, the largest of which is the largest entry of the
/// row. A row holds the weights of one output, but those of one input in the files of GPT-2. Norms and biases stay as
/// they are. Sessions then use a narrower ring for these matrices. `waggle eval` tells what the rounding costs in
/// accuracy.
#[derive(Args, Debug)]
pub(super) struct QuantizeArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR")]
    model: String,
    /// Directory to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Split weights of more gigabytes into files of at most so many, with an index, as large models are published.
    #[arg(long, value_name = "GB", default_value_t = 5.0)]
    shard: f64,
}

pub(super) fn run(args: QuantizeArgs) -> Result<(), Error> {
    clean_up_on_signals()?;
    let shard = (args.shard.max(0.0) * 1e9) as u64;
    let spec = waggle_model::quantize(&open_model(&args.model)?, &args.out, Some(shard))?;
    let megabytes = mapped_bytes(&args.out.to_string_lossy()).unwrap_or_default() as f64 / 1e6;
    out::line(format_args!("{}: {} parameters in {megabytes:.1} MB", args.out.display(), spec.parameters()))
}
