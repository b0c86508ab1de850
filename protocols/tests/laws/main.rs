//! Every operation, and functions, held to the laws: reference, cost, range and uniformity, see
//! [`waggle_testing::laws`].

mod choices;
mod cuts;
mod functions;
mod hidden;
mod keys;
mod maxima;
mod operands;
mod rounding;
mod selection;
mod small;
mod stock;
mod views;
mod work;

use ndarray::Array2;
use waggle_engine::WeightData;
use waggle_he::{MatmulShape, MatmulSpec, PlanOptions};
use waggle_net::Role;
use waggle_protocols::ops::lookup::{Table, TableShape};
use waggle_protocols::ops::{
    AtLeast, B2a, Choose, Embed, Evaluate, ExtendColumns, Function as Tabulated, Linear, Matmul, Mul, MulRows, Mux,
    MuxColumns, OneHot, Open, Permute, Quickselect, Reveal, RevealRounded, RowMax, ScaleRows, Select, Shuffle,
    SquareRows, SumSquares, Truncation,
};
use waggle_protocols::{
    Axis, CachedMatmul, CachedProduct, EMBED_WIDTH, FixedMatrix, FixedValues, FixedWeight, LINEAR_WIDTH, Lengths,
    Masks, NARROW_BITS, Operand, OperandId, OperandKind, Options, Plans, Tensor, WEIGHT_BITS, WeightSpec, Words,
    quantise,
};
use waggle_testing::{DEALER, Function, Laws, TWO_PHASES, function, signed_values};

/// The reference of a truncation rounds to nearest, the protocol to either neighbour.
const TRUNCATION: u64 = 1;

/// The error of a product by OLE, as [`waggle_he::OlePlan::lsb_error`] says.
const OLE: u64 = 1;

/// Products that OLE makes more cheaply than OTs do.
const MANY: usize = 9000;

/// Products that OTs make.
const FEW: usize = 70;

/// Bits of two factors whose product is a signed `width`-bit value.
fn factor_bits(width: u32) -> u32 {
    ((width - 1) / 2).max(1)
}

/// The larger error of the plans of products of `shape` in both usages, for weights of `weight_bits` bits.
fn plan_error(shape: MatmulShape, width: u32, weight_bits: u32) -> u64 {
    let error = |options: Options| {
        let plan = Plans::new(options).matmul(MatmulSpec { shape, width, weight_bits });
        plan.expect("a plan").lsb_error()
    };
    error(DEALER).max(error(TWO_PHASES))
}

/// The error of a product of two shared matrices: the errors of both cross terms, whichever operand is encrypted.
fn shared_error(shape: MatmulShape, width: u32) -> u64 {
    let MatmulShape { batch, m, k, n } = shape;
    let transposed = MatmulShape { batch, m: n, k, n: m };
    2 * plan_error(shape, width, width).max(plan_error(transposed, width, width))
}

/// [`shared_error`] for a product whose shape follows from the batches of its correlations: twice the most that any
/// plan may err.
fn largest_shared_error() -> u64 {
    2 * PlanOptions::default().max_lsb_error
}

fn random_bits(count: usize) -> Vec<u8> {
    signed_values(20, count, 77).into_iter().map(|value| (value & 1) as u8).collect()
}

#[test]
fn truncation() {
    for (width, shift, out) in
        [(64, 18, 64), (64, 0, 64), (56, 16, 64), (44, 22, 41), (36, 18, 18), (30, 2, 64), (32, 12, 8), (3, 1, 64)]
    {
        Laws::of(Truncation { width, shift, out })
            .words(&[20, 15], signed_values(width - 2, 300, 1))
            .ring(out)
            .error(if shift == 0 { 0 } else { TRUNCATION })
            .refuses(&[vec![1 << (width - 2); 300]])
            .refuses(&[vec![(1u64 << (width - 2)).wrapping_neg(); 300]])
            .hold();
    }
}

#[test]
fn at_least() {
    // Prepared words of 8 to 15 bits are compared by keys.
    for width in [2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 15, 16, 17, 18, 21, 25, 29, 33, 38, 53, 64] {
        Laws::of(AtLeast { thresholds: &[0], width })
            .words(&[300], signed_values(width - 1, 300, width.into()))
            .hold();
        if width > 2 {
            let edge = 1i64 << (width - 2);
            Laws::of(AtLeast { thresholds: &[0, 1, -1, edge / 3, -edge], width })
                .words(&[20, 15], signed_values(width - 2, 300, width.into()))
                // Inside the ring, but too far from the last threshold.
                .refuses(&[vec![(edge + edge / 2) as u64; 300]])
                .hold();
        }
    }
}

#[test]
fn row_max() {
    let many: Vec<usize> = (1..40).collect();
    let usages: Vec<Options> = waggle_net::LinkShape::PRESETS
        .into_iter()
        .flat_map(|(_, link)| [DEALER, TWO_PHASES].map(|options| Options { link, ..options }))
        .collect();
    for (lengths, width) in
        [(&[1, 1][..], 13), (&[2, 5, 1, 3], 3), (&[129], 13), (&[300, 7], 40), (&[8; 9], 64), (&many, 16)]
    {
        let (lengths, n) = (&Lengths::from(lengths), lengths.iter().sum());
        let ends = (0..n as u64).map(|i| ((1 << (width - 1)) - (i & 1)) & (u64::MAX >> (64 - width))).collect();
        // Few different values, so that ties occur; their differences just fit.
        let few = signed_values(width - 2, 7, 2);
        let x = signed_values(20, n, 3).into_iter().map(|x| few[(x % 7) as usize]).collect();
        let laws = Laws::of(RowMax { lengths, width }).words(&[n], x).ring(width).over(&usages);
        // Single entries have no differences that could leave the range.
        if n > lengths.rows() { laws.refuses(&[ends]) } else { laws }.hold();
    }
}

#[test]
fn choose_and_select() {
    for width in [1, 7, 41, 64] {
        // Two selections by the same bits, whose choices are sent first.
        let selected = function!(Words, [width: u32], |b, words, bits| {
            let [first, second] = b.apply(Choose::<2>, &bits[0])?;
            let first = b.apply(Select { width: *width }, (first, &words[0]))?;
            let second = b.apply(Select { width: *width }, (second, &words[1]))?;
            Ok(Tensor::concat(0, &[&first, &second]))
        });
        Laws::of(selected)
            .bits(&[FEW], random_bits(FEW))
            .words(&[FEW], signed_values(62, FEW, 3))
            .words(&[FEW], signed_values(62, FEW, 4))
            .ring(width)
            .hold();
    }
}

#[test]
fn mux() {
    for width in [1, 7, 41, 64] {
        Laws::of(Mux { width })
            .bits(&[7, 10], random_bits(FEW))
            .words(&[7, 10], signed_values(62, FEW, 3))
            .ring(width)
            .hold();
    }
}

#[test]
fn mux_columns() {
    let ways: [(&[u32], usize, usize); 5] =
        [(&[17], 1, 1), (&[24, 30], 1, 70), (&[9, 1, 64], 5, 33), (&[8], 23, 9), (&[24, 30], 1, 0)];
    for (widths, words, n) in ways {
        // Words are compared in the widest ring: narrower ones are reduced.
        Laws::of(function!(Words, [widths: &'static [u32], words: usize], |b, x, bits| {
            let selected = b.apply(MuxColumns { widths, words: *words }, (&bits[0], &x[0]))?;
            let place = |at: &[usize]| 1u64 << (64 - widths[at[1] / words]);
            Ok(selected.times_each(place))
        }))
        .bits(&[n, widths.len()], random_bits(n * widths.len()))
        .words(&[n, widths.len() * words], signed_values(62, n * widths.len() * words, 5))
        .hold();
    }
}

#[test]
fn extend_columns() {
    let ways: [&[u32]; 3] = [&[24, 30], &[3], &[63, 5, 44]];
    for widths in ways {
        let columns: Vec<_> = widths.iter().map(|&width| signed_values(width - 2, 50, 4)).collect();
        let x = (0..50).flat_map(|row| columns.iter().map(move |column| column[row])).collect();
        Laws::of(ExtendColumns { widths })
            .words(&[50, widths.len()], x)
            .refuses(&[widths.repeat(50).into_iter().map(|width| 1 << (width - 2)).collect()])
            .hold();
    }
}

/// A chain of operations, over real transfers too, and on empty tensors.
#[test]
fn chain() {
    let real = Options::default();
    for n in [100, 0] {
        Laws::of(function!(Words, [n: usize], |b, x, _| {
            let bits = b.apply(AtLeast { thresholds: &[5], width: 30 }, &x[0])?.reshape(&[*n]);
            let kept = b.apply(Mux { width: 60 }, (&bits, &x[0]))?;
            let square = b.apply(Mul { width: 60, error_bits: 0 }, (&kept, &kept))?;
            let square = b.apply(Truncation { width: 60, shift: 20, out: 64 }, &square)?;
            Ok(square.plus(&b.apply(B2a { width: 64 }, &bits)?))
        }))
        .words(&[n], signed_values(28, n, 1))
        .error(TRUNCATION)
        .over(&[DEALER, real, Options { preprocess: true, ..real }])
        .hold();
    }
}

#[test]
fn b2a() {
    for width in [1, 2, 17, 64] {
        Laws::of(B2a { width }).bits(&[10, 7], random_bits(FEW)).ring(width).hold();
    }
}

#[test]
fn mul() {
    for (n, width, error_bits) in [(FEW, 64, 0), (FEW, 37, 0), (FEW, 2, 0), (MANY, 40, 0), (MANY, 50, 12)] {
        let [x, y] = [5, 6].map(|seed| signed_values(factor_bits(width), n, seed));
        let outside = vec![1 << (width / 2); n];
        Laws::of(Mul { width, error_bits })
            .words(&[n], x)
            .words(&[n], y)
            .ring(width)
            .error(if n == MANY { OLE << error_bits } else { 0 })
            .refuses(&[outside.clone(), outside])
            .hold();
    }
}

#[test]
fn mul_rows() {
    for (rows, n, width, error_bits) in
        [(1, 1, 64, 0), (5, 33, 41, 0), (3, 128, 50, 0), (7, 1, 3, 0), (150, 64, 52, 18)]
    {
        Laws::of(MulRows { width, error_bits })
            .words(&[rows, n], signed_values(factor_bits(width), rows * n, 8))
            .words(&[rows], signed_values(factor_bits(width), rows, 9))
            .ring(width)
            // OTs make single words; long rows may come from products of matrices.
            .error(if n == 1 { 0 } else { largest_shared_error().max(OLE << error_bits) })
            .refuses(&[vec![1 << (width / 2); rows * n], vec![1 << (width / 2); rows]])
            .hold();
    }
}

#[test]
fn sum_squares() {
    for (rows, n, width, bits) in
        [(1, 48, 64, 26), (4, 9, 40, 17), (3, 1, 2, 1), (9, 768, 41, 15), (350, 768, 64, 25)]
    {
        Laws::of(SumSquares { width })
            .words(&[rows, n], signed_values(bits, rows * n, 10))
            .ring(width)
            .error(largest_shared_error().max(2 * n as u64 * OLE))
            .refuses(&[vec![1 << (width / 2); rows * n]])
            .hold();
    }
}

#[test]
fn square_rows_and_scale_rows() {
    for (rows, n, width, scaled, bits) in
        [(1, 48, 64, 49, 26), (4, 9, 40, 40, 15), (3, 1, 12, 7, 3), (9, 768, 41, 30, 14), (350, 768, 64, 49, 24)]
    {
        let x = signed_values(bits, rows * n, 10);
        let y = signed_values(scaled - bits - 2, rows, 11);
        let sums = function!(Words, [width: u32, scaled: u32], |b, x, _| {
            Ok(b.apply(SquareRows { width: *width, scaled: *scaled }, &x[0])?.0)
        });
        Laws::of(sums)
            .words(&[rows, n], x.clone())
            .ring(width)
            .error(largest_shared_error().max(2 * n as u64 * OLE))
            .refuses(&[vec![1 << (width / 2); rows * n]])
            .hold();
        let products = function!(Words, [width: u32, scaled: u32], |b, x, _| {
            let (_, rows) = b.apply(SquareRows { width: *width, scaled: *scaled }, &x[0])?;
            b.apply(ScaleRows, (rows, &x[1]))
        });
        Laws::of(products)
            .words(&[rows, n], x.clone())
            .words(&[rows], y)
            .ring(scaled)
            .error(largest_shared_error())
            .refuses(&[x, vec![1 << (scaled - 1); rows]])
            .hold();
    }
}

#[test]
fn matmul() {
    for (batch, m, k, n, width, bits) in [(1, 1, 7, 5, 64, 20), (3, 2, 16, 9, 50, 20), (2, 9, 4, 1, 40, 18)] {
        Laws::of(Matmul { width })
            .words(&[batch, m, k], signed_values(bits, batch * m * k, 1))
            .words(&[batch, k, n], signed_values(bits, batch * k * n, 2))
            .ring(width)
            .error(shared_error(MatmulShape { batch, m, k, n }, width))
            .refuses(&[vec![1 << (width / 2); batch * m * k], vec![1 << (width / 2); batch * k * n]])
            .hold();
    }
}

/// A weight, and the same weight without its values.
fn weight(inputs: usize, outputs: usize, seed: u64) -> [FixedWeight; 2] {
    let spec = WeightSpec::new("w", inputs, outputs);
    let matrix = signed_values(WEIGHT_BITS, inputs * outputs, seed).into_iter().map(|value| value as i32).collect();
    let matrix = FixedMatrix::integers(inputs, outputs, matrix);
    let bias = signed_values(50, outputs, 5).into_iter().map(|value| value as i64).collect();
    let known = FixedWeight { spec: spec.clone(), frac: 16, values: Some(FixedValues { matrix, bias }) };
    [known, FixedWeight { spec, frac: 16, values: None }]
}

/// [`weight`] of equal blocks on a diagonal, each of `rows` and `columns`.
fn diagonal(blocks: usize, rows: usize, columns: usize, seed: u64) -> [FixedWeight; 2] {
    let (inputs, outputs) = (blocks * rows, blocks * columns);
    let [known, announced] = weight(inputs, outputs, seed);
    let FixedValues { matrix, bias } = known.values.expect("known");
    let entries = matrix.to_integers().into_iter().enumerate();
    let within = |at: usize| at / outputs / rows == at % outputs / columns;
    let entries = entries.map(|(at, entry)| if within(at) { entry } else { 0 }).collect();
    let values = Some(FixedValues { matrix: FixedMatrix::integers(inputs, outputs, entries), bias });
    let spec = WeightSpec { blocks, ..announced.spec };
    [values, None].map(|values| FixedWeight { spec: spec.clone(), frac: 16, values })
}

/// [`weight`] of a narrow matrix, which has 13 fractional bits.
fn narrow(inputs: usize, outputs: usize) -> [FixedWeight; 2] {
    let spec = WeightSpec { narrow: true, ..WeightSpec::new("w", inputs, outputs) };
    let entries = signed_values(8, inputs * outputs, 4).into_iter().map(|value| value as i64 as f32 / 800.0);
    let matrix = Array2::from_shape_vec((inputs, outputs), entries.collect()).expect("all entries");
    let bias = signed_values(20, outputs, 5).into_iter().map(|value| value as i64 as f32).collect();
    let known = quantise(&spec, WeightData::new(matrix, Some(bias))).expect("in range");
    assert_eq!((known.frac, known.width(), known.bits()), (13, LINEAR_WIDTH - 7, NARROW_BITS));
    [known, FixedWeight::with_frac(&spec, 13)]
}

#[test]
fn linear() {
    let each = [(1, 12, 7), (5, 33, 20)].into_iter().flat_map(|(rows, inputs, outputs)| {
        [weight(inputs, outputs, 4), narrow(inputs, outputs)].map(|weight| (rows, inputs, outputs, weight))
    });
    let each = each.chain([(1, 12, 21, diagonal(3, 4, 7, 4)), (5, 33, 22, diagonal(11, 3, 2, 4))]);
    for (rows, inputs, outputs, [known, announced]) in each {
        let [known, announced] = [&known, &announced].map(|weight| Linear { weight });
        let (width, bits) = (announced.weight.width(), announced.weight.bits());
        let batch = announced.weight.spec.blocks;
        let shape = MatmulShape { batch, m: rows, k: inputs / batch, n: outputs / batch };
        Laws::of_each(known, announced, known)
            .words(&[rows, inputs], signed_values(26, rows * inputs, 3))
            .ring(width)
            .error(plan_error(shape, width, bits))
            .weight("w", &known.weight.values.as_ref().expect("known").matrix)
            .refuses(&[vec![1 << 45; rows * inputs]])
            .over(&[DEALER, TWO_PHASES, Options { masks: Masks::Sent, ..TWO_PHASES }])
            .hold();
    }
}

#[test]
fn embed() {
    let [known, announced] = weight(17, 9, 4);
    let (ids, count) = ([3, 0, 16, 3], 4);
    let shape = MatmulShape { batch: 1, m: count, k: 17, n: 9 };
    Laws::of_each(
        Embed { table: &known, ids: Some(&ids), count },
        Embed { table: &announced, ids: Some(&ids), count },
        Embed { table: &known, ids: None, count },
    )
    .ring(EMBED_WIDTH)
    .error(plan_error(shape, EMBED_WIDTH, WEIGHT_BITS))
    .weight("w", &known.values.as_ref().expect("known").matrix)
    .hold();
}

/// x^2 in integers, by expansion around the sender's low part.
struct Square;

impl Table for Square {
    fn shape(&self) -> TableShape {
        TableShape { index_bits: 4, low_bits: 6, out_width: 31, constant: true, factor_bits: vec![6, 12] }
    }
    fn factors(&self, low: u64, out: &mut [u64]) {
        out.copy_from_slice(&[low, low * low]);
    }
    fn coefficients(&self, window: i64, low: u64, out: &mut [u64]) {
        let x = window * 64 + low as i64;
        out.copy_from_slice(&[(x * x) as u64, (2 * x) as u64, 1]);
    }
}

#[test]
fn evaluate_by_lookup() {
    let function = Tabulated::lookup(Square, 0);
    // All inputs but those of the last window.
    let x: Vec<u64> = (0..15 * 64).collect();
    Laws::of(Evaluate { function: &function }).words(&[15, 64], x).ring(31).hold();
}

#[test]
fn one_hot() {
    for (bits, count, n) in
        [(1, 1, 5), (2, 3, 9), (4, 5, 40), (6, 16, 200), (8, 200, 30), (9, 512, 20), (17, 100_000, 2)]
    {
        Laws::of(OneHot { bits, count }).words(&[n], signed_values(62, n, 5)).hold();
    }
}

#[test]
fn shuffle_and_permute() {
    for (rows, items, width) in [(1, 1, 64), (2, 2, 7), (2, 5, 2), (4, 8, 44), (12, 64, 38), (2, 33, 64)] {
        let n = rows * items;
        // The entries after a shuffle and its inverse, and the sums of the shuffled rows.
        let restored = function!(Words, [width: u32, rows: usize, items: usize], |b, words, _| {
            let permutations = b.apply(Permute { rows: *rows, items: *items }, ())?;
            let widths = &[*width];
            let shuffled = b.apply(Shuffle { widths, inverse: false }, (&permutations, &words[0]))?;
            let restored = b.apply(Shuffle { widths, inverse: true }, (&permutations, &shuffled))?;
            let sums = shuffled.reshape(&[*rows, *items]).sum_last();
            Ok(Tensor::concat(0, &[&restored.reshape(&[rows * items]), &sums]))
        });
        let laws = Laws::of(restored).words(&[rows, items, 1], signed_values(width - 1, n, 6)).ring(width);
        if width < 64 { laws.refuses(&[vec![1 << 62; n]]) } else { laws }.hold();
    }
}

/// The sums of the largest keys of every row, from their positions in a shuffled order.
fn positions_of_shuffled(rows: usize, items: usize, k: usize) -> impl Function + Clone {
    function!(Words, [rows: usize, items: usize, k: usize], |b, words, _| {
        let (width, keys) = (20, words[0].reshape(&[*rows, *items, 1]));
        let permutations = b.apply(Permute { rows: *rows, items: *items }, ())?;
        let keys = b.apply(Shuffle { widths: &[width], inverse: false }, (&permutations, &keys))?;
        let keys = keys.reshape(&[*rows, *items]);
        let positions = b.apply(Quickselect { k: *k, width }, &keys)?;
        Ok(keys.times_each(|at| u64::from(positions[at[0]].contains(&at[1]))).sum_last())
    })
}

#[test]
fn quickselect() {
    // Few enough that all pairs are compared, so that the traffic is that of the plan.
    for (rows, n, k) in [(1, 1, 1), (1, 2, 1), (40, 5, 2), (3, 16, 7), (2, 6, 0), (2, 6, 6)] {
        let x = signed_values(13, rows * n, 6).into_iter().zip(0..).map(|(x, i)| (x << 4).wrapping_add(i % n as u64));
        Laws::of(positions_of_shuffled(rows, n, k)).words(&[rows, n], x.collect()).ring(20).hold();
    }
}

#[test]
fn reveal() {
    for to in [Role::Client, Role::Server] {
        for width in [1, 23, 64] {
            let x = signed_values(62, 33, 1);
            Laws::of(Reveal { width, to }).words(&[33], x).ring(width).opened_to(&[to]).hold();
        }
    }
}

#[test]
fn reveal_rounded() {
    for (width, drop) in [(56, 20), (24, 7), (64, 1)] {
        for to in [Role::Client, Role::Server] {
            Laws::of(RevealRounded { width, drop, to })
                .words(&[300], signed_values(width - 2, 300, 1))
                .ring(width)
                .opened_to(&[to])
                // Below 2^drop, and half of that for the reference, which rounds to nearest.
                .error((1 << drop) - 1 + (1 << (drop - 1)))
                .refuses(&[vec![1 << (width - 2); 300]])
                .hold();
        }
    }
}

#[test]
fn open() {
    for width in [1, 23, 64] {
        let both = [Role::Client, Role::Server];
        Laws::of(Open { width }).words(&[33], signed_values(62, 33, 1)).ring(width).opened_to(&both).hold();
    }
}

/// Cached operands, (batch, m, d) each, and for every step the tokens of every operand.
type Growing = (&'static [(usize, usize, usize)], &'static [&'static [usize]]);

/// Products with operands that grow as `steps` says, from their left factors and last matrices.
fn grown(kind: OperandKind, steps: &'static [&'static [usize]]) -> impl Function + Clone {
    function!(Words, [kind: OperandKind, steps: &'static [&'static [usize]]], |b, words, _| {
        // The operands' names differ in the part alone.
        let id = |part| OperandId { layer: 3, kind: *kind, generation: 1, part };
        let mut operands: Vec<_> = (0..).map(|part| Operand::new(id(part))).take(words.len() / 2).collect();
        let (axis, mut out) = (kind.axis(), Vec::new());
        for tokens in *steps {
            let factor = |(pair, &tokens): (&[B::Words], &usize)| match axis {
                Axis::Columns => (pair[0].clone(), pair[1].slice(2, 0..tokens)),
                Axis::Rows => (pair[0].slice(2, 0..tokens), pair[1].slice(1, 0..tokens)),
            };
            let factors: Vec<_> = words.chunks(2).zip(*tokens).map(factor).collect();
            let products = factors.iter().zip(&mut operands);
            let products = products.map(|((a, b), operand)| CachedProduct { a, b, axis, operand }).collect();
            let products = b.apply(CachedMatmul { width: 50 }, products)?;
            out.extend(products.iter().map(|product| product.reshape(&[product.len()])));
        }
        Ok(Tensor::concat(0, &out.iter().collect::<Vec<_>>()))
    })
}

/// The shapes of the factors of a product (batch, m, d) with `tokens` tokens.
fn factors(axis: Axis, (batch, m, d): (usize, usize, usize), tokens: usize) -> [[usize; 3]; 2] {
    match axis {
        Axis::Columns => [[batch, m, d], [batch, d, tokens]],
        Axis::Rows => [[batch, m, tokens], [batch, tokens, d]],
    }
}

/// Products with an operand that grows, and with two at once that differ in heads, rows and tokens. They open more
/// than the test of uniformity wants, as an operand begins once in a session.
#[test]
fn products_with_cached_operands() {
    let growing: [Growing; 2] =
        [(&[(2, 8, 16)], &[&[20], &[20], &[30], &[40]]), (&[(3, 8, 12), (1, 16, 12)], &[&[10, 30], &[25, 40]])];
    for ((operands, steps), kind) in
        growing.into_iter().flat_map(|case| [OperandKind::Keys, OperandKind::Values].map(|kind| (case, kind)))
    {
        let mut laws = Laws::of(grown(kind, steps)).ring(50).error(largest_shared_error());
        let mut beyond = Vec::new();
        let last = steps[steps.len() - 1];
        for (&sizes, &tokens) in operands.iter().zip(last) {
            for shape in factors(kind.axis(), sizes, tokens) {
                let n = shape.iter().product();
                beyond.push(vec![1 << 25; n]);
                laws = laws.words(&shape, signed_values(20, n, beyond.len() as u64));
            }
        }
        laws.refuses(&beyond).hold();
    }
}
