//! A digest of what processes must have in common to compute products together.

use crate::tensor::take;
use crate::{ConfigError, Error, ModelFiles};

/// The context of the hash, which makes it differ from every other hash of the same bytes.
const CONTEXT: &str = "waggle columns 1, model files";

impl ModelFiles {
    /// A hash of what processes must have in common to compute products together: this program's version, the model's
    /// shape, and the name, type and shape of every tensor, those of learned columns and of an adapter included. Of
    /// the numbers, all vectors and a few places of every larger tensor are hashed. That tells checkpoints apart, but
    /// misses damage at other places.
    ///
    /// # Errors
    /// If the shape cannot be written as JSON, which does not happen to a shape that was read, or if a file of
    /// learned columns is no safetensors file.
    pub fn sampled_digest(&self) -> Result<String, Error> {
        let shape = serde_json::to_string(&self.spec).map_err(|e| ConfigError::Json(e.to_string()))?;
        let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
        take(&mut hasher, env!("CARGO_PKG_VERSION").as_bytes());
        take(&mut hasher, shape.as_bytes());
        self.checkpoint.sample(&mut hasher);
        for head in self.checkpoint.learned_heads() {
            self.checkpoint.beside(head)?.sample(&mut hasher);
        }
        if let Some(adapter) = &self.checkpoint.adapter {
            adapter.sample(&mut hasher);
        }
        Ok(hasher.finalize().to_hex().to_string())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Checkpoint, ModelFiles, bundled};

    /// The bundled LLaMA with one byte changed: the one at the position that `at` gives for the file's length.
    fn changed(at: impl Fn(usize) -> usize) -> ModelFiles {
        let mut bytes = include_bytes!("../assets/shakespeare-llama/model.safetensors").to_vec();
        let at = at(bytes.len());
        bytes[at] ^= 1;
        let files = bundled("shakespeare-llama").unwrap();
        ModelFiles { checkpoint: Checkpoint::from_bytes("changed", bytes.leak()).unwrap(), ..files }
    }

    #[test]
    fn another_model_has_another_digest() {
        let digest = |files: &ModelFiles| files.sampled_digest().unwrap();
        let files = bundled("shakespeare-llama").unwrap();
        assert_eq!(digest(&files), digest(&bundled("shakespeare-llama").unwrap()));
        assert_ne!(digest(&files), digest(&bundled("shakespeare-gpt2").unwrap()));
        assert_ne!(digest(&files), digest(&changed(|len| len - 1)), "the last byte of the last tensor");
        let other_shape = ModelFiles { spec: bundled("shakespeare-gpt2").unwrap().spec, ..files };
        assert_ne!(digest(&other_shape), digest(&bundled("shakespeare-llama").unwrap()));
    }
}
