//! Every operation held to the law at the channel: what a party sends tells nothing of what it holds.

use waggle_protocols::ops::fss::ladder::{Ladder, LadderSpec};
use waggle_protocols::ops::fss::table::{CurveSpec, FssTable};
use waggle_protocols::ops::fss::tails::TailedTable;
use waggle_protocols::ops::{
    AtLeast, B2a, Choose, CountAtLeast, Embed, Evaluate, EvaluateNear, ExtendColumns, Function as Tabulated, Linear,
    Matmul, Mul, MulRows, Mux, MuxColumns, NonZero, OneHot, RowMax, ScaleRows, Select, SquareRows, SumSquares,
    Truncation,
};
use waggle_protocols::{Lengths, OperandKind, Options, Tensor, Words};
use waggle_testing::{Function, Laws, TWO_PHASES, function, signed_values};

use crate::{Square, diagonal, factors, grown, positions_of_shuffled, weight};

/// Words of an operand.
const N: usize = 12;

/// Holds what `laws` makes of two seeds to the law at the channel.
fn hidden<'l>(laws: impl Fn(u64) -> Laws<'l>) {
    laws(1).hides(&laws(2), false);
}

/// Random values without the edge values, which are the same for all seeds.
fn random(bits: u32, n: usize, seed: u64) -> Vec<u64> {
    signed_values(bits, n + 8, seed).split_off(8)
}

fn random_bits(n: usize, seed: u64) -> Vec<u8> {
    random(40, n, seed).iter().map(|word| (word & 1) as u8).collect()
}

/// An operation on two operands of signed words of `bits` bits.
fn on_two<F: Function + Clone>(function: F, bits: u32, shapes: [&[usize]; 2]) {
    hidden(|seed| {
        let words = |i: usize| random(bits, shapes[i].iter().product(), seed + 10 * i as u64);
        Laws::of(function.clone()).words(shapes[0], words(0)).words(shapes[1], words(1))
    });
}

/// An operation on signed words of `bits` bits, or on those that are not negative.
fn on_words<F: Function + Clone>(function: F, bits: u32, signed: bool, shape: &[usize], usages: &[Options]) {
    hidden(|seed| {
        let words = random(bits, shape.iter().product(), seed);
        let words = words.into_iter().map(|word| if signed { word } else { (word as i64).unsigned_abs() });
        Laws::of(function.clone()).words(shape, words.collect()).over(usages)
    });
}

const BOTH: [Options; 2] = [waggle_testing::DEALER, TWO_PHASES];

#[test]
fn of_comparisons_and_conversions() {
    for width in [7, 13, 38] {
        on_words(AtLeast { thresholds: &[0, 1], width }, width - 3, true, &[N], &BOTH);
    }
    on_words(OneHot { bits: 4, count: 16 }, 4, false, &[N], &BOTH);
    on_words(NonZero { width: 9 }, 9, false, &[N], &BOTH);
    on_words(Truncation { width: 44, shift: 12, out: 64 }, 41, true, &[N], &BOTH);
    on_words(ExtendColumns { widths: &[24, 30] }, 21, true, &[N, 2], &BOTH);
    let lengths = Lengths::from(&[5, 7][..]);
    on_words(CountAtLeast { lengths: &lengths, width: 9 }, 10, false, &[N], &[TWO_PHASES]);
    on_words(RowMax { lengths: &lengths, width: 16 }, 13, true, &[N], &BOTH);
    hidden(|seed| Laws::of(B2a { width: 17 }).bits(&[N], random_bits(N, seed)));
}

#[test]
fn of_selections() {
    let selected = function!(Words, [], |b, words, bits| {
        let [first, second] = b.apply(Choose::<2>, &bits[0])?;
        let first = b.apply(Select { width: 41 }, (first, &words[0]))?;
        let second = b.apply(Select { width: 41 }, (second, &words[0]))?;
        Ok(Tensor::concat(0, &[&first, &second]))
    });
    let words = |n: usize, seed: u64| random(62, n, seed + 20);
    hidden(|seed| Laws::of(selected.clone()).bits(&[N], random_bits(N, seed)).words(&[N], words(N, seed)));
    hidden(|seed| Laws::of(Mux { width: 41 }).bits(&[N], random_bits(N, seed)).words(&[N], words(N, seed)));
    let columns = MuxColumns { widths: &[24, 30], words: 3 };
    hidden(|seed| Laws::of(columns).bits(&[N, 2], random_bits(2 * N, seed)).words(&[N, 6], words(6 * N, seed)));
}

/// Shuffles, and comparisons of shuffled keys, which are opened.
#[test]
fn of_shuffles() {
    let keys = |seed: u64| {
        // Distinct in every row.
        let words = random(9, 3 * N, seed);
        (0..).zip(words).map(|(i, word)| (word << 4).wrapping_add(i % N as u64)).collect()
    };
    hidden(|seed| Laws::of(positions_of_shuffled(3, N, 4)).words(&[3, N], keys(seed)));
}

#[test]
fn of_functions_by_tables() {
    let square = Tabulated::lookup(Square, 0);
    on_words(Evaluate { function: &square }, 9, false, &[N], &BOTH);
    let curve = CurveSpec { index_bits: 5, low_bits: 4, base: 0.0, step: 1.0, out_frac: 0, out_width: 30 };
    let cubic = CurveSpec { step: 1.0 / 64.0, out_frac: 20, ..curve };
    let tables = [
        FssTable::lines(curve, |x| 3.0 * x + 7.0),
        FssTable::parabolas(cubic, |x| x * x * x),
        FssTable::decay(5, 4, 0.5, 17, [20, 25], 48),
        FssTable::decay(6, 3, 0.5, 9, [20, 22], 64),
    ];
    for table in tables {
        let function = Tabulated::masked(table, 0);
        on_words(Evaluate { function: &function }, 8, false, &[N], &[TWO_PHASES]);
    }
    let ladder = LadderSpec {
        index_bits: 9,
        low_bits: 5,
        octaves: 3,
        range: [2048, (2048 << 8) - 1],
        in_width: 40,
        out_frac: 40,
        out_width: 52,
    };
    let ladder = Tabulated::ladder(Ladder::fit(ladder, |x| 1000.0 / x), 40);
    hidden(|seed| {
        let x = random(18, N, seed).into_iter().map(|x| 2048 + (x as i64).unsigned_abs()).collect();
        Laws::of(Evaluate { function: &ladder }).words(&[N], x).over(&[TWO_PHASES])
    });
    let tailed = CurveSpec { index_bits: 3, step: 1.0 / 64.0, out_frac: 20, ..curve };
    let tailed: &'static TailedTable = Box::leak(Box::new(TailedTable::fit(tailed, 7, f64::sin)));
    let near = function!(Words, [tailed: &'static TailedTable], |b, x, _| {
        Ok(b.apply(EvaluateNear { table: tailed }, &x[0])?.0)
    });
    on_words(near, 13, false, &[N], &[TWO_PHASES]);
}

#[test]
fn of_products_of_words() {
    on_two(Mul { width: 40, error_bits: 0 }, 19, [&[N], &[N]]);
    on_two(Mul { width: 50, error_bits: 12 }, 24, [&[N], &[N]]);
    on_two(MulRows { width: 41, error_bits: 0 }, 20, [&[2, 6], &[2]]);
    on_two(Matmul { width: 50 }, 20, [&[1, 2, 3], &[1, 3, 2]]);
    on_words(SumSquares { width: 40 }, 17, true, &[2, 6], &BOTH);
    // The factors depend on what the first step opened.
    let scaled = function!(Words, [], |b, x, _| {
        let (sums, rows) = b.apply(SquareRows { width: 40, scaled: 31 }, &x[0])?;
        b.apply(ScaleRows, (rows, &sums.plus(&x[1])))
    });
    on_two(scaled, 17, [&[2, 6], &[2]]);
}

/// Products with the server's matrix, which is a secret, as are the rows of a table that the client asks for.
#[test]
fn of_products_with_weights() {
    let (inputs, outputs) = (6, 4);
    let weights = [4, 5].map(|seed| weight(inputs, outputs, seed));
    // Queries meet public keys, and their weights public values, in blocks: several rows, each under its own mask.
    for weights in [&weights, &[4, 5].map(|seed| diagonal(2, 3, 2, seed))] {
        hidden(|seed| {
            let [known, announced] = &weights[seed as usize - 1];
            let matrix = &known.values.as_ref().expect("known").matrix;
            let [known, announced] = [known, announced].map(|weight| Linear { weight });
            let words = random(26, 2 * inputs, seed + 30);
            Laws::of_each(known, announced, known).words(&[2, inputs], words).weight("w", matrix)
        });
    }
    hidden(|seed| {
        let [known, announced] = &weights[seed as usize - 1];
        let (ids, matrix) = ([[3, 0, 5], [1, 4, 1]], &known.values.as_ref().expect("known").matrix);
        let embed = |table, ids: Option<&'static [u32]>| Embed { table, ids, count: 3 };
        let ids: &'static [u32] = Box::leak(Box::new(ids[seed as usize - 1]));
        let [clear, client, server] = [embed(known, Some(ids)), embed(announced, Some(ids)), embed(known, None)];
        Laws::of_each(clear, client, server).weight("w", matrix)
    });
}

#[test]
fn of_products_with_cached_operands() {
    for kind in [OperandKind::Keys, OperandKind::Values] {
        let shapes = factors(kind.axis(), (1, 2, 4), 5);
        let laws = |seed: u64| {
            let words = |i: usize| random(20, shapes[i].iter().product(), seed + 10 * i as u64);
            Laws::of(grown(kind, &[&[3], &[5]])).words(&shapes[0], words(0)).words(&shapes[1], words(1))
        };
        // An operand begins once in a session.
        laws(1).hides(&laws(2), true);
    }
}

/// Operations that open their operand, and say so: what they send tells what it is.
const OPEN: [&str; 3] = ["Open", "Reveal", "RevealRounded"];

/// The source code says which operations there are.
#[test]
fn of_every_operation() {
    let sources = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut places = vec![sources.join("ops"), sources.join("cached")];
    let (own, mut found) = (include_str!("views.rs"), 0);
    let shared = include_str!("main.rs");
    while let Some(place) = places.pop() {
        if place.is_dir() {
            places.extend(place.read_dir().expect("a folder").map(|entry| entry.expect("an entry").path()));
            continue;
        }
        let source = std::fs::read_to_string(&place).expect("a source file");
        let lines = source.lines().filter(|line| line.starts_with("impl"));
        for name in lines.filter_map(|line| line.split_once(" Operation for ")).map(|(_, rest)| rest) {
            let name: String = name.chars().take_while(|c| c.is_alphanumeric()).collect();
            let used = [format!("{name} {{"), format!("{name}::<"), format!("apply({name},")]
                .iter()
                .any(|used| own.contains(used) || shared.contains(used));
            assert!(used || OPEN.contains(&&name[..]), "no law at the channel for {name}");
            found += 1;
        }
    }
    assert!(found > 20, "{found} operations");
}
