//! Counts what a session opens under masks, for tests that compare it with the uniform distribution.

use std::collections::BTreeMap;

/// How many of a word's highest bits are counted.
const BITS: u32 = 4;

/// The fewest words that a cell of a test should expect.
const LEAST: usize = 16;

/// How often the highest bits of the words opened under masks had each value, by operation path.
#[derive(Clone, Debug, Default)]
pub struct Audit {
    /// By path and number of bits looked at.
    counts: BTreeMap<(String, u32), Vec<usize>>,
}

impl Audit {
    /// Counts words opened under `path`. Their widths are `widths`, repeated.
    pub(crate) fn note(&mut self, path: &str, words: &[u64], widths: &[u32]) {
        for (i, &width) in widths.iter().enumerate() {
            let words = words.get(i..).unwrap_or_default();
            if words.is_empty() {
                return;
            }
            let bits = width.min(BITS);
            // Looked up once: there may be millions of words.
            let counts = self.counts.entry((path.to_owned(), bits)).or_insert_with(|| vec![0; 1 << bits]);
            for word in words.iter().step_by(widths.len()) {
                counts[(word >> (width - bits)) as usize & ((1 << bits) - 1)] += 1;
            }
        }
    }

    /// Words noted.
    pub fn words(&self) -> usize {
        self.counts.values().flatten().sum()
    }

    /// The path whose words are furthest from uniform, and their [`deviation`]. Paths with few words are counted
    /// together.
    pub fn worst(&self) -> (String, f64) {
        let mut rest: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        let mut all = Vec::new();
        for ((path, bits), counts) in &self.counts {
            if counts.iter().sum::<usize>() >= LEAST << bits {
                all.push((path.clone(), deviation(counts)));
                continue;
            }
            let sums = rest.entry(*bits).or_insert_with(|| vec![0; 1 << bits]);
            sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        all.extend(rest.values().map(|counts| ("paths of few words".to_owned(), deviation(counts))));
        all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

/// Pearson's statistic of counts that should be equal, [`standardised`].
pub fn deviation(counts: &[usize]) -> f64 {
    let mean = counts.iter().sum::<usize>() as f64 / counts.len() as f64;
    let chi2 = counts.iter().map(|&c| (c as f64 - mean).powi(2) / mean).sum();
    standardised(chi2, counts.len() as f64 - 1.0)
}

/// A chi-square variable of `df` degrees of freedom as a nearly normal one (Wilson and Hilferty, 1931).
pub fn standardised(chi2: f64, df: f64) -> f64 {
    ((chi2 / df).cbrt() - (1.0 - 2.0 / (9.0 * df))) / (2.0 / (9.0 * df)).sqrt()
}
