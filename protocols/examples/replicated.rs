//! Replicated secret sharing among three parties, and what it takes. `cargo run --release -p waggle-protocols
//! --example replicated -- lan` names the network of each pair. `bench/examples/dealt.rs` has the same work with a
//! dealer.
//!
//! **Functionality.** Sums, products, truncation and opening of words modulo 2^64 that no party knows; of these a
//! linear layer, and the gather of hidden rows.
//!
//! **Source.** MPCache, appendix B.3, which follows PUMA and ABY3 (eprint 2018/403). A word x = x_0 + x_1 + x_2 is
//! *replicated*: P_i has x_i and x_(i+1). Seeds lie the same way: P_i draws k_i, and gives it to P_(i-1).
//!
//! | step | how | bytes for n results | flows |
//! |---|---|---|---|
//! | share | P_j draws x_j from k_j, sends x - x_j as x_(j+1) to P_(j+1); x_(j+2) = 0 | 8 n | 1 |
//! | product | P_i sends x_i y_i + x_(i+1) y_i + x_i y_(i+1) + F(k_i) - F(k_(i+1)) to P_(i-1) | 24 n | 1 |
//! | open | P_i sends x_i to P_(i+1) | 24 n | 1 |
//! | `known`: linear f of P_c and P_(c-1) | P_(c-1) shares f(x_(c-1)), P_c shares f(x_c + x_(c+1)) | 16 n | 1 |
//! | `shift` by d | P_1 shares (x_1 + x_2) / 2^d; x_0 / 2^d is shared already | 8 n | 1 |
//! | `truncate` by d | the same, with the sign of x_1 + x_2; then `known` on it, modulo 2^d | (8 + 3 d / 8) n | 2 |
//! | `one_hot` of 2^b words | P_0 shares the unit vector of x_0 + x_1; `known` rotates it by x_2 | 24 2^b n | 2 |
//!
//! A message has 8 bytes more. A flow is a step in which messages go at once; it takes half a round trip.
//!
//! **Truncation.** `shift` is ABY3's (section 5.1). The result is one of the two neighbours of x / 2^d at random, and
//! x / 2^d on average, unless x_0 and x_1 + x_2 wrap around as signed words, which they do with probability up to
//! (|x| + 1) / 2^64. Then it is wrong by 2^(64-d). `truncate` adds 2^62 before, so that the two wrap exactly if both
//! are negative, and the product of their signs puts it right. It never fails. **Range.** |x| < 2^62, 0 < d < 62.
//!
//! **Gather.** MPCache, algorithm 2: rows [x = i], i < T, times the cache. All T tests of an index are made at once.
//! **Range.** Any x, which counts modulo the power of two that is T or the next. **Error.** None.
//!
//! **What each party sees.** Two of three summands, and messages under masks from the seed that it lacks: uniform
//! words. **Revealed.** What is opened. All follow the protocol, and no two collude: two together have all summands.

use std::array::from_fn;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use aes::Aes128Enc;
use ctr::Ctr64LE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use rand::RngExt;
use waggle_bits::{cpu::wide, mask, pack, packed_bytes, unpack};
use waggle_net::{Channel, Link, LinkShape, NetError, Role, Shaped, memory_pair};
use waggle_protocols::Error;
use zerocopy::IntoBytes;

/// P_i's part of a vector: x_i and x_(i+1). What is linear, each party does to both.
#[derive(Clone, Debug)]
struct Shares([Vec<u64>; 2]);

impl Shares {
    fn len(&self) -> usize {
        self.0[0].len()
    }

    fn map(&self, f: impl Fn(u64) -> u64) -> Self {
        Shares(self.0.each_ref().map(|part| part.iter().map(|x| f(*x)).collect()))
    }

    fn plus(&self, other: &Self) -> Self {
        let sum = |(x, y): (&u64, &u64)| x.wrapping_add(*y);
        Shares(from_fn(|i| self.0[i].iter().zip(&other.0[i]).map(sum).collect()))
    }

    fn times(&self, c: u64) -> Self {
        self.map(|x| x.wrapping_mul(c))
    }

    /// x_i + x_(i+1).
    fn two(&self) -> Vec<u64> {
        self.0[0].iter().zip(&self.0[1]).map(|(x, y)| x.wrapping_add(*y)).collect()
    }
}

/// One of the three parties.
struct Party {
    id: usize,
    /// The channels to P_(i-1) and P_(i+1).
    links: [Channel; 2],
    /// The streams of k_i and k_(i+1).
    streams: [Ctr64LE<Aes128Enc>; 2],
    flows: u64,
}

const BEFORE: usize = 0;
const AFTER: usize = 1;

impl Party {
    fn new(id: usize, seed: [u8; 16], mut links: [Channel; 2]) -> Result<Self, Error> {
        const STEP: &str = "replicated/seed";
        links[BEFORE].send(STEP, &seed)?;
        links[BEFORE].flush(STEP)?;
        let mut other = [0; 16];
        other.copy_from_slice(&links[AFTER].recv(STEP, 16)?);
        let streams = [seed, other].map(|seed| Ctr64LE::new(&seed.into(), &[0; 16].into()));
        Ok(Party { id, links, streams, flows: 0 })
    }

    /// The next `n` words of the stream of k_(i + `of`).
    fn draw(&mut self, of: usize, n: usize) -> Vec<u64> {
        let mut words = vec![0u64; n];
        self.streams[of].apply_keystream(words.as_mut_bytes());
        words.iter().map(|word| u64::from_le(*word)).collect()
    }

    fn send(&mut self, to: usize, step: &'static str, width: u32, words: &[u64]) -> Result<(), Error> {
        self.links[to].send_owned(step, pack(words, &[width]))?;
        Ok(self.links[to].flush(step)?)
    }

    fn receive(&mut self, from: usize, step: &'static str, width: u32, n: usize) -> Result<Vec<u64>, Error> {
        Ok(unpack(step, &self.links[from].recv(step, packed_bytes(n, &[width]))?, n, &[width])?)
    }

    /// Bytes sent to P_(i-1) and to P_(i+1), and flows.
    fn spent(&self) -> [u64; 3] {
        let [before, after] = self.links.each_ref().map(|link| link.ledger().total());
        [before.bytes_client_to_server, after.bytes_server_to_client, self.flows]
    }

    /// Shares `n` words modulo 2^`width` that `owner` computes. The caller counts the flow: sharings go at once.
    fn share(&mut self, owner: usize, width: u32, n: usize, x: impl FnOnce() -> Vec<u64>) -> Result<Shares, Error> {
        const STEP: &str = "replicated/share";
        Ok(Shares(match (self.id + 3 - owner) % 3 {
            0 => {
                let own = self.draw(0, n);
                let rest: Vec<u64> = x().iter().zip(&own).map(|(x, own)| x.wrapping_sub(*own)).collect();
                self.send(AFTER, STEP, width, &rest)?;
                [own, rest]
            }
            1 => [self.receive(BEFORE, STEP, width, n)?, vec![0; n]],
            _ => [vec![0; n], self.draw(1, n)],
        }))
    }

    /// The summand x_c as a shared value of its own.
    fn summand(&self, x: &Shares, c: usize) -> Shares {
        Shares(from_fn(|i| if (self.id + i) % 3 == c { x.0[i].clone() } else { vec![0; x.len()] }))
    }

    /// x + c for a public c.
    fn plus_public(&self, x: &Shares, c: u64) -> Shares {
        x.plus(&self.summand(&x.map(|_| c), 0))
    }

    /// The product of two matrices, (m, k) and (k, n).
    fn matmul(&mut self, x: &Shares, y: &Shares, [m, k, n]: [usize; 3]) -> Result<Shares, Error> {
        let mut z = vec![0u64; m * n];
        let add = |z: u64, a: u64, b: u64| z.wrapping_add(a.wrapping_mul(b));
        wide(|| {
            for (i, z) in z.chunks_exact_mut(n).enumerate() {
                for j in 0..k {
                    let [a, b] = x.0.each_ref().map(|part| part[i * k + j]);
                    let [c, d] = y.0.each_ref().map(|part| &part[j * n..][..n]);
                    let sums = z.iter_mut().zip(c).zip(d);
                    sums.for_each(|((z, c), d)| *z = add(add(*z, a, c.wrapping_add(*d)), b, *c));
                }
            }
        });
        self.replicate(z)
    }

    /// Products of entries.
    fn multiply(&mut self, x: &Shares, y: &Shares) -> Result<Shares, Error> {
        let all = x.two().into_iter().zip(&y.0[0]).zip(x.0[0].iter().zip(&y.0[1]));
        self.replicate(all.map(|((ab, c), (a, d))| ab.wrapping_mul(*c).wrapping_add(a.wrapping_mul(*d))).collect())
    }

    /// Shares z, of which each party has a summand. A fresh sharing of zero hides what the summands come from.
    fn replicate(&mut self, mut z: Vec<u64>) -> Result<Shares, Error> {
        const STEP: &str = "replicated/product";
        self.flows += 1;
        let [plus, minus] = [0, 1].map(|of| self.draw(of, z.len()));
        let zeros = plus.iter().zip(&minus).map(|(plus, minus)| plus.wrapping_sub(*minus));
        z.iter_mut().zip(zeros).for_each(|(z, zero)| *z = z.wrapping_add(zero));
        self.send(BEFORE, STEP, 64, &z)?;
        let next = self.receive(AFTER, STEP, 64, z.len())?;
        Ok(Shares([z, next]))
    }

    /// f(x) modulo 2^`width` for a linear f that P_`c` and the party before it know.
    fn known(&mut self, c: usize, width: u32, x: &Shares, f: impl Fn(&[u64]) -> Vec<u64>) -> Result<Shares, Error> {
        self.flows += 1;
        let one = self.share((c + 2) % 3, width, x.len(), || f(&x.0[0]))?;
        Ok(one.plus(&self.share(c, width, x.len(), || f(&x.two()))?))
    }

    /// Opens x to all three.
    fn open(&mut self, x: &Shares) -> Result<Vec<u64>, Error> {
        const STEP: &str = "replicated/open";
        self.flows += 1;
        self.send(AFTER, STEP, 64, &x.0[0])?;
        let last = self.receive(BEFORE, STEP, 64, x.len())?;
        Ok(x.two().iter().zip(last).map(|(two, last)| two.wrapping_add(last)).collect())
    }

    /// x / 2^`d`, unless the summands wrap around: one is rounded down and the other up.
    fn shift(&mut self, x: &Shares, d: u32) -> Result<Shares, Error> {
        self.flows += 1;
        let down = self.summand(&x.map(|a| (a as i64 >> d) as u64), 0);
        let up = |b: &u64| ((*b as i64 >> d) + i64::from(b & mask(d) != 0)) as u64;
        Ok(down.plus(&self.share(1, 64, x.len(), || x.two().iter().map(up).collect())?))
    }

    /// x / 2^`d` for |x| < 2^62 and 0 < d < 62.
    fn truncate(&mut self, x: &Shares, d: u32) -> Result<Shares, Error> {
        let x = self.plus_public(x, 1 << 62);
        let shifted = self.shift(&x, d)?;
        // Where both are negative, 2^64 / 2^d is missing. So the product of the signs counts modulo 2^d.
        let sign = self.share(1, d, x.len(), || x.two().iter().map(|b| b >> 63).collect())?;
        let own = &x.0[usize::from(self.id == 2)];
        let both = self.known(0, d, &sign, |sign| sign.iter().zip(own).map(|(b, a)| b * (a >> 63)).collect())?;
        Ok(self.plus_public(&shifted.plus(&both.times(1 << (64 - d))), (1u64 << (62 - d)).wrapping_neg()))
    }

    /// x W, of `shape` (m, k, n), without the low `d` bits.
    fn linear(&mut self, x: &Shares, w: &Shares, shape: [usize; 3], d: u32) -> Result<Shares, Error> {
        let y = self.matmul(x, w, shape)?;
        self.truncate(&y, d)
    }

    /// For each x a row of words [x = i], i < `n`.
    fn one_hot(&mut self, x: &Shares, n: usize) -> Result<Shares, Error> {
        let all = n.next_power_of_two();
        let unit = |x: &u64| (0..all).map(|i| u64::from(i == *x as usize % all)).collect::<Vec<_>>();
        let rows = self.share(0, 64, x.len() * all, || x.two().iter().flat_map(unit).collect())?;
        self.flows += 1;
        let by = &x.0[usize::from(self.id == 1)];
        let rotate = |(row, by): (&[u64], &u64)| {
            let by = *by as usize % all;
            [&row[all - by..], &row[..all - by]].concat()
        };
        let rows = self.known(2, 64, &rows, |rows| rows.chunks_exact(all).zip(by).flat_map(rotate).collect())?;
        Ok(Shares(rows.0.map(|part| part.chunks_exact(all).flat_map(|row| &row[..n]).copied().collect())))
    }

    /// The rows of `cache` (n, w) that the words `x` name.
    fn gather(&mut self, x: &Shares, cache: &Shares, [n, w]: [usize; 2]) -> Result<Shares, Error> {
        let chosen = self.one_hot(x, n)?;
        self.matmul(&chosen, cache, [x.len(), n, w])
    }
}

/// Runs `protocol` as all three parties in threads. `wrap` gets the number of a party, and its end of a link.
fn three<T: Send>(
    seeds: [[u8; 16]; 3],
    wrap: impl Fn(usize, Box<dyn Link>) -> Result<Box<dyn Link>, Error>,
    protocol: impl Fn(&mut Party) -> Result<T, Error> + Sync,
) -> Result<[T; 3], Error> {
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for id in 0..3 {
        let (here, there) = memory_pair(Duration::from_secs(600));
        after.push(Channel::new(Role::Server, wrap(id, Box::new(here))?));
        before.push(Channel::new(Role::Client, wrap((id + 1) % 3, Box::new(there))?));
    }
    before.rotate_right(1);
    let mut results = std::thread::scope(|scope| {
        let links = before.into_iter().zip(after).map(|(before, after)| [before, after]);
        let run = |((id, seed), links)| {
            let protocol = &protocol;
            scope.spawn(move || protocol(&mut Party::new(id, seed, links)?))
        };
        let parties: Vec<_> = seeds.into_iter().enumerate().zip(links).map(run).collect();
        parties.into_iter().map(|party| party.join().unwrap_or_else(|panic| resume_unwind(panic))).collect::<Vec<_>>()
    });
    let [c, b, a] = from_fn(|_| results.pop().expect("three parties"));
    Ok([a?, b?, c?])
}

/// Two factors and the shape of the second: words and words, a row and a weight (inputs, outputs), or an index and
/// the cache (1, n, w) from which it gathers.
type Factors = (Vec<u64>, Vec<u64>, Vec<usize>);

/// Fractional bits of weights, which products lose again.
const WEIGHT_FRAC: u32 = 16;
/// Runs, of which the fastest counts.
const RUNS: usize = 9;

/// The product in the clear.
fn exact((x, y, shape): &Factors) -> Vec<u64> {
    let row = |i: usize, w: usize| &y[i * w..][..w];
    match shape[..] {
        [inputs, outputs] => {
            let entry = |j| (0..inputs).map(|i| x[i].wrapping_mul(row(i, outputs)[j])).fold(0, u64::wrapping_add);
            (0..outputs).map(|j| (entry(j) as i64 >> WEIGHT_FRAC) as u64).collect()
        }
        [_, _, w] => x.iter().flat_map(|x| row(*x as usize, w)).copied().collect(),
        _ => x.iter().zip(y).map(|(x, y)| x.wrapping_mul(*y)).collect(),
    }
}

fn measure(name: &str, work: &[Factors], network: LinkShape) -> Result<(), Error> {
    let shaped = |_, link| match Shaped::new(link, network) {
        Ok(link) => Ok(Box::new(link) as Box<dyn Link>),
        Err(source) => Err(NetError::Io { step: "shape the link", source }.into()),
    };
    let parties = three(rand::random(), shaped, |party| {
        let mut share = |x: &Vec<u64>| party.share(0, 64, x.len(), || x.clone());
        let shares = work.iter().map(|(x, y, _)| Ok((share(x)?, share(y)?))).collect::<Result<Vec<_>, Error>>()?;
        let (mut best, mut spent, mut results) = (f64::MAX, [0; 3], Vec::new());
        for _ in 0..RUNS {
            // All begin at once.
            party.open(&Shares([vec![0], vec![0]]))?;
            let (before, start) = (party.spent(), Instant::now());
            let product = |((.., shape), (x, y)): (&Factors, &(Shares, Shares))| match shape[..] {
                [inputs, outputs] => party.linear(x, y, [1, inputs, outputs], WEIGHT_FRAC),
                [_, n, w] => party.gather(x, y, [n, w]),
                _ => party.multiply(x, y),
            };
            results = work.iter().zip(&shares).map(product).collect::<Result<Vec<_>, _>>()?;
            best = best.min(start.elapsed().as_secs_f64());
            spent = from_fn(|i| party.spent()[i] - before[i]);
        }
        let opened = results.iter().map(|y| party.open(y)).collect::<Result<Vec<_>, _>>()?;
        Ok((spent, best, opened.concat()))
    })?;
    let want: Vec<u64> = work.iter().flat_map(exact).collect();
    assert!(parties[0].2.iter().zip(&want).all(|(got, want)| got.wrapping_sub(*want) <= 1), "{name} differs");
    let bytes: u64 = parties.iter().map(|(spent, ..)| spent[0] + spent[1]).sum();
    let seconds = parties.iter().map(|(_, seconds, _)| *seconds).fold(0.0, f64::max);
    println!("| {name} | {:.1} | {} | {:.2} |", bytes as f64 / 1e3, parties[0].0[2], 1e3 * seconds);
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let network: LinkShape = std::env::args().nth(1).as_deref().unwrap_or("lan").parse()?;
    let words = |n: usize, bits| -> Vec<u64> {
        (0..n).map(|_| rand::rng().random_range(-1i64 << bits..1i64 << bits) as u64).collect()
    };
    let weight =
        |[inputs, outputs]: [usize; 2]| (words(inputs, 20), words(inputs * outputs, 13), vec![inputs, outputs]);
    let gathers = |n: usize, w, m| {
        let cache = words(n * w, 20);
        [0; 4].map(|_| (words(m, 40).iter().map(|x| x % n as u64).collect(), cache.clone(), vec![1, n, w]))
    };
    println!("| {network} | kB | flows | ms |\n|---|---|---|---|");
    measure("65536 products of words", &[(words(1 << 16, 30), words(1 << 16, 30), Vec::new())], network)?;
    let layer = [[768, 2304], [768, 768], [768, 3072], [3072, 768]];
    measure("a row times the weights of a layer", &layer.map(weight), network)?;
    measure("256 of 1024 rows of 64 words, 4 times", &gathers(1024, 64, 256), network)?;
    measure("16 of 64 rows of 1024 words, 4 times", &gathers(64, 1024, 16), network)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use proptest::prelude::*;
    use waggle_net::HEADER_BYTES;
    use waggle_testing::channel::{RUNS, differ};

    use super::*;

    type Protocol = fn(&mut Party, &Shares) -> Result<(), Error>;

    fn bare(_: usize, link: Box<dyn Link>) -> Result<Box<dyn Link>, Error> {
        Ok(link)
    }

    /// What the three open, all the same, of the result that `protocol` has of x, which P_0 shares.
    fn opened(x: &[u64], protocol: impl Fn(&mut Party, Shares) -> Result<Shares, Error> + Sync) -> Vec<u64> {
        let parties = three([1, 2, 3].map(|seed| [seed; 16]), bare, |party| {
            let x = party.share(0, 64, x.len(), || x.to_vec())?;
            let y = protocol(party, x)?;
            party.open(&y)
        });
        let [a, b, c] = parties.expect("all are honest");
        assert!(a == b && b == c);
        a
    }

    proptest! {
        #[test]
        fn sums_and_products_are_those_of_the_words(x: [u64; 6], y: [u64; 6], c: [u64; 3]) {
            let got = opened(&x, |party, x| {
                let y = party.share(2, 64, 6, || y.to_vec())?;
                let sum = party.plus_public(&x.times(c[0]).plus(&y.times(c[1])), c[2]);
                let all = [sum, party.multiply(&x, &y)?, party.matmul(&x, &y, [2, 3, 2])?];
                Ok(Shares(from_fn(|i| all.iter().flat_map(|z| z.0[i].clone()).collect())))
            });
            let add = |sum: u64, (a, b): (u64, u64)| sum.wrapping_add(a.wrapping_mul(b));
            let sums = (0..6).map(|i| add(add(c[2], (x[i], c[0])), (y[i], c[1])));
            let products = (0..6).map(|i| x[i].wrapping_mul(y[i]));
            let entry = |i: usize| (0..3).map(|k| (x[i / 2 * 3 + k], y[2 * k + i % 2])).fold(0, add);
            prop_assert_eq!(got, sums.chain(products).chain((0..4).map(entry)).collect::<Vec<_>>());
        }

        #[test]
        fn truncation_never_fails(x: [i64; 3], below in 0u32..62, d in 1u32..62) {
            let x = [x[0] >> 1, x[1] >> 1 >> below, x[2] >> 1 >> d << d, (1 << 62) - 1, 1 - (1 << 62)];
            let got = opened(&x.map(|x| x as u64), |party, x| party.truncate(&x, d));
            for (got, x) in got.into_iter().zip(x) {
                let up = (got as i64).wrapping_sub(x >> d);
                prop_assert!(up == 0 || up == 1 && x as u64 & mask(d) != 0, "{} for {x}", got as i64);
            }
        }

        #[test]
        fn gathering_takes_the_rows_that_are_named(x: [u64; 3], n in 1usize..20, cache: [u64; 38]) {
            let x = x.map(|x| x / 32 * 32 + x % n as u64);
            let got = opened(&x, |party, x| {
                let cache = party.share(1, 64, 2 * n, || cache[..2 * n].to_vec())?;
                party.gather(&x, &cache, [n, 2])
            });
            prop_assert_eq!(got, x.map(|x| [0, 1].map(|i| cache[2 * (x % 32) as usize + i])).concat());
        }
    }

    #[test]
    fn a_shift_fails_as_often_as_it_may() {
        let got = opened(&[1 << 60; 4096], |party, x| party.shift(&x, 16));
        let wrong: Vec<_> = got.into_iter().filter(|y| *y != 1 << 44).collect();
        assert!((160..352).contains(&wrong.len()), "{} for 4096 / 16 and six deviations", wrong.len());
        assert!(wrong.into_iter().all(|y| y == (1u64 << 44).wrapping_sub(1 << 48)));
    }

    #[test]
    fn each_link_carries_what_the_table_says() {
        let words = |n, width| (packed_bytes(n, &[width]) + HEADER_BYTES) as u64;
        let [three_words, three_ends, rows] = [words(3, 64), words(3, 16), words(24, 64)];
        let steps: [(Protocol, _, _, _); 6] = [
            (|party, x| party.multiply(x, x).map(drop), three_words, [0; 3], 1),
            (|party, x| party.matmul(x, x, [1, 3, 1]).map(drop), words(1, 64), [0; 3], 1),
            (|party, x| party.open(x).map(drop), 0, [three_words; 3], 1),
            (|party, x| party.shift(x, 16).map(drop), 0, [0, three_words, 0], 1),
            (|party, x| party.truncate(x, 16).map(drop), 0, [three_ends, three_words + three_ends, three_ends], 2),
            (|party, x| party.one_hot(x, 5).map(drop), 0, [rows; 3], 2),
        ];
        for (i, (step, before, after, flows)) in steps.into_iter().enumerate() {
            let parties = three([[1; 16]; 3], bare, |party| {
                let start = party.spent();
                step(party, &Shares([vec![1; 3], vec![1; 3]]))?;
                let spent: [u64; 3] = from_fn(|i| party.spent()[i] - start[i]);
                Ok((spent, party.links.each_ref().map(|link| link.ledger().untimed())))
            });
            let parties = parties.expect("all are honest");
            for id in 0..3 {
                assert_eq!(parties[id].0, [before, after[id], flows], "step {i} at P_{id}");
                assert_eq!(parties[id].1[AFTER], parties[(id + 1) % 3].1[BEFORE], "both ends of a link");
            }
        }
    }

    /// A link that keeps what its party receives.
    struct Tap(Box<dyn Link>, Arc<Mutex<Vec<u8>>>);

    impl Link for Tap {
        waggle_net::forward_link!(self => self.0; send timeout take_sender close read_ahead exporter wire_bytes);

        fn recv(&mut self, buf: &mut [u8]) -> io::Result<()> {
            self.0.recv(buf)?;
            self.1.lock().expect("no panic").extend(&*buf);
            Ok(())
        }
    }

    /// How what P_`id` receives tells two secrets apart; `None` if it does not. The party has the same two summands
    /// and the same two seeds in all runs, and the third seed changes.
    fn told(id: usize, protocol: Protocol) -> Option<String> {
        let heard = |run: usize, secret: u64| {
            let heard = Arc::<Mutex<Vec<u8>>>::default();
            let tap = |of, link| Ok(if of == id { Box::new(Tap(link, heard.clone())) } else { link });
            let (seeds, summands) = ([1, 2, 3 + run as u8], [5, 7, secret.wrapping_sub(12)]);
            let of = |i: usize| (i + 3 - id) % 3;
            let parties = three(from_fn(|i| [seeds[of(i)]; 16]), tap, |party| {
                protocol(party, &Shares(from_fn(|i| vec![summands[of(party.id + i)]; 2])))
            });
            parties.expect("all are honest");
            std::mem::take(&mut *heard.lock().expect("no panic"))
        };
        let one: Vec<_> = (0..RUNS).map(|run| heard(run, 0x1234_5678)).collect();
        let other: Vec<_> = (RUNS..2 * RUNS).map(|run| heard(run, 0x5555_5555_5555)).collect();
        differ(&[one, other].each_ref().map(|runs| runs.iter().map(|bytes| &bytes[..]).collect()))
    }

    #[test]
    fn a_single_view_tells_nothing() {
        for id in 0..3 {
            let silent = |party: &mut Party, x: &Shares| {
                let y = party.multiply(x, x)?;
                let y = party.truncate(&y, 16)?;
                party.gather(x, &y, [2, 1]).map(drop)
            };
            assert_eq!(told(id, silent), None, "P_{id}");
            // A summand that is sent without a mask.
            assert!(told(id, |party, x| party.open(x).map(drop)).is_some(), "P_{id}");
        }
    }
}
