//! Rights of a child made by `fork` on its parent's objects: ask for facts, and drop them.
//!
//! 1. Whatever would send, wait, take a lock that another thread of the parent may have held, or touch memory that ranks
//!    share is refused with [`Error::Usage`](crate::Error::Usage) before it does any of that: [`Shared::check_process`].
//! 2. Dropping leaks: the connections, shared memory and threads behind a communicator are the parent's. Nothing is said to
//!    the other ranks, and nobody is waited for.
//!
//! Tests: `tests/tests/fork.rs`, `bindings/c/tests/c/fork.c`.

use std::sync::Arc;

use super::Shared;

/// Whether a handle is dropped in a child made by `fork`: then nothing behind it is, now or later.
pub(crate) fn leak_in_child(shared: &Arc<Shared>) -> bool {
    let in_child = !shared.is_ours();
    if in_child {
        std::mem::forget(Arc::clone(shared));
    }
    in_child
}
