//! Access to this rank's memory: locks of passive targets, and counts of the post and complete messages between origins and targets.

use std::collections::{BTreeSet, VecDeque};

/// State of a target.
#[derive(Debug, Default)]
pub(super) struct Locks {
    exclusive: bool,
    shared: u32,
    waiting: VecDeque<Wish>,
    /// For each rank: the exposures that it has begun for this rank, and the accesses that it has ended here.
    pub(super) posts: Vec<u32>,
    pub(super) completes: Vec<u32>,
    /// Origins with an operation that was refused here and wants no answer. The next one that wants an answer tells them.
    pub(super) refused: BTreeSet<u32>,
    /// Targets that have refused an operation of this rank, which the next synchronisation with them reports.
    pub(super) failures: BTreeSet<u32>,
}

/// A rank's request for the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    pub(super) from: u32,
    pub(super) number: u64,
    pub(super) exclusive: bool,
}

impl Locks {
    pub(super) fn new(ranks: usize) -> Self {
        Self { posts: vec![0; ranks], completes: vec![0; ranks], ..Self::default() }
    }

    const fn is_free(&self, exclusive: bool) -> bool {
        !self.exclusive && (!exclusive || self.shared == 0)
    }

    fn grant(&mut self, wish: Wish) -> Wish {
        if wish.exclusive {
            self.exclusive = true;
        } else {
            self.shared += 1;
        }
        wish
    }

    /// Requests the lock. Returns the request if it is granted at once; otherwise it is queued.
    pub(super) fn lock(&mut self, wish: Wish) -> Option<Wish> {
        if self.waiting.is_empty() && self.is_free(wish.exclusive) {
            return Some(self.grant(wish));
        }
        self.waiting.push_back(wish);
        None
    }

    /// Releases the lock. Returns the requests that are granted next.
    pub(super) fn unlock(&mut self) -> Vec<Wish> {
        if self.exclusive {
            self.exclusive = false;
        } else {
            self.shared = self.shared.saturating_sub(1);
        }
        let mut granted = Vec::new();
        while let Some(wish) = self.waiting.front().copied().filter(|wish| self.is_free(wish.exclusive)) {
            self.waiting.pop_front();
            granted.push(self.grant(wish));
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_granted_in_order() {
        let wish = |from: u32, exclusive: bool| Wish { from, number: from.into(), exclusive };
        let mut locks = Locks::new(4);
        assert!(locks.lock(wish(0, false)).is_some() && locks.lock(wish(1, false)).is_some());
        assert!(
            locks.lock(wish(2, true)).is_none() && locks.lock(wish(3, false)).is_none(),
            "nobody overtakes"
        );
        assert!(locks.unlock().is_empty());
        assert_eq!(locks.unlock(), [wish(2, true)]);
        assert_eq!(locks.unlock(), [wish(3, false)]);
        assert!(locks.unlock().is_empty());
    }
}
