//! Matrices that other programs stored in few bits.
//!
//! `quantization_config` in `config.json` names the form. Each form is a file here, and a line in [`FORMS`]. Entries
//! become numbers only when they are read. The numbers are those of the form's own program, each rounded to the type
//! in which that program keeps it. Some of these programs also round activations, which is not done here.

mod awq;
mod bitsandbytes;
mod bytes;
mod compressed_tensors;
mod fp8;
mod gptq;
mod integers;
mod parts;

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::Value;

use crate::config::{ConfigError, Keys, Quantization, unsupported};
use crate::mapping::Packed;
use crate::{Checkpoint, CheckpointError};
pub(crate) use parts::Parts;

/// The forms, by `quant_method`.
const FORMS: [(&str, Read); 5] = [
    ("gptq", gptq::read),
    ("awq", awq::read),
    ("fp8", fp8::read),
    ("compressed-tensors", compressed_tensors::read),
    ("bitsandbytes", bitsandbytes::read),
];

/// Reads the settings of a form from the configuration. The error for an unsupported setting names key and value.
type Read = fn(&Keys) -> Result<Box<dyn Form>, ConfigError>;

/// How matrices of a checkpoint are stored. The names of the tensors show which matrices these are.
pub(crate) trait Form: Debug {
    /// Suffixes. If the name of a tensor ends in one of them, the rest of the name is that of a matrix of this form.
    fn marks(&self) -> &'static [&'static str];

    /// The matrix whose tensors are `parts`. Nothing in these is trusted.
    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError>;
}

/// The keys that may name a form.
const KEYS: [&str; 2] = ["quantization_config", "compression_config"];

/// The form of another program that a configuration names, if it names one.
pub(crate) fn of(keys: &Keys) -> Result<Option<Box<dyn Form>>, ConfigError> {
    if keys.quantization() == Some(Quantization::Int8) {
        return Ok(None);
    }
    let Some((key, value)) = KEYS.into_iter().find_map(|key| Some((key, keys.get(key)?))) else { return Ok(None) };
    let method = value.get("quant_method").and_then(Value::as_str);
    match (value, FORMS.iter().find(|(name, _)| Some(*name) == method)) {
        (Value::Object(map), Some((_, read))) => read(&Keys(map)).map(Some),
        _ => {
            let shown = match value.get("quant_method") {
                Some(method) => format!("{{\"quant_method\": {method}, ...}}"),
                None => value.to_string(),
            };
            let known = FORMS.map(|(name, _)| name).join(", ");
            let why = format!(
                "weights in few bits are read in the forms waggle-int8, {known}: take a checkpoint in one of these, \
                 or in bf16, fp16 or fp32, which can be quantized here to 8 bits"
            );
            Err(unsupported(key, shown, why))
        }
    }
}

/// The error for a refused value of a key of a form.
fn refused(key: &str, value: impl ToString, why: &str) -> ConfigError {
    unsupported(&format!("quantization_config.{key}"), value, why)
}

/// The value of `key`, a number of bits, which must be one of `known`.
fn bits(keys: &Keys, key: &str, known: &[u32]) -> Result<u32, ConfigError> {
    let bits = keys.size(&[key])?;
    let found = known.iter().find(|known| Some(**known as usize) == bits);
    let shown = || bits.map_or_else(|| "missing".to_owned(), |bits| bits.to_string());
    let names = || known.iter().map(u32::to_string).collect::<Vec<_>>().join(" and ");
    found.copied().ok_or_else(|| refused(key, shown(), &format!("{} bits are read", names())))
}

/// The value of `group_size`. `None` if it says or implies that a group is a whole line.
fn group_size(keys: &Keys) -> Result<Option<usize>, ConfigError> {
    match keys.get("group_size").map(|value| (value, value.as_i64())) {
        None | Some((_, Some(-1))) => Ok(None),
        Some((value, Some(size))) => match usize::try_from(size) {
            Ok(size) if size > 0 => Ok(Some(size)),
            _ => Err(refused("group_size", value, "at least 1, or -1")),
        },
        Some((value, None)) => Err(refused("group_size", value, "at least 1, or -1")),
    }
}

/// The value of `key`: two positive sizes, the numbers of outputs and inputs of a block.
fn block(keys: &Keys, key: &str) -> Result<Option<[usize; 2]>, ConfigError> {
    let sizes = |value: &Value| match value.as_array()?.as_slice() {
        [outputs, inputs] => {
            let size = |value: &Value| value.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
            Some([size(outputs)?, size(inputs)?])
        }
        _ => None,
    };
    keys.read(key, "two sizes of at least 1", sizes)
}

/// The last parts of the names of tensors that say how scores, and cached keys and values, were rounded. Neither
/// scores nor cached keys and values are rounded here.
const CACHE: [&str; 7] = ["k_scale", "v_scale", "kv_scale", "q_scale", "prob_scale", "k_zero_point", "v_zero_point"];

impl Checkpoint {
    /// Turns the tensors of every matrix of the form into one matrix, called `….weight`, and leaves out [`CACHE`].
    pub(crate) fn unpack(&mut self, form: &dyn Form) -> Result<(), CheckpointError> {
        self.leave(|name| {
            let of_attention = name.split('.').any(|part| ["self_attn", "attn", "attention"].contains(&part));
            of_attention && name.rsplit('.').next().is_some_and(|last| CACHE.contains(&last))
        });
        let prefix = |name: &str| form.marks().iter().find_map(|mark| name.strip_suffix(mark)).map(str::to_owned);
        let mut names: Vec<String> = self.tensors().filter_map(|(name, _)| prefix(name)).collect();
        names.sort();
        names.dedup();
        for name in names {
            let matrix = form.matrix(&mut Parts::new(self, &name))?;
            self.insert_packed(format!("{name}.weight"), matrix)?;
        }
        Ok(())
    }
}
