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

use super::credentials;
use super::unshared::Unshared;

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);

/// Maximum number of connections that wait to be accepted: the kernel's default limit (net.core.somaxconn).
pub(crate) const BACKLOG: i32 = 4096;

/// A socket, which ends with this process even if a forked child lives on.
pub(crate) type Socket = Unshared<OwnedFd>;

fn open(kind: SocketType) -> io::Result<Socket> {
    Ok(Unshared::new(rustix::net::socket_with(AddressFamily::UNIX, kind, FLAGS, None)?))
}

/// Makes a listener for streams.
pub(crate) fn listen(name: &[u8]) -> io::Result<Socket> {
    let fd = open(SocketType::STREAM)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&fd, BACKLOG)?;
    Ok(fd)
}

/// Makes a datagram socket with a name.
pub(crate) fn datagram(name: &[u8]) -> io::Result<Socket> {
    let fd = open(SocketType::DGRAM)?;
    rustix::net::bind(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(fd)
}

/// Connects a stream. A UNIX socket connects at once, or fails: with `WouldBlock` if the backlog is full, with
/// `ConnectionRefused` if nobody listens.
pub(crate) fn connect(name: &[u8]) -> io::Result<Socket> {
    let fd = open(SocketType::STREAM)?;
    rustix::net::connect(&fd, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(fd)
}

/// Connects a stream as [`connect`] does, if its listener belongs to this user. An abstract name has no owner: once a
/// process has ended, another user may listen there. For the caller, that is as if nobody did.
pub(crate) fn connect_to(name: &[u8], uid: u32) -> io::Result<Socket> {
    let stream = connect(name)?;
    if credentials::peer_of(&stream)?.uid != uid {
        return Err(io::Error::new(io::ErrorKind::ConnectionRefused, "another user listens there"));
    }
    Ok(stream)
}

/// Accepts the next connection of a listener.
pub(crate) fn accept(listener: impl AsFd) -> io::Result<Socket> {
    Ok(Unshared::new(rustix::net::accept_with(listener, FLAGS)?))
}

/// Returns whether something waits to be read or accepted.
pub(crate) fn is_readable(socket: impl AsFd) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut fds = [PollFd::new(&socket, PollFlags::IN)];
    rustix::event::poll(&mut fds, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// Sends a datagram of one byte to a named socket.
pub(crate) fn nudge(from: impl AsFd, name: &[u8]) -> io::Result<()> {
    rustix::net::sendto(from, &[1], SendFlags::NOSIGNAL, &SocketAddrUnix::new_abstract_name(name)?)?;
    Ok(())
}

/// Discards the datagrams that lie in a socket, in at most `rounds` reads, so that a sender cannot keep the reader
/// busy.
pub(crate) fn drain(socket: impl AsFd, rounds: usize) {
    let mut buffer = [0u8; 16];
    for _ in 0..rounds {
        if rustix::net::recv(&socket, &mut buffer[..], RecvFlags::DONTWAIT).is_err() {
            return;
        }
    }
}

/// Sends `message`, with a descriptor if given. Returns how many bytes were sent; the descriptor goes with the first.
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

/// Returns whether the peer's backlog or buffer is full, or this user has too many descriptors in flight: the condition
/// passes once receivers look at their sockets.
pub(crate) fn is_transient(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(code, Some(rustix::io::Errno::AGAIN | rustix::io::Errno::TOOMANYREFS | rustix::io::Errno::INTR))
}

/// A descriptor that came with a message, or the reason why it was lost on the way.
pub(crate) type Attached = Option<io::Result<OwnedFd>>;

/// Receives into `buffer`; 0 bytes mean the end of the stream. A descriptor that came along replaces `fd`. There is
/// space for one descriptor, so the kernel closes the others if a sender attaches more. If this process has no free
/// descriptor number, the descriptor is lost for good, and `fd` holds the error.
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
        // There was space for a descriptor, so the kernel could not give it a number.
        *fd = Some(Err(io::Error::from_raw_os_error(libc::EMFILE)));
    }
    Ok(result.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_another_user_has_taken_refuses() {
        let name = format!("kolo-test-of-names-{}", std::process::id()).into_bytes();
        let uid = rustix::process::geteuid().as_raw();
        let listener = listen(&name).unwrap();
        let refused = connect_to(&name, uid + 1).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert!(!is_transient(&refused), "nobody tries again");
        assert!(connect_to(&name, uid).is_ok());
        drop(listener);
        // A child that another test has just forked may have the listener for a moment.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let refused = loop {
            match connect_to(&name, uid) {
                Err(refused) => break refused,
                Ok(_) => assert!(std::time::Instant::now() < deadline, "somebody listens"),
            }
            std::thread::yield_now();
        };
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
}
