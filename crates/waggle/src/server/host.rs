//! The identity of a server, and the clients that it lets in.

use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use waggle_net::tcp::TcpLink;
use waggle_net::{AllowList, Identity, KeyError, Link, NetError, PublicKey, tls};

use crate::Error;
use crate::keys::{Proof, file};

/// Clients that a server lets in, beside those that hold the server's own key.
#[derive(Clone, Debug, Default)]
pub enum Allow {
    /// The clients in the user's file `allowed_clients`.
    #[default]
    Known,
    /// The clients whose keys stand in this file, one on each line. The file is read anew for every client.
    List(PathBuf),
    /// One client.
    One(PublicKey),
    /// Every client that proves any key.
    Any,
}

/// The identity and the list of clients with which a server accepts connections.
pub(super) struct Host {
    /// `None` without encryption.
    identity: Option<Arc<Identity>>,
    allow: Allow,
}

/// A connection whose client has proved its key.
pub(super) struct Accepted {
    pub(super) link: Box<dyn Link>,
    /// The client's key; `None` without encryption.
    pub(super) key: Option<PublicKey>,
}

impl Host {
    pub(super) fn open(proof: &Proof, allow: Allow) -> Result<Self, Error> {
        let allow = match allow {
            Allow::Known if !matches!(proof, Proof::Plaintext) => Allow::List(file("allowed_clients")?),
            allow => allow,
        };
        let host = Host { identity: proof.identity()?, allow };
        // A list that cannot be read is an error now, and not only for the first client.
        host.admits(host.key())?;
        Ok(host)
    }

    /// This server's key; `None` without encryption.
    pub(super) fn key(&self) -> Option<PublicKey> {
        self.identity.as_ref().map(|identity| identity.public())
    }

    /// Encrypts an accepted connection within `handshake_timeout`. The call blocks, so it needs a thread of its own.
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

    /// Whether a client with `key` may come in. The list is read anew for each call.
    pub(super) fn admits(&self, key: Option<PublicKey>) -> Result<bool, KeyError> {
        let (Some(key), Some(own)) = (key, self.key()) else { return Ok(true) };
        let listed = match &self.allow {
            Allow::Any => true,
            Allow::One(client) => *client == key,
            Allow::List(path) => AllowList::read(path)?.contains(&key),
            Allow::Known => false,
        };
        Ok(listed || key == own)
    }

    /// The message to a client that is not let in. It names no files of this machine.
    pub(super) fn refusal(key: PublicKey) -> String {
        format!("it does not know your key; to let you in, its owner adds the line: {key}")
    }

    /// The log's message on a client that is not let in.
    pub(super) fn advice(&self, key: PublicKey) -> String {
        match &self.allow {
            Allow::List(path) => {
                format!("client with unknown key refused; to let it in, add the line {key} to {}", path.display())
            }
            _ => format!("client with the unknown key {key} refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_a_server_lets_in() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("allowed_clients");
        let open = |allow: Allow| Host::open(&Proof::File(dir.path().join("identity")), allow).unwrap();
        let stranger = Some(PublicKey::from_bytes([7; 32]));
        let host = open(Allow::List(path.clone()));
        assert!(host.admits(host.key()).unwrap(), "its own key");
        assert!(!host.admits(stranger).unwrap());
        // The list is read anew for every client.
        std::fs::write(&path, format!("# friends\n{} Ada's laptop\n", PublicKey::from_bytes([7; 32]))).unwrap();
        assert!(host.admits(stranger).unwrap());
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(host.admits(stranger).is_err());
        assert!(open(Allow::Any).admits(stranger).unwrap());
        let plain = Host::open(&Proof::Plaintext, Allow::Known).unwrap();
        assert!(plain.key().is_none() && plain.admits(None).unwrap());
    }
}
