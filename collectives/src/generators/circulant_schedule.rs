//! The block schedule of the pipelined circulant broadcast.
//!
//! Träff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast,
//! reduction and all-reduction" (2023). With q = ceil(log2 p) and the skips of the halving of p, rank r (counted
//! from the root) receives in round k from r - skip k and sends to r + skip k. Its schedule gives the number of
//! each block, relative to the current phase of q rounds. Over a phase a rank receives q different blocks, of
//! which one is new (its *base block*) and the others belong to the phase before; it sends only blocks that it
//! has; and the root sends the blocks in order. Each rank computes its schedule by itself, in O(log p) steps for
//! its receives, and as many for each peer that it sends to.

use crate::rounds::halvings;

/// Returns the skips 1, .., ceil(p/2), p.
pub(crate) fn skips(p: u32) -> Vec<u32> {
    let mut skips = halvings(p);
    skips.reverse();
    skips
}

/// Returns the round in which rank `r` gets a block of the current phase: the smallest skip of the greedy path to
/// it. For the root, which gets none, it is q.
fn base_block(mut r: u32, skips: &[u32]) -> usize {
    let q = skips.len() - 1;
    for k in (0..q).rev() {
        if skips[k] == r {
            return k;
        }
        if skips[k] < r {
            r -= skips[k];
        }
    }
    q
}

/// Returns, for each round of a phase, the block that rank `r` receives, relative to the phase: its base block,
/// or a negative number.
pub(crate) fn receives(r: u32, skips: &[u32]) -> Vec<i64> {
    let q = skips.len() - 1;
    let base = base_block(r, skips);
    let mut search = Search {
        skips,
        target: i64::from(skips[q]) + i64::from(r),
        bound: 2 * i64::from(skips[q]),
        left: (0..=q).map(|block| block == q || block != base).collect(),
        found: Vec::with_capacity(q),
    };
    search.descend(0, Some(q));
    debug_assert_eq!(search.found.len(), q, "every round has a block");
    search
        .found
        .into_iter()
        .map(|block| if block == q { base as i64 } else { block as i64 - q as i64 })
        .collect()
}

/// Returns, for each round of a phase, the block that rank `r` sends: the one that its receiver expects.
pub(crate) fn sends(r: u32, p: u32, skips: &[u32]) -> Vec<i64> {
    (0..skips.len() - 1).map(|k| receives((r + skips[k]) % p, skips)[k]).collect()
}

/// A depth-first search for the paths of greedy skips that lead close to the target. The path for round k leads
/// to a rank at least skip k before the target, but less than skip k+1, and before the rank found for round k-1.
/// The last skip of the path is the block, which is not used again.
struct Search<'a> {
    skips: &'a [u32],
    /// The rank plus p: paths may wrap round from the phase before.
    target: i64,
    /// Rank at the end of the path for the previous round.
    bound: i64,
    /// Blocks that no round has yet.
    left: Vec<bool>,
    found: Vec<usize>,
}

impl Search<'_> {
    fn descend(&mut self, at: i64, first: Option<usize>) {
        let q = self.skips.len() - 1;
        let reach =
            |search: &Self, ahead: usize| search.target - i64::from(search.skips[search.found.len() + ahead]);
        let mut next = first;
        while let Some(block) = next {
            next = self.below(block);
            if self.found.len() == q {
                return;
            }
            let to = at + i64::from(self.skips[block]);
            if !self.left[block] || to > reach(self, 0) || to >= self.bound {
                continue;
            }
            if to <= reach(self, 1) {
                self.descend(to, self.below(block));
                next = self.below(block);
            }
            if self.found.len() == q || at > reach(self, 1) {
                return;
            }
            if to <= reach(self, 0) {
                self.bound = to;
                self.found.push(block);
                self.left[block] = false;
            }
        }
    }

    /// Returns the greatest unused block below `block`.
    fn below(&self, block: usize) -> Option<usize> {
        (0..block).rev().find(|below| self.left[*below])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conditions(p: u32) {
        let skips = skips(p);
        let q = skips.len() - 1;
        let all: Vec<Vec<i64>> = (0..p).map(|r| receives(r, &skips)).collect();
        for r in 0..p {
            let base = base_block(r, &skips);
            let mut got = all[r as usize].clone();
            got.sort_unstable();
            let mut wanted: Vec<i64> = (0..q).filter(|b| *b != base).map(|b| b as i64 - q as i64).collect();
            if r > 0 {
                wanted.push(base as i64);
            }
            assert_eq!(got, wanted, "p {p}: rank {r} must receive each block once");
            for (k, skip) in skips[..q].iter().enumerate() {
                let sent = all[((r + skip) % p) as usize][k];
                if r == 0 {
                    assert_eq!(sent, k as i64, "p {p}: the root sends in order");
                } else {
                    let has = all[r as usize][..k].contains(&sent) || sent == base as i64 - q as i64;
                    assert!(has, "p {p}: rank {r} sends {sent} in round {k} before it has it");
                }
            }
        }
    }

    #[test]
    fn schedules_meet_the_conditions() {
        for p in (2..260).chain([511, 512, 513, 1000, 1023, 1024, 1025, 4095, 4096, 4097]) {
            conditions(p);
        }
    }
}
