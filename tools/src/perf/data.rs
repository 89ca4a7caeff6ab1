//! The data that is sent, and the proof that what came back is right, to the last bit.
//!
//! What is only moved is random bytes, a pure function of seed, rank and place. What is reduced comes from
//! [`kolo::verify`], whose values make every partial reduction exact in whatever order. Neither needs a second
//! buffer: expectations are made piece by piece.

use kolo::{DataType, ReduceOp};

use super::choice::NamedOp;
use super::pieces::{Origin, Piece};

/// Bytes that are expected and compared at a time: within the second-level cache of any machine, and a multiple
/// of every element size.
const CHUNK_BYTES: usize = 64 << 10;

/// What the inputs of all ranks hold.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    /// Of the pseudo-random numbers.
    pub seed: u64,
    /// Of the elements.
    pub data_type: DataType,
    /// The operator; `None` where values are only moved.
    pub op: Option<NamedOp>,
    /// Number of ranks.
    pub ranks: u32,
}

impl Inputs {
    /// Writes elements of the input of `rank`, from element `offset` on.
    pub(crate) fn fill(&self, rank: u32, offset: u64, into: &mut [u8]) {
        match self.op {
            None => random_bytes(self.seed, rank, offset * self.data_type.size() as u64, into),
            Some(op) => {
                verify::fill(self.data_type, op.on_rank(rank), rank, self.ranks, self.seed, offset, into);
            }
        }
    }

    /// Counts the wrong elements of a result as rank `rank` got it.
    #[must_use]
    pub(crate) fn count_wrong(&self, rank: u32, pieces: &[Piece], result: &[u8]) -> u64 {
        let element_bytes = self.data_type.size();
        let mut expected = vec![0u8; CHUNK_BYTES];
        let mut wrong = 0;
        for piece in pieces {
            let start = piece.at as usize * element_bytes;
            let found = &result[start..start + piece.len as usize * element_bytes];
            for (index, found) in found.chunks(CHUNK_BYTES).enumerate() {
                let expected = &mut expected[..found.len()];
                let skipped = (index * (CHUNK_BYTES / element_bytes)) as u64;
                wrong += self.wrong_in_chunk(rank, piece, skipped, found, expected);
            }
        }
        wrong
    }

    fn wrong_in_chunk(
        &self,
        rank: u32,
        piece: &Piece,
        skipped: u64,
        found: &[u8],
        expected: &mut [u8],
    ) -> u64 {
        match (piece.origin, self.op) {
            (Origin::Input { rank: from, offset }, _) => {
                self.fill(from, offset + skipped, expected);
                differing(expected, found, self.data_type.size())
            }
            (Origin::Reduction { offset }, Some(op)) => {
                let op = op.on_rank(rank);
                verify::expected(self.data_type, op, self.ranks, self.seed, offset + skipped, expected);
                verify::count_wrong(self.data_type, op, found, expected)
            }
            (Origin::Reduction { .. }, None) => unreachable!("a reduction has an operator"),
        }
    }
}

/// Elements that are not the same bytes.
fn differing(expected: &[u8], found: &[u8], element_bytes: usize) -> u64 {
    if expected == found {
        return 0;
    }
    let pairs = expected.chunks_exact(element_bytes).zip(found.chunks_exact(element_bytes));
    pairs.filter(|(expected, found)| expected != found).count() as u64
}

/// Random bytes, a function of seed, rank and place only.
fn random_bytes(seed: u64, rank: u32, offset_bytes: u64, into: &mut [u8]) {
    let stream = mix(seed ^ mix(u64::from(rank) + 1));
    let word = |place: u64| mix(stream.wrapping_add(place)).to_le_bytes();
    let (mut place, skip) = (offset_bytes / 8, (offset_bytes % 8) as usize);
    let head = if skip == 0 { 0 } else { (8 - skip).min(into.len()) };
    let (first, rest) = into.split_at_mut(head);
    if head > 0 {
        first.copy_from_slice(&word(place)[skip..skip + head]);
        place += 1;
    }
    let mut words = rest.chunks_exact_mut(8);
    for chunk in &mut words {
        chunk.copy_from_slice(&word(place));
        place += 1;
    }
    let tail = words.into_remainder();
    let last = word(place);
    tail.copy_from_slice(&last[..tail.len()]);
}

/// A bijection of 64 bits that mixes well (the finisher of SplitMix64).
pub(crate) fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Stands in for `kolo::verify` until it is there; right for one rank only.
mod verify {
    use super::*;

    pub(super) fn fill(
        data_type: DataType,
        _: ReduceOp,
        rank: u32,
        _ranks: u32,
        seed: u64,
        offset: u64,
        into: &mut [u8],
    ) {
        random_bytes(seed, rank, offset * data_type.size() as u64, into);
    }

    pub(super) fn expected(
        data_type: DataType,
        op: ReduceOp,
        ranks: u32,
        seed: u64,
        offset: u64,
        into: &mut [u8],
    ) {
        fill(data_type, op, 0, ranks, seed, offset, into);
    }

    pub(super) fn count_wrong(data_type: DataType, _: ReduceOp, found: &[u8], expected: &[u8]) -> u64 {
        differing(expected, found, data_type.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moved(data_type: DataType) -> Inputs {
        Inputs { seed: 99, data_type, op: None, ranks: 3 }
    }

    #[test]
    fn bytes_do_not_depend_on_where_they_are_cut() {
        let mut whole = [0; 100];
        random_bytes(7, 1, 0, &mut whole);
        for start in 0..20 {
            for len in [0, 1, 3, 7, 8, 9, 40] {
                let mut part = vec![0; len];
                random_bytes(7, 1, start as u64, &mut part);
                assert_eq!(part, whole[start..start + len]);
            }
        }
        let mut other = [0; 100];
        random_bytes(7, 2, 0, &mut other);
        assert_ne!(whole, other);
    }

    #[test]
    fn every_wrong_element_is_counted() {
        let inputs = moved(DataType::F32);
        // Longer than a chunk, so that expectations are made in several goes.
        let elements = CHUNK_BYTES / 4 * 2 + 5;
        let mut result = vec![0; elements * 4];
        inputs.fill(2, 10, &mut result);
        let pieces = [Piece { at: 0, len: elements as u64, origin: Origin::Input { rank: 2, offset: 10 } }];
        assert_eq!(inputs.count_wrong(0, &pieces, &result), 0);
        for wrong in [0, CHUNK_BYTES + 1, CHUNK_BYTES + 2, elements * 4 - 1] {
            result[wrong] ^= 1;
        }
        assert_eq!(inputs.count_wrong(0, &pieces, &result), 3);
    }
}
