//! Starts sends and receives, singly or together: the code that all their forms share.

use std::sync::Arc;

use kolo_gdr::Gpu;
use kolo_transport::Piece;

use super::Communicator;
use crate::call::ranges::{Range, first_conflict, is_addressable};
use crate::call::{AdapterAccess, Message, Single, Waited, transfer_tag};
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
        for transfer in transfers {
            if let Some(peer) = transfer.peer.filter(|peer| *peer >= shared.group.size) {
                let problem =
                    format!("rank {peer} is out of range: ranks are 0 to {}", shared.group.size - 1);
                return Err(self.usage(label, problem));
            }
        }
        self.check_memory(label, transfers)?;
        shared.check_process(|| Waited::other(label))?;
        let single = match transfers {
            [transfer] => {
                let RawMessage { bytes, data_type, tag, .. } = transfer.message;
                Some(Single { peer: transfer.peer, bytes, data_type, tag })
            }
            _ => None,
        };
        let mut core = shared.core();
        let waited = Waited::transfer(label, Message { number: core.calls.messages + 1, single });
        drive::check_usable(shared, &core, waited)?;
        if !core.engine.has_room_for_transfers(transfers.len()) {
            let problem = "more than 65000 sends and receives would be outstanding; use smaller groups";
            return Err(self.usage(label, problem.to_owned()));
        }
        if transfers.iter().any(|transfer| transfer.peer.is_none())
            && let Some(transport) = core.engine.without_probing()
        {
            let problem = format!(
                "the transport {transport} cannot receive from any source; name the source, or use KOLO_TRANSPORT=shm,tcp"
            );
            return Err(Error::Unsupported { context: shared.context(waited), problem });
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
                Err(error) => {
                    core.engine.note_failure(error);
                    drop(core);
                    return Err(drive::fail(shared, waited));
                }
            }
        }
        Ok((core, tickets))
    }

    /// Returns the GPU of each message that is in GPU memory, and how adapters access it.
    fn on_gpus(&self, core: &mut Core, transfers: &[Transfer], waited: Waited) -> Result<Vec<Option<OnGpu>>> {
        on_gpus::begin(core);
        let gpu_of = |Transfer { peer, message, .. }: &Transfer| {
            let gpu = on_gpus::owner(&self.shared, (message.data, message.bytes), || waited)?;
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
    use super::*;
    use crate::Cluster;

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
