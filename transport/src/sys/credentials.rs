//! Identity of the process at the other end of a UNIX stream.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The process at the other end of a UNIX stream, or the one that made it with its pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its user.
    pub uid: u32,
    /// Its number, if this process sees its PID namespace. Sockets of other kinds have none.
    pub pid: Option<u32>,
}

/// Returns the process at the other end, as the kernel knows it.
///
/// This does not use rustix, whose `UCred` holds a process number that cannot be 0. The kernel reports 0 for a
/// process in a PID namespace that this process does not see, as between containers of one host.
///
/// # Errors
/// The system's.
pub fn peer_of(stream: impl AsFd) -> io::Result<Peer> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: `peer` is `len` bytes of plain numbers, of which the kernel fills at most `len`; both outlive the call.
    let status = unsafe {
        libc::getsockopt(
            stream.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    if status != 0 {
        return Err(io::Error::last_os_error());
    }
    if len as usize != size_of::<libc::ucred>() {
        return Err(io::Error::other("the kernel reports only part of the peer's credentials"));
    }
    Ok(Peer { uid: peer.uid, pid: u32::try_from(peer.pid).ok().filter(|pid| *pid > 0) })
}
