//! Send and receive.
//!
//! The i-th send from one rank to another meets the i-th receive of that pair, in the order of the calls; there are no
//! tags. Lengths and element types must agree.

use std::marker::PhantomData;

use kolo_transport::Piece;

use super::Communicator;
use super::shared::Core;
use super::waited::{Message, Waited};
use crate::call::transfer_tag;
use crate::engine::{Id, Kind, TransferJob};
use crate::error::Result;
use crate::types::{DataType, Element};

impl Communicator {
    /// Sends `data` to rank `to`. Blocks until `data` may be changed, which may be before the peer has received it.
    ///
    /// # Errors
    /// As the collectives.
    pub fn send<T: Element>(&self, data: &[T], to: u32) -> Result<()> {
        self.batch().send(data, to).run()
    }

    /// Receives exactly `data.len()` elements from rank `from`. Blocks until they are there.
    ///
    /// # Errors
    /// As the collectives.
    pub fn recv<T: Element>(&self, data: &mut [T], from: u32) -> Result<()> {
        self.batch().recv(data, from).run()
    }

    /// Sends and receives at the same time, so that rings and exchanges cannot deadlock.
    ///
    /// # Errors
    /// As the collectives.
    pub fn send_recv<T: Element>(&self, send: &[T], to: u32, recv: &mut [T], from: u32) -> Result<()> {
        self.batch().send(send, to).recv(recv, from).run()
    }

    /// Groups sends and receives that run together, whatever their order: no pattern of them deadlocks.
    pub fn batch(&self) -> Batch<'_> {
        Batch { communicator: self, transfers: Vec::new(), _memory: PhantomData }
    }
}

/// Sends and receives that run together.
#[derive(Debug)]
#[must_use = "nothing happens before `run`"]
pub struct Batch<'a> {
    communicator: &'a Communicator,
    transfers: Vec<(Kind, u32, Piece, DataType)>,
    _memory: PhantomData<&'a mut [u8]>,
}

impl<'a> Batch<'a> {
    /// Adds a send.
    pub fn send<T: Element>(self, data: &'a [T], to: u32) -> Self {
        // SAFETY: the slice is borrowed until `run` is over.
        unsafe { self.send_raw(data.as_ptr().cast(), size_of_val(data), T::TYPE, to) }
    }

    /// Adds a receive.
    pub fn recv<T: Element>(self, data: &'a mut [T], from: u32) -> Self {
        // SAFETY: the slice is exclusively borrowed until `run` is over.
        unsafe { self.recv_raw(data.as_mut_ptr().cast(), size_of_val(data), T::TYPE, from) }
    }

    /// Adds a send of raw memory.
    ///
    /// # Safety
    /// `bytes` bytes at `data` are valid and not written until `run` is over.
    pub unsafe fn send_raw(mut self, data: *const u8, bytes: usize, data_type: DataType, to: u32) -> Self {
        self.transfers.push((Kind::Send, to, Piece { ptr: data.cast_mut(), len: bytes }, data_type));
        self
    }

    /// Adds a receive into raw memory.
    ///
    /// # Safety
    /// `bytes` bytes at `data` are valid and not touched by anybody else until `run` is over.
    pub unsafe fn recv_raw(mut self, data: *mut u8, bytes: usize, data_type: DataType, from: u32) -> Self {
        self.transfers.push((Kind::Recv, from, Piece { ptr: data, len: bytes }, data_type));
        self
    }

    /// Runs all of it; blocks until all is done.
    ///
    /// # Errors
    /// As the collectives.
    pub fn run(self) -> Result<()> {
        let shared = &self.communicator.shared;
        let label = match self.transfers.as_slice() {
            [(Kind::Send, ..)] => "send",
            [(Kind::Recv, ..)] => "recv",
            _ => "grouped send and recv",
        };
        for (_, peer, ..) in &self.transfers {
            if *peer >= shared.world_size {
                let problem =
                    format!("rank {peer} is out of range: ranks are 0 to {}", shared.world_size - 1);
                return Err(self.communicator.usage(label, problem));
            }
        }
        let single = match self.transfers.as_slice() {
            [(_, peer, memory, _)] => Some((*peer, memory.len)),
            _ => None,
        };
        let mut core = shared.core();
        let waited = Waited::transfer(label, Message { number: core.messages + 1, single });
        shared.check_usable(&core, waited)?;
        if !core.engine.has_room_for_transfers(self.transfers.len()) {
            let problem = "more than 65000 sends and receives would be outstanding; use smaller groups";
            return Err(self.communicator.usage(label, problem.to_owned()));
        }
        core.messages += 1;
        let mut ids = Vec::with_capacity(self.transfers.len());
        for (kind, peer, memory, data_type) in &self.transfers {
            let tag = transfer_tag(shared.id, *data_type);
            let job = TransferJob { kind: *kind, peer: *peer, tag, memory: *memory, keep: None };
            // SAFETY: the memory is borrowed until this returns; an error only returns after the engine was aborted.
            match unsafe { core.engine.transfer(job) } {
                Ok(id) => ids.push(id),
                Err(error) => {
                    core.engine.note_failure(error);
                    drop(core);
                    return Err(shared.fail(waited));
                }
            }
        }
        for id in ids {
            core = shared.wait_for(core, id, waited, shared.config.timeout)?;
            finish(&mut core, id);
        }
        Ok(())
    }
}

fn finish(core: &mut Core, id: Id) {
    drop(core.engine.finish(id));
}
