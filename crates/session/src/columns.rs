//! The matrices for a process that multiplies by some of their columns on behalf of a server.

use std::sync::Arc;

use waggle_model::{Model, ModelFiles};
use waggle_mpcache::PolicySpec;
use waggle_protocols::{FixedLoader, FixedMatrix, Spread};

use crate::Error;

/// All matrices of a model that a server loads for `policy`, in the order of their numbers. A process that multiplies
/// by some of their columns on behalf of the server needs them. The entries are read when they are multiplied. All
/// processes of `spread` must load the model at the same time, because they find the largest entries together.
///
/// # Errors
/// Errors of [`ServerBuilder::load`](crate::party::ServerBuilder::load), and [`waggle_protocols::Error::Spread`].
pub fn all_matrices(
    policy: &PolicySpec,
    files: &ModelFiles,
    spread: Arc<dyn Spread>,
) -> Result<Vec<FixedMatrix>, Error> {
    let mut loader = FixedLoader::default().spread_over(spread);
    let model = Model::load_for(policy, &mut loader, &files.spec, Some(&files.checkpoint))?;
    let weights = model.weights().into_iter();
    Ok(weights.map(|weight| Ok(weight.known()?.matrix.clone())).collect::<Result<_, waggle_protocols::Error>>()?)
}
