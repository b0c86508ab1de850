//! Computations on secrets, one by one, for the command that looks for traces of the secrets in time and addresses
//! (`cargo run --release -p waggle-bench --example secrets`). Nothing else uses this module.

/// Takes a secret in and returns what computes on it, as often as it is called. Neither may branch or address by the
/// secret.
pub type Prepare = Box<dyn Fn(&[u8]) -> Box<dyn FnMut()>>;

/// A computation.
pub struct Probe {
    /// Name of the computation and of its kernels.
    pub name: String,
    /// Bytes of its secret.
    pub secret_bytes: usize,
    /// Makes it ready.
    pub prepare: Prepare,
}

impl Probe {
    /// A computation.
    pub fn new<F: FnMut() + 'static>(
        name: impl Into<String>,
        secret_bytes: usize,
        prepare: impl Fn(&[u8]) -> F + 'static,
    ) -> Self {
        Probe { name: name.into(), secret_bytes, prepare: Box::new(move |secret| Box::new(prepare(secret))) }
    }
}

/// A value that computations share. It is leaked: the process ends with them.
pub fn shared<T>(x: T) -> &'static T {
    Box::leak(Box::new(x))
}

/// Whole words of a secret.
pub fn words(secret: &[u8]) -> Vec<u64> {
    secret.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect()
}
