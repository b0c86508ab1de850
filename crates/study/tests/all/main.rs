//! All tests of studies, in one program, because each links everything.

mod eval;
mod tasks;

// The tiny models of the tests of `model`, with theirs.
#[path = "../../../../model/tests/all/support/mod.rs"]
mod support;
