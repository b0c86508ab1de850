//! From published tensors to the weights that an engine computes with.
//!
//! Norm gains and the attention scale are folded into matrices when entries are read, so that a matrix needs no copy
//! beside the published file.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array1, Array2, Axis, s};
use rayon::prelude::*;
use waggle_bits::cpu::wide;
use waggle_engine::{MatrixSource, Order, Stored, WeightData, WeightLoader, WeightSpec};

use crate::joined::{Above, ByColumns, Diagonal, side_by_side};
use crate::learned::Columns;
use crate::mapping::Numbers;
use crate::public::{Disclosed, ModelPart};
use crate::style::Norm;
use crate::{Checkpoint, CheckpointError, Error};

/// Sums over all lines are computed for this number of places at a time.
const STRIP: usize = 512;

/// The values that a party knows of the weights of a model.
#[derive(Clone, Copy)]
pub enum Known<'a> {
    /// No values.
    Nothing,
    /// All values, as on the server.
    All(&'a Checkpoint),
    /// The values of public parts, as on the client. The rest of the checkpoint is not read.
    Public(&'a Checkpoint),
}

/// Builds the weights of a model one after another. Without a checkpoint (on the client, for a plan, or to list the
/// specifications) it builds the same weights without values.
pub(crate) struct Builder<'a, W> {
    pub(crate) known: Known<'a>,
    /// The columns of a scoring head beside query, key and value.
    pub(crate) columns: Columns,
    /// Whether matrices are stored as integers with scales.
    pub(crate) narrow: bool,
    /// The public parts of the model, and the ranks of the adapters of its matrices.
    pub(crate) disclosed: &'a Disclosed,
    /// The part that the next weights belong to.
    pub(crate) part: ModelPart,
    pub(crate) loader: &'a mut dyn WeightLoader<Weight = W>,
}

impl<'a, W> Builder<'a, W> {
    /// The checkpoint with the values of the next weight, if this party knows them.
    fn values(&self) -> Option<&'a Checkpoint> {
        match self.known {
            Known::All(checkpoint) => Some(checkpoint),
            Known::Public(checkpoint) if self.disclosed.parts.hold(self.part) => Some(checkpoint),
            Known::Public(_) | Known::Nothing => None,
        }
    }

    /// Builds a weight of shape (inputs, outputs). `read` gives its values.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        (inputs, outputs): (usize, usize),
        read: impl FnOnce(&Checkpoint) -> Result<Published, CheckpointError>,
    ) -> Result<W, Error> {
        let public = self.disclosed.parts.hold(self.part);
        let spec = WeightSpec { name: name.into(), inputs, outputs, narrow: self.narrow, public, blocks: 1 };
        let values = self.values();
        let Some(published) = values.map(read).transpose()? else {
            return Ok(self.loader.load(&spec, None)?);
        };
        let names: Vec<_> = published.names().map(str::to_owned).collect();
        self.loader.load(&spec, Some(published.data())).map_err(|error| match (&error, values) {
            // The error names the published tensor if the fault lies in it.
            (waggle_engine::Error::NotFinite { .. }, Some(checkpoint)) => {
                let read = names.iter().try_for_each(|name| checkpoint.read(name).map(|_| ()));
                read.err().map_or_else(|| error.into(), Error::from)
            }
            _ => error.into(),
        })
    }

    /// Builds a vector of length `width` that is a weight by itself, such as gains. `read` gives its values.
    pub(crate) fn gains(
        &mut self,
        name: &str,
        width: usize,
        read: impl FnOnce(&Checkpoint) -> Result<Array1<f32>, CheckpointError>,
    ) -> Result<W, Error> {
        let public = self.disclosed.parts.hold(self.part);
        let spec = WeightSpec { name: name.into(), inputs: 1, outputs: width, narrow: false, public, blocks: 1 };
        let data = self.values().map(read).transpose()?;
        let data = data.map(|gains| WeightData::new(gains.insert_axis(Axis(0)), None));
        Ok(self.loader.load(&spec, data)?)
    }

    /// Builds one of the two thin matrices of an adapter. These belong to the server: they are never public, and
    /// never stored as integers.
    pub(crate) fn factor(
        &mut self,
        name: &str,
        (inputs, outputs): (usize, usize),
        data: Option<WeightData>,
    ) -> Result<W, Error> {
        let spec = WeightSpec::new(name, inputs, outputs);
        Ok(self.loader.load(&spec, data)?)
    }
}

/// Reads the vectors of a norm.
impl Norm {
    /// The gain of the norm `name`.
    pub(crate) fn gain(self, c: &Checkpoint, name: &str) -> Result<Array1<f32>, CheckpointError> {
        let gain = c.vector(&format!("{name}.weight"))?;
        Ok(if self == Norm::RmsLessOne { gain + 1.0 } else { gain })
    }

    /// The shift of the norm `name`, if norms have shifts.
    pub(crate) fn shift(self, c: &Checkpoint, name: &str) -> Result<Option<Array1<f32>>, CheckpointError> {
        (self == Norm::Layer).then(|| c.vector(&format!("{name}.bias"))).transpose()
    }
}

/// A weight as published, with everything that is folded into it.
#[derive(Debug)]
pub(crate) struct Published {
    matrix: PublishedMatrix,
    bias: Option<Array1<f32>>,
    /// Weights whose outputs follow those of this one.
    after: Vec<Published>,
    /// Further columns of outputs, into which nothing is folded.
    further: Option<Array2<f32>>,
    /// The gains of further inputs, one for each output. Such an input, times its gain, is added to its output.
    added: Option<Array1<f32>>,
}

/// A published matrix with what is folded into it. If outputs are centred, the mean of an input's entries over all
/// outputs is subtracted from each of these entries. An entry is then multiplied by the gain of its input, and in the
/// first outputs also by a factor.
#[derive(Debug)]
struct PublishedMatrix {
    /// Pieces of one tensor, in the order of their lines.
    parts: Vec<Lines>,
    order: Order,
    /// For each input, the mean of its entries over all outputs.
    means: Option<Vec<f32>>,
    gain: Option<Array1<f32>>,
    /// The number of first outputs that are multiplied by a factor, and this factor.
    scaled: Option<(usize, f32)>,
}

/// Some neighbouring rows of a published tensor; for more than two dimensions, see [`Lines::find`].
#[derive(Clone, Debug)]
struct Lines {
    name: String,
    /// The index in the tensor of the first of these lines.
    first: usize,
    lines: usize,
    length: usize,
    numbers: Numbers,
}

impl Lines {
    /// The whole tensor. A tensor of more than two dimensions is either a table with rows along its last dimension,
    /// or a matrix with outputs along its first: a convolution whose patches do not overlap.
    fn find(checkpoint: &Checkpoint, name: &str, order: Order) -> Result<Self, CheckpointError> {
        let (shape, numbers) = checkpoint.numbers(name)?;
        if shape.len() < 2 {
            return Err(CheckpointError::Shape { tensor: name.into(), expected: vec![0, 0], got: shape.to_vec() });
        }
        let (lines, line) = shape.split_at(if order == Order::Rows { shape.len() - 1 } else { 1 });
        let (lines, length) = (lines.iter().product(), line.iter().product());
        Ok(Lines { name: name.into(), first: 0, lines, length, numbers: numbers.clone() })
    }
}

impl Published {
    /// The table `tensor`, published as (inputs, outputs).
    pub(crate) fn table(c: &Checkpoint, tensor: &str) -> Result<Self, CheckpointError> {
        Ok(Published::new(vec![Lines::find(c, tensor, Order::Rows)?], Order::Rows, None))
    }

    /// The linear layer `name`, with or without a bias. `order` says whether it is published as (inputs, outputs) or
    /// as (outputs, inputs).
    pub(crate) fn linear(c: &Checkpoint, name: &str, order: Order, biased: bool) -> Result<Self, CheckpointError> {
        let part = Lines::find(c, &format!("{name}.weight"), order)?;
        let bias = biased.then(|| c.vector(&format!("{name}.bias"))).transpose()?;
        Ok(Published::new(vec![part], order, bias))
    }

    fn new(parts: Vec<Lines>, order: Order, bias: Option<Array1<f32>>) -> Self {
        let matrix = PublishedMatrix { parts, order, means: None, gain: None, scaled: None };
        Published { matrix, bias, after: Vec::new(), further: None, added: None }
    }

    /// The weight whose outputs are the outputs `ranges` of this weight, one range after another. This weight must be
    /// a single published linear layer.
    ///
    /// # Panics
    /// If the layer does not have these outputs. The checkpoint's shapes are checked before.
    pub(crate) fn reordered(self, ranges: &[Range<usize>]) -> Self {
        let whole = &self.matrix.parts[0];
        let part = |&Range { start, end }: &Range<usize>| {
            assert!(start <= end && end <= whole.lines, "outputs of `{}`", whole.name);
            Lines { first: start, lines: end - start, ..whole.clone() }
        };
        let bias =
            self.bias.map(|bias| ranges.iter().flat_map(|range| bias.slice(s![range.clone()]).to_vec()).collect());
        Published::new(ranges.iter().map(part).collect(), Order::Columns, bias)
    }

    /// The weight with the outputs of `weights`, one weight after another. All of them have the same number of inputs
    /// and are published in the same order.
    ///
    /// # Panics
    /// If `weights` is empty.
    pub(crate) fn side_by_side(weights: Vec<Published>) -> Self {
        let mut weights = weights.into_iter();
        let first = weights.next().expect("a weight");
        Published { after: weights.collect(), ..first }
    }

    /// The names of the tensors that the weight is made of.
    fn names(&self) -> impl Iterator<Item = &str> {
        let after = self.after.iter().flat_map(|after| &after.matrix.parts);
        self.matrix.parts.iter().chain(after).map(|part| part.name.as_str())
    }

    /// The weight whose outputs have the mean 0 for every input: the matrix W becomes W (1 - 1/n) and the bias b
    /// becomes b (1 - 1/n), where 1/n stands for the matrix that averages n outputs. A layer norm would subtract the
    /// mean of its input. If only layer norms read the sum of such outputs, nothing is lost. The mean is 0 already,
    /// and the norm is a root-mean-square norm.
    fn centred(mut self) -> Self {
        let outputs = self.matrix.shape().1;
        let mean = |sum: f64| (sum / outputs.max(1) as f64) as f32;
        let sums = match self.matrix.order {
            Order::Rows => self.matrix.sums_of_lines(&Array1::ones(outputs)),
            Order::Columns => self.matrix.sums_of_places(&Array1::ones(outputs)),
        };
        self.matrix.means = Some(sums.into_iter().map(mean).collect());
        if let Some(bias) = &mut self.bias {
            let mean = mean(bias.iter().map(|b| f64::from(*b)).sum());
            bias.iter_mut().for_each(|b| *b -= mean);
        }
        self
    }

    /// This weight with the bias `bias`.
    pub(crate) fn with_bias(self, bias: Array1<f32>) -> Self {
        Published { bias: Some(bias), ..self }
    }

    /// The weight after the norm `name` with gain g and shift beta: for the norm's output x' = g x + beta,
    /// x' W + b = x (diag(g) W) + (beta W + b).
    pub(crate) fn after_norm(mut self, norm: Norm, c: &Checkpoint, name: &str) -> Result<Self, CheckpointError> {
        self.matrix.gain = Some(norm.gain(c, name)?);
        let shifted = norm.shift(c, name)?.map(|shift| self.matrix.products_with(&shift));
        Ok(self.shifted(shifted))
    }

    /// The weight with `shift` added to its bias.
    fn shifted(mut self, shift: Option<Array1<f32>>) -> Self {
        self.bias = match (self.bias, shift) {
            (Some(bias), Some(shift)) => Some(bias + shift),
            (bias, shift) => bias.or(shift),
        };
        self
    }

    /// Multiplies the first `columns` outputs by `factor`.
    pub(crate) fn scale_outputs(mut self, columns: usize, factor: f32) -> Self {
        self.matrix.scaled = (factor != 1.0).then_some((columns, factor));
        if let Some(bias) = &mut self.bias {
            bias.iter_mut().take(columns).for_each(|b| *b *= factor);
        }
        self
    }

    /// The weight for the input (x, n) that also adds the residual stream n to its outputs: x W + b + g n + beta, for
    /// the norm `name` with gain g and shift beta.
    pub(crate) fn adding(self, norm: Norm, c: &Checkpoint, name: &str) -> Result<Self, CheckpointError> {
        let added = Some(norm.gain(c, name)?);
        Ok(Published { added, ..self.shifted(norm.shift(c, name)?) })
    }

    /// The weight for outputs that are added to the residual stream. They are centred if norms of the kind `norm`
    /// would subtract the mean of the stream.
    pub(crate) fn residual(self, norm: Norm) -> Self {
        if norm.centres() { self.centred() } else { self }
    }

    /// Puts `columns` (inputs, further outputs) beside the other outputs, unchanged.
    pub(crate) fn widened(self, columns: Option<Array2<f32>>) -> Self {
        Published { further: columns, ..self }
    }

    fn data(self) -> WeightData {
        let further = self.further.map(|columns| -> Arc<dyn MatrixSource> {
            match self.matrix.order {
                Order::Rows => Arc::new(columns),
                Order::Columns => Arc::new(ByColumns(columns)),
            }
        });
        let further = further.map(|matrix| WeightData { matrix, bias: None });
        let centred = self.matrix.means.is_some();
        let matrix: Arc<dyn MatrixSource> = Arc::new(self.matrix);
        let matrix = match self.added {
            Some(gain) => Arc::new(Above { first: matrix, second: Diagonal { gain, centred } }),
            None => matrix,
        };
        let own = WeightData { matrix, bias: self.bias };
        self.after.into_iter().map(Published::data).chain(further).fold(own, side_by_side)
    }
}

impl PublishedMatrix {
    /// The tensor that holds the entries `from .. from + count` of a line, and the place of the first of them in that
    /// tensor.
    fn place(&self, line: usize, from: usize, count: usize) -> (&Numbers, usize) {
        let mut line = line;
        for part in &self.parts {
            if line < part.lines {
                assert!(from + count <= part.length, "entries of a line of `{}`", part.name);
                return (&part.numbers, (part.first + line) * part.length + from);
            }
            line -= part.lines;
        }
        panic!("line {line} after the last of a matrix");
    }

    /// The numbers of a line as they are published.
    fn published(&self, line: usize, from: usize, out: &mut [f32]) {
        let (numbers, at) = self.place(line, from, out.len());
        numbers.read(at, out);
    }

    /// The product of the vector `by` and the published matrix W.
    fn products_with(&self, by: &Array1<f32>) -> Array1<f32> {
        let sums = match self.order {
            Order::Rows => self.sums_of_places(by),
            Order::Columns => self.sums_of_lines(by),
        };
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    /// For every published line, the sum of its entries, each multiplied by the entry of `by` for its place in the
    /// line. Sums are in f64, as they are computed only once.
    fn sums_of_lines(&self, by: &Array1<f32>) -> Vec<f64> {
        let (lines, length) = self.lines();
        let of_line = |line: usize| {
            let mut entries = vec![0f32; length];
            self.published(line, 0, &mut entries);
            entries.iter().zip(by).map(|(w, by)| f64::from(*w) * f64::from(*by)).sum()
        };
        (0..lines).into_par_iter().map(of_line).collect()
    }

    /// For every place in a line, the sum of the entries at this place, each multiplied by the entry of `by` for its
    /// line. The sums are taken for a strip of places at a time.
    fn sums_of_places(&self, by: &Array1<f32>) -> Vec<f64> {
        let (lines, length) = self.lines();
        let strip = |start: usize| {
            let mut sums = vec![0f64; STRIP.min(length - start)];
            let mut piece = vec![0f32; sums.len()];
            for (line, by) in (0..lines).zip(by) {
                self.published(line, start, &mut piece);
                sums.iter_mut().zip(&piece).for_each(|(sum, w)| *sum += f64::from(*w) * f64::from(*by));
            }
            sums
        };
        let strips: Vec<Vec<f64>> = (0..length).into_par_iter().step_by(STRIP).map(strip).collect();
        strips.concat()
    }
}

impl MatrixSource for PublishedMatrix {
    fn shape(&self) -> (usize, usize) {
        let lines = self.parts.iter().map(|part| part.lines).sum();
        let length = self.parts.first().map_or(0, |part| part.length);
        match self.order {
            Order::Rows => (lines, length),
            Order::Columns => (length, lines),
        }
    }

    fn order(&self) -> Order {
        self.order
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        self.published(line, from, out);
        match self.order {
            Order::Rows => {
                let mean = self.means.as_ref().map_or(0.0, |means| means[line]);
                let gain = self.gain.as_ref().map_or(1.0, |gain| gain[line]);
                if (mean, gain) != (0.0, 1.0) {
                    fold(out, mean, gain);
                }
            }
            Order::Columns => {
                if let Some(means) = &self.means {
                    wide(|| out.iter_mut().zip(&means[from..]).for_each(|(w, mean)| *w -= mean));
                }
                if let Some(gain) = &self.gain {
                    let gain = gain.as_slice().expect("a vector is contiguous");
                    wide(|| out.iter_mut().zip(&gain[from..]).for_each(|(w, gain)| *w *= gain));
                }
            }
        }
        if let Some((columns, factor)) = self.scaled {
            let scaled = match self.order {
                Order::Rows => columns.saturating_sub(from).min(out.len()),
                Order::Columns if line < columns => out.len(),
                Order::Columns => 0,
            };
            fold(&mut out[..scaled], 0.0, factor);
        }
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let (numbers, at) = self.place(line, from, count);
        numbers.fetch(at, count);
    }

    fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        if self.order == Order::Rows || self.means.is_some() {
            return None;
        }
        let (numbers, at) = self.place(line, from, count);
        let gains =
            self.gain.as_ref().map(|gain| &gain.as_slice().expect("a vector is contiguous")[from..from + count]);
        let factor = self.scaled.filter(|(columns, _)| line < *columns).map_or(1.0, |(_, factor)| factor);
        Some(Stored { numbers: numbers.narrow(at, count)?, gains, factor })
    }
}

/// Replaces every number w by (w - `mean`) `factor`.
fn fold(numbers: &mut [f32], mean: f32, factor: f32) {
    wide(|| numbers.iter_mut().for_each(|w| *w = (*w - mean) * factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Bytes, Number, Piece};
    use waggle_engine::Narrow;

    #[test]
    fn a_line_of_two_matrices_is_stored_in_one() {
        static BYTES: [u8; 16] = *b"lines as stored.";
        let piece = Piece::new(Bytes::Static(&BYTES), 0..16).expect("as many bytes");
        let numbers = Numbers::new(piece, Number::Bf16);
        let part = Lines { name: "part".into(), first: 0, lines: 4, length: 2, numbers };
        let [first, second] =
            [2, 4].map(|lines| Published::new(vec![Lines { lines, ..part.clone() }], Order::Columns, None));
        let wide = Published::side_by_side(vec![first, second]).data().matrix;
        for (line, bytes) in [0, 1, 0, 1, 2, 3].map(|line| &BYTES[4 * line + 2..4 * line + 4]).into_iter().enumerate()
        {
            let Some(Narrow::Bf16(numbers)) = wide.stored(line, 1, 1).map(|stored| stored.numbers) else { panic!() };
            assert_eq!(numbers.as_flattened(), bytes, "{line}");
        }
    }
}
