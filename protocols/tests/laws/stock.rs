//! The offline phase prepares what is used, a stock outlives its session, and no unit serves twice.

use ndarray::ArrayD;
use waggle_net::{Phase, Role};
use waggle_planner::Planner;
use waggle_protocols::ops::{Linear, Matmul, Mul, MulRows, SquareRows, SumSquares, Truncation};
use waggle_protocols::{
    Abb, Axis, Error, FixedMatrix, FixedValues, FixedWeight, LINEAR_WIDTH, Needs, Operand, OperandId, OperandKind,
    Options, Shape, Tensor, WeightSpec,
};

use waggle_testing::laws::{OPERAND_BATCH, planner};
use waggle_testing::{Function, TWO_PHASES, function, own};

use crate::small::{cached, late, run, share};

const HEADS: usize = 2;
const DIM: usize = 5;
const WIDTH: u32 = 40;
const KEYS: OperandId = OperandId { layer: 0, kind: OperandKind::Keys, generation: 0, part: 0 };
const VALUES: OperandId = OperandId { kind: OperandKind::Values, ..KEYS };
/// New tokens of each step.
const STEPS: [usize; 4] = [4, 1, 1, 3];

fn weight(known: bool) -> FixedWeight {
    let spec = WeightSpec::new("w", DIM, 7);
    let matrix = FixedMatrix::integers(DIM, 7, (0..DIM as i32 * 7).map(|i| i * 3 % 7 - 3).collect());
    FixedWeight { spec, frac: 16, values: known.then(|| FixedValues { matrix, bias: vec![5; 7] }) }
}

/// Attention without softmax over a cache that grows, then a weight, squares and products.
struct Steps {
    weight: FixedWeight,
    fixed: bool,
}

impl Steps {
    fn call<B: Abb>(&self, b: &mut B, x: &[B::Words]) -> Result<B::Words, Error> {
        let [mut keys, mut values] = [KEYS, VALUES].map(Operand::new);
        let (mut seen, mut out) = (0, Vec::new());
        for fresh in STEPS {
            let q = x[0].slice(1, seen..seen + fresh);
            seen += fresh;
            let k = x[1].slice(1, 0..seen);
            let kt = k.permute(&[0, 2, 1]);
            let mixed = if self.fixed {
                let scores = cached(b, [&q, &kt], WIDTH, Axis::Columns, &mut keys)?;
                cached(b, [&scores, &k], WIDTH, Axis::Rows, &mut values)?
            } else {
                let scores = b.apply(Matmul { width: WIDTH }, (&q, &kt))?;
                b.apply(Matmul { width: WIDTH }, (&scores, &k))?
            };
            let y = b.apply(Linear { weight: &self.weight }, &mixed.reshape(&[HEADS * fresh, DIM]))?;
            let rows = q.reshape(&[HEADS * fresh, DIM]);
            let squares = b.apply(SumSquares { width: WIDTH }, &rows)?;
            let cubes = b.apply(MulRows { width: WIDTH, error_bits: 0 }, (&rows, &squares))?;
            out.push(y.reshape(&[y.len()]));
            out.push(cubes.reshape(&[cubes.len()]));
        }
        Ok(B::Words::concat(0, &out.iter().collect::<Vec<_>>()))
    }
}

fn inputs() -> (Vec<Vec<u64>>, [usize; 3]) {
    let tokens: usize = STEPS.iter().sum();
    let len = HEADS * tokens * DIM;
    let small = |seed: u64| (0..len as u64).map(|i| ((i * seed % 5).wrapping_sub(2)) << 8).collect::<Vec<_>>();
    (vec![small(7), small(3)], [HEADS, tokens, DIM])
}

fn program(known: bool) -> Steps {
    Steps { weight: weight(known), fixed: true }
}

fn needs(options: Options) -> Needs {
    let (_, shape) = inputs();
    let mut plan = planner(options);
    let shapes = [Shape(shape.to_vec()), Shape(shape.to_vec())];
    program(false).call(&mut plan, &shapes).expect("plan");
    plan.needs()
}

/// Prepares `made` and then runs the program. Progress is told in order, and the ledger is that of the plan.
fn prepared(options: Options, made: &Needs) -> ([ArrayD<u64>; 2], Planner) {
    let (values, shape) = inputs();
    let shares: Vec<_> = values.iter().map(|values| share(values, &shape)).collect();
    let [(client, ledger), (server, server_ledger)] = run(options, |abb| {
        let known = abb.session().is_server();
        let weight = weight(known);
        let matrix = weight.values.as_ref().map(|v| &v.matrix);
        let mut bytes = Vec::new();
        abb.prepare(made, |name| matrix.filter(|_| name == "w"), &mut |made| {
            bytes.push((made.bytes, made.all_bytes))
        })?;
        assert!(bytes.is_sorted() && bytes.last().is_some_and(|(done, all)| done == all), "{bytes:?}");
        abb.session().channel().ledger_mut().set_phase(Phase::Decode);
        let words: Vec<_> = shares.iter().map(|s| own(abb, s).clone()).collect();
        program(known).call(abb, &words)
    });
    assert_eq!(ledger, server_ledger);
    let mut plan = planner(options);
    plan.prepare(made).expect("plan");
    plan.ledger().set_phase(Phase::Decode);
    program(false).call(&mut plan, &[Shape(shape.to_vec()), Shape(shape.to_vec())]).expect("plan");
    assert_eq!(plan.ledger().untimed(), ledger, "planned ledger");
    ([client, server], plan)
}

#[test]
fn a_prepared_run_equals_the_naive_one_and_its_plan() {
    let (values, shape) = inputs();
    let words = values.into_iter().map(|v| ArrayD::from_shape_vec(shape.to_vec(), v).unwrap()).collect::<Vec<_>>();
    let want = program(true).call(&mut waggle_protocols::Clear::new(), &words).expect("clear");
    for options in [TWO_PHASES, Options { preprocess: true, ..Options::default() }] {
        let needs = needs(options);
        assert!(needs.operands.len() == 2 && needs.operands[&KEYS].list.len() == STEPS.len(), "{needs:?}");
        let batches = needs.operands[&KEYS].batches(OPERAND_BATCH);
        assert!(batches.len() > 1, "{batches:?}");
        assert_eq!(batches.into_iter().flat_map(|batch| batch.list).collect::<Vec<_>>(), needs.operands[&KEYS].list);
        let ([client, server], mut plan) = prepared(options, &needs);
        // Products of matrices are off by a few units. The operations after them magnify this.
        let number = |x: u64| ((x << (64 - WIDTH)) as i64 >> (64 - WIDTH)) as f64;
        let largest = want.iter().map(|x| number(*x).abs()).fold(1.0, f64::max);
        for ((c, s), want) in client.iter().zip(&server).zip(&want) {
            let got = number(c.wrapping_add(*s));
            assert!((got - number(*want)).abs() < 0.01 * largest, "{got} for {}, largest {largest}", number(*want));
        }
        // Nothing was left to make on the spot.
        assert_eq!(late(&mut plan), 0);
        assert_eq!(plan.needs(), needs, "a run takes the same whether or not it was prepared");
    }
}

#[test]
fn a_stock_outlives_its_session() {
    let (values, shape) = inputs();
    let shares: Vec<_> = values.iter().map(|values| share(values, &shape)).collect();
    let needs = needs(TWO_PHASES);
    let stored = needs.stored();
    let known = |role| role == Role::Server;
    let first = run(TWO_PHASES, |abb| {
        let role = abb.session().role();
        let weight = weight(known(role));
        let matrix = weight.values.as_ref().map(|v| &v.matrix);
        abb.prepare(&stored, |_| matrix, &mut |_| ())?;
        let mut words = Vec::new();
        let stock = std::mem::take(abb.stock());
        stock.drain(&stored, role, |piece| {
            words.extend_from_slice(piece);
            Ok::<_, Error>(())
        })?;
        assert_eq!(words.len() as u64, stored.words(role));
        Ok(words)
    });
    let kept = [&first[0].0, &first[1].0];
    let outputs = |stored: bool| {
        run(TWO_PHASES, |abb| {
            let role = abb.session().role();
            let weight = weight(known(role));
            let matrix = weight.values.as_ref().map(|v| &v.matrix);
            if stored {
                let mut rest = &kept[role as usize][..];
                *abb.stock() = waggle_protocols::Stock::refill(&needs, role, |piece| {
                    let (now, later) = rest.split_at(piece.len());
                    piece.copy_from_slice(now);
                    rest = later;
                    Ok::<_, Error>(())
                })?;
                assert!(rest.is_empty());
                abb.prepare(&needs.ots(), |_| None, &mut |_| ())?;
            } else {
                abb.prepare(&needs, |_| matrix, &mut |_| ())?;
            }
            let words: Vec<_> = shares.iter().map(|s| own(abb, s).clone()).collect();
            program(known(role)).call(abb, &words)
        })
    };
    let (fresh, reused) = (outputs(false), outputs(true));
    for i in 0..fresh[0].0.len() {
        let value = |parties: &[(ArrayD<u64>, _); 2]| {
            ((parties[0].0[i].wrapping_add(parties[1].0[i]) << (64 - WIDTH)) as i64 >> (64 - WIDTH)) as f64
        };
        let (want, got) = (value(&fresh), value(&reused));
        assert!((want - got).abs() <= 1e-2 * want.abs().max(1e6), "entry {i}: {got}, expected {want}");
    }
    let mut plan = planner(TWO_PHASES);
    plan.prepare(&needs.ots()).expect("plan");
    plan.set_stock(&needs);
    program(false).call(&mut plan, &[Shape(shape.to_vec()), Shape(shape.to_vec())]).expect("plan");
    assert_eq!(plan.ledger().untimed(), reused[0].1, "planned ledger");
}

/// Requests are made while the server answers the one before. The rows of all batches and of two matrices are right,
/// and none comes twice.
#[test]
fn rows_that_are_made_ahead_are_fresh_and_right() {
    const ROWS: usize = 300;
    let mut plan = planner(TWO_PHASES);
    plan.apply(Linear { weight: &weight(false) }, &Shape(vec![ROWS, DIM])).expect("plan");
    let mut needs = plan.needs();
    needs.units.retain(|kind, _| kind.weight().is_some());
    let kind = needs.units.keys().next().expect("a matrix").clone();
    assert!(kind.batch(&TWO_PHASES) < ROWS / 2, "several batches");
    needs.units.insert(kind.for_weight("v").expect("another matrix"), ROWS);
    let stored = needs.stored();
    let [(client, ledger), (server, _)] = run(TWO_PHASES, |abb| {
        let role = abb.session().role();
        let weight = weight(role == Role::Server);
        abb.prepare(&stored, |_| weight.values.as_ref().map(|v| &v.matrix), &mut |_| ())?;
        let mut words = Vec::new();
        std::mem::take(abb.stock()).drain(&stored, role, |piece| {
            words.extend_from_slice(piece);
            Ok::<_, Error>(())
        })?;
        Ok(words)
    });
    let mut plan = planner(TWO_PHASES);
    plan.prepare(&stored).expect("plan");
    assert_eq!(plan.ledger().untimed(), ledger, "planned ledger");
    let matrix = weight(true).values.expect("known").matrix.to_integers();
    let width = 64 - LINEAR_WIDTH;
    let mut seen = std::collections::HashSet::new();
    let rows = client.chunks_exact(DIM + 7).zip(server.chunks_exact(7));
    assert_eq!(rows.len(), 2 * ROWS);
    for (client, server) in rows {
        let (r, shares) = client.split_at(DIM);
        assert!(seen.insert(r.to_vec()), "a row twice");
        for (column, (a, b)) in shares.iter().zip(server).enumerate() {
            let entry = |j: usize| i64::from(matrix[j * 7 + column]) as u64;
            let want = r.iter().enumerate().fold(0u64, |sum, (j, r)| sum.wrapping_add(r.wrapping_mul(entry(j))));
            let error = (a.wrapping_add(*b).wrapping_sub(want) << width) as i64 >> width;
            assert!(error.abs() <= 8, "off by {error}");
        }
    }
}

#[test]
fn a_run_that_was_not_prepared_for_makes_what_it_needs() {
    let mut other = needs(TWO_PHASES);
    // Prepared for other shapes: the first product of the keys does not fit, and half of the rows are missing.
    other.operands.get_mut(&KEYS).expect("products").list[0].m += 1;
    other.units.values_mut().for_each(|units| *units = units.div_ceil(2));
    prepared(TWO_PHASES, &other);
}

/// A stock that took the words of `function` in twice believes that it has enough for two runs.
fn comes_twice(shape: &[usize], function: impl Function) {
    let mut plan = planner(TWO_PHASES);
    function.call(&mut plan, &[Shape(shape.to_vec())], &[]).expect("plan");
    let needs = plan.needs();
    let shares = share(&vec![3; shape.iter().product()], shape);
    run(TWO_PHASES, |abb| {
        abb.prepare(&needs, |_| None, &mut |_| ())?;
        let role = abb.session().role();
        let mut words = Vec::new();
        std::mem::take(abb.stock()).drain(&needs, role, |piece| {
            words.extend_from_slice(piece);
            Ok::<_, Error>(())
        })?;
        for _ in 0..2 {
            let mut rest = words.iter();
            abb.stock().add(&needs, role, |piece| {
                piece.iter_mut().zip(rest.by_ref()).for_each(|(word, kept)| *word = *kept);
                Ok::<_, Error>(())
            })?;
        }
        let x = [own(abb, &shares).clone()];
        function.call(abb, &x, &[])?;
        let again = function.call(abb, &x, &[]).map(|_| ());
        assert!(matches!(again, Err(Error::MaskTwice { .. })), "{again:?}");
        Ok(())
    });
}

#[test]
fn units_that_come_out_of_the_stock_twice_are_noticed() {
    // Single units, and enough words of a few bits.
    comes_twice(&[1], function!(Words, [], |b, x, _| b.apply(Mul { width: 48, error_bits: 0 }, (&x[0], &x[0]))));
    comes_twice(&[1, 5], function!(Words, [], |b, x, _| b.apply(SumSquares { width: 40 }, &x[0])));
    comes_twice(&[1, 5], function!(Words, [], |b, x, _| Ok(b.apply(SquareRows { width: 40, scaled: 30 }, &x[0])?.0)));
    comes_twice(&[40], function!(Words, [], |b, x, _| b.apply(Truncation { width: 44, shift: 15, out: 32 }, &x[0])));
}
