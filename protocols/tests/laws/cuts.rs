//! Products are right, cost what the plan says and spend each mask once, where tokens are cut off and others come.

use ndarray::ArrayD;
use waggle_engine::CachedOperand;
use waggle_protocols::audit::{Audit, Broken, LIMIT};
use waggle_protocols::ops::matmul;
use waggle_protocols::{Abb, Axis, Error, Needs, Operand, OperandId, OperandKind, Shape, Tensor, TwoParty, Words};

use waggle_testing::laws::planner;
use waggle_testing::{TWO_PHASES, open, own};

use crate::small::{cached, late, run, share};

const HEADS: usize = 2;
const DIM: usize = 5;
const WIDTH: u32 = 40;
const KEYS: OperandId = OperandId { layer: 0, kind: OperandKind::Keys, generation: 0, part: 0 };
const VALUES: OperandId = OperandId { kind: OperandKind::Values, ..KEYS };

/// New tokens of a product, and the number of last tokens that are cut off after it.
type Step = (usize, usize);

/// A prompt, passes over drafts that keep all, some and one of their tokens, and a short one at the end.
const STEPS: [Step; 6] = [(4, 0), (3, 2), (3, 0), (3, 1), (3, 2), (2, 0)];

/// Products with keys and values of a cache from which tokens are taken back. The tokens of step s are the rows from
/// `starts[s]` on of the inputs, so that none comes twice.
struct Cuts<'a>(&'a [Step]);

impl Cuts<'_> {
    /// For each step, the rows of all tokens that it sees.
    fn seen(&self) -> Vec<Vec<usize>> {
        let (mut all, mut next) = (Vec::new(), 0);
        let steps = self.0.iter().map(|&(new, cut)| {
            all.extend(next..next + new);
            next += new;
            let seen = all.clone();
            all.truncate(all.len() - cut);
            seen
        });
        steps.collect()
    }

    fn rows(&self) -> usize {
        self.0.iter().map(|(new, _)| new).sum()
    }

    fn shape(&self) -> [usize; 3] {
        [HEADS, self.rows(), DIM]
    }

    /// For step `s`: queries of the new tokens, keys, the keys' transpose, and the factor of the values.
    fn factors<W: Words>(&self, s: usize, x: &[W]) -> [W; 4] {
        let seen = &self.seen()[s];
        let new = self.0[s].0;
        let rows = |x: &W, rows: &[usize]| {
            let parts: Vec<W> = rows.iter().map(|&row| x.slice(1, row..row + 1)).collect();
            W::concat(1, &parts.iter().collect::<Vec<_>>())
        };
        let keys = rows(&x[1], seen);
        let transposed = keys.permute(&[0, 2, 1]);
        [rows(&x[0], &seen[seen.len() - new..]), transposed.clone(), transposed, keys]
    }
}

impl Cuts<'_> {
    fn call<B: Abb>(&self, b: &mut B, x: &[B::Words]) -> Result<B::Words, Error> {
        let mut operands = [KEYS, VALUES].map(Operand::new);
        let mut out = Vec::new();
        for (s, seen) in self.seen().iter().enumerate() {
            let [q, kt, weights, k] = self.factors(s, x);
            let [keys, values] = &mut operands;
            let scores = cached(b, [&q, &kt], WIDTH, Axis::Columns, keys)?;
            let mixed = cached(b, [&weights, &k], WIDTH, Axis::Rows, values)?;
            out.extend([scores.reshape(&[scores.len()]), mixed.reshape(&[mixed.len()])]);
            operands.iter_mut().for_each(|operand| operand.roll_back(seen.len() - self.0[s].1));
        }
        Ok(B::Words::concat(0, &out.iter().collect::<Vec<_>>()))
    }
}

fn values(len: usize, seed: u64) -> Vec<u64> {
    (0..len as u64).map(|i| ((i * seed % 5).wrapping_sub(2)) << 8).collect()
}

/// The products of `cuts` from whole matrices, in the clear.
fn naive(cuts: &Cuts, inputs: &[ArrayD<u64>; 2]) -> Vec<u64> {
    let mut out = Vec::new();
    for s in 0..cuts.0.len() {
        let [q, kt, weights, k] = cuts.factors(s, inputs);
        for (a, b) in [(q, kt), (weights, k)] {
            let shape = matmul::product_shape(a.shape(), b.shape());
            let flat = |x: &ArrayD<u64>| x.iter().copied().collect::<Vec<u64>>();
            out.extend(matmul::multiply(shape, &flat(&a), &flat(&b)));
        }
    }
    out
}

fn needs(steps: &[Step]) -> Needs {
    let cuts = Cuts(steps);
    let mut plan = planner(TWO_PHASES);
    let shape = || Shape(cuts.shape().to_vec());
    cuts.call(&mut plan, &[shape(), shape()]).expect("plan");
    plan.needs()
}

#[test]
fn products_after_cuts_equal_the_naive_ones_and_their_plan() {
    let cuts = Cuts(&STEPS);
    let shape = cuts.shape();
    let inputs = [7, 3].map(|seed| values(shape.iter().product(), seed));
    let shares = inputs.each_ref().map(|values| share(values, &shape));
    let want = naive(&cuts, &inputs.clone().map(|v| ArrayD::from_shape_vec(shape.to_vec(), v).expect("shape")));
    // Masks are prepared for: the same run; a run that keeps other numbers of tokens in passes of the same sizes; the
    // first half of the run; another run altogether; nothing.
    let other_counts = [(4, 0), (3, 0), (3, 2), (3, 2), (3, 0), (2, 0)];
    let prepared: [(&[Step], bool); 5] =
        [(&STEPS, true), (&other_counts, true), (&STEPS[..3], false), (&[(5, 0), (3, 2)], false), (&[], false)];
    for (made_for, fits) in prepared {
        let made = if made_for.is_empty() { Needs::default() } else { needs(made_for) };
        let [(client, ledger), (server, server_ledger)] = run(TWO_PHASES, |abb| {
            abb.prepare(&made, |_| None, &mut |_| ())?;
            let words = shares.each_ref().map(|shares| own(abb, shares).clone());
            cuts.call(abb, &words)
        });
        for (i, (got, want)) in open(&[client, server]).iter().zip(&want).enumerate() {
            let off = (got.wrapping_sub(*want) << (64 - WIDTH)) as i64 >> (64 - WIDTH);
            assert!(off.abs() <= 16, "{made_for:?}: word {i} is off by {off}");
        }
        assert_eq!(ledger, server_ledger);
        let mut plan = planner(TWO_PHASES);
        plan.prepare(&made).expect("plan");
        cuts.call(&mut plan, &[Shape(shape.to_vec()), Shape(shape.to_vec())]).expect("plan");
        assert_eq!(plan.ledger().untimed(), ledger, "{made_for:?}: planned ledger");
        assert_eq!(plan.needs(), needs(&STEPS), "{made_for:?}: a run takes the same however it was prepared");
        assert_eq!(late(&mut plan) == 0, fits, "{made_for:?}: made on the spot");
    }
}

/// Made on the spot, products after a cut send what they would if the tokens had never come.
#[test]
fn dead_slots_cost_nothing_where_masks_are_made_on_the_spot() {
    let cost = |steps: &[Step]| {
        let cuts = Cuts(steps);
        let mut plan = planner(TWO_PHASES);
        let shape = || Shape(cuts.shape().to_vec());
        cuts.call(&mut plan, &[shape(), shape()]).expect("plan");
        plan.ledger().total()
    };
    let drafted = [(4, 0), (3, 2), (3, 2), (1, 0)];
    let same = [(4, 0), (1, 0), (1, 0), (1, 0)];
    let extra = |steps: &[Step]| cost(steps).bytes() - cost(&steps[..3]).bytes();
    assert_eq!(extra(&drafted), extra(&same));
}

/// The deviation of the words opened where new tokens replace others, and a mask that served twice.
fn seen(prepared: bool, broken: Option<Broken>) -> (f64, Option<String>) {
    const PROMPT: usize = 3;
    const DRAFT: usize = 200;
    let steps: [Step; 3] = [(PROMPT, 0), (DRAFT, DRAFT), (DRAFT, 0)];
    let cuts = Cuts(&steps);
    let made = if prepared { needs(&steps) } else { Needs::default() };
    let shares = share(&vec![5; HEADS * cuts.rows() * DIM], &cuts.shape());
    let [(client, _), (server, _)] = run(TWO_PHASES, |abb: &mut TwoParty| {
        abb.session().set_audit(Audit::breaking(broken));
        abb.prepare(&made, |_| None, &mut |_| ())?;
        let words = own(abb, &shares).clone();
        let words = [words.clone(), words];
        let mut operand = Operand::new(KEYS);
        for s in 0..3 {
            let [q, kt, ..] = cuts.factors(s, &words);
            cached(abb, [&q, &kt], WIDTH, Axis::Columns, &mut operand)?;
            operand.roll_back(if s == 1 { PROMPT } else { usize::MAX });
        }
        let audit = abb.session().audit();
        Ok((audit.worst().1, audit.reused()))
    });
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn a_token_in_the_place_of_another_is_opened_under_another_mask() {
    for prepared in [true, false] {
        let (worst, reused) = seen(prepared, None);
        assert!(worst < LIMIT && reused.is_none(), "{worst} and {reused:?}, prepared: {prepared}");
        // If a cut gives the slots back, too, the audit sees that the tokens are the same.
        let (worst, reused) = seen(prepared, Some(Broken::Slots));
        let noticed = reused.is_some_and(|said| said.contains("/rows"));
        assert!(worst > 10.0 * LIMIT && noticed, "the audit sees it: {worst}");
    }
}

/// A session refuses a mask that comes a second time.
#[test]
fn a_mask_serves_one_row_whatever_is_cut() {
    let shares = share(&values(HEADS * 40 * DIM, 7), &[HEADS, 40, DIM]);
    for prepared in [true, false] {
        let steps = [(4, 0), (3, 2), (3, 1), (3, 2), (3, 0), (3, 3), (3, 2), (3, 2), (3, 2), (3, 2), (3, 0), (2, 1)];
        let cuts = Cuts(&steps);
        let made = if prepared { needs(&steps[..6]) } else { Needs::default() };
        run(TWO_PHASES, |abb: &mut TwoParty| {
            abb.prepare(&made, |_| None, &mut |_| ())?;
            let words = own(abb, &shares).clone();
            cuts.call(abb, &[words.clone(), words])?;
            assert_eq!(abb.session().audit().reused(), None);
            Ok(())
        });
    }
}
