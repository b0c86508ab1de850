//! An opening without its mask shows. So the audit behind the law of uniformity sees what every prepared operation
//! opens, and every one opens it in as few exchanges as it says.

use ndarray::ArrayD;
use net::{Phase, Role};

use super::{TWO_PHASES, open, without_masks};
use crate::audit::LIMIT;
use crate::correlation::Need;
use crate::form::Values;
use crate::local::Pair;
use crate::operation::{Operation, shaped};
use crate::ops::carry::{self, Carry};
use crate::ops::fss::ladder::{Ladder, LadderSpec};
use crate::ops::fss::table::{CurveSpec, FssTable};
use crate::ops::fss::tails::TailedTable;
use crate::ops::{CountAtLeast, Evaluate, EvaluateNear, Function, MuxColumns, NonZero, Truncation};
use crate::{Error, Lengths, Session};

/// Takes the masks from a unit of a correlation.
type Spoil<'a> = &'a (dyn Fn(&mut [u64]) + Sync);

/// The deviation from uniform of what `run` opens with the correlations of `need`, in as many `exchanges`.
fn opened(
    need: &Need,
    spoil: Option<Spoil>,
    exchanges: u64,
    run: impl Fn(&mut Session, &[u64]) -> Result<(), Error> + Sync,
) -> f64 {
    let Need { kind, units } = need;
    let mut pair = Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up");
    let outcome = pair.run(|abb| {
        let s = abb.session();
        let mut words = kind.make(s, *units, None)?;
        if let Some(spoil) = spoil {
            without_masks(s);
            let unit = words.len() / units;
            words.chunks_exact_mut(unit).for_each(spoil);
        }
        s.channel().ledger_mut().set_phase(Phase::Decode);
        run(s, &words)?;
        Ok(s.audit.worst().1)
    });
    let [client, server] = outcome.expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    let online = pair.party(Role::Client).session().channel().ledger().phase_total(Phase::Decode);
    assert_eq!(online.messages, 2 * exchanges, "{kind:?}");
    client
}

/// Each of `spoils` shows, and nothing shows without.
fn shows(
    need: Option<Need>,
    exchanges: u64,
    spoils: &[Spoil],
    run: impl Fn(&mut Session, &[u64]) -> Result<(), Error> + Sync,
) {
    let need = need.expect("a correlation");
    let deviation = opened(&need, None, exchanges, &run);
    assert!(deviation < LIMIT, "{deviation} for {need:?}");
    for spoil in spoils {
        let deviation = opened(&need, Some(spoil), exchanges, &run);
        assert!(deviation > 15.0, "a mask that is missing shows: {deviation} for {need:?}");
    }
}

/// [`shows`] for an operation on words of which the client has all: `value`, [`N`] times.
fn words_show<O>(how: O, size: O::Size, value: u64, exchanges: u64, spoils: &[Spoil])
where
    O: for<'a> Operation<Input<'a, Values> = &'a ArrayD<u64>> + Sync,
{
    let run = |s: &mut Session, words: &[u64]| how.run(s, &own(s, value), Some(words)).map(drop);
    shows(how.correlations(&size, &TWO_PHASES), exchanges, spoils, run);
}

const N: usize = 3000;

/// The share of `value` of a party if the client has all of it.
fn own(s: &Session, value: u64) -> ArrayD<u64> {
    shaped(&[N], vec![if s.is_server() { 0 } else { value }; N])
}

#[test]
fn masks_that_are_missing_show() {
    // The mask stands before the key.
    let key: Spoil = &|unit| unit[0] = 0;
    let all: Spoil = &|unit| unit.fill(0);

    words_show(Truncation { width: 40, shift: 12, out: 64 }, vec![N], 1, 1, &[all]);

    let how = MuxColumns { widths: &[24, 30], words: 1 };
    shows(how.correlations(&N, &TWO_PHASES), 1, &[all], |s, words| {
        let one = u64::from(!s.is_server());
        let (bits, x) = (shaped(&[N, 2], vec![one as u8; 2 * N]), shaped(&[N, 2], vec![one; 2 * N]));
        how.run(s, (&bits, &x), Some(words)).map(drop)
    });

    let lengths = Lengths::equal(N / 30, 30);
    words_show(CountAtLeast { lengths: &lengths, width: 9 }, (), 1, 1, &[key]);
    words_show(NonZero { width: 9 }, vec![N], 1, 1, &[key]);

    // Seven digits and six pairs, whose 15 masks stand before 22 products.
    let kind = Carry { bits: 20 };
    let digit: Spoil = &|unit| unit[..7].fill(0);
    let pairs: Spoil = &|unit| unit.iter_mut().rev().skip(22).take(15).for_each(|mask| *mask = 0);
    shows(Some(Need::new(kind, Carry::units(N))), 4, &[digit, pairs, all], |s, words| {
        let own = if s.is_server() { 37 } else { 300 };
        carry::run(s, kind, words, &[own; N]).map(drop)
    });

    let spec = CurveSpec { index_bits: 3, low_bits: 4, base: 0.0, step: 1.0, out_frac: 0, out_width: 30 };
    let lines = Function::masked(FssTable::lines(spec, |x| x), 0);
    words_show(Evaluate { function: &lines }, vec![N], 1, 1, &[key]);

    let tailed = TailedTable::fit(CurveSpec { step: 1.0 / 64.0, out_frac: 20, ..spec }, 7, f64::sin);
    words_show(EvaluateNear { table: &tailed }, N, 64 << 7, 1, &[key]);

    // One exchange for the rungs, and one to choose among them. No bit is set for the smallest x.
    let (start, rungs) = (2048, 3);
    let range = [start, (start << (3 * rungs - 1)) - 1];
    let spec =
        LadderSpec { index_bits: 9, low_bits: 5, octaves: 3, range, in_width: 40, out_frac: 40, out_width: 52 };
    let ladder = Function::ladder(Ladder::fit(spec, |x| 1000.0 / x), 40);
    // B and the words rho_k stand before the entries of the unit vector: four, of four words.
    let choice = |unit: &[u64]| unit.len() - 16 - 1 - rungs;
    let bits: Spoil = &|unit| unit[choice(unit)] = 0;
    let words: Spoil = &|unit| {
        let first = choice(unit) + 1;
        unit[first..first + rungs].fill(0);
    };
    words_show(Evaluate { function: &ladder }, vec![N], start, 2, &[bits, words]);
}
