//! Test data, and the bit-exact check of the results.
//!
//! Inputs that are only moved are random bytes. Inputs that are reduced come from [`kolo::internal::verify`],
//! whose values make every partial reduction exact in any order. Both are pure functions of seed, rank and
//! position, so expectations are made piece by piece and need no buffer.

use kolo::DataType;
use kolo::internal::verify::{Problem, count_wrong, fill_bytes};

use super::choice::NamedOp;
use super::pieces::{Origin, Piece};
use crate::error::{CliError, Result};

/// Bytes that are computed and compared at a time: they fit into the second-level cache of any machine, and are
/// a multiple of every element size.
const CHUNK_BYTES: usize = 64 << 10;

/// Contents of the inputs of all ranks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Inputs {
    seed: u64,
    data_type: DataType,
    ranks: u32,
    /// `None` if values are only moved.
    problem: Option<Problem>,
}

impl Inputs {
    /// Makes the inputs of `ranks` ranks; `op` is `None` if values are only moved.
    pub(crate) fn new(seed: u64, data_type: DataType, op: Option<NamedOp>, ranks: u32) -> Result<Self> {
        let problem = op.map(|op| Problem::new(data_type, op.on_rank(0), ranks, seed)).transpose();
        let problem = problem.map_err(|error| {
            CliError::usage(format!("the results cannot be checked: {error}"), "Choose another -o or -d")
        })?;
        Ok(Self { seed, data_type, ranks, problem })
    }

    /// Writes elements of the input of `rank`, starting with element `offset`.
    pub(crate) fn fill(&self, rank: u32, offset: u64, into: &mut [u8]) {
        match &self.problem {
            None => fill_bytes(self.seed, rank, offset * self.data_type.size() as u64, into),
            Some(problem) => problem.fill(rank, offset, into),
        }
    }

    /// Counts the wrong elements of a result.
    #[must_use]
    pub(crate) fn count_wrong(&self, pieces: &[Piece], result: &[u8]) -> u64 {
        let element_bytes = self.data_type.size();
        let part = |piece: &Piece| {
            let start = piece.at as usize * element_bytes;
            &result[start..start + piece.len as usize * element_bytes]
        };
        pieces
            .iter()
            .map(|piece| match (piece.origin, &self.problem) {
                (Origin::Reduction { offset }, Some(problem)) => {
                    problem.count_wrong(self.ranks, offset, part(piece))
                }
                (Origin::Input { rank, offset }, _) => self.count_wrong_input(rank, offset, part(piece)),
                (Origin::Reduction { .. }, None) => unreachable!("the data to reduce has a problem"),
            })
            .sum()
    }

    fn count_wrong_input(&self, rank: u32, offset: u64, found: &[u8]) -> u64 {
        let mut expected = vec![0u8; CHUNK_BYTES.min(found.len())];
        let chunk_elements = (CHUNK_BYTES / self.data_type.size()) as u64;
        let mut wrong = 0;
        for (index, found) in found.chunks(CHUNK_BYTES).enumerate() {
            let expected = &mut expected[..found.len()];
            self.fill(rank, offset + index as u64 * chunk_elements, expected);
            wrong += count_wrong(self.data_type, found, expected);
        }
        wrong
    }
}

#[cfg(test)]
mod tests {
    use super::super::choice::all_types;
    use super::*;

    #[test]
    fn every_wrong_element_is_counted() {
        let inputs = Inputs::new(99, DataType::F32, None, 3).unwrap();
        // Longer than a chunk, so that expectations are made in several steps.
        let elements = CHUNK_BYTES / 4 * 2 + 5;
        let mut result = vec![0; elements * 4];
        inputs.fill(2, 10, &mut result);
        let pieces = [Piece { at: 0, len: elements as u64, origin: Origin::Input { rank: 2, offset: 10 } }];
        assert_eq!(inputs.count_wrong(&pieces, &result), 0);
        for wrong in [0, CHUNK_BYTES + 1, CHUNK_BYTES + 2, elements * 4 - 1] {
            result[wrong] ^= 1;
        }
        assert_eq!(inputs.count_wrong(&pieces, &result), 3);
    }

    #[test]
    fn there_is_data_for_all_that_can_be_asked() {
        for named in all_types() {
            for op in NamedOp::ALL {
                let inputs = Inputs::new(1, named.data_type, Some(op), 1).unwrap();
                let mut result = vec![0; 64 * named.data_type.size()];
                inputs.fill(0, 0, &mut result);
                let piece = Piece { at: 0, len: 64, origin: Origin::Reduction { offset: 0 } };
                assert_eq!(inputs.count_wrong(&[piece], &result), 0, "{} {}", named.name, op.name());
            }
        }
    }
}
