//! Setup of a program: its ranks, threads, settings and communicators.

use std::sync::Arc;
use std::time::Duration;

use kolo::internal::plans::digest;
use kolo::{Collective, Config, Determinism, LoadedPlans, ShmStores, TransportKind, Transports};
use kolo_collectives::model::Model;
use kolo_collectives::plan_set::PlanSet;
use kolo_collectives::select::Request;
use kolo_collectives::{Algorithm, Task};

use super::Program;
use crate::random::Random;

/// The parts of a program before its steps: ranks, threads, settings and communicators.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of ranks.
    pub ranks: u32,
    /// Numbers of the steps.
    pub steps: Vec<usize>,
    pub(super) threads: usize,
    pub(super) recipes: Vec<Recipe>,
    arrangement: usize,
    seed: u64,
    config: Config,
}

/// The way in which a communicator is made from an earlier one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recipe {
    pub(super) parent: usize,
    pub(super) seed: u64,
}

impl Setup {
    /// Draws the setup of a program.
    #[must_use]
    pub fn of(program: &Program) -> Self {
        let mut random = Random::new(program.seed);
        let ranks = random.pick(&[2, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9]);
        let threads = random.pick(&[1, 1, 2, 3]);
        let steps = 10 + random.index(40);
        let recipe = |parent: usize, random: &mut Random| Recipe {
            parent: random.index(parent + 1),
            seed: random.number(),
        };
        let recipes = (0..random.index(4)).map(|made| recipe(made, &mut random)).collect();
        let arrangement = random.index(5);
        let config = Config::default().with(|config| {
            config.timeout = Duration::from_secs(40);
            config.join_timeout = Duration::from_secs(60);
            config.silent_after = Duration::from_secs(10);
            config.network_probe = random.index(8) == 0;
            // The messages of several threads are in no order, so that some must be buffered.
            if threads == 1 && program.losses == 0 && random.index(4) == 0 {
                config.unexpected_bytes = random.pick(&[0, 1000, 20_000]);
            }
        });
        let ranks = program.ranks.unwrap_or(ranks);
        let mut setup = Self {
            ranks,
            steps: program.steps.clone().unwrap_or_else(|| (0..steps).collect()),
            threads,
            recipes,
            arrangement,
            seed: program.seed,
            config: vary(config, &mut random),
        };
        setup.config.plans = (0..random.index(3)).filter_map(|_| setup.plans(&mut random)).collect();
        setup
    }

    /// Draws a file of plans, if there are such plans.
    fn plans(&self, random: &mut Random) -> Option<LoadedPlans> {
        let (collective, algorithm) = (random.pick(&Collective::ALL), random.pick(&Algorithm::ALL));
        let hosts: Arc<[u32]> = (0..self.ranks).map(|rank| self.host(rank).unwrap_or(0)).collect();
        let task = Task::new(collective, self.ranks)
            .with_hosts(hosts)
            .with_root(random.below(self.ranks.into()) as u32);
        let task = if self.arrangement == 1 { task } else { task.with_stages() };
        let bytes = random.pick(&[100, 10_000, 1 << 20]);
        let choice = Request::new(&task, bytes, 4).forced(algorithm).select(&Model::TCP).ok()?;
        let set = PlanSet::of_choice(&task, &choice, 0, random.pick(&[10_000, 1 << 30])).ok()?;
        Some(LoadedPlans {
            path: format!("{algorithm}.json").into(),
            digest: digest(&set),
            set: Arc::new(set),
        })
    }

    /// Returns the number of a rank's host, if the program pretends several.
    fn host(&self, rank: u32) -> Option<u32> {
        match self.arrangement {
            0..3 => None,
            // Hosts of unequal numbers of ranks, in no order.
            3 => Some(Random::new(self.seed ^ u64::from(rank + 1) << 32).below(3) as u32),
            _ => Some(rank / 2),
        }
    }

    /// Returns the settings of a rank.
    #[must_use]
    pub fn config(&self, rank: u32) -> Config {
        self.config.clone().with(|config| match self.arrangement {
            0 => config.transports = Transports::Only(vec![TransportKind::Shm]),
            1 => config.transports = Transports::Only(vec![TransportKind::Tcp]),
            _ => config.host_id = self.host(rank).map(|host| format!("host-{host}")),
        })
    }
}

/// Changes settings on which all ranks agree.
pub(super) fn vary(mut config: Config, random: &mut Random) -> Config {
    let seldom = |random: &mut Random| random.index(4) == 0;
    if seldom(random) {
        config.determinism = Determinism::Canonical;
    }
    if seldom(random) {
        config.algorithms = random.pick(&Algorithm::ALL).name().to_owned();
    }
    if seldom(random) {
        config.exchange_bytes = Some(random.pick(&[0, 0, 2048, 100_000]));
    }
    if seldom(random) {
        config.segment_bytes = Some(random.pick(&[4096, 10_000, 65_536, 1 << 20]));
        config.window = Some(random.pick(&[1, 2, 3, 8]));
    }
    if seldom(random) {
        config.one_shot_bytes = Some(random.pick(&[0, 1000, 1 << 20]));
    }
    if random.index(2) == 0 {
        config.symmetric_bytes = Some(random.pick(&[0, 0, 10_000]));
    }
    if seldom(random) {
        config.shm_stores = random.pick(&[ShmStores::Ordinary, ShmStores::Streaming]);
        config.shm_single_copy = random.index(2) == 0;
    }
    if seldom(random) {
        config.socket_streams = Some(random.pick(&[1, 2, 3, 8]));
    }
    config.socket_pacing = !seldom(random);
    config.short_slices = !seldom(random);
    config.relay = !seldom(random);
    if seldom(random) {
        config.spin = Some(Duration::from_micros(random.pick(&[0, 50])));
    }
    config
}
