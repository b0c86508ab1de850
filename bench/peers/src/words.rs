//! A comparison and a product of 64-bit integers that nobody sees.

use ndarray::{ArrayD, IxDyn};
use waggle_net::Phase;
use waggle_protocols::local::Pair;
use waggle_protocols::ops::compare::AtLeast;
use waggle_protocols::ops::mul::Mul;
use waggle_protocols::{Abb, Options, TwoParty};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use waggle_testing::{open, own, share};

use crate::{Row, median, timed};

/// Operations of ours at once: one alone, and as many as an activation of a layer has.
const COUNTS: [usize; 2] = [1, 1 << 14];

pub(crate) fn rows() -> Vec<Row> {
    ours().into_iter().chain(tfhe()).collect()
}

fn ours() -> Vec<Row> {
    let mut rows = Vec::new();
    for count in COUNTS {
        let mut rng = StdRng::seed_from_u64(3);
        let mut words = || ArrayD::from_shape_fn(IxDyn(&[count]), |_| rng.random::<u64>());
        let (x, y) = (words(), words());
        // A comparison of signed words is one of their difference where that does not overflow.
        let [small_x, small_y] = [&x, &y].map(|words| words.mapv(|word| ((word as i64) >> 1) as u64));
        let mut difference = small_x.clone();
        difference.zip_mut_with(&small_y, |x, y| *x = x.wrapping_sub(*y));
        let difference = share(&difference);
        rows.push(row(
            "comparison",
            count,
            |abb| {
                let difference = own(abb, &difference);
                abb.apply(AtLeast { thresholds: &[0], width: 64 }, difference)
            },
            |[client, server]| {
                for ((x, y), (c, s)) in small_x.iter().zip(&small_y).zip(client.iter().zip(server)) {
                    assert_eq!((c ^ s) == 1, *x as i64 >= *y as i64);
                }
            },
        ));
        let (shares_x, shares_y) = (share(&x), share(&y));
        let mut product = x.clone();
        product.zip_mut_with(&y, |x, y| *x = x.wrapping_mul(*y));
        rows.push(row(
            "product",
            count,
            |abb| {
                let (x, y) = (own(abb, &shares_x), own(abb, &shares_y));
                abb.apply(Mul { width: 64, error_bits: 0 }, (x, y))
            },
            |results| {
                for (got, want) in open(results).iter().zip(&product) {
                    assert!((got.wrapping_sub(*want) as i64).unsigned_abs() <= 1, "{got} instead of {want}");
                }
            },
        ));
    }
    rows
}

/// One row of ours: `count` at once, in one phase.
fn row<T: Send>(
    what: &str,
    count: usize,
    protocol: impl Fn(&mut TwoParty) -> Result<T, waggle_protocols::Error> + Sync,
    check: impl Fn(&[T; 2]),
) -> Row {
    let mut pair = Pair::new(Options::default()).expect("set-up");
    let mut bytes = 0;
    let seconds = median(count, || {
        let before =
            pair.ledger().phase_total(Phase::Decode).bytes() + pair.ledger().phase_total(Phase::Offline).bytes();
        let (results, time) = timed(|| {
            pair.run(|abb| {
                abb.session().channel().ledger_mut().set_phase(Phase::Decode);
                protocol(abb)
            })
        });
        check(&results.expect("both parties are honest"));
        bytes = pair.ledger().phase_total(Phase::Decode).bytes() + pair.ledger().phase_total(Phase::Offline).bytes()
            - before;
        time
    });
    let many = if count == 1 { "alone".to_owned() } else { format!("of {count} at once") };
    Row {
        what: format!("{what} of 64-bit integers, {many}"),
        side: "Waggle, two parties",
        seconds,
        bytes: Some(bytes as f64 / count as f64),
    }
}

/// TFHE's operations on ciphertexts of one key, whose owner sees the result. All cores work on one operation.
#[cfg(feature = "peer-tfhe")]
fn tfhe() -> Vec<Row> {
    use tfhe::prelude::*;
    use tfhe::{CompressedFheInt64, ConfigBuilder, FheInt64, generate_keys, set_server_key};

    let (client, server) = generate_keys(ConfigBuilder::default().build());
    set_server_key(server);
    let mut rng = StdRng::seed_from_u64(4);
    let (x, y): (i64, i64) = (rng.random(), rng.random());
    let sent = CompressedFheInt64::encrypt(x, &client);
    let bytes = Some(tfhe_bytes(&sent));
    let (a, b) = (FheInt64::encrypt(x, &client), FheInt64::encrypt(y, &client));
    let row = |what: &str, seconds| Row {
        what: format!("{what} of 64-bit integers, alone"),
        side: "tfhe 1.8.2",
        seconds,
        bytes,
    };
    let comparison = median(1, || {
        let (result, time) = timed(|| a.ge(&b));
        assert_eq!(result.decrypt(&client), x >= y);
        time
    });
    let product = median(1, || {
        let (result, time) = timed(|| &a * &b);
        let result: i64 = result.decrypt(&client);
        assert_eq!(result, x.wrapping_mul(y));
        time
    });
    vec![row("comparison", comparison), row("product", product)]
}

/// Not asked for.
#[cfg(not(feature = "peer-tfhe"))]
fn tfhe() -> Vec<Row> {
    Vec::new()
}

/// The size of a ciphertext that a client would send.
#[cfg(feature = "peer-tfhe")]
fn tfhe_bytes(sent: &tfhe::CompressedFheInt64) -> f64 {
    let mut bytes = Vec::new();
    tfhe::safe_serialization::safe_serialize(sent, &mut bytes, 1 << 30).expect("memory");
    bytes.len() as f64
}
