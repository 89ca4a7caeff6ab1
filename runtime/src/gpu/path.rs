//! Paths of calls on GPU memory.

use std::fmt;

/// Path of a call on GPU memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GpuPath {
    /// Adapters reach the memory directly.
    Direct,
    /// The data is copied through pinned host memory, for this reason.
    Staged(StagingReason),
}

/// Reason for copying GPU memory through host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StagingReason {
    /// The CPU does the reduction.
    Reduces,
    /// The rank sends a message to itself.
    ToItself,
    /// Adapters do not reach the memory; [`Communicator::gpu_direct`](crate::Communicator::gpu_direct) says why.
    NoPath,
    /// The driver cannot make adapters' writes visible to the GPU.
    NoFlush,
    /// RDMA does not reach every rank concerned.
    NotRdma,
    /// One buffer is GPU memory, and the other is host memory.
    Mixed,
    /// A driver refused to register this buffer; the log has its message.
    Refused,
}

impl fmt::Display for StagingReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reduces => "the processor reduces",
            Self::ToItself => "a rank sends it to itself",
            Self::NoPath => "adapters do not reach it",
            Self::NoFlush => "the GPU driver does not flush the adapters' writes",
            Self::NotRdma => "not all ranks are reached by RDMA",
            Self::Mixed => "only one of the buffers is in GPU memory",
            Self::Refused => "a driver refuses to register the buffer",
        })
    }
}

impl fmt::Display for GpuPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("GPU memory, reached directly by the adapters"),
            Self::Staged(why) => write!(f, "GPU memory, copied through host memory: {why}"),
        }
    }
}
