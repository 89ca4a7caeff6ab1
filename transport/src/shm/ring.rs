//! Ring of one channel in one direction: one producer, one consumer, no read-modify-write instructions.
//!
//! # States and owners
//! A message travels in *pieces*, each announced by a *cell*. The 30 cells are used in order, over and over. A piece
//! of at most [`INLINE_BYTES`] lies in its cell, so a small message is one cache line that moves once. A longer piece
//! lies in the ring, at the producer's position there.
//!
//! ```text
//! cell:  0  word     stamp (upper 32 bits) | skip (bit 31) | rts (bit 30) | shuttle (bit 29, its name: bits 26 to 28) |
//!                    length of the piece
//!        8  tag      of the message; written with its first piece
//!       16  total    length of the message; written with its first piece
//!       24  inline   up to 104 bytes
//! ```
//! 1. Cell number `k` (counted from 0 without end) is published by storing its word with stamp `k + 1` (mod 2^32)
//!    with release order, after the rest of the cell and the piece. Before that, the word of the cell's place holds
//!    0, if no cell was there before (the stamp of the first one is at most 30 and not 0), or stamp `k - 29`. The
//!    consumer therefore takes cell `k` exactly when it loads stamp `k + 1` with acquire order.
//! 2. Only the producer writes cells, the ring and its own line; only the consumer writes the `freed` counters. The
//!    producer writes cell `k` only when `k - cells_freed < 30`, and ring bytes only after they were freed: its
//!    acquire loads of the counters order its writes after the consumer's reads.
//! 3. Both ends keep their own position in the ring. The position advances by the length of a piece rounded up to
//!    128. It returns to 0 at the end of the ring, or before a piece with the `skip` bit: the rest of the ring up to
//!    its end then counts as used.
//! 4. All pieces of a message but the last are multiples of 128 bytes and longer than [`INLINE_BYTES`].
//! 5. A piece with the `shuttle` bit lies in a shuttle (see the `shuttles` module), which the receiver holds from then
//!    on. It takes no room in the ring.
//! 6. A cell with the `rts` bit stands for a whole message, which stays with its sender: see the `rendezvous` module.
//!
//! # Trust
//! Every number from the other side is checked before use: a piece must lie inside the ring as this side has mapped
//! it, and counters may not run ahead of the number of items produced. A hostile peer can garble payload and nothing
//! else.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::options::{CONTROL_BYTES, RING_MAX_BYTES, RING_MIN_BYTES};
use super::rendezvous::RTS_WORDS;
use super::shuttles::{Shuttle, Shuttles};
use crate::endpoint::GRAIN_BYTES;
use crate::sys::atomic::{Atomic, AtomicU32, AtomicU64, fence};
use crate::sys::map::Mapping;

/// Number of cells of a channel: the control page without its first two lines, in cells.
///
/// Models use few cells so that they soon reuse them.
pub(crate) const CELLS: u32 = if cfg!(kolo_model) { 3 } else { 30 };
pub(super) const CELL_BYTES: usize = 128;
pub(super) const CELLS_OFFSET: usize = 256;
const _: () = assert!(CELLS_OFFSET + 30 * CELL_BYTES == CONTROL_BYTES && CELLS <= 30);

pub(super) const CELL_TAG: usize = 8;
pub(super) const CELL_TOTAL: usize = 16;
pub(super) const CELL_INLINE: usize = 24;
/// Longest piece that travels in its cell. Its first 40 bytes share the line with the stamp.
pub(crate) const INLINE_BYTES: usize = CELL_BYTES - CELL_INLINE;

const _: () = assert!(RTS_WORDS * 8 <= INLINE_BYTES);
/// Value of the word `can_get` once the receiver reads its sender's memory.
pub(crate) const CAN_GET: u32 = 1;

/// Granularity of positions in the ring: two cache lines, so that producer and consumer never work on the same pair.
pub(super) const ALIGN: usize = 128;
const _: () = assert!(ALIGN.is_multiple_of(GRAIN_BYTES) && ALIGN > INLINE_BYTES);

pub(super) const RING_SIZE: usize = 0;
/// In the sender's line: nonzero once the ranges of pending requests are no longer valid.
pub(super) const WITHDRAWN: usize = 8;
pub(super) const CELLS_FREED: usize = 128;
pub(super) const BYTES_FREED: usize = 136;
/// In the receiver's line: the count of cells up to the latest request that it declined.
pub(super) const DECLINED: usize = 144;

pub(super) const SKIP: u32 = 1 << 31;
pub(super) const RTS: u32 = 1 << 30;
pub(super) const SHUTTLE: u32 = 1 << 29;
/// Position of a shuttle's name in the word, above the length.
pub(super) const SHUTTLE_SHIFT: u32 = 26;
const LENGTH: u32 = (1 << SHUTTLE_SHIFT) - 1;
const _: () = assert!(SHUTTLE_SHIFT + Shuttle::BITS <= 29 && RING_MAX_BYTES < LENGTH as usize);

/// Error: the other side wrote a value that no peer of this version writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) String);

/// A piece that has arrived. It stays in place until [`Consumer::release`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Arrival {
    /// First byte.
    pub(crate) ptr: *const u8,
    /// Length of the piece in bytes.
    pub(crate) len: usize,
    /// The word of its cell, without the stamp.
    word: u32,
}

impl Arrival {
    /// Returns whether the cell is a rendezvous request in place of a message.
    #[inline]
    pub(crate) fn is_rts(&self) -> bool {
        self.word & RTS != 0
    }
}

/// The control page of a ring, and the index of the next cell at this end.
#[derive(Debug)]
pub(super) struct Control {
    /// The owner keeps the mapping of the page alive.
    page: *mut u8,
    cell: u32,
}

impl Control {
    pub(super) fn new(map: &Mapping, offset: usize) -> Self {
        Self { page: map.bytes(offset, CONTROL_BYTES), cell: 0 }
    }

    #[inline]
    pub(super) fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: callers pass aligned offsets inside the control page, which the mapping keeps alive; peers reach
        // these words as atomics only.
        unsafe { AtomicU64::at(self.page.add(offset)) }
    }

    #[inline]
    fn cell(&self) -> *mut u8 {
        // SAFETY: `cell < CELLS`, and all cells lie in the control page.
        unsafe { self.page.add(CELLS_OFFSET + self.cell as usize * CELL_BYTES) }
    }

    #[inline]
    pub(super) fn cell_word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the word is aligned and lies inside a cell (`offset` is one of the `CELL_*` constants); both sides
        // access it as an atomic.
        unsafe { AtomicU64::at(self.cell().add(offset)) }
    }

    /// Returns the inline part of the next cell.
    #[inline]
    pub(super) fn inline(&self) -> *mut u8 {
        // SAFETY: the inline part of cell `self.cell < CELLS` lies in the control page.
        unsafe { self.cell().add(CELL_INLINE) }
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        self.cell = self.following();
    }

    /// Returns the index of the cell after the next one.
    #[inline]
    fn following(&self) -> u32 {
        if self.cell + 1 == CELLS { 0 } else { self.cell + 1 }
    }
}

/// The receiving end of a ring.
#[derive(Debug)]
pub(crate) struct Consumer {
    control: Control,
    ring: *mut u8,
    /// Number of bytes mapped.
    ring_max: usize,
    /// Number of bytes that the sender uses; 0 until the first piece in the ring.
    ring_bytes: usize,
    consumed: u64,
    position: usize,
    bytes_consumed: u64,
    map: Arc<Mapping>,
    /// Offset of the ring in the mapping.
    offset: usize,
    shuttles: Arc<Shuttles>,
}

// SAFETY: the pointers go into the mapping that is kept alive beside them, which belongs to no thread.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Returns the consumer of the channel at `offset`, for whose ring `ring_max` bytes are mapped.
    pub(crate) fn new(map: Arc<Mapping>, offset: usize, ring_max: usize, shuttles: Arc<Shuttles>) -> Self {
        Self {
            control: Control::new(&map, offset),
            ring: map.bytes(offset + CONTROL_BYTES, ring_max),
            ring_max,
            ring_bytes: 0,
            consumed: 0,
            position: 0,
            bytes_consumed: 0,
            map,
            offset: offset + CONTROL_BYTES,
            shuttles,
        }
    }

    /// Returns the next piece, if it has arrived.
    #[inline]
    pub(crate) fn peek(&mut self) -> Result<Option<Arrival>, Corrupt> {
        let word = self.control.cell_word(0).load(Ordering::Acquire);
        // Rule 1, modulo 2^32.
        if (word >> 32) as u32 != (self.consumed as u32).wrapping_add(1) {
            return Ok(None);
        }
        let word = word as u32;
        let len = (word & LENGTH) as usize;
        if len <= INLINE_BYTES {
            let ptr = self.control.inline();
            return Ok(Some(Arrival { ptr, len, word }));
        }
        if word & RTS != 0 {
            return Err(Corrupt(format!("a rendezvous request of {len} bytes")));
        }
        if word & SHUTTLE != 0 { self.peek_shuttle(len, word) } else { self.peek_ring(len, word) }.map(Some)
    }

    #[inline(never)]
    fn peek_shuttle(&self, len: usize, word: u32) -> Result<Arrival, Corrupt> {
        let shuttle = Shuttle::named(word >> SHUTTLE_SHIFT);
        let Some(ptr) = self.shuttles.arrived(shuttle, len) else {
            return Err(Corrupt(format!("a piece of {len} bytes in {shuttle:?}, which is not the sender's")));
        };
        self.prefetch_next_cell();
        Ok(Arrival { ptr, len, word })
    }

    #[inline]
    fn peek_ring(&mut self, len: usize, word: u32) -> Result<Arrival, Corrupt> {
        if self.ring_bytes == 0 {
            self.ring_bytes = self.ring_size()?;
            self.map.populate(self.offset, self.ring_bytes);
        }
        let at = if word & SKIP != 0 { 0 } else { self.position };
        if len > self.ring_bytes - at {
            return Err(Corrupt(format!("a piece of {len} bytes at {at} of {}", self.ring_bytes)));
        }
        self.prefetch_next_cell();
        // SAFETY: `at + len <= ring_bytes <= ring_max`, which is mapped.
        Ok(Arrival { ptr: unsafe { self.ring.add(at) }, len, word })
    }

    /// Prefetches the next cell's line while the caller works on this piece: a sender that is ahead has written that
    /// line already.
    fn prefetch_next_cell(&self) {
        let next = self.control.following();
        let line = self.control.page.wrapping_add(CELLS_OFFSET + next as usize * CELL_BYTES);
        // SAFETY: a prefetch is a hint and has no effect on memory contents.
        #[cfg(target_arch = "x86_64")]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = line;
    }

    /// Returns tag and total length of the message whose first piece comes next. Valid only after [`Self::peek`] saw
    /// that piece.
    pub(crate) fn envelope(&self) -> (u64, u64) {
        (
            self.control.cell_word(CELL_TAG).load(Ordering::Relaxed),
            self.control.cell_word(CELL_TOTAL).load(Ordering::Relaxed),
        )
    }

    /// Returns the words of a request. Valid only after [`Self::peek`] saw the request.
    pub(crate) fn rts_words(&self) -> [u64; RTS_WORDS] {
        std::array::from_fn(|i| self.control.cell_word(CELL_INLINE + 8 * i).load(Ordering::Relaxed))
    }

    /// Returns whether the sender has taken back requests that were not yet released.
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.control.word(WITHDRAWN).load(Ordering::SeqCst) != 0
    }

    /// Gives the sender back the space of the piece that was last peeked.
    #[inline]
    pub(crate) fn release(&mut self, arrival: &Arrival) {
        if arrival.len > INLINE_BYTES {
            self.release_place(arrival);
        }
        self.release_cell();
    }

    #[inline]
    fn release_place(&mut self, arrival: &Arrival) {
        if arrival.word & SHUTTLE != 0 {
            self.shuttles.put(Shuttle::named(arrival.word >> SHUTTLE_SHIFT));
        } else {
            let mut used = arrival.len.next_multiple_of(ALIGN);
            if arrival.word & SKIP != 0 {
                used += self.ring_bytes - self.position;
                self.position = 0;
            }
            self.position += arrival.len.next_multiple_of(ALIGN);
            if self.position >= self.ring_bytes {
                self.position = 0;
            }
            self.bytes_consumed += used as u64;
            self.control.word(BYTES_FREED).store(self.bytes_consumed, Ordering::Release);
        }
    }

    /// Releases a request's cell and asks for the message's bytes through the ring.
    pub(crate) fn decline(&mut self) {
        self.control.word(DECLINED).store(self.consumed + 1, Ordering::Relaxed);
        self.release_cell();
    }

    /// Releases a cell whose piece was not in the ring: that of a request.
    pub(crate) fn release_cell(&mut self) {
        self.consumed += 1;
        self.control.word(CELLS_FREED).store(self.consumed, Ordering::Release);
        self.control.advance();
    }

    /// Returns the ring's size as the sender states it, after checking it. Called once.
    fn ring_size(&self) -> Result<usize, Corrupt> {
        // SAFETY: the word is aligned, lies in the control page, and is accessed as an atomic on both sides.
        let size =
            unsafe { AtomicU32::at(self.control.page.add(RING_SIZE)) }.load(Ordering::Acquire) as usize;
        if size == 0 || size > self.ring_max || !size.is_multiple_of(RING_MIN_BYTES) {
            return Err(Corrupt(format!("a ring of {size} bytes, but {} are mapped", self.ring_max)));
        }
        Ok(size)
    }
}

/// See [`crate::fuzzing`]. The bytes are a script that says which values the peer writes where in the control page,
/// and what the owners of both ends do in between.
#[cfg(any(test, fuzzing))]
pub(super) fn fuzz_control(script: &[u8]) {
    use super::copier::{Copier, Stores};
    use super::producer::Producer;
    use super::shuttles::SHUTTLES_BYTES;

    const RING: usize = 4 * RING_MIN_BYTES;
    const ALL: usize = CONTROL_BYTES + RING + 2 * SHUTTLES_BYTES;
    let Ok(map) = Mapping::private(ALL) else { return };
    let map = Arc::new(map);
    let shuttles = Arc::new(Shuttles::default());
    shuttles.add_own(map.clone(), CONTROL_BYTES + RING, true);
    shuttles.add_peers(map.clone(), CONTROL_BYTES + RING + SHUTTLES_BYTES);
    let mut producer = Producer::new(map.clone(), 0, RING, 1024, shuttles.clone());
    let mut consumer = Consumer::new(map.clone(), 0, RING, shuttles);
    let all = map.bytes(0, ALL).addr();
    let is_inside = |at: *const u8, len: usize| at.addr() >= all && at.addr() + len <= all + ALL;
    let (mut sends, mut receives) = (true, true);
    for step in script.chunks_exact(11) {
        let mut value = [0; 8];
        value.copy_from_slice(&step[3..]);
        let value = u64::from_le_bytes(value);
        let at = usize::from(u16::from_le_bytes([step[1], step[2]])) % (CONTROL_BYTES / 8) * 8;
        match step[0] % 6 {
            0 => map.atomic::<AtomicU64>(at).store(value, Ordering::Relaxed),
            // The words that the owners read, so that they are hit more often than by chance.
            1 => {
                let words = [RING_SIZE, WITHDRAWN, CELLS_FREED, BYTES_FREED, DECLINED];
                map.atomic::<AtomicU64>(words[at / 8 % words.len()]).store(value, Ordering::Relaxed);
            }
            2 => {
                // A stamp that fits, with any length.
                let base = CELLS_OFFSET + consumer.control.cell as usize * CELL_BYTES;
                let stamp = (consumer.consumed + 1) << 32 | value & 0xffff_ffff;
                map.atomic::<AtomicU64>(base).store(stamp, Ordering::Relaxed);
            }
            3 | 4 if receives => match consumer.peek() {
                Ok(Some(arrival)) => {
                    assert!(is_inside(arrival.ptr, arrival.len));
                    let _ = (consumer.envelope(), consumer.rts_words(), consumer.is_withdrawn());
                    match (arrival.is_rts(), value & 1) {
                        (true, 0) => consumer.decline(),
                        (true, _) => consumer.release_cell(),
                        (false, _) => consumer.release(&arrival),
                    }
                }
                Ok(None) => {}
                Err(Corrupt(_)) => receives = false,
            },
            5 if value & 3 == 0 && sends => {
                let (bytes, len) = ([value as u8; INLINE_BYTES], value as usize / 4 % (INLINE_BYTES + 1));
                let mut copier = Copier::new(Stores::Auto);
                // SAFETY: `bytes` holds at least `len` bytes.
                let put = unsafe { producer.put_whole(value, bytes.as_ptr(), len, &mut copier) };
                sends = put.is_ok();
            }
            _ if sends => {
                match producer.reserve(value as usize % (2 * RING) + 1, value as usize % (8 * RING) + 1) {
                    Ok(Some(space)) => {
                        assert!(is_inside(space.ptr, space.len));
                        producer.publish(&space, Some((value, value)));
                    }
                    Ok(None) => {}
                    Err(Corrupt(_)) => sends = false,
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::super::producer::Producer;
    use super::*;
    use crate::sys::memfd;

    fn ends(ring_bytes: usize, piece_bytes: usize, start: u64) -> (Producer, Consumer) {
        let bytes = CONTROL_BYTES + ring_bytes;
        let fd = memfd::create_sealed("ring-test", bytes).expect("memfd");
        let map = Arc::new(Mapping::new(&fd, bytes).expect("mapping"));
        map.atomic::<AtomicU64>(CELLS_FREED).store(start, Ordering::Relaxed);
        let mut producer = Producer::new(map.clone(), 0, ring_bytes, piece_bytes, Arc::default());
        let mut consumer = Consumer::new(map, 0, ring_bytes, Arc::default());
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
                let Some(space) = producer.reserve(len, len).expect("well-behaved") else {
                    assert!(!model.is_empty(), "no room in an empty ring");
                    continue;
                };
                assert!(space.len <= len && (space.len == len || space.len.is_multiple_of(ALIGN)));
                // SAFETY: this is the space that was just reserved.
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
                // SAFETY: this is the piece that was just peeked.
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
            // Stamps have 32 bits: both ends must agree across the wrap, where every cell has been written before.
            let start = if near_wrap { u64::from(u32::MAX) - 2 * u64::from(CELLS) } else { 0 };
            run(pages * 4096, piece * ALIGN, start, &script);
        }
    }
}
