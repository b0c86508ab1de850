//! Names and shapes of tensors, and how bytes go into a digest.

/// The name and the shape of a tensor, as published.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Published name.
    pub name: String,
    /// Published shape.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// A tensor called `name` of shape `shape`.
    pub fn new(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Self {
        TensorSpec { name: name.into(), shape: shape.into() }
    }
}

/// Hashes `bytes` and their number.
pub(crate) fn take(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}
