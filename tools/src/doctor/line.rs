//! A TCP connection between two hosts on which every wait has a time limit.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kolo::internal::network::Wire;
use kolo_transport::tcp::TcpInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// The reason why no more data arrives on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// Data did not get through within this time.
    Late(Duration),
    /// The other end has closed the connection, or the system reports an error.
    Closed(String),
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late(limit) => write!(f, "nothing got through for {:.1} s", limit.as_secs_f64()),
            Self::Closed(why) => f.write_str(why),
        }
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Line {
    socket: TcpStream,
    /// Longest duration of one send or receive.
    limit: Duration,
    /// A moment, and the time of day at that moment.
    clock: (Instant, Duration),
}

impl Line {
    pub(crate) fn new(socket: TcpStream, limit: Duration) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { socket, limit, clock: (Instant::now(), epoch) })
    }

    /// Connects, with segments of at most `segment` bytes.
    pub(crate) fn dial(address: SocketAddr, segment: Option<u32>, limit: Duration) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if let Some(bytes) = segment {
            socket.set_tcp_mss(bytes)?;
        }
        socket.connect_timeout(&address.into(), limit)?;
        Self::new(socket.into(), limit)
    }

    pub(crate) fn with_limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    pub(crate) fn local(&self) -> Option<IpAddr> {
        Some(self.socket.local_addr().ok()?.ip())
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    pub(crate) fn info(&self) -> TcpInfo {
        TcpInfo::of(&self.socket).unwrap_or_default()
    }

    /// Sends and receives at the same time, until both are done.
    pub(crate) fn transfer(&mut self, mut out: &[u8], mut inward: &mut [u8]) -> Result<(), Stop> {
        let until = Instant::now() + self.limit;
        while !out.is_empty() || !inward.is_empty() {
            let sent = if out.is_empty() { None } else { moved((&self.socket).write(out))? };
            out = &out[sent.unwrap_or(0)..];
            let received = if inward.is_empty() { None } else { moved((&self.socket).read(inward))? };
            inward = &mut std::mem::take(&mut inward)[received.unwrap_or(0)..];
            if sent.is_none() && received.is_none() {
                self.wait(!out.is_empty(), !inward.is_empty(), until)?;
            }
        }
        Ok(())
    }

    /// Waits until the other end closes the line.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.transfer(&[], &mut [0]);
    }

    fn wait(&self, sends: bool, receives: bool, until: Instant) -> Result<(), Stop> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Stop::Late(self.limit));
        }
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, sends);
        flags.set(PollFlags::IN, receives);
        let time = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&self.socket, flags)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(Stop::Closed(error.to_string())),
        }
    }
}

/// Returns the number of bytes that a system call has moved; `None` if it would block.
fn moved(outcome: io::Result<usize>) -> Result<Option<usize>, Stop> {
    match outcome {
        Ok(0) => Err(Stop::Closed("the other end has closed the connection".to_owned())),
        Ok(count) => Ok(Some(count)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(Stop::Closed(error.to_string())),
    }
}

/// A line has a single partner, so it ignores the partner's number.
impl Wire for Line {
    type Error = Stop;

    fn send(&mut self, _: u32, bytes: &[u8]) -> Result<(), Stop> {
        self.transfer(bytes, &mut [])
    }

    fn recv(&mut self, _: u32, bytes: &mut [u8]) -> Result<(), Stop> {
        self.transfer(&[], bytes)
    }

    fn exchange(&mut self, _: u32, out: &[u8], inward: &mut [u8]) -> Result<(), Stop> {
        self.transfer(out, inward)
    }

    /// Returns the time of day, so that partners can compare their clocks.
    fn now(&self) -> Duration {
        self.clock.1 + self.clock.0.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use kolo::internal::network::{Buffers, Effort, Way, end, rate, round_trip, serve};

    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn pair(limit: Duration) -> (Line, Line) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let near = Line::dial(listener.local_addr().unwrap(), None, limit).unwrap();
        (near, Line::new(listener.accept().unwrap().0, limit).unwrap())
    }

    #[test]
    fn a_line_is_measured_by_the_code_of_the_probe() {
        let (mut near, mut far) = pair(LIMIT);
        let effort = Effort { last_bytes: 1 << 20, ..Effort::QUICK };
        let other = std::thread::spawn(move || {
            far.clock.1 += Duration::from_secs(100);
            serve(&mut far, 0, &mut Buffers::new(&Effort { last_bytes: 1 << 20, ..Effort::QUICK }))
        });
        let found = round_trip(&mut near, 1).unwrap();
        assert!(found.time > Duration::ZERO && found.time < LIMIT, "{found:?}");
        assert!((found.ahead_seconds - 100.0).abs() < 1.0, "{found:?}");
        let rate = rate(&mut near, 1, Way::Out, found.time, &effort, &mut Buffers::new(&effort)).unwrap();
        assert!(rate > 1e6 && rate.is_finite(), "{rate}");
        end(&mut near, 1).unwrap();
        assert_eq!(other.join().unwrap(), Ok(()));
    }

    #[test]
    fn silence_ends_and_the_end_of_the_other_is_told() {
        let (mut near, far) = pair(Duration::from_millis(20));
        assert_eq!(near.transfer(&[], &mut [0]), Err(Stop::Late(Duration::from_millis(20))));
        drop(far);
        assert!(matches!(near.with_limit(LIMIT).transfer(&[], &mut [0]), Err(Stop::Closed(_))));
    }
}
