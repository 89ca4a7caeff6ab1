//! Kinds of trials whose ranks are on hosts of their own, with a network that fails.

use std::time::Duration;

use rustix::process::Signal;

use crate::kinds::{Kind, Needs};
use crate::net::{Change, Rule};
use crate::plan::{Expect, Outcome, Plan, Step, Way};
use kolo_tests::random::Random;

/// Seconds for reports of what is noticed at once. Silence takes additional time.
const SOON_S: u64 = 6;

/// Returns all kinds with a network.
pub(crate) fn all() -> Vec<Kind> {
    let mut kinds = resets();
    kinds.extend(cuts());
    kinds.extend(weather());
    for kind in &mut kinds {
        kind.needs = Needs::Network;
    }
    kinds
}

fn at_work(draw: &mut Random, expect: Expect) -> Plan {
    Plan::new(4, Way::Network, expect).word("seed", draw.number() >> 1).word("longest", 3000)
}

/// Plans ranks that make calls, and changes the network once all do.
fn change_at_work(draw: &mut Random, expect: Expect, change: Change) -> Plan {
    at_work(draw, expect).then([
        Step::Running,
        Step::Pause(Duration::from_millis(draw.below(60))),
        Step::Fault,
        Step::Net(change),
    ])
}

fn two_ranks(draw: &mut Random) -> (u32, u32) {
    let first = draw.between(1, 3) as u32;
    (first, 1 + (first + draw.below(2) as u32) % 3)
}

fn resets() -> Vec<Kind> {
    vec![
        Kind::new("one data connection reset", 5, |draw| {
            let (rank, peer) = two_ranks(draw);
            let expect = Expect::new(Outcome::Pair, &[rank, peer], SOON_S).of_all();
            at_work(draw, expect)
                .then([Step::Running, Step::Pause(Duration::from_millis(draw.below(60))), Step::Fault])
                .then([Step::Reset { rank, peer, control: false }])
        }),
        Kind::new("control connection reset", 3, |draw| {
            let rank = draw.between(1, 3) as u32;
            let expect = Expect::new(Outcome::Lost, &[rank], SOON_S);
            at_work(draw, expect).then([
                Step::Running,
                Step::Fault,
                Step::Reset { rank, peer: 0, control: true },
            ])
        }),
    ]
}

fn cuts() -> Vec<Kind> {
    vec![
        Kind::new("host cut off silently, KOLO_DEAD_AFTER=2", 4, |draw| {
            let victim = draw.between(1, 3) as u32;
            let expect = Expect::new(Outcome::Lost, &[victim], 3 + SOON_S);
            change_at_work(draw, expect, Change::cut_off(victim))
                .set("KOLO_DEAD_AFTER", 2)
                .set("KOLO_TIMEOUT", 12)
        }),
        Kind::new("host that only receives, KOLO_DEAD_AFTER=2", 3, |draw| {
            let victim = draw.between(1, 3) as u32;
            let expect = Expect::new(Outcome::Lost, &[victim], 3 + SOON_S);
            change_at_work(draw, expect, Change::Rules(vec![Rule::cut(Some(victim), None)]))
                .set("KOLO_DEAD_AFTER", 2)
                .set("KOLO_TIMEOUT", 12)
        })
        .long(),
        Kind::new("host cut off silently, KOLO_TIMEOUT=3", 2, |draw| {
            let victim = draw.between(1, 3) as u32;
            let expect = Expect::new(Outcome::Late, &[victim], 3 + SOON_S);
            change_at_work(draw, expect, Change::cut_off(victim)).set("KOLO_TIMEOUT", 3)
        })
        .long(),
        Kind::new("one pair cut silently, KOLO_TIMEOUT=3", 4, |draw| {
            let (rank, peer) = two_ranks(draw);
            let expect = Expect::new(Outcome::Pair, &[rank, peer], 3 + SOON_S).of_all();
            change_at_work(draw, expect, Change::cut_pair(rank, peer)).set("KOLO_TIMEOUT", 3)
        }),
        Kind::new("one pair cut in one direction, KOLO_TIMEOUT=3", 3, |draw| {
            let (rank, peer) = two_ranks(draw);
            let expect = Expect::new(Outcome::Pair, &[rank, peer], 3 + SOON_S).of_all();
            change_at_work(draw, expect, Change::Rules(vec![Rule::cut(Some(rank), Some(peer))]))
                .set("KOLO_TIMEOUT", 3)
        })
        .long(),
        Kind::new("one pair cut from the start, KOLO_RELAY=off", 3, |draw| {
            let (rank, peer) = two_ranks(draw);
            let outcome = Outcome::Told(&["Join", "PeerLost", "Aborted", "Transport", "Timeout"]);
            let expect = Expect::new(outcome, &[rank, peer], 25).of_all();
            at_work(draw, expect)
                .set("KOLO_RELAY", "off")
                .set("KOLO_JOIN_TIMEOUT", 8)
                .set("KOLO_TIMEOUT", 8)
                .then([Step::Net(Change::cut_pair(rank, peer)), Step::Fault])
        }),
        Kind::new("host cut off while joining", 3, |draw| {
            let victim = draw.between(1, 3) as u32;
            let expect = Expect::new(Outcome::Told(&["Join"]), &[victim], 20);
            at_work(draw, expect)
                .set("KOLO_JOIN_TIMEOUT", 3)
                .then([Step::Net(Change::cut_off(victim)), Step::Fault])
        })
        .long(),
    ]
}

/// Plans conditions that programs must tolerate: no errors, right results.
fn fine(draw: &mut Random, calls: u64) -> Plan {
    at_work(draw, Expect::new(Outcome::Fine, &[], 25).of_all()).word("calls", calls).word("pause_us", 500)
}

fn weather() -> Vec<Kind> {
    vec![
        // The two ranks meet through rank 0.
        Kind::new("one pair cut from the start", 2, |draw| {
            let rank = draw.between(1, 2) as u32;
            fine(draw, 80).then([Step::Net(Change::cut_pair(rank, 3)), Step::Fault])
        }),
        Kind::new("loss of 5 %", 2, |draw| {
            fine(draw, 80).then([
                Step::Running,
                Step::Fault,
                Step::Net(Change::everywhere(5, Duration::ZERO)),
            ])
        }),
        Kind::new("loss of 20 %", 1, |draw| {
            // A segment that is lost several times in a row takes many seconds.
            let mut plan = fine(draw, 20).set("KOLO_TIMEOUT", 60);
            plan.expect.within = Duration::from_secs(55);
            plan.then([Step::Running, Step::Fault, Step::Net(Change::everywhere(20, Duration::ZERO))])
        })
        .long(),
        Kind::new("delay of 100 ms", 2, |draw| {
            let delay = Change::everywhere(0, Duration::from_millis(100));
            fine(draw, 20).then([Step::Net(delay), Step::Fault])
        })
        .long(),
        Kind::new("packets of 576 bytes", 2, |draw| {
            fine(draw, 150).then([Step::Running, Step::Fault, Step::Net(Change::Mtu(576))])
        }),
        Kind::new("cut for a while and healed", 3, |draw| {
            let victim = draw.below(4) as u32;
            fine(draw, 300).then([
                Step::Running,
                Step::Fault,
                Step::Net(Change::cut_off(victim)),
                Step::Pause(Duration::from_millis(draw.between(300, 2000))),
                Step::Net(Change::heal()),
            ])
        })
        .long(),
        Kind::new("kill -9 with a delay of 100 ms", 2, |draw| {
            let victim = draw.between(1, 3) as u32;
            at_work(draw, Expect::new(Outcome::Lost, &[victim], SOON_S)).then([
                Step::Net(Change::everywhere(0, Duration::from_millis(100))),
                Step::Running,
                Step::Fault,
                Step::Signal(victim, Signal::KILL),
            ])
        })
        .long(),
        Kind::new("mismatch with a delay of 100 ms", 2, |draw| {
            let victim = draw.below(4) as u32;
            at_work(draw, Expect::new(Outcome::Mismatch, &[victim], SOON_S).of_all())
                .word("act", "count")
                .word("at", 6)
                .word("who", victim)
                .then([Step::Net(Change::everywhere(0, Duration::from_millis(100)))])
        })
        .long(),
    ]
}
