//! Newcomers join a working group, among threads: the guarantees if no rank dies, and the requests that are
//! refused.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use kolo::{Communicator, Error, Invitation, JoinFailure, ReduceOp, Survivors};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);

/// Returns the sum of all ranks' numbers.
fn sum(comm: &Communicator, own: f32) -> f32 {
    let mut data = [own; 3];
    comm.all_reduce(&mut data, ReduceOp::Sum).expect("a healthy communicator");
    data[2]
}

/// Waits until `count` newcomers wait at all ports together. All ranks call it.
fn until_waiting(comm: &Communicator, count: u32) {
    while sum(comm, comm.waiting() as f32) < count as f32 {
        std::thread::yield_now();
    }
}

/// The place of an invitation.
#[derive(Default)]
struct Letterbox(Mutex<Option<String>>);

impl Letterbox {
    fn put(&self, invitation: &Invitation) {
        *self.0.lock().expect("no panic") = Some(invitation.to_string());
    }

    fn take(&self) -> Invitation {
        loop {
            if let Some(text) = &*self.0.lock().expect("no panic") {
                return text.parse().expect("what accept gave");
            }
            std::thread::yield_now();
        }
    }
}

/// Runs members, and newcomers that join by the invitation of the member `invites`.
fn with_newcomers(
    arrangement: Arrangement,
    (ranks, newcomers, invites): (u32, u32, u32),
    member: impl Fn(Communicator) + Sync,
    newcomer: impl Fn(kolo::CommunicatorBuilder) + Sync,
) {
    let letterbox = Letterbox::default();
    std::thread::scope(|scope| {
        for number in 0..newcomers {
            let (letterbox, newcomer) = (&letterbox, &newcomer);
            scope.spawn(move || {
                let invitation = letterbox.take();
                let config = arrangement.config(ranks + number);
                newcomer(Communicator::builder().config(config).invitation(invitation));
            });
        }
        arrangement.run(ranks, |comm| {
            if comm.rank() == invites {
                letterbox.put(&comm.accept().expect("a listener"));
            }
            member(comm);
        });
    });
}

#[test]
fn newcomers_become_members() {
    for arrangement in Arrangement::ALL {
        within(LIMIT, "grow", move || {
            with_newcomers(
                arrangement,
                (3, 2, 1),
                |comm| {
                    until_waiting(&comm, 2);
                    let begun = Instant::now();
                    let next = comm.grow(8).expect("all live");
                    let took = begun.elapsed();
                    if comm.rank() == 0 {
                        println!("{arrangement:?}: grown from 3 to 5 in {:.1} ms", took.as_secs_f64() * 1e3);
                    }
                    assert_eq!((next.world_size(), next.rank(), next.epoch()), (5, comm.rank(), 1));
                    assert_eq!(next.ranks_before(), [Some(0), Some(1), Some(2), None, None]);
                    assert_eq!((next.slots(), next.waiting()), (vec![0, 1, 2, 3, 4], 0));
                    assert_eq!((sum(&next, 1.0), sum(&comm, 1.0)), (5.0, 3.0), "both work");
                    let last = next.shrink().expect("all live");
                    assert_eq!((sum(&last, 1.0), last.epoch()), (5.0, 2));
                },
                |builder| {
                    let comm = builder.connect().expect("it is taken in");
                    assert!(comm.rank() >= 3 && comm.epoch() == 1);
                    assert_eq!(comm.ranks_before(), [Some(0), Some(1), Some(2), None, None]);
                    assert_eq!(sum(&comm, 1.0), 5.0);
                    assert_eq!(sum(&comm.shrink().expect("all live"), 1.0), 5.0);
                },
            );
        });
    }
}

#[test]
fn newcomers_take_the_slots_of_the_lost() {
    within(LIMIT, "replace", || {
        with_newcomers(
            Arrangement::Shm,
            (4, 2, 3),
            |comm| {
                let error = comm.replace().expect_err("all slots are held");
                assert!(matches!(error, Error::Usage { .. }), "{error}");
                assert!(error.to_string().contains("none of the 4 slots is free"), "{error}");
                if [0, 2].contains(&comm.rank()) {
                    return;
                }
                let left = comm.shrink().expect("two live");
                assert_eq!((left.slots(), left.ranks_before()), (vec![1, 3], vec![Some(1), Some(3)]));
                until_waiting(&left, 2);
                let next = left.replace().expect("two wait");
                assert_eq!((next.rank(), next.slots()), (comm.rank(), vec![0, 1, 2, 3]), "as at first");
                assert_eq!(next.ranks_before(), [None, Some(0), None, Some(1)]);
                assert_eq!((sum(&next, 1.0), next.epoch()), (4.0, 2));
            },
            |builder| {
                let comm = builder.connect().expect("it is taken in");
                assert_eq!((comm.rank() % 2, sum(&comm, 1.0)), (0, 4.0));
            },
        );
    });
}

#[test]
fn who_would_have_a_slot_has_that_one() {
    within(LIMIT, "slots", || {
        let refused = Mutex::new(0);
        with_newcomers(
            Arrangement::Tcp,
            (3, 2, 2),
            |comm| {
                if comm.rank() < 2 {
                    return;
                }
                let left = comm.shrink().expect("one lives");
                until_waiting(&left, 2);
                // Two newcomers want one slot, so one of them is refused.
                let next = left.replace().expect("one fits");
                assert_eq!((next.slots(), sum(&next, 1.0)), (vec![1, 2], 2.0));
                assert_eq!(next.waiting(), 0);
            },
            |builder| match builder.slot(1).connect() {
                Ok(comm) => assert_eq!((comm.rank(), sum(&comm, 1.0)), (0, 2.0)),
                Err(error) => {
                    assert!(matches!(error, Error::Join { kind: JoinFailure::Disagreement, .. }), "{error}");
                    assert!(error.to_string().contains("another newcomer has taken slot 1"), "{error}");
                    *refused.lock().expect("no panic") += 1;
                }
            },
        );
        assert_eq!(refused.into_inner().expect("no panic"), 1);
    });
}

#[test]
fn what_makes_no_sense_is_an_error_on_all_ranks_and_changes_nothing() {
    within(LIMIT, "misuse", || {
        Arrangement::Exchange.run(3, |comm| {
            let told = |error: Error| {
                assert!(matches!(error, Error::Usage { .. }), "{error}");
                error.to_string()
            };
            let error = told(comm.grow(2).expect_err("fewer than there are"));
            assert!(error.contains("the group has 3 ranks, which is more than 2"), "{error}");
            let error = told(comm.grow(5000).expect_err("too many"));
            assert!(error.contains("5000 ranks are more than the 4096"), "{error}");
            let most = if comm.rank() == 1 { u32::MAX } else { 4 };
            let error = told(comm.grow(most).expect_err("one makes no sense"));
            assert!(error.contains("grow to at most"), "{error}");
            let error = told(comm.grow(4 + comm.rank()).expect_err("not the same"));
            assert!(error.contains("grow to at most"), "{error}");
            assert_eq!(sum(&comm, 1.0), 3.0, "the communicator is as it was");
            let next = comm.grow(4).expect("nobody waits");
            assert_eq!((sum(&next, 1.0), next.epoch(), next.world_size()), (3.0, 1, 3));
        });
    });
}

#[test]
fn a_newcomer_that_is_not_taken_in_goes_on_waiting_or_gives_up() {
    within(LIMIT, "full", || {
        with_newcomers(
            Arrangement::Shm,
            (2, 2, 0),
            |comm| {
                until_waiting(&comm, 2);
                let next = comm.grow(3).expect("one fits");
                assert_eq!((sum(&next, 1.0), sum(&next, next.waiting() as f32)), (3.0, 1.0));
                while sum(&next, next.waiting() as f32) > 0.0 {}
            },
            |builder| match builder.wait_at_most(Duration::from_secs(6)).connect() {
                Ok(comm) => {
                    assert_eq!((sum(&comm, 1.0), sum(&comm, comm.waiting() as f32)), (3.0, 1.0));
                    while sum(&comm, comm.waiting() as f32) > 0.0 {}
                }
                Err(error) => assert!(error.to_string().contains("within its time limit"), "{error}"),
            },
        );
    });
}

#[test]
fn a_group_of_survivors_takes_newcomers_in_between_steps() {
    within(LIMIT, "survivors", || {
        let changes = Mutex::new(Vec::new());
        let steps = |comm: Communicator| {
            let (changes, rank) = (&changes, comm.rank());
            let (tell, told) = std::sync::mpsc::channel();
            let mut group = Survivors::new(comm)
                .up_to(5)
                .on_change(move |change| tell.send(change.clone()).expect("read"));
            let mut sum = [0.0];
            while sum != [5.0] {
                group.admit().expect("all live");
                group.all_reduce(&[1.0_f32], &mut sum, ReduceOp::Sum).expect("all live");
            }
            let told: Vec<_> =
                told.try_iter().map(|change| (change.left, change.came, change.world_size)).collect();
            changes.lock().expect("no panic").push((rank, told));
        };
        with_newcomers(Arrangement::Exchange, (3, 2, 1), steps, |builder| {
            steps(builder.connect().expect("it is taken in"));
        });
        let changes = changes.into_inner().expect("no panic");
        assert_eq!(changes.len(), 5);
        for (rank, told) in changes {
            let all: Vec<u32> = told.iter().flat_map(|(_, came, _)| came.clone()).collect();
            assert!(
                told.iter().all(|(left, _, _)| left.is_empty()) && all.ends_with(&[4]),
                "{rank}: {told:?}"
            );
        }
    });
}

#[test]
fn newcomers_need_no_unique_id() {
    within(LIMIT, "unique id", || {
        let id = kolo::UniqueId::new(Some("127.0.0.1")).expect("a free port");
        let letterbox = Letterbox::default();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let letterbox = &letterbox;
                scope.spawn(move || {
                    let spec = id.join_spec(2, rank).expect("it is one");
                    let config = Arrangement::Tcp.config(rank);
                    let comm =
                        Communicator::builder().config(config).join(spec).connect().expect("both come");
                    if rank == 0 {
                        letterbox.put(&comm.accept().expect("a listener"));
                    }
                    until_waiting(&comm, 1);
                    assert_eq!(sum(&comm.grow(3).expect("all live"), 1.0), 3.0);
                });
            }
            let config = Arrangement::Tcp.config(2);
            let comm = Communicator::builder().config(config).invitation(letterbox.take()).connect();
            assert_eq!(sum(&comm.expect("the invitation is enough"), 1.0), 3.0);
        });
    });
}
