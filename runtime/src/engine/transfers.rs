//! Point-to-point messages: `send` and `recv`.
//!
//! All transfers between two ranks share one channel. Which receive gets which message: see [`super::matching`].
//! Messages to oneself never reach a transport: they are matched here, by the same rule.

use std::any::Any;
use std::collections::VecDeque;
use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::{Channel, Error, ErrorKind, Piece, Posted};

use super::copies::CopyLines;
use super::gpu_messages::{GpuMessage, GpuMessages};
use super::inbox::Inbox;
use super::links::Links;
use super::listed::Listed;
use super::matching::label;
use super::probing::Labels;
use super::token::{Kind, MOST_SLOTS, Name, TRANSFER};
use super::unexpected::Allowance;
use crate::call::AdapterAccess;

/// The channel index that transfers use; operations use higher ones.
pub(crate) const TRANSFER_CHANNEL: u16 = 0;

/// In the place of a rank: a receive takes the first message from any rank.
pub(crate) const ANY_SOURCE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Free,
    Posted,
    Done,
}

#[derive(Debug)]
pub(super) struct Transfer {
    pub(super) phase: Phase,
    pub(super) generation: u16,
    forgotten: bool,
    /// [`ANY_SOURCE`] until a receive from there has its message.
    pub(super) peer: u32,
    pub(super) tag: u64,
    /// Of a probe.
    pub(super) labels: Option<Labels>,
    /// Counts the calls.
    pub(super) order: u64,
    pub(super) kind: Kind,
    /// The memory that the transport reads or writes: the caller's, or that of `on_gpu`.
    pub(super) piece: Listed,
    /// If the caller's memory is a GPU's.
    pub(super) on_gpu: Option<Box<GpuMessage>>,
    keep: Option<Box<dyn Any + Send>>,
}

impl Transfer {
    pub(super) const fn name(&self, slot: u16, kind: Kind) -> Name {
        Name { slot, generation: self.generation, instance: TRANSFER, lane: 0, kind }
    }
}

/// Peer and memory of a message.
#[derive(Debug)]
pub(crate) struct TransferJob {
    pub(crate) kind: Kind,
    /// Or [`ANY_SOURCE`] for a receive.
    pub(crate) peer: u32,
    /// The label, by which messages are matched, in the lower half; communicator and type, which must agree too, in the upper.
    pub(crate) tag: u64,
    /// For a probe, which has no memory: the labels that it looks for.
    pub(crate) labels: Option<Labels>,
    pub(crate) memory: Piece,
    /// The GPU that owns the memory, if it is not the host's, and how adapters access it.
    pub(crate) gpu: Option<(Arc<Gpu>, AdapterAccess)>,
    pub(crate) keep: Option<Box<dyn Any + Send>>,
}

/// All transfers of a communicator.
#[derive(Debug)]
pub(crate) struct Transfers {
    pub(super) rank: u32,
    pub(super) slots: Vec<Transfer>,
    free: Vec<u16>,
    active: usize,
    calls: u64,
    pub(super) sends_to_self: VecDeque<u16>,
    /// By rank.
    pub(super) inboxes: Vec<Inbox>,
    /// Receives from any source, in the order of the calls.
    pub(super) anyone: VecDeque<u16>,
    /// Probes that have found nothing yet.
    pub(super) probes: Vec<u16>,
    /// Ranks whose inboxes are to be looked at.
    pub(super) dirty: Vec<u32>,
    pub(super) allowance: Allowance,
    /// Whether a message was held up by a lack of room.
    pub(super) held_up: bool,
    pub(super) gpu_messages: GpuMessages,
}

// SAFETY: as for operations: the memory of a transfer stays valid and untouched while it runs.
unsafe impl Send for Transfers {}

impl Transfers {
    /// `unexpected_max` bounds the bytes of unexpected messages taken in.
    pub(crate) fn new(rank: u32, ranks: usize, unexpected_max: usize) -> Self {
        Self {
            rank,
            slots: Vec::new(),
            free: Vec::new(),
            active: 0,
            calls: 0,
            sends_to_self: VecDeque::new(),
            inboxes: std::iter::repeat_with(Inbox::default).take(ranks.max(rank as usize + 1)).collect(),
            gpu_messages: GpuMessages::new(ranks.max(rank as usize + 1)),
            anyone: VecDeque::new(),
            probes: Vec::new(),
            dirty: Vec::new(),
            allowance: Allowance::new(unexpected_max),
            held_up: false,
        }
    }

    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Whether so many more can be outstanding.
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.slots.len() - self.free.len() + more <= MOST_SLOTS
    }

    /// Posts a transfer; its slot and generation name it from then on.
    ///
    /// # Safety
    /// The memory is valid until the transfer is done or the links have been aborted and the copies settled.
    pub(crate) unsafe fn start(
        &mut self,
        job: TransferJob,
        links: &mut Links,
        copies: &mut CopyLines,
    ) -> Result<(u16, u16), Error> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len()).map_err(|_| {
                    let detail = "more than 65536 sends and receives are outstanding; wait for some of them";
                    Error::new(ErrorKind::Usage, "kolo", Some(job.peer), detail)
                })?;
                self.slots.push(Transfer {
                    phase: Phase::Free,
                    generation: 0,
                    forgotten: false,
                    peer: 0,
                    tag: 0,
                    labels: None,
                    order: 0,
                    kind: job.kind,
                    piece: Listed::new(job.memory),
                    on_gpu: None,
                    keep: None,
                });
                slot
            }
        };
        let transfer = &mut self.slots[slot as usize];
        transfer.generation = transfer.generation.wrapping_add(1);
        (transfer.phase, transfer.forgotten) = (Phase::Posted, false);
        (transfer.peer, transfer.tag, transfer.keep) = (job.peer, job.tag, job.keep);
        transfer.piece.set(job.memory);
        (transfer.kind, transfer.labels, transfer.on_gpu) = (job.kind, job.labels, None);
        self.calls += 1;
        transfer.order = self.calls;
        let generation = transfer.generation;
        self.active += 1;
        if let Some(gpu) = job.gpu.filter(|_| job.memory.len > 0) {
            self.carry(slot, gpu, copies)?;
        }
        match job.kind {
            Kind::Recv if self.slots[slot as usize].labels.is_some() => self.start_probe(slot, links)?,
            Kind::Recv => self.start_recv(slot, links)?,
            Kind::Send if self.waits_for_turn(slot) => {}
            Kind::Send => self.start_send(slot, links)?,
        }
        self.store_arrived(copies)?;
        Ok((slot, generation))
    }

    /// Posts a send whose turn it is.
    pub(super) fn start_send(&mut self, slot: u16, links: &mut Links) -> Result<(), Error> {
        let transfer = &self.slots[slot as usize];
        if transfer.peer == self.rank {
            self.sends_to_self.push_back(slot);
            self.match_self()?;
            self.answer_probes();
            return self.settle(links);
        }
        let on = Channel { peer: transfer.peer, index: TRANSFER_CHANNEL };
        let token = transfer.name(slot, Kind::Send).token();
        let (tag, pieces) = (transfer.tag, transfer.piece.pieces());
        // SAFETY: the list stays where it is and is not changed while posted; the memory is valid by the promise of `start`.
        if unsafe { links.post_send(on, tag, pieces, token) }? == Posted::Done {
            self.completed(slot);
        }
        Ok(())
    }

    /// A transfer is over, except for its copy to a GPU.
    #[inline]
    pub(crate) fn completed(&mut self, slot: u16) {
        if self.slots[slot as usize].on_gpu.is_some() && self.unload(slot) {
            return;
        }
        let transfer = &mut self.slots[slot as usize];
        transfer.phase = Phase::Done;
        self.active -= 1;
        if transfer.forgotten {
            drop(self.finish(slot));
        }
    }

    /// Declares that the result is no longer needed.
    pub(crate) fn forget(&mut self, slot: u16) {
        self.slots[slot as usize].forgotten = true;
    }

    pub(crate) fn is_current(&self, slot: u16, generation: u16) -> bool {
        self.slots.get(slot as usize).is_some_and(|t| t.generation == generation && t.phase == Phase::Posted)
    }

    pub(crate) fn is_done(&self, slot: u16, generation: u16) -> bool {
        self.slots.get(slot as usize).is_none_or(|t| t.generation != generation || t.phase != Phase::Posted)
    }

    pub(crate) fn peer(&self, slot: u16) -> u32 {
        self.slots[slot as usize].peer
    }

    /// Frees a slot and returns the buffers that it kept.
    pub(crate) fn finish(&mut self, slot: u16) -> Option<Box<dyn Any + Send>> {
        let transfer = &mut self.slots[slot as usize];
        if transfer.phase == Phase::Posted {
            self.active -= 1;
        }
        transfer.phase = Phase::Free;
        let keep = transfer.keep.take();
        self.free.push(slot);
        keep
    }

    /// Notes the end of the transport's part of a transfer; does nothing if the token is an earlier one's.
    pub(crate) fn done(&mut self, name: Name) -> Result<(), Error> {
        if let Some(peer) = name.store() {
            return self.stored(peer);
        }
        if self.is_current(name.slot, name.generation) {
            match name.kind {
                Kind::Send => self.completed(name.slot),
                Kind::Recv => self.received(name.slot),
            }
        }
        Ok(())
    }

    /// A receive came back from the transport.
    pub(crate) fn came_back(&mut self, name: Name) {
        if self.is_current(name.slot, name.generation) {
            self.returned(name.slot);
        }
    }

    /// Ranks of which one is to act before a transfer can be over.
    pub(crate) fn waiting_for(&self, slot: u16) -> Vec<u32> {
        match self.peer(slot) {
            ANY_SOURCE => (0..self.inboxes.len() as u32).filter(|rank| *rank != self.rank).collect(),
            peer => vec![peer],
        }
    }

    /// Label and length of the message that stands before those of a rank that are waited for, and the bytes that may be
    /// taken in at most.
    pub(crate) fn stands_before(&self, peer: u32) -> Option<(u32, u64, usize)> {
        let head = self.inboxes.get(peer as usize)?.head?;
        Some((label(head.tag), head.len, self.allowance.max()))
    }

    /// Forgets all waiting transfers: the links have been aborted, and memory may go.
    pub(crate) fn abort(&mut self) {
        self.sends_to_self.clear();
        self.anyone.clear();
        self.probes.clear();
        self.dirty.clear();
        self.gpu_messages.clear();
        self.inboxes.iter_mut().for_each(Inbox::clear);
    }
}

/// A message met a receive of another type or length.
pub(super) fn misfit(peer: u32, expected_tag: u64, expected_len: usize, tag: u64, len: u64) -> Error {
    let kind = ErrorKind::Mismatch { expected_tag, tag, expected_len: expected_len as u64, len };
    Error::new(kind, "kolo", Some(peer), "a message does not fit the receive that it is for")
}
