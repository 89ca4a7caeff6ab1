//! Windows: buffers of the callers themselves that the ranks of a host reach into, as plans see them.
//!
//! A stage is memory of the runtime's, into which a rank copies for others. A *window* is a member's own input, which others read
//! where it lies, or its own output, which others write. No byte is copied in between, but ranks have to know where the buffers of
//! all others lie, and when these may be touched. [`crate::plan`] gives the rules.

use serde::Serialize;

use crate::Algorithm;
use crate::generators::windows_of;
use crate::plan::{Placement, Plan};
use crate::stage::Members;
use crate::task::Task;

/// Which members of a stage have windows. The same on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Windows {
    /// Members whose input others read.
    pub inputs: Option<Members>,
    /// Members whose output others write.
    pub outputs: Option<Members>,
}

/// Which buffers of a call lie where all ranks of a host reach them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Symmetric {
    /// None, or not all that one of the others takes.
    #[default]
    Nothing,
    /// The inputs of all ranks that have one.
    Inputs,
    /// Their outputs, too.
    All,
}

/// The plans of one rank for calls that differ only in size, and in which buffers are symmetric.
#[derive(Clone, Debug)]
pub struct Forms {
    task: Task,
    rank: u32,
    most: Windows,
    /// Without symmetric outputs, and with; once they were asked for.
    plans: [Option<Plan>; 2],
}

/// A rank's account of its buffers for the others, before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whether they share memory.
    pub placement: Placement,
    /// Whether all reach its contribution.
    pub input: bool,
    /// Whether all reach its output.
    pub output: bool,
}

/// How far the buffers of all ranks, in their order, are symmetric for `task`; or why that does not do. A pure function of what all
/// ranks know, so that all choose alike.
///
/// # Errors
/// A sentence that names the rank whose buffer stands in the way.
pub fn agree(task: &Task, shown: impl Iterator<Item = Shown> + Clone) -> Result<Symmetric, String> {
    let with = |symmetric| task.clone().with_symmetric(symmetric);
    let ranks = || shown.clone().enumerate();
    for (rank, Shown { placement, .. }) in ranks().filter(|(_, shown)| shown.placement != task.placement) {
        let task = Task { placement, ..with(Symmetric::All) };
        Algorithm::Window.supports(&task).map_err(|why| format!("rank {rank}: {why}"))?;
    }
    let members = task.world_size as usize;
    let mut refusal = Ok(Symmetric::Nothing);
    for symmetric in [Symmetric::All, Symmetric::Inputs] {
        let lacking = |windows: Windows| {
            ranks().find_map(|(rank, shown)| Some((rank, windows.lacks(rank, members, &shown)?)))
        };
        let windows =
            if task.symmetric == symmetric { Windows::of(task) } else { Windows::of(&with(symmetric)) };
        match windows.map(lacking) {
            Ok(None) => return Ok(symmetric),
            Ok(Some((rank, what))) => {
                refusal = Err(format!("rank {rank}'s {what} is not in a symmetric buffer"));
            }
            Err(why) if refusal.is_ok() => refusal = Err(why),
            Err(_) => {}
        }
    }
    refusal
}

impl Forms {
    /// Those of `rank`.
    #[must_use]
    pub fn new(task: Task, rank: u32) -> Self {
        let task = task.with_symmetric(Symmetric::All);
        Self { most: Windows::of(&task).unwrap_or_default(), task, rank, plans: [None, None] }
    }

    /// The task, with all buffers symmetric.
    #[must_use]
    pub const fn task(&self) -> &Task {
        &self.task
    }

    /// Members whose buffers are reached into where all of them are symmetric; none if there is no form at all.
    #[must_use]
    pub const fn most(&self) -> Windows {
        self.most
    }

    /// Those where such buffers are symmetric; nobody's if there is no form.
    #[must_use]
    pub fn windows(&self, symmetric: Symmetric) -> Windows {
        Windows::of(&self.task.clone().with_symmetric(symmetric)).unwrap_or_default()
    }

    /// Members whose buffers are reached into in any case.
    #[must_use]
    pub fn fewest(&self) -> Windows {
        let inputs = self.windows(Symmetric::Inputs);
        if inputs.is_empty() { self.most } else { inputs }
    }

    /// The plan that has been [agreed](agree) on.
    ///
    /// # Panics
    /// If there is no form for it.
    pub fn plan(&mut self, symmetric: Symmetric) -> &Plan {
        let Self { task, rank, plans, .. } = self;
        let make = || Algorithm::Window.plan(&task.clone().with_symmetric(symmetric), *rank);
        plans[usize::from(symmetric == Symmetric::All)].get_or_insert_with(make)
    }
}

impl Windows {
    /// Those that a task with such buffers takes.
    ///
    /// # Errors
    /// If it cannot be done on windows: a sentence that names the obstacle.
    pub fn of(task: &Task) -> Result<Self, String> {
        Algorithm::Window.supports(task).map(|()| windows_of(task))
    }

    /// Which buffer of a member, of so many, would have to be reached and is not.
    #[must_use]
    pub fn lacks(&self, member: usize, members: usize, shown: &Shown) -> Option<&'static str> {
        if self.shows_input(member, members) && !shown.input {
            Some("input")
        } else if self.shows_output(member, members) && !shown.output {
            Some("output")
        } else {
            None
        }
    }

    /// How the work is shared out, for users.
    #[must_use]
    pub const fn how(&self) -> &'static str {
        match (self.inputs, self.outputs) {
            (_, None) => "each rank reads what it needs from the others' buffers",
            (Some(Members::All), Some(Members::All)) => {
                "each rank reduces a slice of all buffers into all buffers"
            }
            (Some(Members::All), _) => "each rank reduces a slice of all buffers into the root's",
            _ => "each rank copies a slice of the root's buffer into all others",
        }
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.inputs.is_none() && self.outputs.is_none()
    }

    /// Whether others read the input of this member, of so many.
    #[must_use]
    pub fn shows_input(&self, member: usize, members: usize) -> bool {
        self.inputs.is_some_and(|of| of.range(members).contains(&member))
    }

    /// Whether others write the output of this member, of so many.
    #[must_use]
    pub fn shows_output(&self, member: usize, members: usize) -> bool {
        self.outputs.is_some_and(|of| of.range(members).contains(&member))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Collective;

    const HERE: Shown = Shown { placement: Placement::OutOfPlace, input: true, output: true };

    fn agreed(collective: Collective, change: impl FnOnce(&mut [Shown])) -> Result<Symmetric, String> {
        let mut shown = [HERE; 3];
        change(&mut shown);
        agree(&Task::new(collective, 3).with_root(1).with_stages(), shown.into_iter())
    }

    #[test]
    fn what_all_have_is_agreed_on() {
        for collective in
            [Collective::AllReduce, Collective::Reduce, Collective::Broadcast, Collective::AllToAll]
        {
            assert_eq!(agreed(collective, |_| ()), Ok(Symmetric::All));
        }
        // Nobody needs the input of a rank that gives nothing, or the output of one that only reads.
        assert_eq!(agreed(Collective::Broadcast, |shown| shown[0].input = false), Ok(Symmetric::All));
        assert_eq!(agreed(Collective::Reduce, |shown| shown[2].output = false), Ok(Symmetric::All));
        assert_eq!(agreed(Collective::AllGather, |shown| shown[2].output = false), Ok(Symmetric::All));
        // A broadcast has a form for private outputs.
        assert_eq!(agreed(Collective::Broadcast, |shown| shown[2].output = false), Ok(Symmetric::Inputs));
    }

    #[test]
    fn what_is_missing_is_named() {
        let refusal =
            |collective, change: fn(&mut [Shown])| agreed(collective, change).expect_err("it is missing");
        assert!(refusal(Collective::AllReduce, |shown| shown[2].input = false).contains("rank 2's input"));
        assert!(refusal(Collective::AllReduce, |shown| shown[0].output = false).contains("rank 0's output"));
        assert!(refusal(Collective::Reduce, |shown| shown[1].output = false).contains("rank 1's output"));
        assert!(refusal(Collective::Broadcast, |shown| shown[1].input = false).contains("rank 1's input"));
        assert!(refusal(Collective::Scan, |_| ()).contains("scan"));
        let in_place = |shown: &mut [Shown]| shown[2].placement = Placement::InPlace;
        assert!(refusal(Collective::AllToAll, in_place).contains("rank 2: on symmetric buffers, all_to_all"));
        // All ranks hear the same, whoever it is.
        let task = Task::new(Collective::AllToAll, 3).in_place().with_stages();
        let mut shown = [HERE; 3];
        in_place(&mut shown);
        assert!(agree(&task, shown.into_iter()).is_err());
    }
}
