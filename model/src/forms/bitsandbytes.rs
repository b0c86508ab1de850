//! bitsandbytes: matrices of 8 bits, and of 4 bits as `nf4` or `fp4`.
//!
//! With 8 bits, `weight` (I8) has the integers, and `SCB` (F32) has the largest magnitude of every output, which is
//! stored as the integer 127. With 4 bits, `weight` (U8) has two entries a byte, the first in the upper half. An
//! entry is the index of a number in `quant_map`. `absmax` has the scale of every block of neighbours, and a block
//! may go on from one line to the next. The scales may themselves be stored as bytes: indices into
//! `nested_quant_map`, whose numbers have scales and an offset of their own. `quant_state…` has further settings as
//! JSON.

use std::sync::Arc;

use safetensors::Dtype;
use serde::Deserialize;

use super::bytes::Blocks;
use super::parts::{Floats, Part};
use super::{Form, Packed, Parts, refused};
use crate::CheckpointError;
use crate::config::{ConfigError, Keys};
use crate::mapping::{Number, Piece};

/// The factor by which an entry of 8 bits is multiplied after its scale.
const OF_127: f32 = 1.0 / 127.0;

/// The ends of the names of the tensors `quant_state…` with 4 bits.
const STATES: [&str; 2] = [".weight.quant_state.bitsandbytes__nf4", ".weight.quant_state.bitsandbytes__fp4"];

#[derive(Debug)]
struct BitsAndBytes;

pub(super) fn read(keys: &Keys) -> Result<Box<dyn Form>, ConfigError> {
    match keys.text("bnb_4bit_quant_storage")? {
        None | Some("uint8") => Ok(Box::new(BitsAndBytes)),
        Some(other) => Err(refused("bnb_4bit_quant_storage", other, "only uint8")),
    }
}

/// The JSON of a tensor `quant_state…`.
#[derive(Deserialize)]
struct State {
    blocksize: usize,
    dtype: String,
    shape: [usize; 2],
    nested_blocksize: Option<usize>,
    nested_offset: Option<f32>,
}

impl Form for BitsAndBytes {
    fn marks(&self) -> &'static [&'static str] {
        &[".SCB", STATES[0], STATES[1]]
    }

    fn matrix(&self, parts: &mut Parts) -> Result<Arc<dyn Packed>, CheckpointError> {
        match STATES.iter().find_map(|name| parts.take(name)) {
            Some(state) => Ok(Arc::new(Fours::new(&state, parts)?)),
            None => {
                if let Some(format) = parts.take(".weight_format") {
                    let wrong = format.wrong("0, for integers in rows");
                    if format.of(Dtype::U8, "it is U8")?.get() != [0] {
                        return Err(wrong);
                    }
                }
                let scales = parts.need(".SCB")?;
                Ok(Arc::new(Blocks::new(parts.need(".weight")?, Dtype::I8, (scales, None), None)?.times(OF_127)))
            }
        }
    }
}

/// A matrix with 4 bits for an entry.
#[derive(Debug)]
struct Fours {
    shape: [usize; 2],
    number: Number,
    codes: Piece,
    map: Floats,
    scales: Scales,
    /// The number of entries in a block.
    block: usize,
}

/// The scales of blocks.
#[derive(Debug)]
enum Scales {
    Floats(Floats),
    /// Each scale is a number of `map`, times the scale of its block of scales, plus `offset`.
    Nested {
        codes: Piece,
        map: Floats,
        scales: Floats,
        block: usize,
        offset: f32,
    },
}

impl Fours {
    fn new(state: &Part, parts: &mut Parts) -> Result<Self, CheckpointError> {
        let wrong = || state.wrong("the JSON of a matrix of 4 bits");
        let State { blocksize, dtype, shape, nested_blocksize, nested_offset } =
            serde_json::from_slice(state.piece().get()).map_err(|_| wrong())?;
        let number = match dtype.as_str() {
            "float32" => Number::F32,
            "float16" => Number::F16,
            "bfloat16" => Number::Bf16,
            _ => return Err(state.wrong("of float32, float16 or bfloat16")),
        };
        let Some(entries) = shape[0].checked_mul(shape[1]) else { return Err(wrong()) };
        if blocksize == 0 || nested_blocksize == Some(0) {
            return Err(wrong());
        }
        let codes = parts.need(".weight")?.shaped(&[entries.div_ceil(2), 1])?.of(Dtype::U8, "config.json says U8")?;
        let map = parts.need(".weight.quant_map")?.shaped(&[16])?.floats()?;
        let blocks = entries.div_ceil(blocksize);
        let absmax = parts.need(".weight.absmax")?.shaped(&[blocks])?;
        let scales = match (absmax.dtype, nested_blocksize, nested_offset) {
            (Dtype::U8, Some(block), Some(offset)) => Scales::Nested {
                codes: absmax.piece(),
                map: parts.need(".weight.nested_quant_map")?.shaped(&[256])?.floats()?,
                scales: parts.need(".weight.nested_absmax")?.shaped(&[blocks.div_ceil(block)])?.floats()?,
                block,
                offset,
            },
            _ => Scales::Floats(absmax.floats()?),
        };
        Ok(Fours { shape, number, codes, map, scales, block: blocksize })
    }
}

impl Scales {
    fn at(&self, place: usize) -> f32 {
        match self {
            Scales::Floats(scales) => scales.at(place),
            Scales::Nested { codes, map, scales, block, offset } => {
                map.at(usize::from(codes.get()[place])) * scales.at(place / block) + offset
            }
        }
    }
}

impl Packed for Fours {
    fn shape(&self) -> [usize; 2] {
        self.shape
    }

    fn number(&self) -> Number {
        self.number
    }

    fn read(&self, line: usize, from: usize, out: &mut [f32]) {
        let codes = self.codes.get();
        let (mut at, mut rest) = (line * self.shape[1] + from, out);
        while !rest.is_empty() {
            let block = at / self.block;
            let count = ((block + 1) * self.block - at).min(rest.len());
            let (piece, after) = rest.split_at_mut(count);
            let scale = self.scales.at(block);
            for (entry, out) in (at..).zip(piece.iter_mut()) {
                let byte = codes[entry / 2];
                *out = self.map.at(usize::from(if entry % 2 == 0 { byte >> 4 } else { byte & 15 })) * scale;
            }
            self.number.round(piece);
            (at, rest) = (at + count, after);
        }
    }

    fn stored(&self) -> Vec<&[u8]> {
        let mut all = vec![self.codes.get(), self.map.stored()];
        match &self.scales {
            Scales::Floats(scales) => all.push(scales.stored()),
            Scales::Nested { codes, map, scales, .. } => all.extend([codes.get(), map.stored(), scales.stored()]),
        }
        all
    }
}
