//! Steps with a time limit: a late rank costs one step but not the group, and all ranks see the same outcome.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use kolo::{AbortReason, Communicator, Error, ReduceOp, Survivors};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::within;
use kolo_transport::Unpoisoned;

const LIMIT: Duration = Duration::from_secs(60);

/// Limit of steps in which a rank is missing.
const SHORT: Duration = Duration::from_millis(200);

/// Limit of steps that succeed.
const LONG: Duration = Duration::from_secs(30);

/// Time beyond the limit that a step may take on a busy machine: much less than ranks otherwise wait for each
/// other.
const SLACK: Duration = Duration::from_secs(10);

/// Returns whether the error is that of a step whose time limit has passed.
fn is_over(error: &Error) -> bool {
    matches!(error, Error::Timeout { .. } | Error::Aborted { kind: AbortReason::Timeout, .. })
}

/// Channels by which the others tell the late rank that they have gone on.
struct Late {
    tell: Sender<()>,
    told: Mutex<Receiver<()>>,
}

impl Late {
    fn new() -> Self {
        let (tell, told) = channel();
        Self { tell, told: Mutex::new(told) }
    }

    fn others_are_through(&self) {
        self.tell.send(()).expect("it listens");
    }

    fn wait_for(&self, others: u32) {
        let told = self.told.lock().unpoisoned();
        (0..others).for_each(|_| told.recv_timeout(LIMIT).expect("the others go on"));
    }
}

/// Makes one step, the same sum on all ranks, with this limit.
fn sum(group: &mut Survivors, limit: Duration, own: f32) -> Result<f32, Error> {
    let mut sums = [0.0_f32; 3];
    group.all_reduce_within(limit, &[own; 3], &mut sums, ReduceOp::Sum)?;
    assert!(sums.iter().all(|sum| *sum == sums[0]), "{sums:?}");
    Ok(sums[0])
}

/// Runs `steps` steps that the late rank misses, on it and on the others; then one step with all ranks.
fn misses(steps: u32, arrangement: Arrangement, ranks: u32, late: u32) {
    let what = format!("{arrangement:?}: rank {late} of {ranks} misses {steps}");
    within(LIMIT, &what.clone(), move || {
        let news = Late::new();
        arrangement.run(ranks, |comm| {
            let rank = comm.rank();
            let mut group = Survivors::new(comm);
            assert_eq!(sum(&mut group, LONG, 1.0).expect("all are there"), ranks as f32, "{what}");
            if rank == late {
                news.wait_for(ranks - 1);
            }
            for step in 0..steps {
                let begun = Instant::now();
                // The value differs from that of later sums, so that a late message would be noticed.
                let error = sum(&mut group, SHORT, 100.0).expect_err("one is missing");
                assert!(is_over(&error), "{what}, rank {rank}, step {step}: {error}");
                assert!(
                    begun.elapsed() < SHORT + SLACK,
                    "{what}, rank {rank}, step {step}: {:?}",
                    begun.elapsed()
                );
            }
            if rank != late {
                news.others_are_through();
            }
            for _ in 0..3 {
                let got = sum(&mut group, LONG, 1.0 + rank as f32).expect("all are there again");
                assert_eq!(got, (ranks * (ranks + 1) / 2) as f32, "{what}");
            }
            assert_eq!((group.comm().world_size(), group.comm().rank()), (ranks, rank), "nobody was lost");
        });
    });
}

#[test]
fn who_is_late_gets_the_same_error_and_goes_on_with_the_others() {
    for arrangement in Arrangement::ALL {
        // Rank 0 runs the control plane, and would propose.
        for late in [0, 2] {
            misses(1, arrangement, 3, late);
        }
    }
}

#[test]
fn who_is_late_for_several_steps_catches_up() {
    misses(4, Arrangement::Exchange, 3, 1);
    misses(4, Arrangement::Tcp, 4, 0);
    misses(2, Arrangement::Tcp, 2, 1);
}

#[test]
fn a_late_rank_gets_the_agreement_of_the_others() {
    within(LIMIT, "agree", || {
        for late in [0, 1] {
            let news = Late::new();
            let agreed = Arrangement::Shm.run(3, |comm| {
                if comm.rank() == late {
                    news.wait_for(2);
                }
                let begun = Instant::now();
                let first = comm.agree_within(7, SHORT).expect("all live");
                assert!(begun.elapsed() < SHORT + SLACK);
                if comm.rank() != late {
                    news.others_are_through();
                }
                (first, comm.agree_within(7, LONG).expect("all are there").flags)
            });
            for (first, second) in agreed {
                assert_eq!(
                    (first.flags, &first.ranks[..], second),
                    (0, &[0, 1, 2][..], 7),
                    "rank {late} is late"
                );
            }
        }
    });
}

#[test]
fn ranks_that_shrink_find_out_together_that_one_is_late() {
    within(LIMIT, "shrink", || {
        let news = Late::new();
        Arrangement::Tcp.run(3, |comm| {
            if comm.rank() == 1 {
                news.wait_for(2);
            }
            let error = comm.shrink_within(SHORT).expect_err("one is late");
            assert!(matches!(error, Error::Aborted { kind: AbortReason::Timeout, .. }), "{error}");
            if comm.rank() != 1 {
                news.others_are_through();
            }
            let next = comm.shrink_within(LONG).expect("all are there");
            assert_eq!((next.world_size(), next.epoch()), (3, 1));
        });
    });
}

/// A root has done its part of a broadcast when it has sent; then it learns that no rank completes the step.
#[test]
fn a_rank_that_has_done_its_part_fails_with_the_others() {
    within(LIMIT, "broadcast", || {
        let news = Late::new();
        Arrangement::Tcp.run(3, |comm| {
            let rank = comm.rank();
            let mut group = Survivors::new(comm);
            let broadcast = |comm: &Communicator| {
                let mut data = [rank as f32; 2];
                comm.broadcast(&mut data, 0).map(|()| data[0])
            };
            if rank == 2 {
                news.wait_for(2);
            }
            let error = group.run_within(SHORT, broadcast).expect_err("one is late");
            assert!(is_over(&error), "rank {rank}: {error}");
            if rank != 2 {
                news.others_are_through();
            }
            assert_eq!(group.run_within(LONG, broadcast).expect("all are there"), 0.0);
        });
    });
}

/// Communicators that were split off before the step have its limit too, and so does a split within it.
#[test]
fn the_limit_holds_on_communicators_split_off() {
    within(LIMIT, "split off", || {
        let news = Late::new();
        Arrangement::Exchange.run(2, |comm| {
            let rank = comm.rank();
            let part = comm.split(Some(0), 0).expect("all call it").expect("a color");
            let mut group = Survivors::new(comm);
            let error = group.run_within(SHORT, |comm| {
                if rank == 1 {
                    news.wait_for(1);
                    return Ok(());
                }
                let error = part.barrier().expect_err("rank 1 does not come");
                assert!(is_over(&error), "{error}");
                let error = comm.split(Some(0), 0).expect_err("nor here");
                assert!(is_over(&error), "{error}");
                news.others_are_through();
                Err::<(), _>(error)
            });
            assert!(error.is_err(), "rank {rank}");
            assert_eq!(sum(&mut group, LONG, 1.0).expect("all are there"), 2.0);
        });
    });
}

/// A limit does not keep the survivors from repeating a step after a loss.
#[test]
fn a_loss_within_the_time_is_a_loss() {
    within(LIMIT, "left", || {
        Arrangement::Exchange.run(3, |comm| {
            if comm.rank() == 1 {
                return;
            }
            let mut group = Survivors::new(comm);
            assert_eq!(sum(&mut group, LONG, 1.0).expect("two live"), 2.0);
            assert_eq!(sum(&mut group, LONG, 1.0).expect("and go on"), 2.0);
        });
    });
}

#[test]
fn without_time_no_rank_begins_to_make_a_communicator() {
    within(LIMIT, "no time", || {
        let all = Barrier::new(3);
        Arrangement::Tcp.run(3, |comm| {
            for _ in 0..20 {
                all.wait();
                let error = comm.shrink_within(Duration::ZERO).expect_err("no time");
                assert!(matches!(error, Error::Aborted { kind: AbortReason::Timeout, .. }), "{error}");
            }
            assert_eq!(comm.shrink_within(LONG).expect("all are there").world_size(), 3);
        });
    });
}

/// Without a limit the communicator's own time-out applies, even after a step with a limit.
#[test]
fn the_limit_ends_with_its_step() {
    within(LIMIT, "the limit", || {
        Arrangement::Exchange.run(2, |comm| {
            let mut group = Survivors::new(comm);
            assert_eq!(sum(&mut group, LONG, 1.0).expect("both"), 2.0);
            // This takes longer than a limit of zero allows.
            let done = group.run_within(Duration::ZERO, |_| Ok(()));
            assert!(done.is_ok() || is_over(&done.expect_err("no result")), "who comes first, decides");
            let mut total = [0.0_f32];
            group.all_reduce(&[1.0], &mut total, ReduceOp::Sum).expect("both");
            assert_eq!(total, [2.0]);
        });
    });
}

/// A call's messages share its limit, though each of them comes soon after the one before. Otherwise, the call would
/// succeed.
#[test]
fn the_messages_of_a_group_share_one_limit() {
    const LIMIT_OF_ALL: Duration = Duration::from_secs(1);
    const BETWEEN: Duration = Duration::from_millis(100);
    within(LIMIT, "a group of messages", || {
        let (tell, told) = channel();
        let told = Mutex::new(told);
        Arrangement::Exchange.run(2, |comm| {
            if comm.rank() == 1 {
                let told = told.lock().unpoisoned();
                while told.recv_timeout(BETWEEN).is_err() && comm.send(&[1_u8], 0).is_ok() {}
                return;
            }
            let mut data = [0_u8; 60];
            let batch = data.chunks_mut(1).fold(comm.batch(), |batch, byte| batch.recv(byte, 1));
            let done = batch.run_within(LIMIT_OF_ALL);
            tell.send(()).expect("rank 1 listens");
            let error = done.expect_err("not all messages can come in this time");
            assert!(matches!(error, Error::Timeout { after, .. } if after == LIMIT_OF_ALL), "{error}");
        });
    });
}
