//! Models by directory or name, and texts.

use std::path::{Path, PathBuf};

use waggle_files::load;
use waggle_model::{Disclosed, LeftOut, ModelFiles, ModelSpec, Parts, bundled, bundled_text, is_bundled, shape};
use waggle_mpcache::PolicySpec;
use waggle_session::party::{self, ModelServer, PublicModel};
use waggle_tokenizer::{Published, Tokenizer, TokenizerError};

use crate::error::{NameError, PromptError};
use crate::pixels::{ImageError, Pixels, Preprocessor, read_image};
use crate::{Error, worker};

/// Opens the model directory `name` or, if there is no such path, the bundled model of that name.
pub fn open_model(name: &str) -> Result<ModelFiles, Error> {
    let path = Path::new(name);
    if !path.exists() && is_bundled(name) {
        return Ok(bundled(name)?);
    }
    if !path.exists() && shape(name).is_some() {
        return Err(NameError::NoWeights(name.into()).into());
    }
    if !path.is_dir() {
        return Err(NameError::NoModel(name.into()).into());
    }
    let files = ModelFiles::open(path)?;
    for LeftOut { prefix, tensors } in files.checkpoint.left_out() {
        eprintln!("{name}: the text model is read; {tensors} tensors called `{prefix}…` are left out");
    }
    say(name, &files.notes);
    Ok(files)
}

/// Says what does not fit in the files of a model.
fn say(name: &str, notes: &[String]) {
    for note in notes {
        eprintln!("{name}: {}", harmless(note));
    }
}

/// Says what the model cannot read of `text`.
pub(crate) fn say_unread(tokenizer: &Tokenizer, text: &str) -> Result<(), Error> {
    let unread = tokenizer.unread(text)?;
    if !unread.is_empty() {
        let unread = unread.iter().map(|c| format!("`{c}`")).collect::<Vec<_>>().join(", ");
        eprintln!("the model has no token for {unread} and does not see what stands there");
    }
    Ok(())
}

/// The `tokenizer.json` at `path`, or one that says what all files of this directory say.
pub(crate) fn read_tokenizer(path: &Path) -> Result<Vec<u8>, Error> {
    if !path.is_dir() {
        return Ok(load(path)?);
    }
    let Published { json, notes } = Published::open(path)?;
    say(&path.to_string_lossy(), &notes);
    Ok(json.ok_or_else(|| NameError::NoTokenizer(path.to_string_lossy().into()))?)
}

/// [`open_model`] with what the adapter in a directory adds to its matrices.
pub fn open_adapted(name: &str, adapter: Option<&Path>) -> Result<ModelFiles, Error> {
    let files = open_model(name)?;
    let Some(dir) = adapter else { return Ok(files) };
    let checkpoint = files.checkpoint.with_adapter(dir, &files.spec)?;
    Ok(ModelFiles { checkpoint, ..files })
}

/// What is said to be public of a model that is planned, and what is added to it.
#[derive(Clone, Debug, Default)]
pub struct Stated<'a> {
    /// The public parts.
    pub parts: Parts,
    /// The rank of what is added to all matrices of the layers, which need no values.
    pub rank: usize,
    /// The directory of a LoRA.
    pub adapter: Option<&'a Path>,
}

impl Stated<'_> {
    /// The model of a shape alone: all weights are assumed to be below 16.
    pub fn of_shape(&self, name: String, spec: ModelSpec) -> Result<PublicModel, Error> {
        let disclosed = Disclosed::with_rank(self.parts.clone(), self.rank, &spec);
        Ok(PublicModel::of_shape(name, spec, disclosed)?)
    }
}

/// The public part of a model that may be a configuration alone.
pub fn public_model(name: &str, policy: &PolicySpec, stated: &Stated) -> Result<PublicModel, Error> {
    let path = Path::new(name);
    if let (false, Some(config)) = (path.exists(), shape(name)) {
        return stated.of_shape(name.into(), ModelSpec::from_config_json(config).map_err(waggle_model::Error::from)?);
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let only_config =
        stated.rank > 0 || path.is_file() || path.is_dir() && !weights.iter().any(|file| path.join(file).is_file());
    if !only_config {
        let files = open_adapted(name, stated.adapter)?;
        // A plan needs no columns, and no policy reads others than its own. They may change a matrix's scale.
        let policy = if files.checkpoint.has_learned() { policy.clone() } else { PolicySpec::default() };
        return Ok(ModelServer::builder().policy(&policy).public(&stated.parts).load(files)?.public().clone());
    }
    let spec = if is_bundled(name) && !path.exists() { bundled(name)?.spec } else { ModelSpec::open(path)? };
    let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
    stated.of_shape(name, spec)
}

/// Bytes of the weights that a server of the model directory `name` maps; `None` if there are none.
pub fn mapped_bytes(name: &str) -> Option<u64> {
    let files = std::fs::read_dir(name).ok()?.flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    let bytes: u64 = weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|data| data.len()).sum();
    (bytes > 0).then_some(bytes)
}

/// The tokenizer of a model of one's own, if it has one.
pub fn tokenizer(files: &ModelFiles) -> Result<Option<Tokenizer>, Error> {
    match files.spec.image() {
        Some(_) => Err(waggle_model::Error::NoTexts.into()),
        None => Ok(files.tokenizer.as_deref().map(Tokenizer::from_bytes).transpose()?),
    }
}

/// What makes a model's input of words or of pixels.
pub enum Reader {
    /// Texts, by a tokenizer if there is one.
    Texts(Option<Tokenizer>),
    /// Images, by their settings if there are any.
    Images(Option<Preprocessor>),
}

impl Reader {
    /// That of a model of one's own.
    pub fn of(files: &ModelFiles) -> Result<Self, Error> {
        match files.spec.image() {
            Some(_) => Reader::images(files.tokenizer.as_deref()),
            None => Ok(Reader::Texts(tokenizer(files)?)),
        }
    }

    /// That of a server's model. What it cannot read is refused before it is encoded.
    pub fn foreign(model: &PublicModel) -> Result<Self, Error> {
        let bytes = model.tokenizer.as_deref();
        match model.spec.image() {
            Some(_) => Reader::images(bytes),
            None => {
                let tokenizer = bytes.map(worker::foreign).transpose()?;
                Ok(Reader::Texts(tokenizer.map(|tokenizer| tokenizer.within(model.spec.max_positions()))))
            }
        }
    }

    /// By the text of a `preprocessor_config.json`, if there is one.
    pub fn images(bytes: Option<&[u8]>) -> Result<Self, Error> {
        Ok(Reader::Images(bytes.map(Preprocessor::from_bytes).transpose()?))
    }

    /// The tokenizer, if it is one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        match self {
            Reader::Texts(tokenizer) => tokenizer.as_ref(),
            Reader::Images(_) => None,
        }
    }
}

/// A model's input.
#[derive(Clone, Debug)]
pub enum Prompt {
    /// Words, for a model with a tokenizer.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
    /// Two texts that an encoder reads together.
    Pair(String, String),
    /// The image in a PNG or a JPEG, for a model that reads images.
    Image(PathBuf),
    /// Several of these, which a model reads side by side.
    Several(Vec<Prompt>),
    /// The text of a file, or with the ending `.json` a list of texts; some are bundled.
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
    /// Whether it is pixels, or several of these.
    pub(crate) fn is_image(&self) -> bool {
        match self {
            Prompt::Image(_) => true,
            Prompt::Several(all) => all.iter().any(Prompt::is_image),
            _ => false,
        }
    }

    /// What a model of the shape `spec` reads.
    ///
    /// # Errors
    /// If it is nothing that the model reads.
    pub fn ready(self, spec: &ModelSpec, reader: &Reader) -> Result<party::Prompt, Error> {
        self.read()?.prompt(spec, reader)
    }

    /// The ids of one text.
    ///
    /// # Errors
    /// If it is no text, or has no ids.
    pub fn ids(self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        self.read()?.ids(tokenizer)
    }

    /// Reads a file, once and before anybody is bothered.
    pub(crate) fn read(self) -> Result<Words, Error> {
        Ok(match self {
            Prompt::Text(text) => Words::Texts(vec![text]),
            Prompt::Ids(ids) => Words::Ids(ids),
            Prompt::Pair(first, second) => Words::Pair(first, second),
            Prompt::Image(path) => Words::Image(read_image(&path)?),
            Prompt::Several(all) => Words::Several(each(1, all, Prompt::read)?),
            Prompt::File(path) => Words::Texts(texts(&path)?),
        })
    }
}

/// What `of` makes of each of several inputs, which count from `first` on. An error says of which one.
pub(crate) fn each<A, B>(
    first: usize,
    all: impl IntoIterator<Item = A>,
    of: impl Fn(A) -> Result<B, Error>,
) -> Result<Vec<B>, Error> {
    let named = |(input, one)| of(one).map_err(|e| PromptError::Input { input, source: Box::new(e) }.into());
    (first..).zip(all).map(named).collect()
}

/// A prompt that needs no file any more.
pub(crate) enum Words {
    Texts(Vec<String>),
    Pair(String, String),
    Ids(Vec<u32>),
    Image(Pixels),
    Several(Vec<Words>),
}

impl Words {
    /// The ids of one text.
    pub(crate) fn ids(self, tokenizer: Option<&Tokenizer>) -> Result<Vec<u32>, Error> {
        match self {
            Words::Ids(ids) => Ok(ids),
            Words::Texts(texts) => ids_of(&texts, tokenizer, usize::MAX),
            Words::Pair(..) => Err(PromptError::Pair.into()),
            Words::Image(_) => Err(waggle_model::Error::NoImages.into()),
            Words::Several(all) => {
                Err(waggle_model::Error::Texts { texts: all.len(), what: "one list of ids".into() }.into())
            }
        }
    }

    /// What `prompt` makes of each of these, which a model reads side by side.
    pub(crate) fn prompts(
        self,
        prompt: impl Fn(Self) -> Result<party::Prompt, Error>,
    ) -> Result<Vec<party::Prompt>, Error> {
        match self {
            Words::Several(all) => each(1, all, prompt),
            one => Ok(vec![prompt(one)?]),
        }
    }

    /// The prompt that a model of the shape `spec` reads.
    pub(crate) fn prompt(self, spec: &ModelSpec, reader: &Reader) -> Result<party::Prompt, Error> {
        match (self, spec.image()) {
            (Words::Image(image), Some(shape)) => {
                let Reader::Images(Some(preprocessor)) = reader else {
                    return Err(ImageError::NoPreprocessor.into());
                };
                Ok(party::Prompt::image(preprocessor.patches(&image, shape)?))
            }
            (_, Some(_)) => Err(waggle_model::Error::NoTexts.into()),
            (words, None) => {
                let (ids, second) = match words {
                    Words::Pair(first, second) if spec.is_encoder() => {
                        let tokenizer = reader.tokenizer().ok_or(PromptError::NoTokenizer)?;
                        tokenizer.encode_pair(&first, &second)?
                    }
                    one => (one.ids(reader.tokenizer())?, None),
                };
                let mask = if spec.fills_mask() { Some(mask_of(&ids, reader.tokenizer())?) } else { None };
                Ok(party::Prompt::from(&ids).with_second(second).with_mask(mask))
            }
        }
    }
}

/// How tokenizers write a mask.
const MASKS: [&str; 2] = ["[MASK]", "<mask>"];

/// The place of the one mask in `ids`.
fn mask_of(ids: &[u32], tokenizer: Option<&Tokenizer>) -> Result<usize, Error> {
    let tokenizer = tokenizer.ok_or(PromptError::NoTokenizer)?;
    let around = tokenizer.encode("")?;
    for mask in MASKS {
        // A text that is no mask has more pieces than one.
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

/// The tokens of `texts`, joined: `enough` of them or more, if there are so many.
pub fn ids_of(texts: &[String], tokenizer: Option<&Tokenizer>, enough: usize) -> Result<Vec<u32>, Error> {
    let tokenizer = tokenizer.ok_or(PromptError::NoTokenizer)?;
    let mut ids = Vec::new();
    for text in texts {
        if ids.len() >= enough {
            break;
        }
        ids.extend(tokenizer.encode(text)?);
        say_unread(tokenizer, text)?;
    }
    if ids.is_empty() { Err(PromptError::Empty.into()) } else { Ok(ids) }
}

/// The texts in `path`: the strings of a JSON file, or the one text that another file is.
pub fn texts(path: &Path) -> Result<Vec<String>, Error> {
    let text = read_text(path)?;
    if path.extension().is_some_and(|end| end == "json") {
        return serde_json::from_str(text.trim_start_matches('\u{feff}'))
            .map_err(|source| PromptError::NotTexts { path: path.into(), what: source.to_string() }.into());
    }
    Ok(vec![text])
}

/// The text or the queries in `path` or, if there is no such file, in the bundled one of that name.
pub fn read_text(path: &Path) -> Result<String, Error> {
    let bytes = match path.to_str().and_then(bundled_text) {
        Some(text) if !path.exists() => text.to_vec(),
        _ => load(path)?,
    };
    utf8(path, bytes)
}

/// The text of the file at `path`.
pub fn utf8(path: &Path, bytes: Vec<u8>) -> Result<String, Error> {
    String::from_utf8(bytes).map_err(|_| PromptError::NotUtf8(path.into()).into())
}

/// The text of `tokens`: words if there is a tokenizer, and the names of an encoder's classes, a line each.
pub fn text_of(
    spec: &ModelSpec,
    tokenizer: Option<&Tokenizer>,
    tokens: &[u32],
) -> Result<Option<String>, TokenizerError> {
    match spec.labels() {
        Some(labels) => {
            let names: Vec<&str> = tokens.iter().filter_map(|token| Some(&**labels.get(*token as usize)?)).collect();
            Ok(Some(names.join("\n")))
        }
        None => tokenizer.map(|tokenizer| tokenizer.decode(tokens)).transpose(),
    }
}

/// Text without control characters except line ends and tabs, because the tokenizer may be the server's and the
/// terminal is ours.
pub fn harmless(text: &str) -> String {
    text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokenizer_of_a_directory_is_all_of_its_files() {
        let dir = tempfile::tempdir().unwrap();
        let empty = read_tokenizer(dir.path());
        assert!(matches!(&empty, Err(Error::Name(NameError::NoTokenizer(_)))), "{empty:?}");
        std::fs::write(dir.path().join("vocab.txt"), "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nking\nKing\n").unwrap();
        for (lower, king) in [(true, 5), (false, 6)] {
            let config = format!("{{\"tokenizer_class\": \"BertTokenizer\", \"do_lower_case\": {lower}}}");
            std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
            let tokenizer = Tokenizer::from_bytes(&read_tokenizer(dir.path()).unwrap()).unwrap();
            assert_eq!(tokenizer.encode("King").unwrap(), [2, king, 3]);
        }
    }
}
