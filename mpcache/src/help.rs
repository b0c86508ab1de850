//! What a help text says of a policy.

/// What a help text says of a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyHelp {
    /// The name.
    pub name: &'static str,
    /// The keys of its options.
    pub keys: &'static [&'static str],
    /// One line of description.
    pub about: &'static str,
}
