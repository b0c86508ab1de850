//! Public tokens before the texts of a session, as a user states them.

use serde_json::Value;
use waggle_mpcache::PolicySpec;
use waggle_session::PublicPrefix;
use waggle_tokenizer::Tokenizer;

use crate::Error;
use crate::options::options;
use crate::prompt::Prompt;

options! {
    /// Public tokens before every text: `Public::of("Answer briefly.")`. The server reads them in the clear, so they
    /// cost little.
    Public {
        /// The tokens, as a text or as ids.
        text: Prompt as impl Into<Prompt> = Prompt::Text(String::new()),
        /// The policy by which the server prunes what its model keeps of them.
        policy: PolicySpec = PolicySpec::default(),
    }
}

impl Public {
    /// The tokens of `text`.
    pub fn of(text: impl Into<Prompt>) -> Self {
        Public::default().text(text)
    }

    /// The tokens, encoded by `tokenizer` if they are a text.
    ///
    /// # Errors
    /// If a file cannot be read, or a text has no tokenizer.
    pub fn encoded(&self, tokenizer: Option<&Tokenizer>) -> Result<PublicPrefix, Error> {
        Ok(PublicPrefix::new(self.text.clone().ids(tokenizer)?, self.policy.clone()))
    }
}

/// What a report says of `prefix`.
pub fn named(prefix: &PublicPrefix) -> [(&'static str, Value); 3] {
    let policy = prefix.policy().to_string();
    [
        ("public_tokens", prefix.ids().len().into()),
        ("public_digest", prefix.digest().into()),
        ("public_policy", policy.into()),
    ]
}
