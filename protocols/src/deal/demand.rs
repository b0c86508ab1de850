//! Demands tell a helper what to deal. Each is cut into batches.

use std::collections::{BTreeSet, HashMap};

use serde::{Deserialize, Serialize};
use waggle_engine::{OperandId, OperandKind};

use super::dealing::{Dealing, Seat};
use crate::Error;
use crate::cached::{self, Event, Events, OPERANDS, OperandForm};
use crate::masked_row::MaskedRow;
use crate::ops::dealt::Dealt;

/// The most words of either party that a helper deals at once.
const MOST_WORDS: u64 = 1 << 26;

/// The most batches of a demand.
const MOST_BATCHES: usize = 1 << 20;

/// The most words of masks of operands, of both parties together, that a helper keeps from pass to pass.
const MOST_KEPT: u64 = 1 << 30;

/// What a helper is asked for: kinds and amounts, in the order in which the helper deals them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub enum Demand {
    /// Units of a kind of correlation.
    Units {
        /// The kind.
        kind: Dealt,
        /// Number of units.
        units: usize,
        /// Units that are dealt at once.
        batch: usize,
    },
    /// Masks of the products with a cached operand.
    Operand {
        /// The name of the operand.
        name: OperandName,
        /// The products.
        events: Events,
        /// Words of the masks that are dealt at once.
        batch: u64,
    },
}

/// An [`OperandId`] on the wire: layer, contents, generation, part.
pub type OperandName = (usize, OperandKind, usize, usize);

/// The name of `id` in demands.
pub(crate) fn operand_name(id: OperandId) -> OperandName {
    (id.layer, id.kind, id.generation, id.part)
}

/// A demand that no helper serves.
#[derive(Debug, thiserror::Error)]
#[error("a demand for correlations out of range: {demand}")]
pub struct DemandError {
    /// The demand.
    pub demand: String,
}

impl DemandError {
    fn of(demand: &Demand) -> Self {
        DemandError { demand: format!("{demand:?}").chars().take(200).collect() }
    }
}

/// A batch of a demand: what is dealt at once.
pub(super) enum Batch<'d> {
    Units(&'d Dealt, usize),
    /// Products of an operand, and the number of its tokens that have masks already.
    Products(Events, usize),
}

/// The masks of an operand's tokens so far, which later batches need.
#[derive(Default)]
pub(super) struct Rows {
    pub(super) tokens: usize,
    pub(super) form: Option<OperandForm>,
    /// The words of these masks, the client's and the server's. Only the helper has them.
    pub(super) words: [Vec<u64>; 2],
}

/// The masks of the tokens of all operands.
#[derive(Default)]
pub(super) struct Operands {
    pub(super) rows: HashMap<OperandName, Rows>,
    /// Whether the masks are kept for later demands.
    pub(super) kept: bool,
}

impl Operands {
    /// Takes out the masks of the operand of `demand`. Refuses a demand whose form differs from the form of these
    /// masks.
    pub(super) fn of(&mut self, demand: &Demand) -> Result<Rows, Error> {
        let Demand::Operand { name, events, .. } = demand else { return Ok(Rows::default()) };
        let rows = self.rows.remove(name).unwrap_or_default();
        match rows.form {
            Some(form) if form != events.form => Err(DemandError::of(demand).into()),
            _ => Ok(Rows { form: Some(events.form), ..rows }),
        }
    }

    /// Keeps `rows` as the masks of the operand of `demand`, if masks are kept. Refuses the demand if the masks of
    /// all operands would take more than [`MOST_KEPT`] words.
    pub(super) fn keep(&mut self, demand: &Demand, rows: Rows) -> Result<(), Error> {
        if let (Demand::Operand { name, .. }, true) = (demand, self.kept) {
            self.rows.insert(*name, rows);
        }
        let words = self.rows.values().flat_map(|rows| &rows.words).map(|words| words.len() as u64).sum::<u64>();
        if words > MOST_KEPT { Err(DemandError::of(demand).into()) } else { Ok(()) }
    }
}

impl Demand {
    /// Refuses a demand that takes more memory than a helper gives, or that has impossible shapes.
    ///
    /// # Errors
    /// [`DemandError`].
    pub fn check(&self) -> Result<(), DemandError> {
        let fits = match self {
            Demand::Units { kind, units, batch } => {
                let words =
                    kind.correlation().dealt_words().and_then(|words| words.checked_mul((*batch).min(*units) as u64));
                let few = *batch > 0 && units.div_ceil(*batch) <= MOST_BATCHES;
                few && words.is_some_and(|words| words <= MOST_WORDS)
            }
            Demand::Operand {
                events: Events { form: OperandForm { batch, d, width, .. }, list },
                batch: most,
                ..
            } => {
                let words = |event: &Event| {
                    let row = (*batch as u64).checked_mul(*d as u64).filter(|row| *row > 0)?;
                    let side = (event.m as u64).checked_mul(event.tokens as u64)?.checked_mul(*batch as u64)?;
                    let rows = row.checked_mul(event.tokens as u64)?;
                    row.checked_mul(event.m as u64)?.checked_add(side)?.checked_add(rows)
                };
                let grows = list.is_sorted_by_key(|event| event.tokens);
                let all = list.iter().try_fold(0u64, |all, event| all.checked_add(words(event)?));
                (1..=64).contains(width)
                    && grows
                    && *most <= MOST_WORDS
                    && all.is_some_and(|all| all <= 256 * MOST_WORDS)
                    && list.iter().all(|event| words(event).is_some_and(|words| words <= MOST_WORDS))
            }
        };
        if fits { Ok(()) } else { Err(DemandError::of(self)) }
    }

    /// Scope in the ledger: the scope in which two parties without a helper would book what is dealt.
    pub(super) fn scope(&self) -> &'static str {
        match self {
            Demand::Operand { .. } => OPERANDS,
            Demand::Units { kind, .. } => kind.correlation().scope(),
        }
    }

    /// The batches of this demand, where the first `tokens` tokens of its operand have masks already.
    pub(super) fn batches(&self, tokens: usize) -> Vec<Batch<'_>> {
        match self {
            Demand::Units { kind, units, batch } => {
                (0..*units).step_by(*batch).map(|at| Batch::Units(kind, (*batch).min(units - at))).collect()
            }
            Demand::Operand { events, batch, .. } => {
                let mut before = tokens;
                let products = |events: Events| {
                    let first = before;
                    before = before.max(events.tokens());
                    Batch::Products(events, first)
                };
                events.batches(*batch).into_iter().map(products).collect()
            }
        }
    }

    /// Bytes of the words that the helper gives to the client and to the server, batch by batch.
    ///
    /// # Errors
    /// None for a demand that was checked.
    pub fn bytes(&self) -> Result<Vec<[usize; 2]>, Error> {
        let mut sizes: Vec<(usize, [usize; 2])> = Vec::new();
        let count = |batch: Batch<'_>| {
            if let Batch::Units(_, units) = batch
                && let Some((_, bytes)) = sizes.iter().find(|(same, _)| *same == units)
            {
                return Ok(*bytes);
            }
            let bytes = batch.counted()?;
            if let Batch::Units(_, units) = batch {
                sizes.push((units, bytes));
            }
            Ok(bytes)
        };
        self.batches(0).into_iter().map(count).collect()
    }
}

impl Batch<'_> {
    pub(super) fn deal(&self, d: &mut Dealing<'_>, rows: &mut Rows) -> Result<[Vec<u64>; 2], Error> {
        match self {
            Batch::Units(kind, units) => kind.correlation().deal(d, *units),
            Batch::Products(events, before) => {
                rows.tokens = events.tokens().max(*before);
                cached::deal(d, events, *before, &mut rows.words)
            }
        }
    }

    fn counted(&self) -> Result<[usize; 2], Error> {
        let mut dealing = Dealing { seat: Seat::Counter, bytes: [0; 2] };
        self.deal(&mut dealing, &mut Rows::default())?;
        Ok(dealing.bytes)
    }
}

/// The kinds of products with weights in `demands`, each listed once.
pub fn rows(demands: &[Demand]) -> Vec<&MaskedRow> {
    let rows = demands.iter().filter_map(|demand| match demand {
        Demand::Units { kind: Dealt::Row(row), .. } => Some(row),
        Demand::Units { .. } | Demand::Operand { .. } => None,
    });
    rows.collect::<BTreeSet<_>>().into_iter().collect()
}
