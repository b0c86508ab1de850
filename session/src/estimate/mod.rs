//! What a session will take of time and memory, from measurements of the machine that are made once.
//!
//! ```text
//! calibrate:  run small sessions; the plan of each says how many units of every kernel each account has
//!             fit seconds per unit to the processor times of all accounts         -> Profile, kept in a file
//! plan:       seconds per unit x units, on two clocks (protocols::Setting)        -> seconds, CPU seconds
//! ```
//!
//! Everything here is an estimate. Bytes and flows are not: those follow from shapes alone.

mod fit;
mod memory;
mod profile;

pub use fit::{Observation, fit};
pub use memory::{Footprint, footprint};
pub use profile::{PROFILE_VERSION, Profile, ProfileError};
