//! Random legal programs: calls of all kinds on several communicators, by several threads, in every arrangement.
//!
//! A program follows from a seed, and each of its steps from the seed and the step's number. Steps can therefore be
//! left out, and ranks and lengths reduced, without changing the others: this is how a failing program is shrunk. Every
//! communicator belongs to one thread at a time, the same on all ranks, and the steps of a thread come in the same
//! order on all ranks. Waits for started operations come later, in any order. Such programs are free of deadlock.

mod data;
mod run;
mod traffic;
mod typed;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kolo::{Cluster, Config, Determinism, ShmStores, TransportKind, Transports};
use kolo_collectives::Algorithm;

pub use run::run_rank;

use crate::random::Random;
use crate::watchdog::within;

/// Runs a program with threads as ranks.
///
/// # Errors
/// The errors of the ranks.
///
/// # Panics
/// If it hangs.
pub fn run_cluster(program: &Program) -> Result<(), String> {
    let program = program.clone();
    within(Duration::from_secs(100), &format!("program {program}"), move || {
        let setup = Setup::of(&program);
        let results = Cluster::with_configs(
            setup.ranks,
            |rank| setup.config(rank),
            |comm| {
                let rank = comm.rank();
                run_rank(&program, comm).map_err(|error| format!("rank {rank}: {error}"))
            },
        );
        let results = results.map_err(|error| error.to_string())?;
        let errors: Vec<String> = results.into_iter().filter_map(Result::err).collect();
        if errors.is_empty() { Ok(()) } else { Err(errors.join("\n  ")) }
    })
}

/// A program, which is written as `SEED`, `SEED,ranks=3,halved=2,steps=0+4,processes`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Program {
    /// Seed of everything.
    pub seed: u64,
    /// Number of ranks, instead of the seed's.
    pub ranks: Option<u32>,
    /// How often all lengths are halved.
    pub halved: u32,
    /// The only steps, instead of all.
    pub steps: Option<Vec<usize>>,
    /// Whether ranks are processes rather than threads.
    pub processes: bool,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.seed)?;
        self.ranks.map_or(Ok(()), |ranks| write!(f, ",ranks={ranks}"))?;
        if self.halved > 0 {
            write!(f, ",halved={}", self.halved)?;
        }
        if let Some(steps) = &self.steps {
            let steps: Vec<String> = steps.iter().map(usize::to_string).collect();
            write!(f, ",steps={}", steps.join("+"))?;
        }
        if self.processes { write!(f, ",processes") } else { Ok(()) }
    }
}

impl FromStr for Program {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(',');
        let wrong = |part: &str| format!("{part:?} is no part of a program");
        let number = |part: &str| part.parse::<u64>().map_err(|_| wrong(part));
        let mut program = Self { seed: number(parts.next().unwrap_or(""))?, ..Self::default() };
        for part in parts {
            match part.split_once('=') {
                Some(("ranks", value)) => program.ranks = Some(number(value)? as u32),
                Some(("halved", value)) => program.halved = number(value)? as u32,
                Some(("steps", value)) => {
                    let steps = value.split('+').filter(|step| !step.is_empty());
                    program.steps =
                        Some(steps.map(|step| number(step).map(|n| n as usize)).collect::<Result<_, _>>()?);
                }
                None if part == "processes" => program.processes = true,
                _ => return Err(wrong(part)),
            }
        }
        Ok(program)
    }
}

/// The parts of a program before its steps: ranks, threads, settings and communicators.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of ranks.
    pub ranks: u32,
    /// Numbers of the steps.
    pub steps: Vec<usize>,
    threads: usize,
    recipes: Vec<Recipe>,
    arrangement: usize,
    seed: u64,
    config: Config,
}

/// The way in which a communicator is made from an earlier one.
#[derive(Clone, Copy, Debug)]
struct Recipe {
    parent: usize,
    seed: u64,
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
            config.silent_after = Duration::from_secs(10);
            config.network_probe = random.index(8) == 0;
            // The messages of several threads are in no order, so that some must be buffered.
            if threads == 1 && random.index(4) == 0 {
                config.unexpected_bytes = random.pick(&[0, 1000, 20_000]);
            }
        });
        Self {
            ranks: program.ranks.unwrap_or(ranks),
            steps: program.steps.clone().unwrap_or_else(|| (0..steps).collect()),
            threads,
            recipes,
            arrangement,
            seed: program.seed,
            config: vary(config, &mut random),
        }
    }

    /// Returns the settings of a rank.
    #[must_use]
    pub fn config(&self, rank: u32) -> Config {
        let mut own = Random::new(self.seed ^ u64::from(rank + 1) << 32);
        self.config.clone().with(|config| {
            match self.arrangement {
                0 => config.transports = Transports::Only(vec![TransportKind::Shm]),
                1 => config.transports = Transports::Only(vec![TransportKind::Tcp]),
                2 => {}
                // Hosts of unequal numbers of ranks, in no order.
                3 => config.host_id = Some(format!("host-{}", own.index(3))),
                _ => config.host_id = Some(format!("host-{}", rank / 2)),
            }
        })
    }
}

/// Changes settings on which all ranks agree.
fn vary(mut config: Config, random: &mut Random) -> Config {
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
    if seldom(random) {
        config.spin = Some(Duration::from_micros(random.pick(&[0, 50])));
    }
    config
}
