//! Fences between a side that must be fast and one that need not be, in different processes.
//!
//! One side publishes and then looks whether a member sleeps; the other announces that it sleeps and then looks
//! whether anything was published. Each side needs a fence between its store and its load (Dekker's pattern), or both
//! may miss the other. The publisher's fence comes with every message and drains the store buffer, which takes as
//! long as a cache line takes to arrive. The sleeper's fence comes before a system call anyway. Linux can execute
//! both fences on the sleeper's side: `membarrier` makes every running thread of all registered processes pass a
//! fence (see membarrier(2), "expedited").

use std::sync::OnceLock;
use std::sync::atomic::{Ordering, compiler_fence};

use rustix::thread::{MembarrierCommand, membarrier, membarrier_query};

use super::atomic::fence;

/// Fence scheme of the two sides. All processes that share memory must use the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fences {
    /// A fence on each side.
    Symmetric,
    /// Both fences on the heavy side. All processes are registered.
    Asymmetric,
}

impl Fences {
    /// Registers this process once, and returns whether it is registered. Fast in a process of one thread; with more
    /// threads, the kernel may wait for some milliseconds until all processors have taken note.
    pub(crate) fn register() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| {
            membarrier_query().contains_command(MembarrierCommand::GlobalExpedited)
                && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok()
        })
    }

    /// Executes the publisher's fence, between its store and its load.
    #[inline]
    pub(crate) fn light(self) {
        match self {
            Self::Symmetric => fence(Ordering::SeqCst),
            Self::Asymmetric => compiler_fence(Ordering::SeqCst),
        }
    }

    /// Executes the sleeper's fence, between its store and its load.
    pub(crate) fn heavy(self) {
        fence(Ordering::SeqCst);
        if self == Self::Asymmetric {
            // This cannot fail after a successful registration, and every sleep is bounded anyway.
            let _ = membarrier(MembarrierCommand::GlobalExpedited);
        }
    }
}
