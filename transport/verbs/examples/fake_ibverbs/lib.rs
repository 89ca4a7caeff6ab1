//! A stand-in for libibverbs over this process' own memory, loaded by tests in its place.
//!
//! Devices "fake0", "fake1" ... whose reliable connected queue pairs reach each other within one process. Requests
//! are carried out when posted; a send that meets no receive waits for it. Tests turn its knobs with `fake_set` and
//! ask with `fake_get`, such as how many objects were not given back. Misuse that would hang or corrupt with the real one
//! ends the process.

#![allow(missing_docs, clippy::missing_safety_doc)]

pub mod devices;
mod fabric;
#[path = "../../tests/common/knob.rs"]
pub mod knob;
pub mod knobs;
pub mod memory;
pub mod pairs;
pub mod ports;
mod posting;
pub mod queues;

use std::collections::{HashMap, VecDeque};
use std::ffi::c_int;
use std::sync::{LazyLock, Mutex, MutexGuard};

use kolo_verbs::sys::*;

use knobs::Knobs;

struct Region {
    start: u64,
    len: u64,
    access: u32,
}

struct Sending {
    id: u64,
    opcode: u32,
    flags: u32,
    immediate: u32,
    remote: u64,
    key: u32,
    pieces: Vec<ibv_sge>,
    inline: Option<Vec<u8>>,
}

struct Pair {
    state: u32,
    access: u32,
    peer: u32,
    endless_retry: bool,
    cap: ibv_qp_cap,
    send_queue: usize,
    receive_queue: usize,
    receives: VecDeque<(u64, Vec<ibv_sge>)>,
    sends: VecDeque<Sending>,
    /// Where the user sees it, and hears of its events.
    object: usize,
    async_fd: c_int,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<ibv_wc>,
    armed: bool,
    event_fd: Option<c_int>,
    async_fd: c_int,
    unacknowledged: u32,
}

#[derive(Default)]
struct World {
    knobs: Knobs,
    pairs: HashMap<u32, Pair>,
    queues: HashMap<usize, Queue>,
    regions: HashMap<u32, Region>,
    /// Write ends of the pipes behind descriptors that the user reads, by that descriptor.
    pipes: HashMap<c_int, c_int>,
    async_fds: Vec<c_int>,
    next: u32,
    live: i64,
    fork_calls: i64,
    regions_at_fork: i64,
    registrations: i64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().expect("nobody panics while holding it")
}

fn fail(errno: c_int) {
    // SAFETY: this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

fn leak<T>(value: T) -> *mut T {
    world().live += 1;
    Box::into_raw(Box::new(value))
}

unsafe fn free<T>(pointer: *mut T) -> c_int {
    world().live -= 1;
    // SAFETY: from `leak`, once.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

impl World {
    /// The queue pair of this place, in the order in which they were made.
    fn pair_at(&self, place: usize) -> u32 {
        let mut numbers: Vec<u32> = self.pairs.keys().copied().collect();
        numbers.sort_unstable();
        numbers[place]
    }

    fn registered(&self) -> u64 {
        self.regions.values().map(|region| region.len).sum()
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        0x100 + self.next
    }

    fn pipe(&mut self) -> c_int {
        let mut ends = [0; 2];
        // SAFETY: writes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        self.pipes.insert(ends[0], ends[1]);
        ends[0]
    }

    fn close(&mut self, fd: c_int) {
        let other = self.pipes.remove(&fd).expect("a descriptor of ours");
        // SAFETY: both are ours and closed once.
        unsafe { (libc::close(fd), libc::close(other)) };
    }

    fn tell(&self, fd: c_int, bytes: &[u8]) {
        // SAFETY: an open pipe; a few bytes are written whole.
        let written = unsafe { libc::write(self.pipes[&fd], bytes.as_ptr().cast(), bytes.len()) };
        assert_eq!(written, bytes.len() as isize);
    }

    fn complete(&mut self, queue: usize, entry: ibv_wc) {
        let found = self.queues.get_mut(&queue).expect("a live queue");
        found.entries.push_back(entry);
        if let (true, Some(fd)) = (found.armed, found.event_fd) {
            found.armed = false;
            self.tell(fd, &queue.to_ne_bytes());
        }
    }
}

fn read_from(fd: c_int, bytes: &mut [u8]) -> bool {
    // SAFETY: an open pipe and a buffer; errno is the caller's business.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) == bytes.len() as isize }
}
