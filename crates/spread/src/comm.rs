//! The trait by which ranks reach each other.

/// A job of ranks that reach each other. One thread of each rank makes all calls.
///
/// Messages from one rank to another arrive in the order in which they were sent. A rank that cannot be reached ends
/// the job, so nothing here returns an error.
pub(crate) trait Comm {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// Number of ranks.
    fn size(&self) -> usize;

    /// The name of this rank's machine.
    fn host(&self) -> String;

    /// Sends a message of at most 2^31 - 1 bytes.
    fn send(&self, to: usize, message: &[u8]);

    /// Waits for the next message of rank `from`, however long, without keeping a processor busy.
    fn receive(&self, from: usize) -> Vec<u8>;

    /// Copies the words of rank 0 to all ranks. All ranks call it with the same number of words, at most 2^31 - 1.
    fn broadcast(&self, words: &mut [u64]);

    /// Returns the parts of all ranks one after another at rank 0, and nothing elsewhere. The part of a rank has
    /// `counts[rank]` words; all parts together have at most 2^31 - 1. Rank 0 alone reads `counts`.
    fn gather(&self, part: &[u64], counts: &[usize]) -> Vec<u64>;

    /// Ends all ranks at once, because this one has a bug.
    fn abort(&self);
}
