//! Sets of ranks that are known to have called, for the check of barriers.

/// A set of ranks; it has no words if values are not followed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard(Box<[u64]>);

impl Heard {
    /// Returns the set of `rank` alone, among `ranks` ranks.
    pub(super) fn only(rank: u32, ranks: usize) -> Self {
        let mut words = vec![0; ranks.div_ceil(64)];
        words[rank as usize / 64] |= 1 << (rank % 64);
        Self(words.into())
    }

    /// Adds all ranks of another set.
    pub(super) fn add(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    /// Returns the first of `ranks` ranks that is missing.
    pub(super) fn missing(&self, ranks: usize) -> Option<u32> {
        (0..ranks as u32).find(|rank| self.0[*rank as usize / 64] & (1 << (rank % 64)) == 0)
    }
}
