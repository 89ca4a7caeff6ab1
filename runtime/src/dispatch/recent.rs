//! A cache of bounded size.

use std::collections::HashMap;
use std::hash::Hash;

/// A cache of the entries used last. It begins to forget once there are more than [`MOST`], or once their plans have more
/// than [`MOST_STEPS`] steps, and holds about twice as many at most. The newest entry always stays.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    /// Steps of the plan in an entry.
    steps_of: fn(&V) -> usize,
    young: HashMap<K, V>,
    young_steps: usize,
    /// Entries that have not been used since `young` was last empty.
    old: HashMap<K, V>,
}

/// Number of entries that are always remembered. A training loop has tens of distinct calls; a program with ever new
/// sizes or roots must not use ever more memory.
const MOST: usize = 1024;

/// Steps of plans that are always remembered; they take 12 MiB. In a job of a thousand ranks, one plan may have
/// thousands.
const MOST_STEPS: usize = 1 << 18;

impl<K: Eq + Hash, V: Clone> Recent<K, V> {
    pub(super) fn new(steps_of: fn(&V) -> usize) -> Self {
        Self { steps_of, young: HashMap::new(), young_steps: 0, old: HashMap::new() }
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
        let steps = (self.steps_of)(&value);
        if self.young.len() >= MOST || self.young_steps + steps > MOST_STEPS {
            self.old = std::mem::take(&mut self.young);
            self.young_steps = 0;
        }
        self.young_steps += steps;
        self.young.insert(key, value);
    }

    /// Removes all entries.
    pub(super) fn clear(&mut self) {
        (self.young, self.young_steps, self.old) = (HashMap::new(), 0, HashMap::new());
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
        let mut recent = Recent::new(|_| 0);
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

    #[test]
    fn few_entries_with_many_steps_stay() {
        let mut recent = Recent::new(|steps: &usize| *steps);
        for key in 0..100 {
            recent.insert(key, MOST_STEPS / 8);
            assert!(recent.len() <= 16);
            assert!((0..=key).rev().take(8).all(|key| recent.get(&key).is_some()), "the last 8 of {key}");
        }
        recent.insert(100, 2 * MOST_STEPS);
        assert!(recent.get(&100).is_some() && recent.get(&99).is_some(), "a plan of any length stays");
    }
}
