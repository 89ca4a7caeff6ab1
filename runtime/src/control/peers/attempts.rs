//! Attempts to connect to a member's listener, at all of its addresses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use kolo_transport::tcp::all_addresses;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::listener::{ConnectError, ListenerAddress, Locality};
use crate::control::coordinator::BoxedStream;
use crate::control::dial::{Unopened, Whom, open};
use crate::control::handshake::{Credentials, Rejection};
use crate::job::limits::MAX_LISTENER_ADDRESSES;

/// Time between the starts of attempts on several addresses.
const STAGGER: Duration = Duration::from_millis(20);

/// Least time in which the other addresses of a listener can show that its process lives after all, once the address
/// that is known to lead to its host has refused.
const SECOND_LOOK: Duration = Duration::from_millis(100);

/// Connects to a listener's port. The member is gone if the address that is known to lead to its host refuses the
/// connection or belongs to another process and no other address lets this process connect soon. It is refused if all
/// addresses refuse and none is known, and silent if one does not answer.
pub(super) async fn connect_to_port(
    at: &ListenerAddress,
    locality: Locality,
    credentials: Credentials,
    patience: Duration,
) -> Result<(BoxedStream, SocketAddr), ConnectError> {
    let candidates = at.candidates(locality, || all_addresses().unwrap_or_default());
    connect_to_one(&candidates, locality, &credentials, patience).await
}

async fn connect_to_one(
    candidates: &[SocketAddr],
    locality: Locality,
    credentials: &Credentials,
    patience: Duration,
) -> Result<(BoxedStream, SocketAddr), ConnectError> {
    let is_proven = |at: SocketAddr| locality == Locality::Proven(at.ip());
    let begun = Instant::now();
    let outcome = race(candidates, STAGGER, is_proven, credentials, patience).await;
    let Err(gone @ ConnectError::Gone(_)) = outcome else { return outcome };
    // A firewall may refuse connections to a live process on one network and let them through on another.
    let others: Vec<_> = candidates.iter().copied().filter(|at| !is_proven(*at)).collect();
    // A refusal takes one round trip, and a handshake a few.
    let patience = patience.min(SECOND_LOOK.max(4 * begun.elapsed()));
    let others = race(&others, Duration::ZERO, is_proven, credentials, patience);
    match tokio::time::timeout(patience, others).await {
        Ok(Ok(connected)) => Ok(connected),
        _ => Err(gone),
    }
}

/// Tries all addresses, each a little after the one before. The first answer counts, and so does a refusal of the proven
/// address, or another process there, which may be of another version.
async fn race(
    candidates: &[SocketAddr],
    stagger: Duration,
    is_proven: impl Fn(SocketAddr) -> bool,
    credentials: &Credentials,
    patience: Duration,
) -> Result<(BoxedStream, SocketAddr), ConnectError> {
    let mut attempts = JoinSet::new();
    for (i, &address) in candidates.iter().enumerate() {
        let (credentials, is_proven) = (credentials.clone(), is_proven(address));
        attempts.spawn(async move {
            tokio::time::sleep(stagger * i as u32).await;
            match attempt(address, &credentials, patience).await {
                // All members have one version and one secret, so who differs there is not the member.
                Err(ConnectError::Refused(text) | ConnectError::Misfit { problem: text, .. })
                    if is_proven =>
                {
                    Err(ConnectError::Gone(format!("{text}: its process has ended")))
                }
                outcome => outcome.map(|stream| (stream, address)),
            }
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
    fn candidates(&self, locality: Locality, own: impl FnOnce() -> Vec<IpAddr>) -> Vec<SocketAddr> {
        let first = match locality {
            Locality::Proven(ip) => Some(ip),
            Locality::SameHost => Some(Ipv4Addr::LOCALHOST.into()),
            Locality::OtherHost | Locality::SameProcess => None,
        };
        let known = first.zip(self.port()).map(|(ip, port)| SocketAddr::new(ip, port));
        let mut ways: Vec<_> = known.into_iter().collect();
        if locality == Locality::Proven(Ipv4Addr::LOCALHOST.into()) {
            return ways;
        }
        let own = own();
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
    open(address, Whom::Member, credentials, (patience, patience)).await.map_err(|unopened| match unopened {
        Unopened::System(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            ConnectError::Refused(format!("{address} refuses connections"))
        }
        Unopened::System(error) => silent(&error.to_string()),
        Unopened::Silent => silent("no answer"),
        Unopened::Itself => ConnectError::Refused(format!("nothing is listening on {address}")),
        Unopened::Rejected(Rejection::Misfit { problem, remedy }) => {
            ConnectError::Misfit { problem: format!("{address}: {problem}"), remedy }
        }
        // The listener would know its own key.
        Unopened::Rejected(Rejection::OtherJob(cause)) => {
            ConnectError::Refused(format!("another process has {address} now ({cause})"))
        }
        Unopened::Rejected(Rejection::Foreign(cause)) => silent(&cause),
        Unopened::Mute => silent("it accepts connections but says nothing"),
    })
}

#[cfg(test)]
mod tests {
    use super::super::listener::Listener;
    use super::*;
    use crate::join::{JoinSpec, Locator};

    #[test]
    fn addresses_that_this_host_has_too_are_not_tried_on_other_hosts() {
        let ips = ["192.168.1.7", "172.17.0.1", "127.0.0.1"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let mut at = ListenerAddress::sample(0);
        at.addresses = ips.map(|ip| SocketAddr::new(ip, 7)).to_vec();
        let tried = |locality, own: &[IpAddr]| -> Vec<IpAddr> {
            at.candidates(locality, || own.to_vec()).iter().map(SocketAddr::ip).collect()
        };
        assert_eq!(tried(Locality::OtherHost, &ips[1..]), ips[..1], "both hosts have a bridge");
        assert_eq!(tried(Locality::OtherHost, &ips), ips[..2], "containers that share a network");
        assert_eq!(tried(Locality::SameHost, &ips), ips[2..]);
        assert_eq!(tried(Locality::SameHost, &ips[1..]), [ips[2], ips[0]], "perhaps a clone of this host");
        assert_eq!(tried(Locality::Proven(ips[2]), &[]), ips[2..]);
        assert_eq!(tried(Locality::Proven(ips[1]), &[]), [ips[1], ips[0]]);
    }

    #[test]
    fn the_addresses_of_this_host_are_not_asked_for_where_loopback_is_proven() {
        let proven = Locality::Proven(Ipv4Addr::LOCALHOST.into());
        let tried = ListenerAddress::sample(0).candidates(proven, || unreachable!("they do not matter"));
        assert_eq!(tried.len(), 1);
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_process_is_not_gone_if_another_of_its_addresses_lets_this_one_connect() {
        let mut spec = JoinSpec::new(0, 2, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        let listener = Listener::open_port(&spec).await.unwrap();
        let credentials = listener.address().credentials(&spec);
        let port = listener.address().port().unwrap();
        // Of these, the listener has only the last.
        let all = [2, 3, 1].map(|last| SocketAddr::from(([127, 0, 0, last], port)));
        let locality = Locality::Proven(all[0].ip());
        let patience = Duration::from_secs(20);
        let connect = |all| connect_to_one(all, locality, &credentials, patience);
        let reached = connect(&all).await.map(|(_, at)| at);
        assert_eq!(reached.map_err(ConnectError::text), Ok(all[2]));
        let outcome = connect(&all[..2]).await.err();
        assert!(matches!(outcome, Some(ConnectError::Gone(_))), "{outcome:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn a_job_of_another_kind_at_a_members_port_shows_that_the_member_has_ended() {
        let mut spec = JoinSpec::new(0, 2, Locator::Local(Default::default()), "a test");
        spec.one_host = true;
        let member = Listener::open_port(&spec).await.unwrap();
        let credentials = member.address().credentials(&spec);
        spec.secret = crate::job::JobSecret::new("x");
        let other = Listener::open_port(&spec).await.unwrap();
        let at = [SocketAddr::from(([127, 0, 0, 1], other.address().port().unwrap()))];
        let patience = Duration::from_secs(20);
        let proven = Locality::Proven(at[0].ip());
        let outcome = connect_to_one(&at, proven, &credentials, patience).await.err();
        assert!(matches!(outcome, Some(ConnectError::Gone(_))), "{outcome:?}");
        // A newcomer is told why it does not fit.
        let outcome = connect_to_one(&at, Locality::SameHost, &credentials, patience).await.err();
        assert!(matches!(outcome, Some(ConnectError::Misfit { .. })), "{outcome:?}");
    }

    #[tokio::test(flavor = "current_thread")]
    async fn other_addresses_that_are_silent_keep_a_process_that_is_gone_for_a_short_while() {
        let mute = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let open = mute.local_addr().unwrap();
        let all = [SocketAddr::from(([127, 0, 0, 2], open.port())), open];
        let (locality, patience) = (Locality::Proven(all[0].ip()), Duration::from_secs(20));
        let begun = Instant::now();
        let outcome = connect_to_one(&all, locality, &Credentials::default(), patience).await.err();
        assert!(matches!(outcome, Some(ConnectError::Gone(_))), "{outcome:?}");
        assert!(begun.elapsed() < patience / 2, "{:?}", begun.elapsed());
    }
}
