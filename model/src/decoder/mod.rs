//! The program of every family: a decoder or an encoder in a [`Style`].
//!
//! It differs from the programs of the models' authors in work that is done once, when the weights are loaded:
//!
//! - Query, key and value become one matrix, gate and up another. Attention and MLP in parallel, which read one
//!   normalised input, share one matrix: two norms of one input differ in gains and shifts alone.
//! - The gain and shift of a norm before a matrix are folded into it, and the scale of scores into the queries. No
//!   matrix follows norms of queries and keys, nor norms after attention and MLP: their gains are products of their
//!   own, with the scale in the queries' gains.
//! - Factors of what is added to the residual stream are folded into the matrices that add it, those of logits
//!   into the head.
//! - The table of embeddings by layer stands beside that of the embedding: both are looked up at once.
//! - Layers that read the keys and values of an earlier one come last. They compute the wanted rows alone, as nothing
//!   reads the others.
//! - With layer norms, all that is added to the residual stream (embeddings, outputs of attention and MLP) has its
//!   mean taken away. The stream then has none, and its layer norms, which would take it away, are root-mean-square
//!   norms.
//! - Where a norm stands around each sum, as in encoders, the stream holds what the norm gives before its gain g and
//!   its shift. The matrix whose product is added to it next has diag(g) below it, and multiplies both side by side.

mod block;
mod layer;
mod matrix;
mod quota;

use ndarray::{Array2, ArrayD, IxDyn};
use waggle_engine::{Engine, LogitBits, Right, Select, Tensor, WeightData, WeightLoader, WeightSpec};
use waggle_mpcache::{HeadShape, KvCache, Layers, PolicySpec};

use self::block::Block;
use self::layer::Layer;
pub use self::quota::QUOTA_SHARE;
use crate::learned::Columns;
use crate::public::{Disclosed, ModelPart, PartsError};
use crate::rope::{Angles, Rope};
use crate::spec::ModelSpec;
use crate::style::{ByLayer, Names, Norms, Pooled, Positions, Style};
use crate::weights::{Builder, Published};
use crate::{Checkpoint, Error};

/// New tokens of one text, or of several of one length that are read side by side: how many, which is public, and
/// which, where that is known. An image's are its patches, after one that stands for the whole.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    /// The ids, text by text; only the client has them.
    pub ids: Option<&'a [u32]>,
    /// The patches of images in place of ids, one image after another, see
    /// [`ImageShape::patches`](crate::ImageShape::patches); only the client has them.
    pub patches: Option<&'a Array2<f32>>,
    /// The number of texts or images.
    pub texts: usize,
    /// The number of tokens of each.
    pub count: usize,
    /// For each text the place of the first token of a second one, which an encoder reads together with it; empty if
    /// no text has one. Only the client knows of them. Models without segments read both as one text.
    pub seconds: &'a [Option<usize>],
    /// For each text the place of the mask whose word is wanted, for models that fill one; empty for others. Only the
    /// client knows them.
    pub masks: &'a [usize],
}

impl<'a> Input<'a> {
    /// Tokens that are known.
    pub fn known(ids: &'a [u32]) -> Self {
        Input::of(Some(ids), ids.len())
    }

    /// So many tokens, which somebody else knows.
    pub fn unknown(count: usize) -> Self {
        Input::of(None, count)
    }

    /// So many tokens, on any party.
    pub fn of(ids: Option<&'a [u32]>, count: usize) -> Self {
        Input { ids, count, texts: 1, patches: None, seconds: &[], masks: &[] }
    }

    /// The tokens of `texts` texts in place of one.
    pub fn of_texts(self, texts: usize) -> Self {
        Input { texts, count: self.count / texts.max(1), ..self }
    }

    /// The patches of an image.
    pub fn image(patches: &'a Array2<f32>) -> Self {
        Input { patches: Some(patches), ..Input::unknown(patches.nrows() + 1) }
    }
}

/// Which of the new tokens' logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    /// Nobody's: the tokens are only read.
    None,
    /// The last one's, all that generation needs.
    Last,
    /// All.
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

/// The values that a party knows of the weights of a model.
#[derive(Clone, Copy)]
pub enum Known<'a> {
    /// None.
    Nothing,
    /// All of them: the server.
    All(&'a Checkpoint),
    /// Those of the public parts: the client. What else there is in the checkpoint is not read.
    Public(&'a Checkpoint),
}

/// A model whose matrices are prepared for an engine with weights `W`.
pub struct Model<W> {
    spec: ModelSpec,
    style: Style,
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

/// What makes [`ByLayer`] vectors beside the table: the matrix and the gain of its norm.
struct Inputs<W> {
    projection: W,
    gains: W,
}

impl<W> Model<W> {
    /// Has `loader` prepare the weights of the model `spec`, one after another: with the values of `checkpoint` on
    /// the server, without values where there is none. A checkpoint that does not fit `spec`, or that holds more, is
    /// refused by tensor.
    pub fn load(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        Self::load_for(&PolicySpec::default(), loader, spec, checkpoint)
    }

    /// [`Model::load`] for generations under `policy`. If it needs learned scores, the matrices that give query, key
    /// and value have a further column for every key/value head. Their values stand beside the checkpoint, in
    /// [`LEARNED_FILE`](crate::LEARNED_FILE). Such a model works under every policy, and costs as if all had asked
    /// for the columns.
    ///
    /// # Errors
    /// Those of [`Model::load`], and [`CheckpointError`](crate::CheckpointError) for a file that is missing or does
    /// not fit.
    pub fn load_for(
        policy: &PolicySpec,
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        let ranks = checkpoint.map(Checkpoint::ranks).unwrap_or_default();
        let disclosed = Disclosed { ranks, ..Disclosed::default() };
        Self::load_disclosed(&disclosed, policy, loader, spec, checkpoint.map_or(Known::Nothing, Known::All))
    }

    /// [`Model::load_for`] where both parties have some parts of the model, or the server adds something to its
    /// matrices. Both load it alike, each with what it knows.
    ///
    /// # Errors
    /// Those of [`Model::load_for`], and [`PartsError`] for parts that the model does not have.
    pub fn load_disclosed(
        disclosed: &Disclosed,
        policy: &PolicySpec,
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        known: Known,
    ) -> Result<Self, Error> {
        disclosed.check(spec)?;
        let learned = policy.needs_scoring_head();
        if learned {
            spec.check_shared(policy.name())?;
        }
        if learned && (0..spec.layers()).any(|layer| disclosed.parts.hold(ModelPart::Layer(layer))) {
            return Err(PartsError::Learned.into());
        }
        let (checkpoint, public_alone) = match known {
            Known::Nothing => (None, true),
            Known::All(checkpoint) => (Some(checkpoint), false),
            Known::Public(checkpoint) => (Some(checkpoint), true),
        };
        match known {
            Known::Nothing => {}
            Known::All(checkpoint) => checkpoint.check_all(spec)?,
            Known::Public(checkpoint) => checkpoint.check_parts(spec, &disclosed.parts)?,
        }
        let columns = match known {
            _ if !learned => Columns::None,
            Known::All(checkpoint) => Columns::Known(checkpoint.learned(spec)?),
            Known::Nothing | Known::Public(_) => Columns::Shape,
        };
        let narrow = spec.style().quantized;
        let part = ModelPart::Embedding;
        Self::build(spec, Builder { checkpoint, columns, narrow, disclosed, public_alone, part, loader })
    }

    /// [`Model::load`] with a scoring head whose columns are all 0, to fit another: of the norms of (tokens, width)
    /// that a layer computes, the first gives what a head reads.
    ///
    /// # Errors
    /// Those of [`Model::load`].
    pub fn load_to_fit(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: &Checkpoint,
    ) -> Result<Self, Error> {
        checkpoint.check_all(spec)?;
        spec.check_shared("kvzap")?;
        let zeros = |heads: &HeadShape| Array2::zeros((spec.hidden(), heads.kv_heads));
        let columns = Columns::Known(spec.heads().iter().map(zeros).collect());
        Self::build(
            spec,
            Builder {
                checkpoint: Some(checkpoint),
                columns,
                narrow: spec.style().quantized,
                disclosed: &Disclosed::default(),
                public_alone: false,
                part: ModelPart::Embedding,
                loader,
            },
        )
    }

    /// Builds all weights, in the order in which they are used.
    fn build(spec: &ModelSpec, mut builder: Builder<W>) -> Result<Self, Error> {
        let (style, b) = (spec.style(), &mut builder);
        let Names { embedding, first, positions, segments, norm, pooler, head: head_name, .. } = style.names;
        let (h, image) = (style.hidden, style.image());
        let embedding_name = format!("{embedding}.weight");
        let inputs = image.map_or(style.vocabulary, |image| image.values());
        // One lookup gives all that there is of a token.
        let all = style.by_layer.map_or(0, |of| style.layers() * of.width);
        let embed = b.weight(&embedding_name, (inputs, h + all), |c| {
            if image.is_some() {
                return Ok(style.residual(Published::linear(c, &[embedding.to_owned()], true)?));
            }
            let table = Published::stored(c, &embedding_name, None)?;
            let table = style.residual(match style.embedding_scale {
                Some(scale) => table.scale_outputs(h, scale),
                None => table,
            });
            let Some(of) = style.by_layer else { return Ok(table) };
            // The vectors are the sum of two, times the root of a half.
            let by_layer = Published::stored(c, &format!("{}.weight", of.table), None)?;
            Ok(table.beside(by_layer.scale_outputs(all, (of.width as f32 / 2.0).sqrt())))
        })?;
        let mut learned = |name: &str, rows: usize| {
            let name = if image.is_some() { name.to_owned() } else { format!("{name}.weight") };
            b.weight(&name, (rows, h), |c| Ok(style.residual(Published::stored(c, &name, None)?)))
        };
        let first = image.map(|_| learned(first, 1)).transpose()?;
        let (ropes, positions) = match &style.positions {
            Positions::Rotary(ropes) => {
                let rope = |(i, rope)| Rope::new(rope, style.turned_dim(i));
                (ropes.iter().enumerate().map(rope).collect(), None)
            }
            Positions::Learned { offset } => (Vec::new(), Some(learned(positions, style.max_positions + offset)?)),
        };
        let kinds = style.encoder.as_ref().map(|encoder| encoder.segments).filter(|kinds| *kinds > 0);
        let segments = kinds.map(|kinds| learned(segments, kinds)).transpose()?;
        let by_layer = style.by_layer.map(|of| Inputs::load(&style, &of, b)).transpose()?;
        let load = |i: usize| {
            b.part = ModelPart::Layer(i);
            Layer::load(&style, i, b)
        };
        let layers = (0..style.layers()).map(load).collect::<Result<_, _>>()?;
        b.part = ModelPart::Head;
        let last = style.norm_before(style.layers()).unwrap_or_else(|| norm.to_owned());
        let (pooled, masked) = (style.encoder.as_ref().and_then(|encoder| encoder.pooled), style.masked());
        let pooler = pooled.map(|_| {
            b.weight(&format!("{pooler}.weight"), (h, h), |c| {
                style.after_norm(c, &last, Published::linear(c, &[pooler.to_owned()], true)?)
            })
        });
        let pooler = pooler.transpose()?;
        // A tied head is a copy of its own, with a name of its own, as the final norm is folded into it.
        let name = if style.tied { embedding } else { head_name };
        let head = b.weight(&format!("{head_name}.weight"), (h, style.outputs()), |c| {
            let head = Published::linear(c, &[name.to_owned()], style.head_bias)?;
            if let Some(masked) = masked {
                return style.after_norm(c, masked.norm, head.with_bias(c.vector(masked.bias)?));
            }
            let head = if pooler.is_some() { head } else { style.after_norm(c, &last, head)? };
            Ok(head.scale_outputs(style.outputs(), style.logit_scale))
        })?;
        let (spec, embedding) = (spec.clone(), embed);
        Ok(Model { spec, ropes, embedding, first, positions, segments, by_layer, layers, pooler, head, style })
    }

    /// All weights, in the order in which they were prepared.
    pub fn weights(&self) -> Vec<&W> {
        let layers = self.layers.iter().flat_map(Layer::weights);
        let before = [&self.embedding].into_iter().chain(&self.first).chain(&self.positions).chain(&self.segments);
        let by_layer = self.by_layer.iter().flat_map(|of| [&of.projection, &of.gains]);
        let before = before.chain(by_layer);
        before.chain(layers).chain(&self.pooler).chain([&self.head]).collect()
    }

    /// The public shape.
    pub fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    /// Whether it gives learned scores of tokens, see [`Model::load_for`].
    pub fn learned(&self) -> bool {
        self.layers.iter().any(|layer| layer.scores)
    }

    /// An empty cache for one generation.
    ///
    /// # Panics
    /// If the policy has no layer to act on ([`ModelSpec::check_policy`]).
    pub fn cache<E: Select<Weight = W>>(&self, policy: &PolicySpec) -> KvCache<E> {
        self.cache_of(1, policy)
    }

    /// [`Model::cache`] for so many texts that are read side by side.
    pub(crate) fn cache_of<E: Select<Weight = W>>(&self, texts: usize, policy: &PolicySpec) -> KvCache<E> {
        KvCache::new(&Layers { texts, ..self.spec.attention() }, policy)
    }

    /// The last hidden state, normalised, of the new tokens `input`, which follow those in `cache`: (1 or count,
    /// width), or nothing with [`Rows::None`]. Of an encoder it is always one for each text, the first token's after
    /// the pooler, or the mask's.
    /// `progress` is called with the number of layers done after each.
    /// Positions must stay below [`ModelSpec::max_positions`].
    pub fn forward<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &mut KvCache<E>,
        rows: Rows,
        progress: &mut dyn FnMut(usize),
    ) -> Result<Option<E::Tensor>, waggle_engine::Error> {
        let style = &self.style;
        let mut angles: Vec<Angles> = self.ropes.iter().map(|rope| rope.of(cache, input.count)).collect();
        let mut x = engine.scope("embedding", |e| {
            let x = self.embed(e, input, cache)?;
            if style.norms == Norms::Around { e.scope("norm", |e| e.rms_norm(&x, style.eps)) } else { Ok(x) }
        })?;
        let mut inputs = None;
        if let Some(of) = &self.by_layer {
            let (h, width) = (style.hidden, x.shape()[1]);
            let looked_up = x.slice(1, h..width);
            x = x.slice(1, 0..h);
            inputs = Some(engine.scope("by layer", |e| of.of(e, style, &x, &looked_up))?);
        }
        let last = style.own_layers() - 1;
        for (index, layer) in self.layers.iter().enumerate() {
            let block = Block { style, layer, index, angles: style.turns[index].map(|rope| &angles[rope]) };
            let own = inputs
                .as_ref()
                .zip(style.by_layer)
                .map(|(inputs, ByLayer { width, .. })| inputs.slice(1, index * width..(index + 1) * width));
            // Beyond the last keys and values only the wanted rows matter.
            let is_last = index >= last;
            let wanted = match (is_last, &style.encoder) {
                (false, _) => input.count,
                (true, None) => rows.of(input.count),
                (true, Some(_)) if style.masked().is_some() => input.count,
                (true, Some(_)) => 1,
            };
            let weights = layer.weights();
            let like = waggle_engine::Layer { index, class: block.class(cache, is_last), weights: &weights };
            let out = engine.scope(&format!("layer {index}"), |e| match block.shares() {
                // Products of several layers with one operand are prepared in their order, which classes would
                // change.
                true => block.forward(e, cache, &x, own.as_ref(), wanted),
                false => e.layer(&like, |e| block.forward(e, cache, &x, own.as_ref(), wanted)),
            })?;
            progress(index + 1);
            let Some(out) = out else { return Ok(None) };
            x = out;
            if index == last && wanted < input.count {
                inputs = inputs.map(|inputs| style.rows(&inputs, cache.texts(), wanted));
                let of_text = |text| style.wanted(input.count, wanted).map(move |row| text * input.count + row);
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

    /// The row of the last layer's `x` at the mask of each text. Its place is the client's secret, so the row is the
    /// product of all rows with a row of zeros and a one that only the client knows.
    fn chosen<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let (texts, n, h) = (input.texts, input.count, self.style.hidden);
        let at = |i: IxDyn| f32::from(input.masks[i[0]] == i[2]);
        let chosen = (!input.masks.is_empty()).then(|| ArrayD::from_shape_fn(vec![texts, 1, n], at));
        engine.scope("mask", |e| {
            let one_hot = e.input(&[texts, 1, n], chosen.as_ref().map(|row| row.view()))?;
            Ok(e.matmul(&one_hot, Right::Fresh(&x.reshape(&[texts, n, h])))?.reshape(&[texts, h]))
        })
    }

    /// What the head reads of the last layer's `x`.
    fn pooled<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        x: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let function = self.style.encoder.as_ref().and_then(|encoder| encoder.pooled);
        let (Some(pooler), Some(function)) = (&self.pooler, function) else {
            return engine.scope("norm", |e| e.rms_norm(x, self.style.eps));
        };
        let x = engine.scope("pooler", |e| e.linear(x, pooler))?;
        let y = engine.scope("activation", |e| match function {
            // The cap c of scores is c tanh(x / c).
            Pooled::Tanh => e.soft_cap(&x, 1.0),
            Pooled::Relu => e.relu(&x),
            Pooled::Masked(masked) => block::activate(e, masked.activation, &x),
        })?;
        if self.style.masked().is_none() {
            return Ok(y);
        }
        // No matrix precedes this norm that could take the mean away.
        engine.scope("norm", |e| {
            let centred = centred(e, &y)?;
            e.rms_norm(&centred, self.style.eps)
        })
    }

    /// (texts * count, width). Behind an embedding stand those by layer, if there are some.
    fn embed<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        input: Input,
        cache: &KvCache<E>,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        let texts = cache.texts();
        let repeated = |rows: &E::Tensor, times: usize| match times {
            1 => rows.clone(),
            _ => E::Tensor::concat(0, &vec![rows; times]),
        };
        let tokens = match (&self.first, self.style.image()) {
            (Some(first), Some(image)) => {
                let each = image.rows() - 1;
                let shape = [texts * each, image.values()];
                let patches = engine.input(&shape, input.patches.map(|patches| patches.view().into_dyn()))?;
                let patches = engine.scope("patches", |e| e.linear(&patches, &self.embedding))?;
                let patches = patches.reshape(&[texts, each, self.style.hidden]);
                let first = repeated(&engine.rows(first, 0, 1)?, texts).reshape(&[texts, 1, self.style.hidden]);
                E::Tensor::concat(1, &[&first, &patches]).reshape(&[texts * input.count, self.style.hidden])
            }
            _ => engine.embed(&self.embedding, input.ids, texts * input.count)?,
        };
        let (Some(table), Positions::Learned { offset }) = (&self.positions, &self.style.positions) else {
            return Ok(tokens);
        };
        let position = cache.tokens();
        // Before an encoder's text there is no padding.
        let positions = match cache.padding().filter(|_| self.style.encoder.is_none()) {
            None => repeated(&engine.rows(table, position + offset, input.count)?, texts),
            // Where the text begins is the client's secret, so it looks positions up as it does words.
            Some(padding) => {
                let ids = padding.positions(position, input.count);
                let ids: Option<Vec<u32>> = ids.map(|ids| ids.iter().map(|id| id + *offset as u32).collect());
                engine.scope("positions", |e| e.embed(table, ids.as_deref(), texts * input.count))?
            }
        };
        let sum = engine.add(&tokens, &positions)?;
        let Some(segments) = &self.segments else { return Ok(sum) };
        let kinds = self.style.encoder.as_ref().map_or(0, |encoder| encoder.segments);
        let rows = if kinds > 1 {
            // Where the second text begins is the client's secret, and whether there is one.
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

    /// Logits (n, vocabulary) of hidden states (n, width) of [`Model::forward`], without a cap, which changes no
    /// order.
    pub fn logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
    ) -> Result<E::Tensor, waggle_engine::Error> {
        engine.scope("head", |e| e.linear(hidden, &self.head))
    }

    /// [`logits`](Model::logits) with `bits` fractional bits, opened to the client, which applies the cap if there is
    /// one. A cap is invertible, so uncapped logits reveal nothing more.
    pub fn reveal_logits<E: Engine<Weight = W>>(
        &self,
        engine: &mut E,
        hidden: &E::Tensor,
        bits: LogitBits,
    ) -> Result<Option<ArrayD<f32>>, waggle_engine::Error> {
        let logits = engine.scope("head", |e| e.reveal_linear(hidden, &self.head, bits))?;
        Ok(match self.style.logit_cap {
            Some(cap) => logits.map(|logits| logits.mapv(|x| cap * (x / cap).tanh())),
            None => logits,
        })
    }
}

impl ModelSpec {
    /// The weights that [`Model::load`] prepares, in its order. [`Model::load_for`] prepares as many, and some may be
    /// wider.
    pub fn weight_specs(&self) -> Vec<WeightSpec> {
        self.weight_specs_of(&Disclosed::default()).expect("without values nothing can be refused")
    }

    /// The weights that [`Model::load_disclosed`] prepares, in its order.
    ///
    /// # Errors
    /// [`PartsError`] for parts that the model does not have.
    pub fn weight_specs_of(&self, disclosed: &Disclosed) -> Result<Vec<WeightSpec>, Error> {
        let model = Model::load_disclosed(disclosed, &PolicySpec::default(), &mut Lister, self, Known::Nothing)?;
        Ok(model.weights().into_iter().cloned().collect())
    }

    /// Refuses a cache policy whose settings are for another model, or that has no layer to act on.
    pub fn check_policy(&self, policy: &PolicySpec) -> Result<(), Error> {
        let layers = self.attention();
        if self.is_encoder() && *policy != PolicySpec::default() {
            return Err(Error::Encoder { what: "a cache policy" });
        }
        if *policy != PolicySpec::default() {
            self.check_shared(policy.name())?;
        }
        if !layers.take(policy) {
            return Err(Error::WindowedPolicy(policy.to_string()));
        }
        Ok(policy.check(layers.pruned(), layers.pruned_heads())?)
    }

    /// Refuses the cache policy `policy`, which prunes, where layers read the keys and values of others.
    ///
    /// # Errors
    /// [`Error::SharedPolicy`].
    pub fn check_shared(&self, policy: &str) -> Result<(), Error> {
        match self.attention().shared.is_empty() {
            true => Ok(()),
            false => Err(Error::SharedPolicy(policy.to_owned())),
        }
    }

    /// Refuses token ids that the model does not have.
    pub fn check_ids(&self, ids: &[u32]) -> Result<(), Error> {
        let vocabulary = self.vocabulary();
        match ids.iter().find(|id| **id as usize >= vocabulary) {
            Some(&id) => Err(waggle_engine::Error::Token { id, vocabulary }.into()),
            None => Ok(()),
        }
    }
}

impl<W> Inputs<W> {
    /// Builds them. All constants are folded in.
    fn load(style: &Style, of: &ByLayer, b: &mut Builder<W>) -> Result<Self, Error> {
        let (h, all) = (style.hidden, style.layers() * of.width);
        Ok(Inputs {
            projection: b.weight(&format!("{}.weight", of.projection), (h, all), |c| {
                let projection = Published::linear(c, &[of.projection.to_owned()], false)?;
                Ok(projection.scale_outputs(all, (h as f32).sqrt().recip()))
            })?,
            gains: b.gains(&format!("{}.weight", of.norm), of.width, |c| {
                Ok(style.gain(c, of.norm)? * std::f32::consts::FRAC_1_SQRT_2)
            })?,
        })
    }

    /// The vectors of all layers side by side, (texts * count, layers * width), of the embedding `x` and what the
    /// table has of the ids.
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

/// x (rows, width) less the means of its rows.
fn centred<E: Engine>(engine: &mut E, x: &E::Tensor) -> Result<E::Tensor, waggle_engine::Error> {
    let width = x.shape()[1];
    // The sum of halves has half the entries; one entry may be over.
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

/// Loads the specifications alone.
struct Lister;

impl WeightLoader for Lister {
    type Weight = WeightSpec;

    fn load(&mut self, spec: &WeightSpec, _: Option<WeightData>) -> Result<WeightSpec, waggle_engine::Error> {
        Ok(spec.clone())
    }
}
