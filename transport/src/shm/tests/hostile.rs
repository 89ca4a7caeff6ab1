//! A peer that writes invalid values into shared memory gets an error, and never causes a crash or a wild access.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::*;
use crate::shm::ring::INLINE_BYTES;

/// Offsets in the control page, as the `ring` module lays it out.
const RING_SIZE: usize = 0;
const CELLS_FREED: usize = 128;
const BYTES_FREED: usize = 136;
const FIRST_CELL: usize = 256;

fn word(stamp: u32, len: u32) -> u64 {
    u64::from(stamp) << 32 | u64::from(len)
}

/// Returns the verdict of `b` on its receive of `expected` bytes after `a` has written `words` at offsets of its
/// control page.
fn verdict(expected: usize, words: &[(usize, u64)], ring_size: Option<u32>) -> (Option<ErrorKind>, Vec<u32>) {
    let (mut a, mut b) = pair();
    let target = vec![0u8; expected];
    let to = piece(&target);
    let mut events = [Vec::new(), Vec::new()];
    // Opens the channel in good order, with one message that is received.
    let _ = send(&mut a, channel(1, 0), 7, &[], 1).expect("post");
    let got = receive(&mut b, channel(0, 0), 7, &[], 1).expect("post");
    let _ = send(&mut b, channel(0, 0), 7, &[], 3).expect("post");
    pump(&mut [&mut a, &mut b], &mut events, |e| got == Posted::Done || is_done(&e[1], 1));
    let segment = a.peers[0].outward.as_ref().expect("linked").segment.clone();
    let control = segment.control_offset(0);
    if let Some(size) = ring_size {
        segment.mapping().atomic::<AtomicU32>(control + RING_SIZE).store(size, Ordering::SeqCst);
    }
    for (offset, value) in words.iter().rev() {
        segment.mapping().atomic::<AtomicU64>(control + offset).store(*value, Ordering::SeqCst);
    }
    let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [&mut b], &mut events[1..], |e| failure(&e[0], 2).is_some());
    (failure(&events[1], 2), downs(&events[1]))
}

/// Returns the words of the channel's second cell, for a message of `total` bytes whose first piece has `len`.
fn cell(len: u32, total: u64) -> [(usize, u64); 3] {
    let at = FIRST_CELL + 128;
    [(at, word(2, len)), (at + 8, 7), (at + 16, total)]
}

#[test]
fn lengths_that_cannot_be_are_corrupt() {
    let corrupt = (Some(ErrorKind::Corrupt), vec![0]);
    // In turn: longer than the ring; longer than anything; not a multiple of a grain; an empty piece of a message;
    // longer than the message; a short piece that is not the last.
    for (len, total) in
        [(300_000, 1 << 20), (0x7fff_ffff, 1 << 20), (1000, 1 << 20), (0, 1 << 20), (4096, 5), (50, 1 << 20)]
    {
        assert_eq!(verdict(1 << 20, &cell(len, total), None), corrupt, "{len} of {total}");
    }
    // A skip to the start of the ring does not help.
    assert_eq!(verdict(1 << 20, &cell(300_000 | 1 << 31, 1 << 20), None), corrupt);
}

#[test]
fn shuttles_that_the_sender_does_not_hold_are_corrupt() {
    let corrupt = (Some(ErrorKind::Corrupt), vec![0]);
    for name in 0..8 {
        let bits = 1 << 29 | name << 26;
        assert_eq!(verdict(1 << 20, &cell(bits | 70_016, 1 << 20), None), corrupt, "{name}, too long");
        // The receiver holds those of its own segment, as long as it has sent no message in them.
        if name < 4 {
            assert_eq!(verdict(4096, &cell(bits | 4096, 4096), None), corrupt, "{name}");
        }
    }
}

#[test]
fn ring_sizes_that_cannot_be_are_corrupt() {
    for size in [0, 1, 4097, 1 << 20, u32::MAX] {
        let (kind, _) = verdict(1 << 20, &cell(4096, 1 << 20), Some(size));
        assert_eq!(kind, Some(ErrorKind::Corrupt), "{size}");
    }
}

#[test]
fn a_total_that_cannot_be_is_a_mismatch() {
    let (kind, downs) = {
        let (mut a, mut b) = pair();
        let mut events = [Vec::new(), Vec::new()];
        let _ = send(&mut a, channel(1, 0), 7, &[], 1).expect("post");
        let segment = a.peers[0].outward.as_ref().expect("linked").segment.clone();
        let at = segment.control_offset(0) + FIRST_CELL + 16;
        segment.mapping().atomic::<AtomicU64>(at).store(u64::MAX, Ordering::SeqCst);
        let _ = receive(&mut b, channel(0, 0), 7, &[], 2).expect("post");
        pump(&mut [&mut a, &mut b], &mut events, |e| failure(&e[1], 2).is_some());
        (failure(&events[1], 2), downs(&events[1]))
    };
    // The message looks endless, and its first piece is empty.
    assert_eq!(kind, Some(ErrorKind::Corrupt));
    assert_eq!(downs, [0]);
}

#[test]
fn counters_that_run_ahead_or_back_are_corrupt() {
    for (offset, value) in [(CELLS_FREED, u64::MAX), (CELLS_FREED, 1 << 40), (BYTES_FREED, 1 << 30)] {
        let (mut a, mut b) = pair();
        let source = pattern(1, 1 << 20);
        let from = piece(&source);
        let mut events = [Vec::new(), Vec::new()];
        // Where the counter counts cells, these messages use up all cells but one.
        for _ in 0..if offset == CELLS_FREED { 29 } else { 1 } {
            let _ = send(&mut a, channel(1, 0), 7, &from[..0], 1).expect("post");
        }
        let _ = receive(&mut b, channel(0, 0), 7, &[], 3).expect("post");
        pump(&mut [&mut a, &mut b], &mut events, |_| true);
        let segment = b.peers[0].inward.as_ref().expect("linked").segment.clone();
        let at = segment.control_offset(0) + offset;
        let counter: &AtomicU64 = segment.mapping().atomic(at);
        let _ = send(&mut a, channel(1, 0), 7, &from, 2).expect("post");
        counter.store(value, Ordering::SeqCst);
        pump(&mut [&mut a], &mut events[..1], |e| failure(&e[0], 2).is_some());
        assert_eq!(failure(&events[0], 2), Some(ErrorKind::Corrupt));
    }
}

#[test]
fn garbage_all_over_the_segment_is_survived() {
    for seed in 1..30u64 {
        let (mut a, mut b) = pair();
        let mut events = [Vec::new(), Vec::new()];
        let target = vec![0u8; 100_000];
        let to = piece(&target);
        let _ = send(&mut a, channel(1, 0), 7, &[], 1).expect("post");
        let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
        let segment = a.peers[0].outward.as_ref().expect("linked").segment.clone();
        let control = segment.control_offset(0);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for offset in (0..4096).step_by(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            // Every third word looks plausible.
            let value = if state.is_multiple_of(3) {
                word(1 + (state >> 60) as u32, (state >> 40) as u32 & 0x1ff)
            } else {
                state
            };
            segment.mapping().atomic::<AtomicU64>(control + offset).store(value, Ordering::SeqCst);
        }
        let small = pattern(1, INLINE_BYTES);
        let from = piece(&small);
        for _ in 0..100 {
            let _ = send(&mut a, channel(1, 0), 7, &from, 3);
            let _ = receive(&mut b, channel(0, 0), 7, &to, 4);
            a.poll(&mut events[0]);
            b.poll(&mut events[1]);
        }
    }
}
