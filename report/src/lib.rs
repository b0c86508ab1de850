#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod provenance;
mod report;
pub mod table;

pub use report::{
    Cost, DecodeCost, DraftReport, ModelInfo, Operation, PeakMemory, Phases, REPORT_VERSION, Report, Seconds,
    TokenMeter, Wire, any_layer, by_operation, bytes, phase_name,
};
