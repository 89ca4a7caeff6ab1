//! Connections that have not yet identified themselves.
//!
//! Every process on the host can connect to an abstract socket. Such a connection costs one accept. Its process must belong to the same user, its
//! greeting is read without waiting, and the number of silent connections is bounded: the oldest is closed for the newest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;

use super::hello::{Greeting, HELLO_BYTES, Hello};
use crate::sys::credentials;
use crate::sys::descriptors::{self, STARVED_FOR};
use crate::sys::unix::{self, Attached};

/// Silent pending kept at most. A peer's greeting is sent with one call right after connecting, so an honest
/// pending is silent only between those two calls of its own.
const PENDING_MAX: usize = 64;
/// Connections accepted at one go at most: as many as the backlog holds. So everything that lay there when a look
/// began has been seen when it ends, and a flood holds up the owner for some milliseconds at the worst.
const ACCEPTS_MAX: usize = unix::BACKLOG as usize;

/// The mark that `epoll` reports for the listener, the bell and the pending: nothing needs to be told apart.
pub(crate) const EPOLL_PENDING: u64 = u64::MAX;

/// A connection that has sent its greeting.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) greeting: Greeting,
    pub(crate) stream: OwnedFd,
    /// The descriptor that came along.
    pub(crate) fd: Attached,
}

#[derive(Debug)]
struct Pending {
    stream: OwnedFd,
    buffer: [u8; HELLO_BYTES],
    filled: usize,
    fd: Attached,
}

/// Result of reading from a pending connection.
enum Heard {
    /// More is to come.
    Silence,
    /// A greeting.
    Greeting(Greeting),
    /// Nonsense, or the end.
    Nonsense,
}

/// The listener and its silent pending.
#[derive(Debug)]
pub(crate) struct PendingConnections {
    listener: OwnedFd,
    uid: u32,
    pending: Vec<Pending>,
    /// Time since which a connection has waited for a descriptor to be accepted with.
    hungry_since: Option<Instant>,
}

impl PendingConnections {
    pub(crate) fn new(listener: OwnedFd, uid: u32) -> Self {
        Self { listener, uid, pending: Vec::new(), hungry_since: None }
    }

    /// Accepts who is waiting and listens to everybody. Those who have greeted go into `callers`.
    ///
    /// # Errors
    /// If a connection has waited to be accepted for [`STARVED_FOR`] and the system has no descriptor.
    pub(crate) fn receive(&mut self, epoll: &OwnedFd, callers: &mut Vec<Caller>) -> io::Result<()> {
        let mut index = 0;
        while index < self.pending.len() {
            match self.pending[index].listen() {
                Heard::Silence => index += 1,
                Heard::Nonsense => drop(self.pending.remove(index)),
                Heard::Greeting(greeting) => {
                    let pending = self.pending.remove(index);
                    // The new owner adds the stream again, under its own name.
                    let _ = epoll::delete(epoll, &pending.stream);
                    callers.push(Caller { greeting, stream: pending.stream, fd: pending.fd });
                }
            }
        }
        for _ in 0..ACCEPTS_MAX {
            let stream = match unix::accept(&self.listener) {
                Ok(stream) => stream,
                Err(error) if descriptors::are_out(&error) => return self.hunger(error),
                Err(_) => break,
            };
            self.hungry_since = None;
            if credentials::peer_uid(&stream).ok() != Some(self.uid) {
                continue;
            }
            let mut pending = Pending { stream, buffer: [0; HELLO_BYTES], filled: 0, fd: None };
            match pending.listen() {
                Heard::Greeting(greeting) => {
                    callers.push(Caller { greeting, stream: pending.stream, fd: pending.fd });
                }
                Heard::Nonsense => {}
                Heard::Silence => self.keep(epoll, pending),
            }
        }
        self.hungry_since = None;
        Ok(())
    }

    /// Whether a connection cannot be accepted because descriptors have run out.
    pub(crate) fn is_hungry(&self) -> bool {
        self.hungry_since.is_some()
    }

    /// Descriptors have run out for connections that wait, if any: the system reports this without checking for one.
    #[cold]
    fn hunger(&mut self, error: io::Error) -> io::Result<()> {
        if !unix::is_readable(&self.listener) {
            self.hungry_since = None;
            return Ok(());
        }
        let since = *self.hungry_since.get_or_insert_with(Instant::now);
        if since.elapsed() >= STARVED_FOR { Err(error) } else { Ok(()) }
    }

    fn keep(&mut self, epoll: &OwnedFd, pending: Pending) {
        if self.pending.len() == PENDING_MAX {
            self.pending.remove(0);
        }
        let data = epoll::EventData::new_u64(EPOLL_PENDING);
        if epoll::add(epoll, pending.stream.as_fd(), data, epoll::EventFlags::IN).is_ok() {
            self.pending.push(pending);
        }
    }
}

impl Pending {
    fn listen(&mut self) -> Heard {
        while self.filled < HELLO_BYTES {
            match unix::receive(&self.stream, &mut self.buffer[self.filled..], &mut self.fd) {
                Ok(0) => return Heard::Nonsense,
                Ok(bytes) => self.filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Silence,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return Heard::Nonsense,
            }
        }
        Hello::decode(&self.buffer).map_or(Heard::Nonsense, Heard::Greeting)
    }
}
