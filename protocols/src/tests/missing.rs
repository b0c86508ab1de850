//! An opening without its mask shows. So the audit behind the law of uniformity sees what every prepared operation
//! opens, and every one opens it in as few exchanges as it says.

use net::{Phase, Role};

use super::{TWO_PHASES, open, without_masks};
use crate::audit::LIMIT;
use crate::correlation::Need;
use crate::local::Pair;
use crate::operation::{Operation, shaped};
use crate::ops::evaluate::{Evaluate, Function};
use crate::ops::fss::counts::CountAtLeast;
use crate::ops::fss::ladder::{Ladder, LadderSpec};
use crate::ops::fss::table::{CurveSpec, FssTable};
use crate::ops::fss::tails::{EvaluateNear, TailedTable};
use crate::ops::fss::threshold::NonZero;
use crate::ops::mux_columns::MuxColumns;
use crate::ops::truncate::Truncation;
use crate::{Error, Lengths, Session};

/// Takes the masks from a unit of a correlation.
type Spoil<'a> = &'a (dyn Fn(&mut [u64]) + Sync);

/// An operation with the correlations that it takes.
struct Prepared<R> {
    need: Option<Need>,
    /// Runs it, from the words of the correlations.
    run: R,
    exchanges: u64,
}

impl<R: Fn(&mut Session, Option<&[u64]>) -> Result<(), Error> + Sync> Prepared<R> {
    /// The deviation of the opened words from uniform.
    fn opened(&self, spoil: Option<Spoil>) -> f64 {
        let Need { kind, units } = self.need.as_ref().expect("a correlation");
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
            (self.run)(s, Some(&words))?;
            Ok(s.audit.worst().1)
        });
        let [client, server] = outcome.expect("protocol");
        assert_eq!(client, server, "both parties see the same");
        let online = pair.party(Role::Client).session().channel().ledger().phase_total(Phase::Decode);
        assert_eq!(online.messages, 2 * self.exchanges, "{kind:?}");
        client
    }

    fn shows(&self, spoils: &[Spoil]) {
        let deviation = self.opened(None);
        assert!(deviation < LIMIT, "{deviation} for {:?}", self.need);
        for spoil in spoils {
            let deviation = self.opened(Some(spoil));
            assert!(deviation > 15.0, "a mask that is missing shows: {deviation} for {:?}", self.need);
        }
    }
}

const N: usize = 3000;

/// The share of `value` of a party if the client has all of it.
fn own(s: &Session, value: u64) -> ndarray::ArrayD<u64> {
    shaped(&[N], vec![if s.is_server() { 0 } else { value }; N])
}

#[test]
fn masks_that_are_missing_show() {
    // The mask stands before the key.
    let key: Spoil = &|unit| unit[0] = 0;
    let all: Spoil = &|unit| unit.fill(0);

    let how = Truncation { width: 40, shift: 12, out: 64 };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, 1), words).map(drop);
    Prepared { need: how.correlations(&vec![N], &TWO_PHASES), run, exchanges: 1 }.shows(&[all]);

    let how = MuxColumns { widths: &[24, 30], words: 1 };
    let run = |s: &mut Session, words: Option<&[u64]>| {
        let one = u64::from(!s.is_server());
        let (bits, x) = (shaped(&[N, 2], vec![one as u8; 2 * N]), shaped(&[N, 2], vec![one; 2 * N]));
        how.run(s, (&bits, &x), words).map(drop)
    };
    Prepared { need: how.correlations(&N, &TWO_PHASES), run, exchanges: 1 }.shows(&[all]);

    let lengths = Lengths::equal(N / 30, 30);
    let how = CountAtLeast { lengths: &lengths, width: 9 };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, 1), words).map(drop);
    Prepared { need: how.correlations(&(), &TWO_PHASES), run, exchanges: 1 }.shows(&[key]);

    let how = NonZero { width: 9 };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, 1), words).map(drop);
    Prepared { need: how.correlations(&vec![N], &TWO_PHASES), run, exchanges: 1 }.shows(&[key]);

    let spec = CurveSpec { index_bits: 3, low_bits: 4, base: 0.0, step: 1.0, out_frac: 0, out_width: 30 };
    let lines = Function::masked(FssTable::lines(spec, |x| x), 0);
    let how = Evaluate { function: &lines };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, 1), words).map(drop);
    Prepared { need: how.correlations(&vec![N], &TWO_PHASES), run, exchanges: 1 }.shows(&[key]);

    let tailed = TailedTable::fit(CurveSpec { step: 1.0 / 64.0, out_frac: 20, ..spec }, 7, f64::sin);
    let how = EvaluateNear { table: &tailed };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, 64 << 7), words).map(drop);
    Prepared { need: how.correlations(&N, &TWO_PHASES), run, exchanges: 1 }.shows(&[key]);

    // One exchange for the rungs, and one to choose among them. No bit is set for the smallest x.
    let (start, rungs) = (2048, 3);
    let range = [start, (start << (3 * rungs - 1)) - 1];
    let spec =
        LadderSpec { index_bits: 9, low_bits: 5, octaves: 3, range, in_width: 40, out_frac: 40, out_width: 52 };
    let ladder = Function::ladder(Ladder::fit(spec, |x| 1000.0 / x), 40);
    let how = Evaluate { function: &ladder };
    let run = |s: &mut Session, words: Option<&[u64]>| how.run(s, &own(s, start), words).map(drop);
    // B and the words rho_k stand before the entries of the unit vector: four, of four words.
    let choice = |unit: &[u64]| unit.len() - 16 - 1 - rungs;
    let bits: Spoil = &|unit| unit[choice(unit)] = 0;
    let words: Spoil = &|unit| {
        let first = choice(unit) + 1;
        unit[first..first + rungs].fill(0);
    };
    Prepared { need: how.correlations(&vec![N], &TWO_PHASES), run, exchanges: 2 }.shows(&[bits, words]);
}
