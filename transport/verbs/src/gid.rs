//! Addresses of a port: a table of GIDs, each with a RoCE version and a network interface.

use std::fmt;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::context::Context;
use crate::error::{Error, code};
use crate::library::text;
use crate::sys;

/// A global identifier. For RoCE, it is an IPv6 address, or an IPv4 address mapped into one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// Returns the IPv4 address, if it is one.
    #[must_use]
    pub fn ipv4(self) -> Option<Ipv4Addr> {
        Ipv6Addr::from(self.0).to_ipv4_mapped()
    }

    fn is_link_local(self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.ipv4() {
            Some(address) => address.fmt(f),
            None => Ipv6Addr::from(self.0).fmt(f),
        }
    }
}

/// Framing of packets to a GID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// Ethernet frames of their own type, within one broadcast domain. The kernel's table of types does not
    /// distinguish it from InfiniBand; the port's link layer does.
    RoceV1,
    /// UDP, which can be routed.
    RoceV2,
}

impl fmt::Display for GidKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Infiniband => "InfiniBand",
            Self::RoceV1 => "RoCE v1",
            Self::RoceV2 => "RoCE v2",
        })
    }
}

/// An entry of a port's table of GIDs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// Its index in the table.
    pub index: u8,
    /// The identifier.
    pub gid: Gid,
    /// Its framing.
    pub kind: GidKind,
    /// Its network interface, for RoCE.
    pub netdev: Option<String>,
}

impl GidEntry {
    /// Returns the entry to use by default: RoCE v2 over IPv4 first, then over routed IPv6, then link-local; version
    /// 1 last. Among equals, the lowest index counts.
    #[must_use]
    pub fn best(entries: &[Self]) -> Option<&Self> {
        entries.iter().min_by_key(|entry| {
            let preference = match entry.kind {
                GidKind::Infiniband => 0,
                GidKind::RoceV2 if entry.gid.ipv4().is_some() => 0,
                GidKind::RoceV2 if !entry.gid.is_link_local() => 1,
                GidKind::RoceV2 => 2,
                GidKind::RoceV1 => 3,
            };
            (preference, entry.index)
        })
    }
}

/// Returns the used entries of a port's table.
pub(crate) fn table(context: &Context, port: u8, len: u32, ethernet: bool) -> Result<Vec<GidEntry>, Error> {
    let mut entries = Vec::new();
    // An address vector has eight bits for the index.
    for index in 0..=u8::MAX {
        if u32::from(index) >= len {
            break;
        }
        if let Some(entry) = entry(context, port, index, ethernet)? {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn entry(context: &Context, port: u8, index: u8, ethernet: bool) -> Result<Option<GidEntry>, Error> {
    let symbols = context.symbols();
    if let Some(query) = symbols.ibv_query_gid_ex {
        let mut raw = sys::ibv_gid_entry::default();
        // SAFETY: the context is live; the call writes one entry of the given size.
        let returned = unsafe {
            query(
                context.as_ptr(),
                port.into(),
                index.into(),
                &raw mut raw,
                0,
                size_of::<sys::ibv_gid_entry>(),
            )
        };
        return match code(returned) {
            Ok(()) => Ok(used(raw.gid.raw, index, || {
                let kind = match raw.gid_type {
                    2 => GidKind::RoceV2,
                    1 => GidKind::RoceV1,
                    _ => GidKind::Infiniband,
                };
                (kind, interface_name(raw.ndev_ifindex))
            })),
            Err(libc::ENODATA) => Ok(None),
            // Old kernels lack the query; sysfs has the same data.
            Err(libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT) => {
                plain(context, port, index, ethernet)
            }
            Err(errno) => {
                Err(Error::call("ibv_query_gid_ex", format!("reading GID {index} of port {port}"), errno))
            }
        };
    }
    plain(context, port, index, ethernet)
}

fn plain(context: &Context, port: u8, index: u8, ethernet: bool) -> Result<Option<GidEntry>, Error> {
    let mut gid = sys::ibv_gid::default();
    // SAFETY: the context is live; the call writes one GID.
    match code(unsafe {
        (context.symbols().ibv_query_gid)(context.as_ptr(), port, index.into(), &raw mut gid)
    }) {
        Ok(()) => {}
        // Some kernels refuse entries that were never set.
        Err(libc::EAGAIN | libc::ENODATA | libc::EINVAL) => return Ok(None),
        Err(errno) => {
            return Err(Error::call("ibv_query_gid", format!("reading GID {index} of port {port}"), errno));
        }
    }
    let attributes = context.device().sysfs().join(format!("ports/{port}/gid_attrs"));
    Ok(used(gid.raw, index, || {
        let kind = fs::read_to_string(attributes.join(format!("types/{index}"))).unwrap_or_default();
        let netdev = fs::read_to_string(attributes.join(format!("ndevs/{index}"))).ok();
        (
            parse_kind(&kind, ethernet),
            netdev.map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()),
        )
    }))
}

fn used(raw: [u8; 16], index: u8, rest: impl FnOnce() -> (GidKind, Option<String>)) -> Option<GidEntry> {
    // An InfiniBand or RoCE address always has an interface part; a bare prefix is an empty entry.
    if raw[8..] == [0; 8] {
        return None;
    }
    let (kind, netdev) = rest();
    Some(GidEntry { index, gid: Gid(raw), kind, netdev })
}

/// Parses the kernel's text: "RoCE v2", or "IB/RoCE v1" for both others.
fn parse_kind(words: &str, ethernet: bool) -> GidKind {
    match (words.trim(), ethernet) {
        ("RoCE v2", _) => GidKind::RoceV2,
        (_, true) => GidKind::RoceV1,
        (_, false) => GidKind::Infiniband,
    }
}

fn interface_name(index: u32) -> Option<String> {
    let mut name = [0; libc::IF_NAMESIZE];
    if index == 0 {
        return None;
    }
    // SAFETY: the buffer has the size that the call needs.
    let found = unsafe { libc::if_indextoname(index, name.as_mut_ptr()) };
    (!found.is_null()).then(|| text(&name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u8, address: &str, kind: GidKind) -> GidEntry {
        let address: Ipv6Addr = address.parse().unwrap();
        GidEntry { index, gid: Gid(address.octets()), kind, netdev: None }
    }

    #[test]
    fn the_best_gid_is_the_routable_one() {
        let table = [
            entry(0, "fe80::1", GidKind::RoceV1),
            entry(1, "fe80::1", GidKind::RoceV2),
            entry(2, "2001:db8::1", GidKind::RoceV2),
            entry(3, "::ffff:192.0.2.1", GidKind::RoceV1),
            entry(4, "::ffff:192.0.2.1", GidKind::RoceV2),
        ];
        let best = |entries: &[GidEntry]| GidEntry::best(entries).map(|entry| entry.index);
        assert_eq!(best(&table), Some(4));
        assert_eq!(best(&table[..4]), Some(2));
        assert_eq!(best(&table[..2]), Some(1));
        assert_eq!(best(&table[..1]), Some(0));
        assert_eq!(best(&[]), None);
    }

    #[test]
    fn gids_read_like_addresses() {
        assert_eq!(entry(0, "::ffff:192.0.2.1", GidKind::RoceV2).gid.to_string(), "192.0.2.1");
        assert_eq!(entry(0, "fe80::1", GidKind::RoceV2).gid.to_string(), "fe80::1");
    }

    #[test]
    fn kinds_are_the_kernels_words() {
        assert_eq!(parse_kind("RoCE v2\n", true), GidKind::RoceV2);
        assert_eq!(parse_kind("IB/RoCE v1\n", true), GidKind::RoceV1);
        assert_eq!(parse_kind("IB/RoCE v1\n", false), GidKind::Infiniband);
    }
}
