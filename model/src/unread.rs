//! Tensors of a checkpoint that the program does not read.
//!
//! A tensor that nobody reads is a part of the function that is not computed: the biases of a Qwen2 that calls itself
//! a LLaMA, for instance. So a checkpoint that holds more than the architecture is refused by name. What older
//! programs stored beside the weights is known, and is checked to be what its name says:
//!
//! | tensor | what it must be |
//! |---|---|
//! | `transformer.h.*.attn.bias` | the causal mask: ones on and below the diagonal, zeros above |
//! | `transformer.h.*.attn.masked_bias` | one number that takes a masked score away, at most -1000 |
//! | `model.layers.*.self_attn.rotary_emb.inv_freq` | the frequencies that follow from the configuration |
//! | `lm_head.weight` where the configuration ties it | the embedding |

use std::collections::BTreeSet;

use crate::llama::frequencies;
use crate::{Checkpoint, CheckpointError, ModelSpec};

/// The largest masked score that [`Buffer::MaskedBias`] may stand for.
const MASKED_SCORE: f32 = -1000.0;

/// The largest relative difference of a stored frequency: bfloat16 keeps eight bits.
const FREQUENCY_ERROR: f32 = 0.01;

/// A tensor that is known to change nothing.
enum Buffer {
    CausalMask,
    MaskedBias,
    Frequencies,
    TiedHead(&'static str),
}

impl Checkpoint {
    /// Checks that the tensors of `spec` are there with their shapes, and that what else there is changes nothing.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] and [`CheckpointError::Shape`]; [`CheckpointError::Unread`] by name;
    /// [`CheckpointError::Buffer`] for one that is not what its name says.
    pub fn check_all(&self, spec: &ModelSpec) -> Result<(), CheckpointError> {
        let layout = spec.tensors();
        self.check(&layout)?;
        let read = layout.iter().filter_map(|tensor| self.stored_name(&tensor.name)).collect::<BTreeSet<_>>();
        let rest: BTreeSet<String> =
            self.tensors().map(|(name, _)| name).filter(|name| !read.contains(name)).map(str::to_owned).collect();
        let mut unread = Vec::new();
        for name in rest {
            match Buffer::called(spec, &name) {
                Some(buffer) => self.check_buffer(spec, &name, &buffer)?,
                None => unread.push(name),
            }
        }
        if unread.is_empty() { Ok(()) } else { Err(CheckpointError::Unread { tensors: unread }) }
    }

    fn check_buffer(&self, spec: &ModelSpec, name: &str, buffer: &Buffer) -> Result<(), CheckpointError> {
        let wrong = |what| Err(CheckpointError::Buffer { tensor: name.into(), what });
        match buffer {
            Buffer::CausalMask => {
                let (shape, values) = self.values(name)?;
                let [.., rows, columns] = shape[..] else {
                    return wrong("a causal mask: it has fewer than two axes");
                };
                if rows != columns || values.len() != rows * columns {
                    return wrong("a causal mask: it is not square");
                }
                let is_mask = |(i, &v): (usize, &f32)| v == if i % columns <= i / columns { 1.0 } else { 0.0 };
                if values.iter().enumerate().all(is_mask) { Ok(()) } else { wrong("a causal mask") }
            }
            Buffer::MaskedBias => match self.values(name)?.1[..] {
                [score] if score <= MASKED_SCORE => Ok(()),
                _ => wrong("one number of at most -1000"),
            },
            Buffer::Frequencies => {
                let ModelSpec::Llama(config) = spec else { return wrong("of this architecture") };
                let values = self.values(name)?.1;
                let close = |wanted: Vec<f32>| {
                    values.len() == wanted.len()
                        && values.iter().zip(&wanted).all(|(v, w)| (v - w).abs() <= FREQUENCY_ERROR * w.abs())
                };
                // Older programs stored them as they are before scaling, too.
                let known = [true, false].into_iter().any(|scaled| close(frequencies(config, scaled)));
                if known { Ok(()) } else { wrong("the frequencies that follow from config.json") }
            }
            Buffer::TiedHead(embedding) => {
                if self.equal(name, embedding)? {
                    Ok(())
                } else {
                    wrong("the embedding, to which config.json ties it")
                }
            }
        }
    }
}

impl Buffer {
    fn called(spec: &ModelSpec, name: &str) -> Option<Self> {
        let index = |name: &str, before: &str, after: &str| {
            let index = name.strip_prefix(before)?.strip_suffix(after)?;
            index.parse::<usize>().ok().filter(|i| *i < spec.layers())
        };
        match spec {
            ModelSpec::Gpt2(config) => {
                if name == "lm_head.weight" && config.tie_word_embeddings {
                    return Some(Buffer::TiedHead("transformer.wte.weight"));
                }
                let bare = name.strip_prefix("transformer.").unwrap_or(name);
                match () {
                    () if index(bare, "h.", ".attn.bias").is_some() => Some(Buffer::CausalMask),
                    () if index(bare, "h.", ".attn.masked_bias").is_some() => Some(Buffer::MaskedBias),
                    () => None,
                }
            }
            ModelSpec::Llama(config) => {
                if name == "lm_head.weight" && config.tie_word_embeddings {
                    return Some(Buffer::TiedHead("model.embed_tokens.weight"));
                }
                let bare = name.strip_prefix("model.").unwrap_or(name);
                let of_a_layer = index(bare, "layers.", ".self_attn.rotary_emb.inv_freq").is_some();
                (of_a_layer || bare == "rotary_emb.inv_freq").then_some(Buffer::Frequencies)
            }
        }
    }
}
