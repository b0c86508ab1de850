//! Watches what sessions open under masks, for tests: whether opened words are uniform, whether the words that one
//! place opens differ by uniform words from those that it opened before, and whether a mask serves twice. Uniform
//! words alone say little: two secrets under one mask both look uniform, and their difference does not.
//!
//! A mask is known by itself, not by where the stock believes that it stands. The name of a mask is taken from a
//! party's own words: the last 128 bits of masks that are opened side by side, or the first words of a unit of a
//! correlation. Names are random, so one occurs twice only if its mask was handed out twice. Masks of fewer than
//! [`NAME_BITS`] bits have no name.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use waggle_net::Role;
use zeroize::Zeroizing;

use crate::Error;
use crate::words::mask;

/// How many of the highest bits of each word are looked at. The values that they take are counted.
const BITS: u32 = 4;

/// The fewest words that a cell of a chi-square test should expect.
const LEAST: usize = 16;

/// Number of positions of a place, from its first on, whose words are compared with the words that were opened there
/// before.
const COMPARED: usize = 1 << 16;

/// The most names of masks that are remembered. In a longer session, only names below a bound are remembered, and the
/// bound falls.
const REMEMBERED: usize = 1 << 18;

/// The fewest bits of a name. Two of 2^20 names are equal by chance with a probability below 2^-56.
const NAME_BITS: u32 = 96;

/// The most words from which the name of a unit is taken.
const UNIT_WORDS: usize = 8;

/// [`Audit::worst`] of a correct session exceeds this with a probability below 10^-15 for each place and statistic.
/// All tests together have fewer than 10^5 places and statistics.
pub const LIMIT: f64 = 9.0;

/// Counts of the values of the highest bits of words, by operation path and number of bits looked at.
type Counts = BTreeMap<(String, u32), Vec<usize>>;

/// The words that one party opened under masks. Copies share it.
#[derive(Clone, Debug, Default)]
pub struct Audit(Arc<Mutex<Book>>);

#[derive(Debug, Default)]
struct Book {
    words: Counts,
    /// Counts of the differences between each opened word and the word that the same place opened before.
    differences: Counts,
    /// The highest byte of the word that was opened last at each position of each path.
    last: HashMap<String, Vec<u8>>,
    /// The path where a mask served, by the name of the mask.
    spent: HashMap<u128, Arc<str>>,
    /// Only names with at least this number of leading zeros are remembered.
    zeros: u32,
    reused: Option<String>,
    broken: Option<Broken>,
    /// For each kind, the words that the stock handed out first, for [`Broken::Units`].
    first: BTreeMap<String, Vec<u64>>,
}

/// A fault made on purpose, so that a test can see that the audit notices it. A session with a fault goes on after a
/// mask has served twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// The stock hands out the first units again and again.
    Units,
    /// A row that replaces a row that was cut off takes the mask of the old row.
    Slots,
}

static WATCHED: Mutex<Option<[Audit; 2]>> = Mutex::new(None);
static ONE_AT_A_TIME: RwLock<()> = RwLock::new(());

thread_local! {
    /// How many sessions of this thread are watched, or are not to be.
    static WITHIN: Cell<usize> = const { Cell::new(0) };
}

/// Runs `sessions` of this process under two audits, one for each party. Waits until other calls of this function,
/// and of [`unwatched`], have ended.
pub fn watch<T>(broken: Option<Broken>, sessions: impl FnOnce(&[Audit; 2]) -> T) -> T {
    let _turn = ONE_AT_A_TIME.write().unwrap_or_else(PoisonError::into_inner);
    let _within = Within::enter();
    let audits = [(); 2].map(|()| Audit::breaking(broken));
    let set = |audits| *WATCHED.lock().unwrap_or_else(PoisonError::into_inner) = audits;
    set(Some(audits.clone()));
    let done = sessions(&audits);
    set(None);
    done
}

/// Runs a session that [`watch`] is not to see when another thread calls it: a fault would spoil the session. Within
/// `watch` it is seen.
pub fn unwatched<T>(session: impl FnOnce() -> T) -> T {
    // A thread that waits for a lock that it holds would wait for ever.
    let outermost = WITHIN.get() == 0;
    let _turn = outermost.then(|| ONE_AT_A_TIME.read().unwrap_or_else(PoisonError::into_inner));
    let _within = Within::enter();
    session()
}

struct Within;

impl Within {
    fn enter() -> Self {
        WITHIN.set(WITHIN.get() + 1);
        Within
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        WITHIN.set(WITHIN.get() - 1);
    }
}

impl Audit {
    /// An audit of sessions that have the fault `broken`.
    pub fn breaking(broken: Option<Broken>) -> Self {
        Audit(Arc::new(Mutex::new(Book { broken, ..Book::default() })))
    }

    pub(crate) fn of(role: Role) -> Self {
        let watched = WATCHED.lock().unwrap_or_else(PoisonError::into_inner);
        watched.as_ref().map(|audits| audits[role as usize].clone()).unwrap_or_default()
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn breaks(&self, what: Broken) -> bool {
        self.book().broken == Some(what)
    }

    /// Counts words that were opened under `path`, at the positions from `start` on. The widths of the words repeat
    /// `widths`.
    pub(crate) fn note(&self, path: &str, start: usize, words: &[u64], widths: &[u32]) {
        let Book { words: counted, differences, last, .. } = &mut *self.book();
        let last = last.entry(path.to_owned()).or_default();
        let top = |word: u64, width: u32| (word << (64 - width) >> 56) as u8;
        for (i, &width) in widths.iter().enumerate().take(words.len()) {
            let bits = width.min(BITS);
            // Looked up once: there may be millions of words.
            let key = (path.to_owned(), bits);
            let values = counted.entry(key.clone()).or_insert_with(|| vec![0; 1 << bits]);
            let changes = differences.entry(key).or_insert_with(|| vec![0; 1 << bits]);
            for (at, word) in words.iter().enumerate().skip(i).step_by(widths.len()) {
                let top = top(*word, width);
                values[usize::from(top >> (8 - bits))] += 1;
                if let Some(before) = last.get(start + at) {
                    changes[usize::from(top.wrapping_sub(*before) >> (8 - bits))] += 1;
                }
            }
        }
        for (at, (word, &width)) in (start..COMPARED).zip(words.iter().zip(widths.iter().cycle())) {
            let known = last.len();
            match last.get_mut(at) {
                Some(last) => *last = top(*word, width),
                None if at == known => last.push(top(*word, width)),
                None => return,
            }
        }
    }

    /// Notes that this party's part of `masks` serves under `path`. The widths of the masks repeat `widths`.
    pub(crate) fn spend(
        &self,
        path: &str,
        masks: impl IntoIterator<Item = u64>,
        widths: &[u32],
    ) -> Result<(), Error> {
        let (mut book, path) = (self.book(), Arc::from(path));
        let (mut name, mut bits) = (0, 0);
        for (word, &width) in masks.into_iter().zip(widths.iter().cycle()) {
            name = name << width | u128::from(word & mask(width));
            bits += width;
            if bits >= NAME_BITS {
                book.serve(name, &path)?;
            }
        }
        Ok(())
    }

    /// Notes that the stock hands out `words`: units of the correlation `kind`, each of `width` words.
    pub(crate) fn hand_out(
        &self,
        kind: String,
        width: usize,
        mut words: Zeroizing<Vec<u64>>,
    ) -> Result<Zeroizing<Vec<u64>>, Error> {
        let mut book = self.book();
        let path = Arc::from(format!("a unit of {kind}"));
        if book.broken == Some(Broken::Units) {
            let first = book.first.entry(kind).or_insert_with(|| words.to_vec());
            words.iter_mut().zip(first).for_each(|(word, first)| *word = *first);
        }
        for unit in words.chunks_exact(width.max(1)) {
            let unit = unit.iter().take(UNIT_WORDS);
            if unit.clone().map(|word| u64::BITS - word.leading_zeros()).sum::<u32>() >= NAME_BITS {
                let mixed = |name: u128, word: &u64| {
                    (name.rotate_left(64) ^ u128::from(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
                };
                book.serve(unit.fold(0, mixed), &path)?;
            }
        }
        Ok(words)
    }

    /// A description of the first mask that served twice, if one did.
    pub fn reused(&self) -> Option<String> {
        self.book().reused.clone()
    }

    /// Number of words noted.
    pub fn words(&self) -> usize {
        self.book().words.values().flatten().sum()
    }

    /// The largest [`deviation`] of words or differences in places whose path ends with `part`, counted together.
    /// `None` for too few words.
    pub fn worst_in(&self, part: &str) -> Option<f64> {
        let book = self.book();
        let within = |counts: &Counts| {
            let mut sums: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
            for ((_, bits), counts) in counts.iter().filter(|((path, _), _)| path.ends_with(part)) {
                let sum = sums.entry(*bits).or_insert_with(|| vec![0; 1 << bits]);
                sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
            }
            let sums = sums.into_iter().filter(|(bits, sum)| sum.iter().sum::<usize>() >= LEAST << bits);
            sums.map(|(_, sum)| deviation(&sum)).max_by(f64::total_cmp)
        };
        [within(&book.words), within(&book.differences)].into_iter().flatten().max_by(f64::total_cmp)
    }

    /// The place whose words or differences are furthest from uniform, and the [`deviation`] there. Places with few
    /// words count together as one place.
    pub fn worst(&self) -> (String, f64) {
        let book = self.book();
        let both = [worst(&book.words, "words"), worst(&book.differences, "differences")];
        both.into_iter().flatten().max_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or_default()
    }
}

impl Book {
    /// Notes that the mask called `name` serves under `path`.
    fn serve(&mut self, name: u128, path: &Arc<str>) -> Result<(), Error> {
        if name.leading_zeros() < self.zeros {
            return Ok(());
        }
        if let Some(before) = self.spent.insert(name, path.clone()) {
            let error = Error::MaskTwice { path: path.to_string(), before: before.to_string() };
            self.reused.get_or_insert(error.to_string());
            return if self.broken.is_some() { Ok(()) } else { Err(error) };
        }
        if self.spent.len() > REMEMBERED {
            self.zeros += 1;
            self.spent.retain(|name, _| name.leading_zeros() >= self.zeros);
        }
        Ok(())
    }
}

fn worst(counts: &Counts, what: &str) -> Option<(String, f64)> {
    let mut rest: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    let mut all = Vec::new();
    for ((path, bits), counts) in counts {
        if counts.iter().sum::<usize>() >= LEAST << bits {
            all.push((format!("{path} ({what})"), deviation(counts)));
            continue;
        }
        let sums = rest.entry(*bits).or_insert_with(|| vec![0; 1 << bits]);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let rest = rest.into_iter().filter(|(bits, counts)| counts.iter().sum::<usize>() >= LEAST << bits);
    all.extend(rest.map(|(_, counts)| (format!("paths of few words ({what})"), deviation(&counts))));
    all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))
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

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::*;

    const WIDTH: u32 = 44;

    fn random(count: usize) -> Vec<u64> {
        let mut rng = StdRng::seed_from_u64(4);
        (0..count).map(|_| rng.next_u64() & mask(WIDTH)).collect()
    }

    #[test]
    fn words_under_one_mask_look_uniform_and_their_differences_do_not() {
        let audit = Audit::default();
        let masks = random(20_000);
        for row in [3u64, 5] {
            let opened: Vec<u64> = masks.iter().map(|m| (row << 20).wrapping_sub(*m) & mask(WIDTH)).collect();
            audit.note("keys", 0, &opened, &[WIDTH]);
        }
        let book = audit.book();
        assert!(worst(&book.words, "").is_some_and(|(_, worst)| worst < LIMIT));
        assert!(worst(&book.differences, "").is_some_and(|(_, worst)| worst > 10.0 * LIMIT));
    }

    #[test]
    fn a_mask_that_comes_back_is_named_in_a_long_session_too() {
        let (audit, masks) = (Audit::default(), random(3 * REMEMBERED));
        let spend = |path: &str, masks: &[u64]| audit.spend(path, masks.iter().copied(), &[WIDTH]);
        spend("first", &masks).unwrap();
        assert!(audit.book().spent.len() <= REMEMBERED);
        let again = spend("again", &masks[500..600]);
        assert!(matches!(again, Err(Error::MaskTwice { path, before }) if path == "again" && before == "first"));
    }
}
