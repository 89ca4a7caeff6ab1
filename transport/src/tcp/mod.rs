//! The TCP transport.
//!
//! # How it works
//!
//! * **One connection per channel.** The kernel's flow control is the channel's back-pressure. Nothing is
//!   multiplexed: a channel with a late receiver delays no other, and there are no credits to keep. Where several
//!   interfaces lead to a peer (`rails`), a channel's long messages go in parts over one connection on each
//!   (`stripes`, `strands`).
//! * **The lower rank dials, the higher accepts**, each on its own first post. Two ends that post at the same time
//!   therefore make one connection, without a tie to break. If the lower rank does not get through, the higher dials
//!   after a while (see `turns`); if neither does, both meet at a relay (see `relay`).
//! * **Matching is static**, so the receiver knows the destination of a message before it arrives: one `recvmsg`
//!   takes the header and the payload, the payload straight into place. While no receive is posted, the socket is not
//!   read.
//! * **The caller drives.** There is no thread, lock or queue: `post_send` writes as much as the kernel takes, and
//!   `poll` does the rest. With few busy channels, `poll` tries their sockets (one system call when one receive is
//!   pending); with many, it first asks epoll which are ready.
//!
//! # Rules that the files below rely on
//!
//! 1. Nothing is read from a socket beyond the posted receives. Unrequested bytes stay in the kernel. (The exceptions
//!    are the bytes behind a message that does not fit, and a header that is probed for; see `inbound`.)
//! 2. This side closes a connection only when the endpoint is dropped, or the peer abandoned or lost. The end of a
//!    stream therefore means that the peer's endpoint is gone, and that everything it had sent has been read before.
//! 3. The end of a stream fails only tokens that need the peer: a rank that has finished its work may leave early.
//! 4. A header, a hello, an acknowledgement or an address from a peer is parsed in `wire` and `address` only, which
//!    check its bounds.
//! 5. Memory of the caller is touched only in `pieces` (copies, consumers) and by the kernel on behalf of `socket`.

mod accept;
mod address;
mod black_hole;
mod climb;
mod congestion;
mod connect;
mod devices;
mod dial;
mod endpoint;
mod inbound;
mod interfaces;
mod leaving;
mod link;
mod memory;
mod options;
mod outbound;
mod pacing;
mod padding;
mod park;
mod port;
mod rails;
mod relay;
mod resends;
mod route;
mod socket;
mod strands;
mod stripes;
mod survey;
#[cfg(test)]
mod tests;
mod traffic;
mod turns;
mod window;
mod wire;

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::kinds::{Features, Options};

pub use accept::RejectedConnections;
pub use address::Network;
pub use devices::{Device, devices};
pub use endpoint::TcpEndpoint;
pub use interfaces::admitted;
pub(crate) use interfaces::{prefix_of, same_network};
pub use options::{Congestion, Family, TcpOptions};
pub use port::{HELLO_MAGIC_BYTES, HELLO_START_BYTES, OWNER_IS_FULL, OWNER_MAGIC, Port};
pub use relay::{RELAY_CALL_BYTES, RELAY_MAGIC_BYTES, RELAY_READY, RelayCall};
pub use socket::{Reuse, TcpInfo, in_port_range, listen, pace};
pub use survey::{addresses_in_use, all_addresses, dialled, networks};
pub use wire::PROTOCOL;

/// The transport's name, in errors and capabilities.
pub(crate) const NAME: &str = "tcp";

/// See [`TransportKind::features`](crate::TransportKind::features).
pub(crate) const FEATURES: Features =
    Features { name: NAME, shares_memory: false, uses_adapters: false, tries_paths: false };

/// See [`TransportKind::channels_max`](crate::TransportKind::channels_max).
pub(crate) const fn channels_max(_: u32) -> u16 {
    endpoint::CHANNELS_MAX
}

/// See [`TransportKind::open`](crate::TransportKind::open).
pub(crate) fn open(rank: u32, world_size: u32, options: &Options) -> Result<Box<dyn Endpoint>, Error> {
    Ok(Box::new(TcpEndpoint::new(rank, world_size, options.tcp.clone())?))
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_hello(bytes: &[u8]) {
    let key = wire::key_of(&[7; 16]);
    if let Ok(Some(hello)) = wire::Hello::decode(bytes) {
        assert_eq!(wire::Hello::decode(&hello.encode(&key)), Ok(Some(hello)));
    }
    if let Some(hello) = bytes.first_chunk() {
        assert!(!wire::is_proven(hello, &key), "a proof without the key");
    }
    if let Some(answer) = bytes.first_chunk() {
        let _ = wire::Answer::decode(answer).map(|answer| answer.explain());
    }
    if let Some(header) = bytes.first_chunk().and_then(wire::Header::decode) {
        assert_eq!(Some(&header.encode()[..]), bytes.get(..wire::HEADER_BYTES));
    }
    if let Some(part) = bytes.first_chunk().and_then(wire::Part::decode) {
        assert_eq!(Some(&part.encode()[..]), bytes.get(..wire::HEADER_BYTES));
    }
    if let Some(call) = bytes.first_chunk() {
        assert_eq!(RelayCall::decode(call, &[7; 16]), None, "a call without the cookie");
    }
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_address(bytes: &[u8]) {
    if let Ok(address) = address::Address::decode(bytes) {
        let here = address::Host::here(1);
        let local = interfaces::enumerate().unwrap_or_default();
        let stack = here.stack(&address.host);
        let here = route::Here { interfaces: &local.up, own: &local.own, is_listed: true };
        let _ = route::candidates(&address, stack, here, Family::Both, None);
        assert!(address::Address::decode(&address.encode()).is_ok());
    }
}

/// See [`crate::fuzzing`].
#[cfg(any(test, fuzzing))]
pub(crate) fn fuzz_inbound(script: &[u8]) {
    inbound::fuzz::run(script);
}
