//! Tensors of a checkpoint that the program does not read.
//!
//! A tensor that is not read may mean that a part of the model is not computed: for instance, the biases of a Qwen2
//! that calls itself a LLaMA. So a checkpoint with tensors that the architecture does not have is refused, and the
//! error names them. Tensors that older programs stored beside the weights are known, and are checked to be what
//! their names say:
//!
//! | tensor | what it must be |
//! |---|---|
//! | `attn.bias`, `attention.bias` of a layer | the causal mask: ones on and below the diagonal, zeros above |
//! | `masked_bias` of a layer | one number that takes a masked score away, at most -1000 |
//! | `rotary_emb.inv_freq` | the frequencies that follow from the configuration |
//! | `lm_head.weight` where the configuration ties it | the embedding, in any type |
//! | heads of another training, and poolers, that a family's program does not read | anything |
//! | keys and values of a layer that reads those of another | anything: its authors' program leaves them out, too |
//! | `bias` of a matrix that has none, as programs for few bits write it | zeros |
//!
//! A family lists the names of such tensors ([`Names::buffers`](crate::style::Names)).

use std::collections::BTreeSet;

use crate::checkpoint::SCALE;
use crate::rope;
use crate::spec::ModelSpec;
use crate::style::{Positions, Stored, Style};
use crate::{Checkpoint, CheckpointError};

/// The largest number that a tensor of the kind [`Stored::MaskedBias`] may hold.
const MASKED_SCORE: f32 = -1000.0;

/// The largest relative difference between a stored frequency and the computed one. A number in bfloat16 keeps eight
/// bits.
const FREQUENCY_ERROR: f32 = 0.01;

impl Checkpoint {
    /// Checks that the tensors of `spec` are there with their shapes, and that other tensors change nothing.
    ///
    /// # Errors
    /// [`CheckpointError::Missing`] and [`CheckpointError::Shape`]; [`CheckpointError::Unread`] with the names of
    /// unknown tensors; [`CheckpointError::Buffer`] for a tensor that is not what its name says.
    pub fn check_all(&self, spec: &ModelSpec) -> Result<(), CheckpointError> {
        let style = spec.style();
        let layout = style.tensors();
        self.check(&layout)?;
        self.check_types(&layout, style.quantized)?;
        let read = layout.iter().filter_map(|tensor| self.stored_name(&tensor.name)).collect::<BTreeSet<_>>();
        let is_scale = |name: &str| {
            name.strip_suffix(SCALE).is_some_and(|matrix| read.contains(matrix) && self.is_scaled(matrix))
        };
        let rest: BTreeSet<String> = self
            .tensors()
            .map(|(name, _)| name)
            .filter(|name| !read.contains(name) && !is_scale(name))
            .map(str::to_owned)
            .collect();
        let mut unread = Vec::new();
        for name in rest {
            match style.buffer(&name) {
                Some(stored) => self.check_buffer(style, &name, stored)?,
                None if self.is_zero_bias(&name, &read) => {}
                None => unread.push(name),
            }
        }
        if unread.is_empty() { Ok(()) } else { Err(CheckpointError::Unread { tensors: unread }) }
    }

    /// Whether the tensor `name` is a bias of zeros. Its matrix must be stored in few bits and be one of the tensors
    /// `read`.
    fn is_zero_bias(&self, name: &str, read: &BTreeSet<&str>) -> bool {
        let matrix = name.strip_suffix("bias").map(|matrix| format!("{matrix}weight"));
        let packed = matrix.is_some_and(|matrix| read.contains(&*matrix) && self.is_packed(&matrix));
        packed && self.vector(name).is_ok_and(|bias| bias.iter().all(|x| *x == 0.0))
    }

    fn check_buffer(&self, style: &Style, name: &str, stored: Stored) -> Result<(), CheckpointError> {
        let wrong = |what| Err(CheckpointError::Buffer { tensor: name.into(), what });
        match stored {
            Stored::CausalMask => {
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
            Stored::MaskedBias => match self.values(name)?.1[..] {
                [score] if score <= MASKED_SCORE => Ok(()),
                _ => wrong("one number of at most -1000"),
            },
            Stored::Frequencies => {
                let values = self.values(name)?.1;
                let wanted = match &style.positions {
                    Positions::Rotary(ropes) => rope::stored(&ropes[0], style.turned_dim(0)),
                    Positions::Learned { .. } => Vec::new(),
                };
                let close = |wanted: &Vec<f32>| {
                    values.len() == wanted.len()
                        && values.iter().zip(wanted).all(|(v, w)| (v - w).abs() <= FREQUENCY_ERROR * w.abs())
                };
                if wanted.iter().any(close) { Ok(()) } else { wrong("the frequencies that follow from config.json") }
            }
            Stored::TiedHead if self.equal(name, &format!("{}.weight", style.names.embedding))? => Ok(()),
            Stored::TiedBias => match style.masked() {
                Some(masked) if self.equal(name, masked.bias)? => Ok(()),
                _ => wrong("the bias of the head, to which it is tied"),
            },
            Stored::Unused => Ok(()),
            Stored::TiedHead => wrong("the embedding, to which config.json ties it"),
        }
    }
}
