//! Source of connections from joining ranks: the coordinator's own listener, or the port that rank 0 already has for
//! other purposes.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;

use kolo_transport::Unshared;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;

use super::coordinator::CoordinatorCounters;
use super::handshake::Start;

/// Most connections that wait for the coordinator. Further ones are dropped, and ranks among them try again.
pub(super) const ACCEPTED_MAX: usize = 1024;

/// A connection that has not been answered yet.
pub(crate) struct Accepted {
    pub(super) stream: Unshared<TcpStream>,
    pub(super) origin: SocketAddr,
    /// Its first bytes, if they have already been read.
    pub(super) start: Option<Start>,
}

/// Source of incoming connections.
pub(crate) enum Incoming {
    /// A listener of the coordinator's own.
    Own(Unshared<TcpListener>),
    /// A port that the coordinator shares with other services of this process. The port's owner also counts the
    /// connections that it rejects.
    Shared { at: SocketAddr, accepted: mpsc::Receiver<Accepted>, counters: Arc<CoordinatorCounters> },
}

impl Incoming {
    /// Returns the address at which this host reaches it.
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

    fn poll(&mut self, context: &mut std::task::Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Own(listener) => {
                let accepted = listener.poll_accept(context);
                accepted.map_ok(|(stream, origin)| Accepted {
                    stream: Unshared::new(stream),
                    origin,
                    start: None,
                })
            }
            // A closed queue means that the listener has closed, so no more will come.
            Self::Shared { accepted, .. } => match accepted.poll_recv(context) {
                Poll::Ready(Some(connection)) => Poll::Ready(Ok(connection)),
                Poll::Ready(None) | Poll::Pending => Poll::Pending,
            },
        }
    }
}

/// Waits for the next connection, and not before `after`. Never returns without a source.
pub(super) async fn accept(
    incoming: Option<&mut Incoming>,
    after: Option<tokio::time::Instant>,
) -> io::Result<Accepted> {
    let Some(incoming) = incoming else { return std::future::pending().await };
    if let Some(after) = after {
        tokio::time::sleep_until(after).await;
    }
    std::future::poll_fn(|context| incoming.poll(context)).await
}

/// Returns a connection that is already waiting, without blocking.
pub(super) async fn try_accept(incoming: Option<&mut Incoming>) -> Option<Poll<io::Result<Accepted>>> {
    let incoming = incoming?;
    Some(std::future::poll_fn(|context| Poll::Ready(incoming.poll(context))).await)
}
