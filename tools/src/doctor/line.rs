//! A TCP connection between two hosts on which every wait has a time limit.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use kolo::internal::network::Wire;
use kolo_transport::tcp::TcpInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use socket2::{Domain, Protocol, Socket, Type};

/// Ratio of the time for a whole transfer to the time for which a line may be silent: a burst needs 44 kbit/s.
const SILENCES: u32 = 3;

/// Part of the time for which a line may be silent, after which the kernel is asked what the other end has acknowledged.
const LOOKS: u32 = 8;

/// The reason why no more data arrives on a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// No data got through for this time.
    Late(Duration),
    /// Data got through, but too slowly.
    Slow { moved: u64, of: u64, time: Duration },
    /// The other end has closed the connection, or the system reports an error.
    Closed(String),
}

impl std::fmt::Display for Stop {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Late(limit) => write!(f, "nothing got through for {:.1} s", limit.as_secs_f64()),
            Self::Slow { moved, of, time } => {
                write!(f, "only {moved} of {of} bytes got through in {:.1} s", time.as_secs_f64())
            }
            Self::Closed(why) => f.write_str(why),
        }
    }
}

/// The time limits of a transfer.
#[derive(Debug)]
struct Patience {
    limit: Duration,
    begun: Instant,
    moved_at: Instant,
    /// Bytes that have got through so far.
    moved: u64,
}

impl Patience {
    const fn new(limit: Duration, now: Instant) -> Self {
        Self { limit, begun: now, moved_at: now, moved: 0 }
    }

    /// Returns how long to wait before the next look, after `moved` bytes of `of` have got through.
    fn look(&mut self, moved: u64, of: u64, now: Instant) -> Result<Duration, Stop> {
        if moved > self.moved {
            (self.moved, self.moved_at) = (moved, now);
        }
        let (silent, time) = (now - self.moved_at, now - self.begun);
        if silent >= self.limit {
            return Err(Stop::Late(self.limit));
        }
        if time >= SILENCES * self.limit {
            return Err(Stop::Slow { moved: moved.min(of), of, time });
        }
        Ok((self.limit - silent).min(self.limit / LOOKS))
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Line {
    socket: TcpStream,
    /// Longest silence during one send or receive.
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

    /// Sends and receives at the same time, until both are done. The time limit begins anew with every byte that gets
    /// through, up to [`SILENCES`] times, because a slow link is no broken one.
    pub(crate) fn transfer(&mut self, mut out: &[u8], mut inward: &mut [u8]) -> Result<(), Stop> {
        let mut patience = Patience::new(self.limit, Instant::now());
        let of = (out.len() + inward.len()) as u64;
        let (mut received_bytes, before) = (0, self.info().acknowledged_bytes);
        while !out.is_empty() || !inward.is_empty() {
            let sent = if out.is_empty() { None } else { moved((&self.socket).write(out))? };
            out = &out[sent.unwrap_or(0)..];
            let received = if inward.is_empty() { None } else { moved((&self.socket).read(inward))? };
            inward = &mut std::mem::take(&mut inward)[received.unwrap_or(0)..];
            received_bytes += received.unwrap_or(0) as u64;
            if sent.is_none() && received.is_none() {
                // Bytes that the kernel has taken have not got through yet. The other end may answer only when it has all.
                let acknowledged = self.info().acknowledged_bytes.saturating_sub(before);
                let time = patience.look(received_bytes + acknowledged, of, Instant::now())?;
                self.wait(!out.is_empty(), !inward.is_empty(), time)?;
            }
        }
        Ok(())
    }

    /// Waits until the other end closes the line.
    pub(crate) fn wait_for_end(&mut self) {
        let _ = self.transfer(&[], &mut [0]);
    }

    fn wait(&self, sends: bool, receives: bool, time: Duration) -> Result<(), Stop> {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::OUT, sends);
        flags.set(PollFlags::IN, receives);
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
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
    fn a_transfer_ends_if_nothing_moves_or_if_it_takes_far_too_long() {
        let (limit, begun) = (Duration::from_secs(2), Instant::now());
        let at = |tenths: u32| begun + limit * tenths / 10;
        let mut slow = Patience::new(limit, begun);
        for look in 1..2 * SILENCES {
            let left = slow.look(u64::from(look), 100, at(5 * look));
            assert!(left.is_ok_and(|time| !time.is_zero() && time < limit), "{look}");
        }
        let end = slow.look(20, 100, at(10 * SILENCES)).unwrap_err();
        assert_eq!(end.to_string(), "only 20 of 100 bytes got through in 6.0 s");
        let mut silent = Patience::new(limit, begun);
        assert!(silent.look(50, 100, at(9)).is_ok() && silent.look(50, 100, at(18)).is_ok());
        assert_eq!(silent.look(50, 100, at(19)), Err(Stop::Late(limit)));
    }

    #[test]
    fn a_slow_partner_is_waited_for() {
        let (mut near, mut far) = pair(Duration::from_secs(3));
        let partner = std::thread::spawn(move || {
            for part in vec![1; 32 << 10].chunks(1 << 10) {
                // The partner's slowness is under test: it takes longer than the limit.
                std::thread::sleep(Duration::from_millis(100));
                far.transfer(part, &mut []).unwrap();
            }
        });
        near.transfer(&[], &mut vec![0; 32 << 10]).unwrap();
        partner.join().unwrap();
    }

    #[test]
    fn silence_ends_and_the_end_of_the_other_is_told() {
        let (mut near, far) = pair(Duration::from_millis(20));
        assert_eq!(near.transfer(&[], &mut [0]), Err(Stop::Late(Duration::from_millis(20))));
        drop(far);
        assert!(matches!(near.with_limit(LIMIT).transfer(&[], &mut [0]), Err(Stop::Closed(_))));
    }
}
