#![doc = include_str!("../README.md")]
//!
//! Nothing in this crate but [`party`], [`needs`](party::needs) and [`pool`] knows whether a tensor is an array, a
//! share or a shape. To run a party, start at [`party`].
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod beside;
mod calibrate;
mod check;
mod checkpoint;
mod chunks;
mod columns;
mod config;
mod draft;
mod error;
pub mod estimate;
pub mod eval;
mod files;
mod fingerprint;
pub mod fit;
mod generate;
mod gpt2;
mod layers;
mod learned;
mod lengths;
mod llama;
mod mapping;
pub mod names;
mod needs;
pub mod party;
mod pin;
pub mod pool;
mod pool_error;
mod pool_id;
mod replace;
pub mod report;
mod sampling;
mod session;
mod store;
mod surprise;
mod synth;
mod text;
mod tokenizer;
mod transformer;
mod unread;
mod weights;

pub use beside::LEARNED_FILE;
pub use calibrate::{CALIBRATION_TOKENS, Calibration, calibrate};
pub use check::{Check, check};
pub use checkpoint::{Checkpoint, CheckpointError, TensorSpec};
pub use columns::own_columns;
pub use config::{Activation, ConfigError, Gpt2Config, LlamaConfig, ModelSpec, RopeScaling};
pub use draft::{DEFAULT_RATE, Drafts, Guess, Lookup, MAX_DRAFTED, SmallModel};
pub use error::Error;
pub use files::{ModelFiles, bundled, bundled_names};
pub use fingerprint::{Fingerprint, PinError};
pub use generate::{GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step, generate, generate_with};
pub use gpt2::Gpt2;
pub use layers::{Input, Rows};
pub use lengths::Lengths;
pub use llama::Llama;
pub use mpcache::Padding;
pub use pin::Expectation;
pub use replace::Replacement;
pub use report::Report;
pub use sampling::Sampler;
pub use store::{DType, write_safetensors, write_shards};
pub use synth::synthesize;
pub use tokenizer::{
    MAX_TEXT_BYTES, MAX_TEXT_IDS, MAX_TOKENIZER_BYTES, TextStream, Tokenizer, TokenizerError, WorkerCommand,
    run_worker,
};
pub use transformer::Model;
