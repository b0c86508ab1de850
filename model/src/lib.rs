//! Language models over any engine: configuration, weights, tokenizer, generation and reports.
//!
//! One file per architecture, top to bottom, weights addressed by their published names. Nothing here knows whether a
//! tensor is an array, a share or a shape.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod calibrate;
mod check;
mod checkpoint;
mod config;
mod error;
pub mod eval;
mod files;
mod generate;
mod gpt2;
mod lengths;
mod llama;
pub mod party;
mod pin;
pub mod pool;
mod replace;
pub mod report;
mod sampling;
mod synth;
mod text;
mod tokenizer;
mod transformer;
mod unread;
mod weights;

pub use calibrate::{CALIBRATION_TOKENS, Calibration, calibrate};
pub use check::{Check, check};
pub use checkpoint::{Checkpoint, CheckpointError, TensorSpec};
pub use config::{Activation, ConfigError, Gpt2Config, LlamaConfig, ModelSpec, RopeScaling};
pub use error::Error;
pub use files::{ModelFiles, bundled, bundled_names};
pub use generate::{GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step, generate, generate_with};
pub use gpt2::Gpt2;
pub use lengths::Lengths;
pub use llama::Llama;
pub use mpcache::Padding;
pub use pin::{Expectation, Fingerprint, PinError};
pub use replace::Replacement;
pub use report::Report;
pub use sampling::Sampler;
pub use synth::{DType, synthesize, write_safetensors};
pub use tokenizer::{
    MAX_TEXT_BYTES, MAX_TEXT_IDS, MAX_TOKENIZER_BYTES, TextStream, Tokenizer, TokenizerError, WorkerCommand,
    run_worker,
};
pub use transformer::{Input, Model, Rows};
