use super::cells::{Cell, Cells, Splitter};
use super::layout::Layout;
use super::search::candidates;
use super::tests::{any_product, distance, evaluation_keys, largest, naive, random_weights, spec};
use super::tiling::Tile;
use super::*;
use crate::ciphertext::Split;
use crate::error::HeError;
use crate::params::round_torus;
use crate::sampling::{Expander, Label, SEED_BYTES};
use crate::set::ParamSet;
use crate::test_keys::keys;
use proptest::prelude::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Asserts that a chi-square statistic stays within six standard deviations of its mean.
fn assert_uniform(counts: &[usize], what: &str) {
    let (cells, total) = (counts.len() as f64, counts.iter().sum::<usize>() as f64);
    let mean = total / cells;
    let chi2: f64 = counts.iter().map(|&c| (c as f64 - mean).powi(2) / mean).sum();
    let limit = 6.0 * (2.0 * (cells - 1.0)).sqrt();
    assert!((chi2 - (cells - 1.0)).abs() < limit, "{what}: {chi2} for {cells} cells, {mean} expected in each");
}

/// Runs the protocol once and returns the operand and both shares. Checks lengths, ranges and the documented bound.
fn run(plan: &SeededPlan, w: &[u64], rng: &mut StdRng) -> (Vec<u64>, [Vec<u64>; 2]) {
    let sk = &keys(plan.set()).0;
    let width = plan.spec().width;
    let Split { message: request, share: r } = plan.request(sk, rng).unwrap();
    assert_eq!(request.len(), plan.upload_bytes());
    let Split { message: response, share: own } =
        plan.respond(evaluation_keys(plan), &request, Weights::U64(w), None, rng).unwrap();
    assert_eq!(response.len(), plan.download_bytes());
    let opened = plan.finish(sk, &response).unwrap();
    let ring = waggle_bits::mask(width);
    assert!(r.iter().chain(&own).chain(&opened).all(|&y| y <= ring));
    let exact = naive(plan.spec().shape, &r, w);
    for (y, (a, b)) in exact.iter().zip(own.iter().zip(&opened)) {
        let error = distance(a.wrapping_add(*b), *y, width);
        assert!(error <= plan.lsb_error(), "{plan:?}: error {error} > {}", plan.lsb_error());
    }
    (r, [own, opened])
}

/// Runs with random weights, then with the largest ones, then with zeros.
fn run_edges(plan: &SeededPlan, rng: &mut StdRng) {
    let spec = plan.spec();
    run(plan, &random_weights(spec, rng), rng);
    let largest = largest(spec);
    let MatmulShape { batch, k, n, .. } = spec.shape;
    let alternating = |i: usize| if i.is_multiple_of(3) { largest.wrapping_neg() } else { largest };
    run(plan, &(0..batch * k * n).map(alternating).collect::<Vec<_>>(), rng);
    run(plan, &vec![largest; batch * k * n], rng);
    run(plan, &vec![0; batch * k * n], rng);
}

#[test]
fn odd_shapes_random_and_extreme() {
    let mut rng = StdRng::seed_from_u64(1);
    for (batch, m, k, n) in [(1, 7, 3, 5), (12, 1, 64, 40), (1, 3, 100, 33), (1, 1, 1, 1), (3, 130, 9, 2)] {
        for (width, weight_bits) in [(64, 20), (64, 64), (44, 20), (44, 44), (37, 12), (16, 8), (1, 1)] {
            run_edges(&SeededPlan::new(spec(batch, m, k, n, width, weight_bits)).unwrap(), &mut rng);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_shape_and_width((spec, options) in any_product(), seed: u64) {
        let plan = SeededPlan::with_options(spec, options).unwrap();
        let mut rng = StdRng::seed_from_u64(seed);
        run(&plan, &random_weights(&spec, &mut rng), &mut rng);
    }
}

/// Layouts of every set: packed layouts, layouts with long runs, and tiles of one column and of many.
#[test]
fn layouts_of_all_sets_stay_within_the_bound() {
    let mut rng = StdRng::seed_from_u64(2);
    for (batch, m, k, n) in [(1, 8, 40, 24), (3, 17, 12, 20), (12, 1, 33, 16)] {
        for (width, weight_bits, set) in [
            (44, 20, ParamSet::Small),
            (44, 44, ParamSet::SmallExact),
            (64, 64, ParamSet::Full),
            (64, 13, ParamSet::FullExact),
            (20, 6, ParamSet::Narrow),
        ] {
            let spec = spec(batch, m, k, n, width, weight_bits);
            let kind = |l: &Layout| (l.packs.is_packed(), l.tiling.tile.run > 1, l.tiling.tile.cols == 1);
            let mut kinds: Vec<((bool, bool, bool), Vec<Layout>)> = Vec::new();
            for layout in candidates(&spec).filter(|layout| layout.set == set) {
                match kinds.iter_mut().find(|(known, _)| *known == kind(&layout)) {
                    Some((_, list)) => list.push(layout),
                    None => kinds.push((kind(&layout), vec![layout])),
                }
            }
            assert!(kinds.len() > 2, "{}", kinds.len());
            for (kind, list) in kinds {
                let few = |l: &&Layout| l.tiling.uploads() + l.packs.responses() <= 60;
                let list: Vec<&Layout> = list.iter().filter(few).collect();
                if let Some(&&layout) = list.get(rng.random_range(0..list.len().max(1))) {
                    let plan = SeededPlan::of(layout).unwrap_or_else(|| panic!("{kind:?} {layout:?}"));
                    run_edges(&plan, &mut rng);
                }
            }
        }
    }
}

/// Residues of `lift(r) + offset`.
fn value(set: ParamSet, width: u32, r: u64, offset: i128) -> Vec<u64> {
    let params = set.params();
    let lift = params.lift(width);
    let d = lift.remainder(u128::from(r));
    let limb = |(i, l): (usize, &crate::Limb)| {
        let (p, base) = (l.modulus(), lift.residue(i, l.modulus(), d));
        let moved = p.reduce_wide(offset.unsigned_abs());
        if offset < 0 { p.sub(base, moved) } else { p.add(base, moved) }
    };
    params.limbs().iter().enumerate().map(limb).collect()
}

fn layout(set: ParamSet, width: u32, weight_bits: u32) -> Layout {
    let tile = Tile { group: 1, rows: 1, inner: 1, cols: 1, run: 1 };
    Layout::new(&spec(1, 1, 1, 1, width, weight_bits), set, tile)
}

/// A splitter with cells of `2^dropped` values, and the length D of a short interval.
fn splitter(set: ParamSet, width: u32, dropped: u32) -> (Splitter<'static>, u128) {
    let interval = set.quotient(width);
    let cells = Cells { dropped, count: interval >> dropped };
    (Splitter::new(set.params(), set, width, &cells), interval)
}

/// Every interval is found from both of its ends and from just outside, in every set.
#[test]
fn values_split_into_entry_and_correction_at_the_edges_of_intervals() {
    let mut rng = StdRng::seed_from_u64(3);
    for (set, widths) in [
        (ParamSet::Narrow, &[1, 20, 37][..]),
        (ParamSet::Small, &[1, 44, 64]),
        (ParamSet::SmallExact, &[1, 44, 64]),
        (ParamSet::Full, &[18, 44, 64]),
        (ParamSet::FullExact, &[30, 44, 64]),
        (ParamSet::Widest, &[56, 64]),
    ] {
        for &width in widths {
            let (whole, interval) = splitter(set, width, 0);
            let ring = waggle_bits::mask(width);
            let last =
                [0, 1, ring, ring - ring / 2, ring / 3].into_iter().chain((0..50).map(|_| rng.random::<u64>()));
            for r in last.map(|r| r & ring) {
                let long = i128::from(
                    set.params().lift(width).long_step(set.params().lift(width).remainder(u128::from(r))) as u8,
                );
                let d = interval as i128;
                for offset in [0, 1, 2, d / 2, d - 2, d - 1, d, d + 1, -1] {
                    let v = value(set, width, r, offset);
                    let Cell { entry, cell, inside } = whole.split(|i| v[i]);
                    // The next interval begins at d, or at d + 1 where this one is long.
                    let next = r.wrapping_add(1) & ring;
                    let expected = match offset {
                        -1 => {
                            let before = r.wrapping_sub(1) & ring;
                            let start = value(set, width, before, 0);
                            let back = whole.split(|i| start[i]);
                            assert_eq!((back.entry, back.cell), (before, 0));
                            assert_eq!(entry, before, "{set:?} {width}");
                            continue;
                        }
                        _ if offset < d + long => (r, offset),
                        _ => (next, offset - d - long),
                    };
                    assert_eq!((entry, cell as i128), expected, "{set:?} {width} {r} {offset} of {d}");
                    assert_eq!(inside, (cell as i128) < d);
                }
            }
        }
    }
}

/// All values outside of cells lie at the end of an interval. With whole cells only long intervals have such a value.
/// If it were not refused, it would tell that its entry has a long interval.
#[test]
fn only_the_ends_of_intervals_are_refused() {
    let (set, width) = (ParamSet::Small, 64);
    for dropped in [0, 3] {
        let (splitter, interval) = splitter(set, width, dropped);
        let lift = set.params().lift(width);
        let mut refused = [0; 2];
        for r in (0..2000u64).map(|r| r.wrapping_mul(0x9e37_79b9_7f4a_7c15)) {
            let long = lift.long_step(lift.remainder(u128::from(r)));
            let cells = interval >> dropped << dropped;
            let inside = |offset: u128| {
                let v = value(set, width, r, offset as i128);
                splitter.split(|i| v[i]).inside
            };
            assert!(inside(0) && inside(cells - 1));
            for offset in cells..interval + long {
                assert!(!inside(offset));
                refused[long as usize] += 1;
            }
        }
        assert!(refused[1] > 0 && (refused[0] > 0) == (interval % (1 << dropped) != 0), "{refused:?}");
    }
}

/// A plan whose ciphertexts are refused about every eighth time.
fn refusing() -> SeededPlan {
    let spec = spec(1, 64, 32, 1, 34, 1);
    let tile = Tile { group: 1, rows: 64, inner: 32, cols: 1, run: 1 };
    let plan = SeededPlan::of(Layout::new(&spec, ParamSet::Narrow, tile)).unwrap();
    let cells = plan.layout.seeded.unwrap();
    assert_eq!(cells.dropped, 2, "{cells:?}");
    plan
}

/// Statistics of requests with one-column tiles. A pair is an entry, which the evaluator must not see, and its
/// correction, which it sees. Returns a table that counts pairs by their top bits, one that counts them by their low
/// bits, and the pairs.
fn views(plan: &SeededPlan, requests: usize, rng: &mut StdRng) -> ([Vec<usize>; 2], Vec<(u64, u128)>) {
    let cells = plan.layout.seeded.unwrap();
    let width = plan.spec().width;
    let (mut high, mut low) = (vec![0; 256], vec![0; 16]);
    let mut pairs = Vec::new();
    for _ in 0..requests {
        let Split { message: request, share: r } = plan.request(&keys(plan.set()).0, rng).unwrap();
        let mut reader = waggle_bits::Reader::new(&request[SEED_BYTES..]);
        let corrections: Vec<u128> = (0..plan.set().degree()).map(|_| reader.take_wide(cells.bits())).collect();
        assert!(corrections.iter().all(|&cell| cell < cells.count));
        for (position, entry) in plan.layout.x_entries(0) {
            let (r, cell) = (r[entry], corrections[position]);
            let top = (cell * 16 / cells.count) as usize;
            high[(r >> (width - 4)) as usize * 16 + top] += 1;
            low[(r % 4) as usize * 4 + (cell % 4) as usize] += 1;
            pairs.push((r, cell));
        }
    }
    ([high, low], pairs)
}

/// Entries are uniform and independent of corrections, with cells of one value, of many, and where many ciphertexts
/// are refused.
#[test]
fn entries_are_uniform_given_what_the_evaluator_sees() {
    let mut rng = StdRng::seed_from_u64(4);
    let usual = spec(1, 64, 64, 1, 44, 20);
    let tile = Tile { group: 1, rows: 64, inner: 64, cols: 1, run: 1 };
    let usual = SeededPlan::of(Layout::new(&usual, ParamSet::Small, tile)).unwrap();
    for plan in [usual, refusing()] {
        let ([high, low], pairs) = views(&plan, 40, &mut rng);
        assert_uniform(&high, "top bits");
        assert_uniform(&low, "low bits");
        let cells = plan.layout.seeded.unwrap();
        let scaled = |(r, cell): &(u64, u128)| {
            let r = *r as f64 / f64::from(plan.spec().width).exp2() - 0.5;
            (r, *cell as f64 / cells.count as f64 - 0.5)
        };
        let covariance: f64 = pairs.iter().map(scaled).map(|(a, b)| a * b).sum();
        // Each product of two centred uniform numbers has the variance 1 / 144.
        assert!(covariance.abs() < 6.0 * (pairs.len() as f64).sqrt() / 12.0, "{covariance}");
    }
}

/// About as many ciphertexts are refused as predicted, and the accepted ones are exact.
#[test]
fn ciphertexts_outside_all_cells_are_drawn_again() {
    let plan = refusing();
    let (set, layout) = (plan.set(), &plan.layout);
    let cells = layout.seeded.unwrap();
    let splitter = Splitter::new(set.params(), set, layout.spec.width, &cells);
    let n = set.degree();
    let mut stream = Expander::new(&[7; 32], Label::RequestErrors, 0);
    let trials = 400;
    let accepted = (0..trials)
        .filter(|_| {
            let mut v = vec![0; n];
            stream.uniform(set.params().limbs()[0].modulus(), &mut v);
            v.iter().all(|&v| splitter.split(|_| v).inside)
        })
        .count() as f64;
    let covered = (cells.count << cells.dropped) as f64 * f64::from(plan.spec().width).exp2();
    let expected = (covered / set.primes()[0] as f64).powi(n as i32) * f64::from(trials);
    assert!((0.5..0.9).contains(&(expected / f64::from(trials))), "{expected}");
    assert!((accepted - expected).abs() < 6.0 * expected.sqrt(), "{accepted} against {expected}");
    let mut rng = StdRng::seed_from_u64(5);
    (0..8).for_each(|_| run_edges(&plan, &mut rng));
}

/// Both shares are uniform, whatever the weights; requests and responses share neither seed nor ciphertext.
#[test]
fn shares_are_uniform_and_messages_fresh() {
    let mut rng = StdRng::seed_from_u64(6);
    let spec = spec(1, 8, 64, 64, 44, 20);
    for packing in [Packing::Never, Packing::Always] {
        let options = PlanOptions { packing, ..PlanOptions::default() };
        let plan = SeededPlan::with_options(spec, options).unwrap();
        let sk = &keys(plan.set()).0;
        for w in [0, 1, (1i32 << 20) - 1] {
            let weights = vec![w; 64 * 64];
            let (mut seen, mut counts) = (Vec::new(), [vec![0; 64], vec![0; 64]]);
            for _ in 0..10 {
                let request = plan.request(sk, &mut rng).unwrap().message;
                let respond = |rng: &mut StdRng| {
                    plan.respond(evaluation_keys(&plan), &request, Weights::I32(&weights), None, rng).unwrap()
                };
                let Split { message: response, share: own } = respond(&mut rng);
                let shares = [own, plan.finish(sk, &response).unwrap()];
                for (counts, share) in counts.iter_mut().zip(&shares) {
                    share.iter().for_each(|y| counts[(y >> 38) as usize] += 1);
                }
                // The seeds and what follows them: the first correction of a request, the first coefficient of c1 of
                // a response.
                let again = respond(&mut rng).message;
                seen.extend(
                    [request, response, again]
                        .map(|message| (message[..SEED_BYTES].to_vec(), message[SEED_BYTES..][..16].to_vec())),
                );
            }
            counts.iter().for_each(|counts| assert_uniform(counts, "shares"));
            for i in 0..seen.len() {
                assert!((0..i).all(|j| seen[i].0 != seen[j].0 && seen[i].1 != seen[j].1));
            }
        }
    }
}

/// A seeded response is the direct one for the mask that turns c0 into what the seed says: the same c1, and shares
/// that differ by the rounding of c0 at most.
#[test]
fn a_seeded_response_is_a_direct_one_for_another_mask() {
    let mut rng = StdRng::seed_from_u64(8);
    let spec = spec(1, 16, 64, 32, 44, 20);
    let plan = SeededPlan::new(spec).unwrap();
    let layout = plan.layout;
    let direct = MatmulPlan::of(Layout { seeded: None, ..layout }, PlanOptions::default());
    let sk = &keys(plan.set()).0;
    let request = plan.request(sk, &mut rng).unwrap().message;
    let weights: Vec<u64> = random_weights(&spec, &mut rng);
    let response = plan.respond(evaluation_keys(&plan), &request, Weights::U64(&weights), None, &mut rng);
    let response = response.unwrap().message;
    let seed = response[..SEED_BYTES].try_into().unwrap();
    let params = plan.set().params();
    let mut translated = Vec::new();
    for (index, c1) in response[SEED_BYTES..].chunks_exact(layout.c1_bytes()).enumerate() {
        translated.extend_from_slice(c1);
        let mut body = Expander::new(&seed, Label::ResponseBody, index as u64);
        let mut writer = waggle_bits::Writer::new(&mut translated);
        for _ in layout.outputs(index) {
            let limbs: Vec<u64> = params.limbs().iter().map(|l| body.residue(l.modulus())).collect();
            writer.push_wide(round_torus(params.torus(limbs.into_iter()), layout.c0_bits), layout.c0_bits);
        }
        writer.finish();
    }
    let (ours, theirs) = (plan.finish(sk, &response).unwrap(), direct.decrypt(sk, &translated).unwrap());
    let differ =
        ours.iter().zip(&theirs).map(|(a, b)| distance(*a, *b, 44)).inspect(|&d| assert!(d <= 1)).sum::<u64>();
    // Rounding at 1/16 LSB moves every 32nd share or so.
    assert!(differ as usize <= ours.len() / 8, "{differ} of {}", ours.len());
}

/// Packs of columns that several processes answer with the same seeds, which reach them as bytes.
#[test]
fn parts_of_a_response_join_to_the_whole() {
    let mut rng = StdRng::seed_from_u64(10);
    for (m, packing) in [(1, Packing::Never), (8, Packing::Never), (8, Packing::Always)] {
        let spec = spec(2, m, 96, 1000, 44, 20);
        let plan = SeededPlan::with_options(spec, PlanOptions { packing, ..PlanOptions::default() }).unwrap();
        let (sk, w) = (&keys(plan.set()).0, random_weights(&spec, &mut rng));
        let Split { message: request, share: r } = plan.request(sk, &mut rng).unwrap();
        let seeds = plan.draw(&mut rng);
        let bytes = seeds.to_bytes();
        let part = |packs| {
            let seeds = ResponseSeeds::from_bytes(&bytes).unwrap();
            plan.respond_part(evaluation_keys(&plan), &request, Weights::U64(&w), None, &seeds, packs).unwrap()
        };
        let packs = plan.packs();
        assert!(packs > 2, "{plan:?}");
        let parts = [0..1, 1..packs - 1, packs - 1..packs].map(part);
        let joined = plan.join(&seeds, &parts).unwrap();
        let whole = plan.join(&seeds, &[part(0..packs)]).unwrap();
        assert!(joined.message == whole.message && joined.share == whole.share, "{plan:?}");
        let opened = plan.finish(sk, &joined.message).unwrap();
        for (y, (a, b)) in naive(spec.shape, &r, &w).into_iter().zip(joined.share.iter().zip(opened)) {
            assert!(distance(a.wrapping_add(b), y, 44) <= plan.lsb_error(), "{plan:?}");
        }
        assert!(matches!(plan.join(&seeds, &parts[..2]), Err(HeError::Length { .. })));
        assert!(matches!(ResponseSeeds::from_bytes(&bytes[1..]), Err(HeError::Length { .. })));
    }
}

#[test]
fn malformed_messages_are_refused() {
    let mut rng = StdRng::seed_from_u64(9);
    let plan = SeededPlan::new(spec(1, 3, 20, 5, 37, 13)).unwrap();
    let sk = &keys(plan.set()).0;
    let w = vec![1i16; 100];
    let request = plan.request(sk, &mut rng).unwrap().message;
    let respond = |request: &[u8]| {
        plan.respond(evaluation_keys(&plan), request, Weights::I16(&w), None, &mut StdRng::seed_from_u64(0))
    };
    let expected = request.len();
    for cut in [0, 16, 32, expected - 1] {
        let refused = respond(&request[..cut]).unwrap_err();
        assert_eq!(refused, HeError::Length { message: "seeded matmul request", expected, got: cut });
    }
    assert!(matches!(respond(&[&request[..], &[0]].concat()), Err(HeError::Length { .. })));
    let mut large = request.clone();
    large[SEED_BYTES..][..32].fill(0xff);
    let limit = plan.layout.seeded.unwrap().count;
    assert!(matches!(respond(&large), Err(HeError::Correction { limit: l, got, .. }) if l == limit && got >= limit));
    // 60 entries: 4036 or 1988 open values of 37 bits end within a byte.
    let mut padded = request.clone();
    *padded.last_mut().unwrap() |= 0x80;
    assert_eq!(respond(&padded).unwrap_err(), HeError::Padding { message: "seeded matmul request" });
    let response = respond(&request).unwrap().message;
    for wrong in [&response[1..], &[], &response[..SEED_BYTES], &[&response[..], &[0]].concat()] {
        assert!(matches!(plan.finish(sk, wrong), Err(HeError::Length { .. })));
    }
    let (other_sk, other_pk) = keys(ParamSet::Full);
    let wrong_set = HeError::KeySet { needed: plan.set(), got: ParamSet::Full };
    assert_eq!(plan.request(other_sk, &mut rng).unwrap_err(), wrong_set);
    assert_eq!(plan.finish(other_sk, &response).unwrap_err(), wrong_set);
    assert_eq!(plan.respond(other_pk, &request, Weights::I16(&w), None, &mut rng).unwrap_err(), wrong_set);
    assert!(matches!(SeededPlan::new(spec(0, 1, 1, 1, 37, 13)), Err(HeError::Shape { step: "matmul" })));
    assert!(matches!(SeededPlan::new(spec(1, 1, 1, 1, 65, 13)), Err(HeError::Width { .. })));
}

/// Rings that are too small for cells have no seeded layout, whatever error is tolerated.
#[test]
fn rings_without_room_are_refused() {
    assert!(noise::seeded(layout(ParamSet::Narrow, 36, 1)).is_some());
    assert!(noise::seeded(layout(ParamSet::Narrow, 37, 1)).is_none());
    assert!(noise::seeded(layout(ParamSet::Narrow, 64, 1)).is_none());
    let options = PlanOptions { max_lsb_error: u64::MAX, ..PlanOptions::default() };
    assert_ne!(SeededPlan::with_options(spec(1, 1, 1, 1, 64, 1), options).unwrap().set(), ParamSet::Narrow);
}

/// Products of the sizes in a language model take fewer bytes with seeds at every rate, most of all over slow links.
#[test]
fn seeds_save_bytes() {
    for (m, k, n) in [(128, 768, 2304), (128, 768, 768), (128, 768, 3072), (128, 3072, 768), (128, 768, 50257)] {
        for (bytes_per_second, tenths) in [(6_250_000, 6), (125_000_000, 7), (375_000_000, 7)] {
            let options = PlanOptions { bytes_per_second, ..PlanOptions::default() };
            let spec = spec(1, m, k, n, 56, 20);
            let old = MatmulPlan::with_options(spec, options).unwrap();
            let new = SeededPlan::with_options(spec, options).unwrap();
            let before = old.upload_bytes() + old.download_bytes();
            let after = new.upload_bytes() + new.download_bytes();
            assert!(10 * after < tenths * before, "{spec:?} at {bytes_per_second}: {before} {after}");
        }
    }
}
