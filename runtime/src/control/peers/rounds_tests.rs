//! Agreements of two members whose messages are handed over here.

use super::super::acceptor::Opening;
use super::super::listener::{ConnectError, Listener, Locality};
use super::*;
use crate::join::{JoinSpec, Locator};

const KEY: RoundKey = RoundKey { communicator: 5, number: 1 };
const LONG: Duration = Duration::from_secs(20);

/// Votes, and returns the outcome to come.
fn vote(rounds: &mut Rounds, members: &Arc<[u32]>, flags: u64) -> std::sync::mpsc::Receiver<Agreed> {
    vote_in(rounds, KEY, members, flags)
}

fn vote_in(
    rounds: &mut Rounds,
    key: RoundKey,
    members: &Arc<[u32]>,
    flags: u64,
) -> std::sync::mpsc::Receiver<Agreed> {
    let (reply, outcome) = std::sync::mpsc::channel();
    let vote = Vote { kinds: 1, flags, seed: [0; 32] };
    rounds.vote(key, members.clone(), vote, LONG, reply, (&BTreeSet::new(), &[]));
    outcome
}

/// Has both members decide an agreement.
fn decide(all: &mut [Rounds; 2], key: RoundKey, members: &Arc<[u32]>) {
    let outcomes = all.each_mut().map(|rounds| vote_in(rounds, key, members, 1));
    for _ in 0..3 {
        for me in [0, 1] {
            for (to, key, message) in all[me].take_messages() {
                let members = Some(members.clone());
                all[to as usize].receive(me as u32, key, message, members, &BTreeSet::new());
            }
        }
    }
    all.iter_mut().for_each(Rounds::reply);
    let is_decided =
        |outcome: std::sync::mpsc::Receiver<Agreed>| matches!(outcome.try_recv(), Ok(Agreed::Decided(_)));
    assert!(outcomes.into_iter().all(is_decided), "{key:?}");
}

/// A step costs the same however many have come before.
#[test]
fn decided_agreements_are_kept_but_not_visited() {
    let (members, none): (Arc<[u32]>, _) = ([0, 1].into(), BTreeSet::new());
    let mut all = [0, 1].map(|me| Rounds::new(me, Instant::now()));
    for number in 0..2 * MAX_REMEMBERED as u64 {
        decide(&mut all, RoundKey { number, ..KEY }, &members);
    }
    for rounds in &all {
        assert_eq!((rounds.rounds.len(), rounds.over.len()), (0, MAX_REMEMBERED));
        assert_eq!(rounds.order.len(), MAX_REMEMBERED);
    }
    // A member that asks late is answered.
    let key = RoundKey { number: 2 * MAX_REMEMBERED as u64 - 1, ..KEY };
    all[0].receive(1, key, Message::Asked, None, &none);
    let answers = all[0].take_messages();
    assert!(matches!(answers[..], [(1, _, Message::Decided(_))]), "{answers:?}");
    // Nobody takes part in an agreement whose decision is forgotten.
    let vote = Message::Vote(Vote { kinds: 1, flags: 1, seed: [0; 32] });
    all[0].receive(1, RoundKey { number: 0, ..KEY }, vote, Some(members), &none);
    assert!(all[0].take_messages().is_empty() && all[0].rounds.is_empty());
}

/// An agreement of all ranks is not forgotten because a part of them has decided often since.
#[test]
fn the_last_decision_of_a_communicator_is_kept() {
    let (members, none): (Arc<[u32]>, _) = ([0, 1].into(), BTreeSet::new());
    let mut all = [0, 1].map(|me| Rounds::new(me, Instant::now()));
    let of_all = RoundKey { communicator: KEY.communicator - 1, number: 3 };
    decide(&mut all, of_all, &members);
    for number in 0..2 * MAX_REMEMBERED as u64 {
        decide(&mut all, RoundKey { number, ..KEY }, &members);
    }
    all[0].receive(1, of_all, Message::Asked, Some(members), &none);
    let answers = all[0].take_messages();
    assert!(matches!(answers[..], [(1, _, Message::Decided(_))]), "{answers:?}");
}

#[test]
fn nobody_decides_again_in_an_open_communicator() {
    let (members, none): (Arc<[u32]>, _) = ([0, 1].into(), BTreeSet::new());
    let mut all = [0, 1].map(|me| Rounds::new(me, Instant::now()));
    let of = |communicator| RoundKey { communicator, number: 0 };
    let is_open = |communicator| communicator < 10 || communicator % 2 == 0;
    for communicator in 0..4 * MAX_REMEMBERED as u64 {
        decide(&mut all, of(communicator), &members);
        all[0].forget_closed(is_open);
    }
    assert!(!all[0].over.contains_key(&of(0)), "there were too many");
    assert!(all[0].last.len() < 3 * MAX_REMEMBERED, "those of closed ones are dropped");
    let vote = Message::Vote(Vote { kinds: 1, flags: 1, seed: [0; 32] });
    for communicator in 0..10 {
        all[0].receive(1, of(communicator), vote.clone(), Some(members.clone()), &none);
    }
    assert!(all[0].take_messages().is_empty() && all[0].rounds.is_empty());
}

/// Member 0 answers for its program, which never calls: it drops each communicator instead.
#[test]
fn agreements_of_closed_communicators_do_not_stay() {
    let (members, none): (Arc<[u32]>, _) = ([0, 1].into(), BTreeSet::new());
    let mut all = [0, 1].map(|me| Rounds::new(me, Instant::now()));
    let of = |communicator| RoundKey { communicator, number: 0 };
    for communicator in 0..4 * MAX_REMEMBERED as u64 {
        let outcome = vote_in(&mut all[1], of(communicator), &members, 1);
        // One half is decided by proxy, and the other stays open.
        if communicator % 2 == 0 {
            all[1].wait_no_longer(of(communicator));
        }
        for _ in 0..4 {
            for me in [1, 0] {
                for (to, key, message) in all[me].take_messages() {
                    all[to as usize].receive(me as u32, key, message, Some(members.clone()), &none);
                }
            }
        }
        all[1].reply();
        assert_eq!(outcome.try_recv().is_ok(), communicator % 2 == 0);
        all[0].forget_closed(|_| false);
    }
    assert!(all[0].entries() <= 2 * MAX_REMEMBERED, "{} entries", all[0].entries());
    assert!(all[0].order.len() == all[0].over.len() && !all[0].over.is_empty());
    // A program that waits is told.
    let outcome = vote_in(&mut all[0], KEY, &members, 1);
    all[0].sweep_from = 0;
    all[0].forget_closed(|_| false);
    assert!(all[0].rounds.contains_key(&KEY), "{outcome:?}");
}

/// Member 0 answers for its program, which has not called. It alone would know that member 1 is not late.
#[test]
fn a_member_that_gives_up_names_the_one_that_collects_the_votes() {
    let (members, none): (Arc<[u32]>, _) = ([4, 5].into(), BTreeSet::new());
    let mut all = [4, 5].map(|me| Rounds::new(me, Instant::now()));
    let outcome = vote(&mut all[1], &members, 1);
    for (from, to) in [(1, 0), (0, 1)] {
        for (_, key, message) in all[from].take_messages() {
            all[to].receive(4 + from as u32, key, message, Some(members.clone()), &none);
        }
    }
    all[1].give_up(KEY);
    let Ok(Agreed::Late(missing)) = outcome.try_recv() else { panic!("it has given up") };
    assert_eq!(missing, Missing { collector: Some(0), ..Missing::default() });
}

/// A program that hears it may leave at once, so its rank must have recorded it by then.
#[test]
fn a_program_hears_last_that_the_others_have_gone_on_without_it() {
    let members: Arc<[u32]> = [0, 1].into();
    let mut rounds = Rounds::new(0, Instant::now());
    let outcome = vote(&mut rounds, &members, 1);
    rounds.fence(KEY.communicator, 1);
    assert!(outcome.try_recv().is_err(), "the task has not recorded it yet");
    rounds.reply();
    assert!(matches!(outcome.try_recv(), Ok(Agreed::LeftBehind { by: 1 })));
}

/// Rank 0 decides, and its messages are lost together with the connection. It leaves, and its process goes on.
#[tokio::test(flavor = "current_thread")]
async fn a_member_that_has_left_tells_how_it_decided() {
    let (members, none): (Arc<[u32]>, _) = ([0, 1].into(), BTreeSet::new());
    let [mut leaves, mut stays] = [0, 1].map(|me| Rounds::new(me, Instant::now()));
    let outcomes = [vote(&mut leaves, &members, 1), vote(&mut stays, &members, 3)];
    for (_, key, message) in stays.take_messages() {
        leaves.receive(1, key, message, Some(members.clone()), &none);
    }
    leaves.take_messages();
    let (listener, own) = (Listener::open_for_threads().unwrap(), Listener::open_for_threads().unwrap());
    let decided = leaves.take_decided().remove(0);
    // Earlier agreements, which may be forgotten, and those of later jobs.
    for number in 2..20 {
        listener.decide([7; 16], (RoundKey { number, ..KEY }, decided.1.clone()));
    }
    listener.decide([7; 16], decided.clone());
    (8..30).for_each(|job| listener.decide([job; 16], decided.clone()));

    let mut spec = JoinSpec::new(0, 1, Locator::Local(Default::default()), "a test");
    spec.one_host = true;
    let (at, opening) = (listener.address(), Opening::Connect { cookie: [7; 16], from: 1 });
    let answer = own.connect(at, Locality::SameHost, at.credentials(&spec), &opening, LONG).await.err();
    if let Some(ConnectError::Left(decided)) = answer {
        for (key, decision) in decided {
            stays.receive(0, key, Message::Decided(decision), Some(members.clone()), &none);
        }
    }
    stays.gone(0);
    stays.take_messages();
    [leaves, stays].iter_mut().for_each(Rounds::reply);
    let [theirs, own] = outcomes.map(|outcome| outcome.try_recv().expect("it is decided"));
    let (Agreed::Decided(theirs), Agreed::Decided(own)) = (theirs, own) else { panic!("not decided") };
    assert_eq!((&own, own.flags, own.members.len()), (&theirs, 1, 2));
}
