//! A helper's memory of the servers' halves of weights: whose they are, who uses them, and room for them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use waggle_net::Channel;
use waggle_protocols::halves::{self, Halves, half_bytes};
use waggle_protocols::ops::private::MaskedRow;

use super::helper::MISSING;
use super::wire;
use crate::Error;

/// Halves of weights in memory: those that sessions use, and as many of the unused ones as there is room for, of the
/// servers that came last.
pub(super) struct Kept {
    /// The most bytes that the halves may take.
    most: u64,
    /// Bytes of halves that servers are still to send.
    arriving: u64,
    /// The servers' halves, the most recently used last.
    owned: Vec<Owned>,
}

/// The halves of one server.
struct Owned {
    name: [u8; 32],
    /// Digest of the key of the server that deposited the halves. Only this key may use them.
    key: [u8; 32],
    /// Number of sessions that use the halves.
    users: usize,
    halves: Halves,
}

impl Kept {
    /// An empty memory with room for `most` bytes of halves.
    pub(super) fn new(most: u64) -> Arc<Mutex<Self>> {
        Arc::new(Mutex::new(Kept { most, arriving: 0, owned: Vec::new() }))
    }

    fn bytes(&self) -> u64 {
        self.owned.iter().map(|owned| owned.halves.bytes()).sum::<u64>().saturating_add(self.arriving)
    }

    /// The index in `owned` of the halves called `name`, which are now the most recently used. An entry is made if
    /// there is none.
    ///
    /// # Errors
    /// The reason why the server with `key` may not use the halves.
    fn place(&mut self, name: [u8; 32], key: [u8; 32]) -> Result<usize, String> {
        match self.owned.iter().position(|owned| owned.name == name) {
            Some(place) if self.owned[place].key != key => {
                Err("these halves of weights were deposited by another key".into())
            }
            Some(place) => {
                let found = self.owned.remove(place);
                self.owned.push(found);
                Ok(self.owned.len() - 1)
            }
            None => {
                self.owned.push(Owned { name, key, users: 0, halves: Halves::default() });
                Ok(self.owned.len() - 1)
            }
        }
    }

    /// Makes room for another `bytes` bytes by forgetting halves that no session uses. Returns whether there is
    /// enough room.
    fn make_room(&mut self, bytes: u64) -> bool {
        while self.bytes().saturating_add(bytes) > self.most {
            let Some(idle) = self.owned.iter().position(|owned| owned.users == 0) else { return false };
            drop(self.owned.remove(idle));
        }
        true
    }
}

/// A session's use of the halves of one server, until it is dropped.
pub(super) struct Lease {
    kept: Arc<Mutex<Kept>>,
    name: [u8; 32],
    /// The numbers of the rows whose halves are missing.
    missing: Vec<u32>,
    /// Bytes of the missing halves that have not arrived yet.
    arriving: u64,
}

impl Lease {
    /// Reserves room for the halves of `rows`, which belong to the server with this proof and key.
    ///
    /// # Errors
    /// The reason why there is no room, or why the server may not use the halves.
    pub(super) fn new(
        kept: &Arc<Mutex<Kept>>,
        proof: &[u8; 32],
        key: [u8; 32],
        rows: &[&MaskedRow],
    ) -> Result<Self, String> {
        let name = halves::name(proof);
        let mut open = lock(kept);
        let place = open.place(name, key)?;
        let found = &mut open.owned[place];
        let numbered = rows.iter().zip(0u32..).filter(|(row, _)| !found.halves.has(row));
        let missing: Vec<u32> = numbered.map(|(_, number)| number).collect();
        let arriving = missing.iter().fold(0u64, |all, row| all.saturating_add(half_bytes(rows[*row as usize])));
        found.users += 1;
        let room = open.make_room(arriving);
        let (all, most) = (rows.iter().fold(0u64, |all, row| all.saturating_add(half_bytes(row))), open.most);
        let taken = if room { arriving } else { 0 };
        open.arriving += taken;
        drop(open);
        // A lease that is dropped gives back the room that it took.
        let lease = Lease { kept: kept.clone(), name, missing, arriving: taken };
        if room {
            return Ok(lease);
        }
        let less = if all > most { "" } else { ", of which other sessions use a part" };
        Err(format!("its halves of the weights take {all} bytes, and the helper has room for {most}{less}"))
    }

    /// The halves of `rows`. The server at the other end of `channel` sends the missing ones.
    pub(super) fn halves(&mut self, channel: &mut Channel, rows: &[&MaskedRow]) -> Result<Halves, Error> {
        wire::send(channel, MISSING, &self.missing, 0)?;
        channel.flush(MISSING)?;
        let mut deposited = Halves::default();
        for row in self.missing.drain(..) {
            deposited.receive(channel, rows[row as usize])?;
        }
        let mut kept = lock(&self.kept);
        kept.arriving -= std::mem::take(&mut self.arriving);
        let owned = kept.owned.iter_mut().find(|owned| owned.name == self.name).expect("a place in use stays");
        owned.halves.add(deposited);
        Ok(owned.halves.clone())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let mut kept = lock(&self.kept);
        kept.arriving -= self.arriving;
        if let Some(owned) = kept.owned.iter_mut().find(|owned| owned.name == self.name) {
            owned.users -= 1;
        }
        kept.owned.retain(|owned| owned.users > 0 || owned.halves.bytes() > 0);
    }
}

fn lock(kept: &Mutex<Kept>) -> MutexGuard<'_, Kept> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use waggle_net::{Role, memory_pair};
    use waggle_protocols::FixedMatrix;
    use waggle_protocols::halves::HalvesOwner;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn kind(weight: &str) -> MaskedRow {
        MaskedRow { weight: weight.into(), inputs: 4, outputs: 4, width: 47, bits: 20, blocks: 1 }
    }

    /// A helper's memory with room for `halves` halves of [`kind`].
    fn kept(halves: u64) -> Arc<Mutex<Kept>> {
        Kept::new(halves * half_bytes(&kind("")))
    }

    /// The server `owner` deposits what is missing; returns how many halves that are.
    fn deposit(lease: &mut Lease, owner: &HalvesOwner, row: &MaskedRow) -> usize {
        let (here, there) = memory_pair(PATIENCE);
        let (mut server, mut helper) = (Channel::new(Role::Client, here), Channel::new(Role::Server, there));
        thread::scope(|scope| {
            let server = scope.spawn(move || {
                let missing: Vec<u32> = wire::receive(&mut server, MISSING, 0..=100).unwrap();
                let matrix = FixedMatrix::integers(4, 4, vec![3; 16]);
                missing.iter().for_each(|_| halves::send(&mut server, &owner.seed(), row, Some(&matrix)).unwrap());
                missing.len()
            });
            assert!(lease.halves(&mut helper, &[row]).unwrap().has(row));
            server.join().unwrap()
        })
    }

    #[test]
    fn halves_are_one_keys_and_stay_while_somebody_uses_them() {
        let owners = [(); 3].map(|()| HalvesOwner::new(&mut rand::rng()));
        let (kept, row) = (kept(2), kind("w"));
        let lease = |who: usize, key: u8| Lease::new(&kept, &owners[who].proof(), [key; 32], &[&row]);
        let mut first = lease(0, 0).unwrap();
        assert_eq!(deposit(&mut first, &owners[0], &row), 1);
        // Depositing once is enough, and no other key may use the halves.
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 0);
        assert!(lease(0, 1).err().unwrap().contains("another key"));
        // Halves on their way take room, and halves in use keep theirs.
        let second = lease(1, 1).unwrap();
        assert!(lease(2, 2).err().unwrap().contains("has room for"));
        drop(second);
        let third = lease(2, 2).unwrap();
        assert!(lease(1, 1).is_err());
        drop((first, third));
        // Unused halves stay until somebody needs the room.
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 0);
        let mut others = [1, 2].map(|who| lease(who, 3).unwrap());
        assert_eq!(deposit(&mut others[0], &owners[1], &row), 1);
        assert!(lease(0, 0).is_err());
        drop(others);
        assert_eq!(deposit(&mut lease(0, 0).unwrap(), &owners[0], &row), 1);
        let wide = MaskedRow { inputs: 9, ..kind("wide") };
        assert!(Lease::new(&kept, &owners[0].proof(), [0; 32], &[&wide]).is_err());
        assert_eq!(lock(&kept).arriving, 0);
    }
}
