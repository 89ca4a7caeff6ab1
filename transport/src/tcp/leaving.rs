//! Orderly departure: data that was reported as sent arrives, even if this rank leaves messages unread.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::endpoint::TcpEndpoint;
use super::link::{SCRATCH_BYTES, State, Workspace};
use super::socket::{self, Stop, TcpInfo};

/// Time between two looks at the sockets of an endpoint that is dropped.
const PAUSE: Duration = Duration::from_micros(100);

/// A socket whose stream has ended on this side. If it held unread bytes when it was closed, the kernel would reset the
/// connection and drop the bytes that it has not delivered.
#[derive(Debug)]
pub(super) struct Leaving {
    socket: Socket,
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
            let strands = strands.filter_map(|strand| strand.socket.take()).map(|socket| (socket, true));
            for (socket, is_awaited) in strands.chain([(first, false)]) {
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
