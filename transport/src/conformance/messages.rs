//! Cases about messages that arrive: order, lengths, pieces, contents.

use super::message::Shape;
use super::pattern::Random;
use super::world::World;
use super::{Subject, skip};
use crate::endpoint::{Channel, OnMisfit, Piece, Sink, Token};
use crate::error::ErrorKind;

/// Maximum length of messages in the cases that are not about long ones.
const LONG_BYTES: usize = 3 << 20;

pub(super) fn order(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let mut random = Random::new(1);
    for i in 0..300 {
        let len = random.length(20_000);
        world.exchange(0, 1, 0, i, Shape::new(i, len));
        world.exchange(1, 0, 0, i, Shape::new(!i, random.length(500)));
        if i % 10 == 0 {
            world.step();
        }
    }
    world.finish("messages in order");
}

pub(super) fn zero_length(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    for i in 0..40 {
        let shape = Shape::new(i, 0);
        world.exchange(0, 1, 0, i, shape.clone().cut(vec![0; (i % 4) as usize]));
        world.exchange(1, 0, 0, i, if i % 3 == 0 { shape.eaten() } else { shape });
        world.exchange(1, 0, 0, i, Shape::new(i, (i % 2) as usize));
    }
    world.finish("empty messages");
}

pub(super) fn sizes(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let caps = world.end(0).caps().clone();
    let mut edges: Vec<usize> = (1..130).collect();
    for power in 8..22 {
        edges.extend([(1 << power) - 1, 1 << power, (1 << power) + 1]);
    }
    for limit in [caps.eager_max, caps.staging_per_channel] {
        edges.extend(
            [limit.saturating_sub(1), limit, limit.saturating_add(1)].iter().filter(|&&n| n < 64 << 20),
        );
    }
    for (i, len) in edges.into_iter().filter(|&len| len <= caps.message_max).enumerate() {
        let shape = Shape::new(i as u64, len);
        world.exchange(0, 1, 0, 7, shape.clone());
        world.exchange(1, 0, 0, 7, shape.eaten());
        world.finish(&format!("{len} bytes"));
    }
}

pub(super) fn unaligned(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let mut random = Random::new(3);
    for from in 0..64 {
        let len = random.length(LONG_BYTES / 8);
        let shape = Shape::new(from as u64, len);
        let recv = world.recv(1, 0, 0, 0, shape.clone().misaligned((from * 7 + 1) % 64));
        world.send(0, 1, 0, 0, shape.misaligned(from));
        world.wait("a message at odd addresses", |world| world.is_done(recv));
    }
    world.finish("sends from odd addresses");
}

pub(super) fn scatter_gather(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let mut random = Random::new(4);
    for i in 0..120u64 {
        let len = random.length(if i % 10 == 0 { LONG_BYTES } else { 4000 });
        let shape = Shape::new(i, len);
        // Some messages have more pieces than any system call takes.
        let (there, here) = (random.below(9) + 1, if i % 8 == 0 { 300 } else { random.below(9) + 1 });
        let (there, here) = if i % 16 == 0 { (here, there) } else { (there, here) };
        let source = shape.clone().cut(random.cuts(len, there));
        let target = if i % 5 == 0 { shape.eaten() } else { shape.cut(random.cuts(len, here)) };
        world.recv(1, 0, 0, i, target);
        world.send(0, 1, 0, i, source);
        if i % 4 == 0 {
            world.step();
        }
    }
    world.finish("messages in pieces");
}

pub(super) fn small_messages_by_the_thousand(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let mut random = Random::new(5);
    for round in 0..5u64 {
        for i in 0..1000u64 {
            let shape = Shape::new(round << 32 | i, 8 + random.below(100));
            // In alternate rounds, the receives come first, or the sends.
            if round % 2 == 0 {
                world.exchange(0, 1, 0, i, shape);
            } else {
                world.send(1, 0, 0, i, shape.clone());
                world.recv(0, 1, 0, i, shape);
            }
        }
        world.finish("a thousand small messages");
    }
}

pub(super) fn random_traffic(subject: &dyn Subject) {
    const WORLD: u32 = 3;
    for seed in 0..4 {
        let mut world = World::new(subject, WORLD);
        let channels = world.end(0).caps().channels_max.min(3);
        let mut random = Random::new(seed);
        // Operations that each sender and receiver still has to post, in the order of its channel.
        let mut to_post: Vec<(bool, u32, u32, u16, u64, Shape)> = Vec::new();
        for i in 0..250u64 {
            let (from, index) = (random.below(WORLD as usize) as u32, random.below(channels.into()) as u16);
            let to = (from + 1 + random.below(WORLD as usize - 1) as u32) % WORLD;
            let len = random.length(300_000);
            let shape = Shape::new(seed << 40 | i, len);
            let (many, few) = (random.below(12) + 1, random.below(4) + 1);
            let source = shape.clone().cut(random.cuts(len, many));
            let target = if i % 3 == 0 { shape.eaten() } else { shape.cut(random.cuts(len, few)) };
            to_post.push((true, from, to, index, i, source));
            to_post.push((false, to, from, index, i, target));
        }
        while !to_post.is_empty() {
            // Chooses any of the first few operations that is the next one of its channel and direction.
            let at = random.below(to_post.len().min(40));
            let key = |entry: &(bool, u32, u32, u16, u64, Shape)| (entry.0, entry.1, entry.2, entry.3);
            let at = to_post.iter().position(|entry| key(entry) == key(&to_post[at])).unwrap_or(0);
            let (send, rank, peer, index, tag, shape) = to_post.remove(at);
            if send {
                world.send(rank, peer, index, tag, shape);
            } else {
                world.recv(rank, peer, index, tag, shape);
            }
            for _ in 0..random.below(3) {
                world.poll(random.below(WORLD as usize) as u32);
            }
        }
        world.finish("random traffic");
    }
}

pub(super) fn consumers_get_whole_grains(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let mut random = Random::new(6);
    // The suite's consumer checks offsets, lengths and bytes.
    for i in 0..200u64 {
        let len = random.length(if i % 20 == 0 { LONG_BYTES } else { 5000 });
        let shape = Shape::new(i, len);
        world.recv(1, 0, 0, i, shape.clone().eaten());
        let pieces = random.below(20) + 1;
        world.send(0, 1, 0, i, shape.cut(random.cuts(len, pieces)));
        if i % 3 == 0 {
            world.step();
        }
    }
    world.finish("consumed messages");
}

pub(super) fn one_gigabyte(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let len = (1 << 30) + 12_345;
    if world.end(0).caps().message_max < len {
        return skip("the transport's messages are shorter");
    }
    // The source is one MiB repeated and the target is a consumer, so neither needs much memory.
    world.exchange(0, 1, 0, 1, Shape::new(1, len).repeated(1 << 20).eaten());
    world.finish("a gigabyte");
}

pub(super) fn wrong_arguments_are_refused(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    let caps = world.end(0).caps().clone();
    let mut byte = 0u8;
    let pieces = [Piece { ptr: &raw mut byte, len: 1 }];
    let beyond = [(2, 0), (u32::MAX, 0), (0, 0)].map(|(peer, index)| Channel { peer, index });
    let beyond = beyond
        .into_iter()
        .chain((caps.channels_max < u16::MAX).then_some(Channel { peer: 1, index: caps.channels_max }));
    for on in beyond {
        // SAFETY: the byte outlives the world's endpoint; a refused token touches nothing.
        let refused = unsafe { world.end(0).post_send(on, 0, &pieces, Token(0)).err() };
        assert!(matches!(refused, Some(ref e) if e.kind == ErrorKind::Usage), "{on:?}: {refused:?}");
        // SAFETY: as above.
        let refused =
            unsafe { world.end(0).post_recv(on, 0, Sink::Place(&pieces), OnMisfit::Fail, Token(0)).err() };
        assert!(matches!(refused, Some(ref e) if e.kind == ErrorKind::Usage), "{on:?}: {refused:?}");
    }
    assert!(world.end(0).introduce(1, b"no address").is_err(), "nonsense was taken for an address");
    world.exchange(0, 1, caps.channels_max - 1, 1, Shape::new(1, 1000));
    world.exchange(1, 0, 0, 1, Shape::new(2, 1000));
    world.finish("messages after refused ones");
}
