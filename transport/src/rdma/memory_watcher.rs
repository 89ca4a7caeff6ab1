//! Notification by the kernel when memory is unmapped, moved or given back. It uses `userfaultfd(2)`, for the events
//! only.
//!
//! # Rules
//!
//! 1. The kernel delays every thread that changes watched memory until the watcher's thread has *read* the event.
//!    `busy` is set before reading and cleared when the change is in the log, so a thread that looks after the change
//!    sees one or the other.
//! 2. Only the thread that unmaps is delayed, and only once the addresses are free: another thread may get the same
//!    addresses before the event is read. The kernel counts a change as under way from before the addresses are free
//!    until the delay ends, and fails `UFFDIO_COPY` meanwhile. A thread that looks therefore asks for that first. The
//!    system call takes some 200 ns, once for each range of a long message. Before Linux 5.15, the kernel keeps a flag
//!    instead of a count: if several changes are under way, the first to end hides the others, and another thread that
//!    gets their addresses before the watcher's thread reads them may find an old region.
//! 3. The watcher's thread neither allocates nor frees, and takes no lock that is held across anything but copying: a
//!    thread that is delayed may hold any other lock.
//! 4. Where the kernel can watch only for missing pages (not for write protection), touching a page that was given
//!    back would wait for the watcher's thread. That thread therefore ends the watch of every range that it hears
//!    about, which lets all threads go on.
//! 5. Moved memory takes its watch along, though no region covers its new addresses. The watcher's thread ends that
//!    watch before it clears `busy`, and so before anyone who looks first can watch the new addresses. The kernel
//!    tells only the old length: if a mapping grows, the added part stays watched until it is unmapped, or a region
//!    that covers it ends.
//!
//! A range of memory can be watched by only one descriptor, so all endpoints of a process share one watcher. The
//! descriptor is of the memory of the process that made it, so a child of that process starts a watcher of its own, and
//! does not keep the descriptor: while any process has that open, the memory stays watched.

use std::collections::BTreeMap;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};

use crate::Unpoisoned;
use crate::sys::process::Process;
use crate::sys::unshared::Unshared;

/// Number of changes in the log. The oldest one cannot be trusted: a new change is written over it before that
/// change is counted. A reader that has missed so many must assume that everything has changed.
const LOG_LEN: usize = 256;

/// Maximum number of watched ranges. A range divides a mapping into up to three, of which a process may have 65530
/// (`vm.max_map_count`).
const RANGES_MAX: usize = 8192;

/// Lengths of huge pages in bytes, the shortest first: those of x86 (2 MiB, 1 GiB) and of ARM.
const HUGE_PAGES: [usize; 5] = [64 << 10, 2 << 20, 32 << 20, 512 << 20, 1 << 30];

/// Number of looks before a waiting thread sleeps. Each is a system call, so they take some 200 us: longer than the
/// watcher's thread takes to wake and to log a change. A thread of a real-time class that never slept could keep the
/// watcher's thread from their processor for ever.
const LOOKS: u32 = 1000;

/// Sleep between further looks.
const NAP: Duration = Duration::from_micros(50);

/// Number of such sleeps, which take 5 s at least, after which a change that is still under way will never end. Some
/// kernels do not take back the count of an `mremap` that failed. The time does not count: the whole process may have
/// been stopped meanwhile.
const NAPS: u32 = 100_000;

// linux/userfaultfd.h
const UFFD_API: u64 = 0xaa;
const UFFD_USER_MODE_ONLY: i32 = 1;
const FEATURE_WRITE_PROTECT: u64 = 1 << 0;
const FEATURE_EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
const MODE_MISSING: u64 = 1 << 0;
const MODE_WRITE_PROTECT: u64 = 1 << 1;
const MODE_MINOR: u64 = 1 << 2;
/// The operation that the kernel offers for all memory but huge pages.
const CAN_ZEROPAGE: u64 = 1 << 4;
const EVENT_PAGEFAULT: u8 = 0x12;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
const UFFDIO_API: libc::c_ulong = 0xc018_aa3f;
const UFFDIO_REGISTER: libc::c_ulong = 0xc020_aa00;
const UFFDIO_UNREGISTER: libc::c_ulong = 0x8010_aa01;
const UFFDIO_COPY: libc::c_ulong = 0xc028_aa03;

/// Start and end of a range of memory.
pub(super) type Range = (usize, usize);

/// Watches memory. Its thread ends when it is dropped.
#[derive(Debug)]
pub(super) struct MemoryWatcher {
    shared: Arc<Shared>,
    mode: u64,
    /// Number of regions in each watched range. The watcher's thread does not use it.
    ranges: Mutex<BTreeMap<Range, u32>>,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    /// Whether changes can no longer be followed.
    lost: AtomicBool,
    /// The process whose memory is watched.
    process: Process,
}

#[derive(Debug)]
struct Shared {
    /// In a child that kept it, a change of memory that is still watched when the watcher ends would wait for ever.
    fd: Unshared<OwnedFd>,
    busy: AtomicBool,
    /// Number of changes logged so far.
    count: AtomicU64,
    /// The latest changes, each at its number modulo the length.
    log: Mutex<[(usize, usize); LOG_LEN]>,
    page: usize,
}

/// The watcher of this process, while it is in use: the kernel permits at most one for a range of a process's memory.
static SHARED: Mutex<Weak<MemoryWatcher>> = Mutex::new(Weak::new());

impl MemoryWatcher {
    /// Returns the watcher of this process, and starts it if there is none that can still follow changes.
    ///
    /// # Errors
    /// The reason why the kernel offers none to this process.
    pub(super) fn shared() -> Result<Arc<Self>, String> {
        let mut shared = SHARED.lock().unpoisoned();
        let is_usable = |watcher: &Arc<Self>| watcher.process.is_current() && !watcher.is_lost();
        if let Some(watcher) = shared.upgrade().filter(is_usable) {
            return Ok(watcher);
        }
        let watcher = Arc::new(Self::start()?);
        *shared = Arc::downgrade(&watcher);
        Ok(watcher)
    }

    fn start() -> Result<Self, String> {
        let mut watcher = Self::new()?;
        let (theirs, end) = (Arc::clone(&watcher.shared), Arc::clone(&watcher.stop));
        let run = move || theirs.listen(&end);
        let thread = std::thread::Builder::new().name("kolo-memory".into()).spawn(run);
        watcher.thread = Some(thread.map_err(|error| format!("starting its thread: {error}"))?);
        Ok(watcher)
    }

    /// Makes a watcher without its thread.
    fn new() -> Result<Self, String> {
        let (fd, mode) = open().map_err(|error| format!("userfaultfd: {error}"))?;
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC);
        let stop = Arc::new(stop.map_err(|error| format!("eventfd: {error}"))?);
        let shared = Arc::new(Shared {
            fd: Unshared::new(fd),
            busy: AtomicBool::new(false),
            count: AtomicU64::new(0),
            log: Mutex::new([(0, 0); LOG_LEN]),
            page: rustix::param::page_size(),
        });
        let (lost, process) = (AtomicBool::new(false), Process::current());
        let ranges = Mutex::new(BTreeMap::new());
        Ok(Self { shared, mode, ranges, stop, thread: None, lost, process })
    }

    /// Watches the pages of a region until [`remove`](Self::remove). Returns `None` for memory that cannot be watched.
    pub(super) fn add(&self, start: usize, end: usize) -> Option<Range> {
        let (mut ranges, range) = (self.ranges(), (start, end));
        if ranges.len() >= RANGES_MAX {
            return None;
        }
        // The question would end the watch of the other parts, of which the answer is known.
        if uncovered(range, ranges.keys()).into_iter().any(|part| self.shared.is_shared(part)) {
            return None;
        }
        let range = match self.shared.watch(range, self.mode) {
            Ok(()) => range,
            // In huge pages, a range must begin and end with one; their mappings do. Only an end that lies in one may move,
            // since other memory may follow the rest. In the other mode, a thread that touched a missing huge page would
            // wait for ever.
            Err(libc::EINVAL) if self.mode == MODE_WRITE_PROTECT => {
                let around = |size: usize| {
                    let (from, to) = (start & !(size - 1), end.next_multiple_of(size));
                    [(from, end), (start, to), (from, to)]
                };
                let mut larger = HUGE_PAGES.into_iter().flat_map(around);
                larger.find(|range| self.shared.watch(*range, self.mode).is_ok())?
            }
            Err(_) => return None,
        };
        *ranges.entry(range).or_insert(0) += 1;
        Some(range)
    }

    /// Ends one [`add`](Self::add). Parts of the range that no other region covers are no longer watched, so that the
    /// kernel can merge mappings again.
    pub(super) fn remove(&self, range: Range) {
        // The descriptor that a child inherits is of its parent's memory.
        if !self.process.is_current() {
            return;
        }
        let mut ranges = self.ranges();
        let Some(count) = ranges.get_mut(&range) else { return };
        *count -= 1;
        if *count == 0 {
            ranges.remove(&range);
            for (start, end) in uncovered(range, ranges.keys()) {
                self.shared.unwatch(start, end);
            }
        }
    }

    fn ranges(&self) -> MutexGuard<'_, BTreeMap<Range, u32>> {
        self.ranges.lock().unpoisoned()
    }

    /// Returns the number of changes so far; `None` if changes can no longer be followed, from then on.
    pub(super) fn changes(&self) -> Option<u64> {
        // By rules 1 and 2, in this order: when the change has ended, the thread is busy or has counted it. The wait
        // is short: the thread writes one entry meanwhile, and wakes the one that it delayed.
        let mut looks = 0;
        while !self.is_lost() && (self.shared.is_changing() || self.shared.busy.load(Ordering::SeqCst)) {
            if looks < LOOKS {
                std::hint::spin_loop();
            } else if looks < LOOKS + NAPS {
                std::thread::sleep(NAP);
            } else {
                self.lost.store(true, Ordering::Relaxed);
            }
            looks += 1;
        }
        (!self.is_lost()).then(|| self.shared.count.load(Ordering::SeqCst))
    }

    /// Returns whether changes can no longer be followed.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Reports the changes from number `from` up to `to`, or that everything may have changed.
    pub(super) fn changed(&self, from: u64, to: u64, mut each: impl FnMut(usize, usize)) {
        // This is a copy, since `each` may have to wait for the thread (rule 3).
        let log = *self.shared.log();
        // Some entries may have been overwritten while they were copied.
        let now = self.shared.count.load(Ordering::SeqCst);
        if !is_whole(from, now) {
            return each(0, usize::MAX);
        }
        for number in from..to {
            let (start, end) = log[(number % LOG_LEN as u64) as usize];
            each(start, end);
        }
    }
}

/// Returns whether the log has all changes from number `from` on, as read before `now` changes were counted. Another
/// one may have been written that is not counted yet.
fn is_whole(from: u64, now: u64) -> bool {
    now - from < LOG_LEN as u64
}

/// Returns the parts of a range that none of the others covers. These are sorted.
fn uncovered<'a>((start, end): Range, others: impl IntoIterator<Item = &'a Range>) -> Vec<Range> {
    let (mut parts, mut at) = (Vec::new(), start);
    for &(from, to) in others.into_iter().filter(|other| other.0 < end && start < other.1) {
        if at < from {
            parts.push((at, from));
        }
        at = at.max(to);
    }
    if at < end {
        parts.push((at, end));
    }
    parts
}

impl Drop for MemoryWatcher {
    fn drop(&mut self) {
        if !self.process.is_current() {
            // A child has neither the thread nor a say in what it does.
            std::mem::forget(self.thread.take());
            return;
        }
        // This fails only if the thread is signalled already.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // The thread does not panic, and there would be no remedy.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn log(&self) -> MutexGuard<'_, [(usize, usize); LOG_LEN]> {
        self.log.lock().unpoisoned()
    }

    /// Returns whether a change of watched memory is under way.
    fn is_changing(&self) -> bool {
        // struct uffdio_copy: target, source, length, mode, bytes copied. The kernel checks for changes under way before it
        // checks the range, so an empty range fails with EAGAIN during a change, and with EINVAL otherwise.
        let mut nothing = [0u64; 5];
        // SAFETY: the descriptor is a userfaultfd, and the argument has the form that the call requires. An empty range
        // is never copied.
        let code = unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_COPY, nothing.as_mut_ptr()) };
        code != 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
    }

    /// Returns whether a range is shared memory, which other processes, or the file itself, can change without an event.
    /// The kernel grants a watch for minor faults only to such memory and to huge pages, and private huge pages change
    /// with an event. Kernels before 5.14 do not know that watch.
    fn is_shared(&self, (start, end): Range) -> bool {
        let minor = self.register((start, end), MODE_MINOR);
        if let Ok(operations) = minor {
            self.unwatch(start, end);
            return operations & CAN_ZEROPAGE != 0;
        }
        false
    }

    /// Watches a range.
    ///
    /// # Errors
    /// The kernel's error.
    fn watch(&self, range: Range, mode: u64) -> Result<(), i32> {
        self.register(range, mode).map(|_| ())
    }

    /// Watches a range. Returns the operations that are then possible, one bit each.
    fn register(&self, (start, end): Range, mode: u64) -> Result<u64, i32> {
        // struct uffdio_register: start, length, mode, operations that are then possible.
        let mut argument = [start as u64, (end - start) as u64, mode, 0];
        // SAFETY: the descriptor is a userfaultfd, and the argument has the form that the call requires. The memory
        // does not change.
        match unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_REGISTER, argument.as_mut_ptr()) } {
            0 => Ok(argument[3]),
            _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap_or_default()),
        }
    }

    /// Ends the watch of a range. This fails if the memory is gone.
    fn unwatch(&self, start: usize, end: usize) {
        let mut range = [start as u64, (end - start) as u64];
        // SAFETY: the descriptor is a userfaultfd; the call only ends a watch.
        unsafe { libc::ioctl(self.fd.as_raw_fd(), UFFDIO_UNREGISTER, range.as_mut_ptr()) };
    }

    fn listen(&self, stop: &OwnedFd) {
        loop {
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
            match rustix::event::poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            if !fds[1].revents().is_empty() {
                return;
            }
            self.busy.store(true, Ordering::SeqCst);
            // struct uffd_msg: the event, then its arguments.
            let mut message = [0u64; 4];
            // SAFETY: the slice covers 32 bytes of plain numbers.
            let bytes = unsafe {
                std::slice::from_raw_parts_mut(message.as_mut_ptr().cast::<u8>(), size_of::<[u64; 4]>())
            };
            if rustix::io::read(self.fd.as_fd(), &mut *bytes) == Ok(size_of::<[u64; 4]>()) {
                let event = bytes[0];
                self.hear(event, [message[1], message[2], message[3]].map(|word| word as usize));
            }
            self.busy.store(false, Ordering::SeqCst);
        }
    }

    fn hear(&self, event: u8, [first, second, third]: [usize; 3]) {
        let page = |address: usize| address & !(self.page - 1);
        let (start, end) = match event {
            EVENT_REMOVE | EVENT_UNMAP => (first, second),
            EVENT_REMAP => (first, first.saturating_add(third)),
            EVENT_PAGEFAULT => (page(second), page(second) + self.page),
            _ => return,
        };
        match event {
            // By rule 4: threads that wait for a page go on.
            EVENT_REMOVE | EVENT_PAGEFAULT => self.unwatch(start, end),
            // By rule 5.
            EVENT_REMAP => self.unwatch(second, second.saturating_add(third)),
            _ => {}
        }
        let count = self.count.load(Ordering::SeqCst);
        self.log()[(count % LOG_LEN as u64) as usize] = (start, end);
        self.count.store(count + 1, Ordering::SeqCst);
    }
}

/// Opens a descriptor, and returns it with its mode: it watches for writes to protected pages, of which there are
/// none, or else for missing pages.
fn open() -> std::io::Result<(OwnedFd, u64)> {
    let mut refused = None;
    for (features, mode) in
        [(FEATURE_EVENTS | FEATURE_WRITE_PROTECT, MODE_WRITE_PROTECT), (FEATURE_EVENTS, MODE_MISSING)]
    {
        // Without the flag, accesses by the kernel are covered too, where that is permitted.
        for flags in [0, UFFD_USER_MODE_ONLY] {
            // SAFETY: the call makes a descriptor, or fails.
            let fd =
                unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | libc::O_NONBLOCK | flags) };
            let Some(fd) = i32::try_from(fd).ok().filter(|fd| *fd >= 0) else {
                refused.get_or_insert_with(std::io::Error::last_os_error);
                continue;
            };
            // SAFETY: the descriptor was just made, and nobody else owns it.
            let fd = unsafe { OwnedFd::from_raw_fd(fd) };
            // struct uffdio_api: version, features, operations that are possible.
            let mut argument = [UFFD_API, features, 0];
            // SAFETY: the argument has the form that the call requires.
            if unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, argument.as_mut_ptr()) } == 0 {
                return Ok((fd, mode));
            }
            refused.get_or_insert_with(std::io::Error::last_os_error);
        }
    }
    Err(refused.unwrap_or_else(|| std::io::ErrorKind::Unsupported.into()))
}

#[cfg(test)]
mod tests;
