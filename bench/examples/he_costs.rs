//! Processor seconds and bytes of the matrix products of a GPT-2 layer on this machine.
//! `cargo run --release -p waggle-bench --example he_costs -- [MxKxN ...] [MB/s ...]`; given shapes: these products
//! alone. `he_costs -- random [CORES ...] MxKxN ...`: of a random operand alone. `he_costs -- families`: one table of
//! all families of kernels that the machine has, with the transforms, on one core.

use rand::RngExt;
use std::time::{Duration, Instant};
use waggle_bits::cpu::{Cpu, Level, VARIABLE};
use waggle_he::{
    CachedWeights, Ciphertexts, EvaluationKeys, GaloisKeys, HeError, MatmulPlan, MatmulShape, MatmulSpec, OleKind,
    OlePlan, Packing, ParamSet, PlanOptions, Product, ProductPlan, PublicKey, SecretKey, SeededPlan, WeightCache,
    Weights,
};
use waggle_net::process_cpu_time;

/// Least time of several runs; other work on the machine only adds.
fn shortest(runs: usize, mut f: impl FnMut()) -> Duration {
    let timed = |_| {
        let start = Instant::now();
        f();
        start.elapsed()
    };
    (0..runs).map(timed).min().unwrap_or_default()
}

/// Processor time of one run, the mean over enough of them for the clock to be exact; least of three
/// means.
fn best<T>(f: impl Fn() -> T) -> (Duration, T) {
    let mut least = Duration::MAX;
    let mut value = f();
    for _ in 0..3 {
        let (wall, start, mut runs) = (Instant::now(), process_cpu_time(), 0);
        while wall.elapsed() < Duration::from_millis(60) {
            value = f();
            runs += 1;
        }
        let spent = process_cpu_time().zip(start).map_or(wall.elapsed(), |(now, start)| now - start);
        least = least.min(spent / runs);
    }
    (least, value)
}

/// The keys of a product.
fn keys(plan: &ProductPlan) -> Result<(SecretKey, PublicKey, Option<GaloisKeys>), HeError> {
    let (sk, public) = SecretKey::generate(plan.set(), &mut rand::rng());
    let message = plan.packed().then(|| GaloisKeys::message(&sk, &mut rand::rng()));
    let galois = message.map(|message| GaloisKeys::from_bytes(plan.set(), &message)).transpose()?;
    Ok((sk, public, galois))
}

/// A product with the times of its parts.
struct Timed {
    plan: MatmulPlan,
    bytes: [usize; 2],
    planning: Duration,
    encrypt: Duration,
    evaluate: Duration,
    /// Evaluation with transformed weights from a cache.
    cached: Duration,
    /// Bytes of that cache.
    kept: usize,
    decrypt: Duration,
}

fn timed(
    shape: (usize, usize, usize, usize),
    width: u32,
    weight_bits: u32,
    options: PlanOptions,
) -> Result<Timed, HeError> {
    let (batch, m, k, n) = shape;
    let spec = MatmulSpec { shape: MatmulShape { batch, m, k, n }, width, weight_bits };
    let (planning, plan) = best(|| MatmulPlan::with_options(spec, options));
    let plan = plan?;
    let mut rng = rand::rng();
    let (sk, public, galois) = keys(&plan)?;
    let keys = EvaluationKeys { public: &public, galois: galois.as_ref() };
    let x: Vec<u64> = (0..batch * m * k).map(|_| rng.random()).collect();
    let w: Vec<u64> =
        (0..batch * k * n)
            .map(|_| {
                if weight_bits == width {
                    rng.random()
                } else {
                    (rng.random::<i64>() >> (63 - weight_bits) | 1) as u64
                }
            })
            .collect();
    let (encrypt, upload) = best(|| plan.encrypt(&sk, &x, &mut rand::rng()));
    let upload = upload?;
    let (evaluate, result) =
        best(|| plan.evaluate(keys, &upload, Some(&x), Weights::U64(&w), None, &mut rand::rng()));
    let download = result?.message;
    let cache = WeightCache::new(usize::MAX);
    let from_cache = Some(CachedWeights { cache: &cache, key: 0 });
    let (cached, again) =
        best(|| plan.evaluate(keys, &upload, Some(&x), Weights::U64(&w), from_cache, &mut rand::rng()));
    again?;
    let kept = cache.bytes();
    let (decrypt, opened) = best(|| plan.decrypt(&sk, &download));
    opened?;
    Ok(Timed { plan, bytes: [upload.len(), download.len()], planning, encrypt, evaluate, cached, kept, decrypt })
}

fn product(
    shape: (usize, usize, usize, usize),
    width: u32,
    weight_bits: u32,
    options: PlanOptions,
) -> Result<(), HeError> {
    let Timed { plan, bytes, planning, encrypt, evaluate, decrypt, .. } = timed(shape, width, weight_bits, options)?;
    let (batch, m, k, n) = shape;
    let Ciphertexts { up, down } = plan.ciphertexts();
    let (tile, ms) = (plan.tile(), |d: Duration| d.as_secs_f64() * 1e3);
    println!(
        "{:17} l={width} w={weight_bits:2} {:10} {:16} {up:4} {:9} {down:4} {:9} {:8.2} {:8.2} {:8.2} {:6.2}  {}",
        format!("{batch}x({m}x{k}x{n})"),
        format!("{:?}", plan.set()),
        format!("{:?}", (tile.group, tile.rows, tile.inner, tile.cols)),
        bytes[0],
        bytes[1],
        ms(encrypt),
        ms(evaluate),
        ms(decrypt),
        ms(planning),
        plan.lsb_error(),
    );
    Ok(())
}

/// A product of a random operand, with seeded messages and direct ones.
fn prepared((m, k, n): (usize, usize, usize), options: PlanOptions) -> Result<(), HeError> {
    let spec = MatmulSpec { shape: MatmulShape { batch: 1, m, k, n }, width: 56, weight_bits: 20 };
    let w: Vec<i32> = (0..k * n).map(|_| rand::rng().random::<i32>() >> 12 | 1).collect();
    let weights = Weights::I32(&w);
    let x: Vec<u64> = (0..m * k).map(|_| rand::rng().random()).collect();
    let line = |name, plan: &ProductPlan, bytes: [usize; 2], times: [Duration; 3]| {
        let [first, second, third] = times.map(|time| time.as_secs_f64() * 1e3);
        let (set, tile) = (plan.set(), plan.tile());
        let tile = format!("{:?}", (tile.rows, tile.inner, tile.cols, tile.run));
        let name = format!("{name} {m}x{k}x{n}");
        println!("{name:24} {set:?} {tile:16} {:9} {:9} {first:8.2} {second:8.2} {third:8.2}", bytes[0], bytes[1]);
    };
    let plan = MatmulPlan::with_options(spec, options)?;
    let (sk, public, galois) = keys(&plan)?;
    let keyring = EvaluationKeys { public: &public, galois: galois.as_ref() };
    let (first, upload) = best(|| plan.encrypt(&sk, &x, &mut rand::rng()));
    let upload = upload?;
    let (second, result) = best(|| plan.evaluate(keyring, &upload, None, weights, None, &mut rand::rng()));
    let download = result?.message;
    let (third, opened) = best(|| plan.decrypt(&sk, &download));
    opened?;
    line("direct", &plan, [upload.len(), download.len()], [first, second, third]);
    let plan = SeededPlan::with_options(spec, options)?;
    let (sk, public, galois) = keys(&plan)?;
    let keyring = EvaluationKeys { public: &public, galois: galois.as_ref() };
    let (first, request) = best(|| plan.request(&sk, &mut rand::rng()));
    let upload = request?.message;
    let (second, result) = best(|| plan.respond(keyring, &upload, weights, None, &mut rand::rng()));
    let download = result?.message;
    let (third, opened) = best(|| plan.finish(&sk, &download));
    opened?;
    line("seeded", &plan, [upload.len(), download.len()], [first, second, third]);
    Ok(())
}

fn elementwise(len: usize, width: u32, kind: OleKind) -> Result<(), HeError> {
    let (planning, plan) = best(|| OlePlan::new(len, width, kind));
    let plan = plan?;
    let mut rng = rand::rng();
    let (sk, pk) = SecretKey::generate(plan.set(), &mut rng);
    let x: Vec<u64> = (0..len).map(|_| rng.random()).collect();
    let operands = vec![x.as_slice(); kind.operands()];
    let (encrypt, upload) = best(|| plan.encrypt(&sk, &operands, &mut rand::rng()));
    let upload = upload?;
    let (evaluate, result) = best(|| plan.evaluate(&pk, &upload, &operands, &mut rand::rng()));
    let download = result?.message;
    let (decrypt, opened) = best(|| plan.decrypt(&sk, &download));
    opened?;
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    println!(
        "{:9} x {len:6} l={width} {:10} {} primes {:9} {:9} {:6.1} B/element {:8.2} {:8.2} {:8.2} {:6.2}",
        format!("{kind:?}"),
        format!("{:?}", plan.set()),
        plan.plaintext_primes().len(),
        upload.len(),
        download.len(),
        (upload.len() + download.len()) as f64 / len as f64,
        ms(encrypt),
        ms(evaluate),
        ms(decrypt),
        ms(planning),
    );
    Ok(())
}

/// Products of the table of families, and the rate of the link that they are planned for.
const PRODUCTS: [((usize, usize, usize), u64, Packing); 5] = [
    ((128, 768, 768), 377, Packing::Never),
    ((128, 768, 768), 377, Packing::Auto),
    ((128, 4096, 256), 377, Packing::Never),
    ((128, 4096, 256), 377, Packing::Auto),
    ((1, 768, 768), 377, Packing::Auto),
];

/// The column of the family that this process runs.
fn family() -> Result<(), HeError> {
    let us = |d: Duration| d.as_secs_f64() * 1e6;
    let row = |value: f64, name: &str| println!("{value:.3}\t{name}");
    for set in [ParamSet::Small, ParamSet::SmallExact, ParamSet::Full, ParamSet::FullExact] {
        let (n, ntt) = (set.degree(), set.params().limbs()[0].ntt());
        let bits = ntt.modulus().bits();
        let mut poly: Vec<u64> = (0..n as u64).collect();
        let fwd = shortest(300, || (0..10).for_each(|_| ntt.fwd(&mut poly)));
        row(us(fwd) / 10.0, &format!("us, forward transform, N = {n}, {bits} bits"));
        let inv = shortest(300, || (0..10).for_each(|_| ntt.inv(&mut poly)));
        row(us(inv) / 10.0, &format!("us, inverse transform, N = {n}, {bits} bits"));
        if n != 4096 {
            continue;
        }
        let mut factor = poly.clone();
        ntt.factor(&mut factor);
        let factors = vec![factor.as_slice(); 4];
        let dot = shortest(300, || (0..10).for_each(|_| ntt.dot(&mut poly, &factors, &factors)));
        row(
            us(dot) / (40.0 * n as f64) * 1e3,
            &format!("ns, product of two coefficients in a sum of four, {bits} bits"),
        );
        // Eight weights on runs of 64 rows.
        let (points, terms, vectors) = (64, 96, 16);
        let signed: Vec<i64> = (0..8 * points as i64).map(|x| x * 1000 - 20000).collect();
        let mut scratch = vec![0; 8 * points];
        let words = 8 * ntt.weight_words();
        let mut placed = vec![0; points * terms * words];
        let weigh = shortest(300, || {
            (0..10).for_each(|j| ntt.weigh(&signed, &mut scratch, &mut placed[j * words..], terms * words));
        });
        row(
            us(weigh) / 80.0,
            &format!("us, transform of a polynomial of 64 weights, brought into place, {bits} bits"),
        );
        let a = vec![factor[1]; vectors * terms * 8];
        let w = vec![factor[2]; terms * words];
        let mut sums = vec![vec![0; 8 * vectors * 8]; 4];
        let matmul = shortest(100, || {
            let product = |sums: &mut Vec<u64>| ntt.matmul(&a, &mut [Product { sums, weights: &w }]);
            sums.iter_mut().for_each(product);
        });
        let all = shortest(100, || {
            let mut products: Vec<_> = sums.iter_mut().map(|sums| Product { sums, weights: &w }).collect();
            ntt.matmul(&a, &mut products);
        });
        let count = (4 * 8 * vectors * 8 * terms) as f64;
        row(us(matmul) * 1e3 / count, &format!("ns, term of a product of matrices, 8 tiles, {bits} bits"));
        row(us(all) * 1e3 / count, &format!("ns, the same, 32 tiles, {bits} bits"));
    }
    for ((m, k, n), megabytes, packing) in PRODUCTS {
        let options = PlanOptions { bytes_per_second: 1_000_000 * megabytes, packing, ..PlanOptions::default() };
        let Timed { plan, encrypt, evaluate, cached, kept, decrypt, .. } = timed((1, m, k, n), 56, 20, options)?;
        let name = format!("{m}x{k}x{n}, {megabytes} MB/s, packing {packing:?}, tile {:?}", plan.tile());
        row(us(encrypt + decrypt) / 1e3, &format!("ms, encrypting and decrypting {name}"));
        row(us(evaluate) / 1e3, &format!("ms, evaluating {m}x{k}x{n}, packing {packing:?}"));
        let kept = kept as f64 / (k * n) as f64;
        row(us(cached) / 1e3, &format!("ms, the same with weights kept, in {kept:.0} bytes each (portable)"));
        let weights = (m * k * n) as f64;
        row(us(encrypt + evaluate + decrypt) * 1e3 / weights, "ns, all of it a weight and row");
    }
    Ok(())
}

/// Runs this program once for each family and puts the columns side by side.
fn families() {
    let levels: Vec<Level> =
        Level::ALL.into_iter().filter(|&level| Cpu::detected().at_most(level).level() == level).collect();
    let mut rows: Vec<(Vec<String>, String)> = Vec::new();
    for level in &levels {
        let run = || -> std::io::Result<String> {
            let mut command = std::process::Command::new(std::env::current_exe()?);
            let command = command.arg("family").env(VARIABLE, level.name()).env("RAYON_NUM_THREADS", "1");
            Ok(String::from_utf8_lossy(&command.output()?.stdout).into_owned())
        };
        let output = run().unwrap_or_default();
        for (i, line) in output.lines().enumerate() {
            let (value, name) = line.split_once('\t').unwrap_or_default();
            if i == rows.len() {
                rows.push((Vec::new(), name.to_owned()));
            }
            rows[i].0.push(value.to_owned());
        }
    }
    println!("| | {} |", levels.iter().map(|level| level.name()).collect::<Vec<_>>().join(" | "));
    println!("|---|{}", "---|".repeat(levels.len()));
    rows.iter().for_each(|(values, name)| println!("| {name} | {} |", values.join(" | ")));
}

/// Products of a random operand, planned for a link and for each of these numbers of cores.
fn random(shapes: &[(usize, usize, usize)], bytes_per_second: u64, cores: &[u32]) -> Result<(), HeError> {
    println!("\nproducts of a random operand: set, tile (rows, inner, cols, run), bytes up, down,");
    println!("processor milliseconds of the key holder, the evaluator, the key holder");
    for &cores in cores {
        println!("{} MB/s, planned for {cores} cores", bytes_per_second / 1_000_000);
        for &shape in shapes {
            prepared(shape, PlanOptions { bytes_per_second, cores: [cores; 2], ..PlanOptions::default() })?;
        }
    }
    Ok(())
}

fn main() -> Result<(), HeError> {
    match std::env::args().nth(1).as_deref() {
        Some("family") => return family(),
        Some("families") => {
            families();
            return Ok(());
        }
        _ => {}
    }
    let shape = |arg: String| -> Option<(usize, usize, usize)> {
        let mut sizes = arg.split('x').map(|size| size.parse().ok());
        Some((sizes.next()??, sizes.next()??, sizes.next()??))
    };
    let shapes: Vec<_> = std::env::args().skip(1).filter_map(shape).collect();
    if std::env::args().nth(1).as_deref() == Some("random") {
        let cores: Vec<u32> = std::env::args().skip(2).filter_map(|cores| cores.parse().ok()).collect();
        return random(&shapes, 375_000_000, if cores.is_empty() { &[waggle_he::DEFAULT_CORES] } else { &cores });
    }
    let rates: Vec<u64> = std::env::args().skip(1).filter_map(|rate| rate.parse().ok()).collect();
    let rates = if rates.is_empty() { vec![377, 50] } else { rates };
    println!("\nshape, set, tile (group, rows, inner, cols), ciphertexts and bytes up, down,");
    println!("processor milliseconds to encrypt, evaluate, decrypt, plan; error bound in LSB");
    let auto = rates.into_iter().map(|rate| (rate, Packing::Auto));
    for (megabytes, packing) in [(377, Packing::Never), (377, Packing::Always)].into_iter().chain(auto) {
        println!("{megabytes} MB/s, packing {packing:?}");
        let bytes_per_second = 1_000_000 * megabytes;
        let options = PlanOptions { bytes_per_second, packing, ..PlanOptions::default() };
        for &(m, k, n) in &shapes {
            product((1, m, k, n), 56, 20, options)?;
        }
        if shapes.is_empty() {
            for (m, k, n) in [(1, 768, 2304), (1, 768, 768), (1, 768, 3072), (1, 3072, 768), (1, 768, 50257)] {
                product((1, m, k, n), 56, 20, options)?;
            }
            for shape in [(12, 1, 64, 128), (12, 1, 128, 64)] {
                product(shape, 44, 44, options)?;
            }
            // The last one is a tenth of the output layer.
            for (m, k, n) in
                [(128, 768, 768), (64, 768, 768), (64, 768, 2304), (64, 768, 3072), (64, 3072, 768), (64, 768, 5026)]
            {
                product((1, m, k, n), 56, 20, options)?;
            }
        }
    }
    let block = vec![(128, 768, 2304), (128, 768, 768), (128, 768, 3072), (128, 3072, 768)];
    let (shapes_of_random, links) = match &shapes[..] {
        [] => (&block, &[375_000_000, 50_000_000][..]),
        _ => (&shapes, &[375_000_000][..]),
    };
    for &bytes_per_second in links {
        random(shapes_of_random, bytes_per_second, &[2, 8, waggle_he::DEFAULT_CORES])?;
    }
    if !shapes.is_empty() {
        return Ok(());
    }
    println!("\nelementwise products: set, bytes up, down, milliseconds to encrypt, evaluate, decrypt, plan");
    for (len, width) in [(8192, 64), (8192, 44), (8192, 32), (768, 64), (1 << 16, 64)] {
        elementwise(len, width, OleKind::Product)?;
        elementwise(len, width, OleKind::Merged)?;
    }
    Ok(())
}
