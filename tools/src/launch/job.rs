//! A job: processes that are started together and end together.
//!
//! # States
//! *Running*: all ranks run, signals are forwarded. *Ending*: a rank failed, or a signal asked the job to end; the
//! other ranks have got SIGTERM and a limit. *Killing*: the limit has passed or the signal came again; SIGKILL.
//! The job is over when every process has been reaped. One thread does all of it, from one queue of events; it
//! waits for nothing else, and never without one of: a living child, whose end is an event, or a limit.
//!
//! # Rules
//! 1. A process is signalled only before it is reaped, so its number cannot belong to anybody else.
//! 2. Each rank leads a process group, and gets signals as a group: what it started ends with it.
//! 3. Children die with this process whatever happens to it (PR_SET_PDEATHSIG), so the thread that starts them
//!    must live as long as the job; it is the one that supervises.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::output::{Outputs, Readers};
use super::process;
use crate::error::{CliError, Result};

/// One process of a job.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// Its rank in the whole job.
    pub rank: u32,
    /// What it is told in variables, beyond what this process has.
    pub environment: Vec<(String, OsString)>,
    /// What happens to its standard output.
    pub stdout: Stdout,
}

/// What happens to a rank's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdout {
    /// It goes where ours goes.
    Pass,
    /// It is thrown away.
    Drop,
}

/// Whether lines say which rank they are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// They do not: ranks write straight to our outputs.
    None,
    /// They do.
    Rank,
}

/// What to start, and how to end it.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The program.
    pub program: OsString,
    /// The name it is called by, if not that of the program.
    pub arg0: Option<OsString>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The processes of this machine.
    pub ranks: Vec<Rank>,
    /// Whether lines say which rank they are from.
    pub prefix: Prefix,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// An exit code that is a result rather than a failure: it is passed on, and nobody is told.
    pub quiet_exit_code: Option<i32>,
}

enum Event {
    /// A signal came; SIGCHLD among them.
    Signal(i32),
}

struct Member {
    rank: u32,
    child: Child,
    status: Option<ExitStatus>,
}

/// Runs a job to its end, and returns the exit code of the whole.
pub(crate) fn run(job: &Job, outputs: &Outputs) -> Result<u8> {
    let (sender, events) = mpsc::channel();
    // Before the first child: its end must not be missed.
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
        .map_err(|error| CliError::system("signals cannot be caught", &error))?;
    let handle = signals.handle();
    let forwarder = std::thread::spawn(move || forward_signals(&mut signals, &sender));
    let mut supervisor = Supervisor {
        job,
        outputs,
        members: Vec::with_capacity(job.ranks.len()),
        limit: None,
        killed: false,
        outcome: None,
    };
    let mut readers = Readers::default();
    let outcome = supervisor.start(&mut readers).and_then(|()| supervisor.supervise(&events));
    handle.close();
    let _ = forwarder.join();
    // What the ranks started may hold their outputs open for as long as it likes.
    readers.finish(job.grace);
    outcome
}

fn forward_signals(signals: &mut Signals, events: &Sender<Event>) {
    for signal in signals.forever() {
        if events.send(Event::Signal(signal)).is_err() {
            return;
        }
    }
}

struct Supervisor<'a> {
    job: &'a Job,
    outputs: &'a Outputs,
    members: Vec<Member>,
    /// When patience ends; `None` while running, and after SIGKILL.
    limit: Option<Instant>,
    killed: bool,
    /// The exit code, once something other than success decided it.
    outcome: Option<u8>,
}

impl Supervisor<'_> {
    fn start(&mut self, readers: &mut Readers) -> Result<()> {
        for rank in &self.job.ranks {
            match process::spawn(self.job, rank) {
                Ok(mut child) => {
                    readers.attach(rank.rank, &mut child, self.outputs);
                    self.members.push(Member { rank: rank.rank, child, status: None });
                }
                Err(error) => {
                    self.signal_all(Signal::KILL);
                    for member in &mut self.members {
                        let _ = member.child.wait();
                    }
                    return Err(CliError::failure(
                        format!(
                            "rank {} could not be started: {}: {error}",
                            rank.rank,
                            self.job.program.to_string_lossy()
                        ),
                        "Check that the program exists and may be executed, and the limit of processes (ulimit -u)",
                    ));
                }
            }
        }
        Ok(())
    }

    fn supervise(&mut self, events: &Receiver<Event>) -> Result<u8> {
        self.reap();
        while self.members.iter().any(|member| member.status.is_none()) {
            let event = match self.limit {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(limit) => events.recv_timeout(limit.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Event::Signal(SIGCHLD)) => self.reap(),
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Err(RecvTimeoutError::Timeout) => self.kill(),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CliError::failure("the thread that watches signals is gone", "Report this"));
                }
            }
        }
        Ok(self.outcome.unwrap_or(0))
    }

    /// Looks at all children that have ended since the last look.
    fn reap(&mut self) {
        let mut failures = Vec::new();
        for index in 0..self.members.len() {
            let member = &mut self.members[index];
            if member.status.is_some() || !has_ended(&member.child) {
                continue;
            }
            // Rule 1: what it started is signalled while its number is still its own.
            let pid = Pid::from_child(&member.child);
            let Ok(status) = member.child.try_wait().map(|status| status.unwrap_or_default()) else {
                continue;
            };
            member.status = Some(status);
            if !status.success() {
                failures.push((index, pid, status));
            }
        }
        // A rank that a signal ended did not choose to: where several ended at once, the others follow from it.
        failures.sort_by_key(|(_, _, status)| status.signal().is_none());
        for (index, pid, status) in failures {
            self.failed(self.members[index].rank, pid, status);
        }
    }

    fn failed(&mut self, rank: u32, pid: Pid, status: ExitStatus) {
        if self.outcome.is_some() {
            // Ended by us, or in consequence; whoever was first has been named.
            return;
        }
        self.outcome = Some(exit_code(status));
        if status.code().is_some() && status.code() == self.job.quiet_exit_code {
            return;
        }
        let others = self.members.iter().filter(|member| member.status.is_none()).count();
        let consequence = match others {
            0 => String::new(),
            1 => "; ending the other rank".into(),
            _ => format!("; ending the other {others} ranks"),
        };
        self.outputs.say(&format!("kolo: rank {rank} (pid {pid}) {}{consequence}", describe(status)));
        self.end(Signal::TERM);
    }

    fn pass_on(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        if matches!(number, SIGUSR1 | SIGUSR2) {
            self.signal_all(signal);
            return;
        }
        if self.limit.is_some() {
            // Asked again: patience is over.
            self.kill();
            return;
        }
        self.outcome.get_or_insert((128 + number) as u8);
        self.end(signal);
    }

    fn end(&mut self, signal: Signal) {
        if self.limit.is_none() && !self.killed {
            self.limit = Some(Instant::now() + self.job.grace);
        }
        self.signal_all(signal);
    }

    fn kill(&mut self) {
        self.limit = None;
        self.killed = true;
        self.signal_all(Signal::KILL);
    }

    fn signal_all(&self, signal: Signal) {
        for member in self.members.iter().filter(|member| member.status.is_none()) {
            // It may have ended meanwhile; then there is nobody to tell.
            let _ = kill_process_group(Pid::from_child(&member.child), signal);
        }
    }
}

/// Whether a child has ended, without reaping it.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}

/// How a process ended, for people.
fn describe(status: ExitStatus) -> String {
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

/// The exit code a shell would report.
fn exit_code(status: ExitStatus) -> u8 {
    match (status.code(), status.signal()) {
        (Some(code), _) => code as u8,
        (None, Some(signal)) => (128 + signal) as u8,
        (None, None) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::super::output::Captured;
    use super::*;

    fn shell(script: &str, ranks: u32) -> Job {
        Job {
            program: "/bin/sh".into(),
            arg0: None,
            arguments: vec!["-c".into(), script.into()],
            ranks: (0..ranks)
                .map(|rank| Rank {
                    rank,
                    environment: vec![("RANK".into(), rank.to_string().into())],
                    stdout: Stdout::Pass,
                })
                .collect(),
            prefix: Prefix::Rank,
            grace: Duration::from_secs(60),
            quiet_exit_code: None,
        }
    }

    fn run_captured(job: &Job) -> (u8, String, String) {
        let captured = Captured::default();
        let code = run(job, &captured.outputs()).unwrap();
        (code, captured.stdout(), captured.stderr())
    }

    fn sorted(text: &str) -> Vec<&str> {
        let mut lines: Vec<_> = text.lines().collect();
        lines.sort_unstable();
        lines
    }

    #[test]
    fn lines_say_which_rank_they_are_from() {
        let (code, stdout, stderr) = run_captured(&shell("echo one; echo two >&2; printf three", 2));
        assert_eq!(code, 0);
        assert_eq!(sorted(&stdout), ["[0] one", "[0] three", "[1] one", "[1] three"]);
        assert_eq!(sorted(&stderr), ["[0] two", "[1] two"]);
        assert!(stdout.find("[0] one").unwrap() < stdout.find("[0] three").unwrap());
    }

    #[test]
    fn a_failing_rank_ends_the_job_and_is_named() {
        // The others would wait for ever.
        let (code, _, stderr) = run_captured(&shell("[ $RANK = 2 ] && exit 7; exec tail -f /dev/null", 4));
        assert_eq!(code, 7);
        assert!(stderr.starts_with("kolo: rank 2 (pid "), "{stderr}");
        assert!(stderr.contains("ended with exit code 7; ending the other 3 ranks"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "{stderr}");
    }

    #[test]
    fn a_signal_is_named() {
        let (code, _, stderr) =
            run_captured(&shell("[ $RANK = 0 ] && kill -SEGV $$; exec tail -f /dev/null", 2));
        assert_eq!(code, 128 + 11);
        assert!(stderr.contains("rank 0") && stderr.contains("killed by signal 11 (SIGSEGV)"), "{stderr}");
    }

    #[test]
    fn who_does_not_listen_is_killed() {
        // Rank 0 fails once rank 1 has made itself deaf, which its children inherit.
        let directory = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {} && if [ $RANK = 1 ]; then trap '' TERM; echo > pipe; tail -f /dev/null; fi; read line < pipe; exit 3",
            directory.path().display()
        );
        let made = std::process::Command::new("mkfifo").arg(directory.path().join("pipe")).status().unwrap();
        assert!(made.success());
        let mut job = shell(&script, 2);
        job.grace = Duration::from_millis(1);
        assert_eq!(run_captured(&job).0, 3);
    }

    #[test]
    fn what_ranks_started_ends_with_them() {
        // The shell waits for a child of its own, which only a signal to the group reaches.
        let script = "if [ $RANK = 0 ]; then tail -f /dev/null & wait; fi; exit 4";
        assert_eq!(run_captured(&shell(script, 2)).0, 4);
    }

    #[test]
    fn quiet_codes_are_passed_on_without_a_word() {
        let mut job = shell("exit 1", 1);
        job.quiet_exit_code = Some(1);
        assert_eq!(run_captured(&job), (1, String::new(), String::new()));
    }

    #[test]
    fn outputs_can_be_dropped() {
        let mut job = shell("echo $RANK", 2);
        job.ranks[1].stdout = Stdout::Drop;
        assert_eq!(run_captured(&job).1, "[0] 0\n");
    }

    #[test]
    fn a_program_that_is_not_there_is_an_error() {
        let mut job = shell("", 2);
        job.program = "/no/such/program".into();
        let error = run(&job, &Captured::default().outputs()).unwrap_err();
        assert!(
            error.message.contains("rank 0 could not be started")
                && error.message.contains("/no/such/program")
        );
    }
}
