//! Asynchronous sends and receives on borrowed buffers.

use super::messages::{RawMessage, Transfer};
use super::scope::Scope;
use crate::error::Result;
use crate::types::Element;

impl<'buffers> Scope<'buffers, '_> {
    /// Starts a send.
    ///
    /// # Errors
    /// See [`Communicator::send`](super::Communicator::send).
    pub fn send<T: Element>(&self, data: &'buffers [T], to: u32) -> Result<()> {
        self.send_tagged(data, to, 0)
    }

    /// Starts a receive.
    ///
    /// # Errors
    /// See [`Communicator::recv`](super::Communicator::recv).
    pub fn recv<T: Element>(&self, data: &'buffers mut [T], from: u32) -> Result<()> {
        self.recv_tagged(data, from, 0)
    }

    /// Starts a send with a tag.
    ///
    /// # Errors
    /// See [`Communicator::send`](super::Communicator::send).
    pub fn send_tagged<T: Element>(&self, data: &'buffers [T], to: u32, tag: u32) -> Result<()> {
        self.start_message(Transfer::send(RawMessage::of(data, tag), to), None)
    }

    /// Starts a receive of a message with this tag.
    ///
    /// # Errors
    /// See [`Communicator::recv`](super::Communicator::recv).
    pub fn recv_tagged<T: Element>(&self, data: &'buffers mut [T], from: u32, tag: u32) -> Result<()> {
        self.start_message(Transfer::recv(RawMessage::of_mut(data, tag), from), None)
    }

    /// Starts a receive of a message with this tag from whichever rank sends one first. After the end of the scope,
    /// `source` is that rank.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`](super::Communicator::recv_any).
    pub fn recv_any_tagged<T: Element>(
        &self,
        data: &'buffers mut [T],
        tag: u32,
        source: &'buffers mut u32,
    ) -> Result<()> {
        self.start_message(Transfer::recv_any(RawMessage::of_mut(data, tag)), Some(source))
    }

    fn start_message(&self, transfer: Transfer, source: Option<&'buffers mut u32>) -> Result<()> {
        // SAFETY: the buffer is borrowed for 'buffers, which outlives the scope, and the scope does not end before the
        // transfer is done or the engine was aborted.
        let ticket = unsafe { self.communicator.start_transfer(transfer, None) }?;
        self.note(ticket, source);
        Ok(())
    }
}
