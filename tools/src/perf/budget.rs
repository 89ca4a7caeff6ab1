//! Limits the length of buffers by the memory of this machine.

use super::settings::Settings;
use super::test::Test;
use crate::error::{CliError, Result};
use crate::info::machine::Memory;

/// Number of buffers per rank: send and receive. Expectations are made piece by piece and need no buffer.
const BUFFERS: u64 = 2;

/// The limits for one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Budget {
    /// Longest buffer that fits into the memory that is free now, of which an eighth is left to other programs.
    pub comfortable: u64,
    /// Longest buffer that fits into all memory of the machine.
    pub physical: u64,
}

impl Budget {
    /// Divides the memory of a machine among `ranks` ranks.
    #[must_use]
    pub(crate) fn new(memory: Memory, ranks: u32) -> Self {
        let share = |bytes: u64| bytes / u64::from(ranks.max(1)) / BUFFERS;
        Self { comfortable: share(memory.available / 8 * 7), physical: share(memory.total) }
    }

    /// Returns the greatest size to measure: the requested one, or less if memory is short. A request that can never
    /// fit is an error.
    pub(crate) fn max_bytes(&self, settings: &Settings) -> Result<u64> {
        if settings.test == Test::Barrier {
            return Ok(0);
        }
        let asked = settings.max_bytes;
        if asked <= self.comfortable {
            return Ok(asked);
        }
        let (too_large, option) = if settings.least(self.comfortable) > self.comfortable {
            (settings.min_bytes, "-b")
        } else if settings.size_given && asked > self.physical {
            (asked, "-e")
        } else {
            return Ok(self.comfortable);
        };
        Err(CliError::usage(
            format!(
                "{too_large} bytes ({option}) do not fit: every rank needs {BUFFERS} buffers of that size, \
                 but this machine's memory has room for only {} bytes in each",
                self.comfortable
            ),
            format!("Use at most {}M with {option}, or start fewer ranks per host", self.comfortable >> 20),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::parse_perf;

    fn max_bytes(line: &str, available: u64, total: u64, ranks: u32) -> Result<u64> {
        let settings = Settings::new(&parse_perf(line.split_whitespace()).unwrap(), None).unwrap();
        Budget::new(Memory { total, available }, ranks).max_bytes(&settings)
    }

    #[test]
    fn sizes_are_reduced_or_refused() {
        let gib = 1 << 30;
        assert_eq!(max_bytes("all_reduce -e 1G", 8 * gib, 16 * gib, 2).unwrap(), gib);
        // Free memory is short, so the result is less than requested.
        assert_eq!(max_bytes("all_reduce -b 8 -e 3G", 8 * gib, 16 * gib, 2).unwrap(), 7 * gib / 4);
        // Not even the machine's whole memory suffices.
        let error = max_bytes("all_reduce -b 8 -e 5G", 8 * gib, 16 * gib, 2).unwrap_err();
        assert!(error.message.contains("-e") && error.message.contains("1792M"), "{error}");
        // Nobody has asked for the default sizes.
        let mib = 1 << 20;
        assert_eq!(max_bytes("all_reduce", 16 * mib, 16 * gib, 1).unwrap(), 7 * mib);
        assert_eq!(max_bytes("all_reduce -e 64M", 16 * mib, 16 * gib, 1).unwrap(), 7 * mib);
        assert!(max_bytes("all_reduce -b 32M", 16 * mib, 16 * gib, 1).is_err());
        let error = max_bytes("all_reduce -b 2G -e 3G", 8 * gib, 16 * gib, 2).unwrap_err();
        assert!(error.message.contains("-b"), "{error}");
        assert_eq!(max_bytes("barrier -e 99G", gib, gib, 1).unwrap(), 0);
    }
}
