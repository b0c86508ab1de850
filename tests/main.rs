//! The tests of the command line, in one program, because every test program links all of Waggle.
//!
//! `cargo test --release --test all plans::` runs the tests of one file.

mod attacks;
mod book;
mod calibration;
mod chat;
mod encoders;
mod eval;
mod examples;
mod failures;
mod fit;
mod fuzz_processes;
mod generation;
mod hammer;
mod heads;
mod hostile;
mod kills;
#[cfg(feature = "mpi")]
mod mpi;
mod numbers;
mod outputs;
mod parties;
mod pins;
mod plan;
mod plans;
mod policies;
mod pools;
mod proxy;
mod public;
mod recipes;
mod records;
mod server;
mod studies;
mod support;
mod tables;
#[path = "../model/tests/all/support/tiny.rs"]
#[allow(dead_code, reason = "every crate's tests use a part")]
mod tiny;
mod tokenizer;
mod transcripts;
mod trust;
