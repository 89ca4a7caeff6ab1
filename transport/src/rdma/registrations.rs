//! Registrations of the caller's memory with an adapter: a cache of regions.
//!
//! # Rules
//!
//! 1. A region covers whole pages, except those of a dma-buf. A look-up for any range within a region finds it, if the
//!    region permits the use: one of read-only memory permits sends only, even if the memory has become writable since.
//! 2. Every use of a region holds a [`Use`], which is neither copied nor dropped silently: it is given back to the
//!    cache. A region in use is never deregistered.
//! 3. An unused region is kept only if its memory cannot change unnoticed. A registration pins pages, not addresses:
//!    after memory is unmapped and mapped anew at the same address, the adapter still accesses the old pages. A
//!    region is kept if the caller asked for that ([`Keep::Always`], or an explicit registration), or if the kernel
//!    reports such changes ([`Keep::Watched`]; see `memory_watcher`).
//! 4. The number and the bytes of unused regions are bounded; the least recently used region is dropped first. A region
//!    longer than the bound is not kept.
//! 5. Memory that was lent for an operation is registered as a whole, at once, and stays registered at least until
//!    the operation is complete; its parts are found in it.
//! 6. Memory that would not be kept is registered for an operation only if it is long; see [`LONG_BYTES`]. Shorter
//!    memory is refused, and copied through staging.

use std::sync::Arc;

use kolo_verbs::{Access, Error, MemoryRegion, ProtectionDomain};

use super::lent::Lent;
use super::memory_watcher::{MemoryWatcher, Range};
use super::options::{Keep, RdmaOptions};

/// A use of a region.
#[derive(Debug)]
#[must_use = "to be given back to the cache"]
pub(super) struct Use {
    number: u32,
    pub(super) local_key: u32,
    pub(super) remote_key: u32,
}

/// Owner of a region's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pages {
    /// The host, so that they count as locked memory.
    Host,
    /// A device, such as a GPU.
    Device,
}

#[derive(Debug)]
struct Entry {
    start: usize,
    end: usize,
    region: MemoryRegion,
    users: u32,
    /// Number of explicit registrations.
    pinned: u32,
    pages: Pages,
    /// Whether the region may stay when it is unused.
    keep: bool,
    /// The range that is watched for it.
    watched: Option<Range>,
    /// Whether some of its memory changed while it was in use; look-ups then ignore it.
    stale: bool,
    /// Time of the last look-up that found it, counted in look-ups.
    stamp: u64,
}

impl Entry {
    /// Returns whether the region is unused. A new region, whose first use has not been taken yet (stamp 0), is not; one
    /// that is not kept is dropped with its last use.
    fn is_unused(&self) -> bool {
        self.users == 0 && self.pinned == 0 && self.stamp > 0
    }
}

/// Counters of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounters {
    /// Number of look-ups that found a region.
    pub hits: u64,
    /// Number of look-ups that registered a region.
    pub misses: u64,
    /// Number of regions dropped because of the bounds.
    pub evicted: u64,
    /// Number of regions dropped because their memory changed.
    pub invalidated: u64,
}

/// The registered regions of one adapter.
#[derive(Debug)]
pub(super) struct Registrations {
    domain: ProtectionDomain,
    policy: Keep,
    regions_max: usize,
    bytes_max: usize,
    page: usize,
    /// Entries by number.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    /// Start and number of each region, sorted.
    order: Vec<(usize, u32)>,
    /// Number and bytes of the unused regions.
    kept: usize,
    kept_bytes: usize,
    /// Bytes of the caller's memory that is locked, and their limit if lockable memory is short.
    locked_bytes: u64,
    room: Option<u64>,
    stamp: u64,
    watcher: Option<Arc<MemoryWatcher>>,
    seen: u64,
    pub(super) lent: Vec<Lent>,
    /// Ranges that could not be watched, the latest first.
    unwatchable: Vec<Unwatchable>,
    pub(super) counters: CacheCounters,
}

/// Access that a receive grants to the peer. A send needs [`Access::LOCAL_READ`].
pub(super) const REMOTE: Access = Access::REMOTE_WRITE;

/// Length in bytes from which ranges that are not kept are registered for their operation. Registering and
/// deregistering takes an adapter's driver some 20 to 100 us, and 0.1 to 0.25 us a page (4 KiB); copying takes 25 us
/// per 256 KiB at both ends. The costs are equal at about this length.
const LONG_BYTES: usize = 1 << 20;

/// Maximum number of ranges that are remembered as unwatchable.
const UNWATCHABLE_MAX: usize = 64;

/// Number of refusals after which a range is tried again, so that the cost of trying is negligible.
const TRY_EVERY: u32 = 64;

/// A range that could not be watched.
#[derive(Debug)]
struct Unwatchable {
    start: usize,
    end: usize,
    /// How often memory in it was refused since.
    refused: u32,
}

impl Registrations {
    pub(super) fn new(
        domain: ProtectionDomain,
        options: &RdmaOptions,
        watcher: Option<Arc<MemoryWatcher>>,
    ) -> Self {
        let (policy, regions_max, bytes_max) = (options.keep, options.cache_regions, options.cache_bytes);
        Self {
            domain,
            policy,
            regions_max,
            bytes_max,
            page: rustix::param::page_size(),
            entries: Vec::new(),
            free: Vec::new(),
            order: Vec::new(),
            kept: 0,
            kept_bytes: 0,
            locked_bytes: 0,
            room: None,
            stamp: 0,
            watcher,
            seen: 0,
            lent: Vec::new(),
            unwatchable: Vec::new(),
            counters: CacheCounters::default(),
        }
    }

    /// Returns a use of a region around these bytes that permits `needs`; `None` if they should rather be copied, or
    /// cannot be registered.
    ///
    /// # Safety
    /// The bytes stay mapped until the use is given back, and there is no exclusive reference to bytes that a peer
    /// may write.
    pub(super) unsafe fn acquire(&mut self, ptr: *mut u8, len: usize, needs: Access) -> Option<Use> {
        self.heed();
        if let Some(number) = self.find(ptr, len, needs) {
            self.counters.hits += 1;
            return Some(self.take(number));
        }
        let (start, end) = (ptr.addr(), ptr.addr().saturating_add(len));
        let around = |lent: &Lent| lent.start <= start && end <= lent.end && !lent.refused;
        if let Some(at) = self.lent.iter().position(around) {
            let (start, end) = (self.lent[at].start, self.lent[at].end);
            let whole = std::ptr::with_exposed_provenance_mut::<u8>(start);
            // SAFETY: the memory is mapped for as long as it is lent.
            if let Some(number) = unsafe { self.register_if_worth(whole, end - start, needs) } {
                let held = self.take(number);
                if let Some(stale) = self.lent[at].held.replace(held) {
                    self.release(stale);
                }
                return Some(self.take(number));
            }
            self.lent[at].refused = true;
        }
        // SAFETY: the caller's promise.
        unsafe { self.register_if_worth(ptr, len, needs) }.map(|number| self.take(number))
    }

    /// # Safety
    /// As [`Registrations::acquire`].
    unsafe fn register_if_worth(&mut self, ptr: *mut u8, len: usize, needs: Access) -> Option<u32> {
        let (start, end) = self.pages(ptr, len);
        let is_kept = match self.policy {
            // The user asked for registration, so its cost is not weighed.
            Keep::Always | Keep::Never => true,
            Keep::Watched => self.watcher.is_some() && self.fits(start, end) && self.may_watch(start, end),
        };
        if !is_kept && len < LONG_BYTES {
            return None;
        }
        let needed = (end - start) as u64;
        while self.room.is_some_and(|room| self.locked_bytes + needed > room) {
            if !self.evict() {
                return None;
            }
        }
        // SAFETY: the caller's promise; pages are mapped as a whole.
        unsafe { self.register(start, end, needs, Pages::Host) }.ok()
    }

    /// Returns whether a region of these bytes may be kept.
    fn fits(&self, start: usize, end: usize) -> bool {
        end - start <= self.bytes_max
    }

    /// Returns whether a range may be watched as far as is known, or should be tried again: it may be other memory by
    /// now.
    fn may_watch(&mut self, start: usize, end: usize) -> bool {
        let Some(known) = self.unwatchable.iter_mut().find(|known| known.start < end && start < known.end)
        else {
            return true;
        };
        known.refused = known.refused.wrapping_add(1);
        known.refused.is_multiple_of(TRY_EVERY)
    }

    /// Returns whether changes of memory are noticed.
    pub(super) fn are_watched(&self) -> bool {
        self.watcher.is_some()
    }

    /// Limits the memory that is registered implicitly. Explicit registrations are the user's responsibility.
    pub(super) fn bound(&mut self, room: Option<u64>) {
        self.room = room;
    }

    /// Returns one more use of the same region.
    pub(super) fn again(&mut self, of: &Use) -> Use {
        self.take(of.number)
    }

    /// Ends a use. The region stays if it is kept, and is dropped otherwise.
    pub(super) fn release(&mut self, given: Use) {
        let Some(entry) = self.entries[given.number as usize].as_mut() else { return };
        entry.users -= 1;
        if entry.users == 0 && entry.pinned == 0 {
            if entry.keep && (self.policy == Keep::Always || self.watcher.is_some()) {
                self.kept += 1;
                self.kept_bytes += entry.end - entry.start;
                self.shrink();
            } else {
                self.forget(given.number);
            }
        }
    }

    /// Registers memory until [`Registrations::unpin`].
    ///
    /// # Safety
    /// The memory stays mapped until then.
    pub(super) unsafe fn pin(&mut self, ptr: *mut u8, len: usize, pages: Pages) -> Result<(), Error> {
        self.heed();
        let (start, end) = self.pages(ptr, len);
        // A larger region would be kept as a whole, though the caller promises only these bytes.
        let number = match self.exactly(start, end) {
            Some(number) => number,
            // SAFETY: the caller's promise.
            None => unsafe { self.register(start, end, Access::LOCAL_READ, pages)? },
        };
        let held = self.take(number);
        if let Some(entry) = self.entries[number as usize].as_mut() {
            entry.pinned += 1;
        }
        self.release(held);
        Ok(())
    }

    /// Takes a region made elsewhere, such as that of a dma-buf, as an explicit registration of its addresses.
    pub(super) fn adopt(&mut self, region: MemoryRegion) {
        let start = region.address() as usize;
        let end = start + region.len();
        let number = self.insert(start, end, region, Pages::Device);
        self.counters.misses += 1;
        if let Some(entry) = self.entries[number as usize].as_mut() {
            entry.pinned = 1;
        }
    }

    /// Ends an explicit registration of these bytes. Returns whether there was one.
    pub(super) fn unpin(&mut self, ptr: *mut u8, len: usize) -> bool {
        let (start, end) = (ptr.addr(), ptr.addr().saturating_add(len));
        let size = |&(_, number): &(usize, u32)| {
            let entry = self.entries[number as usize].as_ref()?;
            let holds = entry.pinned > 0 && entry.start <= start && end <= entry.end;
            holds.then_some((entry.end - entry.start, number))
        };
        // The smallest region is meant; a larger one around it stays for its own registration.
        let Some((_, number)) = self.order.iter().filter_map(size).min() else { return false };
        let Some(entry) = self.entries[number as usize].as_mut() else { return false };
        entry.pinned -= 1;
        entry.keep = false;
        if entry.pinned == 0 && entry.users == 0 {
            self.forget(number);
        }
        true
    }

    /// Returns whether these bytes are registered now.
    pub(super) fn holds(&self, ptr: *mut u8, len: usize) -> bool {
        self.find(ptr, len, Access::LOCAL_READ).is_some()
    }

    fn pages(&self, ptr: *mut u8, len: usize) -> (usize, usize) {
        let start = ptr.addr() & !(self.page - 1);
        let end = ptr.addr().saturating_add(len).div_ceil(self.page).saturating_mul(self.page);
        (start, end.max(start + self.page))
    }

    fn find(&self, ptr: *mut u8, len: usize, needs: Access) -> Option<u32> {
        let (start, end) = (ptr.addr(), ptr.addr().saturating_add(len));
        let before = self.order.partition_point(|&(at, _)| at <= start);
        let holds = |number: u32| {
            let entry = self.entries[number as usize].as_ref();
            entry.is_some_and(|entry| {
                entry.end >= end && !entry.stale && entry.region.access().contains(needs)
            })
        };
        self.order[..before].iter().rev().map(|&(_, number)| number).find(|&number| holds(number))
    }

    /// Returns the region of just these pages.
    fn exactly(&self, start: usize, end: usize) -> Option<u32> {
        let mut of_start = self.order.iter().filter(|(at, _)| *at == start).map(|(_, number)| *number);
        let is_it = |number: &u32| {
            self.entries[*number as usize].as_ref().is_some_and(|entry| entry.end == end && !entry.stale)
        };
        of_start.find(is_it)
    }

    fn take(&mut self, number: u32) -> Use {
        self.stamp += 1;
        let entry = self.entries[number as usize].as_mut().expect("a region that was found");
        if entry.is_unused() {
            self.kept -= 1;
            self.kept_bytes -= entry.end - entry.start;
        }
        entry.users += 1;
        entry.stamp = self.stamp;
        Use { number, local_key: entry.region.local_key(), remote_key: entry.region.remote_key() }
    }

    /// # Safety
    /// As [`Registrations::acquire`].
    unsafe fn register(
        &mut self,
        start: usize,
        end: usize,
        needs: Access,
        pages: Pages,
    ) -> Result<u32, Error> {
        let first = std::ptr::with_exposed_provenance_mut::<u8>(start);
        let access = Access::LOCAL_WRITE | REMOTE | Access::RELAXED_ORDERING;
        let domain = self.domain.clone();
        let attempt = |access| {
            // SAFETY: the caller's promise.
            unsafe { domain.register(first, end - start, access) }
        };
        let region = match attempt(access) {
            // The memory may be read-only, such as a constant; it can then be sent from.
            Err(Error::Call { errno: libc::EFAULT | libc::EACCES, .. }) if needs == Access::LOCAL_READ => {
                attempt(needs)
            }
            Err(Error::MemoryLock { .. } | Error::Call { errno: libc::ENOMEM, .. }) if self.drop_kept() => {
                attempt(access)
            }
            other => other,
        };
        let number = self.insert(start, end, region?, pages);
        self.counters.misses += 1;
        // Watching begins only now: pinning allocates pages that were never touched, which the watch would otherwise
        // have to handle. No change is missed, since the caller leaves the memory mapped while it is in use.
        let fits = self.fits(start, end);
        // Changes of a device's memory are not reported.
        let watcher = self.watcher.as_ref().filter(|_| fits && pages == Pages::Host);
        let watched = watcher.and_then(|watcher| watcher.add(start, end));
        if watcher.is_some() {
            self.unwatchable.retain(|known| end <= known.start || known.end <= start);
            if watched.is_none() {
                self.unwatchable.truncate(UNWATCHABLE_MAX - 1);
                self.unwatchable.insert(0, Unwatchable { start, end, refused: 0 });
            }
        }
        if let Some(entry) = self.entries[number as usize].as_mut() {
            entry.watched = watched;
            entry.keep = watched.is_some() || self.policy == Keep::Always && fits;
        }
        Ok(number)
    }

    fn insert(&mut self, start: usize, end: usize, region: MemoryRegion, pages: Pages) -> u32 {
        let (keep, stale, watched) = (false, false, None);
        let entry = Entry { start, end, region, users: 0, pinned: 0, pages, keep, watched, stale, stamp: 0 };
        let number = self.free.pop().unwrap_or_else(|| {
            self.entries.push(None);
            self.entries.len() as u32 - 1
        });
        self.entries[number as usize] = Some(entry);
        if pages == Pages::Host {
            self.locked_bytes += (end - start) as u64;
        }
        let at = self.order.partition_point(|&(other, _)| other <= start);
        self.order.insert(at, (start, number));
        number
    }

    /// Deregisters a region that is not in use.
    fn forget(&mut self, number: u32) {
        let Some(entry) = self.entries[number as usize].take() else { return };
        self.order.retain(|&(_, other)| other != number);
        if entry.pages == Pages::Host {
            self.locked_bytes -= (entry.end - entry.start) as u64;
        }
        self.free.push(number);
        if let Some((watcher, range)) = self.watcher.as_ref().zip(entry.watched) {
            watcher.remove(range);
        }
    }

    /// Drops the least recently used regions until the bounds hold.
    fn shrink(&mut self) {
        while self.kept_bytes > self.bytes_max || self.kept > self.regions_max {
            if !self.evict() {
                return;
            }
        }
    }

    fn evict(&mut self) -> bool {
        let unused = (0..).zip(&self.entries).filter_map(|(number, entry)| {
            entry.as_ref().filter(|entry| entry.is_unused()).map(|entry| (entry.stamp, number))
        });
        let Some((_, number)) = unused.min() else { return false };
        self.counters.evicted += 1;
        self.drop_unused(number);
        true
    }

    fn drop_unused(&mut self, number: u32) {
        // Taking it ends its share of the counts of unused regions.
        let used = self.take(number);
        self.forget(used.number);
    }

    /// Drops all unused regions, when no more memory can be locked. Returns whether there were any.
    pub(super) fn drop_kept(&mut self) -> bool {
        let mut any = false;
        while self.evict() {
            any = true;
        }
        any
    }

    /// Handles the changes of memory that the kernel has reported.
    fn heed(&mut self) {
        let Some(watcher) = self.watcher.clone() else { return };
        let Some(now) = watcher.changes() else {
            self.end_watches();
            self.watcher = None;
            return self.invalidate(0, usize::MAX);
        };
        let seen = std::mem::replace(&mut self.seen, now);
        if now != seen {
            watcher.changed(seen, now, |start, end| self.invalidate(start, end));
        }
    }

    /// Ends the watch of all regions, also of those that are in use.
    fn end_watches(&mut self) {
        let Some(watcher) = &self.watcher else { return };
        let watched = self.entries.iter_mut().flatten().filter_map(|entry| entry.watched.take());
        watched.for_each(|range| watcher.remove(range));
    }

    /// Drops the regions of memory that has changed; those in use, once they are no longer.
    fn invalidate(&mut self, start: usize, end: usize) {
        for at in 0..self.entries.len() {
            let Some(entry) = self.entries[at].as_mut() else { continue };
            if entry.start < end && start < entry.end && entry.pinned == 0 {
                self.counters.invalidated += 1;
                (entry.keep, entry.stale) = (false, true);
                if entry.is_unused() {
                    self.drop_unused(at as u32);
                }
            }
        }
    }
}

impl Drop for Registrations {
    fn drop(&mut self) {
        self.end_watches();
    }
}
