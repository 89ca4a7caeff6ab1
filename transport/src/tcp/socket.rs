//! System calls on sockets: vectored send and receive, and the options of every connection.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::memory::IoList;
use super::options::TcpOptions;

/// Reason why a transfer moved nothing.
#[derive(Debug)]
pub(super) enum Stop {
    /// The socket is not ready now.
    Blocked,
    /// The connection is over: end of stream (`None`) or an error.
    Closed(Option<io::Error>),
}

/// Returns whether the kernel gave a connection up because nothing came from the peer's host.
pub(super) fn is_silence(error: Option<&io::Error>) -> bool {
    let code = error.and_then(io::Error::raw_os_error);
    matches!(code, Some(libc::ETIMEDOUT | libc::EHOSTUNREACH | libc::ENETUNREACH))
}

/// Sends as much of the list as the kernel takes, which is more than nothing.
pub(super) fn send(socket: &Socket, io: &mut IoList) -> Result<usize, Stop> {
    send_with(socket, io, 0)
}

/// Sends as [`send`] does, and lets no later bytes join the last packets: the list leaves as a train of its own.
pub(super) fn send_train(socket: &Socket, io: &mut IoList) -> Result<usize, Stop> {
    send_with(socket, io, libc::MSG_EOR)
}

fn send_with(socket: &Socket, io: &mut IoList, flags: libc::c_int) -> Result<usize, Stop> {
    transfer(io, |message| {
        let flags = flags | libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: the list holds ranges of memory that are valid for reading: of posted sends, until their tokens
        // complete (module `pieces`), or of the endpoint itself. The kernel only reads them. The message header is
        // valid for the call.
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, flags) }
    })
}

/// Receives the bytes that have arrived into the list, which is more than nothing.
pub(super) fn recv(socket: &Socket, io: &mut IoList) -> Result<usize, Stop> {
    let moved = transfer(io, |message| {
        // SAFETY: the list holds ranges of memory that are valid for writing: of posted receives (module `pieces`) or
        // of the endpoint itself, borrowed mutably by the caller. The message header is valid for the call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT) }
    })?;
    if moved == 0 { Err(Stop::Closed(None)) } else { Ok(moved) }
}

fn transfer(io: &mut IoList, call: impl Fn(*mut libc::msghdr) -> isize) -> Result<usize, Stop> {
    let (runs, count) = io.raw();
    // SAFETY: a message header of zeros is valid: it has no name, no control data and no list.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = runs;
    // The type is usize with glibc and int with musl.
    message.msg_iovlen = count as _;
    loop {
        let moved = call(&raw mut message);
        if let Ok(moved) = usize::try_from(moved) {
            return Ok(moved);
        }
        let error = io::Error::last_os_error();
        match error.kind() {
            io::ErrorKind::Interrupted => {}
            io::ErrorKind::WouldBlock => return Err(Stop::Blocked),
            _ => return Err(Stop::Closed(Some(error))),
        }
    }
}

/// Sends a few bytes.
pub(super) fn send_bytes(socket: &Socket, bytes: &[u8]) -> Result<usize, Stop> {
    let mut io = IoList::new();
    io.push_source(bytes);
    send(socket, &mut io)
}

/// Receives a few bytes.
pub(super) fn recv_bytes(socket: &Socket, bytes: &mut [u8]) -> Result<usize, Stop> {
    let mut io = IoList::new();
    io.push_target(bytes);
    recv(socket, &mut io)
}

/// Returns whether the peer has closed, and everything it sent has been read, or the connection has broken.
pub(super) fn is_at_end(socket: &Socket) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit(); 1];
    match socket.recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT) {
        Ok(bytes) => bytes == 0,
        Err(error) => !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}

/// Returns the number of bytes that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged_bytes(socket: &Socket) -> usize {
    count_bytes(socket, libc::TIOCOUTQ) // the same number as SIOCOUTQ
}

/// Returns the number of bytes that the kernel has not sent.
pub(super) fn unsent_bytes(socket: &Socket) -> usize {
    const SIOCOUTQNSD: libc::Ioctl = 0x894B; // linux/sockios.h
    count_bytes(socket, SIOCOUTQNSD)
}

fn count_bytes(socket: &Socket, request: libc::Ioctl) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: SIOCOUTQ and SIOCOUTQNSD write one int to the given address. Tests: `pacing::tests`.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), request, &raw mut count) };
    if rc == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Facts about a connection that the kernel reports (`TCP_INFO`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TcpInfo {
    /// Whether the connection request is on its way, and the connection not open yet.
    pub is_opening: bool,
    /// How often the kernel has retransmitted the oldest bytes since the last acknowledgement.
    pub resends: u8,
    /// Number of segments in flight.
    pub unacknowledged: u32,
    /// Time since the peer's kernel last acknowledged anything, whether or not there was something to acknowledge.
    pub acknowledged_ago: Duration,
    /// Length of a full segment, in bytes.
    pub segment_bytes: u32,
    /// Number of segments retransmitted since the beginning.
    pub resent: u32,
    /// Number of segments with data sent since the beginning, retransmissions included; 0 before Linux 4.6.
    pub sent: u32,
    /// Number of segments that the peer received twice, because they were retransmitted needlessly. 0 before Linux
    /// 4.19.
    pub duplicates: u32,
    /// Number of bytes that the peer's kernel has acknowledged since the beginning. 0 before Linux 4.1.
    pub acknowledged_bytes: u64,
    /// Number of bytes that are not sent yet. 0 before Linux 4.6.
    pub unsent_bytes: u32,
    /// Bytes per second that have arrived lately, measured while there were bytes to send; 0 if the kernel does not
    /// know.
    pub delivered_per_second: u64,
    /// Shortest round trip of a packet and its acknowledgement, if the kernel knows it.
    pub least_round_trip: Option<Duration>,
}

impl TcpInfo {
    /// Asks the kernel. Returns `None` if it refuses.
    #[must_use]
    pub fn of(socket: &impl AsFd) -> Option<Self> {
        // Offsets in the kernel's structure; libc declares only the first part of it.
        const RESENDS: usize = 2;
        const SEGMENT: usize = 16;
        const UNACKNOWLEDGED: usize = 24;
        const ACKNOWLEDGED_MS: usize = 56;
        const RESENT: usize = 100;
        const ACKNOWLEDGED: usize = 120;
        const UNSENT: usize = 144;
        const LEAST_ROUND_TRIP: usize = 148;
        const SENT: usize = 156;
        const DELIVERED: usize = 160;
        const DUPLICATES: usize = 216;
        const BYTES: usize = 220;
        const SYN_SENT: u8 = 2;
        let mut info = [0_u8; BYTES];
        let mut len = BYTES as libc::socklen_t;
        // SAFETY: TCP_INFO writes at most `len` bytes to `info`, which has as many, and the number written to `len`.
        // Older kernels write fewer bytes, and the rest stays zero. Any bytes are valid numbers.
        let rc = unsafe {
            let (to, len) = (info.as_mut_ptr().cast(), &raw mut len);
            libc::getsockopt(socket.as_fd().as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, to, len)
        };
        let word =
            |at: usize| info[at..].first_chunk().map_or(0, |bytes: &[u8; 4]| u32::from_ne_bytes(*bytes));
        let long =
            |at: usize| info[at..].first_chunk().map_or(0, |bytes: &[u8; 8]| u64::from_ne_bytes(*bytes));
        let least = Some(word(LEAST_ROUND_TRIP)).filter(|_| len as usize >= LEAST_ROUND_TRIP + 4);
        (rc == 0).then(|| Self {
            is_opening: info[0] == SYN_SENT,
            resends: info[RESENDS],
            unacknowledged: word(UNACKNOWLEDGED),
            acknowledged_ago: Duration::from_millis(word(ACKNOWLEDGED_MS).into()),
            segment_bytes: word(SEGMENT),
            resent: word(RESENT),
            sent: word(SENT),
            duplicates: word(DUPLICATES),
            acknowledged_bytes: long(ACKNOWLEDGED),
            unsent_bytes: word(UNSENT),
            delivered_per_second: long(DELIVERED),
            least_round_trip: least.filter(|us| *us != u32::MAX).map(|us| Duration::from_micros(us.into())),
        })
    }

    /// Returns the number of bytes that the kernel holds and the peer's has not acknowledged.
    pub(super) const fn backlog_bytes(&self) -> u64 {
        self.unsent_bytes as u64 + self.unacknowledged as u64 * self.segment_bytes as u64
    }

    /// Returns whether the kernel has sent the same bytes, or the connection request, again and again without an
    /// acknowledgement. It retransmits for the first time after some 200 ms (for a request, after 1 s; on a connection
    /// that was hastened, after some 12 ms), then after twice as long, and so on.
    #[must_use]
    pub const fn resends_in_vain(&self) -> bool {
        const RESENDS: u8 = 2; // the first may be due to a lost packet
        let needed = if self.is_opening { 1 } else { RESENDS };
        self.unacknowledged > 0 && self.resends >= needed
    }
}

/// Limits a connection to this many bytes per second, spread evenly.
///
/// # Errors
/// If the system refuses.
pub fn pace(socket: &impl AsFd, bytes_per_second: u32) -> io::Result<()> {
    write_word(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, bytes_per_second)
}

/// Sets an option that is one 32-bit number.
pub(super) fn write_word(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    word: u32,
) -> io::Result<()> {
    // SAFETY: the option reads at most the given length, that of the variable. Tests:
    // `lost_bytes_are_sent_again_after_some_milliseconds`, `pacing::tests`.
    let rc = unsafe {
        let len = size_of::<u32>() as libc::socklen_t;
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, (&raw const word).cast(), len)
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns a connection's limit in bytes per second.
#[cfg(test)]
pub(super) fn pace_of(socket: &Socket) -> Option<u32> {
    read_word(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE)
}

/// Reads an option that is one 32-bit number.
#[cfg(test)]
pub(super) fn read_word(socket: &Socket, level: libc::c_int, option: libc::c_int) -> Option<u32> {
    let (mut word, mut len) = (0_u32, size_of::<u32>() as libc::socklen_t);
    // SAFETY: the option writes at most `len` bytes, into a variable of that length. Tests as for `write_word`.
    let rc = unsafe {
        let into = (&raw mut word).cast();
        libc::getsockopt(socket.as_raw_fd(), level, option, into, &raw mut len)
    };
    (rc == 0).then_some(word)
}

/// The least time after which bytes are sent again, beyond the round trip (Linux 6.15).
const TCP_RTO_MIN_US: libc::c_int = 45;

/// The longest time before bytes are acknowledged (Linux 6.15).
const TCP_DELACK_MAX_US: libc::c_int = 46;

/// Makes a connection between near hosts send the last segments of a message again after some milliseconds if they are
/// lost, instead of 200: all ranks may wait for them. Kernels before Linux 6.15 refuse, and the connection stays as it is.
///
/// Kernels count in ticks of up to 10 ms, and want at least two. The peer must acknowledge sooner than this end sends
/// again; it sets the same.
pub(super) fn hasten(socket: &Socket) {
    const ACKNOWLEDGE_AND_RESEND_US: [(u32, u32); 2] = [(8_000, 12_000), (20_000, 40_000)];
    let set = |option, micros| write_word(socket, libc::IPPROTO_TCP, option, micros).is_ok();
    let _ = ACKNOWLEDGE_AND_RESEND_US
        .iter()
        .any(|(acknowledge, resend)| set(TCP_DELACK_MAX_US, *acknowledge) && set(TCP_RTO_MIN_US, *resend));
}

/// Makes a connection keep at most this many unsent bytes, beside those in flight.
pub(super) fn keep_unsent(socket: &Socket, bytes: u32) -> io::Result<()> {
    socket.set_tcp_notsent_lowat(bytes)
}

/// Opens a socket that listens on all addresses, at the first free port of a range or at one that the system picks.
/// It serves both address families if it can.
///
/// # Errors
/// As for [`in_port_range`], or the system's error.
pub fn listen(ports: Option<RangeInclusive<u16>>) -> io::Result<Socket> {
    match ports {
        Some(ports) => in_port_range(&ports, listen_at),
        None => listen_at(0, Reuse::No),
    }
}

/// Whether a socket may take a port that others have bound without listening, or that has connections which the
/// system still remembers (`SO_REUSEADDR`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reuse {
    /// It may not.
    No,
    /// It may.
    Yes,
}

/// Opens a socket at the first free port of a range. Ports that are bound but not listened at come last, because one
/// of them may be reserved for another process.
///
/// # Errors
/// The error of `open`, other than that the port is taken. If all ports are taken, an error that says so.
pub fn in_port_range<T>(
    ports: &RangeInclusive<u16>,
    open: impl Fn(u16, Reuse) -> io::Result<T>,
) -> io::Result<T> {
    for reuse in [Reuse::No, Reuse::Yes] {
        for port in ports.clone() {
            match open(port, reuse) {
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                outcome => return outcome,
            }
        }
    }
    let text = format!(
        "no port from {} to {} is free; every process takes one, and rank 0 takes another for joining if the \
         launcher names one of these: widen KOLO_PORT_RANGE",
        ports.start(),
        ports.end()
    );
    Err(io::Error::new(io::ErrorKind::AddrInUse, text))
}

fn listen_at(port: u16, reuse: Reuse) -> io::Result<Socket> {
    // The system may cap this (net.core.somaxconn). At the start, all ranks of the world may dial at once.
    const BACKLOG: i32 = 4096;
    let open = |domain, address: IpAddr| {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(reuse == Reuse::Yes)?;
        socket.bind(&SockAddr::from(SocketAddr::new(address, port)))?;
        // Its connections inherit this, so that after they end they do not keep the port from the next job.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.listen(BACKLOG)?;
        Ok(socket)
    };
    open(Domain::IPV6, Ipv6Addr::UNSPECIFIED.into()).or_else(|error: io::Error| match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
        _ => open(Domain::IPV4, Ipv4Addr::UNSPECIFIED.into()), // on a host without IPv6
    })
}

/// Maximum time between keep-alive probes that the kernel permits, some nine hours.
const KEEPALIVE_MAX: Duration = Duration::from_secs(32767);

/// Sets the options of a connection. Buffer sizes must be set before connecting, since the window scale depends on
/// them.
pub(super) fn configure(socket: &impl AsFd, options: &TcpOptions) -> io::Result<()> {
    configure_but(socket, options, |set| set(), &mut |_, _| {})
}

/// Returns which of the options that connections can do without are refused, in words.
pub(super) fn refused(options: &TcpOptions) -> Option<String> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).ok()?;
    let mut refused = Vec::new();
    let mut note = |what: &str, error: io::Error| refused.push(format!("{what} is refused ({error})"));
    configure_but(&socket, options, |set| set(), &mut note).ok()?;
    (!refused.is_empty()).then(|| refused.join("; "))
}

/// As [`configure`], and calls `refused` for every option that is refused and that connections can do without. `ask` makes
/// the system calls of these options.
fn configure_but(
    socket: &impl AsFd,
    options: &TcpOptions,
    ask: impl Fn(&dyn Fn() -> io::Result<()>) -> io::Result<()>,
    refused: &mut dyn FnMut(&str, io::Error),
) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_nonblocking(true)?;
    if let Err(error) = ask(&|| socket.set_tcp_nodelay(true)) {
        refused("TCP_NODELAY", error);
    }
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.recv_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    // A silent connection is probed after half of the time, then six times in the other half.
    let within = |time: Duration| time.clamp(Duration::from_secs(1), KEEPALIVE_MAX);
    let keepalive = TcpKeepalive::new()
        .with_time(within(options.dead_after / 2))
        .with_interval(within(options.dead_after / 12))
        .with_retries(6);
    if let Err(error) = ask(&|| socket.set_tcp_keepalive(&keepalive)) {
        refused("keep-alive", error);
    }
    match options.user_timeout {
        Some(time) => socket.set_tcp_user_timeout(Some(time)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(socket: &Socket) -> u16 {
        socket.local_addr().ok().and_then(|address| address.as_socket()).expect("bound").port()
    }

    /// Returns two consecutive ports that were free a moment ago.
    fn pair() -> RangeInclusive<u16> {
        let free = |_| {
            let first = port(&listen_at(0, Reuse::No).expect("a port"));
            let last = first.checked_add(1)?;
            listen_at(last, Reuse::No).is_ok().then_some(first..=last)
        };
        (0..100).find_map(free).expect("a machine with free ports")
    }

    #[test]
    fn sockets_take_the_ports_of_a_range_in_turn() {
        let ports = pair();
        let first = listen(Some(ports.clone())).expect("free");
        let second = listen(Some(ports.clone())).expect("free");
        assert_eq!([port(&first), port(&second)], [*ports.start(), *ports.end()]);
        let error = listen(Some(ports.clone())).expect_err("none is free").to_string();
        for part in [ports.start().to_string(), ports.end().to_string(), "KOLO_PORT_RANGE".to_owned()] {
            assert!(error.contains(&part), "{error}");
        }
        // A connection that this end closes first is remembered for a minute.
        let peer = std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, *ports.start())).expect("it listens");
        let accepted = || first.accept().map_err(|error| assert_eq!(error.kind(), io::ErrorKind::WouldBlock));
        let connection = std::iter::repeat_with(accepted).find_map(Result::ok).expect("accepted");
        drop((connection, first, peer));
        assert_eq!(port(&listen(Some(ports.clone())).expect("free again")), *ports.start());
    }

    #[test]
    fn options_that_a_sandbox_refuses_are_done_without_and_told() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        let denied = |_: &dyn Fn() -> io::Result<()>| Err(io::Error::from_raw_os_error(libc::EPERM));
        let mut told = Vec::new();
        let outcome = configure_but(&socket, &TcpOptions::default(), denied, &mut |what, error| {
            told.push((what.to_owned(), error.raw_os_error()));
        });
        outcome.expect("a connection works without them");
        let wanted = ["TCP_NODELAY", "keep-alive"].map(|what| (what.to_owned(), Some(libc::EPERM)));
        assert_eq!(told, wanted);
        assert_eq!(refused(&TcpOptions::default()), None);
    }

    #[test]
    fn any_patience_with_a_silent_peer_is_permitted() {
        for (seconds, kernel) in [(0, 1), (600, 300), (10 * 365 * 86400, 32767)] {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
            let options = TcpOptions { dead_after: Duration::from_secs(seconds), ..TcpOptions::default() };
            configure(&socket, &options).expect("options that the kernel permits");
            let idle = read_word(&socket, libc::IPPROTO_TCP, libc::TCP_KEEPIDLE);
            assert_eq!(idle, Some(kernel), "{seconds} s");
        }
    }

    #[test]
    fn a_port_that_is_kept_for_somebody_is_taken_last() {
        let ports = pair();
        let kept = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        kept.set_reuse_address(true).expect("an option");
        kept.bind(&SockAddr::from(SocketAddr::from((Ipv6Addr::UNSPECIFIED, *ports.start())))).expect("free");
        let others = [(); 2].map(|()| listen(Some(ports.clone())).expect("free"));
        assert_eq!(others.map(|other| port(&other)), [*ports.end(), *ports.start()]);
    }

    #[test]
    fn lost_bytes_are_sent_again_after_some_milliseconds() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).expect("a socket");
        let get = |option| read_word(&socket, libc::IPPROTO_TCP, option);
        let Some(before) = get(TCP_RTO_MIN_US) else {
            println!("skipped: this kernel has no TCP_RTO_MIN_US");
            return;
        };
        hasten(&socket);
        let [resend, acknowledge] = [TCP_RTO_MIN_US, TCP_DELACK_MAX_US].map(get);
        assert!(resend <= Some(40_000) && resend < Some(before), "{resend:?} of {before}");
        assert!(acknowledge < resend, "{acknowledge:?} and {resend:?}");
    }
}
