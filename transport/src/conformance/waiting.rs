//! Cases about sleeping and waking: two threads take turns, and sleep in between.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};

use super::pattern::Random;
use super::world::endpoints;
use super::{Subject, skip};
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Channel, Endpoint, Event, OnMisfit, Piece, Posted, Sink, Token};
use crate::sys::atomic::AtomicU32 as SharedWord;
use crate::wait_word;

const HANDOVERS: u64 = 3000;

pub(super) fn sleepers_wake_by_descriptor(subject: &dyn Subject) {
    let ends = endpoints(subject, 2);
    if !ends[0].caps().park_fd {
        return skip("nobody can sleep on a descriptor of this transport");
    }
    ping_pong(subject, ends, ParkBy::Fd, |_| 16, HANDOVERS);
}

pub(super) fn sleepers_wake_by_word(subject: &dyn Subject) {
    let ends = endpoints(subject, 2);
    if !ends[0].caps().park_word {
        return skip("nobody can sleep on a word of this transport");
    }
    ping_pong(subject, ends, ParkBy::Word, |_| 16, HANDOVERS);
}

/// The messages do not fit the transport's buffers, so the sender too must be woken when there is room.
pub(super) fn sleepers_wake_for_room(subject: &dyn Subject) {
    for by in [ParkBy::Fd, ParkBy::Word] {
        let ends = endpoints(subject, 2);
        let caps = ends[0].caps();
        let able = if by == ParkBy::Fd { caps.park_fd } else { caps.park_word };
        if able {
            ping_pong(subject, ends, by, |turn| if turn % 2 == 0 { 6 << 20 } else { 100_000 }, 60);
        }
    }
}

/// Receives wait on many channels, and a message may come on any of them.
pub(super) fn sleepers_wake_by_any_of_many_channels(subject: &dyn Subject) {
    for by in [ParkBy::Fd, ParkBy::Word] {
        let ends = endpoints(subject, 2);
        let caps = ends[0].caps();
        let able = if by == ParkBy::Fd { caps.park_fd } else { caps.park_word };
        if !able {
            continue;
        }
        let channels = caps.channels_max.min(12);
        let deadline = Instant::now() + subject.patience();
        let finished = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for (rank, end) in ends.into_iter().enumerate() {
                let finished = &finished;
                scope.spawn(move || scattered_ping_pong(end, rank, channels, by, deadline, finished));
            }
        });
    }
}

fn scattered_ping_pong(
    mut end: Box<dyn Endpoint>,
    rank: usize,
    channels: u16,
    by: ParkBy,
    deadline: Instant,
    finished: &AtomicU32,
) {
    const TURNS: u64 = 1000;
    const SENT: Token = Token(u64::MAX);
    let mut choice = Random::new(11);
    let mut buffers = vec![0u64; usize::from(channels)];
    let pieces: Vec<[Piece; 1]> =
        buffers.iter_mut().map(|b| [Piece { ptr: std::ptr::from_mut(b).cast(), len: 8 }]).collect();
    let on = |index: u16| Channel { peer: 1 - rank as u32, index };
    // Tags count the messages of a channel in a direction.
    let (mut sent, mut received) = (vec![0u64; usize::from(channels)], vec![0u64; usize::from(channels)]);
    let recv = |end: &mut dyn Endpoint, index: u16, tag: u64| {
        let sink = Sink::Place(&pieces[usize::from(index)]);
        // SAFETY: buffers and pieces live until the endpoint is dropped below.
        let posted = unsafe {
            end.post_recv(on(index), tag, sink, OnMisfit::Fail, Token(index.into())).expect("post")
        };
        posted == Posted::Done
    };
    // The first message may arrive before its receive is posted.
    let mut early: Vec<bool> = (0..channels).map(|index| recv(&mut *end, index, 0)).collect();
    let mut word = 0u64;
    let out = [Piece { ptr: (&raw mut word).cast(), len: 8 }];
    for turn in 0..TURNS {
        let index = choice.below(channels.into()) as u16;
        let at = usize::from(index);
        if turn % 2 == rank as u64 {
            // SAFETY: the word lives until the wait has seen the token complete.
            let posted = unsafe { end.post_send(on(index), sent[at], &out, SENT).expect("post") };
            sent[at] += 1;
            if posted == Posted::Pending {
                sleep_until_done(&mut *end, by, SENT, deadline);
            }
        } else {
            if !early[at] {
                sleep_until_done(&mut *end, by, Token(index.into()), deadline);
            }
            received[at] += 1;
            early[at] = recv(&mut *end, index, received[at]);
        }
    }
    while !end.is_flushed() {
        end.poll(&mut Vec::new());
        assert!(Instant::now() < deadline, "stuck flushing");
    }
    // If one end left early, the receives that the other end has still posted would fail.
    finished.fetch_add(1, Ordering::AcqRel);
    while finished.load(Ordering::Acquire) < 2 {
        assert!(Instant::now() < deadline, "stuck waiting for the other end");
        std::thread::yield_now();
    }
    drop(end);
}

pub(super) fn idle_ends_do_not_hold_up_sleep(subject: &dyn Subject) {
    let mut ends = endpoints(subject, 2);
    let by = if ends[0].caps().park_fd { ParkBy::Fd } else { ParkBy::Word };
    for end in &mut ends {
        // A poll after arming must find nothing, and disarming must work.
        let _ = end.arm(by);
        let mut events = Vec::new();
        end.poll(&mut events);
        assert!(events.is_empty(), "{events:?}");
        end.disarm();
    }
}

fn ping_pong(
    subject: &dyn Subject,
    ends: Vec<Box<dyn Endpoint>>,
    by: ParkBy,
    len: fn(u64) -> usize,
    turns: u64,
) {
    let deadline = Instant::now() + subject.patience();
    std::thread::scope(|scope| {
        for (rank, mut end) in ends.into_iter().enumerate() {
            scope.spawn(move || {
                let mut random = Random::new(rank as u64);
                let mut buffer = vec![0u8; len(0).max(len(1))];
                let peer = 1 - rank as u32;
                for turn in 0..turns {
                    let len = len(turn);
                    let mine = turn % 2 == rank as u64;
                    if mine {
                        buffer[..len].fill(turn as u8);
                    }
                    let pieces = [Piece { ptr: buffer.as_mut_ptr(), len }];
                    let on = Channel { peer, index: 0 };
                    // SAFETY: buffer and pieces live until the wait below has seen the token complete.
                    let posted = unsafe {
                        if mine {
                            end.post_send(on, turn, &pieces, Token(turn))
                        } else {
                            end.post_recv(on, turn, Sink::Place(&pieces), OnMisfit::Fail, Token(turn))
                        }
                    };
                    if posted.expect("post") == Posted::Pending {
                        // Sometimes the message is there before the sleep, sometimes during it, sometimes after it.
                        for _ in 0..random.below(300) {
                            std::hint::spin_loop();
                        }
                        sleep_until_done(&mut *end, by, Token(turn), deadline);
                    }
                    assert!(buffer[..len].iter().all(|&b| b == turn as u8), "wrong bytes in turn {turn}");
                }
                // The last message may still need this end to make progress.
                let mut events = Vec::new();
                while !end.is_flushed() {
                    end.poll(&mut events);
                    assert!(Instant::now() < deadline, "stuck flushing");
                }
            });
        }
    });
}

/// A word or descriptor to sleep on, which does not borrow the endpoint, since that must be polled once more.
enum Bed {
    Fd(i32),
    Word(*const SharedWord, u32),
    None,
}

fn sleep_until_done(end: &mut dyn Endpoint, by: ParkBy, token: Token, deadline: Instant) {
    let mut events = Vec::new();
    sleep_until(end, by, deadline, |end| {
        end.poll(&mut events);
        is_done(&mut events, token)
    });
}

/// Sleeps until `is_over` holds, which it checks before and after it announces that it sleeps.
pub(super) fn sleep_until(
    end: &mut dyn Endpoint,
    by: ParkBy,
    deadline: Instant,
    mut is_over: impl FnMut(&mut dyn Endpoint) -> bool,
) {
    loop {
        if is_over(end) {
            return;
        }
        let bed = match end.arm(by) {
            Armed::Idle => Bed::None,
            Armed::Word(word, value) => Bed::Word(word, value),
            Armed::Fd(fd) => Bed::Fd(fd.as_raw_fd()),
        };
        if is_over(end) {
            end.disarm();
            return;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "a lost wake-up: {end:#?}");
        match bed {
            Bed::None => panic!("the endpoint says that nothing is outstanding"),
            Bed::Word(word, value) => {
                // SAFETY: the word belongs to the endpoint, which is not moved or dropped here.
                let word = unsafe { &*word };
                // This returns early if the word has changed, which is intended.
                let _ = wait_word(word, value, left);
            }
            Bed::Fd(fd) => {
                // SAFETY: the descriptor belongs to the endpoint, which is not dropped here.
                let fd = unsafe { BorrowedFd::borrow_raw(fd) };
                let mut fds = [PollFd::new(&fd, PollFlags::IN)];
                let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
                let _ = rustix::event::poll(&mut fds, Some(&left));
            }
        }
        end.disarm();
    }
}

fn is_done(events: &mut Vec<Event>, token: Token) -> bool {
    let mut done = false;
    for event in events.drain(..) {
        match event {
            Event::Done(which) if which == token => done = true,
            other => panic!("{other:?}"),
        }
    }
    done
}
