//! Tokens of the transport, as the engine uses them.

use kolo_transport::Token;

/// Side of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Send,
    Recv,
}

/// A posted message: of an operation's lane, or (`instance == TRANSFER`) of a point-to-point transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) slot: u16,
    /// Distinguishes a late completion from one of the slot's next user.
    pub(crate) generation: u16,
    pub(crate) instance: u8,
    pub(crate) lane: u16,
    pub(crate) kind: Kind,
}

/// Most operations, and most transfers, that may be outstanding: a name has 16 bits for each.
pub(crate) const MOST_SLOTS: usize = 65_000;

const _: () = assert!(MOST_SLOTS <= u16::MAX as usize);

/// Lane of a receive that buffers an unexpected message.
const STORE: u16 = 1;

/// Marks point-to-point transfers; no operation has so many segments in flight.
pub(crate) const TRANSFER: u8 = u8::MAX;

impl Name {
    /// Returns the name of the receive that buffers an unexpected message of `peer`. There is one at a time for each
    /// peer.
    pub(crate) const fn of_store(peer: u32) -> Self {
        let (slot, generation) = ((peer >> 16) as u16, peer as u16);
        Self { slot, generation, instance: TRANSFER, lane: STORE, kind: Kind::Recv }
    }

    /// Returns the peer, if this names such a receive.
    pub(crate) const fn store(self) -> Option<u32> {
        if self.instance == TRANSFER && self.lane == STORE {
            return Some((self.slot as u32) << 16 | self.generation as u32);
        }
        None
    }

    /// Encodes the name: 16 bits slot, 16 generation, 8 instance, 16 lane, 8 kind.
    pub(crate) fn token(self) -> Token {
        Token(
            u64::from(self.slot) << 48
                | u64::from(self.generation) << 32
                | u64::from(self.instance) << 24
                | u64::from(self.lane) << 8
                | u64::from(self.kind == Kind::Recv),
        )
    }

    pub(crate) fn of(Token(bits): Token) -> Self {
        Self {
            slot: (bits >> 48) as u16,
            generation: (bits >> 32) as u16,
            instance: (bits >> 24) as u8,
            lane: (bits >> 8) as u16,
            kind: if bits & 1 == 1 { Kind::Recv } else { Kind::Send },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_the_round_trip() {
        for (slot, generation, instance, lane, kind) in
            [(0, 0, 0, 0, Kind::Send), (65535, 65535, 255, 65535, Kind::Recv), (1, 2, 3, 4, Kind::Send)]
        {
            let name = Name { slot, generation, instance, lane, kind };
            assert_eq!(Name::of(name.token()), name);
        }
    }
}
