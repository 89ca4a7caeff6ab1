//! Sleeping owners are woken, however they sleep.

use std::thread;

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::*;
use crate::arm::{Armed, ParkBy};
use crate::wait_word;

/// Sleeps by the rules of the contract until something wakes the owner; panics if it has slept for the whole
/// `PATIENCE`.
fn sleep(endpoint: &mut ShmEndpoint, by: ParkBy, events: &mut Vec<Event>) {
    let _ = endpoint.arm(by);
    if endpoint.poll(events) {
        endpoint.disarm();
        return;
    }
    // Arming again changes nothing for peers and returns the same word.
    let before = Instant::now();
    match endpoint.arm(by) {
        Armed::Idle => panic!("something is outstanding"),
        Armed::Word(word, value) => wait_word(word, value, PATIENCE).expect("futex"),
        Armed::Fd(fd) => {
            let timeout = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
            let _ = rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout));
        }
    }
    assert!(before.elapsed() < PATIENCE, "nobody woke the sleeper");
    endpoint.disarm();
}

/// Plays ping-pong with both sides asleep between messages. `len` may exceed the ring, so that freed space must wake
/// the sender too.
fn ping_pong(by: [ParkBy; 2], len: usize, rounds: usize) {
    let (a, b) = pair();
    let run = |mut endpoint: ShmEndpoint, peer: u32| {
        let by = by[peer as usize];
        let mut events = Vec::new();
        for round in 0..rounds {
            for is_send in [peer == 1, peer == 0] {
                let mut buffer = if is_send { pattern(round, len) } else { vec![0u8; len] };
                let pieces = [Piece { ptr: buffer.as_mut_ptr(), len }];
                let on = channel(peer, 0);
                let posted = if is_send {
                    send(&mut endpoint, on, 7, &pieces, 1)
                } else {
                    receive(&mut endpoint, on, 7, &pieces, 1)
                };
                if posted.expect("post") == Posted::Pending {
                    while events.is_empty() {
                        sleep(&mut endpoint, by, &mut events);
                        endpoint.poll(&mut events);
                    }
                    assert!(matches!(events.drain(..).next(), Some(Event::Done(Token(1)))));
                }
                assert!(buffer == pattern(round, len));
            }
        }
        endpoint
    };
    thread::scope(|scope| {
        let first = scope.spawn(|| run(a, 1));
        let second = scope.spawn(|| run(b, 0));
        (first.join().expect("first"), second.join().expect("second"))
    });
}

#[test]
fn by_word() {
    ping_pong([ParkBy::Word; 2], 8, 500);
    ping_pong([ParkBy::Word; 2], 1 << 20, 20);
}

#[test]
fn by_descriptor() {
    ping_pong([ParkBy::Fd; 2], 8, 500);
    ping_pong([ParkBy::Fd; 2], 1 << 20, 20);
}

#[test]
fn one_by_word_and_one_by_descriptor() {
    ping_pong([ParkBy::Word, ParkBy::Fd], 8, 500);
    ping_pong([ParkBy::Fd, ParkBy::Word], 300_000, 50);
}

#[test]
fn a_good_bye_wakes() {
    for by in [ParkBy::Word, ParkBy::Fd] {
        let (mut a, mut b) = pair();
        let mut events = [Vec::new(), Vec::new()];
        let _ = receive(&mut b, channel(0, 0), 7, &[], 1).expect("post");
        pump(&mut [&mut a, &mut b], &mut events, |_| true);
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut events = Vec::new();
                while downs(&events).is_empty() {
                    sleep(&mut b, by, &mut events);
                    b.poll(&mut events);
                }
                events
            });
            drop(a);
            let events = sleeper.join().expect("sleeper");
            assert_eq!(failure(&events, 1), Some(ErrorKind::PeerLost));
        });
    }
}

#[test]
fn an_abort_on_the_board_wakes() {
    for by in [ParkBy::Word, ParkBy::Fd] {
        let (a, mut b) = pair();
        let board = a.board().expect("established");
        let seen = b.board().expect("established");
        let _ = receive(&mut b, channel(0, 0), 7, &[], 1).expect("post");
        thread::scope(|scope| {
            let sleeper = scope.spawn(|| {
                let mut events = Vec::new();
                while seen.aborted() == 0 {
                    let _ = b.arm(by);
                    if seen.aborted() == 0 {
                        sleep(&mut b, by, &mut events);
                    }
                    b.disarm();
                }
            });
            board.abort(5);
            sleeper.join().expect("sleeper");
        });
        assert_eq!(seen.aborted(), 5);
        board.abort(6);
        assert_eq!(seen.aborted(), 5, "the first cause stays");
    }
}

#[test]
fn nothing_outstanding_is_nothing_to_wake_for() {
    let (mut a, mut b) = pair();
    assert!(matches!(a.arm(ParkBy::Word), Armed::Idle));
    a.disarm();
    let _ = receive(&mut a, channel(1, 0), 7, &[], 1).expect("post");
    assert!(matches!(a.arm(ParkBy::Word), Armed::Word(..)));
    a.disarm();
    let _ = send(&mut b, channel(0, 0), 7, &[], 1).expect("post");
    let mut events = [Vec::new()];
    pump(&mut [&mut a], &mut events, |e| is_done(&e[0], 1));
    assert!(matches!(a.arm(ParkBy::Fd), Armed::Idle));
    a.disarm();
}

/// The first message of the visit is taken, and the second one does not fit its receive.
#[test]
fn room_is_told_although_the_next_receive_comes_back() {
    let (mut sender, mut receiver) = pair();
    let (mut to_receiver, mut to_sender) = (Vec::new(), Vec::new());
    let (short, long) = (pattern(1, 100), pattern(2, 17 << 20));
    let target = vec![0_u8; 100];
    let (short, long, target) = (piece(&short), piece(&long), piece(&target));
    let tagged = |receiver: &mut ShmEndpoint, tag: u64, token: u64| {
        // SAFETY: the piece and its memory outlive both endpoints.
        unsafe {
            receiver.post_recv(channel(0, 0), tag, Sink::Place(&target), OnMisfit::Return, Token(token))
        }
    };
    // The link is made before the sender sleeps.
    let _ = send(&mut sender, channel(1, 0), 1, &short, 1).expect("post");
    let _ = tagged(&mut receiver, 1, 2).expect("post");
    until("the link", || {
        receiver.poll(&mut to_receiver);
        sender.poll(&mut to_sender);
        is_done(&to_receiver, 2)
    });
    for (tag, token) in [(2, 3), (3, 4)] {
        assert_eq!(tagged(&mut receiver, tag, token).expect("post"), Posted::Pending);
    }
    let _ = send(&mut sender, channel(1, 0), 2, &short, 5).expect("post");
    assert_eq!(send(&mut sender, channel(1, 0), 4, &long, 6).expect("post"), Posted::Pending);
    let is_woken = |sender: &mut ShmEndpoint| {
        let Armed::Fd(fd) = sender.arm(ParkBy::Fd) else { panic!("a send is outstanding") };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)).expect("poll") > 0
    };
    until("a sender that may sleep", || {
        let was_woken = is_woken(&mut sender);
        let moved = sender.poll(&mut to_sender);
        if was_woken || moved {
            sender.disarm();
        }
        !was_woken && !moved
    });
    receiver.poll(&mut to_receiver);
    assert!(to_receiver.iter().any(|event| matches!(event, Event::Returned(Token(4)))), "{to_receiver:?}");
    assert!(is_done(&to_receiver, 3), "{to_receiver:?}");
    assert!(is_woken(&mut sender), "nobody woke the sender");
    sender.disarm();
}
