//! Memory lent to the engine: a guard against a panic that leaves a call while the engine holds pointers into its
//! buffers.
//!
//! Users' code runs inside calls (subscribers of `tracing`), and so do Kolo's own assertions. Unwinding frees the
//! caller's buffers, but the helper thread, or the drop of the communicator, could still receive messages into them.
//! All code that lends memory to the engine therefore runs inside [`lend`].

use super::fail::poison;
use crate::cancel::Whole;
use crate::communicator::Shared;
use crate::control::Loss;
use crate::error::LossCause;
use crate::failure::Cause;

/// Memory lent to the engine. Only unwinding drops it.
pub(super) struct Lent<'a>(&'a Shared);

impl<'a> Lent<'a> {
    /// Guards the code behind it as [`lend`] does, where a call is too short for anything more. The core is dropped
    /// before the guard.
    #[inline(always)]
    pub(super) const fn new(shared: &'a Shared) -> Self {
        Self(shared)
    }

    /// Ends the guard: nothing has panicked.
    #[inline(always)]
    pub(super) fn take_back(self) {
        std::mem::forget(self);
    }
}

/// Runs code that lends the caller's memory to the engine, and that owns the core while it runs. If it panics, the
/// communicator is aborted on all ranks before the panic goes on, so nothing touches that memory any more. A panic
/// during the abort ends the process, as any panic in a destructor does.
#[inline(always)]
pub(crate) fn lend<R>(shared: &Shared, body: impl FnOnce() -> R) -> R {
    // Dropped last: everything that a panic sets off is part of the call.
    let _whole = Whole::new();
    let lent = Lent::new(shared);
    let result = body();
    lent.take_back();
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
    //! Panics at a point where users' code might panic.

    use std::cell::Cell;

    thread_local! {
        static NEXT_PAUSE: Cell<bool> = const { Cell::new(false) };
        static NEXT_EXCHANGE: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes the next exchange of this thread panic at its first poll.
    pub(crate) fn at_next_exchange() {
        NEXT_EXCHANGE.set(true);
    }

    pub(in super::super) fn first_poll() {
        assert!(!NEXT_EXCHANGE.take(), "injected");
    }

    /// Makes the next pause of this thread panic.
    pub(crate) fn at_next_pause() {
        NEXT_PAUSE.set(true);
    }

    pub(in super::super) fn pause() {
        assert!(!NEXT_PAUSE.take(), "injected");
    }
}
