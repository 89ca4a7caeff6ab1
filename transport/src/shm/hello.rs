//! The greeting: the only message over a UNIX stream. It identifies the caller and carries a descriptor of shared
//! memory.
//!
//! A greeting proves that the caller has the addresses of both ends, which only the control plane distributes. The
//! proof is a MAC under a key derived from the cookies in both addresses. The cookies themselves are not sent,
//! because another process can take a socket's name once its owner has ended.

use super::address::VERSION;
use crate::proof::{Key, PROOF_BYTES};

/// Length of an encoded greeting.
pub(crate) const HELLO_BYTES: usize = HEAD_BYTES + PROOF_BYTES;
const HEAD_BYTES: usize = 40;
const MAGIC: u32 = 0x6f6c_6f6b;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A member asks the leader for the arena.
    AskArena,
    /// The leader answers and attaches the arena's descriptor.
    Arena {
        /// Number of members.
        members: u32,
    },
    /// A sender delivers its segment and attaches the descriptor.
    Segment {
        /// Number of channels in the segment.
        channels: u32,
        /// Bytes reserved for each ring.
        ring_max: u32,
    },
    /// A rank shares memory of its program and attaches the descriptor.
    Memory {
        /// Length of the memory in bytes.
        bytes: u64,
    },
}

/// The cookies in the addresses of both ends.
#[derive(Clone, Copy)]
pub(crate) struct Ends<'a> {
    pub(crate) caller: &'a [u8; 16],
    pub(crate) callee: &'a [u8; 16],
}

impl Ends<'_> {
    fn key(self) -> Key {
        Key::derive(&[self.caller, self.callee], b"kolo shm greetings")
    }
}

/// The contents of a greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) purpose: Purpose,
    /// The caller's rank.
    pub(crate) rank: u32,
    /// Random bits that the asking side draws; the answer repeats them.
    pub(crate) nonce: [u8; 16],
}

/// A greeting as received, whose proof has not been checked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    pub(crate) hello: Hello,
    bytes: [u8; HELLO_BYTES],
}

impl Greeting {
    /// Returns whether the caller among these two made the greeting for the callee.
    pub(crate) fn is_between(&self, ends: Ends<'_>) -> bool {
        let (head, proof) = self.bytes.split_at(HEAD_BYTES);
        ends.key().verify(&[head], proof)
    }
}

impl Hello {
    pub(crate) fn encode(&self, ends: Ends<'_>) -> [u8; HELLO_BYTES] {
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
        out[24..40].copy_from_slice(&self.nonce);
        let proof = ends.key().prove(&[&out[..HEAD_BYTES]]);
        out[HEAD_BYTES..].copy_from_slice(&proof);
        out
    }

    /// Decodes a greeting; `None` if the bytes are not one.
    pub(crate) fn decode(bytes: &[u8; HELLO_BYTES]) -> Option<Greeting> {
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
        let mut nonce = [0; 16];
        nonce.copy_from_slice(&bytes[24..HEAD_BYTES]);
        Some(Greeting { hello: Self { purpose, rank: word(3), nonce }, bytes: *bytes })
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
            let hello = Hello { purpose, rank: 3, nonce: [9; 16] };
            let ends = Ends { caller: &[1; 16], callee: &[2; 16] };
            let bytes = hello.encode(ends);
            assert!(!bytes.windows(16).any(|b| b == [1; 16] || b == [2; 16]), "cookies are not sent");
            let greeting = Hello::decode(&bytes).unwrap();
            assert_eq!(greeting.hello, hello);
            assert!(greeting.is_between(ends));
            assert!(!greeting.is_between(Ends { caller: ends.callee, callee: ends.caller }), "reflected");
            assert!(!greeting.is_between(Ends { callee: &[3; 16], ..ends }), "for somebody else");
            for bit in 0..8 * HELLO_BYTES {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    Hello::decode(&changed).is_none_or(|greeting| !greeting.is_between(ends)),
                    "bit {bit}"
                );
            }
        }
    }

    #[test]
    fn garbage_is_no_greeting() {
        assert_eq!(Hello::decode(&[0; HELLO_BYTES]), None);
        assert_eq!(Hello::decode(&[0xff; HELLO_BYTES]), None);
    }
}
