//! GPU memory in the buffers of a call, and how messages reach it.

use std::sync::Arc;

use kolo_gdr::Gpu;

/// GPUs that own the caller's buffers; `None` for host memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct GpuBuffers {
    pub(crate) input: Option<Arc<Gpu>>,
    pub(crate) output: Option<Arc<Gpu>>,
    pub(crate) access: AdapterAccess,
}

/// Path of messages from and to GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AdapterAccess {
    /// Through pinned host memory.
    #[default]
    Staged,
    /// Adapters reach the memory directly. The driver flushes their writes if `flush` is set.
    Direct { flush: bool },
}

impl GpuBuffers {
    /// Returns one of the call's GPUs, if there is any.
    pub(crate) fn any(&self) -> Option<&Arc<Gpu>> {
        self.input.as_ref().or(self.output.as_ref())
    }
}
