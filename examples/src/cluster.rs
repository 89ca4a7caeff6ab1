//! Ranks for an example: the processes of a launcher if there is one, otherwise threads of this process.

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser};
use kolo::JoinSpec;
use kolo::{Cluster, Communicator, Error};

use crate::Result;

/// The number of ranks, and where they run.
#[derive(Clone, Copy, Debug, Args)]
pub struct Ranks {
    /// Run this many ranks as threads of this process, even under a launcher [default without a launcher: 4]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub ranks: Option<u32>,
}

/// Number of thread ranks if neither the command line nor a launcher gives one.
const DEFAULT_RANKS: u32 = 4;

impl Ranks {
    /// Runs `body` as one rank of a launcher, or as all ranks on threads. Returns the results of the ranks of this
    /// process, in rank order.
    ///
    /// # Errors
    /// The reason why the ranks cannot join, or the first error of `body`.
    pub fn run<R: Send>(&self, body: impl Fn(&Communicator) -> Result<R> + Sync) -> Result<Vec<R>> {
        let threads = match self.ranks {
            None if launched()? => return Ok(vec![body(&Communicator::from_env()?)?]),
            None => DEFAULT_RANKS,
            Some(ranks) => ranks,
        };
        Cluster::local(threads, |rank| body(&rank))?.into_iter().collect()
    }
}

/// Returns whether a launcher has started this process. It is an error if one has, but its information is not
/// enough to join.
fn launched() -> Result<bool> {
    match JoinSpec::from_process_env() {
        Ok(_) => Ok(true),
        Err(Error::Configuration { setting, .. }) if setting == "rank and world size" => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Runs a small example: `body` is the work of each rank.
pub fn main(about: &'static str, body: fn(&Communicator) -> Result<()>) -> ExitCode {
    #[derive(Parser)]
    struct Arguments {
        #[command(flatten)]
        ranks: Ranks,
    }
    let matches = Arguments::command().about(about).get_matches();
    let arguments = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match arguments.ranks.run(body) {
        Ok(_) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
