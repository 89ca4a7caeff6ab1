//! Systems that refuse shared memory to some ranks of a host, or to all: the ranks use TCP.

use kolo::{Communicator, ReduceOp, TransportKind};
use kolo_tests::processes::Job;
use kolo_tests::system;
use kolo_tests::watchdog::bounded;
use rustix::process::{Resource, Rlimit, setrlimit};

const RANKS: u32 = 3;

/// Sums beside ranks that are limited, which this one is too if `limit` is not "none"; reports the reason for a route.
fn run(limit: &str, first_limited: u32) -> kolo::Result<()> {
    match limit.split_once(' ') {
        Some(("file", bytes)) => {
            let bytes = Some(bytes.parse().expect("a number"));
            setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: bytes }).expect("it can be lowered");
        }
        None if limit == "memfd" => system::refuse(libc::SYS_memfd_create),
        _ => {}
    }
    let comm = Communicator::from_env()?;
    let routes = comm.routes();
    for route in routes.iter().filter(|route| route.peer.max(comm.rank()) >= first_limited) {
        assert_eq!(route.transport, TransportKind::Tcp.name(), "{routes:?}");
    }
    let mut sum = vec![1_u32; 100_000];
    comm.all_reduce(&mut sum, ReduceOp::Sum)?;
    assert!(sum.iter().all(|sum| *sum == RANKS));
    // The test's name precedes the line.
    println!("\n@via {:?}", routes[0].declined);
    Ok(())
}

/// Runs a job whose ranks from `first_limited` on have this limit; returns what they report.
fn check(limit: &str, first_limited: u32) -> Vec<String> {
    let this = std::env::current_exe().expect("this program");
    let only = ["--exact", "ranks_without_shared_memory_use_tcp", "--nocapture"];
    let mut job = Job::start(this.to_str().expect("a name in UTF-8"), RANKS, RANKS, &only, |rank| {
        let limit = if rank >= first_limited { limit } else { "none" };
        vec![("KOLO_TEST_LIMIT", limit.to_owned()), ("KOLO_TEST_FIRST_LIMITED", first_limited.to_string())]
    });
    let reasons = job.expect_all("@via ");
    assert!(job.ended().iter().all(|succeeded| *succeeded), "{limit}, from rank {first_limited}");
    println!("{limit}, from rank {first_limited}: {reasons:?}");
    reasons
}

#[test]
fn ranks_without_shared_memory_use_tcp() {
    if let Ok(limit) = std::env::var("KOLO_TEST_LIMIT") {
        let first = std::env::var("KOLO_TEST_FIRST_LIMITED").ok().and_then(|text| text.parse().ok());
        return run(&limit, first.expect("a rank")).expect("TCP works");
    }
    bounded("no shared memory", || {
        // A limit on files may be too small for any memory, or only for that of a host.
        for (limit, reason) in
            [("memfd", "not permitted"), ("file 100000", "ulimit -f"), ("file 50000000", "ulimit -f")]
        {
            // Rank 0 would make the memory of the host.
            let of_all = check(limit, 0);
            assert!(of_all.iter().all(|text| text.contains(reason)), "{of_all:?}");
            assert!(check(limit, RANKS - 1)[2].contains(reason), "{limit}");
        }
    });
}
