//! Cases about failures: mismatches, giving up, lost peers.

use super::Subject;
use super::message::Shape;
use super::world::{Ticket, World};
use crate::error::{Error, ErrorKind};

fn cause() -> Error {
    Error::new(ErrorKind::Aborted, "suite", None, "the suite gives up")
}

/// Sends messages of which one is not the expected one; the others must still arrive.
fn mismatch(subject: &dyn Subject, sent: (u64, usize), expected: (u64, usize), eaten: bool) {
    let mut world = World::new(subject, 2);
    world.exchange(0, 1, 0, 1, Shape::new(1, 100));
    world.finish("a first message");
    let sink = |shape: Shape| if eaten { shape.eaten() } else { shape };
    let wrong = world.recv(1, 0, 0, expected.0, sink(Shape::new(7, expected.1)));
    let after: Vec<Ticket> = (2..12)
        .map(|i| {
            world.recv(1, 0, 0, i, Shape::new(i, 500 * i as usize).cut(vec![i as usize, 499 * i as usize]))
        })
        .collect();
    world.send(0, 1, 0, sent.0, Shape::new(7, sent.1));
    for i in 2..12 {
        world.send(0, 1, 0, i, Shape::new(i, 500 * i as usize));
    }
    world.wait("a mismatch", |world| !world.is_pending(wrong));
    let error = world.error(wrong).clone();
    let want = ErrorKind::Mismatch {
        expected_tag: expected.0,
        tag: sent.0,
        expected_len: expected.1 as u64,
        len: sent.1 as u64,
    };
    assert_eq!(error.kind, want);
    assert_eq!(error.peer, Some(0));
    world.wait("messages behind a mismatch", |world| after.iter().all(|&t| world.is_done(t)));
    world.exchange(1, 0, 0, 1, Shape::new(1, 100));
    let last = world.exchange(0, 1, 0, 1, Shape::new(1, 100_000));
    world.wait("messages long behind a mismatch", |world| last.iter().all(|&t| world.is_done(t)));
}

pub(super) fn mismatched_tag(subject: &dyn Subject) {
    for eaten in [false, true] {
        for len in [0, 8, 5000, 2 << 20] {
            mismatch(subject, (41, len), (42, len), eaten);
        }
    }
}

pub(super) fn mismatched_length(subject: &dyn Subject) {
    for eaten in [false, true] {
        for (sent, expected) in [(8, 16), (16, 8), (0, 100), (100, 0), (3 << 20, 1000), (1000, 3 << 20)] {
            mismatch(subject, (5, sent), (5, expected), eaten);
        }
    }
}

pub(super) fn abort_gives_all_memory_back(subject: &dyn Subject) {
    for eaten in [false, true] {
        let mut world = World::new(subject, 3);
        let sink = |shape: Shape| if eaten { shape.eaten() } else { shape };
        world.exchange(1, 0, 0, 1, Shape::new(1, 1000));
        world.finish("a first message");
        // One receive in the middle of a message, one waiting, one from the peer that never sent.
        let long = Shape::new(2, 48 << 20).repeated(1 << 20);
        let mut mine = vec![
            world.recv(0, 1, 0, 2, sink(Shape::new(2, 8 << 20))),
            world.recv(0, 1, 0, 3, sink(Shape::new(3, 100))),
            world.send(0, 1, 0, 4, long.clone()),
            world.recv(0, 2, 0, 4, sink(Shape::new(4, 100))),
            world.send(0, 2, 0, 4, long),
        ];
        world.send(1, 0, 0, 2, Shape::new(2, 8 << 20));
        for _ in 0..2 {
            world.step();
        }
        mine.retain(|&ticket| world.is_pending(ticket));
        let mut events = Vec::new();
        world.end(0).abort(&cause(), &mut events);
        world.absorb(0, &mut events);
        for &ticket in &mine {
            assert_eq!(world.error(ticket).kind, ErrorKind::Aborted);
        }
        let refused = world.recv(0, 1, 0, 5, Shape::new(5, 10));
        for _ in 0..200 {
            world.step();
        }
        assert!(!world.is_pending(refused) && !world.is_done(refused), "a receive lives on after an abort");
        world.assert_untouched();
    }
}

pub(super) fn abandon_concerns_one_peer(subject: &dyn Subject) {
    let mut world = World::new(subject, 3);
    for peer in [1, 2] {
        world.exchange(0, peer, 0, 1, Shape::new(1, 1000));
        world.exchange(peer, 0, 0, 1, Shape::new(2, 1000));
    }
    world.finish("first messages");
    let lost = [
        world.recv(0, 1, 0, 2, Shape::new(2, 8 << 20)),
        world.send(0, 1, 0, 2, Shape::new(3, 48 << 20).repeated(1 << 20)),
    ];
    let kept = world.recv(0, 2, 0, 2, Shape::new(4, 3000));
    let theirs = world.recv(1, 0, 0, 7, Shape::new(9, 48 << 20).repeated(1 << 20).eaten());
    world.send(1, 0, 0, 2, Shape::new(2, 8 << 20));
    world.step();
    let mut events = Vec::new();
    let still: Vec<Ticket> = lost.into_iter().filter(|&t| world.is_pending(t)).collect();
    world.end(0).abandon(1, &cause(), &mut events);
    world.absorb(0, &mut events);
    for ticket in still {
        assert_eq!(world.error(ticket).kind, ErrorKind::Aborted);
    }
    let refused = world.send(0, 1, 0, 3, Shape::new(1, 10));
    world.send(2, 0, 0, 2, Shape::new(4, 3000));
    let more = world.exchange(0, 2, 0, 3, Shape::new(5, 300_000));
    world.wait("the peer that was kept", |world| {
        world.is_done(kept) && more.iter().all(|&t| world.is_done(t))
    });
    world.wait("the abandoned to notice", |world| !world.is_pending(refused) && !world.is_pending(theirs));
    assert!(!world.is_done(refused) && !world.is_done(theirs), "messages of an abandoned peer go on");
    assert!(!world.downs.contains(&(0, 2)));
    world.assert_untouched();
}

pub(super) fn peer_lost_in_the_middle(subject: &dyn Subject) {
    // The victim is once the lower and once the higher rank, which connect in different ways.
    for victim in [0, 2] {
        let mut world = World::new(subject, 3);
        let (me, other) = (1, 2 - victim);
        for peer in [victim, other] {
            world.exchange(me, peer, 0, 1, Shape::new(1, 1000));
        }
        world.finish("first messages");
        let lost = [
            world.recv(me, victim, 0, 2, Shape::new(2, 64 << 20)),
            world.recv(me, victim, 0, 3, Shape::new(3, 10)),
            world.send(me, victim, 0, 2, Shape::new(4, 96 << 20).repeated(1 << 20)),
        ];
        world.send(victim, me, 0, 2, Shape::new(2, 64 << 20).repeated(64 << 20));
        world.recv(victim, me, 0, 2, Shape::new(4, 96 << 20).repeated(1 << 20).eaten());
        for _ in 0..3 {
            world.step();
        }
        world.drop_end(victim);
        world.wait("the loss to be noticed", |world| lost.iter().all(|&t| !world.is_pending(t)));
        for ticket in lost {
            let error = world.error(ticket);
            assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(victim)), "{error}");
        }
        world.wait("the report", |world| world.downs.contains(&(me, victim)));
        let there = world.exchange(me, other, 0, 3, Shape::new(3, 500_000));
        let back = world.exchange(other, me, 0, 3, Shape::new(3, 500_000));
        world.wait("the others", |world| there.iter().chain(&back).all(|&t| world.is_done(t)));
        world.assert_untouched();
    }
}

pub(super) fn peer_lost_is_for_ever(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    world.exchange(0, 1, 0, 1, Shape::new(1, 1000));
    world.exchange(1, 0, 0, 1, Shape::new(1, 1000));
    world.finish("first messages");
    world.drop_end(1);
    let first = world.recv(0, 1, 0, 2, Shape::new(2, 10));
    world.wait("the loss", |world| !world.is_pending(first));
    assert_eq!(world.error(first).kind, ErrorKind::PeerLost);
    for index in 0..world.end(0).caps().channels_max.min(2) {
        let later =
            [world.recv(0, 1, index, 3, Shape::new(3, 10)), world.send(0, 1, index, 3, Shape::new(3, 10))];
        world.wait("later tokens", |world| later.iter().all(|&t| !world.is_pending(t)));
        for ticket in later {
            assert_eq!(world.error(ticket).kind, ErrorKind::PeerLost);
        }
    }
    assert_eq!(world.downs, [(0, 1)]);
}

pub(super) fn done_sends_survive_their_sender(subject: &dyn Subject) {
    for sender in 0..2 {
        let mut world = World::new(subject, 2);
        let receiver = 1 - sender;
        let mut sends = Vec::new();
        let mut recvs = Vec::new();
        for i in 0..60u64 {
            let shape = Shape::new(i, if i % 10 == 0 { 300_000 } else { 300 });
            sends.push(world.send(sender, receiver, 0, i, shape.clone()));
            recvs.push(world.recv(receiver, sender, 0, i, shape));
        }
        let mut gone = false;
        while !gone {
            world.step();
            world.check_deadline("sends to be done and flushed");
            gone = sends.iter().all(|&t| world.is_done(t)) && world.end(sender).is_flushed();
        }
        world.drop_end(sender);
        world.finish("messages whose sender has left");
    }
}
