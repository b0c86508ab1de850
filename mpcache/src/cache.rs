//! The cache of a generation: a store per layer, read by one policy.

use ndarray::ArrayD;
use waggle_engine::{Ceiling, Engine, Error, Select, Tensor};

use crate::shed::{Cut, GoOn, Gone, go_on};
use crate::store::Sees;
use crate::{
    Budget, HeadShape, Layers, Padding, Policy, PolicySpec, Prefix, ScoreSource, Shed, ShedPositions, Step, Store,
    attention, window,
};

/// A layer with a window of n tokens has the class `WINDOWED` + n, which is above the classes of all policies.
const WINDOWED: usize = 1 << 20;

/// Layers with other rows of the prompt have classes that differ by a multiple of this, which is above all windows.
const SHED: usize = 1 << 40;

/// The cache of one generation: a store per layer and the policy that reads the stores. A layer with a window is read
/// through its window. The policy reads the other layers and knows them as layers 0, 1, ... The last layers may have
/// no store of their own and [read](KvCache::attend_again) that of an earlier layer.
pub struct KvCache<E: Engine> {
    stores: Vec<Store<E>>,
    attention: Vec<Attention>,
    /// For each of the last layers, which have no store of their own, the index of the store that it reads.
    shared: Vec<usize>,
    policy: Box<dyn Policy<E>>,
    can_roll_back: bool,
    expected: Expected,
    /// Texts that are read side by side.
    texts: usize,
    /// The number of public tokens before each text.
    before: usize,
    sheds: Option<Sheds<E>>,
}

/// What a cache does where rows of the prompt end.
struct Sheds<E: Engine> {
    steps: Vec<Step>,
    positions: ShedPositions,
    go_on: GoOn<E>,
    /// For each text, where the rows of the current pass stand in it, if some have ended. Known where the engine sees
    /// its values.
    places: Option<Vec<Vec<usize>>>,
}

impl<E: Engine> Clone for Sheds<E> {
    fn clone(&self) -> Self {
        Sheds { steps: self.steps.clone(), places: self.places.clone(), ..*self }
    }
}

/// What ends before a layer, of the rows of each text that are in the pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shedding {
    cut: Cut,
    /// The number of rows that go on, which may be 0 in a piece of a prompt.
    pub keep: usize,
    /// The rotary position that the first of them takes, unless each keeps its own. The others follow it.
    pub position: usize,
    /// Whether each row keeps its own rotary position.
    pub own: bool,
}

/// What a cache is told of a text before the first token. All but the amount of padding is public.
#[derive(Clone, Debug, Default)]
pub struct Expected {
    /// Tokens of the prompt, which may come in pieces. If the number is not stated, the tokens that come first are
    /// the whole prompt.
    pub prompt: Option<usize>,
    /// Positions of the whole text: prompt and generated tokens.
    pub text: Option<usize>,
    /// Whether tokens will be [taken back](KvCache::roll_back), so that layers with windows keep tokens that may come
    /// into view again.
    pub rolls_back: bool,
    /// Padding at the beginning of the prompt; in an encoder, whose tokens attend to all tokens, at its end. Allowed
    /// only under the policy `full`: other policies would choose among tokens that stand for nothing.
    pub padding: Option<Padding>,
}

/// The rows of a store that later queries see.
#[derive(Clone, Debug)]
pub struct Held<T> {
    /// Heads of the layer.
    pub heads: HeadShape,
    /// Keys, (tokens, kv_heads * head_dim).
    pub keys: T,
    /// Values in the same shape.
    pub values: T,
}

/// The reader of a layer.
#[derive(Clone, Copy, Debug)]
enum Attention {
    /// The policy, which knows the layer by this index.
    Policy(usize),
    /// A window of this many tokens.
    Window(usize),
    /// Neither a policy nor a window: all tokens are read at once, and see one another, as in an encoder.
    Whole,
}

impl<E: Select> KvCache<E> {
    /// An empty cache, read by the policy that `spec` names.
    ///
    /// # Panics
    /// If no layer is left for a policy that prunes, or if layers share the keys and values that it would prune
    /// ([`Layers::take`]).
    pub fn new(layers: &Layers, spec: &PolicySpec) -> Self {
        assert!(layers.take(spec), "cache policy `{spec}` has no layer to prune");
        let policy = spec.build(layers.pruned().max(1), layers.all_heads(layers.pruned_heads()));
        let cache = KvCache { can_roll_back: spec.can_roll_back(), ..Self::with_policy(layers, policy) };
        cache.shedding(spec.shed())
    }

    /// States, before the first token, where rows of the prompt end.
    pub fn shedding(self, shed: Option<&Shed>) -> Self {
        let sheds = shed.map(|shed| Sheds {
            steps: shed.steps(self.stores.len()),
            positions: shed.positions(),
            go_on: go_on::<E>,
            places: None,
        });
        KvCache { sheds, ..self }
    }
}

impl<E: Engine> KvCache<E> {
    /// An empty cache that `policy` reads. The policy may come from outside this crate. It is built for
    /// [`Layers::pruned`] layers, the layers without a window. Where layers share a store, the policy must keep every
    /// token. No token can be taken back from the cache.
    pub fn with_policy(layers: &Layers, policy: Box<dyn Policy<E>>) -> Self {
        let mut pruned = 0..;
        let attention = layers.windows.iter().map(|window| match window {
            _ if !layers.causal => Attention::Whole,
            Some(window) => Attention::Window(*window),
            None => Attention::Policy(pruned.next().unwrap_or_default()),
        });
        let attention: Vec<Attention> = attention.collect();
        let store = |layer: usize| {
            let heads = layers.all_heads(layers.heads[layer]);
            let whole = vec![(0..heads.kv_heads).collect()];
            let (parts, sees) = match attention[layer] {
                Attention::Policy(index) => (policy.parts(index, heads), Sees::Latest(usize::MAX)),
                Attention::Window(window) => (whole, Sees::Latest(window)),
                Attention::Whole => (whole, Sees::All),
            };
            Store::divided(layer, heads, parts, sees, layers.soft_cap, layers.texts)
        };
        KvCache {
            stores: (0..layers.windows.len()).map(store).collect(),
            attention,
            shared: layers.shared.clone(),
            policy,
            can_roll_back: false,
            expected: Expected::default(),
            texts: layers.texts,
            before: 0,
            sheds: None,
        }
    }

    /// A copy of the cache of a plan, so that several continuations can be planned. `None` if the cache holds masks,
    /// or if the policy has no copy ([`Policy::fork`]).
    pub fn fork(&self) -> Option<Self> {
        let stores = self.stores.iter().map(Store::fork).collect::<Option<_>>()?;
        let (attention, shared, expected) = (self.attention.clone(), self.shared.clone(), self.expected.clone());
        let sheds = self.sheds.clone();
        Some(KvCache { stores, attention, shared, policy: self.policy.fork()?, expected, sheds, ..*self })
    }

    /// States, before the first token, that the public tokens of `prefix` come before each text.
    ///
    /// # Panics
    /// If tokens have come, or if `prefix` was made for other layers.
    pub fn after(&mut self, prefix: &Prefix<E::Weight>) {
        assert_eq!(self.tokens(), 0, "a cache is told before the first token what stands before it");
        assert_eq!(self.stores.len(), prefix.layers.len(), "a prefix holds rows of every store");
        self.stores.iter_mut().zip(&prefix.layers).for_each(|(store, layer)| store.set_prefix(layer.clone()));
        self.before = prefix.tokens;
    }

    /// States what text will come.
    ///
    /// # Panics
    /// If tokens have come.
    pub fn expect(&mut self, expected: Expected) {
        assert_eq!(self.tokens(), 0, "a cache is told before the first token what to expect");
        let left: Vec<Option<usize>> =
            (0..self.stores.len()).map(|layer| expected.prompt.map(|prompt| self.rows_left(layer, prompt))).collect();
        let first = self.sheds.as_ref().and_then(|sheds| sheds.steps.first()).map_or(usize::MAX, |step| step.layer);
        for (layer, (store, attention)) in self.stores.iter_mut().zip(&self.attention).enumerate() {
            if let Some(prompt) = left[layer] {
                store.expect_prompt(prompt);
            }
            // After a prefix values are mixed by probabilities, which take no wider masks in longer texts.
            if let Some(text) = expected.text.filter(|_| store.prefix().is_none()) {
                let ended = expected.prompt.zip(left[layer]).map_or(0, |(prompt, left)| prompt - left);
                store.expect_text(text - ended);
            }
            let Some(padding) = &expected.padding else { continue };
            if layer >= first {
                // It is told of padding that goes on when rows end.
                store.hide(padding.tokens.as_ref().map(|_| vec![0..0; self.texts]));
                continue;
            }
            let place = |tokens: &usize| match (attention, expected.prompt) {
                (Attention::Whole, Some(prompt)) => prompt - tokens..prompt,
                _ => 0..*tokens,
            };
            store.hide(padding.tokens.as_ref().map(|tokens| tokens.iter().map(place).collect()));
        }
        self.expected = expected;
    }

    /// The padding of the prompt, if the prompt may be padded.
    pub fn padding(&self) -> Option<&Padding> {
        self.expected.padding.as_ref()
    }

    /// The number of texts that are read side by side.
    pub fn texts(&self) -> usize {
        self.texts
    }

    /// Hides the last `tokens` tokens from all later ones. Hidden tokens stand for nothing, but keep their positions.
    /// Only the client knows how many there are and passes `Some`. Like padding, this needs the policy `full`.
    pub fn hide_last(&mut self, tokens: Option<usize>) {
        for store in &mut self.stores {
            let seen = store.seen();
            store.hide(tokens.map(|tokens| vec![seen - tokens..seen]));
        }
    }

    /// The number of tokens seen of each text. Public tokens before the text do not count.
    pub fn tokens(&self) -> usize {
        self.stores.first().map_or(0, Store::seen)
    }

    /// The position of the next token of each text.
    pub fn position(&self) -> usize {
        self.before + self.tokens()
    }

    /// The number of queries that the policy observes of the `new` tokens that come next on `layer`. These are the
    /// queries of the last of the tokens. The model computes them even where it needs only the last token's output,
    /// or none.
    pub fn observation_window(&self, layer: usize, new: usize) -> usize {
        let layer = self.store_of(layer);
        match self.attention[layer] {
            Attention::Policy(index) => self.policy.observation_window(index, self.stores[layer].next(new)).min(new),
            Attention::Window(_) | Attention::Whole => 0,
        }
    }

    /// The class of `layer`. Layers of one class cost the same, see [`Policy::layer_class`].
    pub fn layer_class(&self, layer: usize) -> usize {
        let steps = self.sheds.as_ref().map_or(&[][..], |sheds| &sheds.steps);
        let (before, votes) = (
            steps.iter().filter(|step| step.layer <= layer).count(),
            steps.iter().any(|step| step.layer == layer + 1),
        );
        let of_rows = SHED * (2 * before + usize::from(votes));
        of_rows
            + match self.attention[self.store_of(layer)] {
                Attention::Policy(index) => self.policy.layer_class(index),
                Attention::Window(window) => WINDOWED + window,
                Attention::Whole => 0,
            }
    }

    /// The operands that the engine remembers of the stored rows, layer by layer.
    pub fn operands(&mut self) -> impl Iterator<Item = &mut E::Operand> {
        let parts = self.stores.iter_mut().flat_map(|store| &mut store.parts);
        parts.flat_map(|part| [&mut part.operands.keys, &mut part.operands.values, &mut part.operands.clusters])
    }

    /// The number of tokens of the prompt that the policy wants to read at a time, see [`Policy::prefill_chunk`].
    pub fn prefill_chunk(&self) -> Option<usize> {
        self.policy.prefill_chunk()
    }

    /// Number of tokens that `layer` holds.
    pub fn held(&self, layer: usize) -> usize {
        self.stores[self.store_of(layer)].len()
    }

    /// The store of `layer`, or in a plan, which runs one layer of each class, a store that holds as much.
    fn filled(&self, layer: usize) -> Option<&Store<E>> {
        let like =
            |other: &usize| !self.stores[*other].is_empty() && self.layer_class(*other) == self.layer_class(layer);
        std::iter::once(layer).chain(0..self.stores.len()).find(like).map(|filled| &self.stores[filled])
    }

    /// The number of words of keys and values that all layers hold, of all texts.
    pub fn words(&self) -> usize {
        (0..self.stores.len()).filter_map(|layer| self.filled(layer)).map(Store::words).sum()
    }

    /// What later queries see of each store. `None` if heads of a store hold different tokens, or if a row stands for
    /// several tokens.
    pub fn rows(&self) -> Option<Vec<Held<E::Tensor>>> {
        let rows = |layer: usize| {
            let store = self.filled(layer)?;
            let [part] = store.parts() else { return None };
            let len = part.len();
            let start = match store.sees {
                Sees::Latest(window) => len.saturating_sub(window.saturating_sub(1).max(1)),
                Sees::All => 0,
            };
            let seen = |x: &E::Tensor| x.slice(0, start..len);
            part.merged().is_none().then(|| {
                let (heads, keys, values) = (store.heads(), seen(part.keys()), seen(part.values()));
                Held { heads, keys, values }
            })
        };
        (0..self.stores.len()).map(rows).collect()
    }

    /// The scores that the policy wants of every token, see [`Policy::wants_scores`].
    pub fn wants_scores(&self) -> Option<ScoreSource> {
        self.policy.wants_scores()
    }

    /// Gives the policy the scores of the tokens that come next on `layer`, (new tokens, kv_heads), if it
    /// [wants](KvCache::wants_scores) scores of the model's scoring head. The scores are always below `ceiling`.
    pub fn score(&mut self, layer: usize, scores: &E::Tensor, ceiling: Ceiling) {
        if let (Attention::Policy(index), Some(ScoreSource::ScoringHead(_))) =
            (self.attention[layer], self.policy.wants_scores())
        {
            self.policy.score(index, &beside(scores, self.texts), ceiling);
        }
    }

    /// Gives the heads of `layer` their sinks, (1, heads), before its first attention: see [`Store::sinks`].
    pub fn sinks(&mut self, layer: usize, sinks: &E::Tensor) {
        self.stores[layer].set_sinks(sinks);
    }

    /// Tells the policy the surprisal, in nats, of each token of the last pass. Called once all layers have read the
    /// pass.
    pub fn surprisals(&mut self, engine: &mut E, surprisals: &[f32]) -> Result<(), Error> {
        for (store, attention) in self.stores.iter_mut().zip(&self.attention) {
            let Attention::Policy(index) = *attention else { continue };
            let heads = store.heads().kv_heads;
            let scores = ArrayD::from_shape_fn(vec![surprisals.len(), heads], |at| surprisals[at[0]]);
            self.policy.score(index, &engine.public(&scores), Ceiling::NONE);
            self.policy.appended(engine, index, store)?;
        }
        Ok(())
    }

    /// Appends the new tokens' `k` and `v` (new tokens, kv_heads * head_dim) to `layer`, in place of
    /// [`attend`](KvCache::attend). Called if neither the model nor the policy wants the queries of these tokens.
    pub fn append(&mut self, engine: &mut E, layer: usize, k: &E::Tensor, v: &E::Tensor) -> Result<(), Error> {
        self.extend(layer, k, v);
        if let Attention::Policy(index) = self.attention[layer] {
            self.policy.appended(engine, index, &mut self.stores[layer])?;
        }
        self.leave(layer, false);
        Ok(())
    }

    /// Appends the new tokens' `k` and `v` to the store of `layer`.
    fn extend(&mut self, layer: usize, k: &E::Tensor, v: &E::Tensor) {
        self.leave(layer, true);
        self.stores[layer].append(&beside(k, self.texts), &beside(v, self.texts));
        let (tokens, texts) = (self.tokens(), self.texts);
        let Some(sheds) = &mut self.sheds else { return };
        if layer == 0 {
            sheds.places = None;
            return;
        }
        let (fresh, positions) = (self.stores[layer].fresh(), &mut self.stores[layer].positions);
        if let Some(positions) = positions {
            let latest = || vec![(tokens - fresh..tokens).collect(); texts];
            positions.stand_at(&sheds.places.clone().unwrap_or_else(latest));
        }
    }

    /// The number of rows of a prompt of `prompt` tokens that the layer `layer` computes.
    fn rows_left(&self, layer: usize, prompt: usize) -> usize {
        let steps = self.sheds.as_ref().map_or(&[][..], |sheds| &sheds.steps);
        let steps = steps.iter().take_while(|step| step.layer <= layer);
        steps.fold(prompt, |left, step| Budget::Share(step.share).of(prompt).min(left))
    }

    /// What ends before `layer` of the tokens that came last, if that layer is to see fewer rows of the prompt than
    /// the layer before it. Both parties know.
    pub fn sheds(&self, layer: usize) -> Option<Shedding> {
        let sheds = self.sheds.as_ref()?;
        let step = sheds.steps.iter().find(|step| step.layer == layer)?;
        let piece = self.stores[layer - 1].piece();
        let (all, prompt) = (piece.prompt, self.stores[0].piece().prompt);
        let target = Budget::Share(step.share).of(prompt).min(all);
        if !piece.in_prompt() || target == all {
            return None;
        }
        // Counted from the end, so that the last row of all goes on.
        let left = |end: usize| target - (target * (all - end)).div_ceil(all);
        let (from, to) = (left(piece.end - piece.new), left(piece.end));
        let causal = !matches!(self.attention[layer], Attention::Whole);
        Some(Shedding {
            cut: Cut::new(piece.new, to - from, causal),
            keep: to - from,
            position: self.before + prompt - target + from,
            own: sheds.positions == ShedPositions::Own,
        })
    }

    /// The rows of `x` (texts * rows, width) that go on to `layer`, in their order: (texts * keep, width).
    ///
    /// # Errors
    /// [`Error::NoWeights`] if the policy attends without [`attention`]; errors of the engine.
    ///
    /// # Panics
    /// If no rows end before `layer`.
    pub fn go_on(&mut self, engine: &mut E, layer: usize, x: &E::Tensor) -> Result<E::Tensor, Error> {
        let Shedding { cut, keep, .. } = self.sheds(layer).expect("rows end before this layer");
        let voters = &mut self.stores[layer - 1];
        let (p, real, whole) = (voters.take_noted(), voters.real(cut.rows), cut.whole());
        let HeadShape { heads, kv_heads, head_dim } = voters.heads();
        let one = HeadShape { heads: heads / self.texts, kv_heads: kv_heads / self.texts, head_dim };
        let tokens = self.tokens();
        let sheds = self.sheds.as_mut().expect("rows end before this layer");
        let p = p.ok_or(Error::NoWeights { layer: layer - 1 })?;
        let Gone { rows, which } = (sheds.go_on)(engine, &cut, &p, one, real.as_ref(), x)?;
        if let Some(which) = which {
            let before =
                sheds.places.take().unwrap_or_else(|| vec![(tokens - cut.rows..tokens).collect(); self.texts]);
            let of_text = |(places, which): (Vec<usize>, Vec<usize>)| which.into_iter().map(|i| places[i]).collect();
            sheds.places = Some(before.into_iter().zip(which).map(of_text).collect());
        }
        let next = sheds.steps.iter().map(|step| step.layer).find(|step| *step > layer);
        if let Some(real) = real {
            // Padding ranks last, so as much of it goes on as there is room for. It stays at its end of the text.
            let hidden = real.map(|real| {
                real.rows()
                    .into_iter()
                    .map(|row| keep.saturating_sub(row.iter().filter(|real| **real).count()))
                    .collect()
            });
            let hidden: Option<Vec<usize>> = hidden;
            for store in &mut self.stores[layer..next.unwrap_or(usize::MAX).min(self.attention.len())] {
                let seen = store.seen();
                let place = |n: &usize| if whole { seen + keep - n..seen + keep } else { seen..seen + n };
                store.hide(hidden.as_ref().map(|hidden| hidden.iter().map(place).collect()));
            }
        }
        Ok(rows)
    }

    /// Evicts from the store of `layer` the tokens that have left its window, unless tokens may be taken back.
    /// `before` says whether this call comes before the next tokens or after attention. A store that later layers
    /// read as well is cut only before the next tokens, any other store only after attention.
    fn leave(&mut self, layer: usize, before: bool) {
        if let Attention::Window(window) = self.attention[layer]
            && !self.expected.rolls_back
            && before == self.shared.contains(&layer)
        {
            window::evict(window, &mut self.stores[layer]);
        }
    }

    /// The index of the store that `layer` reads.
    fn store_of(&self, layer: usize) -> usize {
        layer.checked_sub(self.stores.len()).map_or(layer, |behind| self.shared[behind])
    }

    /// The positions of the whole text and of the public tokens before it, if their number was stated.
    pub fn text(&self) -> Option<usize> {
        self.expected.text.map(|text| self.before + text)
    }

    /// Whether tokens can be [taken back](KvCache::roll_back): the policy can take tokens back
    /// ([`PolicySpec::can_roll_back`]), and layers with windows were told to [expect](Expected::rolls_back) it.
    pub fn can_roll_back(&self) -> bool {
        let windowed = self.attention.iter().any(|attention| matches!(attention, Attention::Window(_)));
        self.can_roll_back && (self.expected.rolls_back || !windowed)
    }

    /// Whether at least `tokens` tokens have come after the prompt, so that they can be
    /// [taken back](KvCache::roll_back).
    pub fn can_lose(&self, tokens: usize) -> bool {
        self.stores.first().is_some_and(|store| store.can_lose(tokens))
    }

    /// Takes back the last `dropped` tokens, as if they had never come. The tokens came after the prompt
    /// ([`KvCache::can_lose`]), and the policy can take tokens back ([`KvCache::can_roll_back`]).
    pub fn roll_back(&mut self, dropped: usize) {
        if dropped > 0 {
            assert!(self.can_roll_back(), "the policy of this cache cannot take tokens back");
            self.stores.iter_mut().for_each(|store| store.roll_back(dropped));
        }
    }

    /// The positions to which the last query on `layer` attended, for every query head and in any order. Only an
    /// engine that [sees its values](Engine::CLEAR) knows them: for accuracy studies.
    pub fn attended(&self, layer: usize) -> Option<&[Vec<usize>]> {
        self.stores[self.store_of(layer)].attended()
    }

    /// Appends the new tokens' `k` and `v` (new tokens, kv_heads * head_dim) to `layer`, and attends with the scaled
    /// and rotated queries `q` (heads, rows, head_dim) of the last `rows` of these tokens. Returns the mixed values,
    /// (rows, heads * head_dim). If several texts are read side by side, they stand one after another in `k`, `v` and
    /// the result, and so do their heads in `q`. All texts have the same number of tokens, heads and rows.
    pub fn attend(
        &mut self,
        engine: &mut E,
        layer: usize,
        q: &E::Tensor,
        k: &E::Tensor,
        v: &E::Tensor,
    ) -> Result<E::Tensor, Error> {
        self.extend(layer, k, v);
        let mixed = self.attend_again(engine, layer, q)?;
        self.leave(layer, false);
        Ok(mixed)
    }

    /// [`attend`](KvCache::attend) on the store of an earlier layer, which has these tokens already.
    pub fn attend_again(&mut self, engine: &mut E, layer: usize, q: &E::Tensor) -> Result<E::Tensor, Error> {
        let voters = self.sheds(layer + 1).map(|sheds| sheds.cut.voters());
        let (texts, rows, layer) = (self.texts, q.shape()[1], self.store_of(layer));
        let store = &mut self.stores[layer];
        if let Some(voters) = voters {
            store.ask_for_weights(voters);
        }
        let HeadShape { heads, head_dim, .. } = store.heads();
        let mixed = match self.attention[layer] {
            Attention::Policy(index) => self.policy.attend(engine, index, q, store)?,
            Attention::Window(_) | Attention::Whole => attention::attend(engine, q, store)?,
        };
        let mixed = mixed.reshape(&[texts, heads / texts, rows, head_dim]).permute(&[0, 2, 1, 3]);
        Ok(mixed.reshape(&[texts * rows, heads / texts * head_dim]))
    }
}

/// The rows of several texts, side by side: (texts * tokens, width) text by text -> (tokens, texts * width).
fn beside<T: Tensor>(x: &T, texts: usize) -> T {
    if texts == 1 {
        return x.clone();
    }
    let (rows, width) = (x.shape()[0], x.shape()[1]);
    let by_text = x.reshape(&[texts, rows / texts, width]).permute(&[1, 0, 2]);
    by_text.reshape(&[rows / texts, texts * width])
}
