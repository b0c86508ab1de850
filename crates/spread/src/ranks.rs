//! Rank 0, which serves clients, and the other ranks, which multiply for it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use waggle_he::Split;
use waggle_protocols::spread::{OwnProduct, Prepared};
use waggle_protocols::{Error, FixedMatrix, Spread};

use crate::SpreadError;
use crate::comm::Comm;
use crate::order::{Order, Word};
use crate::owner::{Owner, abort};

/// Most words in one message. MPI counts words in a signed number of 32 bits. Some networks count bytes in the same
/// way, so this many words are also just under 2^31 bytes.
#[cfg(feature = "mpi")]
const MOST_WORDS: usize = (1 << 28) - 1;

/// The columns of `rank` among `ranks`, for a matrix with `outputs` columns. They are neighbours. The numbers of
/// columns of two ranks differ by at most one.
pub fn columns_of(rank: usize, ranks: usize, outputs: usize) -> Range<usize> {
    let start = |rank: usize| (outputs as u128 * rank as u128 / ranks as u128) as usize;
    start(rank)..start(rank + 1)
}

/// A process's place in a job of ranks. Clones share it.
#[derive(Clone)]
pub struct Ranks(Arc<Inner>);

struct Inner {
    owner: Owner,
    rank: usize,
    size: usize,
    host: String,
    most_words: usize,
    responses: Arc<AtomicU64>,
}

impl fmt::Debug for Ranks {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "rank {} of {} on {}", self.0.rank, self.0.size, self.0.host)
    }
}

impl Ranks {
    /// Connects to the other ranks in a thread of its own.
    #[cfg(feature = "mpi")]
    pub(crate) fn connect<C: Comm + 'static>(
        connect: impl FnOnce() -> Result<C, SpreadError> + Send + 'static,
    ) -> Result<Self, SpreadError> {
        Self::connect_limited(connect, MOST_WORDS)
    }

    /// [`Ranks::connect`] with messages of at most `most_words` words, the same at all ranks.
    pub(crate) fn connect_limited<C: Comm + 'static>(
        connect: impl FnOnce() -> Result<C, SpreadError> + Send + 'static,
        most_words: usize,
    ) -> Result<Self, SpreadError> {
        let owner = Owner::start(connect)?;
        let (rank, size, host) = owner.call(|comm| (comm.rank(), comm.size(), comm.host()))?;
        Ok(Ranks(Arc::new(Inner { owner, rank, size, host, most_words, responses: Arc::default() })))
    }

    /// This rank. Rank 0 serves clients.
    pub fn rank(&self) -> usize {
        self.0.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The name of this rank's machine.
    pub fn host(&self) -> &str {
        &self.0.host
    }

    /// Bytes of responses under encryption that this rank has made.
    pub fn response_bytes(&self) -> u64 {
        self.0.responses.load(Ordering::Relaxed)
    }

    /// Every rank tells rank 0 the digest of its model, or why it has none. Rank 0 fails unless all digests are
    /// equal. The other ranks learn nothing; rank 0 ends them if digests differ.
    ///
    /// # Errors
    /// On rank 0 the first [`SpreadError::Rank`] or [`SpreadError::Differs`].
    pub fn meet(&self, model: Result<String, String>) -> Result<(), SpreadError> {
        const STEP: &str = "meet";
        if self.rank() > 0 {
            let host = self.host().to_owned();
            let word = match model {
                Ok(digest) => Word::Model { digest, host },
                Err(reason) => Word::Failed { host, reason },
            };
            return self.tell(word);
        }
        // An error of this rank is known to the caller.
        let Ok(ours) = model else { return Ok(()) };
        let models = self.hear(STEP, |word| match word {
            Word::Model { digest, host } => Some((digest, host)),
            _ => None,
        })?;
        for (rank, model) in (1..).zip(models) {
            let (theirs, host) = model?;
            if theirs != ours {
                return Err(SpreadError::Differs { rank, host, ours, theirs });
            }
        }
        Ok(())
    }

    /// Every other rank tells rank 0 that its matrices are ready, or why not. Rank 0 waits for all of them.
    ///
    /// # Errors
    /// On rank 0 the first [`SpreadError::Rank`].
    pub fn ready(&self, loaded: Result<(), String>) -> Result<(), SpreadError> {
        const STEP: &str = "ready";
        if self.rank() > 0 {
            let host = self.host().to_owned();
            return self.tell(match loaded {
                Ok(()) => Word::Ready,
                Err(reason) => Word::Failed { host, reason },
            });
        }
        self.hear(STEP, |word| (word == Word::Ready).then_some(()))?.into_iter().collect()
    }

    /// On a rank other than 0: multiplies what rank 0 sends by this rank's columns of `matrices`, until rank 0 ends.
    /// `matrices` are whole and in the order of their numbers. Other columns are read only where a pack of responses
    /// lies across the border. Returns the number of products.
    ///
    /// # Errors
    /// [`SpreadError::NoMatrix`] and [`SpreadError::Malformed`] if rank 0 runs another program. As rank 0 would wait
    /// for this rank in vain, all ranks end.
    pub fn work(&self, matrices: Vec<FixedMatrix>) -> Result<u64, SpreadError> {
        let (most_words, responses) = (self.0.most_words, self.0.responses.clone());
        let worker = move |comm: &dyn Comm| work(comm, &matrices, most_words, &responses);
        self.0.owner.call(move |comm| worker(comm).inspect_err(|error| abort(comm, error)))?
    }

    /// Ends this process's part in the job. Rank 0 also tells the others to end. Later products fail.
    pub fn end(&self) {
        if self.rank() == 0 {
            // If the owner's thread has ended, so have the other ranks.
            let _ = self.0.owner.call(|comm| tell_all(comm, Order::End));
        }
        self.0.owner.end();
    }

    /// Sends the message `word` to rank 0.
    fn tell(&self, word: Word) -> Result<(), SpreadError> {
        self.0.owner.call(move |comm| comm.send(0, &word.to_bytes()))
    }

    /// Calls [`hear`] in the owner's thread.
    fn hear<T: Send + 'static>(
        &self,
        step: &'static str,
        take: impl Fn(Word) -> Option<T> + Send + 'static,
    ) -> Result<Vec<Result<T, SpreadError>>, SpreadError> {
        self.0.owner.call(move |comm| hear(comm, step, take))
    }
}

fn tell_all(comm: &dyn Comm, order: Order) {
    (1..comm.size()).for_each(|rank| comm.send(rank, &order.to_bytes()));
}

/// What `take` finds in the next message of every other rank. It is an error if a rank says that it cannot go on, or
/// if `take` finds nothing.
fn hear<T>(comm: &dyn Comm, step: &'static str, take: impl Fn(Word) -> Option<T>) -> Vec<Result<T, SpreadError>> {
    let one = |rank| {
        let bytes = comm.receive(rank);
        match Word::from_bytes(&bytes, rank, step)? {
            Word::Failed { host, reason: what } => Err(SpreadError::Rank { rank, host, what }),
            word => take(word).ok_or(SpreadError::Malformed { rank, step, bytes: bytes.len() }),
        }
    };
    (1..comm.size()).map(one).collect()
}

/// Copies `bytes` of rank 0 to all ranks. Every other rank passes as many bytes of any value.
fn broadcast(comm: &dyn Comm, bytes: Vec<u8>, most_words: usize) -> Vec<u8> {
    let length = bytes.len();
    let mut padded = bytes;
    padded.resize(length.next_multiple_of(8), 0);
    let mut words: Vec<u64> = padded.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    words.chunks_mut(most_words).for_each(|words| comm.broadcast(words));
    let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
    bytes.truncate(length);
    bytes
}

/// Makes this rank's part of the answer to a request.
fn part(comm: &dyn Comm, product: &Prepared, responses: &AtomicU64) -> Result<Split, Error> {
    let part = product.respond(columns_of(comm.rank(), comm.size(), product.plan.packs()))?;
    responses.fetch_add(part.message.len() as u64, Ordering::Relaxed);
    Ok(part)
}

/// Rank 0's side of the answer to a request for the matrix `number`: all ranks' parts together.
fn answer(
    comm: &dyn Comm,
    number: usize,
    product: &Prepared,
    most_words: usize,
    responses: &AtomicU64,
) -> Result<Split, Error> {
    const STEP: &str = "respond";
    let bytes = product.to_bytes();
    tell_all(comm, Order::Respond { number, bytes: bytes.len() });
    broadcast(comm, bytes, most_words);
    let own = part(comm, product, responses);
    let others = hear(comm, STEP, |word| if let Word::Part(part) = word { Some(part) } else { None });
    // A malformed request fails at all ranks. The client is at fault then, and no rank.
    let mut parts = vec![own?];
    for part in others {
        parts.push(part?);
    }
    product.join(&parts)
}

fn work(
    comm: &dyn Comm,
    matrices: &[FixedMatrix],
    most_words: usize,
    responses: &AtomicU64,
) -> Result<u64, SpreadError> {
    const STEP: &str = "work";
    let own: Vec<FixedMatrix> = matrices
        .iter()
        .map(|matrix| matrix.columns(columns_of(comm.rank(), comm.size(), matrix.shape().1)))
        .collect();
    let unknown = |number| SpreadError::NoMatrix { number, matrices: matrices.len() };
    let counts = vec![0; comm.size()];
    let mut done = 0;
    loop {
        let bytes = comm.receive(0);
        match Order::from_bytes(&bytes, STEP)? {
            Order::End => return Ok(done),
            Order::Times { number, rows } => {
                let matrix = own.get(number).ok_or_else(|| unknown(number))?;
                let mut x = vec![0; rows * matrix.shape().0];
                comm.broadcast(&mut x);
                comm.gather(&matrix.times_here(&x), &counts);
                done += 1;
            }
            Order::Respond { number, bytes } => {
                let message = broadcast(comm, vec![0; bytes], most_words);
                let matrix = matrices.get(number).ok_or_else(|| unknown(number))?.clone();
                let read = Prepared::from_bytes(&message, matrix);
                let answer = read.and_then(|product| part(comm, &product, responses));
                let word = match answer {
                    Ok(part) => Word::Part(part),
                    Err(error) => Word::Failed { host: comm.host(), reason: error.to_string() },
                };
                comm.send(0, &word.to_bytes());
                done += 1;
            }
            Order::Largest(_) => return Err(SpreadError::Malformed { rank: 0, step: STEP, bytes: bytes.len() }),
        }
    }
}

/// Rank 0's side of a product with the matrix `number`.
fn product(
    comm: &dyn Comm,
    number: usize,
    (inputs, outputs): (usize, usize),
    own: &OwnProduct,
    x: &mut [u64],
) -> Vec<u64> {
    let rows = x.len() / inputs;
    tell_all(comm, Order::Times { number, rows });
    comm.broadcast(x);
    let ranges: Vec<Range<usize>> = (0..comm.size()).map(|rank| columns_of(rank, comm.size(), outputs)).collect();
    let counts: Vec<usize> = ranges.iter().map(|range| rows * range.len()).collect();
    let gathered = comm.gather(&own(x), &counts);
    let mut out = vec![0; rows * outputs];
    let mut rest = &gathered[..];
    for (range, count) in ranges.into_iter().zip(counts) {
        let (part, others) = rest.split_at(count);
        rest = others;
        if range.is_empty() {
            continue;
        }
        for (out, part) in out.chunks_exact_mut(outputs).zip(part.chunks_exact(range.len())) {
            out[range.clone()].copy_from_slice(part);
        }
    }
    out
}

impl Spread for Ranks {
    fn columns(&self, outputs: usize) -> Range<usize> {
        columns_of(self.rank(), self.size(), outputs)
    }

    fn largest(&self, own: f32) -> Result<f32, Error> {
        const STEP: &str = "largest";
        if self.rank() > 0 {
            self.tell(Word::Largest(own))?;
            let order = self.0.owner.call(|comm| Order::from_bytes(&comm.receive(0), STEP))??;
            return match order {
                Order::Largest(value) => Ok(value),
                Order::End => Err(SpreadError::Ended.into()),
                order => Err(SpreadError::Malformed { rank: 0, step: STEP, bytes: order.to_bytes().len() }.into()),
            };
        }
        let mut most = own;
        for theirs in self.hear(STEP, |word| if let Word::Largest(value) = word { Some(value) } else { None })? {
            most = most.max(theirs?);
        }
        self.0.owner.call(move |comm| tell_all(comm, Order::Largest(most)))?;
        Ok(most)
    }

    fn times(&self, number: usize, shape: (usize, usize), own: OwnProduct, x: &[u64]) -> Result<Vec<u64>, Error> {
        let (inputs, outputs) = shape;
        let limit = self.0.most_words;
        let rows = limit / inputs.max(outputs).max(1);
        if rows == 0 {
            return Err(SpreadError::TooWide { inputs, outputs, limit }.into());
        }
        let mut out = Vec::with_capacity(x.len().checked_div(inputs).unwrap_or(0) * outputs);
        // Without inputs there is nothing to multiply, and no rows.
        for x in x.chunks((rows * inputs).max(1)) {
            let (mut x, own) = (x.to_vec(), own.clone());
            out.extend(self.0.owner.call(move |comm| product(comm, number, shape, &own, &mut x))?);
        }
        Ok(out)
    }

    fn respond(&self, number: usize, product: Prepared) -> Result<Split, Error> {
        let (most_words, responses) = (self.0.most_words, self.0.responses.clone());
        self.0.owner.call(move |comm| answer(comm, number, &product, most_words, &responses))?
    }
}
