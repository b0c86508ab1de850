//! All tests of sessions, in one program, because each links everything.

mod answers;
mod audit;
mod chat;
mod chunks;
mod draft;
mod families;
mod fuzz;
mod fuzz_sessions;
mod helper;
mod hostile;
mod learned;
mod long;
mod outcome;
mod padding;
mod parties;
mod parts;
mod party;
mod pool;
mod pools;
mod prefix;
mod protocol;
mod pruned;
mod public;
mod ranges;
mod sampling;
mod secure;
mod shed;

// The support module of the tests of `model`, with its tiny models.
#[path = "../../../../model/tests/all/support/mod.rs"]
mod support;
