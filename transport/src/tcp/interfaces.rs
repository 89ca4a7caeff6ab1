//! The network interfaces of this host.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use super::devices::{below, devices};
use super::options::Family;

/// One address of an interface that is up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    /// The kernel's number of the interface, which is the scope of its link-local addresses.
    pub(super) index: u32,
    pub(super) ip: IpAddr,
    /// Length of the network's prefix in bits.
    pub(super) prefix: u8,
    pub(super) loopback: bool,
    /// The devices below it by which its packets leave: itself, unless it is stacked on others, as a VLAN is.
    pub(super) cables: Vec<String>,
}

/// The interfaces of this host.
#[derive(Debug, Default)]
pub(super) struct Local {
    /// Whether the system has listed them.
    pub(super) is_listed: bool,
    /// All addresses of the interfaces that are up.
    pub(super) up: Vec<Interface>,
    /// The addresses of all interfaces, also of those that are down: packets to them do not leave this host.
    pub(super) own: Vec<IpAddr>,
}

impl Local {
    /// Returns the addresses that can be known without the system's list: loopback, and the one from which packets to an
    /// address leave.
    pub(super) fn towards(far: Option<SocketAddr>) -> Self {
        let source = far.and_then(|far| {
            let any: IpAddr =
                if far.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
            // "Connecting" a datagram socket consults the routing table and sends nothing.
            let socket = UdpSocket::bind((any, 0)).ok()?;
            socket.connect(far).ok()?;
            Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_unspecified() && !ip.is_loopback())
        });
        let of = |name: &str, ip: IpAddr| Interface {
            name: name.to_owned(),
            index: 0,
            ip,
            // Only the address itself is known of its network.
            prefix: if ip.is_ipv4() { 32 } else { 128 },
            loopback: ip.is_loopback(),
            cables: vec![name.to_owned()],
        };
        let mut up = vec![of("lo", Ipv4Addr::LOCALHOST.into())];
        up.extend(source.map(|ip| of("unknown", ip)));
        Self { is_listed: false, own: up.iter().map(|interface| interface.ip).collect(), up }
    }
}

/// Returns the interfaces of this host.
pub(super) fn enumerate() -> io::Result<Local> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs writes the head of a list that it allocates, which is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Local { is_listed: true, ..Local::default() };
    // Without a list of devices, the names decide: see `share_cable`.
    let devices = devices().unwrap_or_default();
    let mut at = head;
    while !at.is_null() {
        // SAFETY: `at` is an element of the list, which lives until freeifaddrs.
        let entry = unsafe { &*at };
        at = entry.ifa_next;
        let up = is_up(entry.ifa_flags);
        // SAFETY: address and netmask are null or point to socket addresses of their family, in the list.
        let (ip, mask) = unsafe { (ip_of(entry.ifa_addr), ip_of(entry.ifa_netmask)) };
        let Some(ip) = ip else { continue };
        found.own.push(ip);
        if !up {
            continue;
        }
        // SAFETY: the name is a C string in the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) };
        // SAFETY: the name is a C string, which is only read.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        let name = name.to_string_lossy().into_owned();
        let known = found.up.iter().find(|other| other.name == name).map(|other| other.cables.clone());
        found.up.push(Interface {
            cables: known.unwrap_or_else(|| lowest(&name, &|name| below(name, &devices))),
            name,
            index,
            ip,
            prefix: mask.map_or(0, prefix_len),
            loopback: entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0,
        });
    }
    // SAFETY: head comes from getifaddrs, and nothing refers to the list any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// Maximum number of devices that are stacked on each other, as far as they are followed.
const STACKED_MAX: usize = 8;

/// Returns the devices below an interface that are stacked on no other, by the devices directly below each.
fn lowest(name: &str, below: &impl Fn(&str) -> Vec<String>) -> Vec<String> {
    let mut level = vec![name.to_owned()];
    let mut found = Vec::new();
    for _ in 0..STACKED_MAX {
        for device in std::mem::take(&mut level) {
            match below(&device) {
                lower if lower.is_empty() => found.push(device),
                lower => level.extend(lower),
            }
        }
    }
    found.extend(level);
    found.sort_unstable();
    found.dedup();
    found
}

/// Returns whether packets of two interfaces of a host leave by one cable: one is stacked on the other, or both on a third,
/// or their names say that they are VLANs of one interface.
pub(super) fn share_cable(a: &Interface, b: &Interface) -> bool {
    a.cables.iter().any(|cable| b.cables.contains(cable)) || are_vlans_of_one(&a.name, &b.name)
}

/// Returns whether two names are those of an interface and a VLAN of it, or of two VLANs of it.
pub(super) fn are_vlans_of_one(a: &str, b: &str) -> bool {
    let cable = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    cable(a) == cable(b)
}

/// Returns whether the user's list names an interface, rather than excluding others.
pub(super) fn is_named(name: &str, list: Option<&[String]>) -> bool {
    let is_inverted = |list: &[String]| list.first().is_some_and(|first| first.starts_with('^'));
    list.is_some_and(|list| !is_inverted(list) && list.iter().any(|entry| is_of(entry, name)))
}

/// Returns whether an interface with these flags can be used. The kernel reports an interface as running somewhat
/// after its carrier is there: on a busy host, a container's first program may see the carrier alone.
fn is_up(flags: u32) -> bool {
    let has = |flag: i32| flags & flag as u32 != 0;
    has(libc::IFF_UP) && (has(libc::IFF_RUNNING) || has(libc::IFF_LOWER_UP) && !has(libc::IFF_DORMANT))
}

/// Returns whether the user's list (see `TcpOptions::interfaces`) admits this interface.
#[must_use]
pub fn admitted(name: &str, list: Option<&[String]>) -> bool {
    let Some(list) = list else { return true };
    let inverted = list.first().is_some_and(|first| first.starts_with('^'));
    let listed = list.iter().any(|entry| is_of(entry.strip_prefix('^').unwrap_or(entry), name));
    listed != inverted
}

/// Returns the interfaces that the user's list admits, in its order.
///
/// # Errors
/// If the list admits none, or names one exactly that does not exist; in plain words.
pub(super) fn chosen(
    all: Vec<Interface>,
    list: Option<&[String]>,
    family: Family,
) -> Result<Vec<Interface>, String> {
    let mut names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
    names.dedup();
    let there = names.join(", ");
    let named =
        list.filter(|list| list.first().is_some_and(|first| !first.starts_with('^'))).unwrap_or_default();
    let exact = |entry: &&String| entry.strip_prefix('=').is_some_and(|name| !names.contains(&name));
    if let Some(gone) = named.iter().find(exact) {
        return Err(format!(
            "KOLO_SOCKET_IFNAME names the interface {}, which does not exist or is not up; this host has \
             {there}",
            &gone[1..]
        ));
    }
    let place = |interface: &Interface| named.iter().position(|entry| is_of(entry, &interface.name));
    let mut chosen: Vec<Interface> = all
        .iter()
        .filter(|interface| admitted(&interface.name, list))
        .filter(|interface| match family {
            Family::Both => true,
            Family::V4 => interface.ip.is_ipv4(),
            Family::V6 => interface.ip.is_ipv6(),
        })
        .cloned()
        .collect();
    chosen.sort_by_key(place);
    if chosen.is_empty() {
        return Err(format!(
            "no usable network interface; see `ip address` and KOLO_SOCKET_IFNAME; this host has {there}"
        ));
    }
    Ok(chosen)
}

/// Returns whether an entry of a list applies to an interface.
fn is_of(entry: &str, name: &str) -> bool {
    entry.strip_prefix('=').map_or_else(|| name.starts_with(entry), |exact| exact == name)
}

/// Returns the length in bits of the prefix of the network of an address of this host.
pub(crate) fn prefix_of(own: IpAddr) -> Option<u8> {
    enumerate().ok()?.up.iter().find(|known| known.ip == own).map(|known| known.prefix)
}

/// Returns whether the two addresses are in one network.
pub(crate) fn same_network(a: IpAddr, b: IpAddr, prefix: u8) -> bool {
    match (a, b) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let shift = 32 - u32::from(prefix.min(32));
            prefix > 0 && u64::from(a.to_bits()) >> shift == u64::from(b.to_bits()) >> shift
        }
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            prefix > 0 && (a.to_bits() ^ b.to_bits()).leading_zeros() >= u32::from(prefix.min(128))
        }
        _ => false,
    }
}

fn prefix_len(mask: IpAddr) -> u8 {
    // A prefix has at most 128 bits.
    let ones = match mask {
        IpAddr::V4(mask) => mask.to_bits().leading_ones(),
        IpAddr::V6(mask) => mask.to_bits().leading_ones(),
    };
    ones as u8
}

/// # Safety
/// `address` is null or points to a complete socket address of its family.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: by contract; the family is the first field of all these types. The list need not be aligned for the
    // larger types, so they are read without alignment.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
            }
            libc::AF_INET6 => {
                let v6 = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[&str]) -> Vec<String> {
        entries.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_interface_is_used_as_soon_as_it_has_a_carrier() {
        let (up, running) = (libc::IFF_UP, libc::IFF_UP | libc::IFF_RUNNING);
        assert!(is_up(running as u32));
        assert!(is_up((running | libc::IFF_LOWER_UP) as u32));
        assert!(is_up((up | libc::IFF_LOWER_UP) as u32), "not said to be running yet");
        assert!(!is_up((up | libc::IFF_LOWER_UP | libc::IFF_DORMANT) as u32), "waits for something else");
        assert!(!is_up(up as u32) && !is_up((libc::IFF_RUNNING | libc::IFF_LOWER_UP) as u32));
    }

    #[test]
    fn lists_admit_by_prefix_exactly_or_inverted() {
        assert!(admitted("eth0", None));
        assert!(admitted("eth0", Some(&list(&["eth", "ib"]))));
        assert!(!admitted("lo", Some(&list(&["eth", "ib"]))));
        assert!(!admitted("eth01", Some(&list(&["=eth0"]))));
        assert!(!admitted("docker0", Some(&list(&["^docker", "lo"]))));
        assert!(!admitted("lo", Some(&list(&["^docker", "lo"]))));
        assert!(admitted("eth0", Some(&list(&["^docker", "lo"]))));
    }

    #[test]
    fn a_list_gives_the_order_and_what_it_names_must_be_there() {
        let interface = |name: &str, ip: &str| Interface {
            name: name.into(),
            index: 1,
            ip: ip.parse().unwrap(),
            prefix: 24,
            loopback: false,
            cables: vec![name.into()],
        };
        let all = [
            interface("eth0", "192.0.2.1"),
            interface("eth0", "2001:db8::1"),
            interface("eth1", "198.51.100.1"),
        ];
        let of = |entries: &[&str], family| {
            let chosen = chosen(all.to_vec(), Some(&list(entries)), family)?;
            Ok::<_, String>(chosen.iter().map(|interface| interface.ip.to_string()).collect::<Vec<_>>())
        };
        let everything = ["198.51.100.1", "192.0.2.1", "2001:db8::1"].map(String::from).to_vec();
        assert_eq!(of(&["eth1", "eth0"], Family::Both), Ok(everything));
        assert_eq!(of(&["=eth1"], Family::V4), Ok(vec!["198.51.100.1".to_owned()]));
        assert_eq!(of(&["^eth1"], Family::V4), Ok(vec!["192.0.2.1".to_owned()]));
        // One list may serve hosts that name their cards differently.
        assert_eq!(of(&["ens", "eth1"], Family::V4), Ok(vec!["198.51.100.1".to_owned()]));
        let gone = of(&["eth0", "=eth7"], Family::Both).unwrap_err();
        assert!(gone.contains("interface eth7") && gone.ends_with("this host has eth0, eth1"), "{gone}");
        let none = of(&["ib"], Family::Both).unwrap_err();
        assert!(none.contains("KOLO_SOCKET_IFNAME") && none.ends_with("this host has eth0, eth1"), "{none}");
        assert_eq!(of(&["^=eth7"], Family::V4).map(|list| list.len()), Ok(2), "excluding it is no mistake");
    }

    #[test]
    fn cables_are_those_below_all_others() {
        let below = |name: &str| -> Vec<String> {
            let lower: &[&str] = match name {
                "vlan100" => &["bond0"],
                "bond0" => &["eth1", "eth0"],
                "br0" => &["eth0", "veth7"],
                "odd" => &["odd"],
                _ => &[],
            };
            lower.iter().map(|name| (*name).to_owned()).collect()
        };
        for (name, wanted) in [
            ("eth0", &["eth0"][..]),
            ("bond0", &["eth0", "eth1"]),
            ("vlan100", &["eth0", "eth1"]),
            ("br0", &["eth0", "veth7"]),
            ("odd", &["odd"]),
        ] {
            assert_eq!(lowest(name, &below), wanted, "{name}");
        }
    }

    #[test]
    fn a_list_names_what_it_does_not_exclude() {
        assert!(is_named("wg0", Some(&list(&["eth", "wg"]))) && is_named("wg0", Some(&list(&["=wg0"]))));
        assert!(!is_named("wg0", None) && !is_named("wg0", Some(&list(&["eth"]))));
        assert!(
            !is_named("wg0", Some(&list(&["^docker", "lo"]))) && !is_named("wg0", Some(&list(&["^wg0"])))
        );
    }

    #[test]
    fn without_a_list_the_way_to_an_address_is_known() {
        let far = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
        let ips = |local: &Local| local.up.iter().map(|interface| interface.ip).collect::<Vec<_>>();
        for far in [None, far] {
            let local = Local::towards(far);
            assert!(
                !local.is_listed
                    && ips(&local) == [IpAddr::V4(Ipv4Addr::LOCALHOST)]
                    && local.own == ips(&local)
            );
        }
    }

    #[test]
    fn networks_compare_by_prefix() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert!(same_network(ip("192.0.2.1"), ip("192.0.2.200"), 24));
        assert!(!same_network(ip("192.0.2.1"), ip("192.0.3.1"), 24));
        assert!(same_network(ip("192.0.2.1"), ip("192.0.2.1"), 32));
        assert!(!same_network(ip("192.0.2.1"), ip("192.0.2.1"), 0));
        assert!(same_network(ip("2001:db8::1"), ip("2001:db8::2"), 64));
        assert!(!same_network(ip("2001:db8::1"), ip("192.0.2.1"), 64));
    }

    #[test]
    fn the_loopback_is_found() {
        let all = enumerate().unwrap().up;
        // In a fresh network namespace, the loopback interface is down.
        if let Some(lo) = all.iter().find(|i| i.ip == IpAddr::V4(Ipv4Addr::LOCALHOST)) {
            assert!(lo.loopback && lo.prefix == 8 && lo.index > 0, "{lo:?}");
        }
    }
}
