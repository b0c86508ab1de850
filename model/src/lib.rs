#![doc = include_str!("../README.md")]
//!
//! Nothing in this crate knows whether a tensor is an array, a share or a shape.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod activation;
mod adapter;
mod check;
mod checkpoint;
mod chunks;
mod config;
mod decoder;
mod digest;
mod draft;
mod error;
mod families;
mod files;
mod float;
mod forms;
mod generate;
pub mod hints;
mod image;
mod joined;
mod learned;
mod lengths;
mod mapping;
mod prefix;
mod public;
mod quantize;
mod rope;
mod sampling;
mod spec;
mod store;
mod style;
mod surprisal;
mod synth;
mod tensor;
mod unread;
mod weights;

pub use activation::{
    Activation, ActivationFunction, Functions, RegisteredActivation, TakenActivation, UnknownActivation,
};
pub use adapter::AdapterError;
pub use check::{Check, check, compare};
pub use checkpoint::{Checkpoint, CheckpointError, LeftOut, learned_file};
pub use chunks::{chunk_size, passes};
pub use config::{Common, ConfigError, Quantization, RopeConfig, RopeScaling, Windows};
pub use decoder::{Input, Model, QUOTA_SHARE, Rows};
pub use draft::{DEFAULT_RATE, Drafts, Guess, MAX_DRAFTED, Passes, PromptLookup, SmallModel};
pub use error::Error;
pub use families::gemma2::Gemma;
pub use files::{
    MAX_TOKENIZER_BYTES, ModelFiles, bundled, bundled_file, bundled_names, bundled_text, bundled_texts, is_bundled,
    shape, shape_names, tokenizer_beside,
};
pub use float::FloatModel;
pub use generate::{
    GenerateOptions, Generation, Hooks, Next, NoHooks, Reveal, Step, check_draft, check_encoder, check_image,
    check_input, check_lengths, check_next, check_padding, check_texts, generate, generate_with,
};
pub use image::{CHANNELS, ImageShape, MAX_IMAGE_VALUE};
pub use learned::most as largest_score;
pub use lengths::{Excess, Lengths, bucket};
pub use public::{Disclosed, ModelPart, PartDigests, Parts, PartsError};
pub use quantize::quantize;
pub use sampling::{MAX_NOISE_TEMPERATURE, Sampler, argmax};
pub use spec::*;
pub use store::{DType, write_safetensors, write_shards};
pub use synth::synthesize;
pub use tensor::TensorSpec;
pub use waggle_mpcache::Padding;
pub use weights::Known;
