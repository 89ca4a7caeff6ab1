//! Failures of a communicator, and giving it up.

use super::Communicator;
use crate::call::Waited;
use crate::drive;
use crate::error::{Error, Result};

/// # Failures
impl Communicator {
    /// Returns the error that the next call would give, if the communicator has failed. For programs that want to
    /// hear of a failure elsewhere while they are not inside a call. Makes no progress on operations. Returns at
    /// once while all is well. If a transport has failed and no call has found out why, it asks the other ranks, for
    /// four seconds at most.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        drive::standing_error(&self.shared)
    }

    /// Aborts the communicator: every call in progress on any rank, and every later one, fails with `reason`. Returns
    /// at once.
    pub fn abort(&self, reason: &str) {
        drive::abort(&self.shared, reason);
    }

    /// Fails in a child made by `fork`, as every call on the communicator does there, since it belongs to the process
    /// that made it. Never blocks, and costs as much as reading a word.
    ///
    /// # Errors
    /// [`Error::Usage`] in a child of the process that made the communicator.
    #[inline]
    pub fn check_process(&self) -> Result<()> {
        self.shared.check_process(|| Waited::Other(""))
    }
}
