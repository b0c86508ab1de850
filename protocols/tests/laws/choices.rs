//! Shuffled selections are right although their traffic is random, and sizes out of range are refused.

use ndarray::{ArrayD, IxDyn};
use waggle_engine::{Origin, Select};
use waggle_net::Role;
use waggle_protocols::functions::selection::{gather, scatter};
use waggle_protocols::functions::top_k::{self, Scores, Selection};
use waggle_protocols::functions::{argmax, embed, gelu, silu};
use waggle_protocols::ops::{Matmul, Mul, Shuffle, Truncation};
use waggle_protocols::{Abb, Clear, Error, FRAC, Fixed, FixedWeight, Gelu, Options, Tensor, WeightSpec};
use waggle_testing::{DEALER, open, own, pair, run, share, signed_values};

const SCORES: Scores = Scores::below(5, 10);

fn words(shape: &[usize], x: Vec<u64>) -> ArrayD<u64> {
    ArrayD::from_shape_vec(IxDyn(shape), x).unwrap()
}

/// Positions in the shuffled order, and the shuffled entries, restored marks and unit vectors.
type Chosen<W> = (Vec<Vec<usize>>, [W; 3]);

fn shuffled<B: Abb>(b: &mut B, x: &B::Words, k: usize) -> Result<Chosen<B::Words>, Error> {
    let (rows, n) = (x.shape()[0], x.shape()[1]);
    let chosen = top_k::shuffle_reveal(b, x, k, SCORES.rounding(true))?;
    let moved =
        b.apply(Shuffle { widths: &[64], inverse: false }, (&chosen.permutations, &x.reshape(&[rows, n, 1])))?;
    let mut marks = ArrayD::zeros(IxDyn(&[rows, n, 1]));
    for (row, positions) in chosen.positions.iter().enumerate() {
        positions.iter().for_each(|&at| marks[[row, at, 0]] = 1);
    }
    let marks = b.public(&[rows, n, 1], |at| marks[at]);
    let marks = b.apply(Shuffle { widths: &[8], inverse: true }, (&chosen.permutations, &marks))?;
    let vectors = top_k::one_hot_of_shuffled(b, &chosen, 8)?;
    Ok((chosen.positions, [moved, marks, vectors]))
}

#[test]
fn positions_unit_vectors_and_restored_marks_name_the_largest() {
    for (rows, n, k, options) in [
        (1, 1, 1, DEALER),
        (1, 1, 0, DEALER),
        (2, 2, 1, DEALER),
        (2, 5, 5, DEALER),
        (4, 8, 3, DEALER),
        (2, 33, 8, DEALER),
        (3, 20, 0, DEALER),
        (3, 20, 6, Options::default()),
    ] {
        // Multiples of 2^-10, of which many are equal.
        let x: Vec<u64> = signed_values(4, rows * n, 9).into_iter().map(|x| x << (FRAC - 10)).collect();
        let shares = share(&words(&[rows, n], x.clone()));
        let [client, server] = run(options, |abb| {
            let words = own(abb, &shares);
            shuffled(abb, words, k)
        });
        let ((positions, c), (theirs, s)) = (client.0, server.0);
        assert_eq!(positions, theirs);
        assert_eq!(client.1, server.1, "ledgers");
        let [moved, marks, vectors] = [0, 1, 2].map(|i| open(&[c[i].clone(), s[i].clone()]));
        for (row, x) in x.chunks(n).enumerate() {
            let mut largest: Vec<usize> = (0..n).collect();
            largest.sort_by_key(|&i| (std::cmp::Reverse(x[i] as i64), i));
            largest.truncate(k);
            largest.sort_unstable();
            let named = |i: usize| (0..n).filter(|&j| vectors[[row, i, j]] & 0xFF == 1).collect::<Vec<_>>();
            let mut chosen = Vec::new();
            for (i, &at) in positions[row].iter().enumerate() {
                let [j] = named(i)[..] else { panic!("a unit vector names {:?}", named(i)) };
                assert_eq!(moved[[row, at, 0]], x[j], "the item at the position");
                chosen.push(j);
            }
            chosen.sort_unstable();
            assert_eq!(chosen, largest, "{rows} {n} {k}");
            let marked: Vec<usize> = (0..n).filter(|&j| marks[[row, j, 0]] & 0xFF == 1).collect();
            assert_eq!(marked, largest, "the marks restored");
        }
    }
}

/// Magnitudes follow from public shapes and options, which a peer may choose.
#[test]
fn sizes_beyond_every_ring_are_refused() {
    let zeros = |shape: &[usize]| words(shape, vec![0; shape.iter().product()]);
    let (mut clear, engine) = (Clear::new(), Fixed::new());
    let chosen = Selection::OneHot(zeros(&[1, 2, 3]));
    for magnitude in [25, 63, u32::MAX] {
        let gathered = gather(&mut clear, &chosen, &zeros(&[1, 3, 4]), magnitude);
        assert!(matches!(gathered, Err(Error::Width { limit: 44, .. })), "{gathered:?}");
        let scattered = scatter(&mut clear, &chosen, &zeros(&[1, 2, 4]), magnitude);
        assert!(matches!(scattered, Err(Error::Width { limit: 44, .. })), "{scattered:?}");
        assert!(engine.ceiling(Origin::Moved { magnitude }).is_err());
    }
    let beyond = engine.ceiling(Origin::Product).expect("supported").times(1 << 40);
    for scores in [Scores::below(45, 12), Scores::below(u32::MAX, 0), Scores::within(beyond, 12)] {
        let sorted = top_k::sort(&mut clear, &zeros(&[1, 8]), 2, scores, 44).map(|_| ());
        assert!(matches!(sorted, Err(Error::Width { operation: "top-k", limit: 64, .. })), "{sorted:?}");
    }
    let ranked = top_k::sort(&mut clear, &zeros(&[0, (1 << 17) + 1]), 1, SCORES, 44).map(|_| ());
    assert!(matches!(ranked, Err(Error::TooMany { got: 131_073, .. })), "{ranked:?}");
}

#[test]
fn the_box_in_the_clear_names_what_leaves_a_range() {
    let unit = 1u64 << FRAC;
    let one = |x: u64| words(&[1, 1], vec![x]);
    let mut clear = Clear::new();
    let refused = |result: Result<ArrayD<u64>, Error>, operation: &str| match result {
        Err(Error::Engine(waggle_engine::Error::Range { path, .. })) => {
            assert!(path.contains(operation), "{path} for {operation}");
        }
        other => panic!("{operation}: {other:?}"),
    };
    refused(clear.scope("layer 3", |b| gelu(b, &one(2100 * unit), Gelu::Tanh)), "layer 3/gelu");
    refused(silu(&mut clear, &one((-2100i64 as u64).wrapping_mul(unit))), "silu");
    refused(argmax(&mut clear, &one(1 << 40)), "argmax");
    refused(clear.apply(Truncation { width: 56, shift: 16, out: 64 }, &one(1 << 54)), "truncate");
    refused(clear.apply(Mul { width: 56, error_bits: 0 }, (&one(1 << 30), &one(1 << 30))), "mul");
    let wide = words(&[1, 1, 1], vec![1 << 30]);
    refused(clear.apply(Matmul { width: 44 }, (&wide, &wide)), "matmul");
    // Values inside the range pass.
    assert!(clear.apply(Truncation { width: 56, shift: 16, out: 64 }, &one((1 << 54) - 1)).is_ok());
    assert!(silu(&mut clear, &one(1000 * unit)).is_ok());
}

/// An id beyond the table is the client's error, before anything is sent.
#[test]
fn an_id_beyond_the_table_is_refused() {
    let spec = WeightSpec::new("w", 17, 9);
    let table = FixedWeight { spec, frac: 16, values: None };
    let mut pair = pair(DEALER);
    pair.run(|abb| {
        if abb.session().role() == Role::Client {
            let refused = embed(abb, &table, Some(&[17]), 1);
            assert!(matches!(refused, Err(Error::Engine(waggle_engine::Error::Token { id: 17, vocabulary: 17 }))));
        }
        Ok(())
    })
    .expect("nothing is sent");
    assert!(pair.party(Role::Client).session().channel().ledger().total().bytes() == 0);
}
