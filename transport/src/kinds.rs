//! Table of the transports by name: each has one folder, and one row of the table below.
//!
//! A folder provides `FEATURES` and `channels_max`, the facts that are known before an endpoint is opened, and `open`, which
//! opens one.

use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::{RdmaOptions, ShmOptions, TcpOptions};

/// Features that all endpoints of a transport have in common, so that a rank knows those of a peer's endpoint from
/// the transport's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Name, as in `KOLO_TRANSPORT`.
    pub name: &'static str,
    /// It connects only ranks of one host, through memory that they share.
    pub shares_memory: bool,
    /// Adapters move the bytes past the kernel, and reach a GPU's memory where the drivers permit. Messages that
    /// shared memory can carry do not use the adapters.
    pub uses_adapters: bool,
    /// Paths are [tried](Endpoint::try_paths) before anything relies on them.
    pub tries_paths: bool,
}

/// Options for the endpoints that the owner opens. Each transport takes its own part.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// For shared memory.
    pub shm: ShmOptions,
    /// For RDMA.
    pub rdma: RdmaOptions,
    /// For TCP.
    pub tcp: TcpOptions,
}

macro_rules! table {
    ($($(#[$doc:meta])+ $kind:ident = $folder:ident,)+) => {
        /// A transport by name.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum TransportKind {
            $($(#[$doc])+ $kind,)+
        }

        impl TransportKind {
            /// All transports, in order of preference.
            pub const ALL: [Self; [$(stringify!($kind)),+].len()] = [$(Self::$kind),+];

            /// Returns its features, which are known before an endpoint is opened.
            #[must_use]
            pub const fn features(self) -> &'static Features {
                match self {
                    $(Self::$kind => &crate::$folder::FEATURES,)+
                }
            }

            /// Returns the most channels to one peer in a world of this size, which are known before an endpoint is opened.
            #[must_use]
            pub fn channels_max(self, world_size: u32) -> u16 {
                match self {
                    $(Self::$kind => crate::$folder::channels_max(world_size),)+
                }
            }

            /// Opens the endpoint of `rank`. This is a local operation: other ranks need not do the same.
            ///
            /// # Errors
            /// If this host or process lacks the transport; the text says why, for the user.
            pub fn open(
                self,
                rank: u32,
                world_size: u32,
                options: &Options,
            ) -> Result<Box<dyn Endpoint>, Error> {
                match self {
                    $(Self::$kind => crate::$folder::open(rank, world_size, options),)+
                }
            }
        }
    };
}

table! {
    /// Shared memory inside a host.
    Shm = shm,
    /// InfiniBand, RoCE or soft-RoCE, through libibverbs.
    Rdma = rdma,
    /// TCP over any network.
    Tcp = tcp,
}

impl TransportKind {
    /// Returns its name, as in `KOLO_TRANSPORT`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.features().name
    }

    /// Returns the transport of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_transport_is_found_by_its_name() {
        for kind in TransportKind::ALL {
            assert_eq!(TransportKind::named(kind.name()), Some(kind));
            match kind.open(0, 1, &Options::default()) {
                Ok(endpoint) => {
                    assert_eq!(endpoint.caps().name, kind.name());
                    assert_eq!(endpoint.caps().channels_max, kind.channels_max(1));
                }
                Err(refused) => println!("{}: {refused}", kind.name()),
            }
        }
        assert_eq!(TransportKind::named("none of these"), None);
    }
}
