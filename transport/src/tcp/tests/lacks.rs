//! Ends without a network in common, and ends without a list of their interfaces.

use std::net::IpAddr;

use super::super::address::{Address, Host};
use super::super::interfaces::{Interface, Local};
use super::super::relay::{RELAY_CALL_BYTES, RELAY_READY};
use super::*;
use crate::endpoint::Reach;

fn interface(name: &str, ip: IpAddr) -> Interface {
    let cables = vec![name.into()];
    Interface { name: name.into(), index: 2, ip, prefix: 16, loopback: ip.is_loopback(), cables }
}

/// Returns the address of an end whose host's identity was replaced.
fn address_on_its_host(of: &TcpEndpoint) -> Vec<u8> {
    // The identity stands behind magic, version, port, counts and instance.
    let mut bytes = of.address().to_vec();
    bytes[16..32].copy_from_slice(&of.host.boot);
    bytes
}

/// Two ends on one host that does not tell its identity, because /proc is not mounted.
#[test]
fn ends_on_a_host_without_an_identity_reach_each_other() {
    let local = || {
        let ip = Ipv4Addr::LOCALHOST.into();
        // Loopback carries packets to any address, as a host's own address does.
        Ok(Local {
            is_listed: true,
            up: vec![Interface { loopback: false, ..interface("eth0", ip) }],
            own: vec![ip],
        })
    };
    let mut ends = [0, 1].map(|rank| {
        let mut end = TcpEndpoint::with_interfaces(rank, 2, options(), local()).unwrap();
        end.host.boot = [0; 16];
        end.host.boot[..8].copy_from_slice(&end.me.instance.to_le_bytes());
        end
    });
    let addresses = [0, 1].map(|at: usize| address_on_its_host(&ends[at]));
    for at in [0, 1] {
        let reach = ends[at].introduce(1 - at as u32, &addresses[1 - at]).unwrap();
        assert!(matches!(&reach, Reach::Yes { how } if how.contains("127.0.0.1")), "{reach:?}");
    }
    deliver(&mut ends, 0, 1, 0, 1000);
}

/// Containers on two hosts, each with the only address 172.17.0.2.
#[test]
fn ends_with_one_address_on_two_hosts_meet_at_the_relay() {
    let relay = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let inside: IpAddr = Ipv4Addr::new(172, 17, 0, 2).into();
    let end = |rank: u32, relay| {
        let interface = interface("eth0", inside);
        let local = Local { is_listed: true, up: vec![interface], own: vec![inside] };
        let options = TcpOptions { relay, ..options() };
        let mut end = TcpEndpoint::with_interfaces(rank, 2, options, Ok(local)).unwrap();
        end.host.boot = [rank as u8 + 1; 16];
        end
    };
    let mut ends = [0, 1].map(|rank| end(rank, Some(relay.local_addr().unwrap())));
    let addresses = [0, 1].map(|at: usize| address_on_its_host(&ends[at]));
    for at in [0, 1] {
        let reach = ends[at].introduce(1 - at as u32, &addresses[1 - at]).unwrap();
        assert!(matches!(&reach, Reach::Yes { how } if how.contains("relayed by rank 0")), "{reach:?}");
    }
    let alone = end(0, None).introduce(1, &addresses[1]).unwrap();
    assert!(matches!(&alone, Reach::No { because } if because.contains("no common network")), "{alone:?}");
    std::thread::scope(|scope| {
        scope.spawn(|| join(&relay));
        deliver(&mut ends, 0, 1, 0, 1000);
        deliver(&mut ends, 1, 0, 0, 1000);
        drop(ends);
    });
}

/// Joins the first two connections to a relay, until one of them ends.
fn join(relay: &TcpListener) {
    let mut both = [(); 2].map(|()| {
        let (mut stream, _) = relay.accept().unwrap();
        stream.read_exact(&mut [0; RELAY_CALL_BYTES]).unwrap();
        stream
    });
    for stream in &mut both {
        stream.write_all(&[RELAY_READY]).unwrap();
    }
    std::thread::scope(|scope| {
        for (from, to) in [(0, 1), (1, 0)] {
            let (mut from, mut to) = (&both[from], &both[to]);
            scope.spawn(move || {
                let _ = std::io::copy(&mut from, &mut to);
                let _ = to.shutdown(std::net::Shutdown::Both);
            });
        }
    });
}

#[test]
fn an_end_without_a_list_of_interfaces_reaches_its_peer_and_says_so() {
    let refused = || Err(std::io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    let mut ends = [0, 1].map(|rank| TcpEndpoint::with_interfaces(rank, 2, options(), refused()).unwrap());
    let addresses = [0, 1].map(|at: usize| ends[at].address().to_vec());
    for at in [0, 1] {
        let reach = ends[at].introduce(1 - at as u32, &addresses[1 - at]).unwrap();
        let says = "the system does not list interfaces";
        assert!(matches!(&reach, Reach::Yes { how } if how.contains(says)), "{reach:?}");
    }
    deliver(&mut ends, 0, 1, 0, 1000);
}

/// Rank 0 is the relay itself, so the way to the relay tells it nothing about its networks.
#[test]
fn an_end_without_a_list_of_interfaces_dials_other_hosts() {
    let refused = Err(std::io::Error::from_raw_os_error(libc::EAFNOSUPPORT));
    let relay = Some(SocketAddr::from((Ipv4Addr::LOCALHOST, 9)));
    let mut end = TcpEndpoint::with_interfaces(0, 2, TcpOptions { relay, ..options() }, refused).unwrap();
    let far = Host { boot: [9; 16], namespace: 1 };
    let networks = ["127.0.0.1", "192.0.2.2", "2001:db8::2"].map(|ip| interface("eth0", ip.parse().unwrap()));
    end.introduce(1, &Address::new(7, 8, far, &networks).encode()).unwrap();
    let dialed: Vec<String> = end.peers[1].candidates.iter().map(|one| one.to.to_string()).collect();
    assert_eq!(dialed, ["192.0.2.2:7", "[2001:db8::2]:7"]);
}
