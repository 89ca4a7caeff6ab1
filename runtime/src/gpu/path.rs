//! Paths of calls on a GPU's memory.

use std::fmt;

/// Path of a call on a GPU's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuPath {
    /// Adapters reach it by themselves.
    Direct,
    /// Through pinned memory of the host, for this reason.
    Staged(StagingReason),
}

/// Reason for copying a GPU's memory through the host's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StagingReason {
    /// The processor reduces.
    Reduces,
    /// A message goes to the rank that sends it.
    ToItself,
    /// Adapters do not reach the memory; [`Communicator::gpu_direct`](crate::Communicator::gpu_direct) says why.
    NoPath,
    /// The driver has no call that makes what adapters wrote visible to the GPU.
    NoFlush,
    /// Some rank that matters is not reached by RDMA.
    NotRdma,
    /// One buffer is a GPU's, and the other the host's.
    Mixed,
    /// A driver refused to register this buffer; the log says in what words.
    Refused,
}

impl fmt::Display for StagingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reduces => "the processor reduces",
            Self::ToItself => "a rank sends it to itself",
            Self::NoPath => "adapters do not reach it",
            Self::NoFlush => "the GPU's driver does not flush what adapters write",
            Self::NotRdma => "not all ranks are reached by RDMA",
            Self::Mixed => "only one of the buffers is a GPU's",
            Self::Refused => "a driver does not register the buffer",
        })
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("a GPU's memory, reached by the adapters"),
            Self::Staged(why) => write!(f, "a GPU's memory, copied through the host's: {why}"),
        }
    }
}
