//! The network devices of this process's network namespace, as the kernel lists them by netlink.
//!
//! The files below /sys/class/net would be easier to read, but they show the namespace in which sysfs was mounted, and a
//! device of the same name there may be another one.

use std::io::{self, Read, Write};
use std::time::Duration;

use libc::{
    IFLA_IFNAME, IFLA_INFO_KIND, IFLA_LINK, IFLA_LINK_NETNSID, IFLA_LINKINFO, IFLA_MASTER, IFLA_MTU,
    RTM_GETLINK, RTM_NEWLINK,
};
use socket2::{Domain, Protocol, Socket, Type};

const NLMSG_ERROR: u16 = libc::NLMSG_ERROR as u16;
const NLMSG_DONE: u16 = libc::NLMSG_DONE as u16;
const NLM_F_REQUEST_DUMP: u16 = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
/// Bits of an attribute's type that say how it is encoded.
const NLA_TYPE_MASK: u16 = libc::NLA_TYPE_MASK as u16;

/// Lengths of the headers of a message, and of the part of a message about a device that precedes its attributes.
const HEADER: usize = size_of::<libc::nlmsghdr>();
const DEVICE: usize = 16;

/// The kernel fills at most 32 KiB at a time.
const ANSWER_MOST: usize = 64 << 10;

/// Kinds of devices whose `IFLA_LINK` is the other end of a cable, on which they are not stacked.
const PAIRS: [&str; 3] = ["veth", "netkit", "vxcan"];

/// A network device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Its name.
    pub name: String,
    /// Longest packet.
    pub mtu: u32,
    index: u32,
    /// The device on which it is stacked, as a VLAN is, or the other end of a pair.
    link: Option<u32>,
    /// The device that is stacked on it, as a bond or a bridge is.
    master: Option<u32>,
    kind: String,
    /// Whether `link` is a number of another namespace.
    is_foreign: bool,
}

/// Returns the devices of this network namespace.
///
/// # Errors
/// If the system does not list them.
pub fn devices() -> io::Result<Vec<Device>> {
    let family = Domain::from(libc::AF_NETLINK);
    let mut socket = Socket::new(family, Type::RAW, Some(Protocol::from(libc::NETLINK_ROUTE)))?;
    // The kernel answers at once. The limit makes an error of a system that only pretends to have netlink.
    socket.set_read_timeout(Some(Duration::from_secs(1)))?;
    socket.write_all(&request())?;
    let mut answer = vec![0; ANSWER_MOST];
    let mut found = Vec::new();
    loop {
        let len = socket.read(&mut answer)?;
        if len == 0 || read_answer(&answer[..len], &mut found)? {
            return Ok(found);
        }
    }
}

/// Returns the names of the devices on which this one is stacked directly.
pub(super) fn below(name: &str, devices: &[Device]) -> Vec<String> {
    let Some(device) = devices.iter().find(|device| device.name == name) else { return Vec::new() };
    let is_pair = PAIRS.contains(&device.kind.as_str());
    let link = device.link.filter(|link| !device.is_foreign && !is_pair && *link != device.index);
    let lower = devices
        .iter()
        .filter(|other| Some(other.index) == link || other.master == Some(device.index) && !other.is(device));
    lower.map(|other| other.name.clone()).collect()
}

impl Device {
    fn is(&self, other: &Self) -> bool {
        self.index == other.index
    }
}

/// Returns the message that asks for all devices.
fn request() -> [u8; HEADER + DEVICE] {
    let mut message = [0; HEADER + DEVICE];
    message[..4].copy_from_slice(&((HEADER + DEVICE) as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&RTM_GETLINK.to_ne_bytes());
    message[6..8].copy_from_slice(&NLM_F_REQUEST_DUMP.to_ne_bytes());
    message
}

/// Reads the messages of a part of the answer. Returns whether it was the last part.
fn read_answer(mut bytes: &[u8], found: &mut Vec<Device>) -> io::Result<bool> {
    while let (Some(len), Some(kind)) = (u32_at(bytes, 0), u16_at(bytes, 4)) {
        let Some(body) = bytes.get(HEADER..len as usize) else { break };
        match kind {
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let code = u32_at(body, 0).map_or(0, u32::cast_signed);
                return Err(io::Error::from_raw_os_error(code.wrapping_neg()));
            }
            RTM_NEWLINK => found.extend(device(body)),
            _ => {}
        }
        bytes = bytes.get((len as usize).next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn device(body: &[u8]) -> Option<Device> {
    let mut device = Device { index: u32_at(body, 4)?, ..Device::default() };
    for (kind, value) in attributes(body.get(DEVICE..)?) {
        match kind {
            IFLA_IFNAME => device.name = text(value),
            IFLA_MTU => device.mtu = u32_at(value, 0)?,
            IFLA_LINK => device.link = u32_at(value, 0).filter(|link| *link != 0),
            IFLA_MASTER => device.master = u32_at(value, 0),
            IFLA_LINK_NETNSID => device.is_foreign = true,
            IFLA_LINKINFO => {
                let kind = attributes(value).find(|(kind, _)| *kind == IFLA_INFO_KIND);
                device.kind = kind.map(|(_, value)| text(value)).unwrap_or_default();
            }
            _ => {}
        }
    }
    Some(device).filter(|device| !device.name.is_empty())
}

/// Returns the attributes in these bytes, as types and values.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (len, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let value = bytes.get(4..len)?;
        bytes = bytes.get(len.next_multiple_of(4)..).unwrap_or_default();
        Some((kind & NLA_TYPE_MASK, value))
    })
}

fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let len = 4 + value.len();
        let mut bytes = (len as u16).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(len.next_multiple_of(4), 0);
        bytes
    }

    fn message(kind: u16, body: &[u8]) -> Vec<u8> {
        let mut bytes = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.resize(HEADER, 0);
        bytes.extend(body);
        bytes
    }

    fn link(index: u32, name: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
        let mut body = vec![0; DEVICE];
        body[4..8].copy_from_slice(&index.to_ne_bytes());
        body.extend(attribute(IFLA_IFNAME, format!("{name}\0").as_bytes()));
        body.extend(attribute(IFLA_MTU, &9000_u32.to_ne_bytes()));
        body.extend(attributes.concat());
        message(RTM_NEWLINK, &body)
    }

    #[test]
    fn the_loopback_is_among_the_devices() {
        let devices = devices().unwrap();
        let loopback = devices.iter().find(|device| device.index == 1).expect("in every namespace");
        assert!(loopback.name == "lo" && loopback.mtu >= 1500, "{loopback:?}");
        assert_eq!(below("lo", &devices), Vec::<String>::new());
    }

    #[test]
    fn devices_are_stacked_on_those_that_the_kernel_names() {
        let number = |kind, value: u32| attribute(kind, &value.to_ne_bytes());
        let kind = |name: &str| attribute(IFLA_LINKINFO, &attribute(IFLA_INFO_KIND, name.as_bytes()));
        let answer = [
            link(2, "eth0", &[number(IFLA_MASTER, 4)]),
            link(3, "eth1", &[number(IFLA_MASTER, 4)]),
            link(4, "bond0", &[kind("bond")]),
            link(5, "bond0.7", &[number(IFLA_LINK, 4), kind("vlan")]),
            link(6, "veth1", &[number(IFLA_LINK, 2), kind("veth")]),
            link(7, "mac0", &[number(IFLA_LINK, 2), attribute(IFLA_LINK_NETNSID, &[0; 4]), kind("macvlan")]),
        ]
        .concat();
        let mut found = Vec::new();
        assert!(!read_answer(&answer, &mut found).unwrap());
        assert!(read_answer(&message(NLMSG_DONE, &[0; 4]), &mut found).unwrap());
        assert!(found.len() == 6 && found.iter().all(|device| device.mtu == 9000), "{found:?}");
        for (name, wanted) in [
            ("eth0", &[][..]),
            ("bond0", &["eth0", "eth1"]),
            ("bond0.7", &["bond0"]),
            ("veth1", &[]),
            ("mac0", &[]),
            ("gone", &[]),
        ] {
            assert_eq!(below(name, &found), wanted, "{name}");
        }
        // A truncated answer is no panic.
        for len in 0..answer.len() {
            let _ = read_answer(&answer[..len], &mut Vec::new());
        }
        let refused = read_answer(&message(NLMSG_ERROR, &(-13_i32).to_ne_bytes()), &mut found).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
    }
}
