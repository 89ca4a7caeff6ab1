//! Started calls in the exchange of the host.
//!
//! They take turns with the blocking calls, in the order of all calls, and so do blocking calls on GPU memory. The
//! engine keeps a slot for each of them, as for the operations that it runs itself, so waiting, polling and forgetting
//! are the same for both. The driving thread advances the first one.

use std::collections::VecDeque;
use std::sync::atomic::AtomicU32;

use kolo_transport::{Error, ErrorKind};

use super::Exchange;
use super::compiled::ExchangeCursor;
use crate::call::Call;
use crate::engine::{Engine, Id, Owner};
use crate::gpu::{Bounce, Bounces};
use crate::reduce::Combine;

/// Started calls whose exchanges are not over, in the order of their turns, and calls after their exchange whose
/// results are being copied to a GPU.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: VecDeque<Started>,
    storing: Vec<(Id, Box<Bounce>)>,
    bounces: Bounces,
    /// Number of waiting calls on GPU memory without a bounce buffer.
    unloaded: usize,
}

#[derive(Debug)]
struct Started {
    id: Id,
    /// The call; its buffers are copies if the caller's memory is a GPU's, once it has a bounce buffer.
    call: Call,
    cursor: ExchangeCursor,
    /// Copies to and from a GPU. In a box, since most calls have none and are moved often.
    bounce: Option<Box<Bounce>>,
}

// SAFETY: the raw pointers of a call name the caller's buffers. By the contract of `Exchange::start` these stay valid
// and otherwise untouched until the call is done, whichever thread drives it.
unsafe impl Send for Started {}

impl Exchange {
    /// Lets in a started call, which has `turn` or takes the next one, and advances it as far as possible. A call on GPU
    /// memory first copies its input, and then takes its turn like any other, so ranks with host memory see no difference.
    ///
    /// # Errors
    /// If a GPU's driver refuses. The turn is then not taken, so the communicator cannot be used any more.
    ///
    /// # Safety
    /// Until the operation is done or the communicator has been aborted, the buffers of the call are valid and nobody
    /// else touches them.
    pub(crate) unsafe fn start(
        &mut self,
        engine: &mut Engine,
        call: &Call,
        combine: Combine,
        tag: u64,
        turn: Option<u64>,
        keep: &mut Option<Owner>,
    ) -> Result<Id, Error> {
        let mut bounce = None;
        let mut call = call.clone();
        if call.gpus.is_some() && Bounces::has_room(self.queue.bounce_bytes()) {
            // SAFETY: the caller's promise; the copies are settled before the communicator is given up.
            bounce = Some(unsafe { self.queue.bounces.load(&mut call) }?);
        }
        self.queue.unloaded += usize::from(call.gpus.is_some());
        let id = engine.admit(keep.take());
        let cursor = self.compiled.enter(&call, combine, tag, turn);
        // A turn that the call had before may come before those of calls that were started meanwhile.
        let at = self.queue.waiting.partition_point(|earlier| earlier.cursor.turn < cursor.turn);
        self.queue.waiting.insert(at, Started { id, call, cursor, bounce });
        self.progress(engine);
        Ok(id)
    }

    /// Returns whether a call with this turn waits for a blocking call of another thread, which drives until its call
    /// is over.
    pub(crate) fn is_behind_a_thread(&self, turn: u64) -> bool {
        !self.compiled.has_turn(turn) && !self.queue_has_turn()
    }

    /// Returns whether the current turn is that of a started call, which the driving thread advances.
    pub(crate) fn queue_has_turn(&self) -> bool {
        self.queue.waiting.front().is_some_and(|front| self.compiled.has_turn(front.cursor.turn))
    }

    /// Returns whether the driving thread moves a started call on: the call has the turn at hand, or a GPU copies for it.
    pub(crate) fn queue_is_moving(&self) -> bool {
        self.queue_has_turn() || self.is_copying()
    }

    /// Returns whether there is something for a thread that is about to sleep, which may have a turn. Events for
    /// another thread's turn must not keep it awake, since it would hold the core that the other thread needs.
    pub(crate) fn has_arrived(&mut self, turn: Option<u64>) -> bool {
        self.is_turn_of(turn) && self.compiled.has_arrived()
    }

    /// Returns whether the current turn is that of a started call, or this one.
    fn is_turn_of(&self, turn: Option<u64>) -> bool {
        self.queue_has_turn() || turn.is_some_and(|turn| self.compiled.has_turn(turn))
    }

    /// Announces the sleep of a thread that may have a turn. Returns the bell and its value, unless the exchange waits for
    /// nobody or belongs to another thread's turn: its events would keep this thread awake.
    pub(crate) fn arm(&mut self, turn: Option<u64>) -> Option<(*const AtomicU32, u32)> {
        if self.is_turn_of(turn) { self.compiled.arm() } else { None }
    }

    /// Returns whether the turns behind the started calls will never come.
    pub(crate) fn is_stuck(&self, engine: &Engine) -> bool {
        !self.queue.waiting.is_empty() && engine.failure().is_some()
    }

    /// Returns whether copies are under way whose end must be polled.
    pub(crate) fn is_copying(&self) -> bool {
        let loading = self.queue.waiting.front().and_then(|first| first.bounce.as_ref());
        !self.queue.storing.is_empty() || loading.is_some_and(|bounce| !bounce.is_idle())
    }

    /// Returns the bounce buffers, whose copies are counted.
    pub(crate) const fn bounces(&self) -> &Bounces {
        &self.queue.bounces
    }

    /// Waits until no copy touches the callers' memory any more, and ignores errors of copies.
    pub(crate) fn settle(&mut self) {
        let loading = self.queue.waiting.iter_mut().filter_map(|started| started.bounce.as_mut());
        let storing = self.queue.storing.iter_mut().map(|(_, bounce)| bounce);
        loading.chain(storing).for_each(|bounce| bounce.settle());
    }

    /// Advances started calls, each by one exchange at most. Returns whether anything moved.
    pub(crate) fn progress(&mut self, engine: &mut Engine) -> bool {
        let mut moved = !self.queue.storing.is_empty() && self.queue.take_stored(engine);
        // After a failure, callers may take their buffers back.
        while engine.failure().is_none() {
            if self.queue.unloaded > 0
                && let Err(error) = self.queue.load_next()
            {
                engine.note_failure(error);
                return true;
            }
            let Some(first) = self.queue.waiting.front_mut() else { break };
            if let Some(bounce) = &mut first.bounce {
                match bounce.poll() {
                    Ok(true) => {}
                    Ok(false) => return moved,
                    Err(error) => {
                        engine.note_failure(error);
                        return true;
                    }
                }
            }
            let before = first.cursor.position();
            // SAFETY: the promise to `start` still holds, since the call is not done.
            match unsafe { self.compiled.advance(&first.call, &mut first.cursor) } {
                Ok(true) => {
                    if let Some(Started { id, bounce, .. }) = self.queue.waiting.pop_front() {
                        self.queue.passed(engine, id, bounce);
                    }
                }
                Ok(false) => return moved || first.cursor.position() > before,
                Err(found) => {
                    let kind = ErrorKind::Mismatch {
                        expected_tag: first.cursor.tag,
                        tag: found.tag,
                        expected_len: 0,
                        len: 0,
                    };
                    let member = Some(found.member as u32);
                    engine.note_failure(Error::new(kind, "shm", member, "it made a different call"));
                }
            }
            moved = true;
        }
        moved
    }
}

impl Queue {
    /// Returns the bytes of the bounce buffers of calls that are not over.
    fn bounce_bytes(&self) -> usize {
        let waiting = self.waiting.iter().filter_map(|started| started.bounce.as_deref());
        waiting.chain(self.storing.iter().map(|(_, bounce)| &**bounce)).map(Bounce::bytes).sum()
    }

    /// Gives bounce buffers to the call whose turn is next, and to those behind it as long as there is room.
    fn load_next(&mut self) -> Result<(), Error> {
        let mut taken = self.bounce_bytes();
        for (at, started) in self.waiting.iter_mut().enumerate() {
            if at > 0 && !Bounces::has_room(taken) {
                break;
            }
            if started.call.gpus.is_some() {
                // SAFETY: the promise to `start` still holds, since the call is not done.
                let bounce = unsafe { self.bounces.load(&mut started.call) }?;
                taken += bounce.bytes();
                started.bounce = Some(bounce);
                self.unloaded -= 1;
            }
        }
        Ok(())
    }

    /// Handles a call after its last exchange: it is done, or its result must first be copied to its place.
    fn passed(&mut self, engine: &mut Engine, id: Id, bounce: Option<Box<Bounce>>) {
        let Some(mut bounce) = bounce else { return engine.conclude(id) };
        // SAFETY: the promise to `start`: the call is not done before its copies are.
        match unsafe { bounce.store() } {
            Ok(bytes) => self.bounces.stored_bytes += bytes as u64,
            Err(error) => engine.note_failure(error),
        }
        self.storing.push((id, bounce));
        self.take_stored(engine);
    }

    /// Concludes calls whose results are in place. Returns whether there were any.
    fn take_stored(&mut self, engine: &mut Engine) -> bool {
        let mut any = false;
        let mut at = 0;
        while engine.failure().is_none() && at < self.storing.len() {
            match self.storing[at].1.poll() {
                Ok(false) => at += 1,
                Ok(true) => {
                    let (id, bounce) = self.storing.remove(at);
                    self.bounces.give_back(*bounce);
                    engine.conclude(id);
                    any = true;
                }
                Err(error) => {
                    engine.note_failure(error);
                    any = true;
                }
            }
        }
        any
    }
}

#[cfg(test)]
mod tests {
    use kolo_transport::Needs;

    use crate::Cluster;

    #[test]
    fn only_the_thread_with_the_turn_sleeps_on_the_bell() {
        Cluster::local(2, |comm| {
            comm.barrier().expect("all are there");
            let mut core = comm.shared.core();
            let exchange = core.exchange.as_mut().expect("the ranks share a host");
            let turn = exchange.compiled.take_turn();
            let needs = Needs::All;
            let mut is_over = exchange.compiled.exchange(1, &[1], needs).expect("the same call");
            assert!(exchange.arm(None).is_none(), "the publications of the others would wake it");
            assert!(is_over || exchange.arm(Some(turn)).is_some());
            let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
            while !is_over {
                assert!(std::time::Instant::now() < deadline, "the other rank has not come");
                std::thread::yield_now();
                is_over = exchange.compiled.exchange(1, &[1], needs).expect("the same call");
            }
            exchange.compiled.disarm();
            exchange.compiled.end_exchange();
            exchange.compiled.end_turn();
        })
        .expect("the cluster");
    }
}
