//! The shared-memory transport between processes: this test program starts itself.
//!
//! The parent carries the addresses through pipes, as a control plane would.

use std::env;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kolo_transport::Needs;
use kolo_transport::shm::{MemorySharing, ShmEndpoint, ShmOptions, SingleCopy, Slot};
use kolo_transport::{
    Armed, Channel, Endpoint, Error, ErrorKind, Event, OnMisfit, ParkBy, Piece, Posted, Sink, Token,
    wait_word,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// One child process, and the parent's ends of the pipes to and from it.
struct Process {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Process {
    /// Starts a child. `launcher` is a command with arguments that starts this program, or empty.
    fn start(launcher: &[&str], scenario: &str, rank: u32, n: u32) -> Self {
        let program = env::current_exe().expect("this program");
        let mut command = match launcher.split_first() {
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
            None => Command::new(program),
        };
        let mut child = command
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .env("SHM_TEST_SCENARIO", scenario)
            .env("SHM_TEST_RANK", rank.to_string())
            .env("SHM_TEST_SIZE", n.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        Self { child, to, from: BufReader::new(from) }
    }

    /// Reads up to a line with `name` and returns the rest of that line; the test harness writes lines of its own.
    fn hear(&mut self, name: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.from.read_line(&mut line).expect("a line") > 0,
                "the child ended before it said {name}"
            );
            if let Some((_, value)) = line.split_once(name) {
                return value.trim().to_owned();
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").expect("written");
    }

    fn end(mut self) {
        drop(self.to);
        // The child's last output must not block it.
        std::io::copy(&mut self.from, &mut std::io::sink()).expect("read");
        assert!(self.child.wait().expect("an end").success());
    }
}

fn start(scenario: &str, n: u32) -> Vec<Process> {
    start_by(&[], scenario, n)
}

fn start_by(launcher: &[&str], scenario: &str, n: u32) -> Vec<Process> {
    let mut processes: Vec<_> = (0..n).map(|rank| Process::start(launcher, scenario, rank, n)).collect();
    let addresses: Vec<_> = processes.iter_mut().map(|p| p.hear("ADDRESS")).collect();
    for process in &mut processes {
        process.tell(&addresses.join(" "));
    }
    processes
}

#[test]
fn everybody_talks_to_everybody() {
    start("talk", 3).into_iter().for_each(Process::end);
    start("talk-single", 3).into_iter().for_each(Process::end);
}

/// Containers that share a network namespace but not the PID namespace, such as those of a pod.
#[test]
fn processes_that_do_not_see_each_other_talk() {
    const APART: [&str; 3] = ["unshare", "--pid", "--fork"];
    let can = Command::new(APART[0]).args(&APART[1..]).arg("true").stderr(Stdio::null()).status();
    if !can.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no new PID namespace can be made here");
        return;
    }
    start_by(&APART, "talk", 3).into_iter().for_each(Process::end);
    start_by(&APART, "flat", 3).into_iter().for_each(Process::end);
}

#[test]
fn flat_exchanges() {
    start("flat", 2).into_iter().for_each(Process::end);
    start("flat", 5).into_iter().for_each(Process::end);
}

#[test]
fn a_killed_process_is_noticed() {
    for scenario in ["mourn-spinning", "mourn-by-descriptor", "mourn-by-word"] {
        let mut processes = start(scenario, 3);
        for process in &mut processes {
            process.hear("READY");
        }
        let mut victim = processes.remove(0);
        victim.child.kill().expect("killed");
        victim.child.wait().expect("an end");
        for process in &mut processes {
            assert_eq!(process.hear("LOST"), "0", "{scenario}");
        }
        processes.into_iter().for_each(Process::end);
    }
}

/// The frozen rank lives, so nothing but the abort tells the others that it will not come.
#[test]
fn an_abort_ends_the_wait_for_a_frozen_rank() {
    for frozen in [0, 2] {
        let mut processes = start(&format!("freeze-{frozen}"), 3);
        for process in &mut processes {
            process.hear("READY");
        }
        let mut victim = processes.remove(frozen);
        let began = Instant::now();
        for process in &mut processes {
            process.tell("abort");
        }
        for process in &mut processes {
            let told = process.hear("GAVE UP");
            assert!(["Aborted", "PeerLost"].contains(&told.as_str()), "{frozen}: {told}");
        }
        assert!(began.elapsed() < PATIENCE / 2, "{frozen}: {:?}", began.elapsed());
        victim.child.kill().expect("killed");
        victim.child.wait().expect("an end");
        processes.into_iter().for_each(Process::end);
    }
}

#[test]
fn messages_outlive_their_process() {
    let mut processes = start("legacy", 2);
    let mut receiver = processes.pop().expect("two");
    processes.pop().expect("two").end();
    receiver.tell("it has ended");
    receiver.end();
}

#[test]
fn a_process_without_descriptors_says_so() {
    // One rank cannot accept its peer's connection, or it can, but has no descriptor number for the memory that the
    // peer shares.
    for scenario in ["starve-0", "starve-1"] {
        let mut processes = start(scenario, 2);
        let mut starved = processes.pop().expect("two");
        let mut sender = processes.pop().expect("two");
        starved.hear("READY");
        sender.tell("send");
        let told = starved.hear("STARVED");
        println!("{scenario}: {told}");
        for word in ["rank 1 cannot", "no file descriptors left", "ulimit -n", "os error 24"] {
            assert!(told.contains(word), "{scenario}: {told}");
        }
        sender.tell("end");
        starved.end();
        sender.end();
    }
}

/// The kernel limits the descriptors that a user has in flight, except for a privileged process.
#[test]
fn memory_is_shared_although_many_descriptors_are_in_flight() {
    let mut process = start("flood", 1).remove(0);
    process.hear("SHARED");
    process.end();
}

#[test]
fn a_sender_without_descriptors_waits_for_some() {
    let mut processes = start("starve-sender", 2);
    let mut receiver = processes.pop().expect("two");
    let mut sender = processes.pop().expect("two");
    sender.hear("SENT");
    receiver.tell("receive");
    receiver.hear("RECEIVED");
    sender.tell("end");
    receiver.end();
    sender.end();
    let mut processes = start("starve-for-ever", 2);
    let told = processes[0].hear("STARVED");
    for word in ["rank 0 cannot connect", "no file descriptors left", "ulimit -n", "os error 24"] {
        assert!(told.contains(word), "{told}");
    }
    processes[1].tell("receive nothing");
    processes.into_iter().for_each(Process::end);
}

/// Body of the started processes; without the variable, it does nothing.
#[test]
fn child() {
    let Ok(scenario) = env::var("SHM_TEST_SCENARIO") else { return };
    let number = |name: &str| env::var(name).expect("set").parse::<u32>().expect("a number");
    let (rank, n) = (number("SHM_TEST_RANK"), number("SHM_TEST_SIZE"));
    let single_copy = match scenario.strip_suffix("-single") {
        Some(_) => SingleCopy::From(4096),
        None => SingleCopy::Auto,
    };
    let options = ShmOptions { single_copy, ..ShmOptions::default() };
    let mut endpoint = ShmEndpoint::new(rank, n, options).expect("endpoint");
    let hex: String = endpoint.address().iter().map(|b| format!("{b:02x}")).collect();
    println!("ADDRESS {hex}");
    for (peer, address) in (0..).zip(listen().split(' ')).filter(|(peer, _)| *peer != rank) {
        let digits: Vec<u8> = address.bytes().map(|b| (b as char).to_digit(16).expect("hex") as u8).collect();
        let bytes: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        endpoint.introduce(peer, &bytes).expect("introduced");
    }
    if let Some(frozen) = scenario.strip_prefix("freeze-") {
        return freeze(&mut endpoint, frozen == rank.to_string());
    }
    endpoint.establish(&|| false, Instant::now() + PATIENCE).expect("established");
    match scenario.as_str() {
        "talk" | "talk-single" => talk(endpoint, rank, n),
        "flat" => flat(endpoint),
        "mourn-spinning" => mourn(endpoint, rank, None),
        "mourn-by-descriptor" => mourn(endpoint, rank, Some(ParkBy::Fd)),
        "mourn-by-word" => mourn(endpoint, rank, Some(ParkBy::Word)),
        "legacy" => legacy(endpoint, rank),
        "starve-0" => starve(endpoint, rank, 0),
        "starve-1" => starve(endpoint, rank, 1),
        "starve-sender" => starve_sender(endpoint, rank, true),
        "starve-for-ever" => starve_sender(endpoint, rank, false),
        "flood" => flood(),
        other => panic!("no scenario {other}"),
    }
}

/// Stops this process, or waits for the others until it is told that one has aborted.
fn freeze(endpoint: &mut ShmEndpoint, is_frozen: bool) {
    println!("READY ");
    if is_frozen {
        let own = rustix::process::getpid();
        rustix::process::kill_process(own, rustix::process::Signal::STOP).expect("stopped");
    }
    let is_aborted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listen();
            is_aborted.store(true, Ordering::SeqCst);
        });
        let given_up = || is_aborted.load(Ordering::SeqCst);
        let error = endpoint.establish(&given_up, Instant::now() + PATIENCE).expect_err("one is frozen");
        println!("GAVE UP {:?}", error.kind);
    });
}

fn listen() -> String {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).expect("a line");
    line.trim().to_owned()
}

fn pattern(seed: u32, len: usize) -> Vec<u8> {
    (0..len).map(|i| (i as u32).wrapping_mul(2_654_435_761).wrapping_add(seed) as u8).collect()
}

fn post(endpoint: &mut ShmEndpoint, on: Channel, piece: &[Piece; 1], is_send: bool) -> Result<Posted, Error> {
    // SAFETY: the callers keep the piece and its memory until the message is complete or the endpoint is dropped.
    unsafe {
        if is_send {
            endpoint.post_send(on, 7, piece, Token(1))
        } else {
            endpoint.post_recv(on, 7, Sink::Place(piece), OnMisfit::Fail, Token(2))
        }
    }
}

fn wait(endpoint: &mut ShmEndpoint, count: usize) {
    let (mut events, deadline) = (Vec::new(), Instant::now() + PATIENCE);
    while events.len() < count {
        endpoint.poll(&mut events);
        assert!(Instant::now() < deadline, "waited too long");
        std::thread::yield_now();
    }
    assert!(events.iter().all(|e| matches!(e, Event::Done(_))), "{events:?}");
}

fn piece(bytes: &mut [u8]) -> [Piece; 1] {
    [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }]
}

fn talk(mut endpoint: ShmEndpoint, rank: u32, n: u32) {
    for (round, len) in (0..).zip([0, 8, 105, 5000, 200_000, 3 << 20, 17 << 20]) {
        let mut kept = Vec::new();
        let mut pending = 0;
        for peer in (0..n).filter(|p| *p != rank) {
            let (mut source, mut target) = (pattern(rank * 10 + peer, len), vec![0; len]);
            let pieces = Box::new([piece(&mut target), piece(&mut source)]);
            let on = Channel { peer, index: round };
            for (i, piece) in pieces.iter().enumerate() {
                let posted = post(&mut endpoint, on, piece, i == 1).expect("post");
                pending += usize::from(posted == Posted::Pending);
            }
            kept.push((peer, source, target, pieces));
        }
        wait(&mut endpoint, pending);
        for (peer, _, target, _) in &kept {
            assert!(*target == pattern(peer * 10 + rank, len), "{len} bytes from {peer}");
        }
    }
}

fn flat(mut endpoint: ShmEndpoint) {
    let mut flat = endpoint.exchange().expect("all on this host");
    let deadline = Instant::now() + PATIENCE;
    for round in 0..2000u32 {
        let len = [8, 112, 113, 3000][round as usize % 4];
        let me = flat.member() as u32;
        assert_eq!(flat.is_free(len), Ok(true), "all have been seen in the round before");
        let fill = |mut to: Slot<'_>| to.write(0, &pattern(round ^ me, len));
        flat.publish(round.into(), len, Needs::All, Some(fill));
        while !flat.poll().expect("agreed") {
            assert!(Instant::now() < deadline, "waited too long for {:?}", flat.waiting_for(0));
            if round % 3 == 0 {
                let _ = flat.arm();
                if !flat.poll().expect("agreed") {
                    let (word, value) = flat.arm();
                    wait_word(word, value, PATIENCE).expect("futex");
                }
                flat.disarm();
            }
            std::thread::yield_now();
        }
        for member in 0..flat.members() {
            assert!(flat.payload(member).to_vec() == pattern(round ^ member as u32, len));
        }
        flat.finish();
    }
}

/// Rank 0 dies while the others wait for a message from it, of which rank 1 has received a part.
fn mourn(mut endpoint: ShmEndpoint, rank: u32, by: Option<ParkBy>) {
    let mut bytes = vec![0; 1 << 20];
    let whole = piece(&mut bytes);
    let mut events = Vec::new();
    let deadline = Instant::now() + PATIENCE;
    if rank == 0 {
        let posted = post(&mut endpoint, Channel { peer: 1, index: 0 }, &whole, true).expect("post");
        assert_eq!(posted, Posted::Pending);
        println!("READY");
        listen();
        panic!("to be killed by now");
    }
    let posted = post(&mut endpoint, Channel { peer: 0, index: 0 }, &whole, false).expect("post");
    assert_eq!(posted, Posted::Pending);
    println!("READY");
    loop {
        endpoint.poll(&mut events);
        if let Some(Event::Down { peer, cause }) = events.last() {
            assert_eq!(cause.kind, ErrorKind::PeerLost);
            println!("LOST {peer}");
            break;
        }
        assert!(Instant::now() < deadline, "waited too long");
        if let Some(by) = by {
            sleep(&mut endpoint, by, &mut events);
        }
    }
    assert!(matches!(events[..], [Event::Failed(Token(2), _), Event::Down { .. }]), "{events:?}");
    // The survivors can still exchange messages.
    let (mut word, mut reply) = ([rank as u8; 8], [0; 8]);
    let (word, to) = (piece(&mut word), piece(&mut reply));
    let on = Channel { peer: 3 - rank, index: 1 };
    let sent = post(&mut endpoint, on, &word, true).expect("post");
    let got = post(&mut endpoint, on, &to, false).expect("post");
    wait(&mut endpoint, usize::from(sent == Posted::Pending) + usize::from(got == Posted::Pending));
    assert_eq!(reply, [3 - rank as u8; 8]);
}

fn sleep(endpoint: &mut ShmEndpoint, by: ParkBy, events: &mut Vec<Event>) {
    let _ = endpoint.arm(by);
    if !endpoint.poll(events) {
        match endpoint.arm(by) {
            Armed::Idle => panic!("a receive is outstanding"),
            // A crash does not wake this sleeper, so it wakes by itself.
            Armed::Word(word, value) => wait_word(word, value, Duration::from_millis(50)).expect("futex"),
            Armed::Fd(fd) => {
                let timeout = rustix::time::Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
                let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
                let ready = rustix::event::poll(&mut fds, Some(&timeout)).expect("poll");
                assert!(ready > 0, "nobody woke the sleeper");
            }
        }
    }
    endpoint.disarm();
}

/// Rank 0 sends and ends; only then does rank 1 poll.
fn legacy(mut endpoint: ShmEndpoint, rank: u32) {
    let mut bytes = if rank == 0 { pattern(3, 100_000) } else { vec![0; 100_000] };
    let whole = piece(&mut bytes);
    if rank == 0 {
        let posted = post(&mut endpoint, Channel { peer: 1, index: 4 }, &whole, true).expect("post");
        assert_eq!(posted, Posted::Done);
        assert!(endpoint.is_flushed());
        return;
    }
    assert_eq!(listen(), "it has ended");
    let posted = post(&mut endpoint, Channel { peer: 0, index: 4 }, &whole, false).expect("post");
    wait(&mut endpoint, usize::from(posted == Posted::Pending));
    assert!(bytes == pattern(3, 100_000));
}

/// Rank 1 has `left` descriptors when rank 0 first sends to it.
fn starve(mut endpoint: ShmEndpoint, rank: u32, left: u64) {
    let mut bytes = pattern(3, 100);
    let whole = piece(&mut bytes);
    let on = Channel { peer: 1 - rank, index: 0 };
    if rank == 0 {
        assert_eq!(listen(), "send");
        assert_eq!(post(&mut endpoint, on, &whole, true).expect("post"), Posted::Done);
        assert_eq!(listen(), "end");
        return;
    }
    // Rank 1 makes its own half of the link here.
    assert_eq!(post(&mut endpoint, on, &whole, false).expect("post"), Posted::Pending);
    let mut events = Vec::new();
    endpoint.poll(&mut events);
    leave_descriptors(left);
    // The other rank has the exchange, so this one must have it too.
    assert!(endpoint.exchange().is_some(), "no exchange without a free descriptor");
    println!("READY");
    let deadline = Instant::now() + PATIENCE;
    let cause = loop {
        endpoint.poll(&mut events);
        if let Some(Event::Failed(Token(2), cause)) = events.first() {
            break cause;
        }
        assert!(events.is_empty() && Instant::now() < deadline, "{events:?}");
        std::thread::yield_now();
    };
    assert_eq!(cause.kind, ErrorKind::System);
    println!("STARVED {cause}");
}

/// Fills the sockets of this user with descriptors while two ranks share memory.
fn flood() {
    use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
    let mut sets = capabilities(None).expect("capabilities");
    sets.effective -= CapabilitySet::SYS_RESOURCE | CapabilitySet::SYS_ADMIN;
    set_capabilities(None, sets).expect("fewer capabilities");
    let left = 40;
    leave_descriptors(left);
    let (full, drain) = std::os::unix::net::UnixStream::pair().expect("a pair");
    full.set_nonblocking(true).expect("an option");
    let send = || {
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = rustix::net::SendAncillaryBuffer::new(&mut space);
        let fds = [std::os::fd::AsFd::as_fd(&full)];
        assert!(control.push(rustix::net::SendAncillaryMessage::ScmRights(&fds)));
        let flags = rustix::net::SendFlags::NOSIGNAL;
        rustix::net::sendmsg(&full, &[std::io::IoSlice::new(&[1])], &mut control, flags)
    };
    let refused = (0..1000).find_map(|_| send().err()).expect("a limit");
    assert_eq!(refused, rustix::io::Errno::TOOMANYREFS);
    let mut all = [(); 2].map(|()| MemorySharing::new(5000).expect("memory"));
    let addresses = [all[0].address(), all[1].address()];
    all[0].introduce(0, &[(1, &addresses[1])]).expect("an address");
    all[1].introduce(1, &[(0, &addresses[0])]).expect("an address");
    for sharing in &mut all {
        assert!(!sharing.poll().expect("it waits"));
    }
    drop((full, drain));
    let deadline = Instant::now() + PATIENCE;
    while !(all[0].poll().expect("no error") & all[1].poll().expect("no error")) {
        assert!(Instant::now() < deadline, "the memory does not come");
    }
    println!("SHARED");
}

/// Limits this process to so many more descriptors. Returns the limit before.
fn leave_descriptors(left: u64) -> rustix::process::Rlimit {
    // The kernel assigns the lowest free number.
    let probe = rustix::io::dup(std::io::stdin()).expect("a descriptor");
    let free = std::os::fd::AsRawFd::as_raw_fd(&probe) as u64;
    drop(probe);
    let resource = rustix::process::Resource::Nofile;
    let before = rustix::process::getrlimit(resource);
    let limit = rustix::process::Rlimit { current: Some(free + left), ..before };
    rustix::process::setrlimit(resource, limit).expect("a lower limit");
    before
}

/// Rank 0 has one descriptor when it first sends, for the memory but not for the connection.
fn starve_sender(mut endpoint: ShmEndpoint, rank: u32, is_relieved: bool) {
    let mut bytes = if rank == 0 { pattern(3, 100) } else { vec![0; 100] };
    let whole = piece(&mut bytes);
    let on = Channel { peer: 1 - rank, index: 0 };
    let mut events = Vec::new();
    if rank == 1 {
        if listen() == "receive" {
            let posted = post(&mut endpoint, on, &whole, false).expect("post");
            wait(&mut endpoint, usize::from(posted == Posted::Pending));
            assert!(bytes == pattern(3, 100));
            println!("RECEIVED");
        }
        return;
    }
    let before = leave_descriptors(1);
    assert_eq!(post(&mut endpoint, on, &whole, true).expect("it may get one"), Posted::Pending);
    if is_relieved {
        endpoint.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        rustix::process::setrlimit(rustix::process::Resource::Nofile, before).expect("the limit before");
        let deadline = Instant::now() + PATIENCE;
        while events.is_empty() {
            endpoint.poll(&mut events);
            assert!(Instant::now() < deadline, "the message is not sent");
        }
        assert!(matches!(events[..], [Event::Done(_)]) && endpoint.is_flushed(), "{events:?}");
        println!("SENT");
        listen();
        return;
    }
    let deadline = Instant::now() + PATIENCE;
    let cause = loop {
        endpoint.poll(&mut events);
        if let Err(cause) = post(&mut endpoint, on, &whole, true) {
            break cause;
        }
        assert!(Instant::now() < deadline, "{events:?}");
        std::thread::yield_now();
    };
    println!("STARVED {cause}");
}
