//! Asynchronous sends and receives on owned buffers or on raw memory.
//!
//! They are matched in the order of the calls, together with blocking sends and receives. Up to 65,000 may be in
//! flight.

use std::sync::Arc;

use super::Communicator;
use super::messages::{RawMessage, Transfer};
use super::stable::StableBuffer;
use super::work::{Kept, Work};
use crate::error::Result;
use crate::types::Element;

/// # Asynchronous messages
impl Communicator {
    /// Starts a send; the work gives the buffer back once it may be changed.
    ///
    /// # Errors
    /// See [`Communicator::send`].
    pub fn send_start<B>(&self, data: B, to: u32) -> Result<Work<B>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        self.send_tagged_start(data, to, 0)
    }

    /// Like [`Communicator::send_start`], with a tag.
    ///
    /// # Errors
    /// See [`Communicator::send`].
    pub fn send_tagged_start<B>(&self, data: B, to: u32, tag: u32) -> Result<Work<B>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        let kept = Box::new(data);
        let transfer = Transfer::send(RawMessage::of(kept.elements_ref(), tag), to);
        // SAFETY: the engine keeps the buffer, which does not move any more, until the send is done.
        let ticket = unsafe { self.start_transfer(transfer, Some(kept)) }?;
        Ok(self.work(ticket))
    }

    /// Starts a receive of exactly as many elements as `data` has; the work gives the buffer back with the message.
    ///
    /// # Errors
    /// See [`Communicator::recv`].
    pub fn recv_start<B>(&self, data: B, from: u32) -> Result<Work<B>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        self.recv_tagged_start(data, from, 0)
    }

    /// Like [`Communicator::recv_start`], for a message with this tag.
    ///
    /// # Errors
    /// See [`Communicator::recv`].
    pub fn recv_tagged_start<B>(&self, data: B, from: u32, tag: u32) -> Result<Work<B>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        let mut kept = Box::new(data);
        let transfer = Transfer::recv(RawMessage::of_mut(kept.elements(), tag), from);
        // SAFETY: as above.
        let ticket = unsafe { self.start_transfer(transfer, Some(kept)) }?;
        Ok(self.work(ticket))
    }

    /// Starts a receive from whichever rank sends first; the work gives the message and its source.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn recv_any_start<B>(&self, data: B) -> Result<Work<(B, u32)>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        self.recv_any_tagged_start(data, 0)
    }

    /// Like [`Communicator::recv_any_start`], for a message with this tag.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn recv_any_tagged_start<B>(&self, data: B, tag: u32) -> Result<Work<(B, u32)>>
    where
        B: StableBuffer<Item: Element> + Send + 'static,
    {
        let mut kept = Box::new(data);
        let transfer = Transfer::recv_any(RawMessage::of_mut(kept.elements(), tag));
        // SAFETY: as above.
        let ticket = unsafe { self.start_transfer(transfer, Some(kept)) }?;
        let result = |kept: Kept, source: Option<u32>| Some((*kept.downcast::<B>().ok()?, source?));
        Ok(Work::extracting(Arc::clone(&self.shared), ticket, result))
    }
}

/// # Asynchronous messages on raw memory, for bindings
impl Communicator {
    /// Starts a send of raw memory.
    ///
    /// # Errors
    /// See [`Communicator::send`].
    ///
    /// # Safety
    /// The memory is valid and not written until the work is done or its wait has returned an error; if the handle is
    /// dropped, until the communicator is dropped.
    pub unsafe fn send_raw_start(&self, message: &RawMessage, to: u32) -> Result<Work<()>> {
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.start_transfer(Transfer::send(*message, to), Some(Box::new(()))) }?;
        Ok(self.work(ticket))
    }

    /// Starts a receive into raw memory; the work gives the source, which is `from`.
    ///
    /// # Errors
    /// See [`Communicator::recv`].
    ///
    /// # Safety
    /// The memory is valid, and nobody else touches it, until the work is done or its wait has returned an error; if
    /// the handle is dropped, until the communicator is dropped.
    pub unsafe fn recv_raw_start(&self, message: &RawMessage, from: u32) -> Result<Work<u32>> {
        // SAFETY: the caller's promise.
        unsafe { self.recv_source_start(Transfer::recv(*message, from)) }
    }

    /// Starts a receive into raw memory from whichever rank sends first; the work gives the source.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    ///
    /// # Safety
    /// See [`Communicator::recv_raw_start`].
    pub unsafe fn recv_any_raw_start(&self, message: &RawMessage) -> Result<Work<u32>> {
        // SAFETY: the caller's promise.
        unsafe { self.recv_source_start(Transfer::recv_any(*message)) }
    }

    /// Like [`Communicator::send_raw_start`], on memory that `owner` keeps alive. The send takes `owner`, and waiting
    /// for it gives `owner` back.
    ///
    /// # Errors
    /// See [`Communicator::send`].
    ///
    /// # Safety
    /// The memory is valid and not written for as long as `owner` lives. Any thread may drop `owner`.
    pub unsafe fn send_raw_keeping<B: Send + 'static>(
        &self,
        message: &RawMessage,
        to: u32,
        owner: B,
    ) -> Result<Work<B>> {
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.start_transfer(Transfer::send(*message, to), Some(Box::new(owner))) }?;
        Ok(self.work(ticket))
    }

    /// Starts a receive into memory that `owner` keeps alive, from rank `from` or from whichever rank sends first;
    /// the work gives `owner` back, with the source.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    ///
    /// # Safety
    /// The memory is valid, and nobody else touches it, for as long as `owner` lives. Any thread may drop `owner`.
    pub unsafe fn recv_raw_keeping<B: Send + 'static>(
        &self,
        message: &RawMessage,
        from: Option<u32>,
        owner: B,
    ) -> Result<Work<(B, u32)>> {
        let transfer = from.map_or(Transfer::recv_any(*message), |from| Transfer::recv(*message, from));
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.start_transfer(transfer, Some(Box::new(owner))) }?;
        let result = |kept: Kept, source: Option<u32>| Some((*kept.downcast::<B>().ok()?, source?));
        Ok(Work::extracting(Arc::clone(&self.shared), ticket, result))
    }

    unsafe fn recv_source_start(&self, transfer: Transfer) -> Result<Work<u32>> {
        // SAFETY: the caller's promise.
        let ticket = unsafe { self.start_transfer(transfer, Some(Box::new(()))) }?;
        Ok(Work::extracting(Arc::clone(&self.shared), ticket, |_, source| source))
    }
}
