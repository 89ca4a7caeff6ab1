//! Tests of joining over sockets and files, and of everything that can go wrong with it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kolo::error::{Error, Result};
use kolo::internal::control::{Control, ControlRuntime, GatherKey, JobSecret, PROTOCOL, Round};
use kolo::{JoinSpec, Locator, UniqueId};
use kolo_transport::conformance::free_port;

/// Time limit beyond any test's needs on a busy machine. It is reached only if a test fails.
const LONG: Duration = Duration::from_secs(30);

/// Deadline that a test is meant to reach.
const SHORT: Duration = Duration::from_millis(400);

/// Deadline that a test is meant to reach after something else has happened, even if the machine pauses.
const AMPLE: Duration = Duration::from_secs(3);

fn tcp(rank: u32, world_size: u32, port: u16) -> JoinSpec {
    let locator = Locator::Tcp { host: "127.0.0.1".into(), port };
    JoinSpec { timeout: LONG, ..JoinSpec::new(rank, world_size, locator, "a test") }
}

fn file(rank: u32, world_size: u32, path: &Path) -> JoinSpec {
    let locator = Locator::File { path: path.to_owned() };
    JoinSpec { timeout: LONG, ..JoinSpec::new(rank, world_size, locator, "a test") }
}

/// Joins on a thread of its own and with a control thread of its own, as another process would.
fn start(spec: JoinSpec) -> JoinHandle<Result<Control>> {
    std::thread::spawn(move || Control::join(&spec, &ControlRuntime::new()?))
}

fn finish(joining: JoinHandle<Result<Control>>) -> Result<Control> {
    joining.join().unwrap()
}

fn problem(result: Result<Control>) -> String {
    match result {
        Err(error @ Error::Join { .. }) => error.to_string(),
        other => panic!("expected an error of joining, got {other:?}"),
    }
}

/// Lets the ranks exchange messages, then leave at about the same time.
fn use_and_leave(controls: Vec<Control>) {
    let members: Vec<u32> = (0..controls.len() as u32).collect();
    let threads: Vec<_> = controls
        .into_iter()
        .map(|control| {
            let members = members.clone();
            std::thread::spawn(move || {
                let key = GatherKey { communicator: 1, round: Round::Numbered(0) };
                let rank = control.rank() as u8;
                let blobs = control.all_gather(key, &members, &vec![rank], Instant::now() + LONG).unwrap();
                let expected: Vec<Vec<u8>> = members.iter().map(|&r| vec![r as u8]).collect();
                assert_eq!(blobs, expected);
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn ranks_join_by_tcp_in_any_order() {
    let port = free_port();
    let one = start(tcp(1, 3, port));
    let zero = start(tcp(0, 3, port));
    let two = start(tcp(2, 3, port));
    use_and_leave([zero, one, two].map(|joining| finish(joining).unwrap()).into());
}

#[test]
fn a_name_serves_as_well_as_an_address() {
    let port = free_port();
    let named = |rank| {
        let locator = Locator::Tcp { host: "localhost".into(), port };
        JoinSpec { locator, ..tcp(rank, 2, port) }
    };
    let (one, zero) = (start(named(1)), start(named(0)));
    use_and_leave([zero, one].map(|joining| finish(joining).unwrap()).into());
}

#[test]
fn strangers_do_not_matter() {
    let port = free_port();
    let zero = start(tcp(0, 2, port));
    let connect = || {
        let until = Instant::now() + LONG;
        loop {
            match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
                Ok(stream) => return stream,
                Err(error) => assert!(Instant::now() < until, "{error}"),
            }
        }
    };
    let silent = connect();
    let mut half = connect();
    half.write_all(b"KOLOctl\n").unwrap();
    for garbage in [&b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], &[0xff; 4096]] {
        let mut stranger = connect();
        stranger.write_all(garbage).unwrap();
        stranger.set_read_timeout(Some(LONG)).unwrap();
        let mut answer = Vec::new();
        // The connection is dropped: the stranger sees an end or a reset, never an answer.
        let _ = stranger.read_to_end(&mut answer);
        assert!(answer.is_empty());
    }
    // This sends a fitting preamble, then a frame that claims 4 GiB.
    let mut huge = connect();
    huge.write_all(&preamble(env!("CARGO_PKG_VERSION"), PROTOCOL, false)).unwrap();
    huge.write_all(&[0xff; 8]).unwrap();
    huge.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    let _ = huge.read_to_end(&mut answer);
    assert_eq!(answer.len(), 64, "the coordinator's preamble, nothing else");

    let one = finish(start(tcp(1, 2, port))).unwrap();
    let zero = finish(zero).unwrap();
    assert_eq!(zero.rejected_connections(), Some(3), "those that were dropped by now");
    drop((silent, half));
    use_and_leave(vec![zero, one]);
}

#[test]
fn the_second_of_two_equal_ranks_is_refused() {
    let port = free_port();
    let zero = start(tcp(0, 3, port));
    let one = start(tcp(1, 3, port));
    let again = start(tcp(1, 3, port));
    // The second of the two is refused. The job still lacks rank 2, so the first one waits.
    let until = Instant::now() + LONG;
    while !one.is_finished() && !again.is_finished() {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
    let (refused, kept) = if one.is_finished() { (one, again) } else { (again, one) };
    let refused = problem(finish(refused));
    let me = std::process::id().to_string();
    assert!(refused.contains("already has it") && refused.matches(&me).count() >= 2, "{refused}");
    let two = finish(start(tcp(2, 3, port))).unwrap();
    let (zero, kept) = (finish(zero).unwrap(), finish(kept).unwrap());
    // A duplicate is also refused after everybody has joined.
    let late = problem(finish(start(tcp(2, 3, port))));
    assert!(late.contains("rank 2 (process") && late.contains("its own rank"), "{late}");
    use_and_leave(vec![zero, kept, two]);
}

#[test]
fn other_world_sizes_are_named() {
    let port = free_port();
    let zero = start(JoinSpec { timeout: AMPLE, ..tcp(0, 2, port) });
    let odd = problem(finish(start(tcp(1, 3, port))));
    assert!(odd.contains("3 ranks") && odd.contains("rank 0 was told that it has 2"), "{odd}");
    let verdict = problem(finish(zero));
    assert!(verdict.contains("missing: rank 1") && verdict.contains("3 ranks"), "{verdict}");
}

#[test]
fn secrets_keep_others_out() {
    let port = free_port();
    let with = |rank, secret: &str| JoinSpec { secret: JobSecret::new(secret), ..tcp(rank, 2, port) };
    let zero = start(with(0, "right"));
    let wrong = problem(finish(start(with(1, "wrong"))));
    assert!(wrong.contains("different job secret") && wrong.contains("KOLO_JOB_SECRET"), "{wrong}");
    let none = problem(finish(start(tcp(1, 2, port))));
    assert!(none.contains("rank 0 has a job secret, but this process has none"), "{none}");
    let one = finish(start(with(1, "right"))).unwrap();
    use_and_leave(vec![finish(zero).unwrap(), one]);
}

#[test]
fn another_version_is_told_on_both_sides() {
    let preamble = preamble("9.8.7", 77, false);
    // First, a rank of another version joins at this coordinator.
    let port = free_port();
    let zero = start(JoinSpec { timeout: AMPLE, ..tcp(0, 2, port) });
    let until = Instant::now() + LONG;
    let mut other = loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < until, "{error}"),
        }
    };
    other.write_all(&preamble).unwrap();
    other.set_read_timeout(Some(LONG)).unwrap();
    let mut answer = Vec::new();
    other.read_to_end(&mut answer).unwrap();
    assert_eq!(answer.len(), 64, "it is told this version");
    let verdict = problem(finish(zero));
    assert!(verdict.contains("runs Kolo 9.8.7 (protocol 77)"), "{verdict}");
    // Then this rank joins at a coordinator of another version.
    let coordinator = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = start(tcp(1, 2, coordinator.local_addr().unwrap().port()));
    let (mut stream, _) = coordinator.accept().unwrap();
    stream.write_all(&preamble).unwrap();
    let told = problem(finish(one));
    assert!(told.contains("rank 0 runs Kolo 9.8.7") && told.contains("same version"), "{told}");
}

#[test]
fn an_unreachable_rank_0_is_named() {
    let port = free_port();
    let begin = Instant::now();
    let refused = start(JoinSpec { timeout: AMPLE, ..tcp(1, 2, port) });
    let locator = Locator::Tcp { host: "no-such-host.invalid".into(), port };
    let unknown = problem(finish(start(JoinSpec { timeout: SHORT, locator, ..tcp(1, 2, port) })));
    assert!(unknown.contains("no-such-host.invalid"), "{unknown}");
    let error = problem(finish(refused));
    assert!(begin.elapsed() < LONG / 2);
    assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("efused"), "{error}");
}

/// Opens a port of this host that does not answer because its queue is full, as if a firewall dropped all packets to
/// it. It stays so as long as the second return value lives.
fn silent_port() -> (u16, impl Sized) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    while let Ok(stream) = TcpStream::connect_timeout(&address, SHORT) {
        queued.push(stream);
        assert!(queued.len() < 100, "the queue does not fill");
    }
    (address.port(), (listener, queued))
}

#[test]
fn what_does_not_answer_is_named_with_the_remedy() {
    let (port, _silent) = silent_port();
    let address = format!("127.0.0.1:{port}");
    let store = Locator::Store { host: "127.0.0.1".into(), port, prefix: "x".into() };
    // Some attempts are ended by the deadline, and others end by themselves.
    let ends = [
        (Duration::from_secs(7), tcp(1, 2, port).locator, format!("{address}: no answer within")),
        (
            AMPLE,
            tcp(1, 2, port).locator,
            format!("(tried {address}; 1 attempts; the last: no answer yet from {address})"),
        ),
        (
            Duration::from_secs(8),
            store.clone(),
            format!("the TCPStore at {address}: no answer; a firewall may be"),
        ),
        (AMPLE, store, format!("no answer yet from the TCPStore at {address}")),
    ];
    let joining = ends.map(|(timeout, locator, expected)| {
        (start(JoinSpec { timeout, locator, ..tcp(1, 2, port) }), expected)
    });
    for (joining, expected) in joining {
        let error = problem(finish(joining));
        assert!(error.contains(&expected) && error.contains("whether a firewall is in the way"), "{error}");
    }
}

#[test]
fn something_else_at_the_port_is_recognised() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let one = start(JoinSpec { timeout: AMPLE, ..tcp(1, 2, port) });
    let answering = std::thread::spawn(move || {
        listener.set_nonblocking(false).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        listener // kept open: later attempts get silence
    });
    let error = problem(finish(one));
    drop(answering.join().unwrap());
    assert!(error.contains("not Kolo") && error.contains("HTTP/1.1 400"), "{error}");
}

#[test]
fn missing_ranks_are_named_to_everybody() {
    let port = free_port();
    let of_eight = [start(JoinSpec { timeout: AMPLE, ..tcp(0, 8, port) }), start(tcp(3, 8, port))];
    // A rank whose own deadline comes first also knows the missing ranks.
    let port = free_port();
    let zero = start(JoinSpec { timeout: 2 * AMPLE, ..tcp(0, 3, port) });
    let error = problem(finish(start(JoinSpec { timeout: AMPLE, ..tcp(1, 3, port) })));
    assert!(error.contains("still waits for rank 2"), "{error}");
    for error in of_eight.map(|joining| problem(finish(joining))) {
        assert!(error.contains("ranks 1, 2, 4-7") && error.contains("only 2 of 8"), "{error}");
    }
    let error = problem(finish(zero));
    assert!(error.contains("ranks 1, 2") && error.contains("joined, but then"), "{error}");
}

#[test]
fn a_taken_port_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let error = problem(finish(start(tcp(0, 2, port))));
    assert!(error.contains(&port.to_string()) && error.contains("MASTER_PORT"), "{error}");
}

#[test]
fn another_job_at_the_port_is_waited_out() {
    let port = free_port();
    let named = |rank, job: &str| JoinSpec { job: job.into(), ..tcp(rank, 2, port) };
    let first = start(JoinSpec { timeout: 2 * SHORT, ..named(0, "first") });
    let second = start(named(1, "second"));
    let error = problem(finish(first));
    assert!(
        error.contains("missing: rank 1") && !error.contains("turned away") && !error.contains("rejected"),
        "{error}"
    );
    let zero = start(named(0, "second"));
    use_and_leave(vec![finish(zero).unwrap(), finish(second).unwrap()]);
}

#[test]
fn a_rank_that_has_left_waits_until_rank_0_begins_the_next_job() {
    let port = free_port();
    let zero = start(tcp(0, 2, port));
    let one = finish(start(tcp(1, 2, port))).unwrap();
    let zero = finish(zero).unwrap();
    drop(one);
    let early = problem(finish(start(JoinSpec { timeout: SHORT, ..tcp(1, 2, port) })));
    assert!(early.contains("within 0.4 s") && early.contains("and rank 0 has not yet"), "{early}");
    let one = start(tcp(1, 2, port));
    drop(zero);
    let zero = finish(start(tcp(0, 2, port))).unwrap();
    use_and_leave(vec![zero, finish(one).unwrap()]);
}

#[test]
fn ranks_join_by_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job");
    let (one, two) = (start(file(1, 3, &path)), start(file(2, 3, &path)));
    let zero = start(file(0, 3, &path));
    let controls = [zero, one, two].map(|joining| finish(joining).unwrap());
    assert!(!path.exists(), "the file is gone once all have joined");
    use_and_leave(controls.into());
}

#[test]
fn a_stale_file_is_not_trusted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job");
    let stale = |port: u16| {
        let key = "0123456789abcdef0123456789abcdef";
        let text = format!(
            "{{\"kolo\":2,\"addresses\":[\"127.0.0.1:{port}\"],\"key\":\"{key}\",\"host\":\"gone\",\"pid\":1,\
             \"process_start\":5}}"
        );
        std::fs::write(&path, text).unwrap();
    };
    // No process listens at the file's address.
    stale(free_port());
    let error = problem(finish(start(JoinSpec { timeout: AMPLE, ..file(1, 2, &path) })));
    assert!(error.contains("written by process 1 on gone"), "{error}");
    // Another job listens at the file's address.
    let other_port = free_port();
    let other = start(JoinSpec { timeout: AMPLE, ..tcp(0, 2, other_port) });
    stale(other_port);
    let error = problem(finish(start(JoinSpec { timeout: AMPLE, ..file(1, 2, &path) })));
    assert!(error.contains("belongs to another job") || error.contains("efused"), "{error}");
    // Rank 0 replaces the file.
    let one = start(file(1, 2, &path));
    let zero = start(file(0, 2, &path));
    use_and_leave(vec![finish(zero).unwrap(), finish(one).unwrap()]);
    assert!(problem(finish(other)).contains("missing"));
}

/// The preamble of a process with this version and protocol, and a job secret or none.
fn preamble(version: &str, protocol: u32, has_secret: bool) -> [u8; 64] {
    let mut preamble = [0; 64];
    preamble[..8].copy_from_slice(b"KOLOctl\n");
    preamble[8..12].copy_from_slice(&protocol.to_le_bytes());
    preamble[12] = has_secret.into();
    preamble[16..16 + version.len()].copy_from_slice(version.as_bytes());
    preamble
}

/// Answers every caller at a port as a process of another job does, until the receiver is dropped: with a preamble, and
/// with the verdict that the caller's secret is wrong. Reports each answer.
fn stranger(listener: TcpListener, preamble: [u8; 64]) -> mpsc::Receiver<()> {
    let (answered, answers) = mpsc::channel();
    std::thread::spawn(move || {
        for mut caller in listener.incoming().flatten() {
            let answer = |caller: &mut TcpStream| {
                caller.read_exact(&mut [0; 64])?;
                caller.write_all(&preamble)?;
                caller.read_exact(&mut [0; 64])?;
                caller.write_all(&[1; 33])
            };
            let _ = answer(&mut caller);
            if answered.send(()).is_err() {
                return;
            }
        }
    });
    answers
}

/// An earlier rank 0 has left its file, and by now another program has its port.
#[test]
fn a_stranger_at_the_address_in_a_file_does_not_end_joining() {
    let version = env!("CARGO_PKG_VERSION");
    for preamble in [preamble("9.8.7", 77, false), preamble(version, PROTOCOL, true)] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("job");
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let text = format!(
            "{{\"kolo\":2,\"addresses\":[\"{}\"],\"key\":\"0123456789abcdef0123456789abcdef\",\"host\":\"gone\",\
             \"pid\":1,\"process_start\":5}}",
            listener.local_addr().unwrap()
        );
        std::fs::write(&path, text).unwrap();
        let answers = stranger(listener, preamble);
        let one = start(file(1, 2, &path));
        answers.recv_timeout(LONG).unwrap();
        answers.recv_timeout(LONG).expect("rank 1 looks again");
        let alone = problem(finish(start(JoinSpec { timeout: AMPLE, ..file(1, 2, &path) })));
        let told = alone.contains("rank 0 runs Kolo 9.8.7") && alone.contains("led to no other process");
        assert!(told || alone.contains("belongs to another job"), "{alone}");
        let zero = start(file(0, 2, &path));
        use_and_leave(vec![finish(zero).unwrap(), finish(one).unwrap()]);
    }
}

/// A program of another user can listen at the port before rank 0 does.
#[test]
fn a_stranger_at_the_port_of_an_id_does_not_end_joining() {
    let id = UniqueId::new(Some("127.0.0.1")).unwrap();
    let spec = |rank| JoinSpec { timeout: LONG, ..id.join_spec(2, rank).unwrap() };
    let Locator::Tcp { port, .. } = spec(0).locator else { panic!("an id names a port") };
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let answers = stranger(listener, preamble(env!("CARGO_PKG_VERSION"), PROTOCOL, true));
    let one = start(spec(1));
    answers.recv_timeout(LONG).unwrap();
    answers.recv_timeout(LONG).expect("rank 1 looks again");
    drop(answers); // The port is free after one more call of rank 1.
    let zero = finish(start(spec(0))).unwrap();
    use_and_leave(vec![zero, finish(one).unwrap()]);
}

#[test]
fn a_file_in_use_by_a_running_job_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("job");
    let mut sleeper = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", sleeper.id())).unwrap();
    let start_ticks = stat.rsplit_once(')').unwrap().1.split_ascii_whitespace().nth(19).unwrap().to_owned();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap().trim().to_owned();
    let key = "0123456789abcdef0123456789abcdef";
    let text = format!(
        "{{\"kolo\":2,\"addresses\":[\"127.0.0.1:9\"],\"key\":\"{key}\",\"host\":\"{host}\",\"pid\":{},\
         \"process_start\":{start_ticks}}}",
        sleeper.id()
    );
    std::fs::write(&path, &text).unwrap();
    let error = problem(finish(start(file(0, 2, &path))));
    assert!(error.contains("in use by rank 0 of another job"), "{error}");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let (one, zero) = (start(file(1, 2, &path)), start(file(0, 2, &path)));
    use_and_leave(vec![finish(zero).unwrap(), finish(one).unwrap()]);
}

#[test]
fn ranks_join_by_multicast() {
    let group = Ipv4Addr::new(239, 255, 77, (std::process::id() % 250) as u8);
    let probe = std::net::UdpSocket::bind((group, 0));
    let allowed = probe.and_then(|socket| {
        socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST)?;
        socket2::SockRef::from(&socket).set_multicast_if_v4(&Ipv4Addr::LOCALHOST)?;
        socket.set_read_timeout(Some(SHORT))?;
        socket.send_to(b"probe", (group, socket.local_addr()?.port()))?;
        socket.recv(&mut [0; 16])?;
        socket.local_addr()
    });
    let port = match allowed {
        Ok(address) => address.port(),
        Err(error) => {
            return println!("skipped: this machine does not carry multicast on loopback ({error})");
        }
    };
    let spec = |rank, job: &str| {
        let interface = Some(Ipv4Addr::LOCALHOST);
        let locator = Locator::Multicast { group, port, job: job.into(), interface };
        JoinSpec { timeout: LONG, ..JoinSpec::new(rank, 2, locator, "a test") }
    };
    let other = start(JoinSpec { timeout: SHORT, ..spec(1, "other") });
    let one = start(spec(1, "this"));
    let zero = start(spec(0, "this"));
    use_and_leave(vec![finish(zero).unwrap(), finish(one).unwrap()]);
    let error = problem(finish(other));
    assert!(error.contains("no process answered for job 'other'"), "{error}");
}

#[test]
fn numbers_that_make_no_sense_are_refused_at_once() {
    let runtime = ControlRuntime::new().unwrap();
    for (rank, world_size, words) in
        [(0, 0, "world size is 0"), (2, 2, "rank 2 does not exist"), (0, 5000, "4096")]
    {
        let error = Control::join(&tcp(rank, world_size, 9), &runtime).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
}
