//! Thousands of simulated runs, and the report on one that fails.

use std::time::Duration;

use super::Flaw;
use super::faults::Scenario;
use super::world::World;
use crate::{Agreement, Message, Settings, State, Vote};

/// Number of steps in the ordinary test.
const STEPS: u64 = 10_000_000;

/// Lines of a trace that are shown.
const SHOWN: usize = 200;

fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.replace('_', "").parse().ok()
}

/// Shortens a failing run by leaving out faults while it still fails.
fn shrink(mut scenario: Scenario, flaw: Option<Flaw>) -> (Scenario, String) {
    let fails = |scenario: &Scenario| World::new(scenario, flaw).run().err();
    let mut problem = fails(&scenario).expect("it failed before");
    loop {
        let mut shorter = (0..scenario.faults.len()).filter_map(|i| {
            let mut less = scenario.clone();
            less.faults.remove(i);
            fails(&less).map(|problem| (less, problem))
        });
        match shorter.next() {
            Some((less, still)) => (scenario, problem) = (less, still),
            None => break,
        }
    }
    for simpler in [|s: &mut Scenario| s.loses_one_in = 0, |s: &mut Scenario| s.call_max /= 1000] {
        let mut less = scenario.clone();
        simpler(&mut less);
        if let Some(still) = fails(&less) {
            (scenario, problem) = (less, still);
        }
    }
    (scenario, problem)
}

fn show(scenario: &Scenario, flaw: Option<Flaw>, problem: &str) -> String {
    let mut world = World::new(scenario, flaw);
    world.trace.reserve(1 << 12);
    let _ = world.run();
    let from = world.trace.len().saturating_sub(SHOWN);
    format!("seed {}: {problem}\n{scenario:#?}\n{}", scenario.seed, world.trace[from..].join("\n"))
}

/// Runs `steps` steps with the seeds from `first` on. Returns the number of steps and runs, or a report on the first
/// failure.
fn simulate(first: u64, steps: u64, flaw: Option<Flaw>) -> Result<(u64, u64), String> {
    let (mut done, mut runs) = (0, 0);
    while done < steps {
        let scenario = Scenario::draw(first + runs);
        let mut world = World::new(&scenario, flaw);
        if world.run().is_err() {
            let (scenario, problem) = shrink(scenario, flaw);
            return Err(show(&scenario, flaw, &problem));
        }
        done += world.steps;
        runs += 1;
    }
    Ok((done, runs))
}

#[test]
fn survivors_agree_whatever_happens() {
    let first = setting("KOLO_SIMULATE_SEED").unwrap_or(1);
    let steps = setting("KOLO_SIMULATE_STEPS").unwrap_or(STEPS);
    match simulate(first, steps, None) {
        Ok((steps, runs)) => println!("{steps} steps in {runs} runs from seed {first}"),
        Err(problem) => panic!("{problem}"),
    }
}

#[test]
fn every_flaw_in_the_rules_is_found() {
    // The fourth flaw, `HearsTheDead`, only shows if a message arrives within one particular millisecond of several
    // seconds, so it has its own test below.
    for flaw in [Flaw::AnyHalf, Flaw::Forgets, Flaw::OwnChoice] {
        match simulate(1, 40_000_000, Some(flaw)) {
            Ok((steps, _)) => panic!("{flaw:?} was not found in {steps} steps"),
            Err(problem) => println!("{flaw:?}: {}", problem.lines().next().unwrap_or_default()),
        }
    }
}

/// Lets three of five members decide and die before the other two hear of it. The two decide as well, and then news of
/// the first decision arrives. Returns the views of members 4 and 3.
fn news_of_the_dead(flaw: Option<Flaw>) -> (State, State) {
    let now = Duration::from_secs(1);
    let vote = Vote { kinds: 1, flags: 1, seed: [0; 32] };
    let mut members: Vec<Agreement> = (0..5)
        .map(|me| {
            let (beat, silent_after) = (Duration::from_millis(100), Duration::from_secs(1));
            let settings = Settings { members: 5, me, beat, silent_after, stranded_after: silent_after };
            let mut member = Agreement::new(settings, now);
            member.flaw = flaw;
            member.vote(vote, now);
            member
        })
        .collect();
    let mut late = Vec::new();
    let exchange = |members: &mut Vec<Agreement>, late: &mut Vec<Message>| {
        loop {
            let mut any = false;
            for from in 0..5_u32 {
                for (to, message) in members[from as usize].take_messages() {
                    let crosses = from < 3 && to >= 3;
                    let is_second_phase = matches!(message, Message::Accept { .. } | Message::Prepare { .. });
                    match message {
                        message @ Message::Decided(_) if crosses => late.push(message),
                        _ if crosses && is_second_phase => {}
                        // This is the last moment of the second decision: member 3 has it, and member 4 has not heard
                        // of it yet.
                        Message::Decided(_) if from == 3 => {}
                        message => members[to as usize].receive(from, message, now),
                    }
                    any = true;
                }
            }
            if !any {
                return;
            }
        }
    };
    exchange(&mut members, &mut late);
    assert!(matches!(members[1].state(now), State::Decided(_)) && !late.is_empty());
    for dead in 0..3 {
        members[3].gone(dead, now);
        members[4].gone(dead, now);
    }
    for _ in 0..3 {
        members[3].tick(now + Duration::from_millis(101));
        members[4].tick(now + Duration::from_millis(101));
        exchange(&mut members, &mut late);
    }
    for message in late {
        members[4].receive(0, message, now);
    }
    (members[4].state(now), members[3].state(now))
}

#[test]
fn the_dead_are_not_heard() {
    let (four, three) = news_of_the_dead(None);
    assert!(matches!(&three, State::Decided(decision) if decision.members == [3, 4].into_iter().collect()));
    assert!(matches!(four, State::Open { .. }), "it waits for what 3 has decided: {four:?}");
    let (four, three) = news_of_the_dead(Some(Flaw::HearsTheDead));
    assert!(matches!((&four, &three), (State::Decided(a), State::Decided(b)) if a != b), "the flaw shows");
}

/// Member 0 of four is gone, so all others are needed. Member 1 proposes and waits for member 3, which is alive but
/// late. Member 2 has voted and then takes another member for the proposer, so it only answers.
#[test]
fn who_brings_its_part_to_another_is_not_taken_for_silent() {
    let beat = Duration::from_millis(100);
    let silent_after = Duration::from_secs(1);
    let settings = Settings { members: 4, me: 1, beat, silent_after, stranded_after: 4 * silent_after };
    let vote = Vote { kinds: 1, flags: 1, seed: [0; 32] };
    let mut proposer = Agreement::new(settings, Duration::ZERO);
    proposer.vote(vote, Duration::ZERO);
    proposer.gone(0, Duration::ZERO);
    proposer.receive(2, Message::Vote(vote), Duration::ZERO);
    for beats in 1..=100 {
        let now = beat * beats;
        proposer.tick(now);
        for (to, message) in proposer.take_messages() {
            let answer = if to == 2 { Message::Vote(vote) } else { Message::Here };
            if message == Message::Asked {
                proposer.receive(to, answer, now);
            }
        }
        assert_eq!(proposer.state(now), State::Open { late: vec![3], silent: vec![] }, "after {beats} beats");
    }
}

/// Makes a member of a large group that has voted to a silent proposer. It then ticks `ticks` times, at
/// intervals of `every`.
fn waits_in_vain(ticks: u32, every: Duration) -> (Agreement, Vec<usize>) {
    let (beat, silent_after) = (Duration::from_millis(100), Duration::from_secs(1));
    let settings = Settings { members: 256, me: 255, beat, silent_after, stranded_after: 4 * silent_after };
    let mut member = Agreement::new(settings, Duration::ZERO);
    member.vote(Vote { kinds: 1, flags: 1, seed: [0; 32] }, Duration::ZERO);
    let mut asked = |tick: u32| {
        member.tick(every * tick);
        member.take_messages().iter().filter(|(_, message)| *message == Message::Asked).count()
    };
    let counts = (0..=ticks).map(&mut asked).collect();
    (member, counts)
}

#[test]
fn few_are_asked_at_first_when_the_proposer_says_nothing() {
    let (_, asked) = waits_in_vain(9, Duration::from_millis(100));
    assert_eq!(asked, [0, 0, 1, 2, 4, 8, 16, 32, 64, 128]);
}

#[test]
fn time_in_which_a_member_was_itself_held_up_is_no_silence_of_others() {
    let (member, _) = waits_in_vain(4, Duration::from_millis(500));
    assert_eq!(member.silent(Duration::from_secs(2)), [], "they had 100 ms of each 500");
    let (member, _) = waits_in_vain(20, Duration::from_millis(100));
    assert!(member.silent(Duration::from_secs(2)).contains(&0));
}

/// Cuts some members off from each other for a number of beats. Each votes at its own beat. Returns how the agreement has
/// ended for each.
fn cut_off(votes_at: &[u32], beats_of_cut: u32) -> Vec<State> {
    let (beat, silent_after) = (Duration::from_millis(100), Duration::from_secs(1));
    let count = votes_at.len() as u32;
    let mut members: Vec<Agreement> = (0..count)
        .map(|me| {
            let settings =
                Settings { members: count, me, beat, silent_after, stranded_after: 4 * silent_after };
            Agreement::new(settings, Duration::ZERO)
        })
        .collect();
    for beats in 0..200 {
        let now = beat * beats;
        for me in 0..count as usize {
            if beats == votes_at[me] {
                members[me].vote(Vote { kinds: 1, flags: 1, seed: [0; 32] }, now);
            }
            members[me].tick(now);
        }
        loop {
            let sent: Vec<(u32, u32, Message)> = (0..count)
                .flat_map(|from| {
                    let messages = members[from as usize].take_messages();
                    messages.into_iter().map(move |(to, message)| (from, to, message))
                })
                .collect();
            if sent.is_empty() || beats < beats_of_cut {
                break;
            }
            for (from, to, message) in sent {
                members[to as usize].receive(from, message, now);
            }
        }
    }
    members.iter().map(|member| member.state(beat * 200)).collect()
}

/// Member 0 has voted first and gives up. The network works again before the others would.
#[test]
fn a_majority_goes_on_without_the_lowest_member_if_that_has_given_up() {
    let ends = cut_off(&[0, 5, 5], 53);
    assert!(matches!(&ends[1], State::Decided(decision) if !decision.members.contains(0)), "{ends:?}");
    assert_eq!(ends[1], ends[2]);
}

/// Members 0 and 1 of five are silent, so the others leave the decision to member 2.
#[test]
fn a_member_gives_up_with_the_proposer_unless_it_hears_a_majority() {
    let (beat, silent_after) = (Duration::from_millis(100), Duration::from_secs(1));
    let settings = Settings { members: 5, me: 4, beat, silent_after, stranded_after: 4 * silent_after };
    let now = 2 * silent_after;
    let ends = [&[2][..], &[2, 3]].map(|heard| {
        let mut member = Agreement::new(settings, now);
        member.suspect(0, now);
        member.suspect(1, now);
        member.vote(Vote { kinds: 1, flags: 1, seed: [0; 32] }, now);
        heard.iter().for_each(|from| member.receive(*from, Message::Here, now));
        member.receive(2, Message::Stranded, now);
        member.state(now)
    });
    assert_eq!(ends, [State::Stranded, State::Open { late: vec![], silent: vec![0, 1] }]);
}
