//! The doctor's report, as all ranks know it.

use serde::{Deserialize, Serialize};

use super::facts::Facts;
use super::meetings::Meeting;
use super::rates::Measured;
use super::reach::Reach;

/// All results of an examination.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct Report {
    /// The hosts, in the order of their first ranks.
    pub hosts: Vec<Host>,
    /// Results of dialling, for each pair.
    pub reaches: Vec<Reach>,
    /// Measurements, for each direction between two hosts.
    pub measured: Vec<Measured>,
    /// Pairs of hosts that could not be measured, with the reasons.
    pub unmeasured: Vec<(u32, u32, String)>,
    /// Rounds of pairs that were measured, and the number of all rounds.
    pub rounds: (u32, u32),
    /// Bursts of several hosts at one.
    pub meetings: Vec<Meeting>,
    /// Routes of ranks in a communicator, one entry for each.
    pub routes: Vec<Route>,
    /// The reason why a communicator could not be made or used.
    pub failure: Option<String>,
    /// Duration of the examination.
    pub seconds: f64,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Host {
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// Facts of its first rank; limits are the tightest of all its ranks.
    pub facts: Facts,
}

/// The route of a rank to some others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Route {
    /// The rank.
    pub rank: u32,
    /// The ranks that it reaches by this route.
    pub peers: Vec<u32>,
    /// The transport.
    pub transport: String,
    /// The route in words.
    pub how: String,
    /// Faster transports, with the reasons why they are not used.
    pub declined: Vec<(String, String)>,
}

impl Report {
    /// Returns the name of a host, for people.
    pub(crate) fn name(&self, host: u32) -> String {
        let known = self.hosts.get(host as usize).map(|host| host.facts.hostname.as_str());
        format!("host {host} ({})", known.unwrap_or("?"))
    }

    /// Returns the host of a rank.
    pub(crate) fn host_of(&self, rank: u32) -> Option<u32> {
        self.hosts.iter().position(|host| host.ranks.contains(&rank)).map(|at| at as u32)
    }

    /// Returns the measurements from one host to another.
    pub(crate) fn between(&self, from: u32, to: u32) -> Option<&Measured> {
        self.measured.iter().find(|way| way.from == from && way.to == to)
    }

    /// Returns the highest rate at which a host sends, or receives.
    pub(crate) fn rate(&self, host: u32, end: fn(&Measured) -> u32) -> Option<f64> {
        let own = self.measured.iter().filter(|way| end(way) == host);
        own.map(|way| way.bytes_per_second).reduce(f64::max)
    }
}
