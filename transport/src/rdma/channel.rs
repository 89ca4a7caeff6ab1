//! One channel to a peer: its queues, and the memory that the two ends share.
//!
//! # The block
//!
//! | from | to | written by | contents |
//! | --- | --- | --- | --- |
//! | 0 | [`GRANTS_AT`] | the peer | slots: a line that ends in a header, then the message |
//! | [`GRANTS_AT`] | [`SHARED_BYTES`] | the peer | grants |
//! | [`SHARED_BYTES`] | [`OWN_PLACE_AT`] | this side | copies of the slots and grants that it sends: a slot is free again when the peer frees its own |
//! | [`OWN_PLACE_AT`] | [`BLOCK_BYTES`] | this side | a copy of the block's address as it is sent |

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

/// Length of a line. A header ends where the message begins, at a multiple of it.
const LINE_BYTES: usize = 64;
const SLOT_BYTES: usize = LINE_BYTES + EAGER_BYTES;
const GRANT_BYTES: usize = 64;
const GRANTS_AT: usize = SLOTS as usize * SLOT_BYTES;
const SHARED_BYTES: usize = GRANTS_AT + GRANTS as usize * GRANT_BYTES;
const OWN_PLACE_AT: usize = SHARED_BYTES + SHARED_BYTES;
pub(super) const BLOCK_BYTES: usize = OWN_PLACE_AT + LINE_BYTES;

/// Length of a piece of staging: so long that the cost of a request is negligible, and so short that the piece is
/// still in the second-level cache when it is consumed.
pub(super) const CHUNK_BYTES: usize = 128 << 10;

/// Length of a piece of staging where lockable memory is short.
pub(super) const CHUNK_BYTES_LEAST: usize = 16 << 10;

/// Returns the offset of a slot's header in the shared part of either side.
pub(super) fn slot_at(count: u32) -> usize {
    (count % SLOTS) as usize * SLOT_BYTES + LINE_BYTES - Header::BYTES
}

/// Returns the offset of a grant in the shared part.
pub(super) fn grant_at(count: u32) -> usize {
    GRANTS_AT + (count % GRANTS) as usize * GRANT_BYTES
}

/// Returns the offset of this side's copy of the data for offset `at` of the peer's shared part.
pub(super) fn own(at: usize) -> usize {
    SHARED_BYTES + at
}

/// Returns the offset of this side's copy of the block's address.
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
    /// Number of bytes handed to the adapter.
    pub(super) written: usize,
    /// Whether the peer has been notified that the message waits.
    pub(super) noticed: bool,
    /// The region of the piece at the cursor, with the piece's bounds.
    pub(super) held: Option<(Use, usize, usize)>,
    /// The bounds of a piece that is copied, because it cannot or should not be registered.
    pub(super) copied: Option<(usize, usize)>,
    /// How often the message was found without a grant.
    pub(super) stalled: u32,
    /// Copiers for memory that the processor cannot access, if the message may lie in such memory.
    pub(super) device_copiers: Option<Arc<DeviceCopiers>>,
}

/// Destination of a received message.
#[derive(Debug)]
pub(super) enum Landing {
    Place { pieces: Pieces, cursor: Cursor },
    Eat(Eater),
}

/// Method by which a long message is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not decided yet.
    Open,
    /// Straight into the caller's memory.
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
    /// Whether the receive comes back if another message arrives.
    pub(super) conditional: bool,
    pub(super) landing: Landing,
    pub(super) way: Way,
    /// Number of bytes granted, and the position in the pieces behind them.
    pub(super) granted: usize,
    pub(super) granted_to: Cursor,
    /// Number of bytes that have arrived.
    pub(super) filled: usize,
    /// Copiers, as for a send.
    pub(super) device_copiers: Option<Arc<DeviceCopiers>>,
    /// The error, if some bytes could not be delivered.
    pub(super) failed: Option<crate::error::Error>,
}

/// A grant that the peer has not answered yet.
#[derive(Debug)]
pub(super) struct Granted {
    pub(super) sequence: u32,
    pub(super) len: usize,
    /// Number of the piece of staging, if the memory is staging.
    pub(super) chunk: Option<u8>,
    /// The region, if the memory is the caller's.
    pub(super) held: Option<Use>,
    /// Whether its receive has come back; the peer will return the grant unused.
    pub(super) dead: bool,
}

/// Allocates memory for this many pieces, as far as lockable memory permits, and returns it with the length of a
/// piece.
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

/// A channel. Its counters wrap.
#[derive(Debug)]
pub(super) struct Chan {
    /// Number among the channels to the peer.
    pub(super) number: u8,

    pub(super) sends: VecDeque<SendOp>,
    /// Number of the first message in `sends`, or of the next one.
    pub(super) send_sequence: u32,
    /// Counts of the peer's slots that this side filled, and that the peer freed.
    pub(super) slots_sent: u32,
    pub(super) slots_freed: u32,
    /// Grants received, in order.
    pub(super) grants: VecDeque<Grant>,
    /// Number of bytes of the first grant that are written.
    pub(super) grant_written: usize,
    pub(super) grants_seen: u32,
    /// Generation of the last conditional grant that was returned.
    pub(super) void: Option<u8>,
    /// Lower bits of the number of a long message that the peer does not want.
    pub(super) refused: Option<u16>,

    pub(super) recvs: VecDeque<RecvOp>,
    /// Number of the message for the first receive in `recvs`, or for the next one.
    pub(super) recv_sequence: u32,
    /// Counts of the slots that arrived, that were freed, and that the peer knows to be freed.
    pub(super) arrived: u32,
    pub(super) freed: u32,
    pub(super) freed_told: u32,
    pub(super) granted: VecDeque<Granted>,
    pub(super) grants_sent: u32,
    /// How often receives with grants have come back, wrapping.
    pub(super) generation: u8,
    /// Lower bits of the number of a long message that the peer must be told is not wanted.
    pub(super) refuse: Option<u16>,
    /// Whether the owner wants to know of the next message although no receive is posted.
    pub(super) probed: bool,
    /// Whether the first receive does not fit the message that has arrived, and is about to come back.
    pub(super) unfit: bool,

    /// Address of the peer's block, once the peer has sent it.
    pub(super) remote: Option<Place>,
    /// Whether the peer knows the address of this block.
    pub(super) opened: bool,
    /// The block, once there is a connection.
    pub(super) block: Option<PinnedBuffer>,
    pub(super) staging: Option<PinnedBuffer>,
    /// Bit mask of the free pieces of staging, and the length of a piece.
    pub(super) chunks_free: u8,
    pub(super) chunk_bytes: usize,
}

impl Chan {
    pub(super) fn new(number: u8) -> Self {
        Self {
            number,
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

    /// Returns whether a grant is void, because its receive came back together with that of a grant that was
    /// returned.
    pub(super) fn is_void(&self, grant: &Grant) -> bool {
        grant.conditional && self.void == Some(grant.generation)
    }

    /// Returns the block of an open channel.
    pub(super) fn block(&self) -> &PinnedBuffer {
        self.block.as_ref().expect("a channel over which something came or goes is open")
    }

    /// Reserves a piece of staging, which is allocated on first use; `None` if none is free.
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

    /// Returns the header of the oldest slot that has arrived; `Some(None)` if its bytes are not a header.
    pub(super) fn arrival(&self) -> Option<Option<Header>> {
        (self.arrived != self.freed).then(|| self.header(self.freed))
    }

    /// Returns the header of a slot; `None` if its bytes are not one.
    pub(super) fn header(&self, count: u32) -> Option<Header> {
        let mut bytes = [0; Header::BYTES];
        self.block().read(slot_at(count), &mut bytes);
        Header::decode(&bytes)
    }

    /// Returns the address of the message in the oldest slot.
    pub(super) fn arrived_message(&self) -> *const u8 {
        self.block().as_ptr().wrapping_add(slot_at(self.freed) + Header::BYTES)
    }
}
