//! All tests of models, in one program, because each links everything.

// Other crates share `support`, and name this one by the key of their dependency.

mod adapters;
mod checkpoint;
mod encoders;
mod endless;
mod families;
mod forms;
mod fuzz;
mod generation;
mod keys;
mod kvpress;
mod naive;
mod prefix;
mod quantized;
mod reference;
mod scores;
mod support;
mod texts;
mod unread;
mod weights;
mod wrappers;
