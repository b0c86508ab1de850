//! The tests of oblivious transfer, in one program.

mod common;
mod dpf;
mod index;
mod session;
mod transfers;
