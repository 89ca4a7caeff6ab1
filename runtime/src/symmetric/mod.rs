//! Collectives on symmetric buffers inside one host, with no staging and no messages.
//!
//! # A call
//! 1. **Locations.** In one exchange every rank says where its buffers lie: in which symmetric allocation, at which
//!    offset, or that they lie in none. All see the same locations, so all take the same path ([`plan`]).
//! 2. **Work.** Each rank does its share alone, reading the others' buffers and, for some collectives, writing them. It
//!    looks at abort and deadline between pieces.
//! 3. **End.** Another exchange: only then are outputs complete and may inputs change.
//!
//! # Who touches what
//! 1. Between the exchange of locations and the end of the call the others read its input, and write those pages of its output of
//!    which the call owns every byte ([`BufferLocations::pages_within`]): nothing else lies there. The two ends of the vector that
//!    are not in such pages on every rank are written by nobody until the end; each rank computes them for itself.
//! 2. The call's owner has lent these bytes to the call for its duration, mutably where they are written. The locations are
//!    published with release and read with acquire, and so is the end: writes by others happen after the caller's own
//!    before the call, and before those after it.
//! 3. A call that fails may leave others at work. Before it returns, the pages that they may write are replaced by
//!    private copies ([`Exposure::withdraw`]), so that nobody writes the caller's memory any more.
//! 4. Allocations and offsets from others are checked against the mappings before use. Payload has no invariants.

mod locations;
mod memory;
mod plan;
mod work;

use std::sync::Arc;

use kolo_collectives::plan::{Collective, Placement};
use kolo_transport::StageMismatch;

use crate::call::{Call, Counts, Forced};
use crate::exchange::compiled::CompiledExchange;
use crate::reduce::Combine;
use crate::types::ReduceOp;
use locations::{BufferLocations, LOCATIONS_BYTES};
pub(crate) use memory::{Allocation, OwnMemory};
use plan::plan;
use work::{Job, Kit};

/// The symmetric allocations of a communicator.
#[derive(Debug)]
pub(crate) struct SymmetricBuffers {
    rank: usize,
    members: usize,
    canonical: bool,
    /// Calls that have to take a plan.
    forced: Forced,
    /// From which length on calls look, if it was set.
    bytes_min: Option<usize>,
    /// In the order in which they were made, which is the same on all ranks; and so is which ones are kept.
    allocations: Vec<Arc<Allocation>>,
    /// What became of the last call that looked.
    last: Option<Result<&'static str, String>>,
    scratch: Vec<u8>,
}

/// A call on its way.
#[derive(Debug)]
pub(crate) struct SymmetricCall<'a> {
    call: &'a Call,
    kit: Kit,
    tag: u64,
    turn: u64,
    phase: Phase,
    locations: BufferLocations,
    /// None once the call is over.
    exposure: Option<Exposure>,
}

#[derive(Debug)]
enum Phase {
    Locating,
    Working(Box<Job>),
    Ending(Box<Job>),
}

/// How far a call got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It waits for others.
    Waits,
    /// It did some work, and has more.
    Works,
    /// It is done.
    Done,
    /// It must go another way, on all ranks.
    Declined,
}

/// Why a call cannot go on.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Fault {
    /// A member called something else.
    Mismatch(StageMismatch),
    /// A member named a buffer that it does not have.
    Corrupt {
        /// Which.
        member: usize,
    },
}

/// Pages of this rank that others may write.
#[derive(Debug)]
pub(crate) struct Exposure {
    memory: Arc<OwnMemory>,
    offset: usize,
    len: usize,
}

impl Exposure {
    /// Takes them back from the others: see the module, 3.
    ///
    /// # Panics
    /// If the system has no memory for the copies: the caller's memory would go on changing under it.
    fn withdraw(&self) {
        let Self { memory, offset, len } = self;
        let result = memory.shared().take_private(*offset, *len);
        result.expect("memory to take a buffer back from ranks that may still write it");
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
            last: None,
            scratch: Vec::new(),
        }
    }

    /// From which length of the longer buffer on a call looks whether it can go this way. Unless it was set, that is where it
    /// begins to win although it takes two exchanges: see
    /// docs/tuning.md, "Symmetric buffers beside private ones".
    fn bytes_min(&self, collective: Collective) -> usize {
        self.bytes_min.unwrap_or(match collective {
            Collective::AllReduce | Collective::Reduce => 32 << 10,
            Collective::Broadcast => 128 << 10,
            _ => 256 << 10,
        })
    }

    /// The allocations that this rank still uses.
    pub(crate) fn live(&self) -> Vec<u64> {
        self.allocations
            .iter()
            .filter(|allocation| allocation.is_live())
            .map(|allocation| allocation.id())
            .collect()
    }

    /// Adds an allocation, and gives up the mappings of those that nobody uses any more. All ranks do so alike.
    pub(crate) fn add(&mut self, allocation: Allocation, is_used: impl Fn(u64) -> bool) {
        self.allocations.retain(|allocation| is_used(allocation.id()));
        self.allocations.push(Arc::new(allocation));
    }

    /// Whether a call begins with an exchange of locations. The same answer on all ranks.
    #[inline]
    pub(crate) fn considers(&self, call: &Call) -> bool {
        !self.allocations.is_empty() && self.long_enough(call) && !self.forced.covers(call)
    }

    fn long_enough(&self, call: &Call) -> bool {
        let Counts::Even(count) = call.counts else { return false };
        let blocks = match call.collective {
            Collective::AllReduce | Collective::Reduce | Collective::Broadcast => 1,
            Collective::ReduceScatter
            | Collective::AllGather
            | Collective::AllToAll
            | Collective::Scatter => self.members,
            Collective::Gather | Collective::Scan | Collective::ExScan | Collective::Barrier => return false,
        };
        count * call.data_type.size() * blocks >= self.bytes_min(call.collective)
    }

    /// Takes a turn for a call that was [considered](Self::considers).
    pub(crate) fn enter<'a>(
        &self,
        exchange: &mut CompiledExchange,
        call: &'a Call,
        combine: Combine,
        tag: u64,
    ) -> SymmetricCall<'a> {
        let (locations, exposure) = self.locations(call);
        let kit = Kit::new(call, combine, self.members, self.canonical);
        SymmetricCall {
            call,
            kit,
            tag,
            turn: exchange.take_turn(),
            phase: Phase::Locating,
            locations,
            exposure,
        }
    }

    /// Moves a call on: to its next wait, or by one piece of work.
    ///
    /// # Safety
    /// The buffers of the call are valid, and lent to it until it is done, declined, or dropped.
    pub(crate) unsafe fn advance(
        &mut self,
        exchange: &mut CompiledExchange,
        running: &mut SymmetricCall<'_>,
    ) -> Result<Step, Fault> {
        loop {
            match &mut running.phase {
                Phase::Locating => {
                    let is_next = exchange.has_turn(running.turn);
                    if !is_next
                        || !exchange
                            .exchange(running.tag, &running.locations.encode())
                            .map_err(Fault::Mismatch)?
                    {
                        return Ok(Step::Waits);
                    }
                    let located = (0..self.members).map(|member| {
                        let mut locations = [0; LOCATIONS_BYTES];
                        exchange.heard(member).read(0, &mut locations);
                        BufferLocations::decode(&locations)
                    });
                    let located: Vec<BufferLocations> = located.collect();
                    exchange.end_exchange();
                    match plan(&self.allocations, self.rank, running.call, &located)? {
                        Ok((mut job, how)) => {
                            self.last = Some(Ok(how));
                            running.kit.factors(&located);
                            job.prepare(&running.kit, &mut self.scratch);
                            running.phase = Phase::Working(Box::new(job));
                        }
                        Err(why) => {
                            self.last = Some(Err(why));
                            running.exposure = None;
                            exchange.end_turn();
                            return Ok(Step::Declined);
                        }
                    }
                }
                Phase::Working(job) => {
                    // SAFETY: all have said where their buffers lie, and the plan holds to what the module says of who touches what.
                    if !unsafe { job.step(&running.kit, &mut self.scratch) } {
                        return Ok(Step::Works);
                    }
                    let Phase::Working(job) = std::mem::replace(&mut running.phase, Phase::Locating) else {
                        unreachable!("it is at work")
                    };
                    running.phase = Phase::Ending(job);
                }
                Phase::Ending(job) => {
                    if !exchange.exchange(running.tag, &[]).map_err(Fault::Mismatch)? {
                        return Ok(Step::Waits);
                    }
                    exchange.end_exchange();
                    exchange.end_turn();
                    running.exposure = None;
                    // SAFETY: everybody's work is over, so this rank's buffers are its own again.
                    unsafe { job.patch() };
                    return Ok(Step::Done);
                }
            }
        }
    }

    /// What this rank says of its buffers, and which pages that lets others write.
    fn locations(&self, call: &Call) -> (BufferLocations, Option<Exposure>) {
        let Counts::Even(count) = call.counts else { unreachable!("only even counts are considered") };
        let block = count * call.data_type.size();
        let is_root = self.rank == call.root as usize;
        let all = block * self.members;
        // Bytes that others read, and that others write.
        let (read, written) = match call.collective {
            Collective::AllReduce => (Some(block), Some(block)),
            Collective::Reduce => (Some(block), is_root.then_some(block)),
            Collective::Broadcast => (is_root.then_some(block), Some(block)),
            Collective::Scatter => (is_root.then_some(all), None),
            Collective::AllGather => (Some(block), None),
            _ => (Some(all), None),
        };
        let mut locations = BufferLocations::default();
        if let ReduceOp::PremulSum(factor) = call.op {
            locations.factor = factor;
        }
        locations.is_in_place = call.placement == Placement::InPlace;
        locations.is_on_gpu = call.gpus.is_some();
        if locations.is_on_gpu {
            return (locations, None);
        }
        if let Some(len) = read {
            locations.input = self.locate(plan::input_of(call), len).map(|(_, place)| place);
        }
        let mut exposure = None;
        if let Some(len) = written
            && let Some((allocation, place)) = self.locate(call.output, len)
        {
            let memory = allocation.own();
            locations.output = Some(place);
            locations.owns_last_page = place.offset as usize + len >= memory.used();
            let pages = locations.pages_within(place, len);
            let (offset, len) = (place.offset as usize + pages.start, pages.len());
            let len = len.next_multiple_of(memory::page_size());
            exposure = (len > 0).then(|| Exposure { memory: Arc::clone(memory), offset, len });
        }
        (locations, exposure)
    }

    /// The allocation in which memory lies, and where.
    fn locate(&self, at: *const u8, len: usize) -> Option<(&Allocation, locations::Place)> {
        self.allocations.iter().find_map(|allocation| {
            let offset = allocation.offset_of(at, len)?;
            Some((&**allocation, locations::Place { allocation: allocation.id(), offset: offset as u64 }))
        })
    }

    /// Whether a call may go this way, or why not, as text; nothing if there are no symmetric buffers.
    pub(crate) fn describe(&self, call: &Call) -> Option<String> {
        if self.allocations.is_empty() {
            return None;
        }
        let last = match &self.last {
            None => String::new(),
            Some(Ok(how)) => format!("; the last call that asked went so: {how}"),
            Some(Err(why)) => format!("; the last call that asked did not: {why}"),
        };
        Some(if self.forced.covers(call) {
            "not symmetric: KOLO_ALGO names an algorithm for this call".to_owned()
        } else if !self.long_enough(call) {
            let least = self.bytes_min(call.collective);
            format!(
                "not symmetric: only some collectives with even counts, of {least} bytes or more (KOLO_SYMMETRIC_BYTES)"
            )
        } else {
            let (locations, _) = self.locations(call);
            match plan::lacks(call, self.rank, &locations) {
                Some(what) => format!("not symmetric: the {what} is not in a symmetric buffer{last}"),
                None => {
                    format!(
                        "symmetric: without copies in between, if the other ranks' buffers are symmetric{last}"
                    )
                }
            }
        })
    }
}

impl SymmetricCall<'_> {
    /// Its turn.
    pub(crate) fn turn(&self) -> u64 {
        self.turn
    }
}

impl Drop for SymmetricCall<'_> {
    /// Gives a call up that is not over: when this returns, nobody else writes its buffers.
    fn drop(&mut self) {
        if let Some(exposure) = &self.exposure {
            exposure.withdraw();
        }
    }
}

const _: () = assert!(LOCATIONS_BYTES <= kolo_transport::shm::FLAT_INLINE);
