//! Answers and accounts of a run between two parties.

use mpcache::PolicySpec;
use ndarray::ArrayD;
use net::Phase;
use testing::to_real;

use super::cost::{Account, Accounts};
use super::error::AblationError;
use super::findings::Check;
use super::run::Trace;
use super::shapes::HEADS;

/// Largest difference of an output entry between two parties and fixed point under equal choices. Scores differ by
/// about 2^-12, since each of a query's shares is rounded to 15 bits by itself.
const SAME: f64 = 0.005;

/// Largest difference where a choice differs. Choices may differ where scores, or votes on eviction, tie to their
/// resolution. A head then looks at other values, which are of this size.
const TIED: f64 = 6.0;

/// Share of heads and steps that may be beyond [`SAME`].
const MAX_TIED: f64 = 0.25;

/// How far random traffic may be from the mean that the plan states.
const RANDOM: f64 = 0.3;

/// Compares outputs (1, width), opened, entry by entry.
pub(crate) fn compare(
    policy: &PolicySpec,
    secure: &[ArrayD<u64>],
    fixed: &[ArrayD<u64>],
) -> Result<Check, AblationError> {
    let wrong = |error| AblationError::Wrong { policy: policy.to_string(), error };
    let mut errors = Vec::new();
    for (got, want) in secure.iter().zip(fixed) {
        let (got, want) = (to_real(got), to_real(want));
        if got.shape() != want.shape() {
            return Err(wrong(f64::INFINITY));
        }
        let entries: Vec<f64> = got.iter().zip(&want).map(|(g, w)| (g - w).abs()).collect();
        errors.extend(entries.chunks(HEADS.head_dim).map(|head| head.iter().fold(0.0f64, |a, &b| a.max(b))));
    }
    let largest = errors.iter().fold(0.0f64, |a, &b| a.max(b));
    let (same, tied): (Vec<f64>, Vec<f64>) = errors.iter().partition(|&&error| error <= SAME);
    let check = Check {
        same: same.into_iter().fold(0.0, f64::max),
        largest,
        tied: tied.len() as f64 / errors.len().max(1) as f64,
    };
    let chooses = policy.clusters().is_some_and(|c| c.static_share < 1.0 || c.budget < 1.0);
    let limits = if chooses { (TIED, MAX_TIED) } else { (SAME, 0.0) };
    if secure.len() != fixed.len() || errors.is_empty() || check.largest > limits.0 || check.tied > limits.1 {
        eprintln!("{policy}: {check:?}");
        return Err(wrong(largest));
    }
    Ok(check)
}

/// The plan of the same run equals the ledger to the byte; where traffic is random, nearly, decoding as a whole.
pub(crate) fn plan_holds<T, U>(policy: &PolicySpec, secure: &Trace<T>, plan: &Trace<U>) -> Result<(), AblationError> {
    let differ = |at: String| Err(AblationError::Plan { policy: policy.to_string(), at });
    if policy.random_traffic() {
        let decoded = |entries: &[net::Entry]| -> f64 {
            entries.iter().filter(|e| e.phase != Phase::Setup).map(|e| e.traffic.bytes() as f64).sum()
        };
        let (sent, planned) = (decoded(&secure.ledger), decoded(&plan.ledger));
        return if (sent / planned - 1.0).abs() <= RANDOM {
            Ok(())
        } else {
            differ(format!("the sum of bytes: {sent} sent, {planned} planned"))
        };
    }
    let by_account = |entries: &[net::Entry]| -> Accounts {
        entries.iter().map(|e| (Account { phase: e.phase, path: e.path.clone() }, e.traffic)).collect()
    };
    let (sent, planned) = (by_account(&secure.ledger), by_account(&plan.ledger));
    for key in sent.keys().chain(planned.keys()) {
        if sent.get(key) != planned.get(key) {
            return differ(format!("{key:?}: {:?} sent, {:?} planned", sent.get(key), planned.get(key)));
        }
    }
    Ok(())
}
