//! Which vector instructions kernels may use, chosen once for the whole process.
//!
//! A [`Cpu`] claims nothing that was not detected on the machine it runs on. Hence a kernel's `unsafe` call is sound
//! where [`Cpu::has`] has named every feature that the kernel enables.

use std::fmt;
use std::sync::OnceLock;

use thiserror::Error;

/// The environment variable that lowers [`Cpu::get`]; its values are the names of [`Level`].
pub const VARIABLE: &str = "WAGGLE_CPU";

/// A value of [`VARIABLE`] that this machine cannot follow.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CpuError {
    /// No level of that name.
    #[error("{VARIABLE}={got} is not one of portable, avx2, avx512, ifma")]
    Unknown {
        /// The value.
        got: String,
    },
    /// The processor lacks instructions of the level.
    #[error("{VARIABLE}={level}: this processor has no {missing}")]
    Missing {
        /// The level.
        level: &'static str,
        /// The instructions.
        missing: &'static str,
    },
}

/// Instructions that kernels ask for. Those that come together in every processor are one feature.
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
    /// The same on two blocks at once, on four where [`Feature::Avx512`] is there, too.
    Vaes,
    /// NEON, on AArch64.
    Neon,
}

impl Feature {
    /// Every feature.
    pub const ALL: [Self; 7] = [Self::Avx2, Self::Fma, Self::AesNi, Self::Avx512, Self::Ifma, Self::Vaes, Self::Neon];

    /// The least level that allows this feature.
    fn level(self) -> Level {
        match self {
            Self::Avx2 | Self::Fma | Self::AesNi | Self::Vaes => Level::Avx2,
            Self::Avx512 => Level::Avx512,
            Self::Ifma | Self::Neon => Level::Ifma,
        }
    }

    /// Its name.
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

    /// Whether this machine has it.
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

    /// Whether this machine has it.
    #[cfg(not(target_arch = "x86_64"))]
    fn detect(self) -> bool {
        cfg!(target_arch = "aarch64") && self == Self::Neon
    }
}

/// The part of a machine to use: a family of kernels. Each level allows all that those before it allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `portable`: no kernels at all.
    Portable,
    /// `avx2`: AVX2, F16C and FMA; AES on two blocks where the processor can, else on single ones.
    Avx2,
    /// `avx512`: AVX-512 without IFMA, too.
    Avx512,
    /// `ifma`: everything that kernels know.
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

    /// The level of that name.
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

/// A level that this machine has: the permission to run its kernels. [`Cpu::family`] alone makes one.
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
    /// The features that kernels use in this process: all of the machine's, up to the level that [`VARIABLE`] names.
    /// Decided on the first call. A program calls [`Cpu::choose`] first; where a library is used without, a value
    /// that it would refuse is told on standard error and lowers nothing.
    pub fn get() -> Self {
        static CHOSEN: OnceLock<Cpu> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            Self::choose().unwrap_or_else(|error| {
                eprintln!("{error}: all that this processor has is used");
                Self::detected()
            })
        })
    }

    /// The features that [`Cpu::get`] returns.
    ///
    /// # Errors
    /// [`CpuError`] for a value of [`VARIABLE`] that is no level, and for a level above this machine.
    pub fn choose() -> Result<Self, CpuError> {
        match std::env::var_os(VARIABLE) {
            None => Ok(Self::detected()),
            Some(name) => Self::detected().limited(&name.to_string_lossy()),
        }
    }

    /// The features of the level `name`.
    fn limited(self, name: &str) -> Result<Self, CpuError> {
        let level = Level::named(name).ok_or_else(|| CpuError::Unknown { got: name.into() })?;
        match level.needs().iter().find(|feature| !self.has(**feature)) {
            Some(missing) => Err(CpuError::Missing { level: level.name(), missing: missing.name() }),
            None => Ok(self.at_most(level)),
        }
    }

    /// The highest level whose instructions are all there.
    pub fn level(self) -> Level {
        let has = |level: &Level| self.has_all(level.needs());
        Level::ALL.into_iter().rev().find(has).unwrap_or(Level::Portable)
    }

    /// The permission for kernels of [`Cpu::level`].
    pub fn family(self) -> Family {
        Family(self.level())
    }

    /// These features without `feature`, to compare kernels on one machine.
    pub fn without(self, feature: Feature) -> Self {
        Cpu { features: self.features & !(1 << feature as u8) }
    }

    /// All that this machine has, whatever [`VARIABLE`] says.
    pub fn detected() -> Self {
        let found = Feature::ALL.into_iter().filter(|feature| feature.detect());
        Cpu { features: found.fold(0, |features, feature| features | 1 << feature as u8) }
    }

    /// No features: portable code only.
    pub const fn portable() -> Self {
        Cpu { features: 0 }
    }

    /// The features that `level` allows.
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

/// Runs a loop compiled for the wider registers of AVX2 where the processor has them. The compiler vectorises plain
/// loops over slices; `work` should be one.
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

/// Has `bytes` brought near the processor, which then need not wait for them when they are read soon after. A
/// processor looks ahead by itself within a page, but pieces of a mapped file end there.
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

/// The family of kernels, and the instructions for AES: `avx2 (VAES)`.
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
