//! Cases about conditional receives and envelopes.

use std::collections::VecDeque;

use super::message::Shape;
use super::pattern::Random;
use super::world::{Ticket, World};
use super::{Subject, skip};
use crate::arm::{Armed, ParkBy};
use crate::endpoint::{Channel, Envelope};

const FROM_0: Channel = Channel { peer: 0, index: 0 };

/// Makes a world of two; `None` if the transport cannot probe.
fn world(subject: &dyn Subject) -> Option<World> {
    let mut world = World::new(subject, 2);
    if world.end(1).caps().can_probe {
        return Some(world);
    }
    skip("the transport cannot probe");
    None
}

fn envelope(tag: u64, len: usize) -> (u32, Envelope) {
    (1, Envelope { on: FROM_0, tag, len: len as u64 })
}

pub(super) fn receives_that_do_not_fit_come_back(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    for (round, len) in [0, 1, 100, 5000, 3 << 20].into_iter().enumerate() {
        let shape = |tag: u64| Shape::new(tag ^ (round as u64) << 8, len);
        // The order of the posts alternates: a message meets its receive in the post, or later.
        let sends = |world: &mut World| [3, 5, 6].map(|tag| world.send(0, 1, 0, tag, shape(tag)));
        if round % 2 == 0 {
            sends(&mut world);
        }
        let posted = [5, 6, 5].map(|tag| world.recv_if(1, 0, 0, tag, shape(tag)));
        if round % 2 == 1 {
            sends(&mut world);
        }
        world.wait("word of the first message", |world| world.waiting.len() == 1);
        assert_eq!(world.returned, posted, "what was posted comes back, in order");
        assert_eq!(world.waiting, [envelope(3, len)]);
        for _ in 0..20 {
            world.step();
        }
        assert_eq!(world.waiting.len(), 1, "told twice");
        world.recv(1, 0, 0, 3, shape(3));
        world.recv_if(1, 0, 0, 5, shape(5));
        world.recv_if(1, 0, 0, 6, shape(6));
        world.finish("the messages in the order in which they came");
        assert_eq!((world.waiting.len(), world.returned.len()), (1, 3), "receives that fit came back");
        world.waiting.clear();
        world.returned.clear();
    }
}

pub(super) fn another_length_comes_back_too(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    let posted = world.recv_if(1, 0, 0, 9, Shape::new(1, 64));
    world.send(0, 1, 0, 9, Shape::new(1, 65));
    world.wait("word of the message", |world| !world.waiting.is_empty());
    assert_eq!(
        (world.returned.as_slice(), world.waiting.as_slice()),
        (&[posted][..], &[envelope(9, 65)][..])
    );
    world.recv(1, 0, 0, 9, Shape::new(1, 65));
    world.finish("the message as it is");
}

pub(super) fn receives_can_be_taken_back(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    if !world.end(1).caps().can_cancel_recvs {
        return skip("the transport takes no receives back");
    }
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.finish("a first message");
    let posted = [2, 3].map(|tag| world.recv_if(1, 0, 0, tag, Shape::new(tag, 100)));
    world.step();
    assert!(world.cancel_recvs(1, FROM_0));
    assert_eq!(world.returned, posted, "what was posted comes back, in order");
    world.step();
    assert!(matches!(world.end(1).arm(ParkBy::Fd), Armed::Idle), "nothing is awaited");
    world.end(1).disarm();
    // A message that has begun to arrive keeps its receive; one that has not waits for the next.
    for steps in 0..20 {
        let (tag, shape) = (10 + steps, Shape::new(steps, 3 << 20));
        world.send(0, 1, 0, tag, shape.clone());
        world.recv_if(1, 0, 0, tag, shape.clone());
        for _ in 0..steps {
            world.step();
        }
        world.returned.clear();
        let is_free = world.cancel_recvs(1, FROM_0);
        if let [_] = world.returned[..] {
            assert!(is_free);
            world.recv(1, 0, 0, tag, shape);
        }
        world.finish("a message whose receive was taken back, or not");
        assert!(world.waiting.is_empty(), "told of a message without a probe");
    }
    world.recv(1, 0, 0, 9, Shape::new(9, 9));
    assert!(!world.cancel_recvs(1, FROM_0), "a receive without a condition stays");
    world.send(0, 1, 0, 9, Shape::new(9, 9));
    world.finish("the last message");
}

/// Tags are drawn at random, and receives are posted in another order than sends. The test matches them as a runtime
/// does.
pub(super) fn messages_can_be_matched_by_tag(subject: &dyn Subject) {
    const TAGS: usize = 4;
    const MESSAGES: usize = 60;
    for seed in 0..6 {
        let Some(mut world) = world(subject) else { return };
        let mut random = Random::new(seed);
        // Tag and length of each message; the i-th message of a tag has seed (tag, i).
        let messages: Vec<(u64, usize)> = (0..MESSAGES)
            .map(|_| {
                let longest = [1, 200, 40_000, 1 << 20][random.below(4)];
                (random.below(TAGS) as u64, random.length(longest))
            })
            .collect();
        let shape = |at: usize| Shape::new(at as u64, messages[at].1);
        let mut wanted: VecDeque<usize> = VecDeque::new();
        for tag in [2, 0, 3, 1] {
            wanted.extend((0..MESSAGES).filter(|&at| messages[at].0 == tag));
        }
        let (mut sent, mut posted): (usize, VecDeque<(Ticket, usize)>) = (0, VecDeque::new());
        let mut done = 0;
        while done < MESSAGES {
            for _ in 0..random.below(4) {
                if sent < MESSAGES {
                    world.send(0, 1, 0, messages[sent].0, shape(sent));
                    sent += 1;
                }
            }
            while posted.len() < 1 + random.below(5)
                && world.waiting.is_empty()
                && let Some(at) = wanted.pop_front()
            {
                posted.push_back((world.recv_if(1, 0, 0, messages[at].0, shape(at)), at));
            }
            for _ in 0..random.below(6) {
                world.step();
            }
            world.check_deadline("messages matched by tag");
            while let Some(&(ticket, at)) = posted.front() {
                if world.is_done(ticket) {
                    done += 1;
                } else if world.returned.contains(&ticket) {
                    // All receives behind it have come back too, and keep their order.
                    posted.drain(..).rev().for_each(|(_, at)| wanted.push_front(at));
                    break;
                } else {
                    break;
                }
                posted.pop_front();
                let _ = at;
            }
            if let Some((_, waits)) = world.waiting.pop() {
                let found = wanted.iter().position(|&at| messages[at].0 == waits.tag).expect("nobody's");
                let at = wanted.remove(found).expect("just found");
                assert_eq!(waits.len, messages[at].1 as u64, "another message of tag {}", waits.tag);
                posted.push_back((world.recv(1, 0, 0, waits.tag, shape(at)), at));
            }
        }
        world.finish("messages matched by tag");
    }
}

pub(super) fn a_probed_message_is_told_and_stays(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    for (round, len) in [8, 0, 100_000, 3 << 20].into_iter().enumerate() {
        let tag = 70 + round as u64;
        if round % 2 == 0 {
            world.end(1).probe(FROM_0).expect("probe");
        }
        world.send(0, 1, 0, tag, Shape::new(tag, len));
        world.send(0, 1, 0, 1, Shape::new(1, 10));
        if round % 2 == 1 {
            world.end(1).probe(FROM_0).expect("probe");
        }
        world.wait("word of the message", |world| !world.waiting.is_empty());
        for _ in 0..20 {
            world.step();
        }
        assert_eq!(world.waiting, [envelope(tag, len)], "round {round}: told once");
        world.waiting.clear();
        world.end(1).probe(FROM_0).expect("probe");
        world.wait("word of the same message", |world| !world.waiting.is_empty());
        assert_eq!(world.waiting, [envelope(tag, len)], "round {round}: asked again");
        world.waiting.clear();
        world.recv(1, 0, 0, tag, Shape::new(tag, len));
        world.recv(1, 0, 0, 1, Shape::new(1, 10));
        world.finish("the message and the one behind it");
        assert!(world.waiting.is_empty(), "round {round}: told though receives were posted");
    }
}

pub(super) fn a_probe_can_be_taken_back(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.finish("a first message");
    world.end(1).probe(FROM_0).expect("probe");
    world.end(1).cancel_probe(FROM_0);
    world.step();
    assert!(matches!(world.end(1).arm(ParkBy::Fd), Armed::Idle), "nothing is awaited");
    world.end(1).disarm();
    world.end(1).probe(FROM_0).expect("probe");
    world.recv(1, 0, 0, 2, Shape::new(2, 2));
    world.send(0, 1, 0, 2, Shape::new(2, 2));
    world.send(0, 1, 0, 3, Shape::new(3, 3));
    world.wait("the message", |world| world.is_done(Ticket::nth(2)));
    for _ in 0..20 {
        world.step();
    }
    assert!(world.waiting.is_empty(), "a post takes the probe back");
    world.recv(1, 0, 0, 3, Shape::new(3, 3));
    world.finish("the last message");
}

pub(super) fn a_probe_keeps_the_owner_awake(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.finish("a first message");
    world.end(1).probe(FROM_0).expect("probe");
    assert!(!matches!(world.end(1).arm(ParkBy::Fd), Armed::Idle), "a probe is something to wait for");
    world.end(1).disarm();
    world.send(0, 1, 0, 4, Shape::new(4, 4));
    world.wait("the send to leave", |world| world.is_done(Ticket::nth(2)));
    world.end(1).arm(ParkBy::Fd);
    // One poll of an armed endpoint must report everything that has arrived.
    world.wait("word of the message", |world| !world.waiting.is_empty());
    world.end(1).disarm();
    world.recv(1, 0, 0, 4, Shape::new(4, 4));
    world.finish("the message");
}

pub(super) fn a_probe_outlives_its_peer(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.finish("a first message");
    let last = world.send(0, 1, 0, 5, Shape::new(5, 5));
    world.wait("the last message to leave", |world| world.is_done(last));
    world.drop_end(0);
    world.end(1).probe(FROM_0).expect("probe");
    world.wait("word of the last message", |world| !world.waiting.is_empty());
    assert_eq!(world.waiting, [envelope(5, 5)]);
    world.recv(1, 0, 0, 5, Shape::new(5, 5));
    world.finish("what was sent before the end");
    if world.downs.is_empty() && world.end(1).probe(FROM_0).is_ok() {
        for _ in 0..20 {
            world.step();
        }
        assert_eq!(world.waiting.len(), 1, "told of a message that is not there");
    }
    // A later receive meets the end of the peer.
    let lost = world.recv(1, 0, 0, 6, Shape::new(6, 6));
    world.wait("the loss", |world| !world.is_pending(lost));
    assert_eq!(world.error(lost).kind, crate::error::ErrorKind::PeerLost);
}
