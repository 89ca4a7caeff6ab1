//! How the ranks of a host meet, and one that ends before they have.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use super::super::address::Address;
use super::super::establish::LOOK_FOR_THE_GONE;
use super::*;
use crate::sys::unix;

#[test]
fn a_leader_notices_that_a_member_is_gone() {
    let mut world = introduced(3, &ShmOptions::default());
    let third = world.pop().expect("three");
    std::thread::scope(|scope| {
        let mut members = world.iter_mut();
        let leader = members.next().expect("three");
        let second = members.next().expect("three");
        let waits = scope.spawn(|| second.establish(&|| false, deadline()).expect_err("the leader gives up"));
        drop(third);
        let began = Instant::now();
        let error = leader.establish(&|| false, deadline()).expect_err("the third is gone");
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(2)), "{error}");
        let error = waits.join().expect("no panic");
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(0)), "{error}");
        assert!(began.elapsed() < PATIENCE / 4, "{:?}", began.elapsed());
    });
}

/// The third is stopped. A member that has the arena must not blame the leader for it.
#[test]
fn only_the_leader_says_who_has_not_come() {
    let mut world = introduced(3, &ShmOptions::default());
    std::thread::scope(|scope| {
        let mut members = world.iter_mut();
        let [leader, second] = std::array::from_fn(|_| members.next().expect("three"));
        let soon = Instant::now() + Duration::from_millis(500);
        let waits =
            scope.spawn(move || second.establish(&|| false, soon).expect_err("the third does not come"));
        let error = leader
            .establish(&|| false, soon + Duration::from_millis(50))
            .expect_err("the third does not come");
        assert_eq!((error.kind, error.peer), (ErrorKind::Timeout, Some(2)), "{error}");
        let error = waits.join().expect("no panic");
        assert_eq!(error.kind, ErrorKind::PeerLost, "the leader has given up, with a reason: {error}");
    });
}

/// A rank that ended once it had the arena would pass for one on another host with those that had not met it.
#[test]
fn no_rank_goes_on_before_all_have_met() {
    let mut world = introduced(3, &ShmOptions::default());
    let (third_came, is_on) = (AtomicBool::new(false), mpsc::channel());
    std::thread::scope(|scope| {
        let mut members = world.iter_mut();
        let [leader, second, third] = std::array::from_fn(|_| members.next().expect("three"));
        scope.spawn(|| leader.establish(&|| false, deadline()).expect("all come"));
        let (goes_on, third_came) = (is_on.0, &third_came);
        scope.spawn(move || {
            second.establish(&|| false, deadline()).expect("all come");
            assert!(third_came.load(Ordering::SeqCst), "a rank goes on without the third");
            let _ = goes_on.send(());
        });
        // A second that does not wait has its arena well before.
        let early = is_on.1.recv_timeout(2 * LOOK_FOR_THE_GONE);
        assert_eq!(early, Err(mpsc::RecvTimeoutError::Timeout));
        third_came.store(true, Ordering::SeqCst);
        third.establish(&|| false, deadline()).expect("all are there");
    });
}

/// A connection that is closed with unread bytes is reset instead of ended.
#[test]
fn a_leader_that_ends_with_the_question_unread_is_named() {
    let mut world = introduced(2, &ShmOptions::default());
    let mut follower = world.pop().expect("two");
    let leader = world.pop().expect("two");
    std::thread::scope(|scope| {
        let asks =
            scope.spawn(move || follower.establish(&|| false, deadline()).expect_err("the leader is gone"));
        // The request lies in the leader's backlog.
        until("the question", || unix::is_readable(&leader.epoll));
        drop(leader);
        let error = asks.join().expect("no panic");
        assert_eq!((error.kind, error.peer), (ErrorKind::PeerLost, Some(0)), "{error}");
    });
}

/// A virtual machine that was restored from the same snapshot has the same boot ID, and processes with the same ids.
#[test]
fn a_peer_whose_socket_is_not_here_is_on_another_host() {
    let open = |rank| ShmEndpoint::new(rank, 3, ShmOptions::default()).expect("endpoint");
    let (mut here, beside, there) = (open(0), open(1), open(2));
    let mut address = Address::decode(there.address()).expect("its own");
    address.process += 1;
    drop(there);
    let reach = here.introduce(1, beside.address()).expect("a good address");
    assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
    let reach = here.introduce(2, &address.encode()).expect("a good address");
    let Reach::No { because } = reach else { panic!("{reach:?}") };
    assert!(because.contains("different host"), "{because}");
}

/// A real-time program locks its memory, and has the kernel back what it maps from then on.
#[test]
fn memory_stays_sparse_where_all_is_locked() {
    const UNLOCKED: i32 = 2;
    // SAFETY: the C library permits allocation and threads in a child, which ends below, or by its alarm.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "cannot fork");
    if child == 0 {
        // SAFETY: the calls take no pointers.
        unsafe {
            libc::alarm(100);
            if libc::mlockall(libc::MCL_FUTURE) != 0 {
                libc::_exit(UNLOCKED);
            }
        }
        let shared_kib = std::panic::catch_unwind(|| {
            let _ends = pair();
            let status = std::fs::read_to_string("/proc/self/status").expect("a status");
            let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).expect("a line");
            line.trim_end_matches("kB").trim().parse::<u64>().expect("a number")
        });
        let is_sparse = shared_kib.is_ok_and(|kib| kib < 50 << 10);
        // SAFETY: this ends the process.
        unsafe { libc::_exit(i32::from(!is_sparse)) }
    }
    let mut status = 0;
    // SAFETY: this waits for the child that was just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    match libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status)) {
        Some(UNLOCKED) => println!("skipped: this process may not lock memory"),
        outcome => assert_eq!(outcome, Some(0), "shared memory is not sparse"),
    }
}
