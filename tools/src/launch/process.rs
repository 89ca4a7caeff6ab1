//! Starts one process of a job, and says how it has ended. `unsafe` serves only for the code between fork and exec.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpid, getppid, getrlimit,
    set_parent_process_death_signal, setrlimit, waitid,
};
use rustix::thread::sched_setaffinity;
use signal_hook::low_level::signal_name;

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

/// Returns how a child has ended, if it has, without reaping it.
pub(super) fn ended(child: &Child) -> Option<ExitStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(Pid::from_child(child)), options).ok()??;
    let core = if status.dumped() { 0x80 } else { 0 };
    // In the format of wait(2).
    let raw = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, signal) => signal.unwrap_or(0) | core,
    };
    Some(ExitStatus::from_raw(raw))
}

/// Describes how a process ended, for people.
pub(super) fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => {
            let name = signal_name(signal).map_or(String::new(), |name| format!(" ({name})"));
            let core = if status.core_dumped() { ", core dumped" } else { "" };
            let hint = if signal == 9 { "; the kernel does that when memory runs out" } else { "" };
            format!("was killed by signal {signal}{name}{core}{hint}")
        }
        (None, None) => "ended in an unknown way".into(),
    }
}

/// Returns the exit code that a shell would report.
pub(super) fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}
