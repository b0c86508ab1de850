//! The work of both parties on a product, counted by kernel from its plan alone.
//!
//! All counts are in coefficients of one limb. So a machine's time per coefficient can be measured once and holds for
//! every shape.

/// Work on a matrix product ([`MatmulPlan`](crate::MatmulPlan), [`SeededPlan`](crate::SeededPlan)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MatmulWork {
    /// Coefficients of ciphertexts that the key holder makes.
    pub encrypted: u64,
    /// Coefficients of responses that the key holder opens.
    pub opened: u64,
    /// Coefficients of ciphertexts that the evaluator reads.
    pub read: u64,
    /// Layers of the transforms of weights, each counted once per point.
    pub transformed: u64,
    /// Coefficients of weights that are read and put into polynomials.
    pub encoded: u64,
    /// Points of transformed weights that are brought into place, where weights act on runs of rows.
    pub placed: u64,
    /// Products of two coefficients, where each weight is a polynomial of full degree.
    pub products: u64,
    /// Products of two coefficients, where weights act on runs of rows.
    pub run_products: u64,
    /// Coefficients of responses that the evaluator makes.
    pub answered: u64,
    /// Coefficients of merges. Each counts once per digit of the key switch and once more.
    pub merged: u64,
}

/// Work on elementwise products ([`OlePlan`](crate::OlePlan)).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OleWork {
    /// Coefficients of ciphertexts that the key holder makes.
    pub encrypted: u64,
    /// Coefficients of ciphertexts that the evaluator multiplies.
    pub multiplied: u64,
    /// Coefficients of responses that the evaluator makes.
    pub answered: u64,
    /// Coefficients of responses that the key holder opens.
    pub opened: u64,
}
