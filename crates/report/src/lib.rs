#![doc = include_str!("../README.md")]
#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod bibtex;
mod conditions;
mod cost;
mod price;
pub mod provenance;
mod report;
pub mod table;

pub use bibtex::Reference;
pub use conditions::{CONDITIONS, conditions};
pub use cost::{Cost, DecodeCost, Operation, Phases, TokenMeter, any_layer, by_operation, phase_name};
pub use price::{ParsePriceError, Price};
pub use report::{
    DraftReport, HelperLink, HelperLinks, ModelInfo, PeakMemory, REPORT_VERSION, Report, Seconds, Wire, bytes,
};
