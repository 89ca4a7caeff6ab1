//! Two processes for one job, so that nothing of the job is left when either is killed.
//!
//! The *launcher* is the process that the user started. It passes signals on and waits. The *supervisor*, its only
//! child, starts the ranks and does everything else. Each ends the job if the other one is gone.
//!
//! # Rules
//! 1. Both adopt orphans (PR_SET_CHILD_SUBREAPER). So whatever descends from a rank descends from the supervisor, also if
//!    it has left its process group or its session; and from the launcher, once the supervisor is gone.
//! 2. The supervisor holds the end of a pipe whose other end only the launcher has: its end of file is the launcher's
//!    end, whenever that comes, also before anybody looks. One byte in it says that the launcher catches signals, and the
//!    supervisor waits for that.
//! 3. The supervisor tells the launcher of a folder before there are ranks, so either can remove it.
//! 4. The supervisor leads a process group of its own: what a terminal sends reaches it once, through the launcher.
//!
//! A signal that kills both in the same instant ends the ranks (PR_SET_PDEATHSIG), but not the processes that these have started.
//!
//! `unsafe` only for the fork.

use std::collections::HashSet;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, setpgid, wait, waitpid,
};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::job::{self, Job, Orders};
use super::output::Outputs;
use super::processes;
use crate::error::{CliError, Result};

/// How long a killed process may take to be gone. Only one that waits for a device takes longer than moments.
const GONE_AFTER_KILL: Duration = Duration::from_secs(10);

/// Between two looks whether processes that were signalled are gone.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The supervisor's hold on the launcher.
#[derive(Debug)]
pub(super) struct Lifeline {
    /// At its end when the launcher is.
    launcher: PipeReader,
    folders: PipeWriter,
}

/// Runs `work` as the supervisor in a process of its own, and returns its exit code in the launcher when everything that
/// it started is gone. Errors of `work` are told by the supervisor.
///
/// Must be called while the process has one thread.
pub(super) fn guarded(work: impl FnOnce(&Lifeline) -> Result<u8>) -> Result<ExitCode> {
    let failed = |error: io::Error| CliError::system("no process for the ranks could be made", &error);
    let threads = std::fs::read_dir("/proc/self/task").map_err(failed)?.count();
    if threads != 1 {
        return Err(CliError::failure(
            format!("{threads} threads run before the ranks are started"),
            "Report this",
        ));
    }
    let (launcher, held_by_launcher) = io::pipe().map_err(failed)?;
    let (told, folders) = io::pipe().map_err(failed)?;
    set_child_subreaper(Some(getpid())).map_err(|error| failed(error.into()))?;
    // SAFETY: this process has one thread, as was just counted, so the child may do whatever the parent might.
    match unsafe { libc::fork() } {
        0 => {
            drop((held_by_launcher, told));
            supervise(&Lifeline { launcher, folders }, work)
        }
        child => {
            drop((launcher, folders));
            let child = Pid::from_raw(child)
                .filter(|_| child > 0)
                .ok_or_else(|| failed(io::Error::last_os_error()))?;
            let code = look_after(child, told, &held_by_launcher);
            drop(held_by_launcher);
            code
        }
    }
}

impl Lifeline {
    /// Runs a job, and ends what its ranks have left.
    pub(super) fn run(&self, job: &Job) -> Result<u8> {
        let outputs = match job.orders {
            Orders::EndsWhenTold => Outputs::outliving(),
            _ => Outputs::own(),
        };
        let outcome = job::run(job, &outputs, Some(self));
        // Only what has left its process group can still be there.
        end_descendants(job.grace, || self.is_cut());
        outcome
    }

    /// Calls `then` on a thread when the launcher is gone.
    pub(super) fn when_cut(&self, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let failed = |error| CliError::system("the launcher cannot be watched", &error);
        let mut launcher = self.launcher.try_clone().map_err(failed)?;
        let watch = move || {
            // Nothing is written once the ranks may start.
            let _ = launcher.read(&mut [0]);
            then();
        };
        std::thread::Builder::new().name("launcher".into()).spawn(watch).map_err(failed)?;
        Ok(())
    }

    /// Tells the launcher of a folder to be removed if the supervisor cannot.
    pub(super) fn leave_behind(&self, folder: &Path) -> io::Result<()> {
        let mut line = folder.as_os_str().as_bytes().to_vec();
        line.push(0);
        (&self.folders).write_all(&line)
    }

    fn is_cut(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&self.launcher, PollFlags::IN)], Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

fn supervise(lifeline: &Lifeline, work: impl FnOnce(&Lifeline) -> Result<u8>) -> ! {
    // Before the launcher catches signals, one would end it, and everything that was started.
    if !matches!((&lifeline.launcher).read(&mut [0]), Ok(1)) {
        std::process::exit(1);
    }
    let prepared = setpgid(None, None).and_then(|()| set_child_subreaper(Some(getpid())));
    let outcome = match prepared {
        Ok(()) => work(lifeline),
        Err(error) => Err(CliError::system("the process for the ranks cannot be set up", &error.into())),
    };
    std::process::exit(i32::from(outcome.unwrap_or_else(|error| error.report())))
}

/// The launcher's part.
fn look_after(supervisor: Pid, told: PipeReader, mut lifeline: &PipeWriter) -> Result<ExitCode> {
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
        .map_err(|error| CliError::system("signals cannot be caught", &error))?;
    // If the supervisor is gone, waiting for it tells.
    let _ = lifeline.write_all(&[1]);
    let mut passed_on = HashSet::new();
    let status = loop {
        match waitpid(Some(supervisor), WaitOptions::NOHANG) {
            Ok(Some((_, status))) => break status,
            Ok(None) => {}
            Err(error) => return Err(CliError::system("the supervisor of the ranks is gone", &error.into())),
        }
        for number in signals.wait().filter(|number| *number != SIGCHLD) {
            if let Some(signal) = Signal::from_named_raw(number) {
                passed_on.insert(number);
                // It has not been reaped, so nobody else has its number.
                let _ = kill_process(supervisor, signal);
            }
        }
    };
    if let Some(code) = status.exit_status() {
        return Ok(ExitCode::from(code as u8));
    }
    let signal = status.terminating_signal().unwrap_or(0);
    if !passed_on.contains(&signal) {
        Outputs::own().say(&format!(
            "kolo: the process that looks after the ranks was killed by signal {signal}; the ranks were ended"
        ));
    }
    end_descendants(Duration::ZERO, || true);
    remove_folders(told);
    Ok(ExitCode::from((128 + signal) as u8))
}

fn remove_folders(mut told: PipeReader) {
    let mut names = Vec::new();
    // All who could write are gone.
    let _ = told.read_to_end(&mut names);
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let folder = PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
        // The supervisor may have come as far as that.
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Ends all descendants: asks them, waits for as long as `patience` says or until `hurry`, and kills them.
fn end_descendants(patience: Duration, hurry: impl Fn() -> bool) {
    if !processes::are_seen() {
        return Outputs::own().say(
            "kolo: /proc is of another PID namespace, so what ranks may have left behind cannot be ended; mount one here \
             (unshare --mount-proc)",
        );
    }
    let asked = Instant::now();
    let mut told = HashSet::new();
    let mut killing_since = None;
    loop {
        // Orphans that were adopted and have ended.
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
        let left = processes::descendants();
        if left.is_empty() {
            return;
        }
        if killing_since.is_none() && (asked.elapsed() >= patience || hurry()) {
            killing_since = Some(Instant::now());
        }
        match killing_since {
            None => left
                .iter()
                .filter(|process| told.insert(**process))
                .for_each(|process| process.signal(Signal::TERM)),
            Some(since) if since.elapsed() < GONE_AFTER_KILL => {
                // Again each time: some may have been started meanwhile.
                left.iter().for_each(|process| process.signal(Signal::KILL));
            }
            Some(_) => {
                let pids: Vec<_> = left.iter().map(|process| process.pid().to_string()).collect();
                return Outputs::own().say(&format!(
                    "kolo: these processes of the job could not be killed: {}",
                    pids.join(", ")
                ));
            }
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}
