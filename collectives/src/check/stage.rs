//! Static checks of stages: members agree on rounds and payloads, and no rank reads a payload that it has not awaited
//! or that may have been overwritten.
//!
//! A payload may be read between the `Await` of its member and the reader's next `Publish`, which tells the others that
//! the reader is done. The order of the steps in one lane therefore decides. Sends need a fence, since they may still
//! read after their steps.

use crate::memory::Memory;
use crate::plan::{Action, Blocks, Cut, Plan, Space, Step, StepRef};
use crate::stage::{Members, Payload, Stage};

use super::violation::{Place, Violation};
use super::wiring::steps;

/// The groups of ranks that share memory.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Group of each rank, and its number among the members.
    pub(crate) of_ranks: Vec<Option<(usize, usize)>>,
    /// Ranks of the members of each group.
    pub(crate) members: Vec<Box<[u32]>>,
}

impl Groups {
    pub(crate) fn new(plans: &[Plan]) -> Result<Self, Violation> {
        let mut groups = Self { of_ranks: vec![None; plans.len()], members: Vec::new() };
        for plan in plans {
            let Some(stage) = &plan.stage else {
                if let Some((at, _)) = steps(plan).find(|(_, action)| action.is_staged()) {
                    return Err(Violation::Index { at: Place::of(plan, at), what: "stage" });
                }
                continue;
            };
            if groups.of_ranks[plan.rank as usize].is_none() {
                groups.add(plans, plan, stage)?;
            }
        }
        let exceptions: Vec<Vec<Option<Blocks>>> = plans.iter().map(exceptions).collect();
        for plan in plans {
            if let Some(stage) = &plan.stage {
                Lane::of(plan, stage, &exceptions)?.check()?;
            }
        }
        super::window::check(plans, &groups)?;
        Ok(groups)
    }

    /// Adds the group of a plan, after checking that it is well-formed and the same for all members.
    fn add(&mut self, plans: &[Plan], plan: &Plan, stage: &Stage) -> Result<(), Violation> {
        let fails = |rank: u32, what| Err(Violation::Stage { rank, what });
        let blocks = match plan.cut {
            Cut::Vector { parts } | Cut::Shards { parts, .. } => parts,
            Cut::PerRank => plan.world_size,
        };
        let ascending = stage.members.is_sorted_by(|a, b| a < b);
        if !ascending || stage.members.last().is_none_or(|last| *last as usize >= plans.len()) {
            return fails(plan.rank, "members");
        }
        if stage.member(plan.rank).is_none() {
            return fails(plan.rank, "membership");
        }
        if !matches!(stage.like, Space::Input | Space::Output) {
            return fails(plan.rank, "names");
        }
        let fits = |round: &[Payload]| {
            round.len() == stage.members.len() && round.iter().all(|p| is_sound(p, blocks))
        };
        if !stage.rounds.iter().all(|round| fits(round)) {
            return fails(plan.rank, "payloads");
        }
        for (member, rank) in stage.members.iter().enumerate() {
            if plans[*rank as usize].stage.as_ref() != Some(stage) || self.of_ranks[*rank as usize].is_some()
            {
                return fails(*rank, "agreement");
            }
            self.of_ranks[*rank as usize] = Some((self.members.len(), member));
        }
        self.members.push(stage.members.clone());
        Ok(())
    }
}

/// Returns the blocks that a rank leaves out of its payload, round by round.
fn exceptions(plan: &Plan) -> Vec<Option<Blocks>> {
    let except = |action: &Action| match action {
        Action::Publish { except, .. } => Some(*except),
        _ => None,
    };
    steps(plan).filter_map(|(_, action)| except(action)).collect()
}

/// Returns whether the runs of a payload lie within `blocks` blocks and share none.
fn is_sound(payload: &Payload, blocks: u32) -> bool {
    let fits = payload
        .runs
        .iter()
        .flatten()
        .all(|run| run.count > 0 && run.first.checked_add(run.count).is_some_and(|end| end <= blocks));
    let apart = match payload.runs {
        [Some(a), Some(b)] => fits && (a.end() <= b.first || b.end() <= a.first),
        [None, Some(_)] => false,
        _ => true,
    };
    fits && apart
}

/// The steps of one rank that use stages, in order.
struct Lane<'a> {
    plan: &'a Plan,
    stage: &'a Stage,
    memory: Memory,
    me: usize,
    number: u16,
    steps: &'a [Step],
    /// Blocks left out, by rank and round.
    exceptions: &'a [Vec<Option<Blocks>>],
    /// Members whose stages may be read.
    awaited: Vec<bool>,
    /// Sends from stages that no fence has waited for.
    sends: Vec<(StepRef, Blocks)>,
    /// Number of rounds begun.
    rounds: usize,
}

impl<'a> Lane<'a> {
    fn of(
        plan: &'a Plan,
        stage: &'a Stage,
        exceptions: &'a [Vec<Option<Blocks>>],
    ) -> Result<Self, Violation> {
        let mut staged = steps(plan).filter(|(_, action)| action.is_staged()).map(|(at, _)| at);
        let number = staged.next().map_or(0, |at| at.lane);
        if let Some(at) = staged.find(|at| at.lane != number) {
            return Err(Violation::StageLane { at: Place::of(plan, at), other_lane: number });
        }
        if exceptions[plan.rank as usize].len() != stage.rounds.len() {
            return Err(Violation::Stage { rank: plan.rank, what: "number of rounds" });
        }
        Ok(Self {
            plan,
            stage,
            exceptions,
            memory: Memory::of(plan),
            me: stage.member(plan.rank).unwrap_or_default(),
            number,
            steps: plan.lanes.get(usize::from(number)).map_or(&[], |lane| lane),
            awaited: vec![false; stage.members.len()],
            sends: Vec::new(),
            rounds: 0,
        })
    }

    fn check(mut self) -> Result<(), Violation> {
        for (index, step) in self.steps.iter().enumerate() {
            let at = StepRef { lane: self.number, step: index as u16 };
            if step.fence {
                self.sends.clear();
            }
            for blocks in step.action.reads().into_iter().flatten() {
                if let Space::Stage(member) = blocks.space {
                    if matches!(
                        step.action,
                        Action::RecvReduce { .. } | Action::Publish { .. } | Action::Fold { .. }
                    ) {
                        return Err(Violation::Index { at: self.place(at), what: "stage" });
                    }
                    self.reads(at, usize::from(member), blocks.first, blocks.count)?;
                    if matches!(step.action, Action::Send { .. }) {
                        self.sends.push((at, blocks));
                    }
                }
            }
            match step.action {
                Action::Publish { src, except } => self.publishes(at, src, except)?,
                Action::Await { of } => self.awaits(at, of)?,
                Action::Fold { of, first, count, own, dst } => {
                    self.folds(at, of, (first, count), own, dst)?;
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn place(&self, at: StepRef) -> Place {
        Place::of(self.plan, at)
    }

    fn publishes(
        &mut self,
        at: StepRef,
        src: [Option<Blocks>; 2],
        except: Option<Blocks>,
    ) -> Result<(), Violation> {
        if let Some((send, blocks)) = self.sends.first() {
            return Err(Violation::Hazard {
                writer: self.place(at),
                other: self.place(*send),
                block: blocks.to_string(),
            });
        }
        let payload = self.stage.payload(self.rounds, self.me);
        if payload.runs.map(|run| run.map(|run| run.count)) != src.map(|src| src.map(|src| src.count)) {
            return Err(Violation::Index { at: self.place(at), what: "payload" });
        }
        let own = Space::Stage(self.me as u16);
        let fits = |hole: Blocks| hole.space == own && payload.run_of(hole.first, hole.count).is_some();
        if !except.is_none_or(|hole| hole.count > 0 && fits(hole)) {
            return Err(Violation::Index { at: self.place(at), what: "exception" });
        }
        self.rounds += 1;
        self.awaited.fill(false);
        Ok(())
    }

    fn awaits(&mut self, at: StepRef, of: Members) -> Result<(), Violation> {
        let members = of.range(self.stage.members.len());
        if self.rounds == 0 || members.is_empty() || members.end > self.awaited.len() {
            return Err(Violation::Index { at: self.place(at), what: "member" });
        }
        self.awaited[members].fill(true);
        Ok(())
    }

    fn folds(
        &self,
        at: StepRef,
        of: Members,
        (first, count): (u32, u32),
        own: Option<Blocks>,
        dst: Blocks,
    ) -> Result<(), Violation> {
        let members = of.range(self.stage.members.len());
        if members.is_empty() || members.end > self.awaited.len() {
            return Err(Violation::Index { at: self.place(at), what: "member" });
        }
        if dst.count != count || own.is_some_and(|own| own.count != count || !members.contains(&self.me)) {
            return Err(Violation::Index { at: self.place(at), what: "block" });
        }
        if let Some(own) = own {
            let (own, dst) = (self.memory.physical(own), self.memory.physical(dst));
            let is_early = self.me < members.start + 2;
            if own.overlaps(&dst) && !(own == dst && is_early) {
                return Err(Violation::Operands { at: self.place(at) });
            }
        }
        for member in members.filter(|member| own.is_none() || *member != self.me) {
            self.reads(at, member, first, count)?;
        }
        Ok(())
    }

    /// Checks a step that reads blocks of a member's stage.
    fn reads(&self, at: StepRef, member: usize, first: u32, count: u32) -> Result<(), Violation> {
        match self.awaited.get(member) {
            None => return Err(Violation::Index { at: self.place(at), what: "member" }),
            Some(false) => return Err(Violation::NotAwaited { at: self.place(at), member: member as u16 }),
            Some(true) => {}
        }
        let round = self.rounds - 1;
        let holds = self.stage.payload(round, member).run_of(first, count).is_some();
        // A member with too few rounds is reported when it is checked itself.
        let rank = self.stage.members[member] as usize;
        let hole = self.exceptions[rank].get(round).copied().flatten();
        if !holds || hole.is_some_and(|hole| hole.first < first + count && first < hole.end()) {
            return Err(Violation::Unpublished { at: self.place(at), member: member as u16 });
        }
        Ok(())
    }
}
