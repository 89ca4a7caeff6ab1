//! Pairing of this side's rails with those of a peer that they reach.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use kolo_verbs::GidKind;

use super::address::RailAddress;
use super::rails::{Rail, ip};
use crate::tcp::same_network;

/// Rails of this side and of the peer, by number, that reach each other.
pub(super) type Pairs = Vec<(u8, u8)>;

/// Pairs rails that reach each other, each rail with at most one other. Returns the pairs, and the reasons why rails of
/// this side are in none. The lower rank's choice counts for both.
///
/// # Errors
/// If there are no pairs, with the same reasons.
pub(super) fn pairs(ours: &[Rail], theirs: &[RailAddress]) -> Result<(Pairs, Vec<String>), String> {
    let devices: Vec<&str> = ours.iter().map(|rail| rail.device.as_str()).collect();
    let (pairs, refused) = paired(&devices, theirs.len(), |our, their| {
        reaches(&ours[our], &theirs[their])
            .map_err(|why| format!("{} to {}: {why}", devices[our], theirs[their].gid))
    });
    if pairs.is_empty() { Err(refused.join("; ")) } else { Ok((pairs, refused)) }
}

/// As [`pairs`], of this side's devices and so many rails of the peer.
fn paired(
    devices: &[&str],
    theirs: usize,
    reaches: impl Fn(usize, usize) -> Result<(), String>,
) -> (Pairs, Vec<String>) {
    let (mut pairs, mut refused) = (Vec::new(), Vec::new());
    let mut taken = vec![false; theirs];
    for (at, device) in devices.iter().enumerate() {
        // The rail with the same number comes first: hosts of a fleet are wired alike.
        let order = (0..theirs).map(|step| (at + step) % theirs);
        let free: Vec<usize> = order.filter(|&there| !taken[there]).collect();
        let mut reasons = Vec::new();
        if free.is_empty() {
            reasons.push(format!("{device}: the peer has no further rail"));
        }
        for there in free {
            match reaches(at, there) {
                Ok(()) => {
                    taken[there] = true;
                    pairs.push((at as u8, there as u8));
                    reasons.clear();
                    break;
                }
                Err(why) => reasons.push(why),
            }
        }
        refused.append(&mut reasons);
    }
    (pairs, refused)
}

fn reaches(rail: &Rail, peer: &RailAddress) -> Result<(), String> {
    if rail.kind != peer.kind {
        return Err(format!("{} here, {} there; see KOLO_IB_GID_INDEX", rail.kind, peer.kind));
    }
    if rail.gid == peer.gid {
        return Ok(());
    }
    match rail.kind {
        // The upper half is the subnet's prefix; between subnets, a router would be needed.
        GidKind::Infiniband => match rail.gid.0[..8] == peer.gid.0[..8] {
            true => Ok(()),
            false => Err("another InfiniBand subnet".into()),
        },
        GidKind::RoceV1 | GidKind::RoceV2 => routed(ip(rail.gid), rail.prefix, ip(peer.gid)),
    }
}

/// Checks that the kernel's routes lead from one address to the other, since RoCE follows them. RoCE looks for a route by
/// the interface of the address, and so finds the network of that address also where another interface in the same
/// network comes first.
fn routed(from: IpAddr, prefix: Option<u8>, to: IpAddr) -> Result<(), String> {
    if let IpAddr::V6(address) = to
        && (address.segments()[0] & 0xffc0) == 0xfe80
    {
        // A check would need the interface, and such an address is one hop away in any case: the first packets will
        // show whether it works.
        return Ok(());
    }
    let any: SocketAddr = match to {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    // Connecting sends nothing. It looks up the route and chooses the source address that packets would have.
    let source = UdpSocket::bind(any)
        .and_then(|socket| socket.connect((to, 4791)).and_then(|()| socket.local_addr()))
        .map_err(|error| format!("no route ({error})"))?;
    if source.ip() == from {
        return Ok(());
    }
    if source.ip() == to {
        return Err("it is on this host, and an adapter does not reach another one on its own host".into());
    }
    if prefix.is_some_and(|prefix| same_network(from, to, prefix)) {
        return Ok(());
    }
    Err(format!("packets there leave from {}, not from {from}", source.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_in_the_network_of_the_rail_is_reached_whatever_the_routes_say() {
        // Packets to loopback addresses leave from 127.0.0.1.
        let [from, to] = [IpAddr::from([127, 0, 0, 9]), [127, 0, 0, 2].into()];
        assert_eq!(routed(from, Some(8), to), Ok(()));
        let refused = routed(from, Some(32), to).expect_err("another network");
        assert!(refused.contains("leave from 127.0.0.1, not from 127.0.0.9"), "{refused}");
        assert!(routed(from, None, to).is_err());
    }

    #[test]
    fn each_rail_without_a_partner_is_named_with_the_reason() {
        let devices = ["one", "two", "three"];
        let (pairs, refused) = paired(&devices, 2, |_, _| Ok(()));
        assert_eq!(pairs, [(0, 0), (1, 1)]);
        assert_eq!(refused, ["three: the peer has no further rail"]);
        let isolated = |our, _| if our == 0 { Err("isolated".to_owned()) } else { Ok(()) };
        let (pairs, refused) = paired(&devices, 2, isolated);
        assert_eq!(pairs, [(1, 1), (2, 0)]);
        assert_eq!(refused, ["isolated", "isolated"]);
    }
}
