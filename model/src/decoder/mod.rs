//! The program that computes models of every family: a decoder or an encoder, as a [`Style`] describes it.

mod block;
mod layer;
mod load;
mod quota;
mod recipe;

use std::sync::Arc;

use ndarray::{Array2, ArrayD, IxDyn};
use waggle_engine::{Engine, LogitBits, Right, Select, Tensor};
use waggle_mpcache::{KvCache, Layers, Policy, PolicySpec, Prefix, ScoreSource, Shedding};

use self::block::Block;
use self::layer::Layer;
pub use self::quota::QUOTA_SHARE;
use crate::Error;
use crate::rope::{Angles, Rope};
use crate::spec::ModelSpec;
use crate::style::{ByLayer, Norms, Pooled, Positions, Style};

/// New tokens of one text, or of several texts of one length that are read side by side. Their number is public.
/// Which tokens they are is known to the client alone. The tokens of an image are one for the whole image, and then
/// its patches.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The ids, text by text. `None` except on the client.
    pub ids: Option<&'a [u32]>,
    /// The patches of images in place of ids, one image after another, see
    /// [`ImageShape::patches`](crate::ImageShape::patches). `None` except on the client.
    pub patches: Option<&'a Array2<f32>>,
    /// The number of texts or images.
    pub texts: usize,
    /// The number of tokens of each text.
    pub count: usize,
    /// For each text, the place of the first token of a second text, which an encoder reads together with the first.
    /// Empty if no text has a second one. Only the client knows the places. Models without segments read both as one
    /// text.
    pub seconds: &'a [Option<usize>],
    /// For each text, the place of the mask whose word is wanted. Empty for models that do not fill a mask. Only the
    /// client knows the places.
    pub masks: &'a [usize],
}

impl<'a> Input<'a> {
    /// The tokens `ids` of a single text.
    pub fn known(ids: &'a [u32]) -> Self {
        Input::of(Some(ids), ids.len())
    }

    /// `count` tokens of a single text, which the other party knows.
    pub fn unknown(count: usize) -> Self {
        Input::of(None, count)
    }

    /// `count` tokens of a single text, with their ids if this party knows them.
    pub fn of(ids: Option<&'a [u32]>, count: usize) -> Self {
        Input { ids, count, texts: 1, patches: None, seconds: &[], masks: &[] }
    }

    /// The same tokens, read as those of `texts` texts of one length.
    pub fn of_texts(self, texts: usize) -> Self {
        Input { texts, count: self.count / texts.max(1), ..self }
    }

    /// The tokens of an image, from its patches.
    pub fn image(patches: &'a Array2<f32>) -> Self {
        Input { patches: Some(patches), ..Input::unknown(patches.nrows() + 1) }
    }
}

/// The new tokens whose last hidden states are wanted. Logits are computed from these states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// No token's: the tokens are only read.
    None,
    /// The last token's, which is all that generation needs.
    Last,
    /// All tokens'.
    All,
}

impl Rows {
    pub(crate) fn of(self, count: usize) -> usize {
        match self {
            Rows::None => 0,
            Rows::Last => 1,
            Rows::All => count,
        }
    }
}

/// A model whose matrices are prepared for an engine with weights `W`, and the public tokens before its texts, if
/// there are some.
pub struct Model<W> {
    loaded: Arc<Loaded<W>>,
    prefix: Option<Arc<Prefix<W>>>,
}

impl<W> Clone for Model<W> {
    /// The same weights, not a copy of them.
    fn clone(&self) -> Self {
        Model { loaded: self.loaded.clone(), prefix: self.prefix.clone() }
    }
}

/// The prepared weights of a model.
struct Loaded<W> {
    spec: ModelSpec,
    /// The name of the scoring head.
    learned: Option<&'static str>,
    ropes: Vec<Rope>,
    embedding: W,
    first: Option<W>,
    positions: Option<W>,
    segments: Option<W>,
    by_layer: Option<Inputs<W>>,
    layers: Vec<Layer<W>>,
    pooler: Option<W>,
    head: W,
}

/// The weights that turn an embedding into [`ByLayer`] vectors: the matrix, and the gain of its norm.
struct Inputs<W> {
    projection: W,
    gains: W,
}

impl<W> Model<W> {
    /// The public shape.
    pub fn spec(&self) -> ModelSpec {
        self.loaded.spec.clone()
    }

    /// The name of the model's scoring head, if it gives learned scores of tokens: see [`Model::load_for`].
    pub fn scoring_head(&self) -> Option<&'static str> {
        self.loaded.learned
    }

    /// Refuses a cache whose policy ranks tokens by the scores of a head that the model does not have.
    pub(crate) fn check_scores<E: Engine<Weight = W>>(&self, cache: &KvCache<E>) -> Result<(), Error> {
        match (cache.wants_scores(), self.scoring_head()) {
            (Some(ScoreSource::ScoringHead(wanted)), loaded) if loaded != Some(wanted) => {
                Err(Error::NotLearned { wanted, loaded })
            }
            _ => Ok(()),
        }
    }

    /// The same model with every text behind the public tokens of `prefix`. It shares the weights.
    pub fn after(&self, prefix: Arc<Prefix<W>>) -> Self {
        Model { loaded: self.loaded.clone(), prefix: Some(prefix) }
    }

    /// The number of public tokens before each text.
    pub fn public_tokens(&self) -> usize {
        self.prefix.as_ref().map_or(0, |prefix| prefix.tokens())
    }

    /// An empty cache for one generation.
    ///
    /// # Panics
    /// If the policy has no layer to act on ([`ModelSpec::check_policy`]).
    pub fn cache<E: Select<Weight = W>>(&self, policy: &PolicySpec) -> KvCache<E> {
        self.cache_of(1, policy)
    }

    /// [`Model::cache`] for `texts` texts that are read side by side.
    pub(crate) fn cache_of<E: Select<Weight = W>>(&self, texts: usize, policy: &PolicySpec) -> KvCache<E> {
        self.with_prefix(KvCache::new(&Layers { texts, ..self.loaded.spec.attention() }, policy))
    }

    /// [`Model::cache`] for a policy that has no name.
    pub fn cache_with<E: Select<Weight = W>>(&self, policy: Box<dyn Policy<E>>) -> KvCache<E> {
        self.with_prefix(KvCache::with_policy(&self.loaded.spec.attention(), policy))
    }

    fn with_prefix<E: Select<Weight = W>>(&self, mut cache: KvCache<E>) -> KvCache<E> {
        self.prefix.iter().for_each(|prefix| cache.after(prefix));
        cache
    }

    /// The last hidden states, normalised, of the new tokens `input`, which follow those in `cache`: (1 or count,
    /// width) for each text, or `None` with [`Rows::None`]. An encoder always gives one state for each text: that of
    /// the first token after the pooler, or that of the mask. After each layer, `progress` is called with the number
    /// of layers that are done. Positions must stay below [`ModelSpec::max_positions`].
    pub fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &mut KvCache<E>,
        rows: Rows,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Option<E::Tensor>, waggle_engine::Error> {
        let style = self.loaded.spec.style();
        let mut count = input.count;
        let turned = |cache: &KvCache<E>, start, count| -> Vec<Angles<E::Tensor>> {
            self.loaded.ropes.iter().map(|rope| rope.of(cache, start, count)).collect()
        };
        let mut angles = turned(cache, cache.position(), count);
        let mut x = engine.scope("embedding", |e| {
            let x = self.embed(e, input, cache)?;
            if style.norms == Norms::Around { e.scope("norm", |e| e.rms_norm(&x, style.eps)) } else { Ok(x) }
        })?;
        let mut inputs = None;
        if let Some(of) = &self.loaded.by_layer {
            let (h, width) = (style.hidden, x.shape()[1]);
            let looked_up = x.slice(1, h..width);
            x = x.slice(1, 0..h);
            inputs = Some(engine.scope("by layer", |e| of.of(e, style, &x, &looked_up))?);
        }
        let last = style.own_layers() - 1;
        for (index, layer) in self.loaded.layers.iter().enumerate() {
            if let Some(Shedding { keep, position, own, .. }) = cache.sheds(index) {
                if keep == 0 {
                    (index..self.loaded.layers.len()).for_each(|layer| progress(layer + 1));
                    return Ok(None);
                }
                let mut parts = vec![x];
                parts.extend(inputs.take());
                if own {
                    parts.extend(angles.iter().map(|angles| angles.shared(engine)));
                }
                let all = E::Tensor::concat(1, &parts.iter().collect::<Vec<_>>());
                let all = engine.scope("shed", |e| cache.go_on(e, index, &all))?;
                let mut start = 0;
                let mut gone = parts.iter().map(|part| {
                    let from = start;
                    start += part.shape()[1];
                    all.slice(1, from..start)
                });
                x = gone.next().expect("the residual stream");
                if self.loaded.by_layer.is_some() {
                    inputs = gone.next();
                }
                angles = match own {
                    true => angles.iter().zip(gone).map(|(angles, gone)| angles.moved(gone)).collect(),
                    false => turned(cache, position, keep),
                };
                count = keep;
            }
            let block = Block { style, layer, index, angles: style.turns[index].map(|rope| &angles[rope]) };
            let own = inputs
                .as_ref()
                .zip(style.by_layer)
                .map(|(inputs, ByLayer { width, .. })| inputs.slice(1, index * width..(index + 1) * width));
            // Behind the last layer with keys and values only the wanted rows matter.
            let is_last = index >= last;
            let wanted = match (is_last, &style.encoder) {
                (false, _) => count,
                (true, None) => rows.of(count),
                (true, Some(_)) if style.masked().is_some() => count,
                (true, Some(_)) => 1,
            };
            let prefix = self.prefix.iter();
            let weights: Vec<&W> =
                layer.weights().into_iter().chain(prefix.flat_map(|prefix| prefix.weights_of(index))).collect();
            let like = waggle_engine::Layer { index, class: block.class(cache, is_last), weights: &weights };
            let out = engine.scope(&format!("layer {index}"), |e| match block.shares() {
                // Products of several layers with the same operand are prepared in the order of the layers. Classes
                // would change this order.
                true => block.forward(e, cache, &x, own.as_ref(), wanted),
                false => e.layer(&like, |e| block.forward(e, cache, &x, own.as_ref(), wanted)),
            })?;
            progress(index + 1);
            let Some(out) = out else { return Ok(None) };
            x = out;
            if index == last && wanted < count {
                inputs = inputs.map(|inputs| style.rows(&inputs, cache.texts(), wanted));
                let of_text = |text| style.wanted(count, wanted).map(move |row| text * count + row);
                let rows: Vec<usize> = (0..cache.texts()).flat_map(of_text).collect();
                angles.iter_mut().for_each(|angles| *angles = angles.of_rows(&rows));
            }
        }
        engine
            .scope("head", |e| {
                let x = if style.masked().is_some() { self.chosen(e, input, &x)? } else { x };
                self.pooled(e, &x)
            })
            .map(Some)
    }

    /// For each text, the row of the last layer's output `x` at the mask. The place of the mask is the client's
    /// secret. So all rows are multiplied by a one-hot row that only the client knows.
    fn chosen<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let (texts, n, h) = (input.texts, input.count, self.loaded.spec.style().hidden);
        let at = |i: IxDyn| f32::from(input.masks[i[0]] == i[2]);
        let chosen = (!input.masks.is_empty()).then(|| ArrayD::from_shape_fn(vec![texts, 1, n], at));
        engine.scope("mask", |e| {
            let one_hot = e.input(&[texts, 1, n], chosen.as_ref().map(|row| row.view()))?;
            Ok(e.matmul(&one_hot, Right::Fresh(&x.reshape(&[texts, n, h])))?.reshape(&[texts, h]))
        })
    }

    /// The vectors that the head reads, computed from the last layer's output `x`.
    fn pooled<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let function = self.loaded.spec.style().encoder.as_ref().and_then(|encoder| encoder.pooled);
        let (Some(pooler), Some(function)) = (&self.loaded.pooler, function) else {
            return engine.scope("norm", |e| e.rms_norm(x, self.loaded.spec.style().eps));
        };
        let x = engine.scope("pooler", |e| e.linear(x, pooler))?;
        let y = engine.scope("activation", |e| match function {
            // A soft cap at c computes c tanh(x / c), so a cap at 1 is tanh.
            Pooled::Tanh => e.soft_cap(&x, 1.0),
            Pooled::Relu => e.relu(&x),
            Pooled::Masked(masked) => block::activate(e, masked.activation, &x),
        })?;
        if self.loaded.spec.style().masked().is_none() {
            return Ok(y);
        }
        // No matrix before this norm could subtract the mean.
        engine.scope("norm", |e| {
            let centred = centred(e, &y)?;
            e.rms_norm(&centred, self.loaded.spec.style().eps)
        })
    }

    /// The embeddings (texts * count, width) of the new tokens. If the model has embeddings by layer, those stand in
    /// further columns.
    fn embed<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &KvCache<E>,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let (texts, style) = (cache.texts(), self.loaded.spec.style());
        let repeated = |rows: &E::Tensor, times: usize| match times {
            1 => rows.clone(),
            _ => E::Tensor::concat(0, &vec![rows; times]),
        };
        let tokens = match (&self.loaded.first, style.image()) {
            (Some(first), Some(image)) => {
                let each = image.rows() - 1;
                let shape = [texts * each, image.values()];
                let patches = engine.input(&shape, input.patches.map(|patches| patches.view().into_dyn()))?;
                let patches = engine.scope("patches", |e| e.linear(&patches, &self.loaded.embedding))?;
                let patches = patches.reshape(&[texts, each, style.hidden]);
                let first = repeated(&engine.rows(first, 0, 1)?, texts).reshape(&[texts, 1, style.hidden]);
                E::Tensor::concat(1, &[&first, &patches]).reshape(&[texts * input.count, style.hidden])
            }
            _ => engine.embed(&self.loaded.embedding, input.ids, texts * input.count)?,
        };
        let (Some(table), Positions::Learned { offset }) = (&self.loaded.positions, &style.positions) else {
            return Ok(tokens);
        };
        let position = cache.position();
        // An encoder's padding stands behind its text and does not move positions.
        let positions = match cache.padding().filter(|_| style.encoder.is_none()) {
            None => repeated(&engine.rows(table, position + offset, input.count)?, texts),
            // Where the text begins is the client's secret, so positions are looked up obliviously, like words.
            Some(padding) => {
                let ids = padding.positions(position, input.count);
                let ids: Option<Vec<u32>> = ids.map(|ids| ids.iter().map(|id| id + *offset as u32).collect());
                engine.scope("positions", |e| e.embed(table, ids.as_deref(), texts * input.count))?
            }
        };
        let sum = engine.add(&tokens, &positions)?;
        let Some(segments) = &self.loaded.segments else { return Ok(sum) };
        let kinds = style.encoder.as_ref().map_or(0, |encoder| encoder.segments);
        let rows = if kinds > 1 {
            // Whether there is a second text, and where it begins, is the client's secret.
            let begins = |text: usize| input.seconds.get(text).copied().flatten().unwrap_or(input.count);
            let kind = |(text, token): (usize, usize)| u32::from(token >= begins(text));
            let ids =
                input.ids.map(|_| Array2::from_shape_fn((texts, input.count), kind).into_raw_vec_and_offset().0);
            engine.scope("segments", |e| e.embed(segments, ids.as_deref(), texts * input.count))?
        } else {
            repeated(&engine.rows(segments, 0, 1)?, texts * input.count)
        };
        engine.add(&sum, &rows)
    }

    /// Logits (n, vocabulary) of hidden states (n, width) from [`Model::forward`]. They are not capped, as a cap does
    /// not change their order.
    pub fn logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        engine.scope("head", |e| e.linear(hidden, &self.loaded.head))
    }

    /// [`logits`](Model::logits) with `bits` fractional bits, opened to the client, which applies the model's cap if
    /// it has one. A cap is invertible, so uncapped logits reveal no more than capped ones.
    pub fn reveal_logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
        bits: LogitBits,
    ) -> Result<Option<ArrayD<f32>>, waggle_engine::Error> {
        let logits = engine.scope("head", |e| e.reveal_linear(hidden, &self.loaded.head, bits))?;
        Ok(match self.loaded.spec.style().logit_cap {
            Some(cap) => logits.map(|logits| logits.mapv(|x| cap * (x / cap).tanh())),
            None => logits,
        })
    }
}

impl<W> Inputs<W> {
    /// The vectors of all layers side by side, (texts * count, layers * width), from the embedding `x` and the
    /// entries of the ids in the table.
    fn of<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        style: &Style,
        x: &E::Tensor,
        looked_up: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let rows = x.shape()[0];
        let made = engine.scope("projection", |e| e.linear(x, &self.projection))?;
        let (shape, layers) = (made.shape(), style.layers());
        let made = made.reshape(&[rows * layers, shape[1] / layers]);
        let made = engine.scope("norm", |e| {
            let normed = e.rms_norm(&made, style.eps)?;
            block::gain(e, &normed, &self.gains)
        })?;
        engine.add(&made.reshape(&shape), looked_up)
    }
}

/// `x` (rows, width), with the mean of each row subtracted from that row.
fn centred<E: Engine>(engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error> {
    let width = x.shape()[1];
    // The sum of the two halves of a row has half as many entries. One entry may be left over.
    let (mut sum, mut over) = (x.clone(), Vec::new());
    while sum.shape()[1] > 1 {
        let entries = sum.shape()[1];
        let half = entries / 2;
        if entries % 2 == 1 {
            over.push(sum.slice(1, entries - 1..entries));
        }
        sum = engine.add(&sum.slice(1, 0..half), &sum.slice(1, half..2 * half))?;
    }
    for entry in &over {
        sum = engine.add(&sum, entry)?;
    }
    let mean = engine.scale(&sum, -(width as f32).recip())?;
    engine.add(x, &E::Tensor::concat(1, &vec![&mean; width]))
}
