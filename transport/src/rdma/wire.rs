//! The wire format: notes (the 32 bits of an immediate), and the contents of the slots that they announce.
//!
//! All numbers are little-endian, and every decoded value is bounded.

/// Channels per peer: as shared memory has, so that plans do not differ. An immediate has room for 256.
pub(super) const CHANNELS: usize = 64;

/// Short messages a channel holds that its receiver has not taken yet. Two round trips' worth of 4 KiB at 25 GB/s
/// and 2 us; and a power of two, as slots are numbered by counters that wrap.
pub(super) const SLOTS: u32 = 16;

/// Longest message that goes without being asked for. Beyond it a round trip (2 us on hardware) costs less than
/// copying it twice.
pub(super) const EAGER_BYTES: usize = 4096;

/// Stretches of memory a receiver has offered for a channel and that are not filled yet: enough that one is always on
/// its way while others are filled.
pub(super) const GRANTS: u32 = 4;

const _: () = assert!(SLOTS.is_power_of_two() && GRANTS.is_power_of_two() && CHANNELS <= 64);

/// Meaning of an immediate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    /// The next slot of the channel has a message.
    Slot,
    /// The next grant of the channel is there.
    Grant,
    /// The oldest grant has been filled.
    Filled,
    /// The oldest grant will not be filled, since its message has gone another way.
    Returned,
    /// The long message that was announced, by the end of its number, is not what was expected.
    Refused(u16),
    /// So many slots have been freed, counted from the beginning.
    Freed(u16),
    /// The channel's block is in the table.
    Open,
    /// The path works in this direction.
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

    /// None if no peer of this version sends it.
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
    /// That a long message waits for grants; or, if it is not what was granted for, that it will not come.
    Notice,
}

/// The head of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    /// Number of the message in its channel and direction, wrapping.
    pub(super) sequence: u32,
    pub(super) kind: Kind,
    pub(super) len: u64,
    pub(super) tag: u64,
    /// Slots of the other direction freed, counted from the beginning, wrapping.
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

/// A stretch of the receiver's memory, for a part of one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// Which message it is for.
    pub(super) sequence: u32,
    pub(super) key: u32,
    pub(super) address: u64,
    pub(super) len: u64,
    /// Length of the whole message that the receiver expects.
    pub(super) message_len: u64,
    pub(super) tag: u64,
    /// Whether a message that it is not for stays with its sender, until it is granted for.
    pub(super) conditional: bool,
    /// How often receives had gone back when it was made: those that had been granted for then are void together.
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

/// Where a peer's memory is: a channel's block, or the table of them.
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
