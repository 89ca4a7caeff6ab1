//! Starts one process of a job. `unsafe` serves only for the code between fork and exec.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use rustix::process::{
    Resource, Rlimit, Signal, getpid, getppid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::sched_setaffinity;

use super::environment::is_launcher_variable;
use super::job::{Input, Job, Prefix, Rank, Stdout};
use crate::error::CliError;

/// Raises the limit on open files as far as this process may, since each rank's outputs take two. Returns the limit as it
/// was, for the ranks.
pub(super) fn raise_open_files() -> Rlimit {
    let found = getrlimit(Resource::Nofile);
    // If the limit stays, the rank for which there is no file says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: found.maximum, maximum: found.maximum });
    found
}

/// Starts a rank as the leader of a process group of its own; it dies with the calling thread. It gets this limit on open
/// files.
pub(super) fn spawn(job: &Job, rank: &Rank, open_files: Rlimit) -> io::Result<Child> {
    let mut command = Command::new(&job.program);
    command.args(&job.arguments).args(&rank.arguments).process_group(0).stdin(stdin(rank));
    if let Some(arg0) = &job.arg0 {
        command.arg0(arg0);
    }
    for (name, _) in std::env::vars_os().filter(|(name, _)| is_launcher_variable(name)) {
        command.env_remove(name);
    }
    command.envs(rank.environment.iter().map(|(name, value)| (name, value)));
    let through = || match job.prefix {
        Prefix::None => Stdio::inherit(),
        Prefix::Rank | Prefix::Lines => Stdio::piped(),
    };
    command.stderr(through());
    command.stdout(match rank.stdout {
        Stdout::Pass => through(),
        Stdout::Drop => Stdio::null(),
    });
    let parent = getpid();
    let cpus = rank.cpus;
    // SAFETY: between fork and exec only async-signal-safe calls may be made. These are plain system calls,
    // and the error is made from a number without allocating.
    unsafe {
        command.pre_exec(move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            if let Some(cpus) = &cpus {
                sched_setaffinity(None, cpus)?;
            }
            setrlimit(Resource::Nofile, open_files)?;
            // Ranks are in the background of their terminal, where writing and setting its modes may stop a process.
            libc::signal(libc::SIGTTOU, libc::SIG_IGN);
            // If the parent died before the death signal was set, nothing would end this process.
            if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
        });
    }
    command.spawn()
}

/// Returns the error of a rank that could not be started.
pub(super) fn not_started(rank: &str, program: &OsStr, error: &io::Error) -> CliError {
    CliError::failure(
        format!("{rank} could not be started: {}: {error}", program.to_string_lossy()),
        match error.raw_os_error() {
            Some(libc::EMFILE) => "Raise the limit on open files (ulimit -Hn)",
            _ => "Check that the program exists and may be executed, and the limit on processes (ulimit -u)",
        },
    )
}

/// Gives rank 0 this process's input, unless it is a terminal: ranks are in the background and may not read from
/// it.
fn stdin(rank: &Rank) -> Stdio {
    match rank.input {
        Input::Lifeline(_) => return Stdio::piped(),
        Input::None => return Stdio::null(),
        Input::OfFirst => {}
    }
    if rank.rank == 0 && !io::stdin().is_terminal() { Stdio::inherit() } else { Stdio::null() }
}
