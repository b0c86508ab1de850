//! Key pairs for tests.

use crate::{GaloisKeys, ParamSet, PublicKey, SecretKey};
use std::sync::OnceLock;

/// One key pair per set for the whole test binary.
pub(crate) fn keys(set: ParamSet) -> &'static (SecretKey, PublicKey) {
    static KEYS: [OnceLock<(SecretKey, PublicKey)>; ParamSet::ALL.len()] =
        [const { OnceLock::new() }; ParamSet::ALL.len()];
    KEYS[set as usize].get_or_init(|| SecretKey::generate(set, &mut rand::rng()))
}

/// The Galois keys of the key pairs of [`keys`].
pub(crate) fn galois_keys(set: ParamSet) -> &'static GaloisKeys {
    static KEYS: [OnceLock<GaloisKeys>; ParamSet::ALL.len()] = [const { OnceLock::new() }; ParamSet::ALL.len()];
    KEYS[set as usize].get_or_init(|| {
        let message = GaloisKeys::message(&keys(set).0, &mut rand::rng());
        GaloisKeys::from_bytes(set, &message).expect("a message of ours")
    })
}
