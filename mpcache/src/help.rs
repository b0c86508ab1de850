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

impl PolicyHelp {
    /// The policy as a text, with the options `required`, which have no default.
    pub(crate) fn example(&self, required: &str) -> String {
        format!("{}:{required}", self.name)
    }
}
