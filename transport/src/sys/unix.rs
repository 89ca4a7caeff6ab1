//! UNIX sockets with abstract names: short messages that may carry one file descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Connections that wait for being accepted, at most: what the kernel grants by default (net.core.somaxconn).
pub(crate) const BACKLOG: i32 = 4096;

/// A listener for streams.
pub(crate) fn listen(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// A datagram socket with a name.
pub(crate) fn datagram(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, FLAGS, None)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(fd)
}

/// Connects a stream. On a UNIX socket this is over at once: it fails with `WouldBlock` if the backlog is full,
/// with `ConnectionRefused` if nobody listens.
pub(crate) fn connect(name: &[u8]) -> io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, FLAGS, None)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(fd)
}

/// The next connection of a listener.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<OwnedFd> {
    Ok(rustix::net::accept_with(listener, FLAGS)?)
}

/// Whether something waits to be read or accepted.
pub(crate) fn is_readable(socket: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Sends an empty datagram to a named socket.
pub(crate) fn nudge(from: impl AsFd, name: &[u8]) -> io::Result<()> {
    rustix::net::sendto(from, &[1], SendFlags::NOSIGNAL, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(())
}

/// Reads away what lies in a socket, at most `rounds` reads, so that nobody can keep the reader busy.
pub(crate) fn drain(socket: impl AsFd, rounds: usize) {
    let mut buffer = [0u8; 16];
    for _ in 0..rounds {
        if rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}

/// Sends `message` and perhaps a descriptor. Returns how many bytes went; the descriptor goes with the first.
pub(crate) fn send(stream: impl AsFd, message: &[u8], fd: Option<BorrowedFd<'_>>) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = fd.map(|fd| [fd]);
    if let Some(fds) = &fds {
        let fits = control.push(SendAncillaryMessage::ScmRights(fds));
        debug_assert!(fits, "the control buffer is made for one descriptor");
    }
    Ok(rustix::net::sendmsg(stream, &[IoSlice::new(message)], &mut control, SendFlags::NOSIGNAL)?)
}

/// A descriptor that came along with a message, or why it was lost on the way.
pub(crate) type Attached = Option<io::Result<OwnedFd>>;

/// Receives into `buffer`; 0 bytes is the end of the stream. A descriptor that came along replaces `fd`; a sender
/// that attaches more than one has the others closed by the kernel, since there is no space for them. One for which this
/// process has no number left is closed too, for good: then `fd` says so.
pub(crate) fn receive(stream: impl AsFd, buffer: &mut [u8], fd: &mut Attached) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let result = rustix::net::recvmsg(
        stream,
        &mut [IoSliceMut::new(buffer)],
        &mut control,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut came = None;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            came = rights.last().or(came);
        }
    }
    if let Some(right) = came {
        *fd = Some(Ok(right));
    } else if result.flags.contains(ReturnFlags::CTRUNC) {
        // There is space for one: it was refused a number.
        *fd = Some(Err(io::Error::from_raw_os_error(libc::EMFILE)));
    }
    Ok(result.bytes)
}
