//! The input of a model: words, ids or images.

use std::path::{Path, PathBuf};

use waggle_files::load;
use waggle_model::{ModelSpec, bundled_text};
use waggle_session::party;
use waggle_tokenizer::Tokenizer;

use crate::Error;
use crate::error::PromptError;
use crate::pixels::{ImageError, Pixels, read_image};
use crate::reader::{Reader, log_unread};

/// The input of a model.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Words, for a model with a tokenizer.
    Text(String),
    /// Texts that are read one behind another as one.
    Texts(Vec<String>),
    /// Token ids.
    Ids(Vec<u32>),
    /// Two texts that an encoder reads together.
    Pair(String, String),
    /// The image in a PNG or a JPEG, for a model that reads images.
    Image(PathBuf),
    /// The pixels of an image.
    Pixels(Pixels),
    /// Several prompts, which a model reads side by side.
    Several(Vec<Prompt>),
    /// The text of this file, or the list of texts in a file that ends in `.json`. Some files are bundled.
    File(PathBuf),
}

impl From<&str> for Prompt {
    fn from(text: &str) -> Self {
        Prompt::Text(text.to_owned())
    }
}

impl From<String> for Prompt {
    fn from(text: String) -> Self {
        Prompt::Text(text)
    }
}

impl From<Vec<u32>> for Prompt {
    fn from(ids: Vec<u32>) -> Self {
        Prompt::Ids(ids)
    }
}

impl Prompt {
    /// Whether this prompt is an image or several images.
    pub(crate) fn is_image(&self) -> bool {
        match self {
            Prompt::Image(_) | Prompt::Pixels(_) => true,
            Prompt::Several(all) => all.iter().any(Prompt::is_image),
            _ => false,
        }
    }

    /// Encodes this prompt for a model of the shape `spec`.
    ///
    /// # Errors
    /// If the model does not read prompts of this kind, or a file cannot be read.
    pub fn ready(self, spec: &ModelSpec, reader: &Reader) -> Result<party::Prompt, Error> {
        self.ready_at(Place::First, spec, reader)
    }

    /// [`Prompt::ready`] at a place of the text that the model reads.
    pub(crate) fn ready_at(self, place: Place, spec: &ModelSpec, reader: &Reader) -> Result<party::Prompt, Error> {
        match (self.read()?, spec.image()) {
            (Prompt::Pixels(image), Some(shape)) => {
                let Reader::Images(Some(preprocessor)) = reader else {
                    return Err(ImageError::NoPreprocessor.into());
                };
                Ok(party::Prompt::image(preprocessor.patches(&image, shape)?))
            }
            (_, Some(_)) => Err(waggle_model::Error::NoTexts.into()),
            (words, None) => {
                let (ids, second) = match words {
                    Prompt::Pair(first, second) if spec.is_encoder() => {
                        let tokenizer = reader.tokenizer().ok_or(PromptError::NoTokenizer)?;
                        tokenizer.encode_pair(&first, &second)?
                    }
                    one => (one.ids_at(place, reader.tokenizer())?, None),
                };
                let mask = if spec.fills_mask() { Some(mask_of(&ids, reader.tokenizer())?) } else { None };
                Ok(party::Prompt::from(&ids).with_second(second).with_mask(mask))
            }
        }
    }

    /// The ids of one text.
    ///
    /// # Errors
    /// If this prompt is not one text, or has no ids.
    pub fn ids(self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        self.ids_at(Place::First, tokenizer)
    }

    /// The ids of one text behind public tokens.
    ///
    /// # Errors
    /// As [`Prompt::ids`].
    pub fn later_ids(self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        self.ids_at(Place::Later, tokenizer)
    }

    fn ids_at(self, place: Place, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        match self.read()? {
            Prompt::Ids(ids) => Ok(ids),
            Prompt::Text(text) if place == Place::Later => later_ids(&[text], tokenizer),
            Prompt::Texts(texts) if place == Place::Later => later_ids(&texts, tokenizer),
            Prompt::Text(text) => ids_of(&[text], tokenizer, usize::MAX),
            Prompt::Texts(texts) => ids_of(&texts, tokenizer, usize::MAX),
            Prompt::Pair(..) => Err(PromptError::Pair.into()),
            Prompt::Several(all) => {
                Err(waggle_model::Error::Texts { texts: all.len(), what: "one list of ids".into() }.into())
            }
            Prompt::Pixels(_) | Prompt::Image(_) | Prompt::File(_) => Err(waggle_model::Error::NoImages.into()),
        }
    }

    /// This prompt with its files read. It is called before a server is asked, so that a bad file bothers nobody.
    ///
    /// # Errors
    /// If a file cannot be read.
    pub fn read(self) -> Result<Self, Error> {
        Ok(match self {
            Prompt::Image(path) => Prompt::Pixels(read_image(&path)?),
            Prompt::File(path) => Prompt::Texts(texts(&path)?),
            Prompt::Several(all) => Prompt::Several(each(1, all, Prompt::read)?),
            read => read,
        })
    }
}

/// The place of a prompt in the text that a model reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The text begins with the prompt.
    First,
    /// Public tokens come before the prompt.
    Later,
}

/// The token ids of `texts` behind a text that the tokenizer has begun.
fn later_ids(texts: &[String], tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
    let tokenizer = tokenizer.ok_or(PromptError::NoTokenizer)?;
    let mut ids = Vec::new();
    for text in texts {
        ids.extend(tokenizer.encode_more(text)?);
        log_unread(tokenizer, text)?;
    }
    if ids.is_empty() { Err(PromptError::Empty.into()) } else { Ok(ids) }
}

/// Applies `of` to each input. An error states the number of its input; the first input has the number `first`.
pub(crate) fn each<A, B>(
    first: usize,
    all: impl IntoIterator<Item = A>,
    of: impl Fn(A) -> Result<B, Error>,
) -> Result<Vec<B>, Error> {
    let named = |(input, one)| of(one).map_err(|e| PromptError::Input { input, source: Box::new(e) }.into());
    (first..).zip(all).map(named).collect()
}

/// The forms in which tokenizers write a mask.
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];

/// The index of the one mask in `ids`. It is an error if there is no mask, or more than one.
fn mask_of(ids: &[u32], tokenizer: Option<&Tokenizer>) -> Result<usize, Error> {
    let tokenizer = tokenizer.ok_or(PromptError::NoTokenizer)?;
    let around = tokenizer.encode("")?;
    for mask in MASKS {
        // A mask is one token. A tokenizer splits a text that it does not know as a mask into several.
        let with = tokenizer.encode(mask)?;
        let Some(id) = with.iter().find(|id| !around.contains(id)).filter(|_| with.len() == around.len() + 1) else {
            continue;
        };
        let places: Vec<usize> = (0..ids.len()).filter(|at| ids[*at] == *id).collect();
        return match places[..] {
            [place] => Ok(place),
            _ => Err(PromptError::Masks { mask, count: places.len() }.into()),
        };
    }
    Err(PromptError::NoMask.into())
}

/// The token ids of `texts`, one text after another. Once there are `enough` ids, further texts are left out.
pub fn ids_of(texts: &[String], tokenizer: Option<&Tokenizer>, enough: usize) -> Result<Vec<u32>, Error> {
    let tokenizer = tokenizer.ok_or(PromptError::NoTokenizer)?;
    let mut ids = Vec::new();
    for text in texts {
        if ids.len() >= enough {
            break;
        }
        ids.extend(tokenizer.encode(text)?);
        log_unread(tokenizer, text)?;
    }
    if ids.is_empty() { Err(PromptError::Empty.into()) } else { Ok(ids) }
}

/// The texts in the file `path`: the strings of a JSON list, or the whole of any other file as one text.
pub fn texts(path: &Path) -> Result<Vec<String>, Error> {
    let text = read_text(path)?;
    if path.extension().is_some_and(|end| end == "json") {
        return serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|source| PromptError::NotTexts { path: path.into(), what: source.to_string() }.into());
    }
    Ok(vec![text])
}

/// The text of the file `path` or, if there is no such file, of the bundled file of that name.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = match path.to_str().and_then(bundled_text) {
        Some(text) if !path.exists() => text.to_vec(),
        _ => load(path)?,
    };
    utf8(path, bytes)
}

/// `bytes`, which are those of the file `path`, as text.
pub fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| PromptError::NotUtf8(path.into()).into())
}
