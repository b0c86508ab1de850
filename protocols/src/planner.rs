//! The arithmetic black box on bare shapes: adds up what every operation would send.

use he::{MatmulShape, MatmulSpec};
use ndarray::ArrayD;
use net::{Ledger, Role};

use crate::abb::{Abb, Table, Tabulated, Truncation, Words};
use crate::cost::Cost;
use crate::ops::growing::{Axis, Events, Operand};
use crate::ops::masked::threshold;
use crate::ops::{
    beaver, bit_to_word, compare, evaluate, growing, linear, masked, matmul, mul, mux, one_hot, quickselect, reveal,
    row_max, shuffle, truncate,
};
use crate::session::{Forecast, Options, Plans};
use crate::stock::{self, Demand, Levels, Needs};
use crate::two_party::{
    check_table, embed_rows, embed_spec, keys_shape, linear_shape, linear_spec, matmul_shape, shuffle_widths,
};
use crate::weight::FixedWeight;
use crate::{Error, Evaluate, Shape, Tensor};

/// Books the cost of every operation, pools and keys included, as a [`Session`](crate::Session) with the same options
/// would: after the same operations both ledgers are equal but for time.
#[derive(Debug)]
pub struct Planner {
    ledger: Ledger,
    plans: Plans,
    forecast: Forecast,
    options: Options,
    stock: Levels,
    needs: Needs,
}

impl Planner {
    /// The state after session set-up with `options`.
    pub fn new(options: Options) -> Self {
        Planner::after(Ledger::default(), options)
    }

    /// The state after what `ledger` holds and session set-up with `options`.
    pub fn after(mut ledger: Ledger, options: Options) -> Self {
        let forecast = Forecast::new(options, &mut ledger);
        let plans = Plans::new(options);
        Planner { ledger, plans, forecast, options, stock: Levels::default(), needs: Needs::default() }
    }

    /// Fills the stock with all of `needs`, as [`Secure::prepare`](crate::Secure::prepare) does.
    pub fn prepare(&mut self, needs: &Needs) -> Result<(), Error> {
        self.ledger.enter(stock::SCOPE);
        for (name, cost) in needs.costs(&mut self.plans)? {
            self.ledger.enter(name);
            self.forecast.play(&cost, &mut self.ledger);
            self.ledger.leave();
        }
        self.ledger.leave();
        self.set_stock(needs);
        Ok(())
    }

    /// Puts all that `needs` stores in stock at no cost: another session made it.
    pub fn set_stock(&mut self, needs: &Needs) {
        self.stock = Levels::of(needs);
    }

    /// What the run so far takes from a stock.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// The account.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// OTs used so far by online steps with `sender` as OT sender.
    pub fn cots_used(&self, sender: Role) -> u64 {
        self.needs.cots[sender as usize]
    }

    fn play(&mut self, cost: &Cost) {
        for role in [Role::Client, Role::Server] {
            self.needs.cots[role as usize] += cost.cots_used(role);
        }
        self.forecast.play(cost, &mut self.ledger);
    }

    /// Takes `units` of `demand`, made on the spot if they are not in stock.
    fn take(&mut self, demand: &Demand, units: usize) -> Result<(), Error> {
        *self.needs.units.entry(demand.clone()).or_default() += units;
        for cost in self.stock.take(&mut self.plans, demand, units)? {
            self.forecast.play(&cost, &mut self.ledger);
        }
        Ok(())
    }

    /// The product of `spec` with a matrix of the server.
    fn times(&mut self, spec: MatmulSpec, demand: Demand) -> Result<(), Error> {
        let cost = if self.options.preprocess {
            self.take(&demand, spec.shape.m)?;
            linear::cost(spec.shape.m, spec.shape.k, spec.width)
        } else {
            matmul::private_cost(&mut self.plans, spec)?
        };
        self.play(&cost);
        Ok(())
    }
}

impl Abb for Planner {
    type Words = Shape;
    type Bits = Shape;
    type Selector = Shape;
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
        let cost = if threshold::applies(&self.options, width) {
            self.take(&Demand::Comparison { width }, x.len())?;
            threshold::run_cost(width, x.len())
        } else {
            compare::cost(x.len(), thresholds.len(), width)
        };
        self.play(&cost);
        Ok(x.repeat_last(thresholds.len()))
    }

    fn row_max(&mut self, x: &Shape, lengths: &[usize], width: u32) -> Result<Shape, Error> {
        assert_eq!(x.0, [lengths.iter().sum::<usize>()], "entries of the rows");
        self.play(&row_max::cost(lengths, width, &self.options));
        Ok(Shape(vec![lengths.len()]))
    }

    fn selectors<const N: usize>(&mut self, bits: &Shape) -> Result<[Shape; N], Error> {
        self.play(&mux::selectors_cost(N, bits.len()));
        Ok(std::array::from_fn(|_| bits.clone()))
    }

    fn select(&mut self, selector: Shape, x: &Shape, width: u32) -> Result<Shape, Error> {
        assert_eq!(&selector, x, "shapes of a selection");
        self.play(&mux::select_cost(x.len(), width));
        Ok(x.clone())
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
        if self.options.preprocess {
            self.take(&Demand::RowProduct { n: 1, width }, x.len())?;
            self.play(&beaver::rows_cost(x.len(), 1, width));
            return Ok(x.clone());
        }
        let cost = mul::mul_cost(&mut self.plans, x.len(), width)?;
        self.play(&cost);
        Ok(x.clone())
    }

    fn mul_rows(&mut self, x: &Shape, y: &Shape, width: u32) -> Result<Shape, Error> {
        assert_eq!((x.0.len(), &x.0[..1]), (2, &y.0[..]), "rows and their factors");
        let [rows, n] = [x.0[0], x.0[1]];
        if self.options.preprocess && n > 0 {
            self.take(&Demand::RowProduct { n, width }, rows)?;
            self.play(&beaver::rows_cost(rows, n, width));
        } else {
            let cost = mul::rows_cost(&mut self.plans, rows, n, width)?;
            self.play(&cost);
        }
        Ok(x.clone())
    }

    fn sum_squares(&mut self, x: &Shape, width: u32) -> Result<Shape, Error> {
        if self.options.preprocess {
            let sums = x.sum_last();
            let n = x.0[x.0.len() - 1];
            self.take(&Demand::SumSquares { n, width }, sums.len())?;
            self.play(&beaver::sum_squares_cost(sums.len(), n, width));
            return Ok(sums);
        }
        let cost = mul::square_cost(&mut self.plans, x.len(), width)?;
        self.play(&cost);
        Ok(x.sum_last())
    }

    fn evaluation(&self) -> Evaluate {
        self.options.evaluate()
    }

    fn evaluate(&mut self, table: Tabulated<'_, impl Table>, x: &Shape) -> Result<Shape, Error> {
        let cost = match table {
            Tabulated::Lookup(table) => evaluate::cost(table, x.len()),
            Tabulated::Masked(table) => {
                self.take(&Demand::Evaluation(table.shape()), x.len())?;
                masked::run_cost(&table.shape(), x.len())
            }
        };
        self.play(&cost);
        Ok(x.clone())
    }

    fn matmul(&mut self, a: &Shape, b: &Shape, width: u32) -> Result<Shape, Error> {
        let shape = matmul_shape(&a.0, &b.0);
        let MatmulShape { batch, m, k, n } = shape;
        let cost = if self.options.preprocess {
            self.take(&Demand::Matmul { batch, m, k, n, width }, 1)?;
            beaver::matmul_cost(shape, width)
        } else {
            matmul::shared_cost(&mut self.plans, shape, width)?
        };
        self.play(&cost);
        Ok(Shape(vec![batch, m, n]))
    }

    fn matmul_growing(
        &mut self,
        a: &Shape,
        b: &Shape,
        width: u32,
        axis: Axis,
        operand: &mut Operand,
    ) -> Result<Shape, Error> {
        if !self.options.preprocess {
            return self.matmul(a, b, width);
        }
        let shape = matmul_shape(&a.0, &b.0);
        let (form, event) = growing::single(shape, axis, width);
        let (ready, known) = operand.plan(form, event, &mut self.stock.operands)?;
        let need = self.needs.operands.entry(operand.id()).or_insert_with(|| Events { form, list: Vec::new() });
        need.list.push(event);
        if !ready {
            let cost = growing::prepare_cost(&mut self.plans, &Events { form, list: vec![event] })?;
            self.forecast.play(&cost, &mut self.ledger);
        }
        self.play(&growing::cost(form, event, known));
        Ok(Shape(vec![shape.batch, shape.m, shape.n]))
    }

    fn linear(&mut self, x: &Shape, weight: &FixedWeight) -> Result<Shape, Error> {
        let (shape, rows) = linear_shape(&x.0, weight);
        self.times(linear_spec(weight, rows), Demand::linear(weight))?;
        Ok(Shape(shape))
    }

    fn embed(&mut self, table: &FixedWeight, _: Option<&[u32]>, count: usize) -> Result<Shape, Error> {
        check_table(table)?;
        let batch = embed_rows(table);
        for start in (0..count).step_by(batch) {
            self.times(embed_spec(table, batch.min(count - start)), Demand::embed(table))?;
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

    fn reveal_rounded(&mut self, x: &Shape, width: u32, drop: u32, to: Role) -> Result<Option<ArrayD<u64>>, Error> {
        self.play(&reveal::rounded_cost(x.len(), width, drop, to));
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
