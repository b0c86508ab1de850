//! Kinds of correlations.
//!
//! A correlation is a set of secret random words, some for each party, that stand in a known relation. It is made
//! before the data is known, or could be. Each kind says what one *unit* of it is: an input or a row, for instance.

use std::any::Any;
use std::cmp::Ordering;
use std::fmt::Debug;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use waggle_he::MatmulSpec;
use waggle_net::Role;

use crate::Error;
use crate::cost::Cost;
use crate::deal::dealing::Dealing;
use crate::matrix::FixedMatrix;
use crate::options::Options;
use crate::plans::Plans;
use crate::session::Session;
use crate::work::Kernel;

/// A kind of correlation. Its words depend on nothing but its fields, so equal kinds are interchangeable.
pub trait Correlation: Debug + Send + Sync + 'static {
    /// Name of the scope in which the offline phase books this kind.
    fn scope(&self) -> &'static str;

    /// Words per unit that `role` keeps.
    fn words(&self, role: Role) -> usize;

    /// The most units that are made at once under `options`, a bound on memory.
    fn batch(&self, options: &Options) -> usize;

    /// The messages and OTs that [`make`](Correlation::make) of `units` units takes, all of them `offline`.
    fn cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error>;

    /// Makes `units` units, at most a [`batch`](Correlation::batch), and returns their words, one unit after another.
    fn make(&self, session: &mut Session, units: usize, pipeline: &mut Pipeline<'_>) -> Result<Vec<u64>, Error>;

    /// Begins the next [`make`](Correlation::make), of `units` units: does what needs no answer of the peer, if there
    /// is any such work. Its messages are sent ahead ([`waggle_net::Channel::send_ahead`]).
    fn begin(&self, session: &mut Session, units: usize, pipeline: &mut Pipeline<'_>) -> Result<(), Error> {
        let _ = (session, units, pipeline);
        Ok(())
    }

    /// Words of both parties that a helper has in memory for a unit. `None` if no helper deals the kind, or if a
    /// field is out of range, which can happen for a kind that a peer sent.
    fn dealt_words(&self) -> Option<u64> {
        None
    }

    /// Deals `units` units; the helper and both parties run the same code ([`deal`](crate::deal)). Returns the
    /// client's words and the server's. Words that this machine does not know are left out.
    fn deal(&self, dealing: &mut Dealing<'_>, units: usize) -> Result<[Vec<u64>; 2], Error> {
        let _ = (dealing, units);
        Err(Error::NotDealt { scope: self.scope() })
    }

    /// Name of the weight whose matrix [`make`](Correlation::make) needs.
    fn weight(&self) -> Option<&str> {
        None
    }

    /// The same kind for another weight, `name`, whose matrix has the same form. A kind with a
    /// [`weight`](Correlation::weight) must implement this method, too.
    fn for_weight(&self, name: &str) -> Option<CorrelationKind> {
        let _ = name;
        None
    }
}

/// What one batch of correlations is made with, and which batch comes after it.
#[derive(Default)]
pub struct Pipeline<'a> {
    /// The server's matrix, if the kind depends on one.
    pub(crate) matrix: Option<&'a FixedMatrix>,
    /// The kind and the units of the next batch.
    pub(crate) next: Option<(&'a CorrelationKind, usize)>,
    /// The product that the client already requested for this batch, and the product's random operand.
    pub(crate) asked: Option<(MatmulSpec, Vec<u64>)>,
}

impl Pipeline<'_> {
    /// Begins the next batch: does what needs neither an answer of the peer nor data. A step that is about to wait
    /// for the peer calls this.
    pub(crate) fn look_ahead(&mut self, session: &mut Session) -> Result<(), Error> {
        match self.next.take() {
            Some((kind, units)) => kind.begin(session, units, self),
            None => Ok(()),
        }
    }
}

/// Scopes of the kinds of this crate in the order of the offline phase. Kinds from elsewhere come after them.
const SCOPES: [&str; 9] = [
    "linear",
    "squares",
    "scaled squares",
    "products",
    "matrix products",
    "functions",
    "comparisons",
    "selections",
    "truncations",
];

/// A [`Correlation`] as a key: equal if type and fields are.
#[derive(Clone, Debug)]
pub struct CorrelationKind(Arc<dyn Keyed>);

impl CorrelationKind {
    /// The kind as a key.
    pub fn new<C: Correlation + Ord>(kind: C) -> Self {
        CorrelationKind(Arc::new(kind))
    }

    pub(crate) fn batches(&self, units: usize, options: &Options) -> impl Iterator<Item = usize> + use<> {
        let batch = self.batch(options).max(1);
        (0..units).step_by(batch).map(move |start| batch.min(units - start))
    }

    /// Cost of making `units` in batches of [`Correlation::batch`], and of putting them into a stock.
    pub(crate) fn batched_cost(&self, plans: &mut Plans, units: usize) -> Result<Cost, Error> {
        let batch = self.batch(plans.options()).max(1);
        Cost::in_batches(units, batch, |size| Ok(self.cost(plans, size)?.then(self.moved(size).offline())))
    }

    /// The work of putting `units` into a stock, or of taking them out.
    pub fn moved(&self, units: usize) -> Cost {
        [Role::Client, Role::Server]
            .into_iter()
            .fold(Cost::free(), |cost, role| cost.work(role, Kernel::StockWord, units * self.words(role)))
    }
}

impl CorrelationKind {
    /// The kind itself, if it is a `C`.
    pub(crate) fn downcast<C: Correlation>(&self) -> Option<&C> {
        self.0.any().downcast_ref()
    }
}

impl std::ops::Deref for CorrelationKind {
    type Target = dyn Correlation;

    fn deref(&self) -> &Self::Target {
        self.0.correlation()
    }
}

/// Comparison of kinds behind a pointer, by the order of their type.
trait Keyed: Debug + Send + Sync {
    fn correlation(&self) -> &dyn Correlation;
    /// Orders kinds of different types: rank and name of the scope, name of the type.
    fn place(&self) -> (usize, &'static str, &'static str);
    fn any(&self) -> &dyn Any;
    fn compare(&self, other: &dyn Keyed) -> Ordering;
}

impl<C: Correlation + Ord> Keyed for C {
    fn correlation(&self) -> &dyn Correlation {
        self
    }

    fn place(&self) -> (usize, &'static str, &'static str) {
        let scope = self.scope();
        let rank = SCOPES.iter().position(|known| *known == scope).unwrap_or(SCOPES.len());
        (rank, scope, std::any::type_name::<C>())
    }

    fn any(&self) -> &dyn Any {
        self
    }

    fn compare(&self, other: &dyn Keyed) -> Ordering {
        match other.any().downcast_ref::<C>() {
            Some(other) => self.cmp(other),
            // Two types of one name, from two versions of a crate, must not become one key.
            None => self.place().cmp(&other.place()).then(self.type_id().cmp(&other.any().type_id())),
        }
    }
}

/// A kind is written as text: the name of its scope and its fields. The text tells kinds apart, but no kind can be
/// read back from it.
impl Serialize for CorrelationKind {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}: {:?}", self.scope(), self.0))
    }
}

impl PartialEq for CorrelationKind {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for CorrelationKind {}

impl PartialOrd for CorrelationKind {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for CorrelationKind {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.compare(&*other.0)
    }
}

/// Correlations that an operation takes from the stock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need {
    /// The kind of correlation.
    pub kind: CorrelationKind,
    /// Number of units.
    pub units: usize,
}

impl Need {
    /// `units` of `kind`.
    pub fn new(kind: impl Correlation + Ord, units: usize) -> Self {
        Need { kind: CorrelationKind::new(kind), units }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::matmul::Triple;
    use crate::ops::mul::RowProduct;
    use crate::ops::private::MaskedRow;
    use crate::ops::scaled_squares::ScaledSquares;
    use crate::ops::sum_squares::Squares;

    #[test]
    fn only_kinds_of_one_type_with_equal_fields_are_one_key() {
        let row = |weight: &str, width| MaskedRow {
            weight: weight.into(),
            inputs: 3,
            outputs: 4,
            width,
            bits: 20,
            blocks: 1,
        };
        let triple = |n, width| Triple { batch: 1, m: 2, k: 3, n, width };
        // In the order of the offline phase.
        let kinds = || {
            [
                CorrelationKind::new(row("a", 32)),
                CorrelationKind::new(row("a", 56)),
                CorrelationKind::new(row("b", 32)),
                CorrelationKind::new(Squares { n: 5, width: 40 }),
                CorrelationKind::new(ScaledSquares { n: 5, width: 40, scaled: 30 }),
                CorrelationKind::new(ScaledSquares { n: 5, width: 40, scaled: 31 }),
                CorrelationKind::new(RowProduct { n: 5, width: 40, error_bits: 0 }),
                CorrelationKind::new(RowProduct { n: 5, width: 41, error_bits: 0 }),
                CorrelationKind::new(RowProduct { n: 6, width: 40, error_bits: 0 }),
                CorrelationKind::new(triple(4, 44)),
                CorrelationKind::new(triple(5, 44)),
            ]
        };
        for (i, a) in kinds().iter().enumerate() {
            for (j, b) in kinds().iter().enumerate() {
                assert_eq!(a.cmp(b), i.cmp(&j), "{a:?} and {b:?}");
            }
        }
    }
}
