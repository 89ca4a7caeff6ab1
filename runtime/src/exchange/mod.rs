//! The exchange of a host, and the calls that queue for it.

mod queue;
pub(crate) mod tiny;

use kolo_transport::StageMismatch;

use queue::Queue;
use tiny::Tiny;

/// The exchange of the host that all ranks are on.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) tiny: Tiny,
    queue: Queue,
}

/// A member called something else.
pub(crate) type Mismatch = StageMismatch;

impl Exchange {
    pub(crate) fn new(tiny: Tiny) -> Self {
        Self { tiny, queue: Queue::default() }
    }
}
