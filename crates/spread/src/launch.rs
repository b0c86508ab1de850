//! Whether this process is a rank of a job.

use std::env;

use crate::{Ranks, SpreadError};

/// Variables by which launchers of MPI tell their processes the number of ranks: of Open MPI; of MPICH, Intel MPI and
/// Slurm; of MVAPICH.
const SIZES: [&str; 3] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"];

/// A job, as its launcher describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launched {
    /// Number of ranks.
    pub ranks: usize,
}

/// The job that this process belongs to, if `mpirun` or its like started it.
pub fn launched() -> Option<Launched> {
    let ranks = SIZES.iter().find_map(|name| env::var(name).ok()?.parse().ok())?;
    Some(Launched { ranks })
}

/// Joins the job if `mpirun` or its like started this process and others with it.
///
/// # Errors
/// [`SpreadError::NotBuilt`] without the feature `mpi`; [`SpreadError::Threads`], [`SpreadError::Twice`] and
/// [`SpreadError::NoThread`] with it.
pub fn start() -> Result<Option<Ranks>, SpreadError> {
    match launched() {
        Some(Launched { ranks }) if ranks > 1 => join(ranks).map(Some),
        _ => Ok(None),
    }
}

#[cfg(feature = "mpi")]
fn join(_: usize) -> Result<Ranks, SpreadError> {
    Ranks::connect(crate::mpi::World::join)
}

#[cfg(not(feature = "mpi"))]
fn join(ranks: usize) -> Result<Ranks, SpreadError> {
    Err(SpreadError::NotBuilt(ranks))
}
