//! Where the file with learned columns is, beside a checkpoint.

use std::path::PathBuf;

/// The file with learned columns, in the directory of a model.
pub const LEARNED_FILE: &str = "kvzap.safetensors";

/// Where the file with learned columns is.
#[derive(Clone, Debug, Default)]
pub(crate) enum Beside {
    /// There is none.
    #[default]
    Nothing,
    /// Perhaps here.
    File(PathBuf),
    /// In this program.
    #[cfg_attr(not(feature = "bundled"), expect(dead_code, reason = "bundled models have them"))]
    Static(&'static [u8]),
}
