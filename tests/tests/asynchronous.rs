//! Asynchronous operations: many in flight, completed in any order, without any rank waiting.

use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

use kolo::{Communicator, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::system::processor_time;
use kolo_tests::watchdog::{bounded, within};

/// Returns the elements of the i-th of many operations: from none to some hundred segments.
fn elements(i: usize) -> usize {
    [0, 1, 7, 1000, 70_000, 300_001][i % 6]
}

fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(ranks, |comm| body(&comm));
        });
    }
}

fn check(found: &[f32], each: f32) {
    assert!(found.iter().all(|value| *value == each), "wanted {each}, found {:?}", found.first());
}

#[test]
fn twenty_in_flight_waited_in_another_order() {
    everywhere(3, |comm| {
        let mut works: Vec<_> = (0..20)
            .map(|i| {
                let data = vec![i as f32; elements(i)];
                (i, comm.all_reduce_start(data, ReduceOp::Sum).expect("starts"))
            })
            .collect();
        // Each rank waits in an order of its own.
        works.rotate_left(7 * comm.rank() as usize);
        works.reverse();
        for (i, work) in works {
            let data = work.wait().expect("done");
            assert_eq!(data.len(), elements(i));
            check(&data, 3.0 * i as f32);
        }
    });
}

#[test]
fn every_kind_overlapping_with_blocking_calls() {
    everywhere(4, |comm| {
        let (rank, ranks) = (comm.rank(), comm.world_size() as usize);
        for round in 0..5 {
            let n = elements(round + 1);
            let reduced = comm.all_reduce_start(vec![1.0_f32; n], ReduceOp::Sum).expect("starts");
            let gathered = comm.all_gather_start(vec![rank as f32; n]).expect("starts");
            let mut blocking = vec![rank as f32; n];
            comm.broadcast(&mut blocking, 2).expect("a blocking call between");
            check(&blocking, 2.0);
            let scattered =
                comm.reduce_scatter_start(vec![1.0_f32; n * ranks], ReduceOp::Sum).expect("starts");
            let exchanged = comm.all_to_all_start(vec![rank as f32; n * ranks]).expect("starts");
            let sent = comm.broadcast_start(vec![rank as f32; n], 1).expect("starts");
            let barrier = comm.barrier_start().expect("starts");
            comm.all_reduce(&mut blocking, ReduceOp::Sum).expect("a blocking call between");
            check(&blocking, 8.0);
            barrier.wait().expect("done");
            check(&sent.wait().expect("done"), 1.0);
            let exchanged = exchanged.wait().expect("done");
            exchanged.chunks(n.max(1)).enumerate().for_each(|(from, block)| check(block, from as f32));
            check(&scattered.wait().expect("done"), 4.0);
            let gathered = gathered.wait().expect("done");
            gathered.chunks(n.max(1)).enumerate().for_each(|(from, block)| check(block, from as f32));
            check(&reduced.wait().expect("done"), 4.0);
        }
    });
}

#[test]
fn handles_may_be_dropped_or_leaked() {
    everywhere(3, |comm| {
        for i in 0..30 {
            let work = comm.all_reduce_start(vec![1.0_f32; elements(i)], ReduceOp::Sum).expect("starts");
            match (i + comm.rank() as usize) % 3 {
                0 => drop(work),
                // Only memory is leaked.
                1 if i < 6 => std::mem::forget(work),
                _ => check(&work.wait().expect("done"), 3.0),
            }
        }
        let mut data = [1.0_f32; 100];
        comm.all_reduce(&mut data, ReduceOp::Sum).expect("the communicator is as it was");
        check(&data, 3.0);
    });
}

#[test]
fn scopes_borrow_and_wait() {
    everywhere(3, |comm| {
        let mut buffers: Vec<Vec<f32>> = (0..12).map(|i| vec![1.0; elements(i)]).collect();
        comm.scope(|scope| {
            for buffer in &mut buffers {
                scope.all_reduce(buffer, ReduceOp::Sum)?;
            }
            Ok(())
        })
        .expect("all done");
        buffers.iter().for_each(|buffer| check(buffer, 3.0));

        // A panic in the body must not leave operations on memory that has been freed.
        let mut data = vec![1.0_f32; 200_000];
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = comm.scope(|scope| -> kolo::Result<()> {
                scope.all_reduce(&mut data, ReduceOp::Sum)?;
                std::panic::resume_unwind(Box::new("on purpose"));
            });
        }));
        assert!(panicked.is_err());
        check(&data, 3.0);
        comm.barrier().expect("the communicator is as it was");
    });
}

#[test]
fn polling_sees_the_end() {
    everywhere(2, |comm| {
        for i in 0..12 {
            let work = comm.all_reduce_start(vec![1.0_f32; elements(i)], ReduceOp::Sum).expect("starts");
            while !work.is_done() {
                std::thread::yield_now();
            }
            check(&work.wait().expect("done"), 2.0);
        }
    });
}

#[test]
fn progress_without_the_owner() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let (tell, told) = mpsc::channel();
            let (tell, told) = (Mutex::new(tell), Mutex::new(told));
            arrangement.run(2, |comm| {
                comm.barrier().expect("all are there");
                let work = comm.all_reduce_start(vec![1.0_f32; 4_000_000], ReduceOp::Sum).expect("starts");
                if comm.rank() == 0 {
                    // Rank 1 can only finish if rank 0's helper has done its part.
                    let told = told.lock().expect("nobody panicked");
                    told.recv_timeout(Duration::from_secs(20)).expect("rank 1 is done while this one sleeps");
                    check(&work.wait().expect("done"), 2.0);
                } else {
                    check(&work.wait().expect("done"), 2.0);
                    tell.lock().expect("nobody panicked").send(()).expect("rank 0 listens");
                }
            });
        });
    }
}

#[test]
fn progress_while_the_owner_is_in_another_communicator() {
    everywhere(2, |comm| {
        let other = comm.group(&[0, 1]).expect("a second one");
        let work = comm.all_reduce_start(vec![1.0_f32; 2_000_000], ReduceOp::Sum).expect("starts");
        if comm.rank() == 0 {
            // Arrives only after rank 1's wait.
            other.recv(&mut [0_u8; 1], 1).expect("rank 1 is done");
            check(&work.wait().expect("done"), 2.0);
        } else {
            check(&work.wait().expect("done"), 2.0);
            other.send(&[1_u8], 0).expect("sent");
        }
    });
}

#[test]
fn more_in_flight_than_channels() {
    everywhere(2, |comm| {
        let works: Vec<_> = (0..300)
            .map(|i| comm.all_reduce_start(vec![i as f32; 1 + i % 50], ReduceOp::Sum).expect("starts"))
            .collect();
        for (i, work) in works.into_iter().enumerate() {
            check(&work.wait().expect("done"), 2.0 * i as f32);
        }
    });
}

/// Measures the cost of idle communicators. It is the only test that lets time pass.
fn idle_cost(arrangement: Arrangement) -> Duration {
    let (lock, wake) = (Mutex::new(0_u32), Condvar::new());
    let cost = arrangement.run(4, |comm| {
        // The helper exists from here on.
        check(
            &comm.all_reduce_start(vec![1.0_f32; 1000], ReduceOp::Sum).expect("starts").wait().expect("done"),
            4.0,
        );
        comm.barrier().expect("all have their helpers");
        let mut ready = lock.lock().expect("nobody panicked");
        *ready += 1;
        wake.notify_all();
        while *ready < 4 {
            ready = wake.wait(ready).expect("nobody panicked");
        }
        let before = processor_time();
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_secs(2) {
            let left = Duration::from_secs(2).saturating_sub(begin.elapsed());
            (ready, _) = wake.wait_timeout(ready, left).expect("nobody panicked");
        }
        processor_time() - before
    });
    cost.into_iter().max().unwrap_or_default()
}

#[test]
fn idleness_costs_nothing() {
    // Other tests of this process would be counted too, so this runs in a process of its own.
    if std::env::var_os("KOLO_TEST_IDLE").is_some() {
        for arrangement in Arrangement::ALL {
            let is_small = || {
                let cost = idle_cost(arrangement);
                println!("{arrangement:?}: 4 idle ranks with helpers used {cost:?} of processor time in 2 s");
                cost < Duration::from_millis(40)
            };
            // A machine that pauses wakes waiting threads more often.
            assert!((0..3).any(|_| is_small()), "{arrangement:?}: idle ranks are busy");
        }
        return;
    }
    within(Duration::from_secs(60), "idle", || {
        let this = std::env::current_exe().expect("this program");
        let ended = std::process::Command::new(this)
            .args(["--exact", "idleness_costs_nothing", "--nocapture"])
            .env("KOLO_TEST_IDLE", "1")
            .output()
            .expect("it starts");
        let text = String::from_utf8_lossy(&ended.stdout);
        text.lines().filter(|line| line.contains("idle ranks")).for_each(|line| println!("{line}"));
        assert!(ended.status.success(), "{text}{}", String::from_utf8_lossy(&ended.stderr));
    });
}
