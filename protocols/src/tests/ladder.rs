//! Ladders by both parties' messages: results against the function, costs against the ledger, and what is opened
//! against the uniform distribution.

use net::{Ledger, Phase, Role};

use super::{TWO_PHASES, book, open, share, without_masks};
use crate::local::Pair;
use crate::ops::fss::ladder::{Ladder, LadderSpec, prepare, prepare_cost, run, run_cost};
use crate::words::mask;

fn pair() -> Pair {
    Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up")
}

const OUT_FRAC: u32 = 40;

/// 1000 / x by so many rungs, over inputs from `start` on.
fn ladder(rungs: u32, start: u64) -> Ladder {
    let (index_bits, low_bits, octaves) = (9, 5, 3);
    let end = (start << (octaves * rungs - 1)) - 1;
    Ladder::fit(
        LadderSpec {
            index_bits,
            low_bits,
            octaves,
            range: [start, end],
            in_width: 40,
            out_frac: OUT_FRAC,
            out_width: 52,
        },
        |x| 1000.0 / x,
    )
}

/// Inputs from all over the range, each octave alike, with both ends and all powers of two between them.
fn inputs(rungs: u32, start: u64) -> Vec<u64> {
    let octaves = 3 * rungs - 1;
    let even = (0..500).map(|i| (start as f64 * (f64::from(octaves * i) / 500.0).exp2()) as u64);
    let powers =
        (0..octaves).flat_map(|octave| [start << octave, (start << octave) + 1, (start << (octave + 1)) - 1]);
    even.chain(powers).collect()
}

#[test]
fn ladders_give_the_function_over_the_whole_range() {
    for (rungs, start) in [(1, 2000), (2, 2047), (3, 3000), (5, 2500)] {
        let (ladder, x) = (ladder(rungs, start), inputs(rungs, start));
        assert_eq!(ladder.shape().rungs, rungs as usize);
        let shares = share(&x, u64::from(rungs));
        let [client, server] = pair()
            .run(|abb| {
                let s = abb.session();
                let correlations = prepare(s, &ladder.shape(), x.len())?;
                // In two pieces; the second is spent first.
                let (cut, size) = (x.len() / 3, ladder.shape().correlation_words());
                let own = &shares[s.role() as usize];
                let mut back = run(s, &ladder, &correlations[cut * size..], &own[cut..])?;
                let mut out = run(s, &ladder, &correlations[..cut * size], &own[..cut])?;
                out.append(&mut back);
                Ok(out)
            })
            .expect("protocol");
        let mut worst = 0f64;
        for (x, (c, s)) in x.iter().zip(client.iter().zip(&server)) {
            assert!(ladder.contains(*x), "{x}");
            let (got, want) = (c.wrapping_add(*s) & mask(52), 1000.0 / *x as f64);
            let error = (got as f64 / (OUT_FRAC as f64).exp2() - want).abs() / want;
            assert!(error < 9e-4, "{rungs} rungs at {x}: {error}");
            // The twin drops the same bits of x, but all at once.
            let twin = ladder.value(*x, |_| [3, 17]) as f64 / (OUT_FRAC as f64).exp2();
            worst = worst.max((twin - want).abs() / want);
        }
        assert!(worst < 9e-4, "the twin of {rungs} rungs: {worst}");
        assert!(!ladder.contains(start - 1));
    }
}

#[test]
fn costs_are_the_ledger() {
    for (rungs, n) in [(1, 5), (2, 1), (3, 40), (5, 0)] {
        let ladder = ladder(rungs, 2048);
        let (shape, x) = (ladder.shape(), vec![5000; n]);
        let mut pair = pair();
        pair.run(|abb| {
            let s = abb.session();
            let correlations = prepare(s, &shape, n)?;
            s.channel().ledger_mut().set_phase(Phase::Decode);
            run(s, &ladder, &correlations, &x)
        })
        .expect("protocol");
        let mut ledger = Ledger::default();
        book(&prepare_cost(&shape, n), &mut ledger);
        ledger.set_phase(Phase::Decode);
        book(&run_cost(&shape, n), &mut ledger);
        for role in [Role::Client, Role::Server] {
            let session = pair.party(role).session();
            assert_eq!(session.channel().ledger().untimed(), ledger.untimed(), "{shape:?}, {n}");
        }
        // One exchange for the rungs, and one to choose among them.
        let exchanges = if n == 0 { 0 } else { shape.rungs.min(2) as u64 };
        assert_eq!(ledger.phase_total(Phase::Decode).messages, 2 * exchanges);
    }
}

/// Which of the masks that choose among rungs are missing.
#[derive(Clone, Copy, PartialEq)]
enum Missing {
    Nothing,
    Bits,
    Words,
}

/// How far from uniform is what evaluations of `x` open.
fn opened(x: u64, missing: Missing) -> f64 {
    let ladder = ladder(3, 2048);
    let shape = ladder.shape();
    let x = vec![x; 600];
    let shares = share(&x, x[0]);
    let [client, server] = pair()
        .run(|abb| {
            let s = abb.session();
            let mut correlations = prepare(s, &shape, x.len())?;
            if missing != Missing::Nothing {
                without_masks(s);
            }
            for entry in correlations.chunks_exact_mut(shape.correlation_words()) {
                // B and the words rho_k stand before the 4 entries of 4 words.
                let choice = entry.len() - 16 - 1 - shape.rungs;
                match missing {
                    Missing::Nothing => (),
                    Missing::Bits => entry[choice] = 0,
                    Missing::Words => entry[choice + 1..choice + 1 + shape.rungs].fill(0),
                }
            }
            run(s, &ladder, &correlations, &shares[s.role() as usize])?;
            Ok(s.audit.worst().1)
        })
        .expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn what_is_opened_is_uniform_whatever_the_input() {
    // A correct run exceeds 5 with probability below 1e-6 (one-sided).
    for x in [2048, 2049, 30_000, 500_000] {
        let deviation = opened(x, Missing::Nothing);
        assert!(deviation < crate::audit::LIMIT, "{deviation} for {x}");
    }
    for missing in [Missing::Bits, Missing::Words] {
        // No bit is set for the smallest x.
        let deviation = opened(2048, missing);
        assert!(deviation > 15.0, "a mask that is missing shows: {deviation}");
    }
}
