//! Single computations on secrets, for the command that looks for traces of the secrets in times and addresses
//! (`cargo run --release -p waggle-bench --example secrets`). Nothing else uses this module.

/// Reads a secret and returns a closure that computes on it at every call. Neither of the two functions may branch on
/// the secret or address memory by it.
pub type Prepare = Box<dyn Fn(&[u8]) -> Box<dyn FnMut()>>;

/// A computation on a secret.
pub struct Probe {
    /// Name of the computation and of its kernels.
    pub name: String,
    /// Number of bytes of the secret.
    pub secret_bytes: usize,
    /// Prepares the computation.
    pub prepare: Prepare,
}

impl Probe {
    /// A computation that `prepare` makes from a secret.
    pub fn new<F: FnMut() + 'static>(
        name: impl Into<String>,
        secret_bytes: usize,
        prepare: impl Fn(&[u8]) -> F + 'static,
    ) -> Self {
        Probe { name: name.into(), secret_bytes, prepare: Box::new(move |secret| Box::new(prepare(secret))) }
    }
}

/// Makes a value that several computations use. The value is leaked, as the process ends after the computations.
pub fn shared<T>(x: T) -> &'static T {
    Box::leak(Box::new(x))
}

/// The whole words of a secret.
pub fn words(secret: &[u8]) -> Vec<u64> {
    secret.as_chunks::<8>().0.iter().map(|&bytes| u64::from_le_bytes(bytes)).collect()
}
