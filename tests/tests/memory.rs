//! Limit on the memory that a long all-reduce takes beside the caller's buffer.

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::watchdog::within;
use std::time::Duration;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_rank");

/// Limit on everything but the buffer: program, stacks, staging, shared rings.
const OVERHEAD_MAX: i64 = 32 << 20;

#[test]
fn a_long_all_reduce_in_little_memory() {
    within(Duration::from_secs(60), "memory", || {
        let bytes = 256 << 20;
        for (arrangement, ranks) in [(Arrangement::Exchange, 2), (Arrangement::Tcp, 2), (Arrangement::Shm, 3)]
        {
            let mut job = Job::start(PROGRAM, ranks, ranks, &["memory", &bytes.to_string()], |rank| {
                environment(arrangement, rank)
            });
            for (rank, line) in job.expect_all("@peak ").into_iter().enumerate() {
                let numbers: Vec<i64> = line.split(' ').filter_map(|n| n.parse().ok()).collect();
                let [peak, buffer, before, private, shared] = numbers[..] else { panic!("{line}") };
                let mib = |bytes: i64| bytes as f64 / f64::from(1 << 20);
                println!(
                    "{arrangement:?}, {ranks} ranks, 256 MiB all_reduce: rank {rank} at most {:.1} MiB resident beside \
                     the buffer (private before {:.1}, after {:.1}; shared and files {:.1})",
                    mib(peak - buffer),
                    mib(before),
                    mib(private - buffer),
                    mib(shared),
                );
                assert!(peak - buffer <= OVERHEAD_MAX, "{arrangement:?}, rank {rank}: {line}");
            }
            assert!(job.ended().iter().all(|ended| *ended));
        }
    });
}
