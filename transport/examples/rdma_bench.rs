//! Measures the cost of RDMA through Kolo's transport, for comparison with perftest in the same guest.
//!
//! `cargo run --release -p kolo-transport --example rdma_bench` starts two processes. They poll for latency, and wait
//! for throughput as the runtime does (spin, yield, sleep). The output has lines of `name value`: half a round trip
//! in microseconds (median), MB/s one way and both ways (median of rounds), allocations per message, and the bytes
//! copied on the way. With `turns N` it executes only N round trips: two such runs under `strace -f -c` show the
//! system calls of a message.

use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo_transport::rdma::Keep;
use kolo_transport::{
    Armed, Channel, Endpoint, Event, OnMisfit, ParkBy, Piece, Posted, RdmaEndpoint, RdmaOptions, Reach, Sink,
    Token,
};
use rustix::event::{PollFd, PollFlags};

const ROUNDS: usize = 7;
const TURNS: usize = 1000;
/// Number of messages posted ahead.
const WINDOW: usize = 8;
/// Times of the runtime's waiting where each rank has a processor. Neither end may only spin: soft-RoCE's workers
/// need the processors, and a worker that shares its processor with a spinning process sometimes moves a tenth as
/// much.
const SPIN: Duration = Duration::from_micros(50);
const YIELD_UNTIL: Duration = Duration::from_millis(2);
/// Number of polls between two looks at the clock.
const POLLS_PER_CLOCK_READ: u32 = 32;
const SIZES: [usize; 3] = [64 << 10, 1 << 20, 4 << 20];

/// Allocator that counts allocations.
struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls are forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns the number of round trips to execute and nothing else, if the arguments ask for that.
fn turns_only() -> Option<usize> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|argument| argument == "turns")?;
    Some(arguments[at + 1].parse().expect("a number of turns"))
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("second") {
        let mut line = String::new();
        let mut end = open(1);
        println!("{}", hex(end.address()));
        std::io::stdin().read_line(&mut line).expect("the first's address");
        run(&mut end, 1, &unhex(line.trim()));
        return;
    }
    let mut end = open(0);
    let exe = std::env::current_exe().expect("own binary");
    let mut second = Command::new(exe)
        .arg("second")
        .args(std::env::args().skip(1))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("start the second process");
    let mut line = String::new();
    let mut output = BufReader::new(second.stdout.take().expect("piped"));
    output.read_line(&mut line).expect("the second's address");
    let mut input = second.stdin.take().expect("piped");
    writeln!(input, "{}", hex(end.address())).expect("tell the address");
    run(&mut end, 0, &unhex(line.trim()));
    second.wait().expect("the second process");
}

fn open(rank: u32) -> RdmaEndpoint {
    // Here the buffers live as long as the endpoint.
    let options = RdmaOptions { keep: Keep::Always, ..RdmaOptions::default() };
    RdmaEndpoint::new(rank, 2, options).unwrap_or_else(|error| panic!("{error}"))
}

fn run(end: &mut RdmaEndpoint, rank: u32, peer: &[u8]) {
    let reach = end.introduce(1 - rank, peer).expect("introduce");
    assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
    let say = |name: &str, value: f64| {
        if rank == 0 {
            println!("{name} {value:.2}");
        }
    };
    let mut buffer = vec![rank as u8; SIZES[SIZES.len() - 1]];
    if let Some(turns) = turns_only() {
        let _ = ping_pong(end, rank, &mut buffer[..8], turns);
        return;
    }
    for len in [8, 4096] {
        let _ = ping_pong(end, rank, &mut buffer[..len], TURNS / 10);
        let (half, allocations) = ping_pong(end, rank, &mut buffer[..len], TURNS);
        say(&format!("latency_us_{len}"), half);
        say(&format!("allocations_per_message_{len}"), allocations);
    }
    for len in SIZES {
        let bytes = 16 << 20;
        let (rate, _) = stream(end, rank, &mut buffer[..len], bytes, false);
        say(&format!("one_way_MBps_{len}"), rate);
        let (rate, allocations) = stream(end, rank, &mut buffer[..len], bytes, true);
        say(&format!("both_ways_MBps_{len}"), rate);
        say(&format!("allocations_per_message_{len}"), allocations);
    }
    let piece = Piece { ptr: buffer.as_mut_ptr(), len: buffer.len() };
    let began = Instant::now();
    for _ in 0..10_000 {
        assert!(std::hint::black_box(end.is_registered(piece)), "the buffer has been used");
    }
    say("registration_found_us", began.elapsed().as_secs_f64() * 1e6 / 1e4);
    if rank == 0 {
        println!("# {:?}", end.counters());
    }
    let _ = ping_pong(end, rank, &mut buffer[..8], 1);
}

/// Waits until `open` operations are complete.
fn wait(end: &mut RdmaEndpoint, mut open: usize, events: &mut Vec<Event>) {
    while open > 0 {
        end.poll(events);
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
    }
}

/// Spins, then yields, then sleeps until something has happened.
fn rest(end: &mut RdmaEndpoint, events: &mut Vec<Event>) {
    let mut began = None;
    for poll in 1u32.. {
        if end.poll(events) && !events.is_empty() {
            return;
        }
        if !poll.is_multiple_of(POLLS_PER_CLOCK_READ) {
            std::hint::spin_loop();
            continue;
        }
        let idle = began.get_or_insert_with(Instant::now).elapsed();
        if idle >= YIELD_UNTIL {
            break;
        } else if idle >= SPIN {
            std::thread::yield_now();
        }
    }
    if let Armed::Fd(fd) = end.arm(ParkBy::Fd) {
        let fd = fd.as_raw_fd();
        if !end.poll(events) {
            // SAFETY: the endpoint keeps the descriptor open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
        }
    }
    end.disarm();
}

fn post(end: &mut RdmaEndpoint, rank: u32, piece: &[Piece; 1], send: bool) -> usize {
    let on = Channel { peer: 1 - rank, index: 0 };
    // SAFETY: the buffer outlives the waits, which see all tokens complete; its contents do not matter.
    let posted = unsafe {
        match send {
            true => end.post_send(on, 0, piece, Token(0)),
            false => end.post_recv(on, 0, Sink::Place(piece), OnMisfit::Fail, Token(1)),
        }
    };
    usize::from(posted.expect("post") == Posted::Pending)
}

/// Returns the median of half a round trip in microseconds, and the allocations per message.
fn ping_pong(end: &mut RdmaEndpoint, rank: u32, bytes: &mut [u8], count: usize) -> (f64, f64) {
    let piece = [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
    let (mut turns, mut events) = (Vec::with_capacity(count), Vec::with_capacity(64));
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let (began, first) = (Instant::now(), ticks());
    for _ in 0..count {
        let start = ticks();
        if rank == 0 {
            let open = post(end, rank, &piece, true);
            wait(end, open, &mut events);
        }
        let open = post(end, rank, &piece, false);
        wait(end, open, &mut events);
        if rank == 1 {
            let open = post(end, rank, &piece, true);
            wait(end, open, &mut events);
        }
        turns.push(ticks() - start);
    }
    let us_per_tick = began.elapsed().as_secs_f64() * 1e6 / (ticks() - first) as f64;
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    turns.sort_unstable();
    (turns[count / 2] as f64 * us_per_tick / 2.0, allocations as f64 / (2 * count) as f64)
}

/// Returns the time of a clock that is cheap to read: in a guest, reading the system's clock is a system call, which
/// would be part of the measurement. perftest reads the same clock.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has this instruction.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
}

/// Returns the median rate of the rounds in MB/s, and the allocations per message in all rounds but the first.
fn stream(end: &mut RdmaEndpoint, rank: u32, bytes: &mut [u8], total: usize, both: bool) -> (f64, f64) {
    let piece = [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
    let count = total / bytes.len();
    let directions: &[bool] = if both { &[true, false] } else { &[rank == 0] };
    let (mut rounds, mut events) = (Vec::with_capacity(ROUNDS), Vec::with_capacity(64));
    let mut before = 0;
    for round in 0..ROUNDS {
        if round == 1 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        let start = Instant::now();
        let mut open = 0;
        for _ in 0..count {
            while open >= WINDOW * directions.len() {
                rest(end, &mut events);
                open -= events.drain(..).inspect(|event| assert!(matches!(event, Event::Done(_)))).count();
            }
            for &send in directions {
                open += post(end, rank, &piece, send);
            }
        }
        while open > 0 {
            rest(end, &mut events);
            open -= events.drain(..).inspect(|event| assert!(matches!(event, Event::Done(_)))).count();
        }
        rounds.push(start.elapsed());
    }
    let allocations = ALLOCATIONS.load(Ordering::Relaxed) - before;
    rounds.sort_unstable();
    let messages = directions.len() * count;
    let rate = (messages * bytes.len()) as f64 / rounds[ROUNDS / 2].as_secs_f64() / 1e6;
    (rate, allocations as f64 / ((ROUNDS - 1) * messages) as f64)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    text.as_bytes().chunks(2).map(digit).collect()
}
