//! The address of an endpoint: its rails, and the address of its side connection.

use kolo_verbs::{Gid, GidKind, Mtu};

use super::rails::{RAILS_MAX, Rail};

/// Version of the address, the hello and the wire format.
const VERSION: u8 = 2;

const RAIL_BYTES: usize = 24;

/// A peer's rail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RailAddress {
    pub(super) gid: Gid,
    pub(super) kind: GidKind,
    pub(super) lid: u16,
    pub(super) mtu: Mtu,
}

/// The blob that the control plane carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// Number of peers for which its rank's locked memory suffices.
    pub(super) peers: u16,
    pub(super) rails: Vec<RailAddress>,
    pub(super) side: Vec<u8>,
}

impl Address {
    pub(super) fn of(peers: u16, rails: &[Rail], side: &[u8]) -> Self {
        let rails = rails
            .iter()
            .map(|rail| RailAddress { gid: rail.gid, kind: rail.kind, lid: rail.lid, mtu: rail.path.mtu })
            .collect();
        Self { peers, rails, side: side.to_vec() }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let [low, high] = self.peers.to_le_bytes();
        let mut bytes = vec![b'R', VERSION, self.rails.len() as u8, 0, low, high];
        for rail in &self.rails {
            bytes.extend_from_slice(&rail.gid.0);
            bytes.push(match rail.kind {
                GidKind::Infiniband => 0,
                GidKind::RoceV1 => 1,
                GidKind::RoceV2 => 2,
            });
            bytes.push(rail.mtu.raw() as u8);
            bytes.extend_from_slice(&rail.lid.to_le_bytes());
            bytes.extend_from_slice(&[0; 4]);
        }
        bytes.extend_from_slice(&self.side);
        bytes
    }

    /// Decodes a peer's address. The error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, &'static str> {
        let (head, rest) = bytes.split_at_checked(6).ok_or("too short")?;
        if head[0] != b'R' {
            return Err("not the address of an RDMA endpoint");
        }
        if head[1] != VERSION {
            return Err("of another version of Kolo");
        }
        let count = usize::from(head[2]);
        if count == 0 || count > RAILS_MAX {
            return Err("a number of adapters out of range");
        }
        let (listed, side) = rest.split_at_checked(count * RAIL_BYTES).ok_or("too short")?;
        let rail = |bytes: &[u8]| {
            let mut gid = [0; 16];
            gid.copy_from_slice(&bytes[..16]);
            Ok(RailAddress {
                gid: Gid(gid),
                kind: match bytes[16] {
                    0 => GidKind::Infiniband,
                    1 => GidKind::RoceV1,
                    2 => GidKind::RoceV2,
                    _ => return Err("an unknown kind of address"),
                },
                mtu: Mtu::from_raw(bytes[17].into()).ok_or("an invalid MTU")?,
                lid: u16::from_le_bytes([bytes[18], bytes[19]]),
            })
        };
        let rails = listed.chunks(RAIL_BYTES).map(rail).collect::<Result<_, _>>()?;
        let peers = u16::from_le_bytes([head[4], head[5]]);
        Ok(Self { peers, rails, side: side.to_vec() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire_and_nonsense_does_not() {
        let rail = RailAddress { gid: Gid([7; 16]), kind: GidKind::RoceV2, lid: 3, mtu: Mtu::Bytes2048 };
        let address = Address { peers: 700, rails: vec![rail; 2], side: vec![1, 2, 3] };
        let bytes = address.encode();
        assert_eq!(Address::decode(&bytes), Ok(address));
        for len in 0..6 + 2 * RAIL_BYTES {
            assert!(Address::decode(&bytes[..len]).is_err(), "{len} bytes");
        }
        for (at, value) in [(0, b'X'), (1, 9), (2, 0), (2, 200), (22, 9), (23, 0)] {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            assert!(Address::decode(&damaged).is_err(), "byte {at} = {value}");
        }
    }
}
