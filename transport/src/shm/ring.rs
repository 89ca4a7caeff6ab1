//! The ring of one channel in one direction: one producer, one consumer, no read-modify-write.
//!
//! # States and owners
//! A message travels in *pieces*, each announced by a *cell*. Cells are used in order, 30 of them in a circle. A
//! piece of at most [`INLINE_BYTES`] lies in its cell, so that a small message is one cache line that moves once;
//! a longer one lies in the ring, at the producer's position there.
//!
//! ```text
//! cell:  0  word     stamp (upper 32 bits) | skip (bit 31) | rts (bit 30) | length of the piece
//!        8  tag      of the message; written with its first piece
//!       16  total    length of the message; written with its first piece
//!       24  inline   up to 104 bytes
//! ```
//! 1. The cell number `k` (counted from 0 for ever) is published by storing the word with stamp `k + 1` (mod 2^32)
//!    with release, after everything else of the cell and the piece. The place held 0 before its first cell (whose
//!    stamp is 30 at most, and not 0), and stamp `k - 29` before any later one, so the consumer takes cell `k`
//!    exactly when it loads stamp `k + 1` with acquire.
//! 2. Only the producer writes cells, ring and its line; only the consumer writes the `freed` counters. Cell `k`
//!    is written only when `k - cells_freed < 30`, and ring bytes only when they were freed: the producer's
//!    acquire of the counters orders its writes after the consumer's reads.
//! 3. Both ends keep their own position in the ring; it advances by the length of a piece rounded up to 128, and
//!    goes back to 0 at the end, or before a piece with the `skip` bit: the rest up to the end counts as used.
//! 4. Pieces but the last are multiples of 128 bytes and longer than [`INLINE_BYTES`].
//! 5. A cell with the `rts` bit stands for a whole message, which stays with its sender: see the `rendezvous` module.
//!
//! # Trust
//! Every number from the other side is checked before use: a piece must lie inside the ring as this side has mapped
//! it, and counters may not run ahead of what was produced. The other side can garble payload, and nothing else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::options::{CONTROL_BYTES, RING_MIN_BYTES};
use super::rendezvous::{RTS_WORDS, Rts};
use crate::endpoint::GRAIN_BYTES;
use crate::sys::atomic::{Atomic, AtomicU32, AtomicU64, fence};
use crate::sys::map::Mapping;

/// Cells of a channel: what is left of the control page after two lines.
///
/// Models have few, to come round soon.
pub(crate) const CELLS: u32 = if cfg!(kolo_model = "transport") { 3 } else { 30 };
const CELL_BYTES: usize = 128;
const CELLS_OFFSET: usize = 256;
const _: () = assert!(CELLS_OFFSET + 30 * CELL_BYTES == CONTROL_BYTES && CELLS <= 30);

const CELL_TAG: usize = 8;
const CELL_TOTAL: usize = 16;
const CELL_INLINE: usize = 24;
/// Longest piece that travels in its cell. The first 40 bytes share the line with the stamp.
pub(crate) const INLINE_BYTES: usize = CELL_BYTES - CELL_INLINE;

const _: () = assert!(RTS_WORDS * 8 <= INLINE_BYTES);
/// Value of the word `can_get` of a receiver that reads its sender's memory.
pub(crate) const CAN_GET: u32 = 1;

/// Granule of positions in the ring: two cache lines, so that producer and consumer never work on the same pair.
const ALIGN: usize = 128;
const _: () = assert!(ALIGN.is_multiple_of(GRAIN_BYTES) && ALIGN > INLINE_BYTES);

const RING_SIZE: usize = 0;
/// In the sender's line: not 0 once the ranges of pending requests must no longer be believed.
const WITHDRAWN: usize = 8;
const CELLS_FREED: usize = 128;
const BYTES_FREED: usize = 136;
/// In the receiver's line: the count of cells up to the latest request that it declined.
const DECLINED: usize = 144;

const SKIP: u32 = 1 << 31;
const RTS: u32 = 1 << 30;

/// A piece shorter than this at the end of the ring is skipped rather than filled, unless the message fits.
const WORTHWHILE_BYTES: usize = 4096;

/// The other side wrote what no peer of this version writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) String);

/// Destination of the next piece.
#[derive(Debug)]
pub(crate) struct Space {
    /// First byte.
    pub(crate) ptr: *mut u8,
    /// Bytes of the message to put there.
    pub(crate) len: usize,
    skip: bool,
}

/// The sending end.
#[derive(Debug)]
pub(crate) struct Producer {
    control: *mut u8,
    ring: *mut u8,
    ring_bytes: usize,
    piece_bytes: usize,
    /// Next cell.
    cell: u32,
    produced: u64,
    /// As last seen.
    freed: u64,
    position: usize,
    bytes_produced: u64,
    bytes_freed: u64,
    map: Arc<Mapping>,
    /// Offset of the ring in the mapping, until its pages are allocated.
    unbacked: Option<usize>,
    /// Offset in the mapping of the word by which the receiver says that it reads this process's memory.
    can_get: Option<usize>,
}

// SAFETY: the pointers go into the mapping that is kept alive beside them, which belongs to no thread.
unsafe impl Send for Producer {}

impl Producer {
    /// The producer of the channel at `offset`. `ring_bytes` is a multiple of 4096.
    pub(crate) fn new(map: Arc<Mapping>, offset: usize, ring_bytes: usize, piece_bytes: usize) -> Self {
        assert!(ring_bytes.is_multiple_of(RING_MIN_BYTES) && ring_bytes > 0, "ring of {ring_bytes} bytes");
        map.atomic::<AtomicU32>(offset + RING_SIZE)
            .store(u32::try_from(ring_bytes).expect("bounded by RING_MAX_BYTES"), Ordering::Release);
        Self {
            control: map.bytes(offset, CONTROL_BYTES),
            ring: map.bytes(offset + CONTROL_BYTES, ring_bytes),
            ring_bytes,
            // Half a ring at most, so that one piece can be filled while another is eaten.
            piece_bytes: (piece_bytes.min(ring_bytes / 2) / ALIGN * ALIGN).max(ALIGN),
            cell: 0,
            produced: 0,
            freed: 0,
            position: 0,
            bytes_produced: 0,
            bytes_freed: 0,
            map,
            unbacked: Some(offset + CONTROL_BYTES),
            can_get: None,
        }
    }

    /// Messages go by rendezvous as soon as the word at `can_get` says that the receiver can read them.
    pub(crate) fn with_rendezvous(mut self, can_get: usize) -> Self {
        self.can_get = Some(can_get);
        self
    }

    /// Whether the receiver reads this process's memory.
    #[inline]
    pub(crate) fn may_rendezvous(&self) -> bool {
        self.can_get.is_some_and(|at| self.map.atomic::<AtomicU32>(at).load(Ordering::Acquire) == CAN_GET)
    }

    /// Whether there is a free cell.
    fn has_cell(&mut self) -> Result<bool, Corrupt> {
        if self.produced - self.freed >= u64::from(CELLS) {
            self.freed()?;
        }
        Ok(self.produced - self.freed < u64::from(CELLS))
    }

    /// Number of cells that the receiver has freed.
    pub(crate) fn freed(&mut self) -> Result<u64, Corrupt> {
        self.freed = self.refresh(CELLS_FREED, self.freed, self.produced)?;
        Ok(self.freed)
    }

    /// Sends a rendezvous request for a message, if there is a free cell, and gives the number of freed cells from which on it is taken.
    pub(crate) fn request(&mut self, tag: u64, total: u64, rts: &Rts) -> Result<Option<u64>, Corrupt> {
        if !self.has_cell()? {
            return Ok(None);
        }
        self.cell_word(CELL_TAG).store(tag, Ordering::Relaxed);
        self.cell_word(CELL_TOTAL).store(total, Ordering::Relaxed);
        let words = rts.words();
        for (i, word) in words.iter().enumerate() {
            self.cell_word(CELL_INLINE + 8 * i).store(*word, Ordering::Relaxed);
        }
        self.publish_cell(RTS | (8 * words.len()) as u32);
        Ok(Some(self.produced))
    }

    /// Whether the receiver wants the message through the ring that the request with this mark, which it has freed, stood
    /// for.
    pub(crate) fn is_declined(&self, mark: u64) -> bool {
        self.control_word(DECLINED).load(Ordering::Relaxed) == mark
    }

    /// Takes back all pending requests: see the `rendezvous` module.
    pub(crate) fn withdraw(&self) {
        self.control_word(WITHDRAWN).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Room for the next piece of a message of which `remaining` bytes are left, if there is any.
    pub(crate) fn reserve(&mut self, remaining: usize) -> Result<Option<Space>, Corrupt> {
        if !self.has_cell()? {
            return Ok(None);
        }
        if remaining <= INLINE_BYTES {
            // SAFETY: the inline part of cell `self.cell < CELLS` lies in the control page.
            let ptr = unsafe { self.cell_base().add(CELL_INLINE) };
            return Ok(Some(Space { ptr, len: remaining, skip: false }));
        }
        let wanted = remaining.min(self.piece_bytes);
        let contiguous = self.ring_bytes - self.position;
        let skip = contiguous < wanted && contiguous < WORTHWHILE_BYTES;
        let len = if skip { wanted } else { wanted.min(contiguous) };
        // A last piece of up to INLINE_BYTES would be taken for an inline one: `contiguous` is a multiple of ALIGN,
        // which is more, and `remaining` is more as well.
        let needed = len.next_multiple_of(ALIGN) + if skip { contiguous } else { 0 };
        if self.ring_free() < needed {
            self.bytes_freed = self.refresh(BYTES_FREED, self.bytes_freed, self.bytes_produced)?;
            if self.ring_free() < needed {
                return Ok(None);
            }
        }
        if let Some(offset) = self.unbacked.take() {
            // A channel of small messages never gets here. Page by page on first touch would cost half a microsecond
            // for each page, in the first messages.
            self.map.populate(offset, self.ring_bytes);
        }
        let at = if skip { 0 } else { self.position };
        // SAFETY: `at + len <= ring_bytes`: either at 0 with `len <= piece_bytes <= ring_bytes / 2`, or bounded by
        // `contiguous`.
        Ok(Some(Space { ptr: unsafe { self.ring.add(at) }, len, skip }))
    }

    /// Publishes the piece that was put into `space`, the latest one reserved. `first` carries tag and total length
    /// with a message's first piece.
    pub(crate) fn publish(&mut self, space: &Space, first: Option<(u64, u64)>) {
        let mut length = u32::try_from(space.len).expect("bounded by the ring");
        if let Some((tag, total)) = first {
            self.cell_word(CELL_TAG).store(tag, Ordering::Relaxed);
            self.cell_word(CELL_TOTAL).store(total, Ordering::Relaxed);
        }
        if space.len > INLINE_BYTES {
            let mut used = space.len.next_multiple_of(ALIGN);
            if space.skip {
                used += self.ring_bytes - self.position;
                self.position = 0;
                length |= SKIP;
            }
            self.position += space.len.next_multiple_of(ALIGN);
            if self.position >= self.ring_bytes {
                self.position = 0;
            }
            self.bytes_produced += used as u64;
        }
        self.publish_cell(length);
    }

    fn publish_cell(&mut self, length: u32) {
        self.produced += 1;
        // Rule 1: the stamp is the count of cells up to and including this one.
        let word = self.produced << 32 | u64::from(length);
        self.cell_word(0).store(word, Ordering::Release);
        self.cell = if self.cell + 1 == CELLS { 0 } else { self.cell + 1 };
    }

    fn ring_free(&self) -> usize {
        // Both are within `ring_bytes` of each other: `refresh` checks it.
        self.ring_bytes - (self.bytes_produced - self.bytes_freed) as usize
    }

    /// Loads one of the consumer's counters, which must lie between what it was and what was produced.
    fn refresh(&self, offset: usize, seen: u64, produced: u64) -> Result<u64, Corrupt> {
        let freed = self.control_word(offset).load(Ordering::Acquire);
        if freed < seen || freed > produced {
            return Err(Corrupt(format!("the receiver freed {freed} of {produced}, after {seen}")));
        }
        Ok(freed)
    }

    fn control_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass aligned offsets inside the control page, which the mapping keeps alive; peers reach
        // these words as atomics only.
        unsafe { AtomicU64::at(self.control.add(offset)) }
    }

    fn cell_base(&self) -> *mut u8 {
        // SAFETY: `cell < CELLS`, and all cells lie in the control page.
        unsafe { self.control.add(CELLS_OFFSET + self.cell as usize * CELL_BYTES) }
    }

    fn cell_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: aligned and inside a cell (`offset` is one of the `CELL_*` constants); reached as an atomic on
        // both sides.
        unsafe { AtomicU64::at(self.cell_base().add(offset)) }
    }
}

/// A piece that has arrived. Stays where it is until [`Consumer::release`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// First byte.
    pub(crate) ptr: *const u8,
    /// Bytes of the piece.
    pub(crate) len: usize,
    /// Whether it is a rendezvous request in place of a message.
    pub(crate) is_rts: bool,
    skip: bool,
}

/// The receiving end.
#[derive(Debug)]
pub(crate) struct Consumer {
    control: *mut u8,
    ring: *mut u8,
    /// Bytes mapped.
    ring_max: usize,
    /// Bytes that the sender uses; 0 until the first piece in the ring.
    ring_bytes: usize,
    cell: u32,
    consumed: u64,
    position: usize,
    bytes_consumed: u64,
    map: Arc<Mapping>,
    /// Offset of the ring in the mapping.
    offset: usize,
}

// SAFETY: as for `Producer`.
unsafe impl Send for Consumer {}

impl Consumer {
    /// The consumer of the channel at `offset`, for whose ring `ring_max` bytes are mapped.
    pub(crate) fn new(map: Arc<Mapping>, offset: usize, ring_max: usize) -> Self {
        Self {
            control: map.bytes(offset, CONTROL_BYTES),
            ring: map.bytes(offset + CONTROL_BYTES, ring_max),
            ring_max,
            ring_bytes: 0,
            cell: 0,
            consumed: 0,
            position: 0,
            bytes_consumed: 0,
            map,
            offset: offset + CONTROL_BYTES,
        }
    }

    /// The next piece, if it is there.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Arrival>, Corrupt> {
        let word = self.cell_word(0).load(Ordering::Acquire);
        // Rule 1, modulo 2^32.
        if (word >> 32) as u32 != (self.consumed as u32).wrapping_add(1) {
            return Ok(None);
        }
        let is_rts = word as u32 & RTS != 0;
        let len = (word as u32 & !(SKIP | RTS)) as usize;
        if len <= INLINE_BYTES {
            // SAFETY: the inline part of cell `self.cell < CELLS` lies in the control page.
            let ptr = unsafe { self.cell_base().add(CELL_INLINE) };
            return Ok(Some(Arrival { ptr, len, is_rts, skip: false }));
        }
        if is_rts {
            return Err(Corrupt(format!("a rendezvous request of {len} bytes")));
        }
        self.peek_ring(len, word as u32 & SKIP != 0).map(Some)
    }

    fn peek_ring(&mut self, len: usize, skip: bool) -> Result<Arrival, Corrupt> {
        if self.ring_bytes == 0 {
            self.ring_bytes = self.ring_size()?;
            self.map.populate(self.offset, self.ring_bytes);
        }
        let at = if skip { 0 } else { self.position };
        if len > self.ring_bytes - at {
            return Err(Corrupt(format!("a piece of {len} bytes at {at} of {}", self.ring_bytes)));
        }
        self.prefetch_next_cell();
        // SAFETY: `at + len <= ring_bytes <= ring_max`, which is mapped.
        Ok(Arrival { ptr: unsafe { self.ring.add(at) }, len, is_rts: false, skip })
    }

    /// Fetches the next cell's line while this piece is being eaten: a sender that is ahead has written it already.
    fn prefetch_next_cell(&self) {
        let next = if self.cell + 1 == CELLS { 0 } else { self.cell + 1 };
        let line = self.control.wrapping_add(CELLS_OFFSET + next as usize * CELL_BYTES);
        // SAFETY: a hint, without effect on contents.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// Tag and total length of the message whose first piece is the next one. Only after [`Self::peek`] saw it.
    pub(crate) fn envelope(&self) -> (u64, u64) {
        (self.cell_word(CELL_TAG).load(Ordering::Relaxed), self.cell_word(CELL_TOTAL).load(Ordering::Relaxed))
    }

    /// The words of a request. Only after [`Self::peek`] saw it.
    pub(crate) fn rts_words(&self) -> [u64; RTS_WORDS] {
        std::array::from_fn(|i| self.cell_word(CELL_INLINE + 8 * i).load(Ordering::Relaxed))
    }

    /// Whether the sender has taken back requests that were not yet released.
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.control_word(WITHDRAWN).load(Ordering::SeqCst) != 0
    }

    /// Gives the latest piece that was peeked back to the sender.
    #[inline]
    pub(crate) fn release(&mut self, arrival: &Arrival) {
        if arrival.len > INLINE_BYTES {
            let mut used = arrival.len.next_multiple_of(ALIGN);
            if arrival.skip {
                used += self.ring_bytes - self.position;
                self.position = 0;
            }
            self.position += arrival.len.next_multiple_of(ALIGN);
            if self.position >= self.ring_bytes {
                self.position = 0;
            }
            self.bytes_consumed += used as u64;
            self.control_word(BYTES_FREED).store(self.bytes_consumed, Ordering::Release);
        }
        self.release_cell();
    }

    /// Gives a request's cell back, asking for the message's bytes in the ring.
    pub(crate) fn decline(&mut self) {
        self.control_word(DECLINED).store(self.consumed + 1, Ordering::Relaxed);
        self.release_cell();
    }

    /// Gives a cell back whose piece was not in the ring: a request's.
    pub(crate) fn release_cell(&mut self) {
        self.consumed += 1;
        self.control_word(CELLS_FREED).store(self.consumed, Ordering::Release);
        self.cell = if self.cell + 1 == CELLS { 0 } else { self.cell + 1 };
    }

    /// The ring's size as the sender says, checked. Read once.
    fn ring_size(&self) -> Result<usize, Corrupt> {
        // SAFETY: aligned, in the control page, reached as an atomic on both sides.
        let size = unsafe { AtomicU32::at(self.control.add(RING_SIZE)) }.load(Ordering::Acquire) as usize;
        if size == 0 || size > self.ring_max || !size.is_multiple_of(RING_MIN_BYTES) {
            return Err(Corrupt(format!("a ring of {size} bytes where {} are mapped", self.ring_max)));
        }
        Ok(size)
    }

    fn control_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for `Producer::control_word`.
        unsafe { AtomicU64::at(self.control.add(offset)) }
    }

    fn cell_base(&self) -> *mut u8 {
        // SAFETY: `cell < CELLS`, and all cells lie in the control page.
        unsafe { self.control.add(CELLS_OFFSET + self.cell as usize * CELL_BYTES) }
    }

    fn cell_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for `Producer::cell_word`.
        unsafe { AtomicU64::at(self.cell_base().add(offset)) }
    }
}

/// See [`crate::fuzzing`]. Bytes are a script: what the peer writes where in the control page, and what the owner of
/// either end does in between.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_control(script: &[u8]) {
    const RING: usize = 4 * RING_MIN_BYTES;
    let Ok(map) = Mapping::private(CONTROL_BYTES + RING) else { return };
    let map = Arc::new(map);
    let mut producer = Producer::new(map.clone(), 0, RING, 1024);
    let mut consumer = Consumer::new(map.clone(), 0, RING);
    let (mut sends, mut receives) = (true, true);
    for step in script.chunks_exact(11) {
        let mut value = [0; 8];
        value.copy_from_slice(&step[3..]);
        let value = u64::from_le_bytes(value);
        let at = usize::from(u16::from_le_bytes([step[1], step[2]])) % (CONTROL_BYTES / 8) * 8;
        match step[0] % 6 {
            0 => map.atomic::<AtomicU64>(at).store(value, Ordering::Relaxed),
            // The words that are looked at, so that they are hit more often than by chance.
            1 => {
                let words = [RING_SIZE, WITHDRAWN, CELLS_FREED, BYTES_FREED, DECLINED];
                map.atomic::<AtomicU64>(words[at / 8 % words.len()]).store(value, Ordering::Relaxed);
            }
            2 => {
                // A stamp that fits, with any length.
                let base = CELLS_OFFSET + consumer.cell as usize * CELL_BYTES;
                let stamp = (consumer.consumed + 1) << 32 | value & 0xffff_ffff;
                map.atomic::<AtomicU64>(base).store(stamp, Ordering::Relaxed);
            }
            3 | 4 if receives => match consumer.peek() {
                Ok(Some(arrival)) => {
                    let all = map.bytes(0, CONTROL_BYTES + RING).addr();
                    let begin = arrival.ptr.addr();
                    assert!(
                        begin >= all && begin + arrival.len <= all + CONTROL_BYTES + RING,
                        "out of the memory"
                    );
                    let _ = (consumer.envelope(), consumer.rts_words(), consumer.is_withdrawn());
                    match (arrival.is_rts, value & 1) {
                        (true, 0) => consumer.decline(),
                        (true, _) => consumer.release_cell(),
                        (false, _) => consumer.release(&arrival),
                    }
                }
                Ok(None) => {}
                Err(Corrupt(_)) => receives = false,
            },
            _ if sends => match producer.reserve(value as usize % (2 * RING) + 1) {
                Ok(Some(space)) => {
                    let all = map.bytes(0, CONTROL_BYTES + RING).addr();
                    let begin = space.ptr.addr();
                    assert!(
                        begin >= all && begin + space.len <= all + CONTROL_BYTES + RING,
                        "out of the memory"
                    );
                    producer.publish(&space, Some((value, value)));
                }
                Ok(None) => {}
                Err(Corrupt(_)) => sends = false,
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::sys::memfd;

    fn ends(ring_bytes: usize, piece_bytes: usize, start: u64) -> (Producer, Consumer) {
        let bytes = CONTROL_BYTES + ring_bytes;
        let fd = memfd::create_sealed("ring-test", bytes).expect("memfd");
        let map = Arc::new(Mapping::new(&fd, bytes).expect("mapping"));
        map.atomic::<AtomicU64>(CELLS_FREED).store(start, Ordering::Relaxed);
        let mut producer = Producer::new(map.clone(), 0, ring_bytes, piece_bytes);
        let mut consumer = Consumer::new(map, 0, ring_bytes);
        (producer.produced, producer.freed, consumer.consumed) = (start, start, start);
        (producer, consumer)
    }

    /// Puts pieces of messages in and takes them out in random order, and compares with a queue.
    fn run(ring_bytes: usize, piece_bytes: usize, start: u64, script: &[(bool, usize)]) {
        let (mut producer, mut consumer) = ends(ring_bytes, piece_bytes, start);
        let mut model: VecDeque<(usize, u8)> = VecDeque::new();
        let mut in_flight = 0;
        for (i, &(is_put, len)) in script.iter().enumerate() {
            let seed = i as u8;
            if is_put {
                let Some(space) = producer.reserve(len).expect("well-behaved") else {
                    assert!(!model.is_empty(), "no room in an empty ring");
                    continue;
                };
                assert!(space.len <= len && (space.len == len || space.len.is_multiple_of(ALIGN)));
                // SAFETY: the space that was just reserved.
                unsafe { space.ptr.write_bytes(seed, space.len) };
                producer.publish(&space, Some((i as u64, len as u64)));
                model.push_back((space.len, seed));
                in_flight += 1;
                assert!(in_flight <= CELLS);
            } else {
                let arrival = consumer.peek().expect("well-behaved");
                let Some((len, seed)) = model.pop_front() else {
                    assert!(arrival.is_none(), "something out of nothing");
                    continue;
                };
                let arrival = arrival.expect("published");
                assert_eq!(arrival.len, len);
                // SAFETY: the piece that was just peeked.
                let bytes = unsafe { std::slice::from_raw_parts(arrival.ptr, arrival.len) };
                assert!(bytes.iter().all(|b| *b == seed), "piece {i} was overwritten");
                consumer.release(&arrival);
                in_flight -= 1;
            }
        }
    }

    proptest! {
        #[test]
        fn pieces_come_out_as_they_went_in(
            pages in 1usize..9,
            piece in 1usize..200,
            near_wrap in any::<bool>(),
            script in proptest::collection::vec((any::<bool>(), prop_oneof![0usize..300, 0usize..40_000]), 0..600),
        ) {
            // Stamps have 32 bits: they must agree across their wrap, where every cell has been written before.
            let start = if near_wrap { u64::from(u32::MAX) - 2 * u64::from(CELLS) } else { 0 };
            run(pages * 4096, piece * ALIGN, start, &script);
        }
    }
}
