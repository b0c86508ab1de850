//! The tests of oblivious transfer, in one program.

mod common;
mod dpf;
mod session;
mod transfers;
