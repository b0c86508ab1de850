//! compressed-tensors: the files that LLM Compressor writes.
//!
//! `int-quantized`, `float-quantized` and `naive-quantized` have a byte for each entry in `weight` (I8 or F8_E4M3).
//! `weight_scale` has one scale for the matrix, or one for every output, group or block, and `weight_zero_point` may
//! have a zero beside each scale: the integer that stands for 0. `pack-quantized` has integers of 4 or 8 bits in
//! `weight_packed` (I32), where neighbours of a row share a word, with scales of (outputs, groups). Its zeros are
//! packed, too, but there neighbours of a column share a word. Packed integers are stored with half their range
//! added. A group of matrices may have a format of its own. The tensors of a matrix show whether it is packed.

use std::sync::Arc;

use safetensors::Dtype;

use super::bytes::Blocks;
use super::integers::{Axis, Grouped, Groups, Integers, Zeros};
use super::{Form, Packed, Parts, bits, block, group_size, refused};
use crate::CheckpointError;
use crate::config::{ConfigError, Keys};

/// The schemes of a configuration: at most one for packed matrices, and at most one for matrices of bytes. Without
/// either, only the cache is in few bits.
#[derive(Debug, Default)]
struct Schemes {
    packed: Option<Scheme>,
    bytes: Option<Scheme>,
}

/// How the matrices of a scheme are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Packed { bits: u32, group_size: Option<usize> },
    Bytes { dtype: Dtype, block: Option<[usize; 2]> },
}

pub(super) fn read(keys: &Keys) -> Result<Box<dyn Form>, ConfigError> {
    // These keys mean a rotation between layers, or integers of which some are left out.
    for key in ["transform_config", "sparsity_config"] {
        let is_empty = |format: &serde_json::Value| format.as_object().is_some_and(serde_json::Map::is_empty);
        let dense = |format: &serde_json::Value| format.get("format").is_some_and(|format| format == "dense");
        if let Some(value) = keys.get(key).filter(|value| !is_empty(value) && !dense(value)) {
            return Err(refused(key, value, "only {}"));
        }
    }
    let groups = keys.get("config_groups").and_then(|groups| groups.as_object());
    let common = keys.text("format")?.unwrap_or("missing");
    let mut found = Schemes::default();
    for (name, group) in groups.into_iter().flatten() {
        let weights = group.get("weights").and_then(|weights| weights.as_object());
        let Some(weights) = weights else { continue };
        let own = group.as_object().map(|group| Keys(group).text("format").map(|own| own.map(str::to_owned)));
        let own = own.transpose()?.flatten();
        let scheme = scheme(own.as_deref().unwrap_or(common), &Keys(weights))?;
        let known = match scheme {
            Scheme::Packed { .. } => &mut found.packed,
            Scheme::Bytes { .. } => &mut found.bytes,
        };
        if *known.get_or_insert(scheme) != scheme {
            let why = "all packed matrices must have one scheme, and all of bytes one";
            return Err(refused(&format!("config_groups.{name}"), group, why));
        }
    }
    match found {
        Schemes { packed: None, bytes: None } if keys.get("kv_cache_scheme").is_none() => {
            Err(refused("config_groups", "missing", "a group with weights"))
        }
        found => Ok(Box::new(found)),
    }
}

fn scheme(format: &str, weights: &Keys) -> Result<Scheme, ConfigError> {
    let kind = weights.text("type")?.unwrap_or("int");
    let (group_size, structure) = (group_size(weights)?, block(weights, "block_structure")?);
    match (format, kind) {
        ("pack-quantized", "int") => Ok(Scheme::Packed { bits: bits(weights, "num_bits", &[4, 8])?, group_size }),
        ("int-quantized" | "naive-quantized", "int") | ("float-quantized" | "naive-quantized", "float") => {
            bits(weights, "num_bits", &[8])?;
            let dtype = if kind == "int" { Dtype::I8 } else { Dtype::F8_E4M3 };
            Ok(Scheme::Bytes { dtype, block: structure.or(group_size.map(|size| [1, size])) })
        }
        _ => {
            let why = "int-quantized, pack-quantized, float-quantized and naive-quantized are read";
            Err(refused("format", format!("{format} of type {kind}"), why))
        }
    }
}

impl Form for Schemes {
    fn marks(&self) -> &'static [&'static str] {
        &[".weight_packed", ".weight_scale"]
    }

    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError> {
        let packed = parts.take(".weight_packed");
        let scheme = if packed.is_some() { self.packed } else { self.bytes };
        parts.leave(&[".input_scale", ".input_zero_point", ".output_scale", ".output_zero_point"]);
        let (scale, zeros) = (parts.need(".weight_scale")?, parts.take(".weight_zero_point"));
        match (packed, scheme) {
            (Some(packed), Some(Scheme::Packed { bits, group_size })) => {
                let part = parts.need(".weight_shape")?.shaped(&[2])?;
                let wrong = part.wrong("the shape of a matrix");
                let &[outputs, inputs] = &part.sizes()?[..] else { return Err(wrong) };
                let codes = Integers::new(packed, bits, [outputs, inputs], Axis::Row)?;
                let groups = inputs.div_ceil(group_size.unwrap_or(inputs).max(1));
                let (scale, width) = match &scale.shape[..] {
                    // One scale serves all outputs: every output reads the first.
                    [] | [1] if groups == 1 => (scale, 0),
                    _ => (scale.shaped(&[outputs, groups])?, groups),
                };
                let zeros = match zeros {
                    Some(zeros) => Zeros::Each(Integers::new(zeros, bits, [outputs, groups], Axis::Column)?),
                    None => Zeros::Same(1 << (bits - 1)),
                };
                Ok(Arc::new(Grouped {
                    shape: [outputs, inputs],
                    codes,
                    zeros,
                    scales: scale.floats()?,
                    groups: Groups::new(parts.take(".weight_g_idx"), inputs, groups, group_size)?,
                    inputs_first: false,
                    width,
                }))
            }
            (None, Some(Scheme::Bytes { dtype, block })) => {
                Ok(Arc::new(Blocks::new(parts.need(".weight")?, dtype, (scale, zeros), block)?))
            }
            // No group of the configuration says how the matrix is stored.
            _ => Err(scale.wrong("of a scheme that config.json has")),
        }
    }
}
