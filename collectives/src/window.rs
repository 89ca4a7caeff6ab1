//! Windows: buffers of the callers themselves that the ranks of a host reach into, as plans see them.
//!
//! A stage is memory of the runtime's, into which a rank copies for others. A *window* is a member's own input, which others read
//! where it lies, or its own output, which others write. No byte is copied in between, but ranks have to know where the buffers of
//! all others lie, and when these may be touched. [`crate::plan`] gives the rules.

use serde::Serialize;

use crate::Algorithm;
use crate::generators::windows_of;
use crate::plan::Placement;
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

/// What one rank tells the others of its buffers before a call.
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
pub fn agree(task: &Task, shown: &[Shown]) -> Result<Symmetric, String> {
    let with = |symmetric| task.clone().with_symmetric(symmetric);
    for (rank, shown) in shown.iter().enumerate() {
        if shown.placement != task.placement {
            let task = Task { placement: shown.placement, ..with(Symmetric::All) };
            Algorithm::Window.supports(&task).map_err(|why| format!("rank {rank}: {why}"))?;
        }
    }
    let mut refusal = Ok(Symmetric::Nothing);
    for symmetric in [Symmetric::All, Symmetric::Inputs] {
        let lacks = |windows: Windows| {
            let lacks = |(rank, shown): (usize, &Shown)| {
                Some((rank, windows.lacks(rank, task.world_size as usize, shown)?))
            };
            shown.iter().enumerate().find_map(lacks)
        };
        match Windows::of(&with(symmetric)).map(lacks) {
            Ok(None) => return Ok(symmetric),
            Ok(Some((rank, what))) => {
                refusal = Err(format!("rank {rank}'s {what} is not in a symmetric buffer"))
            }
            Err(why) if refusal.is_ok() => refusal = Err(why),
            Err(_) => {}
        }
    }
    refusal
}

impl Windows {
    /// Those that a task with such buffers takes.
    ///
    /// # Errors
    /// If it cannot be done on windows: a sentence that names the obstacle.
    pub fn of(task: &Task) -> Result<Self, String> {
        Algorithm::Window.supports(task).map(|()| windows_of(task))
    }

    /// The fewest that a task takes, whichever of its buffers are symmetric.
    ///
    /// # Errors
    /// As [`of`](Self::of).
    pub fn fewest(task: &Task) -> Result<Self, String> {
        let with = |symmetric| Self::of(&task.clone().with_symmetric(symmetric));
        with(Symmetric::Inputs).or_else(|_| with(Symmetric::All))
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
        agree(&Task::new(collective, 3).with_root(1).with_stages(), &shown)
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
        assert!(agree(&task, &shown).is_err());
    }
}
