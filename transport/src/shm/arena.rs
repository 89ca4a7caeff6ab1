//! Memory shared by all ranks of a host: doorbells, the abort word, and the areas of exchanges.
//!
//! ```text
//! page 0          version, members; then, 128 bytes apart: abort word; bell and sleepers of the compiled exchange;
//!                 whether places have been taken back (see `places`); whether all members have asked for the arena
//! members         256 bytes per member: its doorbell, its mail counter, whether it left; its announcement
//! areas           [`AREAS`] of them, each with
//!   lines         [`EXCHANGE_DEPTH`] lines of 128 bytes per member
//!   buffers       of each member: see `buffers`
//! ```
//! Area 0 is that of the compiled exchange; the others are the stage. Untouched pages cost no memory.
//!
//! # Doorbells
//! A member is `AWAKE`, asleep on its doorbell word, or asleep on its descriptor. Only the member itself marks itself
//! as asleep. Any peer may change that to `AWAKE`, and the peer that did so wakes the member. A member that goes to
//! sleep (1) marks itself as asleep, (2) executes a heavy fence, (3) looks once more whether there is something to
//! do, (4) sleeps while the word says asleep. A peer (1) publishes, (2) executes a light fence, (3) looks at the
//! doorbell. A heavy fence and a light fence are always ordered (see [`Fences`]), so either the member sees the
//! published data, or the peer sees that it must wake the member.

use std::io;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::address::VERSION;
use super::buffers::Buffers;
use crate::arm::ParkBy;
use crate::sys::atomic::{AtomicU32, AtomicU64, fence};
use crate::sys::fences::Fences;
use crate::sys::map::Mapping;
use crate::sys::{futex, memfd};

pub(crate) const IS_MODEL: bool = cfg!(kolo_model);

/// Longest payload per member in an exchange, in bytes. A longer call takes several exchanges.
pub const EXCHANGE_MAX: usize = 648 * 1024;

/// Number of rounds by which a member may be ahead of another. A root that broadcasts in a loop then waits for the
/// others only once in so many calls.
///
/// Models use few rounds and few buffers, so that they soon reuse them.
pub(crate) const EXCHANGE_DEPTH: usize = if IS_MODEL { 2 } else { 8 };

/// Number of areas of the stage: four for each of the four groups of calls that run at the same time, so that four
/// segments of a long call are in flight. Only calls of several parts use all four; two suffice for a call of one
/// part among few ranks.
pub(crate) const STAGE_AREAS: u16 = 16;

/// Number of all areas. That of the compiled exchange comes first.
const AREAS: usize = 1 + STAGE_AREAS as usize;

/// Maximum number of members of an arena.
pub(crate) const MEMBERS_MAX: u32 = 4096;

const LINE: usize = 128;
pub(crate) const PAGE: usize = 4096;
const VERSION_AT: usize = 0;
const MEMBERS_AT: usize = 4;
const ABORT_AT: usize = LINE;
const BELL_AT: usize = 2 * LINE;
const SLEEPERS_AT: usize = 3 * LINE;
const WITHDRAWN_AT: usize = 4 * LINE;
const ASSEMBLY_AT: usize = 5 * LINE;
const PER_MEMBER_AT: usize = PAGE;
const PER_MEMBER_BYTES: usize = 2 * LINE;
const AWAKE: u32 = 0;
/// Value of a doorbell whose owner sleeps on the word itself.
pub(crate) const ASLEEP_WORD: u32 = 1;
const ASLEEP_FD: u32 = 2;

/// State of a group whose leader hands out its arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Assembly {
    /// Members are missing.
    Incomplete = 0,
    /// All members have asked for the arena.
    Complete = 1,
    /// The leader waits no longer.
    GivenUp = 2,
}

/// Result of an attempt to wake a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wake {
    /// The member was awake.
    No,
    /// The member was woken through its futex.
    Done,
    /// The caller must wake the member through its datagram socket.
    Nudge,
}

/// The shared arena of a local group.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    map: Arc<Mapping>,
    members: u32,
    buffers: Buffers,
    fences: Fences,
}

impl Arena {
    /// Creates the arena. The descriptor is for the other members.
    pub(crate) fn create(members: u32, fences: Fences) -> io::Result<(Self, OwnedFd)> {
        assert!((1..=MEMBERS_MAX).contains(&members), "{members} members");
        let bytes = arena_bytes(members);
        let fd = memfd::create_sealed("kolo-arena", bytes)?;
        let arena = Self {
            map: Arc::new(Mapping::new(&fd, bytes)?),
            members,
            buffers: Buffers::new(members),
            fences,
        };
        arena.word(MEMBERS_AT).store(members, Ordering::Relaxed);
        arena.word(VERSION_AT).store(VERSION, Ordering::Release);
        Ok((arena, fd))
    }

    /// Maps the arena that the leader has handed over.
    pub(crate) fn open(fd: impl AsFd, members: u32, fences: Fences) -> io::Result<Self> {
        let bytes = arena_bytes(members);
        memfd::check_sealed(&fd, bytes)?;
        let arena =
            Self { map: Arc::new(Mapping::new(fd, bytes)?), members, buffers: Buffers::new(members), fences };
        let (version, said) = (arena.word(VERSION_AT), arena.word(MEMBERS_AT));
        if version.load(Ordering::Acquire) != VERSION || said.load(Ordering::Relaxed) != members {
            return Err(io::Error::other("the leader's arena belongs to another version or group"));
        }
        Ok(arena)
    }

    /// Returns the number of members.
    pub(crate) fn members(&self) -> u32 {
        self.members
    }

    /// Returns the fence scheme by which members order publications against doorbell states.
    pub(crate) fn fences(&self) -> Fences {
        self.fences
    }

    /// Returns the state of the assembly. A value that no member writes counts as given up.
    pub(crate) fn assembly(&self) -> Assembly {
        let word = self.word(ASSEMBLY_AT).load(Ordering::Acquire);
        let is = |state: &Assembly| *state as u32 == word;
        [Assembly::Incomplete, Assembly::Complete].into_iter().find(is).unwrap_or(Assembly::GivenUp)
    }

    /// Tells the members that have the arena how the assembly ended.
    pub(crate) fn end_assembly(&self, how: Assembly) {
        self.word(ASSEMBLY_AT).store(how as u32, Ordering::Release);
        futex::wake_all(self.word(ASSEMBLY_AT));
    }

    /// Sleeps while the assembly is incomplete, for at most `patience`.
    ///
    /// # Errors
    /// As [`futex::wait_word`].
    pub(crate) fn sleep_until_assembled(&self, patience: Duration) -> io::Result<()> {
        futex::wait_word(self.word(ASSEMBLY_AT), Assembly::Incomplete as u32, patience)
    }

    /// Returns the abort word; 0 means no abort.
    pub(crate) fn abort_word(&self) -> &AtomicU32 {
        self.word(ABORT_AT)
    }

    /// Announces that a member is about to take its memory back.
    pub(crate) fn withdraw(&self) {
        self.word(WITHDRAWN_AT).store(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Returns whether a member took its memory back before all earlier reads were complete.
    pub(crate) fn is_withdrawn(&self) -> bool {
        fence(Ordering::SeqCst);
        self.word(WITHDRAWN_AT).load(Ordering::SeqCst) != 0
    }

    /// Wakes the members that sleep in the compiled exchange and wait for `member`, if there are any. Includes a
    /// light fence.
    #[inline]
    pub(crate) fn ring_bell(&self, member: usize) {
        self.fences.light();
        if self.sleepers().load(Ordering::Relaxed) > 0 {
            self.ring_bell_for(bell_bit(member));
        }
    }

    #[cold]
    fn ring_bell_for(&self, bits: NonZeroU32) {
        self.bell().fetch_add(1, Ordering::SeqCst);
        futex::wake(self.bell(), bits);
    }

    /// Wakes all members that sleep in the compiled exchange or are about to.
    #[cold]
    pub(crate) fn ring_bell_always(&self) {
        self.ring_bell_for(NonZeroU32::MAX);
    }

    /// Returns the word that sleepers of the compiled exchange sleep on.
    pub(crate) fn bell(&self) -> &AtomicU32 {
        self.word(BELL_AT)
    }

    /// Returns the number of threads that sleep on the bell or are about to.
    #[inline]
    pub(crate) fn sleepers(&self) -> &AtomicU32 {
        self.word(SLEEPERS_AT)
    }

    /// Returns a member's doorbell.
    pub(crate) fn doorbell(&self, member: u32) -> &AtomicU32 {
        self.word(self.member_base(member))
    }

    /// Returns the number of arrivals on a member's sockets. It spares the member system calls on empty sockets.
    pub(crate) fn mail(&self, member: u32) -> &AtomicU32 {
        self.word(self.member_base(member) + 4)
    }

    /// Returns a word that is nonzero once a member has closed its endpoint in good order.
    pub(crate) fn departed(&self, member: u32) -> &AtomicU32 {
        self.word(self.member_base(member) + 8)
    }

    /// Returns the two words that a member shows to the others.
    pub(crate) fn announcement(&self, member: u32) -> (&AtomicU64, &AtomicU64) {
        let at = self.member_base(member) + LINE;
        (self.map.atomic(at), self.map.atomic(at + 8))
    }

    /// Marks a member as asleep. Includes a heavy fence.
    pub(crate) fn fall_asleep(&self, member: u32, by: ParkBy) {
        let state = match by {
            ParkBy::Word => ASLEEP_WORD,
            ParkBy::Fd => ASLEEP_FD,
        };
        self.doorbell(member).store(state, Ordering::SeqCst);
        self.fences.heavy();
    }

    /// Marks a member as awake.
    pub(crate) fn rise(&self, member: u32) {
        self.doorbell(member).store(AWAKE, Ordering::Release);
    }

    /// Wakes a member if it sleeps. Call this after publishing and a light fence.
    #[inline]
    pub(crate) fn wake(&self, member: u32) -> Wake {
        let doorbell = self.doorbell(member);
        if doorbell.load(Ordering::Relaxed) == AWAKE { Wake::No } else { Self::wake_sleeper(doorbell) }
    }

    #[cold]
    fn wake_sleeper(doorbell: &AtomicU32) -> Wake {
        match doorbell.swap(AWAKE, Ordering::AcqRel) {
            AWAKE => Wake::No,
            ASLEEP_FD => Wake::Nudge,
            _ => {
                futex::wake_all(doorbell);
                Wake::Done
            }
        }
    }

    /// Returns the lines of an area: those of all members for round 0 mod [`EXCHANGE_DEPTH`], then those for round 1, and
    /// so on.
    pub(crate) fn lines(&self, area: u16) -> *mut u8 {
        let at = areas_at(self.members) + usize::from(area) * area_bytes(self.members);
        self.map.bytes(at, lines_bytes(self.members))
    }

    /// Returns the layout of the members' payload buffers.
    #[inline]
    pub(crate) fn buffers(&self) -> &Buffers {
        &self.buffers
    }

    /// Returns a member's buffer in an area for a payload of `len` bytes in the given round.
    pub(crate) fn buffer(&self, area: usize, member: usize, round: u64, len: usize) -> *mut u8 {
        assert!(area < AREAS && member < self.members as usize && len <= EXCHANGE_MAX);
        let area = areas_at(self.members) + area * area_bytes(self.members) + lines_bytes(self.members);
        self.map.bytes(area + member * self.buffers.bytes() + self.buffers.place(round, len), len)
    }

    fn member_base(&self, member: u32) -> usize {
        assert!(member < self.members, "member {member} of {}", self.members);
        PER_MEMBER_AT + member as usize * PER_MEMBER_BYTES
    }

    #[inline]
    fn word(&self, offset: usize) -> &AtomicU32 {
        self.map.atomic(offset)
    }
}

/// Returns the bit by which sleepers that wait for a member are woken. With many members, few others share the bit.
pub(crate) fn bell_bit(member: usize) -> NonZeroU32 {
    NonZeroU32::new(1 << (member as u32 % u32::BITS)).unwrap_or(NonZeroU32::MAX)
}

fn areas_at(members: u32) -> usize {
    (PER_MEMBER_AT + members as usize * PER_MEMBER_BYTES).next_multiple_of(PAGE)
}

/// Returns the length of an area's lines, up to its buffers.
fn lines_bytes(members: u32) -> usize {
    (EXCHANGE_DEPTH * members as usize * LINE).next_multiple_of(PAGE)
}

fn area_bytes(members: u32) -> usize {
    lines_bytes(members) + members as usize * Buffers::new(members).bytes()
}

/// Returns the length of an arena, which is the longest memory file that an endpoint makes.
pub(crate) fn arena_bytes(members: u32) -> usize {
    areas_at(members) + AREAS * area_bytes(members)
}
