//! The members without which an agreement has ended, by place in the communicator.

/// Members whose votes a member lacked when it gave up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Missing {
    /// Members that live and have not voted.
    pub(crate) late: Vec<u32>,
    /// Members that do not answer.
    pub(crate) silent: Vec<u32>,
    /// The member that collects the votes, if it is another one. It alone knows who is late, perhaps itself.
    pub(crate) collector: Option<u32>,
}

impl Missing {
    /// Returns the members that are known to live.
    pub(crate) fn alive(&self) -> Vec<u32> {
        self.late.iter().copied().chain(self.collector).collect()
    }
}
