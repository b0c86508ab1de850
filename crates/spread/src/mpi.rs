//! The ranks of an MPI job.

use std::thread;
use std::time::{Duration, Instant};

use mpi::Threading;
use mpi::datatype::PartitionMut;
use mpi::environment::{Universe, processor_name};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, Destination, Root, Source};

use crate::SpreadError;
use crate::comm::Comm;

/// The time that a rank looks for a message without a pause. The products of a session follow each other soon.
const EAGER: Duration = Duration::from_millis(2);
/// The pause between two looks for a message, after [`EAGER`] and after [`LONG`].
const PAUSES: [Duration; 2] = [Duration::from_micros(100), Duration::from_millis(2)];
/// A wait that lasts longer is one between sessions.
const LONG: Duration = Duration::from_secs(2);

/// All ranks of the job. Dropping it leaves MPI and waits until all ranks leave it.
pub(crate) struct World {
    world: SimpleCommunicator,
    _universe: Universe,
}

impl World {
    /// Enters MPI. Only the calling thread may use MPI: other threads may run, but never call it.
    pub(crate) fn join() -> Result<Self, SpreadError> {
        let (universe, got) = mpi::initialize_with_threading(Threading::Funneled).ok_or(SpreadError::Twice)?;
        if got < Threading::Funneled {
            return Err(SpreadError::Threads(format!("{got:?}")));
        }
        Ok(World { world: universe.world(), _universe: universe })
    }
}

/// A number of words in the type that MPI counts with.
fn count(words: usize) -> i32 {
    i32::try_from(words).expect("messages are cut to fewer words")
}

impl Comm for World {
    fn rank(&self) -> usize {
        self.world.rank() as usize
    }

    fn size(&self) -> usize {
        self.world.size() as usize
    }

    fn host(&self) -> String {
        processor_name().unwrap_or_else(|_| "a host without a name".into())
    }

    fn send(&self, to: usize, message: &[u8]) {
        self.world.process_at_rank(count(to)).send(message);
    }

    fn receive(&self, from: usize) -> Vec<u8> {
        let from = self.world.process_at_rank(count(from));
        // Waiting in the library would keep a processor busy from one session to the next.
        let start = Instant::now();
        while from.immediate_probe().is_none() {
            match start.elapsed() {
                waited if waited < EAGER => thread::yield_now(),
                waited if waited < LONG => thread::sleep(PAUSES[0]),
                _ => thread::sleep(PAUSES[1]),
            }
        }
        from.receive_vec().0
    }

    fn broadcast(&self, words: &mut [u64]) {
        self.world.process_at_rank(0).broadcast_into(words);
    }

    fn gather(&self, part: &[u64], counts: &[usize]) -> Vec<u64> {
        let root = self.world.process_at_rank(0);
        if self.rank() > 0 {
            root.gather_varcount_into(part);
            return Vec::new();
        }
        let mut all = vec![0u64; counts.iter().sum()];
        let starts: Vec<i32> = counts
            .iter()
            .scan(0, |next, words| {
                let start = *next;
                *next += words;
                Some(count(start))
            })
            .collect();
        let counts: Vec<i32> = counts.iter().map(|words| count(*words)).collect();
        root.gather_varcount_into_root(part, &mut PartitionMut::new(&mut all[..], counts, starts));
        all
    }

    fn abort(&self) {
        self.world.abort(1)
    }
}
