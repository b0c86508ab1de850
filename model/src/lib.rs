//! Language models over any engine: configuration, weights, tokenizer, generation and reports.
//!
//! One file per architecture, top to bottom, weights addressed by their published names. Nothing here knows whether a
//! tensor is an array, a share or a shape.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod check;
mod checkpoint;
mod config;
mod error;
pub mod eval;
mod files;
mod generate;
mod gpt2;
mod llama;
pub mod party;
pub mod pool;
mod replace;
pub mod report;
mod sampling;
mod synth;
mod tokenizer;
mod transformer;
mod weights;

pub use check::{Check, check};
pub use checkpoint::{Checkpoint, CheckpointError, TensorSpec};
pub use config::{Activation, ConfigError, Gpt2Config, LlamaConfig, ModelSpec, RopeScaling};
pub use error::Error;
pub use files::{ModelFiles, bundled, bundled_names};
pub use generate::{GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step, generate, generate_with};
pub use gpt2::Gpt2;
pub use llama::Llama;
pub use replace::Replacement;
pub use report::Report;
pub use sampling::Sampler;
pub use synth::{DType, synthesize, write_safetensors};
pub use tokenizer::{TextStream, Tokenizer};
pub use transformer::{Input, Model, Rows};
