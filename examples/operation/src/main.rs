//! An operation of another crate, in one file: the conjunction of shared bits, with a direct and a prepared form. It
//! runs in the clear, between two parties in one phase and in two, and as a plan that predicts every byte. The laws
//! of `waggle-testing` check that it does what its documentation says. [`Cargo.toml`](../Cargo.toml) can be copied as
//! well.
//!
//! ```text
//! cargo run --release -p operation      # the operation in the clear, between two parties, and as a plan
//! cargo test --release -p operation     # its laws
//! ```
//!
//! **Functionality.** XOR shares of x and y -> XOR shares of x y.
//!
//! **Source.** *Direct.* (x_0 + x_1)(y_0 + y_1) modulo 2: each party multiplies its own bits, and the cross terms are
//! one correlated OT in each direction. *Prepared.* Random bits a, b and a b, made by the direct form; online the
//! parties open d = x + a and e = y + b, and x y = d e + d b + e a + a b (Beaver, CRYPTO 1991).
//!
//! **Range.** Any bits. **Error.** None. **Revealed.** Nothing: d and e are uniform, as a and b serve once.

use ndarray::{IxDyn, Zip};
use rand::Rng;
use waggle_net::{Phase, Role};
use waggle_ot::Bits;
use waggle_planner::Planner;
use waggle_protocols::local::Pair;
use waggle_protocols::operation::prelude::*;
use waggle_protocols::ops::{B2a, Reveal};
use waggle_protocols::wire::{cross, opening};
use waggle_protocols::{Abb, Clear, Shape};

// ANCHOR: functionality
/// The product x y, entry by entry. x and y have the same shape.
#[derive(Clone, Copy, Debug)]
struct And;

impl Operation for And {
    type Input<'a, F: Form> = (&'a F::Bits, &'a F::Bits);
    type Output<F: Form> = F::Bits;
    type Size = Vec<usize>;
    // ANCHOR_END: functionality

    fn size<F: Form>(&self, (x, y): &(&F::Bits, &F::Bits)) -> Vec<usize> {
        assert_eq!(x.shape(), y.shape(), "shapes of a conjunction");
        x.shape()
    }

    fn correlations(&self, shape: &Vec<usize>, options: &Options) -> Option<Need> {
        options.preprocess.then(|| Need::new(BitTriple, shape.iter().product()))
    }

    // ANCHOR: cost
    fn cost(&self, shape: &Vec<usize>, prepared: bool, _: &mut Plans) -> Result<Cost, Error> {
        let n = shape.iter().product();
        Ok(if prepared { opening::open_cost(2 * n, &[1]) } else { direct_cost(n) })
    }
    // ANCHOR_END: cost

    fn run(
        &self,
        session: &mut Session,
        (x, y): (&ArrayD<u8>, &ArrayD<u8>),
        correlations: Option<&[u64]>,
    ) -> Result<ArrayD<u8>, Error> {
        let (own_x, own_y) = (flat(x), flat(y));
        let bits = match correlations {
            Some(triples) => prepared(session, &own_x, &own_y, triples)?,
            None => direct(session, &own_x, &own_y)?,
        };
        Ok(shaped(x.shape(), bits))
    }

    // ANCHOR: reference
    fn reference(&self, _: &mut Reference, (x, y): (&ArrayD<u8>, &ArrayD<u8>)) -> Result<ArrayD<u8>, Error> {
        Ok(Zip::from(x).and(y).map_collect(|x, y| x & y))
    }
    // ANCHOR_END: reference

    fn planned(&self, shape: Vec<usize>) -> Shape {
        Shape(shape)
    }
}

/// The correlated OTs that `n` conjunctions take in each direction.
fn transfers(n: usize) -> waggle_ot::CotShape {
    waggle_ot::CotShape::new(n, 1, &[1]).expect("a width of 1")
}

// ANCHOR: direct
fn direct(session: &mut Session, x: &[u8], y: &[u8]) -> Result<Vec<u8>, Error> {
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let words: Vec<u64> = y.iter().map(|&y| y.into()).collect();
    let choices = Bits::from_fn(x.len(), |i| x[i] == 1);
    let crossed = cross::two_way(session, &transfers(x.len()), &choices, &words)?;
    Ok(x.iter().zip(y).zip(crossed).map(|((x, y), crossed)| x & y ^ (crossed & 1) as u8).collect())
}
// ANCHOR_END: direct

fn direct_cost(n: usize) -> Cost {
    if n == 0 { Cost::free() } else { cross::two_way_cost(&transfers(n)) }
}

/// Bits a, b and a b. One unit serves one conjunction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct BitTriple;

impl Correlation for BitTriple {
    fn scope(&self) -> &'static str {
        "bit triples"
    }

    fn words(&self, _: Role) -> usize {
        3
    }

    fn batch(&self, _: &Options) -> usize {
        1 << 18
    }

    fn cost(&self, _: &mut Plans, units: usize) -> Result<Cost, Error> {
        Ok(direct_cost(units).offline())
    }

    fn make(&self, session: &mut Session, units: usize, _: &mut Pipeline<'_>) -> Result<Vec<u64>, Error> {
        let mut bits = || (0..units).map(|_| (session.rng().next_u32() & 1) as u8).collect::<Vec<_>>();
        let (a, b) = (bits(), bits());
        let ab = direct(session, &a, &b)?;
        let triples = a.iter().zip(&b).zip(&ab);
        Ok(triples.flat_map(|((a, b), ab)| [a, b, ab].map(|&bit| u64::from(bit))).collect())
    }
}

fn prepared(session: &mut Session, x: &[u8], y: &[u8], triples: &[u64]) -> Result<Vec<u8>, Error> {
    let masked = |x: &[u8], at: usize| x.iter().zip(triples.chunks(3)).map(|(x, t)| u64::from(*x) ^ t[at]).collect();
    let mut words: Vec<u64> = masked(x, 0);
    words.extend::<Vec<u64>>(masked(y, 1));
    let used = [0, 1].into_iter().flat_map(|at| triples.chunks(3).map(move |t| t[at]));
    let opened = opening::masked(session, &words, used, &[1])?;
    let (d, e) = opened.split_at(x.len());
    let server = u64::from(session.is_server());
    let bit = |((d, e), t): ((&u64, &u64), &[u64])| (server & d & e ^ d & t[1] ^ e & t[0] ^ t[2]) as u8;
    Ok(d.iter().zip(e).zip(triples.chunks(3)).map(bit).collect())
}

/// The product x y z of bits of the client, opened to the client. A function that is generic over [`Abb`] runs
/// wherever the operation does.
fn all_three<B: Abb>(b: &mut B, shape: &[usize], own: Option<&ArrayD<u64>>) -> Result<Option<ArrayD<u64>>, Error> {
    let packed = b.input(Role::Client, shape, own)?;
    let [x, y, z] = [0, 1, 2].map(|i| {
        // Bit i of the client's word is the client's share of the bit, and 0 is the server's share.
        let word = own.map(|own| own.mapv(|word| word >> i & 1));
        b.input(Role::Client, &packed.shape(), word.as_ref()).map(|word| b.low_bit(&word))
    });
    let xy = b.apply(And, (&x?, &y?))?;
    let xyz = b.apply(And, (&xy, &z?))?;
    let words = b.apply(B2a { width: 1 }, &xyz)?;
    b.apply(Reveal { width: 1, to: Role::Client }, &words)
}

fn main() -> Result<(), Error> {
    // Every combination of three bits, some hundred times.
    let shape = [40, 25];
    let words = ArrayD::from_shape_fn(IxDyn(&shape), |at| ((at[0] * shape[1] + at[1]) % 8) as u64);
    let want = words.mapv(|word| u64::from(word == 7));

    let clear = all_three(&mut Clear::new(), &shape, Some(&words))?;
    assert_eq!(clear.as_ref(), Some(&want));

    for preprocess in [false, true] {
        let options = Options { preprocess, ..Options::default() };
        let mut pair = Pair::new(options)?;
        let [secure, nothing] = pair.run(|abb| {
            abb.session().channel().ledger_mut().set_phase(Phase::Prefill);
            let client = abb.session().role() == Role::Client;
            all_three(abb, &shape, client.then_some(&words))
        })?;
        assert_eq!((secure, nothing), (clear.clone(), None));

        // The planner runs the same code on shapes without values, and books the same messages.
        let mut planner = Planner::new(options);
        planner.ledger().set_phase(Phase::Prefill);
        all_three(&mut planner, &shape, None)?;
        assert_eq!(planner.ledger().untimed(), pair.ledger().untimed());
        let [online, offline] =
            [Phase::Prefill, Phase::Offline].map(|phase| planner.ledger().phase_total(phase).bytes());
        println!(
            "{} conjunctions, prepared: {preprocess}: {online} bytes online, {offline} offline, as planned",
            2000
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use waggle_testing::{Laws, lawful};

    use super::*;

    // Inputs and outputs of the operation, for its laws.
    lawful!(And, |_, bits| (&bits[0], &bits[1]), Bits);

    /// Checks results, costs and what is opened, over an ideal dealer and over real OTs. No error is allowed.
    // ANCHOR: laws
    #[test]
    fn it_holds_to_its_laws() {
        let n = 1000;
        let bits = |divisor: usize| (0..n).map(|i| (i / divisor % 2) as u8).collect();
        let laws = || Laws::of(And).bits(&[n], bits(1)).bits(&[n], bits(2));
        laws().hold();
        laws().over(&[false, true].map(|preprocess| Options { preprocess, ..Options::default() })).hold();
    }
    // ANCHOR_END: laws
}
