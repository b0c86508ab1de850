//! Pools of correlated OTs, refilled on demand, and the derandomisation that gives them chosen bits.

use waggle_net::{Channel, Role};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::hash::CrHash;
use crate::keys::{ChosenKeys, SenderKeys};
use crate::kind::CotKind;
use crate::source::{CotSource, Wire};
use crate::{Bits, Block, OtError};

/// The rule by which a pool grows. It is all that a planner needs to predict the pool's traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolPlan {
    /// The generator of the pool's OTs.
    pub kind: CotKind,
    /// A refill makes at least this many OTs ([`CotKind::extend_amount`] rounds up).
    pub min_batch: usize,
}

impl PoolPlan {
    /// The number of OTs that a refill makes when `need` are asked for, in a pool that has made `made` so far and
    /// holds `level`. It is 0 if the pool holds enough.
    pub fn refill_amount(&self, made: u64, level: usize, need: usize) -> usize {
        match need.saturating_sub(level) {
            0 => 0,
            deficit => self.kind.extend_amount(made, deficit.max(self.min_batch)),
        }
    }

    /// Whether refills after `made` OTs are the same for every larger `made`.
    pub fn is_steady(&self, made: u64) -> bool {
        self.kind.is_steady(made)
    }

    /// The traffic of a refill by `amount` (a result of [`refill_amount`](Self::refill_amount)) after `made` OTs.
    pub fn refill_wire(&self, made: u64, amount: usize) -> Wire {
        if amount == 0 { Wire::default() } else { self.kind.extend_wire(made, amount) }
    }
}

/// The OTs of one party in one direction.
struct Pool {
    source: Box<dyn CotSource>,
    plan: PoolPlan,
    hash: CrHash,
    /// The first `level` blocks are OTs, the rest is room for more. Used blocks are zeroed, and no block is filled
    /// twice.
    blocks: Vec<Block>,
    level: usize,
    made: u64,
    used: u64,
    /// The step and party of a check that failed. After that the pool makes and gives nothing, because another try
    /// would allow another guess.
    failed: Option<(&'static str, Role)>,
}

impl Pool {
    fn new(source: Box<dyn CotSource>, plan: PoolPlan, hash: CrHash) -> Self {
        Pool { source, plan, hash, blocks: Vec::new(), level: 0, made: 0, used: 0, failed: None }
    }

    fn usable(&self) -> Result<(), OtError> {
        self.failed.map_or(Ok(()), |(step, party)| Err(OtError::Deviates { step, party }))
    }

    fn ensure(&mut self, ch: &mut Channel, n: usize) -> Result<(), OtError> {
        self.usable()?;
        let level = self.level;
        let amount = self.plan.refill_amount(self.made, level, n);
        if amount == 0 {
            return Ok(());
        }
        if self.blocks.len() < level + amount {
            // Vec would leave the old blocks behind in freed memory.
            let mut larger = vec![Block::ZERO; level + amount];
            larger[..level].copy_from_slice(&self.blocks[..level]);
            self.blocks.zeroize();
            self.blocks = larger;
        }
        let made = self.source.extend(ch, &mut self.blocks[level..level + amount]);
        if let Err(OtError::Deviates { step, party }) = made {
            ch.reject(step);
            self.failed = Some((step, party));
            self.blocks.zeroize();
            self.level = 0;
        }
        made?;
        self.level += amount;
        self.made += amount as u64;
        Ok(())
    }

    /// Removes `n` OTs. Returns the index of the first one, and the OTs.
    fn take(&mut self, n: usize) -> Result<(u64, Vec<Block>), OtError> {
        self.usable()?;
        let available = self.level;
        let rest = available.checked_sub(n).ok_or(OtError::Short { needed: n, available })?;
        // OTs are taken from the end, so that nothing has to move. Both parties hold the same sequence.
        let taken = self.blocks[rest..available].to_vec();
        self.blocks[rest..available].zeroize();
        self.level = rest;
        let first = self.used;
        self.used += n as u64;
        Ok((first, taken))
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.blocks.zeroize();
    }
}

macro_rules! pool_methods {
    () => {
        /// Refills the pool as its plan says if it holds fewer than `n` OTs. Both parties must call this in the same
        /// order with the same `n`. Errors: those of the generator. The pool is then unchanged, or gives nothing more
        /// if the peer deviates.
        pub fn ensure(&mut self, ch: &mut Channel, n: usize) -> Result<(), OtError> {
            self.pool.ensure(ch, n)
        }

        /// Number of OTs in the pool.
        pub fn available(&self) -> usize {
            self.pool.level
        }

        /// Number of OTs made so far.
        pub fn made(&self) -> u64 {
            self.pool.made
        }

        /// Number of OTs used so far.
        pub fn used(&self) -> u64 {
            self.pool.used
        }

        /// The rule by which this pool grows.
        pub fn plan(&self) -> PoolPlan {
            self.pool.plan
        }
    };
}

/// The sender's pool of correlated OTs of one direction.
#[derive(ZeroizeOnDrop)]
pub struct OtSender {
    #[zeroize(skip)]
    pool: Pool,
    delta: Block,
}

impl OtSender {
    /// A sender over `source`, whose correlation is `delta`.
    pub(crate) fn new(source: Box<dyn CotSource>, plan: PoolPlan, hash: CrHash, delta: Block) -> Self {
        OtSender { pool: Pool::new(source, plan, hash), delta }
    }

    pool_methods!();

    /// Consumes `n` OTs whose choice bits the receiver has chosen: `corrections` is the message of
    /// [`OtReceiver::choose`]. Errors: the pool is short, or the message has the wrong length or padding.
    pub fn accept(&mut self, n: usize, corrections: &[u8]) -> Result<SenderKeys, OtError> {
        let corrections = Bits::from_bytes("ot/corrections", corrections, n)?;
        let (first, mut blocks) = self.pool.take(n)?;
        // q ^ t = c Delta and d = c ^ b give (q ^ d Delta) ^ t = b Delta.
        for (blocks, &word) in blocks.chunks_mut(64).zip(corrections.words()) {
            for (i, block) in blocks.iter_mut().enumerate() {
                *block ^= self.delta.times(word >> i & 1);
            }
        }
        Ok(SenderKeys::new(blocks, self.delta, self.pool.hash.clone(), first))
    }

    /// Consumes `n` OTs whose choice bits are random ([`OtReceiver::random`]), without a message. Errors: the pool is
    /// short.
    pub fn random(&mut self, n: usize) -> Result<SenderKeys, OtError> {
        let (first, blocks) = self.pool.take(n)?;
        Ok(SenderKeys::new(blocks, self.delta, self.pool.hash.clone(), first))
    }
}

impl std::fmt::Debug for OtSender {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OtSender({} OTs)", self.available())
    }
}

/// The receiver's pool of correlated OTs of one direction.
pub struct OtReceiver {
    pool: Pool,
}

impl OtReceiver {
    /// A receiver over `source`.
    pub(crate) fn new(source: Box<dyn CotSource>, plan: PoolPlan, hash: CrHash) -> Self {
        OtReceiver { pool: Pool::new(source, plan, hash) }
    }

    pool_methods!();

    /// Consumes one OT per bit of `choices`. Returns the message for [`OtSender::accept`], `ceil(n / 8)` bytes, and
    /// the keys of the chosen messages. Errors: the pool is short.
    pub fn choose(&mut self, choices: &Bits) -> Result<(Vec<u8>, ChosenKeys), OtError> {
        let (mut corrections, mut keys) = self.random(choices.len())?;
        corrections.xor_assign(choices);
        keys.choices = choices.clone();
        Ok((corrections.to_bytes(), keys))
    }

    /// Consumes `n` OTs with their random choice bits, without a message. Returns the bits and the keys of the chosen
    /// messages. Errors: the pool is short.
    pub fn random(&mut self, n: usize) -> Result<(Bits, ChosenKeys), OtError> {
        let (first, blocks) = self.pool.take(n)?;
        let words = blocks.chunks(64).map(|b| b.iter().enumerate().fold(0, |w, (i, b)| w | b.lsb() << i)).collect();
        let choices = Bits::from_words(words, n);
        Ok((choices.clone(), ChosenKeys::new(blocks, choices, self.pool.hash.clone(), first)))
    }
}

impl std::fmt::Debug for OtReceiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OtReceiver({} OTs)", self.available())
    }
}
