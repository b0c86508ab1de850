//! Queues of words that wait in a file.
//!
//! A stock holds everything that a run will take. Each word is touched twice: when it is made and when it is spent. A
//! [`Queue`] therefore keeps only its two ends in memory, up to a chunk each: the words that were put in last and
//! those that come out next. The chunks in between lie in the stock's [`Spill`], a file without a name in the
//! system's directory for temporary files. The file vanishes with the process, however that ends.
//!
//! The words are as secret as the session's memory. Each chunk is encrypted by AES-128 in counter mode under its own
//! key, which is used for this chunk alone and forgotten when the chunk is read. The key and the BLAKE3 hash of the
//! ciphertext stay in memory. So the file alone tells nothing, and someone who sees the memory later cannot read
//! spent chunks. The hash makes sure that nothing but what was written is taken back.
//!
//! A chunk owns its place in the file. It gives the place back once it was read or its queue is dropped, after its
//! key is wiped. So the file is as long as the most chunks that waited at a time, and no key is left that would
//! decrypt an overwritten chunk or its successor. A chunk that could not be read stays in its queue and keeps its
//! place.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aes::Aes128Enc;
use ctr::Ctr64LE;
use ctr::cipher::{KeyIvInit, StreamCipher};
use rand::TryRng;
use rand::rngs::SysRng;
use rayon::prelude::*;
use thiserror::Error;
use zerocopy::IntoBytes;
use zeroize::{Zeroize, Zeroizing};

pub(super) const CHUNK_WORDS: usize = 1 << 15;
const CHUNK_BYTES: usize = 8 * CHUNK_WORDS;

/// Chunks that are written or read together and in parallel: enough for several cores, few enough for a cache.
const GROUP: usize = 8;

/// Why a stock cannot be kept.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StockError {
    /// The temporary file could not be made, written or read: no space is left, or it was cut.
    #[error("the temporary file of prepared correlations: {0}")]
    Io(#[from] io::Error),
    /// The directory for temporary files has too little room for what a run will prepare.
    #[error(
        "prepared correlations take {needed} bytes in {}, which has {free} bytes free; TMPDIR names another directory",
        dir.display()
    )]
    Space {
        /// Bytes that the stock will have.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// The directory for temporary files.
        dir: PathBuf,
    },
    /// The temporary file holds something other than what was written.
    #[error("the temporary file of prepared correlations was changed at byte {at}")]
    Changed {
        /// Where the changed chunk begins in the file, in bytes.
        at: u64,
    },
}

/// Fails unless the directory for temporary files has room for `needed` bytes of correlations. Where the system does
/// not tell how much room there is, this passes.
///
/// # Errors
/// [`StockError::Space`].
pub fn check_space(needed: u64) -> Result<(), StockError> {
    let dir = std::env::temp_dir();
    match free_bytes(&dir) {
        Some(free) if free < needed => Err(StockError::Space { needed, free, dir }),
        _ => Ok(()),
    }
}

/// Bytes that this user may still write in `dir`.
#[cfg(unix)]
fn free_bytes(dir: &Path) -> Option<u64> {
    let of = rustix::fs::statvfs(dir).ok()?;
    Some(of.f_bavail.saturating_mul(of.f_frsize))
}

#[cfg(not(unix))]
fn free_bytes(_: &Path) -> Option<u64> {
    None
}

/// The file of a stock, made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct Spill {
    file: Option<File>,
    places: Arc<Mutex<Places>>,
    /// A buffer for up to [`GROUP`] encrypted chunks on their way to the file. It is kept, because fresh memory would
    /// cost as much time as the cipher.
    hidden: Vec<u64>,
}

#[derive(Debug, Default)]
struct Places {
    /// The end of the part of the file that was ever given out, in bytes.
    end: u64,
    /// Places that chunks have given back.
    free: BTreeSet<u64>,
}

/// The place of a chunk in the file. It is free again when this value is dropped.
struct Place {
    at: u64,
    places: Arc<Mutex<Places>>,
}

fn lock(places: &Mutex<Places>) -> MutexGuard<'_, Places> {
    places.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Place {
    /// Takes the first free place, or a new one at the end.
    fn take(places: &Arc<Mutex<Places>>) -> Self {
        let mut held = lock(places);
        let at = held.free.pop_first().unwrap_or_else(|| {
            held.end += CHUNK_BYTES as u64;
            held.end - CHUNK_BYTES as u64
        });
        Place { at, places: places.clone() }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.places).free.insert(self.at);
    }
}

/// A chunk in the file: [`CHUNK_WORDS`] words.
struct Chunk {
    /// The key of the chunk. It is boxed, so that moving it leaves no copy. Fields are dropped in order, so the key
    /// is wiped before the place is free.
    key: Box<Zeroizing<[u8; 16]>>,
    /// Hash of the bytes in the file.
    hash: blake3::Hash,
    place: Place,
}

impl Spill {
    /// Encrypts `words`, which make whole chunks, writes them to the file and hands each chunk to `keep`.
    fn write(&mut self, words: &[u64], mut keep: impl FnMut(Chunk)) -> Result<(), StockError> {
        debug_assert!(words.len().is_multiple_of(CHUNK_WORDS));
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(tempfile::tempfile()?),
        };
        for words in words.chunks(GROUP * CHUNK_WORDS) {
            let mut chunks = Vec::with_capacity(GROUP);
            for _ in 0..words.len() / CHUNK_WORDS {
                let mut key = Box::new(Zeroizing::new([0; 16]));
                SysRng.try_fill_bytes(&mut **key).map_err(io::Error::other)?;
                chunks.push(Chunk { key, hash: blake3::Hash::from_bytes([0; 32]), place: Place::take(&self.places) });
            }
            // All of it is encrypted below, before anything is written.
            self.hidden.resize(words.len().max(self.hidden.len()), 0);
            let hidden = &mut self.hidden[..words.len()];
            let jobs = words.par_chunks_exact(CHUNK_WORDS).zip(hidden.par_chunks_exact_mut(CHUNK_WORDS));
            jobs.zip(&mut chunks).for_each(|((words, hidden), chunk)| {
                hidden.iter_mut().zip(words).for_each(|(hidden, word)| *hidden = word.to_le());
                cipher(&chunk.key).apply_keystream(hidden.as_mut_bytes());
                chunk.hash = blake3::hash(hidden.as_bytes());
            });
            for (chunk, hidden) in chunks.iter().zip(hidden.chunks_exact(CHUNK_WORDS)) {
                file.seek(SeekFrom::Start(chunk.place.at))?;
                file.write_all(hidden.as_bytes())?;
            }
            chunks.into_iter().for_each(&mut keep);
        }
        Ok(())
    }

    /// Reads `chunks` into `words`, [`CHUNK_WORDS`] words each. After an error the words must not be used.
    fn read<'a>(&mut self, chunks: impl Iterator<Item = &'a Chunk>, words: &mut [u64]) -> Result<(), StockError> {
        let file = self.file.as_mut().expect("chunks were written to it");
        let mut read = Vec::with_capacity(words.len() / CHUNK_WORDS);
        for (chunk, words) in chunks.zip(words.chunks_exact_mut(CHUNK_WORDS)) {
            file.seek(SeekFrom::Start(chunk.place.at))?;
            file.read_exact(words.as_mut_bytes())?;
            read.push((chunk, words));
        }
        read.into_par_iter().try_for_each(|(chunk, words)| {
            if blake3::hash(words.as_bytes()) != chunk.hash {
                return Err(StockError::Changed { at: chunk.place.at });
            }
            cipher(&chunk.key).apply_keystream(words.as_mut_bytes());
            words.iter_mut().for_each(|word| *word = u64::from_le(*word));
            Ok(())
        })
    }
}

/// The cipher of a chunk. Its nonce is constant, because a key encrypts one chunk only.
fn cipher(key: &[u8; 16]) -> Ctr64LE<Aes128Enc> {
    Ctr64LE::new(key.into(), &[0; 16].into())
}

/// A queue of words, each of which comes out once. All calls must pass the spill of the same stock.
#[derive(Default)]
pub(crate) struct Queue {
    /// The words that come out next. Those before index `gone` are out already.
    front: Zeroizing<Vec<u64>>,
    gone: usize,
    /// Chunks that come out after `front`.
    chunks: VecDeque<Chunk>,
    /// The words that were put in last: less than a chunk.
    back: Zeroizing<Vec<u64>>,
    len: usize,
}

impl Queue {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn push(&mut self, mut words: &[u64], spill: &mut Spill) -> Result<(), StockError> {
        while !words.is_empty() {
            let whole = words.len() - words.len() % CHUNK_WORDS;
            if self.back.is_empty() && whole > 0 {
                let (now, later) = words.split_at(whole);
                spill.write(now, |chunk| self.chunks.push_back(chunk))?;
                (self.len, words) = (self.len + whole, later);
                continue;
            }
            if self.back.capacity() < CHUNK_WORDS {
                // Reserved in one step, because growing would leave copies behind.
                self.back.reserve_exact(CHUNK_WORDS);
            }
            let (now, later) = words.split_at(words.len().min(CHUNK_WORDS - self.back.len()));
            self.back.extend_from_slice(now);
            self.len += now.len();
            if self.back.len() == CHUNK_WORDS {
                spill.write(&self.back, |chunk| self.chunks.push_back(chunk))?;
                self.back.clear();
            }
            words = later;
        }
        Ok(())
    }

    /// Takes the first `count` words, which are zeroized when dropped. The queue must have as many.
    pub(crate) fn take(&mut self, count: usize, spill: &mut Spill) -> Result<Zeroizing<Vec<u64>>, StockError> {
        assert!(count <= self.len, "{count} of {} words", self.len);
        // `out` never grows beyond this, because that would leave copies behind.
        let mut out = Zeroizing::new(Vec::with_capacity(count));
        while out.len() < count {
            if self.gone == self.front.len() {
                self.gone = 0;
                self.front.zeroize();
                let whole = ((count - out.len()) / CHUNK_WORDS).min(self.chunks.len()).min(GROUP);
                if whole > 0 {
                    let start = out.len();
                    out.resize(start + whole * CHUNK_WORDS, 0);
                    spill.read(self.chunks.range(..whole), &mut out[start..])?;
                    self.chunks.drain(..whole);
                    self.len -= whole * CHUNK_WORDS;
                    continue;
                }
                self.front = match self.chunks.front() {
                    Some(chunk) => {
                        let mut words = Zeroizing::new(vec![0; CHUNK_WORDS]);
                        spill.read(std::iter::once(chunk), &mut words)?;
                        self.chunks.pop_front();
                        words
                    }
                    None => std::mem::take(&mut self.back),
                };
            }
            let end = self.front.len().min(self.gone + count - out.len());
            out.extend_from_slice(&self.front[self.gone..end]);
            self.len -= end - self.gone;
            self.gone = end;
        }
        Ok(out)
    }

    /// Hands all words that are left to `sink`, up to a chunk at a time.
    pub(crate) fn drain<E: From<StockError>>(
        mut self,
        spill: &mut Spill,
        mut sink: impl FnMut(&[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        while self.len > 0 {
            let piece = self.take(self.len.min(CHUNK_WORDS), spill)?;
            sink(&piece)?;
        }
        Ok(())
    }

    /// Appends `len` words, which `source` fills in, up to a chunk at a time.
    pub(crate) fn fill<E: From<StockError>>(
        &mut self,
        len: usize,
        spill: &mut Spill,
        mut source: impl FnMut(&mut [u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut piece = Zeroizing::new(vec![0; len.min(CHUNK_WORDS)]);
        for start in (0..len).step_by(CHUNK_WORDS) {
            let piece = &mut piece[..CHUNK_WORDS.min(len - start)];
            source(piece)?;
            self.push(piece, spill)?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({} words)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn word(q: usize, i: usize) -> u64 {
        ((q << 32 | i) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn words(q: usize, range: std::ops::Range<usize>) -> Vec<u64> {
        range.map(|i| word(q, i)).collect()
    }

    /// A queue of `count` words, from word 0 on.
    fn queue(count: usize, spill: &mut Spill) -> Queue {
        let mut queue = Queue::default();
        queue.push(&words(0, 0..count), spill).unwrap();
        queue
    }

    fn file(spill: &mut Spill) -> &mut File {
        spill.file.as_mut().unwrap()
    }

    fn length() -> impl Strategy<Value = usize> {
        prop_oneof![0usize..100, CHUNK_WORDS - 2..CHUNK_WORDS + 3, 2 * CHUNK_WORDS - 1..3 * CHUNK_WORDS + 2]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Words come out of each queue in the order in which they went in, however queues are filled, taken from and
        /// dropped.
        #[test]
        fn words_come_out_as_they_went_in(steps in prop::collection::vec((0usize..3, 0..16, length()), 1..24)) {
            let mut spill = Spill::default();
            let mut queues: [Queue; 3] = Default::default();
            let mut ends = [(0, 0); 3];
            for (q, step, count) in steps {
                let (first, last) = &mut ends[q];
                if step < 5 {
                    queues[q].push(&words(q, *last..*last + count), &mut spill).unwrap();
                    *last += count;
                } else if step < 9 {
                    let end = *last + count;
                    queues[q].fill(count, &mut spill, |piece| {
                        piece.copy_from_slice(&words(q, *last..*last + piece.len()));
                        *last += piece.len();
                        Ok::<_, StockError>(())
                    }).unwrap();
                    prop_assert_eq!(*last, end, "every word is asked for once");
                } else if step == 9 {
                    (queues[q], *first) = (Queue::default(), *last);
                } else {
                    let count = count.min(*last - *first);
                    prop_assert_eq!(&**queues[q].take(count, &mut spill).unwrap(), &*words(q, *first..*first + count));
                    *first += count;
                }
                prop_assert_eq!(queues[q].len(), *last - *first);
                // A queue's memory does not grow with its length.
                prop_assert!(queues[q].front.capacity().max(queues[q].back.capacity()) <= CHUNK_WORDS);
            }
            for (q, (queue, (first, last))) in queues.into_iter().zip(ends).enumerate() {
                let mut rest = Vec::new();
                queue.drain(&mut spill, |piece| {
                    rest.extend_from_slice(piece);
                    Ok::<_, StockError>(())
                }).unwrap();
                prop_assert_eq!(rest, words(q, first..last));
            }
        }
    }

    #[test]
    fn a_small_queue_needs_no_file() {
        let mut spill = Spill::default();
        let mut queue = queue(CHUNK_WORDS - 1, &mut spill);
        assert_eq!(*queue.take(3, &mut spill).unwrap(), words(0, 0..3));
        assert!(spill.file.is_none());
    }

    /// The file is as long as the most chunks that waited at a time, also where queues are dropped with chunks left.
    #[test]
    fn places_of_chunks_that_are_gone_are_used_again() {
        let (mut spill, stock) = (Spill::default(), 5 * CHUNK_WORDS + 100);
        let mut left = queue(stock, &mut spill);
        for round in 0..100 {
            left.push(&words(0, (round + 1) * stock..(round + 2) * stock), &mut spill).unwrap();
            let taken = left.take(stock, &mut spill).unwrap();
            assert_eq!(*taken, words(0, round * stock..(round + 1) * stock), "round {round}");
            drop(queue(stock, &mut spill));
        }
        let bytes = file(&mut spill).metadata().unwrap().len();
        assert!(bytes <= 2 * 8 * stock as u64, "{bytes} bytes for two stocks of {}", 8 * stock);
    }

    /// Equal words do not look equal in the file, because no two chunks have the same key.
    #[test]
    fn every_chunk_has_a_key_of_its_own() {
        let mut spill = Spill::default();
        let mut queue = Queue::default();
        queue.push(&vec![7; 2 * CHUNK_WORDS], &mut spill).unwrap();
        assert_ne!(queue.chunks[0].key, queue.chunks[1].key);
        let mut bytes = vec![0; 2 * CHUNK_BYTES];
        file(&mut spill).seek(SeekFrom::Start(0)).unwrap();
        file(&mut spill).read_exact(&mut bytes).unwrap();
        let mut blocks: Vec<&[u8]> = bytes.chunks_exact(16).collect();
        blocks.sort_unstable();
        blocks.dedup();
        assert_eq!(blocks.len(), 2 * CHUNK_BYTES / 16, "128 random bits do not repeat");
    }

    #[test]
    fn a_file_that_was_cut_is_an_error() {
        let mut spill = Spill::default();
        let mut queue = queue(3 * CHUNK_WORDS, &mut spill);
        file(&mut spill).set_len(2 * CHUNK_BYTES as u64 - 1).unwrap();
        assert_eq!(*queue.take(CHUNK_WORDS, &mut spill).unwrap(), words(0, 0..CHUNK_WORDS));
        match queue.take(1, &mut spill) {
            Err(StockError::Io(error)) => assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_that_was_changed_is_an_error() {
        for at in [0, CHUNK_BYTES as u64 - 1, 2 * CHUNK_BYTES as u64 - 1] {
            let mut spill = Spill::default();
            let mut left = queue(2 * CHUNK_WORDS, &mut spill);
            let flip = |spill: &mut Spill| {
                let (file, mut byte) = (file(spill), [0]);
                file.seek(SeekFrom::Start(at)).unwrap();
                file.read_exact(&mut byte).unwrap();
                file.seek(SeekFrom::Start(at)).unwrap();
                file.write_all(&[byte[0] ^ 1]).unwrap();
            };
            flip(&mut spill);
            let chunk = at / CHUNK_BYTES as u64 * CHUNK_BYTES as u64;
            assert!(matches!(left.take(2 * CHUNK_WORDS, &mut spill), Err(StockError::Changed { at }) if at == chunk));
            // Words that could not be read keep their place, whatever is written next.
            drop(queue(CHUNK_WORDS, &mut spill));
            flip(&mut spill);
            assert_eq!(*left.take(2 * CHUNK_WORDS, &mut spill).unwrap(), words(0, 0..2 * CHUNK_WORDS));
        }
    }

    #[test]
    fn a_file_that_cannot_be_written_is_an_error() {
        let read_only = tempfile::NamedTempFile::new().unwrap();
        let mut spill = Spill { file: Some(File::open(read_only.path()).unwrap()), ..Spill::default() };
        let error = Queue::default().push(&vec![0; CHUNK_WORDS], &mut spill).expect_err("it is open for reading");
        assert!(matches!(error, StockError::Io(_)), "{error:?}");
    }

    #[test]
    fn a_stock_larger_than_the_disk_is_refused_before_it_is_made() {
        check_space(0).expect("nothing fits anywhere");
        let refused = check_space(u64::MAX);
        if cfg!(unix) {
            let Err(StockError::Space { needed: u64::MAX, free, dir }) = refused else { panic!("{refused:?}") };
            assert!(free < u64::MAX && dir == std::env::temp_dir());
        }
    }
}
