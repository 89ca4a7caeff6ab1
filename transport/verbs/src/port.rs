//! Ports of a device: state, kind and speed.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::sys;

/// Maximum payload of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mtu {
    /// 256 bytes.
    Bytes256 = 1,
    /// 512 bytes.
    Bytes512 = 2,
    /// 1024 bytes.
    Bytes1024 = 3,
    /// 2048 bytes.
    Bytes2048 = 4,
    /// 4096 bytes.
    Bytes4096 = 5,
}

impl Mtu {
    /// Returns the MTU of libibverbs' number.
    #[must_use]
    pub fn from_raw(raw: u32) -> Option<Self> {
        Some(match raw {
            1 => Self::Bytes256,
            2 => Self::Bytes512,
            3 => Self::Bytes1024,
            4 => Self::Bytes2048,
            5 => Self::Bytes4096,
            _ => return None,
        })
    }

    /// Returns libibverbs' number.
    #[must_use]
    pub fn raw(self) -> u32 {
        self as u32
    }

    /// Returns the size in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.raw()
    }
}

/// The layer below RDMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand: addressed by LID.
    Infiniband,
    /// Ethernet: RoCE or iWARP; addressed by GID.
    Ethernet,
    /// The device does not tell.
    Unknown,
}

/// Properties of a port at the time of the query.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Port {
    /// Its number, from 1.
    pub number: u8,
    /// Its state.
    pub state: PortState,
    /// The layer below.
    pub link_layer: LinkLayer,
    /// The MTU in use; `None` for a value that this version does not know.
    pub active_mtu: Option<Mtu>,
    /// Maximum length of a message in bytes.
    pub message_bytes_max: u32,
    /// InfiniBand's local address; 0 on Ethernet.
    pub lid: u16,
    /// Length of the table of GIDs.
    pub gid_table_len: u32,
    /// Speed in Mbit/s of all lanes together; `None` if unknown.
    pub rate_mbps: Option<u32>,
}

/// Whether a port carries traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// It carries traffic.
    Active,
    /// There is no link.
    Down,
    /// There is a link but no address yet: without a subnet manager, an InfiniBand port stays in this state.
    Initializing,
    /// Another state, by libibverbs' number.
    Other(u32),
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Active => f.write_str("active"),
            Self::Down => f.write_str("down"),
            Self::Initializing => f.write_str("initializing (no subnet manager?)"),
            Self::Other(number) => write!(f, "state {number}"),
        }
    }
}

impl Port {
    pub(crate) fn decode(number: u8, raw: &sys::ibv_port_attr, device: &Path) -> Self {
        Self {
            number,
            state: match raw.state {
                1 => PortState::Down,
                2 | 3 => PortState::Initializing,
                sys::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
            link_layer: match u32::from(raw.link_layer) {
                sys::IBV_LINK_LAYER_INFINIBAND => LinkLayer::Infiniband,
                sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unknown,
            },
            active_mtu: Mtu::from_raw(raw.active_mtu),
            message_bytes_max: raw.max_msg_sz,
            lid: raw.lid,
            gid_table_len: u32::try_from(raw.gid_tbl_len).unwrap_or(0),
            // The kernel's text can express speeds that the structure's eight bits cannot.
            rate_mbps: fs::read_to_string(device.join(format!("ports/{number}/rate")))
                .ok()
                .and_then(|words| parse_rate(&words))
                .or_else(|| decode_rate(raw.active_width, raw.active_speed)),
        }
    }

    /// Returns whether it carries traffic.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.state == PortState::Active
    }
}

/// Parses the kernel's text: "100 Gb/sec (4X EDR)", "2.5 Gb/sec (1X SDR)".
fn parse_rate(words: &str) -> Option<u32> {
    let (number, _) = words.split_once(" Gb/sec")?;
    let gbps: f64 = number.trim().parse().ok()?;
    // No port will have 4 Tbit/s soon; higher values, and values below 1 Mbit/s, are errors.
    let mbps = gbps * 1000.0;
    (1.0..4e6).contains(&mbps).then_some(mbps.round() as u32)
}

/// Decodes the number of lanes and the speed of a lane, each a bit in a mask.
fn decode_rate(width: u8, speed: u8) -> Option<u32> {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => return None,
    };
    let mbps = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => return None,
    };
    Some(lanes * mbps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_decoded() {
        assert_eq!(parse_rate("100 Gb/sec (4X EDR)\n"), Some(100_000));
        assert_eq!(parse_rate("2.5 Gb/sec (1X SDR)\n"), Some(2_500));
        assert_eq!(parse_rate("-1 Gb/sec"), None);
        assert_eq!(parse_rate("nothing"), None);
        assert_eq!(decode_rate(2, 32), Some(100_000));
        assert_eq!(decode_rate(1, 1), Some(2_500));
        assert_eq!(decode_rate(0, 1), None);
    }

    #[test]
    fn mtu_numbers_are_powers_of_two() {
        let bytes: Vec<u32> = (1..=5).map(|raw| Mtu::from_raw(raw).unwrap().bytes()).collect();
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        assert_eq!(Mtu::from_raw(0), None);
        assert_eq!(Mtu::from_raw(6), None);
    }
}
