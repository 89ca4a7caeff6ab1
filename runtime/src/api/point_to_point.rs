//! Blocking send and receive.
//!
//! Each message has a tag, 0 if none is given. Messages from one rank to another with the same tag match the receives
//! for that tag in the order of the calls. Lengths and element types must agree.
//!
//! The receiver buffers a message that arrives before one with the tag that is asked for, up to
//! `KOLO_UNEXPECTED_BYTES`. Beyond that limit the message waits with its sender, and so do the messages behind it.

use super::Communicator;
use super::batch::Batch;
use crate::error::Result;
use crate::types::Element;

/// # Messages
impl Communicator {
    /// Sends `data` to rank `to`. Blocks until `data` may be changed, which may be before the peer has received it.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn send<T: Element>(&self, data: &[T], to: u32) -> Result<()> {
        self.batch().send(data, to).run()
    }

    /// Receives exactly `data.len()` elements from rank `from`. Blocks until they have arrived.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn recv<T: Element>(&self, data: &mut [T], from: u32) -> Result<()> {
        self.batch().recv(data, from).run()
    }

    /// Like [`Communicator::send`], with a tag.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn send_tagged<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<()> {
        self.batch().send_tagged(data, to, tag).run()
    }

    /// Like [`Communicator::recv`], for a message with this tag.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn recv_tagged<T: Element>(&self, data: &mut [T], from: u32, tag: u32) -> Result<()> {
        self.batch().recv_tagged(data, from, tag).run()
    }

    /// Receives from whichever rank sends first, and returns that rank. Blocks until the message has arrived.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls). [`crate::Error::Unsupported`] if a transport in use cannot
    /// receive from any source.
    pub fn recv_any<T: Element>(&self, data: &mut [T]) -> Result<u32> {
        self.recv_any_tagged(data, 0)
    }

    /// Like [`Communicator::recv_any`], for a message with this tag.
    ///
    /// # Errors
    /// See [`Communicator::recv_any`].
    pub fn recv_any_tagged<T: Element>(&self, data: &mut [T], tag: u32) -> Result<u32> {
        let mut source = 0;
        self.batch().recv_any_tagged(data, tag, &mut source).run()?;
        Ok(source)
    }

    /// Sends and receives at the same time, so that rings and exchanges cannot deadlock.
    ///
    /// # Errors
    /// See [errors of calls](Communicator#errors-of-calls).
    pub fn send_recv<T: Element>(&self, send: &[T], to: u32, recv: &mut [T], from: u32) -> Result<()> {
        self.batch().send(send, to).recv(recv, from).run()
    }

    /// Returns an empty group, to which sends and receives are added that run together. No pattern of them deadlocks.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(self)
    }
}
