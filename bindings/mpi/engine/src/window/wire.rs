//! The encoding of messages between origins and targets of windows.

use crate::datatype::Shape;
use crate::staging;

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// An answer, with data or without.
    Answer,
    /// An answer to a request that cannot be carried out.
    Refusal,
    /// Writes data.
    Put,
    /// Asks for data.
    Get,
    /// Combines data with the target's.
    Accumulate,
    /// Combines data with the target's, and asks for the former contents.
    Fetch,
    /// Replaces the target's contents if they equal a given value.
    Swap,
    /// Asks for an answer, which comes when all earlier messages are done.
    Flush,
    Lock,
    Unlock,
    /// The target has begun an exposure.
    Post,
    /// The origin has ended its access.
    Complete,
}

const KINDS: [Kind; 12] = [
    Kind::Answer,
    Kind::Refusal,
    Kind::Put,
    Kind::Get,
    Kind::Accumulate,
    Kind::Fetch,
    Kind::Swap,
    Kind::Flush,
    Kind::Lock,
    Kind::Unlock,
    Kind::Post,
    Kind::Complete,
];

/// A message.
#[derive(Debug)]
pub(super) struct Message<'a> {
    pub(super) kind: Kind,
    /// Operator, or kind of lock.
    pub(super) op: i32,
    /// Type of the elements.
    pub(super) of: i32,
    pub(super) window: u32,
    /// The number by which the answer names the operation; 0 if no answer is wanted.
    pub(super) number: u64,
    /// Positions of the elements' data at the target. The `n` elements of a run of `n` times the type's size are consecutive, even if the
    /// type has gaps.
    pub(super) shape: Shape,
    pub(super) data: &'a [u8],
}

const HEAD_BYTES: usize = 32;

impl<'a> Message<'a> {
    /// Makes a message without elements.
    pub(super) fn plain(kind: Kind, window: u32, number: u64) -> Self {
        Self { kind, op: 0, of: 0, window, number, shape: Shape::empty(), data: &[] }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut shape = Vec::new();
        self.shape.encode(&mut shape);
        let len = HEAD_BYTES + shape.len() + self.data.len();
        let mut out = staging::reserve(len).unwrap_or_default();
        out.extend((self.kind as u32).to_le_bytes());
        out.extend(self.op.to_le_bytes());
        out.extend(self.of.to_le_bytes());
        out.extend(self.window.to_le_bytes());
        out.extend(self.number.to_le_bytes());
        out.extend((shape.len() as u64).to_le_bytes());
        out.extend(shape);
        out.extend(self.data);
        out
    }

    /// Decodes a message; `None` if it is malformed.
    pub(super) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
        let long = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes);
        let kind = *KINDS.get(word(0)? as usize)?;
        let (shape, data) = bytes.get(HEAD_BYTES..)?.split_at_checked(long(24)?.try_into().ok()?)?;
        Some(Self {
            kind,
            op: word(4)? as i32,
            of: word(8)? as i32,
            window: word(12)?,
            number: long(16)?,
            shape: Shape::decode(shape)?,
            data,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::datatype::Run;

    proptest! {
        /// Peers may send anything. A message that is understood has nothing that its bytes do not say.
        #[test]
        fn any_bytes_are_read_or_refused(
            kind in 0_u32..13,
            shape in prop_oneof![Just(8_u64), Just(48_u64), any::<u64>()],
            middle in any::<[u8; 20]>(),
            rest in prop::collection::vec(prop_oneof![0_u64..4, any::<u64>()], 0..12),
            length in 0_usize..140,
        ) {
            let rest: Vec<u8> = rest.into_iter().flat_map(u64::to_le_bytes).collect();
            let mut bytes = [&kind.to_le_bytes()[..], &middle, &shape.to_le_bytes(), &rest].concat();
            bytes.truncate(length);
            if let Some(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }

    #[test]
    fn messages_survive_the_wire_and_others_are_refused() {
        for kind in KINDS {
            let message = Message {
                op: 3,
                of: 7,
                shape: Shape::list(&[Run { offset: -8, len: 8 }, Run { offset: 1 << 40, len: 4 }]),
                data: b"abc",
                ..Message::plain(kind, 9, 11)
            };
            let bytes = message.encode();
            let read = Message::decode(&bytes).expect("a message");
            assert_eq!((read.kind, read.op, read.of, read.window, read.number), (kind, 3, 7, 9, 11));
            assert_eq!((read.shape, read.data), (message.shape, message.data));
            assert!(Message::decode(&bytes[..40]).is_none(), "its positions are cut off");
        }
        let mut huge = Message::plain(Kind::Put, 0, 0).encode();
        huge[24..32].fill(0xff);
        assert!(Message::decode(&huge).is_none());
        assert!(Message::decode(&[0xff; 32]).is_none());
    }
}
