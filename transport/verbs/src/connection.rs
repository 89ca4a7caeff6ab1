//! The parameters that two queue pairs exchange, and their behaviour once connected.

use crate::error::Error;
use crate::gid::Gid;
use crate::port::Mtu;

/// Parameters by which a peer reaches a queue pair. They travel over the control plane as [`Address::BYTES`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// Number of the queue pair, 24 bits.
    pub number: u32,
    /// Number of the first packet that it sends, 24 bits. It should differ from connection to connection, so that
    /// late packets of an earlier one are recognised.
    pub first_packet: u32,
    /// Address of the port on InfiniBand; 0 on Ethernet.
    pub lid: u16,
    /// MTU of the port; the connection uses the smaller one of both ends.
    pub mtu: Mtu,
    /// The chosen entry of the port's table.
    pub gid: Gid,
}

impl Address {
    /// Length of the encoded form.
    pub const BYTES: usize = 4 + 4 + 2 + 1 + 16;

    /// Encodes the address, big endian.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0..4].copy_from_slice(&self.number.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.first_packet.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.lid.to_be_bytes());
        bytes[10] = self.mtu.raw() as u8;
        bytes[11..27].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Decodes an address; `None` if a field is out of range.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Option<Self> {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let mut gid = [0; 16];
        gid.copy_from_slice(&bytes[11..27]);
        let address = Self {
            number: word(0),
            first_packet: word(4),
            lid: u16::from_be_bytes([bytes[8], bytes[9]]),
            mtu: Mtu::from_raw(bytes[10].into())?,
            gid: Gid(gid),
        };
        (address.number <= PACKET_MASK && address.first_packet <= PACKET_MASK).then_some(address)
    }
}

/// Mask for packet and queue pair numbers, which have 24 bits.
pub(crate) const PACKET_MASK: u32 = 0xff_ffff;

/// Route of this side's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Path {
    /// The port.
    pub port: u8,
    /// Index into the port's table of GIDs; this entry and the peer's must be of the same kind.
    pub gid_index: u8,
    /// Whether packets carry a global route: always on Ethernet, and on InfiniBand between subnets.
    pub global: bool,
    /// MTU of the port.
    pub mtu: Mtu,
    /// Traffic class for switches: DSCP in the upper six bits.
    pub traffic_class: u8,
    /// Service level, which maps to a virtual lane or a priority.
    pub service_level: u8,
    /// Index into the partition table.
    pub partition_index: u16,
}

/// Handling of loss by a connection. [`Reliability::default`] explains the defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reliability {
    /// Exponent of the time after which an unacknowledged packet is sent again, 4.096 us * 2^this, 1 to 31; adapters
    /// may take up to four times as long.
    pub timeout: u8,
    /// Number of repetitions of a packet, 0 to 7.
    pub retries: u8,
    /// Number of repetitions of a send that met no posted receive, 0 to 6; 7 means without end.
    pub receiver_not_ready_retries: u8,
    /// Pause that this side requests before such a repetition, as libibverbs' number: 12 is 0.64 ms.
    pub receiver_not_ready_timer: u8,
    /// Number of RDMA reads that this side may have in progress.
    pub read_depth: u8,
    /// Number of RDMA reads that this side serves at once.
    pub read_depth_served: u8,
}

impl Default for Reliability {
    /// 4.096 us * 2^16 = 0.27 s, eight times: by the standard, the loss of a peer is reported after 2 to 9 s;
    /// soft-RoCE did not report it within 20 s. The report is therefore a last resort: the control plane knows of a
    /// loss within milliseconds, and [`QueuePair::fail`](crate::QueuePair::fail) ends the posted requests. Receives
    /// are posted before they are needed, so an endless retry for them costs nothing and survives a slow start.
    fn default() -> Self {
        Self {
            timeout: 16,
            retries: 7,
            receiver_not_ready_retries: 7,
            receiver_not_ready_timer: 12,
            read_depth: 1,
            read_depth_served: 1,
        }
    }
}

impl Reliability {
    pub(crate) fn check(&self) -> Result<(), Error> {
        let out_of_range = |what: &str, value: u8, most: u8| {
            Err(Error::Usage { detail: format!("{what} is {value}, the most is {most}") })
        };
        if self.timeout > 31 {
            return out_of_range("timeout", self.timeout, 31);
        }
        if self.retries > 7 {
            return out_of_range("retries", self.retries, 7);
        }
        if self.receiver_not_ready_retries > 7 {
            return out_of_range("receiver_not_ready_retries", self.receiver_not_ready_retries, 7);
        }
        if self.receiver_not_ready_timer > 31 {
            return out_of_range("receiver_not_ready_timer", self.receiver_not_ready_timer, 31);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_wire_and_nonsense_does_not() {
        let address = Address {
            number: 0x12_3456,
            first_packet: 0xab_cdef,
            lid: 7,
            mtu: Mtu::Bytes4096,
            gid: Gid([9; 16]),
        };
        let bytes = address.to_bytes();
        assert_eq!(Address::from_bytes(&bytes), Some(address));
        for (at, value) in [(0, 1), (4, 1), (10, 0), (10, 6)] {
            let mut damaged = bytes;
            damaged[at] = value;
            assert_eq!(Address::from_bytes(&damaged), None, "byte {at} = {value}");
        }
    }

    #[test]
    fn reliability_is_bounded() {
        assert!(Reliability::default().check().is_ok());
        assert!(Reliability { retries: 8, ..Reliability::default() }.check().is_err());
        assert!(Reliability { timeout: 32, ..Reliability::default() }.check().is_err());
    }
}
