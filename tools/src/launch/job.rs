//! A job: processes that are started together and end together.
//!
//! # States
//! *Running*: all ranks run, signals are forwarded. *Ending*: a rank failed, or a signal asked the job to end; the
//! other ranks have got SIGTERM and a limit. *Killing*: the limit has passed or the signal came again; SIGKILL.
//! The job is over when every rank has been reaped. One thread does all of it, from one queue of events; it
//! waits for nothing else, and never without one of: a living child, whose end is an event, or a limit.
//!
//! # Rules
//! 1. A process is signalled only before it is reaped, so its number cannot belong to anybody else.
//! 2. Each rank leads a process group, and gets signals as a group. Its descendants may outlive it by the grace, for instance to write
//!    the output that they have read from the rank; then the group gets SIGKILL. The rank is reaped after that, so that the number of its
//!    group stays its own (rule 1).
//! 3. Children die with this process whatever happens to it (PR_SET_PDEATHSIG), so the thread that starts them must live as long as the
//!    job; it is the one that supervises. [`super::guardian`] tells which others die then.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ExitStatus};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use rustix::thread::CpuSet;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use signal_hook::low_level::signal_name;

use super::guardian::Lifeline;
use super::output::{Outputs, Readers};
use super::{process, processes};
use crate::error::{CliError, Result};

/// One process of a job.
#[derive(Clone, Debug)]
pub(crate) struct Rank {
    /// Its rank in the whole job.
    pub rank: u32,
    /// Its variables, beyond those of this process.
    pub environment: Vec<(String, OsString)>,
    /// Use of its standard output.
    pub stdout: Stdout,
    /// Source of its standard input.
    pub input: Input,
    /// Arguments that it alone has, behind those of all.
    pub arguments: Vec<OsString>,
    /// The processors that it may run on, if not all.
    pub cpus: Option<CpuSet>,
    /// Its name in messages, if it is no rank: an agent.
    pub name: Option<String>,
    /// How many ranks of the job it stands for: an agent, for those of its host.
    pub stands_for: u32,
}

impl Rank {
    /// A rank with nothing special.
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
    /// Rank 0 reads what we would, the others nothing.
    OfFirst,
    /// Nothing.
    None,
    /// An agent's: these bytes, and then nothing until its end, which is how it is asked to end.
    Lifeline(Vec<u8>),
}

/// Use of a rank's standard output.
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
    /// They do not, but lines of several do not mix.
    Lines,
}

/// Ranks to start, and the way to end them.
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
    /// Meaning of our standard input.
    pub orders: Orders,
    /// As long as so many ranks live or have ended well, the end of another does not end the job; nor that of the last one, if that is
    /// started again and the number is 0.
    pub least: Option<u32>,
    /// How a rank that has died is started again; if at all.
    pub again: Option<Again>,
}

/// Meaning of the standard input of the one that starts ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Orders {
    /// Rank 0's own.
    None,
    /// Its end asks the job to end, as a signal would.
    EndsWithInput,
    /// [`END`] in it does. Its end alone says that the launcher is gone, and the ranks go on.
    EndsWhenTold,
}

/// The order to end, on an agent's lifeline.
const END: &[u8] = b"end\n";

/// How long agents may take to pass it on, when a launcher has to end in a hurry.
const ORDER_MOST: Duration = Duration::from_secs(1);

/// Starting ranks again.
#[derive(Clone, Debug)]
pub(crate) struct Again {
    /// How often each at most.
    pub times: u32,
    /// Variables that make it a newcomer.
    pub environment: Vec<(String, OsString)>,
    /// Whether it is to have the slot of the one that has died, and no other.
    pub in_its_slot: bool,
}

/// How often a look is taken at what an ended rank has left behind, whose end need not be an event.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Said to a log, since nobody reads the outputs any more.
const ON_ITS_OWN: &str = "kolo: the launcher of this job is gone, or its host, or the network to it; the ranks of this host go on to their end";

/// How long the verdict on a rank that failed waits for another that is on its way out, which takes milliseconds unless the
/// kernel cannot end it.
const ENDING_MOST: Duration = Duration::from_secs(2);

enum Event {
    /// A signal came; SIGCHLD among them.
    Signal(i32),
    /// The launcher is gone, killed by somebody.
    LauncherGone,
    /// So is the one on the host that has started this agent, or the network between.
    OnItsOwn,
}

struct Member {
    rank: u32,
    /// Which of the job's.
    at: usize,
    /// How often it was started again.
    times: u32,
    /// Its name.
    name: String,
    child: Child,
    /// The input of an agent, whose end asks it to end; gone once it was asked.
    lifeline: Option<ChildStdin>,
    /// Whether it is an agent, which signals do not reach.
    is_agent: bool,
    /// How it ended, once it has.
    status: Option<ExitStatus>,
    /// It has ended and nothing of its group is left.
    reaped: bool,
    /// Until when what it left behind may go on, once it has ended.
    limit: Instant,
}

/// Runs a job to its end, and returns the exit code of the whole. The end of the launcher, if there is a lifeline to it,
/// ends the job at once.
pub(super) fn run(job: &Job, outputs: &Outputs, lifeline: Option<&Lifeline>) -> Result<u8> {
    let (sender, events) = mpsc::channel();
    if let Some(lifeline) = lifeline {
        let sender = sender.clone();
        lifeline.when_cut(move || drop(sender.send(Event::LauncherGone)))?;
    }
    // Before the first child: its end must not be missed.
    let mut signals = Signals::new([SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2])
        .map_err(|error| CliError::system("signals cannot be caught", &error))?;
    let handle = signals.handle();
    if job.orders != Orders::None {
        let (sender, orders) = (sender.clone(), job.orders);
        std::thread::spawn(move || {
            let mut said = Vec::new();
            let _ = io::stdin().lock().read_to_end(&mut said);
            let is_over = orders == Orders::EndsWithInput || said.ends_with(END);
            let _ = sender.send(if is_over { Event::Signal(SIGTERM) } else { Event::OnItsOwn });
        });
    }
    let forwarder = std::thread::spawn(move || forward_signals(&mut signals, &sender));
    let mut supervisor = Supervisor {
        job,
        outputs,
        members: Vec::with_capacity(job.ranks.len()),
        readers: Readers::default(),
        limit: None,
        killed: false,
        failures: Vec::new(),
        failed_at: Instant::now(),
        outcome: None,
    };
    let outcome = supervisor.start().and_then(|()| supervisor.supervise(&events));
    handle.close();
    let _ = forwarder.join();
    // Processes that ranks have started may hold their outputs open for as long as they like.
    supervisor.readers.finish(job.grace);
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
    readers: Readers,
    /// When patience ends; `None` while running, and after SIGKILL.
    limit: Option<Instant>,
    killed: bool,
    /// Ranks that have failed, by index, on which there is no verdict yet.
    failures: Vec<(usize, ExitStatus)>,
    /// When the first of these was seen.
    failed_at: Instant,
    /// The exit code, once something other than success decided it.
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
                return Err(CliError::failure(
                    format!(
                        "{} could not be started: {}: {error}",
                        rank.label(),
                        self.job.program.to_string_lossy()
                    ),
                    "Check that the program exists and may be executed, and the limit of processes (ulimit -u)",
                ));
            }
        }
        Ok(())
    }

    fn start_one(&mut self, at: usize, rank: &Rank, times: u32) -> io::Result<()> {
        let mut child = process::spawn(self.job, rank)?;
        self.readers.attach(self.job.prefix, rank.rank, &mut child, self.outputs);
        let mut lifeline = child.stdin.take();
        if let (Some(pipe), Input::Lifeline(first)) = (&mut lifeline, &rank.input) {
            // It fits into the pipe. An agent that is gone already is seen by its end.
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

    /// Starts a rank that has died again, as a newcomer. Whether it runs, and what has come of it.
    fn start_again(&mut self, index: usize) -> (bool, String) {
        let (at, times) = (self.members[index].at, self.members[index].times + 1);
        let Some(again) = &self.job.again else { return (false, String::new()) };
        let ended_well = |member: &Member| member.status.is_some_and(|status| status.success());
        if self.limit.is_some() || self.members.iter().any(ended_well) {
            return (false, "; it is not started again, since the job ends".to_owned());
        }
        if times > again.times {
            return (false, format!("; it is not started again, since it was {} times", again.times));
        }
        let mut rank = self.job.ranks[at].clone();
        rank.environment.extend(again.environment.iter().cloned());
        if again.in_its_slot {
            rank.environment.push(("KOLO_SLOT".to_owned(), rank.rank.to_string().into()));
        }
        match self.start_one(at, &rank, times) {
            Ok(()) => {
                (true, format!("; it is started again as a newcomer ({times} of {} times)", again.times))
            }
            Err(error) => (false, format!("; it could not be started again: {error}")),
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
                    return Err(CliError::failure("the thread that watches signals is gone", "Report this"));
                }
            }
            self.reap();
        }
        Ok(self.outcome.unwrap_or(0))
    }

    /// When something is to be done even if nothing happens.
    fn next_look(&self) -> Option<Instant> {
        let left_behind = self.members.iter().any(|member| member.status.is_some() && !member.reaped);
        let again = (left_behind || !self.failures.is_empty()).then(|| Instant::now() + LOOK_AGAIN);
        self.limit.into_iter().chain(again).min()
    }

    /// Looks at all ranks that have ended since the last look, and at what they left behind.
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
        // A rank that a signal ended did not choose to: where several ended at once, the others follow from it.
        self.failures.sort_by_key(|(_, status)| status.signal().is_none());
        if !self.another_may_be_the_cause() {
            for (index, status) in std::mem::take(&mut self.failures) {
                self.failed(index, status);
            }
        }
        self.bury();
    }

    /// Whether a rank on which there is no verdict may have failed because of one whose end has begun and is not complete: the
    /// kernel closes the connections of a process before it tells how it ended.
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

    /// Reaps the ranks of which nothing is left; ends what has been left for too long.
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
            // It has ended, so this does not wait.
            let _ = member.child.wait();
            member.reaped = true;
        }
    }

    fn failed(&mut self, index: usize, status: ExitStatus) {
        let (name, pid) = (self.members[index].name.clone(), self.members[index].child.id());
        let kind = if self.members[index].is_agent { "host" } else { "rank" };
        if self.outcome.is_some() {
            // Ended by us, or in consequence; whoever was first has been named.
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
        if status.code().is_some() && status.code() == self.job.quiet_exit_code {
            return;
        }
        let others = self.members.iter().filter(|member| member.status.is_none()).count();
        let consequence = match others {
            0 => String::new(),
            1 => format!("; ending the other {kind}"),
            _ => format!("; ending the other {others} {kind}s"),
        };
        self.outputs.say(&format!("kolo: {name} (pid {pid}) {}{again}{consequence}", describe(status)));
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
        if self.order_end() && self.job.least.is_some() {
            // An agent that is killed before it has heard that would go on. Their reports of their ends are no news.
            self.outcome.get_or_insert((128 + SIGKILL) as u8);
            self.limit = Some(Instant::now() + ORDER_MOST);
            return;
        }
        self.limit = None;
        self.killed = true;
        self.signal_all(Signal::KILL);
    }

    /// Asks all agents to end that were not asked before. Whether there were any.
    fn order_end(&mut self) -> bool {
        let asked = self.members.iter_mut().filter_map(|member| member.order_end().then_some(()));
        asked.count() > 0
    }

    fn signal_all(&mut self, signal: Signal) {
        for member in self.members.iter_mut().filter(|member| !member.reaped) {
            if member.is_agent && signal != Signal::KILL {
                // Agents do not pass on signals; and one that a signal ended could not tell how its ranks ended.
                if !matches!(signal, Signal::USR1 | Signal::USR2) {
                    member.order_end();
                }
                continue;
            }
            // All of it may have ended meanwhile; then there is nobody to tell.
            let _ = kill_process_group(Pid::from_child(&member.child), signal);
        }
    }
}

impl Member {
    /// Asks an agent to end. False if it is none, or was asked.
    fn order_end(&mut self) -> bool {
        let Some(mut lifeline) = self.lifeline.take() else { return false };
        let _ = lifeline.write_all(END);
        true
    }
}

/// How a child has ended, if it has, without reaping it.
fn ended(child: &Child) -> Option<ExitStatus> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(Pid::from_child(child)), options).ok()??;
    let core = if status.dumped() { 0x80 } else { 0 };
    // As wait(2) packs it.
    let raw = match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => (code & 0xff) << 8,
        (None, signal) => signal.unwrap_or(0) | core,
    };
    Some(ExitStatus::from_raw(raw))
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
mod tests;
