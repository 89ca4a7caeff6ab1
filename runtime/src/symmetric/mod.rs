//! Collectives on symmetric buffers inside one host: the plan `window`, run over the exchange of the host.
//!
//! # A call
//! 1. **Locations.** The first round of the plan is one exchange, in which every rank says where its buffers lie: in
//!    which symmetric allocation and at which offset, or in none. All ranks see the same locations, so all agree on the
//!    plan, or that there is none ([`agree`](kolo_collectives::window::agree)).
//! 2. **Work.** Between rounds, each rank does the work of its plan by itself ([`bind`]), and checks abort and deadline
//!    between pieces.
//! 3. **End.** The plan ends with another exchange. Only then are outputs complete, and only then may inputs change.
//!    The checker proves that a rank whose buffers others touch awaits them there.
//!
//! # Access
//! 1. Between the exchange of locations and the end of the call, the other ranks read this rank's input. They write
//!    only those pages of its output of which the call owns every byte ([`BufferLocations::pages_within`]), so nothing
//!    else lies there. Nobody writes the two ends of the vector that are not in such pages on every rank until the end;
//!    each rank computes them for itself.
//! 2. The caller has lent these bytes to the call for its duration, mutably where they are written. The locations are
//!    published with release and read with acquire, and so is the end: writes by other ranks happen after the caller's
//!    own before the call, and before those after it.
//! 3. A call that fails once its locations are published may leave other ranks at work. Before it returns, private
//!    copies replace the pages that they may write ([`Exposure::withdraw`]), so that nobody writes the caller's memory
//!    any more. The shared pages are freed: they then read as zeroes.
//! 4. A rank that fails may have freed or reused its memory while others read it. It first says so with the word of
//!    [`CompiledExchange::withdraw`], and a rank that finds this word set after its last read does not publish, so
//!    nobody's call succeeds with such data. The communicator is therefore aborted before a call is dropped that is not
//!    over. A rank that leaves in good order does not set the word, because others may still read the root's memory.
//! 5. Allocations and offsets from other ranks are checked against the mappings before use. Payload has no invariants.

mod bind;
mod locations;
mod memory;
mod work;

use std::io::{self, Write};
use std::process;
use std::sync::Arc;

use kolo_collectives::plan::{Collective, Placement};
use kolo_collectives::window::{Forms, Symmetric, Windows, agree};
use kolo_collectives::{Algorithm, Task};
use kolo_transport::{Needs, StageMismatch};

use crate::call::{Call, Counts, Forced};
use crate::exchange::compiled::CompiledExchange;
use crate::reduce::Combine;
use bind::bind;
use locations::{BufferLocations, LOCATIONS_BYTES, Location};
pub(crate) use memory::{Allocation, OwnMemory};
use work::{Combiner, Job};

/// The symmetric allocations of a communicator.
#[derive(Debug)]
pub(crate) struct SymmetricBuffers {
    rank: usize,
    members: usize,
    canonical: bool,
    /// Calls for which an algorithm was named.
    forced: Forced,
    /// Least length of calls that look for symmetric buffers, if a setting gives it.
    bytes_min: Option<usize>,
    /// Allocations in the order in which they were made. The order, and which ones are kept, are the same on all ranks.
    allocations: Vec<Arc<Allocation>>,
    /// Forms of the plans of the calls made so far.
    forms: Vec<Forms>,
    /// Form of the last call that looked, and its outcome.
    last: Option<(usize, Result<Symmetric, String>)>,
    scratch: Vec<u8>,
    /// Bytes of a page.
    page: usize,
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct SymmetricCall<'a> {
    call: &'a Call,
    /// Index of the call's forms.
    forms: usize,
    combiner: Combiner,
    tag: u64,
    pub(crate) turn: u64,
    /// Whether the call also has the next turn, which it needs if it is declined.
    keeps_next: bool,
    phase: Phase,
    locations: BufferLocations,
    /// Whether this rank has published its locations.
    is_located: bool,
    /// `None` once the call is over.
    exposure: Option<Exposure>,
}

#[derive(Debug)]
enum Phase {
    Locating,
    /// The call is before the second round, or in it.
    Working(Box<Job>),
}

/// Result of a step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The call waits for other ranks.
    Waits,
    /// The call did some work, and has more.
    Works,
    /// The call is done.
    Done,
    /// The call must take another path, on all ranks.
    Declined,
}

/// Reason why a call cannot go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A member made another call.
    Mismatch(StageMismatch),
    /// A member named a buffer that it does not have.
    Corrupt {
        /// That member.
        member: usize,
    },
}

/// Pages of this rank that other ranks may write.
#[derive(Debug)]
pub(crate) struct Exposure {
    memory: Arc<OwnMemory>,
    offset: usize,
    len: usize,
}

impl Exposure {
    /// Takes the pages back from the other ranks: see the module's rules for access, 3. If the system has no memory for
    /// the copies, the process ends, since the caller's memory would keep changing under it.
    fn withdraw(&self) {
        let Self { memory, offset, len } = self;
        if let Err(error) = memory.shared().take_private(*offset, *len) {
            let _ = writeln!(
                io::stderr(),
                "kolo: a call on a symmetric buffer failed, and its {len} bytes cannot be taken back from the other \
                 ranks, which may still write them: {error}; the process ends"
            );
            process::abort();
        }
    }
}

impl SymmetricBuffers {
    pub(crate) fn new(
        rank: u32,
        members: u32,
        bytes_min: Option<usize>,
        canonical: bool,
        forced: Forced,
    ) -> Self {
        Self {
            forced,
            rank: rank as usize,
            members: members as usize,
            canonical,
            bytes_min,
            allocations: Vec::new(),
            forms: Vec::new(),
            last: None,
            scratch: Vec::new(),
            page: rustix::param::page_size(),
        }
    }

    /// Returns the least length of the longer buffer with which a call checks whether it can go this way. Unless a
    /// setting gives it, it is the length from which this way wins although it takes two exchanges: see
    /// docs/measurements.md, "Symmetric and private buffers".
    fn bytes_min(&self, collective: Collective) -> usize {
        self.bytes_min.unwrap_or(match collective {
            Collective::AllReduce | Collective::Reduce => 32 << 10,
            Collective::Broadcast => 128 << 10,
            _ => 256 << 10,
        })
    }

    /// Returns the allocations that this rank still uses.
    pub(crate) fn live(&self) -> Vec<u64> {
        let live = self.allocations.iter().filter(|allocation| allocation.is_live());
        live.map(|allocation| allocation.id()).collect()
    }

    /// Adds an allocation, and drops the mappings of unused ones. All ranks do so alike.
    pub(crate) fn add(&mut self, allocation: Allocation, is_used: impl Fn(u64) -> bool) {
        self.allocations.retain(|allocation| is_used(allocation.id()));
        self.allocations.push(Arc::new(allocation));
    }

    /// Returns whether a call begins with an exchange of locations. The answer is the same on all ranks.
    #[inline]
    pub(crate) fn considers(&self, call: &Call) -> bool {
        !self.allocations.is_empty() && self.looks(call)
    }

    /// Answers the same where there are symmetric buffers. Not inlined, to keep short calls without them quick.
    #[inline(never)]
    fn looks(&self, call: &Call) -> bool {
        use Collective as C;
        if let Some(named) = self.forced.first(call) {
            return named == Algorithm::Window;
        }
        if self.forced.covers(call) {
            // A file has a plan for it.
            return false;
        }
        let Counts::Even(count) = call.counts else { return false };
        let blocks = if call.collective.has_block_per_rank() { self.members } else { 1 };
        !matches!(call.collective, C::Gather | C::Scan | C::ExScan | C::Barrier)
            && count * call.data_type.size() * blocks >= self.bytes_min(call.collective)
    }

    /// Takes a turn for a call that was [considered](Self::considers).
    pub(crate) fn enter<'a>(
        &mut self,
        exchange: &mut CompiledExchange,
        call: &'a Call,
        combine: Combine,
        tag: u64,
    ) -> SymmetricCall<'a> {
        let is_it = |forms: &Forms| {
            let Task { collective, root, placement, .. } = *forms.task();
            (collective, root, placement) == (call.collective, call.root, call.placement)
        };
        let forms = self.forms.iter().position(is_it).unwrap_or_else(|| {
            self.forms.push(self.forms(call));
            self.forms.len() - 1
        });
        let (locations, exposure) = self.locations(call, self.forms[forms].most());
        let combiner = Combiner::new(call, combine, self.members, self.canonical);
        SymmetricCall {
            call,
            forms,
            combiner,
            tag,
            turn: exchange.take_turn(),
            keeps_next: false,
            phase: Phase::Locating,
            locations,
            is_located: false,
            exposure,
        }
    }

    /// Advances a call to its next wait, or by one piece of work.
    ///
    /// # Safety
    /// The buffers of the call are valid, and lent to it until it is done, declined or dropped.
    pub(crate) unsafe fn advance(
        &mut self,
        exchange: &mut CompiledExchange,
        running: &mut SymmetricCall<'_>,
    ) -> Result<Step, Fault> {
        loop {
            match &mut running.phase {
                Phase::Locating => {
                    if !exchange.has_turn(running.turn) {
                        return Ok(Step::Waits);
                    }
                    let all = exchange.exchange(running.tag, &running.locations.encode(), Needs::All);
                    running.is_located = exchange.is_published();
                    if !all.map_err(Fault::Mismatch)? {
                        return Ok(Step::Waits);
                    }
                    let Some(job) = self.agreed(exchange, running)? else {
                        running.exposure = None;
                        if running.keeps_next {
                            exchange.pass_turn();
                        } else {
                            exchange.end_turn();
                        }
                        return Ok(Step::Declined);
                    };
                    running.phase = Phase::Working(job);
                }
                Phase::Working(job) => {
                    // SAFETY: all ranks have said where their buffers lie, and the checker has proved for such plans
                    // who touches which memory.
                    if !unsafe { job.step(&running.combiner, &mut self.scratch) } {
                        return Ok(Step::Works);
                    }
                    if !exchange.is_published() && exchange.is_withdrawn() {
                        // The news of the failure ends the call.
                        return Ok(Step::Waits);
                    }
                    if !exchange
                        .exchange(running.tag, &[], job.needs.unwrap_or(Needs::Nobody))
                        .map_err(Fault::Mismatch)?
                    {
                        return Ok(Step::Waits);
                    }
                    exchange.end_exchange();
                    if running.keeps_next {
                        exchange.pass_turn();
                    }
                    exchange.end_turn();
                    running.exposure = None;
                    // SAFETY: the work of all ranks on this rank's buffers is over, so they are its own again.
                    unsafe { job.patch() };
                    return Ok(Step::Done);
                }
            }
        }
    }

    /// Returns this rank's work once all ranks have told the locations of their buffers; `None` if these serve no plan.
    fn agreed(
        &mut self,
        exchange: &mut CompiledExchange,
        running: &mut SymmetricCall<'_>,
    ) -> Result<Option<Box<Job>>, Fault> {
        let said = |member| {
            let mut locations = [0; LOCATIONS_BYTES];
            exchange.heard(member).read(0, &mut locations);
            BufferLocations::decode(&locations)
        };
        let located: Vec<BufferLocations> = (0..self.members).map(said).collect();
        exchange.end_exchange();
        let forms = &mut self.forms[running.forms];
        let agreed = match located.iter().position(|locations| locations.is_on_gpu) {
            Some(member) => Err(format!("rank {member}'s memory is GPU memory")),
            None => agree(forms.task(), located.iter().map(BufferLocations::shown)),
        };
        let symmetric = agreed.as_ref().ok().copied();
        self.last = Some((running.forms, agreed));
        let Some(symmetric) = symmetric else { return Ok(None) };
        let at = (&self.allocations[..], self.rank, self.page);
        let mut job = bind(at, running.call, forms.plan(symmetric), &located)?;
        running.combiner.factors(&located);
        job.prepare(&running.combiner, &mut self.scratch);
        Ok(Some(job))
    }

    /// Returns the forms of a call as this rank makes it.
    fn forms(&self, call: &Call) -> Forms {
        let task = Task::new(call.collective, self.members as u32).with_root(call.root).with_stages();
        Forms::new(Task { placement: call.placement, ..task }, self.rank as u32)
    }

    /// Returns this rank's description of its buffers, and the pages that other ranks may therefore write.
    fn locations(&self, call: &Call, windows: Windows) -> (BufferLocations, Option<Exposure>) {
        let mut locations = BufferLocations {
            factor: call.factor().unwrap_or_default(),
            is_in_place: call.placement == Placement::InPlace,
            is_on_gpu: call.gpus.is_some(),
            ..BufferLocations::default()
        };
        if locations.is_on_gpu {
            return (locations, None);
        }
        let (input, output) = call.bytes();
        if windows.shows_input(self.rank, self.members) {
            // In place, a call may name only its output.
            let at = if call.input.is_null() { call.output.cast_const() } else { call.input };
            locations.input = self.locate(at, input).map(|(_, location)| location);
        }
        let mut exposure = None;
        if windows.shows_output(self.rank, self.members)
            && let Some((allocation, location)) = self.locate(call.output, output)
        {
            let memory = allocation.own();
            locations.output = Some(location);
            locations.owns_last_page = location.offset as usize + output >= memory.used();
            let pages = locations.pages_within(location, output, self.page);
            let (offset, len) =
                (location.offset as usize + pages.start, pages.len().next_multiple_of(self.page));
            exposure = (len > 0).then(|| Exposure { memory: Arc::clone(memory), offset, len });
        }
        (locations, exposure)
    }

    /// Returns the allocation in which memory lies, and its location there.
    fn locate(&self, at: *const u8, len: usize) -> Option<(&Allocation, Location)> {
        self.allocations.iter().find_map(|allocation| {
            let offset = allocation.offset_of(at, len)?;
            Some((&**allocation, Location { allocation: allocation.id(), offset: offset as u64 }))
        })
    }

    /// Names a buffer of this rank that every plan needs others to reach, but that is not symmetric.
    fn lacks(&self, call: &Call) -> Option<&'static str> {
        let forms = self.forms(call);
        let (locations, _) = self.locations(call, forms.most());
        forms.fewest().lacks(self.rank, self.members, &locations.shown())
    }

    /// Returns the facilities that a call can count on if KOLO_ALGO asks for this way.
    pub(crate) fn asked_for(&self, call: &Call) -> Symmetric {
        let is_asked_for = self.forced.covers(call) && self.considers(call);
        if is_asked_for && self.lacks(call).is_none() { Symmetric::All } else { Symmetric::Nothing }
    }

    /// Describes whether a call may go this way, or why not; `None` if there are no symmetric buffers.
    pub(crate) fn describe(&self, call: &Call) -> Option<String> {
        if self.allocations.is_empty() {
            return None;
        }
        let last = match &self.last {
            None => String::new(),
            Some((forms, Ok(symmetric))) => {
                format!("; the last such call: {}", self.forms[*forms].windows(*symmetric).how())
            }
            Some((_, Err(why))) => format!("; the last such call was not symmetric: {why}"),
        };
        if !self.considers(call) {
            let least = self.bytes_min(call.collective);
            return Some(match self.forced.first(call) {
                Some(_) => "not symmetric: KOLO_ALGO names an algorithm for this call".to_owned(),
                None => format!(
                    "not symmetric: only some collectives with even counts, of {least} bytes or more (KOLO_SYMMETRIC_BYTES)"
                ),
            });
        }
        Some(match self.lacks(call) {
            Some(what) => format!("not symmetric: the {what} is not in a symmetric buffer{last}"),
            None => format!("symmetric: by window, if the other ranks' buffers are symmetric{last}"),
        })
    }
}

impl SymmetricCall<'_> {
    /// Takes the next turn too, for the case that the call is declined. No other call may have taken it.
    pub(crate) fn keep_next(&mut self, exchange: &mut CompiledExchange) -> u64 {
        self.keeps_next = true;
        exchange.take_turn()
    }
}

impl Drop for SymmetricCall<'_> {
    /// Gives up a call that is not over, after the communicator has been aborted. When this returns, nobody else writes
    /// its buffers.
    fn drop(&mut self) {
        if let Some(exposure) = self.exposure.as_ref().filter(|_| self.is_located) {
            exposure.withdraw();
        }
    }
}

const _: () = assert!(LOCATIONS_BYTES <= kolo_transport::shm::EXCHANGE_INLINE);

#[cfg(test)]
mod tests;
