//! The vector instructions that kernels may use, chosen once for the whole process.
//!
//! A [`Cpu`] holds only features that were detected on this machine. Hence a kernel's `unsafe` call is sound once
//! [`Cpu::has`] has confirmed every feature that the kernel enables.

use std::fmt;
use std::sync::OnceLock;

use thiserror::Error;

/// The environment variable that limits [`Cpu::get`] to a level. Its values are the names of [`Level`].
pub const VARIABLE: &str = "WAGGLE_CPU";

/// Why a value of [`VARIABLE`] cannot be followed on this machine.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CpuError {
    /// No level has this name.
    #[error("{VARIABLE}={got} is not one of portable, avx2, avx512, ifma")]
    Unknown {
        /// The value of the variable.
        got: String,
    },
    /// The processor lacks instructions that the level needs.
    #[error("{VARIABLE}={level}: this processor has no {missing}")]
    Missing {
        /// The level.
        level: &'static str,
        /// The missing instructions.
        missing: &'static str,
    },
}

/// A group of instructions that kernels ask for. Instructions that come together in every processor are one feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// AVX2 and F16C.
    Avx2,
    /// Fused multiply-add on 256 bits.
    Fma,
    /// AES and carry-less products on single blocks.
    AesNi,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 IFMA: products of 52-bit integers.
    Ifma,
    /// AES and carry-less products on two blocks at once, or on four together with [`Feature::Avx512`].
    Vaes,
    /// NEON, on AArch64.
    Neon,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Self; 7] = [Self::Avx2, Self::Fma, Self::AesNi, Self::Avx512, Self::Ifma, Self::Vaes, Self::Neon];

    /// The lowest level that allows this feature.
    fn level(self) -> Level {
        match self {
            Self::Avx2 | Self::Fma | Self::AesNi | Self::Vaes => Level::Avx2,
            Self::Avx512 => Level::Avx512,
            Self::Ifma | Self::Neon => Level::Ifma,
        }
    }

    /// The feature's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx2 => "AVX2",
            Self::Fma => "FMA",
            Self::AesNi => "AES-NI",
            Self::Avx512 => "AVX-512",
            Self::Ifma => "IFMA",
            Self::Vaes => "VAES",
            Self::Neon => "NEON",
        }
    }

    /// Whether this machine has the feature.
    #[cfg(target_arch = "x86_64")]
    fn detect(self) -> bool {
        match self {
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            Self::Fma => is_x86_feature_detected!("fma"),
            Self::AesNi => is_x86_feature_detected!("aes") && is_x86_feature_detected!("pclmulqdq"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Ifma => is_x86_feature_detected!("avx512ifma"),
            Self::Vaes => is_x86_feature_detected!("vaes") && is_x86_feature_detected!("vpclmulqdq"),
            Self::Neon => false,
        }
    }

    /// Whether this machine has the feature.
    #[cfg(not(target_arch = "x86_64"))]
    fn detect(self) -> bool {
        cfg!(target_arch = "aarch64") && self == Self::Neon
    }
}

/// How much of a machine to use, as a family of kernels. Each level allows everything that the levels before it
/// allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `portable`: portable code, no kernels for vector instructions.
    Portable,
    /// `avx2`: AVX2, F16C and FMA; AES on two blocks at once where the processor can, otherwise on single blocks.
    Avx2,
    /// `avx512`: also AVX-512, without IFMA.
    Avx512,
    /// `ifma`: all instructions that kernels can use.
    Ifma,
}

impl Level {
    /// Every level, the lowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Ifma];

    /// The value of [`VARIABLE`] that stands for this level.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Ifma => "ifma",
        }
    }

    /// The level called `name`.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    /// The features that a processor of this level must have.
    fn needs(self) -> &'static [Feature] {
        match self {
            Self::Portable => &[],
            Self::Avx2 => &[Feature::Avx2, Feature::Fma, Feature::AesNi],
            Self::Avx512 => &[Feature::Avx2, Feature::Fma, Feature::AesNi, Feature::Avx512],
            Self::Ifma => &[Feature::Avx2, Feature::Fma, Feature::AesNi, Feature::Avx512, Feature::Ifma],
        }
    }
}

/// Proof that this machine has a level, which permits its kernels to run. Only [`Cpu::family`] makes one.
///
/// ```compile_fail,E0423
/// use waggle_bits::cpu::{Family, Level};
/// let claimed = Family(Level::Avx512);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Family(Level);

impl Family {
    /// The level.
    #[inline(always)]
    pub const fn level(self) -> Level {
        self.0
    }
}

/// The features that kernels may use: never more than this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// Bit i stands for the feature of discriminant i.
    features: u8,
}

impl Cpu {
    /// The features that kernels use in this process: all that the machine has, up to the level that [`VARIABLE`]
    /// names. The first call decides. A program should call [`Cpu::choose`] before, to report a bad value of the
    /// variable. Otherwise this function prints the error to standard error and uses all features.
    pub fn get() -> Self {
        static CHOSEN: OnceLock<Cpu> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            Self::choose().unwrap_or_else(|error| {
                eprintln!("{error}: all that this processor has is used");
                Self::detected()
            })
        })
    }

    /// The features that [`Cpu::get`] returns, or why [`VARIABLE`] cannot be followed.
    ///
    /// # Errors
    /// [`CpuError`] if [`VARIABLE`] names no level, or a level that this machine lacks instructions for.
    pub fn choose() -> Result<Self, CpuError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::detected()),
            Some(name) => Self::detected().limited(&name.to_string_lossy()),
        }
    }

    /// These features, limited to the level called `name`.
    fn limited(self, name: &str) -> Result<Self, CpuError> {
        let level = Level::named(name).ok_or_else(|| CpuError::Unknown { got: name.into() })?;
        match level.needs().iter().find(|feature| !self.has(**feature)) {
            Some(missing) => Err(CpuError::Missing { level: level.name(), missing: missing.name() }),
            None => Ok(self.at_most(level)),
        }
    }

    /// The highest level whose needed instructions are all among these features.
    pub fn level(self) -> Level {
        let has = |level: &Level| self.has_all(level.needs());
        Level::ALL.into_iter().rev().find(has).unwrap_or(Level::Portable)
    }

    /// The permission to run kernels of [`Cpu::level`].
    pub fn family(self) -> Family {
        Family(self.level())
    }

    /// These features without `feature`, to compare kernels on one machine.
    pub fn without(self, feature: Feature) -> Self {
        Cpu { features: self.features & !(1 << feature as u8) }
    }

    /// All features that this machine has, whatever [`VARIABLE`] says.
    pub fn detected() -> Self {
        let found = Feature::ALL.into_iter().filter(|feature| feature.detect());
        Cpu { features: found.fold(0, |features, feature| features | 1 << feature as u8) }
    }

    /// No features: portable code only.
    pub const fn portable() -> Self {
        Cpu { features: 0 }
    }

    /// These features, without the ones that `level` does not allow.
    pub fn at_most(self, level: Level) -> Self {
        let allowed = Feature::ALL.into_iter().filter(|feature| feature.level() <= level);
        Cpu { features: self.features & allowed.fold(0, |features, feature| features | 1 << feature as u8) }
    }

    /// Whether `feature` is there.
    #[inline(always)]
    pub const fn has(self, feature: Feature) -> bool {
        self.features >> feature as u8 & 1 == 1
    }

    /// Whether all of `features` are there.
    pub fn has_all(self, features: &[Feature]) -> bool {
        features.iter().all(|&feature| self.has(feature))
    }
}

/// Runs `work` compiled for AVX2 where the processor has it. `work` should be a plain loop over slices, which the
/// compiler vectorises for the wider registers.
#[inline]
pub fn wide<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    if Cpu::get().has(Feature::Avx2) {
        #[target_feature(enable = "avx2")]
        fn avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        // SAFETY: the processor has AVX2.
        #[expect(unsafe_code, reason = "the same loop for wider registers")]
        return unsafe { avx2(work) };
    }
    work()
}

/// Prefetches `bytes` into the caches, for a read soon after. A processor prefetches by itself only within a page,
/// but matrices of a mapped file cross pages.
#[inline]
pub fn fetch(bytes: &[u8]) {
    #[cfg(target_arch = "x86_64")]
    for line in bytes.chunks(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every processor of this architecture has the instruction, and no address makes it fail.
        #[expect(unsafe_code, reason = "nothing safe stands for the instruction")]
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = bytes;
}

/// Writes the family of kernels and the instructions for AES, such as `avx2 (VAES)`.
impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.level().name())?;
        match [Feature::Vaes, Feature::AesNi, Feature::Neon].into_iter().find(|feature| self.has(*feature)) {
            Some(feature) => write!(f, " ({})", feature.name()),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_only_lower() {
        let all = Cpu::detected();
        assert_eq!(all.at_most(Level::Ifma), all);
        assert_eq!(all.at_most(Level::Portable), Cpu::portable());
        for pair in Level::ALL.windows(2) {
            let (less, more) = (all.at_most(pair[0]), all.at_most(pair[1]));
            assert!(Feature::ALL.into_iter().all(|feature| !less.has(feature) || more.has(feature)));
            assert_eq!(Cpu::portable().at_most(pair[1]), Cpu::portable());
        }
        assert!(!all.at_most(Level::Avx512).has(Feature::Ifma) && !all.at_most(Level::Avx2).has(Feature::Avx512));
        assert!(Feature::ALL.into_iter().all(|feature| !Cpu::get().has(feature) || all.has(feature)));
    }

    #[test]
    fn names_are_those_of_the_levels() {
        assert!(Level::ALL.into_iter().all(|level| Level::named(level.name()) == Some(level)));
        assert_eq!((Level::named("AVX2"), Level::named("")), (None, None));
    }

    #[test]
    fn a_level_above_the_machine_is_refused_by_what_is_missing() {
        let small = Cpu::portable();
        assert_eq!(small.limited("avx2"), Err(CpuError::Missing { level: "avx2", missing: "AVX2" }));
        assert_eq!(small.limited("native"), Err(CpuError::Unknown { got: "native".into() }));
        assert_eq!(small.limited("portable"), Ok(small));
        let all = Cpu { features: u8::MAX };
        for level in Level::ALL {
            let cpu = all.limited(level.name()).expect("everything is there");
            assert_eq!(cpu.level(), level);
        }
        let missing = CpuError::Missing { level: "ifma", missing: "IFMA" };
        assert_eq!(all.without(Feature::Ifma).limited("ifma"), Err(missing));
        assert_eq!(all.at_most(Level::Avx2).to_string(), "avx2 (VAES)");
        assert_eq!(all.at_most(Level::Avx2).without(Feature::Vaes).to_string(), "avx2 (AES-NI)");
    }
}
