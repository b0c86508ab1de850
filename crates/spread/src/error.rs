//! Errors between ranks.

use thiserror::Error;

/// A job whose ranks cannot multiply together.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum SpreadError {
    /// A job of several ranks, in a program that cannot talk to them.
    #[error("mpirun started {0} ranks, but this program was built without MPI")]
    NotBuilt(usize),
    /// The MPI library cannot be used along with threads that leave it alone.
    #[error("the MPI library gives threads at the level `{0}`, `Funneled` is needed")]
    Threads(String),
    /// MPI was initialised before.
    #[error("MPI is in use already in this process")]
    Twice,
    /// No thread for the messages between ranks.
    #[error("cannot start a thread for messages between ranks: {0}")]
    NoThread(String),
    /// Another rank cannot go on.
    #[error("rank {rank} on {host}: {what}")]
    Rank {
        /// Which.
        rank: usize,
        /// Its host.
        host: String,
        /// Its words.
        what: String,
    },
    /// Another rank has other files.
    #[error("rank {rank} on {host} has another model than rank 0: {theirs}, expected {ours}")]
    Differs {
        /// Which.
        rank: usize,
        /// Its host.
        host: String,
        /// The digest of rank 0's model.
        ours: String,
        /// The digest of its model.
        theirs: String,
    },
    /// A message that makes no sense here: the ranks run different programs.
    #[error("rank {rank} sent {bytes} bytes that are no message of this program during `{step}`")]
    Malformed {
        /// From whom.
        rank: usize,
        /// When.
        step: &'static str,
        /// The number of bytes.
        bytes: usize,
    },
    /// A matrix with rows too long for one message.
    #[error("a matrix of {inputs} by {outputs} entries: MPI carries rows of {limit} words at most")]
    TooWide {
        /// Rows of the matrix.
        inputs: usize,
        /// Its columns.
        outputs: usize,
        /// Most words in a message.
        limit: usize,
    },
    /// Rank 0 wants a product with a matrix that this rank does not have.
    #[error("rank 0 asks for matrix {number} of {matrices}")]
    NoMatrix {
        /// Its number.
        number: usize,
        /// The number of matrices.
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
