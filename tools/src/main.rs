//! The `kolo` command: perf, run, info, explain, sim, plan, tune, doctor.

mod answer;
mod backend;
mod cli;
mod clock;
mod configuration;
mod doctor;
mod error;
mod explain;
mod explain_error;
mod info;
mod launch;
mod man;
mod output_file;
mod perf;
mod plan_file;
mod planning;
mod search;
mod sim;
mod tune;

use std::io::Write;
use std::process::ExitCode;

use cli::{Command, Stop};

fn main() -> ExitCode {
    let outcome = match cli::parse(std::env::args_os()) {
        Ok(invocation) => match &invocation.command {
            Command::Perf(args) => perf::run(args, invocation.program),
            Command::Run(args) => launch::run(args),
            Command::Info(args) => info::run(args),
            Command::Explain(args) => explain::run(args),
            Command::Sim(args) => sim::run(args),
            Command::Plan(args) => search::run(args),
            Command::Tune(args) => tune::run(args),
            Command::Doctor(args) => doctor::run(args),
            Command::ExplainError(args) => explain_error::run(args),
            Command::Completions { shell } => man::completions(*shell),
            Command::Man { directory } => man::run(directory.as_deref()),
        },
        Err(Stop::Text(text)) => {
            // If nobody reads the text, nobody is left to tell.
            let _ = std::io::stdout().write_all(text.as_bytes());
            Ok(ExitCode::SUCCESS)
        }
        Err(Stop::Mistake(error)) => Err(error),
    };
    outcome.unwrap_or_else(|error| ExitCode::from(error.report()))
}
