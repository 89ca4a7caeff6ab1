//! Tests of the coordinator without sockets: facts go in, actions come out, and time is an argument.

use proptest::prelude::*;

use super::*;
use crate::control::abort::AbortKind;
use crate::control::forwarding;
use crate::control::wire::{GatherKey, PeerInfo, Round, decode};
use crate::job::limits::{Liveness, MAX_OPEN_GATHERS};

pub(super) fn coordinator(world_size: u32, now: Instant) -> CoordinatorState {
    let settings = CoordinatorSettings {
        world_size,
        cookie: [9; 16],
        job: "this".into(),
        source: "a test".into(),
        timeout: Duration::from_secs(10),
        liveness: Liveness::default(),
        forwards: true,
    };
    CoordinatorState::new(settings, now)
}

fn hello(rank: u32, world_size: u32) -> Hello {
    let peer = PeerInfo {
        rank,
        hostname: "node".into(),
        pid: 100 + rank,
        local_rank: None,
        version: "1".into(),
        host_key: 1,
        relayed_by: None,
    };
    Hello { peer, world_size, job: String::new(), source: String::new(), listener: None, ends: None }
}

fn running(world_size: u32, now: Instant) -> CoordinatorState {
    let mut coordinator = coordinator(world_size, now);
    for rank in 0..world_size {
        coordinator.hello(u64::from(rank), None, hello(rank, world_size), OnSilence::Fail, now);
    }
    let _ = coordinator.take_actions();
    coordinator
}

/// Returns the messages sent to each connection since the last call, and the connections closed.
fn told(coordinator: &mut CoordinatorState) -> (Vec<(ConnectionId, FromCoordinator)>, Vec<ConnectionId>) {
    let (mut sent, mut closed) = (Vec::new(), Vec::new());
    for action in coordinator.take_actions() {
        match action {
            Action::Send { connection, frame } => {
                assert!(!closed.contains(&connection), "sent after its end");
                sent.push((connection, decode(&frame[4..]).unwrap()));
            }
            Action::Close { connection } => closed.push(connection),
            Action::Gathered | Action::Watch { .. } => {}
        }
    }
    (sent, closed)
}

#[test]
fn silence_is_judged_by_the_clock_and_not_after_an_own_pause() {
    let begin = Instant::now();
    let beat = Liveness::default().heartbeat;
    let mut coordinator = running(2, begin);
    let mut now = begin;
    for _ in 0..59 {
        now += beat;
        coordinator.message(0, ToCoordinator::Heartbeat, now).unwrap();
        coordinator.tick(now);
    }
    assert!(told(&mut coordinator).1.is_empty(), "rank 1 is only suspected");
    now += beat;
    coordinator.tick(now);
    let (sent, closed) = told(&mut coordinator);
    assert_eq!(closed, [1]);
    let lost = |(to, message): &(u64, FromCoordinator)| {
        let FromCoordinator::Lost { rank: 1, loss } = message else { return false };
        *to == 0
            && matches!(loss.cause, LossCause::Silent(silent) if silent >= Liveness::default().dead_after)
    };
    assert!(sent.iter().any(lost), "{sent:?}");
    // This process itself stops for ten minutes, so the ranks were not silent.
    let mut coordinator = running(2, begin);
    coordinator.tick(begin + Duration::from_secs(600));
    assert!(told(&mut coordinator).1.is_empty());
}

#[test]
fn the_welcome_excuses_the_silence_before_it() {
    let begin = Instant::now();
    let Liveness { heartbeat, dead_after, .. } = Liveness::default();
    let mut coordinator = coordinator(2, begin);
    coordinator.phase = Phase::Gathering { deadline: begin + 2 * dead_after };
    coordinator.hello(0, None, hello(0, 2), OnSilence::Fail, begin);
    let mut now = begin;
    while now + heartbeat < begin + dead_after {
        now += heartbeat;
        coordinator.tick(now);
    }
    coordinator.hello(1, None, hello(1, 2), OnSilence::Fail, now);
    for _ in 0..2 {
        now += heartbeat;
        coordinator.tick(now);
    }
    let (sent, closed) = told(&mut coordinator);
    assert!(closed.is_empty(), "rank 0 has not had the time for a heartbeat: {sent:?}");
}

/// Has another process claim rank 1 of 3, which is there, and lets `beats` heartbeats pass. Rank 1 sends them if it `lives`. Returns the
/// time, and whether the other one is refused for good.
fn claimed(coordinator: &mut CoordinatorState, lives: bool, beats: u32) -> (Instant, bool) {
    let mut now = coordinator.next_tick;
    for rank in [0, 1] {
        coordinator.hello(rank.into(), None, hello(rank, 3), OnSilence::Fail, now);
    }
    coordinator.hello(8, None, hello(1, 3), OnSilence::Fail, now);
    let (sent, closed) = told(coordinator);
    assert!(
        matches!(sent.last(), Some((8, FromCoordinator::Refused(Refusal { retry: true, .. })))),
        "{sent:?}"
    );
    assert_eq!(closed, [8]);
    for _ in 0..beats {
        now += coordinator.settings.liveness.heartbeat;
        coordinator.tick(now);
        for rank in 0..1 + u64::from(lives) {
            coordinator.message(rank, ToCoordinator::Heartbeat, now).unwrap();
        }
    }
    let _ = told(coordinator);
    coordinator.hello(9, None, hello(1, 3), OnSilence::Fail, now);
    let refused = |(to, message): &(u64, FromCoordinator)| match message {
        FromCoordinator::Refused(refusal) if *to == 9 => Some(!refusal.retry),
        _ => None,
    };
    (now, told(coordinator).0.iter().find_map(refused).unwrap_or_default())
}

#[test]
fn a_rank_that_comes_again_takes_its_place_once_its_old_connection_is_silent() {
    let begin = Instant::now();
    for (beats, old) in [(3, true), (4, false)] {
        let mut coordinator = coordinator(3, begin);
        assert!(!claimed(&mut coordinator, false, beats).1);
        let connection = coordinator.connection_of(1);
        assert_eq!(connection, Some(if old { 1 } else { 9 }), "after {beats} heartbeats");
    }
}

#[test]
fn a_second_process_with_the_same_rank_is_refused_if_the_first_one_lives() {
    let mut coordinator = coordinator(3, Instant::now());
    let (now, is_refused) = claimed(&mut coordinator, true, 1);
    assert!(is_refused && coordinator.connection_of(1) == Some(1));
    // The next claim may be that of the first one, restarted.
    let later = now + 4 * Liveness::default().heartbeat;
    coordinator.hello(10, None, hello(1, 3), OnSilence::Fail, later);
    let (sent, _) = told(&mut coordinator);
    assert!(matches!(sent[..], [(10, FromCoordinator::Refused(Refusal { retry: true, .. }))]), "{sent:?}");
}

#[test]
fn a_pause_of_rank_0_reopens_no_claim() {
    for lives in [false, true] {
        let mut coordinator = coordinator(3, Instant::now());
        let after = claimed(&mut coordinator, lives, 1).0 + Duration::from_secs(600);
        coordinator.phase = Phase::Gathering { deadline: after + Duration::from_secs(1) };
        coordinator.tick(after);
        coordinator.hello(2, None, hello(2, 3), OnSilence::Fail, after);
        assert_eq!(coordinator.phase == Phase::Running, lives, "an open claim stays open");
    }
}

#[test]
fn a_job_does_not_begin_while_two_processes_claim_a_rank() {
    for lives in [false, true] {
        let mut coordinator = coordinator(3, Instant::now());
        let (mut now, _) = claimed(&mut coordinator, lives, 0);
        coordinator.hello(2, None, hello(2, 3), OnSilence::Fail, now);
        assert!(matches!(coordinator.phase, Phase::Gathering { .. }));
        assert_eq!(coordinator.missing_text(), "rank 1 (rank 1: two processes claim it)");
        for _ in 0..5 {
            now += coordinator.settings.liveness.heartbeat;
            for rank in [0, 2].into_iter().chain(lives.then_some(1)) {
                coordinator.message(rank, ToCoordinator::Heartbeat, now).unwrap();
            }
            coordinator.tick(now);
        }
        assert_eq!(coordinator.phase == Phase::Running, lives);
        coordinator.hello(11, None, hello(1, 3), OnSilence::Fail, now);
        assert_eq!(
            (coordinator.phase, coordinator.connection_of(1)),
            (Phase::Running, Some(if lives { 1 } else { 11 }))
        );
    }
}

#[test]
fn strangers_do_not_hide_the_ranks_that_were_refused() {
    let now = Instant::now();
    let mut coordinator = coordinator(2, now);
    coordinator.hello(0, None, hello(0, 2), OnSilence::Fail, now);
    for stranger in 0..100_u8 {
        let version = if stranger < 50 { stranger } else { 50 };
        let ip = [192, 0, 2, stranger % 10].into();
        coordinator.turned_away(ip, &format!("runs Kolo 9.{version}"), "Install the same version");
    }
    coordinator.hello(1, None, hello(1, 3), OnSilence::Fail, now);
    let _ = told(&mut coordinator);
    coordinator.give_up(now, "after 10 s".into());
    let (sent, _) = told(&mut coordinator);
    let refused = |(_, message): &(u64, FromCoordinator)| match message {
        FromCoordinator::Refused(refusal) => Some(refusal.problem.clone()),
        _ => None,
    };
    let text = sent.iter().find_map(refused).expect("rank 0 is told");
    assert!(text.contains("3 ranks"), "{text}");
    assert_eq!(text.matches("runs Kolo").count(), 4, "{text}");
    // Strangers of one kind are counted.
    let mut misfits = Misfits::default();
    for port in 0..3 {
        let is_new = misfits.note_stranger([192, 0, 2, 1].into(), "runs Kolo 9.0");
        assert_eq!(is_new, port == 0, "and logged as a warning once");
    }
    assert_eq!(misfits.text().as_deref(), Some("192.0.2.1: runs Kolo 9.0 (3 times)"));
}

#[test]
fn an_abort_goes_to_each_member_once() {
    let now = Instant::now();
    let mut coordinator = running(4, now);
    let cause = AbortCause::new(0, AbortKind::User, "enough");
    for from in [1, 2] {
        let abort =
            ToCoordinator::Abort { communicator: 5, members: vec![1, 2, 3, 77], cause: cause.clone() };
        coordinator.message(from, abort, now).unwrap();
    }
    let to: Vec<_> = told(&mut coordinator).0.into_iter().map(|(to, _)| to).collect();
    assert_eq!(to, [1, 2, 3], "the sender hears its own word too");
}

#[test]
fn what_comes_after_an_abort_does_not_use_up_a_members_all_gathers() {
    let now = Instant::now();
    let mut coordinator = running(2, now);
    let bring = |communicator| {
        let key = GatherKey { communicator, round: Round::Split(1) };
        ToCoordinator::AllGather { key, members: vec![0, 1], blob: vec![7] }
    };
    for communicator in 10..10 + 2 * MAX_OPEN_GATHERS as u64 {
        let cause = AbortCause::new(0, AbortKind::User, "");
        let abort = ToCoordinator::Abort { communicator, members: vec![0, 1], cause };
        coordinator.message(0, abort, now).unwrap();
        coordinator.message(1, bring(communicator), now).unwrap();
    }
    let _ = told(&mut coordinator);
    for rank in [0, 1] {
        coordinator.message(rank, bring(5), now).unwrap();
    }
    let sent = told(&mut coordinator).0;
    let is_complete =
        |(_, message): &(u64, FromCoordinator)| matches!(message, FromCoordinator::Gathered { .. });
    assert!(sent.len() == 2 && sent.iter().all(is_complete), "{sent:?}");
}

#[test]
fn a_revocation_is_passed_on_after_an_abort() {
    let now = Instant::now();
    let mut coordinator = running(3, now);
    for kind in [AbortKind::PeerLost, AbortKind::Revoked, AbortKind::Revoked] {
        let cause = AbortCause::new(0, kind, "");
        let abort = ToCoordinator::Abort { communicator: 5, members: vec![1, 2], cause };
        coordinator.message(1, abort, now).unwrap();
    }
    let sent = told(&mut coordinator).0;
    let kinds: Vec<_> = sent
        .iter()
        .map(|(to, message)| match message {
            FromCoordinator::Aborted { cause, .. } => (*to, cause.kind),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        kinds,
        [1, 2]
            .map(|to| (to, AbortKind::PeerLost))
            .into_iter()
            .chain([1, 2].map(|to| (to, AbortKind::Revoked)))
            .collect::<Vec<_>>()
    );
}

#[test]
fn departures_are_told_together_and_the_coordinator_ends_when_all_have_left() {
    let now = Instant::now();
    let mut coordinator = running(4, now);
    coordinator.message(0, ToCoordinator::Goodbye, now).unwrap();
    coordinator.linger(Duration::from_secs(5), Vec::new(), now);
    for rank in [1, 2] {
        coordinator.message(rank, ToCoordinator::Goodbye, now).unwrap();
    }
    let (sent, _) = told(&mut coordinator);
    assert!(sent.contains(&(3, FromCoordinator::Departed { ranks: vec![0, 1, 2] })), "{sent:?}");
    for connection in 0..3 {
        coordinator.closed(connection, Loss::new(LossCause::Closed, "end"));
    }
    assert!(!coordinator.is_done());
    coordinator.tick(now + Duration::from_secs(5));
    let (sent, closed) = told(&mut coordinator);
    assert_eq!((sent.last(), &closed[..]), (Some(&(3, FromCoordinator::Closing)), &[3][..]));
    coordinator.closed(3, Loss::new(LossCause::Closed, "end"));
    assert!(coordinator.is_done());
}

#[test]
fn the_coordinator_stays_for_live_ranks_and_not_for_those_left_behind() {
    let now = Instant::now();
    let mut coordinator = running(3, now);
    coordinator.message(0, ToCoordinator::Goodbye, now).unwrap();
    coordinator.linger(Duration::from_secs(5), vec![2], now);
    let (sent, closed) = told(&mut coordinator);
    assert!(!sent.contains(&(1, FromCoordinator::Closing)), "rank 1 may need it: {sent:?}");
    assert_eq!(closed, [0]);
    coordinator.message(1, ToCoordinator::Goodbye, now).unwrap();
    let (sent, closed) = told(&mut coordinator);
    assert!(sent.contains(&(2, FromCoordinator::Closing)), "{sent:?}");
    assert_eq!(closed, [1, 2]);
    // If the others are all left behind, it does not stay at all.
    let mut coordinator = running(2, now);
    coordinator.message(0, ToCoordinator::Goodbye, now).unwrap();
    coordinator.linger(Duration::from_secs(5), vec![1], now);
    assert_eq!(told(&mut coordinator).1, [0, 1]);
}

#[test]
fn newcomers_to_an_ending_coordinator_are_to_try_again() {
    let now = Instant::now();
    let mut coordinator = running(2, now);
    coordinator.linger(Duration::from_secs(5), Vec::new(), now);
    coordinator.hello(9, None, hello(0, 2), OnSilence::Fail, now);
    let (sent, closed) = told(&mut coordinator);
    assert!(matches!(&sent[..], [(9, FromCoordinator::Refused(Refusal { retry: true, .. }))]), "{sent:?}");
    assert_eq!(closed, [9]);
}

/// Brings a blob of 1 KiB for each of `ranks` ranks, and returns the messages that the coordinator then sends, by connection.
fn gathered(coordinator: &mut CoordinatorState, ranks: u32, now: Instant) -> Vec<(u64, FromCoordinator)> {
    let key = GatherKey { communicator: 1, round: Round::Split(0) };
    for rank in 0..ranks {
        let members = (0..ranks).collect();
        let bring = ToCoordinator::AllGather { key, members, blob: vec![1; 1 << 10] };
        coordinator.message(u64::from(rank), bring, now).unwrap();
    }
    told(coordinator).0
}

#[test]
fn many_ranks_pass_on_what_is_long_and_few_get_it_from_the_coordinator() {
    let now = Instant::now();
    for (ranks, sends) in [(8, 8), (64, forwarding::FAN_OUT)] {
        let sent = gathered(&mut running(ranks, now), ranks, now);
        assert_eq!(sent.len(), sends, "{ranks} ranks");
        let passes = sent.iter().all(|(_, message)| matches!(message, FromCoordinator::Forward { .. }));
        assert_eq!(passes, ranks > 8);
    }
}

#[test]
fn who_does_not_get_what_is_passed_on_gets_it_from_the_coordinator() {
    let mut now = Instant::now();
    let mut coordinator = running(64, now);
    let key = GatherKey { communicator: 1, round: Round::Split(0) };
    let passed = gathered(&mut coordinator, 64, now);
    let mut beat = |coordinator: &mut CoordinatorState| {
        now += Liveness::default().heartbeat;
        coordinator.tick(now);
        let is_blobs = |message: &FromCoordinator| matches!(message, FromCoordinator::Gathered { .. });
        told(coordinator).0.into_iter().filter(|(_, message)| is_blobs(message)).collect::<Vec<_>>()
    };
    // As long as reports arrive, the coordinator leaves it to the ranks to pass the message on.
    for ranks in (0..60).collect::<Vec<u64>>().chunks(10) {
        for &rank in ranks {
            coordinator.message(rank, ToCoordinator::Received { key: Some(key) }, Instant::now()).unwrap();
        }
        assert_eq!(beat(&mut coordinator), []);
    }
    let late: Vec<_> = (0..5).flat_map(|_| beat(&mut coordinator)).collect();
    assert_eq!(late.iter().map(|(to, _)| *to).collect::<Vec<_>>(), [60, 61, 62, 63]);
    // From then on these ranks get messages directly.
    let next = ToCoordinator::AllGather {
        key: GatherKey { round: Round::Split(1), ..key },
        members: (0..64).collect(),
        blob: vec![1; 1 << 10],
    };
    for rank in 0..64 {
        coordinator.message(rank, next.clone(), Instant::now()).unwrap();
    }
    let first: Vec<_> = told(&mut coordinator).0.into_iter().map(|(to, _)| to).collect();
    assert_eq!(first, [0, 1, 2, 3, 60, 61, 62, 63]);
    let FromCoordinator::Forward { message, .. } = &passed[0].1 else { panic!("{passed:?}") };
    assert_eq!(Some(&late[0].1), decode(message).ok().as_ref(), "the same as the others have");
}

#[test]
fn a_coordinator_that_closes_first_sends_what_is_passed_on() {
    let begin = Instant::now();
    let key = GatherKey { communicator: 1, round: Round::Split(0) };
    for patience in [Duration::ZERO, Duration::from_millis(10)] {
        let mut coordinator = running(64, begin);
        gathered(&mut coordinator, 64, begin);
        for rank in 0..60 {
            coordinator.message(rank, ToCoordinator::Received { key: Some(key) }, begin).unwrap();
        }
        coordinator.linger(patience, Vec::new(), begin);
        coordinator.tick(begin + patience);
        let (sent, closed) = told(&mut coordinator);
        assert_eq!(closed.len(), 64);
        let of_one = |rank: u64| sent.iter().filter(move |(to, _)| *to == rank).map(|(_, message)| message);
        for rank in 0..64 {
            let blobs = of_one(rank).position(|message| matches!(message, FromCoordinator::Gathered { .. }));
            assert_eq!(blobs, (rank >= 60).then_some(0), "{rank}");
            assert_eq!(of_one(rank).next_back(), Some(&FromCoordinator::Closing), "{rank}");
        }
    }
}

#[derive(Clone, Debug)]
enum Fact {
    Hello { connection: u64, rank: u32, world_size: u32 },
    Message { connection: u64, message: Box<ToCoordinator> },
    Closed { connection: u64 },
    Linger { ms: u64 },
    Tick { ms: u64 },
}

fn facts() -> impl Strategy<Value = Fact> {
    let key = (0..2u64, 0..3u64)
        .prop_map(|(communicator, round)| GatherKey { communicator, round: Round::Split(round) });
    let members = prop::collection::vec(0..5u32, 0..4);
    let message = prop_oneof![
        Just(ToCoordinator::Heartbeat),
        Just(ToCoordinator::Goodbye),
        Just(ToCoordinator::Dying { loss: Loss::new(LossCause::Panicked, "x") }),
        Just(ToCoordinator::Hello(hello(1, 3))),
        key.clone().prop_map(|key| ToCoordinator::Withdraw { key }),
        (key, members.clone(), 0..3usize).prop_map(|(key, members, length)| {
            ToCoordinator::AllGather { key, members, blob: vec![0; length] }
        }),
        (0..3u64, members).prop_map(|(communicator, members)| {
            ToCoordinator::Abort { communicator, members, cause: AbortCause::new(0, AbortKind::User, "") }
        }),
        (0..6u32).prop_map(|target| ToCoordinator::Ask { ticket: 1, target, communicator: 0 }),
        (0..6u32).prop_map(|asker| ToCoordinator::Answer { ticket: 1, asker, account: Account::Unknown }),
    ];
    prop_oneof![
        4 => (0..6u64, 0..4u32, 3..5u32).prop_map(|(connection, rank, world_size)| {
            Fact::Hello { connection, rank, world_size: if world_size == 4 && rank < 3 { 3 } else { world_size } }
        }),
        8 => (0..6u64, message.prop_map(Box::new)).prop_map(|(connection, message)| Fact::Message { connection, message }),
        2 => (0..6u64).prop_map(|connection| Fact::Closed { connection }),
        1 => (0..3000u64).prop_map(|ms| Fact::Linger { ms }),
        2 => (0..3000u64).prop_map(|ms| Fact::Tick { ms }),
    ]
}

proptest! {
    /// With any messages in any order there is no panic, nothing is sent to a connection after its end, no two connections are the same
    /// rank, and the coordinator ends in bounded time after rank 0 has left.
    #[test]
    fn any_order_of_facts_is_survived(facts in prop::collection::vec(facts(), 0..80)) {
        let mut now = Instant::now();
        let mut coordinator = coordinator(3, now);
        let mut known = std::collections::HashSet::new();
        let mut ended = std::collections::HashSet::new();
        let drain = |coordinator: &mut CoordinatorState, ended: &mut std::collections::HashSet<u64>| {
            let (sent, closed) = told(coordinator);
            for (connection, message) in &sent {
                assert!(!ended.contains(connection), "{message:?} to {connection} after its end");
            }
            ended.extend(closed);
            let connected: Vec<_> = coordinator.states.iter().filter_map(RankState::present).map(|t| t.connection).collect();
            let distinct: std::collections::HashSet<_> = connected.iter().collect();
            assert_eq!(connected.len(), distinct.len());
        };
        for fact in facts {
            match fact {
                // The driver numbers connections, and each introduces itself only once.
                Fact::Hello { connection, rank, world_size } => {
                    if known.insert(connection) {
                        coordinator.hello(connection, None, hello(rank, world_size), OnSilence::Fail, now);
                    }
                }
                Fact::Message { connection, message } => {
                    if coordinator.message(connection, *message, now).is_err() {
                        coordinator.closed(connection, Loss::new(LossCause::Closed, "broke the protocol"));
                        ended.insert(connection);
                    }
                }
                Fact::Closed { connection } => {
                    coordinator.closed(connection, Loss::new(LossCause::Closed, "closed"));
                    ended.insert(connection);
                    known.insert(connection);
                }
                Fact::Linger { ms } => coordinator.linger(Duration::from_millis(ms), Vec::new(), now),
                Fact::Tick { ms } => {
                    now += Duration::from_millis(ms);
                    coordinator.tick(now);
                }
            }
            drain(&mut coordinator, &mut ended);
        }
        coordinator.linger(Duration::ZERO, Vec::new(), now);
        now += 2 * CLOSING_TIMEOUT;
        coordinator.tick(now);
        coordinator.tick(now + 2 * CLOSING_TIMEOUT);
        drain(&mut coordinator, &mut ended);
        prop_assert!(coordinator.is_done());
    }
}
