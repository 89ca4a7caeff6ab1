//! Several threads of one rank.

use kolo::{Communicator, ReduceOp};
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

#[test]
fn collectives_of_two_threads_in_an_agreed_order() {
    // Two threads call in turns, and the second one's call begins while the first one's is still waiting for a peer.
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(2, |comm| {
                if comm.rank() == 1 {
                    comm.recv(&mut [0_u8], 0).expect("rank 0 has begun both");
                    sums(&comm, 1);
                    comm.barrier().expect("the second call");
                    return;
                }
                std::thread::scope(|scope| {
                    let first = scope.spawn(|| sums(&comm, 1));
                    // Numbers are given when a call begins.
                    while comm.recent().is_empty() {
                        std::thread::yield_now();
                    }
                    let second = scope.spawn(|| comm.barrier());
                    while comm.recent().len() < 2 {
                        std::thread::yield_now();
                    }
                    comm.send(&[1_u8], 1).expect("sent");
                    first.join().expect("no panic");
                    second.join().expect("no panic").expect("done");
                });
            });
        });
    }
}
