//! All tests of models, in one program, because each links everything.

mod checkpoint;
mod endless;
mod families;
mod fuzz;
mod generation;
mod naive;
mod reference;
mod scores;
mod support;
mod unread;
mod weights;
