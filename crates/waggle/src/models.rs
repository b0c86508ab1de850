//! Models by directory or name.

use std::path::Path;

use tracing::warn;
use waggle_files::load;
use waggle_model::{Disclosed, LeftOut, ModelFiles, ModelSpec, Parts, bundled, is_bundled, shape};
use waggle_mpcache::PolicySpec;
use waggle_session::party::{ModelServer, PublicModel};
use waggle_tokenizer::Published;

use crate::Error;
use crate::error::NameError;
use crate::reader::harmless;

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
        warn!("{name}: the text model is read; {tensors} tensors called `{prefix}…` are left out");
    }
    log(name, &files.notes);
    Ok(files)
}

/// Logs `notes`, the contradictions in the files of the model `name`.
fn log(name: &str, notes: &[String]) {
    for note in notes {
        warn!("{name}: {}", harmless(note));
    }
}

/// The `tokenizer.json` at `path`, or a tokenizer made from all files of the directory `path`.
pub(crate) fn read_tokenizer(path: &Path) -> Result<Vec<u8>, Error> {
    if !path.is_dir() {
        return Ok(load(path)?);
    }
    let Published { json, notes } = Published::open(path)?;
    log(&path.to_string_lossy(), &notes);
    Ok(json.ok_or_else(|| NameError::NoTokenizer(path.to_string_lossy().into()))?)
}

/// [`open_model`], with the `adapter` in a directory added to the model's matrices.
pub fn open_adapted(name: &str, adapter: Option<&Path>) -> Result<ModelFiles, Error> {
    let files = open_model(name)?;
    let Some(dir) = adapter else { return Ok(files) };
    let checkpoint = files.checkpoint.with_adapter(dir, &files.spec)?;
    Ok(ModelFiles { checkpoint, ..files })
}

/// What the caller states of a model to plan: its public parts, and an adapter.
#[derive(Clone, Debug, Default)]
pub struct Stated<'a> {
    /// The public parts.
    pub parts: Parts,
    /// Rank of an assumed adapter of all matrices of the layers. A plan does not need its values.
    pub rank: usize,
    /// The directory of a LoRA, an adapter that is added to the model.
    pub adapter: Option<&'a Path>,
}

impl Stated<'_> {
    /// The public model of a shape without weights. All weights are assumed to be below 16.
    pub fn of_shape(&self, name: String, spec: ModelSpec) -> Result<PublicModel, Error> {
        let disclosed = Disclosed::with_rank(self.parts.clone(), self.rank, &spec);
        Ok(PublicModel::of_shape(name, spec, disclosed)?)
    }
}

/// The public part of the model `name`, which may be a configuration without weights.
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
        // A plan does not need the values of learned columns, but they may change a matrix's scale. No policy reads
        // other columns than its own.
        let known = policy.scoring_head().is_none_or(|head| files.checkpoint.has_learned(head));
        let policy = if known { policy.clone() } else { PolicySpec::default() };
        return Ok(ModelServer::builder().policy(&policy).public(&stated.parts).load(files)?.public().clone());
    }
    let spec = if is_bundled(name) && !path.exists() { bundled(name)?.spec } else { ModelSpec::open(path)? };
    let name = path.file_stem().map_or_else(|| name.into(), |stem| stem.to_string_lossy().into_owned());
    stated.of_shape(name, spec)
}

/// Bytes of the weights that a server of the model directory `name` maps; `None` if the directory has no weights.
pub fn mapped_bytes(name: &str) -> Option<u64> {
    let files = std::fs::read_dir(name).ok()?.flatten();
    let weights = files.filter(|file| file.path().extension().is_some_and(|end| end == "safetensors"));
    let bytes: u64 = weights.filter_map(|file| std::fs::metadata(file.path()).ok()).map(|data| data.len()).sum();
    (bytes > 0).then_some(bytes)
}

#[cfg(test)]
mod tests {
    use waggle_tokenizer::Tokenizer;

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
