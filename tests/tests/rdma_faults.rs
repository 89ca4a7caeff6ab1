//! Jobs over RDMA with a failing adapter, over the stand-in for libibverbs: which rank is blamed, and how soon.

use std::time::{Duration, Instant};

use kolo::{Cluster, Communicator, Config, ReduceOp, TransportKind, Transports};

#[path = "../../transport/verbs/tests/common/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod fake;
#[path = "../../transport/verbs/tests/common/knob.rs"]
#[allow(dead_code, unreachable_pub, missing_docs)]
mod knob;

use fake::{Fake, Knob};

/// Returns settings with which ranks reach each other by the stand-in.
fn config(fake: &Fake) -> Config {
    fake.set(Knob::Address, 0x7f00_0001);
    Config::default().with(|config| {
        config.transports = Transports::Only(vec![TransportKind::Rdma]);
        config.ib_library = Some(fake.file.display().to_string());
        config.timeout = Duration::from_secs(30);
    })
}

/// Returns each rank's error after an event at rank 0's adapter in mid-job, and the time until then.
fn errors_after(happens: impl Fn(&Fake) + Sync) -> Vec<(String, Duration)> {
    let fake = Fake::new();
    let run = |comm: Communicator| {
        let mut data = vec![1_u8; 1 << 20];
        let began = Instant::now();
        for turn in 0.. {
            if (comm.rank(), turn) == (0, 3) {
                happens(&fake);
            }
            if let Err(error) = comm.all_reduce(&mut data, ReduceOp::Max) {
                assert!(turn >= 2, "well so far: {error}");
                return (error.to_string(), began.elapsed());
            }
        }
        unreachable!("somebody fails")
    };
    Cluster::with_config(2, &config(&fake), run).expect("they join")
}

#[test]
fn an_adapter_that_fails_ends_the_job_at_once_and_is_named() {
    // A queue pair that dies silently (posted work comes back flushed), and one whose failure the device reports.
    let silent: fn(&Fake) = |fake| fake.set(Knob::FailPair, 0);
    let told: fn(&Fake) = |fake| fake.set(Knob::AsyncEvent, kolo_verbs::sys::IBV_EVENT_QP_FATAL.into());
    for (happens, words) in [(silent, "rank 0's queue pair"), (told, "rank 0's adapter fake0")] {
        let ends = errors_after(happens);
        for (rank, (text, took)) in ends.iter().enumerate() {
            assert!(*took < Duration::from_secs(5), "rank {rank} took {took:?}: {text}");
            assert!(text.contains(words) && text.contains("out of service"), "rank {rank}: {text}");
            assert!(!text.contains("rank 1 is lost"), "rank {rank} blames the healthy one: {text}");
        }
    }
}
