//! Measures the cost of the shared-memory transport between processes.
//!
//! ```text
//! shm_bench latency            one way, 0 to 4096 bytes, 2 processes
//! shm_bench poll               an empty poll with 1, 4, 16 channels pending
//! shm_bench stream             one way and both ways, 64 KiB to 64 MiB, 2 processes
//! shm_bench copies N          a ring of N processes, everybody sends to the next: single copy and two copies in turn
//! shm_bench sweep              stream over piece and ring sizes
//! shm_bench flat N             flat exchange of N processes (oversubscribed when N is more than the processors)
//! ```
//! The processes are started from this same program, and find each other through files in a temporary directory. On a
//! busy machine, run it with real-time priority (`chrt -f 1`) and look at the minimum of the batches.
//! `SHM_BENCH_HUGE=1` puts the buffers into huge pages; `SHM_BENCH_LEN=n` is the only length for `copies`;
//! `SHM_BENCH_BATCHES=n` is its number of batches. `PIN=1` binds rank r to processor r modulo their number;
//! `PIN=same` binds all ranks to one.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread;
use std::time::{Duration, Instant};

use kolo_transport::Needs;
use kolo_transport::shm::{ShmEndpoint, ShmOptions, SingleCopy, Slot};
use kolo_transport::{Channel, Consumer, Endpoint, Event, OnMisfit, Piece, Posted, Sink, Token};

fn main() -> ExitCode {
    if let Ok(rank) = env::var("SHM_BENCH_RANK") {
        child(rank.parse().expect("a rank"));
        return ExitCode::SUCCESS;
    }
    let args: Vec<_> = env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["latency" | "stream" | "poll"] => launch(words[0], 2, &[]),
        ["copies", n] => launch("copies", n.parse().expect("a number of processes"), &[]),
        ["flat", n] => launch("flat", n.parse().expect("a number of processes"), &[]),
        ["sweep"] => {
            for piece_kib in [8, 16, 32, 64] {
                for slots in [2, 4, 8] {
                    println!("# pieces of {piece_kib} KiB, {slots} to a ring");
                    let (piece, ring) = (piece_kib * 1024, piece_kib * slots * 1024);
                    let vars = [("SHM_BENCH_PIECE", piece.to_string()), ("SHM_BENCH_RING", ring.to_string())];
                    launch("stream", 2, &vars);
                }
            }
        }
        _ => {
            eprintln!("usage: shm_bench latency | poll | stream | copies N | sweep | flat N");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn launch(what: &str, n: u32, vars: &[(&str, String)]) {
    let directory = env::temp_dir().join(format!("shm-bench-{}", std::process::id()));
    fs::create_dir_all(&directory).expect("a temporary directory");
    let start = |rank: u32| {
        Command::new(env::current_exe().expect("this program"))
            .env("SHM_BENCH_RANK", rank.to_string())
            .env("SHM_BENCH_SIZE", n.to_string())
            .env("SHM_BENCH_WHAT", what)
            .env("SHM_BENCH_DIR", &directory)
            .envs(vars.iter().map(|(k, v)| (*k, v)))
            .spawn()
            .expect("a process")
    };
    let children: Vec<_> = (0..n).map(start).collect();
    for mut child in children {
        assert!(child.wait().expect("an end").success());
    }
    fs::remove_dir_all(&directory).expect("removed");
}

fn number(name: &str) -> Option<usize> {
    env::var(name).ok().map(|v| v.parse().expect("a number"))
}

fn child(rank: u32) {
    pin(rank);
    let n = number("SHM_BENCH_SIZE").expect("set by launch") as u32;
    let directory = PathBuf::from(env::var_os("SHM_BENCH_DIR").expect("set by launch"));
    let defaults = ShmOptions::default();
    let options = ShmOptions {
        piece_bytes: number("SHM_BENCH_PIECE").unwrap_or(defaults.piece_bytes),
        ring_bytes: number("SHM_BENCH_RING").unwrap_or(defaults.ring_bytes),
        single_copy: number("SHM_BENCH_SINGLE").map_or(defaults.single_copy, SingleCopy::From),
        ..defaults
    };
    let what = env::var("SHM_BENCH_WHAT");
    if what.as_deref() == Ok("copies") {
        return copies(&options, rank, n, &directory);
    }
    let mut endpoint = ShmEndpoint::new(rank, n, options).expect("endpoint");
    meet(&mut endpoint, rank, n, &directory);
    match what.as_deref() {
        Ok("latency") => latency(Bench::new(endpoint, rank)),
        Ok("poll") => empty_polls(Bench::new(endpoint, rank)),
        Ok("stream") => stream(Bench::new(endpoint, rank)),
        _ => flat(endpoint, rank),
    }
}

fn pin(rank: u32) {
    let cpu = match env::var("PIN").as_deref() {
        Ok("same") => 0,
        Ok(_) => rank as usize % thread::available_parallelism().map_or(1, usize::from),
        Err(_) => return,
    };
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).expect("a processor");
}

fn meet(endpoint: &mut ShmEndpoint, rank: u32, n: u32, directory: &Path) {
    let name = |rank: u32| directory.join(rank.to_string());
    let draft = directory.join(format!("{rank}.draft"));
    fs::write(&draft, endpoint.address()).expect("written");
    fs::rename(&draft, name(rank)).expect("renamed");
    for peer in (0..n).filter(|p| *p != rank) {
        let address = loop {
            match fs::read(name(peer)) {
                Ok(bytes) => break bytes,
                Err(_) => thread::sleep(Duration::from_millis(1)),
            }
        };
        endpoint.introduce(peer, &address).expect("introduced");
    }
    endpoint.establish(&|| false, Instant::now() + Duration::from_secs(20)).expect("established");
}

struct Bench {
    endpoint: ShmEndpoint,
    rank: u32,
    events: Vec<Event>,
}

impl Bench {
    fn new(endpoint: ShmEndpoint, rank: u32) -> Self {
        Self { endpoint, rank, events: Vec::with_capacity(16) }
    }

    fn on(&self, index: u16) -> Channel {
        Channel { peer: 1 - self.rank, index }
    }

    fn send(&mut self, index: u16, piece: &[Piece; 1]) -> usize {
        // SAFETY: the callers wait for the end of the message before they release the piece and its memory.
        let posted = unsafe { self.endpoint.post_send(self.on(index), 7, piece, Token(1)) };
        usize::from(posted.expect("post") == Posted::Pending)
    }

    fn receive(&mut self, index: u16, piece: &[Piece; 1]) -> usize {
        // SAFETY: as for `send`.
        let posted = unsafe {
            self.endpoint.post_recv(self.on(index), 7, Sink::Place(piece), OnMisfit::Fail, Token(2))
        };
        usize::from(posted.expect("post") == Posted::Pending)
    }

    fn wait(&mut self, count: usize) {
        while self.events.len() < count {
            self.endpoint.poll(&mut self.events);
        }
        for event in self.events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
        }
    }
}

/// Returns the minimum and the median of the batches, in seconds.
fn measure(batches: usize, mut batch: impl FnMut() -> f64) -> (f64, f64) {
    let mut times: Vec<_> = (0..batches).map(|_| batch()).collect();
    times.sort_by(f64::total_cmp);
    (times[0], times[batches / 2])
}

fn buffer(len: usize) -> (Vec<u8>, [Piece; 1]) {
    let is_huge = number("SHM_BENCH_HUGE").is_some() && len > 0;
    let mut bytes = Vec::<u8>::with_capacity(if is_huge { (len + (2 << 20)).max(8 << 20) } else { len });
    if is_huge {
        let len = bytes.capacity();
        let (start, huge) = (bytes.as_mut_ptr(), 2 << 20);
        let skip = start.align_offset(huge);
        let advice = rustix::mm::Advice::LinuxHugepage;
        // SAFETY: the range is inside the vector's memory, which is not in use yet.
        let _ = unsafe { rustix::mm::madvise(start.add(skip).cast(), (len - skip) / huge * huge, advice) };
    }
    bytes.resize(bytes.capacity(), 1u8);
    let skip = if is_huge { bytes.as_ptr().align_offset(2 << 20) } else { 0 };
    let piece = [Piece { ptr: bytes[skip..].as_mut_ptr(), len }];
    (bytes, piece)
}

fn latency(mut bench: Bench) {
    for len in [0, 8, 40, 104, 128, 512, 2048, 4096, 8192, 16384, 32768, 65536, 131_072, 524_288] {
        let (_from, from) = buffer(len);
        let (_to, to) = buffer(len);
        // A batch is so short that some batches run without an interruption on a busy machine.
        let rounds = if len > 4096 { 100 } else { 1000 };
        let (least, median) = measure(301, || {
            let start = Instant::now();
            for _ in 0..rounds {
                let mut left = 0;
                if bench.rank == 0 {
                    left += bench.send(0, &from);
                }
                let receive = bench.receive(0, &to);
                if bench.rank == 0 {
                    bench.wait(left + receive);
                } else {
                    bench.wait(receive);
                    let left = bench.send(0, &from);
                    bench.wait(left);
                }
            }
            start.elapsed().as_secs_f64() / f64::from(rounds) / 2.0
        });
        if bench.rank == 0 {
            println!("{len:8} B one way: {:8.1} ns least, {:8.1} ns median", least * 1e9, median * 1e9);
        }
    }
}

fn empty_polls(mut bench: Bench) {
    let (_to, to) = buffer(8);
    let mut pending = 0;
    for channels in [1, 4, 16] {
        while pending < channels {
            pending += bench.receive(pending as u16, &to);
        }
        // Both ends link up first.
        synchronise(&mut bench);
        let (least, median) = measure(301, || {
            let start = Instant::now();
            for _ in 0..10_000 {
                bench.endpoint.poll(&mut bench.events);
            }
            start.elapsed().as_secs_f64() / 1e4
        });
        if bench.rank == 0 {
            println!(
                "{channels:3} channels: {:5.1} ns a poll least, {:5.1} median",
                least * 1e9,
                median * 1e9
            );
        }
        synchronise(&mut bench);
    }
}

fn stream(mut bench: Bench) {
    for len in [16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20, 16 << 20, 32 << 20, 64 << 20] {
        let (_from, from) = buffer(len);
        let (_to, to) = buffer(len);
        let rounds = ((64 << 20) / len).clamp(2, 200);
        let per_batch = |t: f64, ways: f64| ways * len as f64 * rounds as f64 / t / 1e9;
        let one_way = measure(9, || {
            synchronise(&mut bench);
            let start = Instant::now();
            for _ in 0..rounds {
                let left = if bench.rank == 0 { bench.send(1, &from) } else { bench.receive(1, &to) };
                bench.wait(left);
            }
            synchronise(&mut bench);
            start.elapsed().as_secs_f64()
        });
        let both_ways = measure(9, || {
            synchronise(&mut bench);
            let start = Instant::now();
            for _ in 0..rounds {
                let left = bench.receive(1, &to) + bench.send(1, &from);
                bench.wait(left);
            }
            synchronise(&mut bench);
            start.elapsed().as_secs_f64()
        });
        if bench.rank == 0 {
            println!(
                "{:6} KiB: one way {:5.1} GB/s best {:5.1} median; both ways {:5.1} best {:5.1} median",
                len / 1024,
                per_batch(one_way.0, 1.0),
                per_batch(one_way.1, 1.0),
                per_batch(both_ways.0, 2.0),
                per_batch(both_ways.1, 2.0),
            );
        }
    }
}

fn synchronise(bench: &mut Bench) {
    let (_from, from) = buffer(0);
    let left = bench.receive(63, &from) + bench.send(63, &from);
    bench.wait(left);
}

fn flat(mut endpoint: ShmEndpoint, rank: u32) {
    let mut flat = endpoint.exchange().expect("all on this host");
    let oversubscribed = flat.members() > thread::available_parallelism().map_or(1, usize::from);
    for len in [8, 48, 112, 1024, 16384] {
        let rounds = if oversubscribed { 1000 } else { 20_000 };
        let mut sum = 0u64;
        let (least, median) = measure(21, || {
            let start = Instant::now();
            for round in 0..rounds {
                let number = u64::from(rank + round).to_le_bytes();
                assert_eq!(flat.is_free(len), Ok(true));
                flat.publish(7, len, Needs::All, Some(|mut to: Slot<'_>| to.write(0, &number)));
                while !flat.poll().expect("agreed") {
                    if oversubscribed {
                        thread::yield_now();
                    }
                }
                for member in 0..flat.members() {
                    let mut bytes = [0; 8];
                    flat.payload(member).read(0, &mut bytes);
                    sum = sum.wrapping_add(u64::from_le_bytes(bytes));
                }
                flat.finish();
            }
            start.elapsed().as_secs_f64() / f64::from(rounds)
        });
        if rank == 0 {
            println!(
                "flat, {} ranks, {len:6} B: {:8.3} us least, {:8.3} us median ({sum:x})",
                flat.members(),
                least * 1e6,
                median * 1e6
            );
        }
    }
}

/// Adds the arriving numbers to a vector of numbers.
unsafe fn add(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: `Ring::turn` passes a pointer to its accumulator, which is as long as the message; the data are whole,
    // aligned numbers, because of the transport's grain.
    let (sums, terms) = unsafe {
        let sums = context.cast::<u8>().add(offset).cast::<f32>();
        (
            std::slice::from_raw_parts_mut(sums, len / 4),
            std::slice::from_raw_parts(data.cast::<f32>(), len / 4),
        )
    };
    sums.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
}

/// A ring in which every rank sends to the next one, as in a step of a ring algorithm.
struct Ring {
    endpoint: ShmEndpoint,
    next: u32,
    previous: u32,
    events: Vec<Event>,
    yields: bool,
}

impl Ring {
    fn turn(&mut self, sends: bool, receives: bool, from: &[Piece; 1], to: &[Piece; 1], adds: bool) {
        let mut left = 0;
        let sink = if adds {
            let consumer = Consumer { call: add, context: to[0].ptr.cast() };
            Sink::Consume { len: to[0].len, consumer }
        } else {
            Sink::Place(to)
        };
        let (source, target) =
            (Channel { peer: self.previous, index: 0 }, Channel { peer: self.next, index: 0 });
        // SAFETY: the messages are complete when this returns, and the callers keep the pieces until then.
        unsafe {
            if receives {
                let posted =
                    self.endpoint.post_recv(source, 7, sink, OnMisfit::Fail, Token(1)).expect("post");
                left += usize::from(posted == Posted::Pending);
            }
            if sends {
                let posted = self.endpoint.post_send(target, 7, from, Token(2)).expect("post");
                left += usize::from(posted == Posted::Pending);
            }
        }
        while self.events.len() < left {
            if !self.endpoint.poll(&mut self.events) && self.yields {
                thread::yield_now();
            }
        }
        for event in self.events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
        }
    }
}

/// Returns the message lengths, or only the one that `SHM_BENCH_LEN` gives.
fn sizes() -> Vec<usize> {
    number("SHM_BENCH_LEN").map_or_else(
        || (4..=10).map(|i| 1 << (10 + i)).chain([4 << 20, 8 << 20, 16 << 20, 64 << 20]).collect(),
        |len| vec![len],
    )
}

/// Compares two copies with a single copy, in alternation.
fn copies(options: &ShmOptions, rank: u32, n: u32, directory: &Path) {
    let mut rings: Vec<_> = [SingleCopy::Never, SingleCopy::From(1)]
        .into_iter()
        .zip(["two", "one"])
        .map(|(single_copy, name)| {
            let directory = directory.join(name);
            fs::create_dir_all(&directory).expect("a directory");
            let options = ShmOptions { single_copy, ..options.clone() };
            let mut endpoint = ShmEndpoint::new(rank, n, options).expect("endpoint");
            meet(&mut endpoint, rank, n, &directory);
            let (next, previous) = ((rank + 1) % n, (rank + n - 1) % n);
            Ring { endpoint, next, previous, events: Vec::new(), yields: n > 2 }
        })
        .collect();
    for len in sizes() {
        let (_from, from) = buffer(len);
        let (_to, to) = buffer(len);
        let (_sums, sums) = buffer(len);
        let rounds = ((32 << 20) / len).clamp(2, 100);
        for (what, one_way, adds) in [
            ("1-way place", true, false),
            ("place", false, false),
            ("1-way add", true, true),
            ("add", false, true),
        ] {
            if one_way && n > 2 {
                continue;
            }
            let (sends, receives) = (!one_way || rank == 0, !one_way || rank == 1);
            let target = if adds { &sums } else { &to };
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..number("SHM_BENCH_BATCHES").unwrap_or(11) {
                for (ring, times) in rings.iter_mut().zip(&mut times) {
                    let (_none, none) = buffer(0);
                    for _ in 0..n {
                        ring.turn(true, true, &none, &none, false);
                    }
                    let start = Instant::now();
                    for _ in 0..rounds {
                        ring.turn(sends, receives, &from, target, adds);
                    }
                    ring.turn(true, true, &none, &none, false);
                    times.push(start.elapsed().as_secs_f64());
                }
            }
            if rank == 0 {
                let ways = if one_way { 1 } else { n };
                let mut speeds = times.map(|mut times| {
                    times.sort_by(f64::total_cmp);
                    let bytes = f64::from(ways) * (len * rounds) as f64 / 1e9;
                    (bytes / times[0], bytes / times[times.len() / 2])
                });
                let [two, one] = &mut speeds;
                println!(
                    "{:6} KiB {what:12} two copies {:5.1} best {:5.1} median, single {:5.1} {:5.1}; ratio {:.2} {:.2}",
                    len / 1024,
                    two.0,
                    two.1,
                    one.0,
                    one.1,
                    one.0 / two.0,
                    one.1 / two.1
                );
            }
        }
    }
}
