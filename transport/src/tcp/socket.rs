//! The system calls on sockets: vectored send and receive, and the options every connection gets.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};

use super::memory::IoList;
use super::options::TcpOptions;

/// How a transfer came out that moved nothing.
#[derive(Debug)]
pub(super) enum Stop {
    /// Not now.
    Blocked,
    /// Never again: end of stream (`None`) or an error.
    Closed(Option<io::Error>),
}

/// Sends from the list what the kernel takes; more than nothing.
pub(super) fn send(socket: &Socket, io: &mut IoList) -> Result<usize, Stop> {
    transfer(io, |message| {
        // SAFETY: the list holds runs of memory valid for reading until the tokens complete (module `memory`) or
        // of the endpoint itself; the kernel only reads them. The message header is valid for the call.
        unsafe { libc::sendmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) }
    })
}

/// Receives into the list what is there; more than nothing.
pub(super) fn recv(socket: &Socket, io: &mut IoList) -> Result<usize, Stop> {
    let moved = transfer(io, |message| {
        // SAFETY: the list holds runs of memory valid for writing: of posted receives (module `memory`) or of the
        // endpoint itself, borrowed mutably by the caller. The message header is valid for the call.
        unsafe { libc::recvmsg(socket.as_raw_fd(), message, libc::MSG_DONTWAIT) }
    })?;
    if moved == 0 { Err(Stop::Closed(None)) } else { Ok(moved) }
}

fn transfer(io: &mut IoList, call: impl Fn(*mut libc::msghdr) -> isize) -> Result<usize, Stop> {
    let (runs, count) = io.raw();
    // SAFETY: a message header of zeros is a valid one: no name, no control data, no list.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = runs;
    // A usize with glibc, an int with musl.
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

/// Whether the peer has closed and everything it sent has been read.
pub(super) fn is_at_end(socket: &Socket) -> bool {
    let mut byte = [std::mem::MaybeUninit::uninit(); 1];
    matches!(socket.recv_with_flags(&mut byte, libc::MSG_PEEK | libc::MSG_DONTWAIT), Ok(0))
}

/// Bytes that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged_bytes(socket: &Socket) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) writes one int to the given address.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut count) };
    if rc == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Whether the kernel has sent the same bytes, or the request for a connection, again and again without an acknowledgement.
/// It first does so after some 200 ms (for a request 1 s), then after twice as long, and so on.
pub(super) fn resends_in_vain(socket: &Socket) -> bool {
    const RESENDS: u8 = 2; // the first may be a packet lost
    const SYN_SENT: u8 = 2;
    // SAFETY: plain numbers, for which zeros are valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    let option = (libc::IPPROTO_TCP, libc::TCP_INFO);
    // SAFETY: TCP_INFO writes at most `len` bytes to the given address, and how many to that of `len`; older kernels write
    // less and leave zeros.
    let rc = unsafe {
        libc::getsockopt(socket.as_raw_fd(), option.0, option.1, (&raw mut info).cast(), &raw mut len)
    };
    let needed = if info.tcpi_state == SYN_SENT { 1 } else { RESENDS };
    rc == 0 && info.tcpi_unacked > 0 && info.tcpi_retransmits >= needed
}

/// A socket that listens on all addresses at a port the system picks; of both families where it can.
pub(super) fn listen() -> io::Result<Socket> {
    // As many as the system allows (net.core.somaxconn caps it): at start a whole world may dial at once.
    const BACKLOG: i32 = 4096;
    let dual = || {
        let socket = Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_only_v6(false)?;
        socket.bind(&SockAddr::from(std::net::SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, 0))))?;
        Ok::<_, io::Error>(socket)
    };
    let socket = match dual() {
        Ok(socket) => socket,
        Err(_) => {
            let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
            socket.bind(&SockAddr::from(std::net::SocketAddr::from((std::net::Ipv4Addr::UNSPECIFIED, 0))))?;
            socket
        }
    };
    socket.set_nonblocking(true)?;
    socket.listen(BACKLOG)?;
    Ok(socket)
}

/// The options of a connection. Buffers are set before connecting, or the window scale would not know.
pub(super) fn configure(socket: &impl AsFd, options: &TcpOptions) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if let Some(bytes) = options.send_buffer_bytes {
        socket.set_send_buffer_size(bytes)?;
    }
    if let Some(bytes) = options.recv_buffer_bytes {
        socket.set_recv_buffer_size(bytes)?;
    }
    // A silent connection is probed after half the time, then six times in the other half.
    let (idle, every) = (options.dead_after / 2, options.dead_after / 12);
    let keepalive = TcpKeepalive::new()
        .with_time(idle.max(Duration::from_secs(1)))
        .with_interval(every.max(Duration::from_secs(1)))
        .with_retries(6);
    socket.set_tcp_keepalive(&keepalive)?;
    match options.user_timeout {
        Some(time) => socket.set_tcp_user_timeout(Some(time)),
        None => Ok(()),
    }
}
