//! Calls on raw memory, for bindings and tools.

use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use super::work::Work;
use crate::call::{Call, RawCall, RawCallV};
use crate::communicator::on_gpus;
use crate::drive;
use crate::drive::Ticket;
use crate::error::Result;

/// # Calls on raw memory, for bindings and tools
impl Communicator {
    /// Runs a collective on raw memory and blocks until it is done.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    ///
    /// # Safety
    /// The buffers are valid for the lengths that the collective defines, and nobody else touches them until this
    /// returns. They need not be aligned for their type.
    pub unsafe fn call_raw(&self, call: &RawCall) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.call_raw_within(call, self.shared.config.timeout) }
    }

    /// Like [`Communicator::call_raw`], with a time-out of its own.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// See [`Communicator::call_raw`].
    pub unsafe fn call_raw_within(&self, call: &RawCall, limit: Duration) -> Result<()> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::run_within(&self.shared, &call, limit) }
    }

    /// Starts a collective on raw memory and waits for it at once. Unlike a blocking call, it matches calls that
    /// other ranks start. For bindings to interfaces in which some ranks may wait for an operation and others start
    /// it.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// See [`Communicator::call_raw`].
    pub unsafe fn start_raw_and_wait(&self, call: &RawCall, limit: Duration) -> Result<()> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::start_and_wait(&self.shared, &call, limit) }
    }

    /// Starts a collective on raw memory.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`], until the work is done or its wait has returned an error; if the handle is
    /// dropped, until the communicator is dropped.
    pub unsafe fn start_raw(&self, call: &RawCall) -> Result<Work<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_keeping(call, ()) }
    }

    /// Starts a collective on raw memory that `owner` keeps alive. The operation takes `owner`, and waiting for it
    /// gives `owner` back, so the handle may be dropped at any time.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`] for as long as `owner` lives. Any thread may drop `owner`.
    pub unsafe fn start_raw_keeping<B: Send + 'static>(&self, call: &RawCall, owner: B) -> Result<Work<B>> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        let ticket = unsafe { drive::start(&self.shared, &call, Some(Box::new(owner))) }?;
        Ok(self.work(ticket))
    }

    /// Runs a collective with blocks of unequal length on raw memory and blocks until it is done.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`], for the lengths that the counts add up to; input and output do not overlap.
    pub unsafe fn call_raw_v(&self, call: &RawCallV<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.call_raw_v_within(call, self.shared.config.timeout) }
    }

    /// Like [`Communicator::call_raw_v`], with a time-out of its own.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// See [`Communicator::call_raw_v`].
    pub unsafe fn call_raw_v_within(&self, call: &RawCallV<'_>, limit: Duration) -> Result<()> {
        let mut call = self.uneven_call(call)?;
        on_gpus::locate(&self.shared, &mut call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::run_within(&self.shared, &call, limit) }
    }

    /// Starts a collective with blocks of unequal length on raw memory. The counts are copied.
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw_v`], for as long as [`Communicator::start_raw`] asks.
    pub unsafe fn start_raw_v(&self, call: &RawCallV<'_>) -> Result<Work<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_v_keeping(call, ()) }
    }

    /// Like [`Communicator::start_raw_v`], on memory that `owner` keeps alive; see
    /// [`Communicator::start_raw_keeping`].
    ///
    /// # Errors
    /// See [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw_v`] for as long as `owner` lives. Any thread may drop `owner`.
    pub unsafe fn start_raw_v_keeping<B: Send + 'static>(
        &self,
        call: &RawCallV<'_>,
        owner: B,
    ) -> Result<Work<B>> {
        let mut call = self.uneven_call(call)?;
        on_gpus::locate(&self.shared, &mut call)?;
        // SAFETY: the caller's promise.
        let ticket = unsafe { drive::start(&self.shared, &call, Some(Box::new(owner))) }?;
        Ok(self.work(ticket))
    }

    /// Checks a call, and finds out which of its buffers are GPU memory.
    pub(super) fn checked(&self, call: &RawCall) -> Result<Call> {
        let mut call = Call::check(call, self.member())?;
        on_gpus::locate(&self.shared, &mut call)?;
        Ok(call)
    }

    pub(crate) fn work<B: 'static>(&self, ticket: Ticket) -> Work<B> {
        Work::new(Arc::clone(&self.shared), ticket)
    }
}
