//! The control plane's parsers and its coordinator as functions of bytes, for [`crate::fuzzing`].

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use kolo_membership::{Agreement, Message, Settings, State, Vote};
use tokio::io::AsyncReadExt;

use super::OnSilence;
use super::abort::Loss;
use super::coordinator_ranks::CoordinatorSettings;
use super::coordinator_state::{Action, CoordinatorState};
use super::handshake::{Credentials, greet_coordinator, greet_rank};
use super::invitation::Invitation;
use super::peers::PeerMessage;
use super::peers::acceptor::{Answer, Opening};
use super::peers::snapshots::{FromFetcher, ToFetcher};
use super::peers::waiting_list::{FromNewcomer, ToNewcomer};
use super::sealed::{Sealed, SessionKeys};
use super::wire::{FromCoordinator, Hello, PeerInfo, ToCoordinator, decode, encode, read_frame};
use crate::error::LossCause;
use crate::job::JobSecret;
use crate::job::limits::{Liveness, MAX_FRAME_FROM_COORDINATOR, MAX_FRAME_TO_COORDINATOR};

/// Runs a future to its end. Bytes in memory are always ready, and a sink takes everything.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// Decodes frames in both directions. A decoded message must survive encoding.
pub(crate) fn frames(bytes: &[u8]) {
    let _ = at_once(async {
        let mut rest = bytes;
        while let Ok(Some(payload)) = read_frame(&mut rest, MAX_FRAME_TO_COORDINATOR.min(bytes.len())).await {
            both_ways(&payload);
        }
        let mut rest = bytes;
        let _ = read_frame(&mut rest, MAX_FRAME_FROM_COORDINATOR.min(bytes.len())).await;
    });
    both_ways(bytes);
}

fn both_ways(payload: &[u8]) {
    if let Ok(message) = decode::<ToCoordinator>(payload) {
        assert_eq!(decode::<ToCoordinator>(&encode(&message)[4..]).ok(), Some(message));
    }
    if let Ok(message) = decode::<FromCoordinator>(payload) {
        assert_eq!(decode::<FromCoordinator>(&encode(&message)[4..]).ok(), Some(message));
    }
    if let Ok(message) = decode::<FromNewcomer>(payload) {
        assert_eq!(decode::<FromNewcomer>(&encode(&message)[4..]).ok(), Some(message));
    }
    if let Ok(message) = decode::<ToNewcomer>(payload) {
        assert_eq!(decode::<ToNewcomer>(&encode(&message)[4..]).ok(), Some(message));
    }
    if let Ok(opening) = decode::<Opening>(payload) {
        assert_eq!(decode::<Opening>(&encode(&opening)[4..]).ok(), Some(opening));
    }
    if let Ok(answer) = decode::<Answer>(payload) {
        assert_eq!(decode::<Answer>(&encode(&answer)[4..]).ok(), Some(answer));
    }
    if let Ok(asked) = decode::<FromFetcher>(payload) {
        assert_eq!(decode::<FromFetcher>(&encode(&asked)[4..]).ok(), Some(asked));
    }
    if let Ok(said) = decode::<ToFetcher>(payload) {
        assert_eq!(decode::<ToFetcher>(&encode(&said)[4..]).ok(), Some(said));
    }
    if let Ok(invitation) = std::str::from_utf8(payload).unwrap_or_default().parse::<Invitation>() {
        assert_eq!(invitation.to_string().parse::<Invitation>().ok(), Some(invitation));
    }
}

/// Runs either side of the handshake, with and without keys. If there are keys, no peer may get through without them.
pub(crate) fn handshake(bytes: &[u8]) {
    let private = Credentials { secret: JobSecret::new("secret"), rendezvous: Some([7; 16]) };
    for credentials in [&private, &Credentials::default()] {
        let mut stream = tokio::io::join(bytes, tokio::io::sink());
        let greeted = at_once(greet_coordinator(&mut stream, credentials));
        assert!(
            !(credentials.is_private() && matches!(greeted, Some(Ok(_)))),
            "a coordinator without the keys"
        );
        let mut stream = tokio::io::join(bytes, tokio::io::sink());
        let greeted = at_once(greet_rank(&mut stream, credentials, |_| ()));
        assert!(!(credentials.is_private() && matches!(greeted, Some(Ok(_)))), "a rank without the keys");
    }
}

/// Reads records that were sealed without the key. None may be accepted.
pub(crate) fn sealed(bytes: &[u8]) {
    let keys = SessionKeys { outward: [1; 32], inward: [2; 32] };
    let mut stream = Sealed::new(tokio::io::join(bytes, tokio::io::sink()), &keys);
    let mut plain = Vec::new();
    let _ = at_once(stream.read_to_end(&mut plain));
    assert!(plain.is_empty(), "a record without the key");
}

/// Feeds the coordinator with events and times from a script of bytes. Its messages must be readable, and its memory
/// must stay bounded.
pub(crate) fn coordinator_state(script: &[u8]) {
    const WORLD: u32 = 4;
    let settings = CoordinatorSettings {
        world_size: WORLD,
        cookie: [9; 16],
        job: "job".into(),
        source: "a script".into(),
        timeout: Duration::from_secs(5),
        liveness: Liveness::default(),
        forwards: true,
    };
    let mut now = Instant::now();
    let mut coordinator = CoordinatorState::new(settings, now);
    let mut rest = script;
    while let [step, argument, tail @ ..] = rest {
        let connection = u64::from(argument % 8);
        rest = tail;
        match step % 8 {
            0 | 1 => {
                let peer = PeerInfo {
                    rank: u32::from(argument % 8) % (WORLD + 1),
                    hostname: "host".into(),
                    pid: 1,
                    local_rank: None,
                    version: "1".into(),
                    host_key: 0,
                    relayed_by: None,
                };
                let world_size = if *argument < 250 { WORLD } else { WORLD + 1 };
                let hello = Hello {
                    peer,
                    world_size,
                    job: String::new(),
                    source: String::new(),
                    listener: None,
                    ends: None,
                };
                // The driver never reuses the number of a connection.
                coordinator.closed(connection, Loss::new(LossCause::Closed, "gone"));
                coordinator.hello(
                    connection,
                    None,
                    hello,
                    if step % 2 == 0 { OnSilence::Fail } else { OnSilence::Ignore },
                    now,
                );
            }
            2..=4 => {
                let length = rest.first().map_or(0, |length| usize::from(*length)).min(rest.len());
                let (payload, tail) = rest.split_at(length);
                rest = tail;
                if let Ok(message) = decode::<ToCoordinator>(payload.get(1..).unwrap_or_default())
                    && coordinator.message(connection, message, now).is_err()
                {
                    coordinator.closed(connection, Loss::new(LossCause::Closed, "broke the protocol"));
                }
            }
            5 => coordinator.closed(connection, Loss::new(LossCause::Closed, "its connection was closed")),
            6 => {
                now += Duration::from_millis(u64::from(*argument) * 50);
                coordinator.tick(now);
            }
            _ => coordinator.linger(Duration::from_millis(u64::from(*argument)), Vec::new(), now),
        }
        for action in coordinator.take_actions() {
            if let Action::Send { frame, .. } = action {
                assert!(decode::<FromCoordinator>(&frame[4..]).is_ok(), "what it sends can be read");
            }
        }
        if coordinator.is_done() {
            return;
        }
        assert!(coordinator.next_wakeup() <= now + Duration::from_secs(10), "it looks at the clock again");
    }
}

/// Runs one of five members that agree, on a script of messages and times. A decision must stay, and messages may name
/// members only.
pub(crate) fn members(script: &[u8]) {
    const MEMBERS: u32 = 5;
    const ME: u32 = 1;
    if let Ok(said) = decode::<PeerMessage>(script) {
        let frame = encode(&said);
        assert_eq!(decode::<PeerMessage>(&frame[4..]).map(|again| encode(&again)).ok(), Some(frame));
    }
    let second = Duration::from_secs(1);
    let settings = Settings {
        members: MEMBERS,
        me: ME,
        beat: second / 10,
        silent_after: second,
        stranded_after: 3 * second,
    };
    let (mut now, mut decided, mut has_called) = (Duration::ZERO, None, false);
    let mut agreement = Agreement::new(settings, now);
    let mut rest = script;
    while let [step, argument, tail @ ..] = rest {
        rest = tail;
        let member = u32::from(*argument) % MEMBERS;
        match step % 8 {
            0 => agreement.gone(member, now),
            1 if !has_called => {
                has_called = true;
                agreement.vote(Vote { kinds: 1, flags: u64::from(*argument), seed: [3; 32] }, now);
            }
            1..=3 => {
                now += Duration::from_millis(u64::from(*argument) * 20);
                agreement.tick(now);
            }
            _ => {
                let length = rest.first().map_or(0, |length| usize::from(*length)).min(rest.len());
                let (payload, tail) = rest.split_at(length);
                rest = tail;
                if let Ok(message) = decode::<Message>(payload.get(1..).unwrap_or_default())
                    && message.is_within(MEMBERS)
                {
                    agreement.receive(member, message, now);
                }
            }
        }
        for (to, message) in agreement.take_messages() {
            assert!(to < MEMBERS && to != ME && message.is_within(MEMBERS), "to {to}: {message:?}");
        }
        if let State::Decided(decision) = agreement.state(now) {
            assert_eq!(*decided.get_or_insert_with(|| decision.clone()), decision, "a decision stays");
        }
    }
}
