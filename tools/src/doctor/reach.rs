//! Checks whether hosts reach each other: each dials each at all addresses, and sends a burst of full segments both
//! ways.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::line::{Line, Stop};

/// Time limit for dialling. A connection request is repeated after 1 s; one of the two should be answered.
const DIAL_LIMIT: Duration = Duration::from_millis(2500);

/// Longest silence during a burst; by then the segments that are missing have been sent four times.
const BURST_LIMIT: Duration = Duration::from_secs(2);

/// Length of a burst: some twenty full segments, which any queue holds.
const BURST_BYTES: usize = 32 << 10;

/// Length of a segment that every path carries.
pub(crate) const SMALL_SEGMENT: u32 = 536;

/// Interval at which the listener checks whether it has to stop.
const LOOK: Duration = Duration::from_millis(50);

/// Secret that only the hosts of a job know.
pub(crate) type Token = [u8; 16];

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Send a burst there and back.
    Burst = 0,
    /// Measure rates, for a rank that waits for this connection.
    Rates = 1,
}

/// Most connections that are answered at a time: those of some hundred hosts, each at several addresses. The others
/// wait.
const MOST_ANSWERED: usize = 1024;

const NONCE: usize = 16;
const HELLO: usize = NONCE + 8;
const PROOF: usize = 32;

/// Makes the first message of a connection. The address may lead to another program, so the token is not in it: both
/// ends prove that they know the token, the one that answers first.
fn hello(from: u32, purpose: Purpose) -> io::Result<[u8; HELLO]> {
    let mut bytes = [0; HELLO];
    bytes[..NONCE].copy_from_slice(&nonce()?);
    bytes[NONCE..NONCE + 4].copy_from_slice(&from.to_le_bytes());
    bytes[NONCE + 4..].copy_from_slice(&(purpose as u32).to_le_bytes());
    Ok(bytes)
}

fn nonce() -> io::Result<[u8; NONCE]> {
    let mut bytes = [0; NONCE];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Returns the proof that an end of a connection knows the token. All parts have fixed lengths, so the hash of their
/// concatenation cannot be extended to that of other parts.
fn proof(token: &Token, end: [u8; 4], hello: &[u8; HELLO], nonce: &[u8; NONCE]) -> [u8; PROOF] {
    Sha256::new()
        .chain_update(token)
        .chain_update(end)
        .chain_update(hello)
        .chain_update(nonce)
        .finalize()
        .into()
}

/// The result of one host's attempt to reach another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// Number of the host that dialled.
    pub from: u32,
    /// Number of the other host.
    pub to: u32,
    /// The addresses of the other host, in the order in which the transport tries them.
    pub tries: Vec<Try>,
    /// Capability of the connection, if one was made.
    pub carries: Carries,
}

/// An attempt to dial one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Try {
    /// The address.
    pub address: IpAddr,
    /// The other host's interface with this address.
    pub interface: String,
    /// Order of the networks in which the transport tries them, the most promising one first; equal for cards that it
    /// uses together.
    pub distance: u8,
    /// The connection's local address, if it was made.
    pub local: Option<IpAddr>,
    /// The reason why there is no connection, or no data on it.
    pub problem: Option<String>,
    /// Whether the connection carries small segments and loses full ones.
    pub black_hole: bool,
}

/// Capability of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Carries {
    /// Nothing: there is no connection.
    Nothing,
    /// Full segments, both ways.
    All,
    /// Small segments only; full ones are lost.
    SmallOnly {
        /// Whether they are lost on the way out, rather than on the way back.
        outward: bool,
        /// Bytes of a full segment.
        segment_bytes: u32,
    },
    /// Not even small segments; the text says why.
    Stalls(String),
}

impl Reach {
    /// Returns the addresses that the transport tries in vain, or would use besides the one that answers. None if no
    /// address does.
    pub(crate) fn in_vain(&self) -> impl Iterator<Item = &Try> {
        let limit = self.way().map_or(0, |way| way.distance + 1);
        self.tries.iter().filter(move |tried| tried.problem.is_some() && tried.distance < limit)
    }

    /// Returns the address at which the connection was made.
    pub(crate) fn way(&self) -> Option<&Try> {
        self.tries.iter().find(|tried| tried.problem.is_none())
    }

    /// Returns whether data can be sent, perhaps in small segments only.
    pub(crate) fn works(&self) -> bool {
        matches!(self.carries, Carries::All | Carries::SmallOnly { .. })
    }
}

/// Another host, as a target for dialling.
#[derive(Clone, Debug)]
pub(crate) struct Target {
    pub host: u32,
    /// Addresses with the names of their interfaces and their distances.
    pub addresses: Vec<(String, IpAddr, u8)>,
    pub port: u16,
}

/// Dials a host at all its addresses at once, and sends a burst over the first that answers. Blocks for at most some
/// seconds.
pub(crate) fn reach(token: &Token, from: u32, target: &Target) -> Reach {
    let tried = in_parallel(&target.addresses, target.addresses.len(), |(_, ip, _)| {
        dial(token, from, SocketAddr::new(*ip, target.port), None, Purpose::Burst)
    });
    let words =
        |(outcome, (interface, address, distance)): (&Result<Line, String>, &(String, IpAddr, u8))| Try {
            address: *address,
            interface: interface.clone(),
            distance: *distance,
            local: outcome.as_ref().ok().and_then(Line::local),
            problem: outcome.as_ref().err().cloned(),
            black_hole: false,
        };
    let mut tries: Vec<Try> = tried.iter().zip(&target.addresses).map(words).collect();
    let mut lines = tried.into_iter().zip(0..).filter_map(|(line, at)| Some((line.ok()?, at)));
    let first = lines.next();
    let at_first = first.as_ref().map(|(_, at)| *at);
    let at_address =
        |line, at: usize| carries(token, from, line, SocketAddr::new(target.addresses[at].1, target.port));
    let carries = first.map_or(Carries::Nothing, |(line, at)| at_address(line, at));
    // Long messages use the other cards that are as near.
    if let Some(first) = at_first.filter(|_| carries == Carries::All) {
        let distance = tries[first].distance;
        for (line, at) in lines.filter(|(_, at)| target.addresses[*at].2 == distance) {
            (tries[at].problem, tries[at].black_hole) = match at_address(line, at) {
                Carries::All | Carries::Nothing => continue,
                Carries::SmallOnly { .. } => (Some("full segments vanish".to_owned()), true),
                Carries::Stalls(why) => (Some(why), false),
            };
        }
    }
    Reach { from, to: target.host, tries, carries }
}

/// Does the same with all items, on this thread and so many others that at most `most` are at work, and returns the
/// results in their order. If the system refuses threads, there are fewer.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    most: usize,
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let worker = || {
        let mut done = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return done };
            done.push((at, work(item)));
        }
    };
    let mut done = thread::scope(|scope| {
        let start = || thread::Builder::new().spawn_scoped(scope, worker).ok();
        let others: Vec<_> = (1..most.min(items.len())).map_while(|_| start()).collect();
        let mut done = worker();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Sends a burst over a connection to this address, and if it stalls, another one in small segments.
fn carries(token: &Token, from: u32, line: Line, to: SocketAddr) -> Carries {
    let mut line = line.with_limit(BURST_LIMIT);
    let Err(stop) = burst(&mut line) else { return Carries::All };
    if let Stop::Slow { .. } = stop {
        return Carries::Stalls(stop.to_string());
    }
    let info = line.info();
    drop(line);
    let small = dial(token, from, to, Some(SMALL_SEGMENT), Purpose::Burst)
        .map(|line| burst(&mut line.with_limit(BURST_LIMIT)));
    match (small, stop) {
        (Ok(Ok(())), Stop::Late(_)) => {
            Carries::SmallOnly { outward: info.unacknowledged > 0, segment_bytes: info.segment_bytes }
        }
        (_, stop) => Carries::Stalls(stop.to_string()),
    }
}

/// Opens a line for measuring rates.
pub(crate) fn dial_for_rates(
    token: &Token,
    from: u32,
    to: SocketAddr,
    segment: Option<u32>,
) -> Result<Line, String> {
    dial(token, from, to, segment, Purpose::Rates)
}

fn dial(
    token: &Token,
    from: u32,
    to: SocketAddr,
    segment: Option<u32>,
    purpose: Purpose,
) -> Result<Line, String> {
    let mut line = Line::dial(to, segment, DIAL_LIMIT).map_err(|error| match error.kind() {
        io::ErrorKind::TimedOut => format!("no answer within {:.1} s", DIAL_LIMIT.as_secs_f64()),
        io::ErrorKind::ConnectionRefused => "refused".to_owned(),
        _ => error.to_string(),
    })?;
    let hello = hello(from, purpose).map_err(|error| error.to_string())?;
    let (mut nonce, mut theirs) = ([0; NONCE], [0; PROOF]);
    let greeted = line.transfer(&hello, &mut nonce).and_then(|()| line.transfer(&[], &mut theirs));
    greeted.map_err(|stop| stop.to_string())?;
    if theirs != proof(token, *b"answ", &hello, &nonce) {
        return Err("something else answers there".to_owned());
    }
    line.transfer(&proof(token, *b"dial", &hello, &nonce), &mut []).map_err(|stop| stop.to_string())?;
    Ok(line)
}

fn burst(line: &mut Line) -> Result<(), Stop> {
    let mut back = vec![0; BURST_BYTES];
    line.transfer(&vec![0x5a; BURST_BYTES], &mut [])?;
    line.transfer(&[], &mut back)
}

/// Answers other hosts that dial this one, until it is dropped.
#[derive(Debug)]
pub(crate) struct Answering {
    pub port: u16,
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    token: Token,
    is_over: AtomicBool,
    arrived: Mutex<HashMap<u32, Line>>,
    news: Condvar,
}

impl Answering {
    /// Starts to listen.
    pub(crate) fn start(listener: TcpListener, token: Token) -> io::Result<Self> {
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            token,
            is_over: AtomicBool::new(false),
            arrived: Mutex::default(),
            news: Condvar::new(),
        });
        let own = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("doctor-listener".to_owned())
            .spawn(move || accept(&listener, &own))?;
        Ok(Self { port, shared, thread: Some(thread) })
    }

    /// Waits for a host to dial for a measurement.
    pub(crate) fn wait_for(&self, from: u32, patience: Duration) -> Option<Line> {
        let until = Instant::now() + patience;
        let mut arrived = self.shared.arrived.lock().unpoisoned();
        loop {
            if let Some(line) = arrived.remove(&from) {
                return Some(line);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return None;
            }
            arrived = self.shared.news.wait_timeout(arrived, left).unpoisoned().0;
        }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
    let time = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
    while !shared.is_over.load(Ordering::Relaxed) {
        let has_room = Arc::strong_count(shared) <= MOST_ANSWERED;
        let mut watched = [PollFd::new(listener, PollFlags::IN)];
        let _ = poll(&mut watched[..usize::from(has_room)], Some(&time));
        while Arc::strong_count(shared) <= MOST_ANSWERED {
            let socket = match listener.accept() {
                Ok((socket, _)) => socket,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => {
                    // Most likely, no descriptor is left, and the caller would make the listener readable at once.
                    let _ = poll(&mut [], Some(&time));
                    break;
                }
            };
            let shared = Arc::clone(shared);
            // If the thread cannot be started, the other end gets no answer and reports that.
            let _ = thread::Builder::new().spawn(move || {
                if let Ok(line) = Line::new(socket, DIAL_LIMIT) {
                    answer(line, &shared);
                }
            });
        }
    }
}

fn answer(mut line: Line, shared: &Shared) {
    let (mut said, mut theirs) = ([0; HELLO], [0; PROOF]);
    let Ok(nonce) = nonce() else { return };
    if line.transfer(&[], &mut said).is_err() {
        return;
    }
    let own = [&nonce[..], &proof(&shared.token, *b"answ", &said, &nonce)].concat();
    if line.transfer(&own, &mut theirs).is_err() || theirs != proof(&shared.token, *b"dial", &said, &nonce) {
        return;
    }
    let word = |at: usize| said[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    let (from, purpose) = (word(NONCE), word(NONCE + 4));
    if purpose == Purpose::Rates as u32 {
        shared.arrived.lock().unpoisoned().insert(from, line);
        shared.news.notify_all();
        return;
    }
    let mut bytes = vec![0; BURST_BYTES];
    // The limit is longer than the other end waits, so that it sees silence and not the end of the connection.
    let mut line = line.with_limit(2 * BURST_LIMIT);
    if line.transfer(&[], &mut bytes).and_then(|()| line.transfer(&bytes, &mut [])).is_ok() {
        line.wait_for_end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;

    const TOKEN: Token = [9; 16];

    #[test]
    fn hosts_that_know_the_token_reach_each_other() {
        let listener = kolo_transport::tcp::listen(None).unwrap();
        let answering = Answering::start(listener.into(), TOKEN).unwrap();
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, answering.port));
        let target = Target { host: 1, addresses: vec![("lo".to_owned(), at.ip(), 0)], port: at.port() };
        assert_eq!(reach(&TOKEN, 0, &target).carries, Carries::All);
        let _line = dial_for_rates(&TOKEN, 7, at, None).unwrap();
        assert!(answering.wait_for(7, DIAL_LIMIT).is_some());
        let refused = dial_for_rates(&[8; 16], 7, at, None).unwrap_err();
        assert_eq!(refused, "something else answers there");
        assert!(answering.wait_for(7, Duration::ZERO).is_none());
    }

    #[test]
    fn no_more_threads_are_at_work_than_admitted() {
        let (items, at_work, most) = (Vec::from_iter(0..200), AtomicUsize::new(0), AtomicUsize::new(0));
        let doubled = in_parallel(&items, 4, |item| {
            most.fetch_max(at_work.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            thread::yield_now();
            at_work.fetch_sub(1, Ordering::SeqCst);
            2 * item
        });
        assert_eq!(doubled, Vec::from_iter((0..400).step_by(2)), "in their order");
        assert!((1..=4).contains(&most.into_inner()));
        assert!(in_parallel(&[0; 0], 4, |item| *item).is_empty());
    }

    /// The address of a bridge of containers, which every host may have, leads to another program.
    #[test]
    fn the_token_is_not_sent() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let other = thread::spawn(move || {
            let mut said = vec![0; HELLO];
            let mut stream: TcpStream = listener.accept().unwrap().0;
            stream.read_exact(&mut said).unwrap();
            stream.write_all(&[1; NONCE + PROOF]).unwrap();
            let _ = stream.read_to_end(&mut said);
            said
        });
        assert!(dial_for_rates(&TOKEN, 7, at, None).is_err());
        let said = other.join().unwrap();
        assert!(!said.windows(TOKEN.len()).any(|part| part == TOKEN), "{said:?}");
    }
}
