//! `kolo doctor`: checks whether a job will run well on the hosts of a launcher, and reports what is wrong.
//!
//! The ranks join over the control plane alone, whose short segments get through where data may not. One rank of each
//! host, its leader, then dials all other hosts at once (`reach`), and measures them one by one with the code of the
//! probe, while other pairs do the same (`rates`). All ranks receive all results, come to the same findings
//! (`findings`), and make a communicator if nothing prevents it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use crate::error::{CliError, Result};
use crate::launch;
use crate::output_file::OutputFile;
use crate::perf::console;
use examine::{Depth, Unexamined};
use findings::{Finding, Severity};
use report::Report;

pub(crate) mod examine;
mod facts;
pub(crate) mod findings;
mod heat;
mod line;
mod meetings;
pub(crate) mod rates;
mod reach;
pub(crate) mod report;
mod summary;
mod text;

/// Time for measuring pairs: including all other steps, 8 hosts take less than half a minute.
const SECONDS: u64 = 20;
/// The longest limit: a day.
const MOST_SECONDS: u64 = 24 * 3600;

const EXAMPLES: &str = "\
Examples:
  mpirun -np 8 --map-by node kolo doctor
  srun -N 8 --ntasks-per-node 1 kolo doctor --svg rates.svg
  torchrun --nnodes 4 --nproc-per-node 1 --no-python kolo doctor --json
  kolo run --hosts a:1,b:1,c:1 -- kolo doctor

It connects every host to every other one, sends full-size segments both ways, and measures round trips, rates and losses of each pair. \
Without a launcher, it examines this host alone. It takes seconds, or up to half a minute for eight hosts; the network is busy meanwhile.

Exit code of rank 0: 0 if nothing was found, 1 if jobs run but not as well as they could, 2 if jobs fail, 3 if the examination itself failed.";

/// Options of `kolo doctor`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Draw the rates between hosts into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Time limit for measuring pairs of hosts, in seconds; pairs that are left then are not measured
    #[arg(long, value_name = "SECONDS", default_value_t = SECONDS, value_parser = clap::value_parser!(u64).range(..=MOST_SECONDS))]
    seconds: u64,
}

/// Runs `kolo doctor`.
pub(crate) fn run(args: &DoctorArgs) -> Result<ExitCode> {
    // The examination itself reports a launcher whose variables make no sense.
    let is_first = launch::environment::launched().ok().flatten().is_none_or(|launched| launched.rank == 0);
    let svg = args.svg.as_ref().filter(|_| is_first);
    let svg = svg.map(|path| OutputFile::open("heat map", path)).transpose()?;
    let examined =
        examine::examine(Duration::from_secs(args.seconds), Depth::Communicator).map_err(|failed| {
            match failed {
                // Ranks that do not even find each other are the worst finding.
                Unexamined::Job(error) => CliError { exit_code: Severity::Broken as u8, ..error },
                Unexamined::Doctor(error) => error,
            }
        })?;
    if examined.rank > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let findings = findings::findings(&examined.report);
    let text =
        if args.json { json(&examined.report, &findings) } else { text::text(&examined.report, &findings) };
    console::print(text)?;
    if let Some(file) = svg {
        heat::draw(file, &examined.report)?;
    }
    Ok(findings.iter().map(|finding| finding.severity as u8).max().unwrap_or(0).into())
}

fn json(report: &Report, findings: &[Finding]) -> String {
    let all = serde_json::json!({ "report": report, "findings": findings });
    serde_json::to_string_pretty(&all).unwrap_or_default() + "\n"
}
