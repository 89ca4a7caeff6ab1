//! Description of the machine that a simulation runs on.

use serde::{Deserialize, Serialize};

use crate::model::{HostRate, Model, PairRate};

/// Hosts with ranks, the cost of their communication, and the failures among them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cluster {
    /// Number of hosts; ranks are assigned to them consecutively.
    pub hosts: u32,
    /// Ranks on each host.
    pub ranks_per_host: u32,
    /// The performance constants.
    pub model: Model,
    /// Rates of each host's interfaces; if empty, the model's rate holds for all.
    pub rates: Vec<HostRate>,
    /// Rates of pairs of hosts that are slower than the interfaces of both.
    pub pairs: Vec<PairRate>,
    /// Bytes of an element.
    pub element_bytes: usize,
    /// Bytes per segment, of the vector or of the longest block.
    pub segment_bytes: usize,
    /// Segments in flight, at least 1.
    pub window: usize,
    /// Number of successive calls, at least 1: each rank begins the next call when it is done with the one
    /// before.
    pub calls: usize,
    /// Ranks that begin late.
    pub stragglers: Vec<Straggler>,
    /// A rank that dies.
    pub killed: Option<Killed>,
}

/// A rank that begins late.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Straggler {
    /// The rank.
    pub rank: u32,
    /// Its delay.
    pub delay_seconds: f64,
}

/// A rank that dies: it does nothing more from then on. Its earlier messages still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Killed {
    /// The rank.
    pub rank: u32,
    /// Time of its death.
    pub at_seconds: f64,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            hosts: 1,
            ranks_per_host: 2,
            model: Model::default(),
            rates: Vec::new(),
            pairs: Vec::new(),
            element_bytes: 4,
            segment_bytes: 1 << 20,
            window: 4,
            calls: 1,
            stragglers: Vec::new(),
            killed: None,
        }
    }
}

impl Cluster {
    /// Returns the number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Returns the host of a rank.
    #[must_use]
    pub fn host(&self, rank: u32) -> u32 {
        rank / self.ranks_per_host.max(1)
    }

    /// Returns the number of a rank among those of its host.
    pub(super) fn place(&self, rank: u32) -> u32 {
        rank % self.ranks_per_host.max(1)
    }

    /// Returns the time of a message of `bytes` bytes on the interface of the sending host.
    pub(super) fn seconds_out(&self, host: usize, bytes: f64) -> f64 {
        self.interface_seconds(host, bytes, |rate| rate.out_bytes_per_second)
    }

    /// Returns the time of a message of `bytes` bytes on the interface of the receiving host.
    pub(super) fn seconds_in(&self, host: usize, bytes: f64) -> f64 {
        self.interface_seconds(host, bytes, |rate| rate.in_bytes_per_second)
    }

    fn interface_seconds(&self, host: usize, bytes: f64, way: fn(&HostRate) -> f64) -> f64 {
        let rate = self.rates.get(host).map_or(self.model.nic_bytes_per_second, way);
        self.model.nic_message_seconds + bytes / rate
    }

    /// Returns the bytes per second of one rank's link to another host.
    pub(super) fn link_rate(&self, from: u32, to: u32) -> f64 {
        let pair = self.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to));
        let most = self.model.inter.bytes_per_second;
        pair.map_or(most, |pair| pair.bytes_per_second.min(most))
    }

    /// Returns the host of each rank, in the form that a task takes.
    #[must_use]
    pub fn hosts_of_ranks(&self) -> Vec<u32> {
        (0..self.world_size()).map(|rank| self.host(rank)).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, MapDeserializer};

    use super::*;

    fn read(fields: &[(&str, u32)]) -> Result<Cluster, Error> {
        Cluster::deserialize(MapDeserializer::new(fields.iter().copied()))
    }

    #[test]
    fn what_is_not_said_has_a_default_and_what_is_unknown_is_an_error() {
        let cluster = read(&[("hosts", 3), ("ranks_per_host", 4)]).expect("valid");
        assert_eq!(cluster, Cluster { hosts: 3, ranks_per_host: 4, ..Cluster::default() });
        assert_eq!(cluster.hosts_of_ranks(), [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        let error = read(&[("host", 3)]).expect_err("a misspelt field").to_string();
        assert!(error.contains("`host`") && error.contains("`hosts`"), "{error}");
    }
}
