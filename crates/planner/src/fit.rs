//! Seconds per unit from the accounts of real sessions.
//!
//! Each account has a processor time t and units u of every kernel. The rates x minimise
//!
//! ```text
//! sum over accounts  (u x - t)^2 / (t T)   +   W  sum over kernels  ((x - s r) / (s r))^2
//! ```
//!
//! over x >= 0, where T is the mean of all t. So an account counts in proportion to the time that it takes. The
//! second sum serves kernels that the accounts hardly tell apart: it keeps their rates near s r, where r are the
//! rates of a reference machine and s is the factor between this machine's times and the reference's.

use waggle_protocols::{Kernel, Rates};

use crate::Units;

/// The weight W: a rate that is off by 100 % weighs as much as this many accounts, each of mean time and predicted
/// with an error of 100 %.
const REFERENCE_WEIGHT: f64 = 0.3;

/// Largest number of rounds of the descent, which stops earlier when no rate moves.
const ROUNDS: usize = 20_000;

/// The time and work of one party for one account.
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// Processor time in seconds.
    pub seconds: f64,
    /// Units of every kernel.
    pub units: Units,
}

impl Observation {
    /// The seconds that `rates` predict for the units.
    pub fn predicted(&self, rates: &Rates) -> f64 {
        Kernel::ALL.iter().zip(&self.units).map(|(&kernel, units)| units * rates.of(kernel)).sum()
    }
}

/// The rates that fit `observations` best. Without observations, the rates of the reference.
pub fn fit(observations: &[Observation]) -> Rates {
    let reference = Rates::reference();
    let used: Vec<&Observation> = observations.iter().filter(|o| o.seconds > 0.0).collect();
    let measured: f64 = used.iter().map(|o| o.seconds).sum();
    let predicted: f64 = used.iter().map(|o| o.predicted(&reference)).sum();
    if measured <= 0.0 || predicted <= 0.0 {
        return reference;
    }
    let (speed, mean) = (measured / predicted, measured / used.len() as f64);
    let n = Kernel::ALL.len();
    // The unknowns are in units of s r, so they are all about 1. Half the gradient is `a x - b`.
    let start: Vec<f64> = Kernel::ALL.iter().map(|&kernel| speed * reference.of(kernel)).collect();
    let mut a = vec![vec![0.0; n]; n];
    let mut b = vec![0.0; n];
    for observation in used {
        let weight = 1.0 / (observation.seconds.max(1e-6 * mean) * mean);
        let row: Vec<f64> = observation.units.iter().zip(&start).map(|(units, start)| units * start).collect();
        for i in (0..n).filter(|&i| row[i] > 0.0) {
            b[i] += weight * row[i] * observation.seconds;
            a[i].iter_mut().zip(&row).for_each(|(a, other)| *a += weight * row[i] * other);
        }
    }
    for i in 0..n {
        a[i][i] += REFERENCE_WEIGHT;
        b[i] += REFERENCE_WEIGHT;
    }
    let mut x = vec![1.0; n];
    for _ in 0..ROUNDS {
        let mut moved: f64 = 0.0;
        for i in 0..n {
            let others: f64 = (0..n).filter(|&j| j != i).map(|j| a[i][j] * x[j]).sum();
            let best = ((b[i] - others) / a[i][i]).max(0.0);
            moved = moved.max((best - x[i]).abs());
            x[i] = best;
        }
        if moved < 1e-9 {
            break;
        }
    }
    let fitted = Kernel::ALL.iter().zip(x.iter().zip(&start));
    fitted.fold(Rates::zero(), |rates, (&kernel, (x, start))| rates.with(kernel, x * start))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel(i: usize) -> Kernel {
        Kernel::ALL[i]
    }

    fn observation(rates: &Rates, amounts: &[(usize, f64)]) -> Observation {
        let mut units = vec![0.0; Kernel::ALL.len()];
        amounts.iter().for_each(|&(i, amount)| units[i] = amount / Rates::reference().of(kernel(i)));
        let observation = Observation { seconds: 0.0, units };
        Observation { seconds: observation.predicted(rates), ..observation }
    }

    #[test]
    fn rates_come_back_where_accounts_tell_them_apart() {
        // Three kernels differ from the reference by factors of their own; all others are twice as slow.
        let slow = |rates: Rates, &kernel: &Kernel| rates.with(kernel, 2.0 * Rates::reference().of(kernel));
        let twice = Kernel::ALL.iter().fold(Rates::zero(), slow);
        let factor = |rates: Rates, i: usize, by: f64| rates.with(kernel(i), by * Rates::reference().of(kernel(i)));
        let truth = factor(factor(factor(twice, 0, 3.0), 1, 0.5), 2, 1.0);
        let observations: Vec<_> = (0..300)
            .map(|i| {
                let (a, b, c) = (f64::from(i % 5), f64::from(i % 7), f64::from(i % 3));
                observation(&truth, &[(0, a + 0.1), (1, b), (2, c), (3, f64::from(i % 2))])
            })
            .collect();
        let rates = fit(&observations);
        for i in 0..3 {
            let (found, expected) = (rates.of(kernel(i)), truth.of(kernel(i)));
            assert!((found / expected - 1.0).abs() < 0.05, "{}: {found} for {expected}", kernel(i));
        }
        // A kernel that no account has is slowed by the factor of the whole machine.
        let unseen = rates.of(kernel(9)) / Rates::reference().of(kernel(9));
        assert!((0.5..3.0).contains(&unseen), "{unseen}");
    }

    #[test]
    fn kernels_that_always_come_together_share_their_time_as_in_the_reference() {
        let reference = Rates::reference();
        let truth = reference.clone().with(kernel(4), 0.0).with(kernel(5), 2.0 * reference.of(kernel(5)));
        let observations: Vec<_> =
            (1..9).map(|i| observation(&truth, &[(4, f64::from(i)), (5, f64::from(i))])).collect();
        let rates = fit(&observations);
        let share = |i: usize| rates.of(kernel(i)) / reference.of(kernel(i));
        assert!((share(4) - share(5)).abs() < 0.01, "{} and {}", share(4), share(5));
    }

    #[test]
    fn nothing_measured_leaves_the_reference() {
        assert_eq!(fit(&[]), Rates::reference());
    }
}
