//! The wire format: notes (the 32 bits of an immediate), and the contents of the slots that they announce.
//!
//! All numbers are little-endian, and every decoded value is bounded.

/// Number of channels per peer, as for shared memory, so that plans do not differ. An immediate has room for 256.
pub(super) const CHANNELS: usize = 64;

/// Number of short messages that a channel holds until its receiver takes them: two round trips' worth of 4 KiB at 25
/// GB/s and 2 us. It is a power of two, since slots are numbered by counters that wrap.
pub(super) const SLOTS: u32 = 16;

/// Maximum length of a message that is sent without a grant. For longer messages, a round trip (2 us on hardware)
/// costs less than two copies.
pub(super) const EAGER_BYTES: usize = 4096;

/// Number of memory ranges that a receiver has granted for a channel and that are not filled yet: enough that one is
/// always on its way while others are being filled.
pub(super) const GRANTS: u32 = 4;

const _: () = assert!(SLOTS.is_power_of_two() && GRANTS.is_power_of_two() && CHANNELS <= 64);

/// Meaning of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The next slot of the channel has a message.
    Slot,
    /// The next grant of the channel has been written.
    Grant,
    /// The oldest grant has been filled.
    Filled,
    /// The oldest grant will not be filled, because its message has gone another way.
    Returned,
    /// The announced long message whose number has these lower bits is not the expected one.
    Refused(u16),
    /// Count of the slots freed since the beginning.
    Freed(u16),
    /// The address of the channel's block is in the table.
    Open,
    /// A packet got through in this direction.
    Probe,
}

impl Note {
    pub(super) fn encode(self, channel: u8) -> u32 {
        let (kind, count) = match self {
            Self::Slot => (1, 0),
            Self::Grant => (2, 0),
            Self::Filled => (3, 0),
            Self::Freed(count) => (4, count),
            Self::Open => (5, 0),
            Self::Probe => (6, 0),
            Self::Returned => (7, 0),
            Self::Refused(sequence) => (8, sequence),
        };
        kind << 24 | u32::from(channel) << 16 | u32::from(count)
    }

    /// Returns `None` if no peer of this version sends these bits.
    pub(super) fn decode(bits: u32) -> Option<(Self, u8)> {
        let channel = (bits >> 16) as u8;
        let note = match bits >> 24 {
            1 => Self::Slot,
            2 => Self::Grant,
            3 => Self::Filled,
            4 => Self::Freed(bits as u16),
            5 => Self::Open,
            6 => Self::Probe,
            7 => Self::Returned,
            8 => Self::Refused(bits as u16),
            _ => return None,
        };
        (usize::from(channel) < CHANNELS).then_some((note, channel))
    }
}

/// Content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The message itself, behind the header.
    Message,
    /// A notice that a long message waits for grants or, if it differs from the one that was granted for, that it
    /// will not come.
    Notice,
}

/// The header of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the message in its channel and direction, wrapping.
    pub(super) sequence: u32,
    pub(super) kind: Kind,
    pub(super) len: u64,
    pub(super) tag: u64,
    /// Count of the slots of the other direction that were freed since the beginning, wrapping.
    pub(super) freed: u16,
}

impl Header {
    pub(super) const BYTES: usize = 32;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.freed.to_le_bytes());
        bytes[6] = match self.kind {
            Kind::Message => 1,
            Kind::Notice => 2,
        };
        bytes[8..16].copy_from_slice(&self.len.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tag.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let kind = match bytes[6] {
            1 => Kind::Message,
            2 => Kind::Notice,
            _ => return None,
        };
        let header = Self {
            sequence: u32_at(bytes, 0),
            kind,
            len: u64_at(bytes, 8),
            tag: u64_at(bytes, 16),
            freed: u16::from_le_bytes([bytes[4], bytes[5]]),
        };
        (kind == Kind::Notice || header.len <= EAGER_BYTES as u64).then_some(header)
    }
}

/// A range of the receiver's memory, for a part of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Number of the message that it is for.
    pub(super) sequence: u32,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) len: u64,
    /// Length of the whole message that the receiver expects.
    pub(super) message_len: u64,
    pub(super) tag: u64,
    /// Whether a message that it is not for stays with its sender until a grant for that message comes.
    pub(super) conditional: bool,
    /// How often receives had come back when it was made. The grants of one generation become void together.
    pub(super) generation: u8,
}

impl Grant {
    pub(super) const BYTES: usize = 42;

    pub(super) fn encode(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.key.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.address.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.message_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.tag.to_le_bytes());
        bytes[40] = u8::from(self.conditional);
        bytes[41] = self.generation;
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let grant = Self {
            sequence: u32_at(bytes, 0),
            key: u32_at(bytes, 4),
            address: u64_at(bytes, 8),
            len: u64_at(bytes, 16),
            message_len: u64_at(bytes, 24),
            tag: u64_at(bytes, 32),
            conditional: bytes[40] == 1,
            generation: bytes[41],
        };
        (bytes[40] <= 1 && grant.len > 0 && grant.len <= grant.message_len).then_some(grant)
    }
}

/// Location of memory of a peer: a channel's block, or the table of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    pub(super) key: u32,
}

impl Place {
    pub(super) const BYTES: usize = 12;

    pub(super) fn encode(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..8].copy_from_slice(&self.address.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8; Self::BYTES]) -> Self {
        Self { address: u64_at(bytes, 0), key: u32_at(bytes, 8) }
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_and_nonsense_does_not() {
        for note in [
            Note::Slot,
            Note::Refused(9),
            Note::Grant,
            Note::Filled,
            Note::Returned,
            Note::Freed(65_535),
            Note::Open,
        ] {
            assert_eq!(Note::decode(note.encode(63)), Some((note, 63)));
        }
        assert_eq!(Note::decode(0), None);
        assert_eq!(Note::decode(9 << 24), None);
        assert_eq!(Note::decode(Note::Slot.encode(64)), None, "a channel that is not");
    }

    #[test]
    fn headers_and_grants_are_bounded() {
        let header = Header { sequence: 9, kind: Kind::Message, len: 4096, tag: u64::MAX, freed: 7 };
        assert_eq!(Header::decode(&header.encode()), Some(header));
        assert_eq!(Header::decode(&Header { len: 4097, ..header }.encode()), None);
        let notice = Header { len: 1 << 40, kind: Kind::Notice, ..header };
        assert_eq!(Header::decode(&notice.encode()), Some(notice));
        assert_eq!(Header::decode(&[0; Header::BYTES]), None);
        let grant = Grant {
            sequence: 1,
            key: 2,
            address: 3,
            len: 4,
            message_len: 5,
            tag: 6,
            conditional: true,
            generation: 7,
        };
        assert_eq!(Grant::decode(&grant.encode()), Some(grant));
        assert_eq!(Grant::decode(&Grant { len: 6, ..grant }.encode()), None);
        let mut nonsense = grant.encode();
        nonsense[40] = 2;
        assert_eq!(Grant::decode(&nonsense), None);
        assert_eq!(Grant::decode(&Grant { len: 0, ..grant }.encode()), None);
    }
}
