//! The doctor's report, as all ranks know it.

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::rates::Measured;
use super::reach::Reach;

/// Everything.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The hosts, in the order of their first ranks.
    pub hosts: Vec<Host>,
    /// Dialled pairs, with the results.
    pub reaches: Vec<Reach>,
    /// Directions between hosts.
    pub measured: Vec<Measured>,
    /// Pairs of hosts that could not be measured, and why not.
    pub unmeasured: Vec<(u32, u32, String)>,
    /// Rounds of pairs that were measured, and how many there are.
    pub rounds: (u32, u32),
    /// How ranks reach each other in a communicator, one entry for each way.
    pub routes: Vec<Route>,
    /// Why a communicator could not be made or used.
    pub failure: Option<String>,
    /// Duration of all this.
    pub seconds: f64,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Host {
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Its first rank's facts; limits are the tightest of all its ranks.
    pub facts: Facts,
}

/// How a rank reaches some others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// The rank.
    pub rank: u32,
    /// Those that it reaches so.
    pub peers: Vec<u32>,
    /// The transport.
    pub transport: String,
    /// The way, in words.
    pub how: String,
    /// Faster transports, and why not.
    pub declined: Vec<(String, String)>,
}

impl Report {
    /// A host for people.
    pub(crate) fn name(&self, host: u32) -> String {
        let known = self.hosts.get(host as usize).map(|host| host.facts.hostname.as_str());
        format!("host {host} ({})", known.unwrap_or("?"))
    }

    /// The host of a rank.
    pub(crate) fn host_of(&self, rank: u32) -> Option<u32> {
        self.hosts.iter().position(|host| host.ranks.contains(&rank)).map(|at| at as u32)
    }

    /// Measurements from one host to another.
    pub(crate) fn between(&self, from: u32, to: u32) -> Option<&Measured> {
        self.measured.iter().find(|way| way.from == from && way.to == to)
    }

    /// The fastest that a host sends, or receives.
    pub(crate) fn rate(&self, host: u32, end: fn(&Measured) -> u32) -> Option<f64> {
        let own = self.measured.iter().filter(|way| end(way) == host);
        own.map(|way| way.bytes_per_second).reduce(f64::max)
    }
}
