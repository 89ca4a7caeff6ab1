//! Sets of members.

use std::fmt;

use serde::{Deserialize, Serialize};

const BITS: usize = 64;

/// A set of members, by number.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Set(Vec<u64>);

impl Set {
    /// Makes the set of all members below `count`.
    #[must_use]
    pub fn all(count: u32) -> Self {
        (0..count).collect()
    }

    /// Adds a member. Returns whether it is new.
    pub fn insert(&mut self, member: u32) -> bool {
        let (word, bit) = (member as usize / BITS, 1 << (member as usize % BITS));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    /// Whether the set contains a member.
    #[must_use]
    pub fn contains(&self, member: u32) -> bool {
        self.0.get(member as usize / BITS).is_some_and(|word| word & (1 << (member as usize % BITS)) != 0)
    }

    /// Whether the set contains all members of `other`.
    #[must_use]
    pub fn includes(&self, other: &Self) -> bool {
        other.0.iter().enumerate().all(|(i, theirs)| theirs & !self.0.get(i).copied().unwrap_or(0) == 0)
    }

    /// Adds all members of `other`. Returns whether any is new.
    pub fn extend(&mut self, other: &Self) -> bool {
        let mut any = false;
        for member in other.iter() {
            any |= self.insert(member);
        }
        any
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Iterates over the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().enumerate().flat_map(|(i, word)| {
            (0..BITS).filter(move |bit| word & (1 << bit) != 0).map(move |bit| (i * BITS + bit) as u32)
        })
    }

    /// Returns the highest member. Another process may have sent the set.
    #[must_use]
    pub fn highest(&self) -> Option<u32> {
        self.iter().last()
    }
}

impl FromIterator<u32> for Set {
    fn from_iter<I: IntoIterator<Item = u32>>(members: I) -> Self {
        let mut set = Self::default();
        for member in members {
            set.insert(member);
        }
        set
    }
}

impl fmt::Debug for Set {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_sets() {
        let mut set: Set = [3, 70, 0].into_iter().collect();
        assert!(!set.insert(70) && set.insert(64) && set.len() == 4);
        assert!(set.contains(3) && !set.contains(4) && !set.contains(9999));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 3, 64, 70]);
        assert!(Set::all(71).includes(&set) && !set.includes(&Set::all(2)) && set.includes(&Set::default()));
        assert!(!set.extend(&[0, 3].into_iter().collect()) && set.extend(&Set::all(2)));
        assert_eq!((set.highest(), Set::default().highest()), (Some(70), None));
    }
}
