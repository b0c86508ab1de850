//! The columns of a process that multiplies for a server.

use std::sync::Arc;

use model::{Model, ModelFiles};
use mpcache::PolicySpec;
use protocols::{FixedLoader, FixedMatrix, Spread};

use crate::Error;

/// The columns of all matrices, loaded for `policy`, that this process of `spread` has, in the order of their
/// numbers. Every process of `spread` loads the model at the same time, because together they find the largest
/// entries.
///
/// # Errors
/// Those of [`ServerBuilder::load`](crate::party::ServerBuilder::load), and [`protocols::Error::Spread`].
pub fn own_columns(
    policy: &PolicySpec,
    files: &ModelFiles,
    spread: Arc<dyn Spread>,
) -> Result<Vec<FixedMatrix>, Error> {
    let mut loader = FixedLoader::default().spread_over(spread.clone());
    let model = Model::load_for(policy, &mut loader, &files.spec, Some(&files.checkpoint))?;
    let own = |matrix: &FixedMatrix| matrix.columns(spread.columns(matrix.shape().1));
    let weights = model.weights().into_iter();
    Ok(weights.map(|weight| Ok(own(&weight.known()?.matrix))).collect::<Result<_, protocols::Error>>()?)
}
