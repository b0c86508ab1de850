//! Functions of one variable fitted to tables, made once and kept.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::Evaluation;
use crate::functions::spline::{MAX_DEGREE, Spline};
use crate::ops::evaluate::Function;
use crate::ops::fss::table::FssTable;

/// Words as arguments of a function, and its values as words.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The argument at word 0.
    pub base: f64,
    /// The argument's step from one word to the next.
    pub step: f64,
    /// Fractional bits of the result.
    pub out_frac: u32,
    /// Ring of the result.
    pub out_width: u32,
}

/// Equal windows, and what approximates a function on each.
#[derive(Clone, Copy, Debug)]
pub struct Grid {
    /// log2 of the number of windows.
    pub index_bits: u32,
    /// Bits of a word below the window index: a window is 2^low_bits words wide.
    pub low_bits: u32,
    /// Approximation on a window.
    pub pieces: Pieces,
}

/// The approximation on a window. It decides the protocol.
#[derive(Clone, Copy, Debug)]
pub enum Pieces {
    /// Polynomials, for look-up.
    Powers {
        /// Their degree, 1..=[`MAX_DEGREE`].
        degree: usize,
        /// Bits of the second, third, ... power of the low part; the first has them all.
        power_bits: [u32; MAX_DEGREE - 1],
    },
    /// Straight lines, for masked inputs.
    Lines,
    /// Parabolas, for masked inputs.
    Parabolas,
}

impl Grid {
    /// Fits `f`, which must compute alike on every machine (the basic operations, and `libm`).
    pub fn fit(self, scale: Scale, f: impl Fn(f64) -> f64) -> Function {
        match self.pieces {
            Pieces::Powers { degree, power_bits } => {
                Function::lookup(Spline::fit(self, scale, degree, power_bits, f), scale.out_frac)
            }
            Pieces::Lines => Function::masked(FssTable::lines(self.windows(scale), f), scale.out_frac),
            Pieces::Parabolas => Function::masked(FssTable::parabolas(self.windows(scale), f), scale.out_frac),
        }
    }

    fn windows(self, Scale { base, step, out_frac, out_width }: Scale) -> crate::ops::fss::table::CurveSpec {
        let Grid { index_bits, low_bits, .. } = self;
        crate::ops::fss::table::CurveSpec { index_bits, low_bits, base, step, out_frac, out_width }
    }
}

/// The tables of a function for either protocol.
#[derive(Clone, Copy, Debug)]
pub struct Grids {
    /// For look-up.
    pub lookup: Grid,
    /// For masked inputs.
    pub masked: Grid,
}

impl Grids {
    /// The one that sessions with `evaluation` use.
    pub fn choose(&self, evaluation: Evaluation) -> Grid {
        if evaluation == Evaluation::Masked { self.masked } else { self.lookup }
    }
}

/// Names a fitted function: the function, the method, and the numbers that the fit depends on.
type Key = (&'static str, Evaluation, Vec<u64>);

/// The function `name` for `evaluation` and these `parameters`, which say all that the fit depends on: made by `fit` when it
/// is first asked for, and kept until the process ends.
pub fn kept(
    name: &'static str,
    evaluation: Evaluation,
    parameters: &[u64],
    fit: impl FnOnce() -> Function,
) -> Arc<Function> {
    static KEPT: LazyLock<Mutex<HashMap<Key, Arc<Function>>>> = LazyLock::new(Mutex::default);
    let key = (name, evaluation, parameters.to_vec());
    // No code panics while it changes the map, so poison says nothing.
    let find = || KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    find().unwrap_or_else(|| {
        // Fitted without the lock, for a fit takes milliseconds; two threads may fit the same, which is harmless.
        let function = Arc::new(fit());
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_insert(function).clone()
    })
}
