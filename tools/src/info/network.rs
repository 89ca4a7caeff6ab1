//! Network interfaces and TCP settings. `unsafe` serves only to walk the C library's list of addresses, and to ask drivers
//! for speeds. sysfs is not used: it shows the network namespace in which it was mounted.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;

use kolo_transport::tcp::{Device, devices};
use serde::{Deserialize, Serialize};

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    /// Its name.
    pub name: String,
    /// Whether it is up and has a carrier.
    pub running: bool,
    /// Whether it only leads back to this machine.
    pub loopback: bool,
    /// Megabits per second, if the driver reports them.
    pub speed_megabits: Option<u64>,
    /// Longest packet.
    pub mtu: Option<u64>,
    /// Addresses.
    pub addresses: Vec<IpAddr>,
}

/// Returns all interfaces with their addresses, in the kernel's order.
pub(crate) fn interfaces() -> io::Result<Vec<Interface>> {
    let mut head: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: getifaddrs stores the head of a list that it allocates; it is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let devices = devices().unwrap_or_default();
    let mut found: Vec<Interface> = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: `next` is an entry of the list, which is not freed before the loop is over (test
        // `there_is_a_loopback`).
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        // SAFETY: names are terminated strings that live as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let at = found.iter().position(|interface| interface.name == name).unwrap_or_else(|| {
            found.push(describe(name, entry.ifa_flags, &devices));
            found.len() - 1
        });
        // SAFETY: an address of the list is null or valid for the length that its family implies.
        found[at].addresses.extend(unsafe { ip(entry.ifa_addr) });
    }
    // SAFETY: `head` came from getifaddrs and is freed once; nothing points into it any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn describe(name: String, flags: libc::c_uint, devices: &[Device]) -> Interface {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    let device = devices.iter().find(|device| device.name == name);
    Interface {
        running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        speed_megabits: speed(&name),
        mtu: device.map(|device| device.mtu.into()),
        addresses: Vec::new(),
        name,
    }
}

/// `struct ethtool_cmd` of linux/ethtool.h.
#[repr(C)]
#[derive(Default)]
struct EthtoolCmd {
    cmd: u32,
    features: [u32; 2],
    speed: u16,
    other: [u8; 6],
    packets: [u32; 2],
    speed_hi: u16,
    rest: [u8; 14],
}

const _: () = assert!(size_of::<EthtoolCmd>() == 44);

/// Returns the speed in megabits per second that the driver of an interface of this network namespace reports.
fn speed(name: &str) -> Option<u64> {
    const ETHTOOL_GSET: u32 = 1;
    let socket = UnixDatagram::unbound().ok()?;
    let mut answer = EthtoolCmd { cmd: ETHTOOL_GSET, ..EthtoolCmd::default() };
    // SAFETY: zeros are valid for all members of this union of integers, addresses and a pointer.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // The last byte stays zero.
    let room = request.ifr_name.len() - 1;
    for (to, byte) in request.ifr_name[..room].iter_mut().zip(name.bytes()) {
        *to = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_data = (&raw mut answer).cast();
    // SAFETY: SIOCETHTOOL reads a request whose name ends with zero, and ETHTOOL_GSET writes no more than the 44 bytes of
    // the structure to which it points; both live until the call is over (test `there_is_a_loopback`).
    if unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL, &raw mut request) } != 0 {
        return None;
    }
    let megabits = u32::from(answer.speed_hi) << 16 | u32::from(answer.speed);
    // All bits, or those of the lower half, say that the speed is unknown.
    Some(u64::from(megabits)).filter(|megabits| ![0, u32::MAX.into(), u16::MAX.into()].contains(megabits))
}

/// # Safety
/// `address` is null or points to a socket address of the length that its family implies.
unsafe fn ip(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller guarantees the pointer; unaligned reads make no further demand.
    unsafe {
        match i32::from((&raw const (*address).sa_family).read_unaligned()) {
            libc::AF_INET => {
                let address = address.cast::<libc::sockaddr_in>().read_unaligned();
                Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
            }
            libc::AF_INET6 => {
                let address = address.cast::<libc::sockaddr_in6>().read_unaligned();
                Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_a_loopback() {
        let interfaces = interfaces().unwrap();
        let loopback = interfaces.iter().find(|interface| interface.loopback).unwrap();
        assert!(loopback.addresses.iter().all(IpAddr::is_loopback));
        assert!(loopback.mtu >= Some(1500) && loopback.speed_megabits.is_none(), "{loopback:?}");
        assert_eq!(speed("a name that is longer than those of devices"), None);
    }
}
