//! The command line `waggle`: private text generation between two parties.
//!
//! What the parties do lies in [`session::party`]. This library has the commands, one file each under `cli`, so that
//! a program of another crate has all of them, with its own policies and activations among the names:
//!
//! ```no_run
//! # mod mine { pub fn register() -> Result<(), session::RegisterError> { Ok(()) } }
//! fn main() -> std::process::ExitCode {
//!     if let Err(error) = mine::register() {
//!         eprintln!("error: {error}");
//!         return std::process::ExitCode::FAILURE;
//!     }
//!     waggle::run()
//! }
//! ```
//!
//! [`session::register_policy`] and [`session::register_activation`] make names known; `examples/policy.rs` and
//! `examples/activation.rs` are such programs.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cli;

pub use cli::{api, run, run_from};
