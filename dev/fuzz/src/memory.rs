//! The most memory that a piece of code holds at once.
//!
//! Every test program that links this crate gets its allocator: that of the system, with a count for each thread.
//! What other threads allocate for the code (a pool of threads) is not counted.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Bytes that this thread allocated less those it freed. `MOST` is the largest value since the last call of
    /// [`peak`].
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    // A thread that ends may free memory after its locals are gone; nobody asks for its count then.
    let _ = HELD.try_with(|held| {
        let now = held.get().saturating_add(change);
        held.set(now);
        let _ = MOST.try_with(|most| most.set(most.get().max(now)));
    });
}

// SAFETY: every call is passed on to `System` with the caller's own arguments, so its guarantees are the system's;
// counting touches cells of this thread that need no allocation and no destructor, and does not unwind.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's obligations are those of `System`.
        let out = unsafe { System.alloc(layout) };
        if !out.is_null() {
            count(layout.size() as isize);
        }
        out
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above; `at` came from `System`.
        unsafe { System.dealloc(at, layout) };
        count(-(layout.size() as isize));
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        let out = unsafe { System.alloc_zeroed(layout) };
        if !out.is_null() {
            count(layout.size() as isize);
        }
        out
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above.
        let out = unsafe { System.realloc(at, layout, size) };
        if !out.is_null() {
            count(size as isize - layout.size() as isize);
        }
        out
    }
}

/// Runs `code`. Returns its result, and the most bytes that this thread held at once beyond those it held before.
pub fn peak<T>(code: impl FnOnce() -> T) -> (T, usize) {
    let before = HELD.get();
    let outer = MOST.replace(before);
    let result = code();
    let most = MOST.get();
    MOST.set(outer.max(most));
    (result, usize::try_from(most - before).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::peak;

    #[test]
    fn the_largest_moment_counts() {
        let (kept, most) = peak(|| {
            drop(vec![1u8; 1 << 20]);
            vec![0u8; 1 << 10]
        });
        assert!((1 << 20..(1 << 20) + 4096).contains(&most), "{most}");
        assert_eq!(kept.len(), 1 << 10);
        let ((_, inner), outer) = peak(|| peak(|| drop(vec![7u8; 5000])));
        assert!(inner >= 5000 && outer >= inner && outer < 10_000, "{inner} {outer}");
        assert_eq!(peak(|| ()).1, 0);
    }
}
