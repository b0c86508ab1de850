//! Local products of words with integers and words, near the speed of memory.
//!
//! Results are exact modulo 2^64, so every path agrees bit for bit. Tests check this.
//!
//! A word x is split as x = l + 2^32 h with l in [-2^31, 2^31). Then x w = l w + 2^32 h w modulo 2^64. This takes one
//! signed product of 32 by 32 bits and the low half of another. Few processors have vector instructions for products
//! of 64 bits.

use std::sync::LazyLock;

#[cfg(any(target_arch = "x86_64", test))]
use waggle_bits::cpu::Level;
use waggle_bits::cpu::{Cpu, Family};
use waggle_engine::Stored;

#[cfg(target_arch = "x86_64")]
mod x86_64;

/// Lines of a matrix that are read together, if the entries of a line belong to different sums.
pub(super) const DEPTH: usize = 8;

/// A kernel may leave entries at the end of a line to its caller: fewer than this.
pub(super) const REST: usize = 16;

/// Lines of a matrix that are multiplied side by side, so that each word that is read serves all of them.
pub(super) const BESIDE: usize = 4;

/// Runs `$body`, which is compiled once for the vector registers of each level, in the version for the level of the
/// [`Family`] `$family`.
macro_rules! at_level {
    ($family:expr, |$($argument:ident: $type:ty),*| -> $result:ty $body:block) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512dq")]
            fn avx512($($argument: $type),*) -> $result $body
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $type),*) -> $result $body
            use waggle_bits::cpu::Level;
            match $family.level() {
                // SAFETY: the processor has the instructions of the level of a family.
                Level::Avx512 | Level::Ifma => return unsafe { avx512($($argument),*) },
                // SAFETY: the same.
                Level::Avx2 => return unsafe { avx2($($argument),*) },
                Level::Portable => {}
            }
        }
        let _: waggle_bits::cpu::Family = $family;
        $body
    }};
}
pub(crate) use at_level;

/// The kernels to use.
pub(crate) fn family() -> Family {
    // Kept, because inner products call this for each word.
    static FAMILY: LazyLock<Family> = LazyLock::new(|| Cpu::get().family());
    *FAMILY
}

/// For every line, adds `low[i] lines[i]` to `low_sums` and `high[i] lines[i]` to `high_sums`, modulo 2^32.
pub(super) fn scale_lines(
    family: Family,
    low: &[i32; DEPTH],
    high: &[u32; DEPTH],
    lines: &[i32],
    low_sums: &mut [u64],
    high_sums: &mut [u32],
) {
    let columns = low_sums.len();
    let lines: [&[i32]; DEPTH] = std::array::from_fn(|i| &lines[i * columns..(i + 1) * columns]);
    let high_sums = &mut high_sums[..columns];
    let (_, done): (Family, _) = (family, 0);
    #[cfg(target_arch = "x86_64")]
    let done = match family.level() {
        // SAFETY: the processor has the instructions of the level of a family.
        Level::Avx2 | Level::Avx512 | Level::Ifma => unsafe {
            x86_64::scale_lines_avx2(low, high, &lines, low_sums, high_sums)
        },
        Level::Portable => done,
    };
    for c in done..columns {
        for (line, (low, high)) in lines.iter().zip(low.iter().zip(high)) {
            let w = line[c];
            low_sums[c] = low_sums[c].wrapping_add((i64::from(*low) * i64::from(w)) as u64);
            high_sums[c] = high_sums[c].wrapping_add(high.wrapping_mul(w as u32));
        }
    }
}

/// For each line, the inner product of the words (low, high) and the line.
pub(super) fn inner(family: Family, low: &[i32], high: &[u32], lines: [&[i32]; BESIDE]) -> [u64; BESIDE] {
    let (_, done): (Family, _) = (family, (0, [0u64; BESIDE]));
    #[cfg(target_arch = "x86_64")]
    let done = match family.level() {
        // SAFETY: the processor has the instructions of the level of a family.
        Level::Avx512 | Level::Ifma => (low.len() / 16 * 16, unsafe { x86_64::inner_avx512(low, high, lines) }),
        // SAFETY: the same.
        Level::Avx2 => (low.len() / 8 * 8, unsafe { x86_64::inner_avx2(low, high, lines) }),
        Level::Portable => done,
    };
    let (done, sums) = done;
    std::array::from_fn(|j| sums[j].wrapping_add(inner_portable(&low[done..], &high[done..], &lines[j][done..])))
}

/// The inner product of the words (low, high) and `line`, on any processor.
pub(super) fn inner_portable(low: &[i32], high: &[u32], line: &[i32]) -> u64 {
    low.iter().zip(high).zip(line).fold(0, |sum: u64, ((low, high), w)| {
        let top = u64::from(high.wrapping_mul(*w as u32)) << 32;
        sum.wrapping_add((i64::from(*low) * i64::from(*w)) as u64).wrapping_add(top)
    })
}

/// Multiplies the words (low, high) by the first entries of a line and leaves fewer than [`REST`] at its end. Returns
/// the number of entries used and the inner product, or `None` on processors without a kernel for this.
pub(super) fn inner_stored(family: Family, low: &[i32], high: &[u32], line: &Stored) -> Option<(usize, u64)> {
    #[cfg(target_arch = "x86_64")]
    match family.level() {
        // SAFETY: the processor has the instructions of the level of a family.
        Level::Avx512 | Level::Ifma => return Some(unsafe { x86_64::inner_stored_avx512(low, high, line) }),
        // SAFETY: the same.
        Level::Avx2 => return Some(unsafe { x86_64::inner_stored_avx2(low, high, line) }),
        Level::Portable => {}
    }
    let _ = (family, low, high, line);
    None
}

/// Rounds the first entries of a line and leaves fewer than [`REST`] at its end. Returns the number of entries
/// rounded, which is 0 on processors without a kernel for this.
pub(crate) fn round_stored(family: Family, line: &Stored, out: &mut [i32]) -> usize {
    #[cfg(target_arch = "x86_64")]
    match family.level() {
        // SAFETY: the processor has the instructions of the level of a family.
        Level::Avx512 | Level::Ifma => return unsafe { x86_64::round_stored_avx512(line, out) },
        // SAFETY: the same.
        Level::Avx2 => return unsafe { x86_64::round_stored_avx2(line, out) },
        Level::Portable => {}
    }
    let _ = (family, line, out);
    0
}

/// Adds the row `x` times the matrix Y to `out`. The rows of Y lie in `y`, `pitch` words apart, and the first begins
/// at `at`. AVX-512 has products of 64 bits.
pub(super) fn scale_words(family: Family, x: &[u64], y: &[u64], at: usize, pitch: usize, out: &mut [u64]) {
    at_level!(family, |x: &[u64], y: &[u64], at: usize, pitch: usize, out: &mut [u64]| -> () {
        const ROWS: usize = 4;
        let columns = out.len();
        let row = |i: usize| &y[at + i * pitch..][..columns];
        let mut groups = x.chunks_exact(ROWS);
        let mut i = 0;
        for group in &mut groups {
            let rows: [&[u64]; ROWS] = std::array::from_fn(|j| row(i + j));
            for (c, out) in out.iter_mut().enumerate() {
                let sum = (0..ROWS).fold(0u64, |sum, j| sum.wrapping_add(group[j].wrapping_mul(rows[j][c])));
                *out = out.wrapping_add(sum);
            }
            i += ROWS;
        }
        for &x in groups.remainder() {
            out.iter_mut().zip(row(i)).for_each(|(out, y)| *out = out.wrapping_add(x.wrapping_mul(*y)));
            i += 1;
        }
    })
}

/// The families of kernels that this processor has.
#[cfg(test)]
pub(crate) fn families() -> impl Iterator<Item = Family> {
    let levels = Level::ALL.into_iter().filter(|level| *level <= Cpu::get().level());
    levels.map(|level| Cpu::get().at_most(level).family())
}
