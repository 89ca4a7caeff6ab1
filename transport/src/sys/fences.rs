//! Fences between a side that must be quick and one that need not be, in different processes.
//!
//! Somebody publishes and then looks whether anybody sleeps; somebody else says that it sleeps and then looks whether
//! anything was published. Each side needs a fence between its store and its load (Dekker's pattern), or both may miss
//! the other. The publisher's comes with every message, and drains the store buffer: as long as a cache line takes to
//! arrive. The sleeper's comes before a system call. Linux can execute both on the sleeper's side: `membarrier` makes
//! every running thread of all registered processes pass a fence (see membarrier(2), "expedited").

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

use super::atomic::fence;

/// How the two sides are fenced. All processes that share memory must use the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fences {
    /// A fence on each side.
    Symmetric,
    /// Both fences on the heavy side. All processes are registered.
    Asymmetric,
}

impl Fences {
    /// Registers this process, once, and tells whether it is. Quick in a process of one thread; else the kernel may wait
    /// for some milliseconds until all processors have heard of it.
    pub(crate) fn register() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
                && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        })
    }

    /// Between the publisher's store and its load.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Symmetric => fence(Ordering::SeqCst),
            Self::Asymmetric => compiler_fence(Ordering::SeqCst),
        }
    }

    /// Between the sleeper's store and its load.
    pub(crate) fn heavy(self) {
        fence(Ordering::SeqCst);
        if self == Self::Asymmetric {
            // It cannot fail where the registration has succeeded; and a sleep is bounded anyway.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }
}
