//! The prompt of a command line.

use clap::Args;
use model::Tokenizer;

use super::Error;

/// A prompt as text or as token ids.
#[derive(Args, Clone, Debug)]
#[group(required = false, multiple = false)]
pub(super) struct PromptArgs {
    /// Prompt as text; needs a tokenizer.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Prompt as token ids, for models without a tokenizer.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', num_args = 1)]
    prompt_ids: Option<Vec<u32>>,
}

/// What is written where no prompt is given.
const DEFAULT_PROMPT: &str = "ROMEO:\n";

impl PromptArgs {
    /// The prompt as ids.
    pub(super) fn ids(&self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        if let Some(ids) = &self.prompt_ids {
            return Ok(ids.clone());
        }
        let tokenizer = tokenizer.ok_or(Error::NoTokenizer)?;
        let ids = tokenizer.encode(self.prompt.as_deref().unwrap_or(DEFAULT_PROMPT))?;
        if ids.is_empty() { Err(Error::EmptyPrompt) } else { Ok(ids) }
    }
}

/// Ids as they are given on a command line.
pub(super) fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}
