//! The ranks known to have called: the subject of a barrier.

/// A set of ranks; of no ranks where nobody asks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Heard(Box<[u64]>);

impl Heard {
    /// Only `rank`, of so many.
    pub(super) fn only(rank: u32, ranks: usize) -> Self {
        let mut words = vec![0; ranks.div_ceil(64)];
        words[rank as usize / 64] |= 1 << (rank % 64);
        Self(words.into())
    }

    /// Adds all of another set.
    pub(super) fn add(&mut self, other: &Self) {
        for (word, other) in self.0.iter_mut().zip(&other.0) {
            *word |= other;
        }
    }

    /// The first of so many ranks that is not in it.
    pub(super) fn missing(&self, ranks: usize) -> Option<u32> {
        (0..ranks as u32).find(|rank| self.0[*rank as usize / 64] & (1 << (rank % 64)) == 0)
    }
}
