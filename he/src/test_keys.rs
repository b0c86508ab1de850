//! Key pairs for tests.

use crate::{ParamSet, PublicKey, SecretKey};
use std::sync::OnceLock;

/// One key pair per set for the whole test binary.
pub(crate) fn keys(set: ParamSet) -> &'static (SecretKey, PublicKey) {
    static KEYS: [OnceLock<(SecretKey, PublicKey)>; ParamSet::ALL.len()] =
        [const { OnceLock::new() }; ParamSet::ALL.len()];
    KEYS[set as usize].get_or_init(|| SecretKey::generate(set, &mut rand::rng()))
}
