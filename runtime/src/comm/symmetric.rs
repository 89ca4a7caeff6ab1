//! Symmetric buffers: memory that the other ranks of the host reach directly.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_transport::shm::{Handover, SharedMemory};
use serde::{Deserialize, Serialize};

use super::Communicator;
use super::direct::{Lease, Window};
use super::waited::Waited;
use crate::control::ExchangeKey;
use crate::error::{Context, Error, Result};
use crate::join::MOST_PATIENCE;
use crate::types::Element;

/// Rounds of the control plane's exchange that allocations use: two each, apart from those of splits.
const ALLOC_ROUND: u64 = 1 << 40;

/// How often a rank that waits for others' memory looks whether they are still there.
const LOOK: Duration = Duration::from_millis(20);

/// A buffer that the other ranks of the host reach directly: see [`Communicator::alloc`]. It is used like a `Vec` of fixed
/// length, and can be given to every call.
///
/// # Dropping
/// Any rank may drop its buffer at any time when it is in no call, also after the communicator. The pages go back to the
/// system at once; the others' view of them, which is then only address space, when all ranks have dropped theirs and the
/// communicator allocates again, or with the communicator.
///
/// # Fork
/// In a child made by `fork` it is the same memory still: the ranks see what the child writes. Dropping it there is without
/// effect.
pub struct Symmetric<T: Element> {
    lease: Arc<Lease>,
    count: usize,
    elements: PhantomData<T>,
}

impl Communicator {
    /// Makes a zeroed buffer of `count` elements that blocking collectives on this communicator use in place: ranks read
    /// and write each other's buffers, and nothing is copied in between. All ranks call it, with the same size in bytes.
    /// Blocks until all have.
    ///
    /// All-reduce, reduce, reduce-scatter, all-gather, broadcast, scatter and all-to-all (out of place) go that way if all
    /// ranks are on one host over shared memory and the buffers that others would reach are symmetric: the inputs, and
    /// for all-reduce and reduce the outputs. Slices of a buffer will do, at different offsets on different ranks; so will
    /// different buffers. Other calls (with lengths of their own per rank, asynchronous, point to point, on several hosts,
    /// with `KOLO_TINY_BYTES=0` or `KOLO_ALGO`) take their usual way. Once symmetric buffers
    /// exist, such calls of 32 KiB or more (128 and 256 KiB for those that reduce nothing; `KOLO_DIRECT_BYTES`) on any
    /// memory ask first, which costs one exchange of a line per rank.
    ///
    /// Its memory counts as shared memory of the process, and is backed by pages when this returns.
    ///
    /// # Errors
    /// [`Error::Usage`] if ranks ask for different sizes, [`Error::Unsupported`] if a rank has not got the memory: on all
    /// ranks, and the communicator is as it was. Otherwise as [`Communicator::from_env`].
    pub fn alloc<T: Element>(&self, count: usize) -> Result<Symmetric<T>> {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        let Some(bytes) = bytes else {
            return Err(self.usage("alloc", format!("{count} elements are more than can be addressed")));
        };
        Ok(Symmetric { lease: self.lease(bytes)?, count, elements: PhantomData })
    }

    /// As [`Communicator::alloc`], for `bytes` bytes aligned to a page.
    ///
    /// # Errors
    /// As [`Communicator::alloc`].
    pub fn alloc_raw(&self, bytes: usize) -> Result<Symmetric<u8>> {
        self.alloc(bytes)
    }

    fn lease(&self, bytes: usize) -> Result<Arc<Lease>> {
        let shared = &self.shared;
        shared.check_process(|| ALLOC)?;
        let mut core = shared.core();
        shared.check_usable(&core, ALLOC)?;
        core.allocations += 1;
        let number = core.allocations;
        let may_share = core.tiny.is_some() && self.world_size() > 1;
        let live = core.direct.live();
        drop(core);

        let mut own = if may_share {
            Handover::new(bytes).map(Made::Shared)
        } else {
            SharedMemory::private(bytes).map(Made::Private)
        };
        let address = match &own {
            Ok(Made::Shared(handover)) => Ok(Some(handover.address())),
            Ok(Made::Private(_)) => Ok(None),
            Err(error) => Err(error.to_string()),
        };
        let deadline = Instant::now() + shared.config.timeout.min(MOST_PATIENCE);
        let cards = self.tell(2 * number, &Card { bytes: bytes as u64, address, live }, deadline)?;
        if let Some(other) = cards.iter().position(|card| card.bytes != bytes as u64) {
            let problem =
                format!("rank {other} asks for {} bytes and this rank for {bytes}", cards[other].bytes);
            return Err(self.usage("alloc", problem));
        }
        self.all_could(cards.iter().map(|card| card.address.as_ref().err()))?;
        let addresses: Option<Vec<&[u8]>> =
            cards.iter().map(|card| card.address.as_ref().ok()?.as_deref()).collect();
        let (Some(addresses), Ok(Made::Shared(handover))) = (addresses, &mut own) else {
            // Not all ranks are on one host.
            let memory = match own {
                Ok(Made::Private(memory)) => memory,
                Ok(Made::Shared(_)) | Err(_) => {
                    SharedMemory::private(bytes).map_err(|error| Error::system("allocating memory", error))?
                }
            };
            return Ok(Arc::new(Lease::new(memory, bytes)));
        };
        let taken = self.take_over(handover, &addresses, deadline)?;
        let outcomes = self.tell(2 * number + 1, &taken, deadline)?;
        self.all_could(outcomes.iter().map(|outcome| outcome.as_ref().err()))?;
        let Ok(Made::Shared(handover)) = own else { unreachable!("it was shared above") };
        let (memory, others) = handover.finish();
        let lease = Arc::new(Lease::new(memory, bytes));
        let mut others = others.into_iter();
        let peers = (0..self.world_size()).map(|rank| if rank == self.rank() { None } else { others.next() });
        let window = Window::new(number, Arc::clone(&lease), peers.collect());
        let is_used = |id| cards.iter().any(|card| card.live.contains(&id));
        shared.core().direct.add(window, is_used);
        Ok(lease)
    }

    /// Gives this rank's memory to the others and takes theirs; the inner result is what this rank could not do.
    fn take_over(
        &self,
        handover: &mut Handover,
        addresses: &[&[u8]],
        deadline: Instant,
    ) -> Result<std::result::Result<(), String>> {
        let shared = &self.shared;
        let others = (0..).zip(addresses).filter(|(rank, _)| *rank != self.rank());
        let others: Vec<(u32, &[u8])> = others.map(|(rank, address)| (rank, *address)).collect();
        if let Err(error) = handover.introduce(self.rank(), &others) {
            return Ok(Err(error.to_string()));
        }
        let begin = Instant::now();
        loop {
            match handover.poll() {
                Ok(true) => return Ok(Ok(())),
                Ok(false) => {}
                // Its death, if it has died, is what the next exchange ends with.
                Err(error) => return Ok(Err(error.to_string())),
            }
            if shared.membership.abort_flag().is_raised() {
                return Err(shared.fail(ALLOC));
            }
            if Instant::now() >= deadline {
                return Err(shared.time_out(ALLOC, begin.elapsed(), &handover.waiting_for()));
            }
            handover.wait(LOOK);
        }
    }

    /// Tells the others something and hears the same from them, in rank order.
    fn tell<M: Serialize + for<'de> Deserialize<'de>>(
        &self,
        round: u64,
        message: &M,
        deadline: Instant,
    ) -> Result<Vec<M>> {
        let shared = &self.shared;
        let key = ExchangeKey { communicator: shared.id, round: ALLOC_ROUND + round };
        let unreadable = |error: postcard::Error| self.unreadable(&error);
        let blob = postcard::to_stdvec(message).map_err(unreadable)?;
        let blobs = shared.world.control.exchange(key, &shared.members, blob, deadline)?;
        blobs.iter().map(|blob| postcard::from_bytes(blob).map_err(unreadable)).collect()
    }

    fn all_could<'a>(&self, failures: impl Iterator<Item = Option<&'a String>>) -> Result<()> {
        let mut failures = failures.enumerate().filter_map(|(rank, why)| Some((rank, why?)));
        let Some((rank, why)) = failures.next() else { return Ok(()) };
        let context = Context { rank: self.rank(), operation: "alloc".to_owned(), sequence: 0 };
        Err(Error::Unsupported { context, problem: format!("rank {rank} could not: {why}") })
    }
}

const ALLOC: Waited = Waited::other("alloc");

/// This rank's memory before the others are known.
enum Made {
    Shared(Handover),
    Private(SharedMemory),
}

/// What a rank tells the others when it allocates.
#[derive(Debug, Serialize, Deserialize)]
struct Card {
    bytes: u64,
    /// Where its memory is to be had, if it can be shared.
    address: std::result::Result<Option<Vec<u8>>, String>,
    /// Allocations that it still uses.
    live: Vec<u64>,
}

impl<T: Element> Deref for Symmetric<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: the memory holds `count` elements, aligned to a page, of zeros at first, which are valid by the contract
        // of `Element`, and then of what this program or reductions wrote. Other processes write here only during calls
        // that were lent this memory mutably: see the module `direct`.
        unsafe { std::slice::from_raw_parts(self.lease.memory().base().cast::<T>(), self.count) }
    }
}

impl<T: Element> DerefMut for Symmetric<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.lease.memory().base().cast::<T>(), self.count) }
    }
}

impl<T: Element> fmt::Debug for Symmetric<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Symmetric({} x {})", self.count, T::TYPE)
    }
}

impl<T: Element> Drop for Symmetric<T> {
    fn drop(&mut self) {
        self.lease.retire();
    }
}
