//! Models by directory or name, and files.

use std::io::{self, Write};
use std::path::Path;

use files::Replacement;
use model::{ModelFiles, ModelSpec, bundled, bundled_names, bundled_text, shape};
use mpcache::PolicySpec;
use serde::Serialize;
use session::party::{ModelServer, PublicModel};

use super::Error;

/// The bundled model that is used where none is named.
pub(super) const DEFAULT_MODEL: &str = "shakespeare-gpt2";

/// Opens the model directory `name` or, if there is no such path, the bundled model of that name.
pub(super) fn open_model(name: &str) -> Result<ModelFiles, Error> {
    let path = Path::new(name);
    if !path.exists() && bundled_names().any(|bundled| bundled == name) {
        return Ok(bundled(name)?);
    }
    if !path.exists() && shape(name).is_some() {
        return Err(Error::NoWeights { name: name.into() });
    }
    if !path.is_dir() {
        return Err(Error::NoModel { name: name.into() });
    }
    Ok(ModelFiles::open(path)?)
}

/// What is public about a model that may be a configuration alone.
pub(super) fn public_model(name: &str, policy: &PolicySpec) -> Result<PublicModel, Error> {
    let path = Path::new(name);
    if let (false, Some(config)) = (path.exists(), shape(name)) {
        return Ok(unweighted(name.into(), ModelSpec::from_config_json(config).map_err(model::Error::from)?));
    }
    let weights = ["model.safetensors", "model.safetensors.index.json"];
    let only_config = path.is_file() || path.is_dir() && !weights.iter().any(|file| path.join(file).is_file());
    if !only_config {
        let files = open_model(name)?;
        // A plan needs no columns, and no policy reads others than its own. They may change a matrix's scale.
        let policy = if files.checkpoint.has_learned() { policy.clone() } else { PolicySpec::default() };
        return Ok(ModelServer::load_for(&policy, files)?.public().clone());
    }
    let spec = ModelSpec::open(path)?;
    let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
    Ok(unweighted(name, spec))
}

/// The model of a shape alone: all weights are assumed to be below 16.
pub(super) fn unweighted(name: String, spec: ModelSpec) -> PublicModel {
    let frac_bits = vec![protocols::DEFAULT_WEIGHT_FRAC; spec.weight_specs().len()];
    PublicModel { name, spec, frac_bits, tokenizer: None, template: None }
}

/// Bytes of the weights that a server of the model directory `name` maps; `None` if there are none.
pub(super) fn mapped_bytes(name: &str) -> Option<u64> {
    let files = std::fs::read_dir(name).ok()?.flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    let bytes: u64 = weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|data| data.len()).sum();
    (bytes > 0).then_some(bytes)
}

/// Longest report, text or file of settings that is read.
pub(super) const MAX_FILE_BYTES: u64 = 1 << 30;

/// The bytes of `path`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    files::read(path, MAX_FILE_BYTES).map_err(|source| Error::File { path: path.into(), source })
}

/// The bytes of the text or the queries in `path` or, if there is no such file, in the bundled one of that name.
pub(super) fn read_text(path: &Path) -> Result<Vec<u8>, Error> {
    match path.to_str().and_then(bundled_text) {
        Some(text) if !path.exists() => Ok(text.to_vec()),
        _ => read(path),
    }
}

/// Makes sure that `path`, if given, can be written, before long work is done for it. An older file stays as it is
/// until [`write()`] or [`write_json`] replaces it, so a command that fails leaves it and no empty one.
pub(super) fn check_writable(path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    Replacement::check(path).map_err(|source| Error::File { path: path.into(), source })
}

/// Replaces `path` by `bytes` that hold nobody's words.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, Replacement::create(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `bytes` for its owner alone to read.
pub(super) fn write_private(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    replace(path, Replacement::private(path), |out| out.write_all(bytes))
}

/// Replaces `path` by `value` as JSON. A report may hold a text, so its owner alone may read it.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    replace(path, Replacement::private(path), |out| {
        serde_json::to_writer(&mut *out, value)?;
        out.write_all(b"\n")
    })
}

fn replace(
    path: &Path,
    new: io::Result<Replacement>,
    fill: impl FnOnce(&mut Replacement) -> io::Result<()>,
) -> Result<(), Error> {
    let replaced = new.and_then(|mut out| {
        fill(&mut out)?;
        out.commit()
    });
    replaced.map_err(|source| Error::File { path: path.into(), source })
}
