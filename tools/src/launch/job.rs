//! A job: processes that are started together and end together.
//!
//! # States
//! *Running*: all ranks run, and signals are forwarded. *Ending*: a rank failed, or a signal asked the job to end; the
//! other ranks have received SIGTERM and have a time limit. *Killing*: the limit has passed or the signal came again;
//! the ranks receive SIGKILL. The job is over when every rank has been reaped. One thread does all of this, from one
//! queue of events. It waits for nothing else, and only while there is a living child, whose end is an event, or a time
//! limit.
//!
//! # Rules
//! 1. A process is signalled only before it is reaped, so its number cannot belong to another process.
//! 2. Each rank leads a process group, and signals go to the group. A rank's descendants may outlive it by the grace,
//!    for instance to write the output that they have read from the rank; then the group receives SIGKILL. The rank is
//!    reaped after that, so that the number of its group stays its own (rule 1).
//! 3. Children die with this process in any case (PR_SET_PDEATHSIG). The thread that starts them must therefore live as
//!    long as the job; it is the thread that supervises. [`super::guardian`] says what happens to other descendants.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Rlimit, Signal, kill_process_group};
use rustix::thread::CpuSet;
use signal_hook::consts::{SIGCHLD, SIGKILL, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

use super::guardian::{self, Lifeline};
use super::orders::{self, Orders};
use super::output::{Destinations, Outputs, Readers};
use super::process::{describe, ended, exit_code};
use super::{process, processes};
use crate::error::{CliError, EXIT_NO_READER, Result};

/// One process of a job.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// Its rank in the whole job.
    pub rank: u32,
    /// Its variables, in addition to those of this process.
    pub environment: Vec<(String, OsString)>,
    /// Use of its standard output.
    pub stdout: Stdout,
    /// Source of its standard input.
    pub input: Input,
    /// Arguments for this process alone, after those of all.
    pub arguments: Vec<OsString>,
    /// The processors that it may run on; all if `None`.
    pub cpus: Option<CpuSet>,
    /// Its name in messages, if it is not a rank but an agent.
    pub name: Option<String>,
    /// Number of ranks of the job that it represents: an agent represents those of its host.
    pub stands_for: u32,
}

impl Rank {
    /// Makes a rank without special properties.
    pub(super) fn new(rank: u32, environment: Vec<(String, OsString)>) -> Self {
        let (stdout, input) = (Stdout::Pass, Input::OfFirst);
        Self {
            rank,
            environment,
            stdout,
            input,
            arguments: Vec::new(),
            cpus: None,
            name: None,
            stands_for: 1,
        }
    }

    fn label(&self) -> String {
        self.name.clone().unwrap_or_else(|| format!("rank {}", self.rank))
    }
}

/// Source of a rank's input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Input {
    /// Rank 0 reads this process's input, and the others read nothing.
    OfFirst,
    /// Nothing.
    None,
    /// For an agent: these bytes, and then nothing until the end of file, which asks the agent to end.
    Lifeline(Vec<u8>),
}

/// Use of a rank's standard output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stdout {
    /// It goes to this process's output.
    Pass,
    /// It is discarded.
    Drop,
}

/// Whether lines of output carry the rank that they are from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// They do not: ranks write directly to this process's outputs.
    None,
    /// They do.
    Rank,
    /// They do not, but lines of several ranks do not mix.
    Lines,
}

/// Ranks to start, and how to end them.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    /// The program.
    pub program: OsString,
    /// The name by which the program is called, if it differs from the program's.
    pub arg0: Option<OsString>,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// The processes of this machine.
    pub ranks: Vec<Rank>,
    /// Whether lines of output carry their rank.
    pub prefix: Prefix,
    /// Where the lines go in the end.
    pub destinations: Destinations,
    /// Time between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// For ranks that are this program: an exit code that is a result rather than a failure, which is returned without
    /// a message. Nor is there a message on a rank whose output nobody reads any more.
    pub quiet_exit_code: Option<i32>,
    /// Meaning of this process's standard input.
    pub orders: Orders,
    /// As long as this many ranks live or have ended well, the end of another rank does not end the job. With 0,
    /// neither does the end of the last rank, if that rank is restarted.
    pub least: Option<u32>,
    /// How ranks that have died are restarted; `None` if they are not.
    pub again: Option<Again>,
}

/// Time that agents may take to forward the order when a launcher has to end in a hurry.
const ORDER_MOST: Duration = Duration::from_secs(1);

/// How to restart ranks.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// Limit on the restarts of each rank.
    pub times: u32,
    /// Variables that make the process a newcomer.
    pub environment: Vec<(String, OsString)>,
    /// Whether it must take the slot of the rank that has died.
    pub in_its_slot: bool,
}

/// Interval at which the processes that an ended rank has left behind are checked, since their end need not be an
/// event.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Written to a log, since nobody reads the outputs any more.
const ON_ITS_OWN: &str = "kolo: the launcher of this job is gone, or its host, or the network to it; the \
                          ranks of this host run to their end";

/// Added if an agent's shell found no program of a name. That may also be a rank's, which its host has reported.
const NOT_FOUND: &str = "; if kolo has another path there, give it with --remote-kolo";

/// Time that the verdict on a failed rank waits for another rank that is ending, which takes milliseconds unless the
/// kernel cannot end it.
const ENDING_MOST: Duration = Duration::from_secs(2);

pub(super) enum Event {
    /// A signal arrived, possibly SIGCHLD.
    Signal(i32),
    /// The launcher was killed.
    LauncherGone,
    /// The launcher on the host that started this agent is gone, or the network between them.
    OnItsOwn,
}

struct Member {
    rank: u32,
    /// Index among the job's ranks.
    at: usize,
    /// Number of restarts.
    times: u32,
    /// Its name.
    name: String,
    child: Child,
    /// The input of an agent, whose end of file asks the agent to end; `None` once it was asked.
    lifeline: Option<ChildStdin>,
    /// Whether it is an agent, which does not get signals.
    is_agent: bool,
    /// Its exit status, once it has ended.
    status: Option<ExitStatus>,
    /// Whether it has ended and nothing of its group is left.
    reaped: bool,
    /// Once it has ended: time until which the processes that it left behind may go on.
    limit: Instant,
}

/// Runs a job to its end, and returns the exit code of the whole job. If there is a lifeline to the launcher, the
/// launcher's end ends the job at once.
pub(super) fn run(job: &Job, outputs: &Outputs, lifeline: Option<&Lifeline>) -> Result<u8> {
    let (sender, events) = mpsc::channel();
    if let Some(lifeline) = lifeline {
        let sender = sender.clone();
        lifeline.when_cut(move || drop(sender.send(Event::LauncherGone)))?;
    }
    // Signals are caught before the first child starts, so that its end is not missed.
    let mut signals = Signals::new(guardian::heeded())
        .map_err(|error| CliError::system("signals cannot be caught", &error))?;
    let handle = signals.handle();
    if job.orders != Orders::None {
        let (sender, orders) = (sender.clone(), job.orders);
        start_thread("orders", move || orders::follow(orders, io::stdin().lock(), &sender))?;
    }
    let forwarder = start_thread("signals", move || forward_signals(&mut signals, &sender))?;
    let mut supervisor = Supervisor {
        job,
        outputs,
        members: Vec::with_capacity(job.ranks.len()),
        readers: Readers::new().map_err(|error| CliError::system("a pipe cannot be made", &error))?,
        open_files: process::raise_open_files(),
        limit: None,
        killed: false,
        asked: false,
        failures: Vec::new(),
        failed_at: Instant::now(),
        outcome: None,
    };
    let outcome = supervisor.start().and_then(|()| supervisor.supervise(&events));
    // Processes that ranks have started may keep their outputs open indefinitely.
    let (killed, patience) = (supervisor.killed, supervisor.asked.then(|| Instant::now() + job.grace));
    supervisor.readers.finish(outputs, job.grace, || {
        killed || hurries(&events) || patience.is_some_and(|limit| limit <= Instant::now())
    });
    handle.close();
    let _ = forwarder.join();
    outcome
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    let started = thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map_err(|error| CliError::system("a thread of the launcher cannot be started", &error))
}

/// Whether an event asks a job that is over to end without its readers.
fn hurries(events: &Receiver<Event>) -> bool {
    events.try_iter().any(|event| match event {
        Event::Signal(signal) => !matches!(signal, SIGCHLD | SIGUSR1 | SIGUSR2),
        Event::LauncherGone => true,
        Event::OnItsOwn => false,
    })
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
    readers: Readers,
    /// The ranks' limit on open files.
    open_files: Rlimit,
    /// Time of the next escalation; `None` while running, and after SIGKILL.
    limit: Option<Instant>,
    killed: bool,
    /// Whether a signal has asked the job to end.
    asked: bool,
    /// Ranks that have failed and await a verdict, by index.
    failures: Vec<(usize, ExitStatus)>,
    /// Time at which the first of these was seen.
    failed_at: Instant,
    /// The exit code, once something other than success has decided it.
    outcome: Option<u8>,
}

impl Supervisor<'_> {
    fn start(&mut self) -> Result<()> {
        for (at, rank) in self.job.ranks.iter().enumerate() {
            if let Err(error) = self.start_one(at, rank, 0) {
                self.signal_all(Signal::KILL);
                for member in &mut self.members {
                    let _ = member.child.wait();
                }
                return Err(process::not_started(&rank.label(), &self.job.program, &error));
            }
        }
        Ok(())
    }

    fn start_one(&mut self, at: usize, rank: &Rank, times: u32) -> io::Result<()> {
        let mut child = process::spawn(self.job, rank, self.open_files)?;
        if let Err(error) = self.readers.attach(self.job.prefix, rank.rank, &mut child, self.outputs) {
            // Nobody would read its outputs.
            let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
            let _ = child.wait();
            return Err(error);
        }
        let mut lifeline = child.stdin.take();
        if let (Some(pipe), Input::Lifeline(first)) = (&mut lifeline, &rank.input) {
            // The bytes fit into the pipe. If the agent has already ended, its end is an event.
            let _ = pipe.write_all(first);
        }
        self.members.push(Member {
            rank: rank.rank,
            at,
            times,
            name: rank.label(),
            child,
            lifeline,
            is_agent: matches!(rank.input, Input::Lifeline(_)),
            status: None,
            reaped: false,
            limit: Instant::now(),
        });
        Ok(())
    }

    /// Restarts a rank that has died, as a newcomer. Returns whether it runs, and a text that says what happened.
    fn start_again(&mut self, index: usize) -> (bool, String) {
        let (at, times) = (self.members[index].at, self.members[index].times + 1);
        let Some(again) = &self.job.again else { return (false, String::new()) };
        let ended_well = |member: &Member| member.status.is_some_and(|status| status.success());
        if self.limit.is_some() || self.members.iter().any(ended_well) {
            return (false, "; not restarting it, since the job is ending".to_owned());
        }
        if times > again.times {
            return (
                false,
                format!("; not restarting it, since it was already restarted {} times", again.times),
            );
        }
        let mut rank = self.job.ranks[at].clone();
        rank.environment.extend(again.environment.iter().cloned());
        if again.in_its_slot {
            rank.environment.push(("KOLO_SLOT".to_owned(), rank.rank.to_string().into()));
        }
        match self.start_one(at, &rank, times) {
            Ok(()) => (true, format!("; restarting it as a newcomer ({times} of {} times)", again.times)),
            Err(error) => (false, format!("; it could not be restarted: {error}")),
        }
    }

    fn supervise(&mut self, events: &Receiver<Event>) -> Result<u8> {
        self.reap();
        while self.members.iter().any(|member| !member.reaped) {
            let event = match self.next_look() {
                None => events.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(limit) => events.recv_timeout(limit.saturating_duration_since(Instant::now())),
            };
            match event {
                Ok(Event::Signal(SIGCHLD)) => {}
                Ok(Event::Signal(signal)) => self.pass_on(signal),
                Ok(Event::LauncherGone) => self.kill(),
                Ok(Event::OnItsOwn) => self.outputs.say(ON_ITS_OWN),
                Err(RecvTimeoutError::Timeout) => {
                    if self.limit.is_some_and(|limit| limit <= Instant::now()) {
                        self.kill();
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(CliError::failure(
                        "the thread that handles signals is gone",
                        "Please report this as a bug",
                    ));
                }
            }
            self.reap();
        }
        Ok(self.outcome.unwrap_or(0))
    }

    /// Returns the next time at which there is something to do without an event.
    fn next_look(&self) -> Option<Instant> {
        let left_behind = self.members.iter().any(|member| member.status.is_some() && !member.reaped);
        let again = (left_behind || !self.failures.is_empty()).then(|| Instant::now() + LOOK_AGAIN);
        self.limit.into_iter().chain(again).min()
    }

    /// Checks all ranks that have ended since the last call, and the processes that they left behind.
    fn reap(&mut self) {
        for (index, member) in
            self.members.iter_mut().enumerate().filter(|(_, member)| member.status.is_none())
        {
            let Some(status) = ended(&member.child) else { continue };
            member.status = Some(status);
            member.limit = Instant::now() + self.job.grace;
            if !status.success() {
                if self.failures.is_empty() {
                    self.failed_at = Instant::now();
                }
                self.failures.push((index, status));
            }
        }
        // A rank that ended by a signal did not choose to. If several ranks ended at once, the others failed because of
        // it.
        self.failures.sort_by_key(|(_, status)| status.signal().is_none());
        if !self.another_may_be_the_cause() {
            for (index, status) in std::mem::take(&mut self.failures) {
                self.failed(index, status);
            }
        }
        self.bury();
    }

    /// Whether a rank that awaits a verdict may have failed because of a rank that is still ending: the kernel closes
    /// the connections of a process before it reports how the process ended.
    fn another_may_be_the_cause(&self) -> bool {
        let chose_to = self.failures.first().is_some_and(|(_, status)| status.signal().is_none());
        chose_to
            && self.outcome.is_none()
            && self.failed_at.elapsed() < ENDING_MOST
            && self
                .members
                .iter()
                .any(|member| member.status.is_none() && processes::is_ending(Pid::from_child(&member.child)))
    }

    /// Reaps the ranks of which nothing is left; kills groups whose time has passed.
    fn bury(&mut self) {
        let mut ended: Vec<_> =
            self.members.iter_mut().filter(|member| member.status.is_some() && !member.reaped).collect();
        if ended.is_empty() {
            return;
        }
        let living = processes::living_groups();
        for member in &mut ended {
            let group = Pid::from_child(&member.child);
            if living.contains(&group) {
                let patience_is_over = member.limit <= Instant::now();
                if !self.killed && !patience_is_over {
                    continue;
                }
                let _ = kill_process_group(group, Signal::KILL);
                if !self.killed {
                    self.outputs.say(&format!(
                        "kolo: rank {} left processes behind, which were killed after {} s",
                        member.rank,
                        self.job.grace.as_secs_f64()
                    ));
                }
            }
            // The process has ended, so this does not block.
            let _ = member.child.wait();
            member.reaped = true;
        }
    }

    fn failed(&mut self, index: usize, status: ExitStatus) {
        let (name, pid) = (self.members[index].name.clone(), self.members[index].child.id());
        let kind = if self.members[index].is_agent { "host" } else { "rank" };
        if self.outcome.is_some() {
            // This process ended the rank, or the rank failed as a consequence; the first one has been reported.
            return;
        }
        let well = |member: &&Member| member.status.is_none_or(|status| status.success());
        let left: u32 =
            self.members.iter().filter(well).map(|member| self.job.ranks[member.at].stands_for).sum();
        let mut again = String::new();
        if self.job.least.is_some_and(|least| left >= least) {
            let runs;
            (runs, again) = self.start_again(index);
            if runs || left > 0 {
                let others = if left > 0 { format!("; the other {left} go on") } else { String::new() };
                self.outputs.say(&format!("kolo: {name} (pid {pid}) {}{others}{again}", describe(status)));
                return;
            }
        }
        self.outcome = Some(exit_code(status));
        if self.job.quiet_exit_code.is_some() && status.code() == Some(i32::from(EXIT_NO_READER)) {
            self.end(Signal::TERM);
            return;
        }
        if status.code().is_some() && status.code() == self.job.quiet_exit_code {
            return;
        }
        let others = self.members.iter().filter(|member| member.status.is_none()).count();
        let consequence = match others {
            0 => String::new(),
            1 => format!("; ending the other {kind}"),
            _ => format!("; ending the other {others} {kind}s"),
        };
        let hint = if self.members[index].is_agent && status.code() == Some(127) { NOT_FOUND } else { "" };
        self.outputs.say(&format!("kolo: {name} (pid {pid}) {}{again}{consequence}{hint}", describe(status)));
        self.end(Signal::TERM);
    }

    fn pass_on(&mut self, number: i32) {
        let Some(signal) = Signal::from_named_raw(number) else { return };
        if matches!(number, SIGUSR1 | SIGUSR2) {
            self.signal_all(signal);
            return;
        }
        if self.limit.is_some() {
            // This is the second request: end at once.
            self.kill();
            return;
        }
        self.asked = true;
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
        if self.order_end(SIGTERM) && self.job.least.is_some() {
            // Agents that are killed before they receive the order would go on. Their reports of their own ends are not
            // shown.
            self.outcome.get_or_insert((128 + SIGKILL) as u8);
            self.limit = Some(Instant::now() + ORDER_MOST);
            return;
        }
        self.limit = None;
        self.killed = true;
        self.signal_all(Signal::KILL);
    }

    /// Asks all agents to end that were not asked before. Returns whether there were any.
    fn order_end(&mut self, signal: i32) -> bool {
        let asked = self.members.iter_mut().filter_map(|member| member.order_end(signal).then_some(()));
        asked.count() > 0
    }

    fn signal_all(&mut self, signal: Signal) {
        for member in self.members.iter_mut().filter(|member| !member.reaped) {
            if member.is_agent && signal != Signal::KILL {
                // An agent such as ssh does not forward signals, and one that died of them could not report how its ranks ended.
                if matches!(signal, Signal::USR1 | Signal::USR2) {
                    member.order_signal(signal.as_raw());
                } else {
                    member.order_end(signal.as_raw());
                }
                continue;
            }
            // The whole group may have ended meanwhile; then the signal has no receiver.
            let _ = kill_process_group(Pid::from_child(&member.child), signal);
        }
    }
}

impl Member {
    /// Asks an agent to end. Returns false if this is no agent, or if it was asked before.
    fn order_end(&mut self, signal: i32) -> bool {
        let Some(mut lifeline) = self.lifeline.take() else { return false };
        let _ = lifeline.write_all(orders::end(signal).as_bytes());
        true
    }

    /// Has an agent send its ranks a signal, unless it was asked to end them.
    fn order_signal(&mut self, signal: i32) {
        if let Some(lifeline) = &mut self.lifeline {
            let _ = lifeline.write_all(orders::pass_on(signal).as_bytes());
        }
    }
}

#[cfg(test)]
mod tests;
