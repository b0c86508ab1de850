//! Identities: the user's own key, the keys of servers met before, and the keys of clients that are let in.
//!
//! A user's keys lie in `$WAGGLE_HOME`, else `$XDG_CONFIG_HOME/waggle`, else `$HOME/.config/waggle`. A party trusts
//! its own key, so a server and a client of one user need no set-up.

use std::env;
use std::fs::{self, DirBuilder};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use waggle_files::{Forbidden, at, others_may};
use waggle_net::{Identity, KeyError, KnownServers, PublicKey};
use waggle_session::Fingerprint;

use crate::Error;
use crate::error::TrustError;

/// The key pair by which a party proves who it is. A server and a client of one user trust each other.
#[derive(Clone, Debug, Default)]
pub enum Proof {
    /// The key pair of the user, in `$WAGGLE_HOME`, `$XDG_CONFIG_HOME/waggle` or `$HOME/.config/waggle`.
    #[default]
    User,
    /// The key pair in this file, which is made if it does not exist.
    File(PathBuf),
    /// This key pair. A client then trusts only the server's key that it is given, and no file is read or written.
    Own(Arc<Identity>),
    /// No key pair: nothing is encrypted. This is for measurements, and the other party must do the same. A text is
    /// unverified until it has ended.
    Plaintext,
}

impl Proof {
    /// The key pair; `None` without encryption.
    pub(crate) fn identity(&self) -> Result<Option<Arc<Identity>>, Error> {
        Ok(match self {
            Proof::User => Some(Arc::new(identity(None)?.identity)),
            Proof::File(path) => Some(Arc::new(identity(Some(path))?.identity)),
            Proof::Own(identity) => Some(identity.clone()),
            Proof::Plaintext => None,
        })
    }
}

/// A key pair in a file.
pub struct KeyFile {
    /// The key pair.
    pub identity: Identity,
    /// The file.
    pub path: PathBuf,
    /// Whether the file was made just now.
    pub made: bool,
}

/// Reads the key pair in `path`, by default the user's. Makes one if there is none.
///
/// # Errors
/// [`TrustError::NoHome`] if the environment does not say where the user's files are. [`Error::Key`] if the file
/// cannot be read or made.
pub fn identity(path: Option<&Path>) -> Result<KeyFile, Error> {
    let own = path.map_or_else(|| file("identity"), |path| Ok(path.to_owned()))?;
    let found = |identity, made| Ok(KeyFile { identity, path: own.clone(), made });
    match Identity::read(&own) {
        Err(KeyError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
        read => return found(read?, false),
    }
    if path.is_none() {
        make_home(&own)?;
    }
    match Identity::create(&own) {
        // Another process made the file first.
        Err(KeyError::Exists { .. }) => found(Identity::read(&own)?, false),
        made => found(made?, true),
    }
}

/// The path of the file `name` among the user's keys, in a directory that others may not write.
pub fn file(name: &str) -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("WAGGLE_HOME")
        .or_else(|| set("XDG_CONFIG_HOME").map(|dir| dir.join("waggle")))
        .or_else(|| set("HOME").map(|dir| dir.join(".config").join("waggle")));
    let home = home.ok_or(TrustError::NoHome)?;
    if fs::metadata(&home).is_ok_and(|home| others_may(&home, Forbidden::Writing)) {
        return Err(KeyError::Writable { path: home }.into());
    }
    Ok(home.join(name))
}

/// Makes the directory of `path`, closed to others.
pub fn make_home(path: &Path) -> Result<(), Error> {
    let Some(dir) = path.parent() else { return Ok(()) };
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    Ok(builder.create(dir).map_err(at(dir))?)
}

/// The client's knowledge of the server at one address.
pub(crate) struct ServerTrust {
    address: String,
    known: KnownServers,
    /// The key that the caller gave for this connection.
    given: Option<PublicKey>,
    own: PublicKey,
}

impl ServerTrust {
    /// Reads what is known of the server at `address`. `given` is the key on the command line, `own` this party's
    /// key.
    pub(crate) fn of(address: &str, given: Option<PublicKey>, own: PublicKey) -> Result<Self, Error> {
        let known = KnownServers::read(file("known_servers")?)?;
        Ok(ServerTrust { address: address.into(), known, given, own })
    }

    /// The keys that the server may prove: the given key, or without one the known key and this party's own.
    pub(crate) fn keys(&self) -> Vec<PublicKey> {
        match self.given {
            Some(key) => vec![key],
            None => self.known.lookup(&self.address).map(|known| known.key).into_iter().chain([self.own]).collect(),
        }
    }

    /// The error for a server whose `key` is refused, with advice how to trust it.
    pub(crate) fn refusal(&self, key: PublicKey) -> TrustError {
        let address = self.address.clone();
        match (self.given, self.known.lookup(&self.address)) {
            (Some(given), _) => TrustError::Other { address, given, key },
            (None, Some(known)) => {
                let file = self.known.path().into();
                TrustError::Changed { address, known: known.key, file, key }
            }
            (None, None) => TrustError::Unknown { address, key },
        }
    }

    /// Remembers a key that the user gave, now that the server has proved it.
    pub(crate) fn proved(&mut self) -> Result<(), Error> {
        let Some(key) = self.given else { return Ok(()) };
        make_home(self.known.path())?;
        Ok(self.known.remember(&self.address, key)?)
    }

    /// Compares `met`, the public model of the server with `key`, with the model that is remembered for this server.
    /// At the first meeting, `met` is remembered. A changed model is an error, unless `accepted` says that the user
    /// has named this model; then it is remembered instead. Returns whether the server's chat template is new. This
    /// party's own server may change its model freely.
    pub(crate) fn met(&mut self, key: PublicKey, met: &Fingerprint, accepted: bool) -> Result<bool, Error> {
        // A user's own server may change its model freely.
        if key == self.own {
            return Ok(false);
        }
        let known = self.known.lookup(&self.address).filter(|known| known.key == key);
        let known = known.and_then(|known| known.pin.as_deref()).map(str::parse::<Fingerprint>).transpose()?;
        if let Some(pin) = met.meet(&self.address, known.as_ref(), self.known.path(), accepted)? {
            self.known.pin(&self.address, key, &pin.to_string())?;
        }
        Ok(met.has_new_template(known.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trust(known: &[(&str, PublicKey)], given: Option<PublicKey>, own: PublicKey) -> ServerTrust {
        let dir = tempfile::tempdir().unwrap();
        let mut servers = KnownServers::read(dir.path().join("known_servers")).unwrap();
        for (address, key) in known {
            servers.remember(address, *key).unwrap();
        }
        ServerTrust { address: "host:7411".into(), known: servers, given, own }
    }

    #[test]
    fn whom_a_client_trusts() {
        let [own, a, b] = [1, 2, 3].map(|byte| PublicKey::from_bytes([byte; 32]));
        assert_eq!(trust(&[], None, own).keys(), [own]);
        assert_eq!(trust(&[("host:7411", a)], None, own).keys(), [a, own]);
        assert_eq!(trust(&[("other:7411", a)], None, own).keys(), [own]);
        assert_eq!(trust(&[("host:7411", a)], Some(b), own).keys(), [b]);

        let unknown = trust(&[], None, own).refusal(a).to_string();
        assert!(unknown.contains(&a.to_string()), "{unknown}");
        let changed = trust(&[("host:7411", a)], None, own).refusal(b).to_string();
        assert!(changed.contains("HAS CHANGED") && changed.contains(&a.to_string()), "{changed}");
        assert!(changed.contains(&b.to_string()), "{changed}");
        let other = trust(&[], Some(a), own).refusal(b).to_string();
        assert!(other.contains(&a.to_string()) && other.contains(&b.to_string()), "{other}");
        for line in [unknown, changed, other] {
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn an_identity_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("identity");
        let [made, read] = [0, 1].map(|_| identity(Some(&path)).unwrap());
        assert!(made.made && !read.made);
        assert_eq!(made.identity.public(), read.identity.public());
    }
}
