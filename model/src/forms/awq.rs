//! AWQ: the files that AutoAWQ writes for its kernel `gemm`.
//!
//! For a matrix of shape (outputs, inputs), `qweight` (I32) has its integers, (inputs, outputs). `qzeros` (I32) has
//! the integers that stand for 0, (groups, outputs). In both, eight neighbours of a row share a word of 32 bits, at
//! the places of [`PLACES`]. `scales` has the scales, (groups, outputs).

use std::sync::Arc;

use super::integers::{Axis, Grouped, Groups, Integers, Zeros};
use super::{Form, Packed, Parts, bits, group_size, refused};
use crate::CheckpointError;
use crate::config::{ConfigError, Keys};

/// Places of neighbours in a word, counted from its lowest bits.
static PLACES: [u8; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

const BITS: u32 = 4;

#[derive(Debug)]
struct Awq {
    group_size: Option<usize>,
}

pub(super) fn read(keys: &Keys) -> Result<Box<dyn Form>, ConfigError> {
    bits(keys, "bits", &[BITS])?;
    for key in ["version", "format", "checkpoint_format"] {
        match keys.text(key)? {
            Some(other) if !other.eq_ignore_ascii_case("gemm") => {
                return Err(refused(key, other, "only gemm is read"));
            }
            _ => {}
        }
    }
    Ok(Box::new(Awq { group_size: group_size(keys)? }))
}

impl Form for Awq {
    fn marks(&self) -> &'static [&'static str] {
        &[".qweight"]
    }

    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError> {
        let (weight, zeros, scales) = (parts.need(".qweight")?, parts.need(".qzeros")?, parts.need(".scales")?);
        let [inputs, words] = weight.axes()?;
        let outputs = words.saturating_mul(Integers::per(BITS));
        let groups = inputs.div_ceil(self.group_size.unwrap_or(inputs).max(1));
        Ok(Arc::new(Grouped {
            shape: [outputs, inputs],
            codes: Integers::new(weight, BITS, [inputs, outputs], Axis::Placed(&PLACES))?,
            zeros: Zeros::Each(Integers::new(zeros, BITS, [groups, outputs], Axis::Placed(&PLACES))?),
            scales: scales.shaped(&[groups, outputs])?.floats()?,
            groups: Groups::new(None, inputs, groups, self.group_size)?,
            inputs_first: true,
            width: outputs,
        }))
    }
}
