//! Static checks of windows: no rank touches a member's buffer before it has awaited that member, while another rank
//! uses the same block, or after the buffer's owner is done.
//!
//! Ranks learn of each other's progress from rounds. If a rank published k rounds before a step, any rank that has
//! awaited its round k knows that the step is done (rounds count from 0). Two steps of different ranks are therefore in
//! order if one rank knows of the other's step before its own. The end of a plan counts as a step that touches all
//! windows of its rank.

use std::ops::Range;

use crate::memory::Memory;
use crate::plan::{Action, Blocks, Plan, Space, StepRef};
use crate::stage::{Members, Stage};

use super::stage::Groups;
use super::violation::{Place, Violation};
use super::wiring::steps;

/// A step that touches a block of a window.
#[derive(Clone, Copy)]
struct Access {
    /// The member that owns the block, and the physical block.
    cell: (usize, Space, u32),
    write: bool,
    /// The member that touches it.
    by: usize,
    at: StepRef,
    /// Rounds that the touching member has published before this step.
    rounds: usize,
    /// The knowledge of the touching member at this step: an index into [`Program::known`].
    known: usize,
}

/// The accesses of one member's steps to windows.
struct Program<'a> {
    plans: &'a [Plan],
    stage: &'a Stage,
    me: usize,
    accesses: Vec<Access>,
    /// The number of rounds that each member is known to have published, before the first `Await` and after each.
    known: Vec<Vec<usize>>,
    rounds: usize,
}

pub(crate) fn check(plans: &[Plan], groups: &Groups) -> Result<(), Violation> {
    for members in &groups.members {
        let stage = plans[members[0] as usize].stage.as_ref();
        let Some(stage) = stage else { continue };
        if stage.windows.is_empty() {
            members.iter().try_for_each(|rank| no_windows(&plans[*rank as usize]))?;
            continue;
        }
        let programs: Vec<Program<'_>> =
            (0..members.len()).map(|me| Program::of(plans, stage, me)).collect::<Result<_, _>>()?;
        apart(plans, stage, &programs)?;
        outlived(plans, stage, &programs)?;
    }
    Ok(())
}

/// Checks that a plan without windows touches none.
fn no_windows(plan: &Plan) -> Result<(), Violation> {
    for (at, action) in steps(plan) {
        let window = action.reads().into_iter().flatten().find_map(|blocks| match blocks.space {
            Space::Window(member) => Some(member),
            _ => None,
        });
        let spread = matches!(action, Action::Spread { .. }).then_some(0);
        if let Some(member) = window.or(spread) {
            return Err(Violation::NotAWindow { at: Place::of(plan, at), member });
        }
    }
    Ok(())
}

/// Checks that two members that touch the same block, of which one writes, do so one after the other.
fn apart(plans: &[Plan], stage: &Stage, programs: &[Program<'_>]) -> Result<(), Violation> {
    let mut all: Vec<Access> = programs.iter().flat_map(|program| program.accesses.iter().copied()).collect();
    all.sort_unstable_by_key(|access| (access.cell, access.by, access.at.step));
    let before = |first: &Access, then: &Access| programs[then.by].known[then.known][first.by] > first.rounds;
    for cell in all.chunk_by(|a, b| a.cell == b.cell).filter(|cell| cell[0].by != cell[cell.len() - 1].by) {
        for write in cell.iter().filter(|access| access.write) {
            let others = cell.iter().filter(|other| other.by != write.by);
            if let Some(other) =
                others.into_iter().find(|other| !before(other, write) && !before(write, other))
            {
                let (owner, space, block) = write.cell;
                let place = |access: &Access| Place::of(&plans[stage.members[access.by] as usize], access.at);
                return Err(Violation::Hazard {
                    writer: place(write),
                    other: place(other),
                    block: format!("{} of rank {}", Blocks::one(space, block), stage.members[owner]),
                });
            }
        }
    }
    Ok(())
}

/// Checks that each rank that touches a member's window is known to be done before that member is.
fn outlived(plans: &[Plan], stage: &Stage, programs: &[Program<'_>]) -> Result<(), Violation> {
    for access in programs.iter().flat_map(|program| &program.accesses) {
        let owner = access.cell.0;
        let last = &programs[owner].known[programs[owner].known.len() - 1];
        if access.by != owner && last[access.by] <= access.rounds {
            let plan = &plans[stage.members[access.by] as usize];
            return Err(Violation::Outlived { at: Place::of(plan, access.at), owner: stage.members[owner] });
        }
    }
    Ok(())
}

impl<'a> Program<'a> {
    fn of(plans: &'a [Plan], stage: &'a Stage, me: usize) -> Result<Self, Violation> {
        let known = vec![vec![0; stage.members.len()]];
        let mut program = Self { plans, stage, me, accesses: Vec::new(), known, rounds: 0 };
        let plan = program.plan(me);
        for (at, action) in steps(plan) {
            if at.lane != 0 {
                return Err(Violation::StageLane { at: Place::of(plan, at), other_lane: 0 });
            }
            if action.sends_to().or(action.receives_from()).is_some() {
                return Err(Violation::Index { at: Place::of(plan, at), what: "channel beside windows" });
            }
            program.step(at, action)?;
        }
        Ok(program)
    }

    fn plan(&self, member: usize) -> &'a Plan {
        &self.plans[self.stage.members[member] as usize]
    }

    fn place(&self, at: StepRef) -> Place {
        Place::of(self.plan(self.me), at)
    }

    fn step(&mut self, at: StepRef, action: &Action) -> Result<(), Violation> {
        for (blocks, write) in
            action.reads().map(|read| (read, false)).into_iter().chain([(action.writes(), true)])
        {
            match blocks {
                Some(Blocks { space: Space::Window(owner), first, count }) => {
                    self.reads(at, usize::from(owner), first, count)?;
                    self.copies(at, action, usize::from(owner), (first, count))?;
                }
                Some(blocks) if matches!(blocks.space, Space::Input | Space::Output) => {
                    self.touch(at, self.me, Memory::of(self.plan(self.me)).physical(blocks), write);
                }
                _ => {}
            }
        }
        match *action {
            Action::Publish { .. } => {
                // Only a member that has heard of all windows knows whether the plan can run.
                let known = &self.known[self.known.len() - 1];
                if let Some(member) = known.iter().position(|rounds| self.rounds == 1 && *rounds == 0) {
                    return Err(Violation::NotAwaited { at: self.place(at), member: member as u16 });
                }
                self.rounds += 1;
            }
            Action::Await { of } => {
                let mut known = self.known[self.known.len() - 1].clone();
                known[of.range(self.stage.members.len())].fill(self.rounds);
                self.known.push(known);
            }
            Action::Spread { of, first, count, to, at: target } => {
                self.spreads(at, (of.range(self.stage.members.len()), first), count, (to, target))?;
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks a read from a window: only a copy may do so, and its target must be elsewhere.
    fn copies(
        &self,
        at: StepRef,
        action: &Action,
        owner: usize,
        (first, count): (u32, u32),
    ) -> Result<(), Violation> {
        let Action::Copy { dst, .. } = *action else {
            return Err(Violation::Index { at: self.place(at), what: "window" });
        };
        let memory = Memory::of(self.plan(owner));
        if owner == self.me && memory.contribution(first, count).overlaps(&memory.physical(dst)) {
            return Err(Violation::Operands { at: self.place(at) });
        }
        Ok(())
    }

    fn spreads(
        &mut self,
        at: StepRef,
        (of, first): (Range<usize>, u32),
        count: u32,
        (to, target): (Members, u32),
    ) -> Result<(), Violation> {
        let to = to.range(self.stage.members.len());
        if of.is_empty() || to.is_empty() || count == 0 {
            return Err(Violation::Index { at: self.place(at), what: "member" });
        }
        for owner in of.clone() {
            self.reads(at, owner, first, count)?;
        }
        for owner in to {
            self.reaches(at, owner, self.stage.windows.shows_output(owner, self.stage.members.len()))?;
            let memory = Memory::of(self.plan(owner));
            if target.checked_add(count).is_none_or(|end| end > memory.output_blocks()) {
                return Err(Violation::Index { at: self.place(at), what: "block" });
            }
            let dst = memory.physical(Blocks::range(Space::Output, target, count));
            let src = memory.contribution(first, count);
            if of.contains(&owner) && src != dst && src.overlaps(&dst) {
                return Err(Violation::Operands { at: self.place(at) });
            }
            self.touch(at, owner, dst, true);
        }
        Ok(())
    }

    /// Adds a step that reads blocks of a member's input.
    fn reads(&mut self, at: StepRef, owner: usize, first: u32, count: u32) -> Result<(), Violation> {
        self.reaches(at, owner, self.stage.windows.shows_input(owner, self.stage.members.len()))?;
        let memory = Memory::of(self.plan(owner));
        if !memory.contributes()
            || first.checked_add(count).is_none_or(|end| end > memory.contribution_blocks())
        {
            return Err(Violation::Index { at: self.place(at), what: "block" });
        }
        self.touch(at, owner, memory.contribution(first, count), false);
        Ok(())
    }

    /// Checks that this rank may touch a buffer of a member; `is_window` says whether it is a window. A rank may always
    /// touch its own.
    fn reaches(&self, at: StepRef, owner: usize, is_window: bool) -> Result<(), Violation> {
        let member = owner as u16;
        if owner >= self.stage.members.len() {
            return Err(Violation::Index { at: self.place(at), what: "member" });
        }
        if owner == self.me {
            return Ok(());
        }
        if !is_window {
            return Err(Violation::NotAWindow { at: self.place(at), member });
        }
        if self.rounds == 0 || self.known[self.known.len() - 1][owner] < self.rounds {
            return Err(Violation::NotAwaited { at: self.place(at), member });
        }
        Ok(())
    }

    fn touch(&mut self, at: StepRef, owner: usize, blocks: Blocks, write: bool) {
        let (by, rounds, known) = (self.me, self.rounds, self.known.len() - 1);
        self.accesses.extend((blocks.first..blocks.end()).map(|block| Access {
            cell: (owner, blocks.space, block),
            write,
            by,
            at,
            rounds,
            known,
        }));
    }
}
