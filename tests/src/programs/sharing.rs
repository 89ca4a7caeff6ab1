//! Threads that use one communicator at the same time. Their collective calls begin in an order common to all ranks;
//! between them, each thread exchanges messages under a tag of its own.

use std::sync::{Condvar, Mutex};

use kolo::Communicator;
use kolo::internal::Unpoisoned;

use super::calls::{Finish, Memory, run};
use super::data::{Call, length};
use super::failure::Result;
use crate::random::Random;

/// Lets threads pass in the order of their numbers.
#[derive(Default)]
struct Turnstile {
    next: Mutex<usize>,
    moved: Condvar,
}

impl Turnstile {
    /// Runs `body` when all lower numbers have passed.
    fn pass<R>(&self, number: usize, body: impl FnOnce() -> R) -> R {
        let next = self.next.lock().unpoisoned();
        drop(self.moved.wait_while(next, |next| *next < number).unpoisoned());
        let result = body();
        *self.next.lock().unpoisoned() += 1;
        self.moved.notify_all();
        result
    }
}

/// An action of a thread.
enum Action {
    Call { call: Box<Call>, number: usize, is_started: bool },
    Ring { count: usize, number: u64 },
}

/// Runs threads that share the communicator. They use 3 tags from the first on.
pub(super) fn share(
    comm: &Communicator,
    memory: &Memory,
    (common, own): (&mut Random, &mut Random),
    (halved, first_tag): (u32, u32),
) -> Result {
    let mut threads: Vec<Vec<Action>> = (0..2 + common.index(2)).map(|_| Vec::new()).collect();
    // The messages of several threads are in no order, so that some must be buffered.
    let has_rings = comm.config().unexpected_bytes >= 8 << 20;
    let (mut number, all) = (0, threads.len());
    for _ in 0..2 + common.index(20) {
        let actions = &mut threads[common.index(all)];
        if has_rings && common.index(3) == 0 {
            let count = length(common, 8, halved + 1).min(100_000);
            actions.push(Action::Ring { count, number: common.number() });
        } else {
            let call = Box::new(Call::draw(common, comm.world_size() as usize, halved + 2));
            actions.push(Action::Call { call, number, is_started: common.index(2) == 0 });
            number += 1;
        }
    }
    let turnstile = &Turnstile::default();
    std::thread::scope(|scope| {
        let start = |(actions, tag): (Vec<Action>, u32)| {
            let mut own = Random::new(own.number());
            scope.spawn(move || {
                let mut later: Vec<Finish> = Vec::new();
                // The other threads wait for all numbers, so a failure does not end the loop.
                let mut result = Ok(());
                for action in actions {
                    let done = match action {
                        Action::Ring { count, number } => ring(comm, count, number, tag),
                        Action::Call { call, number, is_started } => turnstile
                            .pass(number, || run(comm, memory, *call, is_started, &mut own))
                            .map(|more| later.extend(more)),
                    };
                    result = result.and(done);
                    if !later.is_empty() && own.index(3) == 0 {
                        let done = later.swap_remove(own.index(later.len()))(&mut own);
                        result = result.and(done);
                    }
                }
                later.into_iter().map(|finish| finish(&mut own)).fold(result, Result::and)
            })
        };
        let threads: Vec<_> = threads.into_iter().zip(first_tag..).map(start).collect();
        let results = threads.into_iter().map(|thread| thread.join().expect("it does not panic"));
        results.fold(Ok(()), Result::and)
    })
}

/// Sends a message to the next rank, and receives one from the previous one.
fn ring(comm: &Communicator, count: usize, number: u64, tag: u32) -> Result {
    let (rank, ranks) = (comm.rank(), comm.world_size());
    let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let message = |from: u32| (0..count as u64).map(move |at| number ^ at << 8 ^ u64::from(from));
    let (sent, mut received) = (message(rank).collect::<Vec<u64>>(), vec![0; count]);
    comm.batch().send_tagged(&sent, right, tag).recv_tagged(&mut received, left, tag).run()?;
    match received.iter().copied().eq(message(left)) {
        true => Ok(()),
        false => Err(format!("a ring of {count} elements, tag {tag}, is wrong").into()),
    }
}
