//! The measurements of a machine, and the file that holds them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;
use waggle_protocols::{Kernel, Rates};

use crate::Machine;

/// Version of the format of the file.
pub const PROFILE_VERSION: u32 = 1;

/// Largest number of cores that a file may state.
const MOST_CORES: u32 = 65_536;

/// Largest time of a unit that a file may state: a minute.
const MOST_NANOSECONDS: f64 = 60e9;

/// A machine as `waggle calibrate` measured it. The measurements say nothing about any prompt, model or key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the file's format, [`PROFILE_VERSION`].
    pub version: u32,
    /// Version and revision of the program that was measured.
    pub program: String,
    /// Name of the processor.
    pub processor: String,
    /// Family of kernels and AES instructions, as `waggle_bits::cpu::Cpu` displays them.
    pub kernels: String,
    /// Number of cores that the program used.
    pub cores: u32,
    /// The speed that each further core adds, as a share of the first core's.
    pub speedup: f64,
    /// Nanoseconds from the arrival of a message until the waiting thread runs.
    pub wake_nanoseconds: f64,
    /// Bytes of memory of a client's process and of a server's before they load a model.
    pub base_bytes: [u64; 2],
    /// Nanoseconds that one core takes for a unit of each kernel, by the kernel's name.
    pub nanoseconds: BTreeMap<String, f64>,
}

/// Why a file of measurements cannot be used.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file is not a calibration.
    #[error("it is no calibration: {what}")]
    Malformed {
        /// The message of the JSON parser.
        what: String,
    },
    /// The file has a format of another version.
    #[error("it has version {found}, and this program reads version {PROFILE_VERSION}")]
    Version {
        /// The file's version.
        found: u64,
    },
    /// The file was made by another program.
    #[error("it was made by {found}, and this is {expected}")]
    Program {
        /// Version and revision in the file.
        found: String,
        /// Version and revision of this program.
        expected: String,
    },
    /// The file was made on another processor or with other kernels.
    #[error("it is of {found}, and this is {expected}")]
    Processor {
        /// Processor and kernels in the file.
        found: String,
        /// Processor and kernels of this machine.
        expected: String,
    },
    /// The file lacks a kernel.
    #[error("it does not say what a unit of `{kernel}` takes")]
    Missing {
        /// The kernel's name.
        kernel: &'static str,
    },
    /// The file has a kernel that this program does not know.
    #[error("it has a kernel `{kernel}` that this program does not have")]
    Unknown {
        /// The kernel's name.
        kernel: String,
    },
    /// A number is outside its range.
    #[error("its {what} is {value}")]
    Value {
        /// What the number states.
        what: String,
        /// The number.
        value: f64,
    },
}

impl Profile {
    /// Reads a profile from the text of a file.
    ///
    /// # Errors
    /// All cases of [`ProfileError`] except [`ProfileError::Program`] and [`ProfileError::Processor`].
    pub fn from_json(text: &[u8]) -> Result<Self, ProfileError> {
        let malformed = |e: serde_json::Error| ProfileError::Malformed { what: e.to_string() };
        let value: serde_json::Value = serde_json::from_slice(text).map_err(malformed)?;
        // Read the version first: a file of another version may have other fields.
        if let Some(found) = value.get("version").and_then(serde_json::Value::as_u64)
            && found != u64::from(PROFILE_VERSION)
        {
            return Err(ProfileError::Version { found });
        }
        let profile: Profile = serde_json::from_value(value).map_err(malformed)?;
        profile.check()?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), ProfileError> {
        let within = |what: &str, value: f64, most: f64| {
            let what = what.to_owned();
            // NaN is outside as well.
            if (0.0..=most).contains(&value) { Ok(()) } else { Err(ProfileError::Value { what, value }) }
        };
        if !(1..=MOST_CORES).contains(&self.cores) {
            return Err(ProfileError::Value { what: "number of cores".into(), value: f64::from(self.cores) });
        }
        within("speedup", self.speedup, 1.0)?;
        within("time to wake a thread", self.wake_nanoseconds, MOST_NANOSECONDS)?;
        for (name, &value) in &self.nanoseconds {
            if !Kernel::ALL.iter().any(|kernel| kernel.name() == name) {
                return Err(ProfileError::Unknown { kernel: name.clone() });
            }
            within(&format!("time of `{name}`"), value, MOST_NANOSECONDS)?;
        }
        match Kernel::ALL.iter().find(|kernel| !self.nanoseconds.contains_key(kernel.name())) {
            Some(kernel) => Err(ProfileError::Missing { kernel: kernel.name() }),
            None => Ok(()),
        }
    }

    /// Refuses the measurements of another program.
    ///
    /// # Errors
    /// [`ProfileError::Program`].
    pub fn check_program(&self, expected: &str) -> Result<(), ProfileError> {
        if self.program == expected {
            return Ok(());
        }
        Err(ProfileError::Program { found: self.program.clone(), expected: expected.into() })
    }

    /// Refuses the measurements of another processor, or of other kernels.
    ///
    /// # Errors
    /// [`ProfileError::Processor`].
    pub fn check_processor(&self, processor: &str, kernels: &str) -> Result<(), ProfileError> {
        if (&self.processor[..], &self.kernels[..]) == (processor, kernels) {
            return Ok(());
        }
        let named = |processor: &str, kernels: &str| format!("{processor} ({kernels})");
        let found = named(&self.processor, &self.kernels);
        Err(ProfileError::Processor { found, expected: named(processor, kernels) })
    }

    /// The rates of all kernels in nanoseconds, by the kernel's name.
    pub fn named(rates: &Rates) -> BTreeMap<String, f64> {
        Kernel::ALL.iter().map(|&kernel| (kernel.name().to_owned(), 1e9 * rates.of(kernel))).collect()
    }

    /// The machine that was measured.
    pub fn machine(&self) -> Machine {
        let rate = |rates: Rates, kernel: &Kernel| {
            let nanoseconds = self.nanoseconds.get(kernel.name()).copied().unwrap_or(0.0);
            rates.with(*kernel, 1e-9 * nanoseconds)
        };
        let rates = Kernel::ALL.iter().fold(Rates::zero(), rate);
        Machine { rates, cores: self.cores, speedup: self.speedup }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn profile() -> Profile {
        Profile {
            version: PROFILE_VERSION,
            program: "0.1.0 (0123456789ab)".into(),
            processor: "A Processor".into(),
            kernels: "avx2 (AES-NI)".into(),
            cores: 2,
            speedup: 0.75,
            wake_nanoseconds: 40_000.0,
            base_bytes: [20_000_000; 2],
            nanoseconds: Profile::named(&Rates::reference()),
        }
    }

    fn read(change: impl FnOnce(&mut Value)) -> Result<Profile, ProfileError> {
        let mut value = serde_json::to_value(profile()).unwrap();
        change(&mut value);
        Profile::from_json(value.to_string().as_bytes())
    }

    #[test]
    fn a_file_comes_back_whole() {
        let read = read(|_| ()).unwrap();
        assert_eq!(read, profile());
        let machine = read.machine();
        assert_eq!((machine.cores, machine.speedup), (2, 0.75));
        for &kernel in Kernel::ALL {
            let (read, written) = (machine.rates.of(kernel), Rates::reference().of(kernel));
            assert!((read - written).abs() <= 1e-12 * written, "{kernel}");
        }
    }

    #[test]
    fn damaged_files_are_refused_with_a_reason() {
        use ProfileError::*;
        assert!(matches!(Profile::from_json(b"{\"version\": 1"), Err(Malformed { .. })));
        assert!(matches!(Profile::from_json(b"[]"), Err(Malformed { .. })));
        assert!(matches!(read(|v| v["more"] = json!(1)), Err(Malformed { .. })));
        assert_eq!(read(|v| v["version"] = json!(2)), Err(Version { found: 2 }));
        assert!(matches!(read(|v| v["cores"] = json!(0)), Err(Value { value: 0.0, .. })));
        assert!(matches!(read(|v| v["speedup"] = json!(1.5)), Err(Value { value: 1.5, .. })));
        assert!(matches!(read(|v| v["nanoseconds"]["pad"] = json!(-1.0)), Err(Value { value: -1.0, .. })));
        assert!(matches!(read(|v| v["nanoseconds"]["pad"] = json!("2")), Err(Malformed { .. })));
        let gone = |v: &mut serde_json::Value| drop(v["nanoseconds"].as_object_mut().unwrap().remove("pad"));
        assert_eq!(read(gone), Err(Missing { kernel: "pad" }));
        assert_eq!(read(|v| v["nanoseconds"]["pads"] = json!(1.0)), Err(Unknown { kernel: "pads".into() }));
    }

    #[test]
    fn other_programs_and_processors_are_told_apart() {
        let profile = profile();
        assert_eq!(profile.check_program("0.1.0 (0123456789ab)"), Ok(()));
        assert!(matches!(profile.check_program("0.1.0 (ba9876543210)"), Err(ProfileError::Program { .. })));
        assert_eq!(profile.check_processor("A Processor", "avx2 (AES-NI)"), Ok(()));
        for (processor, kernels) in [("Another", "avx2 (AES-NI)"), ("A Processor", "portable")] {
            let refused = profile.check_processor(processor, kernels);
            assert!(matches!(refused, Err(ProfileError::Processor { .. })));
        }
    }
}
