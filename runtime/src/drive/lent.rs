//! Memory lent to the engine: the guard against a panic that leaves a call while the engine holds pointers into it.
//!
//! Users' code runs inside calls (subscribers of `tracing`), and so do our own assertions. Unwinding frees the caller's buffers, into which
//! messages would still be received when the communicator is dropped, or by the helper. All code that lends memory to the engine therefore
//! runs inside [`lend`].

use super::fail::poison;
use crate::cancel::Whole;
use crate::communicator::Shared;
use crate::control::Loss;
use crate::error::LossCause;
use crate::failure::Cause;

/// Memory that is lent to the engine. Dropped only by unwinding.
struct Lent<'a>(&'a Shared);

/// Runs something that lends the caller's memory to the engine, and owns the core while it runs. If it panics, the
/// communicator is aborted on all ranks before the panic goes on, so nothing touches that memory any more. If that
/// panics too, the process is aborted, as with any panic in a destructor.
#[inline(always)]
pub(crate) fn lend<R>(shared: &Shared, body: impl FnOnce() -> R) -> R {
    // Last to go: what a panic leads to is part of the call.
    let _whole = Whole::new();
    let lent = Lent(shared);
    let result = body();
    std::mem::forget(lent);
    result
}

impl Drop for Lent<'_> {
    #[cold]
    fn drop(&mut self) {
        let thread = std::thread::current();
        let text = format!("its thread '{}' panicked inside a call", thread.name().unwrap_or("unnamed"));
        let cause = Loss::new(LossCause::Panicked, text);
        poison(self.0, &Cause::PeerLost { peer: self.0.group.rank, cause });
    }
}

#[cfg(test)]
pub(crate) mod injected {
    //! Panics where code of users might.

    use std::cell::Cell;

    thread_local! {
        static NEXT_PAUSE: Cell<bool> = const { Cell::new(false) };
    }

    /// The next pause of this thread panics.
    pub(crate) fn at_next_pause() {
        NEXT_PAUSE.set(true);
    }

    pub(in super::super) fn pause() {
        assert!(!NEXT_PAUSE.take(), "injected");
    }
}
