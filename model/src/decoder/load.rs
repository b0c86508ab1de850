//! The weights of a model, from published tensors.
//!
//! The program here differs from the programs of the models' authors in work that is done once, when a model is
//! loaded:
//!
//! - Query, key and value become one matrix, and gate and up become another. Attention and MLP in parallel share one
//!   matrix for one normalised input: two norms of the same input differ only in gains and shifts.
//! - The gain and shift of a norm before a matrix are folded into it, and the scale of scores into the queries. No
//!   matrix follows the norms of queries and keys, or the norms after attention and MLP. Their gains are products of
//!   their own, and the scale of scores is then in the queries' gains.
//! - Factors of what is added to the residual stream are folded into the matrices whose outputs are added. Factors of
//!   logits are folded into the head.
//! - The table of embeddings by layer stands beside the table of the embedding, so that both are looked up at once.
//! - Layers that read the keys and values of an earlier one come last. They compute only the wanted rows, as nothing
//!   reads the other ones.
//! - With layer norms, the mean is subtracted from everything that is added to the residual stream (embeddings,
//!   outputs of attention and MLP). The stream then has the mean 0, so that its layer norms, which would subtract the
//!   mean, become root-mean-square norms.
//! - Where a norm stands around each sum, as in encoders, the stream holds the output of the norm before its gain g
//!   and its shift. Below the next matrix whose product is added to the stream stands diag(g). Together they multiply
//!   that matrix's own input and the stream, side by side.

use std::sync::Arc;

use ndarray::Array2;
use waggle_engine::{Order, WeightData, WeightLoader, WeightSpec};
use waggle_mpcache::{HeadShape, PolicySpec};

use super::layer::Layer;
use super::{Inputs, Loaded, Model};
use crate::learned::Columns;
use crate::public::{Disclosed, ModelPart, PartsError};
use crate::rope::Rope;
use crate::spec::ModelSpec;
use crate::style::{ByLayer, Names, Positions, Style};
use crate::weights::{Builder, Known, Published};
use crate::{Checkpoint, Error};

impl<W> Model<W> {
    /// Makes `loader` prepare the weights of the model `spec`, one after another. The server passes a `checkpoint`
    /// with their values; without one the weights have no values. A checkpoint that does not fit `spec`, or that
    /// holds other tensors, is refused with the name of a tensor.
    pub fn load(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: Option<&Checkpoint>,
    ) -> Result<Self, Error> {
        Self::load_for(&PolicySpec::default(), loader, spec, checkpoint)
    }

    /// [`Model::load`] for generations under `policy`. If the policy needs learned scores, the matrices of query, key
    /// and value have a further column for every key/value head. The columns' values are read from the
    /// [`learned_file`](crate::learned_file) of the policy beside the checkpoint. A model with the columns works
    /// under every policy, but their cost is the same whether the policy needs them or not.
    ///
    /// # Errors
    /// The errors of [`Model::load`], and [`CheckpointError`](crate::CheckpointError) for a file that is missing or
    /// does not fit.
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

    /// [`Model::load_for`] for a model of which both parties have some parts, or to whose matrices the server adds an
    /// adapter. Both parties call it alike, each with the values that it knows.
    ///
    /// # Errors
    /// The errors of [`Model::load_for`], and [`PartsError`] for parts that the model does not have.
    pub fn load_disclosed(
        disclosed: &Disclosed,
        policy: &PolicySpec,
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        known: Known,
    ) -> Result<Self, Error> {
        disclosed.check(spec)?;
        let learned = policy.scoring_head();
        if learned.is_some() {
            spec.check_shared(policy.name())?;
        }
        if learned.is_some() && (0..spec.layers()).any(|layer| disclosed.parts.hold(ModelPart::Layer(layer))) {
            return Err(PartsError::Learned.into());
        }
        match known {
            Known::Nothing => {}
            Known::All(checkpoint) => checkpoint.check_all(spec)?,
            Known::Public(checkpoint) => checkpoint.check_parts(spec, &disclosed.parts)?,
        }
        let columns = match (learned, known) {
            (None, _) => Columns::None,
            (Some(name), Known::All(checkpoint)) => Columns::Known(name, checkpoint.learned(spec, name)?),
            (Some(name), Known::Nothing | Known::Public(_)) => Columns::Shape(name),
        };
        let (narrow, part) = (spec.style().quantized, ModelPart::Embedding);
        Self::build(spec, Builder { known, columns, narrow, disclosed, part, loader })
    }

    /// [`Model::load`] with a scoring head `name` whose columns are all 0, so that a real one can be fitted: a
    /// scoring head reads the output of the first norm of shape (tokens, width) that a layer computes.
    ///
    /// # Errors
    /// The errors of [`Model::load`].
    pub fn load_to_fit(
        loader: &mut dyn WeightLoader<Weight = W>,
        spec: &ModelSpec,
        checkpoint: &Checkpoint,
        name: &'static str,
    ) -> Result<Self, Error> {
        checkpoint.check_all(spec)?;
        spec.check_shared(name)?;
        let zeros = |heads: &HeadShape| Array2::zeros((spec.hidden(), heads.kv_heads));
        let columns = Columns::Known(name, spec.heads().iter().map(zeros).collect());
        let (known, narrow, part) = (Known::All(checkpoint), spec.style().quantized, ModelPart::Embedding);
        Self::build(spec, Builder { known, columns, narrow, disclosed: &Disclosed::default(), part, loader })
    }

    /// Builds all weights, in the order in which they are used.
    fn build(spec: &ModelSpec, mut builder: Builder<W>) -> Result<Self, Error> {
        let (style, b) = (spec.style(), &mut builder);
        let Names { embedding, first, positions, segments, norm, pooler, head: head_name, .. } = style.names;
        let (h, image) = (style.hidden, style.image());
        let embedding_name = format!("{embedding}.weight");
        let inputs = image.map_or(style.vocabulary, |image| image.values());
        // One lookup gives all embeddings of a token.
        let all = style.by_layer.map_or(0, |of| style.layers() * of.width);
        let embed = b.weight(&embedding_name, (inputs, h + all), |c| {
            if image.is_some() {
                return Ok(Published::linear(c, embedding, Order::Columns, true)?.residual(style.norm));
            }
            let table = Published::table(c, &embedding_name)?;
            let table = table.scale_outputs(h, style.embedding_scale.unwrap_or(1.0)).residual(style.norm);
            let Some(of) = style.by_layer else { return Ok(table) };
            // Each vector is a sum of two vectors, times the root of a half.
            let by_layer = Published::table(c, &format!("{}.weight", of.table))?;
            let by_layer = by_layer.scale_outputs(all, (of.width as f32 / 2.0).sqrt());
            Ok(Published::side_by_side(vec![table, by_layer]))
        })?;
        let mut learned = |name: &str, rows: usize| {
            let name = if image.is_some() { name.to_owned() } else { format!("{name}.weight") };
            b.weight(&name, (rows, h), |c| Ok(Published::table(c, &name)?.residual(style.norm)))
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
        let by_layer = style.by_layer.map(|of| Inputs::load(style, &of, b)).transpose()?;
        let load = |i: usize| {
            b.part = ModelPart::Layer(i);
            Layer::load(style, i, b)
        };
        let layers = (0..style.layers()).map(load).collect::<Result<_, _>>()?;
        b.part = ModelPart::Head;
        let last = style.norm_before(style.layers()).unwrap_or_else(|| norm.to_owned());
        let (pooled, masked) = (style.encoder.as_ref().and_then(|encoder| encoder.pooled), style.masked());
        let pooler = pooled.map(|_| {
            b.weight(&format!("{pooler}.weight"), (h, h), |c| {
                Published::linear(c, pooler, Order::Columns, true)?.after_norm(style.norm, c, &last)
            })
        });
        let pooler = pooler.transpose()?;
        // A tied head is a separate copy of the embedding with its own name, as the final norm is folded into it.
        let name = if style.tied { embedding } else { head_name };
        let head = b.weight(&format!("{head_name}.weight"), (h, style.outputs()), |c| {
            let head = Published::linear(c, name, Order::Columns, style.head_bias)?;
            if let Some(masked) = masked {
                return head.with_bias(c.vector(masked.bias)?).after_norm(style.norm, c, masked.norm);
            }
            let head = if pooler.is_some() { head } else { head.after_norm(style.norm, c, &last)? };
            Ok(head.scale_outputs(style.outputs(), style.logit_scale))
        })?;
        let (spec, embedding, learned) = (spec.clone(), embed, builder.columns.name());
        let loaded =
            Loaded { spec, learned, ropes, embedding, first, positions, segments, by_layer, layers, pooler, head };
        Ok(Model { loaded: Arc::new(loaded), prefix: None })
    }

    /// All weights, in the order in which they were prepared. Those of the public tokens before a text come last.
    pub fn weights(&self) -> Vec<&W> {
        let Loaded { embedding, first, positions, segments, by_layer, layers, pooler, head, .. } = &*self.loaded;
        let before = [embedding].into_iter().chain(first).chain(positions).chain(segments);
        let by_layer = by_layer.iter().flat_map(|of| [&of.projection, &of.gains]);
        let before = before.chain(by_layer).chain(layers.iter().flat_map(Layer::weights));
        let prefix = self.prefix.iter().flat_map(|prefix| prefix.weights());
        before.chain(pooler).chain([head]).chain(prefix).collect()
    }
}

impl<W> Inputs<W> {
    /// Builds the weights of the embeddings by layer. All constants are folded into them.
    fn load(style: &Style, of: &ByLayer, b: &mut Builder<W>) -> Result<Self, Error> {
        let (h, all) = (style.hidden, style.layers() * of.width);
        Ok(Inputs {
            projection: b.weight(&format!("{}.weight", of.projection), (h, all), |c| {
                let projection = Published::linear(c, of.projection, Order::Columns, false)?;
                Ok(projection.scale_outputs(all, (h as f32).sqrt().recip()))
            })?,
            gains: b.gains(&format!("{}.weight", of.norm), of.width, |c| {
                Ok(style.norm.gain(c, of.norm)? * std::f32::consts::FRAC_1_SQRT_2)
            })?,
        })
    }
}

impl ModelSpec {
    /// The weights that [`Model::load`] prepares, in its order. [`Model::load_for`] prepares the same number of
    /// weights, but some of them may be wider.
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
}

/// A loader that prepares nothing and returns the specifications of the weights.
pub(super) struct Lister;

impl WeightLoader for Lister {
    type Weight = WeightSpec;

    fn load(&mut self, spec: &WeightSpec, _: Option<WeightData>) -> Result<WeightSpec, waggle_engine::Error> {
        Ok(spec.clone())
    }
}
