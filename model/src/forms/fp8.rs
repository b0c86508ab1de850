//! FP8: `weight` (F8_E4M3) has a number for each entry. There is a scale for each block in `weight_scale_inv`, as
//! DeepSeek and Qwen publish it, or one scale for the matrix in `weight_scale`, as AutoFP8 writes it. An entry is its
//! number times its scale, in spite of the name `weight_scale_inv`.

use std::sync::Arc;

use safetensors::Dtype;

use super::bytes::Blocks;
use super::{Form, Packed, Parts, block, refused};
use crate::CheckpointError;
use crate::config::{ConfigError, Keys};

#[derive(Debug)]
struct Fp8 {
    block: Option<[usize; 2]>,
}

pub(super) fn read(keys: &Keys) -> Result<Box<dyn Form>, ConfigError> {
    match keys.text("fmt")? {
        None | Some("e4m3" | "float8_e4m3fn") => {}
        Some(other) => return Err(refused("fmt", other, "only e4m3")),
    }
    Ok(Box::new(Fp8 { block: block(keys, "weight_block_size")? }))
}

impl Form for Fp8 {
    fn marks(&self) -> &'static [&'static str] {
        &[".weight_scale_inv", ".weight_scale"]
    }

    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError> {
        let scale = match parts.take(".weight_scale_inv") {
            Some(scale) => scale,
            None => parts.need(".weight_scale")?,
        };
        parts.leave(&[".input_scale", ".activation_scale"]);
        let block = self.block.filter(|_| scale.shape.len() == 2);
        Ok(Arc::new(Blocks::new(parts.need(".weight")?, Dtype::F8_E4M3, (scale, None), block)?))
    }
}
