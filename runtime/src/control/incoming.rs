//! Source of connections from joining ranks: the coordinator's own listener, or the port that rank 0 already has for
//! other purposes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::coordinator::CoordinatorCounters;
use super::handshake::Start;

/// Most callers that wait for the coordinator. Further callers are dropped, and ranks among them try again.
pub(super) const CALLERS_MAX: usize = 1024;

/// A connection that has not been answered yet.
pub(crate) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) origin: SocketAddr,
    /// Its first bytes, if they have already been read.
    pub(super) start: Option<Start>,
}

/// Source of incoming connections.
pub(crate) enum Entry {
    /// A listener of the coordinator's own.
    Own(TcpListener),
    /// A port that the coordinator shares with other services of this process. The port's owner also counts the
    /// connections that it rejects.
    Shared { at: SocketAddr, callers: mpsc::Receiver<Caller>, counters: Arc<CoordinatorCounters> },
}

impl Entry {
    /// Returns the address at which this host reaches the entry.
    pub(super) fn at(&self) -> Option<SocketAddr> {
        let at = match self {
            Self::Own(listener) => listener.local_addr().ok()?,
            Self::Shared { at, .. } => *at,
        };
        Some(match at.ip().is_unspecified() {
            true => SocketAddr::new(Ipv4Addr::LOCALHOST.into(), at.port()),
            false => at,
        })
    }

    /// Returns the coordinator's counters.
    pub(super) fn counters(&self) -> Arc<CoordinatorCounters> {
        match self {
            Self::Own(_) => Arc::default(),
            Self::Shared { counters, .. } => counters.clone(),
        }
    }

    fn poll(&mut self, context: &mut std::task::Context<'_>) -> Poll<io::Result<Caller>> {
        match self {
            Self::Own(listener) => {
                let accepted = listener.poll_accept(context);
                accepted.map_ok(|(stream, origin)| Caller { stream, origin, start: None })
            }
            // A closed queue means that the listener has closed, so no more callers will come.
            Self::Shared { callers, .. } => match callers.poll_recv(context) {
                Poll::Ready(Some(caller)) => Poll::Ready(Ok(caller)),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// Waits for the next caller, and not before `after`. Never returns if there is no entry.
pub(super) async fn accept(
    entry: Option<&mut Entry>,
    after: Option<tokio::time::Instant>,
) -> io::Result<Caller> {
    let Some(entry) = entry else { return std::future::pending().await };
    if let Some(after) = after {
        tokio::time::sleep_until(after).await;
    }
    std::future::poll_fn(|context| entry.poll(context)).await
}

/// Returns a caller that is already waiting, without blocking.
pub(super) async fn look(entry: Option<&mut Entry>) -> Option<Poll<io::Result<Caller>>> {
    let entry = entry?;
    Some(std::future::poll_fn(|context| Poll::Ready(entry.poll(context))).await)
}
