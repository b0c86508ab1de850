//! The prompt of a command line.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use waggle::program::utf8;
use waggle::{Prompt, Public};
use waggle_files::at;
use waggle_mpcache::PolicySpec;

use super::Error;
use super::advice::policy;

/// A prompt as text or as token ids.
#[derive(Args, Clone, Debug)]
#[group(required = false, multiple = false)]
pub(super) struct PromptArgs {
    /// Prompt as text; needs a tokenizer.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Prompt as text in a file, taken as it is, line ends included; `-` reads standard input.
    #[arg(long, value_name = "FILE")]
    prompt_file: Option<PathBuf>,
    /// Prompt as token ids, for models without a tokenizer.
    #[arg(long, value_name = "1,2,3", value_delimiter = ',', num_args = 1)]
    prompt_ids: Option<Vec<u32>>,
    /// An image in the place of a text, a PNG or a JPEG, for a model that reads images.
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
}

/// Public tokens before the prompt.
#[derive(Args, Clone, Debug)]
#[command(group = ArgGroup::new("public text").multiple(true))]
pub(super) struct PublicArgs {
    /// Text before the prompt that is no secret: a system prompt, examples, a document that both parties have. The
    /// server reads it in the clear, so it costs next to nothing. A file that ends in `.json` is a list of token ids.
    /// Needs a prompt that is not padded. `serve` offers it to all clients, which take it if they name none.
    #[arg(long, value_name = "FILE", group = "public text")]
    public_prefix: Option<PathBuf>,
    /// The policy by which the server prunes what its model keeps of public text. The client learns how much stays,
    /// not what.
    #[arg(long, value_name = "POLICY", default_value = "full", value_parser = policy, requires = "public text")]
    pub(super) prefix_policy: PolicySpec,
}

/// Whether a client takes the public tokens that its server offers.
#[derive(Args, Clone, Debug)]
pub(super) struct OfferArgs {
    /// Do without the public text that the server offers (`serve --public-prefix`). Otherwise it is shown, and then
    /// stands before the prompt. It is pinned like a chat template.
    #[arg(long, conflicts_with = "public_prefix")]
    pub(super) no_public_prefix: bool,
}

impl PublicArgs {
    /// Whether there is a public text.
    pub(super) fn is_given(&self) -> bool {
        self.public_prefix.is_some()
    }

    /// The public text, which is read now.
    pub(super) fn read(&self) -> Result<Option<Public>, Error> {
        let Some(path) = &self.public_prefix else { return Ok(None) };
        let text = read_text(path)?;
        let prompt = match path.extension().is_some_and(|end| end == "json") {
            true => Prompt::Ids(
                serde_json::from_str(&text)
                    .map_err(|e| Error::PublicIds { path: path.clone(), what: e.to_string() })?,
            ),
            false => Prompt::Text(text),
        };
        Ok(Some(Public::of(prompt).policy(self.prefix_policy.clone())))
    }
}

const DEFAULT_PROMPT: &str = "Once upon a time";

/// Longest prompt that is read from a file, in bytes. No model takes as many.
const MAX_PROMPT_BYTES: u64 = 4 << 20;

impl PromptArgs {
    /// The prompt. A prompt in a file is read now, before a server is asked.
    pub(super) fn read(&self) -> Result<Prompt, Error> {
        if let Some(image) = &self.image {
            return Ok(Prompt::Image(image.clone()));
        }
        if let Some(ids) = &self.prompt_ids {
            return Ok(Prompt::Ids(ids.clone()));
        }
        Ok(Prompt::Text(match (&self.prompt, &self.prompt_file) {
            (Some(text), _) => text.clone(),
            (None, Some(file)) => read_text(file)?,
            (None, None) => DEFAULT_PROMPT.to_owned(),
        }))
    }
}

fn read_text(path: &Path) -> Result<String, Error> {
    let mut bytes = Vec::new();
    // One more byte is read, to notice a prompt that is too long.
    let limit = MAX_PROMPT_BYTES + 1;
    if path == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes).map_err(at(path))?;
    } else {
        let file = waggle_files::open(path).map_err(at(path))?;
        file.take(limit).read_to_end(&mut bytes).map_err(at(path))?;
    }
    if bytes.len() as u64 > MAX_PROMPT_BYTES {
        return Err(Error::LongPrompt { path: path.into(), limit: MAX_PROMPT_BYTES });
    }
    Ok(utf8(path, bytes)?)
}

/// Ids as they are written on a command line.
pub(super) fn join(ids: &[u32]) -> String {
    ids.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use waggle::PromptError;

    #[test]
    fn a_prompt_may_stand_in_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("prompt");
        let args = PromptArgs { prompt: None, prompt_file: Some(file.clone()), prompt_ids: None, image: None };
        assert!(matches!(args.read(), Err(Error::Library(waggle::Error::File(_)))));
        std::fs::write(&file, "two\nlines\n").unwrap();
        assert!(matches!(args.read(), Ok(Prompt::Text(text)) if text == "two\nlines\n"));
        std::fs::write(&file, [0xff]).unwrap();
        assert!(matches!(args.read(), Err(Error::Library(waggle::Error::Prompt(PromptError::NotUtf8(_))))));
        std::fs::File::options().write(true).open(&file).unwrap().set_len(MAX_PROMPT_BYTES + 1).unwrap();
        assert!(matches!(args.read(), Err(Error::LongPrompt { .. })));
    }
}
