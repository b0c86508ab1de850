//! Ranks that are threads of one process. They run everything but MPI itself, and need no MPI library.

use std::sync::mpsc::{Receiver, Sender, channel};

use crate::comm::Comm;
use crate::{Ranks, SpreadError};

/// `size` ranks of a job, the first of them rank 0. Messages hold at most `most_words` words, so that a test can have
/// products cut into several messages. Each rank belongs in a thread of its own, because ranks wait for each other.
///
/// # Errors
/// [`SpreadError::NoThread`].
pub fn ranks(size: usize, most_words: usize) -> Result<Vec<Ranks>, SpreadError> {
    let mut ends: Vec<Threads> = (0..size).map(|rank| Threads { rank, to: Vec::new(), from: Vec::new() }).collect();
    for from in 0..size {
        for to in 0..size {
            // This order puts the channel between `from` and `to` at index `to` of one rank and index `from` of the
            // other.
            let (sender, receiver) = channel();
            ends[from].to.push(sender);
            ends[to].from.push(receiver);
        }
    }
    ends.into_iter().map(|end| Ranks::connect_limited(move || Ok(end), most_words)).collect()
}

/// The ends of one rank in the channels between all ranks, one in each direction for every other rank.
struct Threads {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

fn bytes(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word))
}

impl Comm for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.to.len()
    }

    fn host(&self) -> String {
        format!("thread-{}", self.rank)
    }

    fn send(&self, to: usize, message: &[u8]) {
        // A rank that has ended receives nothing. The sender does not learn of it, as with MPI.
        let _ = self.to[to].send(message.to_vec());
    }

    fn receive(&self, from: usize) -> Vec<u8> {
        self.from[from].recv().expect("a rank lives until rank 0 ends it")
    }

    fn broadcast(&self, out: &mut [u64]) {
        if self.rank == 0 {
            (1..self.size()).for_each(|rank| self.send(rank, &bytes(out)));
        } else {
            let message = self.receive(0);
            assert_eq!(message.len(), 8 * out.len(), "words of a broadcast");
            out.iter_mut().zip(words(&message)).for_each(|(out, word)| *out = word);
        }
    }

    fn gather(&self, part: &[u64], counts: &[usize]) -> Vec<u64> {
        if self.rank > 0 {
            self.send(0, &bytes(part));
            return Vec::new();
        }
        let mut all = part.to_vec();
        for (rank, count) in counts.iter().enumerate().skip(1) {
            let message = self.receive(rank);
            assert_eq!(message.len(), 8 * count, "words of rank {rank}");
            all.extend(words(&message));
        }
        all
    }

    fn abort(&self) {
        // The channels end with this thread, which ends the ranks that wait for it.
    }
}
