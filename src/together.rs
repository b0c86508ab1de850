//! Cleans up when a signal ends this process: kills its children and removes temporary files and folders.

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

/// The children to kill and the folders to remove.
static HELD: Mutex<Held> = Mutex::new(Held { children: Vec::new(), folders: Vec::new() });

struct Held {
    children: Vec<u32>,
    folders: Vec<PathBuf>,
}

fn held() -> MutexGuard<'static, Held> {
    HELD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// After this call, SIGINT and SIGTERM leave no child, no temporary folder and no unfinished file behind.
pub(super) fn clean_up_on_signals() -> Result<(), Error> {
    let end = |signal: &'static str| {
        // The lock is held to the end, so that no other thread starts a child or makes a folder.
        let held = held();
        held.children.iter().for_each(|child| kill(*child));
        for folder in &held.folders {
            // A dying child may make another file meanwhile, so removing is repeated.
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

/// Kills a child whose exit status has not been read, so that its id is still its own.
fn kill(child: u32) {
    #[cfg(unix)]
    if let Some(child) = i32::try_from(child).ok().and_then(rustix::process::Pid::from_raw) {
        // The process may have ended already.
        let _ = rustix::process::kill_process(child, rustix::process::Signal::KILL);
    }
    #[cfg(not(unix))]
    let _ = child;
}

/// Runs a command to its end, without standard input. Returns its output, unless the output is redirected.
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

/// [`output`] of a command that must succeed: its standard output as a text, or the reason for which it failed.
pub(super) fn said(command: &mut Command) -> Result<String, String> {
    let output = output(command).map_err(|e| e.to_string())?;
    if output.status.success() {
        return String::from_utf8(output.stdout).map_err(|e| e.to_string());
    }
    let errors = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {}", output.status, errors.lines().last().unwrap_or_default()))
}

/// A temporary folder.
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
        // If it cannot be removed, the folder is left for its owner.
        let _ = fs::remove_dir_all(self.0.path());
        held.folders.retain(|folder| folder != self.0.path());
    }
}
