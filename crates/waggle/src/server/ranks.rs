//! A server under mpirun. Rank 0 serves clients, and the other ranks multiply for it. See [`spread`].

use std::sync::Arc;
use std::thread;

use tracing::info;
use waggle_model::ModelFiles;
use waggle_protocols::Spread;
use waggle_session::all_matrices;
use waggle_spread::{Ranks, SpreadError};

use super::config::ServerConfig;
use super::signals;
use crate::Error;
use crate::error::{ServeError, describe};
use crate::models::open_adapted;

/// This process's part in a job of mpirun, if there is one. Dropping it on rank 0 ends the other ranks, whatever the
/// reason.
pub struct Job(Option<Ranks>);

impl Job {
    /// The part of a process that mpirun did not start.
    pub fn alone() -> Self {
        Job(None)
    }

    /// Joins the job if mpirun started this process along with others.
    ///
    /// # Errors
    /// If the ranks cannot reach each other.
    pub fn join() -> Result<Self, Error> {
        Ok(Job(waggle_spread::start()?))
    }

    /// Whether this rank multiplies for rank 0.
    pub fn follows(&self) -> bool {
        self.0.as_ref().is_some_and(|ranks| ranks.rank() > 0)
    }

    /// The ranks that share products with this process; `None` outside mpirun.
    pub(super) fn spread(&self) -> Option<Arc<dyn Spread>> {
        self.0.clone().map(|ranks| Arc::new(ranks) as Arc<dyn Spread>)
    }

    /// Checks that all ranks have the same model. `opened` is the model that this rank has opened. If opening failed,
    /// the other ranks are told why.
    pub(super) fn meet(&self, opened: Result<ModelFiles, Error>) -> Result<ModelFiles, Error> {
        let Some(ranks) = &self.0 else { return opened };
        let digest = opened.and_then(|files| Ok((files.sampled_digest()?, files)));
        ranks.meet(digest.as_ref().map(|(digest, _)| digest.clone()).map_err(|error| describe(error)))?;
        Ok(digest?.1)
    }

    /// Waits until all ranks have read their columns of the weights.
    pub(super) fn ready(&self) -> Result<(), Error> {
        let Some(ranks) = &self.0 else { return Ok(()) };
        ranks.ready(Ok(()))?;
        info!(
            ranks = ranks.size(),
            "products online and in preparation are spread over the ranks, without encryption"
        );
        Ok(())
    }

    /// Multiplies for rank 0 until rank 0 ends, with the model of `config` and the columns that its policy needs.
    ///
    /// # Errors
    /// If this rank has another model than rank 0, or rank 0 is gone.
    pub fn follow(&self, config: &ServerConfig) -> Result<(), Error> {
        let Some(ranks) = &self.0 else { return Ok(()) };
        // Ending a job signals all ranks. This rank ignores the signal, as running sessions need it until rank 0
        // ends.
        let rank = ranks.rank();
        signals::on_signal(move |signal| info!(rank, "{signal}: this rank ends with rank 0"))
            .map_err(|source| Error::System { what: "wait for signals", source })?;
        let named =
            |source| Error::from(ServeError::Rank { rank, host: ranks.host().into(), source: Box::new(source) });
        let files = self.meet(open_adapted(&config.model, config.adapter.as_deref())).map_err(named)?;
        let loaded = all_matrices(&config.terms.policy, &files, Arc::new(ranks.clone()));
        if loaded.as_ref().is_err_and(rank_0_has_ended) {
            // Rank 0 reports the error. If this rank failed first, mpirun would kill all ranks and cut rank 0's
            // report off.
            info!(rank, "rank 0 has ended");
            return Ok(());
        }
        ranks.ready(loaded.as_ref().map(|_| ()).map_err(|error| describe(error)))?;
        let matrices = loaded.map_err(|error| named(error.into()))?;
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let entries: usize =
            matrices.iter().map(|matrix| matrix.shape().0 * ranks.columns(matrix.shape().1).len()).sum();
        info!(
            rank,
            host = ranks.host(),
            threads,
            entries,
            "this rank has its columns of {} matrices",
            matrices.len()
        );
        let products = ranks.work(matrices)?;
        info!(rank, products, responses = ranks.response_bytes(), "the end");
        Ok(())
    }
}

/// Whether `error` means that a model could not be read because rank 0 has ended.
fn rank_0_has_ended(error: &waggle_session::Error) -> bool {
    let waggle_session::Error::Model(waggle_model::Error::Engine(error)) = error else { return false };
    match error.backend::<waggle_protocols::Error>() {
        Some(waggle_protocols::Error::Spread(error)) => error.downcast_ref() == Some(&SpreadError::Ended),
        _ => false,
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(ranks) = &self.0 {
            ranks.end();
        }
    }
}
