//! Times on a fixed secret against times on changing ones, by Welch's t-test.
//!
//! Both classes are measured in random order, in batches. Every batch has fresh secrets of the second class, and
//! copies of the fixed secret at as many addresses, so that caches treat both classes alike. Times have a long tail
//! of interrupts. The test is therefore repeated on the times below each of some percentiles, which the first batch
//! sets, and the largest |t| counts.

use std::time::Instant;

use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use waggle_bits::probe::Probe;

/// Secrets of each class in a batch.
const POOL: usize = 12;

/// Measurements of a batch.
const BATCH: usize = 500;

/// Percentiles at which times are cut, beside no cut.
const CUTS: usize = 20;

/// Measurements below which a test says nothing.
const FEWEST: usize = 200;

/// The result of a test.
pub(crate) struct Comparison {
    /// Measurements.
    pub(crate) count: usize,
    /// Microseconds of the median of the first batch.
    pub(crate) median: f64,
    /// Mean on the fixed secret over mean on others, less 1, without the slowest times.
    pub(crate) difference: f64,
    /// The t of the largest amount over all cuts.
    pub(crate) t: f64,
}

/// Mean and variance as numbers come in (Welford).
#[derive(Clone, Copy, Default)]
struct Moments {
    count: f64,
    mean: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, x: f64) {
        self.count += 1.0;
        let d = x - self.mean;
        self.mean += d / self.count;
        self.squares += d * (x - self.mean);
    }

    /// The variance of the mean.
    fn spread(&self) -> f64 {
        self.squares / (self.count - 1.0) / self.count
    }
}

/// Welch's t of two classes; 0 where one has too few members.
fn t([a, b]: &[Moments; 2]) -> f64 {
    let spread = a.spread() + b.spread();
    let known = a.count >= FEWEST as f64 && b.count >= FEWEST as f64 && spread > 0.0;
    if known { (a.mean - b.mean) / spread.sqrt() } else { 0.0 }
}

/// Measures `probe` so often, or until `seconds` have passed.
pub(crate) fn compare(probe: &Probe, measurements: usize, seconds: f64) -> Comparison {
    let mut rng = StdRng::seed_from_u64(7);
    let start = Instant::now();
    let mut classes = [[Moments::default(); 2]; CUTS + 1];
    let (mut cuts, mut median, mut count) = (Vec::new(), 0.0, 0);
    while count < measurements && (count < 2 * BATCH || start.elapsed().as_secs_f64() < seconds) {
        let batch = batch(probe, &mut rng);
        count += batch.len();
        if cuts.is_empty() {
            // dudect's choice: ever closer to the slowest.
            let mut sorted: Vec<f64> = batch.iter().map(|(_, time)| *time).collect();
            sorted.sort_unstable_by(f64::total_cmp);
            median = sorted[sorted.len() / 2];
            let part = |i: usize| 1.0 - 0.5f64.powf(10.0 * (i + 1) as f64 / CUTS as f64);
            cuts = (0..CUTS).map(|i| sorted[(part(i) * (sorted.len() - 1) as f64) as usize]).collect();
            cuts.push(f64::INFINITY);
            // The first batch has set the cuts, and its first times are of cold caches; it is dropped.
            continue;
        }
        for (class, time) in batch {
            for (moments, _) in classes.iter_mut().zip(&cuts).filter(|(_, cut)| time < **cut) {
                moments[class].add(time);
            }
        }
    }
    let t = classes.iter().map(t).fold(0.0, |most: f64, t| if t.abs() > most.abs() { t } else { most });
    let [fixed, others] = &classes[CUTS / 2];
    Comparison { count, median, difference: fixed.mean / others.mean - 1.0, t }
}

/// Times in microseconds, each with its class: 0 for the fixed secret.
fn batch(probe: &Probe, rng: &mut StdRng) -> Vec<(usize, f64)> {
    let fixed = vec![0; probe.secret_bytes];
    let mut runs: Vec<[Box<dyn FnMut()>; 2]> = (0..POOL)
        .map(|_| {
            let mut other = vec![0; probe.secret_bytes];
            rng.fill_bytes(&mut other);
            [&fixed, &other].map(|secret| (probe.prepare)(secret))
        })
        .collect();
    runs.iter_mut().flatten().for_each(|run| run());
    (0..BATCH)
        .map(|_| {
            let (class, place) = (usize::from(rng.random::<bool>()), rng.random_range(0..POOL));
            let run = &mut runs[place][class];
            let start = Instant::now();
            run();
            (class, start.elapsed().as_nanos() as f64 / 1e3)
        })
        .collect()
}
