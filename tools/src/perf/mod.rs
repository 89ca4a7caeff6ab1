//! `kolo perf`: the measurements of nccl-tests on Kolo.
//!
//! A run starts in one of three ways. Under a launcher (or as a child in the second way) the process joins the
//! other ranks. Otherwise it starts itself once per rank and only supervises these processes. With `--threads`
//! the ranks are threads of this process.

use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};

use args::PerfArgs;
use budget::Budget;
use environment::Environment;
use settings::{Ranks, Settings};

use kolo::internal::join::Launched;
use kolo_collectives::Task;

use crate::backend::{self, Comm, Request};
use crate::error::{CliError, EXIT_WRONG_RESULT, Result};
use crate::info::machine;
use crate::launch;
use crate::planning::shares_memory;

pub(crate) mod args;
mod budget;
mod buffers;
mod choice;
pub(crate) mod console;
mod data;
mod environment;
mod json;
mod measure;
mod numbers;
mod pieces;
mod plot;
mod results;
mod row;
mod session;
mod settings;
mod stats;
pub(crate) mod test;
mod text;

pub(crate) use numbers::{human_bytes, parse_size};

/// Runs `kolo perf`; `program` is the nccl-tests program under whose name this was called, if any.
pub(crate) fn run(args: &PerfArgs, program: Option<String>) -> Result<ExitCode> {
    let variable = |name: &str| std::env::var(name).ok();
    let launched = launch::environment::launched()?;
    let checked =
        Settings::new(args, program).and_then(|settings| Ok((settings, Environment::read(variable)?)));
    let (mut settings, environment) = match (checked, &launched) {
        // All ranks see the same error; only one of them reports it.
        (Err(error), Some(launched)) if launched.rank > 0 => return Ok(error.exit()),
        (checked, _) => checked?,
    };
    settings.remarks.extend(launched.as_ref().and_then(|launched| launched_remark(args, launched)));
    let okay = match (&launched, settings.ranks) {
        (Some(_), _) => joined(args, &settings, &environment)?,
        (None, Ranks::Processes { count, threads_each }) if count > 1 => {
            check_before_start(&settings)?;
            let extra = [format!("--ranks-per-process={threads_each}")].map(OsString::from);
            return launch::run_self(count, &extra, i32::from(EXIT_WRONG_RESULT));
        }
        (None, ranks) => {
            check_before_start(&settings)?;
            in_threads(ranks.total(), &settings, &environment)?
        }
    };
    // Among ranks that were started by one parent, rank 0 alone reports the result.
    let silent = args.ranks_per_process.is_some() && launched.is_some_and(|launched| launched.rank > 0);
    Ok(if okay || silent { ExitCode::SUCCESS } else { ExitCode::from(EXIT_WRONG_RESULT) })
}

/// Returns the line on what a launcher's variables have decided, if that may surprise: in a container of a job, for
/// example, a shell may have them without being a rank.
fn launched_remark(args: &PerfArgs, launched: &Launched) -> Option<String> {
    if args.ranks_per_process.is_some() {
        // This process itself has set them.
        return None;
    }
    let ranks = args.ranks.as_ref().map(|count| format!("--ranks {count}"));
    let options: Vec<String> =
        ranks.into_iter().chain(args.threads.then(|| "--threads".to_owned())).collect();
    let variables = launched.variables.join(" and ");
    let remedy = format!("unset {variables} to start ranks on this machine");
    let started = match launched.world_size {
        1 => "a launcher has started one process".to_owned(),
        count => format!("a launcher has started {count} processes"),
    };
    match (options.is_empty(), launched.world_size) {
        (false, _) => {
            let have = if options.len() > 1 { "have" } else { "has" };
            Some(format!("# {} {have} no effect: {started}; {remedy}", options.join(" and ")))
        }
        (true, 1) => Some(format!("# Only this process measures: {started}; {remedy}")),
        (true, _) => None,
    }
}

/// Checks for foreseeable failures, which are best reported once, before there are ranks.
fn check_before_start(settings: &Settings) -> Result<()> {
    let ranks = settings.ranks.total();
    let root = settings.roots(ranks)?.first().and_then(|root| u32::try_from(*root).ok()).unwrap_or(0);
    // Here, as in the run itself, all ranks are on one host.
    let shares = shares_memory(&backend::config(&request(settings, (0, 1)))?.transports);
    let task = |collective| {
        let task = Task::new(collective, ranks).with_root(root);
        if shares { task.with_stages() } else { task }
    };
    let task = settings.test.collective().map(task);
    backend::check(&request(settings, (0, 1)), task.as_ref())?;
    settings.test.check_ranks(ranks)?;
    if let Some(memory) = machine::memory() {
        Budget::new(memory, ranks).max_bytes(settings)?;
    }
    Ok(())
}

fn request(settings: &Settings, thread: (u32, u32)) -> Request {
    Request {
        transport: settings.transport.clone(),
        algorithm: settings.algorithm.as_ref().map(|text| match settings.test.collective() {
            // A bare name would be used only where it can serve; here the user asked for it.
            Some(collective) if !text.contains([':', ',']) => format!("{collective}:{text}"),
            _ => text.clone(),
        }),
        timeout: settings.timeout,
        thread,
    }
}

/// Runs one of the processes that a launcher started, with its thread ranks if it has several.
fn joined(args: &PerfArgs, settings: &Settings, environment: &Environment) -> Result<bool> {
    let threads = args.ranks_per_process.unwrap_or(settings.threads * settings.gpus);
    let rank = |thread: u32| {
        let comm = backend::join(&request(settings, (thread, threads)))?;
        let outcome = session::run(settings, environment, comm.as_ref());
        match outcome {
            // The process leaves while it still holds the communicator: see [`leave`].
            Err(error) if threads == 1 => leave(&error),
            outcome => outcome,
        }
    };
    if threads == 1 {
        return rank(0);
    }
    std::thread::scope(|scope| {
        let rank = &rank;
        let started: Vec<_> = (0..threads).map(|thread| scope.spawn(move || rank(thread))).collect();
        let mut okay = true;
        for thread in started {
            okay &= thread.join().unwrap_or_else(|_| {
                Err(CliError::failure("a rank's thread panicked", "Its message is above; please report it"))
            })?;
        }
        Ok(okay)
    })
}

/// Ends a rank's process at once. An orderly departure would take long enough for the other ranks to fail first,
/// and to be blamed.
fn leave(error: &CliError) -> ! {
    std::process::exit(i32::from(error.report()))
}

fn in_threads(count: u32, settings: &Settings, environment: &Environment) -> Result<bool> {
    let okay = AtomicBool::new(true);
    backend::threads(count, &request(settings, (0, 1)), &|comm: Box<dyn Comm>| {
        okay.fetch_and(session::run(settings, environment, comm.as_ref())?, Ordering::Relaxed);
        Ok(())
    })?;
    Ok(okay.into_inner())
}
