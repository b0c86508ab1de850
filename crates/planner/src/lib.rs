//! The cost of a session, known from shapes alone: bytes and flows by account, time on given machines over a given
//! link, and memory.
//!
//! A [`Planner`] is a box ([`Abb`](waggle_protocols::Abb)) without values. A program that runs on it takes the same
//! steps as one that runs between two parties, and the planner books what each step sends. Its ledger then equals
//! that of the session in every account, except for times.
//!
//! # Terms
//!
//! - A *forecast* adds up the costs of operations as a session would: OTs come out of pools, which are refilled in
//!   large batches, and each key is sent once.
//! - A *passage* is a sequence of steps that is taken many times. It is worked out once for each pattern of refills.
//! - Layers are of one *class* if they cost the same. One of them is run, and its costs are booked for the others.
//! - A *timeline* has the clocks of both parties, moved by work and messages.
//! - A *setting* is both machines and the link between them. A *profile* holds the measurements of one machine.
//!
//! ```text
//! calibrate:  run small sessions; the plan of each says how many units of every kernel each account has
//!             fit seconds per unit to the processor times of all accounts    -> Profile, kept in a file
//! plan:       seconds per unit x units, on two clocks                        -> seconds, CPU seconds
//! ```
//!
//! Bytes, messages and flows are exact. Times and memory are estimates.
#![deny(missing_docs)]

mod classes;
mod fit;
mod forecast;
mod memory;
mod planner;
mod profile;
mod room;
mod timeline;

pub use fit::{Observation, fit};
pub use memory::Footprint;
pub use planner::{Plan, Planner};
pub use profile::{PROFILE_VERSION, Profile, ProfileError};
// `Kernel` and `Rates` appear in signatures of this crate.
pub use timeline::{Deployment, Machine, Tallies, Units};
pub use waggle_protocols::{Kernel, Rates};
