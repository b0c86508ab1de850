//! Shuffle of shared rows by a permutation that neither party knows, and its inverse.
//!
//! **Functionality.** Per batch row, shares of n items of w columns (column t modulo 2^{w_t}; width 1 is exclusive-or)
//! and two permutations, one known to each party -> fresh shares of the items permuted by the client's and then by the
//! server's permutation; or, inverted, by the inverse of the server's and then that of the client's, which restores the
//! order.
//!
//! **Source.** A pass permutes by one party's permutation (the permuter's; the other is the supplier). As in the
//! permutation correlations of Chase, Ghosh and Poburinnaya (ASIACRYPT 2020) the supplier first gets random a and b and
//! the permuter c with b + c = pi(a), all independent of the data; then x - a, sent by the supplier, gives the permuter
//! its share pi(x_p + (x - a)_s) + c of the result, and b is the supplier's. The correlation comes from a permutation
//! network (as in Mohassel and Sadeghian, EUROCRYPT 2013; the wiring is that of [`waksman`]) with one correlated OT (Asharov et
//! al., eprint 2013/552, section 5) of all columns at each switch:
//! out_0 = in_0 + s (in_1 - in_0), out_1 = in_0 + in_1 - out_0 for the permuter's bit s. The supplier's share of a
//! switch's outputs follows from its own pads, so that it answers for the whole network at once.
//!
//! **Range.** Any words, 1 <= w_t <= 64; any n. **Error.** None, modulo 2^{w_t}.
//!
//! **What each party sees.** Its own permutation; choice bits masked by random choice bits; OT answers under pads of
//! which it knows one per switch; x - a for a fresh uniform a, which is a one-time pad. **Revealed.** Nothing: to either
//! party the composed permutation is uniform, because the other's is.
//!
//! Per switch one OT and sum w_t bits plus one choice bit, `offline`, both passes in three flows; `online` one message of
//! n sum w_t bits a pass.

mod waksman;

use net::Role;
use ot::{Bits, ChosenKeys, SenderKeys};
use rand::Rng;

use crate::Error;
use crate::cost::Cost;
use crate::ops::{batch_items, batched_cost, opening, packed};
use crate::session::Session;
use crate::words::mask;
use waksman::Network;

const CHOICES: &str = "shuffle/choices";
const ANSWER: &str = "shuffle/answer";
const ANSWER_AND_CHOICES: &str = "shuffle/answer and choices";
const DIFFERENCE: &str = "shuffle/difference";

/// One party's secret permutations, one per batch row. Shuffling several tensors by the same permutations keeps their
/// items together; every shuffle makes its own correlations.
#[derive(Clone)]
pub struct Permutations {
    n: usize,
    /// Output j of a row is its input `sources[row][j]`.
    sources: Vec<Vec<usize>>,
}

impl Permutations {
    /// Uniform and independent permutations of `n` items for each of `rows` rows.
    pub(crate) fn random(rng: &mut impl Rng, rows: usize, n: usize) -> Self {
        let permutation = |_| {
            let mut source: Vec<usize> = (0..n).collect();
            for i in (1..n).rev() {
                source.swap(i, below(rng, i as u64 + 1) as usize);
            }
            source
        };
        Permutations { n, sources: (0..rows).map(permutation).collect() }
    }

    /// Number of batch rows.
    pub fn rows(&self) -> usize {
        self.sources.len()
    }

    /// Items of a row.
    pub fn items(&self) -> usize {
        self.n
    }

    /// For every row the input at each output, of the permutations or of their inverses.
    pub(crate) fn sources(&self, inverse: bool) -> Vec<Vec<usize>> {
        if !inverse {
            return self.sources.clone();
        }
        let inverted = |source: &Vec<usize>| {
            let mut inverted = vec![0; source.len()];
            source.iter().enumerate().for_each(|(j, &i)| inverted[i] = j);
            inverted
        };
        self.sources.iter().map(inverted).collect()
    }
}

/// A uniform number below `bound` >= 1: random words beyond the largest multiple of the bound are drawn again.
fn below(rng: &mut impl Rng, bound: u64) -> u64 {
    let excess = (u64::MAX % bound + 1) % bound;
    loop {
        let word = rng.next_u64();
        if word <= u64::MAX - excess {
            return word % bound;
        }
    }
}

/// Rows of `n` items whose columns have the widths `widths`, and the network that permutes them.
struct Shape<'a> {
    n: usize,
    widths: &'a [u32],
    network: Network,
}

impl<'a> Shape<'a> {
    fn new(n: usize, widths: &'a [u32]) -> Self {
        Shape { n, widths, network: Network::new(n) }
    }

    fn columns(&self) -> usize {
        self.widths.len()
    }

    /// Words of a row.
    fn words(&self) -> usize {
        self.n * self.columns()
    }

    fn switches(&self) -> usize {
        self.network.switches.len()
    }

    /// Bytes of the answers for `rows` rows.
    fn answer_bytes(&self, rows: usize) -> usize {
        packed::bytes(rows * self.switches() * self.columns(), self.widths)
    }
}

/// This party's half of a permutation correlation for all rows.
enum Half {
    /// a and b.
    Supplier(Vec<u64>, Vec<u64>),
    /// The sources of the permutation, and c.
    Permuter(Vec<Vec<usize>>, Vec<u64>),
}

/// Shares of the permuted `x`: for every row of `permutations`, item by item, a word for each of `widths`. The results
/// are reduced to their widths.
pub fn shuffle(
    s: &mut Session,
    permutations: &Permutations,
    x: &[u64],
    widths: &[u32],
    inverse: bool,
) -> Result<Vec<u64>, Error> {
    let (rows, n) = (permutations.rows(), permutations.n);
    assert_eq!(x.len(), rows * n * widths.len(), "words of the rows to shuffle");
    let reduce = |x: u64, i: usize| x & mask(widths[i % widths.len()]);
    let mut x: Vec<u64> = x.iter().enumerate().map(|(i, &x)| reduce(x, i)).collect();
    if n < 2 || x.is_empty() {
        return Ok(x);
    }
    let shape = Shape::new(n, widths);
    let sources = permutations.sources(inverse);
    // Correlations of both passes, the one that the client permutes and the one that the server permutes.
    let mut halves: [Vec<Half>; 2] = [vec![], vec![]];
    for sources in sources.chunks(batch_rows(n, widths.len())) {
        let [client, server] = s.offline(|s| correlations(s, &shape, sources))?;
        halves[0].push(client);
        halves[1].push(server);
    }
    let [client, server] = halves;
    let passes = if inverse {
        [(Role::Server, server), (Role::Client, client)]
    } else {
        [(Role::Client, client), (Role::Server, server)]
    };
    for (permuter, halves) in passes {
        x = pass(s, &shape, permuter, halves, &x)?;
    }
    Ok(x)
}

/// Cost of [`shuffle`] of `rows` rows of `n` items.
pub fn cost(rows: usize, n: usize, widths: &[u32], inverse: bool) -> Cost {
    if n < 2 || rows == 0 || widths.is_empty() {
        return Cost::free();
    }
    let bytes = |rows: usize| packed::bytes(rows * waksman::switches(n) * widths.len(), widths);
    let offline = batched_cost(rows, batch_rows(n, widths.len()), |rows| {
        let ots = rows * waksman::switches(n);
        let choices = ots.div_ceil(8);
        Cost::free()
            .cots(Role::Server, ots)
            .cots(Role::Client, ots)
            .message(Role::Client, choices)
            .message(Role::Server, bytes(rows) + choices)
            .message(Role::Client, bytes(rows))
    });
    let difference = packed::bytes(rows * n * widths.len(), widths);
    let (first, second) = if inverse { (Role::Client, Role::Server) } else { (Role::Server, Role::Client) };
    offline.offline().message(first, difference).message(second, difference)
}

/// Rows whose correlations are made at once.
fn batch_rows(n: usize, columns: usize) -> usize {
    batch_items(waksman::switches(n) * columns.div_ceil(4))
}

/// The correlations of a batch of rows: that of the client's permutations, then that of the server's.
fn correlations(s: &mut Session, shape: &Shape<'_>, sources: &[Vec<usize>]) -> Result<[Half; 2], Error> {
    let rows = sources.len();
    let ots = rows * shape.switches();
    let (choices, answer) = (ots.div_ceil(8), shape.answer_bytes(rows));
    s.reserve(Role::Server, ots)?;
    s.reserve(Role::Client, ots)?;
    let mut bits = Vec::with_capacity(ots);
    sources.iter().for_each(|source| waksman::route(source, &mut bits));
    let bits = Bits::from_fn(ots, |i| bits[i]);
    let (permuter, supplier) = match s.role() {
        Role::Client => {
            let (message, keys) = s.receiver().choose(&bits)?;
            s.deliver(CHOICES, message)?;
            let reply = s.channel().recv(ANSWER_AND_CHOICES, answer + choices)?;
            let (theirs, choices) = reply.split_at(answer);
            let accepted = s.sender().accept(ots, choices)?;
            let (message, supplier) = supply(s, shape, rows, accepted)?;
            s.deliver(ANSWER, message)?;
            (permute(shape, sources, keys, theirs)?, supplier)
        }
        Role::Server => {
            let theirs = s.channel().recv(CHOICES, choices)?;
            let accepted = s.sender().accept(ots, &theirs)?;
            let (mut message, supplier) = supply(s, shape, rows, accepted)?;
            let (mine, keys) = s.receiver().choose(&bits)?;
            message.extend_from_slice(&mine);
            s.deliver(ANSWER_AND_CHOICES, message)?;
            let answer = s.channel().recv(ANSWER, answer)?;
            (permute(shape, sources, keys, &answer)?, supplier)
        }
    };
    Ok(match s.role() {
        Role::Client => [permuter, supplier],
        Role::Server => [supplier, permuter],
    })
}

/// The supplier's answers for whole networks on random inputs a, and its half of the correlation.
fn supply(s: &mut Session, shape: &Shape<'_>, rows: usize, keys: SenderKeys) -> Result<(Vec<u8>, Half), Error> {
    let columns = shape.columns();
    let a: Vec<u64> =
        (0..rows * shape.words()).map(|i| s.rng().next_u64() & mask(shape.widths[i % columns])).collect();
    let [pads0, pads1] = keys.into_rows(shape.widths)?;
    let per_row = shape.switches() * columns;
    let mut answers = vec![0; rows * per_row];
    let mut b = Vec::with_capacity(a.len());
    for (row, a) in a.chunks_exact(shape.words()).enumerate() {
        let mut wires = a.to_vec();
        for (switch, &[upper, lower]) in shape.network.switches.iter().enumerate() {
            let at = row * per_row + switch * columns;
            for t in 0..columns {
                let (x, y) = (wires[upper * columns + t], wires[lower * columns + t]);
                let difference = y.wrapping_sub(x);
                // The share of s (y - x) is minus the pad of choice 0.
                answers[at + t] = pads0[at + t].wrapping_add(pads1[at + t]).wrapping_add(difference);
                let first = x.wrapping_sub(pads0[at + t]);
                wires[upper * columns + t] = first;
                wires[lower * columns + t] = x.wrapping_add(y).wrapping_sub(first);
            }
        }
        collect(shape, &wires, &mut b);
    }
    Ok((packed::pack(&answers, shape.widths), Half::Supplier(a, b)))
}

/// The permuter's half of the correlation from the supplier's answers.
fn permute(shape: &Shape<'_>, sources: &[Vec<usize>], keys: ChosenKeys, message: &[u8]) -> Result<Half, Error> {
    let columns = shape.columns();
    let per_row = shape.switches() * columns;
    let answers = packed::unpack(ANSWER, message, sources.len() * per_row, shape.widths)?;
    let bits = keys.choices().clone();
    let pads = keys.into_rows(shape.widths)?;
    let mut c = Vec::with_capacity(sources.len() * shape.words());
    for row in 0..sources.len() {
        let mut wires = vec![0u64; shape.words()];
        for (switch, &[upper, lower]) in shape.network.switches.iter().enumerate() {
            let set = bits.get(row * shape.switches() + switch).wrapping_neg();
            let at = row * per_row + switch * columns;
            for t in 0..columns {
                let (x, y) = (wires[upper * columns + t], wires[lower * columns + t]);
                let pad = pads[at + t];
                // The pad for choice 0; the answer less the pad, and this party's own y - x, for choice 1.
                let extra = answers[at + t].wrapping_sub(pad).wrapping_sub(pad).wrapping_add(y.wrapping_sub(x));
                let first = x.wrapping_add(pad).wrapping_add(set & extra);
                wires[upper * columns + t] = first;
                wires[lower * columns + t] = x.wrapping_add(y).wrapping_sub(first);
            }
        }
        collect(shape, &wires, &mut c);
    }
    Ok(Half::Permuter(sources.to_vec(), c))
}

/// Appends the items on the output wires, reduced to their widths.
fn collect(shape: &Shape<'_>, wires: &[u64], out: &mut Vec<u64>) {
    for wire in &shape.network.outputs {
        let item = &wires[wire * shape.columns()..(wire + 1) * shape.columns()];
        out.extend(item.iter().zip(shape.widths).map(|(x, &width)| x & mask(width)));
    }
}

/// One pass over all rows: shares of the items permuted by `permuter`'s permutations.
fn pass(s: &mut Session, shape: &Shape<'_>, permuter: Role, halves: Vec<Half>, x: &[u64]) -> Result<Vec<u64>, Error> {
    if s.role() == permuter {
        let message = s.channel().recv(DIFFERENCE, packed::bytes(x.len(), shape.widths))?;
        let theirs = packed::unpack(DIFFERENCE, &message, x.len(), shape.widths)?;
        opening::note(s, &theirs, shape.widths);
        let sum: Vec<u64> = x.iter().zip(theirs).map(|(x, d)| x.wrapping_add(d)).collect();
        let mut out = Vec::with_capacity(x.len());
        let mut rows = sum.chunks_exact(shape.words());
        for half in halves {
            let Half::Permuter(sources, c) = half else { unreachable!("the permuter's correlations") };
            let mut c = c.into_iter();
            for (source, row) in sources.iter().zip(rows.by_ref()) {
                for &i in source {
                    let item = &row[i * shape.columns()..(i + 1) * shape.columns()];
                    let words = item.iter().zip(c.by_ref()).zip(shape.widths);
                    out.extend(words.map(|((x, c), &width)| x.wrapping_add(c) & mask(width)));
                }
            }
        }
        return Ok(out);
    }
    let (mut difference, mut out) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
    for half in halves {
        let Half::Supplier(a, b) = half else { unreachable!("the supplier's correlations") };
        let x = &x[difference.len()..];
        difference.extend(x.iter().zip(a).map(|(x, a)| x.wrapping_sub(a)));
        out.extend(b);
    }
    s.deliver(DIFFERENCE, packed::pack(&difference, shape.widths))?;
    Ok(out)
}
