//! `kolo tune`: measures this machine and writes the constants of the cost model as a profile.
//!
//! The command starts itself once per rank, as `kolo perf` does, for each *part* of the work: a transport between two
//! ranks, then between more ranks than processors. Rank 0 of a part writes its findings to a file.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use kolo::JoinSpec;
use kolo::internal::profile::{Profile, VERSION};
use kolo::{Collective, Communicator, Config, TransportKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::configuration;
use crate::error::{CliError, EXIT_FAILURE, Result};
use crate::info::machine;
use crate::launch;
use crate::output_file::OutputFile;
use crate::perf::console::Console;
use check::{COLLECTIVES, Checked};
use cluster::Cluster;
use probe::{Crowd, Pair};
use verdict::Case;

mod check;
mod cluster;
mod derive;
mod fit;
mod probe;
mod report;
mod timing;
mod verdict;

/// Most ranks that are started to measure the cost of sharing a processor: on large machines ranks seldom share.
const CROWD_MAX: u32 = 32;

/// Assumed cost of waiting for the processor if it was not measured, in seconds: a wake-up and a context switch.
const SWITCH_SECONDS: f64 = 5e-6;

const EXAMPLES: &str = "\
Examples:
  kolo tune                                   measure; writes the user's profile and says where
  kolo tune --out cluster.toml                to a file that all hosts see
  kolo run --hosts a:1,b:1 -- kolo tune --out cluster.toml    also measures the network between the hosts
  KOLO_PROFILE=cluster.toml kolo perf all_reduce
  KOLO_PROFILE=cluster.toml kolo tune --check             is the best algorithm chosen, and its time predicted? takes minutes
  kolo tune --check --ranks 2 --transport shm --verbose

Under a launcher, rank 0 measures its host and writes the profile; one rank per host is enough. Let nothing else run \
meanwhile. All ranks of a job must be given identical profiles.";

/// Options of `kolo tune`.
#[derive(Args, Debug)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TuneArgs {
    /// Where to write the profile [default: kolo/profile.toml under XDG_CONFIG_HOME or ~/.config]
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Measure no constants; compare the chosen algorithms with the alternatives, and the simulator with both
    #[arg(long, conflicts_with = "out")]
    check: bool,
    /// For --check: numbers of ranks
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = [2, 4, 8], requires = "check")]
    ranks: Vec<u32>,
    /// For --check: transports
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_values_t = ["shm".to_owned(), "tcp".to_owned()], requires = "check")]
    transport: Vec<String>,
    /// For --check: collectives [default: all five that are checked]
    #[arg(long, value_name = "LIST", value_delimiter = ',', requires = "check")]
    collective: Vec<String>,
    /// For --check: show every point
    #[arg(short, long, requires = "check")]
    verbose: bool,
    /// The part of the work that this process is a rank of
    #[arg(long, hide = true, value_enum, requires = "part_file")]
    part: Option<Part>,
    /// File to which rank 0 of a part writes its findings
    #[arg(long, hide = true, value_name = "FILE")]
    part_file: Option<PathBuf>,
    /// The transport of a part
    #[arg(long, hide = true, value_name = "NAME", default_value = "shm")]
    part_transport: String,
    /// The collective of a part
    #[arg(long, hide = true, value_name = "NUMBER", default_value = "0")]
    part_collective: usize,
}

/// A part of the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Between two ranks.
    Pair,
    /// Between more ranks than processors.
    Crowd,
    /// The choice for a collective, and the alternatives.
    Check,
}

/// Runs `kolo tune`.
pub(crate) fn run(args: &TuneArgs) -> Result<ExitCode> {
    if let (Some(part), Some(file)) = (args.part, &args.part_file) {
        return take_part(part, args, file);
    }
    if args.check {
        return check(args);
    }
    let path = args.out.clone().map_or_else(default_path, Ok)?;
    let is_first = launch::environment::launched()?.is_none_or(|launched| launched.rank == 0);
    let file = is_first.then(|| create(&path)).transpose()?;
    let mut console = Console::stdout();
    let network = match cluster::network(&mut console)? {
        Cluster::Alone => None,
        Cluster::Measured(network) => Some(network),
        Cluster::Others => return Ok(ExitCode::SUCCESS),
    };
    let profile = Profile { network, ..measure(&mut console)? };
    console.lines(&report::profile(&profile))?;
    file.map_or(Ok(()), |file| file.write(&profile.to_toml()))?;
    console.line(&format!("\nWritten to {0}. To use it: export KOLO_PROFILE={0}", path.display()))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns `kolo/profile.toml` under the user's configuration directory.
fn default_path() -> Result<PathBuf> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let directory = variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
    directory
        .map(|directory| directory.join("kolo/profile.toml"))
        .ok_or_else(|| CliError::usage("neither XDG_CONFIG_HOME nor HOME is set", "Name a file with --out"))
}

/// Creates the file of the profile, and its folder.
fn create(path: &Path) -> Result<OutputFile> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)
            .map_err(|error| CliError::system(format!("{} cannot be created", folder.display()), &error))?;
    }
    OutputFile::open("profile", path)
}

fn measure(console: &mut Console) -> Result<Profile> {
    let processors = machine::usable_cpus() as u32;
    let crowd_ranks = Some((2 * processors).max(3)).filter(|ranks| *ranks <= CROWD_MAX);
    let kinds = [TransportKind::Shm, TransportKind::Tcp];
    console.begin(kinds.len() * (1 + usize::from(crowd_ranks.is_some())));
    let mut found = Vec::new();
    for kind in kinds {
        console.doing(|| format!("{}, 2 ranks", kind.name()));
        let pair: Pair = start(2, Part::Pair, kind, 0)?;
        console.advance();
        let crowd = match crowd_ranks {
            Some(ranks) => {
                console.doing(|| format!("{}, {ranks} ranks", kind.name()));
                let crowd: Crowd = start(ranks, Part::Crowd, kind, 0)?;
                console.advance();
                Some((crowd, f64::from(ranks) / f64::from(processors)))
            }
            None => None,
        };
        found.push((derive::copy(&pair), derive::transport(&pair, crowd, SWITCH_SECONDS)?));
    }
    console.end();
    let [(copies, shm), (_, tcp)] = found[..] else {
        return Err(CliError::failure("a transport was not measured", "Please report this as a bug"));
    };
    Ok(Profile {
        version: VERSION,
        machine: format!("{}, {} processor(s)", machine::cpu_model(), processors),
        copy_bytes_per_second: 1.0 / copies.seconds,
        copy_factors: copies.factors,
        shm,
        tcp,
        network: None,
    })
}

fn check(args: &TuneArgs) -> Result<ExitCode> {
    let mut kinds = Vec::new();
    for name in &args.transport {
        kinds.push(TransportKind::named(name).ok_or_else(|| {
            let names = TransportKind::ALL.map(TransportKind::name).join(", ");
            CliError::usage(format!("there is no transport '{name}'"), format!("Choose from {names}"))
        })?);
    }
    if let Some(ranks) = args.ranks.iter().find(|ranks| !(2..=1024).contains(*ranks)) {
        return Err(CliError::usage(format!("{ranks} ranks cannot be checked"), "Use 2 to 1024"));
    }
    let wanted = wanted(&args.collective)?;
    let profile = Config::from_env()?.profile;
    let mut console = Console::stdout();
    console.line(&match &profile {
        Some(loaded) => format!("constants of {} ({})\n", loaded.path.display(), loaded.profile.digest()),
        None => "built-in constants; KOLO_PROFILE names none\n".to_owned(),
    })?;
    console.begin(kinds.len() * args.ranks.len() * wanted.len());
    let mut cases = Vec::new();
    for kind in kinds {
        for ranks in args.ranks.iter().copied() {
            for (number, collective) in wanted.iter().copied() {
                console.doing(|| format!("{}, {ranks} ranks, {collective}", kind.name()));
                let checked: Checked = start(ranks, Part::Check, kind, number)?;
                cases.push(Case { kind, ranks, collective, checked });
                console.advance();
            }
        }
    }
    console.end();
    console.lines(&verdict::lines(&cases, args.verbose))?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the collectives to check, with their numbers: all unless some are named.
fn wanted(names: &[String]) -> Result<Vec<(usize, Collective)>> {
    let all = COLLECTIVES.into_iter().enumerate();
    let is_known = |name: &&String| COLLECTIVES.iter().any(|collective| collective.name() == *name);
    match names.iter().find(|name| !is_known(name)) {
        None if names.is_empty() => Ok(all.collect()),
        None => Ok(all.filter(|(_, it)| names.iter().any(|name| name == it.name())).collect()),
        Some(name) => Err(CliError::usage(
            format!("'{name}' is not checked"),
            format!("Choose from {}", COLLECTIVES.map(Collective::name).join(", ")),
        )),
    }
}

/// Starts the ranks of a part, and returns their findings.
fn start<T: DeserializeOwned>(ranks: u32, part: Part, kind: TransportKind, collective: usize) -> Result<T> {
    let directory = tempfile::tempdir()
        .map_err(|error| CliError::system("a temporary directory cannot be made", &error))?;
    let file = directory.path().join("found.json");
    let part = part.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
    let extra = [
        OsString::from("--part"),
        part.into(),
        "--part-transport".into(),
        kind.name().into(),
        "--part-collective".into(),
        collective.to_string().into(),
        "--part-file".into(),
        file.clone().into(),
    ];
    launch::run_self(ranks, &extra, i32::from(EXIT_FAILURE))?;
    let found = fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    found.ok_or_else(|| {
        CliError::failure(
            format!("{ranks} ranks over {} could not be measured", kind.name()),
            "Their output is above; `kolo info` tests the transports",
        )
    })
}

/// Runs one rank of a part.
fn take_part(part: Part, args: &TuneArgs, file: &Path) -> Result<ExitCode> {
    let transports = kolo::config::parse_transports(&args.part_transport)?;
    // A check uses the constants in force; a measurement must not depend on any.
    let environment = match part {
        Part::Check => Config::from_env()?,
        Part::Pair | Part::Crowd => configuration::without_files()?,
    };
    let comm = join(environment.with(|config| {
        config.transports = transports;
        config.algorithms = String::new();
    }))?;
    match part {
        Part::Pair => leave(&comm, file, &probe::pair(&comm)?)?,
        Part::Crowd => leave(&comm, file, &probe::crowd(&comm)?)?,
        Part::Check => {
            let collective = COLLECTIVES[args.part_collective.min(COLLECTIVES.len() - 1)];
            leave(&comm, file, &check::run(&comm, collective)?)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn join(config: Config) -> Result<Communicator> {
    Ok(Communicator::builder().config(config).join(JoinSpec::from_process_env()?).connect()?)
}

fn leave(comm: &Communicator, file: &Path, found: &impl Serialize) -> Result<()> {
    if comm.rank() == 0 {
        let bytes = serde_json::to_vec(found).unwrap_or_default();
        fs::write(file, bytes).map_err(|error| CliError::system("the findings cannot be written", &error))?;
    }
    // No rank leaves while others are still measuring.
    Ok(comm.barrier()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_must_be_one_of_a_collective_that_is_checked() {
        let wanted = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            wanted(&names).map(|found| found.into_iter().map(|(_, it)| it).collect::<Vec<_>>())
        };
        assert_eq!(wanted(&[]).unwrap(), COLLECTIVES);
        assert_eq!(wanted(&["broadcast"]).unwrap(), [Collective::Broadcast]);
        let error = wanted(&["all_reduce", "brodcast"]).unwrap_err();
        assert!(error.message.contains("'brodcast'") && error.message.contains("broadcast"), "{error}");
    }
}
