//! `streaming`, `duo` and `razor`: all heads or some of them *stream*, and the other heads keep every token.
//!
//! **Source.** StreamingLLM (Xiao et al., arXiv 2309.17453): a streaming head keeps the first tokens and the latest.
//! Its authors count positions within the cache; here every token keeps the position at which it was encoded.
//! DuoAttention (Xiao et al., arXiv 2410.10819): *retrieval heads* look at all tokens, and *streaming heads* need no
//! more than the first tokens and the latest. RazorAttention (Tang et al., arXiv 2407.15891): the same, but a
//! *compensation token* stands for the tokens that a streaming head evicted. Its key and its value are the means of
//! theirs, and the softmax counts it once for each of these tokens.
//!
//! **The pattern.** The authors of DuoAttention train a gate for each head. The authors of RazorAttention run a
//! random text that repeats itself, and choose the heads that look back to an equal token or to the token after it.
//! Here `waggle heads` finds the pattern, without training: by the attention that a head loses when it streams, or by
//! repetitions.
//!
//! **Steps.** The heads of a layer are divided into two parts with tokens of their own ([`Policy::parts`]). In two
//! phases both parts go through each step of attention together, so a step has the flows of `full`. In one phase the
//! products with keys and with values are taken one after another. The sum that a compensation token needs is a sum
//! of shares. Its division by the public number of tokens takes two truncations in each eviction. Adding the
//! logarithm of this number to the token's score costs nothing.
//!
//! **Blocks.** An eviction rewrites the store, and in two phases all of its rows then need fresh masks. A full store
//! therefore drops a block of tokens at once. With a budget in tokens the default block is a quarter of the budget.
//! With a share the default is 1: the budget grows, so that at a share of 1/4 three of four steps drop a token and
//! one does not.
//!
//! **Public.** Which heads stream, and all lengths. The pattern of `duo` and `razor` comes from the model, so it
//! tells something about the weights: one bit for each head. The server publishes it when it agrees to the policy.
//! **Revealed.** Nothing else: no choice depends on the text.

use waggle_engine::{Error, Select, Tensor};

use super::DEFAULT_SINKS;
use crate::attention;
use crate::schedule::Later;
use crate::{
    Facts, HeadPattern, HeadShape, Merged, NamedPolicy, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule,
    Store,
};

/// Keeps every token in some heads or in none, and keeps the first tokens and the latest in the other heads.
///
/// The pattern is public, so no protocol runs to choose tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// The heads that keep every token; `None` in `streaming`, where every head streams.
    pub heads: Option<HeadPattern>,
    /// The budget of the heads outside `heads`, out of all tokens seen, and when the other tokens are evicted.
    pub schedule: Schedule,
    /// The number of tokens at the start of the text that the heads outside `heads` keep.
    pub sinks: usize,
    /// Whether a compensation token stands for the tokens that the heads outside `heads` evicted, as in `razor`.
    pub compensates: bool,
}

const KEYS: &[&str] = &["heads", "budget", "block", "prefill", "guard", "sinks"];
const STREAMING_KEYS: &[&str] = &["budget", "block", "prefill", "guard", "sinks"];

impl PolicyFamily for Divided {
    const POLICIES: &'static [NamedPolicy<Self>] = &[
        NamedPolicy {
            name: "streaming",
            keys: STREAMING_KEYS,
            about: "StreamingLLM: the first tokens and the latest",
            read: |options| read(options, false),
        },
        NamedPolicy {
            name: DUO,
            keys: KEYS,
            about: "DuoAttention: some heads keep every token, others the first and the latest",
            read: |options| read(options, false),
        },
        NamedPolicy {
            name: RAZOR,
            keys: KEYS,
            about: "RazorAttention: as duo, with the mean of what went as a token",
            read: |options| read(options, true),
        },
    ];

    const REQUIRED: &'static str = "heads=1";

    fn facts(&self) -> Facts {
        let shows = match self.heads {
            Some(_) => "which heads keep every token, which follows from the weights",
            None => "the whole pattern, which follows from lengths",
        };
        Facts { prefill: self.schedule.prefill, side_by_side: self.heads.is_none(), ..Facts::shows(shows) }
    }

    fn check(&self, layers: usize, shape: HeadShape) -> Result<(), PolicyError> {
        let policy = if self.compensates { RAZOR } else { DUO };
        let misfit = self.heads.as_ref().and_then(|heads| Some((heads, heads.misfit(layers, shape)?)));
        let Some((heads, expected)) = misfit else { return Ok(()) };
        Err(PolicyError::Value { policy, key: "heads", value: heads.to_string(), expected })
    }

    fn build<E: Select>(&self, layers: usize, shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(Parts::<E> { settings: self.clone(), shape, gone: (0..layers).map(|_| None).collect() })
    }
}

const DUO: &str = "duo";
const RAZOR: &str = "razor";

/// The value that is asked for if no pattern is given.
const MISSING: &str = "the heads of each layer that keep every token";

fn read(options: &mut PolicyOptions, compensates: bool) -> Result<Divided, PolicyError> {
    let heads = match options.lists("heads") {
        true => Some(options.given_value("heads")?.ok_or_else(|| options.missing("heads", MISSING))?),
        false => None,
    };
    Ok(Divided {
        heads,
        schedule: Schedule::read(options, Later::Always)?,
        sinks: options.number("sinks", 0, DEFAULT_SINKS)?,
        compensates,
    })
}

/// The rows that an eviction leaves of `held` rows: the first ones and the latest.
#[derive(Clone, Copy, Debug)]
struct Left {
    held: usize,
    first: usize,
    latest: usize,
}

impl Left {
    fn first(self) -> Vec<usize> {
        (0..self.first).collect()
    }

    fn gone(self) -> Vec<usize> {
        (self.first..self.held - self.latest).collect()
    }

    fn latest(self) -> Vec<usize> {
        (self.held - self.latest..self.held).collect()
    }
}

impl Divided {
    /// The heads of `layer`, which has `heads` heads, that keep every token, and those that stream.
    fn split(&self, layer: usize, heads: usize) -> [Vec<usize>; 2] {
        match &self.heads {
            Some(pattern) => pattern.split(layer, heads),
            None => [Vec::new(), (0..heads).collect()],
        }
    }

    /// The rows left after the prompt, or a chunk of it, has attended to all of its tokens. `None` if nothing is
    /// evicted.
    fn left_after<E: Select>(&self, store: &mut Store<E>, part: usize) -> Option<Left> {
        let piece = store.piece();
        if self.schedule.ends_chunk(piece) {
            self.left(store, part, self.schedule.budget_of(piece.prompt), 1)
        } else if piece.ends_prompt() || (self.schedule.guard > 0.0 && !piece.in_prompt()) {
            // Beside guarded rows, new tokens that come together may exceed the budget while they attend.
            self.left_over(store, part, 1)
        } else {
            None
        }
    }

    /// The rows left after the tokens that exceed the budget are evicted, but none of the last `least` tokens.
    fn left_over<E: Select>(&self, store: &mut Store<E>, part: usize, least: usize) -> Option<Left> {
        let most = self.schedule.budget_of(store.seen());
        let left = self.schedule.left(most, store.parts()[part].len())?;
        self.left(store, part, left, least)
    }

    /// The rows left by an eviction down to `keep` rows, which include at least the last `least` tokens and the row
    /// of a compensation token. `None` if nothing is evicted.
    fn left<E: Select>(&self, store: &mut Store<E>, part: usize, keep: usize, least: usize) -> Option<Left> {
        let (held, merged) = (store.parts()[part].len(), usize::from(self.compensates));
        let keep = keep.max(least + merged);
        if keep >= held {
            return None;
        }
        store.guard(part, self.schedule.guarded(self.schedule.budget_of(store.seen())));
        let (guarded, each) = store.guarded(part);
        // Until the prompt has ended, its end is among the latest tokens.
        let least = if guarded == each { least.max(each) } else { least };
        let keep = keep.max(least + merged + guarded) - merged;
        if keep + merged >= held {
            return None;
        }
        // The first guarded rows are sinks themselves. A row that stands for several tokens is none of the first.
        let first = (guarded + self.sinks.saturating_sub(each)).min(keep - least);
        let first = first.min(store.parts()[part].merged().map_or(usize::MAX, |merged| merged.row));
        Some(Left { held, first, latest: keep - first })
    }
}

/// The policy of one generation.
struct Parts<E: Select> {
    settings: Divided,
    shape: HeadShape,
    /// `razor`: by layer, what its streaming heads have evicted.
    gone: Vec<Option<Gone<E::Tensor>>>,
}

/// The sums of the keys and of the values of evicted rows, (1, heads * head_dim) each, and the number of rows.
#[derive(Clone)]
struct Gone<T> {
    keys: T,
    values: T,
    tokens: usize,
}

impl<E: Select> Parts<E> {
    /// The part of `layer` whose heads stream, if it has one.
    fn streaming(&self, layer: usize) -> Option<usize> {
        let [keep, stream] = self.settings.split(layer, self.shape.kv_heads);
        (!stream.is_empty()).then_some(usize::from(!keep.is_empty()))
    }

    /// Cuts the part `part` to the rows that `left` states and the compensation token of the evicted tokens.
    fn evict(
        &mut self,
        engine: &mut E,
        layer: usize,
        store: &mut Store<E>,
        part: usize,
        left: Left,
    ) -> Result<(), Error> {
        if !self.settings.compensates {
            store.keep_rows(part, &[left.first(), left.latest()].concat());
            return Ok(());
        }
        let of = &store.parts()[part];
        let merged = of.merged().map(|merged| merged.row);
        let mut rows = left.gone();
        // The row that stands for several tokens is computed anew from their sum.
        rows.retain(|row| Some(*row) != merged);
        let mut keys = sum(engine, &attention::take(of.keys(), 0, &rows))?;
        let mut values = sum(engine, &attention::take(of.values(), 0, &rows))?;
        let mut tokens = rows.len();
        if let Some(before) = self.gone[layer].take() {
            keys = engine.add(&keys, &before.keys)?;
            values = engine.add(&values, &before.values)?;
            tokens += before.tokens;
        }
        let [key, value] = engine.scope("eviction", |e| means(e, &keys, &values, tokens))?;
        let (first, latest) = (left.first(), left.latest());
        let around = |all: &E::Tensor, mean: &E::Tensor| {
            let mut parts = vec![mean.clone(), attention::take(all, 0, &latest)];
            if !first.is_empty() {
                parts.insert(0, attention::take(all, 0, &first));
            }
            E::Tensor::concat(0, &parts.iter().collect::<Vec<_>>())
        };
        let (new_keys, new_values) = (around(of.keys(), &key), around(of.values(), &value));
        store.replace_merged(part, new_keys, new_values, Merged { row: first.len(), tokens });
        self.gone[layer] = Some(Gone { keys, values, tokens });
        // The compensation token is recorded at the position of the first evicted row, although it is no token.
        store.record_kept_by(part, &[first, left.gone()[..1].to_vec(), latest].concat());
        Ok(())
    }

    fn evict_prompt(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let Some(part) = self.streaming(layer) else { return Ok(()) };
        let Some(left) = self.settings.left_after(store, part) else { return Ok(()) };
        self.evict(engine, layer, store, part, left)
    }
}

/// The sum of the rows of a matrix, at no cost: (rows, n) -> (1, n).
fn sum<E: Select>(engine: &mut E, rows: &E::Tensor) -> Result<E::Tensor, Error> {
    let n = rows.shape()[1];
    Ok(engine.sum_last(&rows.permute(&[1, 0]))?.reshape(&[1, n]))
}

/// The means of `tokens` rows, from their sums.
///
/// A public factor has 16 fractional bits, so a division by thousands would be off by percents. The division by a
/// power of two comes first, because such a factor is exact.
fn means<E: Select>(
    engine: &mut E,
    keys: &E::Tensor,
    values: &E::Tensor,
    tokens: usize,
) -> Result<[E::Tensor; 2], Error> {
    let n = keys.shape()[1];
    let power = tokens.ilog2().min(16);
    let sums = E::Tensor::concat(1, &[keys, values]);
    let small = engine.scale(&sums, (-f64::from(power)).exp2() as f32)?;
    let means = engine.scale(&small, (f64::from(power).exp2() / tokens as f64) as f32)?;
    Ok([means.slice(1, 0..n), means.slice(1, n..2 * n)])
}

impl<E: Select> Policy<E> for Parts<E> {
    fn fork(&self) -> Option<Box<dyn Policy<E>>> {
        Some(Box::new(Parts { settings: self.settings.clone(), gone: self.gone.clone(), ..*self }))
    }

    fn prefill_chunk(&self) -> Option<usize> {
        self.settings.schedule.prefill
    }

    fn parts(&self, layer: usize, shape: HeadShape) -> Vec<Vec<usize>> {
        let mut parts = self.settings.split(layer, shape.kv_heads).to_vec();
        parts.retain(|heads| !heads.is_empty());
        parts
    }

    /// The class is the number of heads that keep every token: which heads these are makes no difference to what is
    /// sent.
    fn layer_class(&self, layer: usize) -> usize {
        self.settings.split(layer, self.shape.kv_heads)[0].len()
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        // The prompt, or a chunk of it, attends to all of its tokens and is cut afterwards. Later tokens attend to
        // the tokens that are kept.
        if let Some(part) = self.streaming(layer)
            && !store.piece().in_prompt()
            && let Some(left) = self.settings.left_over(store, part, q.shape()[1])
        {
            self.evict(engine, layer, store, part, left)?;
        }
        let output = attention::attend(engine, q, store)?;
        self.evict_prompt(engine, layer, store)?;
        Ok(output)
    }

    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.evict_prompt(engine, layer, store)
    }
}
