//! Calls on raw memory: what bindings and tools use.

use std::sync::Arc;
use std::time::Duration;

use super::Communicator;
use super::work::Work;
use crate::call::{Call, RawCall, RawCallV};
use crate::communicator::on_gpus;
use crate::drive;
use crate::drive::Ticket;
use crate::error::Result;

impl Communicator {
    /// Runs a collective on raw memory and blocks until it is done.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] for a call that makes no sense; the others end the communicator.
    ///
    /// # Safety
    /// The buffers are valid for the lengths that the collective defines, aligned for their type or not, and not touched
    /// by anybody else until this returns.
    pub unsafe fn call_raw(&self, call: &RawCall) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.call_raw_within(call, self.shared.config.timeout) }
    }

    /// As [`Communicator::call_raw`], with a time-out of its own.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`].
    pub unsafe fn call_raw_within(&self, call: &RawCall, limit: Duration) -> Result<()> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::run_within(&self.shared, &call, limit) }
    }

    /// As [`Communicator::start_raw`] and an immediate wait: matches what other ranks start, as a blocking call does not.
    /// For bindings to interfaces in which some ranks may wait for an operation and others start it.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`].
    pub unsafe fn start_raw_and_wait(&self, call: &RawCall, limit: Duration) -> Result<()> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::start_and_wait(&self.shared, &call, limit) }
    }

    /// Starts a collective on raw memory.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`], until the work is done, or its wait has returned an error. If the handle
    /// is dropped, until the communicator is.
    pub unsafe fn start_raw(&self, call: &RawCall) -> Result<Work<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_keeping(call, ()) }
    }

    /// Starts a collective on raw memory that `owner` keeps alive: the operation owns it, and its wait gives it back. So
    /// the handle may be dropped at any time.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`] for as long as `owner` lives; it may be dropped by any thread.
    pub unsafe fn start_raw_keeping<B: Send + 'static>(&self, call: &RawCall, owner: B) -> Result<Work<B>> {
        let call = self.checked(call)?;
        // SAFETY: the caller's promise.
        let ticket = unsafe { drive::start(&self.shared, &call, Some(Box::new(owner))) }?;
        Ok(self.work(ticket))
    }

    /// Runs a collective with blocks of unequal length on raw memory and blocks until it is done.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw`], for the lengths that the counts add up to; input and output do not overlap.
    pub unsafe fn call_raw_v(&self, call: &RawCallV<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.call_raw_v_within(call, self.shared.config.timeout) }
    }

    /// As [`Communicator::call_raw_v`], with a time-out of its own.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw_v`].
    pub unsafe fn call_raw_v_within(&self, call: &RawCallV<'_>, limit: Duration) -> Result<()> {
        let mut call = self.uneven_call(call)?;
        on_gpus::locate(&self.shared, &mut call)?;
        // SAFETY: the caller's promise.
        unsafe { drive::run_within(&self.shared, &call, limit) }
    }

    /// Starts a collective with blocks of unequal length on raw memory. The counts are copied.
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw_v`], until what [`Communicator::start_raw`] says.
    pub unsafe fn start_raw_v(&self, call: &RawCallV<'_>) -> Result<Work<()>> {
        // SAFETY: the caller's promise.
        unsafe { self.start_raw_v_keeping(call, ()) }
    }

    /// As [`Communicator::start_raw_v`], on memory that `owner` keeps alive; see [`Communicator::start_raw_keeping`].
    ///
    /// # Errors
    /// As [`Communicator::call_raw`].
    ///
    /// # Safety
    /// As [`Communicator::call_raw_v`] for as long as `owner` lives; it may be dropped by any thread.
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

    /// Checks a call, and finds out whose memory its buffers are.
    pub(super) fn checked(&self, call: &RawCall) -> Result<Call> {
        let mut call = Call::check(call, self.rank(), self.world_size())?;
        on_gpus::locate(&self.shared, &mut call)?;
        Ok(call)
    }

    pub(crate) fn work<B: 'static>(&self, ticket: Ticket) -> Work<B> {
        Work::new(Arc::clone(&self.shared), ticket)
    }
}
