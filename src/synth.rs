//! `waggle synth`: random weights of any real shape.

use std::path::PathBuf;

use clap::Args;
use waggle_files::load;
use waggle_model::{DType, shape, synthesize};

use super::options::named;
use super::together::clean_up_on_signals;
use super::{Error, out};

/// Writes a model directory with random weights, for timing shapes whose trained weights are not at hand.
#[derive(Args, Debug)]
pub(super) struct SynthArgs {
    /// A `config.json` that gives the shape, or a published one by name, such as gpt2 or llama-2-7b.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Directory to write.
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Number of layers, instead of the configuration's.
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Equal seeds give equal files; such weights are no secret.
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Type of the stored weights.
    #[arg(long, value_parser = named(&DTYPES), default_value = "f16")]
    dtype: DType,
    /// Split weights of more gigabytes into files of at most so many, with an index, as large models are published.
    #[arg(long, value_name = "GB", default_value_t = 5.0)]
    shard: f64,
}

const DTYPES: [(&str, DType); 3] = [("f32", DType::F32), ("f16", DType::F16), ("bf16", DType::Bf16)];

pub(super) fn run(args: SynthArgs) -> Result<(), Error> {
    clean_up_on_signals()?;
    let config = match args.config.to_str().and_then(shape) {
        Some(config) if !args.config.exists() => config.to_vec(),
        _ => load(&args.config)?,
    };
    let shard = (args.shard.max(0.0) * 1e9) as u64;
    let spec = synthesize(&config, &args.out, args.layers, args.dtype, Some(shard), args.seed)?;
    out::line(format_args!("{}: {} layers, {} parameters", args.out.display(), spec.layers(), spec.parameters()))
}
