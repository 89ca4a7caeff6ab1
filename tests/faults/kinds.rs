//! Kinds of trials inside one host. Those with a network of their own are in [`super::kinds_net`].

use std::time::Duration;

use rustix::process::Signal;

use crate::acts::Difference;
use crate::plan::{Expect, Launched, Outcome, Plan, Step, Way};
use kolo_tests::random::Random;

/// Requirements of a kind on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    Nothing,
    /// Network namespaces and TUN devices.
    Network,
    /// The program `kolo` beside this one.
    Launcher,
}

/// A kind of trial.
pub(crate) struct Kind {
    pub name: String,
    /// Number of trials of this kind among 300.
    pub weight: usize,
    /// Whether the short run has one.
    pub quick: bool,
    pub needs: Needs,
    pub plan: Box<dyn Fn(&mut Random) -> Plan>,
}

impl std::fmt::Debug for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

impl Kind {
    pub(crate) fn new(
        name: impl Into<String>,
        weight: usize,
        plan: impl Fn(&mut Random) -> Plan + 'static,
    ) -> Self {
        Self { name: name.into(), weight, quick: true, needs: Needs::Nothing, plan: Box::new(plan) }
    }

    /// Leaves the kind out of the short run, because it takes long or another kind shows nearly the same.
    pub(crate) fn long(self) -> Self {
        Self { quick: false, ..self }
    }
}

/// Seconds in which ranks must report that a process is gone, on a machine that is also busy with other things.
const SOON_S: u64 = 6;

/// Errors about a refusal of this rank's system, or about its effect on others while they join.
const WHILE_JOINING: &[&str] = &["Join", "System", "PeerLost", "Aborted", "Transport"];

/// Returns all kinds inside one host.
pub(crate) fn all() -> Vec<Kind> {
    let mut kinds = deaths();
    kinds.extend(ends());
    kinds.extend(differences());
    kinds.extend(pauses());
    kinds.extend(limits());
    kinds.extend(forms());
    kinds.extend(launchers());
    kinds
}

fn moment(draw: &mut Random, most_ms: u64) -> Duration {
    Duration::from_micros(draw.below(most_ms * 1000))
}

/// Plans ranks that make calls until something fails.
fn at_work(draw: &mut Random, ranks: u32, way: Way, expect: Expect) -> Plan {
    let longest = if ranks > 8 { 3000 } else { draw.pick(&[60_000, 60_000, 600_000]) };
    Plan::new(ranks, way, expect).word("seed", draw.number() >> 1).word("longest", longest)
}

fn kill_at_work(draw: &mut Random, ranks: u32, victims: &[u32]) -> Plan {
    let way = draw.pick(&Way::LOCAL);
    let within = if ranks > 8 { 2 * SOON_S } else { SOON_S };
    let signals = victims.iter().map(|victim| Step::Signal(*victim, Signal::KILL));
    at_work(draw, ranks, way, Expect::new(Outcome::Lost, victims, within))
        .then([Step::Running, Step::Pause(moment(draw, 60)), Step::Fault])
        .then(signals)
}

fn deaths() -> Vec<Kind> {
    let mut kinds = vec![
        Kind::new("kill -9", 28, |draw| {
            let ranks = draw.pick(&[2, 4, 4, 8]);
            let victim = draw.between(1, u64::from(ranks) - 1) as u32;
            kill_at_work(draw, ranks, &[victim])
        }),
        Kind::new("kill -9, 33 ranks", 3, |draw| {
            let victim = draw.below(33) as u32;
            kill_at_work(draw, 33, &[victim])
        })
        .long(),
        Kind::new("kill -9 rank 0", 10, |draw| {
            let ranks = draw.pick(&[2, 4, 8]);
            kill_at_work(draw, ranks, &[0])
        }),
        Kind::new("kill -9 two ranks at once", 5, |draw| {
            let first = draw.between(1, 3) as u32;
            let second = draw.between(4, 7) as u32;
            kill_at_work(draw, 8, &[first, second])
        }),
        Kind::new("kill -9 while the job starts", 10, |draw| {
            let (ranks, way) = (draw.pick(&[2, 4, 8]), draw.pick(&Way::LOCAL));
            let victim = draw.below(u64::from(ranks)) as u32;
            // A rank that has not joined yet is missing at the deadline for joining, and the error then names it.
            let expect = Expect::new(Outcome::Told(WHILE_JOINING), &[victim], 3 + SOON_S);
            at_work(draw, ranks, way, expect).set("KOLO_JOIN_TIMEOUT", 3).then([
                Step::Pause(moment(draw, 120)),
                Step::Fault,
                Step::Signal(victim, Signal::KILL),
            ])
        }),
        Kind::new("kill -9 while communicators are made", 6, |draw| {
            let (ranks, way) = (draw.pick(&[4, 8]), draw.pick(&Way::LOCAL));
            let victim = draw.between(1, u64::from(ranks) - 1) as u32;
            Plan::new(ranks, way, Expect::new(Outcome::Told(WHILE_JOINING), &[victim], SOON_S))
                .word("work", "split")
                .then([Step::Running, Step::Pause(moment(draw, 100)), Step::Fault])
                .then([Step::Signal(victim, Signal::KILL)])
        }),
    ];
    for work in ["started", "symmetric", "messages", "any"] {
        let kind = Kind::new(format!("kill -9, {work}"), 4, move |draw| {
            let (ranks, way) = (4, draw.pick(&Way::LOCAL));
            // Rank 0 serves messages from any source, so it is not the victim.
            let victim = draw.between(1, 3) as u32;
            Plan::new(ranks, way, Expect::new(Outcome::Lost, &[victim], SOON_S))
                .word("work", work)
                .then([Step::Running, Step::Pause(moment(draw, 60)), Step::Fault])
                .then([Step::Signal(victim, Signal::KILL)])
        });
        kinds.push(if work == "any" { kind } else { kind.long() });
    }
    for (name, signal) in [("then kill -9", Signal::KILL), ("then SIGTERM", Signal::TERM)] {
        kinds.push(Kind::new(format!("rank 0 left in order, {name}"), 4, move |draw| {
            let way = draw.pick(&[Way::Shm, Way::Shm, Way::ShmPlans, Way::Tcp]);
            let victim = draw.between(1, 3) as u32;
            // Errors use the numbering of the communicator without rank 0.
            let mut expect = Expect::new(Outcome::Lost, &[victim - 1], SOON_S);
            expect.exempt = vec![0, victim];
            Plan::new(4, way, expect).word("work", "part").word("longest", draw.pick(&[1000, 200_000])).then(
                [Step::End(0), Step::Pause(moment(draw, 60)), Step::Fault, Step::Signal(victim, signal)],
            )
        }));
    }
    kinds
}

/// Plans a rank that does something to itself before a call.
fn own_act(draw: &mut Random, ranks: u32, victim: u32, act: &str, expect: Expect) -> Plan {
    let way = draw.pick(&Way::LOCAL);
    at_work(draw, ranks, way, expect).word("act", act).word("at", draw.between(1, 60)).word("who", victim)
}

fn ends() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (act, weight, says) in [
        ("exit", 4, &[][..]),
        ("fail", 4, &[]),
        ("panic", 6, &["panicked"]),
        ("abort", 4, &[]),
        ("segv", 4, &[]),
        ("drop", 5, &["dropped its communicator"]),
        ("exec", 4, &[]),
        ("close-all", 4, &[]),
    ] {
        kinds.push(Kind::new(format!("a rank's end: {act}"), weight, move |draw| {
            let victim = draw.below(4) as u32;
            let mut expect = Expect::new(Outcome::Lost, &[victim], SOON_S).says(says);
            expect.may_panic = matches!(act, "panic" | "close-all");
            own_act(draw, 4, victim, act, expect)
        }));
    }
    for act in ["panic-in-thread", "fork-call", "fork-drop"] {
        kinds.push(Kind::new(act.replace('-', " "), 4, move |draw| {
            let victim = draw.below(3) as u32;
            let mut expect = Expect::new(Outcome::Fine, &[victim], 15).of_all();
            expect.may_panic = act == "panic-in-thread";
            own_act(draw, 3, victim, act, expect).word("calls", 120)
        }));
    }
    kinds
}

fn differences() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (name, difference) in Difference::ALL {
        kinds.push(Kind::new(format!("mismatch: {name}"), 4, move |draw| {
            let ranks = draw.pick(&[2, 4, 4, 8]);
            let victim = draw.below(u64::from(ranks)) as u32;
            let within = match difference {
                // A message that nobody receives cannot be distinguished from one that will still be received.
                Difference::Send => 3 + SOON_S,
                _ => SOON_S,
            };
            let outcome = match difference {
                Difference::Send => Outcome::Told(&["Mismatch", "Aborted", "Timeout"]),
                _ => Outcome::Mismatch,
            };
            let expect = Expect::new(outcome, &[victim], within).of_all();
            own_act(draw, ranks, victim, name, expect)
                .set("KOLO_TIMEOUT", if within > SOON_S { 3 } else { 25 })
        }));
    }
    kinds.push(
        Kind::new("mismatch: count, 33 ranks", 2, |draw| {
            let victim = draw.below(33) as u32;
            own_act(draw, 33, victim, "count", Expect::new(Outcome::Mismatch, &[victim], 2 * SOON_S).of_all())
        })
        .long(),
    );
    kinds
}

/// Plans a rank that is stopped, and stays so unless the trial lets it continue.
fn stopped(draw: &mut Random, victim: u32, way: Way, expect: Expect) -> Plan {
    at_work(draw, 4, way, expect).then([
        Step::Running,
        Step::Pause(moment(draw, 30)),
        Step::Fault,
        Step::Signal(victim, Signal::STOP),
    ])
}

fn pauses() -> Vec<Kind> {
    vec![
        Kind::new("SIGSTOP for a while, SIGCONT", 6, |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.below(4) as u32);
            stopped(draw, victim, way, Expect::new(Outcome::Fine, &[victim], 25).of_all())
                .word("calls", 2000)
                .word("longest", 1000)
                .then([
                    Step::Pause(Duration::from_millis(draw.between(300, 3000))),
                    Step::Signal(victim, Signal::CONT),
                ])
        }),
        Kind::new("SIGSTOP for ever, KOLO_TIMEOUT=4", 8, |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.between(1, 3) as u32);
            stopped(draw, victim, way, Expect::new(Outcome::Late, &[victim], 4 + SOON_S))
                .set("KOLO_TIMEOUT", 4)
        }),
        Kind::new("SIGSTOP for ever, KOLO_DEAD_AFTER=2", 4, |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.between(1, 3) as u32);
            stopped(draw, victim, way, Expect::new(Outcome::Lost, &[victim], 3 + SOON_S))
                .set("KOLO_DEAD_AFTER", 2)
        })
        .long(),
        Kind::new("SIGSTOP rank 0 for ever, KOLO_TIMEOUT=4", 6, |draw| {
            let way = draw.pick(&[Way::Shm, Way::ShmPlans, Way::Tcp, Way::Tcp]);
            stopped(draw, 0, way, Expect::new(Outcome::Late, &[0], 4 + 2 * SOON_S)).set("KOLO_TIMEOUT", 4)
        }),
        Kind::new("late by 2 s", 3, |draw| {
            let victim = draw.below(4) as u32;
            own_act(draw, 4, victim, "late", Expect::new(Outcome::Fine, &[victim], 20).of_all())
                .word("late_ms", 2000)
                .word("calls", 80)
        }),
        Kind::new("late to join by 2 s", 2, |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.below(4) as u32);
            at_work(draw, 4, way, Expect::new(Outcome::Fine, &[victim], 20).of_all())
                .word("who", victim)
                .word("join_late_ms", 2000)
                .word("calls", 20)
        })
        .long(),
        Kind::new("late beyond KOLO_TIMEOUT=4", 3, |draw| {
            let victim = draw.below(4) as u32;
            own_act(draw, 4, victim, "late", Expect::new(Outcome::Late, &[victim], 4 + SOON_S))
                .word("late_ms", 10_000)
                .set("KOLO_TIMEOUT", 4)
        }),
    ]
}

fn limits() -> Vec<Kind> {
    let files = &["open files", "descriptors", "os error 24"];
    vec![
        Kind::new("no memory beyond 4 MiB, RLIMIT_AS", 4, |draw| {
            let victim = draw.below(4) as u32;
            own_act(draw, 4, victim, "memory-limit", Expect::new(Outcome::Fine, &[victim], 20).of_all())
                .word("longest", 1000)
                .word("calls", 200)
        })
        .long(),
        Kind::new("symmetric memory beyond RLIMIT_AS", 5, |draw| {
            let victim = draw.below(4) as u32;
            let outcome = Outcome::Told(&["Unsupported"]);
            own_act(draw, 4, victim, "allocate", Expect::new(outcome, &[victim], 15).of_all())
                .word("calls", 80)
        }),
        Kind::new("RLIMIT_AS before joining", 5, |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.below(4) as u32);
            let expect = Expect::new(Outcome::FineOrTold(WHILE_JOINING), &[victim], 20);
            at_work(draw, 4, way, expect)
                .word("who", victim)
                .word("space_mib", draw.between(1, 160))
                .word("longest", 1000)
                .word("calls", 50)
                .set("KOLO_JOIN_TIMEOUT", 4)
        }),
        Kind::new("RLIMIT_NOFILE on one rank", 10, move |draw| {
            let (way, victim) = (draw.pick(&Way::LOCAL), draw.below(8) as u32);
            let expect = Expect::new(Outcome::FineOrTold(WHILE_JOINING), &[victim], 20).of_all().says(files);
            at_work(draw, 8, way, expect)
                .word("who", victim)
                .word("files", draw.between(5, 40))
                .word("longest", 1000)
                .word("calls", 60)
                .set("KOLO_JOIN_TIMEOUT", 4)
                .set("KOLO_TIMEOUT", 5)
        }),
        Kind::new("the TCP acceptor out of descriptors", 6, move |draw| {
            // All other ranks dial the last one. The number of descriptors is a little more or less than joining itself
            // needs.
            let expect = Expect::new(Outcome::FineOrTold(WHILE_JOINING), &[7], 20).of_all().says(files);
            at_work(draw, 8, Way::Tcp, expect)
                .word("who", 7)
                .word("files", draw.between(12, 18))
                .word("longest", 60_000)
                .word("calls", 60)
                .set("KOLO_JOIN_TIMEOUT", 4)
                .set("KOLO_TIMEOUT", 5)
        }),
        Kind::new("RLIMIT_NOFILE, 33 ranks", 2, move |draw| {
            let way = draw.pick(&[Way::Shm, Way::Tcp]);
            let victim = draw.below(33) as u32;
            let expect = Expect::new(Outcome::FineOrTold(WHILE_JOINING), &[victim], 25).of_all().says(files);
            at_work(draw, 33, way, expect)
                .word("who", victim)
                .word("files", draw.between(16, 120))
                .word("calls", 30)
                .set("KOLO_JOIN_TIMEOUT", 6)
                .set("KOLO_TIMEOUT", 8)
        })
        .long(),
    ]
}

fn forms() -> Vec<Kind> {
    vec![
        Kind::new("two threads with blocking calls, shm", 8, |draw| {
            let ranks = draw.pick(&[4, 4, 8]);
            Plan::new(ranks, Way::Shm, Expect::new(Outcome::Fine, &[], 20).of_all())
                .word("work", "threads")
                .word("longest", draw.pick(&[8, 1024, 200_000]))
                .word("calls", 40)
        }),
        Kind::new("two threads with blocking calls, others", 3, |draw| {
            let way = draw.pick(&[Way::ShmPlans, Way::Tcp, Way::Hosts]);
            Plan::new(4, way, Expect::new(Outcome::Fine, &[], 20).of_all())
                .word("work", "threads")
                .word("longest", draw.pick(&[8, 1024, 200_000]))
                .word("calls", 40)
        })
        .long(),
    ]
}

fn launchers() -> Vec<Kind> {
    let mut kinds = Vec::new();
    for (name, weight, script) in [
        ("the rank itself", 3, "exec RANK_PROGRAM"),
        ("a child", 4, "RANK_PROGRAM; true"),
        ("ranks in its group ignore signals", 4, "(trap '' TERM INT HUP; exec sleep 60) & RANK_PROGRAM"),
        (
            "ranks in a session of their own ignore signals",
            4,
            "trap '' TERM; setsid sleep 60 & RANK_PROGRAM; true",
        ),
    ] {
        let mut kind = Kind::new(format!("end of the launcher, {name}"), weight, move |draw| {
            let (ranks, way) = (draw.pick(&[1, 2, 4]), draw.pick(&[Way::Shm, Way::Tcp]));
            let launched = Launched {
                script,
                signal: draw.pick(&[Signal::KILL, Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP]),
                after: moment(draw, 400),
            };
            let plan = Plan::new(ranks, way, Expect::new(Outcome::Fine, &[], 10)).word("longest", 1000);
            Plan { launched: Some(launched), ..plan }
        });
        kind.needs = Needs::Launcher;
        kinds.push(kind);
    }
    kinds
}
