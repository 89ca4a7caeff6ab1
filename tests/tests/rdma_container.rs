//! RDMA without userfaultfd, which the default seccomp profiles of containers refuse. This is a test program of its
//! own, since it gives up that right permanently.

use kolo::{Cluster, Communicator, Config, ReduceOp, TransportKind, Transports};

#[path = "../../transport/verbs/tests/common/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod fake;
#[path = "../../transport/verbs/tests/common/knob.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod knob;

use fake::{Fake, Knob};

/// Makes userfaultfd fail with EPERM in this thread and in those that it starts from now on.
fn refuse_userfaultfd() {
    kolo_tests::system::refuse(libc::SYS_userfaultfd);
    // SAFETY: the kernel refuses the call.
    unsafe { assert_eq!(libc::syscall(libc::SYS_userfaultfd, 0), -1) };
}

fn all_reduce(comm: &Communicator, data: &mut [u8]) {
    data.fill(comm.rank() as u8 + 1);
    comm.all_reduce(data, ReduceOp::Max).expect("all_reduce");
    assert!(data.iter().all(|byte| *byte == 2));
}

#[test]
fn what_cannot_be_watched_is_copied_or_registered_once_a_call_and_said() {
    refuse_userfaultfd();
    let fake = Fake::new();
    fake.set(Knob::Address, 0x7f00_0001);
    let config = Config::default().with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        config.ib_library = Some(fake.file.display().to_string());
        config.timeout = std::time::Duration::from_secs(60);
    });
    Cluster::with_config(2, &config, |comm| {
        let policy = comm.registration_policy().expect("over RDMA");
        for words in ["not kept", "userfaultfd: Operation not permitted", "KOLO_IB_CACHE=always"] {
            assert!(policy.contains(words) && comm.summary().contains(words), "{policy}");
        }
        // A copy is faster than a registration that ends with the call.
        let mut short = vec![0_u8; 256 << 10];
        (0..4).for_each(|_| all_reduce(&comm, &mut short));
        let counters = comm.memory_counters();
        assert_eq!(counters.registrations, 0, "{counters:?}");
        assert!(counters.staged_bytes > 0, "{counters:?}");
        // For a long vector it is not, even with one registration per call.
        let mut long = vec![0_u8; 16 << 20];
        (0..4).for_each(|_| all_reduce(&comm, &mut long));
        let counters = comm.memory_counters();
        assert_eq!(counters.registrations, 4, "{counters:?}");
        assert!(counters.in_place_bytes > 4 * (8 << 20), "{counters:?}");
        // Memory that the user registers explicitly needs neither.
        let before = comm.memory_counters();
        let registration = comm.register(short).expect("registered");
        drop(registration);
        assert_eq!(comm.memory_counters().registrations, before.registrations + 1);
    })
    .expect("they join");
    assert_eq!(fake.live(), 0, "objects are left");
}
