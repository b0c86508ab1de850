//! All parts of one party's pool, which are spent together.

use std::ffi::OsStr;
use std::fs;
use std::io::ErrorKind::NotFound;
use std::path::{Path, PathBuf};

use waggle_model::Lengths;
use waggle_net::{LinkShape, Role};
use waggle_protocols::{Part, Stock};

use super::claim::claim_all;
use super::file::{Pool, beside, differences};
use super::{Difference, PART, PoolError, PoolId, Purpose, check_bound};
use crate::Error;
use crate::request::Request;

/// The parts of a pool in order: one file for a pool that was made whole, otherwise every part once. Nobody has
/// claimed any of them so far.
#[derive(Debug)]
pub struct PoolSet {
    parts: Vec<Pool>,
}

impl PoolSet {
    /// The set of `parts`, in any order.
    ///
    /// # Errors
    /// [`PoolError::Division`] unless all belong to one division, [`PoolError::PartTwice`] and
    /// [`PoolError::PartsMissing`] unless each part is there once, and [`PoolError::Mismatch`] unless all were made
    /// for the same purpose.
    pub fn new(mut parts: Vec<Pool>) -> Result<Self, PoolError> {
        parts.sort_by_key(|pool| pool.part().number());
        let first = parts.first().ok_or(PoolError::Gone)?;
        let of = first.part();
        if let Some(other) = parts.iter().find(|pool| pool.part().of() != of.of()) {
            return Err(PoolError::Division { parts: [of, other.part()] });
        }
        if let Some(twice) = parts.windows(2).find(|pair| pair[0].part() == pair[1].part()) {
            return Err(PoolError::PartTwice { part: twice[0].part() });
        }
        complete(of, |part| parts.iter().any(|pool| pool.part() == part))?;
        let facts = |pool: &Pool| {
            let mut facts = pool.header.facts.clone();
            facts.remove(PART);
            facts.insert("bound".into(), format!("{}+{}", pool.bound().prompt, pool.bound().tokens));
            facts
        };
        let expected = facts(first);
        let differing: Vec<Difference> = parts
            .iter()
            .map(|pool| differences(&expected, &facts(pool)))
            .find(|list| !list.is_empty())
            .unwrap_or_default();
        if differing.is_empty() { Ok(PoolSet { parts }) } else { Err(PoolError::Mismatch { differences: differing }) }
    }

    /// The pool of `role` at `path`, or, if no file has this name, the parts that lie at its [`part_path`]s. Nothing
    /// is used up.
    ///
    /// # Errors
    /// As [`Pool::open`] and [`PoolSet::new`], with the path. [`PoolError::Gone`] if there are no parts either.
    pub fn open(path: &Path, role: Role) -> Result<Self, Error> {
        let open = |path: &Path| Pool::open(path, role).map_err(|e| e.at(path));
        if path.symlink_metadata().is_ok() {
            return PoolSet::new(vec![open(path)?]).map_err(|e| e.at(path));
        }
        let named = named_parts(path).map_err(|e| e.at(path))?;
        let Some(of) = named.first().copied() else { return Err(PoolError::Gone.at(path)) };
        if let Some(other) = named.iter().find(|part| part.of() != of.of()) {
            return Err(PoolError::Division { parts: [of, *other] }.at(path));
        }
        complete(of, |part| named.contains(&part)).map_err(|e| e.at(path))?;
        let mut parts = Vec::with_capacity(named.len());
        for part in of.all() {
            let at = part_path(path, part);
            let pool = open(&at)?;
            if pool.part() != part {
                return Err(PoolError::OtherPart { expected: part, found: pool.part() }.at(&at));
            }
            parts.push(pool);
        }
        PoolSet::new(parts).map_err(|e| e.at(path))
    }

    /// The ids of the parts, in order.
    pub fn ids(&self) -> Vec<PoolId> {
        self.parts.iter().map(Pool::id).collect()
    }

    /// The longest generation that the pool serves.
    pub fn bound(&self) -> Lengths {
        // There is a first part.
        self.parts.first().map_or(Lengths { prompt: 0, tokens: 0 }, Pool::bound)
    }

    /// The link that the pool was planned for. A session that spends the pool takes this link.
    pub fn link(&self) -> Option<LinkShape> {
        self.parts.first().and_then(Pool::link)
    }

    /// Fractional bits of the matrices of public tokens; none if the pool was made without such tokens.
    pub(crate) fn prefix_scales(&self) -> Vec<u32> {
        self.parts.first().map(|pool| pool.header.prefix_scales()).unwrap_or_default()
    }

    /// The last part, which tells how many parts there are.
    pub fn last(&self) -> Part {
        self.parts.last().map_or(Part::WHOLE, Pool::part)
    }

    /// Refuses a request that is longer than what the pool serves, before anything is planned.
    pub(crate) fn check_bound(&self, request: &Request) -> Result<(), Error> {
        self.each(|pool, _| check_bound(pool.bound(), request))
    }

    /// [`Pool::check`] of every part; `purposes` has the purpose of each part, in order.
    pub(crate) fn check(&self, purposes: &[Purpose], request: &Request) -> Result<(), Error> {
        self.each(|pool, at| pool.check(&purposes[at], request))
    }

    /// Calls `act` with each part and its index, in order.
    fn each(&self, act: impl Fn(&Pool, usize) -> Result<(), PoolError>) -> Result<(), Error> {
        let mut parts = self.parts.iter().enumerate();
        parts.try_for_each(|(at, pool)| act(pool, at).map_err(|e| e.at(pool.path())))
    }

    /// This set, after `to` has moved every part to another path.
    pub(super) fn moved(self, to: impl Fn(Pool) -> Result<Pool, PoolError>) -> Result<Self, Error> {
        let each = self.parts.into_iter().map(|pool| {
            let path = pool.path().to_owned();
            to(pool).map_err(|e| e.at(&path))
        });
        Ok(PoolSet { parts: each.collect::<Result<_, Error>>()? })
    }

    /// Removes the files of all parts: the peer says that it has lost its own.
    pub(crate) fn discard(&self) -> Result<(), Error> {
        self.each(|pool, _| pool.discard())
    }

    /// Takes all words out of all parts, and removes the files. [`PoolSet::check`] must have accepted `purposes`. If
    /// several processes try, only one of them succeeds.
    ///
    /// # Errors
    /// As [`Pool::claim`], for all parts together: if one is gone, none is used.
    pub(crate) fn claim(self, purposes: &[Purpose]) -> Result<Stock, Error> {
        let paths: Vec<PathBuf> = self.parts.iter().map(|pool| pool.path().to_owned()).collect();
        claim_all(self.parts, purposes).map_err(|(at, error)| error.at(&paths[at]))
    }
}

/// Fails unless every part of the division that `of` belongs to is there.
fn complete(of: Part, is_there: impl Fn(Part) -> bool) -> Result<(), PoolError> {
    let missing: Vec<Part> = of.all().filter(|part| !is_there(*part)).collect();
    if missing.is_empty() { Ok(()) } else { Err(PoolError::PartsMissing { parts: missing }) }
}

/// Where `part` of the pool at `path` lies: `path` itself if it is the whole, else for example `path.2-of-4`.
pub fn part_path(path: &Path, part: Part) -> PathBuf {
    if part.is_whole() { path.into() } else { beside(path, &format!(".{}-of-{}", part.number(), part.of())) }
}

/// The parts that lie beside `path`, as their names tell, in order.
fn named_parts(path: &Path) -> Result<Vec<Part>, PoolError> {
    let Some(name) = path.file_name().and_then(OsStr::to_str) else { return Ok(Vec::new()) };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = match fs::read_dir(parent) {
        Err(error) if error.kind() == NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut parts = Vec::new();
    for entry in entries {
        let found = entry?.file_name();
        let ending = found.to_str().and_then(|found| found.strip_prefix(name)?.strip_prefix('.')?.split_once("-of-"));
        let part = ending.and_then(|(number, of)| format!("{number}/{of}").parse::<Part>().ok());
        parts.extend(part.filter(|part| !part.is_whole()));
    }
    parts.sort_unstable();
    Ok(parts)
}
