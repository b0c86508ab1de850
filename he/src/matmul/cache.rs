//! Transformed weights that are kept from one product to the next.

use super::layout::Layout;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use zeroize::Zeroizing;

/// Transformed weights of one part of a product.
pub(super) type Form = Vec<Zeroizing<Vec<u64>>>;
/// A part of a product: its column tiles, and a number that tells the parts of these tiles apart.
pub(super) type Part = (Range<usize>, usize);

/// Keeps transformed weights for later products with the same weights, in
/// [`MatmulPlan::evaluate`](super::MatmulPlan::evaluate). New weights are kept until the cache holds its largest
/// number of bytes. Kept weights are never replaced.
///
/// A weight takes 8 bytes per prime of the modulus if a product has one row, and more if it has several: 16 bytes for
/// one row of 56-bit shares, up to 96 bytes for 128 rows with kernels in double precision.
#[derive(Debug)]
pub struct WeightCache {
    limit: usize,
    used: AtomicUsize,
    /// The shelves under each key that a caller has chosen. A key has one shelf for each plan that it is used with.
    shelves: Mutex<HashMap<u64, Vec<Shelf>>>,
}

/// The weights of one plan under one key.
#[derive(Debug)]
struct Shelf {
    layout: Layout,
    parts: HashMap<Part, Arc<Form>>,
}

impl WeightCache {
    /// A cache of at most `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, used: AtomicUsize::new(0), shelves: Mutex::default() }
    }

    /// Bytes of the weights that are kept.
    pub fn bytes(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn find(&self, key: u64, layout: &Layout, part: &Part) -> Option<Arc<Form>> {
        // A thread that panics leaves no part half written.
        let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.get(&key)?.iter().find(|shelf| shelf.layout == *layout)?.parts.get(part).cloned()
    }

    fn keep(&self, key: u64, layout: &Layout, part: Part, form: &Arc<Form>) {
        let bytes = form.iter().map(|words| size_of_val(words.as_slice())).sum::<usize>();
        let fits = |used: usize| used.checked_add(bytes).filter(|&used| used <= self.limit);
        if self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_err() {
            return;
        }
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        let shelves = shelves.entry(key).or_default();
        let at = shelves.iter().position(|shelf| shelf.layout == *layout).unwrap_or_else(|| {
            shelves.push(Shelf { layout: *layout, parts: HashMap::new() });
            shelves.len() - 1
        });
        if shelves[at].parts.insert(part, form.clone()).is_some() {
            // Another thread stored this part first.
            self.used.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

/// A cache and the key of one product's weights in it.
#[derive(Debug, Clone, Copy)]
pub struct CachedWeights<'a> {
    /// The cache.
    pub cache: &'a WeightCache,
    /// Key of the weights. Different weights must have different keys.
    pub key: u64,
}

/// The transformed weights of a part: from the cache if they are there, otherwise made and put there.
pub(super) fn form(
    cached: Option<CachedWeights<'_>>,
    layout: &Layout,
    part: Part,
    make: impl FnOnce() -> Form,
) -> Arc<Form> {
    let Some(CachedWeights { cache, key }) = cached else { return Arc::new(make()) };
    cache.find(key, layout, &part).unwrap_or_else(|| {
        let form = Arc::new(make());
        cache.keep(key, layout, part, &form);
        form
    })
}
