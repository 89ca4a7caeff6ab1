//! Locations of a rank's buffers, as the rank tells them to the others before a call.

use std::ops::Range;

use kolo_collectives::plan::Placement;
use kolo_collectives::window::Shown;

/// Bytes of encoded locations. They share a cache line with the flag of the exchange.
pub(super) const LOCATIONS_BYTES: usize = 48;

const IN_PLACE: u64 = 1;
const OWNS_LAST_PAGE: u64 = 2;
const ON_GPU: u64 = 4;

/// A location in an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    /// Number of the allocation, not 0.
    pub(super) allocation: u64,
    /// Offset in bytes.
    pub(super) offset: u64,
}

/// Locations of a rank's buffers; `None` for buffers that are not symmetric or that others need not reach.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct BufferLocations {
    pub(super) input: Option<Location>,
    pub(super) output: Option<Location>,
    pub(super) is_in_place: bool,
    /// Whether a buffer is GPU memory, which the CPU cannot read.
    pub(super) is_on_gpu: bool,
    /// Whether the allocation has nothing behind the output in the output's last page.
    pub(super) owns_last_page: bool,
    /// Factor of this rank in a pre-multiplied sum.
    pub(super) factor: f64,
}

impl BufferLocations {
    /// Returns the part that matters for the choice of a plan.
    pub(super) fn shown(&self) -> Shown {
        let placement = if self.is_in_place { Placement::InPlace } else { Placement::OutOfPlace };
        Shown { placement, input: self.input.is_some(), output: self.output.is_some() }
    }

    pub(super) fn encode(&self) -> [u8; LOCATIONS_BYTES] {
        let flags = if self.is_in_place { IN_PLACE } else { 0 }
            | if self.is_on_gpu { ON_GPU } else { 0 }
            | if self.owns_last_page { OWNS_LAST_PAGE } else { 0 };
        let words = |location: Option<Location>| location.map_or((0, 0), |at| (at.allocation, at.offset));
        let (input, output) = (words(self.input), words(self.output));
        let words = [flags, input.0, input.1, output.0, output.1, self.factor.to_bits()];
        let mut out = [0; LOCATIONS_BYTES];
        for (to, word) in out.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        out
    }

    /// Decodes locations. An allocation that does not exist is noticed when it is looked up.
    pub(super) fn decode(bytes: &[u8; LOCATIONS_BYTES]) -> Self {
        let word = |i: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[8 * i..8 * i + 8]);
            u64::from_ne_bytes(word)
        };
        let location =
            |i: usize| (word(i) != 0).then(|| Location { allocation: word(i), offset: word(i + 1) });
        Self {
            input: location(1),
            output: location(3),
            is_in_place: word(0) & IN_PLACE != 0,
            is_on_gpu: word(0) & ON_GPU != 0,
            owns_last_page: word(0) & OWNS_LAST_PAGE != 0,
            factor: f64::from_bits(word(5)),
        }
    }

    /// Returns the range of an output of `len` bytes that lies in pages of which the call owns every byte, counted from
    /// the start of the output. Pages have `page` bytes.
    pub(super) fn pages_within(&self, location: Location, len: usize, page: usize) -> Range<usize> {
        let (from, to) = (location.offset as usize, location.offset as usize + len);
        let start = from.next_multiple_of(page);
        let end = if self.owns_last_page { to } else { to / page * page };
        if start < end { start - from..end - from } else { 0..0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trip() {
        let locations = BufferLocations {
            input: Some(Location { allocation: 3, offset: 1 << 40 }),
            output: None,
            is_in_place: true,
            is_on_gpu: true,
            owns_last_page: false,
            factor: -0.5,
        };
        assert_eq!(BufferLocations::decode(&locations.encode()), locations);
        assert_eq!(BufferLocations::decode(&BufferLocations::default().encode()), BufferLocations::default());
    }

    #[test]
    fn only_whole_pages_are_written_by_others() {
        let page = 4096;
        let at = |offset: usize| Location { allocation: 1, offset: offset as u64 };
        let open = BufferLocations::default();
        let last = BufferLocations { owns_last_page: true, ..open };
        assert_eq!(open.pages_within(at(0), 3 * page, page), 0..3 * page);
        assert_eq!(open.pages_within(at(8), 3 * page, page), page - 8..3 * page - 8);
        assert_eq!(open.pages_within(at(0), 3 * page - 1, page), 0..2 * page);
        assert_eq!(last.pages_within(at(0), 3 * page - 1, page), 0..3 * page - 1);
        assert_eq!(open.pages_within(at(8), page, page), 0..0);
        assert_eq!(last.pages_within(at(8), 100, page), 0..0);
    }
}
