//! One trial: starts the ranks, makes the steps of the plan, and collects the ranks' reports.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use kolo_tests::system::machine_time;
use rustix::process::{Pid, kill_process};

use crate::judge::{End, Problems, judge};
use crate::leaks;
use crate::net::{self, Net};
use crate::plan::{Outcome, Plan, Step, Way};

/// Longest time until the ranks are making calls, and until a step is possible.
const STEP_LIMIT: Duration = Duration::from_secs(30);

/// Longest time from a rank's last report to the end of its process. A rank that leaves in order lingers for others.
const END_LIMIT: Duration = Duration::from_secs(20);

/// Port at which rank 0 listens in its own namespace, where no other process can have it.
const PORT: u16 = 29_500;

/// Report of a trial.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Report {
    pub problems: Problems,
    /// Milliseconds from the fault to the report of each rank that reported an error.
    pub noticed_ms: Vec<f64>,
    /// Kinds of errors of the ranks whose reports count.
    pub kinds: Vec<String>,
    /// All lines that were printed.
    pub said: Vec<String>,
    /// Reason why the trial could not be made.
    pub skipped: Option<String>,
}

enum Event {
    Line(u32, String),
    Complaint(u32, String),
    Closed(u32),
}

struct RankProcess {
    child: Child,
    is_running: bool,
    is_closed: bool,
    fault: Option<Duration>,
    end: Option<End>,
}

struct Trial<'a> {
    plan: &'a Plan,
    ranks: Vec<RankProcess>,
    events: Receiver<Event>,
    net: Option<Net>,
    fault: Option<Duration>,
    report: Report,
}

/// Makes a trial. `own_network` says that nothing else uses this network namespace.
pub(crate) fn run(plan: &Plan, seed: u64, own_network: bool) -> Report {
    let folder = match tempfile::Builder::new().prefix("kolo-faults-").tempdir() {
        Ok(folder) => folder,
        Err(error) => return skipped(format!("no folder: {error}")),
    };
    let net = match plan.way {
        Way::Network => match Net::new(plan.ranks, seed) {
            Ok(net) => Some(net),
            Err(why) => return skipped(why),
        },
        _ => None,
    };
    let (sender, events) = mpsc::channel();
    let began = machine_time();
    let mut trial = Trial { plan, ranks: Vec::new(), events, net, fault: None, report: Report::default() };
    for step in early(plan) {
        // The network is prepared before there are ranks.
        trial.step(&step);
    }
    for rank in 0..plan.ranks {
        match trial.start(rank, folder.path(), &sender) {
            Ok(process) => trial.ranks.push(process),
            Err(error) => {
                trial.report.problems.others.push(format!("rank {rank} cannot be started: {error}"))
            }
        }
    }
    drop(sender);
    for step in &plan.steps[early(plan).len()..] {
        trial.step(step);
    }
    trial.collect();
    trial.end();
    let fault = trial.ranks.iter().filter_map(|rank| rank.fault).chain(trial.fault).max().unwrap_or(began);
    let ends: Vec<_> = trial.ranks.iter().map(|rank| rank.end.clone()).collect();
    judge(&plan.expect, &ends, fault, &mut trial.report.problems);
    for (_, end) in ends.iter().enumerate().filter(|(rank, _)| !plan.expect.exempt.contains(&(*rank as u32)))
    {
        match end {
            Some(End::Error { at, kind, .. }) => {
                trial.report.noticed_ms.push(at.saturating_sub(fault).as_secs_f64() * 1e3);
                trial.report.kinds.push(kind.clone());
            }
            Some(End::Finished) => trial.report.kinds.push("ok".into()),
            None => trial.report.kinds.push("nothing".into()),
        }
    }
    trial.net = None;
    // Rank 0 removes its file unless it is killed.
    let rank_0_is_harmed = plan.expect.exempt.contains(&0) || plan.expect.named.contains(&0);
    trial.report.problems.leaks.extend(leaks::look(folder.path(), own_network, rank_0_is_harmed));
    trial.report
}

pub(crate) fn skipped(why: String) -> Report {
    Report { skipped: Some(why), ..Report::default() }
}

/// Returns the steps that come before the ranks start: changes of the network.
fn early(plan: &Plan) -> Vec<Step> {
    plan.steps.iter().take_while(|step| matches!(step, Step::Net(_))).cloned().collect()
}

/// Removes settings from the environment that must not reach a trial from outside.
pub(crate) fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("KOLO_") || ["RANK", "WORLD_SIZE", "LOCAL_RANK"].contains(&&*text) {
            command.env_remove(&name);
        }
    }
    command.env("RUST_BACKTRACE", "0");
}

impl Trial<'_> {
    fn start(&self, rank: u32, folder: &Path, events: &Sender<Event>) -> std::io::Result<RankProcess> {
        let program = std::env::current_exe()?;
        let (mut command, rendezvous) = match &self.net {
            None => (Command::new(&program), format!("file://{}/job", folder.display())),
            Some(net) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &net.namespace(rank)]).arg(&program);
                (command, format!("tcp://{}:{PORT}", net::address(0)))
            }
        };
        clean(&mut command);
        command
            .args(["rank", "tied=1"])
            .args(&self.plan.words)
            .env("KOLO_RENDEZVOUS", rendezvous)
            .env("KOLO_RANK", rank.to_string())
            .env("KOLO_WORLD_SIZE", self.plan.ranks.to_string())
            .env("KOLO_JOIN_TIMEOUT", "25")
            .env("KOLO_TIMEOUT", "25")
            .env("KOLO_JOB_SECRET", "a secret of this trial")
            .envs(self.plan.way.settings(rank))
            .envs(self.plan.settings.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn()?;
        if let Some(output) = child.stdout.take() {
            let events = events.clone();
            read(output, move |line| {
                drop(events.send(line.map_or(Event::Closed(rank), |line| Event::Line(rank, line))))
            });
        }
        if let Some(output) = child.stderr.take() {
            let events = events.clone();
            read(output, move |line| drop(line.map(|line| events.send(Event::Complaint(rank, line)))));
        }
        Ok(RankProcess { child, is_running: false, is_closed: false, fault: None, end: None })
    }

    /// Handles events until a condition holds for all these ranks. Returns whether it did in time.
    fn until(&mut self, limit: Duration, of: &[u32], condition: impl Fn(&RankProcess) -> bool) -> bool {
        let until = Instant::now() + limit;
        loop {
            let mut asked = of.iter().filter_map(|rank| self.ranks.get(*rank as usize));
            if asked.all(&condition) {
                return true;
            }
            match self.events.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(event) => self.take(event),
                Err(_) => return false,
            }
        }
    }

    fn take(&mut self, event: Event) {
        let (rank, line) = match event {
            Event::Closed(rank) => return self.ranks[rank as usize].is_closed = true,
            Event::Complaint(rank, line) => {
                let expected = self.plan.expect.may_panic && self.plan.expect.named.contains(&rank);
                if line.contains("panicked at") && !expected && !self.plan.expect.exempt.contains(&rank) {
                    self.report.problems.others.push(format!("rank {rank}: {line}"));
                }
                return self.report.said.push(format!("[{rank}] {line}"));
            }
            Event::Line(rank, line) => (rank, line),
        };
        // Events only come from ranks that were started, possibly before all were.
        let process = &mut self.ranks[rank as usize];
        if line == "@running" {
            process.is_running = true;
        } else if let Some(at) = line.strip_prefix("@fault ") {
            process.fault = at.parse().ok().map(Duration::from_nanos);
        } else if line == "@finished" {
            process.end.get_or_insert(End::Finished);
        } else if let Some(json) = line.strip_prefix("@error ") {
            let value: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
            let text = |name: &str| value[name].as_str().unwrap_or_default().to_owned();
            let at = Duration::from_nanos(value["at"].as_u64().unwrap_or(0));
            process.end.get_or_insert(End::Error { at, kind: text("kind"), text: text("text") });
        } else if line.starts_with("@wrong") {
            self.report.problems.others.push(format!("rank {rank}: {line}"));
        }
        if !["@joined", "@running", "@gone"].contains(&line.as_str()) {
            self.report.said.push(format!("[{rank}] {line}"));
        }
    }

    fn step(&mut self, step: &Step) {
        let failed = match step {
            Step::Running => {
                let all: Vec<u32> = (0..self.plan.ranks).collect();
                let running = self.until(STEP_LIMIT, &all, |rank| rank.is_running || rank.end.is_some());
                (!running).then(|| "not all ranks came to work".to_owned())
            }
            Step::End(rank) => {
                let ended = self.until(STEP_LIMIT, &[*rank], |rank| rank.is_closed);
                (!ended).then(|| format!("rank {rank} did not leave"))
            }
            Step::Pause(time) => {
                std::thread::sleep(*time);
                None
            }
            Step::Fault => {
                self.fault = Some(machine_time());
                None
            }
            Step::Signal(rank, signal) => {
                let child = self.ranks.get(*rank as usize).map(|rank| Pid::from_child(&rank.child));
                // The child has not been reaped, so no other process has its number.
                child
                    .and_then(|pid| kill_process(pid, *signal).err())
                    .map(|error| format!("no signal: {error}"))
            }
            Step::Net(change) => self.net.as_ref().and_then(|net| net.change(change).err()),
            Step::Reset { rank, peer, control } => self.net.as_ref().and_then(|net| {
                match net.reset(*rank, *peer, control.then_some(PORT), PORT) {
                    Ok(0) => Some("no connection to reset: cannot this kernel destroy sockets?".to_owned()),
                    Ok(_) => None,
                    Err(why) => Some(why),
                }
            }),
        };
        if let Some(why) = failed {
            match step {
                Step::Reset { .. } | Step::Net(_) => self.report.skipped = Some(why),
                _ => self.report.problems.hangs.push(why),
            }
        }
    }

    fn asked(&self) -> Vec<u32> {
        (0..self.plan.ranks).filter(|rank| !self.plan.expect.exempt.contains(rank)).collect()
    }

    /// Waits for the final report of each rank whose report counts.
    fn collect(&mut self) {
        let acts = self.plan.words.iter().any(|word| word.starts_with("act="));
        // A rank reaches its act after some calls.
        let limit = self.plan.expect.within + if acts { STEP_LIMIT } else { Duration::from_secs(5) };
        let asked = self.asked();
        self.until(limit, &asked, |rank| rank.end.is_some());
        if self.plan.expect.outcome == Outcome::Fine {
            // A rank that harmed itself must also have survived.
            let all: Vec<u32> = (0..self.plan.ranks).collect();
            self.until(Duration::from_secs(5), &all, |rank| rank.end.is_some());
        }
    }

    /// Waits until the processes end, and kills those that do not.
    fn end(&mut self) {
        for rank in &mut self.ranks {
            drop(rank.child.stdin.take());
        }
        let asked = self.asked();
        let said: Vec<u32> = asked
            .into_iter()
            .filter(|rank| self.ranks.get(*rank as usize).is_some_and(|r| r.end.is_some()))
            .collect();
        if !self.until(END_LIMIT, &said, |rank| rank.is_closed) {
            for rank in said.iter().filter(|rank| !self.ranks[**rank as usize].is_closed) {
                self.report.problems.hangs.push(format!("rank {rank} does not end"));
            }
        }
        for rank in &mut self.ranks {
            let _ = rank.child.kill();
            let _ = rank.child.wait();
        }
        // This collects their last lines.
        let all: Vec<u32> = (0..self.ranks.len() as u32).collect();
        self.until(Duration::from_secs(2), &all, |rank| rank.is_closed);
    }
}

/// Reads lines on a thread, and passes each on. `None` marks the end.
fn read(output: impl Read + Send + 'static, take: impl Fn(Option<String>) + Send + 'static) {
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n').map_while(Result::ok) {
            take(Some(String::from_utf8_lossy(&line).into_owned()));
        }
        take(None);
    });
}
