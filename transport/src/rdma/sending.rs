//! The sending half of a channel.
//!
//! Short messages go into the peer's slots while some are free, and are then complete for the caller at once. Long
//! messages wait for grants, and are complete when the adapter reports that the peer has them. A long message without
//! a grant announces itself to the peer, but only after it has waited for a while, or when this side goes to sleep:
//! nearly always the receiver is only a little late, and only a mismatch needs the notice.

use kolo_verbs::{Access, Remote};

use super::channel::{BLOCK_BYTES, Chan, SendOp, own, own_place, slot_at, staging};
use super::device_copiers::DeviceCopiers;
use super::lane::Settled;
use super::link::{Bounce, Link};
use super::progress::{Hands, Pass};
use super::small;
use super::trouble::Trouble;
use super::wire::{EAGER_BYTES, Grant, Header, Kind, Note, Place, SLOTS};
use crate::endpoint::{Event, Posted};

/// Length below which runs of the caller's memory are copied together: a registration and a request for each would
/// cost more.
const RUN_BYTES_MIN: usize = 16 << 10;

/// Maximum length of a request: so short that several are in flight within the window.
const REQUEST_BYTES: usize = 512 << 10;

/// Number of looks at a long message without a grant before the peer gets a notice of it.
const PATIENCE_LOOKS: u32 = 32;

/// Number of pieces of a lane's bounce buffer.
const BOUNCE_CHUNKS: u8 = 4;

/// Tells the peer, once, where a channel's block is.
pub(super) fn open(link: &mut Link, chan: &mut Chan, hands: &mut Hands<'_>) -> Result<bool, Trouble> {
    if chan.opened || !link.lanes[0].has_room() {
        return Ok(false);
    }
    if chan.block.is_none() {
        let rail = &hands.rails[usize::from(link.lanes[0].rail)];
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        chan.block = Some(small::allocate(&rail.domain, hands.registrations, BLOCK_BYTES, access)?);
        link.make_room(chan.number)?;
    }
    let Some(block) = &mut chan.block else { return Ok(false) };
    let place = block.region().remote(0);
    block.write(own_place(), &Place { address: place.address, key: place.key }.encode());
    let local = Link::local_of(block, own_place(), Place::BYTES);
    let to = link.remote_entry(chan.number);
    // SAFETY: this part of the block is written once; the block outlives the lane.
    unsafe {
        link.lanes[0].write(
            to,
            Some(local),
            Some(Note::Open.encode(chan.number)),
            Some(Settled::default()),
        )?
    };
    chan.opened = true;
    Ok(true)
}

/// Returns whether a slot can be sent now.
fn can_send_slot(link: &Link, chan: &Chan) -> bool {
    chan.opened
        && chan.remote.is_some()
        && chan.slots_sent.wrapping_sub(chan.slots_freed) < SLOTS
        && link.lanes[0].has_room()
}

/// Sends a slot: a header of this `kind`, and with it the message unless it is a notice.
fn send_slot(link: &mut Link, chan: &mut Chan, kind: Kind, op: &mut SendOp) -> Result<(), Trouble> {
    let at = slot_at(chan.slots_sent);
    let header = Header {
        sequence: chan.send_sequence,
        kind,
        len: op.len as u64,
        tag: op.tag,
        freed: chan.freed as u16,
    };
    let Some(block) = &mut chan.block else { return Ok(()) };
    block.write(own(at), &header.encode());
    let len = if kind == Kind::Message { op.len } else { 0 };
    // A slot has room for the longest short message. The peer has freed the slot since it was last sent, so the
    // adapter is done with it.
    collect(op, block.as_ptr().wrapping_add(own(at) + Header::BYTES), len)?;
    let local = Link::local_of(block, own(at), Header::BYTES + len);
    let to = remote(chan.remote, at);
    // SAFETY: these bytes are overwritten only after the peer has freed the slot.
    unsafe { link.lanes[0].write(to, Some(local), Some(Note::Slot.encode(chan.number)), None)? };
    chan.slots_sent = chan.slots_sent.wrapping_add(1);
    chan.freed_told = chan.freed;
    Ok(())
}

/// Copies the next `len` bytes of a message to `to`, which is memory of this endpoint with room for them.
fn collect(op: &mut SendOp, to: *mut u8, len: usize) -> Result<(), Trouble> {
    let mut result = Ok(());
    let device_copiers = op.device_copiers.as_deref();
    op.pieces.each_run(&mut op.cursor, len, |from, at, len| {
        if result.is_ok() {
            // SAFETY: the caller's pieces are alive as long as the operation; the caller of this function provides
            // room at `to`.
            let copied = unsafe { DeviceCopiers::copy(device_copiers, from, to.wrapping_add(at), len) };
            result = copied.map_err(Trouble::Message);
        }
    });
    result
}

pub(super) fn remote(place: Option<Place>, at: usize) -> Remote {
    let place = place.unwrap_or(Place { address: 0, key: 0 });
    Remote { address: place.address.wrapping_add(at as u64), key: place.key }
}

/// Sends a short message at once, if the queue is empty and a slot is free.
pub(super) fn send_now(
    link: &mut Link,
    chan: &mut Chan,
    op: &mut SendOp,
    hands: &mut Hands<'_>,
) -> Result<Posted, Trouble> {
    if op.len > EAGER_BYTES || !chan.sends.is_empty() || !can_send_slot(link, chan) {
        return Ok(Posted::Pending);
    }
    send_slot(link, chan, Kind::Message, op)?;
    hands.counters.short_messages += 1;
    chan.send_sequence = chan.send_sequence.wrapping_add(1);
    Ok(Posted::Done)
}

/// Sends as much as can be sent.
pub(super) fn pump(
    link: &mut Link,
    chan: &mut Chan,
    pass: Pass,
    hands: &mut Hands<'_>,
) -> Result<bool, Trouble> {
    let mut moved = false;
    loop {
        moved |= return_unused(link, chan)?;
        let Some(mut op) = chan.sends.pop_front() else { return Ok(moved) };
        let step = if op.len <= EAGER_BYTES {
            send_short(link, chan, &mut op, hands)
        } else {
            send_long(link, chan, &mut op, pass, hands)
        };
        match step {
            Err(trouble) => {
                // The send fails together with all others of this peer: the next message would take its place, and some of its
                // requests may be under way, which only the end of the link stops.
                chan.sends.push_front(op);
                return Err(trouble);
            }
            Ok(Step::Over) => {
                if let Some((held, ..)) = op.held.take() {
                    let rail = link.lanes[link.long_lane(chan.number)].rail;
                    hands.registrations[usize::from(rail)].release(held);
                }
                chan.send_sequence = chan.send_sequence.wrapping_add(1);
                moved = true;
            }
            Ok(Step::Blocked { moved: some }) => {
                chan.sends.push_front(op);
                return Ok(moved | some);
            }
        }
    }
}

enum Step {
    /// The sending half has finished with the message.
    Over,
    Blocked {
        moved: bool,
    },
}

fn send_short(
    link: &mut Link,
    chan: &mut Chan,
    op: &mut SendOp,
    hands: &mut Hands<'_>,
) -> Result<Step, Trouble> {
    if !can_send_slot(link, chan) {
        return Ok(Step::Blocked { moved: false });
    }
    send_slot(link, chan, Kind::Message, op)?;
    hands.counters.short_messages += 1;
    hands.events.push(Event::Done(op.token));
    Ok(Step::Over)
}

fn send_long(
    link: &mut Link,
    chan: &mut Chan,
    op: &mut SendOp,
    pass: Pass,
    hands: &mut Hands<'_>,
) -> Result<Step, Trouble> {
    let mut moved = false;
    loop {
        let ours = |grant: &Grant| grant.sequence == chan.send_sequence && !chan.is_void(grant);
        let ours = chan.grants.front().copied().filter(ours);
        let Some(grant) = ours else {
            if chan.refused.take_if(|refused| *refused == chan.send_sequence as u16).is_some() {
                hands.events.push(Event::Done(op.token));
                return Ok(Step::Over);
            }
            op.stalled += 1;
            let is_due = pass == Pass::BeforeSleep || op.stalled > PATIENCE_LOOKS;
            if is_due && op.written == 0 && !op.noticed {
                moved |= notify(link, chan, op, hands)?;
            }
            return Ok(Step::Blocked { moved });
        };
        if grant.tag != op.tag || grant.message_len != op.len as u64 {
            // The receiver expects another message, and the notice tells it which one this is.
            if !notify(link, chan, op, hands)? {
                return Ok(Step::Blocked { moved });
            }
            if !grant.conditional {
                // The receiver gets none of the message's bytes.
                hands.events.push(Event::Done(op.token));
                return Ok(Step::Over);
            }
            // The message stays here.
            if !return_first(link, chan)? {
                return Ok(Step::Blocked { moved });
            }
            return_unused(link, chan)?;
            moved = true;
            continue;
        }
        if grant.len - chan.grant_written as u64 > (op.len - op.written) as u64 {
            return Err(Trouble::Corrupt("it granted more than the length of the message"));
        }
        if !send_request(link, chan, op, &grant, hands)? {
            return Ok(Step::Blocked { moved });
        }
        moved = true;
        if op.written == op.len {
            hands.counters.long_messages += 1;
            return Ok(Step::Over);
        }
    }
}

/// Tells the peer, once, which message waits here. Returns `false` if there is no room for that now.
fn notify(link: &mut Link, chan: &mut Chan, op: &mut SendOp, hands: &mut Hands<'_>) -> Result<bool, Trouble> {
    if !op.noticed && can_send_slot(link, chan) {
        send_slot(link, chan, Kind::Notice, op)?;
        hands.counters.notices += 1;
        op.noticed = true;
    }
    Ok(op.noticed)
}

/// Writes one run of a message into a grant. Returns `false` if there is no room for it now.
fn send_request(
    link: &mut Link,
    chan: &mut Chan,
    op: &mut SendOp,
    grant: &Grant,
    hands: &mut Hands<'_>,
) -> Result<bool, Trouble> {
    let number = link.long_lane(chan.number);
    let lane = &mut link.lanes[number];
    if !lane.has_room() || lane.bytes_under_way >= hands.options.in_flight_bytes {
        return Ok(false);
    }
    let room = (grant.len as usize - chan.grant_written).min(REQUEST_BYTES);
    let Some((piece, offset)) = op.pieces.piece(&mut op.cursor) else {
        return Err(Trouble::Corrupt("a message ended before its grants"));
    };
    let run = (piece.len - offset).min(room);
    let rail = usize::from(lane.rail);
    let mut settled = Settled::default();
    let in_place = (run >= RUN_BYTES_MIN || run == room) && hold(op, piece.ptr, piece.len, rail, hands);
    let local = if in_place && let Some((held, ..)) = &op.held {
        settled.held = Some(hands.registrations[rail].again(held));
        let key = held.local_key;
        settled.bytes = run;
        op.pieces.advance(&mut op.cursor, run);
        hands.counters.sent_in_place_bytes += run as u64;
        kolo_verbs::Local::new(piece.ptr.wrapping_add(offset).expose_provenance() as u64, run as u32, key)
    } else {
        if link.bounce[number].is_none() {
            let pieces = usize::from(BOUNCE_CHUNKS);
            let (memory, chunk_bytes) = staging(pieces, rail, Access::LOCAL_WRITE, hands)?;
            link.bounce[number] = Some(Bounce { memory, free: (1 << BOUNCE_CHUNKS) - 1, chunk_bytes });
        }
        let Some(bounce) = link.bounce[number].as_mut().filter(|bounce| bounce.free != 0) else {
            return Ok(false);
        };
        let chunk = bounce.free.trailing_zeros() as u8;
        let at = usize::from(chunk) * bounce.chunk_bytes;
        let bytes = room.min(bounce.chunk_bytes);
        // A free piece of the buffer is used by nobody else.
        collect(op, bounce.memory.as_ptr().wrapping_add(at), bytes)?;
        bounce.free &= !(1 << chunk);
        settled.chunk = Some(chunk);
        settled.bytes = bytes;
        hands.counters.sent_staged_bytes += bytes as u64;
        Link::local_of(&bounce.memory, at, bytes)
    };
    let bytes = settled.bytes;
    let to = Remote { address: grant.address.wrapping_add(chan.grant_written as u64), key: grant.key };
    let full = chan.grant_written + bytes == grant.len as usize;
    let last = op.written + bytes == op.len;
    settled.token = last.then_some(op.token);
    let note = full.then(|| Note::Filled.encode(chan.number));
    // SAFETY: the caller's memory stays valid until the token completes, which `settled` reports; a piece of the
    // bounce buffer stays unused until it is settled. Both outlive the lane: see `progress`.
    unsafe { link.lanes[number].write(to, Some(local), note, Some(settled))? };
    op.written += bytes;
    chan.grant_written += bytes;
    if full {
        chan.grants.pop_front();
        chan.grant_written = 0;
    }
    Ok(true)
}

/// Makes the operation hold the region of this piece; returns `false` if the piece is to be copied.
fn hold(op: &mut SendOp, ptr: *mut u8, len: usize, rail: usize, hands: &mut Hands<'_>) -> bool {
    let registrations = &mut hands.registrations[rail];
    if op.copied == Some((ptr.addr(), len)) {
        return false;
    }
    if let Some((held, start, size)) = op.held.take() {
        if (start, size) == (ptr.addr(), len) {
            op.held = Some((held, start, size));
            return true;
        }
        registrations.release(held);
    }
    // SAFETY: the caller's memory stays mapped until the token completes, and uses are released before.
    match unsafe { registrations.acquire(ptr, len, Access::LOCAL_READ) } {
        Some(held) => {
            op.held = Some((held, ptr.addr(), len));
            true
        }
        None => {
            op.copied = Some((ptr.addr(), len));
            false
        }
    }
}

/// Returns grants for messages that have gone another way, and the grants that are void with them. Each is answered,
/// so both ends keep the same counts.
fn return_unused(link: &mut Link, chan: &mut Chan) -> Result<bool, Trouble> {
    let mut moved = false;
    while let Some(grant) = chan.grants.front() {
        let behind = (grant.sequence.wrapping_sub(chan.send_sequence) as i32) < 0;
        if !(behind || chan.is_void(grant)) || !return_first(link, chan)? {
            break;
        }
        moved = true;
    }
    Ok(moved)
}

/// Returns the first grant unused. Returns `false` if there is no room for that now.
fn return_first(link: &mut Link, chan: &mut Chan) -> Result<bool, Trouble> {
    let number = link.long_lane(chan.number);
    if !link.lanes[number].has_room() {
        return Ok(false);
    }
    let note = Some(Note::Returned.encode(chan.number));
    let to = link.nowhere();
    // SAFETY: the write involves no memory.
    unsafe { link.lanes[number].write(to, None, note, Some(Settled::default()))? };
    if let Some(grant) = chan.grants.pop_front().filter(|grant| grant.conditional) {
        chan.void = Some(grant.generation);
    }
    chan.grant_written = 0;
    Ok(true)
}
