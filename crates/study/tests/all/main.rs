//! All tests of studies, in one program, because each test program links everything.

mod eval;
mod tasks;

// The tiny models of the tests of the crate `model`.
#[path = "../../../../model/tests/all/support/mod.rs"]
mod support;
