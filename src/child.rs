//! This program as its own child.

use waggle::program::words;

use super::Error;

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
        // It may have ended before that.
        if set.is_ok() && getppid() != named {
            std::process::exit(1);
        }
    }
}
