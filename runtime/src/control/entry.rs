//! Entrance for joining ranks: a listener of the coordinator's own, or the port at which rank 0 is reached anyway.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::coordinator::CoordinatorCounters;
use super::handshake::Start;

/// Callers that wait until the coordinator takes them; those beyond come again.
pub(super) const CALLERS_MAX: usize = 1024;

/// A connection not yet answered.
pub(crate) struct Caller {
    pub(super) stream: TcpStream,
    pub(super) origin: SocketAddr,
    /// Its first bytes, if they have been read.
    pub(super) start: Option<Start>,
}

/// Source of incoming connections.
pub(crate) enum Entry {
    /// A socket of its own.
    Own(TcpListener),
    /// A port that others of this process share, with those who are no rank and are turned away there.
    Shared { at: SocketAddr, callers: mpsc::Receiver<Caller>, counters: Arc<CoordinatorCounters> },
}

impl Entry {
    /// As this host reaches it.
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

    /// The coordinator's counters.
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
            // A closed queue means that the door has closed: no more callers.
            Self::Shared { callers, .. } => match callers.poll_recv(context) {
                Poll::Ready(Some(caller)) => Poll::Ready(Ok(caller)),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// The next one; never without an entry.
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

/// Callers that wait there now.
pub(super) async fn look(entry: Option<&mut Entry>) -> Option<Poll<io::Result<Caller>>> {
    let entry = entry?;
    Some(std::future::poll_fn(|context| Poll::Ready(entry.poll(context))).await)
}
