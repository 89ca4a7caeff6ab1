//! The wire format: the hello of a connection, its answer, and the headers of messages and of their parts. All
//! numbers are little-endian.
//!
//! Hello and answer prove that their senders know the job's cookie, which itself is never sent: each ends with a MAC
//! under a key derived from it. The MAC of the hello covers both ranks, the channel, the intended endpoint (a random
//! number that only the control plane distributes) and a nonce. A hello is therefore valid at one endpoint for one
//! channel, once. The MAC of the answer covers the whole hello with its nonce, so the dialer knows which endpoint
//! answers.

use crate::proof::{Key, PROOF_BYTES};

/// Common version of hello, answer and header. Ranks of different versions do not communicate.
pub const PROTOCOL: u16 = 4;

/// Length of a message header: half a cache line.
pub(super) const HEADER_BYTES: usize = 32;
/// Length of a hello, without its proof.
const HELLO_HEAD: usize = 64;
/// Length of a hello.
pub(super) const HELLO_BYTES: usize = HELLO_HEAD + PROOF_BYTES;
/// Length of an answer, without its proof.
const ANSWER_HEAD: usize = 16;
/// Length of the answer to a hello.
pub(super) const ANSWER_BYTES: usize = ANSWER_HEAD + PROOF_BYTES;
/// Length of a hello's nonce.
pub(super) const NONCE_BYTES: usize = 16;

/// Maximum length of a message: that of a slice.
pub(super) const MESSAGE_MAX: usize = isize::MAX as usize;

const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"KoMs");
/// Magic number of a message that comes in parts.
const STRIPED_MAGIC: u32 = u32::from_le_bytes(*b"KoSt");
const PART_MAGIC: u32 = u32::from_le_bytes(*b"KoPa");
const HELLO_MAGIC: [u8; 8] = *b"\x89Kolo\r\n\x1a";
const ANSWER_MAGIC: [u8; 4] = *b"KoAn";

/// The header before every message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: u64,
    pub(super) len: u64,
    /// Number of the message in its direction of its channel, modulo 2^32.
    pub(super) sequence: u32,
    /// Whether its payload comes in parts over all connections of the channel, each behind a [`Part`].
    pub(super) striped: bool,
}

impl Header {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        let magic = if self.striped { STRIPED_MAGIC } else { HEADER_MAGIC };
        frame(magic, self.sequence, self.tag, self.len)
    }

    /// Returns `None` if these bytes are not a header.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let striped = u32_at(bytes, 0) == STRIPED_MAGIC;
        let header =
            Self { tag: u64_at(bytes, 8), len: u64_at(bytes, 16), sequence: u32_at(bytes, 4), striped };
        let least = u64::from(striped);
        (*bytes == header.encode() && (least..=MESSAGE_MAX as u64).contains(&header.len)).then_some(header)
    }
}

/// The header before every part of a striped message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Position of its first byte in the message; a multiple of [`GRAIN_BYTES`](crate::endpoint::GRAIN_BYTES).
    pub(super) offset: u64,
    pub(super) len: u64,
    /// Sequence number of the message.
    pub(super) sequence: u32,
}

impl Part {
    pub(super) fn encode(&self) -> [u8; HEADER_BYTES] {
        frame(PART_MAGIC, self.sequence, self.offset, self.len)
    }

    /// Returns `None` if these bytes are not the header of a part.
    pub(super) fn decode(bytes: &[u8; HEADER_BYTES]) -> Option<Self> {
        let part = Self { offset: u64_at(bytes, 8), len: u64_at(bytes, 16), sequence: u32_at(bytes, 4) };
        let end = part.offset.checked_add(part.len);
        (*bytes == part.encode() && part.len > 0 && end.is_some()).then_some(part)
    }
}

fn frame(magic: u32, sequence: u32, first: u64, second: u64) -> [u8; HEADER_BYTES] {
    let mut out = [0; HEADER_BYTES];
    out[0..4].copy_from_slice(&magic.to_le_bytes());
    out[4..8].copy_from_slice(&sequence.to_le_bytes());
    out[8..16].copy_from_slice(&first.to_le_bytes());
    out[16..24].copy_from_slice(&second.to_le_bytes());
    out[24..32].copy_from_slice(&check(sequence, first, second).to_le_bytes());
    out
}

/// Returns a checksum that distinguishes a header from payload if the two ends are out of step. It does not protect
/// against malice.
fn check(sequence: u32, first: u64, second: u64) -> u64 {
    // The constants are odd and of high entropy (fractions of the golden ratio and of pi). Each field is multiplied
    // by a different one, so that swapped fields show.
    let mixed = (first ^ 0x243f_6a88_85a3_08d3).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ second.rotate_left(17).wrapping_mul(0xbf58_476d_1ce4_e5b9)
        ^ u64::from(sequence).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// The dialer's first bytes on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) world_size: u32,
    pub(super) channel: u16,
    /// Number of the connection within the channel: 0 is the first, which carries the headers of messages.
    pub(super) strand: u16,
    /// Whether [padding](super::padding) follows.
    pub(super) is_padded: bool,
    /// Number of the endpoint that dials.
    pub(super) instance: u64,
    /// Number of the intended endpoint: another process may have the address by now.
    pub(super) target: u64,
    /// Random bytes, drawn for this connection.
    pub(super) nonce: [u8; NONCE_BYTES],
}

/// Returns the key of hellos and answers, derived from a job's cookie.
pub(super) fn key_of(cookie: &[u8; 16]) -> Key {
    Key::derive(&[cookie], b"kolo tcp connections")
}

/// Returns whether a hello was made with the key.
pub(super) fn is_proven(hello: &[u8; HELLO_BYTES], key: &Key) -> bool {
    let (head, proof) = hello.split_at(HELLO_HEAD);
    key.verify(&[b"dial", head], proof)
}

/// Reason why bytes, as far as they have come, are not a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotHello {
    /// They do not start like a hello.
    Garbage,
    /// They are a hello of another version.
    Version(u16),
}

impl Hello {
    pub(super) fn encode(&self, key: &Key) -> [u8; HELLO_BYTES] {
        let mut out = [0; HELLO_BYTES];
        out[0..8].copy_from_slice(&HELLO_MAGIC);
        out[8..10].copy_from_slice(&PROTOCOL.to_le_bytes());
        out[10..12].copy_from_slice(&self.channel.to_le_bytes());
        out[12..16].copy_from_slice(&self.from.to_le_bytes());
        out[16..20].copy_from_slice(&self.world_size.to_le_bytes());
        out[20..24].copy_from_slice(&self.to.to_le_bytes());
        out[24..32].copy_from_slice(&self.instance.to_le_bytes());
        out[32..40].copy_from_slice(&self.target.to_le_bytes());
        out[40..56].copy_from_slice(&self.nonce);
        out[56..58].copy_from_slice(&self.strand.to_le_bytes());
        out[58] = self.is_padded.into();
        let proof = key.prove(&[b"dial", &out[..HELLO_HEAD]]);
        out[HELLO_HEAD..].copy_from_slice(&proof);
        out
    }

    /// Decodes the beginning of a hello; returns `Ok(None)` while more bytes are needed.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, NotHello> {
        let magic = bytes.len().min(HELLO_MAGIC.len());
        if bytes[..magic] != HELLO_MAGIC[..magic] {
            return Err(NotHello::Garbage);
        }
        if bytes.len() >= 10 && u16_at(bytes, 8) != PROTOCOL {
            return Err(NotHello::Version(u16_at(bytes, 8)));
        }
        if bytes.len() < HELLO_BYTES {
            return Ok(None);
        }
        let mut nonce = [0; NONCE_BYTES];
        nonce.copy_from_slice(&bytes[40..56]);
        Ok(Some(Self {
            from: u32_at(bytes, 12),
            to: u32_at(bytes, 20),
            world_size: u32_at(bytes, 16),
            channel: u16_at(bytes, 10),
            strand: u16_at(bytes, 56),
            is_padded: bytes[58] == 1,
            instance: u64_at(bytes, 24),
            target: u64_at(bytes, 32),
            nonce,
        }))
    }
}

/// The acceptor's verdict on a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Verdict {
    /// The connection is accepted.
    Welcome = 1,
    /// The protocol version differs; the answer carries the acceptor's.
    Version = 2,
    /// The hello does not prove that its sender knows the job's cookie.
    Cookie = 3,
    /// Another endpoint than the intended one is at this address.
    Instance = 4,
    /// That channel of that rank is connected already.
    Duplicate = 5,
    /// Rank, world size or channel are invalid here.
    Rank = 6,
    /// The acceptor gave up on that rank.
    Gone = 7,
}

/// The answer to a hello.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) verdict: Verdict,
    pub(super) protocol: u16,
    pub(super) instance: u64,
}

impl Answer {
    /// Encodes the answer to `hello`. If the hello was proven, a proof covers both.
    pub(super) fn encode(&self, proven: Option<(&[u8; HELLO_BYTES], &Key)>) -> [u8; ANSWER_BYTES] {
        let mut out = [0; ANSWER_BYTES];
        out[0..4].copy_from_slice(&ANSWER_MAGIC);
        out[4..6].copy_from_slice(&self.protocol.to_le_bytes());
        out[6] = self.verdict as u8;
        out[8..16].copy_from_slice(&self.instance.to_le_bytes());
        if let Some((hello, key)) = proven {
            let proof = key.prove(&[b"answer", hello, &out[..ANSWER_HEAD]]);
            out[ANSWER_HEAD..].copy_from_slice(&proof);
        }
        out
    }

    /// Returns whether these bytes are an answer to `hello` from an end that has the key.
    pub(super) fn is_proven(bytes: &[u8; ANSWER_BYTES], hello: &[u8; HELLO_BYTES], key: &Key) -> bool {
        let (head, proof) = bytes.split_at(ANSWER_HEAD);
        key.verify(&[b"answer", hello, head], proof)
    }

    /// Returns `None` if these bytes are not an answer.
    pub(super) fn decode(bytes: &[u8; ANSWER_BYTES]) -> Option<Self> {
        if bytes[0..4] != ANSWER_MAGIC {
            return None;
        }
        let verdict = match bytes[6] {
            1 => Verdict::Welcome,
            2 => Verdict::Version,
            3 => Verdict::Cookie,
            4 => Verdict::Instance,
            5 => Verdict::Duplicate,
            6 => Verdict::Rank,
            7 => Verdict::Gone,
            _ => return None,
        };
        Some(Self { verdict, protocol: u16_at(bytes, 4), instance: u64_at(bytes, 8) })
    }

    /// Describes the verdict for people.
    pub(super) fn explain(&self) -> String {
        match self.verdict {
            Verdict::Welcome => "welcome".into(),
            Verdict::Version => format!(
                "the peer speaks protocol {}, but this rank speaks {PROTOCOL}; use the same Kolo on all \
                 ranks",
                self.protocol
            ),
            Verdict::Cookie => "the peer belongs to another job (it has another cookie)".into(),
            Verdict::Instance => "another endpoint lives at that address; the peer may have restarted".into(),
            Verdict::Duplicate => "the peer has already connected this channel".into(),
            Verdict::Rank => "the peer does not know this rank; do all ranks agree on the world size?".into(),
            Verdict::Gone => "the peer has given up on this rank".into(),
        }
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_survives_the_wire(tag: u64, len in 1..=MESSAGE_MAX as u64, sequence: u32, striped: bool) {
            let header = Header { tag, len, sequence, striped };
            prop_assert_eq!(Header::decode(&header.encode()), Some(header));
            let part = Part { offset: tag >> 1, len, sequence };
            prop_assert_eq!(Part::decode(&part.encode()), Some(part));
            prop_assert!(Part::decode(&header.encode()).is_none() && Header::decode(&part.encode()).is_none());
        }

        #[test]
        fn a_flipped_bit_is_no_header(tag: u64, len in 1..1u64 << 40, sequence: u32, striped: bool, bit in 0usize..256) {
            let mut bytes = Header { tag, len, sequence, striped }.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Header::decode(&bytes).is_none() && Part::decode(&bytes).is_none());
        }

        #[test]
        fn any_bytes_are_judged_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..=HELLO_BYTES)) {
            let _ = Hello::decode(&bytes);
            if let Some(answer) = bytes.first_chunk::<ANSWER_BYTES>() {
                let _ = Answer::decode(answer);
            }
        }
    }

    const HELLO: Hello = Hello {
        from: 3,
        to: 4,
        world_size: 9,
        channel: 2,
        strand: 6,
        is_padded: true,
        instance: 77,
        target: 88,
        nonce: [5; NONCE_BYTES],
    };

    #[test]
    fn a_proof_covers_every_byte_and_is_nobody_elses() {
        let (key, other) = (key_of(&[7; 16]), key_of(&[8; 16]));
        let hello = HELLO.encode(&key);
        assert!(is_proven(&hello, &key) && !is_proven(&hello, &other));
        assert!(!hello.windows(16).any(|bytes| bytes == [7; 16]), "the cookie is not sent");
        let answer = Answer { verdict: Verdict::Welcome, protocol: PROTOCOL, instance: 88 };
        let bytes = answer.encode(Some((&hello, &key)));
        assert!(Answer::is_proven(&bytes, &hello, &key) && !Answer::is_proven(&bytes, &hello, &other));
        for bit in 0..8 * HELLO_BYTES {
            let mut changed = hello;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_proven(&changed, &key), "bit {bit} of the hello");
            assert!(!Answer::is_proven(&bytes, &changed, &key), "an answer to another hello");
        }
        for bit in 0..8 * ANSWER_BYTES {
            let mut changed = bytes;
            changed[bit / 8] ^= 1 << (bit % 8);
            assert!(!Answer::is_proven(&changed, &hello, &key), "bit {bit} of the answer");
        }
        assert!(!Answer::is_proven(&answer.encode(None), &hello, &key), "without a proof");
    }

    #[test]
    fn a_hello_is_known_from_its_first_byte_on() {
        let bytes = HELLO.encode(&key_of(&[7; 16]));
        for n in 0..HELLO_BYTES {
            assert_eq!(Hello::decode(&bytes[..n]), Ok(None));
        }
        assert_eq!(Hello::decode(&bytes), Ok(Some(HELLO)));
        assert_eq!(Hello::decode(b"G"), Err(NotHello::Garbage));
        let mut other = bytes;
        other[8] = 9;
        assert_eq!(Hello::decode(&other[..10]), Err(NotHello::Version(9)));
    }

    #[test]
    fn answers_survive_the_wire() {
        for verdict in [Verdict::Welcome, Verdict::Version, Verdict::Cookie, Verdict::Instance] {
            let answer = Answer { verdict, protocol: 2, instance: 9 };
            assert_eq!(Answer::decode(&answer.encode(None)), Some(answer));
        }
        assert_eq!(Answer::decode(&[0; ANSWER_BYTES]), None);
    }
}
