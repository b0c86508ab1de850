//! Scores of columns that the client hides, before a softmax.
//!
//! Each score is selected by a bit that the client alone has. The client also adds [`HIDDEN_SCORE`] to its share of
//! the scores in hidden columns. So every score of a hidden column becomes [`HIDDEN_SCORE`], even if it was out of
//! range.
//!
//! **Range.** |x| < [`MAX_SHOWN_SCORE`] in columns that are shown; any in others. **Error.** None. **Revealed.**
//! Nothing: only the client knows which columns are hidden. *Cost.* One exchange, with a word of [`MAX_WIDTH`] bits
//! for each score and a bit for each column.

use ndarray::{Array2, ArrayD};
use waggle_engine::{HIDDEN_SCORE, MAX_SHOWN_SCORE};
use waggle_net::Role;

use crate::abb::Abb;
use crate::functions::exp::{HIDDEN_RANGE, WHOLE_MARGIN};
use crate::functions::max::MAX_WIDTH;
use crate::ops::MuxColumns;
use crate::words::Words;
use crate::{Error, FRAC, Tensor};

const _: () = {
    // The maximum of a row may be too large by a margin.
    let most = (MAX_SHOWN_SCORE - HIDDEN_SCORE) as f64 + WHOLE_MARGIN;
    assert!(most < HIDDEN_RANGE, "softmax takes such differences");
};

/// The scores `x` (batch, rows, columns), words modulo 2^[`MAX_WIDTH`] at least, with [`HIDDEN_SCORE`] in the place
/// of the columns that `hidden` (batch, columns) marks. The client passes `hidden` as `Some`, the server as `None`.
/// The result has words modulo 2^[`MAX_WIDTH`].
pub fn hide<B: Abb>(b: &mut B, x: &B::Words, hidden: Option<&Array2<bool>>) -> Result<B::Words, Error> {
    b.scope("hide", |b| {
        let shape = x.shape();
        let [batch, rows, columns] = shape[..] else { panic!("hiding columns of {shape:?}") };
        let shown = hidden.map(|hidden| hidden.mapv(|hidden| u64::from(!hidden)).into_dyn());
        let shown = b.input(Role::Client, &[batch, columns], shown.as_ref())?;
        let shown = b.low_bit(&shown.reshape(&[batch * columns, 1]));
        let words = x.permute(&[0, 2, 1]).reshape(&[batch * columns, rows]);
        let kept = b.apply(MuxColumns { widths: &[MAX_WIDTH], words: rows }, (&shown, &words))?;
        let kept = kept.reshape(&[batch, columns, rows]).permute(&[0, 2, 1]);
        b.expect_below(&kept, (MAX_SHOWN_SCORE as i128) << FRAC, FRAC)?;
        let lowest = ((HIDDEN_SCORE as i64) << FRAC) as u64;
        let lowered =
            hidden.map(|hidden| ArrayD::from_shape_fn(&shape[..], |at| lowest * u64::from(hidden[[at[0], at[2]]])));
        Ok(kept.plus(&b.input(Role::Client, &shape, lowered.as_ref())?))
    })
}
