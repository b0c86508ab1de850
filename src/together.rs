//! What ends with this process when a signal ends it: its children, and what stands under temporary names.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io, thread};

use tempfile::TempDir;
use waggle::program::on_signal;
use waggle_files::Replacement;

use super::Error;
use crate::child::name_parent;

/// What is to be ended and removed.
static HELD: Mutex<Held> = Mutex::new(Held { children: Vec::new(), folders: Vec::new() });

struct Held {
    children: Vec<u32>,
    folders: Vec<PathBuf>,
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From here on SIGINT and SIGTERM leave no child, no temporary folder and no unfinished file.
pub(super) fn clean_up_on_signals() -> Result<(), Error> {
    let end = |signal: &'static str| {
        // Nobody else gets further than to these locks.
        let held = held();
        held.children.iter().for_each(|child| kill(*child));
        for folder in &held.folders {
            // A child that dies may make another file meanwhile.
            for _ in 0..100 {
                if fs::remove_dir_all(folder).is_ok() || !folder.exists() {
                    break;
                }
                thread::sleep(Duration::from_millis(5));
            }
        }
        Replacement::abandon_all();
        std::process::exit(if signal == "SIGINT" { 130 } else { 143 });
    };
    Ok(on_signal(end).map_err(|source| waggle::Error::System { what: "wait for signals", source })?)
}

/// Ends a process that has not been waited for.
fn kill(child: u32) {
    #[cfg(unix)]
    if let Some(child) = i32::try_from(child).ok().and_then(rustix::process::Pid::from_raw) {
        // The process may have ended.
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = child;
}

/// Runs a command to its end, with nothing to read. What it writes is returned, unless it has another place.
pub(super) fn output(command: &mut Command) -> io::Result<Output> {
    name_parent(command);
    let child = {
        let mut held = held();
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        held.children.push(child.id());
        child
    };
    let id = child.id();
    let output = child.wait_with_output();
    held().children.retain(|child| *child != id);
    output
}

/// [`output`] of a command that must succeed: what it says, or why it says nothing.
pub(super) fn said(command: &mut Command) -> Result<String, String> {
    let output = output(command).map_err(|e| e.to_string())?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|e| e.to_string());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, errors.lines().last().unwrap_or_default()))
}

/// A folder in the system's place for temporary ones.
pub(super) struct Folder(TempDir);

impl Folder {
    pub(super) fn new() -> io::Result<Self> {
        let mut held = held();
        let folder = tempfile::tempdir()?;
        held.folders.push(folder.path().into());
        Ok(Folder(folder))
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let mut held = held();
        // What is left of it by an error stays for its owner to see.
        let _ = fs::remove_dir_all(self.0.path());
        held.folders.retain(|folder| folder != self.0.path());
    }
}
