//! Buffers of blocking calls as single runs of bytes.

use super::buffers::Buffer;
use super::fast;
use super::schedule::Memory;
use crate::staging::Staging;

/// The data of a buffer as one run of bytes, for a blocking call.
pub(super) struct Packed {
    own: Option<Staging>,
    pub(super) flat: Option<Memory>,
}

impl Packed {
    pub(super) fn of(buffer: &Buffer, filled: bool) -> Self {
        let flat = buffer.flat();
        let own = if flat.is_none() { Some(Staging::new(buffer.bytes())) } else { None };
        let mut packed = Self { own, flat };
        if filled && flat.is_none() {
            buffer.pack_into(packed.memory());
        }
        packed
    }

    /// Copies the data, even if it is one run of bytes.
    pub(super) fn copy_of(buffer: &Buffer) -> Self {
        let mut packed = Self { own: Some(Staging::new(buffer.bytes())), flat: None };
        buffer.pack_into(packed.memory());
        packed
    }

    pub(super) fn memory(&mut self) -> Memory {
        match (self.flat, &mut self.own) {
            (None, Some(own)) => Memory { at: own.ptr(), len: own.len() },
            (flat, _) => flat.unwrap_or(fast::NOTHING),
        }
    }

    pub(super) fn unpack(&mut self, into: &Buffer) {
        if self.flat.is_none() {
            into.unpack_from(self.memory());
        }
    }
}
