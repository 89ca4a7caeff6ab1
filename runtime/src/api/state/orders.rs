//! Decides which member a newcomer asks for which chunk or hash, without connections and clock.

use std::collections::VecDeque;

use super::Hash;
use crate::control::Job;

/// Least attempts at a chunk before the members' bytes count as different.
const ATTEMPTS_LEAST: usize = 3;

/// Outcome of comparing the hash of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Right,
    /// The chunk is fetched again, from another member than `from`.
    Wrong {
        from: Option<usize>,
    },
    Hopeless,
}

#[derive(Clone, Copy, Debug)]
enum Chunk {
    /// The chunk is to be fetched.
    Missing,
    /// The chunk may be right, since its memory has been written before.
    Unhashed,
    /// The chunk is here with this hash, from a member or from before.
    Hashed {
        hash: Hash,
        from: Option<usize>,
    },
    Right,
}

/// The chunks that a newcomer has and lacks, and its requests to members.
#[derive(Debug)]
pub(super) struct Orders {
    version: Option<u64>,
    chunks: Vec<Chunk>,
    /// For each chunk, the members that have sent it wrong, once per time.
    wrong: Vec<Vec<usize>>,
    missing: VecDeque<usize>,
    unconfirmed: VecDeque<usize>,
    left: usize,
    sources: Vec<Source>,
}

#[derive(Debug)]
struct Source {
    is_near: bool,
    /// The version that the member offers, if it is there.
    version: Option<u64>,
    under_way: Vec<Job>,
}

impl Orders {
    /// Makes orders for `chunks` chunks. With `may_have_some`, some may already be here.
    pub(super) fn new(chunks: usize, near: &[bool], may_have_some: bool) -> Self {
        let source = |is_near| Source { is_near, version: None, under_way: Vec::new() };
        let mut orders = Self {
            version: None,
            chunks: vec![if may_have_some { Chunk::Unhashed } else { Chunk::Missing }; chunks],
            wrong: vec![Vec::new(); chunks],
            missing: VecDeque::new(),
            unconfirmed: VecDeque::new(),
            left: chunks,
            sources: near.iter().copied().map(source).collect(),
        };
        if !may_have_some {
            orders.missing.extend(0..chunks);
        }
        orders
    }

    /// Returns the version, once all chunks are here and right.
    pub(super) fn done(&self) -> Option<u64> {
        self.version.filter(|_| self.left == 0)
    }

    /// Returns the number of chunks that are missing or not known to be right, once a version is offered.
    pub(super) fn left(&self) -> Option<usize> {
        self.version.map(|_| self.left)
    }

    /// Returns the chunks that are here and have not been hashed, once there is a version to compare them with.
    pub(super) fn unhashed(&self) -> Vec<usize> {
        let is_unhashed = |index: &usize| matches!(self.chunks[*index], Chunk::Unhashed);
        if self.version.is_none() { Vec::new() } else { (0..self.chunks.len()).filter(is_unhashed).collect() }
    }

    /// Notes that a member offers this version.
    pub(super) fn offered(&mut self, source: usize, version: u64) {
        self.sources[source].version = Some(version);
        let is_served =
            self.sources.iter().any(|source| source.version.is_some() && source.version == self.version);
        if !is_served {
            self.turn_to(version);
        }
    }

    /// Turns to this version, since the previous one has no source left. Chunks received of that one are compared
    /// with this one.
    fn turn_to(&mut self, version: u64) {
        let is_first = self.version.replace(version).is_none();
        if is_first {
            return;
        }
        self.missing.clear();
        self.unconfirmed.clear();
        self.left = self.chunks.len();
        for (index, chunk) in self.chunks.iter_mut().enumerate() {
            match chunk {
                Chunk::Missing => self.missing.push_back(index),
                _ => *chunk = Chunk::Unhashed,
            }
        }
        self.wrong.iter_mut().for_each(Vec::clear);
    }

    /// Notes that a member or its connection is gone, so that others are asked.
    pub(super) fn gone(&mut self, source: usize) {
        self.sources[source].version = None;
        for job in std::mem::take(&mut self.sources[source].under_way) {
            match job {
                Job::Chunk { index, .. } => self.missing.push_front(index),
                Job::Hash { index } => self.unconfirmed.push_front(index),
            }
        }
        let next = self.sources.iter().find_map(|source| source.version);
        let is_served = |source: &Source| source.version.is_some() && source.version == self.version;
        if let Some(next) = next.filter(|_| !self.sources.iter().any(is_served)) {
            self.turn_to(next);
        }
    }

    /// Returns the number of requests to a member under way.
    pub(super) fn under_way(&self, source: usize) -> usize {
        self.sources[source].under_way.len()
    }

    /// Notes that a member has answered this request.
    pub(super) fn answered(&mut self, source: usize, job: Job) {
        self.sources[source].under_way.retain(|other| *other != job);
    }

    /// Returns the next request to this member: first hashes of chunks that others have sent, then chunks that no
    /// nearer member has.
    pub(super) fn next(&mut self, source: usize, len: impl Fn(usize) -> usize) -> Option<Job> {
        let serves = |source: &Source| source.version.is_some() && source.version == self.version;
        if !serves(&self.sources[source]) {
            return None;
        }
        let serving: Vec<usize> = (0..self.sources.len()).filter(|at| serves(&self.sources[*at])).collect();
        let is_alone = serving.len() == 1;
        let may_confirm = |index: &usize| {
            is_alone
                || !matches!(self.chunks[*index], Chunk::Hashed { from: Some(from), .. } if from == source)
        };
        let job = if let Some(at) = self.unconfirmed.iter().position(may_confirm) {
            Job::Hash { index: self.unconfirmed.remove(at)? }
        } else {
            let may_send = |at: &usize, index: usize| !self.wrong[index].contains(at);
            let is_due = |index: &usize| {
                // A member that has sent the chunk wrong is asked again only if there is no other.
                let fit: Vec<usize> = serving.iter().copied().filter(|at| may_send(at, *index)).collect();
                let fit = if fit.is_empty() { &serving } else { &fit };
                let any_near = fit.iter().any(|at| self.sources[*at].is_near);
                fit.contains(&source) && (self.sources[source].is_near || !any_near)
            };
            let at = self.missing.iter().position(is_due)?;
            let index = self.missing.remove(at)?;
            Job::Chunk { index, bytes: len(index) }
        };
        self.sources[source].under_way.push(job);
        Some(job)
    }

    /// Notes the hash of a chunk that is here, and the member that has sent it.
    pub(super) fn hashed(&mut self, index: usize, hash: Hash, from: Option<usize>) {
        self.chunks[index] = Chunk::Hashed { hash, from };
        self.unconfirmed.push_back(index);
    }

    /// Compares a chunk with a member's hash of it.
    pub(super) fn compared(&mut self, index: usize, theirs: &Hash) -> Found {
        let Chunk::Hashed { hash, from } = self.chunks[index] else { return Found::Right };
        if hash == *theirs {
            self.chunks[index] = Chunk::Right;
            self.left -= 1;
            return Found::Right;
        }
        self.chunks[index] = Chunk::Missing;
        self.missing.push_back(index);
        self.wrong[index].extend(from);
        let attempts = self.wrong[index].len();
        if attempts >= self.sources.len().max(ATTEMPTS_LEAST) {
            Found::Hopeless
        } else {
            Found::Wrong { from }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RIGHT: Hash = [1; 32];
    const WRONG: Hash = [2; 32];

    /// Lets members answer at once until all chunks are here, and returns the last sender of each. Member `wrong`
    /// sends other bytes.
    fn all(orders: &mut Orders, sources: usize, wrong: Option<usize>) -> Vec<usize> {
        let mut from = vec![usize::MAX; orders.chunks.len()];
        for _ in 0..1000 {
            let asked: Vec<_> = (0..sources).filter_map(|at| Some((at, orders.next(at, |_| 8)?))).collect();
            for (source, job) in asked {
                orders.answered(source, job);
                match job {
                    Job::Chunk { index, bytes: 8 } => {
                        from[index] = source;
                        let hash = if wrong == Some(source) { WRONG } else { RIGHT };
                        orders.hashed(index, hash, Some(source));
                    }
                    Job::Chunk { .. } => panic!("of another length"),
                    Job::Hash { index } => {
                        assert!(sources == 1 || from[index] != source, "nobody confirms its own");
                        assert_ne!(orders.compared(index, &RIGHT), Found::Hopeless);
                    }
                }
            }
            if orders.done().is_some() {
                return from;
            }
        }
        panic!("no end: {orders:?}");
    }

    #[test]
    fn those_that_are_near_share_the_work_and_others_confirm_it() {
        let mut orders = Orders::new(12, &[false, true, true], false);
        assert_eq!(orders.next(0, |_| 8), None, "before it offers anything");
        (0..3).for_each(|source| orders.offered(source, 7));
        let from = all(&mut orders, 3, None);
        assert!(from.iter().all(|from| *from != 0), "{from:?}");
        assert!(from.contains(&1) && from.contains(&2), "{from:?}");
        assert_eq!(orders.done(), Some(7));
    }

    #[test]
    fn what_is_wrong_comes_from_another_member() {
        let mut orders = Orders::new(6, &[true; 3], false);
        (0..3).for_each(|source| orders.offered(source, 7));
        let from = all(&mut orders, 3, Some(1));
        assert!(from.iter().all(|from| *from != 1), "{from:?}");
        // A single member, whose hashes do not fit the bytes that it sends.
        let mut orders = Orders::new(1, &[true], false);
        orders.offered(0, 7);
        let mut found = Found::Right;
        for _ in 0..ATTEMPTS_LEAST {
            let job = orders.next(0, |_| 8).expect("a chunk");
            orders.answered(0, job);
            orders.hashed(0, WRONG, Some(0));
            let job = orders.next(0, |_| 8).expect("its hash");
            orders.answered(0, job);
            found = orders.compared(0, &RIGHT);
        }
        assert_eq!(found, Found::Hopeless);
    }

    #[test]
    fn what_a_member_that_goes_has_not_sent_comes_from_the_others() {
        let mut orders = Orders::new(4, &[true; 2], false);
        orders.offered(0, 7);
        orders.offered(1, 7);
        let lost = orders.next(0, |_| 8).expect("a chunk");
        orders.gone(0);
        assert_eq!((orders.next(0, |_| 8), orders.under_way(0)), (None, 0));
        assert_eq!(orders.next(1, |_| 8), Some(lost), "first");
        orders.gone(1);
        assert_eq!(orders.done(), None);
        orders.offered(1, 7);
        let mut alone = Orders { sources: vec![orders.sources.remove(1)], ..orders };
        assert_eq!(all(&mut alone, 1, None), [0; 4]);
    }

    #[test]
    fn chunks_of_a_version_that_nobody_has_any_more_are_compared_with_the_next() {
        let mut orders = Orders::new(3, &[true; 2], false);
        orders.offered(0, 7);
        all(&mut orders, 1, None);
        let mut orders = Orders { left: 1, ..orders };
        orders.chunks[2] = Chunk::Missing;
        orders.missing = [2].into();
        orders.offered(1, 9);
        assert_eq!(orders.next(1, |_| 8), None, "the version that was begun is still there");
        orders.gone(0);
        assert_eq!((orders.unhashed(), orders.left()), (vec![0, 1], Some(3)));
        orders.hashed(0, RIGHT, None);
        orders.hashed(1, WRONG, None);
        let mut asked = Vec::new();
        while let Some(job) = orders.next(1, |_| 8) {
            asked.push(job);
            if let Job::Hash { index } = job {
                orders.compared(index, &RIGHT);
            }
        }
        let chunk = |index| Job::Chunk { index, bytes: 8 };
        assert_eq!(asked, [Job::Hash { index: 0 }, Job::Hash { index: 1 }, chunk(2), chunk(1)]);
    }
}
