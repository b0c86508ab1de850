//! Every function between two parties against the box in the clear. The plan's ledger is compared with the parties'
//! too.

use engine::Visible;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::testing::{fixed, real, shaped};
use crate::tests::{DEALER, Function, TWO_PHASES, secure};
use crate::{Clear, Gelu, Options, Tensor, function};

/// Largest difference between the boxes on numbers of [-range, range].
fn difference(options: Options, range: f64, shape: &[usize], function: impl Function) -> f64 {
    let mut rng = StdRng::seed_from_u64(11);
    let x: Vec<f64> = (0..shape.iter().product()).map(|_| rng.random_range(-range..range)).collect();
    let words = shaped(&x, shape);
    let clear = function.call(&mut Clear::evaluating(options.evaluation()), &[words]).expect("inputs are in range");
    let flat = fixed(&x).into_iter().collect::<Vec<_>>();
    let got = secure(options, &[(&flat, shape)], function);
    clear.iter().zip(&got).map(|(a, b)| (real(*a) - real(*b)).abs()).fold(0.0, f64::max)
}

#[test]
fn both_boxes_agree_by_look_up() {
    both_boxes_agree(DEALER);
}

#[test]
fn both_boxes_agree_on_masked_inputs() {
    both_boxes_agree(TWO_PHASES);
}

fn both_boxes_agree(options: Options) {
    for (name, within, got) in [
        (
            "gelu far",
            1e-3,
            difference(options, 1000.0, &[300], function!([] | b, x | super::gelu(b, &x[0], Gelu::Tanh))),
        ),
        ("gelu", 3e-4, difference(options, 5.0, &[300], function!([] | b, x | super::gelu(b, &x[0], Gelu::Erf)))),
        ("silu", 3e-4, difference(options, 16.0, &[300], function!([] | b, x | super::silu(b, &x[0])))),
        ("relu", 2e-4, difference(options, 2.0, &[300], function!([] | b, x | super::relu(b, &x[0])))),
        ("relu far", 2e-4, difference(options, 1000.0, &[300], function!([] | b, x | super::relu(b, &x[0])))),
        (
            "soft cap",
            2e-3,
            difference(options, 120.0, &[300], function!([] | b, x | super::soft_cap(b, &x[0], 30.0))),
        ),
        (
            "soft cap far",
            2e-3,
            difference(options, 1000.0, &[300], function!([] | b, x | super::soft_cap(b, &x[0], 50.0))),
        ),
        (
            "softmax within",
            1e-4,
            difference(
                options,
                4.0,
                &[2, 3, 21],
                function!(
                    [] | b,
                    x | Ok(
                        super::softmax_each(b, &[Visible { scores: &x[0], seen: &[0..1, 3..20, 9..21] }])?.remove(0)
                    )
                ),
            ),
        ),
        (
            "softmax",
            1e-4,
            difference(options, 4.0, &[2, 3, 21], function!([] | b, x | super::softmax(b, &x[0], &[1, 20, 21]))),
        ),
        (
            "softmax of parts",
            1e-4,
            difference(
                options,
                4.0,
                &[2, 3, 21],
                function!(
                    [] | b,
                    x | {
                        // Two tensors of other shapes, from one.
                        let [a, c] = [x[0].slice(0, 0..1), x[0].slice(0, 1..2).reshape(&[9, 1, 7])];
                        let parts = super::softmax_each(
                            b,
                            &[
                                Visible { scores: &a, seen: &[0..1, 0..20, 0..21] },
                                Visible { scores: &c, seen: &[0..7] },
                            ],
                        )?;
                        let flat: Vec<_> = parts.iter().map(|part| part.reshape(&[63])).collect();
                        Ok(Tensor::concat(0, &flat.iter().collect::<Vec<_>>()))
                    }
                ),
            ),
        ),
        (
            "softmax wide",
            1e-4,
            difference(options, 500.0, &[4, 1, 33], function!([] | b, x | super::softmax(b, &x[0], &[30]))),
        ),
        (
            "softmax long",
            2e-5,
            difference(options, 4.0, &[1, 2, 6000], function!([] | b, x | super::softmax(b, &x[0], &[4097, 6000]))),
        ),
        (
            "rms norm",
            4e-4,
            difference(options, 700.0, &[3, 96], function!([] | b, x | super::rms_norm(b, &x[0], 1e-6))),
        ),
    ] {
        println!("{name}: {got:.2e}");
        assert!(got < within, "{name}: {got}");
    }
}
