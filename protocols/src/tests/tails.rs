//! Tables with tails, by both parties' messages: results against the function, costs against the ledger, and opened
//! words against the uniform distribution.

use net::{Ledger, Phase, Role};

use super::{TWO_PHASES, book, open, share, without_masks};
use crate::abb::Abb;
use crate::local::Pair;
use crate::operation::shaped;
use crate::ops::fss::table::CurveSpec;
use crate::ops::fss::tails::{EvaluateNear, TailedTable, near, run, run_cost};
use crate::ops::fss::{prepare, prepare_cost};
use crate::words::mask;

fn pair() -> Pair {
    Pair::connect(|channel| open(channel, TWO_PHASES)).expect("set-up")
}

/// sin over the cell of the table, which is an interval of length 2.
fn table(index_bits: u32, low_bits: u32, cell_bits: u32) -> TailedTable {
    let step = 2.0 / f64::from(1u32 << (index_bits + low_bits));
    let base = -f64::from(1u32 << cell_bits);
    TailedTable::fit(CurveSpec { index_bits, low_bits, base, step, out_frac: 25, out_width: 30 }, cell_bits, f64::sin)
}

/// Inputs from all cells, and most from around both ends of the one that counts.
fn inputs(table: &TailedTable) -> Vec<u64> {
    let shape = table.shape();
    let (cell, window) = (1u64 << (shape.index_bits + shape.low_bits), 1u64 << shape.low_bits);
    let near = near(shape) * cell;
    let all = (0..(1 << shape.cell_bits) * cell - 2 * window).step_by((cell as usize / 3).max(1));
    let inside = (near..near + cell).step_by((cell / 300).max(1) as usize);
    let ends = [near, near + cell].into_iter().flat_map(|end| (end - 4 * window..end + 4 * window).step_by(3));
    all.chain(inside).chain(ends).chain([1, near - 1, near, near + cell - 1, near + cell]).collect()
}

#[test]
fn the_table_holds_where_an_input_is_near_and_bits_tell_where_it_is() {
    for (index_bits, low_bits, cell_bits) in [(2, 3, 7), (3, 5, 8), (8, 6, 7), (7, 6, 8)] {
        let table = table(index_bits, low_bits, cell_bits);
        let (shape, x) = (table.shape(), inputs(&table));
        let (near, shares) = (near(shape), share(&x, 5));
        let outcome = pair().run(|abb| {
            let s = abb.session();
            let correlations = prepare(s, &shape, x.len())?;
            let (cut, size) = (x.len() / 3, shape.correlation_words());
            let own = &shares[s.role() as usize];
            // In two pieces; the second is spent first.
            let back = run(s, &table, &correlations[cut * size..], &own[cut..])?;
            let front = run(s, &table, &correlations[..cut * size], &own[..cut])?;
            Ok(([front.0, back.0].concat(), [front.1, back.1].concat(), correlations))
        });
        let [(client, c_bits, c), (server, s_bits, s)] = outcome.expect("protocol");
        let entries = c.chunks_exact(shape.correlation_words()).zip(s.chunks_exact(shape.correlation_words()));
        let (mut seen, mut cells) = ([0; 3], std::collections::HashSet::new());
        for (i, (x, (c, s))) in x.iter().zip(entries).enumerate() {
            // The mask, from both parties' parts.
            let low = [s[0] & mask(low_bits), c[0] & mask(low_bits)];
            let r = ((c[0] >> low_bits) + (s[0] >> low_bits)) & mask(index_bits + cell_bits);
            let rest = x.wrapping_sub(low[0] + low[1]).wrapping_sub(r << low_bits) & mask(shape.input_bits());
            let n = ((rest >> low_bits) + r) & mask(index_bits + cell_bits);
            let (cell, z) = (n >> index_bits, (rest & mask(low_bits)) + low[0] + low[1]);
            assert_eq!((n << low_bits).wrapping_add(z) & mask(shape.input_bits()), *x, "the split of {x}");
            cells.insert(r >> index_bits);
            let bits = [0, 1].map(|bit| c_bits[2 * i + bit] ^ s_bits[2 * i + bit]);
            assert_eq!(bits, [u8::from(cell == near), u8::from(cell > near)], "{x} is in cell {cell}");
            seen[usize::from(bits[0] + 2 * bits[1])] += 1;
            if cell == near {
                let got = client[i].wrapping_add(server[i]) & mask(shape.width);
                let argument = 2.0 * (*x as f64 / (1u64 << (index_bits + low_bits)) as f64 - near as f64);
                let got = crate::words::signed(got, shape.width) as f64 / 25f64.exp2();
                // f''' (3 window)^3 / 192, and the roundings of squares.
                let window = 2.0 / f64::from(1 << index_bits);
                let bound = (3.0 * window).powi(3) / 192.0 + 1e-4;
                assert!((got - argument.sin()).abs() < bound, "{x}: {got} for {}", argument.sin());
            }
        }
        assert!(seen.iter().all(|&count| count > 20), "inputs on all sides: {seen:?}");
        assert!(cells.len() > 100 || x.len() < 700, "masks have all cells");
    }
}

#[test]
fn two_parties_and_the_twin_agree_on_what_is_near() {
    let table = table(8, 6, 7);
    let near = near(table.shape());
    // Clear of the ends, where either side may count.
    let x: Vec<u64> = inputs(&table).into_iter().filter(|x| x % (256 << 6) > 3 << 6).collect();
    let (words, bits) =
        crate::Clear::new().apply(EvaluateNear { table: &table }, &shaped(&[x.len()], x.clone())).expect("in range");
    for (i, x) in x.iter().enumerate() {
        let cell = x / (256 << 6);
        assert_eq!([bits[[i, 0]], bits[[i, 1]]], [u8::from(cell == near), u8::from(cell > near)]);
        assert!(cell != near || (words[i] as i64).unsigned_abs() < 1 << 26, "{x}");
    }
    let end = shaped(&[1], vec![mask(table.shape().input_bits())]);
    assert!(crate::Clear::new().apply(EvaluateNear { table: &table }, &end).is_err(), "beyond the last cell");
}

#[test]
fn costs_are_the_ledger() {
    for (n, cell_bits) in [(0, 7), (1, 8), (40, 7), (40, 8)] {
        let table = table(6, 5, cell_bits);
        let shape = table.shape();
        let mut pair = pair();
        pair.run(|abb| {
            let s = abb.session();
            let correlations = prepare(s, &shape, n)?;
            s.channel().ledger_mut().set_phase(Phase::Decode);
            run(s, &table, &correlations, &vec![7; n])
        })
        .expect("protocol");
        let mut ledger = Ledger::default();
        book(&prepare_cost(&shape, n), &mut ledger);
        ledger.set_phase(Phase::Decode);
        book(&run_cost(&shape, n), &mut ledger);
        for role in [Role::Client, Role::Server] {
            let session = pair.party(role).session();
            assert_eq!(session.channel().ledger().untimed(), ledger.untimed(), "{n}");
        }
        assert_eq!(ledger.phase_total(Phase::Decode).messages, if n == 0 { 0 } else { 2 });
    }
}

/// How far from uniform is what evaluations of `x` open, online and while they are prepared; without masks if they
/// are `missing`.
fn opened(x: u64, cell_bits: u32, missing: bool) -> f64 {
    let (table, n) = (table(3, 4, cell_bits), 3000);
    let shape = table.shape();
    let shares = share(&vec![x; n], x);
    let [client, server] = pair()
        .run(|abb| {
            let s = abb.session();
            let mut correlations = prepare(s, &shape, n)?;
            if missing {
                without_masks(s);
                correlations.chunks_exact_mut(shape.correlation_words()).for_each(|entry| entry[0] = 0);
            }
            run(s, &table, &correlations, &shares[s.role() as usize])?;
            Ok(s.audit.worst().1)
        })
        .expect("protocol");
    assert_eq!(client, server, "both parties see the same");
    client
}

#[test]
fn what_is_opened_is_uniform_whatever_the_input() {
    // A correct run exceeds 5 with probability below 1e-6 (one-sided).
    for x in [0, 1, 64 << 7, (64 << 7) + 77, 127 << 7] {
        for cell_bits in [7, 8] {
            let deviation = opened(x, cell_bits, false);
            assert!(deviation < crate::audit::LIMIT, "{deviation} for {x}");
        }
    }
    assert!(opened(64 << 7, 7, true) > 30.0, "masks that are missing show");
}
