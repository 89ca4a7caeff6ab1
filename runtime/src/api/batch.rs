//! Groups of sends and receives that run together.

use std::marker::PhantomData;
use std::time::Duration;

use super::Communicator;
use super::messages::{RawMessage, Transfer};
use super::work::Work;
use crate::drive;
use crate::error::Result;
use crate::types::{DataType, Element};

/// Sends and receives that run together. Their order does not matter, so no pattern of them deadlocks.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Batch<'a> {
    communicator: &'a Communicator,
    transfers: Vec<Transfer>,
    /// Receives from any source, by their index, with the place for the source.
    sources: Vec<(usize, &'a mut u32)>,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Batch<'a> {
    pub(super) const fn new(communicator: &'a Communicator) -> Self {
        Self { communicator, transfers: Vec::new(), sources: Vec::new(), _memory: PhantomData }
    }

    /// Adds a send.
    pub fn send<T: Element>(self, data: &'a [T], to: u32) -> Self {
        self.send_tagged(data, to, 0)
    }

    /// Adds a receive.
    pub fn recv<T: Element>(self, data: &'a mut [T], from: u32) -> Self {
        self.recv_tagged(data, from, 0)
    }

    /// Adds a send with a tag.
    pub fn send_tagged<T: Element>(self, data: &'a [T], to: u32, tag: u32) -> Self {
        // SAFETY: the slice is borrowed until `run` is over.
        unsafe { self.send_message(RawMessage::of(data, tag), to) }
    }

    /// Adds a receive of a message with this tag.
    pub fn recv_tagged<T: Element>(self, data: &'a mut [T], from: u32, tag: u32) -> Self {
        // SAFETY: the slice is exclusively borrowed until `run` is over.
        unsafe { self.recv_message(RawMessage::of_mut(data, tag), from) }
    }

    /// Adds a receive of a message with this tag from whichever rank sends one first. [`Batch::run`] stores that rank
    /// in `source`.
    pub fn recv_any_tagged<T: Element>(self, data: &'a mut [T], tag: u32, source: &'a mut u32) -> Self {
        // SAFETY: the slice is exclusively borrowed until `run` is over.
        unsafe { self.recv_any_message(RawMessage::of_mut(data, tag), source) }
    }

    /// Adds a send of raw memory, without a tag.
    ///
    /// # Safety
    /// See [`Batch::send_message`].
    pub unsafe fn send_raw(self, data: *const u8, bytes: usize, data_type: DataType, to: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.send_message(RawMessage { data: data.cast_mut(), bytes, data_type, tag: 0 }, to) }
    }

    /// Adds a receive into raw memory, without a tag.
    ///
    /// # Safety
    /// See [`Batch::recv_message`].
    pub unsafe fn recv_raw(self, data: *mut u8, bytes: usize, data_type: DataType, from: u32) -> Self {
        // SAFETY: the caller's promise.
        unsafe { self.recv_message(RawMessage { data, bytes, data_type, tag: 0 }, from) }
    }

    /// Adds a send of raw memory.
    ///
    /// # Safety
    /// The memory is valid and not written until `run` returns, or for as long as [`Batch::start`] asks.
    pub unsafe fn send_message(mut self, message: RawMessage, to: u32) -> Self {
        self.transfers.push(Transfer::send(message, to));
        self
    }

    /// Adds a receive into raw memory.
    ///
    /// # Safety
    /// The memory is valid, and nobody else touches it, until `run` returns, or for as long as [`Batch::start`] asks.
    pub unsafe fn recv_message(mut self, message: RawMessage, from: u32) -> Self {
        self.transfers.push(Transfer::recv(message, from));
        self
    }

    /// Adds a receive into raw memory from whichever rank sends a message with its tag first. [`Batch::run`] stores
    /// that rank in `source`.
    ///
    /// # Safety
    /// See [`Batch::recv_message`].
    pub unsafe fn recv_any_message(mut self, message: RawMessage, source: &'a mut u32) -> Self {
        self.sources.push((self.transfers.len(), source));
        self.transfers.push(Transfer::recv_any(message));
        self
    }

    /// Runs all sends and receives. Blocks until all are done.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn run(self) -> Result<()> {
        let limit = self.communicator.shared.config.timeout;
        self.run_within(limit)
    }

    /// Like [`Batch::run`], with a time-out of its own for all messages together.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn run_within(self, limit: Duration) -> Result<()> {
        let shared = &self.communicator.shared;
        let mut sources = self.sources.into_iter().peekable();
        drive::lend(shared, || {
            // SAFETY: the memory is borrowed until this returns. It returns an error, and a panic leaves it, only
            // after the engine was aborted.
            let (core, tickets) = unsafe { self.communicator.post(&self.transfers, None) }?;
            drive::wait_for_all(shared, core, tickets.iter().copied(), limit, |core, id| {
                if let Some((_, source)) = sources.next_if(|(at, _)| tickets[*at].id == id) {
                    *source = core.engine.other_end(id).unwrap_or_default();
                }
                core.engine.release(id);
            })?;
            Ok(())
        })
    }

    /// Starts all sends and receives. The work is done when all of them are. Sources are not stored: start receives
    /// from any source one by one.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    ///
    /// # Safety
    /// The memory of each message stays as its method asks until the work is done or its wait has returned an error;
    /// if the handle is dropped, until the communicator is dropped.
    pub unsafe fn start(self) -> Result<Work<()>> {
        let communicator = self.communicator;
        // SAFETY: the caller's promise.
        let mut tickets =
            unsafe { communicator.start_transfers(&self.transfers, Some(Box::new(()))) }?.into_iter();
        let Some(first) = tickets.next() else {
            return Err(communicator.usage("grouped send and recv", "an empty group".to_owned()));
        };
        Ok(communicator.work(first).with_more(tickets.collect()))
    }
}
