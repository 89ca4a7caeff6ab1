//! Clusters of thread ranks in every arrangement of hosts and transports that can be simulated on one machine.

use std::time::Duration;

use kolo::{Cluster, Communicator, Config, Determinism, TransportKind, Transports};

/// How the ranks of a test cluster reach each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrangement {
    /// Shared memory, with the exchange.
    Exchange,
    /// Shared memory, messages only.
    Shm,
    /// TCP between all ranks, or RDMA in its place.
    Tcp,
    /// Ranks on simulated hosts of the given number of ranks, in order: shared memory inside, TCP between.
    Hosts(u32),
}

impl Arrangement {
    /// One arrangement of each kind.
    pub const ALL: [Self; 4] = [Self::Exchange, Self::Shm, Self::Tcp, Self::Hosts(2)];

    /// Returns the settings of a rank.
    #[must_use]
    pub fn config(self, rank: u32) -> Config {
        // Long compared to any test, and short enough for a person to wait for a hung one.
        let mut config = Config::default().with(|config| config.timeout = Duration::from_secs(60));
        // A busy machine may keep a rank from its processors for longer than the usual second.
        config.silent_after = Duration::from_secs(10);
        match self {
            Self::Exchange => config.transports = Transports::Only(vec![TransportKind::Shm]),
            Self::Shm => {
                config.transports = Transports::Only(vec![TransportKind::Shm]);
                config.exchange_bytes = Some(0);
            }
            Self::Tcp => config.transports = Transports::Only(vec![network()]),
            Self::Hosts(ranks) => config.host_id = Some(format!("host-{}", rank / ranks)),
        }
        config
    }

    /// Runs `body` on every rank.
    ///
    /// # Panics
    /// If the ranks cannot join, or a rank panics.
    pub fn run<R: Send>(self, ranks: u32, body: impl Fn(Communicator) -> R + Sync) -> Vec<R> {
        self.run_with(ranks, |config| config, body)
    }

    /// As [`Arrangement::run`], with changed settings.
    ///
    /// # Panics
    /// As [`Arrangement::run`].
    pub fn run_with<R: Send>(
        self,
        ranks: u32,
        change: impl Fn(Config) -> Config + Sync,
        body: impl Fn(Communicator) -> R + Sync,
    ) -> Vec<R> {
        Cluster::with_configs(ranks, |rank| change(self.config(rank)), body)
            .unwrap_or_else(|error| panic!("{self:?}, {ranks} ranks: {error}"))
    }
}

/// Returns the transport between hosts: TCP, except in a guest of tests/softroce that asks for RDMA, where all tests of
/// the network test that.
fn network() -> TransportKind {
    if in_guest() { TransportKind::Rdma } else { TransportKind::Tcp }
}

/// Returns whether this is such a guest. A page fault there costs a hundred times as much as elsewhere, so tests of
/// much memory take less.
#[must_use]
pub fn in_guest() -> bool {
    std::env::var_os("KOLO_TESTS_OVER_RDMA").is_some()
}

/// Adds the canonical order to the settings.
#[must_use]
pub fn canonical(mut config: Config) -> Config {
    config.determinism = Determinism::Canonical;
    config
}
