//! The instruction sets for which there are kernels, and which of them this processor has.

use std::fmt;
use std::sync::OnceLock;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// The instructions of every processor of the architecture: SSE2 on x86-64, NEON on aarch64.
    Baseline,
    /// AVX2 and F16C, on x86-64.
    Avx2,
    /// AVX-512 F, BW, DQ and VL, on x86-64.
    Avx512,
}

impl Isa {
    /// All instruction sets, the slowest first.
    pub const ALL: [Self; 3] = [Self::Baseline, Self::Avx2, Self::Avx512];

    /// Whether this processor has the instruction set. The standard library asks the processor once and remembers the
    /// answer.
    #[must_use]
    pub fn is_available(self) -> bool {
        match self {
            Self::Baseline => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512 => false,
        }
    }

    /// Returns the fastest instruction set that this processor has. The result is computed once, since every call needs
    /// it.
    #[must_use]
    pub fn best() -> Self {
        static BEST: OnceLock<Isa> = OnceLock::new();
        *BEST.get_or_init(|| {
            Self::ALL.into_iter().rev().find(|isa| isa.is_available()).unwrap_or(Self::Baseline)
        })
    }

    /// Returns the name for logs and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Baseline if cfg!(target_arch = "x86_64") => "sse2",
            Self::Baseline if cfg!(target_arch = "aarch64") => "neon",
            Self::Baseline => "baseline",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
