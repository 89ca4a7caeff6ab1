//! Measures the network when the communicator of all ranks is made.

use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use super::Communicator;
use crate::control::{GatherKey, Round};
use crate::error::{Error, JoinFailure, Result};
use crate::network::{Sample, Table, Wire, probe};
use crate::reduce::DefaultFloats;

/// A rank's measurements.
#[derive(Debug, Serialize, Deserialize)]
struct Measured {
    samples: Vec<Sample>,
    took: Duration,
}

impl Communicator {
    /// Measures the network between the hosts, and lets the choice of algorithms depend on it. All ranks call it.
    /// Blocks until all have.
    ///
    /// # Errors
    /// As [`Communicator::from_env`]. A host that another cannot reach is reported here, not by some later call.
    pub(super) fn learn_network(&self, deadline: Instant) -> Result<()> {
        let shared = &self.shared;
        let (hosts, rank) = (&shared.group.hosts, self.rank());
        let count = hosts.iter().max().map_or(0, |most| most + 1);
        let is_wanted = shared.look(|core| core.planner.network().wants_measurement());
        if count < 2 || !shared.config.network_probe || !is_wanted {
            return Ok(());
        }
        let host = hosts[rank as usize];
        let leaders: Vec<u32> = (0..count)
            .filter_map(|host| hosts.iter().position(|of| *of == host))
            .map(|at| at as u32)
            .collect();
        let begun = Instant::now();
        let samples = if leaders.get(host as usize) == Some(&rank) {
            let mut wire = Messages { communicator: self, leaders: &leaders, begun, deadline };
            probe(&mut wire, host, count)?
        } else {
            Vec::new()
        };
        let measured = Measured { samples, took: begun.elapsed() };
        let key = GatherKey { communicator: shared.group.id, round: Round::Measurements };
        let told = shared.world.control.all_gather(key, &shared.group.members, &measured, deadline)?;
        let took = told.iter().map(|measured| measured.took).max().unwrap_or_default();
        let samples = told.into_iter().flat_map(|measured| measured.samples).collect();
        let table =
            Table::new(Arc::clone(hosts), samples, took).map_err(|problem| self.nonsense(&problem))?;
        // The selection depends on what is computed here, and must be the same on all ranks.
        let _floats = DefaultFloats::enter();
        let mut core = shared.core();
        if let Some(between) = table.between(&shared.group.members) {
            core.processor.learn(between.round_trip_seconds(), Instant::now());
            let known = core.planner.network().clone().measured(between, table.took);
            core.engine
                .links_mut()
                .expect(known.between().into_iter().flat_map(|between| between.rates(host, hosts)));
            core.planner.learn(known);
        }
        // The probe's messages do not count: numbers begin with the caller's first call.
        core.calls.forget();
        drop(core);
        shared.world.learn(table, shared.config.transports.clone());
        Ok(())
    }

    fn nonsense(&self, problem: &str) -> Error {
        Error::Join {
            rank: Some(self.rank()),
            kind: JoinFailure::Version,
            problem: format!("a rank's measurements of the network could not be read: {problem}"),
            remedy: "Use the same version of Kolo on all ranks".to_owned(),
        }
    }
}

/// The probe's wire: messages between one rank of each host.
struct Messages<'a> {
    communicator: &'a Communicator,
    leaders: &'a [u32],
    begun: Instant,
    deadline: Instant,
}

impl Messages<'_> {
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now()).min(self.communicator.shared.config.timeout)
    }
}

impl Wire for Messages<'_> {
    type Error = Error;

    fn send(&mut self, host: u32, bytes: &[u8]) -> Result<()> {
        self.communicator.batch().send(bytes, self.leaders[host as usize]).run_within(self.left())
    }

    fn recv(&mut self, host: u32, bytes: &mut [u8]) -> Result<()> {
        self.communicator.batch().recv(bytes, self.leaders[host as usize]).run_within(self.left())
    }

    fn exchange(&mut self, host: u32, out: &[u8], inward: &mut [u8]) -> Result<()> {
        let leader = self.leaders[host as usize];
        self.communicator.batch().send(out, leader).recv(inward, leader).run_within(self.left())
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn has_rails(&self, host: u32) -> bool {
        self.communicator.rails(self.leaders[host as usize]).len() > 1
    }
}
