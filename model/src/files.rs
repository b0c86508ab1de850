//! A model as its files lie on disk or in this program.

use std::path::{Path, PathBuf};

use waggle_tokenizer::Published;

use crate::checkpoint::Beside;
use crate::config::MAX_CONFIG_BYTES;
use crate::config::generation::with_ends;
use crate::{Checkpoint, Error, ModelSpec, hints};

/// Longest `tokenizer.json` that is read.
pub const MAX_TOKENIZER_BYTES: u64 = 64 << 20;

/// Configuration, weights and, if there is one, tokenizer of a model.
pub struct ModelFiles {
    /// Name for reports: the last part of the path, or the bundled name.
    pub name: String,
    /// Public shape.
    pub spec: ModelSpec,
    /// The weights, which are not read yet.
    pub checkpoint: Checkpoint,
    /// Text of `config.json`, public.
    pub config: Vec<u8>,
    /// A `tokenizer.json` that unites all files of the tokenizer, or for a model of images the text of
    /// `preprocessor_config.json`. Public.
    pub tokenizer: Option<Vec<u8>>,
    /// Notes for the user: where two files disagree, and which settings are not applied.
    pub notes: Vec<String>,
}

struct Bundled {
    name: &'static str,
    config: &'static [u8],
    tokenizer: Option<&'static [u8]>,
    weights: &'static [u8],
    /// The files with learned columns, by the name of the scoring head.
    learned: &'static [(&'static str, &'static [u8])],
}

/// The bytes of a file under `assets`.
macro_rules! asset {
    ($($part:literal),*) => {
        include_bytes!(concat!("../assets/", $($part),*)) as &[u8]
    };
}

/// The names of the bundled models, the default first.
const NAMES: [&str; 5] = ["shakespeare-gpt2", "shakespeare-llama", "stories260k", "recall", "whose-line"];

#[cfg(not(feature = "bundled"))]
static BUNDLED: &[Bundled] = &[];

/// The bundled models, in the order of [`NAMES`].
#[cfg(feature = "bundled")]
static BUNDLED: &[Bundled] = &[
    Bundled {
        name: "shakespeare-gpt2",
        config: asset!("shakespeare-gpt2/config.json"),
        tokenizer: Some(asset!("shakespeare-gpt2/tokenizer.json")),
        weights: asset!("shakespeare-gpt2/model.safetensors"),
        learned: &[
            ("kvzap", asset!("shakespeare-gpt2/kvzap.safetensors")),
            ("qfilters", asset!("shakespeare-gpt2/qfilters.safetensors")),
            ("keydiff", asset!("shakespeare-gpt2/keydiff.safetensors")),
        ],
    },
    Bundled {
        name: "shakespeare-llama",
        config: asset!("shakespeare-llama/config.json"),
        tokenizer: Some(asset!("shakespeare-llama/tokenizer.json")),
        weights: asset!("shakespeare-llama/model.safetensors"),
        learned: &[
            ("kvzap", asset!("shakespeare-llama/kvzap.safetensors")),
            ("qfilters", asset!("shakespeare-llama/qfilters.safetensors")),
            ("keydiff", asset!("shakespeare-llama/keydiff.safetensors")),
        ],
    },
    Bundled {
        name: "stories260k",
        config: asset!("stories260k/config.json"),
        tokenizer: Some(asset!("stories260k/tokenizer.json")),
        weights: asset!("stories260k/model.safetensors"),
        learned: &[],
    },
    Bundled {
        name: "recall",
        config: asset!("recall/config.json"),
        tokenizer: None,
        weights: asset!("recall/model.safetensors"),
        learned: &[],
    },
    Bundled {
        name: "whose-line",
        config: asset!("whose-line/config.json"),
        tokenizer: Some(asset!("whose-line/tokenizer.json")),
        weights: asset!("whose-line/model.safetensors"),
        learned: &[],
    },
];

/// The shapes of published models without their weights, for plans and random weights. Each has several names, of
/// which the usual one is first.
static SHAPES: &[(&[&str], &[u8])] = &[
    (&["gpt2", "gpt2-small", "openai-community/gpt2"], asset!("shapes/gpt2.json")),
    (&["bert-base", "bert-base-uncased", "google-bert/bert-base-uncased"], asset!("shapes/bert-base.json")),
    (&["bert-large", "bert-large-uncased", "google-bert/bert-large-uncased"], asset!("shapes/bert-large.json")),
    (&["vit-base", "vit-base-patch16-224", "google/vit-base-patch16-224"], asset!("shapes/vit-base.json")),
    (
        &["llama-2-7b", "llama2-7b", "llama-7b", "llama-2-7b-hf", "meta-llama/llama-2-7b-hf"],
        asset!("shapes/llama-2-7b.json"),
    ),
    (
        &["llama-2-13b", "llama2-13b", "llama-2-13b-hf", "meta-llama/llama-2-13b-hf"],
        asset!("shapes/llama-2-13b.json"),
    ),
    (&["longchat-7b", "longchat-7b-v1.5-32k", "lmsys/longchat-7b-v1.5-32k"], asset!("shapes/longchat-7b.json")),
    (&["llama-3-8b", "llama3-8b", "meta-llama-3-8b", "meta-llama/meta-llama-3-8b"], asset!("shapes/llama-3-8b.json")),
    (&["llama-3.2-1b", "llama3.2-1b", "meta-llama/llama-3.2-1b"], asset!("shapes/llama-3.2-1b.json")),
    (&["qwen3-0.6b", "qwen/qwen3-0.6b"], asset!("shapes/qwen3-0.6b.json")),
    (&["smollm2-135m", "huggingfacetb/smollm2-135m"], asset!("shapes/smollm2-135m.json")),
];

/// Bundled texts and files of queries, for studies. Each has the name of its file.
static TEXTS: &[(&str, &[u8])] = &[
    ("tinystories.json", asset!("text/tinystories.json")),
    ("tinyshakespeare.txt", asset!("text/tinyshakespeare.txt")),
    ("queries.jsonl", asset!("recall/queries.jsonl")),
    ("whose-line.tsv", asset!("whose-line/dev.tsv")),
];

impl ModelFiles {
    /// Opens a Hugging Face directory.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let (config, mut notes) = config(dir)?;
        let (spec, wrapping) = ModelSpec::published(&config)?;
        let tokenizer = match spec.image() {
            Some(_) => beside(dir, "preprocessor_config.json")?,
            None => {
                let published = Published::open(dir)?;
                notes.extend(published.notes);
                published.json
            }
        };
        let name = match dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => dir.display().to_string(),
        };
        Ok(ModelFiles { name, spec, checkpoint: Checkpoint::published(dir, &wrapping)?, config, tokenizer, notes })
    }
}

impl ModelSpec {
    /// Reads the shape of a model from its directory or from a single `config.json`.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Ok(ModelSpec::from_config_json(&config(path)?.0)?)
    }
}

/// The text of a `config.json`, and notes for the user. `path` is that file or its directory. If there is a
/// `generation_config.json` beside it, the text has the end tokens of that file, and the notes are on that file.
fn config(path: &Path) -> Result<(Vec<u8>, Vec<String>), Error> {
    let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
    if path.is_dir() && !file.exists() {
        return Err(Error::NoConfig { dir: path.to_owned(), hint: hints::of_directory(path) });
    }
    let dir = file.parent().filter(|_| file.ends_with("config.json"));
    let generation = dir.map(|dir| beside(dir, "generation_config.json")).transpose()?.flatten();
    let config = read(file, MAX_CONFIG_BYTES)?;
    match generation {
        Some(generation) => Ok(with_ends(&config, &generation)?),
        None => Ok((config, Vec::new())),
    }
}

/// The bundled model `name`; [`bundled_names`] lists them. Without the feature `bundled` it is refused
/// ([`Error::Unbundled`]).
pub fn bundled(name: &str) -> Result<ModelFiles, Error> {
    if !is_bundled(name) {
        return Err(Error::NotBundled { name: name.into(), known: NAMES.to_vec() });
    }
    opened(name)
}

fn opened(name: &str) -> Result<ModelFiles, Error> {
    let Some(model) = BUNDLED.iter().find(|m| m.name == name) else {
        return Err(Error::Unbundled(name.into()));
    };
    let mut checkpoint = Checkpoint::from_bytes(name, model.weights)?;
    checkpoint.beside = Beside::Static(model.learned);
    Ok(ModelFiles {
        name: name.into(),
        spec: ModelSpec::from_config_json(model.config)?,
        checkpoint,
        config: model.config.to_vec(),
        tokenizer: model.tokenizer.map(<[u8]>::to_vec),
        notes: Vec::new(),
    })
}

/// Names of the bundled models that this program holds, the default first: none without the feature `bundled`.
pub fn bundled_names() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|_| cfg!(feature = "bundled"))
}

/// Whether a bundled model is called `name`, even if this program was built without its weights.
pub fn is_bundled(name: &str) -> bool {
    NAMES.contains(&name)
}

/// The `config.json` of the published shape `name`, without weights; [`shape_names`] lists the names. A shape has
/// several names, whose case does not matter.
pub fn shape(name: &str) -> Option<&'static [u8]> {
    let named = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
    SHAPES.iter().find(|(names, _)| named(names)).map(|(_, config)| *config)
}

/// The usual names of the published shapes.
pub fn shape_names() -> impl Iterator<Item = &'static str> {
    SHAPES.iter().map(|(names, _)| names[0])
}

/// The file `file` of the bundled model `name`, where `file` is `config.json`, `model.safetensors` or
/// `tokenizer.json`. `None` without the feature `bundled`.
pub fn bundled_file(name: &str, file: &str) -> Option<&'static [u8]> {
    let model = BUNDLED.iter().find(|model| model.name == name)?;
    match file {
        "config.json" => Some(model.config),
        "model.safetensors" => Some(model.weights),
        "tokenizer.json" => model.tokenizer,
        _ => None,
    }
}

/// Names of the bundled texts and files of queries.
pub fn bundled_texts() -> impl Iterator<Item = &'static str> {
    TEXTS.iter().map(|(name, _)| *name)
}

/// The bundled text, or file of queries, called `name`.
pub fn bundled_text(name: &str) -> Option<&'static [u8]> {
    TEXTS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}

/// The tokenizer in the directory of a model, as one `tokenizer.json`; `None` if there is none.
pub fn tokenizer_beside(dir: &Path) -> Result<Option<Vec<u8>>, Error> {
    Ok(Published::open(dir)?.json)
}

fn beside(dir: &Path, name: &str) -> Result<Option<Vec<u8>>, Error> {
    let path = dir.join(name);
    path.exists().then(|| read(path, MAX_TOKENIZER_BYTES)).transpose()
}

fn read(path: PathBuf, limit: u64) -> Result<Vec<u8>, Error> {
    match waggle_files::read(&path, limit) {
        Ok(bytes) if hints::is_lfs(&bytes) => Err(Error::Pointer(path)),
        Ok(bytes) => Ok(bytes),
        Err(source) => Err(Error::File { path, source }),
    }
}

#[cfg(all(test, feature = "bundled"))]
mod tests {
    use super::*;

    #[test]
    fn files_beside_the_configuration_count() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("config.json", BUNDLED[0].config);
        write("model.safetensors", BUNDLED[0].weights);
        write("tokenizer.json", BUNDLED[0].tokenizer.unwrap());
        let alone = ModelFiles::open(dir.path()).unwrap();
        assert!(alone.notes.is_empty() && alone.tokenizer.as_deref() == BUNDLED[0].tokenizer, "{:?}", alone.notes);
        write("generation_config.json", br#"{"eos_token_id": [0, 5], "repetition_penalty": 1.1}"#);
        write("tokenizer_config.json", br#"{"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<mark>"}"#);
        let files = ModelFiles::open(dir.path()).unwrap();
        assert_eq!(files.spec.eos(), [0, 5]);
        assert_eq!(ModelSpec::from_config_json(&files.config).unwrap(), files.spec);
        for path in [dir.path().to_owned(), dir.path().join("config.json")] {
            assert_eq!(ModelSpec::open(&path).unwrap(), files.spec);
        }
        let notes = files.notes.join("; ");
        assert!(notes.contains("repetition_penalty = 1.1") && notes.contains("<mark>"), "{notes}");
        assert!(String::from_utf8(files.tokenizer.unwrap()).unwrap().contains("<mark>"));
        write("tokenizer_config.json", b"{");
        assert!(matches!(ModelFiles::open(dir.path()), Err(Error::Tokenizer(_))));
    }

    #[test]
    fn everything_bundled_is_whole() {
        assert!(bundled_names().eq(NAMES) && BUNDLED.iter().map(|model| model.name).eq(NAMES));
        for name in bundled_names() {
            let files = bundled(name).unwrap();
            files.checkpoint.check(&files.spec.tensors()).unwrap();
        }
        let parameters: Vec<usize> = shape_names()
            .map(|name| ModelSpec::from_config_json(shape(name).unwrap()).unwrap().parameters())
            .collect();
        // The numbers of parameters that the authors give: GPT-2 without its tied head, BERT with a classifier of two
        // classes.
        assert_eq!(
            parameters,
            [
                124_439_808,
                109_483_778,
                335_143_938,
                86_567_656,
                6_738_415_616,
                13_015_864_320,
                6_738_415_616,
                8_030_261_248,
                1_235_814_400,
                596_049_920,
                134_515_008,
            ]
        );
        assert!(shape("meta-llama/Llama-2-7b-hf") == shape("llama-2-7b") && shape("llama-2-7b").is_some());
        for (name, text) in TEXTS {
            assert!(std::str::from_utf8(text).is_ok_and(|text| text.len() > 5_000), "{name}");
        }
        assert!(
            bundled_text("queries.jsonl").is_some() && bundled_text("absent").is_none() && shape("absent").is_none()
        );
    }
}
