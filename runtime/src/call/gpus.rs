//! The memory that holds the buffers of a call, and how messages reach it.

use std::sync::Arc;

use kolo_gdr::Gpu;

/// The GPUs whose memory the caller's buffers are; none where it is the host's.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuBuffers {
    pub(crate) input: Option<Arc<Gpu>>,
    pub(crate) output: Option<Arc<Gpu>>,
    pub(crate) access: AdapterAccess,
}

/// Path of messages from and to a GPU's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AdapterAccess {
    /// Through pinned memory of the host.
    #[default]
    Staged,
    /// Adapters reach it; what they write is flushed by the driver if that is needed.
    Direct { flush: bool },
}

impl GpuBuffers {
    /// A GPU of the call's, if there is one.
    pub(crate) fn any(&self) -> Option<&Arc<Gpu>> {
        self.input.as_ref().or(self.output.as_ref())
    }
}
