//! Rounds of an area: in each round, every member publishes one payload, or only its presence.
//!
//! # A round
//! Every member publishes one payload of at most [`EXCHANGE_MAX`] bytes, or only its presence. It then waits for the
//! members whose payload it needs ([`Needs`]): for all in an all-reduce, for the root in a broadcast, for none where
//! it only contributes. A small payload lies in the line that carries the flag, so a round costs each member one line
//! transfer per peer.
//!
//! ```text
//! line:   0  word     round (mod 2^24, in the upper bits) | digest of what all must agree on
//!         8  tag      for error texts
//!        16  payload  up to 112 bytes, of which 48 share the line with the word
//! ```
//! A longer payload lies in the member's buffer. The word is stored last, with release order, and loaded with acquire
//! order.
//!
//! # Why a few lines and buffers are enough
//! Let D = [`EXCHANGE_DEPTH`], and let d be the number of buffers for the length of a payload. Round `k` uses the
//! line `k mod D`, and a buffer that no round before `k + min(d, D)` uses again
//! ([`Buffers::place`](super::buffers::Buffers::place)). Only the member itself writes its lines and buffers.
//! 1. A member publishes round `k` only after it has finished with the payloads of all earlier rounds.
//! 2. It publishes round `k` only after it has seen all members publish round `k - D + 1`, or `k - d + 1` if it fills
//!    a buffer ([`Rounds::is_free`]). All members have therefore finished with the round whose line or buffer it
//!    overwrites.
//! 3. A member that looks for round `r` in another's line finds `r - D`, `r` or `r + D`. It cannot find a later
//!    round, by rule 2, because it looks for all rounds in turn and has not published round `r + D` itself. Rounds
//!    are compared mod 2^24.
//! 4. Tags and digests must agree. A member that finds `r` compares them; they came with the round in one load, since
//!    the line may be overwritten at any time if this member was not needed. A member that finds `r + D` need not
//!    compare, since the other member has done so: by rule 2, it has seen this member's round `r + 1`, and `r`
//!    before.

use std::sync::atomic::Ordering;

use super::arena::{Arena, EXCHANGE_DEPTH};
use crate::stage::{Awaited, Needs, StageMismatch};
use crate::sys::atomic::{Atomic, AtomicU64};
use crate::sys::lines;

const LINE_BYTES: usize = 128;
const LINE_TAG: usize = 8;
const LINE_PAYLOAD: usize = 16;
/// Longest payload in bytes that shares its lines with the flag.
pub const EXCHANGE_INLINE: usize = LINE_BYTES - LINE_PAYLOAD;
/// Longest payload in bytes that is [handed on](lines::hand_on) to the cache that processors share.
const HANDED_ON_MAX_BYTES: usize = 1024;
/// Longest payload in bytes for whose successor lines are [claimed](lines::claim).
pub(super) const CLAIM_MAX_BYTES: usize = 4096;
/// As [`CLAIM_MAX_BYTES`], for a member that only waits in a round, and gives in others.
pub(super) const CLAIM_MAX_WAITING_BYTES: usize = 64 << 10;

/// One member's view of the rounds of an area.
#[derive(Debug)]
pub(super) struct Rounds {
    arena: Arena,
    area: usize,
    members: usize,
    member: usize,
    /// Lines of all members, for all rounds mod [`EXCHANGE_DEPTH`].
    lines: *mut u8,
    /// The last round that this member has published. The first is 1.
    round: u64,
    /// Last round that each member was seen to have published, among those looked for.
    seen: Vec<u64>,
    /// Last round that all members were seen to have published.
    all_seen: u64,
}

// SAFETY: the pointer goes into the arena's mapping, which `arena` keeps alive and which belongs to no thread.
unsafe impl Send for Rounds {}

impl Rounds {
    /// Returns the rounds of an area, before the first one.
    pub(super) fn new(arena: Arena, area: u16, member: u32) -> Self {
        let members = arena.members() as usize;
        Self {
            lines: arena.lines(area),
            area: usize::from(area),
            arena,
            members,
            member: member as usize,
            round: 0,
            seen: vec![0; members],
            all_seen: 0,
        }
    }

    pub(super) fn arena(&self) -> &Arena {
        &self.arena
    }

    /// Returns this member's index.
    #[inline]
    pub(super) fn member(&self) -> usize {
        self.member
    }

    /// Returns whether the next round can be published with a payload of `len` bytes, 0 for presence only. The answer
    /// is `false` while a member is so far behind that it may still read the bytes that would be overwritten.
    #[inline]
    pub(super) fn is_free(&mut self, len: usize) -> Result<bool, StageMismatch> {
        let least = self.least_seen(len);
        Ok(self.all_seen >= least || self.see_all(least)?)
    }

    /// Returns whether [`Rounds::is_free`] has returned `true` for a payload of `len` bytes.
    #[inline]
    pub(super) fn is_known_free(&self, len: usize) -> bool {
        self.all_seen >= self.least_seen(len)
    }

    /// Returns the round that all members must have published before this member publishes the next one.
    #[inline]
    fn least_seen(&self, len: usize) -> u64 {
        let depth = self.arena.buffers().depth(len);
        (self.round + 2).saturating_sub(depth)
    }

    /// Returns the address for the next round's payload.
    #[inline]
    pub(super) fn slot(&self, len: usize) -> *mut u8 {
        self.place(self.member, self.round + 1, len)
    }

    /// Publishes the next round, and with it the contents of its slot.
    #[inline]
    pub(super) fn publish(&mut self, tag: u64, digest: u64) {
        self.round += 1;
        let line = self.line(self.member, self.round);
        word_at(line, LINE_TAG).store(tag, Ordering::Relaxed);
        word_at(line, 0).store(word_of(self.round, tag, digest), Ordering::Release);
        self.seen[self.member] = self.round;
    }

    /// Pushes the payload in the next round's slot to where the other members find it sooner.
    #[inline]
    pub(super) fn hand_on(&self, len: usize) {
        if len > EXCHANGE_INLINE && len <= HANDED_ON_MAX_BYTES {
            lines::hand_on(self.slot(len), len);
        }
    }

    /// Brings to this processor the lines in which the next round is published if it is as long as this one, and no longer
    /// than `most`: useful work while the other members are awaited, who have read these lines some rounds ago.
    #[inline]
    pub(super) fn claim_next(&self, len: usize, most: usize) {
        let line = self.line(self.member, self.round + 1);
        if len <= EXCHANGE_INLINE {
            lines::claim(line, LINE_PAYLOAD + len);
        } else if len <= most {
            lines::claim(line, LINE_PAYLOAD);
            lines::claim(self.slot(len), len);
        }
    }

    /// Returns whether these members have published the round that this member has published last.
    #[inline]
    pub(super) fn have_published(&mut self, needs: Needs) -> Result<bool, StageMismatch> {
        match needs {
            Needs::All => self.see_all(self.round),
            Needs::Only(member) => self.see(member, self.round),
            Needs::Below(end) => {
                let mut member = 0;
                while member < end && self.see(member, self.round)? {
                    member += 1;
                }
                Ok(member == end)
            }
            Needs::Nobody => Ok(true),
        }
    }

    #[inline]
    fn see_all(&mut self, round: u64) -> Result<bool, StageMismatch> {
        for member in 0..self.seen.len() {
            if !self.see(member, round)? {
                return Ok(false);
            }
        }
        self.all_seen = round;
        Ok(true)
    }

    /// Returns whether a member has published round `upto`; checks the rounds before it too.
    #[inline]
    fn see(&mut self, member: usize, upto: u64) -> Result<bool, StageMismatch> {
        while self.seen[member] < upto {
            let round = self.seen[member] + 1;
            let line = self.line(member, round);
            let word = word_at(line, 0).load(Ordering::Acquire);
            if word != word_at(self.line(self.member, round), 0).load(Ordering::Relaxed) {
                let ahead = rounds_ahead(word, round);
                if ahead < 0 {
                    return Ok(false);
                }
                if ahead == 0 {
                    return Err(StageMismatch {
                        member,
                        tag: word_at(line, LINE_TAG).load(Ordering::Relaxed),
                    });
                }
            }
            self.seen[member] = round;
        }
        Ok(true)
    }

    /// Returns whether a member was seen to have published the current round.
    #[inline]
    pub(super) fn was_seen(&self, member: usize) -> bool {
        self.seen[member] >= self.round
    }

    /// Returns the address of a member's payload of `len` bytes in the current round.
    #[inline]
    pub(super) fn payload(&self, member: usize, len: usize) -> *mut u8 {
        self.place(member, self.round, len)
    }

    /// Returns the members that are waited for and late.
    pub(super) fn late(&self, awaited: Awaited) -> Vec<usize> {
        let (round, needs) = match awaited {
            Awaited::Room(len) => (self.least_seen(len), Needs::All),
            Awaited::Payloads(needs) => (self.round, needs),
        };
        let is_late = |member: &usize| {
            let word = word_at(self.line(*member, round), 0).load(Ordering::Acquire);
            needs.include(*member) && self.seen[*member] < round && rounds_ahead(word, round) < 0
        };
        (0..self.members).filter(is_late).collect()
    }

    /// Returns the first member that is waited for, according to the last look.
    pub(super) fn first_late(&self, needs: Needs) -> Option<usize> {
        (0..self.members).find(|member| needs.include(*member) && self.seen[*member] < self.round)
    }

    #[inline]
    fn line(&self, member: usize, round: u64) -> *mut u8 {
        debug_assert!(member < self.members);
        let index = round as usize % EXCHANGE_DEPTH * self.members + member;
        // SAFETY: the lines of all members lie one after another, for each of the rounds, and `member` is one of
        // them.
        unsafe { self.lines.add(index * LINE_BYTES) }
    }

    #[inline]
    fn place(&self, member: usize, round: u64, len: usize) -> *mut u8 {
        if len <= EXCHANGE_INLINE {
            // SAFETY: the payload lies inside the line.
            unsafe { self.line(member, round).add(LINE_PAYLOAD) }
        } else {
            self.arena.buffer(self.area, member, round, len)
        }
    }
}

/// Number of bits of a word that hold the round.
const ROUND_BITS: u32 = 24;

/// Returns a member's word: the round, and a digest of the facts on which all members must agree.
#[inline]
fn word_of(round: u64, tag: u64, digest: u64) -> u64 {
    // Multiplications by odd numbers (from the golden ratio and from Steele and Vigna's mixers) spread both values
    // over the upper bits.
    let digest = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ digest.wrapping_mul(0xd134_2543_de82_ef95);
    round << (64 - ROUND_BITS) | digest >> ROUND_BITS
}

/// Returns the number of rounds by which a word is ahead of a round.
#[inline]
fn rounds_ahead(word: u64, round: u64) -> i64 {
    (word & !(u64::MAX >> ROUND_BITS)).wrapping_sub(round << (64 - ROUND_BITS)) as i64 >> (64 - ROUND_BITS)
}

/// Returns the word at `offset` of a line.
#[inline]
fn word_at<'a>(line: *mut u8, offset: usize) -> &'a AtomicU64 {
    // SAFETY: every caller passes a line of its arena, aligned to 128 bytes, and one of two constant offsets. The
    // reference is used within the statement, while the arena is borrowed. These words are accessed as atomics only.
    unsafe { AtomicU64::at(line.add(offset)) }
}
