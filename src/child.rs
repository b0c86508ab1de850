//! This program as its own child: how it is started, and the lines that it writes for its parent.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use waggle::program::words;
use waggle_net::{Entry, PublicKey};
use waggle_report::Cost;

use super::{Error, out};

/// This program, to be given a command. It [ends with](end_with_parent) this process.
pub(super) fn command() -> Result<std::process::Command, Error> {
    let mut words = words().map_err(waggle::Error::from)?.into_iter();
    let mut command = std::process::Command::new(words.next().unwrap_or_default());
    command.args(words);
    name_parent(&mut command);
    Ok(command)
}

/// The variable in which a process names itself to its children.
pub(super) const PARENT: &str = "WAGGLE_PARENT";

/// Tells a program that may be this one that it is to end with this process.
pub(super) fn name_parent(command: &mut std::process::Command) {
    command.env(PARENT, std::process::id().to_string());
}

/// Lets the system end this process when the one that named itself ends, however that ends (Linux).
pub(super) fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
        let named = std::env::var(PARENT).ok().and_then(|id| Pid::from_raw(id.parse().ok()?));
        // A program between the two ends neither.
        if named.is_none() || getppid() != named {
            return;
        }
        let set = set_parent_process_death_signal(Some(Signal::TERM));
        // The parent may have ended before that.
        if set.is_ok() && getppid() != named {
            std::process::exit(1);
        }
    }
}

/// A line of `--machine`: one when clients may come, and one at the end.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Clients may come, to a server with this key.
    Listening { address: SocketAddr, key: Option<PublicKey> },
    /// The session is over.
    Ended(Used),
}

/// The cost of a session to this process.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Used {
    pub(super) peak_memory_bytes: Option<u64>,
    /// All accounts, for their CPU times.
    pub(super) entries: Vec<Entry>,
    /// Accounts of what was made ahead, by kind.
    pub(super) kinds: Vec<Entry>,
    /// Cost of each token after the first.
    pub(super) per_token: Vec<Cost>,
    /// The server's link to the helper.
    pub(super) helper: Option<Vec<Entry>>,
}

impl Line {
    pub(super) fn print(&self) -> Result<(), Error> {
        out::line(serde_json::to_string(self).map_err(Error::child)?)
    }
}
