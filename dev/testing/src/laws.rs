//! The laws of an operation, held between two parties.
//!
//! [`Laws`] runs a [`Function`], which is an operation or anything else that is written over [`Abb`], in the clear,
//! between two parties and as a plan, in one phase and in two, and panics where one of these does not hold:
//!
//! | law | what it says |
//! |---|---|
//! | reference | the parties' results stand for what the reference computes, within the stated error |
//! | cost | both ledgers equal the plan's, and the shapes of results are those of the plan |
//! | range | the reference refuses inputs outside the range |
//! | uniform | what the parties open under masks is uniformly distributed, by chi-square |
//! | spent once | no mask serves twice; words that one place in code opens in succession differ by uniform words |
//!
//! In two phases the correlations are made on the spot once, and once ahead.
//!
//! [`Laws::hides`] holds a function to one more law, about the messages of a party: see [`channel`](crate::channel).

use std::any::type_name;
use std::collections::HashMap;

use ndarray::ArrayD;
use rand::Rng;
use waggle_net::{Channel, Phase, Role};
use waggle_planner::Planner;
use waggle_protocols::audit::LIMIT;
use waggle_protocols::deal::{self, HelperLink};
use waggle_protocols::form::{Shapes, Values};
use waggle_protocols::halves::{self, HalvesSeed};
use waggle_protocols::local::Pair;
use waggle_protocols::ops::fss::{counts, threshold};
use waggle_protocols::ops::{
    b2a, compare, embed, evaluate, extend, linear, matmul, mul, mux, mux_columns, one_hot, reveal,
};
use waggle_protocols::ops::{row_max, sum_squares, truncate};
use waggle_protocols::preparation;
use waggle_protocols::{
    Abb, Clear, Error, FixedMatrix, Form, HelperDeals, Needs, Operation, Options, Shape, TwoParty,
};

use crate::parties::{DEALER, TWO_PHASES, open, pair, share};
use crate::values::distance;

/// A function of hidden words and bits that runs on every box.
pub trait Function: Sync {
    /// Runs the function on `b`.
    fn call<B: Abb>(&self, b: &mut B, words: &[B::Words], bits: &[B::Bits]) -> Result<Output<B::Form>, Error>;
}

/// The result of a [`Function`].
pub enum Output<F: Form> {
    /// Hidden words.
    Words(F::Words),
    /// Hidden bits.
    Bits(F::Bits),
    /// Words opened to the parties that [`Laws::opened_to`] names; a plan gives `None`.
    Opened(Option<ArrayD<u64>>),
}

/// An operation whose operands are words and bits. [`lawful!`](crate::lawful) implements it.
pub trait Lawful: Operation + Copy + Sync {
    /// The operands of the operation, picked from all words and all bits. Both are in the order in which they were
    /// added.
    fn input<'a, F: Form>(words: &'a [F::Words], bits: &'a [F::Bits]) -> Self::Input<'a, F>;

    /// The result of the operation as an [`Output`].
    fn output<F: Form>(output: Self::Output<F>) -> Output<F>;
}

impl<O: Lawful> Function for O {
    fn call<B: Abb>(&self, b: &mut B, words: &[B::Words], bits: &[B::Bits]) -> Result<Output<B::Form>, Error> {
        b.apply(*self, O::input::<B::Form>(words, bits)).map(O::output::<B::Form>)
    }
}

/// Says what an operation takes and gives, for [`Laws`]: `lawful!(Mul, |words, _| (&words[0], &words[1]), Words)`
/// picks the operands from all words and all bits, and names the variant of [`Output`].
#[macro_export]
macro_rules! lawful {
    ($operation:ty, |$words:pat_param, $bits:pat_param| $input:expr, $output:ident) => {
        impl $crate::laws::Lawful for $operation {
            fn input<'a, F: $crate::waggle_protocols::Form>(
                $words: &'a [F::Words],
                $bits: &'a [F::Bits],
            ) -> Self::Input<'a, F> {
                $input
            }

            fn output<F: $crate::waggle_protocols::Form>(output: Self::Output<F>) -> $crate::laws::Output<F> {
                $crate::laws::Output::$output(output)
            }
        }
    };
}

lawful!(b2a::B2a, |_, bits| &bits[0], Words);
lawful!(compare::AtLeast<'_>, |words, _| &words[0], Bits);
lawful!(counts::CountAtLeast<'_>, |words, _| &words[0], Words);
lawful!(embed::Embed<'_>, |_, _| (), Words);
lawful!(evaluate::Evaluate<'_>, |words, _| &words[0], Words);
lawful!(extend::ExtendColumns<'_>, |words, _| &words[0], Words);
lawful!(linear::Linear<'_>, |words, _| &words[0], Words);
lawful!(matmul::Matmul, |words, _| (&words[0], &words[1]), Words);
lawful!(mul::Mul, |words, _| (&words[0], &words[1]), Words);
lawful!(mul::MulRows, |words, _| (&words[0], &words[1]), Words);
lawful!(mux::Mux, |words, bits| (&bits[0], &words[0]), Words);
lawful!(mux_columns::MuxColumns<'_>, |words, bits| (&bits[0], &words[0]), Words);
lawful!(threshold::NonZero, |words, _| &words[0], Bits);
lawful!(one_hot::OneHot, |words, _| &words[0], Bits);
lawful!(reveal::Open, |words, _| &words[0], Opened);
lawful!(reveal::Reveal, |words, _| &words[0], Opened);
lawful!(reveal::RevealRounded, |words, _| &words[0], Opened);
lawful!(row_max::RowMax<'_>, |words, _| &words[0], Words);
lawful!(sum_squares::SumSquares, |words, _| &words[0], Words);
lawful!(truncate::Truncation, |words, _| &words[0], Words);

/// Makes a [`Function`] of an expression over a box, its words and its bits, and names the variant of [`Output`]:
/// `function!(Words, [width: u32], |b, _, bits| b.apply(B2a { width: *width }, &bits[0]))`. The brackets name the
/// variables that the expression uses.
#[macro_export]
macro_rules! function {
    ($output:ident, [$($name:ident : $ty:ty),*], |$b:ident, $words:pat_param, $bits:pat_param| $body:expr) => {{
        #[derive(Clone)]
        struct Named { $($name: $ty),* }
        impl $crate::Function for Named {
            fn call<B: $crate::waggle_protocols::Abb>(
                &self,
                $b: &mut B,
                $words: &[B::Words],
                $bits: &[B::Bits],
            ) -> Result<$crate::Output<B::Form>, $crate::waggle_protocols::Error> {
                let Named { $($name),* } = self;
                let result: Result<_, $crate::waggle_protocols::Error> = $body;
                result.map($crate::Output::$output)
            }
        }
        Named { $($name),* }
    }};
}

/// Fewest words opened under masks for the chi-square test: 128 for each value of the four bits that it looks at.
pub const UNIFORM_WORDS: usize = 1 << 11;

/// The number of words of masks for cached operands that are made at once. It is small, so that tests need several
/// batches.
pub const OPERAND_BATCH: u64 = 1 << 7;

/// A planner of sessions that make [`OPERAND_BATCH`] words of masks for cached operands at once.
pub fn planner(options: Options) -> Planner {
    let mut planner = Planner::new(options);
    planner.plans().operand_batch = OPERAND_BATCH;
    planner
}

/// The operands of a run as shares: of each operand first the client's share, then the server's.
pub(crate) struct Shares {
    pub(crate) words: Vec<[ArrayD<u64>; 2]>,
    pub(crate) bits: Vec<[ArrayD<u8>; 2]>,
}

/// A [`Function`] on each box. Through this trait object the laws are compiled once for all functions.
pub(crate) trait OnBoxes: Sync {
    fn name(&self) -> &'static str;
    fn clear(&self, b: &mut Clear, words: &[ArrayD<u64>], bits: &[ArrayD<u8>]) -> Result<Output<Values>, Error>;
    fn secure(&self, b: &mut TwoParty, words: &[ArrayD<u64>], bits: &[ArrayD<u8>]) -> Result<Output<Values>, Error>;
    fn plan(&self, b: &mut Planner, words: &[Shape], bits: &[Shape]) -> Result<Output<Shapes>, Error>;
}

impl<F: Function> OnBoxes for F {
    fn name(&self) -> &'static str {
        type_name::<F>()
    }

    fn clear(&self, b: &mut Clear, words: &[ArrayD<u64>], bits: &[ArrayD<u8>]) -> Result<Output<Values>, Error> {
        self.call(b, words, bits)
    }

    fn secure(&self, b: &mut TwoParty, words: &[ArrayD<u64>], bits: &[ArrayD<u8>]) -> Result<Output<Values>, Error> {
        self.call(b, words, bits)
    }

    fn plan(&self, b: &mut Planner, words: &[Shape], bits: &[Shape]) -> Result<Output<Shapes>, Error> {
        self.call(b, words, bits)
    }
}

/// A function with its inputs and its error, to be held to the laws.
pub struct Laws<'l> {
    /// The function in the clear, at the client and at the server, in this order. A party's function lacks what the
    /// party does not know.
    functions: [Box<dyn OnBoxes + 'l>; 3],
    pub(crate) words: Vec<ArrayD<u64>>,
    pub(crate) bits: Vec<ArrayD<u8>>,
    ring: u32,
    error: u64,
    opened_to: Vec<Role>,
    refused: Vec<Vec<ArrayD<u64>>>,
    pub(crate) weights: HashMap<String, &'l FixedMatrix>,
    pub(crate) usages: Vec<Options>,
}

impl<'l> Laws<'l> {
    /// The laws of a function whose parameters are all public.
    pub fn of<F: Function + Clone + 'l>(function: F) -> Self {
        Laws::of_each(function.clone(), function.clone(), function)
    }

    /// The laws of a function with parameters that only one party knows.
    pub fn of_each<F: Function + 'l>(clear: F, client: F, server: F) -> Self {
        Laws {
            functions: [Box::new(clear), Box::new(client), Box::new(server)],
            words: Vec::new(),
            bits: Vec::new(),
            ring: 64,
            error: 0,
            opened_to: Vec::new(),
            refused: Vec::new(),
            weights: HashMap::new(),
            usages: vec![DEALER, TWO_PHASES],
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.functions[0].name()
    }

    /// Adds an operand of words, row-major.
    ///
    /// # Panics
    /// If there are not as many values as the shape says.
    pub fn words(mut self, shape: &[usize], values: Vec<u64>) -> Self {
        self.words.push(ArrayD::from_shape_vec(shape, values).expect("as many words as the shape says"));
        self
    }

    /// Adds an operand of bits, each a byte 0 or 1, row-major.
    ///
    /// # Panics
    /// If there are not as many bits as the shape says.
    pub fn bits(mut self, shape: &[usize], bits: Vec<u8>) -> Self {
        self.bits.push(ArrayD::from_shape_vec(shape, bits).expect("as many bits as the shape says"));
        self
    }

    /// Has words compared modulo 2^`width`; modulo 2^64 unless stated.
    pub fn ring(mut self, width: u32) -> Self {
        self.ring = width;
        self
    }

    /// Sets the largest allowed difference from the reference, in units in the last place; 0 unless stated.
    pub fn error(mut self, units: u64) -> Self {
        self.error = units;
        self
    }

    /// Sets the parties that learn opened words.
    pub fn opened_to(mut self, roles: &[Role]) -> Self {
        self.opened_to = roles.to_vec();
        self
    }

    /// Adds words outside the range, one vector for every operand of words, which the reference must refuse.
    ///
    /// # Panics
    /// If the values do not fit the shapes of the operands, which must be added before.
    pub fn refuses(mut self, words: &[Vec<u64>]) -> Self {
        assert_eq!(words.len(), self.words.len(), "a vector for every operand");
        let shaped = |(operand, values): (&ArrayD<u64>, &Vec<u64>)| {
            ArrayD::from_shape_vec(operand.raw_dim(), values.clone()).expect("as many words as the operand has")
        };
        self.refused.push(self.words.iter().zip(words).map(shaped).collect());
        self
    }

    /// Adds the server's matrix called `name`, for correlations that are made ahead.
    pub fn weight(mut self, name: &str, matrix: &'l FixedMatrix) -> Self {
        self.weights.insert(name.to_owned(), matrix);
        self
    }

    /// Sets the options to run under, instead of [`DEALER`] and [`TWO_PHASES`].
    pub fn over(mut self, usages: &[Options]) -> Self {
        self.usages = usages.to_vec();
        self
    }

    /// Holds the function to the laws.
    ///
    /// # Panics
    /// If a law does not hold, with the name of the law.
    pub fn hold(&self) {
        for words in &self.refused {
            let refused = self.functions[0].clear(&mut Clear::new(), words, &self.bits);
            let error = refused.err();
            let range = matches!(error, Some(Error::Engine(waggle_engine::Error::Range { .. })));
            assert!(range, "range: {} took {words:?}: {error:?}", self.name());
        }
        for &options in &self.usages {
            self.between_parties(options, None);
            if options.preprocess {
                let needs = self.needs(options, 1);
                self.between_parties(options, Some(&needs));
                let weights = needs.units.keys().any(|kind| kind.weight().is_some()).then_some(HelperDeals::Weights);
                for helper in [HelperDeals::Words].into_iter().chain(weights) {
                    let options = Options { helper, ..options };
                    let needs = self.needs(options, 1);
                    self.between_parties(options, Some(&needs));
                }
            }
        }
    }

    /// Plans a run of `function`. Returns the shape of the result, what is taken from the stock, and the planner
    /// after the run.
    fn plan(
        &self,
        function: &dyn OnBoxes,
        options: Options,
        ahead: Option<&Needs>,
    ) -> (Option<Shape>, Needs, Planner) {
        let mut planner = planner(options);
        if let Some(needs) = ahead {
            planner.prepare(needs).expect("plan of the preparation");
        }
        let shape = self.book(function, &mut planner);
        let needs = planner.needs();
        (shape, needs, planner)
    }

    /// What `runs` runs take from the stock.
    pub(crate) fn needs(&self, options: Options, runs: usize) -> Needs {
        let mut planner = planner(options);
        for _ in 0..runs {
            self.book(&*self.functions[1], &mut planner);
        }
        planner.needs()
    }

    /// Books a run of `function` on `planner`. Returns the shape of the result; `None` for opened words.
    fn book(&self, function: &dyn OnBoxes, planner: &mut Planner) -> Option<Shape> {
        let words: Vec<_> = self.words.iter().map(|words| Shape(words.shape().to_vec())).collect();
        let bits: Vec<_> = self.bits.iter().map(|bits| Shape(bits.shape().to_vec())).collect();
        match function.plan(planner, &words, &bits).expect("plan") {
            Output::Words(shape) | Output::Bits(shape) => Some(shape),
            Output::Opened(opened) => {
                assert!(opened.is_none(), "cost: a plan of {} opens nothing", self.name());
                None
            }
        }
    }

    /// The words that the function gives between two parties, for a comparison of the caller's own instead of that
    /// with the reference. The law of costs is still checked.
    ///
    /// # Panics
    /// If costs differ from the plan, or if the function gives no words.
    pub fn values(&self, options: Options) -> ArrayD<u64> {
        let name = format!("{} under {options:?}", self.name());
        let (mut pair, got) = self.run(&name, options, None, &self.shared());
        let [Output::Words(client), Output::Words(server)] = got else { panic!("{name} gives no words") };
        let words = open(&[client, server]);
        self.costs(&name, options, None, &mut pair, words.shape());
        words
    }

    fn between_parties(&self, options: Options, ahead: Option<&Needs>) {
        let name = format!("{} under {options:?}, prepared ahead: {}", self.name(), ahead.is_some());
        let mut reference = Clear::evaluating(options.evaluation());
        let want = self.functions[0].clear(&mut reference, &self.words, &self.bits).expect("the inputs are in range");
        let shares = self.shared();
        let (mut pair, got) = self.run(&name, options, ahead, &shares);
        let shape = self.reference(&name, got, want);
        self.costs(&name, options, ahead, &mut pair, &shape);

        let opened = pair.party(Role::Client).session().audit().words();
        if opened == 0 {
            return;
        }
        let more = UNIFORM_WORDS.div_ceil(opened) - 1;
        let again = |abb: &mut TwoParty| (0..more).try_for_each(|_| self.once(abb, &shares).map(|_| ()));
        pair.run(again).expect("the same once more");
        for role in [Role::Client, Role::Server] {
            let (path, worst) = pair.party(role).session().audit().worst();
            assert!(worst < LIMIT, "uniform: the {role:?} sees {worst} at `{path}` of {name}");
        }
    }

    fn shared(&self) -> Shares {
        Shares { words: self.words.iter().map(share).collect(), bits: self.bits.iter().map(share_bits).collect() }
    }

    /// Runs the function once, as the party of `abb`.
    pub(crate) fn once(&self, abb: &mut TwoParty, shares: &Shares) -> Result<Output<Values>, Error> {
        let role = abb.session().role() as usize;
        let words: Vec<_> = shares.words.iter().map(|shares| shares[role].clone()).collect();
        let bits: Vec<_> = shares.bits.iter().map(|shares| shares[role].clone()).collect();
        self.functions[1 + role].secure(abb, &words, &bits)
    }

    /// Runs the function between two parties. Returns the parties and their results.
    fn run(
        &self,
        name: &str,
        options: Options,
        ahead: Option<&Needs>,
        shares: &Shares,
    ) -> (Pair, [Output<Values>; 2]) {
        let mut pair = pair(options);
        for role in [Role::Client, Role::Server] {
            pair.party(role).session().plans().operand_batch = OPERAND_BATCH;
        }
        let run = |abb: &mut TwoParty| {
            if let Some(needs) = ahead {
                let server = abb.session().is_server();
                let matrix = |name: &str| self.weights.get(name).copied().filter(|_| server);
                abb.prepare(needs, matrix, &mut |_| ())?;
            }
            self.once(abb, shares)
        };
        let got = match ahead {
            Some(needs) if options.helper.any() => {
                let demands = preparation::demands(needs, pair.party(Role::Client).session().plans());
                pair.run_with_helper(needs, |name| self.weights.get(name).copied(), run).map(|(got, ledgers)| {
                    for (role, ledger) in [Role::Client, Role::Server].into_iter().zip(ledgers) {
                        let mut channel = Channel::rehearsal(Role::Client, Vec::new());
                        let seed = HalvesSeed::from_bytes(&[0; HalvesSeed::BYTES]);
                        for row in deal::rows(&demands).into_iter().filter(|_| role == Role::Server) {
                            halves::send(&mut channel, &seed, row, None).expect("a rehearsal");
                        }
                        let mut helper =
                            HelperLink::new(role, channel, options.helper, Some(seed)).expect("a rehearsal");
                        helper.rehearse(&demands, Phase::Offline).expect("demands of a plan");
                        let planned = helper.channel().ledger();
                        assert_eq!(
                            planned.untimed(),
                            ledger.untimed(),
                            "cost: the helper's part for {role:?} of {name}"
                        );
                    }
                    got
                })
            }
            _ => pair.run(run),
        };
        let got = got.unwrap_or_else(|error| panic!("{name}: {error}"));
        (pair, got)
    }

    /// Asserts that both ledgers and the shape of the result are those of the plan.
    fn costs(&self, name: &str, options: Options, ahead: Option<&Needs>, pair: &mut Pair, shape: &[usize]) {
        let ledgers =
            [Role::Client, Role::Server].map(|role| pair.party(role).session().channel().ledger().untimed());
        assert_eq!(ledgers[0], ledgers[1], "cost: both ledgers of {name}");
        for function in &self.functions[1..] {
            let (planned, _, mut planner) = self.plan(&**function, options, ahead);
            assert_eq!(planner.ledger().untimed(), ledgers[0], "cost: plan of {name}");
            if let Some(planned) = planned {
                assert_eq!(planned.0, shape, "cost: shape of {name}");
            }
        }
    }

    /// Compares the parties' results with the reference's. Returns the shape of the result.
    fn reference(&self, name: &str, got: [Output<Values>; 2], want: Output<Values>) -> Vec<usize> {
        match (got, want) {
            ([Output::Words(client), Output::Words(server)], Output::Words(want)) => {
                self.close(name, &open(&[client, server]), &want)
            }
            ([Output::Bits(client), Output::Bits(server)], Output::Bits(want)) => {
                let binary = client.iter().chain(&server).all(|&bit| bit <= 1);
                assert!(binary, "reference: a share of a bit of {name} is none");
                let got = client ^ server;
                assert_eq!(got, want, "reference: {name}");
                want.shape().to_vec()
            }
            ([Output::Opened(client), Output::Opened(server)], Output::Opened(Some(want))) => {
                for (role, got) in [(Role::Client, client), (Role::Server, server)] {
                    assert_eq!(
                        got.is_some(),
                        self.opened_to.contains(&role),
                        "reference: what the {role:?} of {name} gets"
                    );
                    if let Some(got) = got {
                        self.close(name, &got, &want);
                    }
                }
                want.shape().to_vec()
            }
            _ => panic!("reference: {name} gives one kind of result to all boxes"),
        }
    }

    fn close(&self, name: &str, got: &ArrayD<u64>, want: &ArrayD<u64>) -> Vec<usize> {
        assert_eq!(got.shape(), want.shape(), "reference: shapes of {name}");
        let allowed = self.error;
        for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
            let error = distance(got, want, self.ring);
            assert!(
                error <= allowed,
                "reference: entry {i} of {name} is off by {error} of {allowed}: {got:#x}, not {want:#x}"
            );
        }
        want.shape().to_vec()
    }
}

/// Splits bits into fresh random shares: first the client's, then the server's.
fn share_bits(bits: &ArrayD<u8>) -> [ArrayD<u8>; 2] {
    let mut rng = rand::rng();
    let client = bits.mapv(|_| (rng.next_u32() & 1) as u8);
    [client.clone(), bits ^ &client]
}
