//! The simulated processes, the network between them, and the invariants.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use super::faults::{Fault, MENDED, Scenario};
use super::{Flaw, Random};
use crate::{Agreement, Decision, Message, Set, Settings, State, Vote};

/// Epochs that a run goes through if its processes live.
const EPOCHS: usize = 4;

/// Time by which everything must be decided, including the pauses after refused ballots and the waiting for silent
/// members.
const END: Duration = Duration::from_secs(60);

/// How much later some members call if the others do not wait for them. If the others waited, there would be no time
/// for all epochs.
const LATE: Duration = Duration::from_secs(20);

const BEAT: Duration = Duration::from_millis(100);
const SILENT: Duration = Duration::from_secs(1);

#[derive(Debug)]
enum Event {
    Tick { process: u32, epoch: usize },
    Calls { process: u32, epoch: usize },
    Overdue { process: u32, epoch: usize },
    Arrives { from: u32, to: u32, epoch: usize, message: Message },
    Certified { process: u32, dead: u32 },
    Fault(usize),
    Resumes(u32),
    Mended(u64),
}

#[derive(Debug)]
struct Process {
    lives: bool,
    paused_until: Duration,
    fenced: bool,
    known_dead: Set,
    /// The agreement of each epoch, with its members as processes.
    epochs: Vec<(Vec<u32>, Agreement)>,
    decisions: Vec<Set>,
    /// Epochs in which the process has called.
    called: BTreeSet<usize>,
}

pub(super) struct World {
    scenario: Scenario,
    flaw: Option<Flaw>,
    random: Random,
    now: Duration,
    events: BinaryHeap<Reverse<(Duration, u64)>>,
    bodies: BTreeMap<u64, Event>,
    next: u64,
    processes: Vec<Process>,
    /// Cut cables, each with its source, its destination and the fault that cut it.
    cuts: Vec<(u32, u32, u64)>,
    pub(super) steps: u64,
    pub(super) trace: Vec<String>,
}

impl World {
    pub(super) fn new(scenario: &Scenario, flaw: Option<Flaw>) -> Self {
        let mut world = Self {
            random: Random(scenario.seed ^ 0x5eed),
            flaw,
            now: Duration::ZERO,
            events: BinaryHeap::new(),
            bodies: BTreeMap::new(),
            next: 0,
            processes: Vec::new(),
            cuts: Vec::new(),
            steps: 0,
            trace: Vec::new(),
            scenario: scenario.clone(),
        };
        for process in 0..scenario.processes {
            world.processes.push(Process {
                lives: true,
                paused_until: Duration::ZERO,
                fenced: false,
                known_dead: Set::default(),
                epochs: Vec::new(),
                decisions: Vec::new(),
                called: BTreeSet::new(),
            });
            world.begin(process, (0..scenario.processes).collect());
        }
        for i in 0..scenario.faults.len() {
            world.put(scenario.faults[i].0, Event::Fault(i));
        }
        world
    }

    /// Runs to the end. An error says which invariant was broken.
    pub(super) fn run(&mut self) -> Result<(), String> {
        while let Some(Reverse((at, number))) = self.events.pop() {
            self.now = at;
            if at > END {
                break;
            }
            let event = self.bodies.remove(&number).expect("each event has a body");
            self.steps += 1;
            self.happens(event)?;
        }
        self.check_progress()
    }

    fn put(&mut self, at: Duration, event: Event) {
        self.events.push(Reverse((at, self.next)));
        self.bodies.insert(self.next, event);
        self.next += 1;
    }

    fn within(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64 + 1))
    }

    fn begin(&mut self, process: u32, members: Vec<u32>) {
        let epoch = self.processes[process as usize].epochs.len();
        let place = |of: u32| members.iter().position(|member| *member == of).map(|i| i as u32);
        let first = members.first().copied();
        let settings = Settings {
            members: members.len() as u32,
            me: place(process).expect("only members begin"),
            beat: BEAT,
            silent_after: SILENT,
            stranded_after: self.scenario.stranded_after,
        };
        let mut agreement = Agreement::new(settings, self.now);
        agreement.flaw = self.flaw;
        for dead in self.processes[process as usize].known_dead.clone().iter().filter_map(place) {
            agreement.gone(dead, self.now);
        }
        self.processes[process as usize].epochs.push((members, agreement));
        // At least one member must call in time.
        let may_be_late = self.scenario.patience.is_some() && first != Some(process);
        let is_late = may_be_late && self.random.one_in(2);
        let call =
            self.now + self.within(self.scenario.call_max) + if is_late { LATE } else { Duration::ZERO };
        self.put(call, Event::Calls { process, epoch });
    }

    fn lives(&self, process: u32) -> bool {
        self.processes[process as usize].lives
    }

    fn happens(&mut self, event: Event) -> Result<(), String> {
        let now = self.now;
        let busy = match &event {
            Event::Tick { process, .. }
            | Event::Calls { process, .. }
            | Event::Overdue { process, .. }
            | Event::Certified { process, .. } => Some(*process),
            Event::Arrives { to, .. } => Some(*to),
            _ => None,
        };
        if let Some(process) = busy {
            if !self.lives(process) {
                return Ok(());
            }
            let until = self.processes[process as usize].paused_until;
            if until > now {
                self.put(until, event);
                return Ok(());
            }
        }
        match event {
            Event::Tick { process, epoch } => {
                self.processes[process as usize].epochs[epoch].1.tick(now);
                self.settle(process, epoch)
            }
            Event::Calls { process, epoch } => {
                let vote =
                    Vote { kinds: 1, flags: self.random.next() | 1, seed: [self.random.next() as u8; 32] };
                // A suspicion may be wrong.
                if self.scenario.suspects && self.random.one_in(4) {
                    let members = self.processes[process as usize].epochs[epoch].0.len() as u64;
                    let suspect = self.random.below(members) as u32;
                    self.processes[process as usize].epochs[epoch].1.suspect(suspect, now);
                }
                self.note(|| format!("process {process} calls in epoch {epoch}"));
                self.processes[process as usize].called.insert(epoch);
                self.processes[process as usize].epochs[epoch].1.vote(vote, now);
                if let Some(patience) = self.scenario.patience {
                    self.put(now + patience, Event::Overdue { process, epoch });
                }
                self.settle(process, epoch)
            }
            Event::Overdue { process, epoch } => {
                self.note(|| format!("process {process} waits no longer in epoch {epoch}"));
                self.processes[process as usize].epochs[epoch].1.wait_no_longer(now);
                self.settle(process, epoch)
            }
            Event::Arrives { from, to, epoch, message } => {
                let Some((members, agreement)) = self.processes[to as usize].epochs.get_mut(epoch) else {
                    return Ok(()); // the epoch has not begun there; the sender repeats the message
                };
                let Some(place) = members.iter().position(|member| *member == from) else { return Ok(()) };
                agreement.receive(place as u32, message, now);
                self.settle(to, epoch)
            }
            Event::Certified { process, dead } => {
                self.processes[process as usize].known_dead.insert(dead);
                for epoch in 0..self.processes[process as usize].epochs.len() {
                    let (members, agreement) = &mut self.processes[process as usize].epochs[epoch];
                    if let Some(place) = members.iter().position(|member| *member == dead) {
                        agreement.gone(place as u32, now);
                        self.settle(process, epoch)?;
                    }
                }
                Ok(())
            }
            Event::Fault(number) => {
                self.fault(number as u64);
                Ok(())
            }
            Event::Resumes(process) => {
                self.note(|| format!("process {process} goes on"));
                Ok(())
            }
            Event::Mended(number) => {
                self.cuts.retain(|(_, _, by)| *by != number);
                Ok(())
            }
        }
    }

    fn fault(&mut self, number: u64) {
        let fault = self.scenario.faults[number as usize].1.clone();
        self.note(|| format!("{fault:?}"));
        match fault {
            Fault::Die(victims) => {
                // Processes learn of deaths at once or late, but always before the end of the repairs.
                let most = Duration::from_millis([1, 1500][self.random.below(2) as usize]);
                for victim in victims.into_iter().filter(|victim| self.lives(*victim)).collect::<Vec<_>>() {
                    self.processes[victim as usize].lives = false;
                    for process in 0..self.scenario.processes {
                        let at = self.now + self.within(most);
                        self.put(at, Event::Certified { process, dead: victim });
                    }
                }
            }
            Fault::Pauses(victim, length) => {
                self.processes[victim as usize].paused_until = self.now + length;
                self.put(self.now + length, Event::Resumes(victim));
            }
            Fault::Cut { side, both_ways, length } => {
                for from in &side {
                    for to in (0..self.scenario.processes).filter(|to| !side.contains(to)) {
                        self.cuts.push((*from, to, number));
                        if both_ways {
                            self.cuts.push((to, *from, number));
                        }
                    }
                }
                self.put(self.now + length, Event::Mended(number));
            }
        }
    }

    /// Sends a member's messages, records its decision, and continues with the next epoch.
    fn settle(&mut self, process: u32, epoch: usize) -> Result<(), String> {
        let now = self.now;
        let (members, agreement) = &mut self.processes[process as usize].epochs[epoch];
        let members = members.clone();
        let messages = agreement.take_messages();
        let (state, due) = (agreement.state(now), agreement.next_wakeup());
        for (to, message) in messages {
            self.send(process, members[to as usize], epoch, message);
        }
        if let Some(due) = due {
            // One beat may be due several times. The later ticks then find nothing to do.
            let is_new = self.random.one_in(4) || due > now + BEAT / 2;
            if is_new && self.bodies.len() < 100_000 {
                self.put(due, Event::Tick { process, epoch });
            }
        }
        match state {
            State::Decided(decision) if self.processes[process as usize].decisions.len() == epoch => {
                self.decided(process, epoch, &members, &decision)
            }
            _ => Ok(()),
        }
    }

    fn send(&mut self, from: u32, to: u32, epoch: usize, message: Message) {
        let is_mended = self.now >= MENDED * 2;
        let is_lost = self.scenario.loses_one_in > 0 && self.random.one_in(self.scenario.loses_one_in);
        let is_cut = self.cuts.iter().any(|(a, b, _)| (*a, *b) == (from, to));
        self.note(|| {
            let fate = if is_cut || (is_lost && !is_mended) { " (lost)" } else { "" };
            format!("{from} -> {to}, epoch {epoch}: {message:?}{fate}")
        });
        if is_cut || (is_lost && !is_mended) {
            return;
        }
        let copies = if self.random.one_in(20) { 2 } else { 1 };
        for _ in 0..copies {
            // Most messages are fast, so that a slow one arrives at members that are far ahead of it.
            let most = self.scenario.delay_max / if self.random.one_in(5) { 1 } else { 200 };
            let at = self.now + self.within(most);
            self.put(at, Event::Arrives { from, to, epoch, message: message.clone() });
        }
    }

    fn decided(
        &mut self,
        process: u32,
        epoch: usize,
        members: &[u32],
        decision: &Decision,
    ) -> Result<(), String> {
        let survivors: Set = decision.members.iter().map(|place| members[place as usize]).collect();
        self.note(|| format!("process {process} decides in epoch {epoch}: {survivors:?}"));
        for (other, theirs) in self.processes.iter().enumerate() {
            if let Some(known) = theirs.decisions.get(epoch).filter(|_| theirs.lives)
                && *known != survivors
            {
                return Err(format!(
                    "process {process} decided {survivors:?} in epoch {epoch}, process {other} {known:?}"
                ));
            }
        }
        let absent =
            survivors.iter().find(|member| !self.processes[*member as usize].called.contains(&epoch));
        if let Some(absent) = absent.filter(|_| decision.flags != 0 || self.scenario.patience.is_none()) {
            return Err(format!("process {absent} has not called in epoch {epoch}: {decision:?}"));
        }
        let own = &mut self.processes[process as usize];
        own.decisions.push(survivors.clone());
        if !survivors.contains(process) {
            own.fenced = true;
            return Ok(());
        }
        if let Some(outsider) = survivors.iter().find(|member| !members.contains(member)) {
            return Err(format!(
                "process {outsider} is in epoch {} and was not in the one before",
                epoch + 1
            ));
        }
        if epoch + 1 < EPOCHS {
            self.begin(process, survivors.iter().collect());
        }
        Ok(())
    }

    /// Checks progress: everything was repaired long ago, so every process that lives and is not fenced must have seen
    /// all epochs, or have given up.
    fn check_progress(&self) -> Result<(), String> {
        for (number, process) in self.processes.iter().enumerate() {
            if process.lives && !process.fenced && process.decisions.len() < EPOCHS {
                let state = process.epochs.last().map(|(_, agreement)| agreement.state(self.now));
                if state == Some(State::Stranded) {
                    continue;
                }
                return Err(format!(
                    "process {number} lives and hangs in epoch {}: {state:?}",
                    process.decisions.len()
                ));
            }
        }
        Ok(())
    }

    fn note(&mut self, what: impl FnOnce() -> String) {
        // The trace is only kept if it will be read.
        if self.trace.capacity() > 0 {
            self.trace.push(format!("{:>9.3} ms  {}", self.now.as_secs_f64() * 1e3, what()));
        }
    }
}
