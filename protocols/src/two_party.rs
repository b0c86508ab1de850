//! The arithmetic black box between two parties: words as additive shares modulo 2^64, bits as exclusive-or shares.

use he::{MatmulShape, MatmulSpec};
use ndarray::{ArrayD, IxDyn};
use net::Role;
use zeroize::Zeroizing;

use crate::abb::{Abb, Table, Tabulated, Truncation, Words};
use crate::ops::growing::{Axis, Operand};
use crate::ops::masked::threshold;
use crate::ops::shuffle::Permutations;
use crate::ops::{
    beaver, bit_to_word, compare, evaluate, growing, linear, masked, matmul, mul, mux, one_hot, quickselect, reveal,
    row_max, shuffle, truncate,
};
use crate::session::Session;
use crate::stock::{self, Demand};
use crate::weight::{DEFAULT_WEIGHT_FRAC, FixedWeight, WEIGHT_BITS};
use crate::words::{equal, mask};
use crate::{EMBED_FRAC, EMBED_WIDTH, Error, Evaluate, FRAC, LINEAR_WIDTH, Tensor};

/// Runs every operation as a protocol with the peer, who calls the same operations in the same order.
pub struct TwoParty {
    session: Session,
}

impl TwoParty {
    /// A box over an established session.
    pub fn new(session: Session) -> Self {
        TwoParty { session }
    }

    /// The session.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    fn is_server(&self) -> bool {
        self.session.is_server()
    }

    fn take(&mut self, demand: &Demand, units: usize) -> Result<Zeroizing<Vec<u64>>, Error> {
        stock::take(&mut self.session, demand, units, None)
    }

    /// Shares of X W for this party's share `x` of X, `None` on a server that has none of it.
    fn times(
        &mut self,
        spec: MatmulSpec,
        x: Option<&[u64]>,
        weight: &FixedWeight,
        demand: fn(&FixedWeight) -> Demand,
    ) -> Result<Vec<u64>, Error> {
        let matrix = match (&weight.values, x) {
            (Some(values), _) if self.is_server() => Some(&*values.matrix),
            (None, _) if self.is_server() => {
                return Err(engine::Error::NoValues { tensor: weight.spec.name.clone() }.into());
            }
            _ => None,
        };
        let s = &mut self.session;
        if s.preprocesses() {
            let MatmulShape { m, k, n, .. } = spec.shape;
            let masks = stock::take(s, &demand(weight), m, matrix)?;
            let side = match matrix {
                Some(matrix) => linear::Side::Server(x, matrix),
                None => linear::Side::Client(x.unwrap_or_default()),
            };
            return linear::run(s, k, n, spec.width, &masks, side);
        }
        let operand = match matrix {
            Some(matrix) => matmul::Operand::Server(x, matrix),
            None => matmul::Operand::Client(x.unwrap_or_default()),
        };
        matmul::private(s, spec, operand)
    }
}

/// The product x W of `rows` rows, planned.
pub(crate) fn linear_spec(weight: &FixedWeight, rows: usize) -> MatmulSpec {
    let shape = MatmulShape { batch: 1, m: rows, k: weight.spec.inputs, n: weight.spec.outputs };
    MatmulSpec { shape, width: LINEAR_WIDTH, weight_bits: WEIGHT_BITS }
}

/// The product of `count` unit vectors with a table, planned.
pub(crate) fn embed_spec(table: &FixedWeight, count: usize) -> MatmulSpec {
    let shape = MatmulShape { batch: 1, m: count, k: table.spec.inputs, n: table.spec.outputs };
    MatmulSpec { shape, width: EMBED_WIDTH, weight_bits: WEIGHT_BITS }
}

/// Rows that are embedded at once: a bound on memory, since every row has as many entries as the vocabulary, which for
/// the client is the server's word.
pub(crate) fn embed_rows(table: &FixedWeight) -> usize {
    ((1 << 21) / table.spec.inputs.max(1)).clamp(1, 32)
}

/// Refuses a table whose entries may leave the ring of embedded rows; its scale tells both parties.
pub(crate) fn check_table(table: &FixedWeight) -> Result<(), Error> {
    // |w| < 2^(WEIGHT_BITS - frac) must stay below 2^(EMBED_WIDTH - 2 - EMBED_FRAC).
    let low = WEIGHT_BITS - (EMBED_WIDTH - 2 - EMBED_FRAC);
    if table.frac < low {
        return Err(Error::Scale { low, high: DEFAULT_WEIGHT_FRAC, got: table.frac });
    }
    Ok(())
}

/// The client's `count` ids, if they are there and lie in the table.
fn check_ids<'a>(table: &FixedWeight, ids: Option<&'a [u32]>, count: usize) -> Result<&'a [u32], Error> {
    let ids = ids.filter(|ids| ids.len() == count).ok_or_else(|| engine::Error::Shape {
        tensor: "token ids".into(),
        expected: vec![count],
        got: ids.map(<[u32]>::len).into_iter().collect(),
    })?;
    match ids.iter().find(|&&id| id as usize >= table.spec.inputs) {
        Some(&id) => Err(engine::Error::Token { id, vocabulary: table.spec.inputs }.into()),
        None => Ok(ids),
    }
}

/// One row per id: 2^EMBED_FRAC over the table's scale at the id, zeros elsewhere. Every entry compares its place with the
/// id, so that no address depends on it; they are zeroized when dropped.
fn unit_vectors(table: &FixedWeight, ids: &[u32]) -> Zeroizing<Vec<u64>> {
    let one = 1u64 << (EMBED_FRAC - table.frac);
    let rows = table.spec.inputs;
    let mut units = Zeroizing::new(vec![0; ids.len() * rows]);
    for (unit, &id) in units.chunks_exact_mut(rows.max(1)).zip(ids) {
        (0..).zip(unit).for_each(|(place, entry)| *entry = one & u64::from(equal(place, id)).wrapping_neg());
    }
    units
}

/// Shape of x W, and its number of rows.
pub(crate) fn linear_shape(x: &[usize], weight: &FixedWeight) -> (Vec<usize>, usize) {
    let (&last, leading) = x.split_last().expect("at least one axis");
    assert_eq!(last, weight.spec.inputs, "inputs of {}", weight.spec.name);
    let mut shape = leading.to_vec();
    shape.push(weight.spec.outputs);
    (shape, leading.iter().product())
}

/// Shape of a batched product.
pub(crate) fn matmul_shape(a: &[usize], b: &[usize]) -> MatmulShape {
    match (a, b) {
        (&[batch, m, k], &[batch_b, k_b, n]) if batch == batch_b && k == k_b => MatmulShape { batch, m, k, n },
        _ => panic!("matrix product of {a:?} and {b:?}"),
    }
}

/// Entries in row-major order.
fn flat<A: Clone + Send + Sync>(x: &ArrayD<A>) -> Vec<A> {
    x.iter().cloned().collect()
}

fn shaped<A>(shape: &[usize], data: Vec<A>) -> ArrayD<A> {
    ArrayD::from_shape_vec(IxDyn(shape), data).expect("as many entries as the shape says")
}

impl Abb for TwoParty {
    type Words = ArrayD<u64>;
    type Bits = ArrayD<u8>;
    /// With the shape of the bits.
    type Selector = (Vec<usize>, mux::Selector);
    type Permutations = Permutations;

    fn enter(&mut self, name: &str) {
        self.session.channel().ledger_mut().enter(name);
    }

    fn leave(&mut self) {
        self.session.channel().ledger_mut().leave();
    }

    fn public(&mut self, values: &ArrayD<u64>) -> Self::Words {
        if self.is_server() { values.clone() } else { ArrayD::zeros(values.raw_dim()) }
    }

    fn constant(&mut self, shape: &[usize], value: u64) -> Self::Words {
        ArrayD::from_elem(IxDyn(shape), if self.is_server() { value } else { 0 })
    }

    fn add_public(&mut self, x: &Self::Words, value: u64) -> Self::Words {
        if self.is_server() { x.mapv(|x| x.wrapping_add(value)) } else { x.clone() }
    }

    fn input(&mut self, owner: Role, shape: &[usize], values: Option<&ArrayD<u64>>) -> Result<Self::Words, Error> {
        let zeros = || ArrayD::zeros(IxDyn(shape));
        let mine = self.session.role() == owner;
        Ok(if mine { values.cloned().unwrap_or_else(zeros) } else { zeros() })
    }

    fn not(&mut self, bits: &Self::Bits) -> Self::Bits {
        if self.is_server() { bits.mapv(|b| b ^ 1) } else { bits.clone() }
    }

    fn xor(&mut self, a: &Self::Bits, b: &Self::Bits) -> Self::Bits {
        a ^ b
    }

    fn truncate(&mut self, x: &Self::Words, how: Truncation) -> Result<Self::Words, Error> {
        let mut words = flat(x);
        truncate::truncate(&mut self.session, &mut words, how)?;
        Ok(shaped(&Tensor::shape(x), words))
    }

    fn at_least(&mut self, x: &Self::Words, thresholds: &[i64], width: u32) -> Result<Self::Bits, Error> {
        let words = flat(x);
        let bits = if threshold::applies(self.session.options(), width) {
            let correlations = self.take(&Demand::Comparison { width }, words.len())?;
            threshold::run(&mut self.session, &correlations, &words, thresholds, width)?
        } else {
            compare::at_least(&mut self.session, &words, thresholds, width)?
        };
        let mut shape = Tensor::shape(x);
        shape.push(thresholds.len());
        Ok(shaped(&shape, bits))
    }

    fn row_max(&mut self, x: &Self::Words, lengths: &[usize], width: u32) -> Result<Self::Words, Error> {
        Ok(shaped(&[lengths.len()], row_max::row_max(&mut self.session, &flat(x), lengths, width)?))
    }

    fn selectors<const N: usize>(&mut self, bits: &Self::Bits) -> Result<[Self::Selector; N], Error> {
        let selectors = mux::selectors(&mut self.session, &flat(bits))?;
        Ok(selectors.map(|selector| (Tensor::shape(bits), selector)))
    }

    fn select(
        &mut self,
        (shape, selector): Self::Selector,
        x: &Self::Words,
        width: u32,
    ) -> Result<Self::Words, Error> {
        assert_eq!(shape, x.shape(), "shapes of a selection");
        Ok(shaped(&shape, selector.select(&mut self.session, &flat(x), width)?))
    }

    fn mux(&mut self, bits: &Self::Bits, x: &Self::Words, width: u32) -> Result<Self::Words, Error> {
        assert_eq!(bits.shape(), x.shape(), "shapes of a selection");
        Ok(shaped(&Tensor::shape(x), mux::mux(&mut self.session, &flat(bits), &flat(x), width)?))
    }

    fn bit_to_word(&mut self, bits: &Self::Bits, width: u32) -> Result<Self::Words, Error> {
        let words = bit_to_word::bit_to_word(&mut self.session, &flat(bits), width)?;
        Ok(shaped(&Tensor::shape(bits), words))
    }

    fn mul(&mut self, x: &Self::Words, y: &Self::Words, width: u32) -> Result<Self::Words, Error> {
        assert_eq!(x.shape(), y.shape(), "shapes of a product");
        let (shape, x, y) = (Tensor::shape(x), flat(x), flat(y));
        if self.session.preprocesses() {
            let masks = self.take(&Demand::RowProduct { n: 1, width }, x.len())?;
            return Ok(shaped(&shape, beaver::rows(&mut self.session, &x, &y, 1, width, &masks)?));
        }
        Ok(shaped(&shape, mul::mul(&mut self.session, &x, &y, width)?))
    }

    fn mul_rows(&mut self, x: &Self::Words, y: &Self::Words, width: u32) -> Result<Self::Words, Error> {
        let shape = Tensor::shape(x);
        assert_eq!((shape.len(), &shape[..1]), (2, y.shape()), "rows and their factors");
        let n = shape[1];
        if self.session.preprocesses() && n > 0 {
            let masks = self.take(&Demand::RowProduct { n, width }, shape[0])?;
            return Ok(shaped(&shape, beaver::rows(&mut self.session, &flat(x), &flat(y), n, width, &masks)?));
        }
        Ok(shaped(&shape, mul::rows(&mut self.session, &flat(x), &flat(y), n, width)?))
    }

    fn sum_squares(&mut self, x: &Self::Words, width: u32) -> Result<Self::Words, Error> {
        let mut shape = Tensor::shape(x);
        let n = shape.pop().expect("at least one axis");
        if self.session.preprocesses() {
            let masks = self.take(&Demand::SumSquares { n, width }, shape.iter().product())?;
            return Ok(shaped(&shape, beaver::sum_squares(&mut self.session, &flat(x), n, width, &masks)?));
        }
        let squares = mul::square(&mut self.session, &flat(x), width)?;
        Ok(shaped(&Tensor::shape(x), squares).sum_last())
    }

    fn evaluation(&self) -> Evaluate {
        self.session.options().evaluate()
    }

    fn evaluate(&mut self, table: Tabulated<'_, impl Table>, x: &Self::Words) -> Result<Self::Words, Error> {
        let words = flat(x);
        let values = match table {
            Tabulated::Lookup(table) => evaluate::evaluate(&mut self.session, table, &words)?,
            Tabulated::Masked(table) => {
                let correlations = self.take(&Demand::Evaluation(table.shape()), words.len())?;
                masked::run(&mut self.session, table, &correlations, &words)?
            }
        };
        Ok(shaped(&Tensor::shape(x), values))
    }

    fn matmul(&mut self, a: &Self::Words, b: &Self::Words, width: u32) -> Result<Self::Words, Error> {
        let shape = matmul_shape(a.shape(), b.shape());
        let (a, b) = (flat(a), flat(b));
        let product = if self.session.preprocesses() {
            let MatmulShape { batch, m, k, n } = shape;
            let masks = self.take(&Demand::Matmul { batch, m, k, n, width }, 1)?;
            beaver::matmul(&mut self.session, shape, &a, &b, width, &masks)?
        } else {
            matmul::shared(&mut self.session, shape, &a, &b, width)?
        };
        Ok(shaped(&[shape.batch, shape.m, shape.n], product))
    }

    fn matmul_growing(
        &mut self,
        a: &Self::Words,
        b: &Self::Words,
        width: u32,
        axis: Axis,
        operand: &mut Operand,
    ) -> Result<Self::Words, Error> {
        if !self.session.preprocesses() {
            return self.matmul(a, b, width);
        }
        let shape = matmul_shape(a.shape(), b.shape());
        let (form, event) = growing::single(shape, axis, width);
        let product = growing::product(&mut self.session, operand, form, event, &flat(a), &flat(b))?;
        Ok(shaped(&[shape.batch, shape.m, shape.n], product))
    }

    fn linear(&mut self, x: &Self::Words, weight: &FixedWeight) -> Result<Self::Words, Error> {
        let (shape, rows) = linear_shape(x.shape(), weight);
        let mut share = self.times(linear_spec(weight, rows), Some(&flat(x)), weight, Demand::linear)?;
        if let Some(values) = weight.values.as_ref().filter(|_| self.is_server()) {
            for row in share.chunks_exact_mut(values.bias.len().max(1)) {
                row.iter_mut().zip(&values.bias).for_each(|(y, b)| *y = y.wrapping_add(*b as u64));
            }
        }
        Ok(shaped(&shape, share))
    }

    fn embed(&mut self, table: &FixedWeight, ids: Option<&[u32]>, count: usize) -> Result<Self::Words, Error> {
        check_table(table)?;
        // The client's ids are checked before the first message.
        let ids = match self.session.role() {
            Role::Client => check_ids(table, ids, count)?,
            Role::Server => &[],
        };
        let mut share = Vec::with_capacity(count * table.spec.outputs);
        let batch = embed_rows(table);
        for start in (0..count).step_by(batch) {
            let rows = batch.min(count - start);
            let units = (!self.is_server()).then(|| unit_vectors(table, &ids[start..start + rows]));
            share.extend(self.times(
                embed_spec(table, rows),
                units.as_ref().map(|units| &units[..]),
                table,
                Demand::embed,
            )?);
        }
        Ok(shaped(&[count, table.spec.outputs], share))
    }

    fn rows(&mut self, table: &FixedWeight, start: usize, count: usize) -> Result<Self::Words, Error> {
        let shape = [count, table.spec.outputs];
        let values = table.values.as_ref().filter(|_| self.session.role() == Role::Server);
        Ok(values.map_or_else(
            || ArrayD::zeros(IxDyn(&shape)),
            |v| shaped(&shape, table_rows(table, &v.matrix, start, count)),
        ))
    }

    fn reveal(&mut self, x: &Self::Words, width: u32, to: Role) -> Result<Option<ArrayD<u64>>, Error> {
        let opened = reveal::reveal(&mut self.session, &flat(x), width, to)?;
        debug_assert!(opened.iter().flatten().all(|x| x & !mask(width) == 0));
        Ok(opened.map(|values| shaped(&Tensor::shape(x), values)))
    }

    fn reveal_rounded(
        &mut self,
        x: &Self::Words,
        width: u32,
        drop: u32,
        to: Role,
    ) -> Result<Option<ArrayD<u64>>, Error> {
        let opened = reveal::reveal_rounded(&mut self.session, &flat(x), width, drop, to)?;
        Ok(opened.map(|values| shaped(&Tensor::shape(x), values)))
    }

    fn open(&mut self, x: &Self::Words, width: u32) -> Result<Option<ArrayD<u64>>, Error> {
        Ok(Some(shaped(&Tensor::shape(x), reveal::open(&mut self.session, &flat(x), width)?)))
    }

    fn low_bit(&mut self, x: &Self::Words) -> Self::Bits {
        x.mapv(|x| (x & 1) as u8)
    }

    fn one_hot(&mut self, x: &Self::Words, bits: u32, count: usize) -> Result<Self::Bits, Error> {
        let mut shape = Tensor::shape(x);
        shape.push(count);
        Ok(shaped(&shape, one_hot::one_hot(&mut self.session, &flat(x), bits, count)?))
    }

    fn permutations(&mut self, rows: usize, n: usize) -> Permutations {
        Permutations::random(self.session.rng(), rows, n)
    }

    fn shuffle(
        &mut self,
        permutations: &Permutations,
        x: &Self::Words,
        widths: &[u32],
        inverse: bool,
    ) -> Result<Self::Words, Error> {
        let shape = Tensor::shape(x);
        let widths = shuffle_widths(&shape, [permutations.rows(), permutations.items()], widths);
        Ok(shaped(&shape, shuffle::shuffle(&mut self.session, permutations, &flat(x), &widths, inverse)?))
    }

    fn quickselect(&mut self, keys: &Self::Words, k: usize, width: u32) -> Result<Vec<Vec<usize>>, Error> {
        let [rows, n] = keys_shape(keys.shape(), k);
        self.scope(quickselect::SCOPE, |b| quickselect::quickselect(&mut b.session, &flat(keys), rows, n, k, width))
    }
}

/// A width for every column of (rows, items, columns) that are to be shuffled.
pub(crate) fn shuffle_widths(shape: &[usize], [rows, items]: [usize; 2], widths: &[u32]) -> Vec<u32> {
    assert!(shape.len() == 3 && shape[..2] == [rows, items], "{shape:?} for {rows} permutations of {items}");
    match *widths {
        [width] => vec![width; shape[2]],
        _ => {
            assert_eq!(widths.len(), shape[2], "a width for every column");
            widths.to_vec()
        }
    }
}

/// Rows and columns of the keys of a selection of `k`.
pub(crate) fn keys_shape(shape: &[usize], k: usize) -> [usize; 2] {
    match *shape {
        [rows, n] if k <= n => [rows, n],
        _ => panic!("the {k} largest keys of each row of {shape:?}"),
    }
}

/// Rows `start..start + count` of a table at [`FRAC`] fractional bits.
pub(crate) fn table_rows(table: &FixedWeight, matrix: &[i32], start: usize, count: usize) -> Vec<u64> {
    let n = table.spec.outputs;
    matrix[start * n..(start + count) * n].iter().map(|&w| (i64::from(w) << (FRAC - table.frac)) as u64).collect()
}
