//! Opens a connection to one address of the coordinator or of a member.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use kolo_transport::Unshared;
use tokio::net::{TcpSocket, TcpStream};

use super::coordinator::BoxedStream;
use super::handshake::{Credentials, Rejection, greet_coordinator, greet_member};
use super::stream;

/// Longest segment on these connections, in bytes of data. IPv6 demands that every link carries packets of 1,280 bytes.
/// A path may drop larger packets silently (a tunnel behind a firewall that drops ICMP); ranks can then still join, and
/// tell each other of the failure.
const SEGMENT_BYTES: u32 = 1200;

/// Connects. Both ends keep to this segment length, since it is set before the connection is made.
async fn dial(address: SocketAddr) -> io::Result<Unshared<TcpStream>> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // If this fails, the connection uses the system's segment length.
    let _ = socket2::SockRef::from(&socket).set_tcp_mss(SEGMENT_BYTES);
    socket.connect(address).await.map(Unshared::new)
}

/// The process that is to answer.
#[derive(Clone, Copy)]
pub(super) enum Whom {
    Coordinator,
    Member,
}

/// Reason why a connection was not opened.
pub(super) enum Unopened {
    /// The system could not connect.
    System(io::Error),
    /// Nothing answers there.
    Silent,
    /// Nothing is listening there: the connection led to itself.
    Itself,
    /// Another process answers there.
    Rejected(Rejection),
    /// Something accepts connections there but says nothing.
    Mute,
}

/// Connects, and performs the handshake. Each of the two has its own time.
pub(super) async fn open(
    address: SocketAddr,
    whom: Whom,
    credentials: &Credentials,
    (dialing, greeting): (Duration, Duration),
) -> Result<BoxedStream, Unopened> {
    let dialed = tokio::time::timeout(dialing, dial(address)).await;
    let mut stream = dialed.map_err(|_| Unopened::Silent)?.map_err(Unopened::System)?;
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // The kernel may choose a port without a listener as the connection's own. Closing it frees it for the listener.
        return Err(Unopened::Itself);
    }
    let _ = stream.set_nodelay(true);
    let greet = async {
        match whom {
            Whom::Coordinator => greet_coordinator(&mut *stream, credentials).await,
            Whom::Member => greet_member(&mut *stream, credentials).await,
        }
    };
    let greeted = tokio::time::timeout(greeting, greet).await;
    let keys = greeted.map_err(|_| Unopened::Mute)?.map_err(Unopened::Rejected)?;
    Ok(stream::boxed(stream, keys.as_ref()))
}
