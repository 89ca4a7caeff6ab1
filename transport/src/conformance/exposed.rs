//! Cases about memory that one rank exposes and another gets.

use super::message::{Memory, Shape};
use super::pattern::Random;
use super::world::World;
use super::{Subject, skip};
use crate::endpoint::Channel;
use crate::error::ErrorKind;

/// Makes a world of two between which a message has gone; `None` if the transport exposes no memory.
fn world(subject: &dyn Subject) -> Option<World> {
    let mut world = World::new(subject, 2);
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.exchange(1, 0, 0, 1, Shape::new(1, 1));
    world.finish("a first message each way");
    if world.end(0).exposes(Channel { peer: 1, index: 1 }) {
        return Some(world);
    }
    skip("the transport exposes no memory");
    None
}

fn address(memory: &Memory) -> u64 {
    memory.pieces()[0].ptr.expose_provenance() as u64
}

/// Memory of all lengths is got in any order, into any pieces, while messages pass on the same channel.
pub(super) fn exposed_memory_is_got(subject: &dyn Subject) {
    const LENGTHS: [usize; 9] = [0, 1, 63, 4096, 4097, 65_537, 300_000, 1 << 20, 3_000_001];
    let Some(mut world) = world(subject) else { return };
    let mut random = Random::new(11);
    for round in 0..40_u64 {
        let mut exposed = Vec::new();
        for seed in 0..1 + random.below(4) as u64 {
            let (seed, len) = (round << 8 | seed, LENGTHS[random.below(LENGTHS.len())]);
            exposed.push((seed, len, Memory::source(Shape::new(seed, len).misaligned(random.below(64)))));
        }
        let receives_first = random.below(2) == 0;
        let message = Shape::new(round, LENGTHS[random.below(LENGTHS.len())]);
        if receives_first {
            world.recv(1, 0, 1, round, message.clone());
        }
        let mut gets = Vec::new();
        for (seed, len, memory) in &exposed {
            let first = random.below(len + 1);
            let shape = Shape::new(*seed, *len).cut(vec![first, len - first]).misaligned(random.below(64));
            gets.push(world.get(1, 0, 1, address(memory), shape));
        }
        // The gets need nothing of the peer, not even a poll.
        while !gets.iter().all(|get| world.is_done(*get)) {
            world.poll(1);
            world.check_deadline("gets of exposed memory");
        }
        if !receives_first {
            world.recv(1, 0, 1, round, message.clone());
        }
        world.send(0, 1, 1, round, message);
        world.finish("a message behind gets");
    }
}

/// A get from a peer that has gone fails, as do those that follow.
pub(super) fn gets_end_with_their_peer(subject: &dyn Subject) {
    let Some(mut world) = world(subject) else { return };
    let memory = Memory::source(Shape::new(3, 100_000));
    world.drop_end(0);
    let gets = [0, 1].map(|_| world.get(1, 0, 1, address(&memory), Shape::new(3, 100_000)));
    for get in gets {
        world.wait("the end of a get", |world| !world.is_pending(get));
        assert_eq!(world.error(get).kind, ErrorKind::PeerLost);
    }
    world.assert_untouched();
}
