//! `waggle quantize`: weights of 8 bits.

use std::path::PathBuf;

use clap::Args;

use super::{Error, out};
use crate::models::mapped_bytes;

/// Writes a model directory whose matrices have 8 bits an entry, and a scale for every row as it is stored.
///
/// Entries are rounded to the nearest of 255 multiples of the scale, the largest of which is the largest entry of the
/// row. A row holds the weights of one output, but those of one input in the files of GPT-2. Norms and biases stay as
/// they are. Sessions then use a narrower ring for these matrices. `waggle eval` tells what the rounding costs in
/// accuracy.
#[derive(Args, Debug)]
pub(super) struct QuantizeArgs {
    /// Hugging Face directory.
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Directory to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Split weights of more gigabytes into files of at most so many, with an index, as large models are published.
    #[arg(long, value_name = "GB", default_value_t = 5.0)]
    shard: f64,
}

pub(super) fn run(args: QuantizeArgs) -> Result<(), Error> {
    let shard = (args.shard.max(0.0) * 1e9) as u64;
    model::quantize(&args.model, &args.out, Some(shard))?;
    let bytes = |dir: &PathBuf| mapped_bytes(&dir.to_string_lossy()).unwrap_or_default() as f64 / 1e6;
    let (before, after) = (bytes(&args.model), bytes(&args.out));
    out::line(format_args!("{}: {after:.1} MB of weights, {before:.1} MB before", args.out.display()))
}
