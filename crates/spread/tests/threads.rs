//! Ranks as threads, without MPI: they multiply as one process does, and a rank that fails is named.

mod support;

use std::thread;

use waggle_protocols::{FixedMatrix, Spread};
use waggle_spread::{Ranks, SpreadError, columns_of, threads};

/// Has every rank do `work` in a thread of its own. Returns the results in the order of the ranks.
fn run<T: Send>(ranks: Vec<Ranks>, work: impl Fn(&Ranks) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = ranks.into_iter().map(|ranks| scope.spawn(move || work(&ranks))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}

#[test]
fn ranks_multiply_as_one_process_does() {
    let mut responses = Vec::new();
    // 4099 words in a message: one row of the widest matrix at a time.
    for (size, most_words) in [(1, 1 << 20), (2, 1 << 20), (2, 4099), (3, 9000), (7, 1 << 20)] {
        let ranks = threads::ranks(size, most_words).unwrap();
        let done = run(ranks.clone(), support::run);
        responses.push(ranks.iter().map(Ranks::response_bytes).sum::<u64>());
        assert_eq!(done[0], 70);
        assert!(done[1..].iter().all(|products| *products >= 70), "{done:?}");
        if most_words == 4099 {
            assert!(done[1] > 70 * 2, "messages are cut: {done:?}");
        }
    }
    // Rank 0 compares its own bytes with its share of all bytes, so the other ranks make the rest, once.
    assert!(responses.iter().all(|bytes| *bytes == responses[0]), "{responses:?}");
}

#[test]
fn columns_are_shared_out_without_gap_and_evenly() {
    for ranks in 1..9 {
        for outputs in [0, 1, 2, 7, 8, 64, 1001, usize::MAX] {
            let ranges: Vec<_> = (0..ranks).map(|rank| columns_of(rank, ranks, outputs)).collect();
            assert_eq!((ranges[0].start, ranges[ranks - 1].end), (0, outputs));
            assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start));
            assert!(ranges.iter().all(|range| range.len().abs_diff(outputs / ranks) <= 1), "{ranges:?}");
        }
    }
}

#[test]
fn a_row_too_long_for_a_message_is_refused() {
    let results = run(threads::ranks(2, 10).unwrap(), |ranks| {
        if ranks.rank() > 0 {
            return ranks
                .work(vec![FixedMatrix::integers(1, 11, vec![1; 11])])
                .map_err(waggle_protocols::Error::from)
                .map(|_| ());
        }
        let matrix = FixedMatrix::integers(1, 11, vec![1; 11]).spread_over(std::sync::Arc::new(ranks.clone()), 0);
        let refused = matrix.times(&[2]).map(|_| ());
        ranks.end();
        refused
    });
    assert!(results[1].is_ok());
    let refused = results[0].as_ref().unwrap_err().to_string();
    assert!(refused.contains("a matrix of 1 by 11 entries") && refused.contains("10 words"), "{refused}");
}

#[test]
fn rank_0_ends_all_if_one_has_another_model_or_none() {
    type Says = fn(usize) -> Result<String, String>;
    let other: Says = |rank| Ok(if rank == 2 { "other" } else { "same" }.into());
    let none: Says =
        |rank| if rank == 1 { Err("x/model.safetensors: no such file".into()) } else { Ok("same".into()) };
    for (says, expected) in [
        (other, "rank 2 on thread-2 has another model than rank 0: other, expected same"),
        (none, "rank 1 on thread-1: x/model.safetensors: no such file"),
    ] {
        let results = run(threads::ranks(3, 100).unwrap(), |ranks| {
            let met = ranks.meet(says(ranks.rank()));
            if ranks.rank() == 0 {
                ranks.end();
                return met.unwrap_err().to_string();
            }
            // Loading calls `largest` next.
            let told = ranks.largest(1.0).unwrap_err().to_string();
            ranks.end();
            told
        });
        assert_eq!(results, [expected, "rank 0 has ended", "rank 0 has ended"]);
    }
}

#[test]
fn a_rank_that_cannot_load_is_named() {
    let results = run(threads::ranks(3, 100).unwrap(), |ranks| {
        ranks.meet(Ok("same".into())).unwrap();
        if ranks.rank() == 2 {
            ranks.ready(Err("tensor `w` holds NaN".into())).unwrap();
            ranks.end();
            return None;
        }
        let largest = ranks.largest(1.0).unwrap_err();
        ranks.end();
        Some(largest.to_string())
    });
    let ended = SpreadError::Ended.to_string();
    assert_eq!(results, [Some("rank 2 on thread-2: tensor `w` holds NaN".into()), Some(ended), None]);
}
