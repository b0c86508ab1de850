//! Windows of a function of one variable.

/// Highest degree of a polynomial on a window.
pub const MAX_DEGREE: usize = 5;

/// The numbers that words stand for: arguments of a function and its values.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The argument at word 0.
    pub base: f64,
    /// The argument's step from one word to the next.
    pub step: f64,
    /// Fractional bits of the result.
    pub out_frac: u32,
    /// Bits of the ring of the result.
    pub out_width: u32,
}

/// Equal windows, and the approximation on each.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// log2 of the number of windows.
    pub index_bits: u32,
    /// Bits of a word below the window index: a window is 2^low_bits words wide.
    pub low_bits: u32,
    /// Approximation on a window.
    pub pieces: Pieces,
}

/// The approximation on a window. It decides which protocol evaluates it.
#[derive(Clone, Copy, Debug)]
pub enum Pieces {
    /// Polynomials, for look-up.
    Powers {
        /// The degree of the polynomials, 1..=[`MAX_DEGREE`].
        degree: usize,
        /// Bits of the second, third, ... power of the low part. The first power has all bits of the low part.
        power_bits: [u32; MAX_DEGREE - 1],
    },
    /// Straight lines, for FSS keys.
    Lines,
    /// Parabolas, for FSS keys.
    Parabolas,
}
