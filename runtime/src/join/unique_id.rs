//! Ids that a program passes to its ranks by its own means.
//!
//! An id holds the address at which rank 0 will listen, and a secret. A socket that is bound but never listens reserves
//! the port from the making of the id until rank 0 has joined: the kernel gives a bound port neither to a bind to port
//! 0 nor to an outgoing connection. Rank 0's own listener may still bind it, because both sockets set `SO_REUSEADDR`
//! and only one listens. Rank 0 may even be another process of this host than the one that made the id. Before rank 0
//! listens, the kernel refuses connections, and ranks try again. A process that makes many ids for ranks 0 of other
//! processes keeps none of these sockets for longer than ranks wait for each other.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;
use kolo_transport::tcp::{Reuse, in_port_range};
use socket2::{Domain, Protocol, Socket, Type};

use super::addresses::address_towards;
use super::{JoinSpec, Locator, env};
use crate::config::{check_unicode, parse_port_range};
use crate::error::{Error, Result};
use crate::job::{DEFAULT_JOIN_TIMEOUT, JobSecret};

/// Bytes of a [`UniqueId`].
pub const UNIQUE_ID_BYTES: usize = 128;

const MAGIC: [u8; 8] = *b"kolo-id1";
const SECRET_BYTES: usize = 32;

// Layout: magic, port (little endian), secret, length of the host's name, name, zeros.
const PORT_AT: usize = MAGIC.len();
const SECRET_AT: usize = PORT_AT + 2;
const LENGTH_AT: usize = SECRET_AT + SECRET_BYTES;
const HOST_AT: usize = LENGTH_AT + 1;
const HOST_MOST: usize = UNIQUE_ID_BYTES - HOST_AT;

/// An id by which the ranks of one job find each other. A program makes one and passes its bytes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UniqueId {
    /// The bytes to pass on, unchanged.
    pub bytes: [u8; UNIQUE_ID_BYTES],
}

/// Keeps the port of an id reserved until it is dropped.
#[derive(Debug)]
#[must_use = "the port is free for others once this is dropped"]
pub struct Reservation {
    _socket: Socket,
}

/// A port that is reserved for an id whose rank 0 has not joined yet.
struct Reserved {
    id: UniqueId,
    made: Instant,
    socket: Socket,
}

/// The reserved ports. The program holds an id as plain bytes, so a socket can only be found by comparing ids.
static RESERVED: Mutex<Vec<Reserved>> = Mutex::new(Vec::new());

impl UniqueId {
    /// Makes an id. Rank 0 must join on this host. `host` is the name or address by which the others reach it; by
    /// default, the source address of packets to distant hosts.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the name of the host is too long, [`Error::System`] if there is no free port.
    pub fn new(host: Option<&str>) -> Result<Self> {
        let host = host.map_or_else(|| own_address().to_string(), str::to_owned);
        let ports = super::process_environment("KOLO_PORT_RANGE")
            .map(|text| parse_port_range(text.trim()))
            .transpose()?;
        let reserved = match ports {
            // The second bind sets SO_REUSEADDR, so that rank 0 can bind the port too.
            Some(ports) => {
                let free = in_port_range(&ports, bind_at).map(|(port, _)| port);
                free.and_then(|port| bind_at(port, Reuse::Yes))
            }
            None => bind_at(0, Reuse::Yes),
        };
        let (port, socket) = reserved.map_err(|error| Error::system("reserving a port", error))?;
        let mut secret = [0; SECRET_BYTES];
        getrandom::fill(&mut secret).map_err(|error| {
            Error::system("asking for random bytes", std::io::Error::other(error.to_string()))
        })?;
        let id = encode(&host, port, &secret)?;
        let mut reserved = RESERVED.lock().unpoisoned();
        let now = Instant::now();
        drop_old(&mut reserved, now, join_timeout());
        reserved.push(Reserved { id, made: now, socket });
        Ok(id)
    }

    /// Returns the settings with which a rank joins by this id. The environment supplies the rest.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the bytes are not an id, or if rank and world size are invalid.
    pub fn join_spec(&self, world_size: u32, rank: u32) -> Result<JoinSpec> {
        let (host, port) = self.address().ok_or_else(|| {
            Error::configuration(
                "unique id",
                format!("these {UNIQUE_ID_BYTES} bytes are not a unique id"),
                "Pass on the whole id, unchanged",
            )
        })?;
        let locator = Locator::Tcp { host: host.to_owned(), port };
        let mut spec = JoinSpec::new(rank, world_size, locator, "a unique id");
        check_unicode()?;
        env::apply_settings(&mut spec, &super::process_environment)?;
        let own = JobSecret::drawn(&self.bytes[SECRET_AT..LENGTH_AT]);
        spec.secret = Some(match &spec.secret {
            Some(of_the_job) => own.mixed_with(of_the_job),
            None => own,
        });
        spec.check()?;
        Ok(spec)
    }

    /// Returns rank 0's host and port; `None` if the bytes are not an id.
    fn address(&self) -> Option<(&str, u16)> {
        let bytes = &self.bytes;
        let host = std::str::from_utf8(bytes[HOST_AT..].get(..bytes[LENGTH_AT] as usize)?).ok()?;
        let port = u16::from_le_bytes([bytes[PORT_AT], bytes[PORT_AT + 1]]);
        (bytes[..MAGIC.len()] == MAGIC && !host.is_empty() && port > 0).then_some((host, port))
    }

    /// Takes the port reserved for this id, if this process made it. Rank 0 takes it once, and drops it when it has
    /// joined or failed to.
    pub fn take_reservation(&self) -> Option<Reservation> {
        let mut reserved = RESERVED.lock().unpoisoned();
        let at = reserved.iter().position(|port| port.id == *self)?;
        Some(Reservation { _socket: reserved.swap_remove(at).socket })
    }
}

/// Shows the address only, since the other bytes are the job's secret.
impl fmt::Debug for UniqueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UniqueId").field("address", &self.address()).finish_non_exhaustive()
    }
}

/// Drops the ports that were reserved for longer than ranks wait for each other. Rank 0 is then another process, which
/// this one does not see join.
fn drop_old(reserved: &mut Vec<Reserved>, now: Instant, join_timeout: Duration) {
    reserved.retain(|port| now.saturating_duration_since(port.made) <= join_timeout);
}

fn join_timeout() -> Duration {
    let set = env::seconds(&super::process_environment, "KOLO_JOIN_TIMEOUT").ok().flatten();
    set.map_or(DEFAULT_JOIN_TIMEOUT, |limit| limit.max(DEFAULT_JOIN_TIMEOUT))
}

fn encode(host: &str, port: u16, secret: &[u8; SECRET_BYTES]) -> Result<UniqueId> {
    if host.is_empty() || host.len() > HOST_MOST {
        return Err(Error::configuration(
            "unique id",
            format!("the host '{host}' has {} bytes; an id has room for 1 to {HOST_MOST}", host.len()),
            "Use a short name or an address",
        ));
    }
    let mut bytes = [0; UNIQUE_ID_BYTES];
    bytes[..PORT_AT].copy_from_slice(&MAGIC);
    bytes[PORT_AT..SECRET_AT].copy_from_slice(&port.to_le_bytes());
    bytes[SECRET_AT..LENGTH_AT].copy_from_slice(secret);
    bytes[LENGTH_AT] = host.len() as u8; // at most HOST_MOST
    bytes[HOST_AT..HOST_AT + host.len()].copy_from_slice(host.as_bytes());
    Ok(UniqueId { bytes })
}

/// Binds a port on all interfaces without listening, as rank 0 will. Port 0 means any free port.
fn bind_at(port: u16, reuse: Reuse) -> std::io::Result<(u16, Socket)> {
    let bind = |address: IpAddr| -> std::io::Result<Socket> {
        let domain = if address.is_ipv6() { Domain::IPV6 } else { Domain::IPV4 };
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(reuse == Reuse::Yes)?;
        socket.bind(&SocketAddr::new(address, port).into())?;
        Ok(socket)
    };
    let any = Ipv6Addr::UNSPECIFIED.into();
    // Some hosts have no IPv6.
    let socket = bind(any).or_else(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Err(error),
        _ => bind(Ipv4Addr::UNSPECIFIED.into()),
    })?;
    let port = socket.local_addr()?.as_socket().map_or(0, |address| address.port());
    Ok((port, socket))
}

/// Returns the source address of packets to distant hosts. Addresses reserved for documentation stand for those hosts.
fn own_address() -> IpAddr {
    let far: [IpAddr; 2] =
        [Ipv4Addr::new(192, 0, 2, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    far.into_iter().find_map(address_towards).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_says_where_to_go() {
        let id = encode("node7.example", 4711, &[5; SECRET_BYTES]).unwrap();
        let spec = id.join_spec(4, 1).unwrap();
        assert_eq!(spec.locator.to_string(), "tcp://node7.example:4711");
        assert!(spec.secret.is_some());
    }

    #[test]
    fn the_secret_of_an_id_is_not_printed() {
        let id = encode("node7", 4711, &[171; SECRET_BYTES]).unwrap();
        let text = format!("{id:?} {id:#?}");
        assert!(text.contains("node7") && text.contains("4711"), "{text}");
        assert!(!text.contains("171") && !text.contains("ab"), "{text}");
    }

    #[test]
    fn broken_ids_are_refused() {
        let good = encode("node7", 4711, &[5; SECRET_BYTES]).unwrap();
        for (at, byte) in [(0, b'x'), (LENGTH_AT, 0), (LENGTH_AT, 255), (HOST_AT, 0xff)] {
            let mut bad = good;
            bad.bytes[at] = byte;
            assert!(bad.join_spec(4, 1).is_err(), "byte {at}");
        }
        let mut no_port = good;
        no_port.bytes[PORT_AT..SECRET_AT].fill(0);
        assert!(no_port.join_spec(4, 1).is_err());
        assert!(encode("", 1, &[0; SECRET_BYTES]).is_err());
        assert!(encode(&"x".repeat(HOST_MOST), 1, &[0; SECRET_BYTES]).is_ok());
        assert!(encode(&"x".repeat(HOST_MOST + 1), 1, &[0; SECRET_BYTES]).is_err());
    }

    #[test]
    fn ports_for_ranks_0_of_other_processes_are_not_kept_for_ever() {
        let (now, limit) = (Instant::now(), Duration::from_secs(5));
        let port = |made| {
            let (port, socket) = bind_at(0, Reuse::Yes).unwrap();
            Reserved { id: encode("node7", port, &[5; SECRET_BYTES]).unwrap(), made, socket }
        };
        let mut reserved = vec![port(now), port(now + limit)];
        drop_old(&mut reserved, now + limit, limit);
        assert_eq!(reserved.len(), 2, "their ranks 0 may still join");
        drop_old(&mut reserved, now + 2 * limit, limit);
        assert_eq!(reserved.iter().map(|port| port.made).collect::<Vec<_>>(), [now + limit]);
    }

    #[test]
    fn a_reserved_port_is_rank_0s_alone() {
        let (port, kept) = bind_at(0, Reuse::Yes).unwrap();
        let rank_0 = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .expect("it sets SO_REUSEADDR, as rank 0");
        drop(rank_0);
        let plain = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        assert!(plain.bind(&any.into()).is_err(), "without SO_REUSEADDR the port is taken");
        drop(kept);
    }
}
