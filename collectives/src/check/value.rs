//! Symbolic values: the contents of a block, as a sum of tokens and as a hash of the expression that produced it.
//!
//! Every contribution (rank, block) has a pseudo-random 128-bit token. Tokens are added with wrap-around. An equal sum
//! and an equal count of contributions mean, except with a probability of 2^-128, that each contribution was counted
//! exactly once. The expression hash ignores the block and depends only on which rank's contribution stands where in
//! the tree. Its combination is symmetric: operators commute bit by bit, but do not associate.

use serde::Serialize;

use crate::memory::Memory;
use crate::plan::{Collective, Placement, Plan, Space};
use crate::rounds::{Fold, floor_log2};

/// The contents of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value {
    token: u128,
    pub(crate) count: u32,
    expression: Expression,
}

impl Value {
    pub(crate) fn leaf(rank: u32, block: u32) -> Self {
        let key = (u64::from(rank) << 32) | u64::from(block);
        let token = (u128::from(mix(key)) << 64) | u128::from(mix(!key ^ 0x5bd1_e995));
        Self { token, count: 1, expression: Expression::leaf(rank) }
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            token: self.token.wrapping_add(other.token),
            // A plan from a file may add a value to itself any number of times; too many is wrong all the same.
            count: self.count.saturating_add(other.count),
            expression: self.expression.plus(other.expression),
        }
    }

    /// Returns the contributions, whatever their order.
    fn sum(&self) -> Sum {
        Sum { token: self.token, count: self.count }
    }
}

/// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014): each input bit reaches every output bit.
fn mix(mut x: u64) -> u64 {
    x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The shape of a reduction: the place of each rank's contribution in the tree, as a hash. The operands of an addition
/// are unordered: operators commute bit by bit, but do not associate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct Expression(u64);

impl Expression {
    /// Returns the expression of the contribution of `rank`, or of that shard in a reduction over shards.
    #[must_use]
    pub fn leaf(rank: u32) -> Self {
        Self(mix(u64::from(rank) + 1))
    }

    /// Returns the sum of two expressions.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(mix(mix(self.0.min(other.0)) ^ self.0.max(other.0).rotate_left(17)))
    }

    /// Returns the canonical expression for `p` ranks or shards: the balanced binary tree over their order. If p is not
    /// a power of two, the first 2 (p - 2^L) ranks are paired beforehand, and each pair counts as one leaf.
    ///
    /// # Panics
    /// If `p` is 0.
    #[must_use]
    pub fn canonical(p: u32) -> Self {
        let mut level: Vec<Self> = (0..1_u32 << floor_log2(p))
            .map(|index| {
                let rank = Fold::rank_of(index, p);
                match Fold::of(rank, p) {
                    Fold::Active { extra: Some(extra), .. } => Self::leaf(rank).plus(Self::leaf(extra)),
                    _ => Self::leaf(rank),
                }
            })
            .collect();
        while level.len() > 1 {
            level = level.chunks(2).map(|pair| pair[0].plus(pair[1])).collect();
        }
        level[0]
    }
}

/// The expressions of the reduced blocks, over all ranks, segments and runs.
#[derive(Debug, Default)]
pub(crate) struct Expressions {
    first: Option<Expression>,
    several: bool,
    /// A scan's result is another expression than the canonical one over its contributions.
    other_scans: bool,
}

impl Expressions {
    pub(crate) fn uniform(&self) -> Option<Expression> {
        self.first.filter(|_| !self.several)
    }

    pub(crate) fn scans_are_canonical(&self) -> bool {
        !self.other_scans
    }

    fn add_scan(&mut self, value: &Value) {
        self.other_scans |= value.expression != Expression::canonical(value.count);
    }

    fn add(&mut self, value: &Value) {
        let first = *self.first.get_or_insert(value.expression);
        self.several |= first != value.expression;
    }
}

/// The values in the memories of one rank.
#[derive(Debug)]
pub(crate) struct Cells {
    memory: Memory,
    output: Vec<Option<Value>>,
    scratch: Vec<Option<Value>>,
    /// The contents of the one input block that is also the output, if there is such a block.
    aliased_input: Option<(u32, Value)>,
}

impl Cells {
    pub(crate) fn new(plan: &Plan) -> Self {
        let memory = Memory::of(plan);
        let output = (0..memory.output_blocks()).map(|block| initial(&memory, block)).collect();
        let input_is_output = memory.placement == Placement::InPlace
            && (memory.collective == Collective::ReduceScatter
                || (memory.collective == Collective::Scatter && memory.rank == memory.root));
        Self {
            memory,
            output,
            scratch: vec![None; plan.scratch.len()],
            aliased_input: input_is_output.then(|| (memory.rank, Value::leaf(memory.rank, memory.rank))),
        }
    }

    pub(crate) fn read(&self, space: Space, block: u32) -> Option<Value> {
        let physical = self.memory.physical(crate::plan::Blocks::one(space, block));
        match physical.space {
            Space::Input => match self.aliased_input {
                Some((aliased, value)) if aliased == physical.first => Some(value),
                _ => {
                    let (contribution, block) = self.memory.contributed(physical.first);
                    Some(Value::leaf(contribution, block))
                }
            },
            Space::Output => self.output[physical.first as usize],
            Space::Scratch => self.scratch[physical.first as usize],
            Space::Stage(_) | Space::Window(_) => unreachable!("it is nobody's own memory"),
        }
    }

    /// Returns the value that others find in block `block` of this rank's input.
    pub(crate) fn contributed(&self, block: u32) -> Option<Value> {
        let at = self.memory.contribution(block, 1);
        self.read(at.space, at.first)
    }

    pub(crate) fn write(&mut self, space: Space, block: u32, value: Value) {
        let physical = self.memory.physical(crate::plan::Blocks::one(space, block));
        match physical.space {
            Space::Input => self.aliased_input = Some((physical.first, value)),
            Space::Output => self.output[physical.first as usize] = Some(value),
            Space::Scratch => self.scratch[physical.first as usize] = Some(value),
            Space::Stage(_) | Space::Window(_) => unreachable!("found in `wiring`"),
        }
    }
}

/// Returns the contents of output block `block` before the operation.
fn initial(memory: &Memory, block: u32) -> Option<Value> {
    let (rank, collective) = (memory.rank, memory.collective);
    let index = if matches!(collective, Collective::AllGather | Collective::Gather) { 0 } else { block };
    memory.starts_in_output(block).then(|| Value::leaf(rank, index))
}

/// A set of contributions, whatever the order in which they were added.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Sum {
    token: u128,
    count: u32,
}

/// The required contents of every output block at the end.
#[derive(Debug)]
pub(crate) struct Expected {
    /// Sums over ranks, by block: over all ranks, or over ranks 0..=r at r * blocks + block for scans.
    sums: Vec<Sum>,
    blocks: usize,
}

/// The verdict on an output block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Right,
    Wrong { contributions: u32, expected: u32 },
    Touched,
    OtherOrder,
}

impl Expected {
    pub(crate) fn new(memory: &Memory) -> Self {
        use Collective as C;
        let p = memory.world_size;
        let of_rank_zero = Memory { rank: memory.root, ..*memory };
        let blocks = match memory.collective {
            C::ReduceScatter => p,
            C::AllReduce | C::Reduce | C::Scan | C::ExScan => of_rank_zero.output_blocks(),
            _ => 0,
        };
        let prefix = matches!(memory.collective, C::Scan | C::ExScan);
        let mut sums = Vec::new();
        let mut running = vec![Sum::default(); blocks as usize];
        if blocks > 0 {
            for rank in 0..memory.contributions() {
                for block in 0..blocks {
                    let sum = &mut running[block as usize];
                    let leaf = Value::leaf(rank, block);
                    sum.token = sum.token.wrapping_add(leaf.token);
                    sum.count += 1;
                }
                if prefix {
                    sums.extend_from_slice(&running);
                }
            }
        }
        Self { sums: if prefix { sums } else { running }, blocks: blocks as usize }
    }

    /// Judges output block `block` of `cells`. `reference` holds the value of the first rank that has this block, so
    /// that orders can be compared across ranks.
    pub(crate) fn judge(
        &self,
        cells: &Cells,
        block: u32,
        reference: &mut Option<Value>,
        expressions: &mut Expressions,
    ) -> Verdict {
        use Collective as C;
        let Memory { collective, rank, root, .. } = cells.memory;
        let found = cells.read(Space::Output, block);
        let at = block as usize;
        let expected = match collective {
            C::AllReduce => self.sums[at],
            C::Reduce if rank == root => self.sums[at],
            C::ReduceScatter => self.sums[rank as usize],
            C::Scan => self.sums[rank as usize * self.blocks + at],
            C::ExScan if rank > 0 => self.sums[(rank as usize - 1) * self.blocks + at],
            C::AllGather | C::Gather => Value::leaf(block, 0).sum(),
            C::Broadcast => Value::leaf(root, block).sum(),
            C::Scatter => Value::leaf(root, rank).sum(),
            C::AllToAll => Value::leaf(block, rank).sum(),
            C::Reduce | C::ExScan | C::Barrier => {
                let untouched = found == initial(&cells.memory, block);
                return if untouched { Verdict::Right } else { Verdict::Touched };
            }
        };
        let Some(found) = found.filter(|found| found.sum() == expected) else {
            let contributions = found.map_or(0, |found| found.count);
            return Verdict::Wrong { contributions, expected: expected.count };
        };
        if matches!(collective, C::Scan | C::ExScan) {
            expressions.add_scan(&found);
        }
        if matches!(collective, C::AllReduce | C::Reduce | C::ReduceScatter) {
            expressions.add(&found);
            if reference.get_or_insert(found).expression != found.expression && collective == C::AllReduce {
                return Verdict::OtherOrder;
            }
        }
        Verdict::Right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_commute_but_do_not_associate() {
        let [a, b, c] = [0, 1, 2].map(|rank| Value::leaf(rank, 0));
        assert_eq!(a.plus(b), b.plus(a));
        assert_ne!(a.plus(b).plus(c), a.plus(b.plus(c)));
        assert_eq!(a.plus(b).plus(c).sum(), a.plus(b.plus(c)).sum());
        assert_ne!(a.plus(b).plus(b).sum(), a.plus(b).plus(c).sum());
    }

    #[test]
    fn canonical_expression_of_four_is_balanced() {
        let [a, b, c, d] = [0, 1, 2, 3].map(Expression::leaf);
        assert_eq!(Expression::canonical(4), a.plus(b).plus(c.plus(d)));
        assert_ne!(Expression::canonical(4), a.plus(b).plus(c).plus(d));
        // Of five ranks, the first two are paired.
        let e = Expression::leaf(4);
        assert_eq!(Expression::canonical(5), a.plus(b).plus(c).plus(d.plus(e)));
    }
}
