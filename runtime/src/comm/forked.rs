//! What a child made by `fork` may do with what its parent made: ask for facts, and drop it.
//!
//! 1. Whatever would send, wait, take a lock that another thread of the parent may have held, or touch memory that ranks
//!    share is refused with [`Error::Usage`] before it does any of that.
//! 2. Dropping leaks: the connections, shared memory and threads behind a communicator are the parent's. Nothing is said to
//!    the other ranks, and nobody is waited for.
//!
//! Tests: `tests/tests/fork.rs`, `bindings/c/tests/c/fork.c`.

use std::sync::Arc;

use super::Communicator;
use super::shared::{Core, Shared};
use super::waited::Waited;
use crate::error::{Error, Result};

impl Communicator {
    /// Fails in a child made by `fork`, as every call on the communicator does there: it belongs to the process that made
    /// it. Never blocks, and costs as much as reading a word.
    ///
    /// # Errors
    /// [`Error::Usage`] in a child of the process that made the communicator.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.shared.check_process(|| Waited::other(""))
    }
}

impl Shared {
    /// Whether this is the process that made the communicator.
    #[inline]
    pub(crate) fn is_ours(&self) -> bool {
        self.process.is_current()
    }

    /// Fails in a child made by `fork`.
    #[inline]
    pub(crate) fn check_process(&self, called: impl FnOnce() -> Waited) -> Result<()> {
        if self.is_ours() { Ok(()) } else { Err(self.forked(called())) }
    }

    #[cold]
    pub(super) fn forked(&self, called: Waited) -> Error {
        let problem = "this communicator was made before a fork and cannot be used in the child; make a new one there, or \
                       start the child with exec";
        Error::Usage { context: self.context(called), problem: problem.to_owned() }
    }

    /// Asks something that has no error: in a child, where another thread may have held the core, the answer is that of a
    /// communicator on which nothing was called.
    pub(crate) fn look<R: Default>(&self, question: impl FnOnce(&Core) -> R) -> R {
        if self.is_ours() { question(&self.core()) } else { R::default() }
    }
}

/// Whether a handle is dropped in a child made by `fork`: then nothing behind it is, now or later.
pub(crate) fn leak_in_child(shared: &Arc<Shared>) -> bool {
    let in_child = !shared.is_ours();
    if in_child {
        std::mem::forget(Arc::clone(shared));
    }
    in_child
}
