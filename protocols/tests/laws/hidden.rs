//! A softmax gives columns that the client hides no weight.

use std::ops::Range;
use std::time::Duration;

use ndarray::{Array2, ArrayD, Dimension};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_engine::{Engine, Float, Visible};
use waggle_protocols::functions::{hide, softmax_each};
use waggle_protocols::{Clear, Error, FRAC, Options};
use waggle_testing::{DEALER, Function, Laws, Output, TWO_PHASES, function, to_fixed};

/// Hidden columns get nothing, whatever their scores, in the tournament and the counts of a maximum, in prompts and
/// for single rows. Scores that are shown lie at the lower or the upper end of what is allowed.
#[test]
fn hidden_columns_get_no_weight() {
    let columns = 24;
    // Two texts, whose first columns and some in the middle are hidden.
    let gone = Array2::from_shape_fn((2, columns), |(text, column)| column < 5 + text || (9..12).contains(&column));
    let scores: [fn(usize) -> f64; 4] = [|_| 300.0, |_| 1535.9, |_| -1535.9, |i| [700.0, -600.0, 510.0][i % 3]];
    for (rows, scores) in [1, 6].into_iter().flat_map(|rows| scores.map(|scores| (rows, scores))) {
        for (least, most) in [(-479.9, -477.0), (476.0, 479.9), (0.0, 1.0)] {
            let mut rng = StdRng::seed_from_u64(5);
            let x = ArrayD::from_shape_fn(vec![2, rows, columns], |at| {
                if gone[[at[0], at[2]]] { scores(at[1] + at[2]) } else { rng.random_range(least..most) }
            });
            let seen: Vec<_> = (0..rows).map(|row| 0..columns - rows + 1 + row).collect();
            let weighed = |hidden: Option<&Array2<bool>>| {
                let (seen, hidden) = (seen.clone(), hidden.cloned());
                function!(Words, [seen: Vec<Range<usize>>, hidden: Option<Array2<bool>>], |b, x, _| {
                    let scores = hide(b, &x[0], hidden.as_ref())?;
                    Ok(softmax_each(b, &[Visible { scores: &scores, seen, sink: false, hidden: true }])?.remove(0))
                })
            };
            let words: Vec<u64> = to_fixed(&x).into_iter().collect();
            let slow = Options {
                link: waggle_net::LinkShape { round_trip: Duration::from_secs(1), ..TWO_PHASES.link },
                ..TWO_PHASES
            };
            for options in [DEALER, TWO_PHASES, slow] {
                let mut clear = Clear::evaluating(options.evaluation());
                let p = weighed(Some(&gone)).call(&mut clear, &[to_fixed(&x)], &[]).expect("in range");
                let Output::Words(p) = p else { unreachable!("words") };
                let weight = |at: &[usize]| if gone[[at[0], at[2]]] { p[at] } else { 0 };
                assert!(p.indexed_iter().all(|(at, _)| weight(at.slice()) == 0), "{p}");
                Laws::of_each(weighed(Some(&gone)), weighed(Some(&gone)), weighed(None))
                    .words(&[2, rows, columns], words.clone())
                    .error((1e-4 * f64::from(1u32 << FRAC)) as u64)
                    .over(&[options])
                    .hold();
            }
            let mut float = Float::default();
            let shown = float.hide(&x.mapv(|x| x as f32), Some(&gone)).expect("one shape");
            let scores = Visible { scores: &shown, seen: &seen, sink: false, hidden: true };
            let p = float.softmax_each(&[scores]).expect("one shape").remove(0);
            assert!(p.indexed_iter().all(|(at, p)| !gone[[at[0], at[2]]] || *p == 0.0), "{p}");
        }
    }
    let shown = to_fixed(&ArrayD::from_elem(vec![2, 1, columns], 480.0));
    let refused = hide(&mut Clear::new(), &shown, Some(&gone));
    assert!(matches!(refused, Err(Error::Engine(waggle_engine::Error::Range { .. }))), "{refused:?}");
}
