//! Tells paths that lose long packets (MTU black holes) from paths that lose all.
//!
//! Data that gets no acknowledgement may have met either. A connection request is a short packet, and so is its answer: if
//! a new connection opens, and the data is sent again after that in vain, the path loses long packets only.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};

use super::endpoint::TcpEndpoint;
use super::link::{Link, State};
use super::socket::{self, TcpInfo};
use crate::sys::unshared::Unshared;

/// Time without an acknowledgement before a verdict. A cable that is pulled and plugged in again should not end a job.
const PATIENCE: Duration = Duration::from_secs(5);

/// Times that the data must have been sent again since the new connection opened. The first may have been under way.
const RESENDS: u8 = 2;

/// Bytes without an acknowledgement that may be in a packet that is too long.
const LONG_BYTES: usize = 1000;

/// Bytes of a packet beside its segment: headers of IP and TCP.
const HEADERS: u32 = 52;

/// A new connection to a peer that does not acknowledge data.
#[derive(Debug)]
pub(super) struct Trial {
    peer: u32,
    socket: Unshared<Socket>,
    since: Instant,
    /// Bytes that the peer had acknowledged by then.
    acknowledged_bytes: u64,
    /// Times that the data had been sent again when the new connection was seen to be open.
    resends: Option<u8>,
}

impl Trial {
    /// Returns whether the path loses long packets only. `stuck` is the connection whose data is not acknowledged.
    fn is_proof(&mut self, now: Instant, stuck: &TcpInfo) -> bool {
        if self.resends.is_none() && self.socket.peer_addr().is_ok() {
            self.resends = Some(stuck.resends);
        }
        let again = self.resends.map_or(0, |before| stuck.resends.saturating_sub(before));
        again >= RESENDS && now.saturating_duration_since(self.since) >= PATIENCE
    }
}

impl TcpEndpoint {
    /// See [`Endpoint::black_hole`](crate::Endpoint::black_hole).
    pub(super) fn find_black_hole(&mut self, peer: u32, now: Instant) -> Option<u32> {
        let port = self.peers.get(peer as usize)?.address.as_ref().map(|address| address.port);
        let stuck = self.links_to(peer).find_map(|link| Some((stuck(link)?, request_to(link, port)?)));
        let known = self.trials.iter().position(|trial| trial.peer == peer);
        let Some(((info, len), to)) = stuck else {
            known.map(|at| self.trials.swap_remove(at));
            return None;
        };
        match known.map(|at| &mut self.trials[at]) {
            Some(trial) if trial.acknowledged_bytes == info.acknowledged_bytes => {
                trial.is_proof(now, &info).then_some(len)
            }
            _ => {
                self.trials.retain(|trial| trial.peer != peer);
                let socket = request(to)?;
                let acknowledged_bytes = info.acknowledged_bytes;
                self.trials.push(Trial { peer, socket, since: now, acknowledged_bytes, resends: None });
                None
            }
        }
    }
}

/// Returns the state of a connection that sends long packets again and again, and their length.
fn stuck(link: &Link) -> Option<(TcpInfo, u32)> {
    let State::Open(socket) = &link.state else { return None };
    let info = TcpInfo::of(socket).filter(TcpInfo::resends_in_vain)?;
    let bytes = socket::unacknowledged_bytes(socket);
    (bytes >= LONG_BYTES).then(|| (info, info.segment_bytes.min(bytes as u32) + HEADERS))
}

/// Returns the address at which the peer of a direct connection listens.
fn request_to(link: &Link, port: Option<u16>) -> Option<SocketAddr> {
    let route = link.route.as_ref().filter(|route| !route.is_relayed)?;
    let remote = route.remote?;
    if route.is_dialed { Some(remote) } else { Some(SocketAddr::new(remote.ip(), port?)) }
}

/// Requests a connection, and does not wait for it. The peer drops it once it is closed without a hello.
fn request(to: SocketAddr) -> Option<Unshared<Socket>> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)).ok()?;
    socket.set_nonblocking(true).ok()?;
    // The error says that the connection is being made. If there is another one, the connection never opens.
    let _ = socket.connect(&to.into());
    Some(Unshared::new(socket))
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    fn trial(to: SocketAddr, since: Instant) -> Trial {
        let socket = request(to).expect("a socket");
        Trial { peer: 1, socket, since, acknowledged_bytes: 0, resends: None }
    }

    fn stuck(resends: u8) -> TcpInfo {
        TcpInfo { resends, ..TcpInfo::default() }
    }

    #[test]
    fn data_that_is_sent_again_in_vain_beside_a_new_connection_is_too_long() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let start = Instant::now();
        let mut open = trial(listener.local_addr().expect("bound"), start);
        drop(listener.accept().expect("the connection"));
        assert!(!open.is_proof(start + PATIENCE, &stuck(7)), "just seen to be open");
        assert!(!open.is_proof(start + PATIENCE, &stuck(8)));
        assert!(!open.is_proof(start + PATIENCE / 2, &stuck(9)));
        assert!(open.is_proof(start + PATIENCE, &stuck(9)));
    }

    #[test]
    fn a_path_that_loses_all_proves_nothing() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let gone = listener.local_addr().expect("bound");
        drop(listener);
        let start = Instant::now();
        let mut refused = trial(gone, start);
        assert!((0..20).all(|resends| !refused.is_proof(start + 2 * PATIENCE, &stuck(resends))));
    }
}
