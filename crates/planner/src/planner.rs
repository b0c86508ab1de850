//! The arithmetic black box on shapes alone: it adds up what every operation would send.

use std::any::Any;

use ndarray::ArrayD;
use waggle_engine::Layer;
use waggle_net::{Ledger, Role};

use waggle_protocols::cached::{self, Events, ReadyOperand};
use waggle_protocols::correlation::Need;
use waggle_protocols::cost::Cost;
use waggle_protocols::form::Shapes;
use waggle_protocols::stock::{Levels, Use};
use waggle_protocols::{
    Abb, Error, FixedPoint, FixedWeight, Needs, Operation, Options, Plans, Shape, Words, preparation,
};

use crate::classes::{Classes, Event};
use crate::forecast::Forecast;
use crate::timeline::{Deployment, Tallies, Timeline};

/// The engine on shapes alone, which predicts what [`Secure`](waggle_protocols::Secure) would send.
pub type Plan = FixedPoint<Planner>;

/// Books the cost of every operation, pools and keys included, as a [`Session`](waggle_protocols::Session) with the
/// same options would. After the same operations both ledgers are equal except for times.
pub struct Planner {
    ledger: Ledger,
    plans: Plans,
    forecast: Forecast,
    options: Options,
    stock: Levels,
    /// The needs outside of layers.
    needs: Needs,
    classes: Classes,
    /// Whether costs go into the ledger.
    books: bool,
}

impl Planner {
    /// A planner of a session that was just set up with `options`.
    pub fn new(options: Options) -> Self {
        Planner::after(Ledger::default(), options)
    }

    /// A planner of a session that was set up with `options` after everything in `ledger`.
    pub fn after(mut ledger: Ledger, options: Options) -> Self {
        let forecast = Forecast::new(options, &mut ledger);
        let plans = Plans::new(options);
        let ledger = ledger.without_clocks();
        let (stock, needs, classes) = Default::default();
        Planner { ledger, plans, forecast, options, stock, needs, classes, books: true }
    }

    /// This planner, which from now on also books times in `setting`: those of the client's clock and of both
    /// processors.
    pub fn timed(mut self, setting: Deployment) -> Self {
        self.forecast.time(Timeline::new(setting), &mut self.ledger);
        self
    }

    /// As [`Planner::timed`], and the planner also counts the units of kernels by account ([`Planner::tallies`]).
    pub fn tallied(mut self, setting: Deployment) -> Self {
        self.forecast.time(Timeline::new(setting).tallied(), &mut self.ledger);
        self
    }

    /// The units of kernels by account, if they are counted.
    pub fn tallies(&self) -> Option<&Tallies> {
        self.forecast.tallies()
    }

    /// An estimate of the most bytes that pools of OTs and an operation hold at once, by party. Zero unless times are
    /// predicted.
    pub fn room(&self) -> [u64; 2] {
        self.forecast.room()
    }

    /// A planner that lists what a run takes from its stock ([`Planner::needs`]) and books nothing.
    pub fn listing(options: Options) -> Self {
        Planner { books: false, ..Planner::new(options) }
    }

    /// This planner with the HE plans of `other`, so that they need not be made again. Panics if the options differ.
    pub fn with_plans_of(self, other: Self) -> Self {
        assert_eq!(self.options, other.options, "plans follow the options");
        Planner { plans: other.plans, ..self }
    }

    /// Sets whether costs go into the ledger from now on. Shapes and [needs](Planner::needs) are tracked either way.
    pub fn set_booking(&mut self, books: bool) {
        self.books = books;
    }

    /// Fills the stock with `needs` and books the cost, as [`Secure::prepare`](waggle_protocols::Secure::prepare)
    /// does.
    pub fn prepare(&mut self, needs: &Needs) -> Result<(), Error> {
        let phase = preparation::phase(&self.options, self.ledger.phase());
        self.ledger.enter(preparation::SCOPE);
        for (job, cost) in preparation::costs(needs, &mut self.plans)? {
            self.ledger.enter(job.scope());
            if self.books {
                self.forecast.play(&cost, &mut self.ledger);
            }
            job.end(needs, phase, &mut self.ledger);
        }
        self.ledger.leave();
        self.set_stock(needs);
        Ok(())
    }

    /// Fills the stock with `needs` at no cost, as if an earlier session had prepared them.
    pub fn set_stock(&mut self, needs: &Needs) {
        self.stock = Levels::of(needs, &self.options);
    }

    /// What the run has taken from stock so far.
    pub fn needs(&self) -> Needs {
        let mut all = self.needs.clone();
        self.classes.add_to(&mut all);
        all
    }

    /// The ledger with all costs booked so far.
    pub fn ledger(&mut self) -> &mut Ledger {
        &mut self.ledger
    }

    /// The plans of HE operations.
    pub fn plans(&mut self) -> &mut Plans {
        &mut self.plans
    }

    /// The engine that runs on this planner.
    pub fn engine(self) -> Plan {
        FixedPoint::over(self)
    }

    /// The list of needs to which a need of the current operation is added, and the account of this operation.
    fn list(&mut self) -> (&mut Needs, &str) {
        (self.classes.running().unwrap_or(&mut self.needs), self.ledger.path())
    }

    fn play(&mut self, cost: Cost) {
        let (list, path) = self.list();
        for role in [Role::Client, Role::Server] {
            let cots = cost.cots_used(role);
            list.cots[role as usize] += cots;
            if cots > 0 {
                list.uses.note(Use::Cots(role), path, cots);
            }
        }
        self.book(cost);
    }

    fn book(&mut self, cost: Cost) {
        if self.books {
            self.forecast.play(&cost, &mut self.ledger);
            self.classes.note(|| Event::Book { cost, passages: Vec::new() });
        }
    }

    /// Takes `need` from stock. What the stock lacks is made on the spot, and the cost is booked.
    fn take(&mut self, need: Need) -> Result<(), Error> {
        let (list, path) = self.list();
        match list.units.get_mut(&need.kind) {
            Some(units) => *units += need.units,
            None => drop(list.units.insert(need.kind.clone(), need.units)),
        }
        list.uses.note(Use::Units(need.kind.clone()), path, need.units as u64);
        if self.books {
            let cost = taking(&mut self.stock, &mut self.plans, &need, self.forecast.is_timed())?;
            if need.kind.weight().is_some() {
                self.book(cost);
            } else {
                self.forecast.play(&cost, &mut self.ledger);
                self.classes.note(|| Event::Take(need));
            }
        }
        Ok(())
    }

    /// Takes the masks of a product with a cached operand. Masks that are not ready are made on the spot, and the
    /// cost is booked.
    fn take_masks(&mut self, met: &ReadyOperand<'_>) -> Result<(), Error> {
        let ReadyOperand { id, form, event, listed, ready, .. } = *met;
        let (list, path) = self.list();
        list.operands.entry(id).or_insert_with(|| Events { form, list: Vec::new() }).list.push(listed);
        list.uses.note(Use::Operand(id), path, form.product_words(&listed));
        if self.books && !ready {
            let cost = cached::prepare_cost(&mut self.plans, &Events { form, list: vec![event] })?;
            self.book(cost);
        }
        Ok(())
    }

    /// Books once more, for another layer of `class`, what the first layer of the class did in this pass.
    fn replay(&mut self, class: usize) -> Result<(), Error> {
        if !self.books {
            return Ok(());
        }
        let Planner { ledger, plans, forecast, stock, classes, .. } = self;
        let timed = forecast.is_timed();
        for event in classes.events(class) {
            match event {
                Event::Enter(name) => ledger.enter(name),
                Event::Leave => ledger.leave(),
                Event::Take(need) => {
                    let cost = taking(stock, plans, need, timed)?;
                    forecast.play(&cost, ledger);
                }
                Event::Book { cost, passages } => forecast.play_again(cost, passages, ledger),
            }
        }
        Ok(())
    }
}

/// The cost of taking `need` from `stock`: the cost of making what the stock lacks and, if `work` is counted, of
/// moving the words out of the stock.
fn taking(stock: &mut Levels, plans: &mut Plans, need: &Need, work: bool) -> Result<Cost, Error> {
    let made = stock.take(plans, need)?;
    Ok(if work { made.then(need.kind.moved(need.units)) } else { made })
}

impl Abb for Planner {
    type Form = Shapes;
    type Words = Shape;
    type Bits = Shape;
    const PLAN: bool = true;

    fn enter(&mut self, name: &str) {
        self.ledger.enter(name);
        if self.books {
            self.classes.note(|| Event::Enter(name.to_owned()));
        }
    }

    fn leave(&mut self) {
        self.ledger.leave();
        if self.books {
            self.classes.note(|| Event::Leave);
        }
    }

    fn begin_layer(&mut self, layer: &Layer<FixedWeight>) -> Result<Option<&dyn Any>, Error> {
        let Some(class) = self.classes.begin(layer, self.ledger.path()) else { return Ok(None) };
        self.replay(class)?;
        Ok(self.classes.output(class))
    }

    fn end_layer(&mut self, output: Box<dyn Any + Send>) {
        self.classes.end(output);
    }

    fn apply<O: Operation>(
        &mut self,
        operation: O,
        mut input: O::Input<'_, Shapes>,
    ) -> Result<O::Output<Shapes>, Error> {
        let mut prepared = false;
        for met in operation.operands::<Shapes>(&mut input, &mut self.stock.operands, &self.options)? {
            self.take_masks(&met)?;
            prepared = true;
        }
        let size = operation.size::<Shapes>(&input);
        if let Some(need) = operation.correlations(&size, &self.options) {
            self.take(need)?;
            prepared = true;
        }
        let cost = operation.cost(&size, prepared, &mut self.plans)?;
        self.play(cost);
        Ok(operation.planned(size))
    }

    fn public(&mut self, shape: &[usize], _: impl Fn(&[usize]) -> u64) -> Shape {
        Shape(shape.to_vec())
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

    fn low_bit(&mut self, x: &Shape) -> Shape {
        x.clone()
    }

    fn options(&self) -> &Options {
        &self.options
    }

    fn plans(&mut self) -> Option<&mut Plans> {
        Some(&mut self.plans)
    }
}
