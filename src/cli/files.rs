//! Models by directory or name, and files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use model::{ModelFiles, bundled, bundled_names};
use serde::Serialize;

use super::Error;

/// The bundled model that is used where none is named.
pub(super) const DEFAULT_MODEL: &str = "shakespeare-gpt2";

/// Opens the model directory `name` or, if there is no such path, the bundled model of that name.
pub(super) fn open_model(name: &str) -> Result<ModelFiles, Error> {
    let path = Path::new(name);
    if !path.exists() && bundled_names().any(|bundled| bundled == name) {
        return Ok(bundled(name)?);
    }
    if !path.is_dir() {
        return Err(Error::NoModel { name: name.into(), bundled: bundled_names().collect() });
    }
    Ok(ModelFiles::open(path)?)
}

/// The bytes of `path`.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.into(), source })
}

/// Makes sure that `path`, if given, can be written, before long work is done for it.
pub(super) fn check_writable(path: Option<&Path>) -> Result<(), Error> {
    let Some(path) = path else { return Ok(()) };
    match File::options().append(true).create(true).open(path) {
        Ok(_) => Ok(()),
        Err(source) => Err(Error::File { path: path.into(), source }),
    }
}

/// Writes `bytes` to `path`.
pub(super) fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    std::fs::write(path, bytes).map_err(|source| Error::File { path: path.into(), source })
}

/// Writes `value` as JSON to `path`.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Error> {
    let failed = |source| Error::File { path: path.into(), source };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    serde_json::to_writer(&mut out, value).map_err(|e| failed(e.into()))?;
    out.write_all(b"\n").and_then(|()| out.flush()).map_err(failed)
}
