//! Tests of loading, states, posting, polling and error texts over a stand-in for libibverbs, on every machine.

mod common;

use common::ends::{self, connected};
use common::fake::{Count, Fake, Knob};
use kolo_verbs::*;

fn open(fake: &Fake) -> Context {
    fake.load().unwrap().devices().unwrap().find("fake0").unwrap().open().unwrap()
}

fn trouble(fake: &Fake) -> String {
    match probe_library(&fake.load().unwrap()) {
        Probe::Absent(absence @ Absence::NoUsableDevice { .. }) => format!("{absence}; {}", absence.remedy()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_missing_library_says_what_was_tried() {
    let absence = Library::open_file("/nowhere/libibverbs.so.1".as_ref()).unwrap_err();
    assert!(matches!(absence, Absence::NoLibrary { .. }));
    assert!(absence.to_string().contains("/nowhere/libibverbs.so.1 cannot be loaded"), "{absence}");
    assert!(absence.remedy().contains(LIBRARY_VARIABLE));
}

#[test]
fn every_required_function_is_required() {
    for symbol in sys::REQUIRED_SYMBOLS {
        match Fake::without(&[symbol]).load() {
            Err(Absence::MissingSymbol { symbol: missing, .. }) => assert_eq!(missing, *symbol),
            other => panic!("without {symbol}: {other:?}"),
        }
    }
}

#[test]
fn optional_functions_are_optional() {
    let names = [
        "ibv_reg_mr_iova2",
        "_ibv_query_gid_ex",
        "ibv_reg_dmabuf_mr",
        "ibv_fork_init",
        "ibv_is_fork_initialized",
    ];
    let fake = Fake::without(&names);
    let library = fake.load().unwrap();
    assert!(library.symbols().optional().iter().all(|(_, found)| !found));
    let context = open(&fake);
    ends::exercise(&context);
    let domain = context.protection_domain().unwrap();
    assert_eq!(domain.dma_buf_support(), DmaBufSupport::NotInLibrary);
    let wanted = Access::LOCAL_WRITE | Access::RELAXED_ORDERING;
    assert_eq!(domain.allocate(64, wanted).unwrap().region().access(), Access::LOCAL_WRITE);
    assert_eq!(library.fork_safety(), ForkSafety::NotOffered);
    assert!(library.fork_safety().to_string().contains("not safe on kernels before 5.12"));

    let context = open(&Fake::new());
    let domain = context.protection_domain().unwrap();
    assert_eq!(domain.dma_buf_support(), DmaBufSupport::Yes);
    assert_eq!(domain.allocate(64, wanted).unwrap().region().access(), wanted);
}

#[test]
fn the_three_absences_differ() {
    let fake = Fake::new();
    fake.set(Knob::ListErrno, libc::ENOSYS.into());
    assert!(matches!(fake.load().unwrap().devices(), Err(Absence::NoKernelSupport)));
    fake.set(Knob::ListErrno, libc::EPERM.into());
    assert!(matches!(fake.load().unwrap().devices(), Err(Absence::NoList { errno: libc::EPERM })));
    fake.set(Knob::ListErrno, 0);
    fake.set(Knob::Devices, 0);
    assert!(matches!(fake.load().unwrap().devices(), Err(Absence::NoDevice { .. })));
    assert_eq!(fake.live(), 0);
}

#[test]
fn the_probe_goes_to_the_end_and_leaves_nothing() {
    let fake = Fake::new();
    fake.set(Knob::Devices, 2);
    let Probe::Ready(devices) = probe_library(&fake.load().unwrap()) else { panic!("not ready") };
    assert_eq!(devices.iter().map(|device| device.name.as_str()).collect::<Vec<_>>(), ["fake0", "fake1"]);
    assert_eq!(devices[0].node_guid, 0x0123_4567_89ab_cdef);
    let path = devices[0].ports[0].path().unwrap();
    assert_eq!((path.gid_index, path.global, path.mtu), (1, true, Mtu::Bytes1024));
    assert_eq!(devices[0].ports[0].port.rate_mbps, Some(100_000));
    assert_eq!(devices[0].ports[0].gids[1].gid.to_string(), "192.0.2.1");
    assert_eq!(devices[0].ports[0].gids[1].netdev.as_deref(), Some("lo"));
    assert_eq!(fake.live(), 0);

    fake.set(Knob::CreateQueuePairErrno, libc::EPERM.into());
    assert!(trouble(&fake).contains("ibv_create_qp"));
    assert_eq!(fake.live(), 0);
}

#[test]
fn unusable_devices_say_why() {
    for (knob, value, words) in [
        (Knob::PortState, 1, "port 1 down"),
        (Knob::PortState, 2, "subnet manager"),
        (Knob::Gids, 0, "no GID"),
        (Knob::Transport, 1, "iWARP"),
        (Knob::OpenErrno, libc::EACCES.into(), "/dev/infiniband"),
        (Knob::RegisterErrno, libc::EFAULT.into(), "not mapped"),
    ] {
        let fake = Fake::new();
        fake.set(knob, value);
        let said = trouble(&fake);
        assert!(said.contains(words), "{knob:?} = {value}: {said}");
        assert_eq!(fake.live(), 0, "{knob:?}");
    }
}

#[test]
fn transfers_arrive() {
    let fake = Fake::new();
    ends::exercise(&open(&fake));
    assert_eq!(fake.live(), 0);
}

#[test]
fn waiting_refusal_and_giving_up() {
    let fake = Fake::new();
    let context = open(&fake);
    ends::wakes(&context);
    ends::refused_access(&context);
    ends::gives_up(&context);
}

#[test]
fn a_send_waits_for_its_receive() {
    let (one, two) = connected(&open(&Fake::new()), None);
    one.post(1, Operation::Send, &[one.local(0, 64)]);
    assert_eq!(one.queue.poll(&mut [Completion::default()]), Ok(0));
    two.post_receive(2, &[two.local(0, 64)]);
    assert_eq!((one.completion().id(), two.completion().id()), (1, 2));
}

#[test]
fn a_receive_that_is_too_short_fails_on_both_sides() {
    let (one, two) = connected(&open(&Fake::new()), None);
    two.post_receive(1, &[two.local(0, 63)]);
    one.post(2, Operation::Send, &[one.local(0, 64)]);
    assert_eq!(two.completion().result().unwrap_err().status, Status::LocalLength);
    assert_eq!(one.completion().result().unwrap_err().status, Status::RemoteInvalidRequest);
}

#[test]
fn injected_failures_flush_what_follows() {
    let fake = Fake::new();
    let (one, two) = connected(&open(&fake), None);
    one.post_receive(1, &[one.local(0, 64)]);
    fake.set(Knob::NextStatus, 12);
    one.post(2, Operation::Write(two.remote(0)), &[one.local(0, 64)]);
    let failure = one.completion().result().unwrap_err();
    assert_eq!((failure.status, failure.status.blame()), (Status::RetriesExceeded, Blame::Path));
    let flushed = one.completion();
    assert_eq!((flushed.id(), flushed.result().unwrap_err().status), (1, Status::Flushed));
}

#[test]
fn steps_out_of_order_are_refused_with_words() {
    let context = open(&Fake::new());
    let one = ends::End::new(&context, None, Access::REMOTE_WRITE);
    let how = Reliability::default();
    let error = one.pair.ready_to_send(0, &how).unwrap_err();
    assert_eq!(
        error,
        Error::State { step: "ready_to_send", is: State::Initialized, needs: State::ReadyToReceive }
    );
    assert!(error.to_string().contains("INIT"), "{error}");
    assert!(matches!(one.pair.initialize(&one.path, Access::LOCAL_READ), Err(Error::State { .. })));
    // SAFETY: the buffer lives as long as the pair.
    let posted = unsafe {
        one.pair.post_send(&Send {
            id: 0,
            operation: Operation::Send,
            local: &[],
            report: Report::Yes,
            flags: Flags::NONE,
        })
    };
    assert_eq!(posted.unwrap_err().errno(), Some(libc::EINVAL));
}

#[test]
fn an_unreachable_peer_names_the_route() {
    let fake = Fake::new();
    fake.set(Knob::RtrErrno, libc::ENETUNREACH.into());
    let one = ends::End::new(&open(&fake), None, Access::REMOTE_WRITE);
    let error = one.pair.connect(&one.path, 0, &one.address, &Reliability::default()).unwrap_err();
    let words = error.to_string();
    assert!(words.contains("192.0.2.1") && words.contains("route"), "{words}");
    assert_eq!(one.pair.state(), State::Initialized);
}

#[test]
fn a_full_queue_says_how_many_were_posted() {
    let (one, _two) = connected(&open(&Fake::new()), None);
    let request =
        Send { id: 0, operation: Operation::Send, local: &[], report: Report::Yes, flags: Flags::NONE };
    // No receive is posted, so the requests stay in the queue.
    // SAFETY: no memory is read.
    let refused = unsafe { one.pair.post_sends(&vec![request; 70]) }.unwrap_err();
    assert_eq!((refused.posted, refused.error.errno()), (64, Some(libc::ENOMEM)));
    assert!(refused.to_string().contains("reap completions"), "{refused}");
}

#[test]
fn numbers_beyond_the_device_are_refused() {
    let context = open(&Fake::new());
    assert!(matches!(context.completion_queue(0, None, 0), Err(Error::Usage { .. })));
    assert_eq!(context.completion_queue(5000, None, 0).unwrap_err().errno(), Some(libc::EINVAL));
    assert!(context.port(2).is_err());
    let other = open(&Fake::new());
    let foreign = other.completion_channel().unwrap();
    assert!(matches!(context.completion_queue(4, Some(&foreign), 0), Err(Error::Usage { .. })));
}

#[test]
fn exhausted_lockable_memory_is_told_from_exhausted_memory() {
    let fake = Fake::new();
    let domain = open(&fake).protection_domain().unwrap();
    fake.set(Knob::RegisterErrno, libc::ENOMEM.into());
    let error = domain.allocate(1 << 16, Access::LOCAL_WRITE).unwrap_err();
    match MemoryLock::current() {
        MemoryLock::Unlimited => assert!(matches!(error, Error::Call { call: "ibv_reg_mr", .. })),
        MemoryLock::Limited { bytes } => {
            assert_eq!(error, Error::MemoryLock { bytes: 1 << 16, limit_bytes: bytes });
        }
    }
}

#[test]
fn events_of_the_device_are_read_without_waiting() {
    let fake = Fake::new();
    let context = open(&fake);
    assert_eq!(context.async_event(), Ok(None));
    fake.set(Knob::AsyncEvent, sys::IBV_EVENT_PORT_ERR.into());
    assert_eq!(context.async_event(), Ok(Some(AsyncEvent::PortDown { port: 1 })));
    fake.set(Knob::AsyncEvent, sys::IBV_EVENT_DEVICE_FATAL.into());
    assert_eq!(context.async_event(), Ok(Some(AsyncEvent::DeviceFatal)));
    assert_eq!(context.async_event(), Ok(None));
    fake.set(Knob::AsyncEvent, sys::IBV_EVENT_PORT_ACTIVE.into());
    assert_eq!(context.async_event(), Ok(Some(AsyncEvent::PortUp { port: 1 })));
    // Events of a queue pair or a completion queue name it.
    let (_one, two) = connected(&context, None);
    fake.set(Knob::EventPlace, 1);
    for (raw, fault) in [
        (sys::IBV_EVENT_QP_FATAL, QueuePairFault::Device),
        (sys::IBV_EVENT_QP_REQ_ERR, QueuePairFault::Request),
        (sys::IBV_EVENT_QP_ACCESS_ERR, QueuePairFault::Access),
    ] {
        fake.set(Knob::AsyncEvent, raw.into());
        let number = two.pair.number();
        assert_eq!(context.async_event(), Ok(Some(AsyncEvent::QueuePairFailed { number, fault })));
    }
    fake.set(Knob::AsyncEvent, sys::IBV_EVENT_CQ_ERR.into());
    assert_eq!(context.async_event(), Ok(Some(AsyncEvent::CompletionQueueFailed { cookie: 42 })));
}

#[test]
fn forking_is_prepared_before_anything_is_registered() {
    let fake = Fake::new();
    ends::exercise(&open(&fake));
    assert!(fake.count(Count::ForkCalls) > 0 && fake.count(Count::Registrations) > 0);
    assert_eq!(fake.count(Count::RegionsAtFork), 0);
    assert_eq!(fake.load().unwrap().fork_safety(), ForkSafety::ByKernel);
    fake.set(Knob::ForkErrno, libc::EINVAL.into());
    let refused = fake.load().unwrap().fork_safety();
    assert_eq!(refused, ForkSafety::Refused { errno: libc::EINVAL });
    assert!(refused.to_string().contains("RDMAV_FORK_SAFE=1"), "{refused}");
}

#[test]
fn nothing_outlives_what_it_needs_whatever_the_order() {
    let fake = Fake::new();
    let (one, two) = connected(&open(&fake), None);
    let ends::End { pair, queue, buffer, domain, .. } = one;
    drop((queue, domain));
    drop(two);
    assert!(fake.live() > 0);
    drop(buffer);
    drop(pair);
    assert_eq!(fake.live(), 0);
}
