//! Symmetric allocations: this rank's memory, and the mappings of the other ranks' memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kolo_transport::Process;
use kolo_transport::shm::SharedMemory;

/// This rank's memory of an allocation, shared by the program's handle and the communicator.
#[derive(Debug)]
pub(crate) struct OwnMemory {
    memory: SharedMemory,
    /// Bytes asked for.
    used: usize,
    is_retired: AtomicBool,
    /// The process whose ranks share the memory.
    process: Process,
}

impl OwnMemory {
    pub(crate) fn new(memory: SharedMemory, used: usize) -> Self {
        Self { memory, used, is_retired: AtomicBool::new(false), process: Process::current() }
    }

    pub(crate) fn shared(&self) -> &SharedMemory {
        &self.memory
    }

    pub(crate) fn used(&self) -> usize {
        self.used
    }

    /// Notes that the program is done with the memory. The pages go back to the system at once, and the addresses once
    /// all ranks are done. In a child made by `fork` nothing happens, since the parent and the other ranks use the same
    /// pages.
    pub(crate) fn retire(&self) {
        if !self.process.is_current() {
            return;
        }
        self.is_retired.store(true, Ordering::Release);
        self.memory.discard();
    }
}

/// An allocation as one rank sees it.
#[derive(Debug)]
pub(crate) struct Allocation {
    id: u64,
    own: Arc<OwnMemory>,
    /// Other ranks' memory by rank; `None` for this rank.
    peers: Vec<Option<SharedMemory>>,
}

impl Allocation {
    /// Makes an allocation. `id` is not 0 and is the same on all ranks, and all memories have the same length.
    pub(crate) fn new(id: u64, own: Arc<OwnMemory>, peers: Vec<Option<SharedMemory>>) -> Self {
        Self { id, own, peers }
    }

    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(super) fn own(&self) -> &Arc<OwnMemory> {
        &self.own
    }

    pub(super) fn is_live(&self) -> bool {
        !self.own.is_retired.load(Ordering::Acquire)
    }

    /// Returns the offset of a piece in this rank's memory, if the piece lies inside.
    pub(super) fn offset_of(&self, at: *const u8, len: usize) -> Option<usize> {
        let offset = at.addr().checked_sub(self.own.memory.base().addr())?;
        let end = offset.checked_add(len)?;
        (end <= self.own.used && self.is_live()).then_some(offset)
    }

    /// Returns the local address of `len` bytes at an offset of a rank's memory, if they lie inside.
    pub(super) fn at(&self, rank: usize, offset: u64, len: usize) -> Option<*mut u8> {
        let memory = self.peers.get(rank)?.as_ref().unwrap_or(&self.own.memory);
        let offset = usize::try_from(offset).ok()?;
        let is_inside = offset.checked_add(len)? <= memory.bytes();
        is_inside.then(|| memory.base().wrapping_add(offset))
    }
}
