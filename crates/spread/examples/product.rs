//! Times a product of the online phase with the ranks of a job:
//!
//! ```sh
//! mpirun --bind-to none -n 2 target/release/examples/product INPUTS OUTPUTS ROWS TIMES
//! ```
//!
//! Without mpirun it times one process. The matrix lies in memory, column by column as LLaMA's layers do.

use std::sync::Arc;
use std::time::Instant;

use waggle_protocols::{FixedMatrix, Spread};
use waggle_testing::Columns;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = std::env::args().skip(1).map(|argument| argument.parse()).collect::<Result<Vec<usize>, _>>()?;
    let [inputs, outputs, rows, times] = arguments[..] else { return Err("INPUTS OUTPUTS ROWS TIMES".into()) };
    let mixed = |i: usize| (i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
    let ranks = waggle_spread::start()?;
    let entries = (0..outputs * inputs).map(|i| mixed(i) as i16 as f32 / 65536.0).collect();
    let whole = FixedMatrix::rounded(Arc::new(Columns { inputs, entries }), 16);
    let own = whole.columns(ranks.as_ref().map_or(0..outputs, |ranks| ranks.columns(outputs)));
    let x: Vec<u64> = (0..rows * inputs).map(|i| mixed(i).wrapping_mul(mixed(i + 1))).collect();
    let product: Box<dyn Fn() -> Result<Vec<u64>, waggle_protocols::Error>> = match ranks.clone() {
        None => Box::new(|| Ok(own.times_here(&x))),
        Some(ranks) if ranks.rank() > 0 => {
            ranks.work(vec![whole])?;
            ranks.end();
            return Ok(());
        }
        Some(ranks) => {
            let own = own.clone();
            let x = &x;
            Box::new(move || {
                let own = own.clone();
                ranks.times(0, (inputs, outputs), Arc::new(move |x| own.times_here(x)), x)
            })
        }
    };
    // The first product is not timed, because it touches memory for the first time.
    let digest = product()?.into_iter().fold(0u64, |sum, word| sum.rotate_left(5) ^ word);
    let mut seconds = Vec::new();
    for _ in 0..times {
        let start = Instant::now();
        product()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    let size = ranks.as_ref().map_or(1, |ranks| ranks.size());
    let (least, middle) = (seconds[0] * 1e3, seconds[times / 2] * 1e3);
    println!(
        "{size} ranks, {rows} x {inputs} x {outputs}: {middle:.2} ms (median), {least:.2} ms (least); {digest:x}"
    );
    if let Some(ranks) = ranks {
        ranks.end();
    }
    Ok(())
}
