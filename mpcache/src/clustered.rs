//! Policies that choose, for every query, clusters of tokens by a summary of their keys: `mpcache` and its relatives.
//!
//! Algorithm 3 of MPCache (NeurIPS 2025): at the end of the prompt a window of its last queries votes once on which tokens
//! stay ([`eviction`](crate::eviction)); then every decoding step scores the clusters of what is left
//! ([`Similarity`]), on two levels ([`Sizes`]), and attends to the best ones only. Every other layer takes over what the
//! layer below it chose.
//!
//! **Clusters** are formed by position over what the store keeps: `sinks` tokens, then coarse clusters, then a tail of 1 to
//! a whole coarse cluster of the latest tokens. Sinks and tail are always attended to; they are no candidates. A cluster
//! closes, and is digested, when a token comes in after it. Clusters and digests stay as they are then: in two phases each
//! is opened under its mask once, and a step opens the query and the one-hot rows it gathers by.
//!
//! **Budget.** A step looks at about the share `budget` of all tokens seen: sinks, tail and as many fine clusters as fit,
//! at least one. Half of the coarse clusters are dropped first where fewer than half of the fine ones are wanted.
//!
//! **What each party sees.** The numbers of tokens kept and of clusters chosen, all functions of public lengths; with
//! [`TopK::ShuffleReveal`] also how the candidates' scores compare after a fresh permutation that neither party knows, on
//! each level, layer and step. Nothing else: which tokens are kept, chosen or attended to stays hidden.

use engine::{Engine, Error, Origin, Ranking, Right, Tensor, TopK};

use crate::attention::Received;
use crate::digest::Digests;
use crate::policy::fold_heads;
use crate::positions::Positions;
use crate::{HeadShape, Policy, Select, Similarity, Sizes, Store, attention, budget, eviction};

/// Fractional bits of scores that are compared: digests are scaled down, so this is 1/512 of a score.
const SCORE_FRAC: u32 = 12;

/// log2 of a bound on a score.
const SCORE_MAGNITUDE: u32 = 9;

/// Prompts from here on vote with a smaller window.
const LONG_PROMPT: usize = 24_000;

/// How the chosen tokens come together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Gather {
    /// Keys and values of the chosen clusters, by one-hot rows times the cache: the paper's, algorithm 2.
    #[default]
    OneHot,
    /// Only the attention scores of the chosen clusters: all scores are computed, the chosen ones go through the softmax,
    /// and the probabilities are scattered back before they meet the values. A cluster moves as many words as it has
    /// tokens, instead of 2 head_dim times that.
    Scores,
}

/// Settings of a [`Clustered`] policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Clusters {
    /// Share of all tokens seen that a query looks at.
    pub budget: f64,
    /// Tokens per cluster.
    pub sizes: Sizes,
    /// Tokens at the start that are always attended to.
    pub sinks: usize,
    /// What a query is compared with.
    pub similarity: Similarity,
    /// How the best clusters are found.
    pub top_k: TopK,
    /// How they come together.
    pub gather: Gather,
    /// Who shares a selection.
    pub select: Select,
    /// Share of the prompt that stays, at least the budget; 1 evicts nothing.
    pub keep: f64,
    /// Share of the prompt whose queries vote on that; `None` for the paper's 20 %, or 10 % of long prompts.
    pub window: Option<f64>,
    /// Whether odd layers take over what the even layer below chose.
    pub share: bool,
    /// The first layers, which attend to everything.
    pub dense: usize,
    /// Refuse engines that do not see their values: the `oracle`.
    pub clear_only: bool,
}

impl Clusters {
    fn window(&self, prompt: usize) -> usize {
        let share = self.window.unwrap_or(if prompt > LONG_PROMPT { 0.1 } else { 0.2 });
        budget(share, prompt)
    }

    /// Tokens of a prompt that stay.
    fn kept(&self, prompt: usize) -> usize {
        budget(self.keep.max(self.budget), prompt)
    }

    /// Whether `layer` takes over what the one below chose.
    fn follows(&self, layer: usize) -> bool {
        self.share && layer % 2 == 1 && layer > self.dense
    }
}

/// Which tokens of a store are what; public.
#[derive(Clone, Copy, Debug)]
struct Layout {
    tokens: usize,
    sinks: usize,
    /// Coarse clusters, all closed.
    clusters: usize,
    sizes: Sizes,
    /// Fine clusters to attend to.
    wanted: usize,
}

impl Layout {
    fn new(c: &Clusters, tokens: usize, seen: usize) -> Self {
        let sinks = c.sinks.min(tokens - 1);
        let clusters = (tokens - sinks - 1) / c.sizes.coarse();
        let tail = tokens - sinks - clusters * c.sizes.coarse();
        let fine = clusters * c.sizes.fan;
        let rest = budget(c.budget, seen).saturating_sub(sinks + tail);
        let wanted = (rest / c.sizes.fine).clamp(1.min(fine), fine);
        Layout { tokens, sinks, clusters, sizes: c.sizes, wanted }
    }

    fn fine(&self) -> usize {
        self.clusters * self.sizes.fan
    }

    /// Where the tail begins.
    fn tail(&self) -> usize {
        self.sinks + self.clusters * self.sizes.coarse()
    }

    /// Coarse clusters that survive the first level, if there is one.
    fn survivors(&self) -> Option<usize> {
        let half = self.clusters.div_ceil(2);
        (self.sizes.fan > 1 && 2 * self.wanted < self.fine() && half < self.clusters).then_some(half)
    }

    /// Every fine cluster is wanted: there is nothing to choose.
    fn is_dense(&self) -> bool {
        self.wanted == self.fine()
    }
}

/// A choice of fine clusters, (rows, wanted, fine clusters).
struct Choice<S> {
    /// The coarse clusters first, then of their parts; or all at once.
    first: Option<S>,
    last: S,
    fan: usize,
}

/// Attends to clusters chosen by a summary of their keys, see the module's documentation.
pub struct Clustered<E: Engine> {
    settings: Clusters,
    layers: Vec<Layer<E>>,
    /// What the last even layer kept of the prompt and chose for the query.
    kept: Option<E::Selection>,
    choice: Option<Choice<E::Selection>>,
}

struct Layer<E: Engine> {
    digests: Digests<E>,
    positions: Positions,
}

impl<E: Engine> Clustered<E> {
    /// For `layers` layers of heads `shape`.
    pub fn new(settings: Clusters, layers: usize, shape: HeadShape) -> Self {
        let layer = |layer| Layer { digests: Digests::new(layer), positions: Positions::new(E::CLEAR, shape) };
        Clustered { settings, layers: (0..layers).map(layer).collect(), kept: None, choice: None }
    }

    fn evicts(&self, layer: usize, prompt: usize) -> bool {
        layer >= self.settings.dense && self.settings.kept(prompt) < prompt
    }

    /// Look-once eviction after the prompt, whose attention `p` is. Heads that share later selections by the layer keep the
    /// same tokens, so that their scores of one slot are of one token; else every key/value head keeps its own.
    fn evict(&mut self, engine: &mut E, layer: usize, p: &E::Tensor, store: &mut Store<E>) -> Result<(), Error> {
        let (tokens, shape, c) = (store.len(), store.heads(), self.settings);
        let per_layer = c.select == Select::PerLayer;
        let positions = &mut self.layers[layer].positions;
        let kept = match self.kept.take().filter(|_| c.follows(layer)) {
            Some(kept) => kept,
            None => {
                let window = c.window(tokens);
                let received = attention::received(engine, p, window, per_layer, shape)?;
                let size = Received::new(engine, window, per_layer, shape)?;
                eviction::choose(engine, &received, c.kept(tokens), c.top_k, size)?
            }
        };
        eviction::keep(engine, store, &kept, tokens, per_layer, positions)?;
        self.kept = Some(kept);
        Ok(())
    }

    /// Digests the clusters that closed since the last time.
    fn digest(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        store: &Store<E>,
    ) -> Result<(), Error> {
        let (c, shape) = (self.settings, store.heads());
        let digests = &mut self.layers[layer].digests;
        let from = layout.sinks + digests.closed * c.sizes.coarse();
        if layout.tail() == from {
            return Ok(());
        }
        let keys = store.keys().slice(0, from..layout.tail());
        engine.scope("digest", |e| digests.close(e, (c.similarity, c.top_k), c.sizes, &keys, q, shape))
    }

    /// Chooses the clusters for `q`. `raw` are the scores of all tokens (heads, tokens), if they are known.
    fn choose(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        raw: Option<&E::Tensor>,
        store: &Store<E>,
    ) -> Result<Choice<E::Selection>, Error> {
        let (c, shape) = (self.settings, store.heads());
        self.digest(engine, layer, layout, q, store)?;
        let digests = &mut self.layers[layer].digests;
        let (coarse, fine) = engine.scope("similarity", |e| {
            let (coarse, fine) = match raw {
                Some(raw) => (None, raw.slice(1, layout.sinks..layout.tail())),
                None => digests.scores(e, c.similarity, c.sizes.fan, q, shape)?,
            };
            let coarse = coarse.map(|scores| c.select.sum(e, &scores, shape)).transpose()?;
            Ok((coarse, c.select.sum(e, &fine, shape)?))
        })?;
        let rows = c.select.rows(shape);
        // A sum over heads adds the bits of their number.
        let terms = shape.heads / rows;
        let magnitude = SCORE_MAGNITUDE + terms.next_power_of_two().trailing_zeros();
        let ranking = |k, ceiling| Ranking { k, method: c.top_k, magnitude, ceiling, frac: SCORE_FRAC };
        // All scores, of tokens and of digests, are products of matrices.
        let ceiling = engine.ceiling(Origin::Product)?.times(terms);
        let (first, fine, ceiling) = match (layout.survivors(), coarse) {
            (Some(k), Some(coarse)) => {
                let first = engine.scope("top-k coarse", |e| e.top_k(&coarse, &ranking(k, ceiling)))?;
                let children = fine.reshape(&[rows, layout.clusters, c.sizes.fan]);
                let children = engine.scope("children", |e| e.gather(&first, Right::Fresh(&children), magnitude))?;
                (
                    Some(first),
                    children.reshape(&[rows, k * c.sizes.fan]),
                    engine.ceiling(Origin::Moved { magnitude })?,
                )
            }
            _ => (None, fine, ceiling),
        };
        let last = engine.scope("top-k", |e| e.top_k(&fine, &ranking(layout.wanted, ceiling)))?;
        let choice = Choice { first, last, fan: c.sizes.fan };
        if c.gather == Gather::Scores { Ok(choice) } else { engine.scope("one-hot", |e| choice.one_hot(e)) }
    }

    /// Attention of one query per head over the sinks, the chosen clusters and the tail.
    fn attend_chosen(
        &mut self,
        engine: &mut E,
        layer: usize,
        layout: &Layout,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let scores = (c.gather == Gather::Scores || c.similarity == Similarity::Token)
            .then(|| store.scores(engine, &fold_heads(q, shape)))
            .transpose()?
            .map(|scores| scores.reshape(&[shape.heads, layout.tokens]));
        let choice = match self.choice.take().filter(|_| c.follows(layer)) {
            Some(choice) => choice,
            None => {
                let raw = scores.as_ref().filter(|_| c.similarity == Similarity::Token);
                self.choose(engine, layer, layout, q, raw, store)?
            }
        };
        let mixed = match scores.filter(|_| c.gather == Gather::Scores) {
            Some(scores) => self.attend_scores(engine, layout, &choice, &scores, store)?,
            None => self.attend_pairs(engine, layout, &choice, q, store)?,
        };
        if let Some(rows) = choice.chosen(engine) {
            let group = shape.heads / rows.len();
            let size = c.sizes.fine;
            self.layers[layer].positions.attend(shape, |head| {
                let clusters = rows[head / group].iter();
                let tokens = clusters.flat_map(|&i| (0..size).map(move |t| layout.sinks + i * size + t));
                tokens.chain(0..layout.sinks).chain(layout.tail()..layout.tokens).collect()
            });
        }
        self.choice = Some(choice);
        Ok(mixed)
    }

    /// Keys and values of the chosen clusters come together.
    fn attend_pairs(
        &self,
        engine: &mut E,
        layout: &Layout,
        choice: &Choice<E::Selection>,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let HeadShape { kv_heads, head_dim, .. } = shape;
        debug_assert!(choice.first.is_none(), "one selection over all clusters");
        let chosen = store.gather(engine, &choice.last, layout.sinks..layout.tail(), c.sizes.fine, c.select)?;
        let chosen = Select::unpack(&chosen, kv_heads);
        let batch = chosen.shape()[0];
        let chosen = chosen.reshape(&[batch, layout.wanted * c.sizes.fine, 2 * head_dim]);
        let forced = E::Tensor::concat(
            1,
            &[&store.pairs_by_head(0..layout.sinks), &store.pairs_by_head(layout.tail()..layout.tokens)],
        );
        let forced = repeat_rows(&forced, batch / kv_heads);
        attention::sparse(engine, q, &E::Tensor::concat(1, &[&forced, &chosen]), shape)
    }

    /// The scores of the chosen clusters come together, their probabilities go back.
    fn attend_scores(
        &self,
        engine: &mut E,
        layout: &Layout,
        choice: &Choice<E::Selection>,
        scores: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        let (c, shape) = (self.settings, store.heads());
        let (heads, size) = (shape.heads, c.sizes.fine);
        let clusters = scores.slice(1, layout.sinks..layout.tail()).reshape(&[heads, layout.fine(), size]);
        let chosen =
            engine.scope("gather", |e| choice.gather(e, &c.select.payload(&clusters, shape), SCORE_MAGNITUDE))?;
        let chosen = Select::unpack(&chosen, heads).reshape(&[heads, layout.wanted * size]);
        let (sinks, tail) = (scores.slice(1, 0..layout.sinks), scores.slice(1, layout.tail()..layout.tokens));
        let all = E::Tensor::concat(1, &[&sinks, &tail, &chosen]);
        let (forced, n) = (layout.sinks + layout.tokens - layout.tail(), all.shape()[1]);
        let p = engine.scope("softmax", |e| e.softmax(&all.reshape(&[heads, 1, n]), &[n]))?.reshape(&[heads, n]);
        let chosen = p.slice(1, forced..n).reshape(&[heads, layout.wanted, size]);
        let back = engine.scope("scatter", |e| choice.scatter(e, &c.select.payload(&chosen, shape), 1))?;
        let back = Select::unpack(&back, heads).reshape(&[heads, layout.fine() * size]);
        let p = E::Tensor::concat(1, &[&p.slice(1, 0..layout.sinks), &back, &p.slice(1, layout.sinks..forced)]);
        let p = p.reshape(&[shape.kv_heads, shape.group(), layout.tokens]);
        let mixed = store.mix(engine, &p)?;
        Ok(mixed.reshape(&[heads, 1, shape.head_dim]))
    }
}

impl<E: Engine> Policy<E> for Clustered<E> {
    fn query_window(&self, layer: usize, new: usize) -> usize {
        let looks = new > 1 && self.evicts(layer, new) && !self.settings.follows(layer);
        if looks { self.settings.window(new) } else { 1 }
    }

    fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        store: &mut Store<E>,
    ) -> Result<E::Tensor, Error> {
        if self.settings.clear_only && !E::CLEAR {
            return Err(Error::NotInTheClear { operation: "cache policy `oracle`" });
        }
        let shape = store.heads();
        let prompt = store.seen() == store.fresh();
        self.layers[layer].positions.extend(store.seen() - store.fresh(), store.seen());
        let layout = Layout::new(&self.settings, store.len(), store.seen());
        // Several new tokens after the prompt look at everything, like a prompt.
        if prompt || q.shape()[1] > 1 || layer < self.settings.dense || layout.is_dense() {
            self.layers[layer].positions.attend_all(shape);
            let (mixed, p) = attention::causal(engine, q, store)?;
            if prompt {
                if self.evicts(layer, store.len()) {
                    engine.scope("eviction", |e| self.evict(e, layer, &p, store))?;
                }
                // Clusters of the prompt are digested with it, by the layers that will choose among them.
                let layout = Layout::new(&self.settings, store.len(), store.seen());
                if layer >= self.settings.dense && !self.settings.follows(layer) && !layout.is_dense() {
                    let last = q.slice(1, q.shape()[1] - 1..q.shape()[1]);
                    self.digest(engine, layer, &layout, &last, store)?;
                }
            }
            return Ok(mixed);
        }
        self.attend_chosen(engine, layer, &layout, q, store)
    }

    fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.layers[layer].positions.attended()
    }
}

impl<S> Choice<S> {
    fn gather<E: Engine<Selection = S>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
        magnitude: u32,
    ) -> Result<E::Tensor, Error> {
        let Some(first) = &self.first else { return engine.gather(&self.last, Right::Fresh(x), magnitude) };
        let [rows, fine, w] = x.shape()[..] else { panic!("payload of shape {:?}", x.shape()) };
        let whole = x.reshape(&[rows, fine / self.fan, self.fan * w]);
        let parents = engine.gather(first, Right::Fresh(&whole), magnitude)?;
        let (rows, k) = (parents.shape()[0], parents.shape()[1]);
        let parts = parents.reshape(&[rows, k * self.fan, w]);
        engine.gather(&self.last, Right::Fresh(&parts), magnitude)
    }

    fn scatter<E: Engine<Selection = S>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
        magnitude: u32,
    ) -> Result<E::Tensor, Error> {
        let back = engine.scatter(&self.last, x, magnitude)?;
        let Some(first) = &self.first else { return Ok(back) };
        let [rows, parts, w] = back.shape()[..] else { panic!("payload of shape {:?}", back.shape()) };
        let parents = engine.scatter(first, &back.reshape(&[rows, parts / self.fan, self.fan * w]), magnitude)?;
        let clusters = parents.shape()[1];
        Ok(parents.reshape(&[rows, clusters * self.fan, w]))
    }

    /// The same as one selection of one-hot rows over all fine clusters.
    fn one_hot<E: Engine<Selection = S>>(&self, engine: &mut E) -> Result<Self, Error> {
        let last = engine.one_hot(&self.last)?;
        let last = match &self.first {
            None => last,
            Some(first) => {
                let first = engine.one_hot(first)?;
                engine.compose(&first, self.fan, &last)?
            }
        };
        Ok(Choice { first: None, last, fan: self.fan })
    }

    /// The fine clusters of every row, in the clear.
    fn chosen<E: Engine<Selection = S>>(&self, engine: &E) -> Option<Vec<Vec<usize>>> {
        let last = engine.chosen(&self.last)?;
        let Some(first) = &self.first else { return Some(last) };
        let first = engine.chosen(first)?;
        let part = |parents: &[usize], i: usize| parents[i / self.fan] * self.fan + i % self.fan;
        Some(first.iter().zip(last).map(|(parents, row)| row.iter().map(|&i| part(parents, i)).collect()).collect())
    }
}

/// (batch, n, w) -> (batch times, n, w): every entry `times` times in a row.
fn repeat_rows<T: Tensor>(x: &T, times: usize) -> T {
    if times == 1 {
        return x.clone();
    }
    let [batch, n, w] = x.shape()[..] else { panic!("rows of shape {:?}", x.shape()) };
    let one = x.reshape(&[batch, 1, n * w]);
    T::concat(1, &vec![&one; times]).reshape(&[batch * times, n, w])
}
