//! The arithmetic black box on bare shapes: adds up what every operation would send.

use he::MatmulShape;
use ndarray::ArrayD;
use net::{Ledger, Role};

use crate::abb::{Abb, Table, Truncation, Words};
use crate::cost::Cost;
use crate::ops::{bit_to_word, compare, evaluate, matmul, mul, mux, one_hot, quickselect, reveal, shuffle, truncate};
use crate::session::{Forecast, Options, Plans};
use crate::two_party::{
    check_table, embed_rows, embed_spec, keys_shape, linear_shape, linear_spec, matmul_shape, shuffle_widths,
};
use crate::weight::FixedWeight;
use crate::{Error, Shape, Tensor};

/// Books the cost of every operation, pools and keys included, as a [`Session`](crate::Session) with the same options
/// would: after the same operations both ledgers are equal but for time.
#[derive(Debug)]
pub struct Planner {
    ledger: Ledger,
    plans: Plans,
    forecast: Forecast,
    /// OTs used with the client, the server as OT sender.
    cots: [u64; 2],
}

impl Planner {
    /// The state after session set-up with `options`.
    pub fn new(options: Options) -> Self {
        let mut ledger = Ledger::default();
        let forecast = Forecast::new(options, &mut ledger);
        Planner { ledger, plans: Plans::new(options.ot), forecast, cots: [0; 2] }
    }

    /// The account.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// OTs used so far with `sender` as OT sender.
    pub fn cots_used(&self, sender: Role) -> u64 {
        self.cots[sender as usize]
    }

    fn play(&mut self, cost: &Cost) {
        for role in [Role::Client, Role::Server] {
            self.cots[role as usize] += cost.cots_used(role);
        }
        self.forecast.play(cost, &mut self.ledger);
    }
}

impl Abb for Planner {
    type Words = Shape;
    type Bits = Shape;
    /// Rows and items.
    type Permutations = [usize; 2];

    fn enter(&mut self, name: &str) {
        self.ledger.enter(name);
    }

    fn leave(&mut self) {
        self.ledger.leave();
    }

    fn public(&mut self, values: &ArrayD<u64>) -> Shape {
        Shape(values.shape().to_vec())
    }

    fn constant(&mut self, shape: &[usize], _: u64) -> Shape {
        Shape(shape.to_vec())
    }

    fn add_public(&mut self, x: &Shape, _: u64) -> Shape {
        x.clone()
    }

    fn input(&mut self, _: Role, shape: &[usize], _: Option<&ArrayD<u64>>) -> Result<Shape, Error> {
        Ok(Shape(shape.to_vec()))
    }

    fn not(&mut self, bits: &Shape) -> Shape {
        bits.clone()
    }

    fn xor(&mut self, a: &Shape, b: &Shape) -> Shape {
        a.plus(b)
    }

    fn truncate(&mut self, x: &Shape, how: Truncation) -> Result<Shape, Error> {
        self.play(&truncate::cost(x.len(), how));
        Ok(x.clone())
    }

    fn at_least(&mut self, x: &Shape, thresholds: &[i64], width: u32) -> Result<Shape, Error> {
        self.play(&compare::cost(x.len(), thresholds.len(), width));
        Ok(x.repeat_last(thresholds.len()))
    }

    fn mux(&mut self, bits: &Shape, x: &Shape, width: u32) -> Result<Shape, Error> {
        assert_eq!(bits, x, "shapes of a selection");
        self.play(&mux::cost(x.len(), width));
        Ok(x.clone())
    }

    fn bit_to_word(&mut self, bits: &Shape, width: u32) -> Result<Shape, Error> {
        self.play(&bit_to_word::cost(bits.len(), width));
        Ok(bits.clone())
    }

    fn mul(&mut self, x: &Shape, y: &Shape, width: u32) -> Result<Shape, Error> {
        assert_eq!(x, y, "shapes of a product");
        let cost = mul::mul_cost(&mut self.plans, x.len(), width)?;
        self.play(&cost);
        Ok(x.clone())
    }

    fn mul_rows(&mut self, x: &Shape, y: &Shape, width: u32) -> Result<Shape, Error> {
        assert_eq!((x.0.len(), &x.0[..1]), (2, &y.0[..]), "rows and their factors");
        self.play(&mul::rows_cost(x.0[0], x.0[1], width));
        Ok(x.clone())
    }

    fn sum_squares(&mut self, x: &Shape, width: u32) -> Result<Shape, Error> {
        let cost = mul::square_cost(&mut self.plans, x.len(), width)?;
        self.play(&cost);
        Ok(x.sum_last())
    }

    fn evaluate(&mut self, table: &impl Table, x: &Shape) -> Result<Shape, Error> {
        self.play(&evaluate::cost(table, x.len()));
        Ok(x.clone())
    }

    fn matmul(&mut self, a: &Shape, b: &Shape, width: u32) -> Result<Shape, Error> {
        let shape = matmul_shape(&a.0, &b.0);
        let cost = matmul::shared_cost(&mut self.plans, shape, width)?;
        self.play(&cost);
        let MatmulShape { batch, m, n, .. } = shape;
        Ok(Shape(vec![batch, m, n]))
    }

    fn linear(&mut self, x: &Shape, weight: &FixedWeight) -> Result<Shape, Error> {
        let (shape, rows) = linear_shape(&x.0, weight);
        let cost = matmul::private_cost(&mut self.plans, linear_spec(weight, rows))?;
        self.play(&cost);
        Ok(Shape(shape))
    }

    fn embed(&mut self, table: &FixedWeight, _: Option<&[u32]>, count: usize) -> Result<Shape, Error> {
        check_table(table)?;
        let batch = embed_rows(table);
        for start in (0..count).step_by(batch) {
            let spec = embed_spec(table, batch.min(count - start));
            let cost = matmul::private_cost(&mut self.plans, spec)?;
            self.play(&cost);
        }
        Ok(Shape(vec![count, table.spec.outputs]))
    }

    fn rows(&mut self, table: &FixedWeight, _: usize, count: usize) -> Result<Shape, Error> {
        Ok(Shape(vec![count, table.spec.outputs]))
    }

    fn reveal(&mut self, x: &Shape, width: u32, to: Role) -> Result<Option<ArrayD<u64>>, Error> {
        self.play(&reveal::cost(x.len(), width, to));
        Ok(None)
    }

    fn open(&mut self, x: &Shape, width: u32) -> Result<Option<ArrayD<u64>>, Error> {
        self.play(&reveal::open_cost(x.len(), width));
        Ok(None)
    }

    fn low_bit(&mut self, x: &Shape) -> Shape {
        x.clone()
    }

    fn one_hot(&mut self, x: &Shape, bits: u32, count: usize) -> Result<Shape, Error> {
        self.play(&one_hot::cost(x.len(), bits, count));
        Ok(x.repeat_last(count))
    }

    fn permutations(&mut self, rows: usize, n: usize) -> [usize; 2] {
        [rows, n]
    }

    fn shuffle(&mut self, &[rows, n]: &[usize; 2], x: &Shape, widths: &[u32], inverse: bool) -> Result<Shape, Error> {
        let widths = shuffle_widths(&x.0, [rows, n], widths);
        self.play(&shuffle::cost(rows, n, &widths, inverse));
        Ok(x.clone())
    }

    fn quickselect(&mut self, keys: &Shape, k: usize, width: u32) -> Result<Vec<Vec<usize>>, Error> {
        let [rows, n] = keys_shape(&keys.0, k);
        self.scope(quickselect::SCOPE, |b| {
            for comparisons in quickselect::expected(rows, n, k, width).profile {
                b.play(&quickselect::round_cost(comparisons, width));
            }
            Ok(vec![(0..k).collect(); rows])
        })
    }
}
