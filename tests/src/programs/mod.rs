//! Random legal programs: calls of all kinds on several communicators, by several threads, in every arrangement.
//!
//! A program follows from a seed, and each of its steps from the seed and the step's number. Steps can therefore be
//! left out, and ranks and lengths reduced, without changing the others: this is how a failing program is shrunk. Every
//! communicator belongs to one thread at a time, the same on all ranks, and the steps of a thread come in the same
//! order on all ranks. Waits for started operations come later, in any order. Such programs are free of deadlock.
//!
//! A program may lose a rank on its way: one leaves, panics, aborts its communicators, or is killed. Every other rank then
//! gets right results or errors that name it, and goes on with the communicators of which it is no member. At the end the
//! ranks that are left shrink, and run another program.

mod calls;
mod data;
mod failure;
mod loss;
mod memory;
mod run;
mod settings;
mod sharing;
mod tasks;
mod traffic;
mod typed;
mod windows;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use kolo::Cluster;

pub use run::run_rank;
pub use settings::Setup;

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

/// A program, which is written as `SEED`, `SEED,ranks=3,halved=2,steps=0+4,losses=1,processes`.
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
    /// How many ranks are lost, one after the other. The others then run another program.
    pub losses: u32,
    /// Whether ranks are processes rather than threads.
    pub processes: bool,
}

/// Steps of a program of the ranks that are left after a loss.
const STEPS_AFTER: usize = 12;

impl Program {
    /// Returns the program of so many ranks that are left after a loss.
    #[must_use]
    pub fn next(&self, ranks: u32) -> Self {
        Self {
            seed: Random::new(self.seed).number() >> 1,
            ranks: Some(ranks),
            steps: Some((0..STEPS_AFTER).collect()),
            losses: self.losses - 1,
            ..*self
        }
    }
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
        if self.losses > 0 {
            write!(f, ",losses={}", self.losses)?;
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
                Some(("losses", value)) => program.losses = number(value)? as u32,
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
