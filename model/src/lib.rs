#![doc = include_str!("../README.md")]
//!
//! Nothing in this crate but [`party`], [`needs`](party::needs) and [`pool`] knows whether a tensor is an array, a
//! share or a shape. To run a party, start at [`party`].
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod activation;
mod beside;
mod calibrate;
mod check;
mod checkpoint;
mod chunks;
mod columns;
mod config;
mod decoder;
mod draft;
mod error;
pub mod estimate;
pub mod eval;
mod families;
mod family;
mod files;
mod fingerprint;
pub mod fit;
mod generate;
pub mod hints;

mod gated;
mod gemma;
mod gemma2;
mod gemma3;
mod gpt2;
mod gpt_neox;
mod layers;
mod learned;
mod lengths;
mod llama;
mod mapping;
mod mistral;
pub mod names;
mod needs;
mod olmo2;
mod opt;
mod parallel;
pub mod party;
mod phi;
mod phi3;
mod pin;
pub mod pool;
mod pool_error;
mod pool_id;
pub mod provenance;
mod qwen2;
mod qwen3;
mod register;
mod replace;
pub mod report;
mod rope;
mod sampling;
mod session;
mod smollm3;
mod spec;
mod store;
mod surprisal;
mod synth;
pub mod table;
mod text;
mod tokenizer;
mod transformer;
mod unread;
mod weights;

pub use activation::{Activation, ActivationFunction, RegisteredActivation, TakenActivation, UnknownActivation};
pub use beside::LEARNED_FILE;
pub use calibrate::{CALIBRATION_TOKENS, Calibration, calibrate};
pub use check::{Check, check, compare};
pub use checkpoint::{Checkpoint, CheckpointError, TensorSpec};
pub use columns::own_columns;
pub use config::{ConfigError, RopeConfig, RopeScaling};
pub use decoder::Decoder;
pub use draft::{DEFAULT_RATE, Drafts, Guess, Lookup, MAX_DRAFTED, SmallModel};
pub use error::Error;
pub use files::{ModelFiles, bundled, bundled_names, bundled_text, bundled_texts, shape, shape_names};
pub use fingerprint::{Fingerprint, PinError};
pub use gated::Gated;
pub use gemma::Gemma;
pub use generate::{GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step, generate, generate_with};
pub use layers::{Input, Rows};
pub use lengths::{Lengths, bucket};
pub use mpcache::Padding;
pub use parallel::Parallel;
pub use pin::Expectation;
pub use register::{RegisterError, register_activation, register_policy};
pub use replace::Replacement;
pub use report::Report;
pub use sampling::Sampler;
pub use spec::*;
pub use store::{DType, write_safetensors, write_shards};
pub use synth::synthesize;
pub use tokenizer::{
    ChatTemplate, MAX_TEMPLATE_BYTES, MAX_TEXT_BYTES, MAX_TEXT_IDS, MAX_TOKENIZER_BYTES, Message, TextStream,
    Tokenizer, TokenizerError, WorkerCommand, run_worker,
};
pub use transformer::*;
