//! A model as it lies on disk, or in this program.

use std::path::{Path, PathBuf};

use crate::{Checkpoint, Error, ModelSpec};

/// Configuration, weights and, if there is one, tokenizer of a model.
pub struct ModelFiles {
    /// Name for reports: the last part of the path, or the bundled name.
    pub name: String,
    /// Public shape.
    pub spec: ModelSpec,
    /// Weights, not read yet.
    pub checkpoint: Checkpoint,
    /// Text of `tokenizer.json`, public.
    pub tokenizer: Option<Vec<u8>>,
}

struct Bundled {
    name: &'static str,
    config: &'static [u8],
    tokenizer: &'static [u8],
    weights: &'static [u8],
    learned: &'static [u8],
}

macro_rules! include_models {
    ($($name:literal),*) => {
        &[$(Bundled {
            name: $name,
            config: include_bytes!(concat!("../assets/", $name, "/config.json")),
            tokenizer: include_bytes!(concat!("../assets/", $name, "/tokenizer.json")),
            weights: include_bytes!(concat!("../assets/", $name, "/model.safetensors")),
            learned: include_bytes!(concat!("../assets/", $name, "/kvzap.safetensors")),
        }),*]
    };
}

/// The models in this program.
static BUNDLED: &[Bundled] = include_models!["shakespeare-gpt2", "shakespeare-llama"];

impl ModelFiles {
    /// Opens a Hugging Face directory.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let spec = ModelSpec::from_config_json(&read(dir.join("config.json"))?)?;
        let tokenizer = dir.join("tokenizer.json");
        let tokenizer = if tokenizer.is_file() { Some(read(tokenizer)?) } else { None };
        let name = match dir.canonicalize().unwrap_or_else(|_| dir.to_owned()).file_name() {
            Some(name) => name.to_string_lossy().into_owned(),
            None => dir.display().to_string(),
        };
        Ok(ModelFiles { name, spec, checkpoint: Checkpoint::open(dir)?, tokenizer })
    }
}

impl ModelSpec {
    /// The shape of a model from its directory or from a `config.json` alone.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let file = if path.is_dir() { path.join("config.json") } else { path.to_owned() };
        Ok(ModelSpec::from_config_json(&read(file)?)?)
    }
}

/// The bundled model `name`; [`bundled_names`] lists them.
pub fn bundled(name: &str) -> Result<ModelFiles, Error> {
    let Some(model) = BUNDLED.iter().find(|m| m.name == name) else {
        return Err(Error::NotBundled { name: name.into(), known: bundled_names().collect() });
    };
    Ok(ModelFiles {
        name: name.into(),
        spec: ModelSpec::from_config_json(model.config)?,
        checkpoint: Checkpoint::from_bytes(name, model.weights)?.beside_bytes(model.learned),
        tokenizer: Some(model.tokenizer.to_vec()),
    })
}

/// Names of the bundled models, the default first.
pub fn bundled_names() -> impl Iterator<Item = &'static str> {
    BUNDLED.iter().map(|m| m.name)
}

fn read(path: PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(&path).map_err(|source| Error::File { path, source })
}
