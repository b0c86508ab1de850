//! Runs this program as its own child process, and defines the lines that the child writes for its parent.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use waggle::program::words;
use waggle_net::{Entry, PublicKey};
use waggle_report::Cost;

use super::{Error, out};

/// A command line of this program without arguments. The child [ends with](end_with_parent) this process.
pub(super) fn command() -> Result<std::process::Command, Error> {
    let mut words = words().map_err(waggle::Error::from)?.into_iter();
    let mut command = std::process::Command::new(words.next().unwrap_or_default());
    command.args(words);
    name_parent(&mut command);
    Ok(command)
}

/// Environment variable with the id of the parent process.
pub(super) const PARENT: &str = "WAGGLE_PARENT";

/// Makes the child that `command` starts end with this process, if the child is this program.
pub(super) fn name_parent(command: &mut std::process::Command) {
    command.env(PARENT, std::process::id().to_string());
}

/// Lets the system end this process when its named parent ends, for whatever reason (Linux).
pub(super) fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
        let named = std::env::var(PARENT).ok().and_then(|id| Pid::from_raw(id.parse().ok()?));
        // If another program is between the two processes, its end must not end this one.
        if named.is_none() || getppid() != named {
            return;
        }
        let set = set_parent_process_death_signal(Some(Signal::TERM));
        // The parent may have ended before the setting took effect.
        if set.is_ok() && getppid() != named {
            std::process::exit(1);
        }
    }
}

/// A line of output with `--machine`. One is written when clients may connect, and one at the end.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// Clients may connect to `address`, where the server has this key.
    Listening { address: SocketAddr, key: Option<PublicKey> },
    /// The session is over.
    Ended(Used),
}

/// The resources that a session used in this process.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Used {
    pub(super) peak_memory_bytes: Option<u64>,
    /// The costs of all operations, for their CPU times.
    pub(super) entries: Vec<Entry>,
    /// The costs of preparation, by kind of correlation.
    pub(super) kinds: Vec<Entry>,
    /// Cost of each token after the first.
    pub(super) per_token: Vec<Cost>,
    /// The costs of the server's link to the helper, if there is a helper.
    pub(super) helper: Option<Vec<Entry>>,
}

impl Line {
    pub(super) fn print(&self) -> Result<(), Error> {
        out::line(serde_json::to_string(self).map_err(Error::child)?)
    }
}
