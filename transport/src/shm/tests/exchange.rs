//! The compiled exchange.

use std::thread;

use super::*;
use crate::shm::{
    EXCHANGE_INLINE, EXCHANGE_LONG, EXCHANGE_MAX, Exchange, ShmEndpoint, ShmOptions, SingleCopy, Slot,
};
use crate::wait_word_for;
use crate::{Needs, StageMismatch};

fn exchanges(n: u32) -> Vec<Exchange> {
    world(n).iter_mut().map(|e| e.exchange().expect("all on one host")).collect()
}

type Fill = fn(Slot<'_>);
/// The contribution of a member that gives nothing.
const NOTHING: Option<Fill> = None;

/// Waits until `step` says yes, asleep or polling.
fn wait(
    exchange: &mut Exchange,
    asleep: bool,
    mut step: impl FnMut(&mut Exchange) -> Result<bool, StageMismatch>,
) {
    let deadline = deadline();
    while !step(exchange).expect("all agree") {
        assert!(Instant::now() < deadline, "waited too long for {:?}", exchange.waiting_for(0));
        if asleep {
            let _ = exchange.arm();
            if !step(exchange).expect("all agree") {
                let bits = exchange.awaited();
                let (word, value) = exchange.arm();
                wait_word_for(word, value, bits, PATIENCE).expect("futex");
            }
            exchange.disarm();
        } else {
            thread::yield_now();
        }
    }
}

/// Runs one round: waits until the member may publish, publishes, and waits for the members that it needs.
fn round(exchange: &mut Exchange, asleep: bool, number: usize, len: usize, gives: bool, needs: Needs) {
    let me = exchange.member();
    wait(exchange, asleep, |exchange| exchange.is_free(if gives { len } else { 0 }));
    let fill = gives.then_some(|mut to: Slot<'_>| to.write(0, &pattern(number * 10 + me, len)));
    exchange.publish(number as u64, len, needs, fill);
    wait(exchange, asleep, Exchange::poll);
}

const LENS: [usize; 12] = [
    0,
    1,
    8,
    48,
    EXCHANGE_INLINE,
    EXCHANGE_INLINE + 1,
    4096,
    8192,
    8193,
    EXCHANGE_LONG,
    EXCHANGE_LONG + 1,
    EXCHANGE_MAX,
];

fn rounds(n: u32, asleep: bool) {
    thread::scope(|scope| {
        for mut exchange in exchanges(n) {
            scope.spawn(move || {
                for number in 0..40usize {
                    let len = LENS[number % LENS.len()];
                    round(&mut exchange, asleep, number, len, true, Needs::All);
                    for member in 0..exchange.members() {
                        assert!(
                            exchange.payload(member).to_vec() == pattern(number * 10 + member, len),
                            "round {number}"
                        );
                    }
                    exchange.finish();
                }
            });
        }
    });
}

#[test]
fn one_to_nine_members() {
    for n in 1..=9 {
        rounds(n, false);
    }
}

#[test]
fn sleeping_members_are_woken() {
    for n in [2, 3, 5] {
        rounds(n, true);
    }
}

/// Runs rounds of all kinds one after another. Members wait only for some of the others, and so run ahead of the
/// rest.
fn mixed_rounds(n: usize, asleep: bool) {
    thread::scope(|scope| {
        for mut exchange in exchanges(n as u32) {
            scope.spawn(move || {
                let me = exchange.member();
                // The same pseudo-random sequence on all members.
                let mut state = 12345u64;
                for number in 0..2000usize {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    let (kind, root) = (state >> 60, (state >> 40) as usize % n);
                    let len = LENS[(state >> 20) as usize % LENS.len()];
                    let (gives, needs) = match kind {
                        // All-reduce.
                        0 => (true, Needs::All),
                        // Scan.
                        1 | 2 => (true, Needs::Below(me)),
                        // Reduce.
                        3..8 => (true, if me == root { Needs::All } else { Needs::Nobody }),
                        // Broadcast.
                        _ if me == root => (true, Needs::Nobody),
                        _ => (false, Needs::Only(root)),
                    };
                    round(&mut exchange, asleep, number, len, gives, needs);
                    let from = match needs {
                        Needs::All => 0..n,
                        Needs::Below(end) => 0..end,
                        Needs::Only(root) => root..root + 1,
                        Needs::Nobody => 0..0,
                    };
                    for member in from {
                        assert!(
                            exchange.payload(member).to_vec() == pattern(number * 10 + member, len),
                            "round {number}"
                        );
                    }
                    exchange.finish();
                }
            });
        }
    });
}

#[test]
fn members_run_ahead_of_those_they_do_not_need() {
    for n in [1, 2, 3, 5, 8] {
        mixed_rounds(n, false);
    }
    for n in [2, 3] {
        mixed_rounds(n, true);
    }
}

#[test]
fn a_member_runs_ahead_so_far_and_no_further() {
    let mut exchanges = exchanges(3);
    for (len, rounds) in [(8, 7), (8192, 7), (8193, 7), (EXCHANGE_LONG + 1, 7), (EXCHANGE_MAX, 1)] {
        for number in 0..rounds {
            assert_eq!(exchanges[0].is_free(len), Ok(true), "{len} bytes, round {number}");
            exchanges[0].publish(1, len, Needs::Nobody, Some(|_: Slot<'_>| ()));
            assert_eq!(exchanges[0].poll(), Ok(true));
            exchanges[0].finish();
        }
        assert_eq!(exchanges[0].is_free(len), Ok(false), "{len} bytes");
        assert_eq!(exchanges[0].waiting_for(len), [1, 2]);
        // The others catch up, and all go on together.
        for exchange in &mut exchanges[1..] {
            for _ in 0..rounds {
                assert_eq!(exchange.is_free(0), Ok(true));
                exchange.publish(1, len, Needs::Only(0), NOTHING);
                assert_eq!(exchange.poll(), Ok(true));
                exchange.finish();
            }
        }
        assert_eq!(exchanges[0].is_free(len), Ok(true), "{len} bytes");
        for exchange in &mut exchanges {
            assert_eq!(exchange.is_free(0), Ok(true));
            exchange.publish(2, 0, Needs::All, NOTHING);
        }
        for exchange in &mut exchanges {
            assert_eq!(exchange.poll(), Ok(true));
            exchange.finish();
        }
    }
}

#[test]
fn other_tags_and_lengths_are_told() {
    for (tag, len) in [(8, 16), (7, 8), (7, 5000)] {
        let mut exchanges = exchanges(3);
        exchanges[0].publish(7, 16, Needs::All, NOTHING);
        assert_eq!(exchanges[0].waiting_for(0), [1, 2]);
        assert_eq!(exchanges[0].poll(), Ok(false));
        exchanges[2].publish(7, 16, Needs::All, NOTHING);
        assert_eq!(exchanges[0].waiting_for(0), [1]);
        exchanges[1].publish(tag, len, Needs::All, NOTHING);
        assert_eq!(exchanges[0].poll(), Err(StageMismatch { member: 1, tag }));
        assert_eq!(exchanges[1].poll(), Err(StageMismatch { member: 0, tag: 7 }));
    }
}

/// Each member takes itself for the root, so neither looks at the other in that round.
#[test]
fn what_differed_in_a_round_that_nobody_looked_at_is_told_in_a_later_one() {
    let mut exchanges = exchanges(2);
    for (exchange, tag) in exchanges.iter_mut().zip([3, 4]) {
        exchange.publish(tag, 8, Needs::Nobody, Some(|_: Slot<'_>| ()));
        assert_eq!(exchange.poll(), Ok(true));
        exchange.finish();
        exchange.publish(5, 8, Needs::All, Some(|_: Slot<'_>| ()));
    }
    assert_eq!(exchanges[0].poll(), Err(StageMismatch { member: 1, tag: 4 }));
    assert_eq!(exchanges[1].poll(), Err(StageMismatch { member: 0, tag: 3 }));
    // The same happens if one of them runs ahead as far as it can.
    let mut exchanges = self::exchanges(2);
    for tag in 0..7 {
        exchanges[0].publish(tag, 8, Needs::Nobody, NOTHING);
        assert_eq!(exchanges[0].poll(), Ok(true));
        exchanges[0].finish();
    }
    exchanges[1].publish(9, 8, Needs::Nobody, NOTHING);
    assert_eq!(exchanges[0].is_free(0), Err(StageMismatch { member: 1, tag: 9 }));
}

#[test]
#[should_panic(expected = "not finished")]
fn rounds_cannot_overlap() {
    let mut exchange = exchanges(1).remove(0);
    exchange.publish(1, 0, Needs::All, NOTHING);
    exchange.publish(2, 0, Needs::All, NOTHING);
}

#[test]
#[should_panic(expected = "overwritten")]
fn nothing_is_published_over_what_may_still_be_read() {
    let mut exchange = exchanges(2).remove(0);
    for tag in 0..9 {
        exchange.publish(tag, 0, Needs::Nobody, NOTHING);
        assert_eq!(exchange.poll(), Ok(true));
        exchange.finish();
    }
}

#[test]
#[should_panic(expected = "not complete")]
fn payloads_of_an_incomplete_round_cannot_be_read() {
    let mut exchanges = exchanges(2);
    exchanges[0].publish(1, 0, Needs::All, NOTHING);
    let _ = exchanges[0].payload(1);
}

#[test]
#[should_panic(expected = "was not waited for")]
fn payloads_of_others_than_those_needed_cannot_be_read() {
    let mut exchanges = exchanges(2);
    exchanges[0].publish(1, 0, Needs::Nobody, NOTHING);
    assert_eq!(exchanges[0].poll(), Ok(true));
    let _ = exchanges[0].payload(1);
}

#[test]
fn announcements_are_seen() {
    let exchanges = exchanges(2);
    exchanges[1].board().announce(42, 0xfeed);
    assert_eq!(exchanges[0].board().announced(1), (42, 0xfeed));
    assert_eq!(exchanges[0].board().announced(0), (0, 0));
    assert_eq!(exchanges[0].board().members(), 2);
}

#[test]
fn there_is_one_flat_per_endpoint() {
    let mut world = world(1);
    assert!(world[0].exchange().is_some());
    assert!(world[0].exchange().is_none());
}

/// Makes two members that read pages of any size in place, and their exchanges.
fn readers() -> (Vec<ShmEndpoint>, Vec<Exchange>) {
    let options = ShmOptions { single_copy: SingleCopy::From(1), ..ShmOptions::default() };
    let mut world = world_with(2, &options);
    let exchanges = world.iter_mut().map(|e| e.exchange().expect("all on one host")).collect();
    (world, exchanges)
}

/// Reads a member's memory in place.
fn fetched(exchange: &Exchange, member: usize, place: u64, offset: usize, len: usize) -> Option<Vec<u8>> {
    let mut target = vec![0; len];
    // SAFETY: the target has `len` bytes.
    unsafe { exchange.fetch(member, place, offset, target.as_mut_ptr(), len) }.then_some(target)
}

#[test]
fn members_read_each_other_in_place() {
    let (world, exchanges) = readers();
    let source = pattern(3, 100_000);
    let Some(place) = exchanges[1].place(source.as_ptr()) else {
        // The kernel does not permit reading.
        return;
    };
    assert_eq!(fetched(&exchanges[0], 1, place, 0, 100_000).as_deref(), Some(&source[..]));
    assert_eq!(fetched(&exchanges[0], 1, place, 70_000, 30_000).as_deref(), Some(&source[70_000..]));
    assert_eq!(fetched(&exchanges[0], 1, 8, 0, 100), None, "no memory there");
    assert_eq!(fetched(&exchanges[0], 0, place, 0, 100), None, "its own");
    assert_eq!(fetched(&exchanges[0], 2, place, 0, 100), None, "no member");
    // The beacon vanishes with the endpoint.
    drop(world);
    assert_eq!(fetched(&exchanges[0], 1, place, 0, 100), None, "it is gone");
}

#[test]
fn memory_that_was_taken_back_is_not_read() {
    let (_world, exchanges) = readers();
    let source = pattern(3, 1000);
    let Some(place) = exchanges[1].place(source.as_ptr()) else { return };
    exchanges[1].withdraw();
    assert_eq!(fetched(&exchanges[0], 1, place, 0, 1000), None);
}

#[test]
fn memory_in_small_pages_has_a_place() {
    let mut world = world(2);
    let exchange = world[0].exchange().expect("all on one host");
    let source = pattern(3, 1000);
    // The kernel may not permit it.
    let is_permitted = world[0].peers[0].remote.is_some();
    assert_eq!(exchange.place(source.as_ptr()).is_some(), is_permitted);
}

#[test]
fn lines_are_moved_ahead_only_where_each_rank_has_a_processor() {
    for shares in [false, true] {
        let mut world = world(2);
        if shares {
            world.iter_mut().for_each(Endpoint::share_processors);
        }
        for end in &mut world {
            assert_eq!(end.exchange().expect("all on one host").moves_lines, !shares);
        }
    }
}

#[test]
fn there_are_no_places_without_single_copy() {
    let options = ShmOptions { single_copy: SingleCopy::Never, ..ShmOptions::default() };
    let mut world = world_with(2, &options);
    let exchange = world[0].exchange().expect("all on one host");
    let source = pattern(3, 1000);
    assert_eq!(exchange.place(source.as_ptr()), None);
}
