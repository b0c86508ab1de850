//! Keys and values of one layer.

use std::ops::Range;
use std::slice;
use std::sync::Arc;

use ndarray::Array2;
use waggle_engine::{Engine, Error, Precision, Product, Right, Select, Tensor};

use crate::heads::take;
use crate::part::{CachedMatrix, Part, by_head};
use crate::prefix::PrefixLayer;
use crate::recorded::Positions;
use crate::{Granularity, HeadShape, Merged, Piece};

/// log2 of a bound on keys and values where they are gathered: the `magnitude` of [`Select::gather`].
pub const KV_MAGNITUDE: u32 = 9;

/// Why a divided store has no tensor for all heads at once.
const DIVIDED: &str = "heads of a divided store hold different tokens";

/// The tokens that a query of a layer sees.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sees {
    /// This many tokens: the query's own and those right before it.
    Latest(usize),
    /// All tokens, also those after the query's own.
    All,
}

impl Sees {
    /// The range that a query sees of `tokens` tokens. The query is that of the last token before the position `end`.
    pub(crate) fn span(self, end: usize, tokens: usize) -> Range<usize> {
        match self {
            Sees::Latest(window) => end.saturating_sub(window)..end,
            Sees::All => 0..tokens,
        }
    }
}

/// Keys and values of one layer. New tokens are appended in place.
///
/// All heads hold the same tokens, unless the policy divides them into [parts](crate::Policy::parts) that hold
/// different ones. Functions that speak of *the* keys, values or tokens panic on a divided store.
pub struct Store<E: Engine> {
    pub(crate) parts: Vec<Part<E>>,
    pub(crate) sees: Sees,
    seen: usize,
    fresh: usize,
    /// Tokens of the prompt. If the number is not stated, the tokens that come first are the whole prompt.
    prompt: Option<usize>,
    /// Public tokens before the text, if there are some.
    prefix: Option<Arc<PrefixLayer<E::Weight>>>,
    pub(crate) shape: HeadShape,
    /// The number of texts that are read side by side, each with heads of its own.
    texts: usize,
    /// For each text, the ranges of tokens that stand for nothing, if there may be some. Empty where only the other
    /// party knows them.
    hidden: Option<Vec<Vec<Range<usize>>>>,
    soft_cap: Option<f32>,
    /// The sink of each query head, (kv_heads, group), if the layer has sinks.
    sinks: Option<E::Tensor>,
    pub(crate) positions: Option<Positions>,
    /// The number of the latest queries whose weights are to be noted, and these weights once they are known.
    noted: Option<(usize, Option<E::Tensor>)>,
}

impl<E: Engine> Store<E> {
    /// An empty store, of layer `layer` of the model.
    pub fn new(layer: usize, shape: HeadShape) -> Self {
        let parts = vec![(0..shape.kv_heads).collect()];
        Store::divided(layer, shape, parts, Sees::Latest(usize::MAX), None, 1)
    }

    /// An empty store that is divided into `parts`. Each part lists its key/value heads, and every head is in one
    /// part. Queries see what `sees` says. Scores are capped at `soft_cap` before a softmax. Positions are recorded
    /// if the engine sees its values.
    pub(crate) fn divided(
        layer: usize,
        shape: HeadShape,
        parts: Vec<Vec<usize>>,
        sees: Sees,
        soft_cap: Option<f32>,
        texts: usize,
    ) -> Self {
        assert!(parts.iter().all(|heads| heads.is_sorted() && !heads.is_empty()), "parts {parts:?}");
        let mut all = parts.concat();
        all.sort_unstable();
        assert!(all.into_iter().eq(0..shape.kv_heads), "parts {parts:?} of {} heads", shape.kv_heads);
        let parts = parts.into_iter().enumerate().map(|(index, heads)| Part::new(layer, index, heads, shape));
        Store {
            parts: parts.collect(),
            sees,
            seen: 0,
            fresh: 0,
            prompt: None,
            prefix: None,
            shape,
            texts,
            hidden: None,
            soft_cap,
            sinks: None,
            positions: E::CLEAR.then(|| Positions::new(shape.kv_heads)),
            noted: None,
        }
    }

    /// A copy of the store of a plan, see [`KvCache::fork`](crate::KvCache::fork).
    pub(crate) fn fork(&self) -> Option<Self> {
        let parts = self.parts.iter().map(Part::fork).collect::<Option<_>>()?;
        let (hidden, sinks, positions) = (self.hidden.clone(), self.sinks.clone(), self.positions.clone());
        Some(Store {
            parts,
            prefix: self.prefix.clone(),
            hidden,
            sinks,
            positions,
            noted: self.noted.clone(),
            ..*self
        })
    }

    /// The bound at which scores are capped before a softmax, if they are capped. Scores that rank tokens are not
    /// capped, as a cap changes no order.
    pub fn soft_cap(&self) -> Option<f32> {
        self.soft_cap
    }

    /// The sink of each query head, (kv_heads, group), if the layer has sinks: a score without a token, which is part
    /// of the sum in every softmax of the head. [`attention::softmax`](crate::attention::softmax) takes it into
    /// account.
    pub fn sinks(&self) -> Option<&E::Tensor> {
        self.sinks.as_ref()
    }

    /// Sets the sinks of the heads: `sinks` (1, heads of a text) are the same in each text.
    pub(crate) fn set_sinks(&mut self, sinks: &E::Tensor) {
        let all = E::Tensor::concat(1, &vec![sinks; self.texts]);
        self.sinks = Some(all.reshape(&[self.shape.kv_heads, self.shape.group()]));
    }

    /// States, before the first token, that public tokens come before the text.
    pub(crate) fn set_prefix(&mut self, prefix: Arc<PrefixLayer<E::Weight>>) {
        self.prefix = Some(prefix);
    }

    /// The public tokens before the text, if there are some.
    pub(crate) fn prefix(&self) -> Option<&PrefixLayer<E::Weight>> {
        self.prefix.as_deref()
    }

    /// The public tokens before the text, if one of the last `rows` queries sees some of them.
    pub(crate) fn prefix_in_view(&self, rows: usize) -> Option<Arc<PrefixLayer<E::Weight>>> {
        let in_view = match self.sees {
            Sees::Latest(window) => self.seen + 1 < window.saturating_add(rows),
            Sees::All => true,
        };
        self.prefix.clone().filter(|_| in_view)
    }

    /// The ranges that queries see of the `public` tokens before the text and of the tokens after them, where of the
    /// latter they see the ranges `seen`.
    pub(crate) fn seen_after(&self, public: usize, seen: &[Range<usize>]) -> Vec<Range<usize>> {
        seen.iter().map(|seen| self.sees.span(public + seen.end, public + seen.end)).collect()
    }

    /// The scores of `queries` (kv_heads, rows, head_dim) against the public tokens in `prefix`, for a softmax:
    /// (kv_heads, rows, tokens).
    pub(crate) fn scores_of_prefix(
        &self,
        engine: &mut E,
        prefix: &PrefixLayer<E::Weight>,
        queries: &E::Tensor,
    ) -> Result<E::Tensor, Error> {
        let queries = self.beside(queries);
        let scores = engine.scope("scores", |e| match self.soft_cap {
            None => e.linear_scores(&queries, &prefix.keys),
            Some(_) => e.linear(&queries, &prefix.keys),
        })?;
        capped(engine, self.soft_cap, self.apart(&scores))
    }

    /// The mix of the values of the public tokens in `prefix` by `weights` (kv_heads, rows, tokens): (kv_heads, rows,
    /// head_dim).
    pub(crate) fn mix_of_prefix(
        &self,
        engine: &mut E,
        prefix: &PrefixLayer<E::Weight>,
        weights: &E::Tensor,
    ) -> Result<E::Tensor, Error> {
        let mixed = engine.scope("values", |e| e.linear(&self.beside(weights), &prefix.values))?;
        Ok(self.apart(&mixed))
    }

    /// The heads of each text beside one another: (kv_heads, rows, n) -> (texts * rows, kv_heads of a text * n).
    fn beside(&self, x: &E::Tensor) -> E::Tensor {
        let (texts, heads, shape) = (self.texts, self.shape.kv_heads / self.texts, x.shape());
        let (rows, n) = (shape[1], shape[2]);
        let x = x.reshape(&[texts, heads, rows, n]).permute(&[0, 2, 1, 3]);
        x.reshape(&[texts * rows, heads * n])
    }

    /// The inverse of [`beside`](Store::beside).
    fn apart(&self, x: &E::Tensor) -> E::Tensor {
        let (texts, heads, shape) = (self.texts, self.shape.kv_heads / self.texts, x.shape());
        let (rows, n) = (shape[0] / texts, shape[1] / heads);
        let x = x.reshape(&[texts, rows, heads, n]).permute(&[0, 2, 1, 3]);
        x.reshape(&[texts * heads, rows, n])
    }

    /// Hides tokens: for each text, no query attends to the tokens of one range from now on. Only the client knows
    /// the ranges and passes `Some`.
    pub(crate) fn hide(&mut self, tokens: Option<Vec<Range<usize>>>) {
        let hidden = self.hidden.get_or_insert_default();
        let Some(tokens) = tokens else { return };
        hidden.resize(self.texts, Vec::new());
        hidden.iter_mut().zip(tokens).for_each(|(hidden, tokens)| hidden.push(tokens));
    }

    /// Whether some tokens, and so their scores, may be hidden.
    pub(crate) fn may_hide(&self) -> bool {
        self.hidden.is_some()
    }

    /// For each text, which of the latest `rows` tokens are not hidden: `None` if none may be, and `Some(None)` where
    /// only the other party knows them.
    pub(crate) fn real(&self, rows: usize) -> Option<Option<Array2<bool>>> {
        let hidden = self.hidden.as_ref()?;
        let first = self.seen - rows;
        let is_real =
            |(text, row): (usize, usize)| !hidden[text].iter().any(|tokens| tokens.contains(&(first + row)));
        Some((!hidden.is_empty()).then(|| Array2::from_shape_fn((self.texts, rows), is_real)))
    }

    /// Asks for the weights of the last `queries` queries in the attention that comes next.
    pub(crate) fn ask_for_weights(&mut self, queries: usize) {
        self.noted = Some((queries, None));
    }

    /// Whether weights were asked for.
    pub(crate) fn notes(&self) -> bool {
        self.noted.is_some()
    }

    /// Notes what was asked for of the weights of a pass, `by_part` (kv_heads, group * rows, tokens), of the tokens
    /// that are new.
    pub(crate) fn note(&mut self, by_part: &[E::Tensor]) {
        let Some((queries, _)) = &self.noted else { return };
        let (queries, group, fresh) = (*queries, self.shape.group(), self.fresh);
        let last = |p: &E::Tensor| {
            let [heads, rows, tokens] = p.shape()[..] else { panic!("weights of shape {:?}", p.shape()) };
            let last =
                p.reshape(&[heads * group, rows / group, tokens]).slice(1, rows / group - queries..rows / group);
            last.slice(2, tokens - fresh..tokens).reshape(&[heads, group * queries, fresh])
        };
        let last = by_part.iter().map(last).collect();
        let last = self.in_order(0, last);
        self.noted = Some((queries, Some(last)));
    }

    /// The weights that were asked for, (kv_heads, group * queries, new tokens).
    pub(crate) fn take_noted(&mut self) -> Option<E::Tensor> {
        self.noted.take()?.1
    }

    /// States that the prompt has `tokens` tokens. The prompt may come in pieces.
    pub(crate) fn expect_prompt(&mut self, tokens: usize) {
        self.prompt = Some(tokens);
    }

    /// States, before the first token, that the whole text has `tokens` tokens.
    pub(crate) fn expect_text(&mut self, tokens: usize) {
        self.parts.iter_mut().for_each(|part| part.expect(tokens));
    }

    /// Appends the rows of new tokens: (new tokens, kv_heads * head_dim) each. Amortised time O(new tokens).
    pub fn append(&mut self, k: &E::Tensor, v: &E::Tensor) {
        assert_eq!(k.shape(), v.shape());
        assert_eq!(k.shape()[1], self.shape.kv_heads * self.shape.head_dim);
        self.fresh = k.shape()[0];
        self.seen += self.fresh;
        self.prompt.get_or_insert(self.fresh);
        if let Some(positions) = &mut self.positions {
            positions.extend(self.seen - self.fresh, self.seen);
        }
        self.parts.iter_mut().for_each(|part| part.append(k, v));
    }

    /// Replaces all rows by those that a policy keeps when it evicts. [`Store::seen`] does not change. The policy
    /// also records which rows it kept, see [`Store::record_kept`].
    pub fn replace(&mut self, keys: E::Tensor, values: E::Tensor) {
        self.whole_mut().replace(keys, values, None);
    }

    /// Keeps the rows `rows` of the part `part`, and no others, for policies that evict by a public rule. Also
    /// records which rows it kept.
    pub fn keep_rows(&mut self, part: usize, rows: &[usize]) {
        let of = &mut self.parts[part];
        let (keys, values) = (take(of.keys(), 0, rows), take(of.values(), 0, rows));
        of.replace(keys, values, None);
        self.record_kept_by(part, rows);
    }

    /// Prepares an eviction from the part `part` that spares the first `each` tokens of the prompt and its last
    /// `each`. The first rows of the part are the guarded ones. Once the prompt has ended, the guarded rows of its
    /// end move behind those of its beginning. Returns the new order of the rows, or `None` if no row moved. The first
    /// call states the number of tokens for all evictions from the part.
    ///
    /// Until the prompt has ended, the policy itself must keep the latest `each` tokens.
    pub fn guard(&mut self, part: usize, each: usize) -> Option<Vec<usize>> {
        let piece = self.piece();
        let of = &mut self.parts[part];
        let each = *of.guarded.each.get_or_insert(each.min(piece.prompt / 2));
        let ends = of.guarded.ends;
        of.guarded.ends = if piece.end < piece.prompt { 1 } else { 2 };
        if each == 0 || ends == 2 || piece.end < piece.prompt {
            return None;
        }
        let end = of.len() - (piece.end - piece.prompt);
        let runs = [0..each, end - each..end, each..end - each, end..of.len()];
        let order: Vec<usize> = runs.into_iter().flatten().collect();
        let merged = of.merged().map(|merged| Merged { row: merged.row + each, ..merged });
        let (keys, values) = (take(of.keys(), 0, &order), take(of.values(), 0, &order));
        of.replace(keys, values, merged);
        self.record_kept_by(part, &order);
        Some(order)
    }

    /// The number of guarded rows of the part `part`, and of tokens that are guarded at each end of the prompt.
    pub(crate) fn guarded(&self, part: usize) -> (usize, usize) {
        let guarded = self.parts[part].guarded;
        (guarded.rows(), guarded.each.unwrap_or(0))
    }

    /// Replaces the rows of the part `part` by `keys` and `values`, (rows, kv_heads of the part * head_dim). The row
    /// `merged` stands for several tokens. The policy also records which rows it kept, see [`Store::record_kept_by`].
    pub fn replace_merged(&mut self, part: usize, keys: E::Tensor, values: E::Tensor, merged: Merged) {
        self.parts[part].replace(keys, values, Some(merged));
    }

    /// Whether at least `tokens` tokens have come after the prompt.
    pub(crate) fn can_lose(&self, tokens: usize) -> bool {
        self.seen >= self.prompt.unwrap_or(0).saturating_add(tokens)
    }

    /// Takes back the last `dropped` tokens, all of which came after the prompt, as if they had never come. Nothing
    /// happens in a store without tokens, which a plan may have.
    pub(crate) fn roll_back(&mut self, dropped: usize) {
        if self.is_empty() {
            return;
        }
        assert!(self.can_lose(dropped), "{dropped} tokens are taken back, more than came after the prompt");
        self.parts.iter_mut().for_each(|part| part.roll_back(dropped));
        self.seen -= dropped;
        self.fresh = self.fresh.saturating_sub(dropped);
        if let Some(positions) = &mut self.positions {
            positions.roll_back(dropped);
        }
    }

    /// The parts, in the order in which the policy names them.
    pub fn parts(&self) -> &[Part<E>] {
        &self.parts
    }

    /// The only part of a store that is not divided.
    fn whole(&self) -> &Part<E> {
        assert_eq!(self.parts.len(), 1, "{DIVIDED}");
        &self.parts[0]
    }

    fn whole_mut(&mut self) -> &mut Part<E> {
        assert_eq!(self.parts.len(), 1, "{DIVIDED}");
        &mut self.parts[0]
    }

    /// The keys, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn keys(&self) -> &E::Tensor {
        self.whole().keys()
    }

    /// The values, (tokens, kv_heads * head_dim). Panics on an empty store.
    pub fn values(&self) -> &E::Tensor {
        self.whole().values()
    }

    /// Keys and values of the tokens that were appended last, (fresh, kv_heads * head_dim) each. Works for a divided
    /// store, too.
    pub fn fresh_rows(&self) -> [E::Tensor; 2] {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let of = |rows: fn(&Part<E>) -> &E::Tensor| {
            let parts = self.parts.iter().map(|part| {
                let rows = rows(part).slice(0, part.len() - self.fresh..part.len());
                rows.reshape(&[self.fresh, part.heads().len(), head_dim])
            });
            let all = self.in_order(1, parts.collect());
            all.reshape(&[self.fresh, kv_heads * head_dim])
        };
        [of(Part::keys), of(Part::values)]
    }

    /// Joins tensors of all parts, each with an entry for each of its heads along `axis`, into one tensor with the
    /// heads in their order in the layer.
    pub fn in_order(&self, axis: usize, parts: Vec<E::Tensor>) -> E::Tensor {
        if let [one] = &parts[..] {
            return one.clone();
        }
        let heads: Vec<usize> = self.parts.iter().flat_map(|part| part.heads()).copied().collect();
        let mut places: Vec<usize> = (0..heads.len()).collect();
        places.sort_unstable_by_key(|place| heads[*place]);
        take(&E::Tensor::concat(axis, &parts.iter().collect::<Vec<_>>()), axis, &places)
    }

    /// Values by head, (kv_heads, tokens, head_dim): the right operand of the mix.
    pub fn values_by_head(&self) -> E::Tensor {
        self.whole().values_by_head()
    }

    /// The ranges of tokens that queries see among the `tokens` tokens of a part: the ranges of the last `rows`
    /// queries, once for each query head of a group. A query sees its own token and all tokens before it, as far as
    /// the layer's window reaches. In an encoder a query sees all tokens.
    pub fn spans(&self, rows: usize, tokens: usize) -> Vec<Range<usize>> {
        let ends = (0..self.shape.group()).flat_map(|_| tokens - rows + 1..=tokens);
        ends.map(|end| self.sees.span(end, tokens)).collect()
    }

    /// For each part, the scores of its queries against all its keys, for a softmax: (kv_heads, rows, head_dim) ->
    /// (kv_heads, rows, tokens), with the part's own kv_heads and tokens. The scores of hidden tokens, which are
    /// padding and tokens after the end of a text, lie below all others. The score of a row that stands for several
    /// tokens counts for all of them.
    pub fn scores_each(&mut self, engine: &mut E, queries: &[E::Tensor]) -> Result<Vec<E::Tensor>, Error> {
        // The cap of a layer needs scores in full precision.
        let precision = if self.soft_cap.is_none() { Precision::Softmax } else { Precision::Full };
        let mut keys: Vec<_> = self.parts.iter_mut().map(Part::cached_keys).collect();
        let mut scores = engine.scope("scores", |e| e.matmul_each(products(queries, &mut keys), precision))?;
        for (scores, part) in scores.iter_mut().zip(&self.parts) {
            if let Some(cap) = self.soft_cap {
                *scores = engine.scope("cap", |e| e.soft_cap(scores, cap))?;
            }
            if let Some(hidden) = &self.hidden {
                let gone = self.seen - part.len();
                let of_text = self.shape.kv_heads / self.texts;
                let is_hidden = |(head, token): (usize, usize)| {
                    let text = part.heads()[head] / of_text;
                    hidden[text].iter().any(|tokens| tokens.contains(&(gone + token)))
                };
                let dim = (part.heads().len(), part.len());
                let known = (!hidden.is_empty()).then(|| Array2::from_shape_fn(dim, is_hidden));
                *scores = engine.hide(scores, known.as_ref())?;
            }
            if let Some(merged) = part.merged() {
                let weights = engine.public(&merged.weights(&scores.shape()));
                *scores = engine.add(scores, &weights)?;
            }
        }
        Ok(scores)
    }

    /// The scores of `queries` (kv_heads, rows, head_dim) against all keys, in full precision. The store must have no
    /// hidden tokens.
    pub fn ranked_scores(&mut self, engine: &mut E, queries: &E::Tensor) -> Result<E::Tensor, Error> {
        let keys = &mut [self.whole_mut().cached_keys()];
        let product = products(slice::from_ref(queries), keys);
        Ok(engine.scope("scores", |e| e.matmul_each(product, Precision::Full))?.remove(0))
    }

    /// The mix of all values by `weights` (kv_heads, rows, tokens): (kv_heads, rows, head_dim).
    pub fn mix(&mut self, engine: &mut E, weights: &E::Tensor) -> Result<E::Tensor, Error> {
        assert_eq!(self.parts.len(), 1, "{DIVIDED}");
        Ok(self.mix_each(engine, slice::from_ref(weights))?.remove(0))
    }

    /// For each part, the mix of all its values by its tensor in `weights`: (kv_heads, rows, tokens) -> (kv_heads,
    /// rows, head_dim), with the part's own kv_heads and tokens.
    pub fn mix_each(&mut self, engine: &mut E, weights: &[E::Tensor]) -> Result<Vec<E::Tensor>, Error> {
        let values = &mut self.cached_values();
        engine.scope("values", |e| e.matmul_each(products(weights, values), Precision::Full))
    }

    /// The values of each part, as the right operands of mixes.
    pub(crate) fn cached_values(&mut self) -> Vec<CachedMatrix<'_, E>> {
        self.parts.iter_mut().map(Part::cached_values).collect()
    }

    /// Keys and values of the tokens in `range` side by side, (kv_heads, tokens, 2 head_dim).
    pub fn pairs_by_head(&self, range: Range<usize>) -> E::Tensor {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let part = |x: &E::Tensor| by_head(&x.slice(0, range.clone()), kv_heads, head_dim);
        E::Tensor::concat(2, &[&part(self.keys()), &part(self.values())])
    }

    /// [`replace`](Store::replace) by keys and values side by side, (kv_heads, tokens, 2 head_dim).
    pub fn replace_by_head(&mut self, pairs: &E::Tensor) {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let tokens = pairs.shape()[1];
        let part = |range| pairs.slice(2, range).permute(&[1, 0, 2]).reshape(&[tokens, kv_heads * head_dim]);
        self.replace(part(0..head_dim), part(head_dim..2 * head_dim));
    }

    /// The number of rows kept. In a divided store, that of the part with the most rows.
    pub fn len(&self) -> usize {
        self.parts.iter().map(Part::len).max().unwrap_or(0)
    }

    /// The number of words of keys and values.
    pub(crate) fn words(&self) -> usize {
        self.parts.iter().map(|part| 2 * part.len() * part.heads().len() * self.shape.head_dim).sum()
    }

    /// Whether no token is kept.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of tokens ever appended, which is the position of the next token.
    pub fn seen(&self) -> usize {
        self.seen
    }

    /// The number of tokens appended last.
    pub fn fresh(&self) -> usize {
        self.fresh
    }

    /// The piece of the tokens appended last.
    pub fn piece(&self) -> Piece {
        let prompt = self.prompt.unwrap_or(self.seen);
        Piece { new: self.fresh, end: self.seen, prompt, held: self.len() }
    }

    /// The piece that the next `new` tokens will be.
    pub(crate) fn next(&self, new: usize) -> Piece {
        let prompt = self.prompt.unwrap_or(self.seen + new);
        Piece { new, end: self.seen + new, prompt, held: self.len() + new }
    }

    /// Heads of the layer.
    pub fn heads(&self) -> HeadShape {
        self.shape
    }
}

impl<E: Select> Store<E> {
    /// The keys and values of the chosen clusters, side by side: (selections, chosen, size * 2 head_dim * heads per
    /// selection). The selection chooses among the clusters of `size` tokens into which the tokens in `range` are
    /// divided. Heads share selections as `select` says. From call to call `range` must begin at the same token, and
    /// `size` and `select` must be the same.
    pub fn gather(
        &mut self,
        engine: &mut E,
        selection: &E::Selection,
        range: Range<usize>,
        size: usize,
        select: Granularity,
    ) -> Result<E::Tensor, Error> {
        let HeadShape { kv_heads, head_dim, .. } = self.shape;
        let clusters = self.pairs_by_head(range.clone());
        let clusters = clusters.reshape(&[kv_heads, range.len() / size, size * 2 * head_dim]);
        let payload = select.payload(&clusters, self.shape);
        let payload = Right::Cached { tensor: &payload, operand: &mut self.whole_mut().operands.clusters };
        engine.scope("gather", |e| e.gather(selection, payload, KV_MAGNITUDE))
    }
}

/// The products of each part: its tensor in `left` times its keys or values in `right`.
fn products<'a, E: Engine>(left: &'a [E::Tensor], right: &'a mut [CachedMatrix<E>]) -> Vec<Product<'a, E>> {
    let product = |(left, right): (&'a E::Tensor, &'a mut CachedMatrix<E>)| Product {
        left,
        right: Right::Cached { tensor: &right.tensor, operand: &mut *right.operand },
    };
    left.iter().zip(right).map(product).collect()
}

/// Caps the scores at `cap`, if the layer has a cap.
pub fn capped<E: Engine>(engine: &mut E, cap: Option<f32>, scores: E::Tensor) -> Result<E::Tensor, Error> {
    match cap {
        Some(cap) => engine.scope("cap", |e| e.soft_cap(&scores, cap)),
        None => Ok(scores),
    }
}
