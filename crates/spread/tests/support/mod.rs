//! Steps of every rank of a job in the tests, for threads and for MPI.

use std::sync::Arc;
use std::thread;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_he::{GaloisKeys, MatmulShape, MatmulSpec, SEED_BYTES, SecretKey, SeededPlan, Weights};
use waggle_protocols::spread::Prepared;
use waggle_protocols::{Error, FixedMatrix, PeerKeys, Spread, WEIGHT_BITS};
use waggle_spread::Ranks;
use waggle_testing::Columns;

/// Inputs, outputs and rows of each product, with fewer columns than ranks, columns that no number of ranks divides,
/// and single rows.
const SHAPES: [(usize, usize, usize); 7] =
    [(1, 1, 1), (9, 2, 3), (70, 3, 2), (64, 128, 1), (333, 1001, 5), (4097, 65, 2), (5, 4099, 33)];

/// Matrices, equal at every rank, stored by rows and by columns.
fn matrices() -> Vec<FixedMatrix> {
    let mut rng = StdRng::seed_from_u64(3);
    let most = (1i32 << WEIGHT_BITS) - 1;
    let mut entries = |count: usize| -> Vec<i32> {
        (0..count).map(|_| (rng.next_u32() as i32 >> (31 - WEIGHT_BITS)).clamp(-most, most)).collect()
    };
    let both = |(inputs, outputs, _)| {
        let stored_by_rows = FixedMatrix::integers(inputs, outputs, entries(inputs * outputs));
        let numbers = entries(inputs * outputs).into_iter().map(|w| w as f32 / 16.0).collect();
        let stored_by_columns = Columns { inputs, entries: numbers };
        [stored_by_rows, FixedMatrix::rounded(Arc::new(stored_by_columns), 4)]
    };
    SHAPES.into_iter().flat_map(both).collect()
}

/// Runs a rank to its end. On rank 0 compares every product with that of one process, also from several threads at
/// once, and returns how many were equal. On other ranks returns the number of products.
pub(crate) fn run(ranks: &Ranks) -> u64 {
    let matrices = matrices();
    ranks.meet(Ok("the same".into())).expect("all have the same");
    let own = ranks.rank() as f32 * if ranks.rank().is_multiple_of(2) { 1.0 } else { 0.5 };
    let largest =
        (0..ranks.size()).map(|rank| rank as f32 * if rank % 2 == 0 { 1.0 } else { 0.5 }).fold(0.0, f32::max);
    assert_eq!(ranks.largest(own).expect("all answer"), largest);
    ranks.ready(Ok(())).expect("all are ready");
    if ranks.rank() > 0 {
        let done = ranks.work(matrices).expect("rank 0 runs the same program");
        ranks.end();
        return done;
    }
    let compare = |seed: u64| {
        let mut rng = StdRng::seed_from_u64(seed);
        for (number, matrix) in matrices.iter().enumerate() {
            let rows = SHAPES[number / 2].2;
            let x: Vec<u64> = (0..rows * matrix.shape().0).map(|_| rng.next_u64()).collect();
            let spread = matrix.clone().spread_over(Arc::new(ranks.clone()), number);
            let product = spread.times(&x).expect("all multiply");
            assert!(product == matrix.times_here(&x), "matrix {number} of shape {:?}", matrix.shape());
            assert!(product.iter().any(|word| *word != 0), "a product of random words");
        }
    };
    compare(0);
    matrices.iter().enumerate().for_each(|(number, matrix)| answer(ranks, number, matrix));
    assert!(ranks.size() > 2 || ranks.response_bytes() > 0);
    let sessions = 4;
    thread::scope(|scope| {
        for seed in 1..=sessions {
            scope.spawn(move || compare(seed));
        }
    });
    ranks.end();
    let refused = matrices[0].clone().spread_over(Arc::new(ranks.clone()), 0).times(&[1]);
    assert!(refused.is_err_and(|error| error.to_string() == "rank 0 has ended"));
    (sessions + 1) * matrices.len() as u64
}

/// Compares the answer to a request with that of one process that draws the same random numbers.
fn answer(ranks: &Ranks, number: usize, matrix: &FixedMatrix) {
    let ((k, n), rng) = (matrix.shape(), &mut StdRng::seed_from_u64(number as u64));
    let shape = MatmulShape { batch: 1, m: SHAPES[number / 2].2, k, n };
    let spec = MatmulSpec { shape, width: 60, weight_bits: WEIGHT_BITS };
    let plan = Arc::new(SeededPlan::new(spec).expect("a plan"));
    let (secret, public) = SecretKey::generate(plan.set(), rng);
    let galois = if plan.packed() { GaloisKeys::message(&secret, rng) } else { Vec::new() };
    let keys = [public.to_bytes(), galois].concat();
    let keys = PeerKeys::from_bytes(plan.set(), plan.packed(), &keys).expect("keys");
    let request = plan.request(&secret, rng).expect("a request").message;
    let drawn = || StdRng::seed_from_u64(!0);
    let one = plan.respond(keys.evaluation(), &request, Weights::Entries(matrix), None, &mut drawn()).unwrap();
    let spread = |request: &[u8]| {
        let (plan, keys, request) = (plan.clone(), keys.clone(), request.to_vec());
        let seeds = plan.draw(&mut drawn());
        ranks.respond(number, Prepared { plan, keys, matrix: matrix.clone(), seeds, request })
    };
    let before = ranks.response_bytes();
    assert!(spread(&request).expect("all answer") == one, "{shape:?} on {} ranks", ranks.size());
    let (packs, all) = (plan.packs(), (plan.download_bytes() - SEED_BYTES) as u64);
    assert_eq!(ranks.response_bytes() - before, all * (packs / ranks.size()) as u64 / packs as u64);
    // The malformed request of one client harms no other client.
    let refused = spread(&request[1..]).map(|_| ());
    assert!(matches!(refused, Err(Error::He(_))), "{refused:?}");
}
