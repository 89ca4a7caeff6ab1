//! Cases about messages that are sent and taken at once, without tokens.

use super::message::Shape;
use super::pattern::Random;
use super::world::World;
use super::{Subject, skip};
use crate::endpoint::{Channel, Fits, Short};

const FROM_0: Channel = Channel { peer: 0, index: 0 };

fn exactly(tag: u64, room: usize) -> Fits {
    Fits { tag, mask: u64::MAX, room }
}

/// Makes a world of two between which a message has gone; `None` if the transport takes none at once.
fn world(subject: &dyn Subject) -> Option<World> {
    let mut world = World::new(subject, 2);
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.exchange(1, 0, 0, 1, Shape::new(1, 1));
    world.finish("a first message each way");
    if world.take_now(1, 0, 0, exactly(2, 0), &Shape::new(0, 0)) == Short::NotYet {
        return Some(world);
    }
    skip("the transport takes no message at once");
    None
}

/// Takes a message at once, after some steps if necessary.
fn take(world: &mut World, fits: Fits, shape: &Shape, what: &str) -> Short {
    loop {
        let answer = world.take_now(1, 0, 0, fits, shape);
        if answer != Short::NotYet {
            return answer;
        }
        world.step();
        world.check_deadline(what);
    }
}

/// Messages of all lengths around the limits of cells, pieces and rings are sent and taken at once or posted, in any
/// mixture.
pub(super) fn short_messages(subject: &dyn Subject) {
    const LENGTHS: [usize; 22] =
        [0, 1, 7, 8, 39, 40, 41, 63, 64, 65, 103, 104, 105, 127, 128, 129, 511, 513, 1024, 4095, 4096, 4097];
    let Some(mut world) = world(subject) else { return };
    let mut random = Random::new(5);
    let (mut at_once, mut taken) = (0, 0);
    for round in 0..600_u64 {
        // Some messages come in a row, so that not all meet an empty channel.
        let batch: Vec<(u64, usize)> = (0..1 + random.below(6))
            .map(|i| (round << 8 | i as u64, LENGTHS[random.below(LENGTHS.len())]))
            .collect();
        for &(tag, len) in &batch {
            let shape = Shape::new(tag, len).misaligned(random.below(16));
            if random.below(4) == 0 {
                world.send(0, 1, 0, tag, shape);
            } else {
                at_once += usize::from(world.send_now(0, 1, 0, tag, &shape));
            }
        }
        for &(tag, len) in &batch {
            let shape = Shape::new(tag, len);
            let answer = match random.below(4) {
                0 => Short::Other,
                _ => take(&mut world, exactly(tag, len), &shape, "a short message"),
            };
            match answer {
                Short::Taken { .. } => {
                    assert_eq!(answer, Short::Taken { tag, len });
                    taken += 1;
                }
                _ => {
                    let ticket = world.recv(1, 0, 0, tag, shape);
                    world.wait("a message that was posted", |world| world.is_done(ticket));
                }
            }
        }
        world.finish("short messages");
    }
    assert!(at_once > 100 && taken > 100, "{at_once} sent at once, {taken} taken");
}

/// Messages that do not fit stay whole for a receive that is posted.
pub(super) fn short_messages_that_do_not_fit_stay(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    for (tag, len) in [(3, 0), (4, 8), (5, 200), (6, 4000), (7, 100_000), (8, 3 << 20)] {
        let shape = Shape::new(tag, len);
        world.send_now(0, 1, 0, tag, &shape);
        assert_eq!(take(&mut world, exactly(tag + 1, len), &shape, "another tag"), Short::Other);
        if len > 0 {
            let room = Shape::new(tag, len - 1);
            assert_eq!(take(&mut world, exactly(tag, len - 1), &room, "too little room"), Short::Other);
        }
        world.recv(1, 0, 0, tag, shape.clone());
        world.finish("the message, posted");
        // Some bits of the tag are not compared, and there is more room than needed.
        if len <= 200 {
            world.send_now(0, 1, 0, 0xab00 | tag, &shape);
            let fits = Fits { tag, mask: 0xff, room: len };
            let answer = take(&mut world, fits, &shape, "the same tag but for bits that do not count");
            assert_eq!(answer, Short::Taken { tag: 0xab00 | tag, len });
        }
        world.finish("what was sent");
    }
}

/// No message overtakes one that was posted before, at either end.
pub(super) fn short_messages_wait_their_turn(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    let long = Shape::new(9, 3 << 20);
    let sent = world.send(0, 1, 0, 9, long.clone());
    let at_once = world.is_pending(sent) && world.send_now(0, 1, 0, 10, &Shape::new(10, 8));
    assert!(!at_once, "a message overtakes one that waits");
    world.recv(1, 0, 0, 9, long);
    assert_eq!(
        world.take_now(1, 0, 0, exactly(10, 8), &Shape::new(10, 8)),
        Short::Other,
        "a receive is posted"
    );
    world.recv(1, 0, 0, 10, Shape::new(10, 8));
    world.finish("both in their order");
    // A full channel declines, and goes on when there is room.
    let tags: Vec<u64> = (20..4000).collect();
    let refused = tags.iter().position(|tag| !world.send_now(0, 1, 0, *tag, &Shape::new(*tag, 8)));
    let refused = refused.expect("a channel without end");
    for tag in &tags[..=refused] {
        assert!(matches!(
            take(&mut world, exactly(*tag, 8), &Shape::new(*tag, 8), "a full channel"),
            Short::Taken { .. }
        ));
    }
    world.finish("a full channel");
}

/// A probe reports the next message that is not taken at once.
pub(super) fn a_probe_outlives_short_messages(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    world.end(1).probe(FROM_0).expect("probe");
    for tag in 30..40 {
        world.send_now(0, 1, 0, tag, &Shape::new(tag, 8));
        assert_eq!(
            take_unpolled(&mut world, exactly(tag, 8), &Shape::new(tag, 8)),
            Short::Taken { tag, len: 8 }
        );
    }
    world.step();
    assert!(world.waiting.is_empty(), "told of a message that was taken");
    world.send_now(0, 1, 0, 50, &Shape::new(50, 8));
    world.wait("word of the message", |world| !world.waiting.is_empty());
    assert_eq!(world.waiting[0].1.tag, 50);
    assert_eq!(
        take_unpolled(&mut world, exactly(50, 8), &Shape::new(50, 8)),
        Short::Taken { tag: 50, len: 8 }
    );
    world.finish("what was sent");
}

/// Takes a message without polling the receiver, since a poll would report the message.
fn take_unpolled(world: &mut World, fits: Fits, shape: &Shape) -> Short {
    loop {
        let answer = world.take_now(1, 0, 0, fits, shape);
        if answer != Short::NotYet {
            return answer;
        }
        world.poll(0);
        world.check_deadline("a short message");
    }
}

/// After a peer is gone, short operations decline, and messages sent before can still be received.
pub(super) fn short_messages_outlive_their_sender(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    let at_once = world.send_now(0, 1, 0, 60, &Shape::new(60, 8));
    world.wait("the message to leave", |_| at_once);
    world.drop_end(0);
    for _ in 0..20 {
        world.step();
    }
    if !matches!(world.take_now(1, 0, 0, exactly(60, 8), &Shape::new(60, 8)), Short::Taken { .. }) {
        world.recv(1, 0, 0, 60, Shape::new(60, 8));
        world.finish("what was sent before the end");
    }
    let lost = world.recv(1, 0, 0, 61, Shape::new(61, 8));
    world.wait("the loss", |world| !world.is_pending(lost));
    assert_eq!(world.take_now(1, 0, 0, exactly(62, 8), &Shape::new(62, 8)), Short::Other, "nobody sends");
    assert!(!world.send_now_only(1, 0, 0, 63, &Shape::new(63, 8)), "nobody receives");
}
