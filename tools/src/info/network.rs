//! Network interfaces and TCP settings. `unsafe` serves only to walk the C library's list of addresses.

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};

use super::machine::read_line;

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
            found.push(describe(name, entry.ifa_flags));
            found.len() - 1
        });
        // SAFETY: an address of the list is null or valid for the length that its family implies.
        found[at].addresses.extend(unsafe { ip(entry.ifa_addr) });
    }
    // SAFETY: `head` came from getifaddrs and is freed once; nothing points into it any more.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

fn describe(name: String, flags: libc::c_uint) -> Interface {
    let has = |flag: libc::c_int| flags & flag as libc::c_uint != 0;
    let number = |what: &str| read_line(format!("/sys/class/net/{name}/{what}"))?.parse::<u64>().ok();
    Interface {
        running: has(libc::IFF_UP) && has(libc::IFF_RUNNING),
        loopback: has(libc::IFF_LOOPBACK),
        speed_megabits: number("speed").filter(|speed| *speed < u64::from(u32::MAX)),
        mtu: number("mtu"),
        addresses: Vec::new(),
        name,
    }
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
    }
}
