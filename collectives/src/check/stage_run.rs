//! Stages and windows in a run: rounds act as credits, and steps read the contents of stages and of other ranks'
//! windows.

use crate::plan::{Action, Blocks, Space};
use crate::select::Order;
use crate::stage::{Members, Payload as Published};

use super::heard::Heard;
use super::run::{Payload, Run, combine};
use super::stage::Groups;
use super::value::Value;
use super::violation::{Place, Violation};

/// The stages of one group of ranks.
#[derive(Debug)]
pub(super) struct Stages {
    /// Rounds that each member has published.
    published: Vec<usize>,
    /// Contents of the stages, by member and by round modulo depth.
    buffers: Vec<Vec<Buffer>>,
    depth: usize,
    /// Lanes that wait for a member to publish.
    waiting: Vec<usize>,
}

#[derive(Clone, Debug, Default)]
struct Buffer {
    round: usize,
    payload: Published,
    /// Values by block, in the order of the payload; empty if values are not followed.
    values: Vec<Option<Value>>,
    heard: Heard,
}

impl Stages {
    pub(super) fn of_all(groups: &Groups, depth: u32) -> Vec<Self> {
        let depth = (depth as usize).max(2);
        let stages = |members: usize| Self {
            published: vec![0; members],
            buffers: vec![vec![Buffer::default(); depth]; members],
            depth,
            waiting: Vec::new(),
        };
        groups.members.iter().map(|members| stages(members.len())).collect()
    }

    /// Returns whether a member may publish its next round; if not, `lane` waits.
    pub(super) fn may_publish(&mut self, member: usize, lane: usize) -> bool {
        // All members must have published round k - depth + 1, and thus be done with round k - depth, whose buffer is
        // overwritten.
        let least = (self.published[member] + 2).saturating_sub(self.depth);
        let may = self.published.iter().all(|published| *published >= least);
        if !may {
            self.waiting.push(lane);
        }
        may
    }

    /// Publishes a member's round; returns the lanes that may be able to proceed.
    pub(super) fn publish(
        &mut self,
        member: usize,
        payload: Published,
        values: Vec<Option<Value>>,
        heard: Heard,
    ) -> Vec<usize> {
        let round = self.published[member];
        self.buffers[member][round % self.depth] = Buffer { round, payload, values, heard };
        self.published[member] += 1;
        std::mem::take(&mut self.waiting)
    }

    /// Returns the round of the segment that a member publishes next.
    pub(super) fn next_round(&self, member: usize) -> usize {
        self.published[member]
    }

    /// Returns the round that a member published last.
    fn round(&self, member: usize) -> usize {
        self.published[member].saturating_sub(1)
    }

    /// Returns whether members have published the round that `member` published last; if not, `lane` waits.
    pub(super) fn have_published(&mut self, of: Members, member: usize, lane: usize) -> bool {
        let round = self.published[member];
        let have = self.published[of.range(self.published.len())].iter().all(|published| *published >= round);
        if !have {
            self.waiting.push(lane);
        }
        have
    }

    /// Adds the knowledge that members had when they published `reader`'s round.
    pub(super) fn hear(&self, of: Members, reader: usize, heard: &mut Heard) {
        let round = self.round(reader);
        for member in of.range(self.published.len()) {
            heard.add(&self.buffers[member][round % self.depth].heard);
        }
    }

    /// Returns the value that `reader` finds under a number in a member's stage.
    pub(super) fn read(&self, reader: usize, member: usize, number: u32) -> Option<Value> {
        let round = self.round(reader);
        let buffer = self.buffers.get(member)?.get(round % self.depth)?;
        let position = buffer.payload.position(number).filter(|_| buffer.round == round)?;
        buffer.values.get(position).copied().flatten()
    }
}

impl Run<'_> {
    /// Returns the group of a rank whose plan has stages, and the rank's number in it.
    pub(super) fn member(&self, rank: usize) -> (usize, usize) {
        self.facts.groups.of_ranks[rank].expect("found in `stage`")
    }

    /// Publishes this rank's next round, if it may. Returns whether it did.
    pub(super) fn publish(
        &mut self,
        rank: usize,
        lane: usize,
        action: &Action,
        place: &dyn Fn() -> Place,
    ) -> Result<bool, Violation> {
        let (group, member) = self.member(rank);
        let stages = &mut self.stages[group];
        if !stages.may_publish(member, lane) {
            return Ok(false);
        }
        let stage = self.facts.plans[rank].stage.as_ref().expect("found in `stage`");
        let payload = stage.payload(stages.next_round(member), member);
        let mut values = Vec::new();
        if !self.cells.is_empty() {
            for (run, src) in payload.runs.iter().flatten().zip(action.reads().into_iter().flatten()) {
                for index in 0..run.count {
                    let (block, number) = (Blocks::one(src.space, src.first + index), run.first + index);
                    let value =
                        if leaves_out(action, number) { Some(Vec::new()) } else { self.read(rank, block) };
                    let value = value.ok_or_else(|| Violation::Undefined { at: place() })?;
                    values.push(value.first().map(|(_, value)| *value));
                }
            }
        }
        let heard = self.lanes[lane].heard.clone();
        for waiting in self.stages[group].publish(member, payload, values, heard) {
            self.wake(waiting);
        }
        Ok(true)
    }

    /// Returns the result of a fold; `None` if lengths differ.
    pub(super) fn fold(
        &self,
        rank: usize,
        of: Members,
        (first, count): (u32, u32),
        own: Option<Blocks>,
        place: &dyn Fn() -> Place,
    ) -> Result<Option<Payload>, Violation> {
        let (group, me) = self.member(rank);
        let parts = of.range(self.facts.groups.members[group].len()).map(|member| {
            let blocks = match own {
                Some(own) if member == me => own,
                _ => Blocks::range(Space::Stage(member as u16), first, count),
            };
            self.read(rank, blocks).ok_or_else(|| Violation::Undefined { at: place() })
        });
        Ok(fold(parts.collect::<Result<_, _>>()?, self.order, combine))
    }
}

impl Run<'_> {
    /// Reduces blocks of the inputs of members `of` into the outputs of members `to`.
    pub(super) fn spread(
        &mut self,
        rank: usize,
        of: Members,
        (first, count): (u32, u32),
        (to, at): (Members, u32),
        place: &dyn Fn() -> Place,
    ) -> Result<(), Violation> {
        let members = self.facts.groups.members[self.member(rank).0].clone();
        let parts = of.range(members.len()).map(|member| {
            let blocks = Blocks::range(Space::Window(member as u16), first, count);
            self.read(rank, blocks).ok_or_else(|| Violation::Undefined { at: place() })
        });
        let sum = fold(parts.collect::<Result<_, _>>()?, self.order, combine);
        for member in to.range(members.len()) {
            let dst = Blocks::range(Space::Output, at, count);
            if !sum.as_ref().is_some_and(|sum| self.write(members[member] as usize, dst, sum)) {
                return Err(Violation::Lengths { at: place(), sender: place() });
            }
        }
        Ok(())
    }
}

/// Returns whether a step leaves the block with this number out of its payload.
fn leaves_out(action: &Action, number: u32) -> bool {
    let Action::Publish { except: Some(except), .. } = action else { return false };
    (except.first..except.end()).contains(&number)
}

/// Reduces the contributions of members in their order, or along the canonical tree; `None` if lengths differ.
fn fold(
    mut parts: Vec<Payload>,
    order: Order,
    combine: impl Fn(&Payload, &Payload) -> Option<Payload>,
) -> Option<Payload> {
    if order == Order::Any {
        let (first, others) = parts.split_first()?;
        return others.iter().try_fold(first.clone(), |sum, part| combine(&sum, part));
    }
    // Of 2^k + e contributions, the first 2 e are added in pairs, and then all along a balanced tree.
    let pairs = parts.len() - (1 << parts.len().ilog2());
    let rest = parts.split_off(2 * pairs);
    let paired = parts.chunks(2).map(|pair| combine(&pair[0], &pair[1]));
    let mut level = paired.chain(rest.into_iter().map(Some)).collect::<Option<Vec<Payload>>>()?;
    while level.len() > 1 {
        level = level.chunks(2).map(|pair| combine(&pair[0], &pair[1])).collect::<Option<_>>()?;
    }
    level.pop()
}
