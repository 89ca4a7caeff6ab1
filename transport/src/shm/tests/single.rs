//! Long messages that the receiver reads from their sender's memory.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use super::*;
use crate::endpoint::Consumer;
use crate::shm::address::Address;
use crate::shm::options::{SINGLE_COPY_MIN, SingleCopy};
use crate::shm::remote::FAR_RUNS;

fn options(single_copy: SingleCopy) -> ShmOptions {
    ShmOptions { single_copy, ..ShmOptions::default() }
}

/// Makes two ends that send every non-empty message by rendezvous.
pub(super) fn by_rendezvous() -> (ShmEndpoint, ShmEndpoint) {
    let mut world = world_with(2, &options(SingleCopy::From(1)));
    let [a, b] = &mut world[..] else { unreachable!() };
    link(a, b);
    let second = world.pop().expect("two");
    (world.pop().expect("two"), second)
}

/// Exchanges an empty message each way, so that both ends are linked.
pub(super) fn link(a: &mut ShmEndpoint, b: &mut ShmEndpoint) {
    let mut left = [0, 0];
    for (i, (end, peer)) in [(&mut *a, 1), (&mut *b, 0)].into_iter().enumerate() {
        let posted = [send(end, channel(peer, 9), 1, &[], 1), receive(end, channel(peer, 9), 1, &[], 2)];
        left[i] = posted.iter().filter(|p| matches!(p, Ok(Posted::Pending))).count();
    }
    let mut events = [Vec::new(), Vec::new()];
    pump(&mut [a, b], &mut events, |e| e[0].len() == left[0] && e[1].len() == left[1]);
}

fn cut(bytes: &[u8], count: usize) -> Vec<Piece> {
    let step = bytes.len().div_ceil(count).max(1);
    bytes.chunks(step).flat_map(|chunk| [piece(chunk)[0], piece(&[])[0]]).collect()
}

/// Sends `from` to `to`, and checks that the message went by rendezvous if `requested` and through the ring
/// otherwise.
fn transfer(a: &mut ShmEndpoint, b: &mut ShmEndpoint, from: &[Piece], to: &[Piece], requested: bool) {
    assert_eq!(pass(a, b, from, to), requested);
}

/// Sends `from` to `to`. Returns whether the message went by rendezvous.
fn pass(a: &mut ShmEndpoint, b: &mut ShmEndpoint, from: &[Piece], to: &[Piece]) -> bool {
    let mut events = [Vec::new(), Vec::new()];
    let sent = send(a, channel(1, 0), 7, from, 1).expect("post");
    let lane = a.peers[0].send_lanes[0] as usize;
    let requested = a.send_lanes[lane].has_requested();
    assert!(!requested || !a.is_flushed());
    let got = receive(b, channel(0, 0), 7, to, 2).expect("post");
    pump(&mut [a, b], &mut events, |e| {
        (sent == Posted::Done || is_done(&e[0], 1)) && (got == Posted::Done || is_done(&e[1], 2))
    });
    requested
}

#[test]
fn odd_addresses_and_many_pieces() {
    let (mut a, mut b) = by_rendezvous();
    let (len, mut seed) = (1_500_001, 0);
    for skip in [0, 1, 63] {
        for (there, here) in [(1, 1), (1, 1000), (3, 2), (100, 7), (3, 33)] {
            seed += 1;
            let source = pattern(seed, len);
            let target = vec![0u8; len];
            let (from, to) = (cut(&source[skip..], there), cut(&target[skip..], here));
            transfer(&mut a, &mut b, &from, &to, from.len() <= FAR_RUNS);
            assert!(source[skip..] == target[skip..], "{there} to {here}");
            assert!(target[..skip].iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_gibibyte_in_turn_with_short_messages() {
    let (mut a, mut b) = by_rendezvous();
    let source = pattern(1, 64 << 20);
    let target = vec![0u8; 64 << 20];
    for round in 0..16 {
        let len = (64 << 20) - round;
        transfer(&mut a, &mut b, &piece(&source[round..]), &piece(&target[..len]), true);
        assert!(source[round..] == target[..len]);
        let short = [round as u8; 8];
        let mut arrived = [0u8; 8];
        let into = [Piece { ptr: arrived.as_mut_ptr(), len: 8 }];
        transfer(&mut a, &mut b, &piece(&short), &into, true);
        assert_eq!(short, arrived);
    }
}

/// Connects two ends that know each other, and sends a message that goes through the ring.
fn a_long_message_arrives(a: &mut ShmEndpoint, b: &mut ShmEndpoint) {
    std::thread::scope(|scope| {
        for end in [&mut *a, &mut *b] {
            scope.spawn(|| end.establish(&|| false, deadline()).expect("established"));
        }
    });
    link(a, b);
    let source = pattern(1, 700_000);
    let target = vec![0u8; source.len()];
    transfer(a, b, &piece(&source), &piece(&target), false);
    assert!(source == target);
}

#[test]
fn who_may_not_read_gets_copies() {
    for (there, here) in [(SingleCopy::From(1), SingleCopy::Never), (SingleCopy::Never, SingleCopy::From(1))]
    {
        let mut a = ShmEndpoint::new(0, 2, options(there)).expect("endpoint");
        let mut b = ShmEndpoint::new(1, 2, options(here)).expect("endpoint");
        let addresses = [b.address().to_vec(), a.address().to_vec()];
        for ((end, own), other) in [(&mut a, there), (&mut b, here)].into_iter().zip(addresses) {
            let peer = 1 - end.rank;
            let Reach::Yes { how } = end.introduce(peer, &other).expect("introduced") else { panic!("no") };
            let expected = if own == SingleCopy::Never { "two copies: chosen" } else { "single copy" };
            assert_eq!(how, format!("same host, memfd, {expected}"));
        }
        a_long_message_arrives(&mut a, &mut b);
    }
}

#[test]
fn who_takes_a_message_and_leaves_has_taken_it() {
    let (mut a, mut b) = by_rendezvous();
    let source = pattern(1, 100_000);
    let target = vec![0u8; source.len()];
    let (from, to) = (piece(&source), piece(&target));
    assert_eq!(send(&mut a, channel(1, 0), 7, &from, 1).expect("post"), Posted::Pending);
    let mut events = [Vec::new()];
    let got = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [&mut b], &mut events, |e| got == Posted::Done || is_done(&e[0], 2));
    drop(b);
    pump(&mut [&mut a], &mut events, |e| is_done(&e[0], 1) || failure(&e[0], 1).is_some());
    assert!(is_done(&events[0], 1), "{events:?}");
    assert!(a.is_flushed());
}

#[test]
fn a_rendezvous_ends_with_its_sender_and_what_was_done_does_not() {
    let (mut a, mut b) = by_rendezvous();
    let source = pattern(1, 2 << 20);
    let target = vec![0u8; source.len()];
    let (from, to) = (piece(&source), piece(&target));
    assert_eq!(send(&mut a, channel(1, 0), 7, &from, 1).expect("post"), Posted::Pending);
    assert_eq!(send(&mut a, channel(1, 1), 7, &[], 2).expect("post"), Posted::Done);
    drop(a);
    let mut events = [Vec::new()];
    let got = receive(&mut b, channel(0, 1), 7, &[], 3).expect("post");
    pump(&mut [&mut b], &mut events, |e| got == Posted::Done || is_done(&e[0], 3));
    let _ = receive(&mut b, channel(0, 0), 7, &to, 4).expect("post");
    pump(&mut [&mut b], &mut events, |e| downs(&e[0]) == [0]);
    assert_eq!(failure(&events[0], 4), Some(ErrorKind::PeerLost));
}

unsafe fn compare(context: *mut (), offset: usize, data: *const u8, len: usize) {
    // SAFETY: the test passes a vector that outlives the message, and the endpoint `len` bytes.
    unsafe {
        let got = &mut *context.cast::<Vec<u8>>();
        assert_eq!(got.len(), offset);
        got.extend_from_slice(std::slice::from_raw_parts(data, len));
    }
}

/// A sender gives up at a random moment and overwrites its memory: the receiver has the whole message, or fails.
#[test]
fn a_message_taken_back_is_never_reported_whole() {
    let mut outcomes = [0, 0];
    for seed in 1..60u64 {
        let (mut a, mut b) = by_rendezvous();
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state ^= state >> 29;
        let len = 600_000 + (state % 3_000_000) as usize;
        let right = pattern(seed as usize, len);
        let mut source = right.clone();
        let target = vec![0u8; len];
        let to = piece(&target);
        let mut eaten = Vec::with_capacity(len);
        let sink = if seed % 2 == 0 {
            Sink::Place(&to)
        } else {
            Sink::Consume { len, consumer: Consumer { call: compare, context: (&raw mut eaten).cast() } }
        };
        // SAFETY: the pieces, the target and the consumer's vector live until the message is complete.
        let got = unsafe { b.post_recv(channel(0, 0), 7, sink, OnMisfit::Fail, Token(2)) }.expect("post");
        assert_eq!(got, Posted::Pending);
        let mut events = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let from = piece(&source);
                let mut events = Vec::new();
                let _ = send(&mut a, channel(1, 0), 7, &from, 1).expect("post");
                let patience = Duration::from_nanos((state >> 32) % 4_000_000);
                let start = Instant::now();
                while start.elapsed() < patience {
                    a.poll(&mut events);
                }
                let cause = Error::new(ErrorKind::Aborted, "shm", None, "test");
                if seed % 3 == 0 {
                    a.abort(&cause, &mut events)
                } else {
                    a.abandon(1, &cause, &mut events)
                }
                assert_eq!(events.iter().filter(|e| !matches!(e, Event::Down { .. })).count(), 1);
                // The token is complete, so the memory belongs to this test again.
                source.fill(0xee);
            });
            until("an end", || {
                b.poll(&mut events);
                is_done(&events, 2) || failure(&events, 2).is_some()
            });
        });
        let is_whole = is_done(&events, 2);
        outcomes[usize::from(is_whole)] += 1;
        assert!(!is_whole || right == if seed % 2 == 0 { target } else { eaten }, "garbage with seed {seed}");
        assert!(is_whole || failure(&events, 2) == Some(ErrorKind::PeerLost));
    }
    println!("failed, whole: {outcomes:?}");
}

#[test]
fn requests_that_cannot_be_fail_their_receive() {
    const RTS: u64 = 1 << 30;
    let target = vec![0u8; 1000];
    let to = piece(&target);
    let here = pattern(1, 1000);
    let at = here.as_ptr().addr() as u64;
    let cases: [(u64, &[u64]); 7] = [
        (0, &[]),
        (8, &[at]),
        (17, &[at, 1000]),
        (16, &[at, 999]),
        (32, &[at, u64::MAX, at, 1001]),
        (112, &[at, 1000]),
        (0x3fff_ffff, &[at, 1000]),
    ];
    for (len, words) in cases {
        let (mut a, mut b) = by_rendezvous();
        let mut events = [Vec::new()];
        let _ = send(&mut a, channel(1, 0), 7, &[], 1).expect("post");
        let _ = receive(&mut b, channel(0, 0), 7, &[], 1).expect("post");
        let segment = a.peers[0].outward.as_ref().expect("linked").segment.clone();
        // The second cell of the channel, as the `ring` module lays it out.
        let cell = segment.control_offset(0) + 256 + 128;
        let store = |offset: usize, word: u64| {
            segment.mapping().atomic::<AtomicU64>(cell + offset).store(word, Ordering::SeqCst);
        };
        words.iter().enumerate().for_each(|(i, word)| store(24 + 8 * i, *word));
        store(8, 7);
        store(16, 1000);
        store(0, 2 << 32 | RTS | len);
        let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
        pump(&mut [&mut b], &mut events, |e| !downs(&e[0]).is_empty());
        assert_eq!(failure(&events[0], 2), Some(ErrorKind::Corrupt), "{len} {words:?}");
    }
}

/// Whether all of a message is in memory that the kernel does not read, or only its end, the ring carries it.
#[test]
fn messages_in_memory_that_the_kernel_does_not_read_arrive() {
    let Some(secret) = secret(300_000) else { return };
    let (mut a, mut b) = by_rendezvous();
    secret.copy_from_slice(&pattern(3, 300_000));
    let plain = pattern(4, 2_000_000);
    for from in [vec![piece(secret)[0]], vec![piece(&plain)[0], piece(secret)[0]]] {
        let whole: Vec<u8> =
            if from.len() == 1 { secret.to_vec() } else { [&plain[..], &secret[..]].concat() };
        let target = vec![0u8; whole.len()];
        transfer(&mut a, &mut b, &from, &cut(&target, 3), true);
        assert!(target == whole, "{} bytes", whole.len());
    }
}

#[test]
fn what_is_to_be_eaten_is_declined_and_keeps_its_order() {
    let (mut a, mut b) = by_rendezvous();
    let sources: Vec<_> =
        [700_000, 3, 1, 500_001].into_iter().enumerate().map(|(i, n)| pattern(i, n)).collect();
    let from: Vec<_> = sources.iter().map(|source| piece(source)).collect();
    let mut targets: Vec<_> = sources.iter().map(|source| Vec::with_capacity(source.len())).collect();
    let (mut events, mut left) = ([Vec::new(), Vec::new()], [0, 0]);
    for (i, from) in (0..).zip(&from) {
        left[0] += usize::from(send(&mut a, channel(1, 0), i, from, i).expect("post") == Posted::Pending);
    }
    for (i, target) in (0..).zip(&mut targets) {
        let consumer = Consumer { call: compare, context: std::ptr::from_mut(target).cast() };
        let sink = Sink::Consume { len: from[i as usize][0].len, consumer };
        // SAFETY: the targets live until the messages are complete.
        let posted = unsafe { b.post_recv(channel(0, 0), i, sink, OnMisfit::Fail, Token(i)) }.expect("post");
        left[1] += usize::from(posted == Posted::Pending);
    }
    pump(&mut [&mut a, &mut b], &mut events, |e| e[0].len() == left[0] && e[1].len() == left[1]);
    assert!(events.iter().flatten().all(|e| matches!(e, Event::Done(_))), "{events:?}");
    assert!(sources == targets);
}

#[test]
fn long_messages_are_tried_both_ways() {
    let options = options(SingleCopy::Auto);
    let mut world = world_with(2, &options);
    let [a, b] = &mut world[..] else { unreachable!() };
    link(a, b);
    let bytes = pattern(1, 1 << 20);
    let mut requested = 0;
    for (at, len) in (0..200).map(|at| (at * 128, options.tried_min + at * 200)) {
        let source = &bytes[at..at + len];
        let target = vec![0u8; len];
        requested += usize::from(pass(a, b, &piece(source), &piece(&target)));
        assert!(source == target, "{len} bytes");
    }
    // The kernel may not permit it.
    if a.send_lanes[a.peers[0].send_lanes[0] as usize].may_rendezvous() {
        assert!((2..200).contains(&requested), "{requested} of 200");
    }
}

#[test]
fn a_refusal_by_the_kernel_is_reported_and_messages_take_the_ring() {
    let ends = [0, 1].map(|rank| ShmEndpoint::new(rank, 2, options(SingleCopy::From(1))).expect("endpoint"));
    let [mut a, mut b] = ends;
    // No memory is readable there: the kernel's answer is that of a process it does not show.
    let [of_a, of_b] = [&a, &b].map(|end| {
        let address = Address::decode(end.address()).expect("its own");
        Address { beacon: 8, ..address }.encode()
    });
    for (end, peer, address) in [(&mut a, 1, of_b), (&mut b, 0, of_a)] {
        let Reach::Yes { how } = end.introduce(peer, &address).expect("introduced") else { panic!("no") };
        assert_eq!(how, "same host, memfd, two copies: its process is not visible here");
    }
    a_long_message_arrives(&mut a, &mut b);
}

/// The kernel then finds no memory under the process's number.
#[test]
fn a_process_whose_main_thread_has_ended_still_sends() {
    const LEN: usize = 4 << 20;
    let (near, far) = UnixStream::pair().expect("a pair");
    // SAFETY: the C library permits allocation and threads in a child. The child ends in `without_main_thread`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        drop(near);
        without_main_thread(move |leave| {
            let mut end = established_over(far.try_clone().expect("a descriptor"), 1);
            let mut events = [Vec::new()];
            // The peer allows it in answer to a first message, which takes the ring.
            let _ = send(&mut end, channel(0, 0), 6, &[], 0).expect("post");
            until("the peer reads", || {
                end.poll(&mut events[0]);
                end.is_read_on(channel(0, 0))
            });
            leave.send(()).expect("the main thread waits");
            let (source, answer) = (pattern(1, LEN), [0_u8; 1]);
            until("the main thread's end", || {
                let status = std::fs::read_to_string(format!("/proc/self/task/{}/stat", std::process::id()));
                status.is_ok_and(|status| status.contains(") Z "))
            });
            let (from, to) = (piece(&source), piece(&answer));
            let _ = send(&mut end, channel(0, 0), 7, &from, 1).expect("post");
            assert!(end.send_lanes[end.peers[0].send_lanes[0] as usize].has_requested());
            let posted = receive(&mut end, channel(0, 0), 8, &to, 2).expect("post");
            pump(&mut [&mut end], &mut events, |e| posted == Posted::Done || is_done(&e[0], 2));
        });
    }
    drop(far);
    let mut end = established_over(near, 0);
    let (target, answer) = (vec![0_u8; LEN], [1_u8]);
    let (to, from, mut events) = (piece(&target), piece(&answer), [Vec::new()]);
    let _ = receive(&mut end, channel(1, 0), 6, &[], 0).expect("post");
    let _ = receive(&mut end, channel(1, 0), 7, &to, 1).expect("post");
    let has_ended = |events: &[Event]| is_done(events, 1) || failure(events, 1).is_some();
    pump(&mut [&mut end], &mut events, |e| has_ended(&e[0]));
    assert!(is_done(&events[0], 1) && downs(&events[0]).is_empty(), "{:?}", events[0]);
    assert!(target == pattern(1, LEN));
    let posted = send(&mut end, channel(1, 0), 8, &from, 2).expect("post");
    pump(&mut [&mut end], &mut events, |e| posted == Posted::Done || is_done(&e[0], 2));
    let mut status = 0;
    // SAFETY: this waits for the child that was made above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child");
}

/// Ends this thread, the main one, once the work says so, and the process with the work's outcome.
fn without_main_thread(work: impl FnOnce(Sender<()>) + Send + 'static) -> ! {
    let (leave, told) = std::sync::mpsc::channel();
    let worker = std::thread::spawn(|| {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(leave)));
        // SAFETY: this ends the process.
        unsafe { libc::_exit(i32::from(outcome.is_err())) }
    });
    std::mem::forget(worker);
    told.recv().expect("the other thread lives");
    // SAFETY: the call ends this thread only, on whose stack nothing is used any more. The alarm ends a child that hangs.
    unsafe {
        libc::alarm(70);
        libc::syscall(libc::SYS_exit, 0);
    }
    unreachable!("the thread has ended")
}

/// Makes one end of a pair whose other end is in another process.
fn established_over(mut line: UnixStream, rank: u32) -> ShmEndpoint {
    let mut end = ShmEndpoint::new(rank, 2, options(SingleCopy::From(1))).expect("endpoint");
    let own = end.address().to_vec();
    line.write_all(&own).expect("sent");
    let mut address = vec![0; own.len()];
    line.read_exact(&mut address).expect("the other end's");
    let reach = end.introduce(1 - rank, &address).expect("introduced");
    assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
    end.establish(&|| false, deadline()).expect("established");
    end
}

#[test]
fn by_itself_it_sends_by_rendezvous_what_is_long_and_in_huge_pages() {
    let mut world = world_with(2, &options(SingleCopy::Auto));
    let [a, b] = &mut world[..] else { unreachable!() };
    link(a, b);
    let (len, huge) = (4 << 20, 2 << 20);
    let mut bytes = Vec::<u8>::with_capacity(len + huge);
    let skip = bytes.as_ptr().align_offset(huge);
    let start = bytes.as_mut_ptr().wrapping_add(skip);
    // SAFETY: the range is inside the vector's memory, which is not in use yet.
    let _ = unsafe { rustix::mm::madvise(start.cast(), len, rustix::mm::Advice::LinuxHugepage) };
    bytes.extend_from_slice(&pattern(1, len + huge));
    let source = &bytes[skip..skip + len];
    // The kernel may be too old to report huge pages, or have none left.
    let is_huge = a.pages.as_ref().is_some_and(|pages| pages.hold(&piece(source), len));
    let target = vec![0u8; len];
    transfer(a, b, &piece(source), &piece(&target), is_huge);
    assert!(source == target);
    let short = SINGLE_COPY_MIN - 1;
    transfer(a, b, &piece(&source[..short]), &piece(&target[..short]), false);
    // The same length in small pages.
    let plain = pattern(2, SINGLE_COPY_MIN);
    let is_huge = a.pages.as_ref().is_some_and(|pages| pages.hold(&piece(&plain), plain.len()));
    transfer(a, b, &piece(&plain), &piece(&target[..plain.len()]), is_huge);
    assert!(plain == target[..plain.len()]);
}
