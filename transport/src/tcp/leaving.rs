//! Orderly departure: data that was reported as sent arrives, even if this rank leaves messages unread.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::endpoint::TcpEndpoint;
use super::link::{SCRATCH_BYTES, State, Strands, Workspace};
use super::socket::{self, Stop, TcpInfo};
use crate::sys::unshared::Unshared;

/// Time between two looks at the sockets of an endpoint that is dropped.
const PAUSE: Duration = Duration::from_micros(100);

/// A socket whose stream has ended on this side. If it held unread bytes when it was closed, the kernel would reset the
/// connection and drop the bytes that it has not delivered.
#[derive(Debug)]
pub(super) struct Leaving {
    socket: Unshared<Socket>,
    /// Whether the peer must have acknowledged all bytes before the socket is closed, since it sends bytes that nobody
    /// reads, or since the order of the bytes depends on other sockets.
    is_awaited: bool,
}

impl TcpEndpoint {
    /// Ends all streams after their last bytes. The sockets are kept until the endpoint is dropped: the peer may still
    /// send, and what it sends must be read.
    pub(super) fn part(&mut self) {
        for link in &mut self.links {
            if !matches!(link.state, State::Open(_)) {
                continue;
            }
            let State::Open(first) = std::mem::replace(&mut link.state, State::Gone) else { continue };
            let strands = link.bundle.iter_mut().flat_map(|bundle| &mut bundle.strands);
            let strands = strands.filter_map(|strand| strand.socket.take());
            let dials = match std::mem::replace(&mut link.strands, Strands::None) {
                Strands::Dialing(dials) => dials,
                Strands::None | Strands::Wanted => Vec::new(),
            };
            // The peer may take these for strands already. Its answers must be read like all else.
            let half_made = dials.into_iter().flat_map(|(_, dial)| dial.into_begun());
            let further = strands.chain(half_made).map(|socket| (socket, true));
            for (socket, is_awaited) in further.chain([(first, false)]) {
                // This fails if the peer has gone already, which does no harm.
                let _ = socket.shutdown(Shutdown::Write);
                self.leaving.push(Leaving { socket, is_awaited });
            }
        }
        self.leaving.retain_mut(|leaving| leaving.discard(&mut self.work));
    }
}

impl Leaving {
    /// Reads and discards the bytes that have arrived. Returns whether the connection still exists.
    fn discard(&mut self, work: &mut Workspace) -> bool {
        loop {
            work.io.clear();
            work.ask_scratch(0, SCRATCH_BYTES);
            match socket::recv(&self.socket, &mut work.io) {
                Ok(_) => self.is_awaited = true,
                Err(stop) => return !matches!(stop, Stop::Closed(Some(_))),
            }
        }
    }

    /// Returns whether bytes are still on their way.
    fn is_needed(&self) -> bool {
        match self.is_awaited {
            true => socket::unacknowledged_bytes(&self.socket) > 0,
            // The last acknowledgement may take 40 ms, for which most owners need not wait.
            false => TcpInfo::of(&self.socket).is_some_and(|info| info.unsent_bytes > 0),
        }
    }
}

impl Drop for TcpEndpoint {
    /// Waits for a moment until the messages that were reported done have left this host, and, where the peer has sent
    /// bytes that nobody reads, until they have reached it.
    fn drop(&mut self) {
        const PATIENCE: Duration = Duration::from_secs(1);
        self.part();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.leaving.retain_mut(|leaving| leaving.discard(&mut self.work) && leaving.is_needed());
            if self.leaving.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use super::super::dial::Dial;
    use super::super::route::Candidate;
    use super::super::tests::{deliver, until, world};
    use super::*;
    use crate::endpoint::Channel;

    #[test]
    fn a_strand_that_the_peer_has_welcomed_ends_without_a_reset() {
        let mut ends = world(2);
        deliver(&mut ends, 0, 1, 0, 10);
        let (mut far, mut near) = (ends.pop().expect("two"), ends.pop().expect("two"));
        let (target, now) = (far.me.instance, Instant::now());
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, far.port()));
        let candidate = Candidate { to, interface: "lo".into(), distance: 0, from: None };
        let hello = near.me.hello(Channel { peer: 1, index: 0 }, 1, target);
        let mut dial = Dial::new(hello, target, true, &[candidate], now);
        until("a hello", || {
            let _ = dial.step(now, &near.options, |_| {});
            dial.has_said_hello().then_some(())
        });
        let number = near.peers[1].links[0] as usize;
        near.links[number].strands = Strands::Dialing(vec![(0, dial)]);
        let number = far.peers[0].links[0] as usize;
        until("a welcome", || {
            far.connect(&mut Vec::new());
            far.links[number].bundle.is_some().then_some(())
        });

        drop(near);
        let bundle = far.links[number].bundle.as_ref().expect("welcomed");
        let strand = bundle.strands[1].socket.as_ref().expect("a connection");
        let stop = until("its end", || {
            socket::recv_bytes(strand, &mut [0]).err().filter(|stop| !matches!(stop, Stop::Blocked))
        });
        assert!(matches!(stop, Stop::Closed(None)), "{stop:?}");
    }
}
