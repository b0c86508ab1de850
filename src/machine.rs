//! Names of this machine and this program, and the measurements of this machine.

use std::path::{Path, PathBuf};

use clap::Args;
use waggle::Machines;
use waggle::program::{self, ASSUMED_CORES};
use waggle_bits::cpu::Cpu;
use waggle_files::{MAX_FILE_BYTES, load};
use waggle_planner::{Profile, ProfileError};
use waggle_protocols::Cores;

use super::Error;
use super::out::note;

/// The version and, if git knew it, the revision of this program, and the processor.
pub(super) use waggle::program::{PROGRAM, built, provenance};
pub(super) use waggle_report::provenance::processor;

/// Name of the file of measurements, in the folder of the user's keys.
const FILE: &str = "calibration.json";

/// A digest of `bytes`, long enough to be used as a name.
pub(super) fn digest(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..16].to_owned()
}

/// The family of kernels in use.
pub(super) fn kernels() -> String {
    Cpu::get().to_string()
}

/// The default path of the measurements.
pub(super) fn default_file() -> Result<PathBuf, Error> {
    Ok(program::file(FILE)?)
}

/// Measurements of the parties' machines.
#[derive(Args, Clone, Debug)]
pub(super) struct CalibrationArgs {
    /// Measurements of `waggle calibrate`, for seconds and memory; a file of another revision is refused [default:
    /// `calibration.json` in $WAGGLE_HOME, $XDG_CONFIG_HOME/waggle or $HOME/.config/waggle, if it is there and
    /// of this program and processor].
    #[arg(long, value_name = "FILE")]
    calibration: Option<PathBuf>,
    /// Measurements of the server's machine [default: the same].
    #[arg(long, value_name = "FILE")]
    peer_calibration: Option<PathBuf>,
    /// Both parties run on this machine and share its cores, as in `demo`.
    #[arg(long, conflicts_with = "peer_calibration")]
    one_machine: bool,
}

/// The measurements on which a prediction is based.
pub(super) struct Calibrated {
    pub(super) machines: Machines,
    /// A line for the user that says where the measurements come from.
    pub(super) line: String,
}

impl CalibrationArgs {
    /// The measurements to use. If no file was named, and the default file is missing or does not fit, returns a line
    /// with the reason instead.
    pub(super) fn open(&self) -> Result<Result<Calibrated, String>, Error> {
        let (path, own) = match &self.calibration {
            Some(path) => (path.clone(), Some(named(path)?)),
            None => {
                let Ok(path) = default_file() else { return Ok(Err(MAKE.into())) };
                match usable(&path) {
                    Ok(own) => (path, own),
                    Err(reason) => {
                        let line = format!("{} is not used: {reason}; {MAKE}", path.display());
                        return Ok(Err(line));
                    }
                }
            }
        };
        let Some(own) = own else { return Ok(Err(MAKE.into())) };
        let mut line = format!("calibrated by {}: {} cores of {}", path.display(), own.cores, own.processor);
        let peer = match &self.peer_calibration {
            None => own.clone(),
            Some(path) => {
                let peer = named(path)?;
                line += &format!("; the server by {}: {} cores of {}", path.display(), peer.cores, peer.processor);
                peer
            }
        };
        line += if self.one_machine { ", shared by both parties" } else { ", for each party" };
        let machines = Machines { client: own, server: peer, together: self.one_machine };
        Ok(Ok(Calibrated { machines, line }))
    }
}

/// The cores that a plan assumes by default: the measured ones, if there are measurements.
pub(super) fn cores(calibrated: Option<&Calibrated>) -> Cores {
    calibrated.map_or(ASSUMED_CORES, |calibrated| calibrated.machines.cores())
}

/// Writes a note if seconds cannot be predicted, because `planned` has other cores than the measured ones.
pub(super) fn note_others(calibrated: Option<&Calibrated>, planned: &[Cores]) {
    let Some(measured) = calibrated.map(|calibrated| calibrated.machines.cores()) else { return };
    for cores in planned.iter().filter(|cores| **cores != measured) {
        note(format_args!("the calibration is of {measured} cores: no seconds are predicted for {cores}"));
    }
}

/// Advice if there are no measurements.
const MAKE: &str = "`waggle calibrate` measures this machine for seconds of computation and memory";

/// Reads a file that the user named. It may be of another processor.
fn named(path: &Path) -> Result<Profile, Error> {
    let refused = |source| Error::Calibration { path: path.into(), source };
    let profile = Profile::from_json(&load(path)?).map_err(refused)?;
    profile.check_program(PROGRAM).map_err(refused)?;
    Ok(profile)
}

/// Reads the default file, if there is one. Returns its fault if it cannot be used.
fn usable(path: &Path) -> Result<Option<Profile>, String> {
    let text = match waggle_files::read(path, MAX_FILE_BYTES) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.to_string()),
    };
    let read = || -> Result<Profile, ProfileError> {
        let profile = Profile::from_json(&text)?;
        profile.check_program(PROGRAM)?;
        profile.check_processor(&processor(), &kernels())?;
        Ok(profile)
    };
    read().map(Some).map_err(|e| e.to_string())
}
