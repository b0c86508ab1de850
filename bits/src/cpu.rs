//! Which vector instructions kernels may use, chosen once for the whole process.
//!
//! A [`Cpu`] claims nothing that was not detected on the machine it runs on. Hence a kernel's `unsafe` call is sound
//! where [`Cpu::has`] has named every feature that the kernel enables.

use std::sync::OnceLock;

/// The environment variable that lowers [`Cpu::get`]; its values are the names of [`Level`].
pub const VARIABLE: &str = "WAGGLE_CPU";

/// Instructions that kernels ask for. Those that come together in every processor are one feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Feature {
    /// AVX2.
    Avx2,
    /// Fused multiply-add on 256 bits.
    Fma,
    /// AES on single blocks.
    AesNi,
    /// AVX-512 F, BW, DQ and VL.
    Avx512,
    /// AVX-512 IFMA: products of 52-bit integers.
    Ifma,
    /// AES on four blocks at once.
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
            Self::Avx2 | Self::Fma | Self::AesNi => Level::Avx2,
            Self::Avx512 => Level::Avx512,
            Self::Ifma | Self::Vaes | Self::Neon => Level::Native,
        }
    }

    /// Whether this machine has it.
    #[cfg(target_arch = "x86_64")]
    fn detect(self) -> bool {
        match self {
            Self::Avx2 => is_x86_feature_detected!("avx2"),
            Self::Fma => is_x86_feature_detected!("fma"),
            Self::AesNi => is_x86_feature_detected!("aes"),
            Self::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            Self::Ifma => is_x86_feature_detected!("avx512ifma"),
            Self::Vaes => is_x86_feature_detected!("vaes"),
            Self::Neon => false,
        }
    }

    /// Whether this machine has it.
    #[cfg(not(target_arch = "x86_64"))]
    fn detect(self) -> bool {
        cfg!(target_arch = "aarch64") && self == Self::Neon
    }
}

/// How much of a machine to use. Each level allows all that those before it allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// `portable`: no kernels at all.
    Portable,
    /// `avx2`: AVX2, FMA, and AES on single blocks.
    Avx2,
    /// `avx512`: AVX-512 without IFMA, too.
    Avx512,
    /// `native`: everything that kernels know.
    Native,
}

impl Level {
    /// Every level, the lowest first.
    pub const ALL: [Self; 4] = [Self::Portable, Self::Avx2, Self::Avx512, Self::Native];

    /// The value of [`VARIABLE`] that stands for this level.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Native => "native",
        }
    }

    /// The level of that name.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

/// The features that kernels may use: never more than this machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cpu {
    /// Bit i stands for the feature of discriminant i.
    features: u8,
}

impl Cpu {
    /// What kernels use in this process: all that the machine has, up to the level that [`VARIABLE`] names. Decided
    /// on the first call. An unknown name counts as `native`, and a line on standard error says so.
    pub fn get() -> Self {
        static CHOSEN: OnceLock<Cpu> = OnceLock::new();
        *CHOSEN.get_or_init(|| {
            let Some(name) = std::env::var_os(VARIABLE) else { return Self::detected() };
            let level = name.to_str().and_then(Level::named).unwrap_or_else(|| {
                let known = Level::ALL.map(Level::name).join(", ");
                eprintln!("{VARIABLE}={} is not one of {known}: native it is", name.display());
                Level::Native
            });
            Self::detected().at_most(level)
        })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_only_lower() {
        let all = Cpu::detected();
        assert_eq!(all.at_most(Level::Native), all);
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
}
