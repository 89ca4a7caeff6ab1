//! Peers that leave, in good order or not, and strangers.

use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;

use super::*;
use crate::shm::address::Address;
use crate::sys::unix;

fn aborted() -> Error {
    Error::new(ErrorKind::Aborted, "shm", None, "test")
}

#[test]
fn a_peer_dropped_in_the_middle_of_a_message_is_lost() {
    let (mut a, mut b) = pair();
    let source = pattern(1, 1 << 20);
    let target = vec![0u8; 1 << 20];
    let (from, to) = (piece(&source), piece(&target));
    let _ = send(&mut a, channel(1, 0), 7, &from, 1).expect("post");
    let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    let _ = receive(&mut b, channel(0, 1), 7, &to[..0], 3).expect("post");
    let mut events = [Vec::new()];
    assert!(!is_done(&events[0], 2));
    drop(a);
    pump(&mut [&mut b], &mut events, |e| !downs(&e[0]).is_empty());
    assert_eq!(failure(&events[0], 2), Some(ErrorKind::PeerLost));
    assert_eq!(failure(&events[0], 3), Some(ErrorKind::PeerLost));
    assert_eq!(downs(&events[0]), [0]);
    assert!(matches!(events[0].last(), Some(Event::Down { .. })), "after the failures");
    let kind = |r: Result<Posted, Error>| r.map(|_| ()).expect_err("refused").kind;
    assert_eq!(kind(send(&mut b, channel(0, 0), 7, &to, 4)), ErrorKind::PeerLost);
    assert_eq!(kind(receive(&mut b, channel(0, 5), 7, &to, 5)), ErrorKind::PeerLost);
    assert!(b.is_flushed());
}

#[test]
fn the_memory_of_a_lost_peer_is_unmapped() {
    let (mut a, mut b) = pair();
    let bytes = pattern(1, 5000);
    let memory = piece(&bytes);
    let mut events = [Vec::new(), Vec::new()];
    let _ = send(&mut a, channel(1, 0), 7, &memory, 1).expect("post");
    let _ = send(&mut b, channel(0, 0), 7, &memory, 1).expect("post");
    let targets = [vec![0; 5000], vec![0; 5000]];
    let [at_b, at_a] = [piece(&targets[0]), piece(&targets[1])];
    let to_b = receive(&mut b, channel(0, 0), 7, &at_b, 2).expect("post");
    let to_a = receive(&mut a, channel(1, 0), 7, &at_a, 2).expect("post");
    pump(&mut [&mut a, &mut b], &mut events, |e| {
        (to_a == Posted::Done || is_done(&e[0], 2)) && (to_b == Posted::Done || is_done(&e[1], 2))
    });
    let inward = b.peers[0].inward.as_ref().expect("linked").segment.mapping();
    let outward = b.peers[0].outward.as_ref().expect("linked").segment.mapping();
    let [inward, outward] = [inward, outward].map(Arc::downgrade);
    let _ = receive(&mut b, channel(0, 1), 7, &[], 3).expect("post");
    drop(a);
    pump(&mut [&mut b], &mut events[1..], |e| !downs(&e[0]).is_empty());
    assert!(inward.upgrade().is_none() && outward.upgrade().is_none());
}

#[test]
fn a_send_to_a_peer_that_leaves_fails() {
    let (mut a, mut b) = pair();
    let source = pattern(1, 1 << 20);
    let from = piece(&source);
    let _ = send(&mut a, channel(1, 0), 7, &from, 1).expect("post");
    let mut events = [Vec::new(), Vec::new()];
    pump(&mut [&mut a, &mut b], &mut events, |_| true);
    drop(b);
    pump(&mut [&mut a], &mut events, |e| !downs(&e[0]).is_empty());
    assert_eq!(failure(&events[0], 1), Some(ErrorKind::PeerLost));
}

#[test]
fn what_was_done_before_leaving_still_arrives() {
    for len in [0, 8, 100_000] {
        let (mut a, mut b) = pair();
        let source = pattern(1, len);
        let target = vec![0u8; len];
        let (from, to) = (piece(&source), piece(&target));
        let mut events = [Vec::new()];
        // The peer has not looked at its sockets by the time this end goes away.
        assert_eq!(send(&mut a, channel(1, 0), 7, &from, 1).expect("post"), Posted::Done);
        assert_eq!(send(&mut a, channel(1, 9), 7, &from, 1).expect("post"), Posted::Done);
        assert!(a.is_flushed());
        drop(a);
        let got = receive(&mut b, channel(0, 0), 7, &to, 2).expect("still there");
        pump(&mut [&mut b], &mut events, |e| got == Posted::Done || is_done(&e[0], 2));
        assert!(source == target);
        for _ in 0..10 {
            b.poll(&mut events[0]);
        }
        let got = receive(&mut b, channel(0, 9), 7, &to, 3).expect("still there");
        pump(&mut [&mut b], &mut events, |e| got == Posted::Done || is_done(&e[0], 3));
        // Now no message is left.
        let posted = receive(&mut b, channel(0, 0), 7, &to, 4);
        assert!(
            posted.is_err() || {
                pump(&mut [&mut b], &mut events, |e| !downs(&e[0]).is_empty());
                failure(&events[0], 4) == Some(ErrorKind::PeerLost)
            }
        );
    }
}

#[test]
fn a_receiver_notices_a_peer_that_never_sent_anything() {
    let (a, mut b) = pair();
    let target = [0u8; 8];
    let to = piece(&target);
    let mut events = [Vec::new()];
    let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [&mut b], &mut events, |_| true);
    drop(a);
    pump(&mut [&mut b], &mut events, |e| !downs(&e[0]).is_empty());
    assert_eq!(failure(&events[0], 2), Some(ErrorKind::PeerLost));
}

#[test]
fn abandoning_a_peer_leaves_the_others_alone() {
    let mut world = world(3);
    let target = vec![0u8; 1000];
    let source = pattern(1, 1000);
    let (from, to) = (piece(&source), piece(&target));
    let mut events = [const { Vec::new() }; 3];
    let _ = receive(&mut world[0], channel(1, 0), 7, &to, 1).expect("post");
    let _ = receive(&mut world[0], channel(2, 0), 7, &to, 2).expect("post");
    let _ = receive(&mut world[1], channel(0, 0), 7, &[], 3).expect("post");
    pump(&mut world.iter_mut().collect::<Vec<_>>(), &mut events, |_| true);
    world[0].abandon(1, &aborted(), &mut events[0]);
    assert_eq!(failure(&events[0], 1), Some(ErrorKind::Aborted));
    let _ = send(&mut world[2], channel(0, 0), 7, &from, 4).expect("post");
    pump(&mut world.iter_mut().collect::<Vec<_>>(), &mut events, |e| {
        is_done(&e[0], 2) && !downs(&e[1]).is_empty()
    });
    assert!(source == target);
    assert_eq!(failure(&events[1], 3), Some(ErrorKind::PeerLost));
    let refused = send(&mut world[0], channel(1, 0), 7, &from, 5).map(|_| ()).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Aborted);
}

#[test]
fn abort_fails_everything_and_tells_the_peers() {
    let mut world = world(3);
    let source = pattern(1, 1 << 20);
    let from = piece(&source);
    let mut events = [const { Vec::new() }; 3];
    let _ = send(&mut world[0], channel(1, 0), 7, &from, 1).expect("post");
    let _ = receive(&mut world[0], channel(2, 0), 7, &[], 2).expect("post");
    let _ = receive(&mut world[2], channel(0, 0), 7, &[], 3).expect("post");
    pump(&mut world.iter_mut().collect::<Vec<_>>(), &mut events, |_| true);
    world[0].abort(&aborted(), &mut events[0]);
    assert_eq!(failure(&events[0], 1), Some(ErrorKind::Aborted));
    assert_eq!(failure(&events[0], 2), Some(ErrorKind::Aborted));
    pump(&mut world.iter_mut().collect::<Vec<_>>(), &mut events, |e| !downs(&e[2]).is_empty());
    assert_eq!(failure(&events[2], 3), Some(ErrorKind::PeerLost));
    let refused = receive(&mut world[0], channel(2, 0), 7, &[], 4).map(|_| ()).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::Aborted);
}

fn stranger(endpoint: &ShmEndpoint) -> UnixStream {
    let address = Address::decode(endpoint.address()).expect("own address");
    let name = SocketAddr::from_abstract_name(address.name).expect("name");
    UnixStream::connect_addr(&name).expect("connect")
}

#[test]
fn strangers_stall_neither_establish_nor_traffic() {
    let mut world = introduced(2, &ShmOptions::default());
    let mut strangers: Vec<_> = (0..200).map(|i| stranger(&world[i % 2])).collect();
    for (i, stranger) in strangers.iter_mut().enumerate() {
        // Some strangers stay silent, some send garbage, some stop in the middle of a plausible greeting.
        let words: &[u8] = match i % 4 {
            0 => &[],
            1 => &[0xff; 500],
            2 => b"kolo\x01\0\0\0",
            _ => {
                b"kolo\x01\0\0\0\x03\0\0\0\x01\0\0\0\x40\0\0\0\0\0\x02\0\
                   ................................................"
            }
        };
        stranger.write_all(words).expect("write");
    }
    std::thread::scope(|scope| {
        for endpoint in &mut world {
            scope.spawn(|| endpoint.establish(&|| false, deadline()).expect("establish"));
        }
    });
    let [a, b] = &mut world[..] else { unreachable!() };
    let source = pattern(1, 300_000);
    let target = vec![0u8; source.len()];
    let (from, to) = (piece(&source), piece(&target));
    let mut events = [Vec::new(), Vec::new()];
    let _ = send(a, channel(1, 0), 7, &from, 1).expect("post");
    let _ = receive(b, channel(0, 0), 7, &to, 2).expect("post");
    pump(&mut [a, b], &mut events, |e| is_done(&e[0], 1) && is_done(&e[1], 2));
    assert!(source == target);
    // The stranger that sent the form of a segment's greeting without its cookies has been disconnected.
    let mut end = [0u8; 1];
    strangers[3].set_read_timeout(Some(PATIENCE)).expect("timeout");
    until("the door", || {
        b.poll(&mut events[1]);
        b.look_soon = true;
        strangers[3].set_nonblocking(true).expect("nonblocking");
        !matches!(strangers[3].read(&mut end), Err(e) if e.kind() == std::io::ErrorKind::WouldBlock)
    });
}

#[test]
fn establish_names_who_is_missing() {
    let mut world = introduced(3, &ShmOptions::default());
    let soon = || Instant::now() + Duration::from_millis(50);
    let error = world[0].establish(&|| false, soon()).expect_err("nobody came");
    assert_eq!(error.kind, ErrorKind::Timeout);
    assert!(error.detail.contains("[1, 2]"), "{error}");
    let mut world = introduced(2, &ShmOptions::default());
    let error = world[1].establish(&|| false, soon()).expect_err("nobody answered");
    assert_eq!(error.kind, ErrorKind::Timeout);
    drop(world.remove(0));
    let error = world[0].establish(&|| false, soon()).expect_err("nobody there");
    assert_eq!(error.kind, ErrorKind::PeerLost);
}

#[test]
fn a_watched_peer_is_missed_without_any_message() {
    let (mut a, mut b) = pair();
    a.look_for(1).expect("linked");
    let mut events = [Vec::new(), Vec::new()];
    pump(&mut [&mut a, &mut b], &mut events, |_| true);
    assert!(events[0].is_empty());
    // The streams close without a goodbye, as after a crash.
    b.abort(&aborted(), &mut events[1]);
    pump(&mut [&mut a], &mut events[..1], |e| downs(&e[0]) == [1]);
    assert_eq!(a.look_for(1).expect_err("it is gone").kind, ErrorKind::PeerLost);
}

#[test]
fn a_good_bye_without_any_token_is_no_loss() {
    let (mut a, mut b) = pair();
    a.look_for(1).expect("linked");
    let mut events = [Vec::new(), Vec::new()];
    pump(&mut [&mut a, &mut b], &mut events, |_| true);
    drop(b);
    let gone = a.look_for(1).expect_err("it has left");
    assert_eq!(gone.kind, ErrorKind::PeerLost);
    for _ in 0..20_000 {
        a.poll(&mut events[0]);
    }
    assert!(events[0].is_empty(), "{:?}", events[0]);
    let refused = send(&mut a, channel(1, 0), 7, &[], 1).map(|_| ()).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::PeerLost);
    pump(&mut [&mut a], &mut events[..1], |e| downs(&e[0]) == [1]);
}

/// A daemon joins as root, and then gives its rights up.
#[test]
fn a_rank_that_drops_its_privileges_stays_a_peer() {
    const NOBODY: libc::uid_t = 65534;
    let (mut a, mut b) = pair();
    let (sent, received) = (pattern(1, 300_000), vec![0_u8; 300_000]);
    let to = piece(&received);
    let mut events = [Vec::new(), Vec::new()];
    let _ = receive(&mut b, channel(0, 0), 7, &to, 2).expect("post");
    let sending = std::thread::scope(|scope| {
        let as_nobody = scope.spawn(|| {
            // SAFETY: the call takes no pointer. Unlike that of the C library, it changes the calling thread only.
            let changed = unsafe { libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) } == 0;
            // The link is made on first use. The message may outlive this thread.
            let from = Box::leak(Box::new(piece(&sent)));
            changed.then(|| send(&mut a, channel(1, 0), 7, from, 1).map(|_| ()))
        });
        as_nobody.join().expect("no panic")
    });
    // SAFETY: the call takes no pointer. The change of user has made this process's memory unreadable for others.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 1) };
    let Some(sending) = sending else {
        println!("skipped: this process cannot change its user");
        return;
    };
    sending.expect("post");
    pump(&mut [&mut a, &mut b], &mut events, |e| !e[1].is_empty());
    assert!(is_done(&events[1], 2) && received == sent, "{:?}", events[1]);
}

/// The peer has ended, and another user listens at its name.
#[test]
fn another_user_gets_no_memory() {
    let (mut a, mut b) = pair();
    a.peers[0].address.uid += 1;
    let sent = pattern(1, 1000);
    let refused = send(&mut a, channel(1, 0), 7, &piece(&sent), 1).map(|_| ()).expect_err("refused");
    assert_eq!(refused.kind, ErrorKind::PeerLost);
    b.poll(&mut Vec::new());
    assert!(b.peers[0].inward.is_none(), "nothing was delivered");
}

/// The owner of an endpoint may leave Kolo for long once its message is done.
#[test]
fn a_message_is_not_done_before_the_peer_has_the_memory_that_holds_it() {
    let (mut a, mut b) = pair();
    // Connections lie in the backlog even when their other ends are closed.
    while unix::connect(&b.identity.name).is_ok() {}
    let sent = pattern(1, 1000);
    let (from, empty) = (piece(&sent), piece(&[]));
    assert_eq!(send(&mut a, channel(1, 0), 7, &from, 1).expect("posts"), Posted::Pending);
    assert_eq!(send(&mut a, channel(1, 1), 8, &empty, 2).expect("posts"), Posted::Pending);
    assert!(!a.is_flushed());
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    assert!(!a.poll(&mut of_a) && of_a.is_empty(), "{of_a:?}");

    b.poll(&mut of_b);
    a.poll(&mut of_a);
    assert!(is_done(&of_a, 1) && is_done(&of_a, 2) && a.is_flushed(), "{of_a:?}");
    let received = vec![0; sent.len()];
    let into = piece(&received);
    if receive(&mut b, channel(0, 0), 7, &into, 3).expect("posts") == Posted::Pending {
        pump(&mut [&mut b], &mut [of_b], |events| is_done(&events[0], 3));
    }
    assert!(received == sent);
}
