//! From a locator to addresses: rank 0 binds and publishes its address, and the other ranks look it up.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Once;
use std::time::Instant;

use kolo_transport::Unshared;
use kolo_transport::tcp::{Reuse, in_port_range};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpListener;

use super::addresses::{address_towards, own_addresses};
use super::file::Notice;
use super::multicast::{Group, Wanted};
use super::store::Store;
use super::{JoinSpec, Locator, board, file, multicast};
use crate::error::{Error, JoinFailure, Result};
use crate::job::RendezvousKey;
use crate::job::limits::{BIND_PATIENCE, RETRY_MOST};

/// Length of the accept queue: more than the ranks that may connect at one instant. The kernel caps it at
/// net.core.somaxconn.
const BACKLOG: i32 = 4096;

/// Listener of rank 0's coordinator, with the guards that keep it findable until they are dropped.
pub(crate) struct Anchor {
    pub(crate) listener: Option<Unshared<TcpListener>>,
    pub(crate) published: Option<Box<dyn Send>>,
}

/// A rank's knowledge of the coordinator's address.
#[derive(Debug)]
pub(crate) struct Advert {
    /// Addresses to try, in this order.
    pub(crate) candidates: Vec<SocketAddr>,
    /// The key that rank 0 has drawn and published beside its address, if the locator has room for one.
    pub(crate) key: Option<RendezvousKey>,
    /// Origin of this information, for messages: "node7:29500", "process 12 on node7".
    pub(crate) origin: String,
}

impl Advert {
    /// Returns the key and the addresses, which tell publications apart.
    pub(crate) fn place(&self) -> (Option<RendezvousKey>, Vec<SocketAddr>) {
        (self.key, self.candidates.clone())
    }
}

/// Limits the warning to one per process, however many communicators it joins.
static WARNED: Once = Once::new();

/// Warns, on rank 0, if any process that reaches its port may become a rank of this job.
fn warn_of_open_port(spec: &JoinSpec, at: Option<SocketAddr>) {
    let reach = at.map(|address| address.ip());
    if spec.secret.is_some() || spec.world_size == 1 || !spec.locator.is_open() {
        return;
    }
    WARNED.call_once(|| {
        let who = match reach {
            Some(ip) if ip.is_loopback() => "every user of this host",
            _ => "anyone who reaches this port",
        };
        let text = format!(
            "rank 0 listens for {} without a job secret: {who} can take a rank; set the same KOLO_JOB_SECRET \
             for every process of the job, or meet through a file or a store",
            spec.locator
        );
        tracing::warn!("{text}");
        // Other users of a host are rarely hostile, but other hosts of a network may be. That justifies a line on the
        // terminal of programs that log nothing.
        if !reach.is_some_and(|ip| ip.is_loopback()) {
            eprintln!("kolo: warning: {text}");
        }
    });
}

/// Listens and publishes, on rank 0, within the time for joining. `shared` has the addresses at which rank 0 is
/// reachable already; they are published if the locator lets rank 0 choose.
pub(crate) async fn bind(
    spec: &JoinSpec,
    key: &RendezvousKey,
    shared: Option<Vec<SocketAddr>>,
) -> Result<Anchor> {
    // A store's own report, which says more, comes before.
    let patience = spec.timeout + RETRY_MOST;
    let bound = tokio::time::timeout(patience, bind_and_publish(spec, key, shared)).await;
    bound.unwrap_or_else(|_| {
        let after = spec.timeout.as_secs_f64();
        Err(Error::Join {
            rank: Some(0),
            kind: JoinFailure::Rendezvous,
            problem: format!("rank 0 could not leave its address at {} within {after:.1} s", spec.locator),
            remedy: format!("Check whether the file system or server there still answers ({})", spec.source),
        })
    })
}

async fn bind_and_publish(
    spec: &JoinSpec,
    key: &RendezvousKey,
    shared: Option<Vec<SocketAddr>>,
) -> Result<Anchor> {
    let (listener, addresses) = match shared {
        Some(addresses) => (None, addresses),
        None if spec.locator.publishes_key() => {
            let (listener, addresses) = open_port(spec).await?;
            (Some(listener), addresses)
        }
        None => (None, Vec::new()),
    };
    match &spec.locator {
        Locator::Tcp { host, port } => {
            let listener = bind_patiently(only_loopback(host), *port, &spec.source).await?;
            warn_of_open_port(spec, listener.local_addr().ok());
            Ok(Anchor { listener: Some(listener), published: None })
        }
        Locator::File { path } => {
            let (path, key) = (path.clone(), *key);
            let posted = blocking(move || file::post(&path, addresses, &key)).await?;
            Ok(Anchor { listener, published: Some(Box::new(posted)) })
        }
        Locator::Multicast { group, port, job, interface } => {
            warn_of_open_port(spec, addresses.first().copied());
            let group = Group { address: *group, port: *port, interface: *interface, job: job.clone() };
            let notice = Notice::new(addresses, key);
            let answering = multicast::answer(&group, notice).map_err(|error| Error::Join {
                rank: Some(0),
                kind: JoinFailure::Rendezvous,
                problem: format!("joining the multicast group {}:{}: {error}", group.address, group.port),
                remedy: "Name an interface that supports multicast: ?interface=ADDRESS".into(),
            })?;
            Ok(Anchor { listener, published: Some(Box::new(answering)) })
        }
        Locator::Store { host, port, prefix } => {
            publish_in_store(spec, addresses, (host, *port), &store_key(prefix), key).await?;
            Ok(Anchor { listener, published: None })
        }
        Locator::Board(place) => {
            let mut addresses = addresses;
            let server = match place.served_by() {
                // The port does not matter for the route.
                Some(host) => resolve(&host, 9).await.unwrap_or_default().first().map(SocketAddr::ip),
                None => None,
            };
            if let Some(near) = server.and_then(address_towards) {
                addresses.sort_by_key(|address| address.ip().is_loopback() || address.ip() != near);
            }
            board::publish(place, Notice::new(addresses, key).to_json()).await?;
            Ok(Anchor { listener, published: None })
        }
        Locator::Local(_) | Locator::Survivors(_) => Ok(Anchor { listener: None, published: None }),
    }
}

/// Finds the addresses where the coordinator may be, on the other ranks. Only a multicast group can lead to several
/// processes. An error is a reason, in words, to look again.
pub(crate) async fn find(spec: &JoinSpec, wanted: Wanted) -> Result<Vec<Advert>, String> {
    let advert = match &spec.locator {
        Locator::Tcp { host, port } => {
            let origin = format!("{host}:{port}");
            let candidates = resolve(host, *port).await?;
            Advert { candidates, key: None, origin }
        }
        Locator::File { path } => {
            let file = path.clone();
            let notice = blocking(move || file::read(&file)).await?;
            let origin = format!("{} (written by {})", path.display(), notice.writer());
            Advert { key: notice.key(), candidates: notice.addresses, origin }
        }
        Locator::Multicast { group, port, job, interface } => {
            let group = Group { address: *group, port: *port, interface: *interface, job: job.clone() };
            let advert = |(notice, from): (Notice, SocketAddr)| Advert {
                key: notice.key(),
                origin: format!("{from} (answer of {})", notice.writer()),
                candidates: multicast::candidates(notice.addresses, from),
            };
            return Ok(multicast::ask(&group, wanted).await?.into_iter().map(advert).collect());
        }
        Locator::Store { host, port, prefix } => {
            let mut store = open_store(host, *port).await?;
            let name = store_key(prefix);
            let again = |e: io::Error| format!("the TCPStore at {host}:{port}: {e}");
            let value = store.wait_and_get(&name).await.map_err(again)?;
            let notice = Notice::parse(&value).map_err(|e| format!("key {name} of the TCPStore: {e}"))?;
            let origin = format!("key {name} of the TCPStore (set by {})", notice.writer());
            Advert { key: notice.key(), candidates: notice.addresses, origin }
        }
        Locator::Board(place) => {
            let notice =
                Notice::parse(&board::read(place).await?).map_err(|e| format!("{}: {e}", place.name()))?;
            let origin = format!("{} (set by {})", place.name(), notice.writer());
            Advert { key: notice.key(), candidates: notice.addresses, origin }
        }
        Locator::Local(_) | Locator::Survivors(_) => {
            return Err("these ranks meet without addresses".into());
        }
    };
    Ok(vec![advert])
}

/// Makes a call that may block, for example on a file system that does not answer, on a thread of its own. The control
/// thread also serves the other communicators of this process.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await.map_err(tokio::task::JoinError::try_into_panic) {
        Ok(returned) => returned,
        Err(Ok(panic)) => std::panic::resume_unwind(panic),
        // The control thread is about to end.
        Err(Err(_)) => std::future::pending().await,
    }
}

/// PyTorch puts "/" before the keys of a plain store, so its own keys and Kolo's do not collide.
fn store_key(prefix: &str) -> String {
    format!("/{prefix}/coordinator")
}

async fn open_store(host: &str, port: u16) -> Result<Store, String> {
    let mut last = String::new();
    for address in resolve(host, port).await? {
        match Store::connect(address).await {
            Ok(store) => return Ok(store),
            Err(error) => last = format!("the TCPStore at {address}: {error}"),
        }
    }
    Err(last)
}

/// Publishes in the TCPStore. The agent may start its store after its workers, so rank 0 retries until its deadline.
async fn publish_in_store(
    spec: &JoinSpec,
    mut addresses: Vec<SocketAddr>,
    (host, port): (&str, u16),
    name: &str,
    key: &RendezvousKey,
) -> Result<()> {
    let deadline = Instant::now() + spec.timeout;
    let mut problem = format!("the TCPStore at {host}:{port}: no answer");
    loop {
        let attempt = async {
            let mut store = open_store(host, port).await?;
            let near = store.local_ip().map_err(|e| e.to_string())?;
            // The address by which this host reaches the store comes first, because the others reach the store too.
            addresses.sort_by_key(|address| address.ip().is_loopback() || address.ip() != near);
            let value = Notice::new(addresses.clone(), key).to_json();
            store.set(name, &value).await.map_err(|e| format!("the TCPStore at {host}:{port}: {e}"))
        };
        match tokio::time::timeout_at(deadline.into(), attempt).await {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => problem = cause,
            Err(_) => {} // the previous attempt's problem says more
        }
        if Instant::now() + RETRY_MOST >= deadline {
            return Err(Error::Join {
                rank: Some(0),
                kind: JoinFailure::Rendezvous,
                problem: format!("within {:.1} s: {problem}", spec.timeout.as_secs_f64()),
                remedy: format!(
                    "Check whether torchrun's agent is running there; if another launcher set these \
                     variables, unset TORCHELASTIC_USE_AGENT_STORE and TORCHELASTIC_RUN_ID ({})",
                    spec.source
                ),
            });
        }
        tokio::time::sleep(RETRY_MOST).await;
    }
}

/// Opens a port for the other members of a job. Returns it with the addresses at which they may reach it.
pub(crate) async fn open_port(spec: &JoinSpec) -> Result<(Unshared<TcpListener>, Vec<SocketAddr>)> {
    let listener = listen_for(spec).await?;
    let addresses = reachable_at(&listener)?;
    Ok((listener, addresses))
}

/// Listens at a port of the configured range, or at any port if there is none. Listens on loopback if the job is known
/// to run on this host only.
async fn listen_for(spec: &JoinSpec) -> Result<Unshared<TcpListener>> {
    let Some(ports) = &spec.ports else { return listen_anywhere(spec).await };
    let address = spec.one_host.then_some(Ipv4Addr::LOCALHOST.into());
    in_port_range(ports, |port, reuse| listen_with(address, port, reuse)).map_err(|error| Error::Join {
        rank: Some(spec.rank),
        kind: JoinFailure::Port,
        problem: format!(
            "cannot listen for the other ranks: {error}; each process on a host takes one of its {} ports",
            ports.len()
        ),
        remedy: "Set KOLO_PORT_RANGE to free ports, as many as there are ranks on a host".into(),
    })
}

async fn listen_anywhere(spec: &JoinSpec) -> Result<Unshared<TcpListener>> {
    if spec.one_host
        && let Ok(listener) = listen(Some(Ipv4Addr::LOCALHOST.into()), 0)
    {
        return Ok(listener);
    }
    bind_patiently(None, 0, &spec.source).await
}

async fn resolve(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found =
        tokio::net::lookup_host((host, port)).await.map_err(|e| format!("looking up '{host}': {e}"))?;
    let mut candidates: Vec<_> = found.collect();
    candidates.dedup();
    if candidates.is_empty() { Err(format!("'{host}' has no address")) } else { Ok(candidates) }
}

/// Returns the address for "localhost" and loopback addresses, which are served on loopback only. Any other name is
/// served on all interfaces, because rank 0's own host may resolve it differently (often to 127.0.1.1).
fn only_loopback(host: &str) -> Option<IpAddr> {
    if host.eq_ignore_ascii_case("localhost") {
        return Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
    }
    host.parse::<IpAddr>().ok().filter(IpAddr::is_loopback)
}

async fn bind_patiently(address: Option<IpAddr>, port: u16, source: &str) -> Result<Unshared<TcpListener>> {
    let give_up = Instant::now() + BIND_PATIENCE;
    loop {
        match listen(address, port) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < give_up => {
                tokio::time::sleep(RETRY_MOST).await;
            }
            Err(error) => {
                let remedy = match error.kind() {
                    io::ErrorKind::AddrInUse => {
                        "Another program is listening there, perhaps an earlier job or a second rank 0: end \
                         it, or give this job another port (MASTER_PORT or KOLO_RENDEZVOUS)"
                    }
                    io::ErrorKind::PermissionDenied => {
                        "Ports below 1024 need privileges: choose a higher one"
                    }
                    _ => "Check the address and this system's limits",
                };
                return Err(Error::Join {
                    rank: Some(0),
                    kind: JoinFailure::Port,
                    problem: format!("cannot listen on port {port} ({source}): {error}"),
                    remedy: remedy.into(),
                });
            }
        }
    }
}

fn listen(address: Option<IpAddr>, port: u16) -> io::Result<Unshared<TcpListener>> {
    listen_with(address, port, Reuse::Yes)
}

fn listen_with(address: Option<IpAddr>, port: u16, reuse: Reuse) -> io::Result<Unshared<TcpListener>> {
    let open = |address: IpAddr| -> io::Result<Unshared<TcpListener>> {
        let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(reuse == Reuse::Yes)?;
        socket.set_nonblocking(true)?;
        socket.bind(&SocketAddr::new(address, port).into())?;
        // Accepted connections inherit this option, so that connections that have ended do not keep the port from the
        // next job.
        socket.set_reuse_address(true)?;
        socket.listen(BACKLOG)?;
        TcpListener::from_std(socket.into()).map(Unshared::new)
    };
    match address {
        Some(address) => open(address),
        None => open(IpAddr::V6(Ipv6Addr::UNSPECIFIED)).or_else(|error| match error.kind() {
            io::ErrorKind::AddrInUse | io::ErrorKind::PermissionDenied => Err(error),
            _ => open(IpAddr::V4(Ipv4Addr::UNSPECIFIED)), // this host has no IPv6
        }),
    }
}

fn reachable_at(listener: &TcpListener) -> Result<Vec<SocketAddr>> {
    let address = listener.local_addr().map_err(|e| Error::system("asking for the port", e))?;
    if !address.ip().is_unspecified() {
        return Ok(vec![address]);
    }
    let port = address.port();
    Ok(own_addresses().into_iter().map(|address| SocketAddr::new(address, port)).collect())
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, mpsc};
    use std::time::Duration;

    use super::*;
    use crate::join::Board;

    /// A place that does not answer until the sender is dropped.
    #[derive(Debug)]
    struct Hangs(Mutex<mpsc::Receiver<()>>);

    impl Board for Hangs {
        fn publish(&self, _notice: &[u8]) -> Result<(), String> {
            let _ = self.0.lock().unwrap().recv();
            Ok(())
        }

        fn read(&self) -> Result<Vec<u8>, String> {
            unreachable!("nobody reads it")
        }

        fn name(&self) -> String {
            "a place that hangs".to_owned()
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn rank_0_does_not_wait_for_ever_for_a_place_that_does_not_answer() {
        let (release, hangs) = mpsc::channel();
        let board = Locator::Board(Arc::new(Hangs(Mutex::new(hangs))));
        let mut spec = JoinSpec::new(0, 2, board, "a test");
        spec.timeout = Duration::from_millis(1);
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 7));
        let error = bind(&spec, &RendezvousKey::default(), Some(vec![at])).await.err();
        let error = error.expect("it hangs").to_string();
        assert!(error.contains("could not leave its address at a place that hangs within 0.0 s"), "{error}");
        drop(release);
    }
}
