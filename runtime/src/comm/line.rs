//! Started calls on their way through the exchange of the host.
//!
//! They take their turns with the blocking calls, in the order of all calls. The engine keeps a slot for each, as it does for
//! the operations that it runs itself, so whoever waits, asks or forgets does it alike. Whoever drives moves the first one on.

use std::any::Any;
use std::collections::VecDeque;

use kolo_transport::{Error, ErrorKind};

use super::shared::Core;
use super::tiny::Passage;
use crate::call::Call;
use crate::engine::{Engine, Id};
use crate::reduce::Combine;

/// Started calls whose exchanges are not over, in the order of their turns.
#[derive(Debug, Default)]
pub(crate) struct Line(VecDeque<Started>);

#[derive(Debug)]
struct Started {
    id: Id,
    call: Call,
    passage: Passage,
}

// SAFETY: the raw pointers of a call name the caller's buffers, which by the contract of `Shared::start` stay valid and
// otherwise untouched until the call is done, whichever thread drives it.
unsafe impl Send for Started {}

impl Line {
    /// Whether the turns behind these calls will not come any more.
    pub(super) fn is_stuck(&self, engine: &Engine) -> bool {
        !self.0.is_empty() && engine.failure().is_some()
    }
}

impl Core {
    /// Whether a call takes the same way through the exchange whether it blocks or was started. Then both match each other.
    pub(super) fn lines_up(&self, call: &Call) -> bool {
        self.tiny.as_ref().is_some_and(|tiny| tiny.serves_started(call))
    }

    /// Takes a turn for a started call, and goes as far as it goes at once.
    ///
    /// # Safety
    /// As [`Shared::start`](super::Shared::start).
    pub(super) unsafe fn line_up(
        &mut self,
        call: &Call,
        combine: Combine,
        tag: u64,
        keep: Option<Box<dyn Any + Send>>,
    ) -> Id {
        let id = self.engine.admit(keep);
        let Some(tiny) = &mut self.tiny else { unreachable!("`lines_up` was asked") };
        let passage = tiny.enter(call, combine, tag);
        self.line.0.push_back(Started { id, call: call.clone(), passage });
        self.pass();
        id
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
        let front = self.line.0.front();
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
        let Some(tiny) = &mut self.tiny else { return false };
        let mut moved = false;
        // After a failure, callers may take their buffers back.
        while self.engine.failure().is_none()
            && let Some(Started { id, call, passage }) = self.line.0.front_mut()
        {
            let before = passage.position();
            // SAFETY: the promise made to `line_up` still holds, as the call is not done.
            match unsafe { tiny.advance(call, passage) } {
                Ok(true) => {
                    self.engine.conclude(*id);
                    self.line.0.pop_front();
                }
                Ok(false) => return moved || passage.position() > before,
                Err(found) => {
                    let kind = ErrorKind::Mismatch {
                        expected_tag: passage.tag(),
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
}
