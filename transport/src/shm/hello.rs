//! The one message that goes over a UNIX stream: who is calling, and which shared memory comes along.

use super::address::VERSION;

/// Bytes of an encoded greeting.
pub(crate) const HELLO_BYTES: usize = 72;
const MAGIC: u32 = 0x6f6c_6f6b;

/// Why somebody calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A member asks its leader for the arena.
    AskArena,
    /// The leader's answer; the arena's descriptor comes along.
    Arena {
        /// Number of members.
        members: u32,
    },
    /// A sender brings its segment; the descriptor comes along.
    Segment {
        /// Channels in it.
        channels: u32,
        /// Bytes set aside for each ring.
        ring_max: u32,
    },
    /// A rank shares memory of its program's; the descriptor comes along.
    Memory {
        /// Its length.
        bytes: u64,
    },
}

/// A greeting. Both cookies show that the caller has the addresses of both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    /// The caller's rank.
    pub(crate) rank: u32,
    /// The cookie in the callee's address.
    pub(crate) to: [u8; 16],
    /// The cookie in the caller's address.
    pub(crate) from: [u8; 16],
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO_BYTES] {
        let (kind, a, b) = match self.purpose {
            Purpose::AskArena => (1u32, 0, 0),
            Purpose::Arena { members } => (2, members, 0),
            Purpose::Segment { channels, ring_max } => (3, channels, ring_max),
            Purpose::Memory { bytes } => (4, bytes as u32, (bytes >> 32) as u32),
        };
        let mut out = [0; HELLO_BYTES];
        for (i, word) in [MAGIC, VERSION, kind, self.rank, a, b].into_iter().enumerate() {
            out[4 * i..4 * i + 4].copy_from_slice(&word.to_le_bytes());
        }
        out[24..40].copy_from_slice(&self.to);
        out[40..56].copy_from_slice(&self.from);
        out
    }

    /// Reads a greeting; nothing if it is not one.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Self> {
        let word = |i: usize| {
            u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]])
        };
        if word(0) != MAGIC || word(1) != VERSION {
            return None;
        }
        let purpose = match word(2) {
            1 => Purpose::AskArena,
            2 => Purpose::Arena { members: word(4) },
            3 => Purpose::Segment { channels: word(4), ring_max: word(5) },
            4 => Purpose::Memory { bytes: u64::from(word(4)) | u64::from(word(5)) << 32 },
            _ => return None,
        };
        let mut to = [0; 16];
        let mut from = [0; 16];
        to.copy_from_slice(&bytes[24..40]);
        from.copy_from_slice(&bytes[40..56]);
        Some(Self { purpose, rank: word(3), to, from })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        for purpose in [
            Purpose::AskArena,
            Purpose::Arena { members: 5 },
            Purpose::Segment { channels: 64, ring_max: 131_072 },
            Purpose::Memory { bytes: 5 << 40 | 4096 },
        ] {
            let hello = Hello { purpose, rank: 3, to: [1; 16], from: [2; 16] };
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
    }

    #[test]
    fn garbage_is_no_greeting() {
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
        assert_eq!(Hello::decode(&[0xff; HELLO_BYTES]), None);
    }
}
