//! `streaming`, `duo` and `razor`: heads stream, all of them or some, and the others keep every token.
//!
//! **Source.** StreamingLLM (Xiao et al., arXiv 2309.17453): the first tokens and the latest are kept. Its authors
//! count positions within the cache; here every token keeps the one at which it was encoded. DuoAttention (Xiao et
//! al., arXiv 2410.10819): *retrieval heads* look at all tokens, and *streaming heads* need no more than the first
//! tokens and the latest. RazorAttention (Tang et al., arXiv 2407.15891): the same, and what a streaming head lets go
//! stays as a *compensation token*. Its key and its value are the means of those that went, and the softmax counts it
//! as often as tokens went.
//!
//! **The pattern.** The authors of DuoAttention train a gate for each head; those of RazorAttention choose heads that
//! look back to an equal token, or to the one after it, in a random text that repeats itself. Here `waggle heads`
//! finds the pattern, by the attention that a head loses when it streams or by repetitions, without training.
//!
//! **Steps.** The heads of a layer are divided into two parts with tokens of their own ([`Policy::parts`]). In two
//! phases both parts go through each step of attention together, so a step has the flows of `full`. In one phase the
//! products with keys and with values are taken one after another. A compensation token is a sum of shares. Its
//! division by a public number takes two truncations in each eviction, and the logarithm of that number is added to
//! its score for nothing.
//!
//! **Blocks.** A store that is cut is rewritten, and in two phases all of its rows then need fresh masks. A full
//! store therefore drops a block of its oldest tokens at once; the default block of a budget in tokens is a quarter
//! of it. With a share the default is 1: such a cache grows, so three of four steps drop a token and one does not.
//!
//! **Public.** Which heads stream, and all lengths. The pattern of `duo` and `razor` comes from the model, so it
//! tells something about the weights: a bit for each head. The server publishes it when it agrees to the policy.
//! **Revealed.** Nothing else: no choice depends on the text.

use waggle_engine::{Error, Select, Tensor};

use super::DEFAULT_SINKS;
use crate::attention;
use crate::schedule::Later;
use crate::{
    Facts, HeadPattern, HeadShape, Merged, NamedPolicy, Policy, PolicyError, PolicyFamily, PolicyOptions, Schedule,
    Store,
};

/// Keeps every token in some heads, or in none, and the first tokens and the latest in the others.
///
/// The pattern is public: no protocol runs to choose.
#[derive(Clone, Debug, PartialEq)]
pub struct Divided {
    /// The heads that keep every token; `streaming` has none.
    pub heads: Option<HeadPattern>,
    /// The budget of the heads outside `heads`, of all tokens seen, and when the rest goes.
    pub schedule: Schedule,
    /// The number of those heads' tokens that stand at the start of the text.
    pub sinks: usize,
    /// `razor`: in those heads a token of their own stands for those that went.
    pub compensates: bool,
}

const KEYS: &[&str] = &["heads", "budget", "block", "prefill", "sinks"];
const STREAMING_KEYS: &[&str] = &["budget", "block", "prefill", "sinks"];

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

/// The value asked for where no pattern is given.
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

/// The rows of `held` that an eviction leaves: the first ones, and the latest.
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
    /// The heads of `layer`, of so many, that keep every token, and those that stream.
    fn split(&self, layer: usize, heads: usize) -> [Vec<usize>; 2] {
        match &self.heads {
            Some(pattern) => pattern.split(layer, heads),
            None => [Vec::new(), (0..heads).collect()],
        }
    }

    /// The rows left after a chunk of the prompt, or all of it, has seen itself whole. `None` if nothing goes.
    fn left_after<E: Select>(&self, store: &Store<E>, part: usize) -> Option<Left> {
        let piece = store.piece();
        if self.schedule.ends_chunk(piece) {
            self.left(store, part, self.schedule.budget_of(piece.prompt), 1)
        } else if piece.ends_prompt() {
            self.left_over(store, part, 1)
        } else {
            None
        }
    }

    /// The rows left when those go that do not fit into the budget, but none of the last `least` tokens.
    fn left_over<E: Select>(&self, store: &Store<E>, part: usize, least: usize) -> Option<Left> {
        let most = self.schedule.budget_of(store.seen());
        self.left(store, part, self.schedule.left(most, store.parts()[part].len())?, least)
    }

    /// `keep` rows are left, at least the last `least` tokens, and the row of a compensation token.
    fn left<E: Select>(&self, store: &Store<E>, part: usize, keep: usize, least: usize) -> Option<Left> {
        let part = &store.parts()[part];
        let (held, merged) = (part.len(), usize::from(self.compensates));
        let keep = keep.max(least + merged);
        if keep >= held {
            return None;
        }
        let keep = keep - merged;
        // A row that stands for others is none of the first tokens.
        let first = self.sinks.min(keep - least).min(part.merged().map_or(usize::MAX, |merged| merged.row));
        Some(Left { held, first, latest: keep - first })
    }
}

/// The policy of one generation.
struct Parts<E: Select> {
    settings: Divided,
    shape: HeadShape,
    /// `razor`: by layer what its streaming heads let go.
    gone: Vec<Option<Gone<E::Tensor>>>,
}

/// The sums of rows that went, (1, heads * head_dim) each, and their number.
#[derive(Clone)]
struct Gone<T> {
    keys: T,
    values: T,
    tokens: usize,
}

impl<E: Select> Parts<E> {
    /// The part of `layer` whose heads stream, if some do.
    fn streaming(&self, layer: usize) -> Option<usize> {
        let [keep, stream] = self.settings.split(layer, self.shape.kv_heads);
        (!stream.is_empty()).then_some(usize::from(!keep.is_empty()))
    }

    /// Leaves what `left` says of the part `part`, and the compensation token of what went.
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
        // The row that stands for others is made anew from their sum.
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
        // The row has a place among the positions, although it is no token.
        store.record_kept_by(part, &[first, left.gone()[..1].to_vec(), latest].concat());
        Ok(())
    }

    fn evict_prompt(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        let Some(part) = self.streaming(layer) else { return Ok(()) };
        let Some(left) = self.settings.left_after(store, part) else { return Ok(()) };
        self.evict(engine, layer, store, part, left)
    }
}

/// The sum of rows, (rows, n) -> (1, n). Free.
fn sum<E: Select>(engine: &mut E, rows: &E::Tensor) -> Result<E::Tensor, Error> {
    let n = rows.shape()[1];
    Ok(engine.sum_last(&rows.permute(&[1, 0]))?.reshape(&[1, n]))
}

/// Means of `tokens` rows from their sums.
///
/// A public factor has 16 fractional bits. A division by thousands would be off by percents, so a power of two goes
/// first, which such a factor holds exactly.
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

    /// The number of heads that keep every token: which ones they are makes no difference to what is sent.
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
        // The prompt, or a chunk of it, sees itself whole and is cut afterwards; later tokens see what is kept.
        if let Some(part) = self.streaming(layer)
            && !store.piece().in_prompt()
            && let Some(left) = self.settings.left_over(store, part, q.shape()[1])
        {
            self.evict(engine, layer, store, part, left)?;
        }
        let output = attention::causal(engine, q, store)?.output;
        self.evict_prompt(engine, layer, store)?;
        Ok(output)
    }

    fn appended(&mut self, engine: &mut E, layer: usize, store: &mut Store<E>) -> Result<(), Error> {
        self.evict_prompt(engine, layer, store)
    }
}
