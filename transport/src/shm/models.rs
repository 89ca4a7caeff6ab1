//! Models of the interaction of processes through shared memory, which loom runs in every order of events that the
//! memory model permits: `.ci/models`. The code is that of the transport; rings and rounds are shorter (three cells,
//! two rounds).
//!
//! If a thread touches a payload while another writes it, the model fails; a lost wake-up is a deadlock. Without any
//! one of the releases, acquires and fences in `ring`, `rounds`, `exchange` and `arena` that these models exercise,
//! some model fails. The same holds if a sender or member may run one cell or round further ahead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use loom::thread;

use super::arena::{ASLEEP_WORD, Arena, EXCHANGE_DEPTH, Wake};
use super::exchange::Exchange;
use super::options::CONTROL_BYTES;
use super::producer::Producer;
use super::rendezvous::Rts;
use super::ring::{CELLS, Consumer, INLINE_BYTES};
use super::rounds::{EXCHANGE_INLINE, Rounds};
use super::shuttles::{SHUTTLES_BYTES, Shuttles};
use crate::arm::ParkBy;
use crate::stage::Needs;
use crate::sys::atomic::{Atomic, AtomicU64};
use crate::sys::fences::Fences;
use crate::sys::map::Mapping;
use crate::sys::modelled::{Payload, model};
use crate::{wait_word, wait_word_for};

const RING_BYTES: usize = 4096;

/// Loads each word once before the threads begin: to loom, a word is zero from its first access on.
fn name_words(words: impl IntoIterator<Item = *mut u8>) {
    for at in words {
        // SAFETY: the word is aligned, and lies in a mapping that the model keeps.
        let _ = unsafe { AtomicU64::at(at) }.load(Ordering::Relaxed);
    }
}

/// Makes both ends of a ring, whose pieces are at most half of it.
fn ring() -> (Producer, Consumer) {
    let map = control_and_ring();
    ends(map, &Arc::default(), &Arc::default())
}

/// Makes the memory of a ring.
fn control_and_ring() -> Arc<Mapping> {
    let map = Arc::new(Mapping::private(CONTROL_BYTES + RING_BYTES).expect("memory"));
    // The words of both sides' lines; of the cells, the words before a payload, or two words of a request.
    let words = [8, 128, 136, 144].into_iter().chain((0..CELLS as usize).flat_map(|cell| {
        let cell = 256 + 128 * cell;
        [cell, cell + 8, cell + 16, cell + 24, cell + 32]
    }));
    name_words(words.map(|at| map.bytes(at, 8)));
    map
}

/// Returns both ends of the ring in a mapping, which share these shuttles with the ends of the other direction.
fn ends(map: Arc<Mapping>, sender: &Arc<Shuttles>, receiver: &Arc<Shuttles>) -> (Producer, Consumer) {
    let producer = Producer::new(map.clone(), 0, RING_BYTES, RING_BYTES, sender.clone());
    (producer, Consumer::new(map, 0, RING_BYTES, receiver.clone()))
}

fn arena(members: u32) -> Arena {
    let arena = Arena::create(members, Fences::Symmetric).expect("memory").0;
    let doorbells = (0..members).map(|member| arena.doorbell(member));
    for word in [arena.abort_word(), arena.bell(), arena.sleepers()].into_iter().chain(doorbells) {
        let _ = word.load(Ordering::Relaxed);
    }
    let lines = (0..EXCHANGE_DEPTH * members as usize).map(|line| arena.lines(0).wrapping_add(128 * line));
    name_words(lines.flat_map(|line| [line, line.wrapping_add(8)]));
    arena
}

/// Checks that messages of `len` bytes, one more than there is room for, come out as they went in.
fn passes(len: usize) {
    const MESSAGES: u64 = CELLS as u64 + 1;
    model(move || {
        let (mut producer, mut consumer) = ring();
        let sender = thread::spawn(move || {
            for message in 1..=MESSAGES {
                let space = loop {
                    match producer.reserve(len, len).expect("well-behaved") {
                        Some(space) => break space,
                        None => thread::yield_now(),
                    }
                };
                assert_eq!(space.len, len);
                Payload::at(space.ptr).write(message);
                producer.publish(&space, Some((10 * message, len as u64)));
            }
        });
        for message in 1..=MESSAGES {
            let arrival = loop {
                match consumer.peek().expect("well-behaved") {
                    Some(arrival) => break arrival,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(consumer.envelope(), (10 * message, len as u64));
            assert_eq!(Payload::at(arrival.ptr).read(), message);
            consumer.release(&arrival);
        }
        sender.join().expect("no panic");
    });
}

#[test]
fn messages_in_cells_come_out_as_they_went_in() {
    passes(8);
    passes(INLINE_BYTES);
}

#[test]
fn messages_in_the_ring_come_out_as_they_went_in() {
    passes(RING_BYTES / 2);
}

/// Sends a message as long as a shuttle may carry, if a shuttle is at hand.
fn send_in_shuttle(producer: &mut Producer, value: u64) {
    const LEN: usize = 4096;
    let space = producer.reserve(LEN, LEN).expect("well-behaved").expect("a shuttle");
    Payload::at(space.ptr).write(value);
    producer.publish(&space, Some((value, LEN as u64)));
}

fn receive(consumer: &mut Consumer) -> (*const u8, u64) {
    let arrival = loop {
        match consumer.peek().expect("well-behaved") {
            Some(arrival) => break arrival,
            None => thread::yield_now(),
        }
    };
    let value = Payload::at(arrival.ptr).read();
    consumer.release(&arrival);
    (arrival.ptr, value)
}

/// An answer lies where the message lay, and nobody writes there while the other end reads.
#[test]
fn answers_lie_where_their_messages_lay() {
    model(|| {
        let shuttles = Arc::new(Mapping::private(2 * SHUTTLES_BYTES).expect("memory"));
        let [here, there] = [0, SHUTTLES_BYTES].map(|own| {
            let end = Arc::new(Shuttles::default());
            end.add_own(shuttles.clone(), own, own == 0);
            end.add_peers(shuttles.clone(), SHUTTLES_BYTES - own);
            end
        });
        let (mut ask, mut hear) = ends(control_and_ring(), &here, &there);
        let (mut answer, mut listen) = ends(control_and_ring(), &there, &here);
        let other = thread::spawn(move || {
            for _ in 0..2 {
                let (_, value) = receive(&mut hear);
                send_in_shuttle(&mut answer, value + 1);
            }
        });
        let mut places = Vec::new();
        for value in [10, 20] {
            send_in_shuttle(&mut ask, value);
            let (at, answered) = receive(&mut listen);
            assert_eq!(answered, value + 1);
            places.push(at);
        }
        assert_eq!(places[0], places[1]);
        other.join().expect("no panic");
    });
}

/// A receiver that finds a request not withdrawn must have read the bytes that the sender wanted to send.
#[test]
fn a_request_that_is_withdrawn_gives_nothing_wrong() {
    model(|| {
        let (mut producer, mut consumer) = ring();
        let map = Arc::new(Mapping::private(4096).expect("memory"));
        let memory = map.bytes(0, 8);
        // SAFETY: the word lies inside the mapping, which all threads keep. It is read while it is written, as the
        // kernel would.
        let word = |map: &Arc<Mapping>| -> &AtomicU64 { unsafe { AtomicU64::at(map.bytes(0, 8)) } };
        word(&map).store(1, Ordering::Relaxed);
        let mut rts = Rts::new();
        assert!(rts.push(memory, 8));
        assert_eq!(producer.request(7, 8, &rts), Ok(Some(1)));
        let owner = Arc::clone(&map);
        let sender = thread::spawn(move || {
            producer.withdraw();
            // The memory belongs to the caller again.
            word(&owner).store(2, Ordering::Relaxed);
        });
        assert!(consumer.peek().expect("well-behaved").expect("it was sent before").is_rts());
        let read = word(&map).load(Ordering::Relaxed);
        if !consumer.is_withdrawn() {
            assert_eq!(read, 1);
        }
        sender.join().expect("no panic");
    });
}

/// Publishes `rounds` rounds of `len` bytes as one member, and reads from the members that it needs.
fn take_part(rounds: &mut Rounds, count: u64, len: usize, needs: Needs, gives: bool) {
    for round in 1..=count {
        let given = if gives { len } else { 0 };
        while !rounds.is_free(given).expect("they agree") {
            thread::yield_now();
        }
        if gives {
            Payload::at(rounds.slot(len)).write(100 * rounds.member() as u64 + round);
        }
        rounds.publish(5, len as u64);
        while !rounds.have_published(needs).expect("they agree") {
            thread::yield_now();
        }
        for member in (0..rounds.arena().members() as usize).filter(|member| needs.include(*member)) {
            let payload = Payload::at(rounds.payload(member, len)).read();
            assert_eq!(payload, 100 * member as u64 + round, "of member {member}");
        }
    }
}

/// Runs one member on each thread.
fn members(count: u32, body: impl Fn(Rounds) + Clone + Send + Sync + 'static) {
    model(move || {
        let arena = arena(count);
        let others: Vec<_> = (1..count)
            .map(|member| {
                let (arena, body) = (arena.clone(), body.clone());
                thread::spawn(move || body(Rounds::new(arena, 0, member)))
            })
            .collect();
        body(Rounds::new(arena, 0, 0));
        others.into_iter().for_each(|other| other.join().expect("no panic"));
    });
}

#[test]
fn rounds_in_which_all_need_all() {
    for len in [8, EXCHANGE_INLINE + 8] {
        members(2, move |mut rounds| {
            take_part(&mut rounds, EXCHANGE_DEPTH as u64 + 2, len, Needs::All, true)
        });
    }
}

#[test]
fn rounds_in_which_a_root_gives_and_runs_ahead() {
    members(2, |mut rounds| {
        let is_root = rounds.member() == 0;
        let needs = if is_root { Needs::Nobody } else { Needs::Only(0) };
        take_part(&mut rounds, EXCHANGE_DEPTH as u64 + 2, 8, needs, is_root);
    });
}

/// A member that is not needed may be a round ahead or behind when another compares.
#[test]
fn rounds_that_differ_are_told_apart() {
    members(2, |mut rounds| {
        rounds.publish(rounds.member() as u64, 8);
        let answer = loop {
            match rounds.have_published(Needs::All) {
                Ok(false) => thread::yield_now(),
                answer => break answer,
            }
        };
        let other = 1 - rounds.member();
        let found = answer.expect_err("they called different things");
        assert_eq!((found.member, found.tag), (other, other as u64));
    });
}

/// A member falls asleep on its doorbell, and a peer that publishes wakes it.
#[test]
fn who_sleeps_on_its_doorbell_is_woken() {
    model(|| {
        let arena = arena(2);
        let (mut producer, mut consumer) = ring();
        let other = arena.clone();
        let sender = thread::spawn(move || {
            let space = producer.reserve(8, 8).expect("well-behaved").expect("room");
            producer.publish(&space, Some((1, 8)));
            other.fences().light();
            assert_ne!(other.wake(0), Wake::Nudge);
        });
        loop {
            arena.fall_asleep(0, ParkBy::Word);
            if consumer.peek().expect("well-behaved").is_some() {
                break;
            }
            wait_word(arena.doorbell(0), ASLEEP_WORD, Duration::MAX).expect("a word");
        }
        arena.rise(0);
        sender.join().expect("no panic");
    });
}

/// Makes one call of the compiled exchange: publish, poll, sleep.
fn call(exchange: &mut Exchange) {
    let mine = exchange.member() as u64 + 1;
    assert!(exchange.is_free(8).expect("they agree"));
    exchange.publish(
        3,
        8,
        Needs::All,
        Some(|mut slot: super::Slot<'_>| Payload::at(slot.part(0, 8)).write(mine)),
    );
    sleep_until(exchange, |exchange| exchange.poll().expect("they agree"));
    for member in 0..exchange.members() {
        assert_eq!(Payload::at(exchange.payload(member).part(0, 8)).read(), member as u64 + 1);
    }
    exchange.finish();
}

fn sleep_until(exchange: &mut Exchange, is_over: impl Fn(&mut Exchange) -> bool) {
    while !is_over(exchange) {
        let (bell, value) = exchange.arm();
        let bell = std::ptr::from_ref(bell);
        if !is_over(exchange) {
            let bits = exchange.awaited();
            // SAFETY: the word lies in the arena, which the exchange keeps alive.
            wait_word_for(unsafe { &*bell }, value, bits, Duration::MAX).expect("a word");
        }
        exchange.disarm();
    }
}

#[test]
fn who_sleeps_in_the_compiled_exchange_is_woken() {
    model(|| {
        let arena = arena(2);
        let mut other = Exchange::modelled(arena.clone(), 1);
        let peer = thread::spawn(move || call(&mut other));
        call(&mut Exchange::modelled(arena, 0));
        peer.join().expect("no panic");
    });
}

#[test]
fn an_abort_wakes_who_sleeps_in_the_compiled_exchange() {
    model(|| {
        let arena = arena(2);
        let board = Exchange::modelled(arena.clone(), 1).board().clone();
        let peer = thread::spawn(move || board.abort(9));
        let mut exchange = Exchange::modelled(arena, 0);
        exchange.publish(3, 8, Needs::All, None::<fn(super::Slot<'_>)>);
        sleep_until(&mut exchange, |exchange| exchange.board().aborted() != 0);
        peer.join().expect("no panic");
    });
}
