//! The command line: commands, their options, and the names under which nccl-tests programs are called.

use std::ffi::OsString;
use std::path::Path;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use crate::error::{CliError, Result};
use crate::perf::args::PerfArgs;
use crate::perf::test::Test;
use crate::{doctor, explain, explain_error, info, launch, search, sim, tune};

const EXAMPLES: &str = "\
Examples:
  kolo perf all_reduce -b 8 -e 128M -f 2     measure, with four ranks on this machine
  kolo run -n 4 -- ./train                   start four ranks of a program
  kolo run --hosts a:4,b:4 -- ./train        four on each of two hosts, by ssh
  kolo info                                  what this machine offers, and what is missing
  kolo explain all_reduce --ranks 12 --bytes 1M
  kolo explain-error K0401                   explain the code of an error
  kolo sim all_reduce --cluster cluster.toml --bytes 64M
  kolo tune                                  measure this machine, for KOLO_PROFILE
  KOLO_PROFILE=cluster.toml kolo plan        search for plans for unequal hosts, for KOLO_PLAN
  mpirun -np 8 --map-by node kolo doctor     whether jobs will run well on these hosts

Called as all_reduce_perf, all_gather_perf and so on (also with a suffix such as _mpi), it is that \
program of nccl-tests. `kolo COMMAND --help` has more examples.";

/// Collective communication: measure it, launch it, explain it.
#[derive(Parser, Debug)]
#[command(name = "kolo", version, after_help = EXAMPLES, propagate_version = false)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Measure a collective, with the options and the output of nccl-tests
    Perf(Box<PerfArgs>),
    /// Start the ranks of a program, on this machine or on several hosts
    Run(launch::RunArgs),
    /// Show what this machine offers: transports, interfaces, processors, limits
    Info(info::InfoArgs),
    /// Show which algorithm is chosen for a collective, what the others would cost, and its steps
    Explain(explain::ExplainArgs),
    /// Simulate a collective on a described cluster
    Sim(sim::SimArgs),
    /// Search for plans for a network whose hosts or links differ, for KOLO_PLAN
    Plan(search::SearchArgs),
    /// Measure this machine and write a profile for KOLO_PROFILE
    Tune(tune::TuneArgs),
    /// Check whether jobs will run well on the hosts of a launcher, and report what is wrong
    Doctor(doctor::DoctorArgs),
    /// Explain the code at the end of an error, and say what to do
    ExplainError(explain_error::ExplainErrorArgs),
    /// Write the completions of a shell to standard output
    #[command(hide = true)]
    Completions {
        /// Shell to write completions for
        shell: clap_complete::Shell,
    },
    /// Write the manual pages
    #[command(hide = true)]
    Man {
        /// Directory to write them to; without it, the page of `kolo` goes to standard output
        directory: Option<std::path::PathBuf>,
    },
}

/// A parsed command line.
#[derive(Debug)]
pub(crate) struct Invocation {
    /// The command.
    pub command: Command,
    /// The nccl-tests program under whose name this was called, if any.
    pub program: Option<String>,
}

/// The reason why there is no command to carry out.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Help or version: text for standard output.
    Text(String),
    /// An error in the command line.
    Mistake(CliError),
}

/// Parses a command line whose first word is the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Invocation, Stop> {
    let mut arguments: Vec<OsString> = arguments.into_iter().collect();
    let name = arguments.first().map(Path::new).and_then(Path::file_name);
    let program = name.map(|name| name.to_string_lossy().into_owned());
    let test = program.as_deref().and_then(Test::from_program_name);
    if let Some(test) = test {
        arguments.splice(0..1, ["kolo", "perf", test.name()].map(OsString::from));
    }
    match Cli::try_parse_from(arguments) {
        Ok(cli) => Ok(Invocation { command: cli.command, program: program.filter(|_| test.is_some()) }),
        Err(error) => Err(stop(&error)),
    }
}

fn stop(error: &clap::Error) -> Stop {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Stop::Text(error.render().to_string()),
        ErrorKind::UnknownArgument => {
            let text = |kind| match error.get(kind) {
                Some(ContextValue::String(text)) => Some(text.clone()),
                Some(ContextValue::Strings(texts)) => texts.first().cloned(),
                _ => None,
            };
            let option = text(ContextKind::InvalidArg).unwrap_or_default();
            let option = option.split('=').next().unwrap_or_default().trim_start_matches('-');
            let hint = text(ContextKind::SuggestedArg)
                .map_or(String::new(), |near| format!(" Did you mean {near}?"));
            let usage = match error.get(ContextKind::Usage) {
                Some(ContextValue::StyledStr(usage)) => usage.to_string(),
                _ => Cli::command().render_usage().to_string(),
            };
            Stop::Mistake(CliError::verbatim(format!(
                "invalid option '{option}'.{hint} --help lists the options.\n{}",
                usage.trim_end()
            )))
        }
        _ => {
            let text = error.render().to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end().to_owned();
            Stop::Mistake(CliError::verbatim(text))
        }
    }
}

/// Parses the options of `kolo perf`, for tests.
#[cfg(test)]
pub(crate) fn parse_perf<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<PerfArgs, Stop> {
    let words = ["kolo", "perf"].into_iter().chain(words).map(OsString::from);
    match parse(words)?.command {
        Command::Perf(args) => Ok(*args),
        other => panic!("not perf: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn names_of_nccl_tests() {
        let invocation = parse(words("/opt/bin/all_gather_perf_mpi -b 8 -e 16 -f2")).unwrap();
        assert_eq!(invocation.program.as_deref(), Some("all_gather_perf_mpi"));
        let Command::Perf(args) = invocation.command else { panic!() };
        assert_eq!((args.test.as_str(), args.stepfactor.as_str()), ("all_gather", "2"));
        let invocation = parse(words("kolo perf reduce -r -1")).unwrap();
        assert_eq!(invocation.program, None);
    }

    #[test]
    fn unknown_options_are_named() {
        for (line, expected) in [
            ("all_reduce_perf -q", "invalid option 'q'"),
            ("kolo perf all_reduce --bogus=1", "invalid option 'bogus'"),
        ] {
            match parse(words(line)) {
                Err(Stop::Mistake(error)) => {
                    assert!(error.message.starts_with(expected), "{}", error.message);
                    assert!(error.message.contains("Usage:"), "{}", error.message);
                    assert_ne!(error.exit_code, 0);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn help_and_version_are_no_mistakes() {
        for line in
            ["kolo --help", "kolo --version", "all_reduce_perf -h", "kolo perf --help", "kolo run --help"]
        {
            assert!(matches!(parse(words(line)), Err(Stop::Text(_))), "{line}");
        }
        for line in ["kolo", "kolo perf", "kolo nothing", "kolo run -n x -- true"] {
            assert!(matches!(parse(words(line)), Err(Stop::Mistake(_))), "{line}");
        }
    }
}
