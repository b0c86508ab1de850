//! Ranks of mpirun multiply as one process does. This program starts itself with mpirun.

mod support;

use std::process::Command;

/// Options of mpirun in tests: root may run it, and there may be more ranks than cores.
const OPTIONS: [&str; 2] = ["--allow-run-as-root", "--oversubscribe"];

/// Runs the test `name` of this program in `ranks` ranks. Returns whether all ranks succeeded, and their output.
fn mpirun(ranks: usize, name: &str) -> (bool, String) {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new("mpirun");
    command.args(OPTIONS).args(["-n", &ranks.to_string()]).arg(program);
    command.args(["--exact", name, "--ignored", "--nocapture", "--test-threads=1"]);
    let output = command.output().expect("mpirun");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn ranks_multiply_as_one_process_does() {
    // With 5 ranks some have no column of the smallest matrices.
    for ranks in [2, 3, 5] {
        let (succeeded, text) = mpirun(ranks, "a_rank");
        assert!(succeeded, "{text}");
        assert!(text.contains("70 products are equal"), "{text}");
        assert_eq!(text.matches("took part in ").count(), ranks - 1, "{text}");
    }
}

#[test]
fn a_rank_that_cannot_multiply_ends_all() {
    let (succeeded, text) = mpirun(3, "a_rank_without_matrices");
    assert!(!succeeded, "{text}");
    let line = |line: &str| line.contains("error: rank 1 on ") && line.contains("rank 0 asks for matrix 0 of 0");
    assert!(text.lines().any(line), "{text}");
}

#[test]
#[ignore = "started by `ranks_multiply_as_one_process_does`"]
fn a_rank() {
    let ranks = waggle_spread::start().expect("MPI").expect("started by mpirun");
    let done = support::run(&ranks);
    match ranks.rank() {
        0 => println!("{done} products are equal"),
        rank => println!("rank {rank} took part in {done}"),
    }
}

#[test]
#[ignore = "started by `a_rank_that_cannot_multiply_ends_all`"]
fn a_rank_without_matrices() {
    use std::sync::Arc;
    use waggle_protocols::{FixedMatrix, Spread};
    let ranks = waggle_spread::start().expect("MPI").expect("started by mpirun");
    if ranks.rank() > 0 {
        // Rank 1 knows no matrix at all.
        let matrices = if ranks.rank() == 1 { vec![] } else { vec![FixedMatrix::integers(1, 3, vec![1, 2, 3])] };
        ranks.work(matrices).expect("every matrix");
    } else {
        let whole = FixedMatrix::integers(1, 3, vec![1, 2, 3]).spread_over(Arc::new(ranks.clone()), 0);
        assert_eq!(ranks.columns(3), 0..1);
        whole.times(&[5]).expect("this waits for rank 1, which ends all");
    }
}
