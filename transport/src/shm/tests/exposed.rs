//! Memory that one end exposes and the other gets.

use super::single::by_rendezvous;
use super::*;
use crate::shm::options::SingleCopy;

/// Posts a get of a buffer of the peer's. The test keeps the pieces and their memory alive until it is complete.
fn get(endpoint: &mut ShmEndpoint, on: Channel, from: &[u8], dst: &[Piece], token: u64) -> Posted {
    // SAFETY: tests keep `dst` and its memory until the token completes or the endpoint is dropped.
    unsafe { endpoint.post_get(on, from.as_ptr().expose_provenance() as u64, dst, Token(token)) }
        .expect("post")
}

#[test]
fn memory_of_any_length_is_got_beside_messages() {
    let (mut a, mut b) = by_rendezvous();
    assert!(a.exposes(channel(1, 1)) && b.exposes(channel(0, 1)));
    assert!(b.prefers_get(channel(0, 1), 1) && !b.prefers_get(channel(0, 1), 0));
    for (seed, len) in [0, 1, 4095, 70_001, 512 << 10, 3_000_001].into_iter().enumerate() {
        let (source, before) = (pattern(seed, len), pattern(seed + 100, 5000));
        let (target, there) = (vec![0u8; len], vec![0u8; 5000]);
        let cut: Vec<Piece> = target.chunks(len / 3 + 1).flat_map(piece).collect();
        let (to, into, from) = (piece(&target), piece(&there), piece(&before));
        let mut events = [Vec::new(), Vec::new()];
        // A receive whose message has not come yet does not hold the gets up.
        assert_eq!(receive(&mut b, channel(0, 1), 7, &into, 1).expect("post"), Posted::Pending);
        for (token, dst) in [(2, &to[..]), (3, &cut[..])] {
            let got = get(&mut b, channel(0, 1), &source, dst, token);
            pump(&mut [&mut b], &mut events[1..], |e| got == Posted::Done || is_done(&e[0], token));
            assert!(source == target, "{len} bytes");
        }
        let sent = send(&mut a, channel(1, 1), 7, &from, 4).expect("post");
        pump(&mut [&mut a, &mut b], &mut events, |e| {
            (sent == Posted::Done || is_done(&e[0], 4)) && is_done(&e[1], 1)
        });
        assert!(before == there);
    }
}

#[test]
fn memory_is_not_exposed_where_nobody_may_read_it() {
    let never = ShmOptions { single_copy: SingleCopy::Never, ..ShmOptions::default() };
    let mut world = world_with(2, &never);
    let [a, b] = &mut world[..] else { unreachable!() };
    single::link(a, b);
    assert!(!a.exposes(channel(1, 1)) && !b.prefers_get(channel(0, 1), 1 << 20));
}

#[test]
fn a_get_of_memory_that_is_not_there_fails_alone() {
    let (mut a, mut b) = by_rendezvous();
    let target = vec![0u8; 1000];
    let to = piece(&target);
    // SAFETY: the target lives until the end of the test.
    let posted = unsafe { b.post_get(channel(0, 1), u64::MAX - 10, &to, Token(1)) };
    assert_eq!(posted.expect("post"), Posted::Pending);
    let mut events = [Vec::new()];
    pump(&mut [&mut b], &mut events, |e| failure(&e[0], 1).is_some());
    assert_eq!(failure(&events[0], 1), Some(ErrorKind::System));
    let (source, mut events) = (pattern(1, 1000), [Vec::new(), Vec::new()]);
    let from = piece(&source);
    let posted = [send(&mut a, channel(1, 1), 7, &from, 2), receive(&mut b, channel(0, 1), 7, &to, 3)];
    let [sent, got] = posted.map(|posted| posted.expect("post") == Posted::Done);
    pump(&mut [&mut a, &mut b], &mut events, |e| (sent || is_done(&e[0], 2)) && (got || is_done(&e[1], 3)));
    assert!(source == target, "messages still pass");
}

#[test]
fn gets_from_a_peer_that_has_left_fail() {
    let (mut a, mut b) = by_rendezvous();
    assert!(a.exposes(channel(1, 1)));
    let source = pattern(1, 1000);
    let target = vec![0u8; 1000];
    let to = piece(&target);
    drop(a);
    assert_eq!(get(&mut b, channel(0, 1), &source, &to, 1), Posted::Pending);
    let mut events = [Vec::new()];
    pump(&mut [&mut b], &mut events, |e| !downs(&e[0]).is_empty());
    assert_eq!(failure(&events[0], 1), Some(ErrorKind::PeerLost));
}

/// A rank takes its memory back at a random moment and overwrites it: the other has all of it, or fails.
#[test]
fn memory_taken_back_is_never_reported_whole() {
    let mut outcomes = [0, 0];
    for seed in 1..60u64 {
        let (mut a, mut b) = by_rendezvous();
        assert!(a.exposes(channel(1, 1)));
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
        let len = 600_000 + (state % 3_000_000) as usize;
        let right = pattern(seed as usize, len);
        let mut source = right.clone();
        let target = vec![0u8; len];
        let to = piece(&target);
        let mut events = Vec::new();
        let at = source.as_mut_ptr().expose_provenance() as u64;
        let is_whole = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut events, start) = (Vec::new(), Instant::now());
                while start.elapsed() < Duration::from_nanos((state >> 32) % 1_000_000) {
                    a.poll(&mut events);
                }
                let cause = Error::new(ErrorKind::Aborted, "shm", None, "test");
                match seed % 3 {
                    0 => a.abort(&cause, &mut events),
                    1 => a.abandon(1, &cause, &mut events),
                    _ => drop(a),
                }
                source.fill(0xee);
            });
            // SAFETY: the target lives until the get is complete.
            let posted = unsafe { b.post_get(channel(0, 1), at, &to, Token(2)) }.expect("post");
            until("an end", || {
                b.poll(&mut events);
                posted == Posted::Done || is_done(&events, 2) || failure(&events, 2).is_some()
            });
            posted == Posted::Done || is_done(&events, 2)
        });
        outcomes[usize::from(is_whole)] += 1;
        assert!(!is_whole || right == target, "garbage with seed {seed}");
        assert!(is_whole || failure(&events, 2) == Some(ErrorKind::PeerLost));
    }
    println!("failed, whole: {outcomes:?}");
}

#[test]
fn exposed_messages_are_tried_both_ways() {
    let mut world = world_with(2, &ShmOptions::default());
    let [a, b] = &mut world[..] else { unreachable!() };
    single::link(a, b);
    if !a.exposes(channel(1, 1)) {
        println!("skipped: the kernel does not permit it");
        return;
    }
    let source = pattern(1, 200_000);
    let (mut gets, mut events) = (0, [Vec::new(), Vec::new()]);
    for _ in 0..200 {
        let target = vec![0u8; source.len()];
        let (from, to) = (piece(&source), piece(&target));
        events.iter_mut().for_each(Vec::clear);
        if b.prefers_get(channel(0, 1), source.len()) {
            gets += 1;
            let got = get(b, channel(0, 1), &source, &to, 1);
            pump(&mut [&mut *b], &mut events[1..], |e| got == Posted::Done || is_done(&e[0], 1));
        } else {
            let got = receive(b, channel(0, 1), 7, &to, 1).expect("post");
            let sent = send(a, channel(1, 1), 7, &from, 2).expect("post");
            pump(&mut [&mut *a, &mut *b], &mut events, |e| {
                (sent == Posted::Done || is_done(&e[0], 2)) && (got == Posted::Done || is_done(&e[1], 1))
            });
        }
        assert!(source == target);
    }
    assert!((2..200).contains(&gets), "{gets} of 200");
}
