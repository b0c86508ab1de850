//! Why a pool cannot be used or made.

use std::fmt;

use thiserror::Error;
use waggle_net::Role;
use waggle_protocols::Part;

use crate::pool_id::PoolId;

/// Why a pool is refused. No message names a path, because a server tells its client the message.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum PoolError {
    /// There is no such file.
    #[error("there is no pool here: it was used already, or never made")]
    Gone,
    /// A server has no pool of this id.
    #[error("there is no pool {id}{} here: it was used already, or never made by this server", in_brackets(.part))]
    Unknown {
        /// The id asked for.
        id: PoolId,
        /// The part asked for.
        part: Part,
    },
    /// Parts of a pool are not there.
    #[error("{} missing", named(.parts))]
    PartsMissing {
        /// The missing parts, in order.
        parts: Vec<Part>,
    },
    /// A part of a pool comes twice.
    #[error("part {part} of the pool comes twice")]
    PartTwice {
        /// The part that comes twice.
        part: Part,
    },
    /// The parts belong to pools that were not divided alike.
    #[error("part {} and part {} are not parts of one pool", .parts[0], .parts[1])]
    Division {
        /// One part of either division.
        parts: [Part; 2],
    },
    /// A file has the name of another part, or a client names parts in another order.
    #[error("this is part {found} of a pool, expected part {expected}")]
    OtherPart {
        /// The part expected.
        expected: Part,
        /// The part named in the file.
        found: Part,
    },
    /// A file stands where a pool is to be written.
    #[error("a file exists already, and no pool is overwritten")]
    Exists,
    /// The path is a symbolic link: its target could be used twice.
    #[error("a symbolic link: give the path of the pool itself")]
    Link,
    /// The file has other names: under each it could be used once.
    #[error("the pool has {count} names (hard links): it could be used under each, and is refused")]
    Names {
        /// The number of names.
        count: u64,
    },
    /// The path is a directory, a pipe or the like.
    #[error("not a regular file")]
    NotAFile,
    /// Users other than the owner may read or write the file.
    #[error(
        "others may read or write the pool, which is as secret as a key; if nobody did, close it to them: chmod 600"
    )]
    Exposed,
    /// Another process works on the file.
    #[error("in use by another process")]
    InUse,
    /// The file is something else.
    #[error("not a pool: it begins with {found:02x?}, expected {expected:02x?}")]
    NotAPool {
        /// First bytes of every pool.
        expected: [u8; 8],
        /// First bytes of the file.
        found: Vec<u8>,
    },
    /// The file has another format.
    #[error("a pool of format {found}, expected {expected}")]
    Format {
        /// Format of this program.
        expected: u32,
        /// Format of the file.
        found: u32,
    },
    /// The file is shorter or longer than its header says.
    #[error("the pool has {found} bytes, expected {expected}: it is truncated or something was appended")]
    Length {
        /// Bytes that there should be.
        expected: u64,
        /// Bytes that there are.
        found: u64,
    },
    /// The file's bytes are not those that were written.
    #[error("the pool is corrupted: the checksum of its {part} is {found}, expected {expected}")]
    Checksum {
        /// The checked part of the file: header or words.
        part: &'static str,
        /// The checksum in the file.
        expected: String,
        /// The checksum computed.
        found: String,
    },
    /// The header is intact, but makes no sense to this program.
    #[error("the pool's header: {what}")]
    Header {
        /// The fault.
        what: String,
    },
    /// The file is the other party's.
    #[error("a pool of the {}, expected one of the {}", name(.found), name(.expected))]
    Role {
        /// This party.
        expected: Role,
        /// Whose file it is.
        found: Role,
    },
    /// The file was claimed and cannot be used: nothing will read it again, and the peer's file is worth nothing.
    #[error("{source}; the pool is lost")]
    Lost {
        /// The fault of the file.
        source: Box<PoolError>,
    },
    /// The file was made for another model or other terms.
    #[error("the pool was made for another session: {}", listed(.differences))]
    Mismatch {
        /// The facts that differ.
        differences: Vec<Difference>,
    },
    /// The session wants more than the pool was made for.
    #[error("{got} {what} are more than the {limit} that the pool was made for")]
    Bound {
        /// The counted things, in the plural.
        what: &'static str,
        /// The number asked for.
        got: usize,
        /// The most that the pool serves.
        limit: usize,
    },
    /// The file that was claimed is not the one that was agreed on: somebody replaced it meanwhile.
    #[error("pool {found} was claimed, expected {expected}: the file was replaced")]
    Replaced {
        /// Id that the parties agreed on.
        expected: PoolId,
        /// Id of the file claimed.
        found: PoolId,
    },
    /// Pools belong to two-phase sessions.
    #[error("a pool serves sessions in two phases only")]
    OnePhase,
    /// The server keeps no pools.
    #[error("this server keeps no pools")]
    NoPools,
    /// The server keeps as many pools as it may.
    #[error("this server keeps {} already", counted(.limit))]
    Full {
        /// The most that it keeps.
        limit: usize,
    },
    /// The server keeps as many pools for this client as it may.
    #[error(
        "this server keeps {} for this client already; spend some, or give up those that are lost",
        counted(.limit)
    )]
    FullForPeer {
        /// The most that it keeps.
        limit: usize,
    },
    /// Too many sessions of this client's were cut off in their last moment.
    #[error(
        "{} of this client's may wait for its word that it has its part, and no more: spend what waits, or give up \
         what is lost",
        counted(.limit)
    )]
    Waiting {
        /// The most that may wait.
        limit: usize,
    },
    /// The stock cannot be kept in memory and its temporary file.
    #[error(transparent)]
    Stock(#[from] waggle_protocols::StockError),
    /// The operating system refused.
    #[error("pool: {0}")]
    Io(#[from] std::io::Error),
}

/// A fact in which the session and the pool differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The name of the fact.
    pub name: String,
    /// The session's value.
    pub expected: String,
    /// The pool's value.
    pub found: String,
}

/// Most characters of a value that a message shows, because a shape is long.
const SHOWN: usize = 120;

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let cut = |text: &str| text.chars().take(SHOWN).collect::<String>();
        write!(f, "{} is `{}`, expected `{}`", self.name, cut(&self.found), cut(&self.expected))
    }
}

fn listed(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The beginning of the message that tells the peer that this party has lost its part of a pool.
pub(crate) const LOST: &str = "its part is lost: ";

impl PoolError {
    /// This error as that of a file that was claimed and is therefore lost.
    pub(crate) fn lost(self) -> Self {
        PoolError::Lost { source: Box::new(self) }
    }

    /// The text that the peer may read. Of a mismatch it has the names alone, because a server's values tell about
    /// its weights. Of an error of the operating system it has the kind alone.
    pub(crate) fn for_peer(&self) -> String {
        match self {
            PoolError::Mismatch { differences } => {
                let names: Vec<&str> = differences.iter().map(|difference| &*difference.name).collect();
                format!("its pool was made for another session; these differ: {}", names.join(", "))
            }
            PoolError::Lost { source } => format!("{LOST}{}", source.for_peer()),
            PoolError::Checksum { part, .. } => format!("its pool is corrupted in its {part}"),
            PoolError::Stock(_) => "its stock cannot be kept".into(),
            PoolError::Io(error) => format!("its pool: {}", error.kind()),
            other => other.to_string(),
        }
    }
}

/// The part in brackets, to follow the id of a file in a message; empty for a whole pool.
fn in_brackets(part: &Part) -> String {
    if part.is_whole() { String::new() } else { format!(" (part {part})") }
}

/// Most parts that a message names.
const NAMED_PARTS: usize = 16;

fn named(parts: &[Part]) -> String {
    let named: Vec<String> = parts.iter().take(NAMED_PARTS).map(ToString::to_string).collect();
    let more = match parts.len().saturating_sub(NAMED_PARTS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let (plural, are) = if parts.len() == 1 { ("", "is") } else { ("s", "are") };
    format!("part{plural} {}{more} of the pool {are}", named.join(", "))
}

fn counted(limit: &usize) -> String {
    if *limit == 1 { "1 pool".into() } else { format!("{limit} pools") }
}

fn name(role: &Role) -> &'static str {
    match role {
        Role::Client => "client",
        Role::Server => "server",
    }
}
