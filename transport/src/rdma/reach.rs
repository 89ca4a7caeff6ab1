//! Which of this side's rails reach which of a peer's.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use kolo_verbs::GidKind;

use super::address::RailAddress;
use super::rails::{Rail, ip};

/// Pairs of rails (this side's, the peer's) that reach each other, each rail in one pair at most; or why none do. The
/// lower rank's choice counts for both.
pub(super) fn pairs(ours: &[Rail], theirs: &[RailAddress]) -> Result<Vec<(u8, u8)>, String> {
    let (mut pairs, mut reasons) = (Vec::new(), Vec::new());
    let mut taken = vec![false; theirs.len()];
    for (at, rail) in ours.iter().enumerate() {
        // The one at the same place first: hosts of a fleet are wired alike.
        let order = (0..theirs.len()).map(|step| (at + step) % theirs.len());
        for there in order.filter(|&there| !taken[there]).collect::<Vec<_>>() {
            match reaches(rail, &theirs[there]) {
                Ok(()) => {
                    taken[there] = true;
                    pairs.push((at as u8, there as u8));
                    break;
                }
                Err(why) => reasons.push(format!("{} to {}: {why}", rail.device, theirs[there].gid)),
            }
        }
    }
    if pairs.is_empty() { Err(reasons.join("; ")) } else { Ok(pairs) }
}

fn reaches(rail: &Rail, peer: &RailAddress) -> Result<(), String> {
    if rail.kind != peer.kind {
        return Err(format!("{} here, {} there; see KOLO_IB_GID_INDEX", rail.kind, peer.kind));
    }
    if rail.gid == peer.gid {
        return Ok(());
    }
    match rail.kind {
        // The subnet's prefix; between subnets it would take a router.
        GidKind::Infiniband => match rail.gid.0[..8] == peer.gid.0[..8] {
            true => Ok(()),
            false => Err("another InfiniBand subnet".into()),
        },
        GidKind::RoceV1 | GidKind::RoceV2 => routed(ip(rail.gid), ip(peer.gid)),
    }
}

/// Whether the kernel's routes lead from this address to that one: RoCE follows them.
fn routed(from: IpAddr, to: IpAddr) -> Result<(), String> {
    if let IpAddr::V6(address) = to
        && (address.segments()[0] & 0xffc0) == 0xfe80
    {
        // Needs the interface to ask, and is one hop in any case: the first packets will tell.
        return Ok(());
    }
    let any: SocketAddr = match to {
        IpAddr::V4(_) => ([0, 0, 0, 0], 0).into(),
        IpAddr::V6(_) => ([0u16; 8], 0).into(),
    };
    // Connecting sends nothing; it looks the route up and takes the address that packets would come from.
    let source = UdpSocket::bind(any)
        .and_then(|socket| socket.connect((to, 4791)).and_then(|()| socket.local_addr()))
        .map_err(|error| format!("no route ({error})"))?;
    if source.ip() == from {
        return Ok(());
    }
    if source.ip() == to {
        return Err("it is this host's, and one adapter does not reach another of its own host".into());
    }
    Err(format!("packets there leave from {}, not from {from}", source.ip()))
}
