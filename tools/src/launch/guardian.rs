//! Runs a job under two processes, so that nothing of the job remains when either is killed.
//!
//! The *launcher* is the process that the user started. It forwards signals and waits. The *supervisor*, its only
//! child, starts the ranks and does everything else. Each of the two ends the job when the other one is gone.
//!
//! # Rules
//! 1. Both adopt orphans (PR_SET_CHILD_SUBREAPER). Every descendant of a rank is therefore a descendant of the
//!    supervisor, even if it has left its process group or its session; and of the launcher, once the supervisor is
//!    gone.
//! 2. The supervisor holds the read end of a pipe whose other end only the launcher has: its end of file marks the end
//!    of the launcher, even if that comes before the supervisor reads. One byte in the pipe says that the launcher
//!    catches signals, and the supervisor waits for that byte.
//! 3. The supervisor reports a folder to the launcher before there are ranks, so that either of them can remove it.
//! 4. The supervisor leads a process group of its own, so that a signal from a terminal reaches it once, through the
//!    launcher.
//!
//! A signal that kills both at the same instant ends the ranks (PR_SET_PDEATHSIG), but not the processes that the ranks
//! have started.
//!
//! `unsafe` serves only for the fork.

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

use super::job::{self, Job};
use super::orders::Orders;
use super::output::Outputs;
use super::processes;
use crate::error::{CliError, Result};

/// Time that a killed process may take to disappear. Only one that waits for a device takes longer than a moment.
const GONE_AFTER_KILL: Duration = Duration::from_secs(10);

/// Interval at which signalled processes are checked for their end.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// The supervisor's connection to the launcher.
#[derive(Debug)]
pub(super) struct Lifeline {
    /// Reaches its end of file when the launcher ends.
    launcher: PipeReader,
    folders: PipeWriter,
}

/// Runs `work` as the supervisor in a process of its own. In the launcher, returns the exit code of `work` when
/// everything that it started is gone. The supervisor reports errors of `work`.
///
/// The process must have a single thread.
pub(super) fn guarded(work: impl FnOnce(&Lifeline) -> Result<u8>) -> Result<ExitCode> {
    let failed =
        |error: io::Error| CliError::system("could not create the process that starts the ranks", &error);
    let threads = std::fs::read_dir("/proc/self/task").map_err(failed)?.count();
    if threads != 1 {
        return Err(CliError::failure(
            format!("{threads} threads run before the ranks are started"),
            "Please report this as a bug",
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
    /// Runs a job, and ends the processes that its ranks leave behind.
    pub(super) fn run(&self, job: &Job) -> Result<u8> {
        let outputs = match job.orders {
            Orders::EndsWhenTold => Outputs::outliving(job.destinations),
            _ => Outputs::own(job.destinations),
        };
        let outputs = outputs
            .map_err(|error| CliError::system("a thread of the launcher cannot be started", &error))?;
        // After a panic, there may be any. Otherwise, only processes that have left their process group can still be there.
        let _end = EndDescendants { patience: job.grace, hurry: || self.is_cut() };
        job::run(job, &outputs, Some(self))
    }

    /// Calls `then` on a thread of its own when the launcher is gone.
    pub(super) fn when_cut(&self, then: impl FnOnce() + Send + 'static) -> Result<()> {
        let failed = |error| CliError::system("the launcher cannot be watched", &error);
        let mut launcher = self.launcher.try_clone().map_err(failed)?;
        let watch = move || {
            // The launcher writes nothing once the ranks may start.
            let _ = launcher.read(&mut [0]);
            then();
        };
        std::thread::Builder::new().name("launcher".into()).spawn(watch).map_err(failed)?;
        Ok(())
    }

    /// Reports a folder to the launcher, which removes it if the supervisor cannot.
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
    // Before the launcher catches signals, a signal would end it and everything that was started.
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

/// Runs the launcher's part: forwards signals until the supervisor ends, then cleans up.
fn look_after(supervisor: Pid, told: PipeReader, mut lifeline: &PipeWriter) -> Result<ExitCode> {
    let mut signals =
        Signals::new(heeded()).map_err(|error| CliError::system("signals cannot be caught", &error))?;
    // If the supervisor is gone, waiting for it reports that.
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
                // The supervisor has not been reaped, so no other process can have its number.
                let _ = kill_process(supervisor, signal);
            }
        }
    };
    if let Some(code) = status.exit_status() {
        return Ok(ExitCode::from(code as u8));
    }
    let signal = status.terminating_signal().unwrap_or(0);
    if !passed_on.contains(&signal) {
        Outputs::say_last(&format!(
            "kolo: the process that supervises the ranks was killed by signal {signal}; the ranks were ended"
        ));
    }
    end_descendants(Duration::ZERO, || true);
    remove_folders(told);
    Ok(ExitCode::from((128 + signal) as u8))
}

/// Signals by which users end a job, or reach its ranks.
pub(super) const USER_SIGNALS: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// Returns the signals that a job heeds: SIGCHLD, and those of its user that were not ignored when this process started, as
/// under nohup, or in the background of a script. Ranks inherit that they are ignored.
pub(super) fn heeded() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok())
        .unwrap_or_default();
    let is_ignored = |signal: &i32| ignored >> (signal - 1) & 1 == 1;
    USER_SIGNALS.into_iter().filter(|signal| !is_ignored(signal)).chain([SIGCHLD]).collect()
}

fn remove_folders(mut told: PipeReader) {
    let mut names = Vec::new();
    // All possible writers are gone.
    let _ = told.read_to_end(&mut names);
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let folder = PathBuf::from(std::ffi::OsString::from_vec(name.to_vec()));
        // The supervisor may already have removed it.
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Ends all descendants when it is dropped, as [`end_descendants`] does.
struct EndDescendants<F: Fn() -> bool> {
    patience: Duration,
    hurry: F,
}

impl<F: Fn() -> bool> Drop for EndDescendants<F> {
    fn drop(&mut self) {
        end_descendants(self.patience, &self.hurry);
    }
}

/// Ends all descendants: asks them to end, waits for `patience` or until `hurry`, and kills them.
fn end_descendants(patience: Duration, hurry: impl Fn() -> bool) {
    if !processes::are_seen() {
        return Outputs::say_last(
            "kolo: /proc belongs to another PID namespace, so processes that ranks left behind cannot be \
             ended; mount a /proc here (unshare --mount-proc)",
        );
    }
    let asked = Instant::now();
    let mut told = HashSet::new();
    let mut killing_since = None;
    loop {
        // Reaps adopted orphans that have ended.
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
                // The signal is repeated, since new processes may have been started meanwhile.
                left.iter().for_each(|process| process.signal(Signal::KILL));
            }
            Some(_) => {
                let pids: Vec<_> = left.iter().map(|process| process.pid().to_string()).collect();
                return Outputs::say_last(&format!(
                    "kolo: these processes of the job could not be killed: {}",
                    pids.join(", ")
                ));
            }
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// This ends all descendants of its process, so it runs in a process of its own.
    #[test]
    fn a_panic_leaves_no_descendants() {
        if std::env::var_os("KOLO_TEST_PANIC").is_none() {
            let mut test = Command::new(std::env::current_exe().unwrap());
            test.args(["--exact", "launch::guardian::tests::a_panic_leaves_no_descendants"]);
            let ended = test.env("KOLO_TEST_PANIC", "1").output().unwrap();
            let said = String::from_utf8_lossy(&ended.stdout);
            return assert!(ended.status.success() && said.contains("1 passed"), "{said}");
        }
        let panicked = std::panic::catch_unwind(|| {
            let _end = EndDescendants { patience: Duration::ZERO, hurry: || true };
            let mut asleep = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
            assert!(processes::descendants().is_empty(), "a panic");
            let _ = asleep.wait();
        });
        assert!(panicked.is_err() && processes::descendants().is_empty());
    }
}
