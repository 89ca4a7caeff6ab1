//! The receiving half of a channel.
//!
//! Messages are taken in order. Short ones lie in slots. For long ones, this side grants memory as soon as the
//! receives are posted, up to [`GRANTS`] ranges in advance: the caller's own memory if it can be registered,
//! otherwise staging.
//!
//! # Grants for conditional receives
//!
//! If another message arrives, a conditional receive comes back with all receives behind it, and their grants are
//! void: the sender must fill none of them. The sender does not know that yet, but finds it out by itself:
//!
//! 1. Grants are made in the order of the messages, and behind a conditional receive only if that receive has grants
//!    too. The first void grant is therefore for the very message that did not fit.
//! 2. The sender meets that grant before the others, sees that its message is another one (or a short one, which
//!    never has grants), and returns the grant.
//! 3. From then on it returns all grants of the same generation. Later grants belong to the next generation.

use kolo_verbs::Remote;

use super::NAME;
use super::channel::{Chan, Granted, Landing, RecvOp, Way, grant_at, own};
use super::device_copiers::DeviceCopiers;
use super::link::Link;
use super::progress::Hands;
use super::registrations::REMOTE;
use super::sending::remote;
use super::trouble::Trouble;
use super::wire::{EAGER_BYTES, GRANTS, Grant, Header, Kind, Note, SLOTS};
use crate::endpoint::{Channel, Envelope, Event, Posted};
use crate::error::{Error, ErrorKind};

/// Length below which pieces of the caller's memory are received through staging.
const PIECE_BYTES_MIN: usize = 16 << 10;

/// Takes the message of a new receive at once if it has arrived and the queue is empty. The inner error fails only
/// the token.
pub(super) fn receive_now(
    chan: &mut Chan,
    peer: u32,
    op: &mut RecvOp,
) -> Result<Result<Posted, Error>, Trouble> {
    if !chan.recvs.is_empty() {
        return Ok(Ok(Posted::Pending));
    }
    let sequence = chan.recv_sequence;
    Ok(match take_slot(chan, peer, op, sequence)? {
        // A poll will report a message that does not fit.
        Taken::Nothing | Taken::Unfit(_) => Ok(Posted::Pending),
        Taken::Done => {
            chan.recv_sequence = sequence.wrapping_add(1);
            Ok(Posted::Done)
        }
        Taken::Failed(error) => {
            chan.recv_sequence = sequence.wrapping_add(1);
            Err(error)
        }
    })
}

enum Taken {
    Nothing,
    Done,
    Failed(Error),
    /// Another message has arrived, and the receive is conditional.
    Unfit(Header),
}

/// Checks the oldest slot for the message of the receive at the head of the queue.
fn take_slot(chan: &mut Chan, peer: u32, op: &mut RecvOp, sequence: u32) -> Result<Taken, Trouble> {
    loop {
        let header = match chan.arrival() {
            None => return Ok(Taken::Nothing),
            Some(None) => return Err(Trouble::Corrupt("the header of a message")),
            Some(Some(header)) => header,
        };
        let ahead = header.sequence.wrapping_sub(sequence) as i32;
        if ahead > 0 {
            return Ok(Taken::Nothing);
        }
        let matches = header.tag == op.tag && header.len == op.len as u64;
        // The message that a notice announces may have come by grants meanwhile.
        let taken = match (ahead, header.kind) {
            (0, _) if !matches && op.conditional => {
                chan.unfit = true;
                return Ok(Taken::Unfit(header));
            }
            (0, kind) if !matches => {
                // If grants are outstanding, the sender learns of the mismatch from them.
                if kind == Kind::Notice && op.granted == 0 {
                    chan.refuse = Some(sequence as u16);
                }
                Some(Taken::Failed(mismatch(peer, op, &header)))
            }
            (0, Kind::Message) => Some(match deliver(op, chan.arrived_message(), 0, op.len) {
                Ok(()) => Taken::Done,
                Err(error) => Taken::Failed(error),
            }),
            (_, Kind::Notice) => None,
            (_, Kind::Message) => return Err(Trouble::Corrupt("the number of a message")),
        };
        chan.freed = chan.freed.wrapping_add(1);
        if let Some(taken) = taken {
            return Ok(taken);
        }
    }
}

fn mismatch(peer: u32, op: &RecvOp, header: &Header) -> Error {
    let kind = ErrorKind::Mismatch {
        expected_tag: op.tag,
        tag: header.tag,
        expected_len: op.len as u64,
        len: header.len,
    };
    Error::new(kind, NAME, Some(peer), "the message is not what was posted")
}

/// Delivers `len` bytes at `from` to the caller.
fn deliver(op: &mut RecvOp, from: *const u8, offset: usize, len: usize) -> Result<(), Error> {
    let mut result = Ok(());
    let device_copiers = op.device_copiers.as_deref();
    match &mut op.landing {
        Landing::Place { pieces, cursor } => pieces.each_run(cursor, len, |to, at, len| {
            if result.is_ok() {
                // SAFETY: `len` bytes lie in a slot or a piece of staging. A well-behaved peer leaves them alone now;
                // another can change nothing but the bytes. The caller's pieces are alive as long as the operation.
                result = unsafe { DeviceCopiers::copy(device_copiers, from.wrapping_add(at), to, len) };
            }
        }),
        // SAFETY: as for `Place`.
        Landing::Eat(eater) => unsafe { eater.eat_raw(offset, from, len) },
    }
    result
}

/// Takes in the peer's count of the slots that it has freed.
pub(super) fn free_slots(chan: &mut Chan, count: u16) -> Result<(), Trouble> {
    let newly = u32::from(count.wrapping_sub(chan.slots_freed as u16));
    let outstanding = chan.slots_sent.wrapping_sub(chan.slots_freed);
    // Headers and notes come over one lane, and so in order.
    if newly > outstanding {
        return Err(Trouble::Corrupt("a count of freed slots"));
    }
    chan.slots_freed = chan.slots_freed.wrapping_add(newly);
    Ok(())
}

/// Takes messages that have arrived, and completes their receives.
pub(super) fn pump(chan: &mut Chan, on: Channel, events: &mut Vec<Event>) -> Result<bool, Trouble> {
    let mut moved = false;
    while let Some(mut op) = chan.recvs.pop_front() {
        let sequence = chan.recv_sequence;
        let freed = chan.freed;
        let taken = match op.len > 0 && op.filled == op.len {
            true => op.failed.take().map_or(Taken::Done, Taken::Failed),
            false => match take_slot(chan, on.peer, &mut op, sequence) {
                Ok(taken) => taken,
                Err(trouble) => {
                    // The receive fails together with all others of this peer.
                    chan.recvs.push_front(op);
                    return Err(trouble);
                }
            },
        };
        moved |= freed != chan.freed;
        match taken {
            Taken::Nothing => {
                chan.recvs.push_front(op);
                break;
            }
            Taken::Unfit(header) => {
                chan.recvs.push_front(op);
                give_back(chan, on, &header, events);
                return Ok(true);
            }
            Taken::Done => events.push(Event::Done(op.token)),
            Taken::Failed(error) => events.push(Event::Failed(op.token, error)),
        }
        chan.recv_sequence = sequence.wrapping_add(1);
        moved = true;
    }
    Ok(moved | probe(chan, on, events)?)
}

/// Returns all receives, since the message that has arrived is another than the first receive expects, and reports
/// that message. The sender of a long message has compared tags too, or will: it answers the grants of these receives
/// and writes nothing there.
fn give_back(chan: &mut Chan, on: Channel, header: &Header, events: &mut Vec<Event>) {
    // The condition is not whether grants are outstanding: the sender may have answered all of them before its notice
    // came. Each generation contains at least one grant, so few generations are in flight, and the number may wrap.
    if chan.recvs.iter().any(|op| op.granted > 0) {
        chan.generation = chan.generation.wrapping_add(1);
    }
    chan.granted.iter_mut().for_each(|granted| granted.dead = true);
    events.extend(chan.recvs.drain(..).map(|op| Event::Returned(op.token)));
    events.push(waiting(on, header));
    chan.unfit = false;
}

/// Reports the message that waits on a channel that is probed.
fn probe(chan: &mut Chan, on: Channel, events: &mut Vec<Event>) -> Result<bool, Trouble> {
    while chan.probed && chan.recvs.is_empty() {
        let header = match chan.arrival() {
            None => return Ok(false),
            Some(None) => return Err(Trouble::Corrupt("the header of a message")),
            Some(Some(header)) => header,
        };
        match (header.sequence.wrapping_sub(chan.recv_sequence) as i32, header.kind) {
            (0, _) => {
                chan.probed = false;
                events.push(waiting(on, &header));
                return Ok(true);
            }
            // The notice is of a message that has come by grants meanwhile.
            (..0, Kind::Notice) => chan.freed = chan.freed.wrapping_add(1),
            (1.., _) => return Ok(false),
            (..0, Kind::Message) => return Err(Trouble::Corrupt("the number of a message")),
        }
    }
    Ok(false)
}

fn waiting(on: Channel, header: &Header) -> Event {
    Event::Waiting(Envelope { on, tag: header.tag, len: header.len })
}

/// Serves a channel whose peer is gone: messages that have arrived are still delivered, or their receives come back;
/// the rest fails. Notices of long messages are void now.
pub(super) fn serve_late(chan: &mut Chan, on: Channel, cause: &Error, events: &mut Vec<Event>) {
    while let Some(Some(Header { kind: Kind::Notice, .. })) = chan.arrival() {
        chan.freed = chan.freed.wrapping_add(1);
    }
    if chan.block.is_some() && pump(chan, on, events).is_err() {
        // The peer is lost already, and nothing after invalid bytes counts.
        chan.arrived = chan.freed;
    }
    (chan.probed, chan.unfit) = (false, false);
    events.extend(chan.recvs.drain(..).map(|op| Event::Failed(op.token, cause.clone())));
}

/// The peer's answer to a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Filled,
    /// The peer has used none of it.
    Returned,
}

/// Handles the answer to the oldest grant.
pub(super) fn answered(
    link: &Link,
    chan: &mut Chan,
    answer: Answer,
    hands: &mut Hands<'_>,
) -> Result<(), Trouble> {
    let Some(granted) = chan.granted.pop_front() else {
        return Err(Trouble::Corrupt("it filled memory that was not granted"));
    };
    let rail = usize::from(link.lanes[link.long_lane(chan.number)].rail);
    let is_filled = answer == Answer::Filled;
    if granted.dead && is_filled {
        return Err(Trouble::Corrupt("it filled memory granted for another message"));
    }
    let at = granted.sequence.wrapping_sub(chan.recv_sequence) as usize;
    // A message that failed is no longer in the queue.
    if let Some(op) = chan.recvs.get_mut(at).filter(|_| is_filled) {
        let offset = op.filled;
        op.filled += granted.len;
        match (granted.chunk, &chan.staging) {
            (Some(chunk), Some(staging)) => {
                let from = staging.as_ptr().wrapping_add(usize::from(chunk) * chan.chunk_bytes);
                if let Err(error) = deliver(op, from, offset, granted.len) {
                    op.failed.get_or_insert(error);
                }
                match op.landing {
                    Landing::Place { .. } => hands.counters.received_staged_bytes += granted.len as u64,
                    Landing::Eat(_) => hands.counters.received_eaten_bytes += granted.len as u64,
                }
            }
            _ => {
                hands.counters.received_in_place_bytes += granted.len as u64;
                // Later pieces may come through staging and go behind these bytes.
                if let Landing::Place { pieces, cursor } = &mut op.landing {
                    pieces.advance(cursor, granted.len);
                }
            }
        }
    }
    if let Some(chunk) = granted.chunk {
        chan.chunks_free |= 1 << chunk;
    }
    if let Some(held) = granted.held {
        hands.registrations[rail].release(held);
    }
    Ok(())
}

/// Grants memory for the long receives that are posted.
pub(super) fn grant(link: &mut Link, chan: &mut Chan, hands: &mut Hands<'_>) -> Result<bool, Trouble> {
    let mut moved = false;
    if chan.remote.is_none() || !chan.opened || chan.unfit {
        return Ok(false);
    }
    let mut at = 0;
    while at < chan.recvs.len() && chan.granted.len() < GRANTS as usize && link.lanes[0].has_room() {
        let sequence = chan.recv_sequence.wrapping_add(at as u32);
        let Some(mut op) = chan.recvs.remove(at) else { break };
        let long = op.len > EAGER_BYTES;
        let granted = match long && op.granted < op.len {
            true => grant_one(link, chan, &mut op, sequence, hands),
            false => Ok(Granting::Complete),
        };
        let conditional = op.conditional;
        chan.recvs.insert(at, op);
        match granted? {
            // The sender cannot know whether its next message is this one, so no grant is made behind it.
            Granting::Complete if conditional && !long => break,
            Granting::Complete => at += 1,
            Granting::More => moved = true,
            Granting::Blocked => break,
        }
    }
    Ok(moved)
}

enum Granting {
    Complete,
    More,
    Blocked,
}

fn grant_one(
    link: &mut Link,
    chan: &mut Chan,
    op: &mut RecvOp,
    sequence: u32,
    hands: &mut Hands<'_>,
) -> Result<Granting, Trouble> {
    let rail = usize::from(link.lanes[link.long_lane(chan.number)].rail);
    if op.way == Way::Open {
        op.way = way(op);
    }
    let left = op.len - op.granted;
    let (to, len, chunk, held) = match (op.way, &op.landing) {
        (Way::Direct, Landing::Place { pieces, .. }) => {
            let Some((piece, offset)) = pieces.piece(&mut op.granted_to) else {
                return Ok(Granting::Blocked);
            };
            // SAFETY: the caller's memory stays mapped until the token completes; the use is released before.
            let Some(held) = (unsafe { hands.registrations[rail].acquire(piece.ptr, piece.len, REMOTE) })
            else {
                // The rest is staged; the parts that are granted already are filled before.
                op.way = Way::Staged;
                return Ok(Granting::More);
            };
            let len = (piece.len - offset).min(u32::MAX as usize & !4095);
            pieces.advance(&mut op.granted_to, len);
            let address = piece.ptr.wrapping_add(offset).expose_provenance() as u64;
            (Remote { address, key: held.remote_key }, len, None, Some(held))
        }
        _ => {
            let Some(chunk) = chan.chunk(rail, hands)? else { return Ok(Granting::Blocked) };
            let Some(staging) = &chan.staging else { return Ok(Granting::Blocked) };
            let to = staging.region().remote(usize::from(chunk) * chan.chunk_bytes);
            (to, left.min(chan.chunk_bytes), Some(chunk), None)
        }
    };
    let grant = Grant {
        sequence,
        key: to.key,
        address: to.address,
        len: len as u64,
        message_len: op.len as u64,
        tag: op.tag,
        conditional: op.conditional,
        generation: chan.generation,
    };
    let at = grant_at(chan.grants_sent);
    let Some(block) = &mut chan.block else { return Ok(Granting::Blocked) };
    block.write(own(at), &grant.encode());
    let local = Link::local_of(block, own(at), Grant::BYTES);
    // SAFETY: these bytes are overwritten only when the previous grant in this place has been answered.
    unsafe {
        link.lanes[0].write(
            remote(chan.remote, at),
            Some(local),
            Some(Note::Grant.encode(chan.number)),
            None,
        )?
    };
    chan.grants_sent = chan.grants_sent.wrapping_add(1);
    op.granted += len;
    chan.granted.push_back(Granted { sequence, len, chunk, held, dead: false });
    Ok(Granting::More)
}

/// Decides how a message is received, by the shape of its memory. Whether that can be registered shows later.
fn way(op: &RecvOp) -> Way {
    let Landing::Place { pieces, .. } = &op.landing else { return Way::Staged };
    let (shortest, count) = pieces.shortest();
    if count > 1 && shortest < PIECE_BYTES_MIN { Way::Staged } else { Way::Direct }
}

/// Sends the peer the pending notes: the count of freed slots, once half of them have been freed since the last note;
/// the refusal of a message.
pub(super) fn tell(link: &mut Link, chan: &mut Chan) -> Result<bool, Trouble> {
    if let Some(sequence) = chan.refuse.take_if(|_| link.lanes[0].has_room()) {
        let to = link.nowhere();
        // SAFETY: the write involves no memory.
        unsafe { link.lanes[0].write(to, None, Some(Note::Refused(sequence).encode(chan.number)), None)? };
    }
    if chan.freed.wrapping_sub(chan.freed_told) < SLOTS / 2 || !chan.opened || !link.lanes[0].has_room() {
        return Ok(false);
    }
    let note = Note::Freed(chan.freed as u16).encode(chan.number);
    let to = link.nowhere();
    // SAFETY: the write involves no memory.
    unsafe { link.lanes[0].write(to, None, Some(note), None)? };
    chan.freed_told = chan.freed;
    Ok(true)
}
