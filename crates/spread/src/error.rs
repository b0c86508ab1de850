//! Errors between ranks.

use thiserror::Error;

/// Why the ranks of a job cannot multiply together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpreadError {
    /// The job has several ranks, but the program was built without MPI.
    #[error("mpirun started {0} ranks, but this program was built without MPI")]
    NotBuilt(usize),
    /// The MPI library does not allow other threads in the process, not even threads that never call MPI.
    #[error("the MPI library gives threads at the level `{0}`, `Funneled` is needed")]
    Threads(String),
    /// MPI was initialised before.
    #[error("MPI is in use already in this process")]
    Twice,
    /// The thread for the messages between ranks cannot be started.
    #[error("cannot start a thread for messages between ranks: {0}")]
    NoThread(String),
    /// Another rank cannot go on.
    #[error("rank {rank} on {host}: {what}")]
    Rank {
        /// The other rank.
        rank: usize,
        /// The host of the other rank.
        host: String,
        /// The message of the other rank.
        what: String,
    },
    /// Another rank has another model than rank 0.
    #[error("rank {rank} on {host} has another model than rank 0: {theirs}, expected {ours}")]
    Differs {
        /// The other rank.
        rank: usize,
        /// The host of the other rank.
        host: String,
        /// The digest of rank 0's model.
        ours: String,
        /// The digest of the other rank's model.
        theirs: String,
    },
    /// Another rank sent a message that makes no sense here: the ranks run different programs.
    #[error("rank {rank} sent {bytes} bytes that are no message of this program during `{step}`")]
    Malformed {
        /// The rank that sent the message.
        rank: usize,
        /// The step under way.
        step: &'static str,
        /// The number of bytes.
        bytes: usize,
    },
    /// The rows of a matrix are too long for one message.
    #[error("a matrix of {inputs} by {outputs} entries: MPI carries rows of {limit} words at most")]
    TooWide {
        /// Rows of the matrix.
        inputs: usize,
        /// Columns of the matrix.
        outputs: usize,
        /// Most words in a message.
        limit: usize,
    },
    /// Rank 0 wants a product with a matrix that this rank does not have.
    #[error("rank 0 asks for matrix {number} of {matrices}")]
    NoMatrix {
        /// The number of the matrix that rank 0 asks for.
        number: usize,
        /// The number of matrices of this rank.
        matrices: usize,
    },
    /// Rank 0 has ended.
    #[error("rank 0 has ended")]
    Ended,
}

impl From<SpreadError> for waggle_protocols::Error {
    fn from(error: SpreadError) -> Self {
        waggle_protocols::Error::Spread(Box::new(error))
    }
}
