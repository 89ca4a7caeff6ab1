//! Messages from and to GPU memory, which travel through pinned host memory, or directly where adapters reach GPU
//! memory.
//!
//! A message is one post at the transport, so its pinned memory is as long as the message. A send is posted once its
//! bytes are on the host. Later sends to the same rank wait until then, since messages are matched in the order in
//! which they were sent. A receive is over once its bytes are on the GPU; where adapters reach the memory, once they
//! are flushed.

use std::collections::VecDeque;
use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::{DeviceCopier, Error, Piece};

use super::copies::{CopyKind, CopyQueues, Mark, failed};
use super::links::Links;
use super::staging::Staging;
use super::sync_copy::SyncCopier;
use super::token::Kind;
use super::transfers::Transfers;
use crate::call::AdapterAccess;

/// Most pinned memory kept for later messages. Pinning costs more than copying, and a host may lock only so much.
const SPARE_BYTES: usize = 32 << 20;

/// A message on its way between a GPU and the transport.
#[derive(Debug)]
pub(super) struct GpuMessage {
    gpu: Arc<Gpu>,
    /// The caller's memory on the GPU.
    there: Piece,
    /// Pinned host memory; `None` where adapters reach the caller's memory.
    here: Option<Staging>,
    /// Whether the adapters' writes must be flushed, for direct access.
    flush: bool,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The bytes of a send are being copied from the GPU.
    Loading,
    /// The message is at the transport, or may be posted there.
    Here,
    /// The bytes of a receive are being copied to the GPU.
    Storing,
}

/// The memory that carries messages of GPUs, and the sends that wait for their bytes.
#[derive(Debug)]
pub(super) struct GpuMessages {
    /// Sends by rank, in the order of the calls; empty while nothing is being loaded for that rank.
    queued_sends: Vec<VecDeque<u16>>,
    /// Receives whose bytes are on the host.
    arrived: Vec<u16>,
    spare: Vec<Staging>,
    /// By the GPU's number, for buffered messages that go to memory that adapters reach.
    sync_copiers: Vec<(u32, SyncCopier)>,
}

impl GpuMessages {
    pub(super) fn new(ranks: usize) -> Self {
        Self {
            queued_sends: vec![VecDeque::new(); ranks],
            arrived: Vec::new(),
            spare: Vec::new(),
            sync_copiers: Vec::new(),
        }
    }

    pub(super) fn clear(&mut self) {
        self.queued_sends.iter_mut().for_each(VecDeque::clear);
        self.arrived.clear();
    }

    fn take(&mut self, bytes: usize) -> Staging {
        let fits = self.spare.iter().position(|memory| memory.bytes() >= bytes);
        let mut memory = fits.map_or_else(Staging::new, |at| self.spare.swap_remove(at));
        memory.reserve(bytes);
        memory
    }

    fn give_back(&mut self, memory: Staging) {
        let kept: usize = self.spare.iter().map(Staging::bytes).sum();
        if kept + memory.bytes() <= SPARE_BYTES {
            self.spare.push(memory);
        }
    }

    fn sync_copier(&mut self, gpu: &Arc<Gpu>) -> Result<&SyncCopier, Error> {
        let known = self.sync_copiers.iter().position(|(number, _)| *number == gpu.number());
        let at = match known {
            Some(at) => at,
            None => {
                self.sync_copiers.push((gpu.number(), SyncCopier::new(gpu)?));
                self.sync_copiers.len() - 1
            }
        };
        Ok(&self.sync_copiers[at].1)
    }

    /// Returns the bytes kept for later messages.
    pub(super) fn spare_bytes(&self) -> usize {
        self.spare.iter().map(Staging::bytes).sum()
    }
}

impl Transfers {
    /// Gives a transfer host memory in place of GPU memory, and starts to load it if the transfer is a send.
    pub(super) fn carry(
        &mut self,
        slot: u16,
        (gpu, access): (Arc<Gpu>, AdapterAccess),
        copies: &mut CopyQueues,
    ) -> Result<(), Error> {
        let transfer = &mut self.slots[slot as usize];
        let there = transfer.piece.get();
        if let AdapterAccess::Direct { flush } = access {
            if transfer.kind == Kind::Recv {
                let message = GpuMessage { gpu, there, here: None, flush, phase: Phase::Here };
                transfer.on_gpu = Some(Box::new(message));
            }
            return Ok(());
        }
        let mut here = self.gpu_messages.take(there.len);
        here.pin(&gpu)?;
        transfer.piece.set(Piece { ptr: here.ptr(), len: there.len });
        let mut phase = Phase::Here;
        if transfer.kind == Kind::Send {
            let part = [(there.ptr.cast_const(), here.ptr(), there.len)];
            let mark = Mark::Transfer { slot, generation: transfer.generation };
            // SAFETY: the memory is valid by the promise to `start`. The host memory is pinned and kept with the
            // transfer, which is not over before the mark is returned; an abort settles copies first.
            unsafe { copies.start(CopyKind::Load, &gpu, part, mark) }?;
            phase = Phase::Loading;
        }
        transfer.on_gpu = Some(Box::new(GpuMessage { gpu, there, here: Some(here), flush: false, phase }));
        Ok(())
    }

    /// Returns whether a send has to wait for its bytes, or for earlier sends that wait for theirs. If so, the send is
    /// queued.
    pub(super) fn waits_for_turn(&mut self, slot: u16) -> bool {
        let transfer = &self.slots[slot as usize];
        let queued = &mut self.gpu_messages.queued_sends[transfer.peer as usize];
        let waits = !queued.is_empty() || transfer.is_loading();
        if waits {
            queued.push_back(slot);
        }
        waits
    }

    /// Handles the end of a message's copy.
    pub(super) fn copied(&mut self, slot: u16, links: &mut Links) -> Result<(), Error> {
        let Some(message) = &mut self.slots[slot as usize].on_gpu else { return Ok(()) };
        if std::mem::replace(&mut message.phase, Phase::Here) == Phase::Storing {
            self.put_down(slot);
            self.completed(slot);
            return Ok(());
        }
        let peer = self.slots[slot as usize].peer as usize;
        while let Some(first) = self.gpu_messages.queued_sends[peer].front().copied() {
            if self.slots[first as usize].is_loading() {
                break;
            }
            self.gpu_messages.queued_sends[peer].pop_front();
            self.start_send(first, links)?;
        }
        Ok(())
    }

    /// Handles a GPU message that the transport has completed. Returns whether it must still be copied to the GPU.
    pub(super) fn unload(&mut self, slot: u16) -> bool {
        if self.slots[slot as usize].kind == Kind::Send {
            self.put_down(slot);
            return false;
        }
        self.gpu_messages.arrived.push(slot);
        true
    }

    /// Starts to copy arrived messages to their places.
    pub(super) fn store_arrived(&mut self, copies: &mut CopyQueues) -> Result<(), Error> {
        while let Some(slot) = self.gpu_messages.arrived.pop() {
            let transfer = &mut self.slots[slot as usize];
            let Some(message) = &mut transfer.on_gpu else { continue };
            let Some(here) = &message.here else {
                if message.flush {
                    copies.flush(&message.gpu)?;
                }
                self.put_down(slot);
                self.completed(slot);
                continue;
            };
            let part = [(here.ptr().cast_const(), message.there.ptr, message.there.len)];
            let mark = Mark::Transfer { slot, generation: transfer.generation };
            // SAFETY: as in `carry`.
            unsafe { copies.start(CopyKind::Store, &message.gpu, part, mark) }?;
            message.phase = Phase::Storing;
        }
        Ok(())
    }

    /// Copies a buffered message to the memory of its receive.
    ///
    /// # Safety
    /// The receive is not over, and it is as long as the message.
    pub(super) unsafe fn put(&mut self, slot: u16, from: *const u8) -> Result<(), Error> {
        let transfer = &self.slots[slot as usize];
        let Piece { ptr, len } = transfer.piece.get();
        let gpu = transfer.on_gpu.as_ref().filter(|message| message.here.is_none()).map(|c| &c.gpu);
        let Some(gpu) = gpu else {
            // SAFETY: the caller's promise. A rank may send to itself from the memory into which it receives; `copy`
            // permits the overlap.
            unsafe { ptr.copy_from(from, len) };
            return Ok(());
        };
        // SAFETY: the caller's promise.
        unsafe { self.gpu_messages.sync_copier(gpu)?.store(from, ptr, len) }.map_err(failed)
    }

    fn put_down(&mut self, slot: u16) {
        if let Some(message) = self.slots[slot as usize].on_gpu.take() {
            message.here.into_iter().for_each(|memory| self.gpu_messages.give_back(memory));
        }
    }
}

impl super::transfers::Transfer {
    fn is_loading(&self) -> bool {
        self.on_gpu.as_ref().is_some_and(|message| message.phase == Phase::Loading)
    }
}
