//! Many ranks with adverse delays, for some seconds: no call may hang, be mixed up, or fail.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo::{Collective, Communicator, DataType, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::random::Random;
use kolo_tests::reference::{Case, is_defined};
use kolo_tests::watchdog::within;

/// Draws the same call on all ranks, from the common numbers.
fn next_case(common: &mut Random, ranks: usize) -> Case {
    let collective = Collective::ALL[common.index(Collective::ALL.len())];
    let data_type = DataType::ALL[common.index(DataType::ALL.len())];
    let op = [ReduceOp::Sum, ReduceOp::Max, ReduceOp::BitXor, ReduceOp::Avg][common.index(4)];
    let op = if is_defined(collective, op, data_type) { op } else { ReduceOp::Min };
    let count = [1, 3, 40, 900, 5000, 40_000][common.index(6)];
    Case {
        collective,
        data_type,
        op,
        count,
        root: common.index(ranks) as u32,
        in_place: common.index(2) == 1,
    }
}

/// Draws a delay: mostly none, sometimes a moment, rarely longer than the pacing waits before it sleeps.
fn delay(own: &mut Random) {
    let micros = [0, 0, 0, 0, 20, 100, 800, 4000][own.index(8)];
    let until = Instant::now() + Duration::from_micros(micros);
    while Instant::now() < until {
        std::thread::yield_now();
    }
}

fn soak(comm: &Communicator, seed: u64, time: Duration) -> u64 {
    let ranks = comm.world_size() as usize;
    let mut common = Random::new(seed);
    let mut own = Random::new(seed ^ u64::from(comm.rank() + 1) << 32);
    let begin = Instant::now();
    let mut calls = 0;
    loop {
        for _ in 0..10 {
            let pending = (common.index(3) == 0).then(|| {
                let elements = [1, 2000, 60_000][common.index(3)];
                comm.all_reduce_start(vec![1_i64; elements], ReduceOp::Sum).expect("starts")
            });
            delay(&mut own);
            let case = next_case(&mut common, ranks);
            let wrong = case.run(comm).unwrap_or_else(|error| panic!("seed {seed}, {case:?}: {error}"));
            assert_eq!(wrong, 0, "seed {seed}, call {calls}, {case:?} on rank {}", comm.rank());
            if let Some(work) = pending {
                delay(&mut own);
                assert!(work.wait().expect("done").iter().all(|v| *v == ranks as i64), "seed {seed}");
            }
            calls += 1;
        }
        // All ranks stop after the same call, when the first rank says that the time is over.
        let mut over = [u8::from(begin.elapsed() > time)];
        comm.broadcast(&mut over, 0).expect("done");
        if over[0] == 1 {
            return calls;
        }
    }
}

#[test]
fn nine_ranks_with_delays() {
    for (seed, arrangement) in (0x50AC..).zip(Arrangement::ALL) {
        within(Duration::from_secs(30), &format!("{arrangement:?}"), move || {
            let total = AtomicU64::new(0);
            arrangement.run(9, |comm| {
                let calls = soak(&comm, seed, Duration::from_secs(3));
                total.fetch_max(calls, Ordering::Relaxed);
            });
            println!("{arrangement:?}: 9 ranks made {} random calls", total.into_inner());
        });
    }
}
