//! Windows: buffers of the callers themselves that the ranks of a host reach into, as plans see them.
//!
//! A stage is memory of the runtime's, into which a rank copies for others. A *window* is a member's own input, which others read
//! where it lies, or its own output, which others write. No byte is copied in between, but ranks have to know where the buffers of
//! all others lie, and when these may be touched. [`crate::plan`] gives the rules.

use serde::Serialize;

use crate::stage::Members;

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

impl Windows {
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
