//! Cases about flow: channels, back-pressure, first use, allocation.

use super::allocator::CountingAllocator;
use super::message::Shape;
use super::world::{World, endpoints};
use super::{Subject, skip};
use crate::endpoint::{Channel, Event, OnMisfit, Piece, Posted, Sink, Token};

pub(super) fn many_channels(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let channels = world.end(0).caps().channels_max.min(48);
    for round in 0..4u64 {
        for index in 0..channels {
            let seed = round << 32 | u64::from(index);
            world.exchange(0, 1, index, seed, Shape::new(seed, 5000));
            world.exchange(1, 0, index, seed, Shape::new(!seed, 70));
        }
        if round > 0 {
            world.finish("messages on many channels");
        }
    }
    world.finish("messages on many channels");
}

pub(super) fn channels_do_not_wait_for_each_other(subject: &dyn Subject) {
    let mut world = World::new(subject, 3);
    if world.end(0).caps().channels_max < 2 {
        return skip("the transport has one channel");
    }
    // This is twice what the kernel's largest buffers or any sensible staging hold, and it is not read.
    let shape = |i: u64| Shape::new(i, 1 << 20).repeated(64 << 10).eaten();
    let stalled: Vec<_> = (0..160).map(|i| world.send(0, 1, 0, i, shape(i))).collect();
    for i in 0..50 {
        let there = world.exchange(0, 1, 1, i, Shape::new(i, 3000));
        let back = world.exchange(1, 0, 1, i, Shape::new(i, 30));
        let other = world.exchange(0, 2, 0, i, Shape::new(i, 30_000));
        let mine = world.exchange(1, 0, 0, i, Shape::new(i, 100));
        let all = [there, back, other, mine].concat();
        world.wait("messages beside a stalled channel", |world| all.iter().all(|&t| world.is_done(t)));
    }
    assert!(stalled.iter().any(|&t| world.is_pending(t)), "160 MiB vanished into a channel nobody reads");
    for i in 0..160 {
        world.recv(1, 0, 0, i, shape(i));
    }
    world.finish("the stalled channel");
}

pub(super) fn floods_in_both_directions(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let channels = world.end(0).caps().channels_max.min(2);
    let shape = |seed: u64| Shape::new(seed, 24 << 20).repeated(256 << 10).eaten();
    for index in 0..channels {
        // Each end sends first and receives then: an end that waits only for its sends would wait for ever.
        for rank in 0..2 {
            world.send(rank, 1 - rank, index, 1, shape(rank.into()));
        }
    }
    for index in 0..channels {
        for rank in 0..2 {
            world.recv(rank, 1 - rank, index, 1, shape((1 - rank).into()));
        }
    }
    world.finish("floods in both directions");
}

pub(super) fn simultaneous_first_messages(subject: &dyn Subject) {
    for round in 0..8u64 {
        let mut world = World::new(subject, 2);
        let len = if round % 2 == 0 { 10 } else { 100_000 };
        for rank in 0..2 {
            world.exchange(rank, 1 - rank, 0, round, Shape::new(round, len));
            if round % 4 >= 2 {
                world.poll(rank);
            }
        }
        world.finish("the first messages of both ends");
    }
}

pub(super) fn storm_of_first_messages(subject: &dyn Subject) {
    const WORLD: u32 = 8;
    let mut world = World::new(subject, WORLD);
    let channels = world.end(0).caps().channels_max.min(4);
    for from in 0..WORLD {
        for to in (0..WORLD).filter(|&to| to != from) {
            for index in 0..channels {
                let seed = u64::from(from) << 32 | u64::from(to) << 16 | u64::from(index);
                world.exchange(from, to, index, seed, Shape::new(seed, 2000));
            }
        }
    }
    world.finish("everybody's first message to everybody");
}

pub(super) fn posted_long_before_the_peer(subject: &dyn Subject) {
    for early in 0..2 {
        let mut world = World::new(subject, 2);
        let late = 1 - early;
        let send = world.send(early, late, 0, 1, Shape::new(1, 200_000));
        let recv = world.recv(early, late, 0, 2, Shape::new(2, 200_000));
        for _ in 0..2000 {
            world.poll(early);
        }
        assert!(world.is_pending(recv), "a receive completed out of nothing");
        world.recv(late, early, 0, 1, Shape::new(1, 200_000));
        world.send(late, early, 0, 2, Shape::new(2, 200_000));
        world.wait("messages posted before the peer did anything", |w| w.is_done(send) && w.is_done(recv));
        world.finish("the late end");
    }
}

/// Number of messages during the measurement.
const STEADY_MESSAGES: u64 = 400;

pub(super) fn steady_state_does_not_allocate(subject: &dyn Subject) {
    if CountingAllocator::allocations() == 0 {
        return skip("CountingAllocator is not the global allocator here");
    }
    let mut ends = endpoints(subject, 2);
    let mut source = vec![1u8; 100_000];
    let mut target = vec![0u8; 100_000];
    let mut events = Vec::with_capacity(64);
    let deadline = std::time::Instant::now() + subject.patience();
    let mut before = (0, 0);
    for message in 0..2 * STEADY_MESSAGES {
        if message == STEADY_MESSAGES {
            before = (CountingAllocator::allocations(), CountingAllocator::live_bytes());
        }
        let len = if message % 2 == 0 { 64 } else { source.len() };
        let (from, to) = if message % 4 < 2 { (0, 1) } else { (1, 0) };
        let mut open = 0;
        let src = [Piece { ptr: source.as_mut_ptr(), len }];
        let dst = [Piece { ptr: target.as_mut_ptr(), len }];
        // SAFETY: buffers and pieces outlive the loop below, which ends when both tokens have completed.
        unsafe {
            let on = |peer| Channel { peer, index: 0 };
            let posted =
                ends[to].post_recv(on(from as u32), message, Sink::Place(&dst), OnMisfit::Fail, Token(0));
            open += u32::from(posted.expect("post_recv") == Posted::Pending);
            let posted = ends[from].post_send(on(to as u32), message, &src, Token(1));
            open += u32::from(posted.expect("post_send") == Posted::Pending);
        }
        while open > 0 {
            assert!(std::time::Instant::now() < deadline, "stuck at message {message}");
            for end in &mut ends {
                end.poll(&mut events);
            }
            for event in events.drain(..) {
                assert!(matches!(event, Event::Done(_)), "{event:?}");
                open -= 1;
            }
        }
    }
    let after = (CountingAllocator::allocations(), CountingAllocator::live_bytes());
    assert_eq!(before, after, "(allocations, live bytes) of {STEADY_MESSAGES} messages in the steady state");
}

pub(super) fn flushed_means_gone(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    assert!(world.end(0).is_flushed(), "a fresh endpoint has nothing to flush");
    let shape = |i: u64| Shape::new(i, 1 << 20).repeated(64 << 10).eaten();
    let sends: Vec<_> = (0..160).map(|i| world.send(0, 1, 0, i, shape(i))).collect();
    for _ in 0..100 {
        world.step();
    }
    let open = sends.iter().any(|&t| world.is_pending(t));
    assert!(!open || !world.end(0).is_flushed(), "flushed, with sends that are not done");
    for i in 0..160 {
        world.recv(1, 0, 0, i, shape(i));
    }
    world.finish("sends");
    let mut flushed = false;
    while !flushed {
        world.step();
        world.check_deadline("flush after everything was received");
        flushed = world.end(0).is_flushed();
    }
}
