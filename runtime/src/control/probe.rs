//! Probes that ask whether another host is alive, outside the existing connections to it.
//!
//! After a network cut, the kernel resends lost data when a timer fires, some tenths of a second after the network
//! works again. A request for a new connection is sent at once. Any answer, even a refusal, shows that the host is
//! alive.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};

/// Connection requests to one host. The kernel sends each once; it would repeat it only after a second.
#[derive(Debug)]
pub(super) struct Probes {
    most: usize,
    under_way: VecDeque<Socket>,
    are_answered: bool,
}

impl Probes {
    /// Makes a set of probes, of which at most `most` are under way at a time.
    pub(super) const fn at_most(most: usize) -> Self {
        Self { most, under_way: VecDeque::new(), are_answered: false }
    }

    /// Sends one more probe, in place of the oldest if there are too many. Returns at once.
    pub(super) fn send(&mut self, to: SocketAddr) {
        if self.under_way.len() >= self.most {
            self.under_way.pop_front();
        }
        match request(to) {
            Ok(socket) => self.under_way.push_back(socket),
            Err(error) if is_answer(&error) => self.are_answered = true,
            Err(error) => tracing::debug!(%to, %error, "a host cannot be asked whether it is there"),
        }
    }

    /// Whether a probe was answered. Never blocks.
    pub(super) fn are_answered(&mut self) -> bool {
        self.are_answered |= self.under_way.iter().any(|socket| match socket.take_error() {
            Ok(None) => socket.peer_addr().is_ok(),
            Ok(Some(error)) => is_answer(&error),
            Err(_) => false,
        });
        self.are_answered
    }

    /// Drops all probes that are under way.
    pub(super) fn forget(&mut self) {
        self.under_way.clear();
        self.are_answered = false;
    }
}

/// Whether an error shows that the host is alive. Routers report that a host cannot be reached, but only the host
/// itself refuses or resets a connection.
fn is_answer(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset)
}

fn request(to: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    // A connection that was made has no use. With this option, closing it leaves nothing behind.
    socket.set_linger(Some(Duration::ZERO))?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => Err(error),
        _ => Ok(socket),
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Instant;

    use super::*;

    fn is_answered_soon(probes: &mut Probes) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        while !probes.are_answered() && Instant::now() < until {
            std::thread::yield_now();
        }
        probes.are_answered()
    }

    #[test]
    fn a_host_that_takes_or_refuses_connections_is_there() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let at = listener.local_addr().unwrap();
        let mut probes = Probes::at_most(2);
        assert!(!probes.are_answered());
        probes.send(at);
        assert!(is_answered_soon(&mut probes));
        probes.forget();
        assert!(!probes.are_answered());
        drop(listener);
        (0..3).for_each(|_| probes.send(at));
        assert!(probes.under_way.len() <= 2);
        assert!(is_answered_soon(&mut probes), "its refusal is an answer");
    }

    #[test]
    fn what_a_router_says_is_no_answer() {
        let answers = |code| is_answer(&io::Error::from_raw_os_error(code));
        assert!(answers(libc::ECONNREFUSED) && answers(libc::ECONNRESET));
        assert!(!answers(libc::EHOSTUNREACH) && !answers(libc::ENETUNREACH) && !answers(libc::ETIMEDOUT));
    }
}
