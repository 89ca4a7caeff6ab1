//! Communicators of some of the ranks, and messages between two ranks.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use kolo::{AbortReason, Communicator, Error, LossCause, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{Gate, bounded};

fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(ranks, |comm| body(&comm));
        });
    }
}

/// Sums `value` over all ranks, and checks the sum against `want` on every rank.
fn sum(comm: &Communicator, value: u32, want: u32) {
    for elements in [1, 5000] {
        let mut data = vec![value; elements];
        comm.all_reduce(&mut data, ReduceOp::Sum).expect("all call it");
        assert!(
            data.iter().all(|v| *v == want),
            "rank {} of {}: {}",
            comm.rank(),
            comm.world_size(),
            data[0]
        );
    }
}

#[test]
fn split_by_colour_and_key() {
    everywhere(6, |comm| {
        let rank = comm.rank();
        // Even and odd ranks in reverse order; rank 5 stays out.
        let color = (rank != 5).then_some(rank % 2);
        let part = comm.split(color, 10 - rank).expect("all call it");
        match part {
            None => assert_eq!(rank, 5),
            Some(part) if rank % 2 == 0 => {
                assert_eq!((part.world_size(), part.rank()), (3, (4 - rank) / 2));
                sum(&part, rank, 6);
            }
            Some(part) => {
                assert_eq!((part.world_size(), part.rank()), (2, (3 - rank) / 2));
                sum(&part, rank, 4);
            }
        }
        sum(comm, 1, 6);
        let nobody = comm.split(None, 0).expect("all call it");
        assert!(nobody.is_none());
        // Equal keys keep the order, and any number is a colour.
        let all = comm.split(Some(u32::MAX), 7).expect("all call it").expect("everybody is in");
        assert_eq!((all.rank(), all.world_size()), (rank, 6));
        sum(&all, rank, 15);
    });
}

#[test]
fn keys_are_of_either_sign() {
    everywhere(4, |comm| {
        let rank = comm.rank();
        let keys: [i64; 4] = [7, -1, i64::MIN, -1];
        let part = comm.split(Some(0), keys[rank as usize]).expect("all call it").expect("everybody is in");
        assert_eq!(part.rank(), [3, 1, 0, 2][rank as usize]);
        sum(&part, 1, 4);
    });
}

#[test]
fn what_one_rank_gets_wrong_all_hear_and_later_splits_are_in_step() {
    everywhere(3, |comm| {
        let rank = comm.rank();
        let begin = std::time::Instant::now();
        let error = match rank {
            1 => comm.refuse_split("its key is a plum\u{1b}[2J"),
            _ => comm.split(Some(0), 0).expect_err("rank 1 cannot take part"),
        };
        assert!(matches!(error, Error::Usage { .. }), "{error:?}");
        assert!(
            error.to_string().contains("rank 1 cannot take part: its key is a plum\\u{1b}[2J"),
            "{error}"
        );
        assert!(begin.elapsed() < std::time::Duration::from_secs(30), "nobody waits for the time-out");
        let color = if rank == 0 { 4 } else { 5 };
        let part = comm.split(Some(color), 0).expect("all call it").expect("everybody is in one");
        sum(&part, 1, if rank == 0 { 1 } else { 2 });
        sum(comm, 1, 3);
    });
}

/// A rank that drops a part on an error lives on, and has other communicators.
#[test]
fn ranks_do_not_wait_for_one_that_has_dropped_their_communicator() {
    everywhere(3, |comm| {
        let rank = comm.rank();
        let part = comm.split((rank < 2).then_some(0), 0).expect("all call it");
        match part {
            Some(part) if rank == 0 => {
                let error = part.barrier().expect_err("rank 1 has dropped it");
                assert!(matches!(error, Error::PeerLost { peer: 1, cause: LossCause::Left, .. }), "{error}");
                assert!(error.to_string().contains("dropped its communicator"), "{error}");
            }
            part => drop(part),
        }
        sum(comm, 1, 3);
    });
}

#[test]
fn groups_and_nested_groups() {
    everywhere(5, |comm| {
        let rank = comm.rank();
        if [3, 1, 4].contains(&rank) {
            let group = comm.group(&[3, 1, 4]).expect("its ranks call it");
            assert_eq!(group.rank(), [3, 1, 4].iter().position(|r| *r == rank).unwrap() as u32);
            sum(&group, 1 << rank, (1 << 3) + (1 << 1) + (1 << 4));
            if group.rank() != 1 {
                let nested = group.group(&[2, 0]).expect("its ranks call it");
                sum(&nested, 1 << rank, (1 << 4) + (1 << 3));
                let twice = group.group(&[2, 0]).expect("the same ranks once more");
                sum(&twice, 1, 2);
                sum(&nested, 1, 2);
            }
            sum(&group, 1, 3);
        }
        let alone = comm.group(&[rank]).expect("oneself");
        sum(&alone, 9, 9);
        sum(comm, 1, 5);
    });
}

#[test]
fn children_outlive_their_parent() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(4, |comm| {
                let half = comm.split(Some(comm.rank() / 2), 0).expect("all call it").expect("a half");
                drop(comm);
                sum(&half, 1, 2);
                let alone = half.split(Some(half.rank()), 0).expect("all call it").expect("oneself");
                drop(half);
                sum(&alone, 3, 3);
            });
        });
    }
}

#[test]
fn parts_go_on_when_world_rank_0_has_left() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
        bounded(&format!("{arrangement:?}"), move || {
            let gone = AtomicBool::new(false);
            arrangement.run(3, |comm| {
                let part = comm.split((comm.rank() > 0).then_some(1), 0).expect("all call it");
                let Some(part) = part else {
                    // This rank runs the control plane, and waits some seconds for the others' goodbyes.
                    drop((part, comm));
                    return gone.store(true, Ordering::SeqCst);
                };
                drop(comm);
                let mut over = [0_u8];
                while over[0] == 0 {
                    sum(&part, 1, 2);
                    over[0] = u8::from(gone.load(Ordering::SeqCst));
                    part.broadcast(&mut over, 1).expect("rank 0 is not needed");
                }
                (0..100).for_each(|_| sum(&part, 1, 2));
            });
        });
    }
}

#[test]
fn a_broken_child_leaves_its_parent_alone() {
    everywhere(3, |comm| {
        let child = comm.split(Some(0), 0).expect("all call it").expect("everybody");
        if comm.rank() == 0 {
            child.abort("only this one");
        }
        let error = child.recv(&mut [0_u8], (comm.rank() + 1) % 3).expect_err("aborted");
        assert!(error.to_string().contains("only this one"), "{error}");
        sum(comm, 2, 6);
    });
}

/// Waits until the communicator has failed.
fn failed(comm: &Communicator) -> Error {
    loop {
        if let Some(error) = comm.error() {
            return error;
        }
        std::thread::yield_now();
    }
}

#[test]
fn ranks_that_make_a_group_do_not_wait_for_one_whose_communicator_was_aborted() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            // All stay until all have their errors.
            let gate = Gate::new(3);
            arrangement.run(3, |comm| {
                let error = match comm.rank() {
                    0 => {
                        comm.recv(&mut [0_u8], 1).expect("rank 1 sends");
                        comm.abort("enough");
                        failed(&comm)
                    }
                    1 => {
                        comm.send(&[0_u8], 0).expect("rank 0 receives");
                        comm.group(&[1, 2]).map(drop).expect_err("rank 2 does not come")
                    }
                    _ => failed(&comm),
                };
                let Error::Aborted { by: 0, kind: AbortReason::Requested, reason, .. } = error else {
                    panic!("{error}")
                };
                assert_eq!(reason, "enough");
                gate.wait();
            });
        });
    }
}

#[test]
fn ranks_that_make_a_group_do_not_wait_for_one_that_has_given_up_after_a_loss() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let panicked = |comm: Communicator| {
                catch_unwind(AssertUnwindSafe(move || {
                    let _dropped = comm;
                    resume_unwind(Box::new("on purpose"))
                }))
            };
            // World rank 0 carries the control plane until all have their errors.
            let gate = Gate::new(3);
            arrangement.run(4, |comm| {
                let error = match comm.rank() {
                    0 => failed(&comm),
                    3 => return panicked(comm).expect_err("on purpose"),
                    1 => comm.group(&[1, 2]).map(drop).expect_err("rank 2 does not come"),
                    _ => comm.barrier().expect_err("rank 3 does not come"),
                };
                assert!(matches!(error, Error::PeerLost { peer: 3, .. }), "{error}");
                gate.wait();
                Box::new(())
            });
        });
    }
}

#[test]
fn a_step_that_misses_world_rank_0_says_so_to_all() {
    bounded("a step without rank 0", || {
        Arrangement::Exchange.run(3, |comm| {
            let part = comm.split((comm.rank() > 0).then_some(1), 0).expect("all call it");
            // Without another communicator, world rank 0 waits some seconds for the others' goodbyes and leaves.
            drop(comm);
            let Some(part) = part else { return };
            let error = match part.rank() {
                0 => part.alloc_raw(8).expect_err("rank 1 does not come"),
                _ => failed(&part),
            };
            let is_right = matches!(error, Error::Aborted { kind: AbortReason::CoordinatorLost, .. });
            assert!(is_right, "rank {}: {error}", part.rank());
        });
    });
}

#[test]
fn many_communicators_with_interleaved_traffic() {
    everywhere(4, |comm| {
        let rank = comm.rank();
        let comms: Vec<Communicator> = (0..12)
            .map(|i| {
                comm.split(Some(rank / 2 * (i % 2)), i).expect("all call it").expect("everybody is in one")
            })
            .collect();
        for round in 0..4 {
            // Started in one order, completed in another.
            let works: Vec<_> = comms
                .iter()
                .map(|c| c.all_reduce_start(vec![1_u32; 1 + 3000 * round], ReduceOp::Sum).expect("starts"))
                .collect();
            for c in &comms {
                sum(c, 1, c.world_size());
            }
            for (c, work) in comms.iter().zip(works).rev() {
                assert_eq!(work.wait().expect("done")[0], c.world_size());
            }
        }
    });
}

#[test]
fn rings_and_cycles() {
    everywhere(5, |comm| {
        let (rank, ranks) = (comm.rank(), comm.world_size());
        let (right, left) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
        for elements in [0, 1, 100, 500_000] {
            let mut got = vec![0_u32; elements];
            comm.send_recv(&vec![rank; elements], right, &mut got, left).expect("a ring");
            assert!(got.iter().all(|v| *v == left));
            // Every rank exchanges with every rank, itself included, with receives first in the list.
            let mut from_all = vec![vec![0_u32; elements]; ranks as usize];
            let own = vec![rank + 10; elements];
            let mut batch = comm.batch();
            for (from, buffer) in from_all.iter_mut().enumerate() {
                batch = batch.recv(buffer, from as u32);
            }
            for to in 0..ranks {
                batch = batch.send(&own, to);
            }
            batch.run().expect("everybody with everybody");
            for (from, buffer) in from_all.iter().enumerate() {
                assert!(buffer.iter().all(|v| *v == from as u32 + 10));
            }
        }
        comm.batch().run().expect("nothing to do");
    });
}

#[test]
fn many_messages_keep_their_order() {
    everywhere(2, |comm| {
        let peer = 1 - comm.rank();
        let values: Vec<u64> = (0..2000).collect();
        let mut got = vec![u64::MAX; 2000];
        let mut batch = comm.batch();
        for value in &values {
            batch = batch.send(std::slice::from_ref(value), peer);
        }
        for slot in got.chunks_mut(1) {
            batch = batch.recv(slot, peer);
        }
        batch.run().expect("all of them");
        assert_eq!(got, values);
        // Messages to the rank itself, in one batch, longer than any buffer.
        let mut own = vec![0_u64; 100_000];
        let data = vec![comm.rank().into(); 100_000];
        comm.send_recv(&data, comm.rank(), &mut own, comm.rank()).expect("to oneself");
        assert_eq!(own, data);
    });
}

#[test]
fn long_messages_both_ways() {
    everywhere(2, |comm| {
        let peer = 1 - comm.rank();
        let elements = (64 << 20) / 8;
        let mut got = vec![0_u64; elements];
        let sent: Vec<u64> = (0..elements as u64).map(|i| i ^ (u64::from(comm.rank()) << 40)).collect();
        comm.send_recv(&sent, peer, &mut got, peer).expect("64 MiB both ways");
        assert!((0..elements as u64).zip(&got).all(|(i, v)| *v == i ^ (u64::from(peer) << 40)));
    });
}

#[test]
fn messages_and_collectives_do_not_meet() {
    everywhere(3, |comm| {
        let rank = comm.rank();
        for round in 0..20_u32 {
            let work = comm.all_reduce_start(vec![1_u32; 3000], ReduceOp::Sum).expect("starts");
            if rank == 0 {
                comm.send(&[round; 3], 2).expect("sent");
            }
            sum(comm, 1, 3);
            if rank == 2 {
                let mut got = [0; 3];
                comm.recv(&mut got, 0).expect("received");
                assert_eq!(got, [round; 3]);
            }
            assert_eq!(work.wait().expect("done")[0], 3);
        }
    });
}
