//! Windows: the callers' own buffers, as far as the ranks of a host access each other's, from the point of view of
//! plans.
//!
//! A stage is memory of the runtime, into which a rank copies for others. A *window* is a member's own input, which
//! others read in place, or its own output, which others write. No byte is copied in between, but each rank has to know
//! where the buffers of all others lie, and when it may touch them. [`crate::plan`] gives the rules.

use serde::Serialize;

use crate::Algorithm;
use crate::generators::windows_of;
use crate::plan::{Placement, Plan};
use crate::stage::Members;
use crate::task::Task;

/// The members of a stage that have windows; the same on all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Windows {
    /// Members whose input others read.
    pub inputs: Option<Members>,
    /// Members whose output others write.
    pub outputs: Option<Members>,
}

/// The buffers of a call that lie where all ranks of a host can reach them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Symmetric {
    /// No buffers, or too few for either of the other variants.
    #[default]
    Nothing,
    /// The inputs of all ranks that have one.
    Inputs,
    /// The outputs of all ranks that have one, too.
    All,
}

/// The plans of one rank for calls that differ only in size and in which buffers are symmetric.
#[derive(Clone, Debug)]
pub struct Forms {
    task: Task,
    rank: u32,
    most: Windows,
    /// The plans without and with symmetric outputs, made when first asked for.
    plans: [Option<Plan>; 2],
}

/// A rank's account of its buffers to the others, before a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Whether input and output share memory.
    pub placement: Placement,
    /// Whether all ranks of the host can reach its contribution.
    pub input: bool,
    /// Whether all ranks of the host can reach its output.
    pub output: bool,
}

/// Decides which buffers count as symmetric for `task`, from what all ranks have shown of theirs, in rank order. It is
/// a pure function of facts that all ranks know, so all ranks choose alike.
///
/// # Errors
/// A sentence that names the rank whose buffer prevents a plan on windows.
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
    /// Makes the forms of `rank`.
    #[must_use]
    pub fn new(task: Task, rank: u32) -> Self {
        let task = task.with_symmetric(Symmetric::All);
        Self { most: Windows::of(&task).unwrap_or_default(), task, rank, plans: [None, None] }
    }

    /// Returns the task, with all buffers symmetric.
    #[must_use]
    pub const fn task(&self) -> &Task {
        &self.task
    }

    /// Returns the members whose buffers are reached into if all buffers are symmetric; no members if the task has no
    /// form on windows.
    #[must_use]
    pub const fn most(&self) -> Windows {
        self.most
    }

    /// Returns the windows that the plan uses if these buffers are symmetric; none if there is no such plan.
    #[must_use]
    pub fn windows(&self, symmetric: Symmetric) -> Windows {
        Windows::of(&self.task.clone().with_symmetric(symmetric)).unwrap_or_default()
    }

    /// Returns the members whose buffers are reached into in every form.
    #[must_use]
    pub fn fewest(&self) -> Windows {
        let inputs = self.windows(Symmetric::Inputs);
        if inputs.is_empty() { self.most } else { inputs }
    }

    /// Returns the plan for the symmetric buffers that [`agree`] has returned.
    ///
    /// # Panics
    /// If there is no such plan.
    pub fn plan(&mut self, symmetric: Symmetric) -> &Plan {
        let Self { task, rank, plans, .. } = self;
        let make = || Algorithm::Window.plan(&task.clone().with_symmetric(symmetric), *rank);
        plans[usize::from(symmetric == Symmetric::All)].get_or_insert_with(make)
    }
}

impl Windows {
    /// Returns the windows that a task with these symmetric buffers uses.
    ///
    /// # Errors
    /// If the task cannot be done on windows: a sentence that names the obstacle.
    pub fn of(task: &Task) -> Result<Self, String> {
        Algorithm::Window.supports(task).map(|()| windows_of(task))
    }

    /// Returns which buffer of this member, of `members`, the others need to reach and cannot.
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

    /// Returns how the ranks share the work, as text for users.
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

    /// Returns whether no member has a window.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.inputs.is_none() && self.outputs.is_none()
    }

    /// Returns whether others read the input of this member, of `members`.
    #[must_use]
    pub fn shows_input(&self, member: usize, members: usize) -> bool {
        self.inputs.is_some_and(|of| of.range(members).contains(&member))
    }

    /// Returns whether others write the output of this member, of `members`.
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
        // The input of a rank that contributes nothing is not needed, nor the output of a rank that is only read from.
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
        // All ranks reach the same verdict, whichever rank is the obstacle.
        let task = Task::new(Collective::AllToAll, 3).in_place().with_stages();
        let mut shown = [HERE; 3];
        in_place(&mut shown);
        assert!(agree(&task, shown.into_iter()).is_err());
    }
}
