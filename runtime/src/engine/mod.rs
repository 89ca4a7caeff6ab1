//! The engine: runs plans over links. It knows nothing of threads, clocks or waiting; a waiting thread calls
//! [`Engine::progress`].
//!
//! All ranks divide the channels of a pair alike: channel 0 is for point-to-point transfers, and the rest form equal
//! *groups* of consecutive channels. Blocking calls use group 0, one after the other. The k-th asynchronous call uses
//! group `1 + k mod (GROUPS - 1)`; a call whose group is busy is queued behind it. A blocking call that does not know yet
//! whether it becomes an operation [reserves](Engine::reserve) its place in group 0 all the same.

mod copies;
mod gpu_messages;
mod inbox;
mod links;
mod listed;
mod local;
mod matching;
mod memory;
mod operation;
mod outcomes;
mod probing;
mod reserved;
mod slot;
mod staged;
mod staging;
mod sync_copy;
#[cfg(test)]
mod tests;
mod token;
mod transfers;
mod unexpected;

use std::any::Any;
use std::collections::VecDeque;

use kolo_transport::{Armed, Error, Event, ParkBy};

pub(crate) use copies::failed;
use copies::{CopyQueues, Mark};
pub(crate) use links::Links;
pub use links::Route;
pub(crate) use matching::label;
pub(crate) use memory::Buffers;
pub(crate) use operation::{Job, Lent, needs};
use operation::{Operation, Position};
pub(crate) use probing::Found;
pub(crate) use reserved::Reservation;
use slot::{Phase, Slot};
pub(crate) use sync_copy::SyncCopier;

pub(crate) use staging::Staging;
pub(crate) use token::{Kind, MOST_SLOTS};
use token::{Name, TRANSFER};
pub(crate) use transfers::{ANY_SOURCE, TransferJob};
use transfers::{TRANSFER_CHANNEL, Transfers};

use crate::reduce::DefaultFloats;

/// Channel groups per pair: one for blocking calls and three for asynchronous ones. Three in flight keep a link busy
/// while one operation fills, one streams and one drains.
const GROUPS: u16 = 4;

/// Most segments in flight of an operation that uses the stage of its host; each has an area of its own.
pub(crate) const STAGE_SEGMENTS: usize = 4;

/// Keeps the memory of an operation alive. Its `drop` is users' code.
pub(crate) type Owner = Box<dyn Any + Send>;

/// Identifies an operation or a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Id {
    Operation { slot: u16, generation: u16 },
    Transfer { slot: u16, generation: u16 },
}

/// Returns the most channels that one operation may use, of those that the transports offer to a peer.
pub(crate) const fn channels_per_operation(channels_max: u16) -> u16 {
    (channels_max - 1 - TRANSFER_CHANNEL) / GROUPS
}

/// The links of an engine, and its copies from and to GPUs.
#[derive(Debug)]
struct Io {
    links: Links,
    copies: CopyQueues,
}

/// Runs operations and transfers over the links of one communicator.
#[derive(Debug)]
pub(crate) struct Engine {
    // Fields are dropped in this order: links and copies first, then the memory that they use.
    io: Io,
    channels_max: u16,
    slots: Vec<Slot>,
    free: Vec<u16>,
    /// Slots that wait for their group, in the order of the calls. The front one runs.
    groups: [VecDeque<u16>; GROUPS as usize],
    asynchronous_calls: u64,
    transfers: Transfers,
    events: Vec<Event>,
    running: usize,
    /// Slots of running operations that use the stage.
    staged: Vec<u16>,
    /// While no operation uses messages: polls of the stage before the links are polled again.
    looks_left: u32,
    failure: Option<Error>,
    /// Numbers of started collectives that have ended.
    ended: Vec<u64>,
    /// Owners that nobody needs any more. The holder of the communicator drops them once it has unlocked it.
    released: Vec<Owner>,
}

impl Engine {
    /// Makes an engine that uses channels below `channels_max`, which is the same on all ranks, and buffers unexpected
    /// messages up to `unexpected_max` bytes.
    pub(crate) fn new(rank: u32, links: Links, channels_max: u16, unexpected_max: usize) -> Self {
        let transfers = Transfers::new(rank, links.ranks(), unexpected_max);
        Self {
            io: Io { links, copies: CopyQueues::default() },
            channels_max,
            slots: Vec::new(),
            free: Vec::new(),
            groups: Default::default(),
            asynchronous_calls: 0,
            transfers,
            events: Vec::with_capacity(64),
            running: 0,
            staged: Vec::new(),
            looks_left: 0,
            failure: None,
            ended: Vec::new(),
            released: Vec::new(),
        }
    }

    /// Returns the most transport channels that one operation may use.
    pub(crate) fn channels_per_operation(&self) -> u16 {
        channels_per_operation(self.channels_max)
    }

    /// Takes a slot for a started operation that another component carries out and [`concludes`](Self::conclude).
    pub(crate) fn admit(&mut self, keep: Option<Owner>) -> Id {
        let slot = self.take_slot();
        let entry = &mut self.slots[slot as usize];
        (entry.phase, entry.forgotten, entry.keep) = (Phase::Elsewhere, false, keep);
        let generation = entry.next_generation();
        self.running += 1;
        Id::Operation { slot, generation }
    }

    /// Marks an operation as done that was carried out elsewhere.
    pub(crate) fn conclude(&mut self, id: Id) {
        if let Id::Operation { slot, .. } = id
            && self.is_elsewhere(id)
        {
            self.over(slot);
        }
    }

    /// Returns whether another component carries the operation out and has not concluded it.
    pub(crate) fn is_elsewhere(&self, id: Id) -> bool {
        match id {
            Id::Operation { slot, .. } => {
                matches!(self.slots[slot as usize].phase, Phase::Elsewhere) && !self.is_done(id)
            }
            Id::Transfer { .. } => false,
        }
    }

    fn take_slot(&mut self) -> u16 {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            (self.slots.len() - 1) as u16
        })
    }

    /// Returns whether one more operation can be outstanding, or done and not yet finished.
    pub(crate) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.slots.len() < MOST_SLOTS
    }

    /// Returns whether `more` further transfers can be outstanding.
    pub(crate) fn has_room_for_transfers(&self, more: usize) -> bool {
        self.transfers.has_room_for(more)
    }

    /// Posts a point-to-point transfer.
    ///
    /// # Safety
    /// See [`Engine::start`].
    pub(crate) unsafe fn transfer(&mut self, job: TransferJob) -> Result<Id, Error> {
        // SAFETY: the caller's promise, passed on.
        let (slot, generation) = unsafe { self.transfers.start(job, &mut self.io) }?;
        Ok(Id::Transfer { slot, generation })
    }

    /// Does a bounded amount of work: polls the links and advances the operations of completed messages. Returns
    /// whether anything moved.
    pub(crate) fn progress(&mut self) -> bool {
        let _floats = DefaultFloats::enter();
        let copied = self.io.copies.is_busy() && self.take_copied();
        let shown = !self.staged.is_empty() && self.look_at_stage();
        if !self.staged.is_empty() && self.skips_links() {
            return shown || copied;
        }
        let moved = self.io.links.poll(&mut self.events) || copied || shown;
        if self.events.is_empty() {
            return moved;
        }
        let mut events = std::mem::take(&mut self.events);
        for event in events.drain(..) {
            match event {
                Event::Done(token) => self.completed(Name::of(token)),
                Event::Failed(_, error) => self.fail(error),
                Event::Returned(token) => self.transfers.came_back(Name::of(token)),
                Event::Waiting(envelope) => self.transfers.waits(envelope),
                // A peer may leave at any time. That matters only to operations that still expect its messages.
                Event::Down { peer, cause } => tracing::debug!(peer, %cause, "connection closed"),
                Event::Warning(words) => tracing::warn!("{words}"),
            }
        }
        self.events = events;
        // Only now, since each event describes the state before anything else was posted.
        if self.failure.is_none()
            && let Err(error) = self.transfers.settle(&mut self.io.links)
        {
            self.fail(error);
        }
        self.store_arrived();
        true
    }

    /// Advances operations whose copies are done. Returns whether there were any.
    fn take_copied(&mut self) -> bool {
        let mut any = false;
        while self.failure.is_none() {
            match self.io.copies.poll() {
                Ok(None) => break,
                Ok(Some(Mark::Operation { slot, generation, instance, lane })) => {
                    if let Some(operation) = self.slots[slot as usize].operation_mut(generation) {
                        let result = operation.copied(instance, lane, &mut self.io);
                        self.went_on(slot, result);
                    }
                }
                Ok(Some(Mark::Transfer { slot, generation })) => {
                    if self.transfers.is_current(slot, generation)
                        && let Err(error) = self.transfers.copied(slot, &mut self.io.links)
                    {
                        self.fail(error);
                    }
                    self.store_arrived();
                }
                Err(error) => self.fail(error),
            }
            any = true;
        }
        any
    }

    fn store_arrived(&mut self) {
        if self.failure.is_none()
            && let Err(error) = self.transfers.store_arrived(&mut self.io.copies)
        {
            self.fail(error);
        }
    }

    /// Returns whether copies are under way whose end must be polled.
    pub(crate) fn is_copying(&self) -> bool {
        self.io.copies.is_busy()
    }

    /// Returns the copies, which are counted.
    pub(crate) const fn copies(&self) -> &CopyQueues {
        &self.io.copies
    }

    /// Returns the links, for questions about them.
    pub(crate) const fn links(&self) -> &Links {
        &self.io.links
    }

    /// Returns the links, for requests that concern no operation and no transfer.
    pub(crate) const fn links_mut(&mut self) -> &mut Links {
        &mut self.io.links
    }

    /// Returns the number of operations and transfers that are not done.
    pub(crate) fn outstanding(&self) -> usize {
        self.running + self.transfers.active()
    }

    /// Aborts, and closes all connections for good.
    pub(crate) fn close(&mut self, cause: &Error) {
        self.abort(cause);
        self.io.links.close();
    }

    /// Returns the error that made the links unusable, if any.
    pub(crate) fn failure(&self) -> Option<&Error> {
        self.failure.as_ref()
    }

    /// Notes the error that made the links unusable.
    pub(crate) fn note_failure(&mut self, error: Error) {
        self.fail(error);
    }

    /// Aborts everything. When this returns, nothing touches the caller's memory any more.
    pub(crate) fn abort(&mut self, cause: &Error) {
        self.failure.get_or_insert_with(|| cause.clone());
        self.io.links.abort(cause, &mut self.events);
        self.io.copies.settle();
        self.events.clear();
        self.transfers.abort();
    }

    /// Returns the ranks that an outstanding operation or transfer waits for.
    pub(crate) fn waiting_for(&self, id: Id) -> Vec<u32> {
        match id {
            Id::Operation { slot, .. } => {
                // A queued operation waits for the same ranks as the first one of its group.
                let group = &self.groups[self.slots[slot as usize].group as usize];
                let slot = group.front().copied().unwrap_or(slot);
                let operation = self.slots[slot as usize].operation();
                operation.map_or_else(Vec::new, |operation| operation.waiting_for(&self.io.links))
            }
            Id::Transfer { slot, .. } => self.transfers.waiting_for(slot),
        }
    }

    /// Returns whether any one of the ranks for which `id` waits is enough to end it.
    pub(crate) fn is_from_any(&self, id: Id) -> bool {
        matches!(id, Id::Transfer { slot, .. } if self.transfers.peer(slot) == ANY_SOURCE)
            && !self.is_done(id)
    }

    /// Returns the source or destination of a completed transfer.
    pub(crate) fn other_end(&self, id: Id) -> Option<u32> {
        match id {
            Id::Operation { .. } => None,
            Id::Transfer { slot, .. } => Some(self.transfers.peer(slot)),
        }
    }

    /// Returns the message that a finished probe has found.
    pub(crate) fn found(&self, id: Id) -> Option<Found> {
        match id {
            Id::Operation { .. } => None,
            Id::Transfer { slot, .. } => Some(self.transfers.found(slot)),
        }
    }

    /// Ends a probe that is not done.
    pub(crate) fn withdraw_probe(&mut self, id: Id) {
        if let Id::Transfer { slot, .. } = id {
            self.transfers.withdraw_probe(slot);
        }
    }

    /// Returns tag and length of the message that stands before the awaited ones of a rank, and the limit on buffered
    /// bytes.
    pub(crate) fn stands_before(&self, peer: u32) -> Option<(u32, u64, usize)> {
        self.transfers.stands_before(peer)
    }

    /// Returns the bytes of staging held for operations.
    pub(crate) fn staging_bytes(&self) -> usize {
        let running = self.slots.iter().filter_map(|slot| slot.operation()).map(Operation::staging_bytes);
        let spare = self.slots.iter().map(|slot| slot.spare.staging_bytes());
        running.chain(spare).sum::<usize>() + self.transfers.gpu_messages.spare_bytes()
    }

    /// Tells the links that the owner is about to sleep, and returns how. See [`kolo_transport::Endpoint::arm`].
    pub(crate) fn arm(&mut self, each: impl FnMut(Armed<'_>)) -> ParkBy {
        self.look_at_links();
        self.io.links.arm(each)
    }

    /// Undoes [`Engine::arm`].
    pub(crate) fn disarm(&mut self) {
        // A descriptor stays readable until its endpoint is polled, and ends every further sleep at once.
        self.look_at_links();
        self.io.links.disarm();
    }

    /// Wakes threads that sleep on what [`Engine::arm`] has returned.
    pub(crate) fn rouse(&mut self) {
        self.io.links.rouse();
    }

    /// Starts an operation whose group is free. It may be over at once.
    ///
    /// # Safety
    /// See [`Engine::start`].
    unsafe fn launch(&mut self, slot: u16, job: Job) -> Result<(), Error> {
        let channels_per_operation = self.channels_per_operation();
        let entry = &mut self.slots[slot as usize];
        entry.phase = Phase::Starting;
        let binding = entry.spare.bind(&job, &self.io.links)?;
        let position = Position {
            slot,
            generation: entry.generation,
            channel_base: TRANSFER_CHANNEL + 1 + entry.group * channels_per_operation,
            area_base: entry.group * STAGE_SEGMENTS as u16,
        };
        // SAFETY: the buffers stay until the operation is over or everything is aborted.
        unsafe { self.io.links.lend(job.lent) };
        let operation = Operation::new(job, binding, &mut entry.spare, position);
        if operation.uses_stage() {
            self.staged.push(slot);
        }
        entry.phase = Phase::Running(operation);
        let Some(operation) = entry.operation_mut(position.generation) else { unreachable!("it runs there") };
        // SAFETY: the caller's promise, passed on.
        unsafe { operation.begin(&mut self.io) }
    }

    /// Handles the result of advancing an operation.
    fn went_on(&mut self, slot: u16, result: Result<(), Error>) {
        match result {
            Ok(()) if self.is_over(slot) => self.done(slot),
            Ok(()) => {}
            Err(error) => self.fail(error),
        }
    }

    /// Returns whether the operation that runs in a slot is over.
    fn is_over(&self, slot: u16) -> bool {
        self.slots[slot as usize].operation().is_some_and(Operation::is_over)
    }

    fn completed(&mut self, name: Name) {
        if name.instance == TRANSFER {
            if let Err(error) = self.transfers.done(name) {
                self.fail(error);
            }
            return;
        }
        if self.failure.is_none()
            && let Some(operation) = self.slots[name.slot as usize].operation_mut(name.generation)
        {
            let result = operation.completed(name, &mut self.io);
            self.went_on(name.slot, result);
        }
    }

    /// Ends an operation, and starts the next one of its group.
    fn done(&mut self, slot: u16) {
        let group = self.slots[slot as usize].group;
        let first = self.groups[group as usize].pop_front();
        debug_assert_eq!(first, Some(slot));
        self.over(slot);
        self.start_first(group);
    }

    /// Starts the first operation of a group, if it is queued. Many may be over as soon as they start.
    fn start_first(&mut self, group: u16) {
        while let Some(first) = self.groups[group as usize].front().copied() {
            let phase = &mut self.slots[first as usize].phase;
            if !matches!(phase, Phase::Queued(_)) {
                return;
            }
            let Phase::Queued(job) = std::mem::replace(phase, Phase::Starting) else {
                unreachable!("it is queued")
            };
            // SAFETY: the promise to `start` for this job still holds, since it is not done.
            if let Err(error) = unsafe { self.launch(first, *job) } {
                return self.fail(error);
            }
            if !self.is_over(first) {
                return;
            }
            self.groups[group as usize].pop_front();
            self.over(first);
        }
    }

    /// Ends an operation. Its slot keeps the result until it is asked for, unless the operation was forgotten.
    fn over(&mut self, slot: u16) {
        let entry = &mut self.slots[slot as usize];
        if let Some(operation) = entry.operation() {
            self.io.links.reclaim(operation.lent());
            self.staged.retain(|staged| *staged != slot);
        }
        entry.end(Phase::Done);
        self.running -= 1;
        self.ended.extend(entry.number.take());
        if std::mem::take(&mut entry.forgotten) {
            self.release(Id::Operation { slot, generation: 0 });
        }
    }

    fn fail(&mut self, error: Error) {
        // The first failure is the cause of those that follow.
        self.failure.get_or_insert(error);
    }
}
