//! Who this party is and whom it trusts: identities, servers met before, clients let in.
//!
//! A user's keys lie in `$WAGGLE_HOME`, else `$XDG_CONFIG_HOME/waggle`, else `$HOME/.config/waggle`. A party trusts
//! its own key, so a server and a client of one user need no set-up.

use std::env;
use std::fs::{self, DirBuilder};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::Args;
use files::{Forbidden, others_may};
use net::tcp::TcpLink;
use net::{AllowList, Identity, KeyError, KnownServers, Link, NetError, PublicKey, tls};
use session::Fingerprint;

use super::Error;

/// Which key pair this party has.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct IdentityArgs {
    /// File with this party's key pair; made if it is not there [default: `identity` in $WAGGLE_HOME,
    /// $XDG_CONFIG_HOME/waggle or $HOME/.config/waggle].
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
}

impl IdentityArgs {
    /// The file, given or default.
    pub(super) fn path(&self) -> Result<PathBuf, Error> {
        self.identity.clone().map_or_else(|| file("identity"), Ok)
    }

    /// Reads the key pair, or makes one where there is none; also whether it was made.
    pub(super) fn open(&self) -> Result<(Identity, bool), Error> {
        let path = self.path()?;
        match Identity::read(&path) {
            Err(KeyError::File { source, .. }) if source.kind() == std::io::ErrorKind::NotFound => {}
            read => return Ok((read?, false)),
        }
        if self.identity.is_none() {
            make_home(&path)?;
        }
        match Identity::create(&path) {
            // Another process was faster.
            Err(KeyError::Exists { .. }) => Ok((Identity::read(&path)?, false)),
            made => Ok((made?, true)),
        }
    }
}

/// The file `name` among the user's keys, in a directory that others may not write.
pub(super) fn file(name: &str) -> Result<PathBuf, Error> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let home = set("WAGGLE_HOME")
        .or_else(|| set("XDG_CONFIG_HOME").map(|dir| dir.join("waggle")))
        .or_else(|| set("HOME").map(|dir| dir.join(".config").join("waggle")));
    let home = home.ok_or(Error::NoHome)?;
    if fs::metadata(&home).is_ok_and(|home| others_may(&home, Forbidden::Writing)) {
        return Err(KeyError::Writable { path: home }.into());
    }
    Ok(home.join(name))
}

/// Makes the directory of `path`, closed to others.
pub(super) fn make_home(path: &Path) -> Result<(), Error> {
    let Some(dir) = path.parent() else { return Ok(()) };
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(dir).map_err(|source| Error::File { path: dir.into(), source })
}

/// What a client knows of the server at one address.
pub(super) struct ServerTrust {
    address: String,
    known: KnownServers,
    /// What the user gave for this call.
    given: Option<PublicKey>,
    own: PublicKey,
}

impl ServerTrust {
    /// What is known of the server at `address`; `given` is the key on the command line, `own` that of this party.
    pub(super) fn of(address: &str, given: Option<PublicKey>, own: PublicKey) -> Result<Self, Error> {
        let known = KnownServers::read(file("known_servers")?)?;
        Ok(ServerTrust { address: address.into(), known, given, own })
    }

    /// The keys that the server may prove: the given one; otherwise the one known and this party's own.
    pub(super) fn keys(&self) -> Vec<PublicKey> {
        match self.given {
            Some(key) => vec![key],
            None => self.known.lookup(&self.address).map(|known| known.key).into_iter().chain([self.own]).collect(),
        }
    }

    /// Why the server's `key` is refused, with the way to trust it.
    pub(super) fn refusal(&self, key: PublicKey) -> Error {
        let address = self.address.clone();
        match (self.given, self.known.lookup(&self.address)) {
            (Some(given), _) => Error::OtherServer { address, given, key },
            (None, Some(known)) => {
                let file = self.known.path().into();
                Error::ChangedServer { address, known: known.key, file, key }
            }
            (None, None) => Error::UnknownServer { address, key },
        }
    }

    /// Remembers a key that the user gave, now that the server has proved it.
    pub(super) fn proved(&mut self) -> Result<(), Error> {
        let Some(key) = self.given else { return Ok(()) };
        make_home(self.known.path())?;
        Ok(self.known.remember(&self.address, key)?)
    }
}

impl ServerTrust {
    /// Compares the public model that the server with `key` has with the one that it had, and remembers it at the
    /// first meeting. With `accepted` the user has named this model, so a changed one is remembered. Returns whether
    /// its chat template is news.
    pub(super) fn met(&mut self, key: PublicKey, met: &Fingerprint, accepted: bool) -> Result<bool, Error> {
        // Who serves oneself may change the model.
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

/// Who a server is, and whom it lets in.
#[derive(Args, Clone, Debug, Default)]
pub(super) struct HostArgs {
    #[command(flatten)]
    identity: IdentityArgs,
    /// Let in the clients whose keys stand in this file, one on each line. The file is read anew for every client
    /// [default: `allowed_clients` beside the default identity]. This server's own key is let in as well.
    #[arg(long, value_name = "FILE", conflicts_with = "allow_any")]
    allow: Option<PathBuf>,
    /// Let in every client that proves any key.
    #[arg(long)]
    allow_any: bool,
    /// Encrypt nothing and let in everybody, for measurements; clients must be told the same.
    #[arg(long, conflicts_with_all = ["identity", "allow", "allow_any"])]
    insecure_plaintext: bool,
}

/// A server's side of every connection.
pub(super) struct Host {
    /// `None` without encryption.
    identity: Option<Identity>,
    allow: Allow,
}

/// Whom a server lets in, beside itself.
enum Allow {
    /// Everybody.
    Any,
    /// One client.
    One(PublicKey),
    /// Those in this file.
    List(PathBuf),
}

/// A connection whose client has proved its key.
pub(super) struct Accepted {
    /// The link.
    pub(super) link: Box<dyn Link>,
    /// The client's key; `None` without encryption.
    pub(super) key: Option<PublicKey>,
}

impl HostArgs {
    /// Reads or makes the identity.
    pub(super) fn open(&self) -> Result<Host, Error> {
        if self.insecure_plaintext {
            return Ok(Host { identity: None, allow: Allow::Any });
        }
        let allow = match (&self.allow, self.allow_any) {
            (_, true) => Allow::Any,
            (Some(path), false) => Allow::List(path.clone()),
            (None, false) => Allow::List(file("allowed_clients")?),
        };
        let host = Host { identity: Some(self.identity.open()?.0), allow };
        // A list that cannot be read is said now, and not to the first client.
        host.admits(host.key())?;
        Ok(host)
    }

    /// Whether nothing is encrypted.
    pub(super) fn is_plaintext(&self) -> bool {
        self.insecure_plaintext
    }

    /// What protection is off, for the log.
    pub(super) fn warning(&self) -> Option<&'static str> {
        match (self.insecure_plaintext, self.allow_any) {
            (true, _) => Some("--insecure-plaintext: nothing is encrypted, and everybody is let in"),
            (false, true) => Some("--allow-any: every client that proves any key is let in"),
            (false, false) => None,
        }
    }
}

impl Host {
    /// A server with a new key, kept in memory alone, that lets in the one `client`: for `demo`.
    pub(super) fn for_one(client: PublicKey) -> Result<Self, Error> {
        Ok(Host { identity: Some(Identity::generate()?), allow: Allow::One(client) })
    }

    /// This server's key; `None` without encryption.
    pub(super) fn key(&self) -> Option<PublicKey> {
        self.identity.as_ref().map(Identity::public)
    }

    /// Encrypts an accepted connection, within `handshake_timeout` in all. Blocks: call it in a thread of its own.
    pub(super) fn accept(
        &self,
        stream: TcpStream,
        handshake_timeout: Duration,
        read_timeout: Duration,
    ) -> Result<Accepted, NetError> {
        let Some(identity) = &self.identity else {
            let link = TcpLink::new(stream, read_timeout)
                .map_err(|source| NetError::from_io("accept", source, read_timeout))?;
            return Ok(Accepted { link: Box::new(link), key: None });
        };
        let link = tls::accept(stream, identity, handshake_timeout, read_timeout)?;
        Ok(Accepted { key: Some(link.peer_key()), link: Box::new(link) })
    }

    /// Whether a client with `key` may come in: the list is read anew.
    pub(super) fn admits(&self, key: Option<PublicKey>) -> Result<bool, KeyError> {
        let (Some(key), Some(own)) = (key, self.key()) else { return Ok(true) };
        let listed = match &self.allow {
            Allow::Any => true,
            Allow::One(client) => *client == key,
            Allow::List(path) => AllowList::read(path)?.contains(&key),
        };
        Ok(listed || key == own)
    }

    /// What a client that is not let in hears. It names no files of this machine.
    pub(super) fn refusal(key: PublicKey) -> String {
        format!("it does not know your key; to let you in, its owner adds the line: {key}")
    }

    /// What the log says of it.
    pub(super) fn advice(&self, key: PublicKey) -> String {
        match &self.allow {
            Allow::List(path) => {
                format!("client with unknown key refused; to let it in, add the line {key} to {}", path.display())
            }
            Allow::Any | Allow::One(_) => format!("client with the unknown key {key} refused"),
        }
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
        assert!(unknown.contains(&format!("--server-key {a}")), "{unknown}");
        let changed = trust(&[("host:7411", a)], None, own).refusal(b).to_string();
        assert!(changed.contains("HAS CHANGED") && changed.contains(&a.to_string()), "{changed}");
        assert!(changed.contains(&format!("--server-key {b}")), "{changed}");
        let other = trust(&[], Some(a), own).refusal(b).to_string();
        assert!(other.contains(&a.to_string()) && other.contains(&b.to_string()), "{other}");
        for line in [unknown, changed, other] {
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn whom_a_server_lets_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("allowed_clients");
        let args = |allow_any: bool| HostArgs {
            identity: IdentityArgs { identity: Some(dir.path().join("identity")) },
            allow: (!allow_any).then(|| path.clone()),
            allow_any,
            insecure_plaintext: false,
        };
        let stranger = Some(PublicKey::from_bytes([7; 32]));
        let host = args(false).open().unwrap();
        assert!(host.admits(host.key()).unwrap(), "its own key");
        assert!(!host.admits(stranger).unwrap());
        // The list is read anew for every client.
        std::fs::write(&path, format!("# friends\n{} Ada's laptop\n", PublicKey::from_bytes([7; 32]))).unwrap();
        assert!(host.admits(stranger).unwrap());
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(host.admits(stranger).is_err());
        assert!(args(true).open().unwrap().admits(stranger).unwrap());
        let plain = HostArgs { insecure_plaintext: true, ..HostArgs::default() }.open().unwrap();
        assert!(plain.key().is_none() && plain.admits(None).unwrap());
    }

    #[test]
    fn an_identity_is_made_once() {
        let dir = tempfile::tempdir().unwrap();
        let args = IdentityArgs { identity: Some(dir.path().join("identity")) };
        let (made, new) = args.open().unwrap();
        let (read, old) = args.open().unwrap();
        assert!(new && !old);
        assert_eq!(made.public(), read.public());
    }
}
