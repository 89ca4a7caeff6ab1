//! Messages arrive whole, for all lengths and in any order of posts.

use super::*;
use crate::endpoint::Consumer;
use crate::shm::ring::{CELLS, INLINE_BYTES};

const KIB: usize = 1024;

/// Sends one message of `len` bytes from `a` to `b`, with the receive posted before or after.
fn exchange(a: &mut ShmEndpoint, b: &mut ShmEndpoint, len: usize, seed: usize, receive_first: bool) {
    let source = pattern(seed, len);
    let target = vec![0u8; len];
    let (from, to) = (piece(&source), piece(&target));
    let mut events = [Vec::new(), Vec::new()];
    let (mut sent, mut got) = (Posted::Pending, Posted::Pending);
    for step in [receive_first, !receive_first] {
        if step {
            got = receive(b, channel(0, 3), 7, &to, 2).expect("post");
        } else {
            sent = send(a, channel(1, 3), 7, &from, 1).expect("post");
        }
    }
    pump(&mut [a, b], &mut events, |e| {
        (sent == Posted::Done || is_done(&e[0], 1)) && (got == Posted::Done || is_done(&e[1], 2))
    });
    assert_eq!(events[0].len() + usize::from(sent == Posted::Done), 1, "{:?}", events[0]);
    assert_eq!(events[1].len() + usize::from(got == Posted::Done), 1, "{:?}", events[1]);
    assert!(source == target, "{len} bytes");
}

/// Sends one message of `len` bytes from `b` to `a`.
fn exchange_back(a: &mut ShmEndpoint, b: &mut ShmEndpoint, len: usize, seed: usize) {
    let source = pattern(seed, len);
    let target = vec![0u8; len];
    let (from, to) = (piece(&source), piece(&target));
    let sent = send(b, channel(0, 3), 7, &from, 1).expect("post");
    let got = receive(a, channel(1, 3), 7, &to, 2).expect("post");
    pump(&mut [a, b], &mut [Vec::new(), Vec::new()], |e| {
        (sent == Posted::Done || is_done(&e[1], 1)) && (got == Posted::Done || is_done(&e[0], 2))
    });
    assert!(source == target, "{len} bytes");
}

#[test]
fn sizes_around_every_limit() {
    for options in [
        ShmOptions::default(),
        ShmOptions { ring_bytes: 4096, ..ShmOptions::default() },
        ShmOptions { ring_bytes: 12288, piece_bytes: 640, ..ShmOptions::default() },
    ] {
        let mut world = world_with(2, &options);
        let [a, b] = &mut world[..] else { unreachable!() };
        let ring = options.ring_bytes;
        let piece = options.piece_bytes.min(ring / 2);
        let mut sizes = vec![0, 1, 39, 40, 41, 63, 64, 65, 127, 128, 129, 3 * KIB, 100_000, 1 << 20];
        for limit in [INLINE_BYTES, piece, 2 * piece, ring, 4 * ring] {
            sizes.extend([limit - 1, limit, limit + 1, limit + 64]);
        }
        for (seed, len) in sizes.into_iter().enumerate() {
            exchange(a, b, len, seed, true);
            exchange(a, b, len, seed + 100, false);
            exchange(a, b, 1, seed, true);
        }
    }
}

/// Messages that go back and forth leave the rings alone, and a stream in one direction passes through its ring once the
/// receiver holds all shuttles.
#[test]
fn answers_need_no_room_in_the_ring() {
    let (mut a, mut b) = pair();
    let in_ring = |end: &ShmEndpoint| end.send_lanes[0].ring.as_ref().map(|ring| ring.bytes_produced);
    for seed in 0..100 {
        exchange(&mut a, &mut b, 40_000, seed, seed % 2 == 0);
        exchange_back(&mut a, &mut b, 40_000, seed);
    }
    assert_eq!((in_ring(&a), in_ring(&b)), (Some(0), Some(0)));
    for seed in 0..100 {
        exchange(&mut a, &mut b, 40_000, seed, seed % 2 == 0);
    }
    assert!(in_ring(&a).is_some_and(|bytes| bytes > 90 * 40_000));
    exchange_back(&mut a, &mut b, 40_000, 1);
    assert_eq!(in_ring(&b), Some(0));
}

#[test]
fn rings_wrap_at_odd_lengths() {
    let (mut a, mut b) = pair();
    for seed in 0..400 {
        exchange(&mut a, &mut b, 105 + seed * 977 % 70_000, seed, seed % 2 == 0);
    }
}

#[test]
fn sixty_four_mebibytes() {
    let (mut a, mut b) = pair();
    exchange(&mut a, &mut b, 64 << 20, 5, true);
}

#[test]
fn what_fits_is_done_without_the_receiver() {
    let (mut a, mut b) = pair();
    let source = pattern(1, a.caps().eager_max);
    let target = vec![0u8; source.len()];
    let (from, to) = (piece(&source), piece(&target));
    assert_eq!(send(&mut a, channel(1, 0), 7, &from, 1).expect("post"), Posted::Done);
    assert!(a.is_flushed());
    let mut events = [Vec::new()];
    let got = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [&mut b], &mut events, |e| got == Posted::Done || is_done(&e[0], 2));
    assert!(source == target);
}

#[test]
fn eager_max_holds_wherever_the_ring_stands() {
    for (world_size, options) in [
        (2, ShmOptions::default()),
        (2, ShmOptions { staging_max: 0, ..ShmOptions::default() }),
        (2, ShmOptions { ring_bytes: 16384, piece_bytes: 512, ..ShmOptions::default() }),
    ] {
        let mut world = world_with(world_size, &options);
        let [a, b] = &mut world[..] else { unreachable!() };
        let eager = a.caps().eager_max;
        for seed in 0..200 {
            // Moves the ring's position to many different places.
            exchange(a, b, 110 + seed * 431 % 9000, seed, true);
            let source = pattern(seed, eager);
            let target = vec![0u8; eager];
            let (from, to) = (piece(&source), piece(&target));
            assert_eq!(
                send(a, channel(1, 3), 7, &from, 1).expect("post"),
                Posted::Done,
                "{options:?} {seed}"
            );
            let mut events = [Vec::new()];
            let got = receive(b, channel(0, 3), 7, &to, 2).expect("post");
            pump(&mut [b], &mut events, |e| got == Posted::Done || is_done(&e[0], 2));
            assert!(source == target);
        }
    }
}

#[test]
fn many_small_messages_keep_their_order() {
    let (mut a, mut b) = pair();
    let count = 5 * CELLS as usize;
    let sources: Vec<_> = (0..count).map(|i| pattern(i, i % 200)).collect();
    let targets: Vec<_> = sources.iter().map(|s| vec![0u8; s.len()]).collect();
    let from: Vec<_> = sources.iter().map(|s| piece(s)).collect();
    let to: Vec<_> = targets.iter().map(|t| piece(t)).collect();
    let mut done = [0, 0];
    for (i, from) in from.iter().enumerate() {
        done[0] += usize::from(send(&mut a, channel(1, 0), i as u64, from, 1).expect("post") == Posted::Done);
    }
    assert!(done[0] > 0 && done[0] < count, "{} sends fit", done[0]);
    for (i, to) in to.iter().enumerate() {
        let posted = receive(&mut b, channel(0, 0), i as u64, to, 2).expect("post");
        done[1] += usize::from(posted == Posted::Done);
    }
    let mut events = [Vec::new(), Vec::new()];
    pump(&mut [&mut a, &mut b], &mut events, |e| (0..2).all(|i| e[i].len() + done[i] == count));
    assert!(events.iter().flatten().all(|e| matches!(e, Event::Done(_))));
    assert!(sources == targets);
}

#[test]
fn all_channels_of_all_pairs_both_ways() {
    let n = 4;
    let mut world = world_with(n, &ShmOptions { staging_max: 1 << 20, ..ShmOptions::default() });
    let channels = world[0].caps().channels_max;
    let len = 10_000;
    let mut kept = Vec::new();
    let mut waiting = vec![0; n as usize];
    for rank in 0..n {
        for peer in (0..n).filter(|p| *p != rank) {
            for index in 0..channels {
                let seed = |from: u32, to: u32| (from * 100 + to * 10) as usize + usize::from(index);
                let source = pattern(seed(rank, peer), len);
                let target = vec![0u8; len];
                let pieces = Box::new([piece(&source)[0], piece(&target)[0]]);
                let endpoint = &mut world[rank as usize];
                let on = channel(peer, index);
                for posted in [
                    send(endpoint, on, 7, &pieces[..1], 1).expect("post"),
                    receive(endpoint, on, 7, &pieces[1..], 2).expect("post"),
                ] {
                    waiting[rank as usize] += usize::from(posted == Posted::Pending);
                }
                kept.push((seed(peer, rank), source, target, pieces));
            }
        }
    }
    let mut events = [const { Vec::new() }; 4];
    pump(&mut world.iter_mut().collect::<Vec<_>>(), &mut events, |e| {
        e.iter().zip(&waiting).all(|(e, waiting)| e.len() == *waiting)
    });
    assert!(events.iter().flatten().all(|e| matches!(e, Event::Done(_))));
    for (seed, _, target, _) in &kept {
        assert!(*target == pattern(*seed, len));
    }
}

#[test]
fn a_message_not_received_holds_up_its_own_channel_only() {
    let (mut a, mut b) = pair();
    let big = pattern(1, 1 << 20);
    let big_from = piece(&big);
    let mut events = [Vec::new(), Vec::new()];
    assert_eq!(send(&mut a, channel(1, 0), 7, &big_from, 1).expect("post"), Posted::Pending);
    exchange(&mut a, &mut b, 300_000, 2, true);
    pump(&mut [&mut a, &mut b], &mut events, |_| true);
    assert!(!is_done(&events[0], 1));
    assert!(!a.is_flushed());
    let target = vec![0u8; big.len()];
    let to = piece(&target);
    let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [&mut a, &mut b], &mut events, |e| is_done(&e[0], 1) && is_done(&e[1], 2));
    assert!(big == target);
}

#[test]
fn mismatches_fail_their_receive_and_no_other() {
    for len in [8, 20_000, 1 << 20] {
        for (tag, expected) in [(8, len), (7, len - 1), (7, len + 1), (7, 0)] {
            let (mut a, mut b) = pair();
            let source = pattern(1, len);
            let target = vec![0u8; expected];
            let (from, to) = (piece(&source), piece(&target));
            let mut events = [Vec::new(), Vec::new()];
            let _ = send(&mut a, channel(1, 3), 7, &from, 1).expect("post");
            let posted = receive(&mut b, channel(0, 3), tag, &to, 2).expect("post");
            assert_eq!(posted, Posted::Pending);
            pump(&mut [&mut a, &mut b], &mut events, |e| failure(&e[1], 2).is_some());
            let kind = failure(&events[1], 2).expect("failed");
            let (expected_len, arrived) = (expected as u64, len as u64);
            assert_eq!(kind, ErrorKind::Mismatch { expected_tag: tag, tag: 7, expected_len, len: arrived });
            assert!(target.iter().all(|b| *b == 0), "the payload is not delivered");
            exchange(&mut a, &mut b, 1000, 3, true);
        }
    }
}

/// Bytes that a consumer received.
struct Eaten {
    bytes: Vec<u8>,
    offsets: Vec<(usize, usize)>,
}

unsafe fn eat(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the test passes a pointer to an `Eaten` that outlives the message, and does not touch it before the
    // message is complete.
    let eaten = unsafe { &mut *context.cast::<Eaten>() };
    assert_eq!(offset, eaten.bytes.len());
    eaten.offsets.push((offset, len));
    // SAFETY: the endpoint vouches for `len` bytes at `data`.
    eaten.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(data, len) });
}

#[test]
fn consumers_get_whole_grains_in_order() {
    let (mut a, mut b) = pair();
    for (seed, len) in [0, 1, 104, 105, 4096, 50_001, 300_000, 1 << 20].into_iter().enumerate() {
        let source = pattern(seed, len);
        let cut = len / 3;
        let from = [piece(&source[..cut])[0], piece(&source[cut..])[0]];
        let mut eaten = Eaten { bytes: Vec::new(), offsets: Vec::new() };
        let consumer = Consumer { call: eat, context: (&raw mut eaten).cast() };
        let mut events = [Vec::new(), Vec::new()];
        // SAFETY: `eaten` lives until the message is complete.
        let got = unsafe {
            b.post_recv(channel(0, 0), 7, Sink::Consume { len, consumer }, OnMisfit::Fail, Token(2))
        }
        .expect("post");
        let sent = send(&mut a, channel(1, 0), 7, &from, 1).expect("post");
        pump(&mut [&mut a, &mut b], &mut events, |e| {
            (sent == Posted::Done || is_done(&e[0], 1)) && (got == Posted::Done || is_done(&e[1], 2))
        });
        assert!(eaten.bytes == source);
        for (offset, len_here) in &eaten.offsets {
            assert_eq!(offset % crate::GRAIN_BYTES, 0);
            assert!(len_here % crate::GRAIN_BYTES == 0 || offset + len_here == len);
        }
    }
}

#[test]
fn two_threads_flood_each_other() {
    let (a, b) = pair();
    let run = |mut endpoint: ShmEndpoint, peer: u32| {
        let mut events = Vec::new();
        for round in 0..200usize {
            let len = round * 7919 % 400_000;
            let source = pattern(round + (1 - peer) as usize, len);
            let target = vec![0u8; len];
            let (from, to) = (piece(&source), piece(&target));
            let on = channel(peer, (round % 5) as u16);
            let mut left = 2;
            for posted in [
                receive(&mut endpoint, on, round as u64, &to, 2),
                send(&mut endpoint, on, round as u64, &from, 1),
            ] {
                left -= usize::from(posted.expect("post") == Posted::Done);
            }
            until("a round", || {
                endpoint.poll(&mut events);
                events.len() == left
            });
            assert!(events.drain(..).all(|e| matches!(e, Event::Done(_))));
            assert!(target == pattern(round + peer as usize, len), "round {round}");
        }
        endpoint
    };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| run(a, 1));
        let second = scope.spawn(|| run(b, 0));
        // Both ends live until both have finished.
        (first.join().expect("first"), second.join().expect("second"))
    });
}

#[test]
fn usage_errors_are_told_at_once() {
    let mut world = introduced(2, &ShmOptions::default());
    let nothing = piece(&[]);
    let kind = |r: Result<Posted, Error>| r.map(|_| ()).expect_err("refused").kind;
    assert_eq!(kind(send(&mut world[0], channel(1, 0), 7, &nothing, 1)), ErrorKind::Usage);
    let (mut a, _b) = pair();
    assert_eq!(kind(send(&mut a, channel(0, 0), 7, &nothing, 1)), ErrorKind::Usage);
    assert_eq!(kind(send(&mut a, channel(2, 0), 7, &nothing, 1)), ErrorKind::Usage);
    assert_eq!(kind(send(&mut a, channel(1, 64), 7, &nothing, 1)), ErrorKind::Usage);
    let endless = [Piece { ptr: std::ptr::null_mut(), len: usize::MAX }; 2];
    assert_eq!(kind(send(&mut a, channel(1, 0), 7, &endless, 1)), ErrorKind::Usage);
    assert_eq!(kind(receive(&mut a, channel(1, 0), 7, &endless, 1)), ErrorKind::Usage);
}

#[test]
fn hosts_are_told_apart_and_worlds_of_one_work() {
    let mut a = ShmEndpoint::new(0, 2, ShmOptions { host_key: Some("a".into()), ..ShmOptions::default() })
        .expect("a");
    let b = ShmEndpoint::new(1, 2, ShmOptions { host_key: Some("b".into()), ..ShmOptions::default() })
        .expect("b");
    let reach = a.introduce(1, b.address()).expect("introduce");
    assert_eq!(reach, Reach::No { because: "different host".into() });
    assert_eq!(a.introduce(1, b"rubbish").expect_err("refused").kind, ErrorKind::Corrupt);
    a.establish(&|| false, deadline()).expect("nobody to wait for");
    assert_eq!(a.members(), [0]);
    assert!(a.exchange().is_none());
}
