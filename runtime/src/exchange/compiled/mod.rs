//! Collectives inside one host as exchanges, in which every rank sees the payloads of all ranks.
//!
//! All ranks publish their contributions, wait for those that they need, and compute their own result from them. One
//! exchange costs one cache line per rank and one wait, where messages would cost a wait per round. With more ranks
//! than processors, that saves more than repeating the reduction on every rank costs, and data for several ranks is
//! copied in once. A longer payload takes several exchanges, part by part; a long all-reduce divides the reduction
//! among the ranks ([`two_shot`]). The reduction runs in rank order, or along the balanced tree of the canonical order,
//! so all ranks get the same bits.

mod cursor;
mod judge;
mod limits;
mod payload;
mod places;
mod two_shot;

use std::cell::RefCell;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

use kolo_collectives::plan::Collective;
use kolo_transport::shm::{Board, Exchange, Payload, Slot};
use kolo_transport::{Needs, StageMismatch};

use cursor::Cuts;
pub(crate) use cursor::ExchangeCursor;
use judge::Way;
use limits::Served;
use places::{Outcome, Phase, Places};

use crate::call::{Call, Forced};
use crate::reduce::{Combine, DefaultFloats};
use crate::wait::Turnstile;

/// The exchange area of the host, with the facts that its collectives need.
#[derive(Debug)]
pub(crate) struct CompiledExchange {
    area: Exchange,
    rank: usize,
    members: usize,
    /// Longest contribution that takes the exchange, if a setting says so.
    bytes_max: Option<usize>,
    facts: HostFacts,
    canonical: bool,
    cuts: Cuts,
    /// Calls that must take a plan.
    forced: Forced,
    /// Collectives whose long calls take plans that use the stage.
    staged: [bool; Collective::ALL.len()],
    /// The resulting limits for each collective.
    served: [Served; Collective::ALL.len()],
    step: Step,
    /// Time until which busy processes are assumed beside this rank.
    beside_others_until: Option<Instant>,
    #[cfg(test)]
    exchanges: u32,
    /// Turns taken so far. Threads of one rank may call while another thread's exchange is not over.
    turns: u64,
    /// Turns that are over. The exchange belongs to the call with the next one.
    turns_over: u64,
    /// Turnstile for threads that wait for another thread's turn to end.
    turnstile: Arc<Turnstile>,
    /// Partial results of the canonical tree.
    scratch: RefCell<Vec<u8>>,
    places: Places,
}

/// Facts about a host and the ranks on it, which are the same on all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostFacts {
    /// Whether buffers may be GPU memory, on any rank.
    pub(crate) has_gpus: bool,
    /// Whether there are more ranks than processors.
    pub(crate) shares_processors: bool,
    /// Longest vector that every rank reduces as a whole, if a setting says so.
    pub(crate) one_shot_bytes: Option<usize>,
}

/// Progress of the current exchange.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// No exchange is under way.
    Idle,
    /// The exchange waits until this rank may publish this many bytes.
    Queued(usize),
    /// The exchange waits for other ranks to publish.
    Published,
}

impl CompiledExchange {
    pub(crate) fn new(
        area: Exchange,
        rank: u32,
        bytes_max: Option<usize>,
        facts: HostFacts,
        canonical: bool,
        forced: Forced,
        takes_stages: impl Fn(Collective, usize) -> bool,
    ) -> Self {
        let mut exchange = Self {
            members: area.members(),
            rank: rank as usize,
            bytes_max,
            cuts: Cuts::new(area.members(), facts.shares_processors, facts.one_shot_bytes),
            facts,
            canonical,
            forced,
            staged: Default::default(),
            served: Default::default(),
            step: Step::Idle,
            beside_others_until: None,
            #[cfg(test)]
            exchanges: 0,
            turns: 0,
            turns_over: 0,
            turnstile: Arc::default(),
            scratch: RefCell::default(),
            places: Places::default(),
            area,
        };
        exchange.staged = exchange.staged(takes_stages);
        exchange.served = exchange.served();
        exchange
    }

    /// Lets in a call that the exchange serves. The call has `turn`, or takes the next one.
    #[inline(always)]
    pub(crate) fn enter(
        &mut self,
        call: &Call,
        combine: Combine,
        tag: u64,
        turn: Option<u64>,
    ) -> ExchangeCursor {
        let mut cursor = ExchangeCursor::new(call, combine, tag, self.members, self.cuts);
        cursor.turn = turn.unwrap_or_else(|| self.take_turn());
        cursor.streams = self.streams(call, cursor.block);
        if self.may_read_in_place(call.collective, cursor.block) {
            cursor.in_place.phase = Phase::Fresh;
        }
        cursor
    }

    /// Takes the next turn. Turns follow the order of calls.
    pub(crate) fn take_turn(&mut self) -> u64 {
        self.turns += 1;
        self.turns
    }

    /// Returns whether a turn has come.
    pub(crate) fn has_turn(&self, turn: u64) -> bool {
        turn == self.turns_over + 1
    }

    /// Returns the number of finished turns, and the turnstile at which to sleep until there are more.
    pub(crate) fn turns_over(&self) -> (u64, &Arc<Turnstile>) {
        (self.turns_over, &self.turnstile)
    }

    /// Ends the current turn.
    #[inline]
    pub(crate) fn end_turn(&mut self) {
        self.turns_over += 1;
        if self.turns != self.turns_over {
            self.turnstile.tell(self.turns_over);
        }
    }

    /// Ends the current turn of a call that also has the next one, so nobody else is told.
    pub(crate) fn pass_turn(&mut self) {
        self.turns_over += 1;
    }

    /// Advances an exchange of `words`, of equal length on all ranks, as far as possible. Returns true once the
    /// payloads that this rank needs are there. The caller has the turn, reads [`heard`](Self::heard) and then calls
    /// [`end_exchange`](Self::end_exchange).
    pub(crate) fn exchange(&mut self, tag: u64, words: &[u8], needs: Needs) -> Result<bool, StageMismatch> {
        if !matches!(self.step, Step::Published) {
            let fill = (!words.is_empty()).then_some(|mut slot: Slot<'_>| slot.write(0, words));
            if !self.area.is_free(words.len())? {
                self.step = Step::Queued(words.len());
                return Ok(false);
            }
            self.area.publish(tag, words.len(), needs, fill);
            self.step = Step::Published;
        }
        self.area.poll()
    }

    /// Returns the payload of a member in a complete exchange.
    pub(crate) fn heard(&self, member: usize) -> Payload<'_> {
        self.area.payload(member)
    }

    /// Ends a complete exchange.
    pub(crate) fn end_exchange(&mut self) {
        self.area.finish();
        self.step = Step::Idle;
        #[cfg(test)]
        {
            self.exchanges += 1;
        }
    }

    /// Returns the number of exchanges so far.
    #[cfg(test)]
    pub(crate) fn exchanges_made(&self) -> u32 {
        self.exchanges
    }

    /// Advances a call by one exchange at most. Returns whether the call is over.
    ///
    /// # Safety
    /// The call is the one that entered, and its buffers are valid.
    #[inline]
    pub(crate) unsafe fn advance(
        &mut self,
        call: &Call,
        cursor: &mut ExchangeCursor,
    ) -> Result<bool, StageMismatch> {
        if !self.has_turn(cursor.turn) {
            return Ok(false);
        }
        let _floats = DefaultFloats::enter();
        if cursor.in_place.is_possible() {
            // SAFETY: the caller's promise, passed on.
            match unsafe { self.advance_in_place(call, cursor)? } {
                Outcome::Waits => return Ok(false),
                Outcome::Over => {
                    self.end_turn();
                    return Ok(true);
                }
                Outcome::Declined => {}
            }
        }
        if !matches!(self.step, Step::Published) {
            let own = self.given(call);
            let given = if own.is_some() { cursor.published() } else { 0 };
            if !self.area.is_free(given)? {
                self.step = Step::Queued(given);
                return Ok(false);
            }
            let begun = cursor.in_place.watch.start();
            // SAFETY: the caller's promise, passed on.
            unsafe {
                match (cursor.shots, own) {
                    (Some(shots), Some(own)) => self.publish_shots(call, cursor, shots, own),
                    _ => {
                        self.publish(call, cursor, own);
                        self.keep(call, cursor, self.contribution(call));
                    }
                }
            }
            cursor.in_place.watch.stop(begun);
            self.step = Step::Published;
        }
        if !self.area.poll()? {
            return Ok(false);
        }
        let begun = cursor.in_place.watch.start();
        // SAFETY: the caller's promise, passed on; all payloads that are needed have been published.
        unsafe {
            match cursor.shots {
                Some(shots) if self.is_at_once(cursor, shots) => {
                    self.take(call, cursor);
                    cursor.end_with_this();
                }
                Some(shots) => self.take_shots(call, cursor, shots),
                None => self.take(call, cursor),
            }
        }
        cursor.in_place.watch.stop(begun);
        self.end_exchange();
        let is_over = cursor.is_over_after_this();
        if is_over {
            if cursor.in_place.phase == Phase::InParts {
                self.note(call, cursor, Way::InParts);
            }
            self.end_turn();
        }
        Ok(is_over)
    }

    /// Notes until when busy processes are assumed beside this rank.
    pub(crate) fn note_others(&mut self, until: Option<Instant>) {
        self.beside_others_until = until;
    }

    fn is_beside_others(&self) -> bool {
        self.beside_others_until.is_some_and(|until| Instant::now() < until)
    }

    /// Returns whether the current turn has reason to look.
    pub(crate) fn has_arrived(&mut self) -> bool {
        match self.step {
            Step::Idle => false,
            Step::Queued(given) => !matches!(self.area.is_free(given), Ok(false)),
            Step::Published => !matches!(self.area.poll(), Ok(false)),
        }
    }

    /// Returns the words that the ranks of the host show each other outside of exchanges.
    pub(crate) fn board(&self) -> &Board {
        self.area.board()
    }

    /// Returns whether this rank has published in the current exchange.
    pub(crate) fn is_published(&self) -> bool {
        matches!(self.step, Step::Published)
    }

    /// Returns whether an exchange is under way.
    pub(crate) fn is_under_way(&self) -> bool {
        !matches!(self.step, Step::Idle)
    }

    /// Returns the ranks that have not yet published the awaited payload.
    pub(crate) fn waiting_for(&self) -> Vec<u32> {
        let given = if let Step::Queued(given) = self.step { given } else { 0 };
        self.area.waiting_for(given).into_iter().map(|member| member as u32).collect()
    }

    pub(crate) fn arm(&mut self) -> Option<(*const AtomicU32, u32)> {
        if matches!(self.step, Step::Idle) {
            return None;
        }
        let (word, value) = self.area.arm_thread();
        Some((std::ptr::from_ref(word), value))
    }

    /// Returns the ranks that must wake this one, after the last look before a sleep.
    pub(crate) fn awaited(&self) -> NonZeroU32 {
        self.area.awaited()
    }

    pub(crate) fn disarm(&mut self) {
        self.area.disarm();
    }
}
