//! A stand-in for libibverbs over this process's own memory, which tests load in its place.
//!
//! It has devices "fake0", "fake1" ..., whose reliable connected queue pairs reach each other within one process.
//! Requests are executed when they are posted; a send without a receive waits for one. Tests set its behaviour with
//! `fake_set`, and query it with `fake_get`, for example for the number of objects that were not freed. Misuse that
//! would hang or corrupt data with the real library ends the process.

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
    /// Address of the object that the user sees, which its events name.
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
    /// Write ends of the pipes behind descriptors that the user reads, by those descriptors.
    pipes: HashMap<c_int, c_int>,
    async_fds: Vec<c_int>,
    next: u32,
    live: i64,
    fork_calls: i64,
    regions_at_fork: i64,
    registrations: i64,
    inline: i64,
}

static WORLD: LazyLock<Mutex<World>> = LazyLock::new(Mutex::default);

fn world() -> MutexGuard<'static, World> {
    WORLD.lock().expect("nobody panics while holding it")
}

fn fail(errno: c_int) {
    // SAFETY: this is this thread's errno.
    unsafe { *libc::__errno_location() = errno };
}

fn leak<T>(value: T) -> *mut T {
    world().live += 1;
    Box::into_raw(Box::new(value))
}

unsafe fn free<T>(pointer: *mut T) -> c_int {
    world().live -= 1;
    // SAFETY: the pointer comes from `leak`, and is freed once.
    drop(unsafe { Box::from_raw(pointer) });
    0
}

impl World {
    /// Returns the number of the queue pair at this place in the order in which the pairs were made.
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
        // SAFETY: the call writes two descriptors.
        assert_eq!(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        self.pipes.insert(ends[0], ends[1]);
        ends[0]
    }

    fn close(&mut self, fd: c_int) {
        let other = self.pipes.remove(&fd).expect("a descriptor of ours");
        // SAFETY: both descriptors belong to the stand-in and are closed once.
        unsafe { (libc::close(fd), libc::close(other)) };
    }

    fn tell(&self, fd: c_int, bytes: &[u8]) {
        // SAFETY: the pipe is open; a few bytes are written whole.
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
    // SAFETY: the pipe is open and the buffer valid; the caller handles errno.
    unsafe { libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len()) == bytes.len() as isize }
}
