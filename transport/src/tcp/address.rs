//! The address of an endpoint, by which peers find it; the control plane carries it.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;

use super::interfaces::Interface;
use super::rails::is_tunnel;
use super::route::is_inward;
use crate::foreign::printable_bytes;

/// Version of the layout below.
const VERSION: u8 = 1;
const MAGIC: [u8; 3] = *b"KoT";
/// Fixed part: magic, version, port, count, reserved, instance, boot id, network namespace.
const FIXED_BYTES: usize = 3 + 1 + 2 + 1 + 1 + 8 + 16 + 8;
/// Maximum length of an interface name (IFNAMSIZ without the final zero).
const NAME_MAX: usize = 15;
/// Maximum length of a peer's interface name in escaped form, in the worst case.
const SHOWN_MAX: usize = 8 * NAME_MAX;
/// Maximum number of networks in an address: 24 of the longest (family, prefix, name length, IPv6, name) are 816
/// bytes, within the 1 KiB that an address may have.
const NETWORKS_MAX: usize = 24;

const _: () = assert!(FIXED_BYTES + NETWORKS_MAX * (3 + 16 + NAME_MAX) <= 1024);

/// Identity of a host and of its network stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Host {
    /// Differs between hosts and between boots.
    pub(super) boot: [u8; 16],
    /// Inode of the network namespace.
    pub(super) namespace: u64,
}

/// Relation of a peer's network stack to this rank's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stack {
    /// They are one.
    Same,
    /// They differ.
    Other,
    /// The system of one rank withholds its identity.
    Unknown,
}

impl Host {
    /// Returns the identity of this host. Facts that the system withholds are replaced by unique values, so that no
    /// peer shares them, and that no host has: see [`Host::is_known`].
    pub(super) fn here(instance: u64) -> Self {
        let mut boot = [0; 16];
        match std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().and_then(|text| hex(&text)) {
            Some(id) => boot = id,
            None => boot[..8].copy_from_slice(&instance.to_le_bytes()),
        }
        // This is the namespace of this thread: threads of one process may be in different ones.
        let namespace = std::fs::metadata("/proc/thread-self/ns/net");
        Self { boot, namespace: namespace.map_or(instance | 1 << 63, |meta| meta.ino()) }
    }

    /// Whether no fact is replaced. The second half of a boot's number, a UUID, is not zero, and inodes of namespaces have 32
    /// bits.
    const fn is_known(&self) -> bool {
        let [.., a, b, c, d, e, f, g, h] = self.boot;
        u64::from_le_bytes([a, b, c, d, e, f, g, h]) != 0 && self.namespace <= u32::MAX as u64
    }

    /// Returns the relation of another network stack to this one.
    pub(super) fn stack(&self, other: &Self) -> Stack {
        match (self.same_stack(other), self.is_known() && other.is_known()) {
            (true, _) => Stack::Same,
            (false, true) => Stack::Other,
            (false, false) => Stack::Unknown,
        }
    }

    /// Returns whether packets between the two pass the loopback device. Containers of one host that have network
    /// namespaces of their own are connected by a network, with queues and losses of its own.
    pub(super) fn same_stack(&self, other: &Self) -> bool {
        self == other
    }
}

/// Returns as many addresses as fit, in their order.
fn most_useful(interfaces: &[Interface]) -> Vec<&Interface> {
    let mut places = by_use(interfaces);
    places.truncate(NETWORKS_MAX);
    places.sort_unstable();
    places.into_iter().map(|at| &interfaces[at]).collect()
}

/// Returns the places of the addresses in the list, the most useful to other hosts first. The last are those that lead
/// nowhere from other hosts; before them come those of tunnels and bridges of containers, and further ones of an
/// interface come after its first.
pub(super) fn by_use(interfaces: &[Interface]) -> Vec<usize> {
    let rank = |(at, one): (usize, &Interface)| {
        let class = match one.ip {
            _ if one.loopback => 4,
            IpAddr::V6(ip) if ip.is_unicast_link_local() => 3,
            _ if is_inward(&one.name) => 2,
            _ if is_tunnel(&one.name) => 1,
            _ => 0,
        };
        let of_one = interfaces[..at].iter().filter(|other| other.name == one.name);
        // The two families are different ways.
        (class, of_one.filter(|other| other.ip.is_ipv4() == one.ip.is_ipv4()).count(), at)
    };
    let mut ranks: Vec<_> = interfaces.iter().enumerate().map(rank).collect();
    ranks.sort_unstable();
    ranks.into_iter().map(|(.., at)| at).collect()
}

fn hex(text: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
    let mut out = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (byte, pair) in out.iter_mut().zip(digits.chunks(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(out)
}

/// A network by which a host can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Network {
    /// Name of the interface there.
    pub interface: String,
    /// The address.
    pub ip: IpAddr,
    /// Length of the network's prefix in bits.
    pub prefix: u8,
}

/// Where an endpoint listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    pub(super) port: u16,
    pub(super) instance: u64,
    pub(super) host: Host,
    pub(super) networks: Vec<Network>,
}

impl Address {
    pub(super) fn new(port: u16, instance: u64, host: Host, interfaces: &[Interface]) -> Self {
        let networks = most_useful(interfaces).into_iter().map(|i| Network {
            interface: i.name.chars().take(NAME_MAX).collect(),
            ip: i.ip,
            prefix: i.prefix,
        });
        Self { port, instance, host, networks: networks.collect() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(FIXED_BYTES + self.networks.len() * 34);
        out.extend_from_slice(&MAGIC);
        out.push(VERSION);
        out.extend_from_slice(&self.port.to_le_bytes());
        out.extend_from_slice(&[self.networks.len() as u8, 0]);
        out.extend_from_slice(&self.instance.to_le_bytes());
        out.extend_from_slice(&self.host.boot);
        out.extend_from_slice(&self.host.namespace.to_le_bytes());
        for network in &self.networks {
            let name = &network.interface.as_bytes()[..network.interface.len().min(NAME_MAX)];
            match network.ip {
                IpAddr::V4(ip) => {
                    out.extend_from_slice(&[4, network.prefix, name.len() as u8]);
                    out.extend_from_slice(&ip.octets());
                }
                IpAddr::V6(ip) => {
                    out.extend_from_slice(&[6, network.prefix, name.len() as u8]);
                    out.extend_from_slice(&ip.octets());
                }
            }
            out.extend_from_slice(name);
        }
        out
    }

    /// Parses a peer's address. The error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, io::Error> {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
        let mut rest = Reader(bytes);
        let short = || bad("cut short");
        if rest.array::<3>().ok_or_else(short)? != MAGIC {
            return Err(bad("not an address of this transport"));
        }
        let version = rest.byte().ok_or_else(short)?;
        if version != VERSION {
            let what = format!("version {version}, but this is {VERSION}; use the same Kolo on all ranks");
            return Err(bad(&what));
        }
        let port = u16::from_le_bytes(rest.array().ok_or_else(short)?);
        let [count, _] = rest.array().ok_or_else(short)?;
        if usize::from(count) > NETWORKS_MAX {
            return Err(bad("too many networks"));
        }
        let instance = u64::from_le_bytes(rest.array().ok_or_else(short)?);
        let boot = rest.array().ok_or_else(short)?;
        let namespace = u64::from_le_bytes(rest.array().ok_or_else(short)?);
        let mut networks = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let [family, prefix, name_len] = rest.array().ok_or_else(short)?;
            let ip = match family {
                4 => IpAddr::V4(Ipv4Addr::from(rest.array::<4>().ok_or_else(short)?)),
                6 => IpAddr::V6(Ipv6Addr::from(rest.array::<16>().ok_or_else(short)?)),
                _ => return Err(bad("unknown address family")),
            };
            if usize::from(name_len) > NAME_MAX || prefix > 128 {
                return Err(bad("field out of range"));
            }
            let name = rest.take(usize::from(name_len)).ok_or_else(short)?;
            let interface = printable_bytes(name, SHOWN_MAX);
            networks.push(Network { interface, ip, prefix });
        }
        if rest.0.is_empty() {
            Ok(Self { port, instance, host: Host { boot, namespace }, networks })
        } else {
            Err(bad("trailing bytes"))
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, tail) = self.0.split_at_checked(len)?;
        self.0 = tail;
        Some(head)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample() -> Address {
        Address {
            port: 4567,
            instance: 99,
            host: Host { boot: [7; 16], namespace: 5 },
            networks: vec![
                Network { interface: "lo".into(), ip: IpAddr::V4(Ipv4Addr::LOCALHOST), prefix: 8 },
                Network {
                    interface: "a-name-as-long-a".into(),
                    ip: IpAddr::V6(Ipv6Addr::LOCALHOST),
                    prefix: 128,
                },
            ],
        }
    }

    #[test]
    fn the_cards_of_a_host_with_many_addresses_are_told() {
        let mut all = Vec::new();
        let mut add = |name: &str, ip: IpAddr| {
            let loopback = name == "lo";
            let cables = vec![name.into()];
            all.push(Interface { name: name.into(), index: 1, ip, prefix: 24, loopback, cables });
        };
        // Addresses of a load balancer's services, and bridges of containers.
        for number in 0..20 {
            add("lo", Ipv4Addr::new(203, 0, 113, number).into());
            add(&format!("br-{number}"), Ipv4Addr::new(172, 18, number, 1).into());
            add("eth0", Ipv4Addr::new(192, 0, 2, number).into());
        }
        add("eth1", Ipv4Addr::new(198, 51, 100, 1).into());
        add("eth1", "2001:db8::1".parse().unwrap());
        add("wg0", Ipv4Addr::new(10, 9, 0, 1).into());
        let told = Address::new(1, 2, sample().host, &all).networks;
        let of = |name: &str| told.iter().filter(|network| network.interface.starts_with(name)).count();
        assert_eq!(told.len(), NETWORKS_MAX);
        assert_eq!([of("eth0"), of("eth1"), of("wg0"), of("br-"), of("lo")], [20, 2, 1, 1, 0]);
        assert_eq!(told[0].interface, "br-0", "the order of the kernel");
        let first = |places: &[usize]| -> Vec<_> { places[..4].iter().map(|at| &*all[*at].name).collect() };
        assert_eq!(first(&by_use(&all)), ["eth0", "eth1", "eth1", "eth0"]);
        // All of them fit.
        assert_eq!(Address::new(1, 2, sample().host, &all[..9]).networks.len(), 9);
    }

    #[test]
    fn an_address_survives_the_wire_and_every_cut_is_noticed() {
        let mut address = sample();
        let bytes = address.encode();
        address.networks[1].interface.truncate(NAME_MAX);
        assert_eq!(Address::decode(&bytes).unwrap(), address);
        for n in 0..bytes.len() {
            assert!(Address::decode(&bytes[..n]).is_err());
        }
        let mut longer = bytes;
        longer.push(0);
        assert!(Address::decode(&longer).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged_without_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Address::decode(&bytes);
            let good = sample().encode();
            let n = bytes.len().min(4);
            bytes[..n].copy_from_slice(&good[..n]);
            let _ = Address::decode(&bytes);
        }
    }

    #[test]
    fn this_host_is_itself() {
        assert_eq!(Host::here(1).stack(&Host::here(2)), Stack::Same);
    }

    #[test]
    fn withheld_facts_are_noticed() {
        let (here, other) = (Host { boot: [7; 16], namespace: 5 }, Host { boot: [8; 16], namespace: 5 });
        assert_eq!(here.stack(&other), Stack::Other);
        let mut boot = [0; 16];
        boot[..8].copy_from_slice(&[9; 8]);
        for withheld in [Host { boot, ..here }, Host { namespace: 9 | 1 << 63, ..here }] {
            assert_eq!([here.stack(&withheld), withheld.stack(&here)], [Stack::Unknown; 2], "{withheld:?}");
        }
    }
}
