//! `waggle fit`: what cache policies learn from a text in the clear.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use waggle::DEFAULT_MODEL;
use waggle::program::{open_model, utf8};
use waggle_files::{check_writable, load};
use waggle_model::{FloatModel, ModelFiles, learned_file};
use waggle_mpcache::{LayerSet, PolicySpec};
use waggle_study::eval::Sequence;
use waggle_study::fit::{Target, fit_columns, fit_layers};

use super::error::EvalError;
use super::eval::text_ids;
use super::progress::passes;
use super::{Error, out};

/// Finds what a cache policy needs to know of a model, on a text in the clear. The text should be like those to come,
/// and it should not be one on which the policy is measured.
#[derive(Args, Debug)]
pub(super) struct FitArgs {
    #[command(subcommand)]
    policy: Fitted,
}

#[derive(Subcommand, Debug)]
enum Fitted {
    /// Fits the columns of `kvzap` and writes them to `kvzap.safetensors`, which belongs into the model's directory.
    Kvzap {
        #[command(flatten)]
        columns: ColumnArgs,
        /// Learn what later queries look at that are so many tokens or more behind: about as many as `recent` keeps.
        #[arg(long, value_name = "N", default_value_t = 32)]
        after: usize,
    },
    /// Fits the columns of `qfilters` and writes them to `qfilters.safetensors`, which belongs into the model's
    /// directory.
    Qfilters {
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// Fits the columns of `keydiff` and writes them to `keydiff.safetensors`, which belongs into the model's
    /// directory.
    Keydiff {
        #[command(flatten)]
        columns: ColumnArgs,
    },
    /// Finds the layers that get less with `squeeze`, and prints the option `layers`.
    Squeeze {
        #[command(flatten)]
        text: TextArgs,
    },
}

/// What columns are fitted to, and where they go.
#[derive(Args, Debug)]
struct ColumnArgs {
    #[command(flatten)]
    text: TextArgs,
    /// The file to write, instead of the policy's in the model's directory.
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
}

/// A model and a text.
#[derive(Args, Debug)]
struct TextArgs {
    /// Hugging Face directory, or the name of a bundled model.
    #[arg(long, value_name = "DIR", default_value = DEFAULT_MODEL)]
    model: String,
    /// Text to learn from: a file, or with the ending .json a list of texts, which are joined.
    #[arg(long, value_name = "FILE", required_unless_present = "data", conflicts_with = "data")]
    text: Option<PathBuf>,
    /// Sequences to learn from: JSON lines as `waggle eval --task recall` takes them, all of one length.
    #[arg(long, value_name = "FILE")]
    data: Option<PathBuf>,
    /// Tokens of a sequence of text, which goes through the model at once.
    #[arg(long, value_name = "N", default_value_t = 256, conflicts_with = "data")]
    context: usize,
    /// Sequences to leave out at the beginning.
    #[arg(long, value_name = "N", default_value_t = 0)]
    skip: usize,
    /// Most sequences to learn from.
    #[arg(long, value_name = "N", default_value_t = 128)]
    sequences: usize,
}

impl TextArgs {
    fn read(&self, files: &ModelFiles) -> Result<Vec<Vec<u32>>, Error> {
        let wanted = self.skip.saturating_add(self.sequences);
        let sequences: Vec<Vec<u32>> = match (&self.data, &self.text) {
            (Some(path), _) => {
                let sequences = Sequence::of_queries(&utf8(path, load(path)?)?, None, None)?;
                let ids: Vec<Vec<u32>> =
                    sequences.iter().take(wanted).map(|sequence| sequence.ids().to_vec()).collect();
                // All sequences are cut to the shortest, as the fit needs one length.
                let length = ids.iter().map(Vec::len).min().unwrap_or(0);
                ids.into_iter().map(|ids| ids[..length].to_vec()).collect()
            }
            (None, Some(path)) => {
                let context = self.context.max(2);
                let ids = text_ids(files, path, context.saturating_mul(wanted))?;
                ids.chunks_exact(context).take(wanted).map(<[u32]>::to_vec).collect()
            }
            // This does not happen, as clap requires one of the two.
            (None, None) => return Err(EvalError::NoText.into()),
        };
        sequences.iter().try_for_each(|ids| files.spec.check_ids(ids))?;
        Ok(sequences.into_iter().skip(self.skip).collect())
    }
}

pub(super) fn run(args: FitArgs) -> Result<(), Error> {
    match args.policy {
        Fitted::Kvzap { columns, after } => fit(columns, Target::Attention { after }),
        Fitted::Qfilters { columns } => fit(columns, Target::Queries),
        Fitted::Keydiff { columns } => fit(columns, Target::Keys),
        Fitted::Squeeze { text } => squeeze(&text),
    }
}

fn fit(ColumnArgs { text, out: path }: ColumnArgs, target: Target) -> Result<(), Error> {
    let beside = PathBuf::from(&text.model).join(learned_file(target.head()));
    let path = path.unwrap_or(beside);
    check_writable(Some(&path))?;
    let files = open_model(&text.model)?;
    let sequences = text.read(&files)?;
    let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let model = FloatModel::open_to_fit(&files, target.head())?;
    let bar = passes(sequences.len());
    let fitted = fit_columns(&model, &files.checkpoint, &sequences, target, &mut || bar.inc(1));
    bar.finish_and_clear();
    let fitted = fitted?;
    fitted.write(&files.spec, &files.checkpoint, &path)?;
    for (layer, correlation) in fitted.correlations.iter().enumerate() {
        out::line(format_args!("layer {layer}: correlation {correlation:.3} on sequences held out"))?;
    }
    out::line(format_args!("{}: learned from {} sequences", path.display(), sequences.len()))
}

fn squeeze(text: &TextArgs) -> Result<(), Error> {
    let files = open_model(&text.model)?;
    let sequences = text.read(&files)?;
    let sequences: Vec<&[u32]> = sequences.iter().map(Vec::as_slice).collect();
    let model = FloatModel::open(&PolicySpec::default(), &files)?;
    let bar = passes(sequences.len());
    let change = fit_layers(&model, &sequences, &mut || bar.inc(1));
    bar.finish_and_clear();
    let change = change?;
    for (layer, cosine) in change.similarity.iter().enumerate() {
        out::line(format_args!("layer {layer}: cosine {cosine:.4} of hidden states before and after attention"))?;
    }
    match change.light.as_ref().map(LayerSet::to_string) {
        Some(layers) => out::line(format_args!("squeeze:layers={layers}")),
        None => out::line("a single layer has nobody to give its budget to"),
    }
}
