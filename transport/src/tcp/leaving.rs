//! Orderly departure: data that was reported as sent arrives, even if this rank leaves messages unread.

use std::net::Shutdown;
use std::time::{Duration, Instant};

use socket2::Socket;

use super::endpoint::TcpEndpoint;
use super::link::{SCRATCH_BYTES, State, Workspace};
use super::socket;

impl TcpEndpoint {
    /// Ends all streams after their last bytes. If a socket holds unread bytes, the kernel resets the connection on
    /// closing and drops its unsent bytes. So the unread bytes are read, and the socket is kept until the endpoint is
    /// dropped.
    pub(super) fn part(&mut self) {
        for link in &mut self.links {
            let State::Open(socket) = &link.state else { continue };
            // This fails if the peer has gone already, which does no harm.
            let _ = socket.shutdown(Shutdown::Write);
            let strands = link.bundle.iter_mut().flat_map(|bundle| &mut bundle.strands);
            for socket in strands.filter_map(|strand| strand.socket.take()) {
                let _ = socket.shutdown(Shutdown::Write);
                discard(&socket, &mut self.work);
                self.leaving.push(socket);
            }
            if discard(socket, &mut self.work) > 0
                && let State::Open(socket) = std::mem::replace(&mut link.state, State::Gone)
            {
                self.leaving.push(socket);
            }
        }
    }
}

impl Drop for TcpEndpoint {
    /// Waits for a moment until the messages that were reported done have reached their peers.
    fn drop(&mut self) {
        // Only connections with unread bytes or further strands make this wait.
        const PATIENCE: Duration = Duration::from_secs(1);
        self.part();
        let deadline = Instant::now() + PATIENCE;
        loop {
            self.leaving.retain(|socket| {
                discard(socket, &mut self.work);
                socket::unacknowledged_bytes(socket) > 0
            });
            if self.leaving.is_empty() || Instant::now() >= deadline {
                return;
            }
            std::thread::yield_now();
        }
    }
}

/// Reads and discards the bytes that have arrived; returns how many.
fn discard(socket: &Socket, work: &mut Workspace) -> usize {
    let mut total = 0;
    loop {
        work.io.clear();
        work.ask_scratch(0, SCRATCH_BYTES);
        match socket::recv(socket, &mut work.io) {
            Ok(bytes) => total += bytes,
            Err(_) => return total,
        }
    }
}
