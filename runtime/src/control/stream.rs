//! A connection that reports when the other end's kernel last acknowledged data, while tasks read and write it.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use kolo_transport::Unshared;
use kolo_transport::tcp::TcpInfo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};
use tokio::net::TcpStream;

use super::sealed::{Sealed, SessionKeys};

/// A byte stream in both directions: TCP between processes, or an in-memory pipe within a process.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns a handle to the underlying TCP connection, if there is one to another host.
    fn tcp_handle(&self) -> Option<TcpHandle>;

    /// Returns the addresses of this end and of the other. `None` within a process.
    fn ends(&self) -> Option<[SocketAddr; 2]>;
}

/// A stream of any kind.
pub(crate) type BoxedStream = Box<dyn Stream>;

impl Stream for DuplexStream {
    fn tcp_handle(&self) -> Option<TcpHandle> {
        None
    }

    fn ends(&self) -> Option<[SocketAddr; 2]> {
        None
    }
}

impl<S: Stream> Stream for Sealed<S> {
    fn tcp_handle(&self) -> Option<TcpHandle> {
        self.inner().tcp_handle()
    }

    fn ends(&self) -> Option<[SocketAddr; 2]> {
        self.inner().ends()
    }
}

/// Makes the stream of a connection after its handshake.
pub(crate) fn boxed(connection: Unshared<TcpStream>, keys: Option<&SessionKeys>) -> BoxedStream {
    // With this option, segments lost in a short network cut are resent soon after the cut, not after up to twice its
    // length.
    let _ = SockRef::from(&connection).set_tcp_thin_linear_timeouts(true);
    let connection = Connection(Arc::new(connection));
    match keys {
        Some(keys) => Box::new(Sealed::new(connection, keys)),
        None => Box::new(connection),
    }
}

/// A handle to a TCP connection. It does not keep the connection open.
#[derive(Clone, Debug)]
pub(crate) struct TcpHandle(Weak<Unshared<TcpStream>>);

/// The state of acknowledgements from the other end's kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Whether all sent data is acknowledged.
    pub(crate) all: bool,
    /// Time since the last acknowledgement.
    pub(crate) ago: Duration,
}

impl TcpHandle {
    /// Returns the state of acknowledgements, or `None` if the connection has ended or the kernel does not tell.
    pub(crate) fn acknowledged(&self) -> Option<Acknowledged> {
        let info = TcpInfo::of(&*self.0.upgrade()?)?;
        Some(Acknowledged { all: info.unacknowledged == 0, ago: info.acknowledged_ago })
    }

    /// Returns the address of the other end.
    pub(crate) fn peer(&self) -> Option<SocketAddr> {
        self.0.upgrade()?.peer_addr().ok()
    }
}

struct Connection(Arc<Unshared<TcpStream>>);

impl Stream for Connection {
    fn tcp_handle(&self) -> Option<TcpHandle> {
        // Both ends on one host share a kernel, which answers as long as the host runs at all.
        self.ends()
            .filter(|[here, there]| here.ip() != there.ip())
            .map(|_| TcpHandle(Arc::downgrade(&self.0)))
    }

    fn ends(&self) -> Option<[SocketAddr; 2]> {
        let [here, there] = [self.0.local_addr().ok()?, self.0.peer_addr().ok()?];
        Some([here, there].map(|at| SocketAddr::new(at.ip().to_canonical(), at.port())))
    }
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.0.poll_read_ready(cx))?;
            match self.0.try_read(into.initialize_unfilled()) {
                Ok(bytes) => {
                    into.advance(bytes);
                    return Poll::Ready(Ok(()));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.0.poll_write_ready(cx))?;
            match self.0.try_write(bytes) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(SockRef::from(&*self.0).shutdown(Shutdown::Write))
    }
}
