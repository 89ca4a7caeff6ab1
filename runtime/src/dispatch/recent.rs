//! A cache of bounded size.

use std::collections::HashMap;
use std::hash::Hash;

/// The entries used last: at least [`MOST`] of them, and at most twice as many.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    young: HashMap<K, V>,
    /// Entries that have not been used since `young` was last empty.
    old: HashMap<K, V>,
}

/// Number of entries that are always remembered. A training loop has tens of distinct calls; a program with ever new
/// sizes or roots must not use ever more memory.
const MOST: usize = 1024;

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    pub(super) fn new() -> Self {
        Self { young: HashMap::new(), old: HashMap::new() }
    }

    /// Returns an entry, which counts as used.
    pub(super) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.old.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    /// Adds an entry.
    pub(super) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= MOST {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// Returns the number of entries.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.young.len() + self.old.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_in_use_stay_and_others_go() {
        let mut recent = Recent::new();
        recent.insert(usize::MAX, 0);
        for key in 0..10 * MOST {
            recent.insert(key, key);
            assert!(recent.len() <= 2 * MOST);
            assert_eq!(recent.get(&usize::MAX), Some(0), "used all the time");
            let before = key.saturating_sub(MOST / 4);
            assert_eq!(recent.get(&before), Some(before));
        }
        assert_eq!(recent.get(&0), None);
    }
}
