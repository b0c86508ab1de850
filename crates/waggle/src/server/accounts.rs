//! Accounts of the positions that each key has used at this server, kept across restarts.
//!
//! A model's outputs tell about its weights, and to a client that deviates from the protocol so does every value
//! inside. So a server bounds the positions that go through the model for each key. An account is charged before a
//! session is granted, and at its end credited with the unused positions. A crash in between therefore charges too
//! much, never too little. Clients without keys share the account [`NOBODY`].

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use waggle_files::{MAX_FILE_BYTES, Replacement, at};
use waggle_session::Error as SessionError;

use crate::Error;
use crate::keys::make_home;

/// The account of clients on plaintext links.
const NOBODY: &str = "plaintext";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Account {
    /// Positions that the key has read or generated. Earlier releases counted the positions whose logits it learned.
    #[serde(alias = "revealed")]
    positions: u64,
}

type Accounts = BTreeMap<String, Account>;

pub(super) struct Book {
    path: PathBuf,
    /// Most positions that a key may read or generate in all.
    limit: u64,
    /// Lets one thread of this process at a time change the accounts. A lock on a file beside the accounts does the
    /// same for several processes.
    turn: Mutex<()>,
}

impl Book {
    /// The accounts in the file `path`, which is made at the first charge.
    pub(super) fn open(path: PathBuf, limit: u64) -> Result<Self, Error> {
        read(&path).map_err(at(&path))?;
        Ok(Book { path, limit, turn: Mutex::default() })
    }

    /// Charges `positions` to `key`, or refuses if the account would exceed the limit.
    pub(super) fn charge(&self, key: Option<&str>, positions: u64) -> Result<(), SessionError> {
        let limit = self.limit;
        let charged = self.change(key, |account| {
            let after = account.positions.saturating_add(positions);
            let fits = after <= limit;
            if fits {
                account.positions = after;
            }
            (fits, account.positions)
        });
        match charged.map_err(|source| waggle_model::Error::File { path: self.path.clone(), source })? {
            (true, _) => Ok(()),
            (false, used) => Err(SessionError::Quota { what: "positions", used, wanted: positions, limit }),
        }
    }

    /// Credits `positions` that were charged but not used.
    pub(super) fn credit(&self, key: Option<&str>, positions: u64) -> Result<(), Error> {
        if positions == 0 {
            return Ok(());
        }
        let change = self.change(key, |account| account.positions = account.positions.saturating_sub(positions));
        Ok(change.map_err(at(&self.path))?)
    }

    /// Reads the file, changes one account and writes the file.
    fn change<T>(&self, key: Option<&str>, change: impl FnOnce(&mut Account) -> T) -> io::Result<T> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        // Without encryption there is no identity, whose reading would have made the folder.
        make_home(&self.path).map_err(io::Error::other)?;
        let lock = self.path.with_added_extension("lock");
        let lock = waggle_files::private().create(true).truncate(false).open(lock)?;
        lock.lock()?;
        let mut accounts = read(&self.path)?;
        let account = accounts.entry(key.unwrap_or(NOBODY).to_owned()).or_default();
        let before = *account;
        let result = change(account);
        if *account != before {
            write(&self.path, &accounts)?;
        }
        Ok(result)
    }
}

/// The accounts in `path`; empty if there is no such file. A damaged file is an error, because it is not safe to
/// forget accounts.
fn read(path: &Path) -> io::Result<Accounts> {
    match waggle_files::read(path, MAX_FILE_BYTES) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Accounts::new()),
        bytes => Ok(serde_json::from_slice(&bytes?)?),
    }
}

/// Replaces the file in one step.
fn write(path: &Path, accounts: &Accounts) -> io::Result<()> {
    let mut file = Replacement::private(path)?;
    serde_json::to_writer_pretty(&mut file, accounts)?;
    file.commit()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_learns_no_more_than_its_limit_across_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("accounts.json");
        let book = || Book::open(path.clone(), 10).unwrap();
        book().charge(Some("a"), 7).unwrap();
        let refused = book().charge(Some("a"), 4).unwrap_err();
        assert!(matches!(refused, SessionError::Quota { used: 7, wanted: 4, limit: 10, .. }), "{refused}");
        book().charge(Some("b"), 10).unwrap();
        book().credit(Some("a"), 2).unwrap();
        book().charge(Some("a"), 5).unwrap();
        assert!(book().charge(Some("a"), 1).is_err());
        // Clients without a key share one account.
        book().charge(None, 10).unwrap();
        assert!(book().charge(None, 1).is_err());
    }

    #[test]
    fn the_folder_of_a_first_account_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("home").join("accounts.json");
        Book::open(path.clone(), u64::MAX).unwrap().charge(None, 1).unwrap();
        assert_eq!(read(&path).unwrap()[NOBODY].positions, 1);
    }

    #[test]
    fn a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("accounts.json");
        std::fs::write(&path, b"{").unwrap();
        assert!(Book::open(path, u64::MAX).is_err());
    }

    #[test]
    fn threads_do_not_lose_each_others_charges() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("accounts.json");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let book = Book::open(path.clone(), u64::MAX).unwrap();
                    (0..5).for_each(|_| book.charge(Some("a"), 1).unwrap());
                });
            }
        });
        assert_eq!(read(&path).unwrap()["a"].positions, 20);
    }
}
