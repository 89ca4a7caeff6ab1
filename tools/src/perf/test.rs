//! The tests of nccl-tests as data: the numbers of elements in and out, the meaning of in place, and the
//! conversion of a time to a bandwidth.

use kolo::Collective;

use super::pieces::{Blocks, Skew};
use crate::error::CliError;

/// The operation under measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names say it all")]
pub(crate) enum Test {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    Gather,
    Scatter,
    AllToAll,
    AllToAllV,
    SendRecv,
    Hypercube,
    Barrier,
}

/// Meaning of a size for one rank, in elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Counts {
    /// Elements of the send buffer.
    pub send: u64,
    /// Elements of the receive buffer.
    pub receive: u64,
    /// The count argument of the call, shown in the count column.
    pub argument: u64,
    /// In place, the send buffer begins at this many elements times the rank in the receive buffer.
    pub send_offset_in_place: u64,
    /// In place, the result begins at this many elements times the rank in the receive buffer.
    pub receive_offset_in_place: u64,
}

/// Algorithm and bus bandwidth, in units of 1e9 bytes per second.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
pub(crate) struct Bandwidth {
    /// Bandwidth from the caller's point of view.
    pub algorithm: f64,
    /// Bandwidth that the links must have carried.
    pub bus: f64,
}

impl Test {
    /// All tests, in the order of the help text.
    pub(crate) const ALL: [Self; 12] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::AllToAllV,
        Self::SendRecv,
        Self::Hypercube,
        Self::Barrier,
    ];

    /// Returns the name on the command line; with the suffix `_perf` it is the program of nccl-tests.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "alltoall",
            Self::AllToAllV => "alltoallv",
            Self::SendRecv => "sendrecv",
            Self::Hypercube => "hypercube",
            Self::Barrier => "barrier",
        }
    }

    /// Finds a test by its name, also in forms such as `all-reduce` or `allreduce`.
    pub(crate) fn parse(text: &str) -> Result<Self, CliError> {
        let plain = |name: &str| name.to_ascii_lowercase().replace(['_', '-'], "");
        let wanted = plain(text);
        Self::ALL.into_iter().find(|test| plain(test.name()) == wanted).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|test| test.name()).collect();
            CliError::usage(
                format!("there is no test '{text}'"),
                format!("Known tests: {}", names.join(", ")),
            )
        })
    }

    /// Finds the test that a program name stands for, such as `all_reduce_perf`, also with a suffix such as
    /// `_mpi`.
    #[must_use]
    pub(crate) fn from_program_name(program: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|test| {
            program
                .strip_prefix(test.name())
                .and_then(|rest| rest.strip_prefix("_perf"))
                .is_some_and(|suffix| suffix.is_empty() || suffix.starts_with(['_', '-', '.']))
        })
    }

    /// Checks that the test can run among so many ranks.
    pub(crate) fn check_ranks(self, ranks: u32) -> Result<(), CliError> {
        if self != Self::Hypercube || ranks.is_power_of_two() {
            return Ok(());
        }
        Err(CliError::usage(
            format!("hypercube needs a power-of-two number of ranks, but there are {ranks}"),
            format!("Use --ranks {}", ranks.next_power_of_two()),
        ))
    }

    /// Returns the collective that is called; `None` if the test consists of sends and receives.
    #[must_use]
    pub(crate) const fn collective(self) -> Option<Collective> {
        Some(match self {
            Self::AllReduce => Collective::AllReduce,
            Self::AllGather => Collective::AllGather,
            Self::ReduceScatter => Collective::ReduceScatter,
            Self::Broadcast => Collective::Broadcast,
            Self::Reduce => Collective::Reduce,
            Self::Gather => Collective::Gather,
            Self::Scatter => Collective::Scatter,
            Self::AllToAll => Collective::AllToAll,
            Self::Barrier => Collective::Barrier,
            Self::AllToAllV | Self::SendRecv | Self::Hypercube => return None,
        })
    }

    /// Returns whether values are reduced; if not, the redop column shows `none`.
    #[must_use]
    pub(crate) const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }

    /// Returns whether the redop column shows operators. `sendrecv` loops over them without using them.
    #[must_use]
    pub(crate) const fn shows_op(self) -> bool {
        self.reduces() || matches!(self, Self::SendRecv)
    }

    /// Returns whether there is a root; if not, the root column shows -1.
    #[must_use]
    pub(crate) const fn has_root(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter)
    }

    /// Returns whether a rank exchanges a block with every other one, so that the size is divided by the number
    /// of ranks.
    #[must_use]
    const fn per_rank(self) -> bool {
        matches!(
            self,
            Self::AllGather
                | Self::ReduceScatter
                | Self::Gather
                | Self::Scatter
                | Self::AllToAll
                | Self::AllToAllV
                | Self::Hypercube
        )
    }

    /// Returns whether results in place can be checked. If not, the test runs all the same and `#wrong` shows
    /// N/A.
    #[must_use]
    pub(crate) const fn checks(self, in_place: bool) -> bool {
        match self {
            Self::Barrier => false,
            Self::AllToAll | Self::AllToAllV | Self::SendRecv => !in_place,
            _ => true,
        }
    }

    /// Returns whether the test consists of messages whose outputs must not overlap inputs, so that it has no
    /// in-place form.
    #[must_use]
    pub(crate) const fn lies_apart(self) -> bool {
        matches!(self, Self::SendRecv | Self::AllToAllV)
    }

    /// Returns the counts for `bytes` on the command line, with elements of `element_bytes` on `ranks` ranks.
    #[must_use]
    pub(crate) fn counts(self, bytes: u64, element_bytes: u64, ranks: u64) -> Counts {
        let elements = bytes / element_bytes;
        // A block is a multiple of 16 bytes, so that blocks stay aligned for vector instructions.
        let block =
            if self.per_rank() { elements / ranks / (16 / element_bytes) * (16 / element_bytes) } else { 0 };
        let all = block * ranks;
        let counts = |send, receive, argument| Counts { send, receive, argument, ..Counts::default() };
        match self {
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => {
                counts(elements, elements, elements)
            }
            Self::AllGather | Self::Gather | Self::Hypercube => {
                Counts { send_offset_in_place: block, ..counts(block, all, block) }
            }
            Self::ReduceScatter | Self::Scatter => {
                Counts { receive_offset_in_place: block, ..counts(all, block, block) }
            }
            Self::AllToAll | Self::AllToAllV => counts(all, all, block),
            Self::Barrier => Counts::default(),
        }
    }

    /// Returns the counts with the blocks of `alltoallv`, which may leave a part of the size unused.
    #[must_use]
    pub(crate) fn counts_and_blocks(
        self,
        bytes: u64,
        element_bytes: u64,
        ranks: u32,
        skew: Skew,
    ) -> (Counts, Blocks) {
        let counts = self.counts(bytes, element_bytes, u64::from(ranks));
        let blocks = skew.blocks(counts.argument, element_bytes, ranks);
        match self {
            Self::AllToAllV => (Counts { send: blocks.total(), receive: blocks.total(), ..counts }, blocks),
            _ => (counts, blocks),
        }
    }

    /// Returns the bandwidths of one call that takes `seconds`.
    #[must_use]
    pub(crate) fn bandwidth(
        self,
        counts: &Counts,
        element_bytes: u64,
        seconds: f64,
        ranks: u64,
    ) -> Bandwidth {
        let (bytes, n) = ((counts.argument * element_bytes) as f64, ranks as f64);
        let (moved, factor) = match self {
            Self::AllReduce => (bytes, 2.0 * (n - 1.0) / n),
            Self::AllGather | Self::ReduceScatter | Self::Gather | Self::Scatter | Self::AllToAll => {
                (bytes * n, (n - 1.0) / n)
            }
            Self::AllToAllV => ((counts.send * element_bytes) as f64, (n - 1.0) / n),
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Barrier => (bytes, 1.0),
            Self::Hypercube => (bytes * (n - 1.0), 1.0),
        };
        if seconds <= 0.0 {
            return Bandwidth::default();
        }
        let algorithm = moved / 1e9 / seconds;
        Bandwidth { algorithm, bus: algorithm * factor }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_names() {
        for (program, expected) in [
            ("all_reduce_perf", Some(Test::AllReduce)),
            ("all_reduce_perf_mpi", Some(Test::AllReduce)),
            ("alltoall_perf", Some(Test::AllToAll)),
            ("alltoallv_perf-static", Some(Test::AllToAllV)),
            ("reduce_perf", Some(Test::Reduce)),
            ("reduce_scatter_perf", Some(Test::ReduceScatter)),
            ("all_reduce_performance", None),
            ("all_reduce", None),
            ("kolo", None),
        ] {
            assert_eq!(Test::from_program_name(program), expected, "{program}");
        }
        assert_eq!(Test::parse("all-to-all").unwrap(), Test::AllToAll);
        assert!(Test::parse("all_red").is_err());
    }

    #[test]
    fn blocks_are_multiples_of_sixteen_bytes() {
        assert_eq!(Test::AllGather.counts(8, 4, 8), Counts::default());
        let counts = Test::AllGather.counts(1 << 20, 4, 6);
        assert_eq!(counts.argument, 43688);
        assert_eq!((counts.send, counts.receive), (43688, 43688 * 6));
        assert_eq!((counts.send_offset_in_place, counts.receive_offset_in_place), (43688, 0));
        let counts = Test::Scatter.counts(1024, 1, 4);
        assert_eq!((counts.send, counts.receive, counts.receive_offset_in_place), (1024, 256, 256));
        assert_eq!(Test::AllReduce.counts(8, 4, 8).argument, 2);
    }

    #[test]
    fn bandwidth_factors() {
        let gigabyte = 1_000_000_000;
        for (test, algorithm, bus) in [
            (Test::AllReduce, 1.0, 1.5),
            (Test::AllGather, 4.0, 3.0),
            (Test::ReduceScatter, 4.0, 3.0),
            (Test::AllToAll, 4.0, 3.0),
            (Test::Gather, 4.0, 3.0),
            (Test::Broadcast, 1.0, 1.0),
            (Test::Reduce, 1.0, 1.0),
            (Test::SendRecv, 1.0, 1.0),
            (Test::Hypercube, 3.0, 3.0),
        ] {
            let counts = Counts { argument: gigabyte, ..Counts::default() };
            let bandwidth = test.bandwidth(&counts, 1, 1.0, 4);
            assert_eq!((bandwidth.algorithm, bandwidth.bus), (algorithm, bus), "{test:?}");
        }
    }
}
