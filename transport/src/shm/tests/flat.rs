//! The tiny path.

use std::thread;

use super::*;
use crate::shm::{FLAT_INLINE, FLAT_MAX, Flat, FlatMismatch};
use crate::wait_word;

fn flats(n: u32, oversubscribed: bool) -> Vec<Flat> {
    let options = ShmOptions { oversubscribed, ..ShmOptions::default() };
    let flats: Vec<_> =
        world_with(n, &options).iter_mut().map(|e| e.flat().expect("all on one host")).collect();
    assert!(flats.iter().all(|f| f.is_oversubscribed() == oversubscribed));
    flats
}

/// Waits for the end of a round, asleep or not.
fn wait(flat: &mut Flat, asleep: bool) {
    let deadline = deadline();
    while !flat.poll().expect("all agree") {
        assert!(Instant::now() < deadline, "waited too long for {:?}", flat.waiting_for());
        if asleep {
            let _ = flat.arm();
            if !flat.poll().expect("all agree") {
                let (word, value) = flat.arm();
                wait_word(word, value, PATIENCE).expect("futex");
            }
            flat.disarm();
        } else {
            thread::yield_now();
        }
    }
}

fn rounds(n: u32, oversubscribed: bool, asleep: bool) {
    let lens = [0, 1, 8, 48, FLAT_INLINE, FLAT_INLINE + 1, 4096, FLAT_MAX];
    thread::scope(|scope| {
        for mut flat in flats(n, oversubscribed) {
            scope.spawn(move || {
                for round in 0..40usize {
                    let len = lens[round % lens.len()];
                    let me = flat.member();
                    flat.publish(round as u64, len, |to| to.copy_from_slice(&pattern(round * 10 + me, len)));
                    wait(&mut flat, asleep);
                    for member in 0..flat.members() {
                        assert!(flat.payload(member) == pattern(round * 10 + member, len), "round {round}");
                    }
                    flat.finish();
                }
            });
        }
    });
}

#[test]
fn one_to_nine_members() {
    for n in 1..=9 {
        rounds(n, false, false);
    }
}

#[test]
fn one_to_nine_members_oversubscribed() {
    for n in 1..=9 {
        rounds(n, true, false);
    }
}

#[test]
fn sleeping_members_are_woken() {
    for n in [2, 3, 5] {
        rounds(n, false, true);
        rounds(n, true, true);
    }
}

#[test]
fn other_tags_and_lengths_are_told() {
    for oversubscribed in [false, true] {
        for (tag, len) in [(8, 16), (7, 8), (7, 5000)] {
            let mut flats = flats(3, oversubscribed);
            flats[0].publish(7, 16, |_| ());
            assert_eq!(flats[0].waiting_for(), [1, 2]);
            assert_eq!(flats[0].poll(), Ok(false));
            flats[2].publish(7, 16, |_| ());
            assert_eq!(flats[0].waiting_for(), [1]);
            flats[1].publish(tag, len, |_| ());
            assert_eq!(flats[0].poll(), Err(FlatMismatch { member: 1, tag, len }));
            assert_eq!(flats[1].poll(), Err(FlatMismatch { member: 0, tag: 7, len: 16 }));
        }
    }
}

#[test]
#[should_panic(expected = "not finished")]
fn rounds_cannot_overlap() {
    let mut flat = flats(1, false).remove(0);
    flat.publish(1, 0, |_| ());
    flat.publish(2, 0, |_| ());
}

#[test]
#[should_panic(expected = "not complete")]
fn payloads_of_an_incomplete_round_cannot_be_read() {
    let mut flats = flats(2, false);
    flats[0].publish(1, 0, |_| ());
    let _ = flats[0].payload(1);
}

#[test]
fn announcements_are_seen() {
    let flats = flats(2, false);
    flats[1].board().announce(42, 0xfeed);
    assert_eq!(flats[0].board().announced(1), (42, 0xfeed));
    assert_eq!(flats[0].board().announced(0), (0, 0));
    assert_eq!(flats[0].board().members(), 2);
}

#[test]
fn there_is_one_flat_per_endpoint() {
    let mut world = world(1);
    assert!(world[0].flat().is_some());
    assert!(world[0].flat().is_none());
}
