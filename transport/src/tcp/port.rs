//! One listening port for all endpoints of a process.
//!
//! The owner of the port, which has a thread, takes the connections and reads their hellos. [`Port::hand`] gives each
//! connection to the endpoint that its hello names. A hello must prove the job's cookie before it is handed over, so
//! strangers cannot fill a mailbox.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};
use socket2::Socket;

use super::socket;
use super::wire::{Answer, HELLO_BYTES, Hello, NotHello, PROTOCOL, Verdict, is_proven, key_of};
use crate::Unpoisoned;
use crate::proof::Key;
use crate::sys::descriptors;
use crate::sys::unshared::Unshared;

/// Number of bytes of a hello from which [`Port::hello_bytes`] knows the length of the hello.
pub const HELLO_START_BYTES: usize = 10;

/// Number of bytes from which a hello is recognised.
pub const HELLO_MAGIC_BYTES: usize = 8;

/// First bytes of what the owner of a port says for itself, to its own callers.
pub const OWNER_MAGIC: [u8; 8] = *b"KOLOctl\n";

/// Flag of an owner that closes a connection for lack of room, before it knows whom the connection is for. The flags are
/// the little-endian word at the bytes 12 to 15.
pub const OWNER_IS_FULL: u32 = 4;

/// Maximum number of connections that wait until their endpoint is polled: as many as the backlog of a listener would
/// hold.
const MAIL_MAX: usize = 4096;

/// Maximum number of connections with one hello that wait. A rank sends its hello again where the first connection does not
/// bring an answer, and that one may have broken unseen. Further ones are strangers' copies.
const COPIES_MAX: usize = 2;

/// Maximum number of jobs whose late connections are told that an endpoint is gone.
const KEYS_MAX: usize = 16;

/// A port that endpoints share. See [`TcpOptions::port`](super::TcpOptions).
#[derive(Debug)]
pub struct Port {
    at: SocketAddr,
    lodgers: Mutex<Lodgers>,
}

#[derive(Debug, Default)]
struct Lodgers {
    by_instance: HashMap<u64, Arc<Mailbox>>,
    /// Keys of the jobs that have or had endpoints here, the newest last.
    keys: Vec<Key>,
    /// Time since which there has been no descriptor for waiting connections, and the system's error code.
    hungry: Option<(Instant, i32)>,
}

/// A connection with its hello.
#[derive(Debug)]
pub(super) struct Mail {
    pub(super) socket: Unshared<Socket>,
    pub(super) from: SocketAddr,
    pub(super) hello: [u8; HELLO_BYTES],
}

/// Mailbox in which an endpoint finds its connections.
#[derive(Debug)]
struct Mailbox {
    key: Key,
    waiting: Mutex<Waiting>,
    has_news: AtomicBool,
    bell: OwnedFd,
}

#[derive(Debug, Default)]
struct Waiting {
    all: Vec<Mail>,
    /// Number of connections with each hello.
    copies: HashMap<[u8; HELLO_BYTES], usize>,
}

/// An endpoint's registration at a port, until it is dropped.
#[derive(Debug)]
pub(super) struct Lodging {
    port: Arc<Port>,
    instance: u64,
    mailbox: Arc<Mailbox>,
}

impl Port {
    /// Makes the port for a listener at this address.
    #[must_use]
    pub fn new(at: SocketAddr) -> Arc<Self> {
        Arc::new(Self { at, lodgers: Mutex::default() })
    }

    /// Returns the address at which it listens; the listener serves all addresses if that one is unspecified.
    #[must_use]
    pub fn at(&self) -> SocketAddr {
        self.at
    }

    /// Returns whether a connection that begins with these bytes is for an endpoint.
    #[must_use]
    pub fn is_hello(magic: &[u8; HELLO_MAGIC_BYTES]) -> bool {
        Hello::decode(magic).is_ok()
    }

    /// Returns whether the owner of a port answers that it has no room, so that the caller may try again.
    #[must_use]
    pub fn is_full(answer: &[u8]) -> bool {
        let flags =
            answer.get(12..).and_then(|rest| rest.first_chunk()).map(|flags| u32::from_le_bytes(*flags));
        answer.starts_with(&OWNER_MAGIC) && flags.is_some_and(|flags| flags & OWNER_IS_FULL != 0)
    }

    /// Returns how many bytes to read before [`Port::hand`], including `start`. For a hello of another version, that
    /// is no more than `start`.
    #[must_use]
    pub fn hello_bytes(start: &[u8; HELLO_START_BYTES]) -> usize {
        if Hello::decode(start).is_ok() { HELLO_BYTES } else { HELLO_START_BYTES }
    }

    /// Hands a connection to the endpoint that its first bytes name, or answers why not and drops it. Never blocks.
    pub fn hand(&self, stream: TcpStream, from: SocketAddr, bytes: &[u8]) {
        let socket = Unshared::new(Socket::from(stream));
        if socket.set_nonblocking(true).is_err() {
            return;
        }
        let reject = |verdict, proven: Option<(&[u8; HELLO_BYTES], &Key)>| {
            let answer = Answer { verdict, protocol: PROTOCOL, instance: 0 }.encode(proven);
            // The connection is dropped whether or not the answer gets through.
            let _ = socket::send_bytes(&socket, &answer);
        };
        let named = match (Hello::decode(bytes), bytes.first_chunk::<HELLO_BYTES>()) {
            (Ok(Some(hello)), Some(bytes)) => Some((hello, bytes)),
            (Err(NotHello::Version(_)), _) => return reject(Verdict::Version, None),
            _ => None,
        };
        let Some((hello, bytes)) = named else { return };
        let lodgers = self.lodgers();
        let Some(mailbox) = lodgers.by_instance.get(&hello.target).cloned() else {
            let key = lodgers.keys.iter().rev().find(|key| is_proven(bytes, key));
            return match key {
                Some(key) => reject(Verdict::Instance, Some((bytes, key))),
                None => reject(Verdict::Cookie, None),
            };
        };
        drop(lodgers);
        if !is_proven(bytes, &mailbox.key) {
            return reject(Verdict::Cookie, None);
        }
        mailbox.put(Mail { socket, from, hello: *bytes });
    }

    /// Notes that a connection waits because there is no descriptor for it. The endpoints fail after a while.
    pub fn starves(&self, error: &io::Error) {
        let mut lodgers = self.lodgers();
        if lodgers.hungry.is_none() && descriptors::are_out(error) {
            lodgers.hungry = Some((Instant::now(), error.raw_os_error().unwrap_or(libc::EMFILE)));
            lodgers.by_instance.values().for_each(|mailbox| mailbox.ring());
        }
    }

    /// Notes that a connection was taken, so that descriptors are available again.
    pub fn is_fed(&self) {
        self.lodgers().hungry = None;
    }

    /// Registers an endpoint.
    pub(super) fn lodge(self: &Arc<Self>, instance: u64, cookie: &[u8; 16]) -> io::Result<Lodging> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let key = key_of(cookie);
        let mailbox = Arc::new(Mailbox {
            key: key.clone(),
            waiting: Mutex::default(),
            has_news: AtomicBool::new(false),
            bell,
        });
        let mut lodgers = self.lodgers();
        // Keys cannot be compared, but a proof made with one is verified by an equal one.
        let proof = key.prove(&[b"same?"]);
        lodgers.keys.retain(|other| !other.verify(&[b"same?"], &proof));
        lodgers.keys.push(key);
        let extra = lodgers.keys.len().saturating_sub(KEYS_MAX);
        lodgers.keys.drain(..extra);
        lodgers.by_instance.insert(instance, mailbox.clone());
        drop(lodgers);
        Ok(Lodging { port: self.clone(), instance, mailbox })
    }

    fn lodgers(&self) -> MutexGuard<'_, Lodgers> {
        self.lodgers.lock().unpoisoned()
    }
}

impl Mailbox {
    fn put(&self, mail: Mail) {
        self.waiting.lock().unpoisoned().put(mail);
        self.ring();
    }

    /// Wakes the endpoint, whether it polls or sleeps.
    fn ring(&self) {
        self.has_news.store(true, Ordering::Release);
        // If the counter is full, the bell has rung already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

impl Waiting {
    /// Adds a connection if there is room. Copies of one hello take the room of each other, not that of others.
    fn put(&mut self, mail: Mail) {
        if self.all.len() >= MAIL_MAX {
            return;
        }
        let copies = self.copies.entry(mail.hello).or_default();
        if *copies == COPIES_MAX {
            let has_ended = |other: &Mail| other.hello == mail.hello && socket::is_at_end(&other.socket);
            let Some(ended) = self.all.iter().position(has_ended) else { return };
            self.all[ended] = mail;
        } else {
            *copies += 1;
            self.all.push(mail);
        }
    }
}

impl Lodging {
    pub(super) fn at(&self) -> SocketAddr {
        self.port.at
    }

    /// Returns a descriptor that is readable once there is news.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.mailbox.bell.as_fd()
    }

    /// Returns whether [`Lodging::take`] or [`Lodging::hungry`] has something new.
    pub(super) fn has_news(&self) -> bool {
        self.mailbox.has_news.load(Ordering::Relaxed)
    }

    /// Takes the connections that have come.
    pub(super) fn take(&self) -> Vec<Mail> {
        if !self.mailbox.has_news.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        // Epoll reports edges: a ring after this read is a new event.
        let _ = rustix::io::read(&self.mailbox.bell, &mut [0; 8]);
        std::mem::take(&mut *self.mailbox.waiting.lock().unpoisoned()).all
    }

    /// Returns the time since which connections have waited without a descriptor, and the error.
    pub(super) fn hungry(&self) -> Option<(Instant, io::Error)> {
        let hungry = self.port.lodgers().hungry;
        hungry.map(|(since, code)| (since, io::Error::from_raw_os_error(code)))
    }
}

impl Drop for Lodging {
    fn drop(&mut self) {
        self.port.lodgers().by_instance.remove(&self.instance);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::thread::JoinHandle;
    use std::time::Duration;

    use super::super::tests::{deliver, error_of_recv, introduce};
    use super::super::wire::NONCE_BYTES;
    use super::super::{TcpEndpoint, TcpOptions};
    use super::*;
    use crate::arm::{Armed, ParkBy};
    use crate::endpoint::{Channel, Endpoint};

    const COOKIE: [u8; 16] = [7; 16];
    const LONG: Duration = Duration::from_secs(20);

    /// A process: a port, and a thread that serves it.
    struct Process {
        port: Arc<Port>,
        is_over: Arc<AtomicBool>,
        thread: Option<JoinHandle<()>>,
    }

    impl Process {
        fn new() -> Self {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
            let port = Port::new(listener.local_addr().unwrap());
            let is_over = Arc::new(AtomicBool::new(false));
            let (over, to) = (is_over.clone(), port.clone());
            let serve = move || {
                while let Ok((mut stream, from)) = listener.accept() {
                    if over.load(Ordering::Relaxed) {
                        return;
                    }
                    // A connection that ends before its hello does is nobody's.
                    if let Ok(hello) = read_hello(&mut stream) {
                        to.hand(stream, from, &hello);
                    }
                }
            };
            Self { port, is_over, thread: Some(std::thread::spawn(serve)) }
        }

        fn endpoint(&self, rank: u32) -> TcpEndpoint {
            // No timer of the endpoint must wake it while a test waits.
            let (port, dial_patience) = (Some(self.port.clone()), 3 * LONG);
            let options = TcpOptions { cookie: COOKIE, port, dial_patience, ..Default::default() };
            TcpEndpoint::new(rank, 2, options).unwrap()
        }

        fn knock(&self) -> TcpStream {
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.port.at().port())).unwrap()
        }
    }

    fn read_hello(stream: &mut TcpStream) -> io::Result<Vec<u8>> {
        stream.set_read_timeout(Some(LONG))?;
        let mut start = [0; HELLO_START_BYTES];
        stream.read_exact(&mut start)?;
        let mut hello = vec![0; Port::hello_bytes(&start)];
        hello[..start.len()].copy_from_slice(&start);
        stream.read_exact(&mut hello[start.len()..])?;
        Ok(hello)
    }

    impl Drop for Process {
        fn drop(&mut self) {
            self.is_over.store(true, Ordering::Relaxed);
            drop(self.knock());
            let _ = self.thread.take().map(JoinHandle::join);
        }
    }

    #[test]
    fn endpoints_of_a_process_share_its_port_and_get_their_own_connections() {
        let processes = [Process::new(), Process::new()];
        let pair = || {
            let mut ends = [processes[0].endpoint(0), processes[1].endpoint(1)];
            introduce(&mut ends);
            ends
        };
        let mut communicators = [pair(), pair(), pair()];
        for ends in &communicators {
            assert_eq!(ends[1].port(), processes[1].port.at().port());
        }
        for ends in &mut communicators {
            deliver(ends, 0, 1, 0, 1000);
            deliver(ends, 1, 0, 1, 1000);
            assert_eq!(ends[1].rejected_connections().count, 0);
        }
    }

    #[test]
    fn a_sleeping_endpoint_is_woken_by_a_connection() {
        let process = Process::new();
        let mut end = process.endpoint(1);
        end.probe(Channel { peer: 0, index: 0 }).unwrap();
        // Events from before the endpoint sleeps are handled first, as by owners that poll once more after arming.
        let ready = |end: &mut TcpEndpoint, meanwhile: &dyn Fn(), wait: i64| {
            let Armed::Fd(fd) = end.arm(ParkBy::Fd) else { panic!("it waits for a connection") };
            meanwhile();
            let mut polled = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
            let wait = rustix::time::Timespec { tv_sec: wait, tv_nsec: 0 };
            let ready = rustix::event::poll(&mut polled, Some(&wait)).unwrap() > 0;
            end.disarm();
            ready
        };
        assert!(!ready(&mut end, &|| (), 0), "nobody has come");
        let hello = hello(end.me.instance).encode(&key_of(&COOKIE));
        let knock = || process.knock().write_all(&hello).unwrap();
        assert!(ready(&mut end, &knock, 20), "somebody has");
    }

    fn hello(target: u64) -> Hello {
        let nonce = [1; NONCE_BYTES];
        let (channel, strand, is_padded) = (0, 0, false);
        Hello { from: 0, to: 1, world_size: 2, channel, strand, is_padded, instance: 3, target, nonce }
    }

    #[test]
    fn who_is_not_here_any_more_or_does_not_know_the_cookie_is_said_at_once() {
        let process = Process::new();
        let (end, gone) = (process.endpoint(1), process.endpoint(1).me.instance);
        let key = key_of(&COOKIE);
        let stranger = key_of(&[8; 16]);
        let mut old = hello(end.me.instance).encode(&key);
        old[8] ^= 1;
        let cases = [
            (hello(gone).encode(&key), Verdict::Instance, true),
            (hello(gone).encode(&stranger), Verdict::Cookie, false),
            (hello(end.me.instance).encode(&stranger), Verdict::Cookie, false),
            (old, Verdict::Version, false),
        ];
        for (hello, verdict, is_proven) in cases {
            let mut stream = process.knock();
            stream.write_all(&hello).unwrap();
            stream.set_read_timeout(Some(LONG)).unwrap();
            let mut answer = [0; super::super::wire::ANSWER_BYTES];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(Answer::decode(&answer).map(|answer| answer.verdict), Some(verdict));
            assert_eq!(Answer::is_proven(&answer, &hello, &key), is_proven, "{verdict:?}");
        }
        assert!(!end.acceptor.has_news(), "nobody has got through");
    }

    #[test]
    fn all_connections_that_came_between_two_polls_are_judged_and_further_copies_of_a_hello_are_dropped() {
        let process = Process::new();
        let mut end = process.endpoint(1);
        let (stream, from) = (process.knock(), process.port.at());
        let count = 400_u16;
        for channel in (0..count).chain([0; 10]) {
            let hello = Hello { channel, ..hello(end.me.instance) }.encode(&key_of(&COOKIE));
            process.port.hand(stream.try_clone().unwrap(), from, &hello);
        }
        let mut arrivals = Vec::new();
        end.acceptor.step(&end.me, Instant::now(), &end.options, |_| {}, &mut arrivals).unwrap();
        let channels: HashSet<u16> = arrivals.iter().map(|arrival| arrival.hello.channel).collect();
        assert_eq!((arrivals.len(), channels.len()), (usize::from(count) + COPIES_MAX - 1, count.into()));
        assert_eq!(end.rejected_connections().count, 0);
    }

    #[test]
    fn a_connection_takes_the_place_of_a_broken_one_with_the_same_hello() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut mailbox = Waiting::default();
        let mut call = || {
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (far, from) = listener.accept().unwrap();
            let socket = Unshared::new(Socket::from(far.try_clone().unwrap()));
            mailbox.put(Mail { socket, from, hello: [5; HELLO_BYTES] });
            (near, far)
        };
        for _ in 0..5 {
            let (near, mut far) = call();
            drop(near);
            assert_eq!(far.read(&mut [0]).unwrap(), 0, "it has ended");
        }
        let (near, _) = call();
        let waiting: Vec<SocketAddr> = mailbox.all.iter().map(|mail| mail.from).collect();
        assert!(waiting.len() == COPIES_MAX && waiting.contains(&near.local_addr().unwrap()), "{waiting:?}");
    }

    #[test]
    fn a_port_on_loopback_is_not_for_endpoints_that_others_reach() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = Port::new(listener.local_addr().unwrap());
        let open = |interfaces: &str| {
            let interfaces = TcpOptions::interfaces_from(interfaces);
            TcpEndpoint::new(1, 2, TcpOptions { port: Some(port.clone()), interfaces, ..Default::default() })
        };
        assert_eq!(open("lo").unwrap().port(), port.at().port());
        // A machine without another interface fails with an error.
        if let Ok(other) = open("^lo") {
            assert_ne!(other.port(), port.at().port());
        }
    }

    #[test]
    fn an_endpoint_that_waits_for_nobody_reports_a_lack_of_descriptors_now_and_then() {
        let process = Process::new();
        let mut end = process.endpoint(1);
        process.port.starves(&io::Error::from_raw_os_error(libc::EMFILE));
        let step = |end: &mut TcpEndpoint, now| {
            end.acceptor.step(&end.me, now, &end.options, |_| {}, &mut Vec::new())
        };
        let mut now = Instant::now();
        for _ in 0..3 {
            assert!(step(&mut end, now).is_ok());
            now = end.acceptor.due(&end.options).expect("a time");
            assert!(step(&mut end, now).is_err());
            assert!(end.acceptor.due(&end.options).is_some_and(|due| due > now));
        }
        process.port.is_fed();
        assert!(step(&mut end, now).is_ok());
        assert_eq!(end.acceptor.due(&end.options), None);
    }

    #[test]
    fn an_endpoint_that_connections_wait_for_in_vain_fails_for_want_of_descriptors() {
        let process = Process::new();
        let mut ends = [process.endpoint(0), process.endpoint(1)];
        introduce(&mut ends);
        process.port.starves(&io::Error::from_raw_os_error(libc::EMFILE));
        let error = error_of_recv(&mut ends[1], &mut [], Channel { peer: 0, index: 0 }).to_string();
        assert!(error.contains("accept connections") && error.contains("ulimit -n"), "{error}");
    }
}
