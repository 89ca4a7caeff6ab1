//! The exchange of a host, and the calls that queue for it.

pub(crate) mod compiled;
mod queue;

use kolo_transport::StageMismatch;

use compiled::CompiledExchange;
use queue::Queue;

/// The exchange of the host that all ranks are on.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) compiled: CompiledExchange,
    queue: Queue,
}

/// A member called something else.
pub(crate) type Mismatch = StageMismatch;

impl Exchange {
    pub(crate) fn new(compiled: CompiledExchange) -> Self {
        Self { compiled, queue: Queue::default() }
    }
}
