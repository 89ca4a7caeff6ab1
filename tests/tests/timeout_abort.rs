//! Deadlines, aborts and drops: every wait ends.

use std::sync::mpsc;
use std::time::{Duration, Instant};

use kolo::{Communicator, Config, Error, PeerState, ReduceOp, Result};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{Gate, bounded, quickest, timed};

/// Longer than a busy machine keeps a rank from a call that all make.
const LIMIT: Duration = Duration::from_secs(4);

/// Time limit for what follows an abort or the end of a rank. The time-out is 60 s.
const SOON: Duration = Duration::from_secs(10);

fn impatient(mut config: Config) -> Config {
    config.timeout = LIMIT;
    config
}

/// Runs `body` on every rank, with a barrier of the threads that is independent of Kolo.
fn with_gate(
    arrangement: Arrangement,
    ranks: u32,
    change: fn(Config) -> Config,
    body: impl Fn(&Communicator, &Gate) + Send + Sync + 'static,
) {
    bounded(&format!("{arrangement:?}"), move || {
        let gate = Gate::new(ranks as usize);
        arrangement.run_with(ranks, change, |comm| body(&comm, &gate));
    });
}

fn waits(comm: &Communicator, elements: usize) -> Result<()> {
    comm.all_reduce(&mut vec![1.0_f32; elements], ReduceOp::Sum)
}

/// Runs the arrangements in parallel, since each waits some seconds for a deadline.
fn side_by_side(name: &str, body: impl Fn(Arrangement) + Send + Sync + 'static) {
    bounded(name, move || {
        std::thread::scope(|scope| {
            for arrangement in Arrangement::ALL {
                let body = &body;
                scope.spawn(move || body(arrangement));
            }
        });
    });
}

fn rank_2_never_calls(comm: &Communicator, gate: &Gate, elements: usize) {
    comm.barrier().expect("all are there");
    if comm.rank() == 2 {
        gate.wait();
        // A call before the news has arrived would meet theirs, and would report that the calls differ.
        while comm.error().is_none() {
            std::thread::yield_now();
        }
        let error = comm.barrier().expect_err("the others gave up");
        assert!(error.to_string().contains("rank 2 (finished #1 barrier"), "{error}");
        return;
    }
    let start = Instant::now();
    let error = waits(comm, elements).expect_err("rank 2 does not call");
    let took = start.elapsed();
    assert!(took < 3 * LIMIT, "{took:?}: {error}");
    match &error {
        Error::Timeout { context, after, waiting_for } => {
            assert!(took >= LIMIT / 2, "{took:?}: {error}");
            assert_eq!((context.rank, context.sequence, *after), (Some(comm.rank()), Some(2), LIMIT));
            let culprit = waiting_for.iter().find(|awaited| awaited.rank == 2).expect("it is named");
            assert_eq!(culprit.state, PeerState::Outside { finished: 1 }, "{error}");
            assert!(culprit.detail.contains("finished #1 barrier"), "{error}");
        }
        // The other rank's deadline came first, and this one may have called long after it.
        Error::Aborted { reason, .. } => {
            assert!(reason.contains("rank 2 (finished #1 barrier"), "{error}");
        }
        _ => panic!("{error}"),
    }
    // A second call returns the cause at once.
    let took = quickest(|| {
        let later = waits(comm, elements).expect_err("aborted");
        assert!(later.to_string().contains("all_reduce("), "{later}");
    });
    assert!(took < Duration::from_millis(20), "{took:?}");
    gate.wait();
}

#[test]
fn a_rank_that_never_calls() {
    for elements in [8, 1_000_000] {
        let name = format!("{elements} elements");
        side_by_side(&name, move |arrangement| {
            let gate = Gate::new(3);
            arrangement.run_with(3, impatient, |comm| rank_2_never_calls(&comm, &gate, elements));
        });
    }
}

#[test]
fn a_receive_that_nobody_sends() {
    side_by_side("receive", |arrangement| {
        let gate = Gate::new(2);
        arrangement.run_with(2, impatient, |comm| {
            if comm.rank() == 0 {
                let error = comm.recv(&mut [0_u8; 40], 1).expect_err("nothing is sent");
                let text = error.to_string();
                assert!(
                    text.contains("recv #1 of 40 bytes of u8 from rank 1")
                        && text.contains("waiting for rank 1"),
                    "{text}"
                );
            }
            gate.wait();
        });
    });
}

#[test]
fn abort_while_others_wait() {
    for arrangement in Arrangement::ALL {
        for elements in [8, 1_000_000] {
            with_gate(
                arrangement,
                3,
                |config| config,
                move |comm, gate| {
                    gate.wait();
                    let start = Instant::now();
                    if comm.rank() == 1 {
                        comm.abort("the loss is not a number");
                    } else {
                        let error = waits(comm, elements).expect_err("aborted");
                        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
                        let Error::Aborted { by: 1, reason, .. } = &error else { panic!("{error}") };
                        assert!(reason.contains("the loss is not a number"), "{error}");
                    }
                    gate.wait();
                    let error = comm.barrier().expect_err("the cause stays");
                    assert!(error.to_string().contains("the loss is not a number"), "{error}");
                },
            );
        }
    }
}

#[test]
fn abort_from_another_thread_of_the_waiting_rank() {
    for arrangement in Arrangement::ALL {
        with_gate(
            arrangement,
            2,
            |config| config,
            |comm, gate| {
                if comm.rank() == 0 {
                    let (waiting, waits_now) = mpsc::channel();
                    std::thread::scope(|scope| {
                        scope.spawn(move || {
                            waits_now.recv().expect("the other thread lives");
                            comm.abort("changed my mind");
                        });
                        waiting.send(()).expect("the other thread lives");
                        let start = Instant::now();
                        let error = comm.recv(&mut [0_u8; 8], 1).expect_err("aborted");
                        assert!(start.elapsed() < SOON);
                        assert!(error.to_string().contains("by rank 0: changed my mind"), "{error}");
                    });
                }
                gate.wait();
            },
        );
    }
}

#[test]
fn every_kind_of_call_fails_after_an_abort() {
    for arrangement in Arrangement::ALL {
        with_gate(
            arrangement,
            2,
            |config| config,
            |comm, gate| {
                let pending = comm.all_reduce_start(vec![1_i64; 1000], ReduceOp::Sum);
                gate.wait();
                comm.abort("enough");
                gate.wait();
                let start = Instant::now();
                let mut block = [1_u8; 16];
                let calls: [(&str, Result<()>); 8] = [
                    ("barrier", comm.barrier()),
                    ("all_reduce", comm.all_reduce(&mut block, ReduceOp::Sum)),
                    ("send", comm.send(&block, 1 - comm.rank())),
                    ("recv", comm.recv(&mut block, 1 - comm.rank())),
                    ("start", comm.all_reduce_start(vec![1_u8; 9], ReduceOp::Sum).map(drop)),
                    ("scope", comm.scope(|scope| scope.broadcast(&mut block, 0))),
                    ("split", comm.split(Some(1), 0).map(drop)),
                    ("group", comm.group(&[0, 1]).map(drop)),
                ];
                assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
                for (name, result) in calls {
                    let error = result.expect_err(name);
                    assert!(error.to_string().contains("enough"), "{name}: {error}");
                }
                // The operation may have been done before the abort.
                if let Err(error) = pending.and_then(kolo::Work::wait) {
                    assert!(error.to_string().contains("enough"), "{error}");
                }
                gate.wait();
            },
        );
    }
}

#[test]
fn dropping_with_operations_outstanding_ends() {
    side_by_side("drop", |arrangement| {
        let gate = Gate::new(2);
        arrangement.run(2, |comm| {
            if comm.rank() == 0 {
                // Rank 1 never starts these.
                let works: Vec<_> = (0..4)
                    .map(|i| comm.all_reduce_start(vec![1_i32; 1 << (4 * i)], ReduceOp::Sum).expect("starts"))
                    .collect();
                let start = Instant::now();
                drop(comm);
                assert!(start.elapsed() < 2 * SOON, "{:?}", start.elapsed());
                let start = Instant::now();
                for work in works {
                    let error = work.wait().expect_err("never done");
                    assert!(error.to_string().contains("all_reduce_start("), "{error}");
                    assert!(error.to_string().contains("the communicator was dropped"), "{error}");
                }
                assert!(start.elapsed() < SOON);
                gate.wait();
            } else {
                gate.wait();
                let start = Instant::now();
                let error = comm.barrier().expect_err("rank 0 has left");
                assert!(error.to_string().contains("rank 0"), "{error}");
                assert!(start.elapsed() < SOON);
            }
        });
    });
}

#[test]
fn dropping_while_another_thread_waits_for_a_handle() {
    side_by_side("drop while waiting", |arrangement| {
        let gate = Gate::new(2);
        arrangement.run(2, |comm| {
            if comm.rank() == 0 {
                // Rank 1 never starts it.
                let work = comm.all_reduce_start(vec![1_i32; 100_000], ReduceOp::Sum).expect("starts");
                let waiter = std::thread::spawn(move || work.wait());
                drop(comm);
                let error = waiter.join().expect("no panic").expect_err("never done");
                assert!(error.to_string().contains("the communicator was dropped"), "{error}");
            }
            gate.wait();
        });
    });
}

#[test]
fn dropping_without_a_call_hangs_nobody() {
    for arrangement in Arrangement::ALL {
        // A drop that waits for the others takes 5 s. A busy machine may delay any one.
        bounded(&format!("{arrangement:?}"), move || {
            let mut times = (0..3).map(|_| timed(|| arrangement.run(4, drop)).1);
            let is_soon = times.any(|took| {
                println!("{arrangement:?}: {took:?}");
                took < Duration::from_secs(2)
            });
            assert!(is_soon, "{arrangement:?}");
        });
    }
}

#[test]
fn the_last_message_arrives_although_the_sender_has_left() {
    for arrangement in Arrangement::ALL {
        with_gate(
            arrangement,
            2,
            |config| config,
            |comm, gate| {
                let mut data = vec![0_u8; 100_000];
                if comm.rank() == 0 {
                    data.fill(7);
                    gate.wait();
                    comm.send(&data[..1000], 1).expect("sent");
                } else {
                    gate.wait();
                    comm.recv(&mut data[..1000], 0).expect("received");
                    assert!(data[..1000].iter().all(|byte| *byte == 7));
                }
            },
        );
    }
}
