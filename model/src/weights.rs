//! From published tensors to the weights that an engine computes with.
//!
//! Norm gains and the attention scale are folded into matrices when entries are read, so that a matrix is nowhere but
//! where it is published.

use std::ops::Range;
use std::sync::Arc;

use ndarray::{Array1, Array2, Axis};
use rayon::prelude::*;
use waggle_bits::cpu::wide;
use waggle_engine::{MatrixSource, Order, Stored, WeightData, WeightLoader, WeightSpec};

use crate::learned::Columns;
use crate::mapping::Numbers;
use crate::public::{Disclosed, ModelPart};
use crate::{Checkpoint, CheckpointError, Error};

/// Places of a line whose sums are taken at a time.
const STRIP: usize = 512;

/// Builds the weights of a model one after another. Without a checkpoint (on the client, for a plan, to list the
/// specifications) it builds the same weights without values.
pub(crate) struct Builder<'a, W> {
    pub(crate) checkpoint: Option<&'a Checkpoint>,
    /// Columns beside query, key and value.
    pub(crate) columns: Columns,
    /// Matrices are stored as integers with scales.
    pub(crate) narrow: bool,
    /// What of the model both parties have, and the ranks of what is added to its matrices.
    pub(crate) disclosed: &'a Disclosed,
    /// Of the checkpoint this party knows the public parts alone.
    pub(crate) public_alone: bool,
    /// The part that the next weights belong to.
    pub(crate) part: ModelPart,
    pub(crate) loader: &'a mut dyn WeightLoader<Weight = W>,
}

impl<W> Builder<'_, W> {
    /// One weight of shape (inputs, outputs), whose values `read` finds.
    pub(crate) fn weight(
        &mut self,
        name: &str,
        (inputs, outputs): (usize, usize),
        read: impl FnOnce(&Checkpoint) -> Result<Published, CheckpointError>,
    ) -> Result<W, Error> {
        let public = self.disclosed.parts.hold(self.part);
        let spec = WeightSpec { name: name.into(), inputs, outputs, narrow: self.narrow, public };
        let known = self.checkpoint.filter(|_| public || !self.public_alone);
        let Some(published) = known.map(read).transpose()? else {
            return Ok(self.loader.load(&spec, None)?);
        };
        let names: Vec<_> = published.names().map(str::to_owned).collect();
        self.loader.load(&spec, Some(published.data())).map_err(|error| match (&error, self.checkpoint) {
            // Name the published tensor if it is to blame.
            (waggle_engine::Error::NotFinite { .. }, Some(checkpoint)) => {
                let read = names.iter().try_for_each(|name| checkpoint.read(name).map(|_| ()));
                read.err().map_or_else(|| error.into(), Error::from)
            }
            _ => error.into(),
        })
    }

    /// A vector by itself, such as gains that activations are multiplied by, `width` long, whose values `read` finds.
    pub(crate) fn gains(
        &mut self,
        name: &str,
        width: usize,
        read: impl FnOnce(&Checkpoint) -> Result<Array1<f32>, CheckpointError>,
    ) -> Result<W, Error> {
        let public = self.disclosed.parts.hold(self.part);
        let spec = WeightSpec { name: name.into(), inputs: 1, outputs: width, narrow: false, public };
        let data = self.checkpoint.filter(|_| public || !self.public_alone).map(read).transpose()?;
        let data = data.map(|gains| WeightData::new(gains.insert_axis(Axis(0)), None));
        Ok(self.loader.load(&spec, data)?)
    }

    /// One of the server's factors of what is added to a matrix: never public, and never narrow.
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

/// A weight as published, with what is folded into it.
#[derive(Debug)]
pub(crate) struct Published {
    matrix: PublishedMatrix,
    bias: Option<Array1<f32>>,
    /// A matrix whose outputs follow those of this one.
    after: Option<Box<Published>>,
    /// Further columns, which nothing is folded into.
    further: Option<Array2<f32>>,
    /// The gain of further inputs that are added to the outputs.
    added: Option<Array1<f32>>,
}

/// Published matrices side by side, each entry less the mean of its input's outputs if they are centred, times the
/// gain of its input, and those of the first outputs times a factor.
#[derive(Debug)]
struct PublishedMatrix {
    /// Their shapes as published agree in the length of a line.
    parts: Vec<Part>,
    order: Order,
    /// The mean of the outputs of each input.
    means: Option<Vec<f32>>,
    gain: Option<Array1<f32>>,
    /// The number of scaled outputs, and their factor.
    scaled: Option<(usize, f32)>,
}

/// Some neighbouring lines of a published tensor.
#[derive(Clone, Debug)]
struct Part {
    name: String,
    /// The first of them.
    first: usize,
    lines: usize,
    length: usize,
    numbers: Numbers,
}

impl Part {
    /// The whole tensor. One of more than two dimensions is a table in its last, or a matrix of its first: a
    /// convolution whose places do not overlap.
    fn find(checkpoint: &Checkpoint, name: &str, order: Order) -> Result<Self, CheckpointError> {
        let (shape, numbers) = checkpoint.numbers(name)?;
        if shape.len() < 2 {
            return Err(CheckpointError::Shape { tensor: name.into(), expected: vec![0, 0], got: shape.to_vec() });
        }
        let (lines, line) = shape.split_at(if order == Order::Rows { shape.len() - 1 } else { 1 });
        let (lines, length) = (lines.iter().product(), line.iter().product());
        Ok(Part { name: name.into(), first: 0, lines, length, numbers: numbers.clone() })
    }
}

impl Published {
    /// The tensor `name`, published as (inputs, outputs).
    pub(crate) fn stored(c: &Checkpoint, name: &str, bias: Option<Array1<f32>>) -> Result<Self, CheckpointError> {
        let parts = vec![Part::find(c, name, Order::Rows)?];
        Ok(Published::new(parts, Order::Rows, bias))
    }

    fn new(parts: Vec<Part>, order: Order, bias: Option<Array1<f32>>) -> Self {
        let matrix = PublishedMatrix { parts, order, means: None, gain: None, scaled: None };
        Published { matrix, bias, after: None, further: None, added: None }
    }

    /// One published linear layer (outputs, inputs) with its bias, whose outputs are taken in another order: those of
    /// `ranges`, one after another.
    ///
    /// # Panics
    /// If the tensor does not have them. The checkpoint is checked for shapes before.
    pub(crate) fn reordered(
        c: &Checkpoint,
        name: &str,
        ranges: impl Iterator<Item = Range<usize>>,
    ) -> Result<Self, CheckpointError> {
        let (whole, stored) =
            (Part::find(c, &format!("{name}.weight"), Order::Columns)?, c.vector(&format!("{name}.bias"))?);
        let (mut parts, mut bias) = (Vec::new(), Vec::new());
        for Range { start, end } in ranges {
            assert!(start <= end && end <= whole.lines, "outputs of `{name}`");
            parts.push(Part { first: start, lines: end - start, ..whole.clone() });
            bias.extend(stored.iter().skip(start).take(end - start));
        }
        Ok(Published::new(parts, Order::Columns, Some(bias.into())))
    }

    /// The weight whose outputs are those of this one and then those of `after`, which has as many inputs and is
    /// published the same way.
    pub(crate) fn beside(mut self, after: Published) -> Self {
        self.after = Some(Box::new(after));
        self
    }

    /// The names of the tensors that it is made of.
    fn names(&self) -> impl Iterator<Item = &str> {
        let after = self.after.iter().flat_map(|after| &after.matrix.parts);
        self.matrix.parts.iter().chain(after).map(|part| part.name.as_str())
    }

    /// Published linear layers (outputs, inputs), with or without biases, side by side as one matrix.
    pub(crate) fn linear(c: &Checkpoint, names: &[String], biased: bool) -> Result<Self, CheckpointError> {
        let find = |name| Part::find(c, &format!("{name}.weight"), Order::Columns);
        let parts = names.iter().map(find).collect::<Result<Vec<_>, _>>()?;
        if let Some(part) = parts.iter().find(|part| part.length != parts[0].length) {
            let (expected, got) = (vec![part.lines, parts[0].length], vec![part.lines, part.length]);
            return Err(CheckpointError::Shape { tensor: part.name.clone(), expected, got });
        }
        let bias = || -> Result<Array1<f32>, CheckpointError> {
            let biases = names.iter().map(|name| c.vector(&format!("{name}.bias"))).collect::<Result<Vec<_>, _>>()?;
            Ok(biases.into_iter().flatten().collect())
        };
        let bias = if biased { Some(bias()?) } else { None };
        Ok(Published::new(parts, Order::Columns, bias))
    }

    /// The weight whose outputs have the mean 0 for every input: W (1 - 1/n) and b (1 - 1/n), where 1/n stands for
    /// the matrix that averages n outputs. A layer norm takes the mean away from what it is given. Where nothing else
    /// reads the sum of such outputs, the norm therefore finds none to take away, and is a root-mean-square norm.
    pub(crate) fn centred(mut self) -> Self {
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

    /// This weight with a bias.
    pub(crate) fn with_bias(self, bias: Array1<f32>) -> Self {
        Published { bias: Some(bias), ..self }
    }

    /// The weight after a norm with `gain` g and `shift` beta: for x' = g x + beta,
    /// x' W + b = x (diag(g) W) + (beta W + b).
    pub(crate) fn after_norm(mut self, gain: Array1<f32>, shift: Option<&Array1<f32>>) -> Self {
        if let Some(shift) = shift {
            let shifted = self.matrix.products_with(shift);
            self.bias = Some(match self.bias {
                Some(bias) => bias + shifted,
                None => shifted,
            });
        }
        self.matrix.gain = Some(gain);
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

    /// The weight of (x, n) that adds a residual stream to its outputs: x W + b + g n + shift, for a norm with the
    /// `gain` g.
    pub(crate) fn adding(mut self, gain: Array1<f32>, shift: Option<&Array1<f32>>) -> Self {
        if let Some(shift) = shift {
            self.bias = Some(match self.bias {
                Some(bias) => bias + shift,
                None => shift.clone(),
            });
        }
        Published { added: Some(gain), ..self }
    }

    /// Puts `columns` (inputs, further outputs) beside the others, as they are.
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
        self.after.map(|after| after.data()).into_iter().chain(further).fold(own, side_by_side)
    }
}

/// The weight whose outputs are those of `first` and then those of `second`.
fn side_by_side(first: WeightData, second: WeightData) -> WeightData {
    let bias = (first.bias.is_some() || second.bias.is_some()).then(|| {
        let biases = [&first, &second].map(|weight| {
            let zeros = || Array1::zeros(weight.matrix.shape().1);
            weight.bias.clone().unwrap_or_else(zeros)
        });
        biases.into_iter().flatten().collect()
    });
    WeightData { matrix: Arc::new(Beside { first: first.matrix, second: second.matrix }), bias }
}

/// The outputs of two matrices that are stored in one order, one after another.
#[derive(Debug)]
struct Beside {
    first: Arc<dyn MatrixSource>,
    second: Arc<dyn MatrixSource>,
}

impl MatrixSource for Beside {
    fn shape(&self) -> (usize, usize) {
        let (inputs, outputs) = self.first.shape();
        (inputs, outputs + self.second.shape().1)
    }

    fn order(&self) -> Order {
        assert_eq!(self.first.order(), self.second.order(), "matrices side by side");
        self.first.order()
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let outputs = self.first.shape().1;
        match self.first.order() {
            Order::Rows => {
                let own = outputs.saturating_sub(from).min(out.len());
                let (first, second) = out.split_at_mut(own);
                if !first.is_empty() {
                    self.first.read(line, from, first);
                }
                if !second.is_empty() {
                    self.second.read(line, from.saturating_sub(outputs), second);
                }
            }
            Order::Columns if line < outputs => self.first.read(line, from, out),
            Order::Columns => self.second.read(line - outputs, from, out),
        }
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let outputs = self.first.shape().1;
        match self.first.order() {
            // A piece of both is rare.
            Order::Rows if from < outputs => self.first.fetch(line, from, count.min(outputs - from)),
            Order::Rows => self.second.fetch(line, from - outputs, count),
            Order::Columns if line < outputs => self.first.fetch(line, from, count),
            Order::Columns => self.second.fetch(line - outputs, from, count),
        }
    }

    fn stored(&self, line: usize, from: usize, count: usize) -> Option<Stored<'_>> {
        let outputs = self.first.shape().1;
        match self.first.order() {
            Order::Rows => None,
            Order::Columns if line < outputs => self.first.stored(line, from, count),
            Order::Columns => self.second.stored(line - outputs, from, count),
        }
    }
}

/// The inputs of a matrix that is stored by columns, and then those of a diagonal one.
#[derive(Debug)]
struct Above {
    first: Arc<dyn MatrixSource>,
    second: Diagonal,
}

impl MatrixSource for Above {
    fn shape(&self) -> (usize, usize) {
        let (inputs, outputs) = self.first.shape();
        (inputs + self.second.gain.len(), outputs)
    }

    fn order(&self) -> Order {
        assert_eq!(self.first.order(), Order::Columns, "a matrix above another");
        Order::Columns
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let inputs = self.first.shape().0;
        let (first, second) = out.split_at_mut(inputs.saturating_sub(from).min(out.len()));
        if !first.is_empty() {
            self.first.read(line, from, first);
        }
        self.second.read(line, from.saturating_sub(inputs), second);
    }

    fn fetch(&self, line: usize, from: usize, count: usize) {
        let inputs = self.first.shape().0;
        if from < inputs {
            self.first.fetch(line, from, count.min(inputs - from));
        }
    }
}

/// The matrix that multiplies each input by its gain, less the mean of its outputs if it is centred.
#[derive(Debug)]
struct Diagonal {
    gain: Array1<f32>,
    centred: bool,
}

impl Diagonal {
    /// Entries of a column.
    fn read(&self, column: usize, from: usize, out: &mut [f32]) {
        let share = if self.centred { 1.0 / self.gain.len().max(1) as f32 } else { 0.0 };
        for ((out, gain), row) in out.iter_mut().zip(self.gain.iter().skip(from)).zip(from..) {
            *out = gain * if row == column { 1.0 - share } else { -share };
        }
    }
}

/// A matrix in memory, of which columns are read.
#[derive(Debug)]
struct ByColumns(Array2<f32>);

impl MatrixSource for ByColumns {
    fn shape(&self) -> (usize, usize) {
        self.0.dim()
    }

    fn order(&self) -> Order {
        Order::Columns
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let column = self.0.column(line);
        assert!(from + out.len() <= column.len(), "entries of a line");
        out.iter_mut().zip(column.iter().skip(from)).for_each(|(out, x)| *out = *x);
    }
}

impl PublishedMatrix {
    /// The tensor that the entries `from .. from + count` of a line are in, and the place of the first.
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

    /// `by` W for the published W.
    fn products_with(&self, by: &Array1<f32>) -> Array1<f32> {
        let sums = match self.order {
            Order::Rows => self.sums_of_places(by),
            Order::Columns => self.sums_of_lines(by),
        };
        sums.into_iter().map(|sum| sum as f32).collect()
    }

    /// For every published line the sum of its entries, each times its place's factor `by`. Sums are kept in f64, as
    /// they are made once.
    fn sums_of_lines(&self, by: &Array1<f32>) -> Vec<f64> {
        let (lines, length) = self.lines();
        let of_line = |line: usize| {
            let mut entries = vec![0f32; length];
            self.published(line, 0, &mut entries);
            entries.iter().zip(by).map(|(w, by)| f64::from(*w) * f64::from(*by)).sum()
        };
        (0..lines).into_par_iter().map(of_line).collect()
    }

    /// For every place in a line the sum of the entries there, each times its line's factor `by`: by strips of
    /// places.
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

/// (w - `mean`) `factor` in place of every number w.
fn fold(numbers: &mut [f32], mean: f32, factor: f32) {
    wide(|| numbers.iter_mut().for_each(|w| *w = (*w - mean) * factor));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapping::{Bytes, Number, Piece};
    use waggle_engine::Narrow;

    #[test]
    fn columns_stand_beside_a_matrix_of_either_order() {
        let matrix = Array2::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as f32);
        let columns = Array2::from_shape_fn((3, 2), |(i, j)| (10 * i + j + 4) as f32);
        let by_rows = Beside { first: Arc::new(matrix.clone()), second: Arc::new(columns.clone()) };
        let by_columns = Beside { first: Arc::new(ByColumns(matrix)), second: Arc::new(ByColumns(columns)) };
        for wide in [by_rows, by_columns] {
            assert_eq!(wide.shape(), (3, 6));
            let (lines, length) = wide.lines();
            for line in 0..lines {
                for from in 0..length {
                    for len in 0..=length - from {
                        let mut out = vec![0.0; len];
                        wide.read(line, from, &mut out);
                        let want = (from..from + len).map(|at| match wide.order() {
                            Order::Rows => 10 * line + at,
                            Order::Columns => 10 * at + line,
                        });
                        assert_eq!(out, want.map(|x| x as f32).collect::<Vec<_>>(), "{line}, {from}, {len}");
                    }
                }
            }
        }
    }
    #[test]
    fn a_line_of_two_matrices_is_stored_in_one() {
        static BYTES: [u8; 16] = *b"lines as stored.";
        let piece = Piece::new(Bytes::Static(&BYTES), 0..16).expect("as many bytes");
        let numbers = Numbers::new(piece, Number::Bf16);
        let part = Part { name: "part".into(), first: 0, lines: 4, length: 2, numbers };
        let [first, second] = [2, 4]
            .map(|lines| Arc::new(Published::new(vec![Part { lines, ..part.clone() }], Order::Columns, None).matrix));
        let wide = Beside { first, second };
        for (line, bytes) in [0, 1, 0, 1, 2, 3].map(|line| &BYTES[4 * line + 2..4 * line + 4]).into_iter().enumerate()
        {
            let Some(Narrow::Bf16(numbers)) = wide.stored(line, 1, 1).map(|stored| stored.numbers) else { panic!() };
            assert_eq!(numbers.as_flattened(), bytes, "{line}");
        }
    }
}
