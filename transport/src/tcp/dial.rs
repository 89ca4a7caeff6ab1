//! Dialing: makes one connection to a peer, over the first of its addresses that answers.
//!
//! Addresses are tried in order of distance. The next attempt starts when the previous one fails or has been silent
//! for a while: a short while if the address does not let this end connect, a longer one if it connects but the peer
//! does not answer. The silent attempt stays in the race, because a peer that is busy computing answers late at the
//! right address, while a wrong address never answers. The first welcome wins.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use super::congestion;
use super::options::TcpOptions;
use super::padding::Padding;
use super::port::Port;
use super::relay::{self, Calling, Detour};
use super::route::Candidate;
use super::socket::{self, Stop, TcpInfo};
use super::wire::{ANSWER_BYTES, Answer, HELLO_BYTES, Verdict};
use crate::proof::Key;
use crate::sys::descriptors::{self, STARVED_FOR};
use crate::sys::unshared::Unshared;

/// Number of repeated attempts for an address whose connection broke before the answer, or that had no room: the peer may
/// have rejected this rank's hello among strangers' while its pending connections were full.
const RETRIES: u32 = 3;

/// Time until the first of these attempts; each further one takes four times as long. Room among pending connections is
/// a matter of milliseconds, unless strangers flood the peer.
const RETRY_AFTER: Duration = Duration::from_millis(20);

/// Time after which the next address is tried beside those that have not let this end connect, as in RFC 8305: a
/// kernel answers at once, even for a process that is busy.
const CONNECT_PATIENCE: Duration = Duration::from_millis(250);

/// Time after which an attempt is repeated for which there was no descriptor.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A dial in progress.
#[derive(Debug)]
pub(super) struct Dial {
    hello: [u8; HELLO_BYTES],
    key: Key,
    /// Number of the endpoint that must answer.
    target: u64,
    loopback: bool,
    /// The addresses that are to be tried, in order of their times.
    waiting: VecDeque<Waiting>,
    attempts: Vec<Attempt>,
    /// Time at which the next address is tried although none has failed.
    next_at: Instant,
    failures: Vec<String>,
    /// Whether one of the failures was silence or an unreachable address.
    is_silent: bool,
    /// Whether one of the addresses that failed had taken the hello, or a part of it.
    was_heard: bool,
    /// Whether the connection is to show that its path carries full segments.
    is_padded: bool,
    /// Time at which silent addresses are given up even if they have had less time than usual.
    silent_until: Option<Instant>,
    /// Time since which there has been no descriptor for the next attempt.
    hungry_since: Option<Instant>,
    /// Time at which this dial was made, until its first step. The addresses have their time from that step on: a program
    /// may be busy for seconds before it.
    made_at: Option<Instant>,
    /// The relay, while it is not being asked. It is asked at its set time, or later if an address has let this end
    /// connect, and for the first time also as the last hope.
    relay: Option<Detour>,
}

#[derive(Debug)]
struct Attempt {
    candidate: Candidate,
    course: Course,
    socket: Unshared<Socket>,
    since: Instant,
    sent: usize,
    /// Time at which the first bytes of the hello were sent.
    said_at: Option<Instant>,
    /// The padding, if there is some.
    padding: Option<Padding>,
    answer: [u8; ANSWER_BYTES],
    received: usize,
    congestion: String,
}

/// Course of an attempt, which decides how often it is repeated.
#[derive(Debug)]
enum Course {
    /// To one of the peer's addresses, [`RETRIES`] times more.
    Direct { try_number: u32 },
    /// By a relay, again until the time for it is over. There is a call until the peer has arrived there.
    Relayed { detour: Detour, calling: Option<Calling> },
}

/// An address that is to be tried.
#[derive(Debug)]
struct Waiting {
    candidate: Candidate,
    try_number: u32,
    /// Time before which it is not tried.
    at: Instant,
}

/// A connection made by dialing.
#[derive(Debug)]
pub(super) struct Connected {
    pub(super) socket: Unshared<Socket>,
    pub(super) to: SocketAddr,
    pub(super) congestion: String,
    /// Whether it goes through a relay, whose address `to` then is.
    pub(super) is_relayed: bool,
}

/// Result of a step of dialing.
#[derive(Debug)]
pub(super) enum Dialed {
    /// There is no connection yet.
    Waiting,
    /// A connection has been made.
    Connected(Connected),
    /// All addresses have failed.
    Failed {
        /// The addresses tried.
        tried: String,
        by: Failure,
    },
    /// The system has had no descriptor for a connection for [`STARVED_FOR`].
    Starved(std::io::Error),
}

/// How the addresses have failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// One did not answer, or is unreachable: the peer may still get through to this end.
    Silence,
    /// No address has taken the hello. Mostly the peer's host, or a firewall on the way, has refused all connections; the
    /// peer may still get through.
    Refusal,
    /// Something has taken the hello.
    Answer,
}

impl Dial {
    pub(super) fn new(
        (hello, key): ([u8; HELLO_BYTES], Key),
        target: u64,
        loopback: bool,
        candidates: &[Candidate],
        now: Instant,
    ) -> Self {
        Self {
            hello,
            key,
            target,
            loopback,
            waiting: candidates
                .iter()
                .map(|to| Waiting { candidate: to.clone(), try_number: 0, at: now })
                .collect(),
            attempts: Vec::new(),
            next_at: now,
            failures: Vec::new(),
            is_silent: false,
            was_heard: false,
            is_padded: false,
            silent_until: None,
            hungry_since: None,
            made_at: Some(now),
            relay: None,
        }
    }

    /// Returns this dial, whose hello announces that, with padding behind the hello.
    pub(super) fn padded(self) -> Self {
        Self { is_padded: true, ..self }
    }

    /// Returns this dial with a time at which silent addresses are given up.
    pub(super) fn silent_until(self, at: Option<Instant>) -> Self {
        Self { silent_until: at, ..self }
    }

    /// Returns this dial with a relay as a detour, for when no address lets this end connect.
    pub(super) fn or_by(self, relay: Option<Detour>) -> Self {
        Self { relay, ..self }
    }

    /// Returns the time at which [`Dial::step`] has something to do even if nothing arrives.
    pub(super) fn due(&self, options: &TcpOptions) -> Option<Instant> {
        let next = if self.waiting.is_empty() { None } else { Some(self.next_at()) };
        let silent = self.attempts.iter().filter(|a| a.is_silent()).map(|a| self.ends_at(a, options));
        let padding = self.attempts.iter().filter_map(|attempt| attempt.padding.as_ref()?.due());
        silent.chain(next).chain(padding).chain(self.relay_at(options)).min()
    }

    /// Returns the time at which an attempt ends if its address stays silent.
    fn ends_at(&self, attempt: &Attempt, options: &TcpOptions) -> Instant {
        let usual = attempt.since + options.dial_timeout;
        self.silent_until.map_or(usual, |at| usual.min(at))
    }

    /// Returns the time at which the relay is asked. A peer that may have the hello first has time to answer.
    fn relay_at(&self, options: &TcpOptions) -> Option<Instant> {
        let said_at = self.attempts.iter().filter_map(|attempt| attempt.said_at).min();
        let at = self.relay.as_ref()?.at;
        Some(said_at.map_or(at, |said_at| at.max(said_at + options.dial_timeout)))
    }

    /// Returns whether the hello has been sent on a connection, so that an answer may come.
    pub(super) fn has_said_hello(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.sent == HELLO_BYTES)
    }

    /// Returns whether the peer may have received the hello, or a part of it.
    pub(super) fn has_begun_hello(&self) -> bool {
        self.attempts.iter().any(|attempt| attempt.sent > 0)
    }

    /// Returns whether none of the addresses being tried answers.
    pub(super) fn is_unheard(&self) -> bool {
        !self.attempts.is_empty()
            && self
                .attempts
                .iter()
                .all(|attempt| TcpInfo::of(&attempt.socket).is_some_and(|info| info.resends_in_vain()))
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &Socket> {
        self.attempts.iter().map(|attempt| &*attempt.socket)
    }

    /// Gives up, and returns the connections over which the peer may have received the hello, or a part of it.
    pub(super) fn into_begun(self) -> impl Iterator<Item = Unshared<Socket>> {
        self.attempts.into_iter().filter(|attempt| attempt.sent > 0).map(|attempt| attempt.socket)
    }

    /// Makes progress. Calls `opened` with every new socket before it connects.
    pub(super) fn step(
        &mut self,
        now: Instant,
        options: &TcpOptions,
        mut opened: impl FnMut(&Socket),
    ) -> Dialed {
        if let Some(made_at) = self.made_at.take()
            && let Some(relay) = &mut self.relay
        {
            relay.at += now.saturating_duration_since(made_at);
        }
        let mut at = 0;
        while at < self.attempts.len() {
            let ends_at = self.ends_at(&self.attempts[at], options);
            let attempt = &mut self.attempts[at];
            match attempt.step(&self.hello, &self.key, self.target, now) {
                Ok(true) => {
                    let attempt = self.attempts.swap_remove(at);
                    return Dialed::Connected(Connected {
                        socket: attempt.socket,
                        to: attempt.candidate.to,
                        congestion: attempt.congestion,
                        is_relayed: matches!(attempt.course, Course::Relayed { .. }),
                    });
                }
                Ok(false) if attempt.is_silent() && now >= ends_at => {
                    self.is_silent = true;
                    self.fail(at, "no answer; a firewall?", now);
                }
                Ok(false) if attempt.has_lost_padding(now) => {
                    self.fail(at, "full segments vanish; is the MTU larger than that of a switch?", now);
                }
                Ok(false) => at += 1,
                Err(Broken::For(why)) => self.fail(at, &why, now),
                Err(Broken::Unreachable(why)) => {
                    self.is_silent = true;
                    self.fail(at, &why, now);
                }
                Err(Broken::Early(why)) => match self.attempts[at].course {
                    Course::Direct { try_number } if try_number < RETRIES => {
                        self.postpone(at, try_number, now);
                    }
                    Course::Direct { .. } => self.fail(at, &why, now),
                    Course::Relayed { detour, .. } => self.call_again(at, detour, &why, now),
                },
            }
        }
        if let Err(error) = self.start_due(now, options, &mut opened) {
            return Dialed::Starved(error);
        }
        if self.attempts.is_empty() && self.waiting.is_empty() && self.relay.is_none() {
            let tried =
                if self.failures.is_empty() { "no address".to_owned() } else { self.failures.join("; ") };
            let by = match (self.is_silent, self.was_heard) {
                (true, _) => Failure::Silence,
                (false, true) => Failure::Answer,
                (false, false) => Failure::Refusal,
            };
            return Dialed::Failed { tried, by };
        }
        Dialed::Waiting
    }

    /// Starts the attempts that are due.
    ///
    /// # Errors
    /// If the system has had no descriptor for [`STARVED_FOR`].
    fn start_due(
        &mut self,
        now: Instant,
        options: &TcpOptions,
        opened: &mut impl FnMut(&Socket),
    ) -> std::io::Result<()> {
        let is_last_hope = self.attempts.is_empty() && self.waiting.is_empty();
        let is_due = self.relay_at(options).is_some_and(|at| now >= at);
        if let Some(mut detour) = self.relay.take_if(|relay| is_due || is_last_hope && relay.until.is_none())
        {
            detour.until.get_or_insert(now + options.dial_timeout);
            match Attempt::by_relay(detour, now, options) {
                Ok(attempt) => {
                    opened(&attempt.socket);
                    self.attempts.push(attempt);
                }
                Err(error) => {
                    self.relay = detour.again(now).filter(|_| descriptors::are_out(&error));
                    if self.relay.is_none() {
                        self.failures.push(format!("relay {}: {error}", detour.to));
                    }
                }
            }
        }
        while now >= self.next_at() {
            let Some(Waiting { candidate, try_number, at }) = self.waiting.pop_front() else { break };
            let to = candidate.to;
            match Attempt::start(candidate.clone(), try_number, self.loopback, now, options) {
                Ok(mut attempt) => {
                    attempt.padding = self.is_padded.then(Padding::default);
                    self.hungry_since = None;
                    opened(&attempt.socket);
                    self.attempts.push(attempt);
                    self.next_at = now + options.dial_patience;
                }
                Err(error) if descriptors::are_out(&error) => {
                    if now >= *self.hungry_since.get_or_insert(now) + STARVED_FOR {
                        return Err(error);
                    }
                    self.waiting.push_front(Waiting { candidate, try_number, at });
                    self.next_at = now + LOOK_AGAIN;
                }
                Err(error) => {
                    let remedy = match error.raw_os_error() {
                        Some(libc::EADDRNOTAVAIL) => "; see net.ipv4.ip_local_port_range",
                        _ => "",
                    };
                    self.is_silent |= is_unreachable(&error);
                    self.failures.push(format!("{to}: {error}{remedy}"));
                }
            }
        }
        Ok(())
    }

    /// Returns the time at which the next address is tried.
    fn next_at(&self) -> Instant {
        let next_at = match self.attempts.iter().map(|attempt| attempt.since).max() {
            Some(last) if self.hungry_since.is_none() && !self.has_begun_hello() => {
                self.next_at.min(last + CONNECT_PATIENCE)
            }
            _ => self.next_at,
        };
        self.waiting.front().map_or(next_at, |first| next_at.max(first.at))
    }

    /// Ends an attempt that is to be repeated after a while. Addresses that have not been tried yet go first.
    fn postpone(&mut self, at: usize, try_number: u32, now: Instant) {
        let Attempt { candidate, .. } = self.attempts.swap_remove(at);
        let at = now + RETRY_AFTER * 4_u32.pow(try_number);
        let place = self.waiting.partition_point(|other| other.at <= at);
        self.waiting.insert(place, Waiting { candidate, try_number: try_number + 1, at });
        self.next_at = now;
    }

    /// Ends an attempt at a relay that has no room, or where the peer did not wait for the hello, and calls it again after a
    /// while.
    fn call_again(&mut self, at: usize, detour: Detour, why: &str, now: Instant) {
        self.relay = detour.again(now);
        if self.relay.is_some() {
            self.attempts.swap_remove(at);
        } else {
            self.is_silent = true;
            self.fail(at, why, now);
        }
    }

    fn fail(&mut self, at: usize, why: &str, now: Instant) {
        let attempt = self.attempts.swap_remove(at);
        self.was_heard |= attempt.sent > 0;
        let Candidate { to, interface, .. } = attempt.candidate;
        self.failures.push(format!("{to} ({interface}): {why}"));
        self.next_at = now;
    }
}

/// Reason why an attempt ended.
enum Broken {
    /// The address failed, and is not tried again.
    For(String),
    /// The packets do not reach the address.
    Unreachable(String),
    /// The connection closed before the answer, or there was no room for it: at the peer or at the relay.
    Early(String),
}

/// Returns whether the network reports that packets do not reach an address. A refusal shows that they do.
fn is_unreachable(error: &std::io::Error) -> bool {
    [libc::EHOSTUNREACH, libc::ENETUNREACH, libc::ETIMEDOUT].map(Some).contains(&error.raw_os_error())
}

impl Attempt {
    fn start(
        candidate: Candidate,
        try_number: u32,
        loopback: bool,
        now: Instant,
        options: &TcpOptions,
    ) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::for_address(candidate.to), Type::STREAM, Some(Protocol::TCP))?;
        let socket = Unshared::new(socket);
        socket::configure(&socket, options)?;
        if let Some((interface, source)) = &candidate.from {
            // Two interfaces may be in one network, and the kernel would take the first. Old kernels let only root
            // choose the interface; the source address is enough where networks differ.
            let _ = socket.bind_device(Some(interface.as_bytes()));
            socket.bind(&SockAddr::from(SocketAddr::new(*source, 0)))?;
        }
        let congestion = congestion::choose(&socket, &options.congestion, loopback)?;
        match socket.connect(&SockAddr::from(candidate.to)) {
            Ok(()) => {}
            Err(error) if error.raw_os_error() == Some(libc::EINPROGRESS) => {}
            Err(error) => return Err(error),
        }
        Ok(Self::new(candidate, Course::Direct { try_number }, socket, congestion, now))
    }

    fn by_relay(detour: Detour, now: Instant, options: &TcpOptions) -> std::io::Result<Self> {
        let Detour { to, call, .. } = detour;
        let socket = relay::connect(to, options)?;
        let congestion = congestion::choose(&socket, &options.congestion, false)?;
        let candidate = Candidate { to, interface: "relay".into(), distance: u8::MAX, from: None };
        let course = Course::Relayed { detour, calling: Some(Calling::new(&call, options)) };
        Ok(Self::new(candidate, course, socket, congestion, now))
    }

    fn new(
        candidate: Candidate,
        course: Course,
        socket: Unshared<Socket>,
        congestion: String,
        now: Instant,
    ) -> Self {
        Self {
            candidate,
            course,
            socket,
            since: now,
            sent: 0,
            said_at: None,
            padding: None,
            answer: [0; ANSWER_BYTES],
            received: 0,
            congestion,
        }
    }

    /// Returns the call to a relay at which the peer has not arrived yet.
    fn calling(&self) -> Option<&Calling> {
        match &self.course {
            Course::Relayed { calling, .. } => calling.as_ref(),
            Course::Direct { .. } => None,
        }
    }

    /// Returns whether the address has not let this end connect yet. Once a relay has the call, the attempt waits for
    /// the peer and is not silent.
    fn is_silent(&self) -> bool {
        self.sent == 0 && !self.calling().is_some_and(Calling::is_sent)
    }

    /// Returns whether full segments do not get through, although short ones do.
    fn has_lost_padding(&mut self, now: Instant) -> bool {
        self.padding.as_mut().is_some_and(|padding| padding.is_lost(&self.socket, now))
    }

    /// Makes progress; returns whether the peer has welcomed this end.
    fn step(
        &mut self,
        hello: &[u8; HELLO_BYTES],
        key: &Key,
        target: u64,
        now: Instant,
    ) -> Result<bool, Broken> {
        let early = |error: Option<std::io::Error>| {
            Broken::Early(error.map_or_else(|| "closed before it answered".into(), |error| error.to_string()))
        };
        if let Course::Relayed { calling: waiting, .. } = &mut self.course
            && let Some(calling) = waiting
        {
            match calling.step(&self.socket) {
                Ok(true) => *waiting = None,
                Ok(false) | Err(Stop::Blocked) => return Ok(false),
                Err(Stop::Closed(error)) => {
                    let text = error.map_or_else(|| "the relay hung up".into(), |error| error.to_string());
                    return Err(match calling.is_sent() {
                        true => Broken::Early(text),
                        false => Broken::Unreachable(text),
                    });
                }
            }
        }
        // A socket that is still connecting blocks, and returns its error if connecting failed.
        while self.sent < HELLO_BYTES {
            match socket::send_bytes(&self.socket, &hello[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.said_at.get_or_insert(now);
                }
                Err(Stop::Blocked) => return Ok(false),
                Err(Stop::Closed(Some(error))) if self.sent == 0 => {
                    let text = error.to_string();
                    return Err(if is_unreachable(&error) {
                        Broken::Unreachable(text)
                    } else {
                        Broken::For(text)
                    });
                }
                Err(Stop::Closed(error)) => return Err(early(error)),
            }
        }
        if let Some(padding) = &mut self.padding
            && let Err(Stop::Closed(error)) = padding.send(&self.socket)
        {
            return Err(early(error));
        }
        while self.received < ANSWER_BYTES {
            match socket::recv_bytes(&self.socket, &mut self.answer[self.received..]) {
                Ok(bytes) => self.received += bytes,
                Err(Stop::Blocked) => return Ok(false),
                Err(Stop::Closed(error)) => return Err(early(error)),
            }
        }
        self.judge(hello, key, target, now)
    }

    /// Judges the answer; returns whether it is a welcome, with all padding behind it.
    fn judge(
        &mut self,
        hello: &[u8; HELLO_BYTES],
        key: &Key,
        target: u64,
        now: Instant,
    ) -> Result<bool, Broken> {
        match Answer::decode(&self.answer) {
            None if Port::is_full(&self.answer) => {
                Err(Broken::Early("the peer has too many pending connections".into()))
            }
            None => Err(Broken::For("something other than Kolo answers there".into())),
            // These two verdicts come from ends that cannot prove anything to this rank. They end only this attempt.
            Some(answer) if matches!(answer.verdict, Verdict::Version | Verdict::Cookie) => {
                Err(Broken::For(answer.explain()))
            }
            Some(_) if !Answer::is_proven(&self.answer, hello, key) => {
                Err(Broken::For("the process that answers there does not know the job's cookie".into()))
            }
            Some(Answer { verdict: Verdict::Welcome, instance, .. }) if instance == target => {
                match self.padding.as_mut().map_or(Ok(true), |padding| padding.confirm(&self.socket, now)) {
                    Ok(is_done) => Ok(is_done),
                    Err(Stop::Blocked) => Ok(false),
                    Err(Stop::Closed(_)) => Err(Broken::For("closed before its padding had come".into())),
                }
            }
            Some(Answer { verdict: Verdict::Welcome, .. }) => {
                Err(Broken::For("another endpoint answers".into()))
            }
            Some(answer) => Err(Broken::For(answer.explain())),
        }
    }
}

#[cfg(test)]
mod tests;
