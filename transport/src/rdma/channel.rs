//! One channel to a peer: its queues, and the memory that the two ends share.
//!
//! # The block
//!
//! | from | to | written by | holds |
//! | --- | --- | --- | --- |
//! | 0 | [`GRANTS_AT`] | the peer | slots: a line that ends in a header, then the message |
//! | [`GRANTS_AT`] | [`SHARED_BYTES`] | the peer | grants |
//! | [`SHARED_BYTES`] | [`OWN_PLACE_AT`] | this side | the same, as they are sent: a slot is free again when the peer frees its own |
//! | [`OWN_PLACE_AT`] | [`BLOCK_BYTES`] | this side | where this block is, as it is sent |

use std::collections::VecDeque;
use std::sync::Arc;

use kolo_verbs::{Access, PinnedBuffer};

use super::device_copiers::DeviceCopiers;
use super::progress::Hands;
use super::registrations::Use;
use super::small;
use super::trouble::Trouble;
use super::wire::{EAGER_BYTES, GRANTS, Grant, Header, Place, SLOTS};
use crate::endpoint::Token;
use crate::pieces::{Cursor, Eater, Pieces};

/// A header ends where the message begins: at a multiple of a cache line.
const LINE_BYTES: usize = 64;
const SLOT_BYTES: usize = LINE_BYTES + EAGER_BYTES;
const GRANT_BYTES: usize = 64;
const GRANTS_AT: usize = SLOTS as usize * SLOT_BYTES;
const SHARED_BYTES: usize = GRANTS_AT + GRANTS as usize * GRANT_BYTES;
const OWN_PLACE_AT: usize = SHARED_BYTES + SHARED_BYTES;
pub(super) const BLOCK_BYTES: usize = OWN_PLACE_AT + LINE_BYTES;

/// Bytes of a piece of staging: long enough that a request does not count, short enough to be in the second-level
/// cache when it is consumed.
pub(super) const CHUNK_BYTES: usize = 128 << 10;

/// The same where what may be locked is short.
pub(super) const CHUNK_BYTES_LEAST: usize = 16 << 10;

/// Where the header of a slot is in the peer's or this side's shared part.
pub(super) fn slot_at(count: u32) -> usize {
    (count % SLOTS) as usize * SLOT_BYTES + LINE_BYTES - Header::BYTES
}

/// Where a grant is in the shared part.
pub(super) fn grant_at(count: u32) -> usize {
    GRANTS_AT + (count % GRANTS) as usize * GRANT_BYTES
}

/// Where this side keeps a copy of what it sends to `at` of the peer's shared part.
pub(super) fn own(at: usize) -> usize {
    SHARED_BYTES + at
}

/// Where this side keeps what it says of the block.
pub(super) fn own_place() -> usize {
    OWN_PLACE_AT
}

/// A posted send.
#[derive(Debug)]
pub(super) struct SendOp {
    pub(super) token: Token,
    pub(super) tag: u64,
    pub(super) len: usize,
    pub(super) pieces: Pieces,
    pub(super) cursor: Cursor,
    /// Bytes handed to the adapter.
    pub(super) written: usize,
    /// Whether the peer has been told that it waits.
    pub(super) noticed: bool,
    /// The region of the piece at the cursor, with the piece's bounds.
    pub(super) held: Option<(Use, usize, usize)>,
    /// The bounds of a piece that is copied, as it cannot be registered or had better not be.
    pub(super) copied: Option<(usize, usize)>,
    /// How often it was looked at without a grant.
    pub(super) stalled: u32,
    /// If some of its memory may be such that the processor cannot look at it.
    pub(super) device_copiers: Option<Arc<DeviceCopiers>>,
}

/// Destination of a received message.
#[derive(Debug)]
pub(super) enum Landing {
    Place { pieces: Pieces, cursor: Cursor },
    Eat(Eater),
}

/// How a long message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not decided yet.
    Open,
    /// Into the caller's memory.
    Direct,
    /// Through staging.
    Staged,
}

/// A posted receive.
#[derive(Debug)]
pub(super) struct RecvOp {
    pub(super) token: Token,
    pub(super) tag: u64,
    pub(super) len: usize,
    /// Whether it goes back if another message comes.
    pub(super) conditional: bool,
    pub(super) landing: Landing,
    pub(super) way: Way,
    /// Bytes granted, and the place in the pieces behind them.
    pub(super) granted: usize,
    pub(super) granted_to: Cursor,
    /// Bytes that have arrived.
    pub(super) filled: usize,
    /// As for a send.
    pub(super) device_copiers: Option<Arc<DeviceCopiers>>,
    /// Why some of it could not be put where it belongs.
    pub(super) failed: Option<crate::error::Error>,
}

/// A grant that the peer has not filled yet.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) sequence: u32,
    pub(super) len: usize,
    /// The piece of staging, if it is one.
    pub(super) chunk: Option<u8>,
    /// The region, if it is the caller's memory.
    pub(super) held: Option<Use>,
    /// Whether its receive has gone back: the peer answers it, unused.
    pub(super) dead: bool,
}

/// Memory for so many pieces, as long as what may be locked permits; and how long they are.
pub(super) fn staging(
    pieces: usize,
    rail: usize,
    access: Access,
    hands: &mut Hands<'_>,
) -> Result<(PinnedBuffer, usize), Trouble> {
    let domain = &hands.rails[rail].domain;
    match small::allocate(domain, hands.registrations, pieces * CHUNK_BYTES, access) {
        Err(Trouble::Short(..)) => {
            let least = pieces * CHUNK_BYTES_LEAST;
            Ok((small::allocate(domain, hands.registrations, least, access)?, CHUNK_BYTES_LEAST))
        }
        other => Ok((other?, CHUNK_BYTES)),
    }
}

/// A channel. Counters wrap.
#[derive(Debug)]
pub(super) struct Chan {
    pub(super) sends: VecDeque<SendOp>,
    /// Number of the first of `sends`, or of the next.
    pub(super) send_sequence: u32,
    /// Slots of the peer's filled, and freed by it.
    pub(super) slots_sent: u32,
    pub(super) slots_freed: u32,
    /// Grants received, in order.
    pub(super) grants: VecDeque<Grant>,
    /// Bytes of the first that are written.
    pub(super) grant_written: usize,
    pub(super) grants_seen: u32,
    /// The generation of the last grant on condition that was given back.
    pub(super) void: Option<u8>,
    /// A long message that the peer does not want, by the end of its number.
    pub(super) refused: Option<u16>,

    pub(super) recvs: VecDeque<RecvOp>,
    /// Number of the first of `recvs`, or of the next.
    pub(super) recv_sequence: u32,
    /// Slots that have a message, those freed, and those that the peer was told of.
    pub(super) arrived: u32,
    pub(super) freed: u32,
    pub(super) freed_told: u32,
    pub(super) granted: VecDeque<Granted>,
    pub(super) grants_sent: u32,
    /// How often receives that had been granted for have gone back, wrapping.
    pub(super) generation: u8,
    /// A long message that the peer is to be told is not wanted.
    pub(super) refuse: Option<u16>,
    /// Whether the owner wants to know of the next message though nothing is posted.
    pub(super) probed: bool,
    /// Whether the first receive does not fit the message that is there, and is about to go back.
    pub(super) unfit: bool,

    /// The peer's block, once it has said where.
    pub(super) remote: Option<Place>,
    /// Whether the peer knows this one.
    pub(super) opened: bool,
    /// There once the connection is.
    pub(super) block: Option<PinnedBuffer>,
    pub(super) staging: Option<PinnedBuffer>,
    /// Free pieces of staging, a bit each, and how long they are.
    pub(super) chunks_free: u8,
    pub(super) chunk_bytes: usize,
}

impl Chan {
    pub(super) fn new() -> Self {
        Self {
            sends: VecDeque::new(),
            send_sequence: 0,
            slots_sent: 0,
            slots_freed: 0,
            grants: VecDeque::with_capacity(GRANTS as usize),
            grant_written: 0,
            grants_seen: 0,
            void: None,
            refused: None,
            recvs: VecDeque::new(),
            recv_sequence: 0,
            arrived: 0,
            freed: 0,
            freed_told: 0,
            granted: VecDeque::with_capacity(GRANTS as usize),
            grants_sent: 0,
            generation: 0,
            refuse: None,
            probed: false,
            unfit: false,
            remote: None,
            opened: false,
            block: None,
            staging: None,
            chunks_free: 0,
            chunk_bytes: CHUNK_BYTES,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sends.is_empty() && self.recvs.is_empty()
    }

    /// Whether a grant was made before the receiver knew what one that was given back has told this side.
    pub(super) fn is_void(&self, grant: &Grant) -> bool {
        grant.conditional && self.void == Some(grant.generation)
    }

    /// The block of an open channel.
    pub(super) fn block(&self) -> &PinnedBuffer {
        self.block.as_ref().expect("a channel over which something came or goes is open")
    }

    /// A piece of staging, which is there from the first use on.
    pub(super) fn chunk(&mut self, rail: usize, hands: &mut Hands<'_>) -> Result<Option<u8>, Trouble> {
        if self.staging.is_none() {
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
            let (staging, bytes) = staging(GRANTS as usize, rail, access, hands)?;
            (self.staging, self.chunk_bytes) = (Some(staging), bytes);
            self.chunks_free = (1 << GRANTS) - 1;
        }
        if self.chunks_free == 0 {
            return Ok(None);
        }
        let chunk = self.chunks_free.trailing_zeros() as u8;
        self.chunks_free &= !(1 << chunk);
        Ok(Some(chunk))
    }

    /// The header of the oldest slot that has a message; `Some(None)` if it is none.
    pub(super) fn arrival(&self) -> Option<Option<Header>> {
        (self.arrived != self.freed).then(|| self.header(self.freed))
    }

    /// The header of a slot; none if it is not one.
    pub(super) fn header(&self, count: u32) -> Option<Header> {
        let mut bytes = [0; Header::BYTES];
        self.block().read(slot_at(count), &mut bytes);
        Header::decode(&bytes)
    }

    /// Where the message of the oldest slot is.
    pub(super) fn arrived_message(&self) -> *const u8 {
        self.block().as_ptr().wrapping_add(slot_at(self.freed) + Header::BYTES)
    }
}
