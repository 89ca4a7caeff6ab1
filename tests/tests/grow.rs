//! Newcomers join a group that is at work, among threads: what is promised when nobody dies, and what is refused.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use kolo::{Communicator, Config, Error, Invitation, JoinFailure, NEWCOMER, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::within;

const LIMIT: Duration = Duration::from_secs(60);

/// The sum of all ranks' numbers.
fn sum(comm: &Communicator, own: f32) -> f32 {
    let mut data = [own; 3];
    comm.all_reduce(&mut data, ReduceOp::Sum).expect("a healthy communicator");
    data[2]
}

/// Waits until so many newcomers wait, at all doors together. All ranks call it.
fn until_waiting(comm: &Communicator, count: u32) {
    while sum(comm, comm.waiting() as f32) < count as f32 {
        std::thread::yield_now();
    }
}

/// Where an invitation lies.
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

/// Runs members, and newcomers that join by the invitation of the member that `invites`.
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
                letterbox.put(&comm.accept().expect("a door"));
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
                    assert_eq!(next.ranks_before(), [0, 1, 2, NEWCOMER, NEWCOMER]);
                    assert_eq!((next.slots(), next.waiting()), (vec![0, 1, 2, 3, 4], 0));
                    assert_eq!((sum(&next, 1.0), sum(&comm, 1.0)), (5.0, 3.0), "both work");
                    let last = next.shrink().expect("all live");
                    assert_eq!((sum(&last, 1.0), last.epoch()), (5.0, 2));
                },
                |builder| {
                    let comm = builder.connect().expect("it is taken in");
                    assert!(comm.rank() >= 3 && comm.epoch() == 1);
                    assert_eq!(comm.ranks_before(), [0, 1, 2, NEWCOMER, NEWCOMER]);
                    assert_eq!(sum(&comm, 1.0), 5.0);
                    assert_eq!(sum(&comm.shrink().expect("all live"), 1.0), 5.0);
                },
            );
        });
    }
}
