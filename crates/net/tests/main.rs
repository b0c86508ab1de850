//! The tests of links and channels, in one program.

mod admission;
mod common;
mod handshake;
mod hostile;
mod ledger;
mod links;
mod measure;
mod pressure;
mod shape;
mod tls;
mod trust;
