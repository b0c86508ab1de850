//! Tools for tests: the parts of outcomes that tests compare.

use waggle_engine::LogitBits;
use waggle_net::{Entry, Phase};
use waggle_session::party::{Outcome, Terms};

/// Terms for tests that compare texts, see [`crate::support::fine`].
pub(crate) fn fine_terms() -> Terms {
    Terms { logit_bits: LogitBits::FINEST, ..Terms::default() }
}

/// [`fine_terms`] under a policy.
pub(crate) fn terms(policy: &str, preprocess: bool) -> Terms {
    let mut terms = Terms { policy: policy.parse().unwrap(), ..fine_terms() };
    terms.protocol.preprocess = preprocess;
    terms
}

/// The accounts that all ledgers of a session agree on.
pub(crate) fn untimed(outcome: &Outcome) -> Vec<Entry> {
    let mut entries = outcome.entries.clone();
    entries.iter_mut().for_each(|entry| entry.traffic = entry.traffic.untimed());
    entries.retain(|entry| entry.traffic != Default::default());
    entries
}

/// Bytes of the offline phase that were not made ahead.
pub(crate) fn late(outcome: &Outcome) -> u64 {
    let sum = |entries: &[Entry]| -> u64 {
        entries.iter().filter(|e| e.phase == Phase::Offline).map(|e| e.traffic.bytes()).sum()
    };
    sum(&outcome.entries) - sum(&outcome.kinds)
}
