//! Point-to-point messages: `send` and `recv`.
//!
//! All transfers between two ranks share one channel. [`super::matching`] decides which receive gets which message.
//! Messages to oneself never reach a transport: they are matched here, by the same rule.

use std::collections::VecDeque;
use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::{Channel, Error, ErrorKind, Piece, Posted};

use super::gpu_messages::{GpuMessage, GpuMessages};
use super::inbox::Inbox;
use super::links::Links;
use super::listed::Listed;
use super::matching::label;
use super::probing::Labels;
use super::token::{Kind, MOST_SLOTS, Name, TRANSFER};
use super::unexpected::Allowance;
use super::{Io, Owner};
use crate::call::AdapterAccess;

/// Channel index of transfers; operations use higher ones.
pub(crate) const TRANSFER_CHANNEL: u16 = 0;

/// Peer of a receive that takes the first message from any rank.
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
    /// Peer; [`ANY_SOURCE`] until a receive from any source has its message.
    pub(super) peer: u32,
    pub(super) tag: u64,
    /// Labels that a probe looks for.
    pub(super) labels: Option<Labels>,
    /// Number of the call.
    pub(super) order: u64,
    pub(super) kind: Kind,
    /// Memory that the transport reads or writes: the caller's, or that of `on_gpu`.
    pub(super) piece: Listed,
    /// State of a message in GPU memory.
    pub(super) on_gpu: Option<Box<GpuMessage>>,
    keep: Option<Owner>,
}

impl Transfer {
    pub(super) const fn name(&self, slot: u16, kind: Kind) -> Name {
        Name { slot, generation: self.generation, instance: TRANSFER, lane: 0, kind }
    }
}

/// Everything needed to start a transfer.
#[derive(Debug)]
pub(crate) struct TransferJob {
    pub(crate) kind: Kind,
    /// Peer, or [`ANY_SOURCE`] for a receive.
    pub(crate) peer: u32,
    /// The lower half is the label, by which messages are matched. The upper half stands for communicator and type,
    /// which must agree too.
    pub(crate) tag: u64,
    /// Labels that a probe looks for. A probe has no memory.
    pub(crate) labels: Option<Labels>,
    pub(crate) memory: Piece,
    /// The GPU that owns the memory, if it is not host memory, and how adapters access it.
    pub(crate) gpu: Option<(Arc<Gpu>, AdapterAccess)>,
    pub(crate) keep: Option<Owner>,
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
    /// Inboxes by rank.
    pub(super) inboxes: Vec<Inbox>,
    /// Receives from any source, in the order of the calls.
    pub(super) anyone: VecDeque<u16>,
    /// Probes that have found nothing yet.
    pub(super) probes: Vec<u16>,
    /// Ranks whose inboxes must be looked at.
    pub(super) dirty: Vec<u32>,
    pub(super) allowance: Allowance,
    /// Whether a message was held up because the limit on buffered bytes was reached.
    pub(super) held_up: bool,
    pub(super) gpu_messages: GpuMessages,
    /// Owners of forgotten transfers that are done.
    pub(super) released: Vec<Owner>,
}

// SAFETY: as for operations: the memory of a transfer stays valid and otherwise untouched while it runs.
unsafe impl Send for Transfers {}

impl Transfers {
    /// Makes transfers that buffer at most `unexpected_max` bytes of unexpected messages.
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
            released: Vec::new(),
        }
    }

    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Returns the number of outstanding transfers that may still matter when the communicator ends: those with a handle,
    /// and sends to other ranks.
    pub(super) fn needed_at_end(&self) -> usize {
        let is_sent = |transfer: &Transfer| transfer.kind == Kind::Send && transfer.peer != self.rank;
        let posted = self.slots.iter().filter(|transfer| transfer.phase == Phase::Posted);
        posted.filter(|transfer| !transfer.forgotten || is_sent(transfer)).count()
    }

    /// Returns whether `more` further transfers can be outstanding.
    pub(crate) fn has_room_for(&self, more: usize) -> bool {
        self.slots.len() - self.free.len() + more <= MOST_SLOTS
    }

    /// Posts a transfer. Returns its slot and generation, which identify it from then on.
    ///
    /// # Safety
    /// The memory is valid until the transfer is done or the links have been aborted and the copies settled.
    pub(crate) unsafe fn start(
        &mut self,
        job: TransferJob,
        Io { links, copies }: &mut Io,
    ) -> Result<(u16, u16), Error> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                // The caller has asked whether there is room.
                let slot = self.slots.len() as u16;
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
        // SAFETY: the list stays in place and is not changed while posted; the memory is valid by the promise to
        // `start`.
        if unsafe { links.endpoint(on.peer)?.post_send(on, tag, pieces, token) }? == Posted::Done {
            self.completed(slot);
        }
        Ok(())
    }

    /// Ends a transfer, except for its copy to a GPU.
    #[inline]
    pub(crate) fn completed(&mut self, slot: u16) {
        if self.slots[slot as usize].on_gpu.is_some() && self.unload(slot) {
            return;
        }
        let transfer = &mut self.slots[slot as usize];
        transfer.phase = Phase::Done;
        self.active -= 1;
        if transfer.forgotten {
            let owner = self.finish(slot);
            self.released.extend(owner);
        }
    }

    /// Notes that nobody needs the result any more.
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

    /// Frees a slot, and returns the buffers that it kept.
    pub(crate) fn finish(&mut self, slot: u16) -> Option<Owner> {
        let transfer = &mut self.slots[slot as usize];
        if transfer.phase == Phase::Posted {
            self.active -= 1;
        }
        transfer.phase = Phase::Free;
        let keep = transfer.keep.take();
        self.free.push(slot);
        keep
    }

    /// Notes that the transport has completed a transfer. Does nothing if the token is from an earlier use of the slot.
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

    /// Handles a receive that came back from the transport.
    pub(crate) fn came_back(&mut self, name: Name) {
        if self.is_current(name.slot, name.generation) {
            self.returned(name.slot);
        }
    }

    /// Returns the ranks of which one must act before a transfer can end.
    pub(crate) fn waiting_for(&self, slot: u16) -> Vec<u32> {
        match self.peer(slot) {
            ANY_SOURCE => (0..self.inboxes.len() as u32).filter(|rank| *rank != self.rank).collect(),
            peer => vec![peer],
        }
    }

    /// Returns label and length of the message that stands before the awaited ones of a rank, and the limit on buffered
    /// bytes.
    pub(crate) fn stands_before(&self, peer: u32) -> Option<(u32, u64, usize)> {
        let head = self.inboxes.get(peer as usize)?.head?;
        Some((label(head.tag), head.len, self.allowance.max()))
    }

    /// Forgets all waiting transfers. The links have been aborted, and the memory may be freed.
    pub(crate) fn abort(&mut self) {
        self.sends_to_self.clear();
        self.anyone.clear();
        self.probes.clear();
        self.dirty.clear();
        self.gpu_messages.clear();
        self.inboxes.iter_mut().for_each(Inbox::clear);
    }
}

/// Returns the error of a message that met a receive of another type or length.
pub(super) fn misfit(peer: u32, expected_tag: u64, expected_len: usize, tag: u64, len: u64) -> Error {
    let kind = ErrorKind::Mismatch { expected_tag, tag, expected_len: expected_len as u64, len };
    Error::new(kind, "kolo", Some(peer), "a message does not fit the receive that it is for")
}
