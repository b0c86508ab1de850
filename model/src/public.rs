//! The parts of a model that both parties have, which are called public.
//!
//! A part is public when the server names it so and the client has its tensors in a directory of its own. Nobody
//! sends these tensors. Both parties compare a digest of every public part before anything else.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::checkpoint::SCALE;
use crate::style::{Norms, Style};
use crate::{Checkpoint, CheckpointError, ModelSpec, TensorSpec};

/// The context of the hash of a part, which makes it differ from every other hash of the same bytes.
const CONTEXT: &str = "waggle public part 1";

/// A part of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPart {
    /// All tables: the embedding of words, and that of positions if there is one.
    Embedding,
    /// A layer, with its norms.
    Layer(usize),
    /// The last norm and the head.
    Head,
}

impl fmt::Display for ModelPart {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            ModelPart::Embedding => f.write_str("embedding"),
            ModelPart::Layer(layer) => write!(f, "layer {layer}"),
            ModelPart::Head => f.write_str("head"),
        }
    }
}

/// Why parts of a model cannot be public, or ranks cannot be disclosed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum PartsError {
    /// The name of a part is unknown.
    #[error("`{0}` is no part of a model: embedding, head, layers=FIRST-LAST, or all")]
    Unknown(String),
    /// The model does not have the layer.
    #[error("there is no layer {layer}: the model has {layers}, from 0 on")]
    NoLayer {
        /// The layer.
        layer: usize,
        /// The number of layers.
        layers: usize,
    },
    /// Only one of embedding and head was named, but both are one tensor.
    #[error("the head of this model is its embedding: name both as public, or neither")]
    Tied,
    /// Only some parts of an encoder were named.
    #[error("each part of an encoder has the norm of the part before it: name `all` as public, or none")]
    Encoder,
    /// A matrix does not exist, or its low-rank factors cannot have the rank.
    #[error("the layers have no matrix `{matrix}` to which rank {rank} can be added")]
    Rank {
        /// The name of the matrix in a layer.
        matrix: String,
        /// The rank.
        rank: usize,
    },
    /// A policy needs learned columns, which are the server's, in layers that are public.
    #[error(
        "cache policies with learned scores have the server's columns beside public matrices: keep layers private"
    )]
    Learned,
}

/// How a message shows `name`, which a peer may have sent.
fn shown(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_graphic()).take(64).collect()
}

/// The parts of a model that both parties have. They are written as `embedding,head,layers=0-3`, as `all`, or as the
/// empty text if there are none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Parts {
    all: bool,
    embedding: bool,
    head: bool,
    /// The first and the last layer of each run of neighbouring layers, in order.
    layers: Vec<(usize, usize)>,
}

impl Parts {
    /// Every part.
    pub fn all() -> Self {
        Parts { all: true, ..Parts::default() }
    }

    /// Whether no part is public.
    pub fn is_empty(&self) -> bool {
        *self == Parts::default()
    }

    /// Whether `part` is public.
    pub fn hold(&self, part: ModelPart) -> bool {
        self.all
            || match part {
                ModelPart::Embedding => self.embedding,
                ModelPart::Head => self.head,
                ModelPart::Layer(layer) => self.layers.iter().any(|(first, last)| (*first..=*last).contains(&layer)),
            }
    }
}

impl FromStr for Parts {
    type Err = PartsError;

    fn from_str(text: &str) -> Result<Self, PartsError> {
        let mut parts = Parts::default();
        for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            match name {
                "all" => parts.all = true,
                "embedding" => parts.embedding = true,
                "head" => parts.head = true,
                _ => {
                    let layers =
                        name.strip_prefix("layers=").map(|range| range.split_once('-').unwrap_or((range, range)));
                    let range = layers.and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
                    let unknown = || PartsError::Unknown(shown(name));
                    parts.layers.push(range.filter(|(first, last)| first <= last).ok_or_else(unknown)?);
                }
            }
        }
        parts.layers.sort_unstable();
        parts.layers.dedup_by(|next, before| {
            let joins = next.0 <= before.1.saturating_add(1);
            if joins {
                before.1 = before.1.max(next.1);
            }
            joins
        });
        Ok(if parts.all { Parts::all() } else { parts })
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let named = [(self.all, "all"), (self.embedding, "embedding"), (self.head, "head")];
        let named = named.into_iter().filter(|(is, _)| *is).map(|(_, name)| name.to_owned());
        let layers = self.layers.iter().map(|(first, last)| format!("layers={first}-{last}"));
        f.write_str(&named.chain(layers).collect::<Vec<_>>().join(","))
    }
}

impl TryFrom<String> for Parts {
    type Error = PartsError;

    fn try_from(text: String) -> Result<Self, PartsError> {
        text.parse()
    }
}

impl From<Parts> for String {
    fn from(parts: Parts) -> String {
        parts.to_string()
    }
}

/// What both parties know of a model's weights beyond its shape: the public parts, and the ranks of the adapters that
/// the server adds to the matrices of its layers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disclosed {
    /// The public parts.
    pub parts: Parts,
    /// For each published name of a matrix in a layer, such as `self_attn.q_proj`, the rank of its adapter: in every
    /// layer, the server adds a product of two thin matrices of this rank to the matrix.
    pub ranks: BTreeMap<String, usize>,
}

impl Disclosed {
    /// Whether nothing is disclosed: the whole model is the server's.
    pub fn is_nothing(&self) -> bool {
        self.parts.is_empty() && self.ranks.is_empty()
    }

    /// Public `parts`, and adapters of rank `rank` on all matrices of the layers of `spec`.
    pub fn with_rank(parts: Parts, rank: usize, spec: &ModelSpec) -> Self {
        let style = spec.style();
        let matrices = (0..style.layers()).flat_map(|layer| style.layer_matrices(layer));
        Disclosed { parts, ranks: matrices.filter(|_| rank > 0).map(|m| (m.name.to_owned(), rank)).collect() }
    }

    /// Refuses parts and matrices that the model `spec` does not have.
    ///
    /// # Errors
    /// [`PartsError`].
    pub fn check(&self, spec: &ModelSpec) -> Result<(), PartsError> {
        let (style, layers) = (spec.style(), spec.layers());
        if let Some(&(_, layer)) = self.parts.layers.iter().find(|(_, last)| *last >= layers) {
            return Err(PartsError::NoLayer { layer, layers });
        }
        let [embedding, head] = [ModelPart::Embedding, ModelPart::Head].map(|part| self.parts.hold(part));
        if style.tied && embedding != head {
            return Err(PartsError::Tied);
        }
        let whole = self.parts.all || self.parts.is_empty();
        if !whole && (style.norms == Norms::Around || style.encoder.is_some()) {
            return Err(PartsError::Encoder);
        }
        let matrices: Vec<_> = (0..layers).flat_map(|layer| style.layer_matrices(layer)).collect();
        for (name, &rank) in &self.ranks {
            let sides = matrices.iter().filter(|matrix| matrix.name == name).map(|m| m.inputs.min(m.outputs));
            if !sides.min().is_some_and(|side| (1..=side).contains(&rank)) {
                return Err(PartsError::Rank { matrix: shown(name), rank });
            }
        }
        Ok(())
    }
}

impl Style {
    /// The part that the published tensor `name` belongs to.
    fn part_of(&self, name: &str) -> ModelPart {
        let layer = name.strip_prefix(self.names.layers).and_then(|rest| rest.strip_prefix('.'));
        let layer = layer.and_then(|rest| rest.split('.').next()).and_then(|number| number.parse().ok());
        let mut looked_up = vec![self.names.embedding, self.names.positions, self.names.segments, self.names.first];
        looked_up.extend(self.by_layer.iter().flat_map(|of| [of.table, of.projection, of.norm]));
        match layer {
            Some(layer) => ModelPart::Layer(layer),
            None if looked_up.iter().any(|table| !table.is_empty() && name.starts_with(table)) => {
                ModelPart::Embedding
            }
            None => ModelPart::Head,
        }
    }
}

/// The BLAKE3 digests of the parts of a model, 64 hexadecimal digits each. A digest covers name, type, shape and
/// bytes of every tensor of the part, as published. An empty text stands for a part whose digest is not told.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartDigests {
    /// The digest of [`ModelPart::Embedding`].
    pub embedding: String,
    /// The digest of [`ModelPart::Head`]. If the head is tied to the embedding, this is the digest of the last norm
    /// alone.
    pub head: String,
    /// The digest of every [`ModelPart::Layer`].
    pub layers: Vec<String>,
}

impl PartDigests {
    /// All parts of a model of `layers` layers, with their digests.
    pub fn parts(&self) -> impl Iterator<Item = (ModelPart, &str)> {
        let layers = self.layers.iter().enumerate().map(|(layer, digest)| (ModelPart::Layer(layer), &**digest));
        [(ModelPart::Embedding, &*self.embedding), (ModelPart::Head, &*self.head)].into_iter().chain(layers)
    }

    /// The digest of `part`; empty if it is not told.
    pub fn get(&self, part: ModelPart) -> &str {
        match part {
            ModelPart::Embedding => &self.embedding,
            ModelPart::Head => &self.head,
            ModelPart::Layer(layer) => self.layers.get(layer).map_or("", |digest| digest),
        }
    }

    /// The digests of `parts` alone.
    pub fn of(mut self, parts: &Parts) -> Self {
        let told = |part, digest: &mut String| {
            if !parts.hold(part) {
                digest.clear();
            }
        };
        told(ModelPart::Embedding, &mut self.embedding);
        told(ModelPart::Head, &mut self.head);
        self.layers.iter_mut().enumerate().for_each(|(layer, digest)| told(ModelPart::Layer(layer), digest));
        self
    }

    /// Empty digests for a model of `layers` layers, if only its shape is known.
    pub fn unknown(layers: usize) -> Self {
        let digest = "0".repeat(64);
        PartDigests { embedding: digest.clone(), head: digest.clone(), layers: vec![digest; layers] }
    }
}

impl Checkpoint {
    /// Digests of all parts of the model `spec`. Reads all of its tensors.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] for a missing tensor, and [`CheckpointError::Shape`] for one of another shape.
    pub fn digests(&self, spec: &ModelSpec) -> Result<PartDigests, CheckpointError> {
        let style = spec.style();
        let layout = style.tensors();
        self.check(&layout)?;
        let parts =
            [ModelPart::Embedding, ModelPart::Head].into_iter().chain((0..style.layers()).map(ModelPart::Layer));
        let parts: Vec<ModelPart> = parts.collect();
        let digest = |part: ModelPart| {
            let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
            let tensors = layout.iter().filter(|tensor| style.part_of(&tensor.name) == part);
            tensors.for_each(|tensor| self.hash_tensor(&tensor.name, &mut hasher));
            hasher.finalize().to_hex().to_string()
        };
        let mut digests = parts.into_par_iter().map(digest).collect::<Vec<_>>().into_iter();
        let mut next = || digests.next().unwrap_or_default();
        Ok(PartDigests { embedding: next(), head: next(), layers: digests.collect() })
    }

    /// Hashes a tensor, and its scales if it has some.
    fn hash_tensor(&self, name: &str, hasher: &mut blake3::Hasher) {
        let stored = self.stored_name(name).unwrap_or(name);
        for end in ["", SCALE] {
            self.hash_all(&format!("{stored}{end}"), &format!("{name}{end}"), hasher);
        }
    }

    /// Checks only the tensors of the public `parts`, in the way in which [`Checkpoint::check_all`] checks all
    /// tensors.
    pub(crate) fn check_parts(&self, spec: &ModelSpec, parts: &Parts) -> Result<(), CheckpointError> {
        let style = spec.style();
        let tied = style.tied && parts.hold(ModelPart::Head);
        let needed = |tensor: &TensorSpec| {
            let part = style.part_of(&tensor.name);
            parts.hold(part) || tied && part == ModelPart::Embedding
        };
        let layout: Vec<TensorSpec> = style.tensors().into_iter().filter(needed).collect();
        self.check(&layout)?;
        self.check_types(&layout, style.quantized)
    }
}
