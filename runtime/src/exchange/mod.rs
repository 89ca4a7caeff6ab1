//! The exchange of a host, and the queue of started calls for it.

pub(crate) mod compiled;
mod queue;

use compiled::CompiledExchange;
use queue::Queue;

/// The exchange of the host, if all ranks are on one.
#[derive(Debug)]
pub(crate) struct Exchange {
    pub(crate) compiled: CompiledExchange,
    queue: Queue,
}

impl Exchange {
    pub(crate) fn new(compiled: CompiledExchange) -> Self {
        Self { compiled, queue: Queue::default() }
    }
}
