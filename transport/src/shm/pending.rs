//! Pending connections: those that have not yet identified themselves.
//!
//! Every process on the host can connect to an abstract socket. Such a connection costs one accept. Its greeting is
//! read without blocking, and the number of silent connections is bounded: the newest replaces the oldest, those of other
//! users first. The user alone says nothing, since a peer may have dropped its privileges after joining; the proof in the
//! greeting is of the job's cookies, which other users do not have.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::event::epoll;

use super::hello::{Greeting, HELLO_BYTES, Hello};
use crate::sys::credentials;
use crate::sys::descriptors::{self, STARVED_FOR};
use crate::sys::unix::{self, Attached};

/// Maximum number of silent pending connections. A peer sends its greeting with one call right after connecting, so
/// an honest connection is silent only between these two calls.
const PENDING_MAX: usize = 64;
/// Maximum number of connections accepted at a time: as many as the backlog holds. All connections that lay there
/// when a look began have therefore been seen when it ends, and a flood delays the owner by some milliseconds at
/// worst.
const ACCEPTS_MAX: usize = unix::BACKLOG as usize;

/// The mark that `epoll` reports for the listener, the bell and pending connections, which need not be told apart.
pub(crate) const EPOLL_PENDING: u64 = u64::MAX;

/// A connection that has sent its greeting.
#[derive(Debug)]
pub(crate) struct Caller {
    pub(crate) greeting: Greeting,
    pub(crate) stream: unix::Socket,
    /// The descriptor that came with the greeting.
    pub(crate) fd: Attached,
}

#[derive(Debug)]
struct Pending {
    stream: unix::Socket,
    buffer: [u8; HELLO_BYTES],
    filled: usize,
    fd: Attached,
    /// Whether its process belongs to another user than this one did when it made the listener.
    is_foreign: bool,
}

/// Result of reading from a pending connection.
enum Heard {
    /// More bytes are to come.
    Silence,
    /// A complete greeting.
    Greeting(Greeting),
    /// Bytes that are no greeting, or the end of the stream.
    Nonsense,
}

/// The listener and its silent connections.
#[derive(Debug)]
pub(crate) struct PendingConnections {
    listener: unix::Socket,
    uid: u32,
    pending: Vec<Pending>,
    /// Time since which a connection has waited because no descriptor is free to accept it.
    hungry_since: Option<Instant>,
}

impl PendingConnections {
    pub(crate) fn new(listener: unix::Socket, uid: u32) -> Self {
        Self { listener, uid, pending: Vec::new(), hungry_since: None }
    }

    /// Accepts waiting connections and reads from all pending ones. Those that have sent a greeting go into
    /// `callers`.
    ///
    /// # Errors
    /// If a connection has waited to be accepted for [`STARVED_FOR`] and the system has no free descriptor.
    pub(crate) fn receive(&mut self, epoll: &OwnedFd, callers: &mut Vec<Caller>) -> io::Result<()> {
        let mut index = 0;
        while index < self.pending.len() {
            match self.pending[index].listen() {
                Heard::Silence => index += 1,
                Heard::Nonsense => drop(self.pending.remove(index)),
                Heard::Greeting(greeting) => {
                    let pending = self.pending.remove(index);
                    // The new owner adds the stream again, with its own mark.
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
            let is_foreign = credentials::peer_of(&stream).ok().map(|peer| peer.uid) != Some(self.uid);
            let mut pending = Pending { stream, buffer: [0; HELLO_BYTES], filled: 0, fd: None, is_foreign };
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

    /// Returns whether a connection cannot be accepted because descriptors have run out.
    pub(crate) fn is_hungry(&self) -> bool {
        self.hungry_since.is_some()
    }

    /// Handles a lack of descriptors, if a connection really waits: the system reports the lack without checking for
    /// one.
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
            let foreign = self.pending.iter().position(|pending| pending.is_foreign);
            self.pending.remove(foreign.unwrap_or(0));
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
