//! An ideal dealer, only for repeatable tests of the layers above: both parties expand the same seed, nothing is sent
//! and **nothing is hidden**.

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use waggle_net::{Channel, Role};

use crate::setup::{Direction, random_delta};
use crate::{Block, CotKind, CotSource, Kernels, OtError, OtReceiver, OtSender, PoolPlan};

/// The pools of the party `role`. The peer calls this with the other role and the same seed. Only for repeatable
/// tests: whoever knows the seed knows every choice and every message.
pub fn setup(role: Role, seed: u64) -> (OtSender, OtReceiver) {
    let kind = CotKind::Dealer;
    let plan = PoolPlan { kind, min_batch: kind.default_batch() };
    let mut session = [0; 32];
    session[..8].copy_from_slice(&seed.to_le_bytes());
    let source = |sender: Role| {
        let mut rng = StdRng::seed_from_u64(seed ^ (sender as u64) << 63);
        let delta = random_delta(&mut rng);
        (delta, rng, Direction::new(&session, sender, Kernels::default().simd()).hash)
    };
    let (delta, rng, hash) = source(role);
    let sender = OtSender::new(Box::new(Dealer { rng, delta: Some(delta) }), plan, hash, delta);
    let (_, rng, hash) = source(role.peer());
    (sender, OtReceiver::new(Box::new(Dealer { rng, delta: None }), plan, hash))
}

struct Dealer {
    rng: StdRng,
    /// The sender's correlation Delta. The receiver has none.
    delta: Option<Block>,
}

impl CotSource for Dealer {
    fn extend(&mut self, _: &mut Channel, out: &mut [Block]) -> Result<(), OtError> {
        for out in out {
            let t = Block([self.rng.next_u64(), self.rng.next_u64()]);
            *out = t ^ self.delta.unwrap_or(Block::ZERO).times(t.lsb());
        }
        Ok(())
    }
}
