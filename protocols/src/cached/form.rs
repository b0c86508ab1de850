//! The sizes of products with cached operands, and where the words of a token lie in an operand's matrix.

use std::fmt;

use serde::{Deserialize, Serialize};
use waggle_engine::Axis;
use waggle_he::MatmulShape;

/// Scope of masks of cached operands.
pub(crate) const OPERANDS: &str = "keys and values";

/// The properties that all products with one operand have in common. The masks of the operand depend on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperandForm {
    /// Independent products.
    pub batch: usize,
    /// The dimension of the operand's matrix M that does not grow.
    pub d: usize,
    /// The dimension of M that grows.
    pub axis: Axis,
    /// Bits of the ring.
    pub width: u32,
}

impl OperandForm {
    pub(crate) fn shape(&self, m: usize, tokens: usize) -> MatmulShape {
        let (k, n) = match self.axis {
            Axis::Columns => (self.d, tokens),
            Axis::Rows => (tokens, self.d),
        };
        MatmulShape { batch: self.batch, m, k, n }
    }

    /// Words of one token.
    pub(crate) fn row(&self) -> usize {
        self.batch * self.d
    }

    /// Rows of tokens (tokens, batch, d), rearranged as the matrix (batch, k, n).
    pub(crate) fn oriented(&self, rows: &[u64]) -> Vec<u64> {
        let OperandForm { batch, d, axis, .. } = *self;
        let tokens = rows.len() / self.row();
        let at = |t: usize, item: usize, i: usize| rows[(t * batch + item) * d + i];
        let mut out = Vec::with_capacity(rows.len());
        for item in 0..batch {
            match axis {
                Axis::Columns => (0..d).for_each(|i| out.extend((0..tokens).map(|t| at(t, item, i)))),
                Axis::Rows => (0..tokens).for_each(|t| out.extend((0..d).map(|i| at(t, item, i)))),
            }
        }
        out
    }

    /// From the matrix `m` (batch, k, n), the rows (tokens, batch, d) of the tokens from `first` on.
    pub(crate) fn token_rows(&self, m: &[u64], first: usize) -> Vec<u64> {
        let OperandForm { batch, d, axis, .. } = *self;
        let tokens = m.len() / self.row();
        let mut out = Vec::with_capacity((tokens - first) * self.row());
        for t in first..tokens {
            for item in 0..batch {
                let at = |i: usize| match axis {
                    Axis::Columns => (item * d + i) * tokens + t,
                    Axis::Rows => (item * tokens + t) * d + i,
                };
                out.extend((0..d).map(|i| m[at(i)]));
            }
        }
        out
    }

    /// Words of one party's shares of B and of B A for `event`.
    pub fn product_words(&self, event: &Event) -> u64 {
        let MatmulShape { batch, m, k, n } = self.shape(event.m, event.tokens);
        (batch * m * (k + n)) as u64
    }
}

impl fmt::Display for OperandForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let OperandForm { batch, d, axis, width } = self;
        let axis = if *axis == Axis::Columns { "columns" } else { "rows" };
        write!(f, "{batch} matrices of {axis} of {d} words modulo 2^{width}")
    }
}

/// The sizes of one product X M with the operand's matrix M.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Rows of X.
    pub m: usize,
    /// Tokens of M. Where masks are listed or made, this is the number of slots instead, slots of tokens that were
    /// cut off included.
    pub tokens: usize,
}

/// The form and the sizes of the product (batch, m, k) x (batch, k, n).
pub(crate) fn single(shape: MatmulShape, axis: Axis, width: u32) -> (OperandForm, Event) {
    let MatmulShape { batch, m, k, n } = shape;
    let (d, tokens) = match axis {
        Axis::Columns => (k, n),
        Axis::Rows => (n, k),
    };
    (OperandForm { batch, d, axis, width }, Event { m, tokens })
}

/// The products with one operand.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// The properties that the products have in common.
    pub form: OperandForm,
    /// The products in order. Their number of tokens never decreases.
    pub list: Vec<Event>,
}

impl Events {
    pub(crate) fn tokens(&self) -> usize {
        self.list.iter().map(|event| event.tokens).max().unwrap_or(0)
    }

    /// The shape of one product that stacks all these products.
    pub(crate) fn stacked(&self) -> MatmulShape {
        let m = self.list.iter().map(|event| event.m).sum();
        self.form.shape(m, self.tokens())
    }

    /// Words of one party's masks for all products.
    pub(crate) fn words(&self) -> u64 {
        let products = self.list.iter().map(|event| self.form.product_words(event));
        (self.tokens() * self.form.row()) as u64 + products.sum::<u64>()
    }

    /// Splits the products into runs, each of which is prepared at once. A run has up to `most` words, or a single
    /// product.
    pub fn batches(&self, most: u64) -> Vec<Events> {
        let mut batches: Vec<Events> = Vec::new();
        let mut words = 0;
        for event in &self.list {
            words += self.form.product_words(event);
            if batches.is_empty() || words > most {
                batches.push(Events { list: Vec::new(), ..*self });
                words = self.form.product_words(event);
            }
            batches.last_mut().expect("the first event starts a batch").list.push(*event);
        }
        batches
    }
}
