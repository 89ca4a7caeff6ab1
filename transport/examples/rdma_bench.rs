//! What RDMA costs through Kolo's transport, for comparison with perftest in the same guest.
//!
//! `cargo run --release -p kolo-transport --example rdma_bench`. Two processes, which poll for latency, and for
//! throughput sleep after a while, as Kolo does: soft-RoCE needs the processors. Prints lines
//! of `name value`: half a round trip in microseconds (median), MB/s one way and both ways (median of rounds), and
//! what was copied on the way.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::time::Instant;

use kolo_transport::rdma::Keep;
use kolo_transport::{
    Armed, Channel, Endpoint, Event, ParkBy, Piece, Posted, RdmaEndpoint, RdmaOptions, Reach, Sink, Token,
};
use rustix::event::{PollFd, PollFlags};

const ROUNDS: usize = 7;
const TURNS: usize = 1000;
/// Messages posted ahead.
const WINDOW: usize = 8;
const SIZES: [usize; 4] = [64 << 10, 1 << 20, 4 << 20, 16 << 20];

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
    // Buffers live as long as the endpoint here.
    let mut options = RdmaOptions { keep: Keep::Always, ..RdmaOptions::default() };
    // To try other windows.
    if let Some(bytes) = std::env::var("IN_FLIGHT_BYTES").ok().and_then(|text| text.parse().ok()) {
        options.in_flight_bytes = bytes;
    }
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
    for len in [8, 4096] {
        let (half, _) = ping_pong(end, rank, &mut buffer[..len]);
        say(&format!("latency_us_{len}"), half);
    }
    for len in SIZES {
        let bytes = (32 << 20).max(4 * len);
        say(&format!("one_way_MBps_{len}"), stream(end, rank, &mut buffer[..len], bytes, false));
        say(&format!("both_ways_MBps_{len}"), stream(end, rank, &mut buffer[..len], bytes, true));
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
    let _ = ping_pong(end, rank, &mut buffer[..8]);
}

/// Waits until so many operations are over.
fn wait(end: &mut RdmaEndpoint, mut open: usize) {
    let mut events = Vec::with_capacity(64);
    while open > 0 {
        end.poll(&mut events);
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
    }
}

/// Polls for a while, then sleeps until something has happened.
fn rest(end: &mut RdmaEndpoint, events: &mut Vec<Event>, polls: usize) {
    for _ in 0..polls {
        if end.poll(events) && !events.is_empty() {
            return;
        }
    }
    if let Armed::Fd(fd) = end.arm(ParkBy::Fd) {
        let fd = fd.as_raw_fd();
        if !end.poll(events) {
            // SAFETY: the endpoint keeps it open.
            let fd = unsafe { BorrowedFd::borrow_raw(fd) };
            let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], None);
        }
    }
    end.disarm();
}

fn post(end: &mut RdmaEndpoint, rank: u32, piece: &[Piece; 1], send: bool) -> usize {
    let on = Channel { peer: 1 - rank, index: 0 };
    // SAFETY: the buffer outlives the waits, which see all tokens complete; what it holds does not matter.
    let posted = unsafe {
        match send {
            true => end.post_send(on, 0, piece, Token(0)),
            false => end.post_recv(on, 0, Sink::Place(piece), Token(1)),
        }
    };
    usize::from(posted.expect("post") == Posted::Pending)
}

fn ping_pong(end: &mut RdmaEndpoint, rank: u32, bytes: &mut [u8]) -> (f64, f64) {
    let piece = [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
    let mut turns = Vec::with_capacity(TURNS);
    let (began, first) = (Instant::now(), ticks());
    for _ in 0..TURNS {
        let start = ticks();
        if rank == 0 {
            let open = post(end, rank, &piece, true);
            wait(end, open);
        }
        let open = post(end, rank, &piece, false);
        wait(end, open);
        if rank == 1 {
            let open = post(end, rank, &piece, true);
            wait(end, open);
        }
        turns.push(ticks() - start);
    }
    let us_per_tick = began.elapsed().as_secs_f64() * 1e6 / (ticks() - first) as f64;
    turns.sort_unstable();
    let us = |ticks: u64| ticks as f64 * us_per_tick / 2.0;
    (us(turns[TURNS / 2]), us(turns[0]))
}

/// A clock that costs nothing to read: in a guest the system's is a system call, which would be part of what is
/// measured. perftest reads the same one.
fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has it.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return std::time::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos() as u64);
}

fn stream(end: &mut RdmaEndpoint, rank: u32, bytes: &mut [u8], total: usize, both: bool) -> f64 {
    let piece = [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
    let count = total / bytes.len();
    // As in perftest, who sends polls, and who only receives leaves the processor to the adapter's software.
    let polls = if rank == 0 && !both { usize::MAX } else { 100 };
    let directions: &[bool] = if both { &[true, false] } else { &[rank == 0] };
    let mut rounds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let mut open = 0;
        let mut events = Vec::with_capacity(64);
        for _ in 0..count {
            while open >= WINDOW * directions.len() {
                rest(end, &mut events, polls);
                open -= events.drain(..).inspect(|event| assert!(matches!(event, Event::Done(_)))).count();
            }
            for &send in directions {
                open += post(end, rank, &piece, send);
            }
        }
        while open > 0 {
            rest(end, &mut events, polls);
            open -= events.drain(..).inspect(|event| assert!(matches!(event, Event::Done(_)))).count();
        }
        rounds.push(start.elapsed());
    }
    rounds.sort();
    (directions.len() * count * bytes.len()) as f64 / rounds[ROUNDS / 2].as_secs_f64() / 1e6
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).expect("hex"), 16).expect("hex");
    text.as_bytes().chunks(2).map(digit).collect()
}
