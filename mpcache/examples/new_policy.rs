//! A cache policy in one file outside the crate: names, options, settings, construction and attention.
//!
//! `strided` attends to the latest tokens and to every `stride`-th token before them, after the pattern of Sparse
//! Transformers (Child et al., arXiv 1904.10509). The program runs it in the clear against a naive reading, and as a
//! plan that says what two parties would send:
//!
//! ```text
//! cargo run -p waggle-mpcache --example new_policy -- strided:recent=4,stride=8
//! ```

use std::error::Error as StdError;
use std::ops::Range;

use ndarray::{ArrayD, IxDyn};
use waggle_engine::{Error, Float, Select, Shape, Tensor};
use waggle_mpcache::{
    Facts, HeadShape, KvCache, Layers, NamedPolicy, Policy, PolicyFamily, PolicySpec, Store, attention,
};
use waggle_planner::{Plan, Planner};
use waggle_protocols::Options;

/// Attends to the `recent` latest tokens and to every `stride`-th token before them. Public: the pattern depends on
/// the number of tokens alone, so nothing is revealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Strided {
    recent: usize,
    stride: usize,
}

// ANCHOR: family
impl PolicyFamily for Strided {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "strided",
        keys: &["recent", "stride"],
        about: "the latest tokens, and every stride-th before them",
        read: |options| {
            Ok(Strided { recent: options.number("recent", 1, 8)?, stride: options.number("stride", 1, 4)? })
        },
    }];
    // ANCHOR_END: family

    fn facts(&self) -> Facts {
        Facts::shows("the whole pattern, which follows from lengths")
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(*self)
    }
}

impl Strided {
    /// The tokens that a query attends to when `tokens` are kept, ascending.
    fn index(&self, tokens: usize) -> Vec<usize> {
        let recent = tokens.saturating_sub(self.recent);
        (0..recent).step_by(self.stride).chain(recent..tokens).collect()
    }
}

impl<E: Select> Policy<E> for Strided {
    // ANCHOR: attend
    fn attend(
        &mut self,
        engine: &mut E,
        _layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        // The prompt sees itself whole.
        if q.shape()[1] > 1 || store.piece().in_prompt() {
            return Ok(attention::causal(engine, q, store)?.output);
        }
        let index = self.index(store.len());
        store.record_attended(|_| index.clone());
        let pairs = attention::take(&store.pairs_by_head(0..store.len()), 1, &index);
        attention::sparse(engine, q, &pairs, store)
    }
    // ANCHOR_END: attend
}

/// Two query heads per key/value head.
const SHAPE: HeadShape = HeadShape { heads: 4, kv_heads: 2, head_dim: 8 };

/// Tokens of the prompt, and all tokens.
const PROMPT: usize = 24;
const TOKENS: usize = 30;

/// Made-up queries of all tokens (heads, tokens, head_dim), and keys and values (tokens, kv_heads * head_dim).
fn text() -> [ArrayD<f32>; 3] {
    let kv = [TOKENS, SHAPE.kv_heads * SHAPE.head_dim];
    [(&[SHAPE.heads, TOKENS, SHAPE.head_dim][..], 0.1), (&kv, 0.2), (&kv, 0.3)].map(|(shape, seed)| {
        let mut i = 0f32;
        ArrayD::from_shape_simple_fn(IxDyn(shape), || {
            i += 1.0;
            (i * 0.37 + seed).sin()
        })
    })
}

/// Plays the made-up text on any engine: the output of the last token, and the cache after it.
fn play<E: Select>(
    engine: &mut E,
    policy: Box<dyn Policy<E>>,
    tensor: impl Fn(&ArrayD<f32>) -> E::Tensor,
) -> Result<(E::Tensor, KvCache<E>), Error> {
    let [q, k, v] = text().map(|x| tensor(&x));
    let mut cache = KvCache::with_policy(&Layers::global(1, SHAPE), policy);
    let mut attend =
        |t: Range<usize>| cache.attend(engine, 0, &q.slice(1, t.clone()), &k.slice(0, t.clone()), &v.slice(0, t));
    let mut output = attend(0..PROMPT)?;
    for t in PROMPT..TOKENS {
        output = attend(t..t + 1)?;
    }
    Ok((output, cache))
}

/// The output that head `head` should return for the last token, over the tokens `index`, in plain loops over f64.
fn naive(head: usize, index: &[usize]) -> Vec<f64> {
    let [q, k, v] = text().map(|x| x.mapv(f64::from));
    let d = SHAPE.head_dim;
    let start = head / SHAPE.group() * d;
    let score = |t: usize| (0..d).map(|c| q[[head, TOKENS - 1, c]] * k[[t, start + c]]).sum::<f64>().exp();
    let total: f64 = index.iter().map(|&t| score(t)).sum();
    (0..d).map(|c| index.iter().map(|&t| score(t) / total * v[[t, start + c]]).sum()).collect()
}

/// Bytes between two parties, with the policy that `build` makes.
fn planned(policy: Box<dyn Policy<Plan>>) -> Result<u64, Error> {
    let mut plan = Planner::new(Options::default()).engine();
    play(&mut plan, policy, |x| Shape(x.shape().to_vec()))?;
    Ok(plan.abb().ledger().untimed().iter().map(|entry| entry.traffic.bytes()).sum())
}

/// Runs the policy `text` on both engines and checks what comes out.
fn check(text: &str) -> Result<(), Box<dyn StdError>> {
    let policy = Strided::parse(text)?;
    let index = policy.index(TOKENS);
    println!("{text} attends to {} of {TOKENS} tokens", index.len());

    let (output, cache) = play(&mut Float::default(), policy.build(1, SHAPE), ArrayD::clone)?;
    assert_eq!(cache.attended(0), Some(&vec![index.clone(); SHAPE.heads][..]), "every head attends to the pattern");
    let want = (0..SHAPE.heads).flat_map(|head| naive(head, &index));
    let difference = output.iter().zip(want).map(|(got, want)| (f64::from(*got) - want).abs()).fold(0.0, f64::max);
    assert!(difference < 1e-5, "differs from the naive reading by {difference}");

    let (sparse, full) = (planned(policy.build(1, SHAPE))?, planned(PolicySpec::default().build(1, SHAPE))?);
    println!("two parties would send {sparse} bytes, and {full} under `full`");
    assert!(sparse < full || index.len() == TOKENS, "a part of the cache costs less than all of it");
    Ok(())
}

fn main() -> Result<(), Box<dyn StdError>> {
    check(&std::env::args().nth(1).unwrap_or_else(|| "strided".into()))
}

#[test]
fn strided_runs_on_every_engine() {
    for text in ["strided", "strided:recent=1,stride=1", "strided:recent=4,stride=8"] {
        check(text).unwrap();
    }
}

#[test]
fn options_are_refused_as_those_of_other_policies_are() {
    for (text, message) in [
        ("stride", "unknown cache policy `stride`; known are: strided"),
        ("strided:budget=1", "cache policy `strided` has no option `budget`; it takes: recent, stride"),
        ("strided:stride=0", "cache policy `strided`: stride=0: expected a number from 1"),
    ] {
        assert_eq!(Strided::parse(text).unwrap_err().to_string(), message);
    }
}
