//! Started calls on their way through the exchange of the host.
//!
//! They take their turns with the blocking calls, in the order of all calls. The engine keeps a slot for each, as it does for
//! the operations that it runs itself, so whoever waits, asks or forgets does it alike. Whoever drives moves the first one on.

use std::any::Any;
use std::collections::VecDeque;

use kolo_transport::{Error, ErrorKind};

use super::bounce::Bounce;
use super::shared::Core;
use super::tiny::Passage;
use crate::call::Call;
use crate::engine::{Engine, Id};
use crate::reduce::Combine;

/// Started calls whose exchanges are not over, in the order of their turns; and those behind them whose results are on their
/// way to a GPU.
#[derive(Debug, Default)]
pub(crate) struct Line {
    waiting: VecDeque<Started>,
    storing: Vec<(Id, Box<Bounce>)>,
}

#[derive(Debug)]
struct Started {
    id: Id,
    /// On copies, if the caller's memory is a GPU's.
    call: Call,
    passage: Passage,
    /// In a box, since most calls have none and are moved often.
    bounce: Option<Box<Bounce>>,
}

// SAFETY: the raw pointers of a call name the caller's buffers, which by the contract of `Shared::start` stay valid and
// otherwise untouched until the call is done, whichever thread drives it.
unsafe impl Send for Started {}

impl Line {
    /// Whether the turns behind these calls will not come any more.
    pub(super) fn is_stuck(&self, engine: &Engine) -> bool {
        !self.waiting.is_empty() && engine.failure().is_some()
    }

    /// Whether copies are under way that nobody tells of unless asked.
    pub(super) fn is_copying(&self) -> bool {
        let loading = self.waiting.front().and_then(|first| first.bounce.as_ref());
        !self.storing.is_empty() || loading.is_some_and(|bounce| !bounce.is_idle())
    }

    /// Waits until no copy touches the callers' memory any more; what became of them is no news.
    pub(super) fn settle(&mut self) {
        let loading = self.waiting.iter_mut().filter_map(|started| started.bounce.as_mut());
        loading.chain(self.storing.iter_mut().map(|(_, bounce)| bounce)).for_each(|bounce| bounce.settle());
    }
}

impl Core {
    /// Whether a call takes the same way through the exchange whether it blocks or was started. Then both match each other.
    pub(super) fn lines_up(&self, call: &Call) -> bool {
        self.tiny.as_ref().is_some_and(|tiny| tiny.serves(call))
    }

    /// Takes a turn for a started call, and goes as far as it goes at once. One on a GPU's memory is copied first, and then
    /// takes its turn like any other: ranks whose memory is the host's see no difference.
    ///
    /// # Errors
    /// If a GPU's driver refuses; the turn is not taken then, so the communicator is of no use any more.
    ///
    /// # Safety
    /// As [`Shared::start`](super::Shared::start).
    pub(super) unsafe fn line_up(
        &mut self,
        call: &Call,
        (combine, tag): (Combine, u64),
        (rank, members): (u32, u32),
        keep: Option<Box<dyn Any + Send>>,
    ) -> Result<Id, Error> {
        let mut bounce = None;
        let mut call = call.clone();
        if call.gpus.is_some() {
            let taken = bounce.insert(Box::new(self.bounces.pop().unwrap_or_default()));
            call = taken.prepare(&call, rank, members)?;
            // SAFETY: the promise to this function; the copies are settled before the communicator is given up.
            self.gpu_counters.loaded_bytes += unsafe { taken.load() }? as u64;
        }
        let id = self.engine.admit(keep);
        let Some(tiny) = &mut self.tiny else { unreachable!("`lines_up` was asked") };
        let passage = tiny.enter(&call, combine, tag);
        self.line.waiting.push_back(Started { id, call, passage, bounce });
        self.pass();
        Ok(id)
    }

    /// One bounded turn of all that is outstanding. Returns whether anything moved.
    pub(crate) fn turn(&mut self) -> bool {
        let passed = self.pass();
        self.engine.turn() || passed
    }

    /// Whether a call with this turn waits for a blocking call of another thread, which drives until it is over.
    pub(super) fn is_behind_a_thread(&self, turn: u64) -> bool {
        self.tiny.as_ref().is_some_and(|tiny| !tiny.has_turn(turn)) && !self.line_has_turn()
    }

    /// Whether a started call waits for a blocking call of another thread.
    pub(super) fn line_is_behind_a_thread(&self, id: Id) -> bool {
        self.engine.is_elsewhere(id) && !self.line_has_turn()
    }

    /// Whether the turn at hand is that of a started call: whoever drives moves it on.
    fn line_has_turn(&self) -> bool {
        let front = self.line.waiting.front();
        front.is_some_and(|front| self.tiny.as_ref().is_some_and(|tiny| tiny.has_turn(front.passage.turn())))
    }

    /// Whether the exchange has something for a thread that is about to sleep, with this turn if it has one. What is for
    /// another thread's turn must not keep it awake: it would hold the core that the other thread wants.
    pub(super) fn has_arrived(&mut self, turn: Option<u64>) -> bool {
        let is_ours = self.line_has_turn();
        self.tiny.as_mut().is_some_and(|tiny| {
            (is_ours || turn.is_some_and(|turn| tiny.has_turn(turn))) && tiny.has_arrived()
        })
    }

    /// Ranks that something outstanding waits for.
    pub(crate) fn waiting_for(&self, id: Id) -> Vec<u32> {
        match &self.tiny {
            Some(tiny) if self.engine.is_elsewhere(id) => tiny.waiting_for(),
            _ => self.engine.waiting_for(id),
        }
    }

    /// Moves started calls on, by one exchange each at most. Returns whether anything moved.
    fn pass(&mut self) -> bool {
        let mut moved = !self.line.storing.is_empty() && self.take_stored();
        // After a failure, callers may take their buffers back.
        while self.engine.failure().is_none()
            && let Some(first) = self.line.waiting.front_mut()
            && let Some(tiny) = &mut self.tiny
        {
            if let Some(bounce) = &mut first.bounce {
                match bounce.poll() {
                    Ok(true) => {}
                    Ok(false) => return moved,
                    Err(error) => {
                        self.engine.note_failure(error);
                        return true;
                    }
                }
            }
            let before = first.passage.position();
            // SAFETY: the promise made to `line_up` still holds, as the call is not done.
            match unsafe { tiny.advance(&first.call, &mut first.passage) } {
                Ok(true) => {
                    if let Some(Started { id, bounce, .. }) = self.line.waiting.pop_front() {
                        self.passed(id, bounce);
                    }
                }
                Ok(false) => return moved || first.passage.position() > before,
                Err(found) => {
                    let kind = ErrorKind::Mismatch {
                        expected_tag: first.passage.tag(),
                        tag: found.tag,
                        expected_len: 0,
                        len: 0,
                    };
                    let member = Some(found.member as u32);
                    self.engine.note_failure(Error::new(kind, "shm", member, "it called something else"));
                }
            }
            moved = true;
        }
        moved
    }

    /// A call has been through its exchanges: done, or to be copied to where its result belongs.
    fn passed(&mut self, id: Id, bounce: Option<Box<Bounce>>) {
        let Some(mut bounce) = bounce else { return self.engine.conclude(id) };
        // SAFETY: the promise made to `line_up`: the call is not done before its copies are.
        match unsafe { bounce.store() } {
            Ok(bytes) => self.gpu_counters.stored_bytes += bytes as u64,
            Err(error) => self.engine.note_failure(error),
        }
        self.line.storing.push((id, bounce));
        self.take_stored();
    }

    /// Concludes calls whose results are where they belong. Returns whether there were any.
    fn take_stored(&mut self) -> bool {
        let mut any = false;
        let mut at = 0;
        while self.engine.failure().is_none() && at < self.line.storing.len() {
            match self.line.storing[at].1.poll() {
                Ok(false) => at += 1,
                Ok(true) => {
                    let (id, bounce) = self.line.storing.remove(at);
                    self.give_back(*bounce);
                    self.engine.conclude(id);
                    any = true;
                }
                Err(error) => {
                    self.engine.note_failure(error);
                    any = true;
                }
            }
        }
        any
    }
}
