//! GPTQ: the files that AutoGPTQ and GPTQModel write.
//!
//! For a matrix of shape (outputs, inputs), `qweight` (I32) has its integers, (inputs, outputs), where neighbours of
//! a column share a word of 32 bits. `qzeros` (I32) has the integers that stand for 0, (groups, outputs), where
//! neighbours of a row share a word. `scales` has the scales, (groups, outputs), and `g_idx` (I32) the group of every
//! input. In files of the first version (`gptq`) each integer of `qzeros` is stored smaller by 1. The program that
//! wrote them subtracts one number from each whole word, so one addition to each word restores them.

use std::sync::Arc;

use super::integers::{Axis, Grouped, Groups, Integers, Zeros};
use super::{Form, Packed, Parts, bits, group_size, refused};
use crate::CheckpointError;
use crate::config::{ConfigError, Keys};

#[derive(Debug)]
struct Gptq {
    bits: u32,
    group_size: Option<usize>,
    /// The number that is added to each word of `qzeros`.
    plus: u32,
}

/// Keys of a rule that say how a matrix was rounded, but not how it is stored.
const UNREAD: [&str; 5] = ["desc_act", "sym", "mse", "damp_percent", "static_groups"];

pub(super) fn read(keys: &Keys) -> Result<Box<dyn Form>, ConfigError> {
    let bits = bits(keys, "bits", &[4, 8])?;
    let plus = match keys.text("checkpoint_format")?.unwrap_or("gptq") {
        "gptq" if bits == 4 => 0x1111_1111,
        "gptq" => 0x0101_0101,
        "gptq_v2" => 0,
        other => return Err(refused("checkpoint_format", other, "gptq and gptq_v2 are read")),
    };
    match keys.text("pack_dtype")? {
        None | Some("int32") => {}
        Some(other) => return Err(refused("pack_dtype", other, "only int32")),
    }
    // These are rules for single matrices. A rule that leaves matrices out (`-:`) shows in the tensors of these.
    // Other rules may only repeat the settings for all matrices.
    let rules = keys.read("dynamic", "an object", serde_json::Value::as_object)?;
    for (name, rule) in rules.into_iter().flatten().filter(|(name, _)| !name.starts_with("-:")) {
        let repeats = |(key, value): (&String, _)| UNREAD.contains(&key.as_str()) || keys.get(key) == Some(value);
        if !rule.as_object().is_some_and(|rule| rule.iter().all(repeats)) {
            return Err(refused(&format!("dynamic.{name}"), rule, "all matrices must have the same bits and groups"));
        }
    }
    Ok(Box::new(Gptq { bits, group_size: group_size(keys)?, plus }))
}

impl Form for Gptq {
    fn marks(&self) -> &'static [&'static str] {
        &[".qweight"]
    }

    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError> {
        let (weight, zeros, scales) = (parts.need(".qweight")?, parts.need(".qzeros")?, parts.need(".scales")?);
        let [rows, outputs] = weight.axes()?;
        let inputs = rows.saturating_mul(Integers::per(self.bits));
        let list = parts.take(".g_idx");
        let [groups, _] = scales.axes()?;
        // If the groups of inputs are listed, the number of groups is that of the scales.
        let wanted = if list.is_some() { groups } else { inputs.div_ceil(self.group_size.unwrap_or(inputs).max(1)) };
        let scales = scales.shaped(&[wanted, outputs])?.floats()?;
        let codes = Integers::new(weight, self.bits, [inputs, outputs], Axis::Column)?;
        let zeros = Integers::new(zeros, self.bits, [groups, outputs], Axis::Row)?.plus(self.plus);
        let groups = Groups::new(list, inputs, groups, self.group_size)?;
        Ok(Arc::new(Grouped {
            shape: [outputs, inputs],
            codes,
            zeros: Zeros::Each(zeros),
            scales,
            groups,
            inputs_first: true,
            width: outputs,
        }))
    }
}
