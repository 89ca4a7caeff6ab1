//! Attempts to connect to a member's listener, at all of its addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use kolo_transport::tcp::own_addresses;
use tokio::task::JoinSet;

use super::listener::{ConnectError, ListenerAddress, Locality};
use crate::control::connect::dial;
use crate::control::coordinator::BoxedStream;
use crate::control::handshake::{Credentials, Rejection, greet_member};
use crate::control::stream;
use crate::job::limits::MAX_LISTENER_ADDRESSES;

/// Time between the starts of attempts on several addresses.
const STAGGER: Duration = Duration::from_millis(20);

/// Connects to a listener's port. The member is gone if the address that is known to lead to its host refuses the
/// connection or belongs to another process, refused if all others do so, and silent if one does not answer.
pub(super) async fn connect_to_port(
    at: &ListenerAddress,
    locality: Locality,
    credentials: Credentials,
    patience: Duration,
) -> Result<(BoxedStream, SocketAddr), ConnectError> {
    let own = own_addresses().unwrap_or_default();
    let mut attempts = JoinSet::new();
    for (i, address) in at.candidates(locality, &own).into_iter().enumerate() {
        let credentials = credentials.clone();
        attempts.spawn(async move {
            tokio::time::sleep(STAGGER * i as u32).await;
            attempt(address, &credentials, patience).await.map(|stream| (stream, address)).map_err(|error| {
                match error {
                    ConnectError::Refused(text) if locality == Locality::Proven(address.ip()) => {
                        ConnectError::Gone(format!("{text}: its process has ended"))
                    }
                    other => other,
                }
            })
        });
    }
    let mut worst = None;
    while let Some(outcome) = attempts.join_next().await {
        match outcome {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(gone @ ConnectError::Gone(_))) => return Err(gone),
            Ok(Err(refused @ ConnectError::Refused(_))) => worst = worst.or(Some(refused)),
            Ok(Err(silent)) => worst = Some(silent),
            Err(_) => {}
        }
    }
    Err(worst.unwrap_or_else(|| ConnectError::Silent("it has no port for other members".into())))
}

impl ListenerAddress {
    /// Returns the addresses to try from this host, the known one first. If this host has the listener's key, loopback
    /// is the first. Addresses that this host has too (`own`) lead back here, and are tried only if there are no others:
    /// then the two may be containers that share their network.
    fn candidates(&self, locality: Locality, own: &[IpAddr]) -> Vec<SocketAddr> {
        let first = match locality {
            Locality::Proven(ip) => Some(ip),
            Locality::SameHost => Some(Ipv4Addr::LOCALHOST.into()),
            Locality::OtherHost | Locality::SameProcess => None,
        };
        let port = self.port().unwrap_or_default();
        let mut ways: Vec<_> =
            first.filter(|_| self.has_port()).map(|ip| SocketAddr::new(ip, port)).into_iter().collect();
        if locality == Locality::Proven(Ipv4Addr::LOCALHOST.into()) {
            return ways;
        }
        let far = || self.addresses.iter().filter(|at| !at.ip().is_loopback() && Some(at.ip()) != first);
        ways.extend(far().filter(|at| !own.contains(&at.ip())));
        if ways.is_empty() {
            ways.extend(far());
        }
        if ways.is_empty() {
            ways.extend(self.addresses.first());
        }
        ways.truncate(MAX_LISTENER_ADDRESSES);
        ways
    }
}

async fn attempt(
    address: SocketAddr,
    credentials: &Credentials,
    patience: Duration,
) -> Result<BoxedStream, ConnectError> {
    let silent = |what: &str| ConnectError::Silent(format!("{address}: {what}"));
    let mut stream = match tokio::time::timeout(patience, dial(address)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {
            return Err(ConnectError::Refused(format!("{address} refuses connections")));
        }
        Ok(Err(error)) => return Err(silent(&error.to_string())),
        Err(_) => return Err(silent("no answer")),
    };
    if stream.local_addr().ok() == stream.peer_addr().ok() {
        // The kernel may choose a port without a listener as the connection's own.
        return Err(ConnectError::Refused(format!("nothing is listening on {address}")));
    }
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(patience, greet_member(&mut stream, credentials)).await {
        Ok(Ok(keys)) => Ok(stream::boxed(stream, keys.as_ref())),
        Ok(Err(Rejection::Misfit { problem, remedy })) => {
            Err(ConnectError::Misfit { problem: format!("{address}: {problem}"), remedy })
        }
        // The listener would know its own key.
        Ok(Err(Rejection::OtherJob(cause))) => {
            Err(ConnectError::Refused(format!("another process has {address} now ({cause})")))
        }
        Ok(Err(Rejection::Foreign(cause))) => Err(silent(&cause)),
        Err(_) => Err(silent("it accepts connections but says nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_this_host_has_too_are_not_tried_on_other_hosts() {
        let ips = ["192.168.1.7", "172.17.0.1", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let mut at = ListenerAddress::sample(0);
        at.addresses = ips.map(|ip| SocketAddr::new(ip, 7)).to_vec();
        let tried = |locality, own: &[IpAddr]| -> Vec<IpAddr> {
            at.candidates(locality, own).iter().map(SocketAddr::ip).collect()
        };
        assert_eq!(tried(Locality::OtherHost, &ips[1..]), ips[..1], "both hosts have a bridge");
        assert_eq!(tried(Locality::OtherHost, &ips), ips[..2], "containers that share a network");
        assert_eq!(tried(Locality::SameHost, &ips), ips[2..]);
        assert_eq!(tried(Locality::SameHost, &ips[1..]), [ips[2], ips[0]], "perhaps a clone of this host");
        assert_eq!(tried(Locality::Proven(ips[2]), &[]), ips[2..]);
        assert_eq!(tried(Locality::Proven(ips[1]), &[]), [ips[1], ips[0]]);
    }
}
