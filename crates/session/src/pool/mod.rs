//! Correlations in files: the offline phase of a generation, made long before its prompt is known.
//!
//! A session that fills a pool ends with one file at each party ([`UnfinishedPool`]); a later session between the
//! same two parties takes both files ([`Pool`]). The files belong together by a [`PoolId`] that the server draws at
//! random.
//!
//! | part of a file | bytes |
//! |---|---|
//! | magic `WGLPOOL\0` | 8 |
//! | format, length of the header (u32, little endian) | 8 |
//! | header: JSON | up to [`MAX_HEADER_BYTES`] |
//! | BLAKE3 of all before | 32 |
//! | words of the stock (u64, little endian) in the order of [`waggle_protocols::Stock::drain`] | 8 each |
//! | BLAKE3 of all before | 32 |
//!
//! The header says whose file it is and what it was made for ([`Purpose`]). The number of words follows from that,
//! and nothing is allocated for a file of another length. Correlated OTs are not in the file: they live in a
//! session's own pools, so every session sets up base OTs and extends them.
//!
//! **Every correlation serves once, also across crashes.** A file is claimed by renaming it, which one process alone
//! can do, then read, unlinked, and the directory synced, before the first message that depends on it. A crash in
//! between loses correlations; what is left under the name `*.claimed` is never read again. A file that is reached
//! through a link is refused: it could be used under each of its names.
//!
//! # No part without the other
//!
//! A file is worth nothing without the peer's. Both parties therefore gain and lose their files in steps. A server's
//! file is *pending* while the client may or may not have the partner: it does not count as a pool, but the client
//! can spend it, and it is removed [`PENDING_AGE`] after the last session that concerned it. A client may have as
//! many pending files as pools.
//!
//! | state | name | counts | leaves it by |
//! |---|---|---|---|
//! | unfinished | `NAME.HEX.draft` | no | a rename when it is whole and synced; removed on failure |
//! | pending (server) | `ID.pending` | no | a rename to a pool, or a claim |
//! | pool | what the user says; `ID.pool` at the server | yes | a claim |
//! | claimed | `*.claimed` | no | removal when it is read |
//!
//! The process that works on an unfinished or a claimed file locks it. A file without a lock was left by a crash. A
//! server removes it when it starts, `waggle pools rm --stale` at any time.
//!
//! # Parts
//!
//! A pool may be made in up to [`MAX_PARTS`](waggle_protocols::MAX_PARTS) parts ([`Purpose::parts`]), each a pair of
//! files with an id of its own, filled by the steps below. Sessions that fill parts know nothing of each other: a
//! part that failed is made again, and any part made for the same purpose takes its place. The header of a part says
//! which one it is of how many, and its fingerprint covers that. A session spends a [`PoolSet`]: all parts of one
//! division, made for the same purpose, each once.
//!
//! In the table of spending every step is done for all parts before the message goes out. A claim first locks all
//! parts and looks for each at its place; only then it renames one. So of two processes that want the same parts,
//! neither is left with a few of them. A crash between two renamings loses some parts and leaves the others. Each
//! part that is left is as its row says, with its partner pending, and serves again when the lost parts were made
//! anew.
//!
//! Several processes of one party, on any hosts, may share a directory of pools, if the file system renames in one
//! step and its locks hold between them. Where locks do not hold, renaming still lets only one process have a file.
//! But a server that starts may remove a file that another process is working on, whose session then reports an
//! error.
//!
//! *Filling.* What each party has if the link or a party dies after the message (or before the first):
//!
//! | message | from | its sender did before | client | server |
//! |---|---|---|---|---|
//! | none yet | | | removes its file | removes its file |
//! | ready, or why not | client | wrote and synced its file | removes its file | removes its file |
//! | ready, or why not | server | wrote and synced its file, made it pending | removes its file | pending |
//! | kept, or why not | client | published | pool | pool; pending if the message is lost |
//!
//! *Spending.*
//!
//! | message | from | its sender did before | client | server |
//! |---|---|---|---|---|
//! | request with the id | client | opened and checked its pool | pool | pool |
//! | verdict | server | opened and checked its part, made it pending | pool | pending |
//! | claimed, or why not | client | read and removed its pool | nothing | nothing; pending if the message is lost |
//! | claimed, or why not | server | read and removed its part | nothing | nothing |
//!
//! A crash (of the process or the machine) leaves what its row says, and perhaps an unfinished or a claimed file in
//! the place of a part that would have been removed. So after any crash a client's pool has its partner, as pool or
//! pending, and a server's pool has the client's. A part without a partner is pending at the server and is removed by
//! age. If the client comes back only after that age, the server refuses the client's pool by its id, because the
//! pending part is gone.
//!
//! *Giving up.* A client that has claimed its file and cannot use it says that it is lost, and the server removes its
//! own ([`PoolError::Lost`]). A client that lost files otherwise says which ones it has when it fills a pool, and the
//! server removes its other files for this client's key, except files that a session has worked on since the filling
//! session began.

mod claim;
mod dir;
mod file;
mod list;
mod set;
#[cfg(test)]
mod set_tests;
#[cfg(test)]
mod tests;
mod unfinished;

use std::collections::BTreeMap;

use waggle_net::LinkShape;
use waggle_protocols::{FixedWeight, Needs, Part};

pub(crate) use dir::{Place, Waiting};
pub use dir::{Pools, count, writable_by_others};
pub use file::{MAX_HEADER_BYTES, Pool};
pub use list::{Found, PENDING_AGE, State, find};
pub use set::{PoolSet, part_path};
pub use unfinished::{Pending, UnfinishedPool, Written, check_absent};

use crate::Error;
use crate::needs::needs;
pub use crate::pool_error::{Difference, PoolError};
pub use crate::pool_id::PoolId;
use waggle_model::{Excess, Lengths};

use crate::event::Watch;
use crate::pool_id::hex;
use crate::public_model::PublicModel;
use crate::request::{Limits, Request};
use crate::terms::Terms;

/// Refuses a generation that is longer than the longest one that a pool serves.
pub(crate) fn check_bound(bound: Lengths, request: &Request) -> Result<(), PoolError> {
    match request.lengths.beyond(bound) {
        Some(Excess { what, got, limit }) => Err(PoolError::Bound { what, got, limit }),
        None => Ok(()),
    }
}

/// The name of the peer's key among the facts.
const PEER: &str = "peer";
/// The name of the fractional bits of public tokens' matrices among the facts.
const PREFIX_SCALES: &str = "prefix-scales";
/// The name of a part among the facts; a whole pool has none.
const PART: &str = "part";

/// The purpose of a pool. It has, by name, everything that the pool's words depend on; the link that the pool was
/// planned for; and the needs that the pool holds.
#[derive(Clone, Debug)]
pub struct Purpose {
    bound: Lengths,
    facts: BTreeMap<String, String>,
    link: LinkShape,
    needs: Needs,
}

impl Purpose {
    /// The purpose of a pool for generations up to `bound`, of `texts` texts side by side, with `model` under
    /// `terms`. The server passes a digest of its `weights`, because its words are products with them; the client
    /// must not learn the digest. The forms of operations follow from the link, so a session that spends a pool takes
    /// its link ([`PoolSet::link`]), and no measurement refuses a pool. It does not matter which ciphertexts carried
    /// the words. The helper that dealt the words does matter, because it knows them: whoever spends them names it
    /// again. `peer` is the key of the other party, where the link has keys: only the pair that filled a pool spends
    /// it. This plans the longest generation, and `watch` may end the planning.
    ///
    /// # Errors
    /// If the model cannot do as much, or the terms are not those of a two-phase session.
    pub fn new(
        model: &PublicModel,
        terms: &Terms,
        bound: Lengths,
        texts: usize,
        weights: Option<&str>,
        peer: Option<&str>,
        watch: &mut Watch,
    ) -> Result<Self, Error> {
        if !terms.protocol.preprocess {
            return Err(PoolError::OnePhase.into());
        }
        let longest = Request { texts, ..Request::from(bound) };
        longest.validate(&model.spec, terms, &Limits::NONE)?;
        let needs = needs(model, terms, &longest, watch)?;
        let json = |e: serde_json::Error| waggle_model::ConfigError::Json(e.to_string());
        let units: Vec<_> = needs.units.iter().collect();
        let operands: Vec<_> = needs.operands.iter().collect();
        let layout = serde_json::to_vec(&(units, operands)).map_err(json)?;
        let how = |(name, _): &(String, String)| matches!(&**name, "packing" | "masks");
        let mut facts: BTreeMap<String, String> = terms.facts().into_iter().filter(|fact| !how(fact)).collect();
        let scales = |bits: &[u32]| bits.iter().map(u32::to_string).collect::<Vec<_>>().join(" ");
        let of_prefix = terms.prefix.as_ref().map(|prefix| scales(&prefix.frac_bits(&model.spec)));
        for (name, value) in [
            ("model", serde_json::to_string(&model.spec).map_err(json)?),
            ("scales", scales(&model.frac_bits)),
            ("layout", blake3::hash(&layout).to_hex().to_string()),
        ] {
            facts.insert(name.into(), value);
        }
        facts.extend(of_prefix.map(|scales| (PREFIX_SCALES.to_owned(), scales)));
        facts.extend(model.disclosure.stated()?.map(|text| ("public".to_owned(), text)));
        facts.extend((texts != 1).then(|| ("texts".to_owned(), texts.to_string())));
        facts.extend(weights.map(|digest| ("weights".to_owned(), digest.to_owned())));
        facts.extend(peer.map(|key| (PEER.to_owned(), key.to_owned())));
        Ok(Purpose { bound, facts, link: terms.protocol.link, needs: needs.stored() })
    }

    /// The purposes of all parts of a pool for this purpose, in order. The pool has as many parts as the division
    /// that `part` belongs to. A part holds the needs that [`Needs::parts`] gives it.
    ///
    /// # Errors
    /// If the model cannot do as much.
    pub fn parts(&self, part: Part) -> Result<Vec<Purpose>, Error> {
        let needs = self.needs.parts(part)?;
        Ok(part.all().zip(needs).map(|(part, needs)| self.of_part(part, needs)).collect())
    }

    /// The purpose of `part` alone, as in [`Purpose::parts`].
    ///
    /// # Errors
    /// If the model cannot do as much.
    pub fn part(&self, part: Part) -> Result<Purpose, Error> {
        Ok(self.of_part(part, self.needs.part(part)?))
    }

    fn of_part(&self, part: Part, needs: Needs) -> Purpose {
        let mut facts = self.facts.clone();
        if !part.is_whole() {
            facts.insert(PART.into(), part.to_string());
        }
        Purpose { bound: self.bound, facts, link: self.link, needs }
    }

    /// The needs that a pool for this purpose holds.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// BLAKE3 of facts and bound.
    fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        let mut part = |text: &str| {
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        };
        for (name, value) in &self.facts {
            part(name);
            part(value);
        }
        [self.bound.prompt, self.bound.tokens].iter().for_each(|number| part(&number.to_string()));
        hasher.finalize().to_hex().to_string()
    }
}

/// A digest of the integers of `weights`.
pub(crate) fn digest(weights: &[&FixedWeight]) -> String {
    let mut hasher = blake3::Hasher::new();
    let mut bytes = Vec::new();
    for weight in weights {
        let Some(values) = &weight.values else { continue };
        // Line by line, so that no matrix is in memory.
        let (lines, length) = values.matrix.lines();
        let mut integers = vec![0; length];
        for line in 0..lines {
            values.matrix.read(line, 0, &mut integers);
            bytes.clear();
            bytes.extend(integers.iter().flat_map(|x| x.to_le_bytes()));
            hasher.update(&bytes);
        }
        bytes.clear();
        bytes.extend(values.bias.iter().flat_map(|x| x.to_le_bytes()));
        hasher.update(&bytes);
    }
    hasher.finalize().to_hex().to_string()
}
