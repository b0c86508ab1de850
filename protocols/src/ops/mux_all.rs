//! Selection by several bits: a shared word where all of k shared bits are 1, else 0.
//!
//! **Functionality.** XOR shares of b_1, .., b_k and shares of x modulo 2^w -> shares of b_1 ... b_k x modulo 2^w.
//!
//! **Source.** The conjunction h of the bits is looked up by 1-of-2^k OT, as in the joint truth tables of
//! [`compare`](super::compare); the same OT multiplies h by the server's share of x.
//!
//! ```text
//! client:  its index is its k bits
//! server:  draws r and rho
//!          tabulates (h + r modulo 2, h x_s - rho) for every index, by its own bits
//! client:  takes a = h + r modulo 2 and h x_s - rho by OT
//! both:    share h x_c = a x_c + r (1 - 2a) x_c by one correlated OT, in which the server chooses by r
//! ```
//!
//! The server drew r itself, so it sends its choices with the tables. For k = 1 this is [`mux`].
//!
//! **Range.** Any word; 1 <= k <= [`MOST_BITS`]. **Error.** None.
//!
//! **What each party sees.** Both see choices masked by random choice bits. The client also sees table entries: for
//! each item, all entries but one are under pads that it does not know, and the last is under r and rho.
//! **Revealed.** Nothing.

use rand::Rng;
use waggle_ot::{Bits, CotShape, LookupShape};

use crate::operation::prelude::*;
use crate::ops::mux::{self, if_bit};
use crate::ops::{batch_items, batched_cost};

const CHOICES: &str = "mux all/choices";
const TABLES: &str = "mux all/tables and choices";
const ANSWER: &str = "mux all/answer";

/// Most bits of a selection: a table has an entry for each of their values.
pub const MOST_BITS: usize = 8;

/// Shares modulo 2^`width` of each word of `x` if all of its bits are 1, and of 0 otherwise. All words have equally
/// many bits.
pub(crate) fn mux_all(s: &mut Session, bits: &[u8], x: &[u64], width: u32) -> Result<Vec<u64>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let k = bits.len() / x.len();
    assert!((1..=MOST_BITS).contains(&k) && bits.len() == k * x.len(), "{} bits of {} words", bits.len(), x.len());
    if k == 1 {
        return mux::mux(s, bits, x, width);
    }
    let batch = batch(k, width);
    let mut out = Vec::with_capacity(x.len());
    for (bits, x) in bits.chunks(k * batch).zip(x.chunks(batch)) {
        let shape = Shape::new(x.len(), k, width);
        s.reserve(Role::Server, shape.lookup.ots())?;
        s.reserve(Role::Client, shape.products.ots())?;
        out.extend(match s.role() {
            Role::Client => client(s, &shape, bits, x)?,
            Role::Server => server(s, &shape, bits, x)?,
        });
    }
    Ok(out)
}

pub(crate) fn cost(n: usize, k: usize, width: u32) -> Cost {
    if k == 1 {
        return mux::rows_cost(n, 1, width);
    }
    batched_cost(n, batch(k, width), |n| {
        let Shape { lookup, products, .. } = Shape::new(n, k, width);
        Cost::free()
            .cots(Role::Server, lookup.ots())
            .cots(Role::Client, products.ots())
            .message(Role::Client, lookup.ots().div_ceil(8))
            .tabulates(Role::Server, &lookup)
            .message(Role::Server, lookup.message_bytes() + products.ots().div_ceil(8))
            .picks(Role::Client, &lookup)
            .supplies(Role::Client, &products)
            .message(Role::Client, products.message_bytes())
            .chooses(Role::Server, &products)
    })
}

/// Number of words in a batch. Each block of a table's pad takes the memory of an OT.
fn batch(k: usize, width: u32) -> usize {
    batch_items(k + 1 + ((width as usize + 1) << k) / 128)
}

struct Shape {
    k: usize,
    /// The client's share of the conjunction, and of its product with the server's share of the word.
    lookup: LookupShape,
    /// Products of the server's share of the conjunction with the client's share of the word.
    products: CotShape,
}

impl Shape {
    fn new(n: usize, k: usize, width: u32) -> Self {
        let lookup = LookupShape::new(n, k as u32, &[1, width]).expect("up to 8 index bits, words up to 64 bits");
        let products = CotShape::new(n, 1, &[width]).expect("a width of 1..=64");
        Shape { k, lookup, products }
    }
}

fn client(s: &mut Session, shape: &Shape, bits: &[u8], x: &[u64]) -> Result<Vec<u64>, Error> {
    let (message, keys) = s.receiver().choose(&Bits::from_fn(bits.len(), |i| bits[i] == 1))?;
    s.deliver(CHOICES, message)?;
    let tables = shape.lookup.message_bytes();
    let reply = s.channel().recv(TABLES, tables + x.len().div_ceil(8))?;
    let (tables, choices) = reply.split_at(tables);
    let entries = keys.lookup(&shape.lookup, tables)?;
    let chosen = || entries.chunks_exact(2).map(|entry| (entry[0] as u8, entry[1])).zip(x);
    let words: Vec<u64> = chosen().map(|((a, _), &x)| if_bit(a, x.wrapping_neg(), x)).collect();
    let (answer, shares) = s.sender().accept(x.len(), choices)?.correlate(&shape.products, &words)?;
    s.deliver(ANSWER, answer)?;
    let sum = |(((a, product), &x), share): (((u8, u64), &u64), u64)| {
        product.wrapping_add(if_bit(a, x, 0)).wrapping_add(share)
    };
    Ok(chosen().zip(shares).map(sum).collect())
}

fn server(s: &mut Session, shape: &Shape, bits: &[u8], x: &[u64]) -> Result<Vec<u64>, Error> {
    let k = shape.k;
    let full = mask(k as u32);
    let masks: Vec<(u64, u64)> = x.iter().map(|_| (s.rng().next_u64() & 1, s.rng().next_u64())).collect();
    let message = s.channel().recv(CHOICES, bits.len().div_ceil(8))?;
    let mut reply = s.sender().accept(bits.len(), &message)?.lookup(&shape.lookup, |item, row| {
        let own = bits[item * k..(item + 1) * k].iter().rev().fold(0, |index, &bit| index << 1 | u64::from(bit));
        let (r, rho) = masks[item];
        for (entry, words) in (0..).zip(row.chunks_exact_mut(2)) {
            let all = u64::from(entry ^ own == full);
            words[0] = all ^ r;
            words[1] = (x[item] & all.wrapping_neg()).wrapping_sub(rho);
        }
    })?;
    let (choices, keys) = s.receiver().choose(&Bits::from_fn(x.len(), |i| masks[i].0 == 1))?;
    reply.extend(choices);
    s.deliver(TABLES, reply)?;
    let answer = s.channel().recv(ANSWER, shape.products.message_bytes())?;
    let shares = keys.decorrelate(&shape.products, &answer)?;
    Ok(shares.into_iter().zip(masks).map(|(share, (_, rho))| share.wrapping_add(rho)).collect())
}
