//! Strangers connect to a job's ports: the job starts and runs, reports how many were rejected, and gives them neither
//! a place nor any information.
//!
//! `KOLO_TEST_STRANGERS` sets how many connections are made before and during a job (2000 by default). With 10000, the
//! documented start-up time is asserted, which needs an otherwise idle machine.

use std::collections::{BTreeSet, VecDeque};
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kolo::internal::control::{Control, ControlRuntime, GatherKey, PROTOCOL, Round};
use kolo::{JoinSpec, Locator};
use kolo_tests::processes::{Job, LONG, Process};
use kolo_tests::watchdog::within;
use kolo_transport::conformance::free_port;
use kolo_transport::tcp;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_rank");

/// Connections that the strangers hold at a time; each further one closes the oldest.
const HELD: usize = 400;

/// Limit on the memory that a rank may grow by meanwhile.
const GROWTH_BYTES: u64 = 1 << 20;

fn attempts() -> (usize, Duration) {
    match std::env::var("KOLO_TEST_STRANGERS").ok().and_then(|text| text.parse().ok()) {
        Some(count) => (count, Duration::from_secs(2)),
        // Limit beside other tests on few processors.
        None => (2000, Duration::from_secs(15)),
    }
}

/// Strangers that keep connecting to ports, in every way that differs from a rank's.
struct Strangers {
    ports: Arc<Mutex<Vec<u16>>>,
    made: Arc<AtomicUsize>,
    over: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    /// The strangers know whether the ranks have a secret, and nothing else.
    fn connect_to(ports: Vec<u16>, has_secret: bool) -> Self {
        let ports = Arc::new(Mutex::new(ports));
        let (made, over) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let threads = (0..2)
            .map(|which| {
                let (ports, made, over) = (ports.clone(), made.clone(), over.clone());
                std::thread::spawn(move || connect(which, has_secret, &ports, &made, &over))
            })
            .collect();
        Self { ports, made, over, threads }
    }

    /// Waits until `count` more connections have been made.
    fn made_more(&self, count: usize) {
        let (until, goal) = (Instant::now() + LONG, self.made.load(Ordering::Relaxed) + count);
        while self.made.load(Ordering::Relaxed) < goal {
            assert!(
                Instant::now() < until,
                "only {} of {goal} connections",
                self.made.load(Ordering::Relaxed)
            );
            std::thread::yield_now();
        }
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Makes a preamble that fits: only the proof that may have to follow needs the secret.
fn fitting_preamble(has_secret: bool) -> [u8; 64] {
    let mut preamble = [0; 64];
    preamble[..8].copy_from_slice(b"KOLOctl\n");
    preamble[8..12].copy_from_slice(&PROTOCOL.to_le_bytes());
    preamble[12] = has_secret.into();
    let version = env!("CARGO_PKG_VERSION").as_bytes();
    preamble[16..16 + version.len()].copy_from_slice(version);
    preamble
}

/// Makes the hello of a data connection, without the end of its proof.
fn most_of_a_hello() -> [u8; 90] {
    let mut hello = [0; 90];
    hello[..8].copy_from_slice(b"\x89Kolo\r\n\x1a");
    hello[8..10].copy_from_slice(&tcp::PROTOCOL.to_le_bytes());
    hello
}

fn connect(which: usize, has_secret: bool, ports: &Mutex<Vec<u16>>, made: &AtomicUsize, over: &AtomicBool) {
    let mut held = VecDeque::new();
    let (preamble, hello) = (fitting_preamble(has_secret), most_of_a_hello());
    let mut turn = which;
    while !over.load(Ordering::Relaxed) {
        turn += 1;
        let port = {
            let ports = ports.lock().unwrap();
            ports[turn % ports.len()]
        };
        let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { continue };
        made.fetch_add(1, Ordering::Relaxed);
        // Whether the write succeeds does not matter.
        let _ = match turn / 3 % 11 {
            0 => stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"),
            1 => stream.write_all(&[0xff; 4096]),
            2 => stream.write_all(&preamble),
            3 => stream.write_all(&preamble[..40]),
            4 => stream.write_all(&[&preamble[..], &[0xff; 300]].concat()),
            5 => stream.write_all(&hello[..12]),
            6 => stream.shutdown(Shutdown::Both),
            7 => stream.write_all(&[&preamble[..], &[7; 64]].concat()),
            8 => stream.write_all(&hello),
            _ => Ok(()),
        };
        held.push_back(stream);
        if held.len() > HELD / 2 {
            held.pop_front();
        }
    }
}

/// Whether a stranger with a fitting preamble is answered and kept for a while, as a slow rank must be.
fn is_kept(port: u16, has_secret: bool) -> bool {
    let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stranger.write_all(&fitting_preamble(has_secret)).unwrap();
    stranger.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = [0; 64];
    let is_greeted = stranger.read_exact(&mut answer).is_ok() && answer[..8] == *b"KOLOctl\n";
    stranger.set_read_timeout(Some(Duration::from_millis(1200))).unwrap();
    let silence = stranger.read(&mut [0]).map_err(|error| error.kind());
    is_greeted && matches!(silence, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Starts one rank as a process.
fn rank(rank: u32, of: u32, rendezvous: &str, task: &[&str], more: &[(&str, &str)]) -> Process {
    let mut command = Command::new(PROGRAM);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
        command.env_remove(name);
    }
    command
        .args(task)
        .env("KOLO_RENDEZVOUS", rendezvous)
        .env("KOLO_RANK", rank.to_string())
        .env("KOLO_WORLD_SIZE", of.to_string())
        .env("KOLO_JOIN_TIMEOUT", "30")
        .env("KOLO_TIMEOUT", "30")
        .envs(more.iter().copied());
    Process::start(command)
}

/// Returns the ports on which a process listens.
fn listening(pid: u32) -> Vec<u16> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let sockets: BTreeSet<String> = links
        .filter_map(|entry| std::fs::read_link(entry.path()).ok())
        .filter_map(|to| Some(to.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let mut ports = Vec::new();
    for line in tables.iter().flatten().flat_map(|table| table.lines()) {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [_, local, _, "0A", _, _, _, _, _, inode, ..] = fields[..]
            && sockets.contains(inode)
        {
            ports.push(u16::from_str_radix(local.rsplit_once(':').unwrap().1, 16).unwrap());
        }
    }
    ports
}

fn wait_for_port(process: &Process, port: u16) {
    let until = Instant::now() + LONG;
    while !listening(process.id()).contains(&port) {
        assert!(Instant::now() < until, "it does not listen");
        std::thread::yield_now();
    }
}

fn private_bytes(process: &Process) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_ascii_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_flood_of_strangers_neither_prevents_nor_disturbs_a_job() {
    let (count, patience) = attempts();
    for secret in [None, Some("a secret that nobody guesses")] {
        within(Duration::from_secs(150), "a flood", move || {
            let port = free_port();
            let url = format!("tcp://127.0.0.1:{port}");
            let mut more = vec![("KOLO_TRANSPORT", "tcp")];
            more.extend(secret.map(|secret| ("KOLO_JOB_SECRET", secret)));
            let mut zero = rank(0, 2, &url, &["loop", "8"], &more);
            wait_for_port(&zero, port);
            // If the machine pauses, rank 0 may close the connection meanwhile.
            assert!((0..3).any(|_| is_kept(port, secret.is_some())), "strangers are not even greeted");
            let strangers = Strangers::connect_to(vec![port], secret.is_some());
            strangers.made_more(count);
            let before = Instant::now();
            let mut one = rank(1, 2, &url, &["loop", "8"], &more);
            zero.expect("@joined ");
            one.expect("@joined ");
            zero.expect("@running");
            let took = before.elapsed();
            println!("secret {}: joined and running {took:.2?} after rank 1 came", secret.is_some());
            assert!(took < patience, "{took:?}");

            let ports = [listening(zero.id()), listening(one.id())].concat();
            assert!(ports.len() >= 3, "the coordinator and two data ports: {ports:?}");
            *strangers.ports.lock().unwrap() = ports;
            strangers.made_more(count / 4);
            let at_first = [&zero, &one].map(private_bytes);
            strangers.made_more(count);
            let at_last = [&zero, &one].map(private_bytes);
            println!("private memory of the ranks: {at_first:?} -> {at_last:?} bytes");
            for (first, last) in at_first.into_iter().zip(at_last) {
                assert!(last < first + GROWTH_BYTES, "{first} -> {last}");
            }
            // The ranks have run all the time, and notice the end of the other one.
            one.signal(Signal::KILL);
            let error = zero.expect("@error ");
            assert!(error.contains("rank 1 is lost"), "{error}");
            drop(strangers);
        });
    }
}

/// Calls that begin like those of ranks that meet at the relay, or of endpoints, and then stop.
#[test]
fn a_call_that_stops_in_the_middle_is_closed() {
    within(Duration::from_secs(60), "calls that stop", || {
        let port = free_port();
        let url = format!("tcp://127.0.0.1:{port}");
        let more = [("KOLO_TRANSPORT", "tcp")];
        let mut ranks = [0, 1].map(|n| rank(n, 2, &url, &["loop", "8"], &more));
        ranks.iter_mut().for_each(|rank| drop(rank.expect("@running")));
        let ports: Vec<u16> = ranks.iter().flat_map(|rank| listening(rank.id())).collect();
        assert!(ports.contains(&port));
        let begun = Instant::now();
        let starts: [&[u8]; 3] = [b"KOLOrly\n", b"KOLOrly\nand some more", b"\x89Kolo\r\n\x1a"];
        let calls = ports.iter().flat_map(|port| starts.map(|start| (port, start)));
        let streams: Vec<TcpStream> = calls
            .map(|(port, start)| {
                let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                stream.write_all(start).unwrap();
                stream
            })
            .collect();
        for mut stream in streams {
            let read = stream.read(&mut [0; 1]);
            let is_closed = matches!(&read, Ok(0))
                || read.as_ref().is_err_and(|e| e.kind() == ErrorKind::ConnectionReset);
            assert!(is_closed, "{read:?}");
        }
        println!("{} ports, closed after {:.1?}", ports.len(), begun.elapsed());
        ranks[1].signal(Signal::KILL);
        let error = ranks[0].expect("@error ");
        assert!(error.contains("rank 1 is lost"), "{error}");
    });
}

#[test]
fn both_errors_count_the_strangers() {
    within(Duration::from_secs(90), "a job that does not gather", || {
        // If the machine pauses, rank 1 may not hear of the strangers within the shorter limits.
        let are_counted = |(soon, last)| {
            let errors = errors_after_strangers(soon, last);
            println!("{errors:#?}");
            errors.iter().all(|error| error.contains("20 connections rejected"))
        };
        assert!([("2", "5"), ("8", "15")].into_iter().any(are_counted), "the strangers are not counted");
    });
}

/// Returns the errors of ranks 1 and 0, with these limits for joining, after 20 strangers have come to the port.
fn errors_after_strangers(soon: &str, last: &str) -> [String; 2] {
    let port = free_port();
    let url = format!("tcp://127.0.0.1:{port}");
    let mut zero = rank(0, 3, &url, &["ready"], &[("KOLO_JOIN_TIMEOUT", last)]);
    wait_for_port(&zero, port);
    for _ in 0..20 {
        let mut stranger = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
    }
    let mut soon = rank(1, 3, &url, &["ready"], &[("KOLO_JOIN_TIMEOUT", soon)]);
    let mut late = rank(2, 3, "tcp://127.0.0.1:1", &["ready"], &[("KOLO_JOIN_TIMEOUT", "0.1")]);
    late.expect("@error ");
    [soon.expect("@error "), zero.expect("@error ")]
}

fn file(rank: u32, path: &Path) -> JoinSpec {
    let locator = Locator::File { path: path.to_owned() };
    JoinSpec { timeout: LONG, ..JoinSpec::new(rank, 2, locator, "a test") }
}

fn start(spec: JoinSpec) -> JoinHandle<kolo::Result<Control>> {
    std::thread::spawn(move || Control::join(&spec, &ControlRuntime::new()?))
}

/// Waits for the file; returns the address of rank 0 in it, and its text.
fn posted(path: &Path) -> (SocketAddr, String) {
    let until = Instant::now() + LONG;
    loop {
        if let Ok(text) = std::fs::read_to_string(path)
            && let Ok(notice) = serde_json::from_str::<serde_json::Value>(&text)
        {
            let addresses = notice["addresses"].as_array().unwrap();
            return (addresses.last().unwrap().as_str().unwrap().parse().unwrap(), text);
        }
        assert!(Instant::now() < until, "rank 0 posts nothing");
        std::thread::yield_now();
    }
}

#[test]
fn who_has_not_read_the_file_gets_no_rank() {
    within(Duration::from_secs(60), "a job by a file", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let zero = start(file(0, &path));
        let (at, _) = posted(&path);
        // A stranger that finds the port and uses Kolo itself.
        let is_refused = |limit_s| {
            let locator = Locator::Tcp { host: at.ip().to_string(), port: at.port() };
            let timeout = Duration::from_secs(limit_s);
            let stranger = JoinSpec { timeout, ..JoinSpec::new(1, 2, locator, "a stranger") };
            let refused = start(stranger).join().unwrap().expect_err("refused").to_string();
            println!("{refused}");
            refused.contains("another job")
        };
        // If the machine pauses, it may not come as far as that within the shorter limit.
        assert!([1, 8].into_iter().any(is_refused), "another error");
        let one = start(file(1, &path)).join().unwrap().expect("the real rank 1");
        let zero = zero.join().unwrap().unwrap();
        assert_eq!(zero.rejected_connections().map(|count| count > 0), Some(true));
        leave([zero, one]);
    });
}

fn leave(controls: [Control; 2]) {
    let leaving = controls.map(|control| std::thread::spawn(move || control.leave()));
    for thread in leaving {
        thread.join().unwrap();
    }
}

#[test]
fn a_job_on_one_host_is_not_reachable_from_others() {
    within(Duration::from_secs(60), "a job on one host", || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let local = |rank: u32| {
            let text = format!("file://{}?rank={rank}&world_size=2", path.display());
            let environment =
                |name: &str| ["WORLD_SIZE", "LOCAL_WORLD_SIZE"].contains(&name).then(|| "2".to_owned());
            JoinSpec { timeout: LONG, ..JoinSpec::parse_url_with(&text, &environment).unwrap() }
        };
        let zero = start(local(0));
        let (_, text) = posted(&path);
        let notice: serde_json::Value = serde_json::from_str(&text).unwrap();
        for address in notice["addresses"].as_array().unwrap() {
            let address: SocketAddr = address.as_str().unwrap().parse().unwrap();
            assert!(address.ip().is_loopback(), "{address}");
        }
        let port = posted(&path).0.port();
        let hosts_own = listening_addresses(port);
        assert!(hosts_own.iter().all(|local| local.starts_with("0100007F")), "{hosts_own:?}");
        let one = start(local(1)).join().unwrap().unwrap();
        leave([zero.join().unwrap().unwrap(), one]);
    });
}

/// Returns the addresses on which a socket listens at the port, in the kernel's notation.
fn listening_addresses(port: u16) -> Vec<String> {
    let tables = ["/proc/self/net/tcp", "/proc/self/net/tcp6"].map(std::fs::read_to_string);
    let suffix = format!(":{port:04X}");
    let lines = tables.iter().flatten().flat_map(|table| table.lines());
    let fields = lines.map(|line| line.split_ascii_whitespace().collect::<Vec<_>>());
    fields
        .filter(|f| f.len() > 3 && f[3] == "0A" && f[1].ends_with(&suffix))
        .map(|f| f[1].trim_end_matches(&suffix).to_owned())
        .collect()
}

/// A relay between rank 1 and the coordinator, which forwards all data, records it, and can change one byte.
struct Relay {
    port: u16,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Relay {
    /// Makes a relay; `change` is the offset of a byte to change in the data to the rank on the first connection.
    fn to(coordinator: SocketAddr, change: Option<usize>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let record = seen.clone();
        std::thread::spawn(move || {
            let changes = Arc::new(AtomicU16::new(0));
            for rank in listener.incoming().flatten() {
                let Ok(coordinator) = TcpStream::connect(coordinator) else { continue };
                let change = change.filter(|_| changes.fetch_add(1, Ordering::Relaxed) == 0);
                let ways =
                    [(rank.try_clone(), coordinator.try_clone(), None), (Ok(coordinator), Ok(rank), change)];
                for (from, to, change) in ways {
                    let (Ok(from), Ok(to)) = (from, to) else { continue };
                    let record = record.clone();
                    std::thread::spawn(move || pass(from, to, change, &record));
                }
            }
        });
        Self { port, seen }
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, change: Option<usize>, record: &Mutex<Vec<u8>>) {
    let (mut buffer, mut passed) = ([0; 4096], 0);
    while let Ok(bytes @ 1..) = from.read(&mut buffer) {
        record.lock().unwrap().extend_from_slice(&buffer[..bytes]);
        if let Some(at) = change.filter(|at| (passed..passed + bytes).contains(at)) {
            buffer[at - passed] ^= 1;
        }
        passed += bytes;
        if to.write_all(&buffer[..bytes]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Starts rank 0 with a rendezvous file, and makes a copy of the file that leads to a relay.
fn relayed(
    folder: &Path,
    change: Option<usize>,
) -> (JoinHandle<kolo::Result<Control>>, PathBuf, Relay, String) {
    let path = folder.join("job");
    let zero = start(file(0, &path));
    let (coordinator, text) = posted(&path);
    let relay = Relay::to((Ipv4Addr::LOCALHOST, coordinator.port()).into(), change);
    let mut notice: serde_json::Value = serde_json::from_str(&text).unwrap();
    notice["addresses"] = serde_json::json!([format!("127.0.0.1:{}", relay.port)]);
    let other = folder.join("relayed");
    std::fs::write(&other, notice.to_string()).unwrap();
    (zero, other, relay, text)
}

#[test]
fn a_relay_learns_nothing() {
    within(Duration::from_secs(60), "a relayed job", || {
        let folder = tempfile::tempdir().unwrap();
        let (zero, other, relay, text) = relayed(folder.path(), None);
        let one = start(file(1, &other)).join().unwrap().expect("the relay passes on what is said");
        let zero = zero.join().unwrap().unwrap();
        let cookie = zero.job_cookie();
        assert_eq!(cookie, one.job_cookie());
        let secret_address = *b"an address on a transport";
        let blobs = std::thread::scope(|scope| {
            let both = [&zero, &one].map(|control| {
                scope.spawn(move || {
                    let key = GatherKey { communicator: 1, round: Round::Numbered(0) };
                    control.all_gather(key, &[0, 1], &secret_address.to_vec(), Instant::now() + LONG).unwrap()
                })
            });
            both.map(|thread| thread.join().unwrap())
        });
        assert_eq!(blobs[1], [secret_address; 2]);
        leave([zero, one]);
        let seen = relay.seen.lock().unwrap().clone();
        assert!(seen.len() > 500, "everything went by here");
        let has = |what: &[u8]| seen.windows(what.len()).any(|window| window == what);
        assert!(!has(&cookie), "the job's cookie");
        assert!(!has(&secret_address), "addresses");
        let notice: serde_json::Value = serde_json::from_str(&text).unwrap();
        let key = notice.get("key").or(notice.get("cookie")).unwrap().as_str().unwrap().to_owned();
        let key: Vec<u8> = (0..16).map(|i| u8::from_str_radix(&key[2 * i..2 * i + 2], 16).unwrap()).collect();
        assert!(!has(&key), "the rendezvous' key");
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
        assert!(!has(host.trim().as_bytes()), "the host's name");

        // The recording gives no access: replayed to a coordinator, it is a stranger's.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        std::fs::copy(other, folder.path().join("old")).unwrap();
        let zero = start(JoinSpec { timeout: Duration::from_secs(6), ..file(0, &path) });
        let (coordinator, _) = posted(&path);
        let mut again = TcpStream::connect((Ipv4Addr::LOCALHOST, coordinator.port())).unwrap();
        again.write_all(&seen).unwrap();
        again.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = Vec::new();
        let _ = again.read_to_end(&mut answer);
        assert!(answer.len() <= 64 + 33, "a preamble and a refusal, nothing else");
        let error = zero.join().unwrap().expect_err("nobody has joined").to_string();
        assert!(error.contains("missing: rank 1") && error.contains("1 connection rejected"), "{error}");
    });
}

#[test]
fn a_relay_that_changes_a_byte_is_noticed() {
    // In the coordinator's preamble, and in its proof: the first connection fails, and the second passes unchanged.
    for at in [33, 70] {
        within(Duration::from_secs(60), "a changed handshake", move || {
            let folder = tempfile::tempdir().unwrap();
            let (zero, other, _relay, _) = relayed(folder.path(), Some(at));
            let one = start(file(1, &other)).join().unwrap().expect("it comes again");
            let zero = zero.join().unwrap().unwrap();
            assert_eq!(zero.job_cookie(), one.job_cookie());
            leave([zero, one]);
        });
    }
    // In the length, the body and the tag of the coordinator's first message, the welcome: the rank had joined by then.
    for at in [97, 98, 105] {
        within(Duration::from_secs(60), "a changed welcome", move || {
            let folder = tempfile::tempdir().unwrap();
            let (_zero, other, _relay, _) = relayed(folder.path(), Some(at));
            let joining = start(JoinSpec { timeout: Duration::from_secs(8), ..file(1, &other) });
            let refused = joining.join().unwrap().expect_err("what was changed is not believed").to_string();
            assert!(refused.contains("rank 1"), "{refused}");
        });
    }
}

/// One rank may open fewer files than it needs connections: all ranks name it, with the cause, and none waits for a
/// time-out.
#[test]
fn a_rank_without_descriptors_is_named_by_all() {
    // Of 8 ranks the last one only accepts, and the first only dials and runs the coordinator.
    for (starved, files, does) in [(7, [14, 13, 15], "accept connections"), (0, [20, 21, 19], "connect")] {
        within(Duration::from_secs(90), "a rank without descriptors", move || {
            let script =
                format!("test \"$KOLO_RANK\" = {starved} && ulimit -n \"$FILES\"; exec \"$0\" \"$@\"");
            let cause = format!("rank {starved} cannot {does}: it has no file descriptors left");
            // The number that suffices for joining, but not for all connections, depends a little on the system.
            let mut outcomes = Vec::new();
            for files in files {
                let settings = |_| {
                    vec![
                        ("KOLO_TRANSPORT", "tcp".to_owned()),
                        ("KOLO_JOIN_TIMEOUT", "10".to_owned()),
                        ("FILES", files.to_string()),
                    ]
                };
                let begin = Instant::now();
                let mut job = Job::start("sh", 8, 8, &["-c", &script, PROGRAM, "meet", "1000"], settings);
                let said: Vec<String> = job.ranks.iter_mut().map(last_words).collect();
                if said.iter().all(|words| words.contains(&cause) && words.contains("ulimit -n")) {
                    assert!(
                        begin.elapsed() < Duration::from_secs(25),
                        "KOLO_TIMEOUT is 30 s: {:?}",
                        begin.elapsed()
                    );
                    return;
                }
                outcomes.push(said);
            }
            panic!("never was it named by all: {outcomes:#?}");
        });
    }
}

/// Returns the report of a rank that has joined, or the reason why it has not.
fn last_words(rank: &mut Process) -> String {
    let first = rank.expect("@");
    if first.starts_with("joined") { rank.expect("@") } else { first }
}
