//! The sending end of a ring. The rules are those of the [`ring`](super::ring) module.

use std::ops::RangeInclusive;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{Ordering, compiler_fence};

use super::copier::Copier;
use super::options::{CONTROL_BYTES, PIECE_GROWTH, PIECES_MIN, RING_MIN_BYTES};
use super::rendezvous::Rts;
use super::ring::{
    ALIGN, BYTES_FREED, CAN_GET, CELL_BYTES, CELL_INLINE, CELL_TAG, CELL_TOTAL, CELLS, CELLS_FREED, Control,
    Corrupt, DECLINED, INLINE_BYTES, RING_SIZE, RTS, SHUTTLE, SHUTTLE_SHIFT, SKIP, WITHDRAWN,
};
use super::shuttles::{SHUTTLE_BYTES, SHUTTLES, SHUTTLES_BYTES, Shuttles};
use crate::sys::atomic::{AtomicU32, fence};
use crate::sys::{lines, map::Mapping};

/// A shorter space at the end of the ring is skipped rather than filled, unless the message fits.
const WORTHWHILE_BYTES: usize = 4096;

/// Longest message after which the place of the next one is [claimed](Producer::claim_next). String instructions, with
/// which the C library copies longer ones, take longer to write claimed lines: see [`lines`].
const CLAIM_MAX_BYTES: usize = 2048;

/// Lengths of messages that go in shuttles. Shorter ones are quicker in claimed lines of the ring, and longer ones in the
/// ring's longer pieces.
const SHUTTLED: RangeInclusive<usize> = CLAIM_MAX_BYTES + 1..=SHUTTLES_BYTES;

/// Longest piece that is [handed on](crate::sys::lines::hand_on) to the cache that processors share.
const HANDED_ON_MAX_BYTES: usize = 512;

/// Destination of the next piece.
#[derive(Debug)]
pub(crate) struct Space {
    /// First byte.
    pub(crate) ptr: *mut u8,
    /// Number of bytes of the message to put there.
    pub(crate) len: usize,
    /// Bits of the cell's word that say where the piece lies.
    bits: u32,
}

/// The sending end of a ring.
#[derive(Debug)]
pub(crate) struct Producer {
    control: Control,
    ring: *mut u8,
    ring_bytes: usize,
    /// Length of the shortest piece of a longer message, and of the longest.
    piece_bytes: usize,
    piece_max: usize,
    pub(super) produced: u64,
    /// Count of freed cells, as last seen.
    pub(super) freed: u64,
    position: usize,
    pub(super) bytes_produced: u64,
    bytes_freed: u64,
    /// Length of the latest message, if the place of the next one is to be [claimed](Self::claim_next); otherwise 0.
    claimable: usize,
    map: Arc<Mapping>,
    /// Offset of the ring in the mapping, until its pages are allocated.
    unbacked: Option<usize>,
    /// Offset in the mapping of the word that says whether the receiver reads this process's memory.
    can_get: Option<usize>,
    shuttles: Arc<Shuttles>,
    /// Numbers and lengths of the latest pieces in shuttles.
    in_shuttles: [(u64, usize); SHUTTLES],
}

// SAFETY: the pointers go into the mapping that is kept alive beside them, which belongs to no thread.
unsafe impl Send for Producer {}

impl Producer {
    /// Returns the producer of the channel at `offset`. `ring_bytes` is a multiple of 4096.
    pub(crate) fn new(
        map: Arc<Mapping>,
        offset: usize,
        ring_bytes: usize,
        piece_bytes: usize,
        shuttles: Arc<Shuttles>,
    ) -> Self {
        assert!(ring_bytes.is_multiple_of(RING_MIN_BYTES) && ring_bytes > 0, "ring of {ring_bytes} bytes");
        map.atomic::<AtomicU32>(offset + RING_SIZE)
            .store(u32::try_from(ring_bytes).expect("bounded by RING_MAX_BYTES"), Ordering::Release);
        // A piece is at most half a ring, so that one piece can be filled while the receiver works on another.
        let at_most = |bytes: usize| (bytes.min(ring_bytes / 2) / ALIGN * ALIGN).max(ALIGN);
        Self {
            control: Control::new(&map, offset),
            ring: map.bytes(offset + CONTROL_BYTES, ring_bytes),
            ring_bytes,
            piece_bytes: at_most(piece_bytes),
            piece_max: at_most(piece_bytes.saturating_mul(PIECE_GROWTH)),
            produced: 0,
            freed: 0,
            position: 0,
            bytes_produced: 0,
            bytes_freed: 0,
            claimable: 0,
            map,
            unbacked: Some(offset + CONTROL_BYTES),
            can_get: None,
            shuttles,
            in_shuttles: [(0, 0); SHUTTLES],
        }
    }

    /// Lets messages go by rendezvous once the word at `can_get` says that the receiver can read them.
    pub(crate) fn with_rendezvous(mut self, can_get: usize) -> Self {
        self.can_get = Some(can_get);
        self
    }

    /// Returns whether the receiver reads this process's memory.
    #[inline]
    pub(crate) fn may_rendezvous(&self) -> bool {
        self.can_get.is_some_and(|at| self.map.atomic::<AtomicU32>(at).load(Ordering::Acquire) == CAN_GET)
    }

    /// Returns whether there is a free cell.
    fn has_cell(&mut self) -> Result<bool, Corrupt> {
        if self.produced - self.freed >= u64::from(CELLS) {
            self.freed()?;
        }
        Ok(self.produced - self.freed < u64::from(CELLS))
    }

    /// Returns the number of cells that the receiver has freed.
    pub(crate) fn freed(&mut self) -> Result<u64, Corrupt> {
        self.freed = self.refresh(CELLS_FREED, self.freed, self.produced)?;
        Ok(self.freed)
    }

    /// Returns how many bytes of the ring and of shuttles the receiver has not taken, for estimates: the receiver may write
    /// any number.
    pub(crate) fn unread(&self) -> usize {
        let freed = self.control.word(BYTES_FREED).load(Ordering::Relaxed);
        let taken = self.control.word(CELLS_FREED).load(Ordering::Relaxed);
        let waiting = self.in_shuttles.iter().filter(|(number, _)| *number > taken);
        self.bytes_produced.saturating_sub(freed) as usize + waiting.map(|(_, len)| *len).sum::<usize>()
    }

    /// Sends a rendezvous request for a message, if there is a free cell. Returns the count of freed cells at which
    /// the request is answered.
    pub(crate) fn request(&mut self, tag: u64, total: u64, rts: &Rts) -> Result<Option<u64>, Corrupt> {
        if !self.has_cell()? {
            return Ok(None);
        }
        self.control.cell_word(CELL_TAG).store(tag, Ordering::Relaxed);
        self.control.cell_word(CELL_TOTAL).store(total, Ordering::Relaxed);
        let words = rts.words();
        for (i, word) in words.iter().enumerate() {
            self.control.cell_word(CELL_INLINE + 8 * i).store(*word, Ordering::Relaxed);
        }
        self.publish_cell(RTS | (8 * words.len()) as u32);
        Ok(Some(self.produced))
    }

    /// Returns whether the receiver has declined the request with this mark, which it has freed, and so wants the
    /// message through the ring.
    pub(crate) fn is_declined(&self, mark: u64) -> bool {
        self.control.word(DECLINED).load(Ordering::Relaxed) == mark
    }

    /// Takes back all pending requests: see the `rendezvous` module.
    pub(crate) fn withdraw(&self) {
        self.control.word(WITHDRAWN).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Reserves room for the next piece of a message of `total` bytes of which `remaining` are left, if there is any.
    #[inline]
    pub(crate) fn reserve(&mut self, remaining: usize, total: usize) -> Result<Option<Space>, Corrupt> {
        if !self.has_cell()? {
            return Ok(None);
        }
        if remaining <= INLINE_BYTES {
            let ptr = self.control.inline();
            return Ok(Some(Space { ptr, len: remaining, bits: 0 }));
        }
        if SHUTTLED.contains(&total)
            && let Some(space) = self.reserve_shuttle(remaining, total)
        {
            return Ok(Some(space));
        }
        self.reserve_ring(remaining)
    }

    /// Reserves a shuttle for the next piece of a message, if this end holds one.
    #[inline(never)]
    fn reserve_shuttle(&self, remaining: usize, total: usize) -> Option<Space> {
        let shuttle = self.shuttles.latest()?;
        let piece = (total / SHUTTLES).next_multiple_of(ALIGN).max(self.piece_bytes).min(SHUTTLE_BYTES);
        let len = remaining.min(piece);
        Some(Space {
            ptr: self.shuttles.at(shuttle)?,
            len,
            bits: SHUTTLE | shuttle.at_peer() << SHUTTLE_SHIFT,
        })
    }

    /// Returns the length of the next piece of a message of which `remaining` bytes are left, if the message is longer.
    fn piece_of(&self, remaining: usize) -> usize {
        (remaining / PIECES_MIN / ALIGN * ALIGN).clamp(self.piece_bytes, self.piece_max)
    }

    #[inline]
    fn reserve_ring(&mut self, remaining: usize) -> Result<Option<Space>, Corrupt> {
        let wanted = remaining.min(self.piece_of(remaining));
        let contiguous = self.ring_bytes - self.position;
        let skip = contiguous < wanted && contiguous < WORTHWHILE_BYTES;
        let len = if skip { wanted } else { wanted.min(contiguous) };
        // A last piece in the ring must not be as short as INLINE_BYTES, or it would be taken for an inline one. It
        // is not: `contiguous` is a multiple of ALIGN, which is greater, and `remaining` is greater as well.
        let needed = len.next_multiple_of(ALIGN) + if skip { contiguous } else { 0 };
        if self.ring_free() < needed {
            self.bytes_freed = self.refresh(BYTES_FREED, self.bytes_freed, self.bytes_produced)?;
            if self.ring_free() < needed {
                return Ok(None);
            }
        }
        if let Some(offset) = self.unbacked.take() {
            // A channel of small messages never gets here. Allocation page by page, on first touch, would cost the
            // first messages half a microsecond for each page.
            self.map.populate(offset, self.ring_bytes);
        }
        let at = if skip { 0 } else { self.position };
        // SAFETY: `at + len <= ring_bytes`: either at 0 with `len <= piece_max <= ring_bytes / 2`, or bounded by
        // `contiguous`.
        Ok(Some(Space { ptr: unsafe { self.ring.add(at) }, len, bits: if skip { SKIP } else { 0 } }))
    }

    /// Sends a message that fits into one piece, if there is room. Returns whether it was sent.
    ///
    /// # Safety
    /// `from` is readable for `len` bytes.
    #[inline]
    pub(crate) unsafe fn put_whole(
        &mut self,
        tag: u64,
        from: *const u8,
        len: usize,
        copier: &mut Copier,
    ) -> Result<bool, Corrupt> {
        if len > self.piece_bytes {
            return Ok(false);
        }
        let Some(space) = self.reserve(len, len)? else { return Ok(false) };
        if space.len < len {
            // The end of the ring would cut the message.
            return Ok(false);
        }
        // SAFETY: the caller's promise; the space is writable for `len` bytes. Test: `short_messages` of the
        // conformance suite.
        unsafe {
            if len > INLINE_BYTES {
                copier.copy(from, space.ptr, len);
                if len <= HANDED_ON_MAX_BYTES {
                    lines::hand_on(space.ptr, len);
                }
                self.claimable = if len <= CLAIM_MAX_BYTES { len } else { 0 };
            } else if len > 0 {
                put_inline(from, space.ptr, len);
            }
        }
        self.publish(&space, Some((tag, len as u64)));
        Ok(true)
    }

    /// Publishes the piece that was put into `space`, the latest one reserved. For a message's first piece, `first`
    /// carries tag and total length.
    pub(crate) fn publish(&mut self, space: &Space, first: Option<(u64, u64)>) {
        let length = u32::try_from(space.len).expect("bounded by the ring");
        if let Some((tag, total)) = first {
            self.control.cell_word(CELL_TAG).store(tag, Ordering::Relaxed);
            self.control.cell_word(CELL_TOTAL).store(total, Ordering::Relaxed);
        }
        if space.len > INLINE_BYTES {
            self.advance_past(space);
        }
        self.publish_cell(length | space.bits);
    }

    /// Moves past a piece that does not lie in its cell.
    #[inline]
    fn advance_past(&mut self, space: &Space) {
        if space.bits & SHUTTLE != 0 {
            self.shuttles.pass();
            self.in_shuttles[self.produced as usize % SHUTTLES] = (self.produced + 1, space.len);
        } else {
            let mut used = space.len.next_multiple_of(ALIGN);
            if space.bits & SKIP != 0 {
                used += self.ring_bytes - self.position;
                self.position = 0;
            }
            self.position += space.len.next_multiple_of(ALIGN);
            if self.position >= self.ring_bytes {
                self.position = 0;
            }
            self.bytes_produced += used as u64;
        }
    }

    fn publish_cell(&mut self, length: u32) {
        self.produced += 1;
        // Rule 1: the stamp is the count of cells up to and including this one.
        let word = self.produced << 32 | u64::from(length);
        self.control.cell_word(0).store(word, Ordering::Release);
        self.control.advance();
    }

    /// Brings to this processor the lines into which a message as long as the latest one would be copied: useful work
    /// while its answer is awaited.
    #[inline]
    pub(crate) fn claim_next(&mut self) {
        let total = std::mem::take(&mut self.claimable);
        let len = total.min(self.ring_bytes - self.position);
        if total > 0 && self.ring_free() >= len {
            lines::claim(self.ring.wrapping_add(self.position), len);
        }
    }

    fn ring_free(&self) -> usize {
        // The two counters differ by at most `ring_bytes`: `refresh` checks that.
        self.ring_bytes - (self.bytes_produced - self.bytes_freed) as usize
    }

    /// Loads one of the consumer's counters, which must lie between its last value and the count of items produced.
    fn refresh(&self, offset: usize, seen: u64, produced: u64) -> Result<u64, Corrupt> {
        let freed = self.control.word(offset).load(Ordering::Acquire);
        if freed < seen || freed > produced {
            return Err(Corrupt(format!("the receiver freed {freed} of {produced}, after {seen}")));
        }
        Ok(freed)
    }
}

/// Copies into a cell. The line of the stamp is written last: a receiver that watches the stamp takes that line away
/// as soon as it changes, and the line would have to come back for the rest.
///
/// # Safety
/// `from` is readable and `to`, the inline part of a cell, writable for `len` bytes.
#[inline]
unsafe fn put_inline(from: *const u8, to: *mut u8, len: usize) {
    const FIRST_LINE: usize = CELL_BYTES / 2 - CELL_INLINE;
    let first = len.min(FIRST_LINE);
    // SAFETY: the caller's promise; both parts lie within `len`. Test: `short_messages` of the conformance suite.
    unsafe {
        if len > FIRST_LINE {
            ptr::copy_nonoverlapping(from.add(FIRST_LINE), to.add(FIRST_LINE), len - FIRST_LINE);
            lines::hand_on(to.add(FIRST_LINE), len - FIRST_LINE);
            compiler_fence(Ordering::Release);
        }
        ptr::copy_nonoverlapping(from, to, first);
    }
}
