//! Symmetric buffers: memory that the other ranks of the host access directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_transport::shm::{MemorySharing, SharedMemory};
use serde::{Deserialize, Serialize};

use super::Communicator;
use crate::call::Waited;
use crate::communicator::Shared;
use crate::control::Round;
use crate::drive::{self, End, Patience, Step, Waiter, until};
use crate::error::{Error, Result};
use crate::supply::{self, Pool};
use crate::symmetric::{Allocation, OwnMemory};
use crate::types::Element;
use crate::wait::{Next, Pacer, Policy};

/// Interval at which a rank that waits for the others' memory checks for failures.
const LOOK: Duration = Duration::from_millis(20);

/// A buffer that the other ranks of the host access directly: see [`Communicator::alloc`]. It is used like a `Vec` of
/// fixed length, and every call accepts it.
///
/// # Dropping
/// A rank may drop its buffer whenever the buffer is in no call, even after the communicator. The pages return to the
/// system at once. The other ranks' mappings of the buffer are only address space by then. They are removed with the
/// communicator, or earlier, when all ranks have dropped their buffers and the communicator allocates again.
///
/// # Fork
/// In a child made by `fork` the buffer is still the same memory, so the ranks see what the child writes. Dropping
/// the buffer there has no effect.
pub struct SymmetricBuffer<T: Element> {
    memory: Arc<OwnMemory>,
    count: usize,
    elements: PhantomData<T>,
}

/// # Symmetric buffers
impl Communicator {
    /// Makes a zeroed buffer of `count` elements that long blocking collectives on this communicator use in place: ranks
    /// read and write each other's buffers, without a copy in between. All ranks call it with the same size in bytes.
    /// Blocks until all have.
    ///
    /// All-reduce, reduce, reduce-scatter, all-gather, broadcast, scatter and all-to-all (out of place) use symmetric
    /// buffers if all ranks are on one host over shared memory, and if all buffers that other ranks would access are
    /// symmetric: the inputs, and for all-reduce and reduce the outputs. Slices of a buffer qualify, at different
    /// offsets on different ranks, and so do different buffers. Other calls run as on ordinary memory: those with
    /// blocks of unequal length, asynchronous calls, messages, calls on several hosts, and calls under
    /// `KOLO_EXCHANGE_BYTES=0`, for which `KOLO_ALGO` names an algorithm other than `window`, or which a file of
    /// `KOLO_PLAN` serves. Once symmetric buffers
    /// exist, every listed call, on any memory, whose longer buffer reaches a limit first compares locations, which
    /// costs one short exchange. The limit is 32 KiB (all-reduce, reduce), 128 KiB (broadcast) or 256 KiB (all others),
    /// or what `KOLO_SYMMETRIC_BYTES` says; shorter calls run as on ordinary memory.
    ///
    /// The memory counts as shared memory of the process, and is backed by pages when this returns. Before that, the
    /// ranks compare what all of them need with the memory that their hosts and control groups have left
    /// (`MemAvailable`, `memory.max`).
    ///
    /// # Errors
    /// [`Error::Usage`] if ranks ask for different sizes, or for more than can be addressed. [`Error::Unsupported`] if a
    /// host lacks the memory, with the bytes wanted and available. All ranks return the same error, and the
    /// communicator stays usable. Otherwise as [`Communicator::from_env`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<SymmetricBuffer<T>> {
        // The other ranks must hear of a length that makes no sense.
        let bytes = count.saturating_mul(size_of::<T>());
        Ok(SymmetricBuffer { memory: self.allocate(bytes)?, count, elements: PhantomData })
    }

    /// Like [`Communicator::alloc`], for `bytes` bytes aligned to a page.
    ///
    /// # Errors
    /// See [`Communicator::alloc`].
    pub fn alloc_raw(&self, bytes: usize) -> Result<SymmetricBuffer<u8>> {
        self.alloc(bytes)
    }

    fn allocate(&self, bytes: usize) -> Result<Arc<OwnMemory>> {
        let shared = &self.shared;
        shared.check_process(|| ALLOC)?;
        let mut core = shared.core();
        drive::check_usable(shared, &core, ALLOC)?;
        core.calls.allocations += 1;
        let number = core.calls.allocations;
        let may_share = core.exchange.is_some() && self.world_size() > 1;
        let live = core.symmetric.live();
        drop(core);

        let begin = Instant::now();
        let deadline = shared.deadline_after(shared.config.timeout);
        let request = AllocRequest { bytes: bytes as u64, live, pools: supply::pools() };
        let requests = self.all_gather_values(Round::AllocRequests(number), &request, deadline)?;
        if let Some(other) = requests.iter().position(|request| request.bytes != bytes as u64) {
            let problem =
                format!("rank {other} asked for {} bytes and this rank for {bytes}", requests[other].bytes);
            return Err(self.usage("alloc", problem));
        }
        if isize::try_from(bytes).is_err() {
            return Err(self.usage("alloc", format!("{bytes} bytes are more than can be addressed")));
        }
        let pools: Vec<Vec<Pool>> = requests.iter().map(|request| request.pools.clone()).collect();
        if let Some(problem) = supply::shortage(bytes as u64, &pools) {
            return Err(Error::Unsupported { context: shared.context(ALLOC), problem });
        }

        let mut own = Made::new(bytes, may_share).map_err(|error| error.to_string());
        if let Ok(made) = &own {
            // Leaves time to tell the other ranks of a failure.
            let until = begin + (deadline - begin) / 8 * 7;
            if let Err(why) = self.back(made.memory(), &pools, until)? {
                own = Err(why);
            }
        }
        let address = own.as_ref().map(Made::address).map_err(Clone::clone);
        let cards: Vec<Card> = self.all_gather_values(Round::AllocAddresses(number), &address, deadline)?;
        self.all_could(cards.iter().map(|card| card.as_ref().err()))?;
        let addresses: Option<Vec<&[u8]>> = cards.iter().map(|card| card.as_ref().ok()?.as_deref()).collect();
        let mut sharing = match (own, &addresses) {
            (Ok(Made::Shared(sharing)), Some(_)) => sharing,
            // Not all ranks are on one host.
            (Ok(made), _) => return Ok(Arc::new(OwnMemory::new(made.into_memory(), bytes))),
            (Err(_), _) => unreachable!("this rank is among those that could"),
        };
        let addresses = addresses.unwrap_or_default();
        let taken = self.take_over(&mut sharing, &addresses, deadline)?;
        let outcomes = self.all_gather_values(Round::AllocOutcomes(number), &taken, deadline)?;
        self.all_could(outcomes.iter().map(|outcome| outcome.as_ref().err()))?;
        let (own, others) = sharing.finish();
        let memory = Arc::new(OwnMemory::new(own, bytes));
        let mut others = others.into_iter();
        let peers = (0..self.world_size()).map(|rank| if rank == self.rank() { None } else { others.next() });
        let allocation = Allocation::new(number, Arc::clone(&memory), peers.collect());
        let is_used = |id| requests.iter().any(|request| request.live.contains(&id));
        shared.core().symmetric.add(allocation, is_used);
        Ok(memory)
    }

    /// Backs all pages of this rank's memory, while there is enough for all ranks that draw from the same pools and
    /// do the same. The inner error says why the pages are not backed.
    fn back(
        &self,
        memory: &SharedMemory,
        pools: &[Vec<Pool>],
        until: Instant,
    ) -> Result<std::result::Result<(), String>> {
        let shared = &self.shared;
        let look = |done: usize, piece: usize| {
            if shared.membership.abort_flag().is_raised() {
                return Err(drive::fail(shared, ALLOC));
            }
            if done > 0 && Instant::now() >= until {
                return Ok(Some("it timed out; raise KOLO_TIMEOUT if the system is merely slow".to_owned()));
            }
            Ok(supply::shortage_meanwhile(piece as u64, pools))
        };
        supply::back_in_pieces(memory.bytes(), look, |at, len| memory.back(at, len))
    }

    /// Gives this rank's memory to the others and takes theirs. The inner error says what this rank could not do.
    fn take_over(
        &self,
        sharing: &mut MemorySharing,
        addresses: &[&[u8]],
        deadline: Instant,
    ) -> Result<std::result::Result<(), String>> {
        let shared = &self.shared;
        let others = (0..).zip(addresses).filter(|(rank, _)| *rank != self.rank());
        let others: Vec<(u32, &[u8])> = others.map(|(rank, address)| (rank, *address)).collect();
        if let Err(error) = sharing.introduce(self.rank(), &others) {
            return Ok(Err(error.to_string()));
        }
        let limit = deadline.saturating_duration_since(Instant::now());
        let pacer = Pacer::new(Policy {
            spin: Duration::ZERO,
            yield_until: Duration::ZERO,
            ..Policy::OVERSUBSCRIBED
        });
        match until(&mut Taking { shared, sharing }, &mut Patience::new(limit.into(), pacer)) {
            Ok(()) => Ok(Ok(())),
            Err(NotTaken::Here(why)) => Ok(Err(why)),
            Err(NotTaken::ByAll(error)) => Err(error),
        }
    }

    fn all_could<'a>(&self, failures: impl Iterator<Item = Option<&'a String>>) -> Result<()> {
        let mut failures = failures.enumerate().filter_map(|(rank, why)| Some((rank, why?)));
        let Some((rank, why)) = failures.next() else { return Ok(()) };
        Err(Error::Unsupported {
            context: self.context("alloc"),
            problem: format!("rank {rank} could not allocate the memory: {why}"),
        })
    }
}

const ALLOC: Waited = Waited::Other("alloc");

/// Waiter for the other ranks' memory.
struct Taking<'a> {
    shared: &'a Shared,
    sharing: &'a mut MemorySharing,
}

enum NotTaken {
    /// For a reason of this rank alone, or because a peer has died, which also ends the next exchange.
    Here(String),
    ByAll(Error),
}

impl Waiter for Taking<'_> {
    type Error = NotTaken;

    fn step(&mut self) -> std::result::Result<Step, NotTaken> {
        match self.sharing.poll() {
            Ok(true) => Ok(Step::Done),
            Ok(false) if self.shared.membership.abort_flag().is_raised() => Ok(Step::Failed),
            Ok(false) => Ok(Step::Waits { moved: false }),
            Err(error) => Err(NotTaken::Here(error.to_string())),
        }
    }

    fn rest(&mut self, _: Next, _: &mut Pacer) {
        self.sharing.wait(LOOK);
    }

    fn end(&mut self, why: End) -> NotTaken {
        NotTaken::ByAll(match why {
            End::Failed => drive::fail(self.shared, ALLOC),
            End::Deadline(after) => drive::time_out(self.shared, ALLOC, after, &self.sharing.waiting_for()),
        })
    }
}

/// This rank's memory, before it has the others'.
enum Made {
    Shared(Box<MemorySharing>),
    Private(SharedMemory),
}

impl Made {
    fn new(bytes: usize, may_share: bool) -> std::io::Result<Self> {
        if may_share {
            MemorySharing::new(bytes).map(Box::new).map(Self::Shared)
        } else {
            SharedMemory::private(bytes).map(Self::Private)
        }
    }

    fn memory(&self) -> &SharedMemory {
        match self {
            Self::Shared(sharing) => sharing.memory(),
            Self::Private(memory) => memory,
        }
    }

    fn address(&self) -> Option<Vec<u8>> {
        match self {
            Self::Shared(sharing) => Some(sharing.address()),
            Self::Private(_) => None,
        }
    }

    fn into_memory(self) -> SharedMemory {
        match self {
            Self::Shared(sharing) => sharing.finish().0,
            Self::Private(memory) => memory,
        }
    }
}

/// A rank's message to the others before it allocates.
#[derive(Debug, Serialize, Deserialize)]
struct AllocRequest {
    bytes: u64,
    /// Allocations that the rank still uses.
    live: Vec<u64>,
    /// Pools of memory that the rank draws from.
    pools: Vec<Pool>,
}

/// A rank's message once it has allocated: the address at which others reach its memory, if that can be shared, or
/// the reason why it has none.
type Card = std::result::Result<Option<Vec<u8>>, String>;

impl<T: Element> Deref for SymmetricBuffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds `count` elements and is aligned to a page. At first they are zeros, which are
        // valid by the contract of `Element`; later they are values that this program or reductions wrote. Other
        // processes write here only during calls that were lent this memory mutably: see the module `symmetric`.
        unsafe { std::slice::from_raw_parts(self.memory.shared().base().cast::<T>(), self.count) }
    }
}

impl<T: Element> DerefMut for SymmetricBuffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory.shared().base().cast::<T>(), self.count) }
    }
}

impl<T: Element> fmt::Debug for SymmetricBuffer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SymmetricBuffer({} x {})", self.count, T::TYPE)
    }
}

impl<T: Element> Drop for SymmetricBuffer<T> {
    fn drop(&mut self) {
        self.memory.retire();
    }
}
