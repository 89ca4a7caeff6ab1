//! Several threads of one rank.

use std::time::{Duration, Instant};

use kolo::{Communicator, Config, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::bounded;

fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(ranks, |comm| body(&comm));
        });
    }
}

fn sums(comm: &Communicator, rounds: usize) {
    for round in 0..rounds {
        let mut data = vec![1_u32; [1, 300, 50_000][round % 3]];
        comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it");
        assert!(data.iter().all(|v| *v == comm.world_size()));
    }
}

#[test]
fn two_communicators_of_the_same_ranks_at_the_same_time() {
    everywhere(3, |comm| {
        let other = comm.split(Some(0), 0).expect("all call it").expect("everybody");
        std::thread::scope(|scope| {
            scope.spawn(|| sums(&other, 60));
            sums(comm, 60);
        });
    });
}

#[test]
fn one_communicator_for_messages_to_different_peers() {
    everywhere(4, |comm| {
        let rank = comm.rank();
        std::thread::scope(|scope| {
            for peer in (0..4).filter(|peer| *peer != rank) {
                scope.spawn(move || {
                    for round in 0..50_u32 {
                        let elements = [1, 100, 40_000][round as usize % 3];
                        let sent = vec![rank * 1000 + round; elements];
                        let mut got = vec![0; elements];
                        comm.send_recv(&sent, peer, &mut got, peer).expect("the peer does the same");
                        assert!(got.iter().all(|v| *v == peer * 1000 + round));
                    }
                });
            }
        });
        comm.barrier().expect("as it was");
    });
}

#[test]
fn messages_in_one_thread_and_collectives_in_another() {
    everywhere(3, |comm| {
        let (right, left) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..100_u32 {
                    let mut got = [0; 10];
                    comm.send_recv(&[round; 10], right, &mut got, left).expect("a ring");
                    assert_eq!(got, [round; 10]);
                }
            });
            sums(comm, 100);
        });
    });
}

#[test]
fn handles_are_waited_for_in_other_threads() {
    everywhere(2, |comm| {
        let works: Vec<_> = (1..20)
            .map(|i| comm.all_reduce_start(vec![1_u32; 1000 * i], ReduceOp::Sum).expect("starts"))
            .collect();
        std::thread::scope(|scope| {
            for work in works {
                scope.spawn(move || assert!(work.wait().expect("done").iter().all(|v| *v == 2)));
            }
            sums(comm, 20);
        });
    });
}

/// Makes two calls in two threads of rank 0, and one after the other on rank 1. The second thread's call begins while the
/// first one still waits for rank 1.
fn in_an_agreed_order(comm: &Communicator, first: impl Fn() + Sync, second: impl Fn() + Sync) {
    if comm.rank() == 1 {
        comm.recv(&mut [0_u8], 0).expect("rank 0 has begun both");
        first();
        second();
        return;
    }
    std::thread::scope(|scope| {
        let before = comm.recent().len();
        // A call gets its number when it begins.
        let has_begun = |calls| {
            while comm.recent().len() < before + calls {
                std::thread::yield_now();
            }
        };
        scope.spawn(&first);
        has_begun(1);
        scope.spawn(&second);
        has_begun(2);
        comm.send(&[1_u8], 1).expect("sent");
    });
}

fn sum(comm: &Communicator, elements: usize) {
    let mut data = vec![1_u32; elements];
    comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it");
    assert!(data.iter().all(|v| *v == comm.world_size()));
}

#[test]
fn collectives_of_two_threads_in_an_agreed_order() {
    everywhere(2, |comm| {
        in_an_agreed_order(comm, || sum(comm, 1), || comm.barrier().expect("the second call"));
    });
}

#[test]
fn a_call_that_asks_for_symmetric_buffers_keeps_its_place() {
    // Its own memory is not symmetric, so it goes another way: through the exchange, or by a plan.
    for exchange_bytes in [None, Some(1000)] {
        bounded(&format!("exchange of at most {exchange_bytes:?} bytes"), move || {
            let change = |config: Config| config.with(|config| config.exchange_bytes = exchange_bytes);
            Arrangement::Exchange.run_with(2, change, |comm| {
                let _symmetric = comm.alloc::<u8>(1).expect("all allocate");
                let comm = &comm;
                in_an_agreed_order(comm, || sum(comm, 50_000), || comm.barrier().expect("the second call"));
                // Too short to ask.
                in_an_agreed_order(comm, || sum(comm, 50_000), || sum(comm, 5_000));
                in_an_agreed_order(comm, || sum(comm, 50_000), || sum(comm, 60_000));
            });
        });
    }
}

#[test]
fn a_call_on_symmetric_buffers_gives_up_the_place_that_it_has_kept() {
    bounded("symmetric", || {
        let change = |config: Config| config.with(|config| config.exchange_bytes = Some(1000));
        Arrangement::Exchange.run_with(2, change, |comm| {
            let symmetric = std::sync::Mutex::new(comm.alloc::<u32>(50_000).expect("all allocate"));
            let comm = &comm;
            let first = || {
                let mut data = symmetric.lock().expect("no panic");
                comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it");
            };
            in_an_agreed_order(comm, first, || sum(comm, 5_000));
            assert!(comm.recent().iter().all(|call| call.took.is_some()));
        });
    });
}

/// Calls that each of two threads of a rank makes.
#[derive(Clone, Copy, Debug)]
enum Calls {
    Blocking,
    Started,
}

impl Calls {
    /// Makes all-reduces of `elements` elements. Both threads of a rank make the same calls, so they match in any
    /// order.
    fn run(self, comm: &Communicator, calls: usize, elements: usize) {
        for _ in 0..calls {
            let mut data = vec![1_u32; elements];
            match self {
                Self::Blocking => comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it"),
                Self::Started => {
                    let work = comm.all_reduce_start(data, ReduceOp::Sum).expect("all start it");
                    data = work.wait().expect("all start it");
                }
            }
            assert!(data.iter().all(|v| *v == comm.world_size()));
        }
    }

    /// Runs both threads of all ranks at once; returns the time of rank 0.
    fn in_two_threads(self, ranks: u32, calls: usize, elements: usize) -> Duration {
        let change = |config: Config| config.with(|config| config.timeout = Duration::from_secs(15));
        let times = Arrangement::Exchange.run_with(ranks, change, |comm| {
            comm.barrier().expect("all are there");
            let begin = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| self.run(&comm, calls, elements));
                self.run(&comm, calls, elements);
            });
            begin.elapsed()
        });
        times[0]
    }
}

#[test]
fn blocking_calls_of_two_threads_on_one_communicator() {
    for (ranks, calls, elements) in
        [(2, 100, 256), (4, 200, 256), (8, 50, 2), (4, 10, 200_000), (8, 6, 200_000)]
    {
        let what = format!("{ranks} ranks, two threads, {calls} calls of {elements} elements each");
        bounded(&what.clone(), move || {
            let time = Calls::Blocking.in_two_threads(ranks, calls, elements);
            println!("{what}: {time:.1?}");
        });
    }
}

#[test]
fn started_calls_of_two_threads_on_one_communicator() {
    for (ranks, calls, elements) in [(4, 100, 256), (8, 30, 256), (4, 10, 200_000)] {
        bounded(&format!("{ranks} ranks, {calls} calls of {elements} elements"), move || {
            Calls::Started.in_two_threads(ranks, calls, elements);
        });
    }
}

#[test]
fn blocking_calls_beside_started_ones_of_another_thread() {
    // The two kinds do not match each other, so the threads agree on an order: the second call begins after the first.
    for (ranks, elements) in [(4, 256), (8, 2), (4, 200_000)] {
        bounded(&format!("{ranks} ranks, {elements} elements"), move || {
            let change = |config: Config| config.with(|config| config.timeout = Duration::from_secs(15));
            Arrangement::Exchange.run_with(ranks, change, |comm| {
                let comm = &comm;
                let last = || comm.recent().last().map_or(0, |record| record.sequence);
                for round in 0..20 {
                    let blocking_first = round % 2 == 1;
                    let begun = last();
                    std::thread::scope(|scope| {
                        let blocking = || {
                            scope.spawn(|| Calls::Blocking.run(comm, 1, elements));
                        };
                        if blocking_first {
                            blocking();
                            while last() == begun {
                                std::thread::yield_now();
                            }
                        }
                        let started =
                            comm.all_reduce_start(vec![1_u32; elements], ReduceOp::Sum).expect("starts");
                        if !blocking_first {
                            blocking();
                        }
                        assert!(started.wait().expect("all start it").iter().all(|v| *v == ranks));
                    });
                }
            });
        });
    }
}

#[test]
fn two_threads_take_about_as_long_as_one() {
    bounded("two threads and one", || {
        let (ranks, calls, elements) = (4, 300, 256);
        let is_about_alike = || {
            let alone = Arrangement::Exchange.run(ranks, |comm| {
                comm.barrier().expect("all are there");
                let begin = Instant::now();
                Calls::Blocking.run(&comm, 2 * calls, elements);
                begin.elapsed()
            })[0];
            let together = Calls::Blocking.in_two_threads(ranks, calls, elements);
            println!("{} calls of one thread {alone:.1?}, of two {together:.1?}", 2 * calls);
            // Much more than it takes, and much less than it used to take: 13 ms a call.
            together < 50 * alone + Duration::from_secs(1)
        };
        // The machine may pause during one measurement, but hardly during three.
        assert!((0..3).any(|_| is_about_alike()), "two threads take much longer than one");
    });
}
