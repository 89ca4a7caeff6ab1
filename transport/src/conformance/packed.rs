//! Cases about messages that are packed and unpacked on their way.

use super::message::{Memory, Shape};
use super::pattern::Random;
use super::world::World;
use super::{Subject, skip};
use crate::endpoint::{Channel, Fits, Short, Sink};

const LENGTHS: [usize; 12] = [0, 1, 40, 104, 105, 4096, 8191, 8193, 65_536, 131_073, 300_000, 1_000_001];

/// Packed messages of all lengths pass among others, to places and consumers.
pub(super) fn packed_messages(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    if !world.end(0).caps().can_pack {
        return skip("the transport packs no messages");
    }
    let mut random = Random::new(17);
    for round in 0..60_u64 {
        for seed in 0..1 + random.below(5) as u64 {
            let (tag, len) = (round << 8 | seed, LENGTHS[random.below(LENGTHS.len())]);
            let shape = Shape::new(tag, len);
            let target = if random.below(2) == 0 { shape.clone().eaten() } else { shape.clone() };
            let receives_first = random.below(2) == 0;
            if receives_first {
                world.recv(1, 0, 1, tag, target.clone());
            }
            if random.below(4) == 0 {
                world.send(0, 1, 1, tag, shape);
            } else {
                world.send_packed(0, 1, 1, tag, shape);
            }
            if !receives_first {
                world.recv(1, 0, 1, tag, target);
            }
        }
        world.finish("packed messages");
    }
}

/// Short messages go to consumers at once, if they fit.
pub(super) fn short_messages_are_consumed(subject: &dyn Subject) {
    let mut world = World::new(subject, 2);
    world.exchange(0, 1, 0, 1, Shape::new(1, 1));
    world.exchange(1, 0, 0, 1, Shape::new(1, 1));
    world.finish("a first message each way");
    let on = Channel { peer: 0, index: 0 };
    let take = |world: &mut World, tag: u64, room: usize, memory: &mut Memory| {
        let Sink::Consume { consumer, .. } = memory.sink() else { unreachable!("the shape has a consumer") };
        // SAFETY: the memory outlives the call, and its consumer checks what it gets.
        unsafe { world.end(1).consume_short(on, Fits { tag, mask: u64::MAX, room }, consumer) }
    };
    if take(&mut world, 2, 0, &mut Memory::target(Shape::new(2, 0).eaten())) != Short::NotYet {
        return skip("the transport takes no message at once");
    }
    for (tag, len) in (3_u64..).zip([1, 40, 104, 105, 1000, 8192]) {
        let shape = Shape::new(tag, len);
        world.send(0, 1, 0, tag, shape.clone());
        let mut memory = Memory::target(shape.clone().eaten());
        let blank = memory.fingerprint();
        let mut answer = Short::NotYet;
        while answer == Short::NotYet {
            world.step();
            answer = take(&mut world, tag, len - 1, &mut memory);
            world.check_deadline("a message that is too long");
        }
        assert_eq!((answer, memory.fingerprint()), (Short::Other, blank), "{len} bytes");
        if take(&mut world, tag, len, &mut memory) == (Short::Taken { tag, len }) {
            assert_eq!(memory.fault(), None, "{len} bytes");
        } else {
            // The message has come in several pieces.
            world.recv(1, 0, 0, tag, shape);
        }
        world.finish("short messages");
    }
}
