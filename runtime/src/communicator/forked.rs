//! Rights of a child made by `fork` on its parent's objects: ask for facts, and drop them.
//!
//! 1. Operations that would send, wait, take a lock that another thread of the parent may have held, or touch memory that ranks
//!    share are refused with [`Error::Usage`](crate::Error::Usage) before they start: [`Shared::check_process`].
//! 2. Dropping leaks: the connections, shared memory and threads behind a communicator are the parent's. The child tells
//!    the other ranks nothing and waits for none.
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
