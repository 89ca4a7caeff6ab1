//! Starts sends and receives, singly or together: the code that all their forms share.

use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::Piece;

use super::Communicator;
use crate::call::ranges::{Range, first_conflict, is_addressable};
use crate::call::{AdapterAccess, Message, Single, Waited, out_of_range, transfer_tag};
use crate::communicator::{Core, CoreGuard, on_gpus};
use crate::drive::{self, Ticket};
use crate::engine::{ANY_SOURCE, Kind, Owner, TransferJob};
use crate::error::{Error, Result};
use crate::types::{DataType, Element};

/// The GPU that owns a message's memory, and how adapters access it.
type OnGpu = (Arc<Gpu>, AdapterAccess);

/// Memory of a message, of the host or of a GPU, as for [`RawCall`](crate::RawCall). For bindings and tools.
#[derive(Clone, Copy, Debug)]
pub struct RawMessage {
    /// First byte, at any alignment; null is allowed if there are no bytes.
    pub data: *mut u8,
    /// Number of bytes.
    pub bytes: usize,
    /// Type of the elements, which must be the same at both ends.
    pub data_type: DataType,
    /// Distinguishes the messages between two ranks: a receive takes only messages with its own tag.
    pub tag: u32,
}

impl RawMessage {
    pub(super) fn of<T: Element>(data: &[T], tag: u32) -> Self {
        let data_type = T::TYPE;
        Self { data: data.as_ptr().cast_mut().cast(), bytes: size_of_val(data), data_type, tag }
    }

    pub(super) fn of_mut<T: Element>(data: &mut [T], tag: u32) -> Self {
        Self { data: data.as_mut_ptr().cast(), bytes: size_of_val(data), data_type: T::TYPE, tag }
    }
}

/// A message and its other end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    pub(super) kind: Kind,
    /// `None` for a receive from any source.
    pub(super) peer: Option<u32>,
    pub(super) message: RawMessage,
}

impl Transfer {
    pub(super) const fn send(message: RawMessage, to: u32) -> Self {
        Self { kind: Kind::Send, peer: Some(to), message }
    }

    pub(super) const fn recv(message: RawMessage, from: u32) -> Self {
        Self { kind: Kind::Recv, peer: Some(from), message }
    }

    pub(super) const fn recv_any(message: RawMessage) -> Self {
        Self { kind: Kind::Recv, peer: None, message }
    }
}

impl Communicator {
    /// Posts transfers in the given order, and returns a ticket for each.
    ///
    /// # Safety
    /// Until the transfers are done or the communicator has been aborted, the memory of the messages is valid, nobody
    /// else touches that of receives, and nobody writes that of sends.
    pub(super) unsafe fn post<'a>(
        &'a self,
        transfers: &[Transfer],
        mut keep: Option<Owner>,
    ) -> Result<(CoreGuard<'a>, Vec<Ticket>)> {
        let shared = &self.shared;
        let label = match transfers {
            [Transfer { kind: Kind::Send, .. }] => "send",
            [Transfer { kind: Kind::Recv, .. }] => "recv",
            _ => "grouped send and recv",
        };
        transfers.iter().try_for_each(|transfer| self.check_peer(label, transfer.peer))?;
        self.check_memory(label, transfers)?;
        let single = match transfers {
            [transfer] => {
                let RawMessage { bytes, data_type, tag, .. } = transfer.message;
                Some(Single { peer: transfer.peer, bytes, data_type, tag })
            }
            _ => None,
        };
        let (mut core, waited) = self.begin(label, single, transfers.len())?;
        if transfers.iter().any(|transfer| transfer.peer.is_none()) {
            self.check_probing(&core, "receive from any source; name the source", waited)?;
        }
        let gpus = self.on_gpus(&mut core, transfers, waited)?;
        core.calls.messages += 1;
        let mut tickets = Vec::with_capacity(transfers.len());
        for (Transfer { kind, peer, message }, gpu) in transfers.iter().zip(gpus) {
            let tag = transfer_tag(shared.group.id, message.data_type, message.tag);
            let memory = Piece { ptr: message.data, len: message.bytes };
            let peer = peer.unwrap_or(ANY_SOURCE);
            let job = TransferJob { kind: *kind, peer, tag, labels: None, memory, gpu, keep: keep.take() };
            // SAFETY: the caller's promise; this returns an error only after the engine was aborted.
            match unsafe { core.engine.transfer(job) } {
                Ok(id) => tickets.push(Ticket { id, waited }),
                Err(error) => return Err(self.not_posted(core, error, waited)),
            }
        }
        // A message to this rank itself may have ended the operation of a thread that sleeps.
        core.rouse();
        Ok((core, tickets))
    }

    /// Fails if the communicator has no such rank; `None` stands for any rank.
    #[inline]
    pub(super) fn check_peer(&self, label: &str, peer: Option<u32>) -> Result<()> {
        let size = self.shared.group.size;
        match peer.filter(|peer| *peer >= size) {
            None => Ok(()),
            Some(peer) => Err(self.usage(label, out_of_range("rank", peer, size))),
        }
    }

    /// Takes the core to post so many transfers.
    #[inline]
    pub(super) fn begin(
        &self,
        label: &'static str,
        single: Option<Single>,
        transfers: usize,
    ) -> Result<(CoreGuard<'_>, Waited)> {
        let shared = &self.shared;
        shared.check_process(|| Waited::Other(label))?;
        let core = shared.core();
        let waited = Waited::Message(label, Message { number: core.calls.messages + 1, single });
        drive::check_usable(shared, &core, waited)?;
        if !core.engine.has_room_for_transfers(transfers) {
            let problem = "more than 65000 sends and receives would be outstanding; use smaller groups";
            return Err(self.usage(label, problem.to_owned()));
        }
        Ok((core, waited))
    }

    /// Fails if a transport cannot do what needs probing.
    pub(super) fn check_probing(&self, core: &Core, what: &str, waited: Waited) -> Result<()> {
        let Some(transport) = core.engine.links().without_probing() else { return Ok(()) };
        let problem = format!("the transport {transport} cannot {what}, or use KOLO_TRANSPORT=shm,tcp");
        Err(Error::Unsupported { context: self.shared.context(waited), problem })
    }

    /// Makes the error of a transport the communicator's, and returns that of the call.
    #[cold]
    pub(super) fn not_posted(
        &self,
        mut core: CoreGuard<'_>,
        error: kolo_transport::Error,
        waited: Waited,
    ) -> Error {
        core.engine.note_failure(error);
        drop(core);
        drive::fail(&self.shared, waited)
    }

    /// Returns the GPU of each message that is in GPU memory, and how adapters access it.
    fn on_gpus(&self, core: &mut Core, transfers: &[Transfer], waited: Waited) -> Result<Vec<Option<OnGpu>>> {
        on_gpus::begin(core);
        let gpu_of = |Transfer { peer, message, .. }: &Transfer| {
            let gpu = on_gpus::owner(&self.shared, message.data, message.bytes, || waited)?;
            let Some(gpu) = gpu else { return Ok(None) };
            let buffer = (&gpu, message.data.cast_const(), message.bytes);
            let path = on_gpus::message_path(&self.shared, core, *peer, buffer, waited)?;
            Ok(Some((gpu, core.gpu.access(path))))
        };
        transfers.iter().map(gpu_of).collect()
    }

    /// Checks that every message has memory that can be addressed, and that the memory of receives overlaps no other.
    fn check_memory(&self, label: &str, transfers: &[Transfer]) -> Result<()> {
        if let Some(long) = transfers.iter().find(|transfer| !is_addressable(transfer.message.bytes)) {
            let problem = format!("a message of {} bytes is more than can be addressed", long.message.bytes);
            return Err(self.usage(label, problem));
        }
        let has_none = |transfer: &&Transfer| transfer.message.data.is_null() && transfer.message.bytes > 0;
        if let Some(Transfer { message, .. }) = transfers.iter().find(has_none) {
            let bytes = message.bytes;
            let problem = format!(
                "a null pointer was given for a message of {bytes} bytes; pass memory that holds them"
            );
            return Err(self.usage(label, problem));
        }
        let range = |transfer: &Transfer| {
            let RawMessage { data, bytes, .. } = transfer.message;
            (Range::new(data, bytes), transfer.kind == Kind::Recv)
        };
        let (pair, many);
        let ranges = match transfers {
            [_] => return Ok(()),
            [a, b] => {
                pair = [range(a), range(b)];
                &pair[..]
            }
            _ => {
                many = transfers.iter().map(range).collect::<Vec<(Range, bool)>>();
                &many[..]
            }
        };
        let Some((a, b)) = first_conflict(ranges) else { return Ok(()) };
        let name = |at: usize| {
            let (range, is_received) = ranges[at];
            format!("the {} of transfer {at} ({range})", if is_received { "output" } else { "input" })
        };
        let problem = format!(
            "{} and {} overlap; a receive buffer must not overlap any other buffer",
            name(a),
            name(b)
        );
        Err(self.usage(label, problem))
    }

    /// Posts transfers that the helper thread drives.
    ///
    /// # Safety
    /// See [`Communicator::post`].
    pub(super) unsafe fn start_transfers(
        &self,
        transfers: &[Transfer],
        keep: Option<Owner>,
    ) -> Result<Vec<Ticket>> {
        let (tickets, pending) = drive::lend(&self.shared, || {
            // SAFETY: the caller's promise.
            let (core, tickets) = unsafe { self.post(transfers, keep) }?;
            let pending = tickets.iter().any(|ticket| !core.engine.is_done(ticket.id));
            Ok((tickets, pending))
        })?;
        if pending {
            drive::call_helper(&self.shared);
        }
        Ok(tickets)
    }

    /// Posts one transfer that the helper thread drives.
    ///
    /// # Safety
    /// See [`Communicator::post`].
    pub(super) unsafe fn start_transfer(&self, transfer: Transfer, keep: Option<Owner>) -> Result<Ticket> {
        // SAFETY: the caller's promise.
        let tickets = unsafe { self.start_transfers(&[transfer], keep) }?;
        Ok(tickets[0])
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, mpsc};
    use std::time::{Duration, Instant};

    use kolo_transport::{Armed, ParkBy};

    use super::*;
    use crate::Cluster;
    use crate::communicator::Core;
    use crate::config::{Config, TransportKind, Transports};

    const LONG: Duration = Duration::from_secs(20);

    /// Waits until rank 1 has left, and asks while a probe and a group wait for a message from any rank.
    fn ask_though_one_has_left(comm: &Communicator) {
        let shared = &comm.shared;
        let until = Instant::now() + LONG;
        while !shared.membership.departed(1) {
            assert!(Instant::now() < until, "rank 1 does not leave");
            std::thread::yield_now();
        }
        let (core, Ticket { id, waited }) = comm.post_probe(None, 0..=9).expect("posted");
        drive::ask_for(shared, core, id, waited).expect("rank 2 may still send what is probed for");
        shared.core().engine.withdraw_probe(id);
        let mut data = [[0_u8; 4], [0; 4]];
        let [a, b] = data.each_mut().map(|data| Transfer::recv_any(RawMessage::of_mut(data, 0)));
        // SAFETY: `data` lives, and is not touched, until both receives are over or the engine was aborted, since the
        // communicator is dropped before it if this panics.
        let (core, tickets) = unsafe { comm.post(&[a, b], None) }.expect("posted");
        let Ticket { id, waited } = tickets[0];
        drive::ask_for(shared, core, id, waited).expect("rank 2 may still send what the group receives");
        comm.send(&[1_u8], 2).expect("rank 2 is there");
        for Ticket { id, waited } in tickets {
            let wait = drive::wait_for(shared, shared.core(), id, waited, LONG);
            wait.expect("rank 2 sends").engine.release(id);
        }
        assert_eq!(data, [[2; 4], [2; 4]]);
    }

    #[test]
    fn a_wait_for_any_rank_goes_on_though_one_has_left() {
        Cluster::local(3, |comm| {
            comm.barrier().expect("all are there");
            match comm.rank() {
                0 => ask_though_one_has_left(&comm),
                1 => {}
                _ => {
                    comm.recv(&mut [0_u8], 0).expect("rank 0 has asked");
                    comm.send(&[2_u8; 4], 0).expect("sent");
                    comm.send(&[2_u8; 4], 0).expect("sent");
                }
            }
        })
        .expect("the cluster");
    }

    /// Announces a sleep, and returns the word that a thread sleeps on, with the word's value.
    fn arm(core: &mut Core) -> (*const AtomicU32, u32) {
        let mut found = None;
        core.engine.arm(|armed| {
            if let Armed::Word(word, value) = armed {
                found = Some((std::ptr::from_ref(word), value));
            }
        });
        found.expect("a receive is outstanding over shared memory")
    }

    /// Two threads sleep, one of them for a message to this rank itself. The other one wakes first.
    fn sleep_in_two_threads(comm: &Communicator) {
        let (mut later, mut data) = ([0_u8], [0_u8]);
        let post = |transfer| {
            // SAFETY: the buffers live, and are not touched, until the transfers are over or the engine was aborted,
            // since the communicator is dropped before them if this panics.
            let posted = unsafe { comm.post(&[transfer], None) };
            posted.map(|(core, tickets)| (core, tickets[0])).expect("posted")
        };
        let later = post(Transfer::recv(RawMessage::of_mut(&mut later, 0), 1)).1;
        let (mut core, sent) = post(Transfer::send(RawMessage::of(&[7_u8], 0), 0));
        core.sleepers.add(Some(sent.id), ParkBy::Word);
        core.sleepers.add(None, ParkBy::Word);
        assert!(core.sleepers.sleep_on_words());
        let (word, asleep) = arm(&mut core);
        core.sleepers.remove(None);
        core.disarm();
        // SAFETY: the links, which hold the word's mapping, live as long as the communicator.
        let value = || unsafe { &*word }.load(Ordering::SeqCst);
        assert_eq!(value(), asleep, "the other thread would not be woken any more");
        drop(core);
        let (mut core, received) = post(Transfer::recv(RawMessage::of_mut(&mut data, 0), 0));
        assert_ne!(value(), asleep, "its operation is over");
        assert!(core.sleepers.are_waking(), "a new announcement could put it to sleep again");
        core.sleepers.remove(Some(sent.id));
        assert!(!core.sleepers.are_waking());
        core.disarm();
        core.engine.release(sent.id);
        core.engine.release(received.id);
        drop(core);
        comm.send(&[1_u8], 1).expect("rank 1 is there");
        let Ticket { id, waited } = later;
        drive::wait_for(&comm.shared, comm.shared.core(), id, waited, LONG).expect("sent").engine.release(id);
        assert_eq!(data, [7]);
    }

    #[test]
    fn a_thread_that_wakes_leaves_others_asleep_until_their_operations_are_over() {
        let transports = Transports::Only(vec![TransportKind::Shm]);
        let config = Config { transports, ..Config::default() };
        let (quiet, is_quiet) = mpsc::channel();
        let is_quiet = Mutex::new(is_quiet);
        Cluster::with_config(2, &config, |comm| {
            // The first messages make the links. Afterwards, rank 1 has no reason to wake rank 0.
            if comm.rank() == 0 {
                comm.send(&[1_u8], 1).expect("sent");
                comm.recv(&mut [0_u8], 1).expect("received");
                is_quiet.lock().expect("no panic").recv_timeout(LONG).expect("rank 1 has sent");
                sleep_in_two_threads(&comm);
            } else {
                comm.recv(&mut [0_u8], 0).expect("received");
                comm.send(&[1_u8], 0).expect("sent");
                let mut posted = [0_u8];
                let transfer = Transfer::recv(RawMessage::of_mut(&mut posted, 0), 0);
                // SAFETY: as in `sleep_in_two_threads`.
                let (core, tickets) = unsafe { comm.post(&[transfer], None) }.expect("posted");
                let Ticket { id, waited } = tickets[0];
                quiet.send(()).expect("rank 0 listens");
                let wait = drive::wait_for(&comm.shared, core, id, waited, LONG);
                wait.expect("rank 0 has ended").engine.release(id);
                comm.send(&[1_u8], 0).expect("sent");
            }
        })
        .expect("the cluster");
    }

    #[test]
    fn a_null_pointer_is_refused_unless_the_message_is_empty() {
        Cluster::local(2, |comm| {
            let message =
                |bytes| RawMessage { data: std::ptr::null_mut(), bytes, data_type: DataType::U8, tag: 0 };
            let other = 1 - comm.rank();
            for transfer in [Transfer::send(message(8), other), Transfer::recv(message(8), other)] {
                // SAFETY: the call is refused before anything uses the memory.
                let refused = unsafe { comm.post(&[transfer], None) };
                let text = refused.map(|_| ()).expect_err("refused").to_string();
                assert!(text.contains("null pointer was given for a message of 8 bytes"), "{text}");
            }
            // SAFETY: the messages are empty.
            let posted = unsafe {
                comm.post(&[Transfer::send(message(0), other), Transfer::recv(message(0), other)], None)
            };
            let (core, tickets) = posted.expect("posted");
            drop(core);
            assert_eq!(tickets.len(), 2);
        })
        .expect("the cluster");
    }
}
