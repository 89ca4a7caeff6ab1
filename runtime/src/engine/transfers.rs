//! Point-to-point messages: `send` and `recv`, matched per pair in the order of the calls.
//!
//! All transfers between two ranks share one channel, so the i-th send to a rank meets its i-th receive. Messages to
//! oneself never reach a transport: they are matched here, by the same rule.

use std::any::Any;
use std::collections::VecDeque;

use kolo_transport::{Channel, Error, ErrorKind, Piece, Posted, Sink};

use super::links::Links;
use super::token::{Kind, MOST_SLOTS, Name, TRANSFER};

/// The channel index that transfers use; operations use higher ones.
pub(crate) const TRANSFER_CHANNEL: u16 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Free,
    Posted,
    Done,
}

#[derive(Debug)]
struct Transfer {
    phase: Phase,
    generation: u16,
    forgotten: bool,
    peer: u32,
    tag: u64,
    piece: Piece,
    keep: Option<Box<dyn Any + Send>>,
}

/// Where a message goes or comes from, and its memory.
#[derive(Debug)]
pub(crate) struct TransferJob {
    pub(crate) kind: Kind,
    pub(crate) peer: u32,
    pub(crate) tag: u64,
    pub(crate) memory: Piece,
    pub(crate) keep: Option<Box<dyn Any + Send>>,
}

/// All transfers of a communicator.
#[derive(Debug)]
pub(crate) struct Transfers {
    rank: u32,
    /// Boxed, so that the endpoints may keep pointers to the pieces.
    #[expect(clippy::vec_box, reason = "the addresses must stay when the vector grows")]
    slots: Vec<Box<Transfer>>,
    free: Vec<u16>,
    sends_to_self: VecDeque<u16>,
    recvs_from_self: VecDeque<u16>,
    active: usize,
}

// SAFETY: as for operations: the memory of a transfer stays valid and untouched while it runs.
unsafe impl Send for Transfers {}

impl Transfers {
    pub(crate) fn new(rank: u32) -> Self {
        Self {
            rank,
            slots: Vec::new(),
            free: Vec::new(),
            sends_to_self: VecDeque::new(),
            recvs_from_self: VecDeque::new(),
            active: 0,
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
    /// The memory is valid until the transfer is done or the links have been aborted.
    pub(crate) unsafe fn start(&mut self, job: TransferJob, links: &mut Links) -> Result<(u16, u16), Error> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u16::try_from(self.slots.len()).map_err(|_| {
                    let detail = "more than 65536 sends and receives are outstanding; wait for some of them";
                    Error::new(ErrorKind::Usage, "kolo", Some(job.peer), detail)
                })?;
                self.slots.push(Box::new(Transfer {
                    phase: Phase::Free,
                    generation: 0,
                    forgotten: false,
                    peer: 0,
                    tag: 0,
                    piece: Piece { ptr: std::ptr::null_mut(), len: 0 },
                    keep: None,
                }));
                slot
            }
        };
        let transfer = &mut *self.slots[slot as usize];
        transfer.generation = transfer.generation.wrapping_add(1);
        (transfer.phase, transfer.forgotten) = (Phase::Posted, false);
        (transfer.peer, transfer.tag, transfer.piece, transfer.keep) =
            (job.peer, job.tag, job.memory, job.keep);
        let name =
            Name { slot, generation: transfer.generation, instance: TRANSFER, lane: 0, kind: job.kind };
        self.active += 1;
        if job.peer == self.rank {
            match job.kind {
                Kind::Send => self.sends_to_self.push_back(slot),
                Kind::Recv => self.recvs_from_self.push_back(slot),
            }
            self.match_self()?;
            return Ok((slot, name.generation));
        }
        let on = Channel { peer: job.peer, index: TRANSFER_CHANNEL };
        let pieces = std::slice::from_ref(&self.slots[slot as usize].piece);
        let pieces = if job.memory.len == 0 { &pieces[..0] } else { pieces };
        // SAFETY: the piece is boxed and not changed while posted; the memory is valid by the caller's promise.
        let posted = unsafe {
            match job.kind {
                Kind::Send => links.post_send(on, job.tag, pieces, name.token()),
                Kind::Recv => links.post_recv(on, job.tag, Sink::Place(pieces), name.token()),
            }
        }?;
        if posted == Posted::Done {
            self.completed(slot);
        }
        Ok((slot, name.generation))
    }

    pub(crate) fn completed(&mut self, slot: u16) {
        let transfer = &mut self.slots[slot as usize];
        transfer.phase = Phase::Done;
        self.active -= 1;
        if transfer.forgotten {
            drop(self.finish(slot));
        }
    }

    /// Nobody will ask for the result.
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

    /// Frees a slot and gives back what it kept.
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

    fn match_self(&mut self) -> Result<(), Error> {
        while let (Some(send), Some(recv)) = (self.sends_to_self.front(), self.recvs_from_self.front()) {
            let (send, recv) = (*send, *recv);
            let (from, to) = (&self.slots[send as usize], &self.slots[recv as usize]);
            if from.piece.len != to.piece.len || from.tag != to.tag {
                let kind = ErrorKind::Mismatch {
                    expected_tag: to.tag,
                    tag: from.tag,
                    expected_len: to.piece.len as u64,
                    len: from.piece.len as u64,
                };
                return Err(Error::new(kind, "kolo", Some(self.rank), "a message to oneself does not fit"));
            }
            // SAFETY: both are valid by the promise of `start`; a caller that sends from the memory it receives
            // into at the same time gets the copy it asked for, hence `copy`.
            unsafe { to.piece.ptr.copy_from(from.piece.ptr, from.piece.len) };
            self.sends_to_self.pop_front();
            self.recvs_from_self.pop_front();
            self.completed(send);
            self.completed(recv);
        }
        Ok(())
    }
}
