//! A server's products with weights, spread over the ranks of a job: columns by rank.
//!
//! ```text
//! rank 0                                  ranks 1..
//! serves clients                          work: wait for orders
//!   X - R of a session, m rows
//!   order: matrix, m             ------>
//!   X - R                        ======>  (broadcast)
//!   (X - R) W, its columns                (X - R) W, their columns
//!                                <======  (gathered)
//!   all columns, side by side
//! ```
//!
//! Requests of the preparation are broadcast with the client's keys and the seeds of the responses; every rank sends
//! rank 0 the responses and shares of its columns ([`Prepared`](waggle_protocols::spread::Prepared)).
//!
//! Everything is exact modulo 2^64, so every product is the same as that of one process ([`Spread`]).
//!
//! | module | what it does |
//! |---|---|
//! | `comm` | the trait by which ranks reach each other |
//! | `mpi` | the ranks that `mpirun` started (feature `mpi`) |
//! | [`threads`] | ranks that are threads of one process, for tests |
//! | `order` | the messages, all of them |
//! | `owner` | the one thread that talks to other ranks |
//! | `ranks` | rank 0's side and the others' |
//!
//! # What the ranks see
//! The ranks are one party: whoever runs the server runs all of them. Rank 0 tells the others the sum of a client's
//! masked input and the server's share, X - R, and they answer with their columns of (X - R) W. In the preparation
//! rank 0 tells them a client's request and the seeds of the responses, which protect W from the client. MPI encrypts
//! nothing. Whoever reads this traffic reads masked inputs, which are uniform, and products from which the weights
//! follow: as many rows as W has inputs give W. Run a job on a network that belongs to the server.
//!
//! # How a job ends
//! Rank 0 tells the others to end, whether it succeeds or fails. While the model is read, a rank that cannot go on
//! tells rank 0 why, and rank 0 ends with this reason. Later nothing can fail but a process itself: a rank that
//! panics aborts the job, and `mpirun` ends all ranks when one vanishes.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod comm;
mod error;
mod launch;
#[cfg(feature = "mpi")]
mod mpi;
mod order;
mod owner;
mod ranks;
pub mod threads;

pub use error::SpreadError;
pub use launch::{Launched, launched, start};
pub use ranks::{Ranks, columns_of};
pub use waggle_protocols::Spread;
