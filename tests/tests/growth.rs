//! Cost of joining by the number of ranks: bytes through rank 0, descriptors, threads. These tests ignore times;
//! `benches/src/bin/growth.rs` measures them. The cost of changes of a group, which must leave nothing behind.

use std::process::Command;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::system::Holdings;
use kolo_tests::watchdog::bounded;

/// The largest number of thread ranks in this test.
const RANKS: u32 = 256;

/// Limit on the bytes of a rank's facts, listener and addresses, as all ranks receive them: really some 350.
const FACTS_BYTES: u64 = 512;

/// Returns figures once all ranks have joined and made a call: the bytes that rank 0 has sent and received, and the
/// resources of each rank.
fn joined(arrangement: Arrangement, ranks: u32) -> (u64, u64, Holdings) {
    let before = Holdings::now();
    let all = Barrier::new(ranks as usize);
    let told = arrangement.run(ranks, |comm| {
        let mut sum = [1_u64];
        comm.all_reduce(&mut sum, ReduceOp::Sum).expect("all of them");
        assert_eq!(sum, [u64::from(ranks)]);
        all.wait();
        let told = comm.coordinator_bytes().map(|bytes| (bytes, Holdings::now()));
        all.wait();
        told
    });
    let ((sent, received), now) = told.into_iter().flatten().next().expect("rank 0");
    let each = |now: usize, before: usize| now.saturating_sub(before);
    let holdings = Holdings {
        descriptors: each(now.descriptors, before.descriptors),
        threads: each(now.threads, before.threads),
        ..now
    };
    (sent, received, holdings)
}

#[test]
fn what_joining_costs_grows_with_the_table_of_addresses_and_little_else() {
    // Other tests of this process would be counted too, so this runs in a process of its own.
    if std::env::var_os("KOLO_TEST_GROWTH").is_none() {
        return bounded("growth", || {
            let ended = Command::new(std::env::current_exe().expect("this program"))
                .args([
                    "--exact",
                    "what_joining_costs_grows_with_the_table_of_addresses_and_little_else",
                    "--nocapture",
                ])
                .env("KOLO_TEST_GROWTH", "1")
                .output()
                .expect("it starts");
            let text = String::from_utf8_lossy(&ended.stdout);
            text.lines().filter(|line| line.contains("ranks:")).for_each(|line| println!("{line}"));
            assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
        });
    }
    for (arrangement, sockets) in [(Arrangement::Exchange, 6), (Arrangement::Tcp, 24)] {
        let (sent, received, holdings) = joined(arrangement, RANKS);
        println!("{arrangement:?}, {RANKS} ranks: {sent} bytes sent, {received} received, {holdings:?}");
        let table = u64::from(RANKS) * FACTS_BYTES;
        // The table travels from rank to rank: the coordinator sends it to four ranks, and rank 0, as one of the ranks,
        // to four more.
        assert!(sent < 10 * table, "{arrangement:?}: {sent} bytes sent by rank 0");
        assert!(received < 4 * table, "{arrangement:?}: {received} bytes received by rank 0");
        assert!(holdings.descriptors < RANKS as usize * sockets, "{arrangement:?}: {holdings:?}");
        assert!(holdings.threads <= RANKS as usize + 4, "{arrangement:?}: {holdings:?}");
    }
}

/// Shrinks a healthy group this many times, each time leaving the group before.
const SHRINKS: usize = 50;

#[test]
fn a_group_that_has_changed_leaves_nothing_behind() {
    if std::env::var_os("KOLO_TEST_CHANGES").is_some() {
        let descriptors = left_by_changes().expect("all live");
        // The test's name precedes the line.
        println!("\n@left {descriptors:?}");
        return;
    }
    bounded("changes", || {
        let this = std::env::current_exe().expect("this program");
        let this = this.to_str().expect("a name in UTF-8");
        let only = ["--exact", "a_group_that_has_changed_leaves_nothing_behind", "--nocapture"];
        let mut job = Job::start(this, 3, 3, &only, |rank| {
            let mut settings = environment(Arrangement::Exchange, rank);
            settings.push(("KOLO_TEST_CHANGES", "1".to_owned()));
            settings
        });
        let left = job.expect_all("@left ");
        println!("descriptors before and after {SHRINKS} shrinks: {left:?}");
        assert!(job.ended().iter().all(|succeeded| *succeeded));
    });
}

/// Returns the numbers of descriptors before and after the changes.
fn left_by_changes() -> kolo::Result<(usize, usize)> {
    // The first change opens descriptors that the process keeps.
    let mut comm = Communicator::from_env()?.shrink()?;
    let before = Holdings::now().descriptors;
    for _ in 0..SHRINKS {
        comm = comm.shrink()?;
    }
    // Connections end a little after their communicator.
    let until = Instant::now() + Duration::from_secs(10);
    let mut after = Holdings::now().descriptors;
    while after > before + 4 && Instant::now() < until {
        std::thread::yield_now();
        after = Holdings::now().descriptors;
    }
    assert!(after <= before + 4, "{before} descriptors before {SHRINKS} shrinks, {after} after them");
    comm.barrier()?;
    Ok((before, after))
}
