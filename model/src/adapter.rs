//! Adapters of low rank (LoRA, Hu et al., arXiv 2106.09685) as PEFT publishes them.
//!
//! A directory holds `adapter_config.json` and `adapter_model.safetensors`. The latter has two tensors for every
//! adapted matrix W, named after its module: `base_model.model.MODULE.lora_A.weight` of shape (r, inputs) and
//! `….lora_B.weight` of shape (outputs, r). The layer computes x (W + s A B), where A and B are these two tensors
//! transposed. The factor s is `lora_alpha` / r, or `lora_alpha` / sqrt(r) with `use_rslora`. The rank r is read from
//! the shapes of the two tensors, so that `r` and `rank_pattern` are not needed.
//!
//! The products with two thin matrices compute the addition: z = x A, rounded to an activation, and then z (s B),
//! which is added to x W before the sum is rounded. A layer without an adapter has zeros in place of one, so the
//! client learns no more than the largest rank of every kind of matrix.
//!
//! # Error
//! W, A and s B are rounded to fixed point as every weight is, and z to the 18 fractional bits of activations. So
//! output j differs from the output in f32 by at most the sum of
//!
//! ```text
//! the error of x W itself
//! + 2^-18 sum_k |s B_kj|                            z is rounded, between two parties by a unit
//! + 2^-17 sum_i |x_i| sum_k |s B_kj|                entries of A below 16 are rounded
//! + 2^-17 sum_k |z_k|                               entries of s B below 16 are rounded
//! ```
//!
//! Ranges are those of every linear layer: |z_k| and |x (W + s A B)_j| below 2^20.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use ndarray::{Array2, s};
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use thiserror::Error;
use waggle_engine::Order;

use crate::config::{Keys, MAX_CONFIG_BYTES, object};
use crate::style::LayerMatrix;
use crate::tensor::take;
use crate::{Checkpoint, CheckpointError, ConfigError, Error, ModelSpec, hints};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";

/// The beginning of the name of every tensor.
const PREFIX: &str = "base_model.model.";
/// The ends of the names of A and B.
const ENDS: [&str; 2] = [".lora_A.weight", ".lora_B.weight"];

/// Keys that do not change what is computed from the tensors.
const IGNORED: [&str; 20] = [
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Why an adapter cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AdapterError {
    /// A setting would change the computation in a way that is not supported.
    #[error("{CONFIG}: `{key}` = {value} is not supported ({why})")]
    Unsupported {
        /// The key.
        key: String,
        /// The value of the key.
        value: String,
        /// What is supported.
        why: &'static str,
    },
    /// The directory holds no `adapter_model.safetensors`.
    #[error("{} holds no {WEIGHTS}{hint}", dir.display())]
    NoWeights {
        /// The directory.
        dir: PathBuf,
        /// Advice on the files that the directory holds, or nothing.
        hint: &'static str,
    },
    /// A tensor adapts no matrix of a layer.
    #[error("{WEIGHTS}: `{tensor}` is no factor of a matrix in the model's layers, which alone may have adapters")]
    Unread {
        /// The name of the tensor.
        tensor: String,
    },
    /// The file holds no adapter.
    #[error("{WEIGHTS} holds no adapter")]
    Empty,
}

/// An adapter. It consists of pairs of thin matrices. The product of each pair is added to a matrix of a layer.
pub(crate) struct Adapter {
    file: Checkpoint,
    /// For each name of a matrix in a layer, the largest rank of its adapter in any layer.
    ranks: BTreeMap<String, usize>,
    /// For each layer and matrix: the names of the tensors A and B, and the factor s by which their product is
    /// multiplied.
    factors: BTreeMap<(usize, String), ([String; 2], f32)>,
}

/// The settings from which the factor s of the product A B of two thin matrices follows.
struct Scale {
    alpha: f64,
    /// The values of `alpha_pattern`, each with the end of the module names to which it applies. The first that fits
    /// counts.
    patterns: Vec<(String, f64)>,
    root: bool,
}

/// The keys of the configuration in which the order of entries matters.
#[derive(Deserialize)]
struct Patterns {
    alpha_pattern: InOrder,
}

/// Numbers by name, in the order of the file. A name that occurs twice keeps its first place and takes its last
/// number, as in Python.
struct InOrder(Vec<(String, f64)>);

impl<'de> Deserialize<'de> for InOrder {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = InOrder;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("numbers by name")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<InOrder, A::Error> {
                let mut all: Vec<(String, f64)> = Vec::new();
                while let Some((name, number)) = map.next_entry::<String, f64>()? {
                    match all.iter_mut().find(|(known, _)| *known == name) {
                        Some((_, known)) => *known = number,
                        None => all.push((name, number)),
                    }
                }
                Ok(InOrder(all))
            }
        }

        deserializer.deserialize_map(Members)
    }
}

impl Scale {
    fn of(&self, module: &str, rank: usize) -> f32 {
        let named = |name: &str| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        let alpha = self.patterns.iter().find(|(name, _)| named(name)).map_or(self.alpha, |(_, alpha)| *alpha);
        let rank = rank as f64;
        (alpha / if self.root { rank.sqrt() } else { rank }) as f32
    }
}

/// The scale that an adapter's configuration states: `text`, which was parsed into `keys`. `conv1d` says whether the
/// model's matrices are published as (inputs, outputs). Settings that are not supported are refused.
fn scale(text: &[u8], keys: &Keys, conv1d: bool) -> Result<Scale, Error> {
    let refused = |key: &str, value: &Value, why| {
        let value: String = value.to_string().chars().take(64).collect();
        Err(AdapterError::Unsupported { key: key.into(), value, why }.into())
    };
    let (mut alpha, mut root, mut patterns) = (None, false, Vec::new());
    for (key, value) in keys.0 {
        let nothing = match value {
            Value::Null | Value::Bool(false) => true,
            Value::Array(list) => list.is_empty(),
            Value::Object(keys) => keys.is_empty(),
            _ => false,
        };
        match &**key {
            "peft_type" if value != "LORA" => return refused(key, value, "LORA alone"),
            "bias" if value != "none" => return refused(key, value, "none alone"),
            "fan_in_fan_out" if *value == Value::Bool(true) && !conv1d => {
                return refused(key, value, "the model's matrices are published as (outputs, inputs)");
            }
            "init_lora_weights" => match value {
                Value::String(how) if !["gaussian", "eva", "orthogonal"].contains(&&**how) => {
                    return refused(key, value, "it changes the base as well");
                }
                _ => {}
            },
            "lora_alpha" => alpha = keys.number(key)?,
            "use_rslora" => root = keys.flag(key)?.unwrap_or(false),
            "alpha_pattern" if !nothing => {
                let is_plain = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c));
                match serde_json::from_slice::<Patterns>(text) {
                    Ok(Patterns { alpha_pattern: InOrder(named) })
                        if named.iter().all(|(name, _)| is_plain(name)) =>
                    {
                        patterns = named;
                    }
                    _ => return refused(key, value, "numbers by the ends of modules' names"),
                }
            }
            // Ranks are read from the tensors.
            "peft_type" | "bias" | "rank_pattern" => {}
            known if IGNORED.contains(&known) => {}
            _ if nothing => {}
            _ => return refused(key, value, "only a LoRA that is added to the matrices of the layers is"),
        }
    }
    match alpha {
        Some(alpha) => Ok(Scale { alpha, patterns, root }),
        None => refused("lora_alpha", &Value::Null, "a number"),
    }
}

impl Adapter {
    /// Opens the directory `dir` of an adapter for the model `spec`.
    fn open(dir: &Path, spec: &ModelSpec) -> Result<Self, Error> {
        let path = dir.join(CONFIG);
        let text = match waggle_files::read(&path, MAX_CONFIG_BYTES) {
            Ok(text) => text,
            Err(source) => return Err(Error::File { path, source }),
        };
        let keys = object(&text).map_err(|error| match error {
            ConfigError::Json(what) => CheckpointError::Malformed { file: path.display().to_string(), what }.into(),
            other => Error::from(other),
        })?;
        let weights = dir.join(WEIGHTS);
        if !weights.exists() {
            return Err(AdapterError::NoWeights { dir: dir.to_owned(), hint: hints::of_adapter(dir) }.into());
        }
        let mut file = Checkpoint::empty();
        file.add_file(&weights)?;
        let style = spec.style();
        let scale = scale(&text, &Keys(&keys), style.names.order == Order::Rows)?;
        let (mut ranks, mut factors) = (BTreeMap::new(), BTreeMap::new());
        let mut tensors: Vec<String> = file.tensors().map(|(name, _)| name.to_owned()).collect();
        tensors.sort();
        for tensor in tensors {
            let unread = || AdapterError::Unread { tensor: tensor.clone() };
            let module = tensor.strip_prefix(PREFIX).ok_or_else(unread)?;
            if let Some(module) = module.strip_suffix(ENDS[1]) {
                // A tensor B must come with its A.
                file.numbers(&format!("{PREFIX}{module}{}", ENDS[0]))?;
                continue;
            }
            let module = module.strip_suffix(ENDS[0]).ok_or_else(unread)?;
            let (layer, matrix) = style.module(module).ok_or_else(unread)?;
            let names = ENDS.map(|end| format!("{PREFIX}{module}{end}"));
            let rank = file.numbers(&names[0])?.0.first().copied().unwrap_or_default();
            for (name, shape) in names.iter().zip([[rank, matrix.inputs], [matrix.outputs, rank]]) {
                let got = file.numbers(name)?.0;
                if got != shape || rank == 0 {
                    let (tensor, expected, got) = (name.clone(), shape.to_vec(), got.to_vec());
                    return Err(CheckpointError::Shape { tensor, expected, got }.into());
                }
            }
            let most = ranks.entry(matrix.name.to_owned()).or_insert(rank);
            *most = rank.max(*most);
            factors.insert((layer, matrix.name.to_owned()), (names, scale.of(module, rank)));
        }
        if factors.is_empty() { Err(AdapterError::Empty.into()) } else { Ok(Adapter { file, ranks, factors }) }
    }

    /// Hashes enough of the adapter to tell it from another one.
    pub(crate) fn sample(&self, hasher: &mut blake3::Hasher) {
        self.file.sample(hasher);
        take(hasher, format!("{:?}", self.factors).as_bytes());
    }

    /// The factors A (inputs, rank) and s B (rank, outputs) of `matrix` in layer `layer`, filled up with zeros to the
    /// rank `rank`.
    pub(crate) fn factors(
        &self,
        layer: usize,
        matrix: &LayerMatrix,
        rank: usize,
    ) -> Result<[Array2<f32>; 2], CheckpointError> {
        let mut a = Array2::zeros((matrix.inputs, rank));
        let mut b = Array2::zeros((rank, matrix.outputs));
        if let Some((names, scale)) = self.factors.get(&(layer, matrix.name.to_owned())) {
            let (first, second) = (self.file.matrix(&names[0])?, self.file.matrix(&names[1])?);
            let own = first.nrows().min(rank);
            a.slice_mut(s![.., ..own]).assign(&first.slice(s![..own, ..]).t());
            b.slice_mut(s![..own, ..]).assign(&(&second.slice(s![.., ..own]).t() * *scale));
        }
        Ok([a, b])
    }
}

impl Checkpoint {
    /// This checkpoint of the model `spec`, with the adapter in the directory `dir`.
    ///
    /// # Errors
    /// [`AdapterError`] for an adapter that is not a LoRA of matrices in the model's layers, and the errors of
    /// reading its files.
    pub fn with_adapter(mut self, dir: &Path, spec: &ModelSpec) -> Result<Self, Error> {
        self.adapter = Some(Box::new(Adapter::open(dir, spec)?));
        Ok(self)
    }

    /// For each name of a matrix in a layer, the largest rank of its adapter in any layer. Public.
    pub fn ranks(&self) -> BTreeMap<String, usize> {
        self.adapter.as_ref().map(|adapter| adapter.ranks.clone()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_pattern_of_the_file_that_fits_counts() {
        let of = |patterns: &str| {
            let text = format!(r#"{{"lora_alpha": 8, "alpha_pattern": {{{patterns}}}}}"#);
            let keys = object(text.as_bytes()).unwrap();
            let scale = scale(text.as_bytes(), &Keys(&keys), false)?;
            Ok::<_, Error>(
                ["model.layers.1.self_attn.q_proj", "model.layers.0.self_attn.q_proj", "my_q_proj"]
                    .map(|module| scale.of(module, 4)),
            )
        };
        let (all, one) = (r#""q_proj": 40"#, r#""layers.1.self_attn.q_proj": 1"#);
        assert_eq!(of(&format!("{all}, {one}")).unwrap(), [10.0, 10.0, 2.0]);
        assert_eq!(of(&format!("{one}, {all}")).unwrap(), [0.25, 10.0, 2.0]);
        // A name that occurs twice keeps its first place and its last number.
        assert_eq!(of(&format!(r#"{all}, {one}, "q_proj": 4"#)).unwrap(), [1.0, 1.0, 2.0]);
        for wrong in [r#""q_proj": "4""#, r#""^q_proj": 4"#] {
            assert!(of(wrong).is_err_and(|error| error.to_string().contains("alpha_pattern")), "{wrong}");
        }
        let text = br#"{"lora_alpha": 8, "alpha_pattern": ["q_proj"]}"#;
        assert!(scale(text, &Keys(&object(text).unwrap()), false).is_err());
    }
}
