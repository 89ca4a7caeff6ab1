//! Cases about stages. One thread steps the endpoints; in cases about sleep, each has its own thread.

use std::time::Instant;

use super::pattern::Random;
use super::waiting::sleep_until;
use super::world::endpoints;
use super::{Subject, skip};
use crate::arm::ParkBy;
use crate::endpoint::Endpoint;
use crate::stage::{Awaited, Needs, Stage, StageCaps};

const MEMBERS: u32 = 3;

/// Makes endpoints that all share stages; `None` if the transport has none.
fn stages(subject: &dyn Subject, members: u32) -> Option<(Vec<Box<dyn Endpoint>>, StageCaps)> {
    let mut ends = endpoints(subject, members);
    let Some(caps) = ends[0].caps().stage else {
        skip("this transport has no stage");
        return None;
    };
    for (rank, end) in ends.iter_mut().enumerate() {
        let stage = stage(end);
        assert_eq!(stage.members(), (0..members).collect::<Vec<_>>());
        assert_eq!(stage.member(), rank);
    }
    Some((ends, caps))
}

fn stage(end: &mut Box<dyn Endpoint>) -> &mut dyn Stage {
    end.stage_mut().expect("its capabilities say that it has one")
}

/// Returns the byte that a member publishes in a round.
fn mark(round: u64, member: usize) -> u8 {
    (round as u8).wrapping_mul(31).wrapping_add(member as u8).wrapping_mul(7)
}

/// Publishes `len` bytes, if there is room. Returns whether there was.
fn publish(stage: &mut dyn Stage, area: u16, round: u64, len: usize) -> bool {
    if !stage.is_free(area, len).expect("all agree") {
        return false;
    }
    let byte = mark(round, stage.member());
    // SAFETY: the slot has room for `len` bytes.
    unsafe { stage.slot(area, len).write_bytes(byte, len) };
    stage.publish(area, round, 0, len);
    true
}

fn check(stage: &dyn Stage, area: u16, round: u64, member: usize, len: usize) {
    let at = stage.payload(area, member, len);
    // SAFETY: `len` bytes were published, and stay until this member publishes again.
    let bytes = (0..len).map(|i| unsafe { at.add(i).read() });
    let expected = mark(round, member);
    for (i, byte) in bytes.enumerate() {
        assert_eq!(byte, expected, "round {round} of area {area}: byte {i} of {len} of member {member}");
    }
}

/// Returns how many bytes a member publishes in a round.
fn len_of(round: u64, member: usize, caps: StageCaps) -> usize {
    let lens = [0, 1, 112, 113, 4096, 8193, 70_001, caps.payload_max];
    lens[(round as usize + 3 * member) % lens.len()].min(caps.payload_max)
}

pub(super) fn stages_show_what_was_published(subject: &dyn Subject) {
    let Some((mut ends, caps)) = stages(subject, MEMBERS) else { return };
    for round in 1..=24 {
        for area in [0, caps.areas - 1] {
            for (member, end) in ends.iter_mut().enumerate() {
                assert!(publish(stage(end), area, round, len_of(round, member, caps)), "all have seen all");
            }
            for end in &mut ends {
                let stage = stage(end);
                assert_eq!(stage.has_published(area, Needs::All), Ok(true));
                (0..MEMBERS as usize)
                    .for_each(|member| check(stage, area, round, member, len_of(round, member, caps)));
                assert_eq!(stage.waited_for(area, Awaited::Payloads(Needs::All)), []);
            }
        }
    }
}

pub(super) fn stages_wait_for_slow_readers(subject: &dyn Subject) {
    let Some((mut ends, caps)) = stages(subject, MEMBERS) else { return };
    for len in [0, 100, 8192, 65_536, caps.payload_max] {
        // All members but the last publish as long as they may, without looking at the others.
        let area = (len % usize::from(caps.areas)) as u16;
        let mut round = 0;
        let (slow, quick) = ends.split_last_mut().expect("some");
        assert!(publish(stage(slow), area, 1, len));
        loop {
            round += 1;
            assert!(round <= 1000, "nobody is ever waited for");
            if !quick.iter_mut().all(|end| publish(stage(end), area, round, len)) {
                break;
            }
        }
        assert!(round > 2, "memory for two rounds at least, and the slow one is in its first");
        let late = stage(&mut quick[0]).waited_for(area, Awaited::Room(len));
        assert_eq!(late, [MEMBERS as usize - 1]);
        let slow = stage(slow);
        for of_slow in 1..round {
            assert_eq!(slow.has_published(area, Needs::All), Ok(true));
            (0..quick.len()).for_each(|member| check(slow, area, of_slow, member, len));
            if of_slow + 1 < round {
                assert!(publish(slow, area, of_slow + 1, len));
            }
        }
        // All members go on.
        assert!(publish(stage(&mut quick[0]), area, round, len));
        ends = stages(subject, MEMBERS).expect("as before").0;
    }
}

pub(super) fn stages_wait_for_whom_they_need(subject: &dyn Subject) {
    let Some((mut ends, _)) = stages(subject, MEMBERS) else { return };
    assert!(publish(stage(&mut ends[1]), 0, 1, 8));
    assert!(publish(stage(&mut ends[2]), 0, 1, 8));
    let last = stage(&mut ends[2]);
    for (needs, is_there) in [
        (Needs::Nobody, true),
        (Needs::Only(1), true),
        (Needs::Only(0), false),
        (Needs::Below(1), false),
        (Needs::All, false),
    ] {
        assert_eq!(last.has_published(0, needs), Ok(is_there), "{needs:?}");
        let late = last.waited_for(0, Awaited::Payloads(needs));
        assert_eq!(late, if is_there { vec![] } else { vec![0] }, "{needs:?}");
    }
    check(last, 0, 1, 1, 8);
    // Another area is not affected.
    assert!(publish(last, 1, 1, 8));
    assert_eq!(last.has_published(1, Needs::Only(1)), Ok(false));
    assert!(publish(stage(&mut ends[0]), 0, 1, 8));
    assert_eq!(stage(&mut ends[2]).has_published(0, Needs::All), Ok(true));
}

pub(super) fn stages_tell_mismatches(subject: &dyn Subject) {
    for (tags, digests) in [([7, 8], [0, 0]), ([7, 7], [1, 2])] {
        let Some((mut ends, _)) = stages(subject, 2) else { return };
        for (end, (tag, digest)) in ends.iter_mut().zip(tags.into_iter().zip(digests)) {
            let stage = stage(end);
            assert_eq!(stage.is_free(0, 0), Ok(true));
            stage.publish(0, tag, digest, 0);
        }
        for (member, end) in ends.iter_mut().enumerate() {
            let found = stage(end).has_published(0, Needs::All).expect_err("they differ");
            assert_eq!((found.member, found.tag), (1 - member, tags[1 - member]));
        }
    }
}

pub(super) fn sleepers_wake_for_stages(subject: &dyn Subject) {
    const ROUNDS: u64 = 400;
    for by in [ParkBy::Fd, ParkBy::Word] {
        let Some((ends, caps)) = stages(subject, MEMBERS) else { return };
        let able = if by == ParkBy::Fd { ends[0].caps().park_fd } else { ends[0].caps().park_word };
        if !able {
            continue;
        }
        let deadline = Instant::now() + subject.patience();
        std::thread::scope(|scope| {
            for mut end in ends {
                scope.spawn(move || {
                    let mut random = Random::new(stage(&mut end).member() as u64);
                    for round in 1..=ROUNDS {
                        let area = (round % 2) as u16;
                        let of = |member| len_of(round, member, caps).min(10_000);
                        let own = of(stage(&mut end).member());
                        for _ in 0..random.below(300) {
                            std::hint::spin_loop();
                        }
                        sleep_until(&mut *end, by, deadline, |end| {
                            // The event that woke this endpoint stays in its descriptor until it is read.
                            end.poll(&mut Vec::new());
                            let stage = end.stage_mut().expect("there is one");
                            publish(stage, area, round, own)
                        });
                        let needs = match round % 3 {
                            0 => Needs::All,
                            1 => Needs::Only(round as usize / 3 % MEMBERS as usize),
                            _ => Needs::Nobody,
                        };
                        sleep_until(&mut *end, by, deadline, |end| {
                            end.poll(&mut Vec::new());
                            let stage = end.stage_mut().expect("there is one");
                            stage.has_published(area, needs).expect("all agree")
                        });
                        let stage = stage(&mut end);
                        (0..MEMBERS as usize)
                            .filter(|member| needs.include(*member))
                            .for_each(|member| check(stage, area, round, member, of(member)));
                    }
                });
            }
        });
    }
}
