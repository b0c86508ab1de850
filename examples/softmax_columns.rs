//! Measures how far the largest score in a row of a softmax lies above the scores of a few columns that are fixed
//! beforehand.
//!
//! If the largest score never lay far above those of the columns, a softmax could subtract the largest score of these
//! columns, and would not need the maximum of the row. The program is `waggle` with a policy that looks at the rows
//! of every softmax.
//!
//! ```text
//! cargo run --release --example softmax_columns -- \
//!     eval --text model/assets/text/tinystories.json --policies softmax-columns:budget=1
//! ```

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};

use waggle_engine::{Error, Select, Tensor};
use waggle_mpcache::{Facts, HeadShape, NamedPolicy, Piece, Policy, PolicyFamily, Store, attention};

/// Sets of columns. The two numbers of a set say how many of the first and how many of the last columns that a row
/// sees belong to it.
const SETS: [[usize; 2]; 5] = [[1, 0], [0, 1], [1, 1], [1, 2], [4, 8]];

/// For each of these distances, the program counts the rows in which the largest score lies further above the scores
/// of the columns.
const BEYOND: [f32; 3] = [4.0, 8.0, 12.0];

/// The length of the shortest rows that are counted.
const SHORTEST: usize = 16;

/// What was found for a set of columns: the number of rows beyond each distance, and the largest distance of any row.
type Far = ([u64; BEYOND.len()], f32);

/// The number of all rows, and what was found for each set.
static SEEN: Mutex<(u64, [Far; SETS.len()])> = Mutex::new((0, [([0; BEYOND.len()], 0.0); SETS.len()]));

/// The policy. It holds a share: of each call's rows, it looks at the first ones, up to this share.
#[derive(Clone, Copy)]
struct Columns(f64);

impl PolicyFamily for Columns {
    const POLICIES: &'static [NamedPolicy<Self>] = &[NamedPolicy {
        name: "softmax-columns",
        keys: &["budget"],
        about: "as full; counts in a share of the rows how far maxima lie above fixed columns",
        read: |options| Ok(Columns(options.fraction("budget", 1.0)?)),
    }];

    fn facts(&self) -> Facts {
        Facts::in_the_clear()
    }

    fn build<E: Select>(&self, _layers: usize, _shape: HeadShape) -> Box<dyn Policy<E>> {
        Box::new(*self)
    }
}

impl<E: Select> Policy<E> for Columns {
    fn observation_window(&self, _layer: usize, piece: Piece) -> usize {
        piece.new
    }

    fn attend(&mut self, e: &mut E, _: usize, q: &E::Tensor, store: &mut Store<E>) -> Result<E::Tensor, Error> {
        let attended = attention::weighted(e, q, store)?;
        let p = attended.probabilities();
        let (tokens, rows) = (p.shape()[2], q.shape()[1]);
        let p = e.reveal(p)?.into_iter().flatten().collect::<Vec<f32>>();
        let (count, seen) = &mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = (self.0 * (p.len() / tokens) as f64).ceil() as usize;
        for (at, p) in p.chunks_exact(tokens).enumerate().take(counted) {
            let p = &p[..tokens - rows + at % rows + 1];
            if p.len() < SHORTEST {
                continue;
            }
            *count += 1;
            let most = |p: &[f32]| p.iter().fold(0.0, |most: f32, p| most.max(*p));
            for ([first, last], (beyond, largest)) in SETS.into_iter().zip(&mut *seen) {
                // Probabilities are e^x up to a common factor.
                let fixed = most(&p[..first]).max(most(&p[p.len() - last..]));
                let distance = (most(p) / fixed).ln();
                beyond.iter_mut().zip(BEYOND).for_each(|(rows, bound)| *rows += u64::from(distance > bound));
                *largest = largest.max(distance);
            }
        }
        Ok(attended.output)
    }
}

fn main() -> ExitCode {
    waggle::init();
    waggle::register_policy::<Columns>().expect("the name is free");
    let code = waggle_cli::run();
    let (rows, seen) = *SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    for ([first, last], (beyond, largest)) in SETS.into_iter().zip(seen).filter(|_| rows > 0) {
        let percent = beyond.map(|beyond| format!("{:.2} %", 100.0 * beyond as f64 / rows as f64));
        println!(
            "first {first}, last {last}: beyond {BEYOND:?} are {} of {rows} rows; {largest:.1}",
            percent.join(", ")
        );
    }
    code
}
