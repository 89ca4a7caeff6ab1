//! Revoke, agree and shrink among threads: their guarantees without a death, and the calls that they refuse.

use std::time::{Duration, Instant};

use kolo::{AbortReason, Communicator, Error, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{Gate, within};

const LIMIT: Duration = Duration::from_secs(60);

fn sum(comm: &Communicator) -> f32 {
    let mut data = [1.0_f32];
    comm.all_reduce(&mut data, ReduceOp::Sum).expect("a healthy communicator");
    data[0]
}

#[test]
fn ranks_agree_on_the_bits_that_all_have_set() {
    within(LIMIT, "agree", || {
        for arrangement in Arrangement::ALL {
            let agreed = arrangement.run(3, |comm| {
                let first = comm.agree(0b1110 | u64::from(comm.rank())).expect("all live");
                let second = comm.agree(u64::MAX).expect("again");
                assert_eq!(sum(&comm), 3.0, "and the communicator is as it was");
                (first, second.flags)
            });
            for (first, second) in agreed {
                // The flags of the ranks are 1110, 1111 and 1110.
                assert_eq!((first.flags, &first.ranks[..], second), (0b1110, &[0, 1, 2][..], u64::MAX));
            }
        }
    });
}

#[test]
fn a_healthy_communicator_shrinks_to_its_like_and_goes_on() {
    within(LIMIT, "healthy", || {
        for arrangement in Arrangement::ALL {
            arrangement.run(4, |comm| {
                let next = comm.shrink().expect("all live");
                assert_eq!((next.world_size(), next.rank(), next.epoch()), (4, comm.rank(), 1));
                assert_eq!((sum(&next), sum(&comm)), (4.0, 4.0), "both work");
                let odd = next.split(Some(next.rank() % 2), 0).expect("a split").expect("all have colors");
                assert_eq!(odd.ranks_before(), [next.rank() % 2, next.rank() % 2 + 2].map(Some));
                let last = odd.shrink().expect("a part shrinks too");
                assert_eq!((last.world_size(), last.epoch(), sum(&last)), (2, 2, 2.0));
            });
        }
    });
}

#[test]
fn a_rank_that_has_left_is_not_waited_for() {
    within(LIMIT, "left", || {
        for leaver in [0, 2] {
            Arrangement::Shm.run(4, |comm| {
                if comm.rank() == leaver {
                    return;
                }
                let next = comm.shrink().expect("the others live");
                let expected: Vec<_> = (0..4).filter(|rank| *rank != leaver).map(Some).collect();
                assert_eq!((next.ranks_before(), sum(&next)), (expected, 3.0));
            });
        }
    });
}

#[test]
fn revoke_ends_calls_in_progress_on_all_ranks() {
    within(LIMIT, "revoke", || {
        for arrangement in Arrangement::ALL {
            arrangement.run(3, |comm| {
                assert_eq!(sum(&comm), 3.0);
                let begun = Instant::now();
                if comm.rank() == 1 {
                    comm.revoke();
                }
                // The others wait for rank 1, which never calls.
                let error = comm.barrier().expect_err("revoked");
                assert!(
                    matches!(error, Error::Aborted { kind: AbortReason::Revoked, by: 1, .. }),
                    "{arrangement:?}: {error}"
                );
                assert!(comm.is_revoked() && begun.elapsed() < Duration::from_secs(5));
                assert_eq!(comm.agree(7).expect("agreement works on").flags, 7);
                assert_eq!(sum(&comm.shrink().expect("and so does shrink")), 3.0);
            });
        }
    });
}

/// Ranks wait for live ones on communicators that were split off, too.
#[test]
fn revoke_ends_calls_on_communicators_split_off() {
    within(LIMIT, "revoke, split off", || {
        for arrangement in Arrangement::ALL {
            let begin = std::sync::Barrier::new(3);
            arrangement.run(3, |comm| {
                let part = comm.split(Some(u32::from(comm.rank() == 2)), 0).expect("all").expect("a color");
                let inner = part.duplicate(part.config().clone()).expect("all");
                begin.wait();
                match comm.rank() {
                    // Rank 1 never calls, and rank 2, which revokes, is no member.
                    0 => drop(inner.barrier().expect_err("revoked")),
                    1 => {
                        while inner.error().is_none() {
                            std::thread::yield_now();
                        }
                    }
                    _ => comm.revoke(),
                }
                for split_off in [&part, &inner] {
                    let error = split_off.barrier().expect_err("revoked");
                    assert!(matches!(error, Error::Aborted { kind: AbortReason::Revoked, .. }), "{error}");
                    assert!(split_off.is_revoked());
                }
                let next = comm.shrink().expect("all live");
                let part = next.split(Some(0), 0).expect("all call it").expect("a color");
                assert_eq!(sum(&part), 3.0);
            });
        }
    });
}

#[test]
fn different_calls_are_an_error_on_all_ranks() {
    within(LIMIT, "mismatch", || {
        Arrangement::Shm.run(3, |comm| {
            let error = match comm.rank() {
                2 => comm.agree(1).expect_err("the others shrink"),
                _ => comm.shrink().expect_err("rank 2 agrees"),
            };
            assert!(matches!(error, Error::Usage { .. }), "{error}");
            assert!(error.to_string().contains("same order"), "{error}");
            assert_eq!(sum(&comm), 3.0, "the communicator is as it was");
        });
    });
}

#[test]
fn who_does_not_call_is_named() {
    within(LIMIT, "late", || {
        let soon = |config: kolo::Config| config.with(|config| config.join_timeout = Duration::from_secs(3));
        let (callers, all) = (Gate::new(2), Gate::new(3));
        Arrangement::Shm.run_with(3, soon, |comm| {
            if comm.rank() == 2 {
                // This rank lives until the others have given up.
                while comm.error().is_none() {
                    std::thread::yield_now();
                }
                all.wait();
                return;
            }
            callers.wait();
            let error = comm.agree(1).expect_err("rank 2 does not come");
            let Error::Timeout { waiting_for, .. } = &error else { panic!("{error}") };
            if comm.rank() == 0 {
                assert_eq!(waiting_for.iter().map(|late| late.rank).collect::<Vec<_>>(), [2], "{error}");
            }
            comm.abort("enough");
            // A rank that left earlier would not be waited for by one that called later.
            all.wait();
        });
    });
}

#[test]
fn a_rank_alone_agrees_with_itself() {
    Arrangement::Shm.run(1, |comm| {
        assert_eq!(comm.agree(5).expect("alone").flags, 5);
        let next = comm.shrink().expect("alone");
        assert_eq!((next.world_size(), next.epoch(), sum(&next)), (1, 1, 1.0));
    });
}

#[test]
fn half_of_many_threads_may_go() {
    within(LIMIT, "many", || {
        Arrangement::Shm.run(64, |comm| {
            if comm.rank() % 2 == 0 {
                return;
            }
            let begun = Instant::now();
            let next = comm.shrink().expect("the odd ones are left");
            assert_eq!(sum(&next), 32.0);
            if next.rank() == 0 {
                let took = begun.elapsed();
                println!("64 threads, 32 left: shrunk after {:.1} ms", took.as_secs_f64() * 1e3);
            }
        });
    });
}
