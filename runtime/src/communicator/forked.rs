//! Rules for a child made by `fork` and its parent's communicators: the child may ask for facts, and drop handles.
//!
//! 1. Some calls would send, wait, take a lock that another thread of the parent may have held, or touch memory that
//!    ranks share. They are refused with [`Error::Usage`](crate::Error::Usage) before they do any of that:
//!    [`Shared::check_process`].
//! 2. Dropping leaks: the connections, shared memory and threads behind a communicator belong to the parent. The child
//!    tells the other ranks nothing, and waits for nobody.
//! 3. The child keeps none of the sockets ([`Unshared`](kolo_transport::Unshared)): the ranks' connections tell of the
//!    parent's end, and the parent's ports are free again, whether or not the child lives.
//!
//! Tests: `tests/tests/fork.rs`, `bindings/c/tests/c/fork.c`.

use std::sync::Arc;

use super::Shared;

/// Returns whether a handle is dropped in a child made by `fork`. If so, everything behind the handle is leaked.
pub(crate) fn leak_in_child(shared: &Arc<Shared>) -> bool {
    let in_child = !shared.is_ours();
    if in_child {
        std::mem::forget(Arc::clone(shared));
    }
    in_child
}
