//! Functions of one variable fitted to tables, made once and kept.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use crate::Evaluation;
use crate::functions::grid::{Grid, Pieces, Scale};
use crate::functions::spline::Spline;
use crate::ops::Function;
use crate::ops::fss::table::FssTable;

impl Grid {
    /// Fits `f`, which must give the same results on every machine: it may use the basic operations and `libm`.
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

#[derive(Clone, Copy, Debug)]
pub(crate) struct Grids {
    /// The table for look-up.
    pub lookup: Grid,
    /// The table for FSS keys.
    pub masked: Grid,
}

impl Grids {
    /// The table that sessions with `evaluation` use.
    pub(crate) fn choose(&self, evaluation: Evaluation) -> Grid {
        if evaluation == Evaluation::Masked { self.masked } else { self.lookup }
    }
}

/// The name of a fitted function: the function, the method, and the numbers on which the fit depends.
type Key = (&'static str, Evaluation, Vec<u64>);

/// The function `name` in the form for `evaluation`. The name and the `parameters` must determine the fit. `fit`
/// makes the function when it is first asked for, and it is kept until the process ends.
pub(crate) fn kept(
    name: &'static str,
    evaluation: Evaluation,
    parameters: &[u64],
    fit: impl FnOnce() -> Function,
) -> Arc<Function> {
    static KEPT: LazyLock<Mutex<HashMap<Key, Arc<Function>>>> = LazyLock::new(Mutex::default);
    let key = (name, evaluation, parameters.to_vec());
    // No code panics while it changes the map, so a poisoned lock is harmless.
    let find = || KEPT.lock().unwrap_or_else(PoisonError::into_inner).get(&key).cloned();
    find().unwrap_or_else(|| {
        // Fitted without the lock, because a fit takes milliseconds. Two threads may fit the same function, which is
        // harmless.
        let function = Arc::new(fit());
        KEPT.lock().unwrap_or_else(PoisonError::into_inner).entry(key.clone()).or_insert(function).clone()
    })
}
