//! All state of a communicator that calls change.

use std::collections::HashMap;
use std::sync::Arc;

use kolo_transport::ParkBy;

use super::awaited::Awaited;
use super::recorder::Recorder;
use crate::affinity::Processor;
use crate::call::{Call, Form};
use crate::control::StatusBoard;
use crate::dispatch::{Decision, Executor, Explanation, LastCall, Planner, decide};
use crate::engine::{Engine, Id};
use crate::error::Result;
use crate::exchange::Exchange;
use crate::gpu::GpuAccess;
use crate::symmetric::SymmetricBuffers;

/// All state that calls change. One thread at a time holds it: see [`Shared`](super::Shared).
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) planner: Planner,
    /// The exchange of the host, if all ranks are on one.
    pub(crate) exchange: Option<Exchange>,
    /// Symmetric buffers. There are none without an exchange.
    pub(crate) symmetric: SymmetricBuffers,
    pub(crate) gpu: GpuAccess,
    pub(crate) calls: Calls,
    pub(super) board: Arc<StatusBoard>,
    /// Started operations that tasks await, or that the program polls.
    pub(crate) awaited: Awaited,
    pub(crate) sleepers: Sleepers,
    pub(crate) processor: Processor,
    pub(crate) closed: bool,
}

/// Calls made so far.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) recorder: Recorder,
    pub(crate) last: LastCall,
    /// Number of the last collective that was started, from 1.
    pub(crate) sequence: u64,
    /// Number of the last send, receive or group of them, from 1.
    pub(crate) messages: u64,
    /// Splits and groups made so far.
    pub(crate) children: u64,
    /// Symmetric buffers made so far.
    pub(crate) allocations: u64,
    /// Number of uses of each list of ranks given to `group`.
    pub(crate) groups: HashMap<u64, u64>,
}

/// The threads that sleep without the core until a link or the exchange has something.
#[derive(Debug, Default)]
pub(crate) struct Sleepers {
    number: usize,
    /// How the last of them went to sleep.
    by: Option<ParkBy>,
    /// The operations for which they sleep.
    awaited: Vec<AwaitedAsleep>,
}

#[derive(Debug)]
struct AwaitedAsleep {
    id: Id,
    /// Whether the operation is over, and its thread has been told to wake.
    is_roused: bool,
}

impl Sleepers {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.number == 0
    }

    /// Adds a thread that is about to sleep, for this operation if for one.
    pub(crate) fn add(&mut self, awaited: Option<Id>, by: ParkBy) {
        self.number += 1;
        self.by = Some(by);
        self.awaited.extend(awaited.map(|id| AwaitedAsleep { id, is_roused: false }));
    }

    /// Returns whether there are threads that sleep on words.
    pub(crate) fn sleep_on_words(&self) -> bool {
        self.number > 0 && self.by == Some(ParkBy::Word)
    }

    /// Returns whether a thread has been told to wake, and is not awake yet.
    pub(crate) fn are_waking(&self) -> bool {
        self.awaited.iter().any(|awaited| awaited.is_roused)
    }

    /// Removes a thread that is awake again.
    pub(crate) fn remove(&mut self, awaited: Option<Id>) {
        self.number -= 1;
        self.awaited.retain(|asleep| Some(asleep.id) != awaited);
    }

    /// Notes the awaited operations that are over. Returns whether one was not noted before.
    #[inline]
    fn note_those_done(&mut self, engine: &Engine) -> bool {
        let mut any = false;
        for awaited in self.awaited.iter_mut().filter(|awaited| !awaited.is_roused) {
            awaited.is_roused = engine.is_done(awaited.id);
            any |= awaited.is_roused;
        }
        any
    }
}

impl Calls {
    /// Forgets the calls made so far.
    pub(crate) fn forget(&mut self) {
        *self = Self::none();
    }

    pub(super) fn none() -> Self {
        Self {
            recorder: Recorder::new(),
            last: LastCall::none(),
            sequence: 0,
            messages: 0,
            children: 0,
            allocations: 0,
            groups: HashMap::new(),
        }
    }
}

impl Core {
    /// Decides which executor runs a call.
    #[inline(always)]
    pub(crate) fn decide(&self, call: &Call, form: Form) -> Decision {
        decide(self.exchange.as_ref().map(|exchange| &exchange.compiled), &self.symmetric, call, form)
    }

    /// Returns the executor of a blocking call, with the reasons. Symmetric buffers do not count, unless a setting asks for
    /// them.
    pub(crate) fn explain(&self, call: &Call) -> Result<Explanation> {
        Ok(match (self.decide(call, Form::Blocking).executor, &self.exchange) {
            (Executor::Exchange { .. }, Some(exchange)) => {
                Explanation::Exchange(exchange.compiled.describe(call))
            }
            _ => {
                let choice = Box::new(self.planner.explain(call, self.symmetric.asked_for(call))?);
                match self.planner.file_for(call) {
                    Some(words) => Explanation::File(words, choice),
                    None => Explanation::Plan(choice),
                }
            }
        })
    }

    /// Advances everything that is outstanding, for a bounded time. Returns whether anything moved.
    pub(crate) fn progress(&mut self) -> bool {
        let passed = self.exchange.as_mut().is_some_and(|exchange| exchange.progress(&mut self.engine));
        let moved = self.engine.progress() || passed;
        while let Some(sequence) = self.engine.next_ended() {
            self.end_call(sequence);
        }
        self.awaited.look(&self.engine);
        self.rouse();
        moved
    }

    /// [Advances](Self::progress) started operations, if there are any. Calls use it while they wait for something else.
    #[inline]
    pub(crate) fn progress_others(&mut self) -> bool {
        self.engine.outstanding() > 0 && self.progress()
    }

    /// Wakes threads that sleep although another thread has ended the operation for which they sleep.
    #[inline]
    pub(crate) fn rouse(&mut self) {
        if self.sleepers.note_those_done(&self.engine) {
            self.engine.rouse();
        }
    }

    /// Tells the links and the exchange that the owner is awake, unless threads of it still sleep.
    pub(crate) fn disarm(&mut self) {
        if self.sleepers.is_empty() {
            self.engine.disarm();
            if let Some(exchange) = &mut self.exchange {
                exchange.compiled.disarm();
            }
        }
    }

    /// Notes the end of a collective.
    #[inline]
    pub(crate) fn end_call(&mut self, sequence: u64) {
        self.calls.recorder.end(sequence);
        self.board.finish(sequence);
    }

    /// Returns the ranks that an outstanding operation waits for.
    pub(crate) fn waiting_for(&self, id: Id) -> Vec<u32> {
        if self.engine.is_elsewhere(id) { self.exchange_waits_for() } else { self.engine.waiting_for(id) }
    }

    /// Returns the ranks for which open operations wait: those that tasks await or the program polls. A receive from any
    /// source does not count, since it does not need any one rank.
    pub(crate) fn awaited_wait_for(&self) -> Vec<u32> {
        let needs_all = |id: &Id| !self.engine.is_done(*id) && !self.engine.is_from_any(*id);
        let open = self.awaited.operations().filter(needs_all);
        let mut ranks: Vec<u32> = open.flat_map(|id| self.waiting_for(id)).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Returns the ranks that the current exchange waits for.
    pub(crate) fn exchange_waits_for(&self) -> Vec<u32> {
        self.exchange.as_ref().map_or_else(Vec::new, |exchange| exchange.compiled.waiting_for())
    }

    /// Aborts everything. When this returns, nothing touches the callers' memory any more.
    pub(crate) fn abort(&mut self, cause: &kolo_transport::Error) {
        self.close(cause);
        if let Some(exchange) = &mut self.exchange {
            exchange.compiled.withdraw();
        }
    }

    /// Ends the engine and the exchange where no operation is outstanding, without any effect on calls of other ranks.
    pub(crate) fn close(&mut self, cause: &kolo_transport::Error) {
        self.engine.abort(cause);
        if let Some(exchange) = &mut self.exchange {
            exchange.settle();
        }
    }
}
