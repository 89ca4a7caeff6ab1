//! RDMA over the stand-in for libibverbs, on every machine, and with faults that real adapters do not have on demand.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kolo_transport::rdma::{RdmaEndpoint, RdmaOptions};
use kolo_transport::{
    Armed, Backing, Channel, DeviceCopier, Endpoint, Error, ErrorKind, Event, OnMisfit, ParkBy, Piece,
    Posted, Reach, RegistrationPolicy, Sink, Token,
};
use kolo_verbs::sys;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous};

#[path = "../verbs/tests/common/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod fake;
#[path = "../verbs/tests/common/knob.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod knob;

use fake::{Count, Fake, Knob};

const LOOPBACK: i64 = 0x7f00_0001;
const ON: [Channel; 2] = [Channel { peer: 1, index: 0 }, Channel { peer: 0, index: 0 }];

fn options(fake: &Fake) -> RdmaOptions {
    fake.set(Knob::Address, LOOPBACK);
    RdmaOptions { library: Some(fake.file.clone().into()), ..RdmaOptions::default() }
}

/// Makes two connected ends.
fn ends(options: &RdmaOptions) -> [RdmaEndpoint; 2] {
    let mut ends = [0, 1].map(|rank| RdmaEndpoint::new(rank, 2, options.clone()).expect("endpoint"));
    for rank in 0..2 {
        let address = ends[1 - rank].address().to_vec();
        let reach = ends[rank].introduce(1 - rank as u32, &address).expect("introduce");
        assert!(matches!(reach, Reach::Yes { .. }), "{reach:?}");
    }
    let (mut from, mut to) = (vec![3_u8; 8], vec![0; 8]);
    transfer(&mut ends, &mut from, &mut to);
    assert_eq!(from, to);
    ends
}

fn within<R>(what: &str, mut look: impl FnMut() -> Option<R>) -> R {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}");
    }
}

/// Sends one buffer into the other, from rank 0 to rank 1.
fn transfer(ends: &mut [RdmaEndpoint; 2], from: &mut [u8], to: &mut [u8]) {
    transfer_from(0, ends, from, to);
}

/// Sends one buffer into the other, from this rank.
fn transfer_from(sender: usize, ends: &mut [RdmaEndpoint; 2], from: &mut [u8], to: &mut [u8]) {
    let receiver = 1 - sender;
    let source = [Piece { ptr: from.as_mut_ptr(), len: from.len() }];
    let target = [Piece { ptr: to.as_mut_ptr(), len: to.len() }];
    // SAFETY: both buffers outlive the loop below, which sees both tokens complete.
    let posted = unsafe {
        [
            ends[receiver]
                .post_recv(ON[receiver], 7, Sink::Place(&target), OnMisfit::Fail, Token(1))
                .expect("receive"),
            ends[sender].post_send(ON[sender], 7, &source, Token(0)).expect("send"),
        ]
    };
    let mut open = posted.iter().filter(|posted| **posted == Posted::Pending).count();
    let mut events = Vec::new();
    within("a message does not arrive", || {
        for end in ends.iter_mut() {
            end.poll(&mut events);
        }
        for event in events.drain(..) {
            assert!(matches!(event, Event::Done(_)), "{event:?}");
            open -= 1;
        }
        (open == 0).then_some(())
    });
}

/// Posts a receive at each end for which no message comes, causes an event, and returns the errors with which both
/// fail.
fn errors_after(happens: impl FnOnce(&Fake)) -> [Error; 2] {
    let fake = Fake::new();
    let mut ends = ends(&options(&fake));
    let mut memory = [vec![0_u8; 100_000], vec![0_u8; 100_000]];
    for (rank, end) in ends.iter_mut().enumerate() {
        let target = [Piece { ptr: memory[rank].as_mut_ptr(), len: memory[rank].len() }];
        // SAFETY: the buffers outlive the endpoints.
        let posted = unsafe {
            end.post_recv(ON[rank], 9, Sink::Place(&target), OnMisfit::Fail, Token(5)).expect("receive")
        };
        assert_eq!(posted, Posted::Pending);
    }
    let mut events = Vec::new();
    for end in &mut ends {
        end.poll(&mut events);
    }
    assert!(events.is_empty(), "{events:?}");
    happens(&fake);
    let mut errors = [None, None];
    within("nobody notices", || {
        for (end, error) in ends.iter_mut().zip(&mut errors) {
            end.poll(&mut events);
            for event in events.drain(..) {
                if let Event::Failed(Token(5), cause) = event {
                    error.get_or_insert(cause);
                }
            }
        }
        errors.iter().all(Option::is_some).then_some(())
    });
    drop(ends);
    assert_eq!(fake.live(), 0, "objects are left");
    errors.map(|error| error.expect("as just seen"))
}

/// Checks that the rank whose adapter failed says so, and that the other one learns that the connection was given up.
fn assert_blame([here, there]: [Error; 2], words: &[&str]) {
    assert_eq!((here.kind, here.peer), (ErrorKind::Local, Some(1)), "{here}");
    for words in words {
        assert!(here.to_string().contains(words), "no '{words}' in: {here}");
    }
    assert_eq!((there.kind, there.peer), (ErrorKind::PeerLost, Some(0)), "{there}");
}

/// Returns two endpoints that keep registrations of watched memory; `None`, with a note, where memory cannot be watched.
fn watched_ends(fake: &Fake) -> Option<[RdmaEndpoint; 2]> {
    let ends = ends(&options(fake));
    let policy = ends[0].registration_policy();
    if policy == RegistrationPolicy::Watched {
        return Some(ends);
    }
    println!("skipped: registrations are {policy}");
    None
}

/// An explicit registration promises that its own memory stays, and nothing about the rest of a buffer.
#[test]
fn the_rest_of_a_buffer_of_which_a_part_is_registered_is_let_go_when_it_changes() {
    const LEN: usize = 2 << 20;
    let fake = Fake::new();
    let Some(mut ends) = watched_ends(&fake) else { return };
    // SAFETY: the calls map new memory, which nobody else uses and which stays mapped.
    let [from, to] = [(); 2].map(|()| unsafe {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let memory = mmap_anonymous(std::ptr::null_mut(), LEN, access, MapFlags::PRIVATE).expect("memory");
        std::slice::from_raw_parts_mut(memory.cast::<u8>(), LEN)
    });
    transfer(&mut ends, from, to);
    let part = Piece { ptr: from.as_mut_ptr(), len: 100 };
    // SAFETY: the memory stays mapped.
    unsafe { ends[0].register(part, Backing::Pages).expect("registered") };
    let before = ends[0].counters().cache;
    // SAFETY: the memory is mapped, and nobody relies on its contents. As an allocator does with free memory.
    unsafe { madvise(from[LEN / 2..].as_mut_ptr().cast(), LEN / 2, Advice::LinuxDontNeed).expect("madvise") };
    from.fill(9);
    transfer(&mut ends, from, to);
    assert!(to.iter().all(|byte| *byte == 9));
    let after = ends[0].counters().cache;
    assert_eq!(after.invalidated, before.invalidated + 1, "{after:?}");
    assert!(ends[0].is_registered(part));
    ends[0].deregister(part);
}

#[test]
fn a_buffer_longer_than_all_that_is_kept_is_registered_for_its_message() {
    const LEN: usize = 2 << 20;
    let fake = Fake::new();
    let mut ends = ends(&RdmaOptions { cache_bytes: LEN, ..options(&fake) });
    let (mut from, mut to) = (vec![1_u8; LEN + 8192], vec![0_u8; LEN + 8192]);
    let idle = fake.count(Count::Registered);
    for round in 1..3 {
        from.fill(round);
        transfer(&mut ends, &mut from, &mut to);
        assert!(from == to);
        assert_eq!(ends[0].counters().cache.misses, round.into());
    }
    assert_eq!(ends[0].counters().sent_staged_bytes, 0);
    assert_eq!(fake.count(Count::Registered), idle, "it is not kept");
}

/// Pages of a file cannot be watched; the memory that comes after them at their address can.
#[test]
fn addresses_that_could_not_be_watched_are_tried_again() {
    const LEN: usize = 128 << 10;
    let fake = Fake::new();
    let Some(mut ends) = watched_ends(&fake) else { return };
    let program = std::fs::File::open(std::env::current_exe().expect("a path")).expect("a file");
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the calls map memory that nobody else uses; the second takes the place of the first.
    let map = |at: Option<*mut u8>| unsafe {
        match at {
            None => mmap(std::ptr::null_mut(), LEN, access, MapFlags::PRIVATE, &program, 0),
            Some(at) => mmap_anonymous(at.cast(), LEN, access, MapFlags::PRIVATE | MapFlags::FIXED),
        }
    };
    let at = map(None).expect("memory").cast::<u8>();
    // SAFETY: the memory is mapped, and this is the only reference to it.
    let memory = || unsafe { std::slice::from_raw_parts_mut(at, LEN) };
    let mut to = vec![0_u8; LEN];
    let mut hits_of = |rounds: u32| {
        let before = ends[0].counters().cache.hits;
        (0..rounds).for_each(|_| transfer(&mut ends, memory(), &mut to));
        ends[0].counters().cache.hits - before
    };
    if hits_of(2) > 0 {
        return println!("skipped: this file's pages can be watched");
    }
    map(Some(at)).expect("memory");
    assert!(hits_of(100) > 10);
}

/// Neither the bound on unused regions nor that on locked memory is about memory of a device. Explicit registrations
/// stay in any case.
#[test]
fn explicit_registrations_leave_the_cache_its_room() {
    #[derive(Debug)]
    struct Unneeded;
    impl DeviceCopier for Unneeded {
        unsafe fn load(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
            Err("it is not copied".into())
        }
        unsafe fn store(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
            Err("it is not copied".into())
        }
    }
    const LEN: usize = 2 << 20;
    let fake = Fake::new();
    let keep = kolo_transport::rdma::Keep::Always;
    let lockable_bytes = Some(16 << 20);
    let mut ends = ends(&RdmaOptions { keep, cache_regions: 1, lockable_bytes, ..options(&fake) });
    let (mut from, mut to) = (vec![1_u8; LEN], vec![0_u8; LEN]);
    let mut others = [vec![0_u8; 4096], vec![0_u8; 4096], vec![0_u8; 32 << 20]];
    let copier: Arc<dyn DeviceCopier> = Arc::new(Unneeded);
    for other in &mut others {
        let backing = match other.len() {
            4096 => Backing::Pages,
            _ => Backing::Device { export: None, copier: &copier },
        };
        let piece = Piece { ptr: other.as_mut_ptr(), len: other.len() };
        // SAFETY: the memory outlives the endpoints.
        unsafe { ends[0].register(piece, backing).expect("registered") };
    }
    for _ in 0..2 {
        transfer(&mut ends, &mut from, &mut to);
    }
    let counters = ends[0].counters();
    assert_eq!((counters.sent_staged_bytes, counters.cache.evicted), (0, 0), "{counters:?}");
    assert_eq!(counters.cache.misses, 4, "{counters:?}");
}

#[test]
fn of_many_ports_the_fastest_are_used() {
    const TEN_GIGABIT: i64 = 4;
    let fake = Fake::new();
    fake.set(Knob::Devices, 6);
    fake.set(Knob::FirstSpeed, TEN_GIGABIT);
    let end = RdmaEndpoint::new(0, 2, options(&fake)).expect("endpoint");
    let names = |lines: &[String]| -> Vec<String> { lines.iter().map(|line| line[..5].to_owned()).collect() };
    assert_eq!(names(&end.adapters()), ["fake1", "fake2", "fake3", "fake4"], "{:?}", end.adapters());
    assert_eq!(names(end.passed_over()), ["fake5", "fake0"], "{:?}", end.passed_over());
    assert!(end.passed_over()[1].contains("slower than half of"), "{:?}", end.passed_over());
    drop(end);
    // Listed ports are used, the fastest first.
    let listed = RdmaOptions { adapters: Some("fake0,fake1".to_owned()), ..options(&fake) };
    let end = RdmaEndpoint::new(0, 2, listed).expect("endpoint");
    assert_eq!(names(&end.adapters()), ["fake1", "fake0"]);
}

/// Copies as a GPU's driver, until it fails.
#[derive(Debug)]
struct FailsAfter(AtomicUsize);

impl DeviceCopier for FailsAfter {
    unsafe fn load(&self, from: *const u8, to: *mut u8, len: usize) -> Result<(), String> {
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_err() {
            return Err("an illegal memory access".into());
        }
        // SAFETY: the memory of these tests is the processor's.
        unsafe { from.copy_to_nonoverlapping(to, len) };
        Ok(())
    }

    unsafe fn store(&self, _: *const u8, _: *mut u8, _: usize) -> Result<(), String> {
        Err("it is not stored".into())
    }
}

/// The rest of a message of which a part has been sent never comes. Another one that is equal must not take its place.
#[test]
fn a_message_whose_copy_fails_in_the_middle_is_not_replaced_by_the_next() {
    const LEN: usize = 2 << 20;
    const RUN: usize = 8 << 10;
    let fake = Fake::new();
    let mut ends = ends(&options(&fake));
    let (mut from, mut to) = (vec![1_u8; LEN], vec![0_u8; LEN]);
    let copier: Arc<dyn DeviceCopier> = Arc::new(FailsAfter(AtomicUsize::new(LEN / RUN / 2)));
    let whole = Piece { ptr: from.as_mut_ptr(), len: LEN };
    let target = [Piece { ptr: to.as_mut_ptr(), len: LEN }];
    // Runs that are too short for an adapter to fetch, in another order than they lie.
    let runs: Vec<Piece> =
        from.chunks_mut(RUN).rev().map(|run| Piece { ptr: run.as_mut_ptr(), len: RUN }).collect();
    let mut events = [Vec::new(), Vec::new()];
    // SAFETY: the buffers outlive the endpoints.
    unsafe {
        ends[0].register(whole, Backing::Device { export: None, copier: &copier }).expect("registered");
        let posted =
            ends[1].post_recv(ON[1], 7, Sink::Place(&target), OnMisfit::Fail, Token(1)).expect("receive");
        assert_eq!(posted, Posted::Pending);
        let posted = ends[0].post_send(ON[0], 7, &runs, Token(0)).expect("send");
        assert_eq!(posted, Posted::Pending);
    }
    let mut is_sent_again = false;
    within("the receive has no end", || {
        for (end, events) in ends.iter_mut().zip(&mut events) {
            end.poll(events);
        }
        if !is_sent_again && events[0].iter().any(|event| matches!(event, Event::Failed(Token(0), _))) {
            is_sent_again = true;
            ends[0].deregister(whole);
            // SAFETY: as above.
            let _ = unsafe { ends[0].post_send(ON[0], 7, &[whole], Token(2)) };
        }
        (!events[1].is_empty()).then_some(())
    });
    let failed = events[0].iter().find_map(|event| match event {
        Event::Failed(Token(0), error) => Some(error.clone()),
        _ => None,
    });
    let failed = failed.expect("the send fails");
    assert_eq!((failed.kind, failed.peer), (ErrorKind::Local, Some(1)), "{failed}");
    assert!(failed.to_string().contains("illegal memory access"), "{failed}");
    let lost =
        |event: &Event| matches!(event, Event::Failed(Token(1), error) if error.kind == ErrorKind::PeerLost);
    assert!(events[1].iter().any(lost), "{:?}", events[1]);
    drop(ends);
}

/// Nothing would make the queue pairs again.
#[test]
fn a_peer_for_which_no_queue_pair_can_be_made_is_lost() {
    let fake = Fake::new();
    let options = options(&fake);
    let mut ends = [0, 1].map(|rank| RdmaEndpoint::new(rank, 2, options.clone()).expect("endpoint"));
    for rank in 0..2 {
        let address = ends[1 - rank].address().to_vec();
        ends[rank].introduce(1 - rank as u32, &address).expect("introduce");
    }
    fake.set(Knob::CreateQueuePairErrno, libc::ENOMEM.into());
    let mut from = vec![1_u8; 8];
    let source = [Piece { ptr: from.as_mut_ptr(), len: 8 }];
    // SAFETY: the buffer outlives the endpoints.
    let mut post = || unsafe { ends[0].post_send(ON[0], 7, &source, Token(0)) };
    let first = post().expect_err("no queue pair");
    assert!(first.to_string().contains("making queue pairs"), "{first}");
    let then = post().expect_err("it is lost");
    assert_eq!((then.kind, then.peer), (ErrorKind::PeerLost, Some(1)), "{then}");
    drop(ends);
    assert_eq!(fake.live(), 0, "objects are left");
}

/// The processor copies inline bytes, but may be unable to read the caller's memory, such as a GPU's. The last request
/// of a message may be as short as its header.
#[test]
fn the_callers_memory_is_never_read_by_the_processor() {
    const REQUEST: usize = 512 << 10;
    let fake = Fake::new();
    let keep = kolo_transport::rdma::Keep::Always;
    let mut ends = ends(&RdmaOptions { keep, ..options(&fake) });
    let (mut from, mut to) = (vec![1_u8; REQUEST + 64], vec![0_u8; REQUEST + 64]);
    let mut inline = |len: usize| {
        let before = fake.count(Count::Inline);
        transfer(&mut ends, &mut from[..len], &mut to[..len]);
        fake.count(Count::Inline) - before
    };
    assert_eq!([REQUEST, REQUEST + 64].map(&mut inline), [1; 2], "only the grant is inline");
    assert_eq!(ends[0].counters().sent_in_place_bytes, 2 * REQUEST as u64 + 64);
}

/// As if a program sent from read-only memory, made it writable, and received there.
#[test]
fn memory_registered_for_sending_is_not_granted_for_receiving() {
    const LEN: usize = 2 << 20;
    let fake = Fake::new();
    let keep = kolo_transport::rdma::Keep::Always;
    let mut ends = ends(&RdmaOptions { keep, ..options(&fake) });
    let (mut other, mut table, mut target) = (vec![1_u8; LEN], vec![2_u8; LEN], vec![0_u8; LEN]);
    // The target is registered before.
    transfer(&mut ends, &mut other, &mut target);
    fake.set(Knob::WritableErrno, libc::EFAULT.into());
    transfer(&mut ends, &mut table, &mut target);
    fake.set(Knob::WritableErrno, 0);
    assert!(target.iter().all(|byte| *byte == 2));
    target.fill(3);
    transfer_from(1, &mut ends, &mut target, &mut table);
    assert!(table.iter().all(|byte| *byte == 3));
}

#[test]
fn a_queue_pair_that_dies_without_a_request_that_failed_is_a_loss() {
    for place in [0, 1] {
        let errors = errors_after(|fake| fake.set(Knob::FailPair, place));
        let words = ["rank 0's queue pair", "fake0 127.0.0.1", "out of service", "the adapter or its driver"];
        assert_blame(errors, &words);
    }
}

/// The message lies behind the failure in the completion queue: the long message's queue pair fails, and then a short
/// message comes over the other one.
#[test]
fn a_message_that_arrived_before_the_loss_was_noticed_is_delivered() {
    const RETRIES_EXCEEDED: i64 = 12;
    let fake = Fake::new();
    let mut ends = ends(&options(&fake));
    let (mut long, mut place) = (vec![5_u8; 100_000], vec![0_u8; 100_000]);
    let (mut short, mut got) = ([7_u8; 8], [0_u8; 8]);
    let piece = |bytes: &mut [u8]| [Piece { ptr: bytes.as_mut_ptr(), len: bytes.len() }];
    let [long, place, short, target] =
        [piece(&mut long), piece(&mut place), piece(&mut short), piece(&mut got)];
    // SAFETY: the buffers outlive the endpoints.
    let pending = unsafe {
        [
            ends[1].post_recv(ON[1], 7, Sink::Place(&place), OnMisfit::Fail, Token(1)).expect("receive"),
            ends[0].post_send(ON[0], 7, &long, Token(2)).expect("send"),
            ends[0].post_recv(ON[0], 9, Sink::Place(&target), OnMisfit::Fail, Token(3)).expect("receive"),
        ]
    };
    assert_eq!(pending, [Posted::Pending; 3]);
    fake.set(Knob::NextStatus, RETRIES_EXCEEDED);
    let mut events = Vec::new();
    // This poll hears of the grant and posts the request, which fails.
    ends[0].poll(&mut events);
    assert!(events.is_empty(), "{events:?}");
    // SAFETY: as above.
    let posted = unsafe { ends[1].post_send(ON[1], 9, &short, Token(4)).expect("send") };
    assert_eq!(posted, Posted::Done);
    ends[0].poll(&mut events);
    assert!(events.iter().any(|event| matches!(event, Event::Done(Token(3)))), "{events:?}");
    assert!(events.iter().any(|event| matches!(event, Event::Failed(Token(2), _))), "{events:?}");
    assert_eq!(got, [7; 8]);
}

#[test]
fn events_of_a_queue_pair_are_a_loss_that_names_the_adapter() {
    for (event, words) in [
        (sys::IBV_EVENT_QP_FATAL, "taken out of service by the adapter"),
        (sys::IBV_EVENT_QP_ACCESS_ERR, "may not touch"),
        (sys::IBV_EVENT_QP_REQ_ERR, "an invalid request from the peer"),
    ] {
        let errors = errors_after(|fake| fake.set(Knob::AsyncEvent, event.into()));
        assert_blame(errors, &["rank 0's adapter fake0", "queue pair", words]);
    }
}

#[test]
fn an_event_says_more_than_what_was_flushed() {
    let errors = errors_after(|fake| {
        fake.set(Knob::AsyncEvent, sys::IBV_EVENT_QP_FATAL.into());
        fake.set(Knob::FailPair, 0);
    });
    assert_blame(
        errors,
        &["rank 0's adapter fake0 is out of service", "taken out of service by the adapter"],
    );
}

#[test]
fn a_device_that_fails_is_named_at_its_own_rank() {
    let errors = errors_after(|fake| fake.set(Knob::AsyncEvent, sys::IBV_EVENT_DEVICE_FATAL.into()));
    for (rank, error) in errors.iter().enumerate() {
        assert_eq!((error.kind, error.peer), (ErrorKind::Local, Some(1 - rank as u32)), "{error}");
        let words = format!("rank {rank}'s adapter fake0 failed: it was removed, or reset");
        assert!(error.to_string().contains(&words), "{error}");
    }
    let errors = errors_after(|fake| fake.set(Knob::AsyncEvent, sys::IBV_EVENT_CQ_ERR.into()));
    assert!(errors.iter().any(|error| error.to_string().contains("completion queue failed")), "{errors:?}");
}

#[test]
fn a_port_that_goes_down_is_a_warning_and_wakes_who_sleeps() {
    let fake = Fake::new();
    let mut ends = ends(&options(&fake));
    let mut memory = vec![0_u8; 100];
    let target = [Piece { ptr: memory.as_mut_ptr(), len: 100 }];
    // SAFETY: the buffer outlives the endpoints.
    let posted = unsafe {
        ends[0].post_recv(ON[0], 9, Sink::Place(&target), OnMisfit::Fail, Token(5)).expect("receive")
    };
    assert_eq!(posted, Posted::Pending);
    let mut events = Vec::new();
    for (event, words) in
        [(sys::IBV_EVENT_PORT_ERR, "went down"), (sys::IBV_EVENT_PORT_ACTIVE, "is up again")]
    {
        let Armed::Fd(fd) = ends[0].arm(ParkBy::Fd) else { panic!("nothing to sleep on") };
        fake.set(Knob::AsyncEvent, event.into());
        let limit = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
        let mut fds = [rustix::event::PollFd::new(&fd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&limit)), Ok(1), "it sleeps on");
        ends[0].disarm();
        within("nobody warns", || {
            ends[0].poll(&mut events);
            let told = events.drain(..).next()?;
            let Event::Warning(text) = told else { panic!("{told:?}") };
            assert!(text.contains("rank 0's adapter fake0 port 1") && text.contains(words), "{text}");
            Some(())
        });
    }
}

/// Scarce resources are estimated beforehand: pairs of ranks that exceed the memory which either end may lock use
/// another transport, with the reason, and both ends decide alike.
#[test]
fn peers_beyond_what_may_be_locked_go_another_way() {
    let fake = Fake::new();
    let bounded = RdmaOptions { lockable_bytes: Some(5 << 20), ..options(&fake) };
    let mut ends: Vec<RdmaEndpoint> = [bounded, options(&fake), options(&fake)]
        .into_iter()
        .enumerate()
        .map(|(rank, options)| RdmaEndpoint::new(rank as u32, 3, options).expect("endpoint"))
        .collect();
    let mut reach = |from: usize, to: usize| {
        let address = ends[to].address().to_vec();
        ends[from].introduce(to as u32, &address).expect("introduce")
    };
    assert!(matches!(reach(0, 1), Reach::Yes { .. }), "enough for two");
    let fewer = RdmaOptions { lockable_bytes: Some(3 << 20), ..options(&fake) };
    ends[0] = RdmaEndpoint::new(0, 3, fewer).expect("endpoint");
    let mut reach = |from: usize, to: usize| {
        let address = ends[to].address().to_vec();
        ends[from].introduce(to as u32, &address).expect("introduce")
    };
    for (from, to) in [(0, 1), (1, 0), (0, 2), (2, 0)] {
        let Reach::No { because } = reach(from, to) else { panic!("{from} to {to}") };
        let words = ["the memory that rank 0 may lock is enough for 1 of 2 peers", "ulimit -l unlimited"];
        assert!(words.iter().all(|words| because.contains(words)), "{from} to {to}: {because}");
    }
    assert!(matches!(reach(1, 2), Reach::Yes { .. }), "they may lock what they like");
}

/// If memory that may be locked runs out nevertheless, the error names this rank's limit, and no peer counts as lost.
#[test]
fn locked_memory_that_runs_out_is_not_the_neighbours_fault() {
    let fake = Fake::new();
    let mut ends = ends(&options(&fake));
    // Long messages need no more memory than they have: buffers are not registered, and the staging is short.
    fake.set(Knob::Lockable, fake.count(Count::Registered) + (200 << 10));
    let (mut from, mut to) = (vec![5_u8; 3 << 20], vec![0_u8; 3 << 20]);
    transfer(&mut ends, &mut from, &mut to);
    assert!(from == to);
    let counters = ends[0].counters();
    assert_eq!((counters.sent_in_place_bytes, counters.sent_staged_bytes), (0, 3 << 20));
    // Another channel needs a block of its own.
    fake.set(Knob::Lockable, fake.count(Count::Registered));
    let source = [Piece { ptr: from.as_mut_ptr(), len: 8 }];
    let on = Channel { peer: 1, index: 3 };
    // SAFETY: the buffer outlives the endpoints.
    let posted = unsafe { ends[0].post_send(on, 7, &source, Token(4)) }.expect("posted");
    assert_eq!(posted, Posted::Pending);
    let mut events = Vec::new();
    let error = within("nobody says so", || {
        ends[0].poll(&mut events);
        events.drain(..).find_map(|event| match event {
            Event::Failed(Token(4), error) => Some(error),
            _ => None,
        })
    });
    assert_eq!(error.kind, ErrorKind::Local, "{error}");
    for words in
        ["rank 0 may not lock any more memory, but needs 13", "rank 1 is healthy", "ulimit -l unlimited"]
    {
        assert!(error.to_string().contains(words), "no '{words}' in: {error}");
    }
}
