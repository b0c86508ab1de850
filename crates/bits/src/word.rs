//! Single words.

/// The word in which the `width` low bits alone are set, for a width of 0 to 64.
#[inline(always)]
pub const fn mask(width: u32) -> u64 {
    debug_assert!(width <= 64);
    if width == 0 { 0 } else { u64::MAX >> (64 - width) }
}

/// The `width` low bits of `x` as a number of `[-2^(width-1), 2^(width-1))`, for a width of 1 to 64. Higher bits of
/// `x` are ignored.
#[inline(always)]
pub const fn signed(x: u64, width: u32) -> i64 {
    debug_assert!(1 <= width && width <= 64);
    ((x << (64 - width)) as i64) >> (64 - width)
}

/// 1 if `a == b`, else 0, without a branch. Both numbers must be below 2^63.
#[inline(always)]
pub const fn equal(a: u64, b: u64) -> u64 {
    debug_assert!((a | b) >> 63 == 0);
    // The subtraction borrows into the top bit only if a == b.
    (a ^ b).wrapping_sub(1) >> 63
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn widths_at_both_ends() {
        assert_eq!((mask(0), mask(1), mask(63), mask(64)), (0, 1, u64::MAX >> 1, u64::MAX));
        assert_eq!((signed(3, 1), signed(2, 1), signed(u64::MAX, 64)), (-1, 0, -1));
    }

    proptest! {
        #[test]
        fn signed_is_congruent_and_in_range(x: u64, width in 1u32..=64) {
            let value = signed(x, width);
            prop_assert_eq!(value as u64 & mask(width), x & mask(width));
            let half = 1i128 << (width - 1);
            prop_assert!((-half..half).contains(&i128::from(value)));
        }

        #[test]
        fn equal_compares(a in 0..1u64 << 63, b in 0..1u64 << 63) {
            prop_assert_eq!((equal(a, b), equal(a, a)), (u64::from(a == b), 1));
        }
    }
}
