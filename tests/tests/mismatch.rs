//! Calls that do not match across ranks are errors on all of them, within a short time.

use std::time::{Duration, Instant};

use kolo::{Communicator, Error, ReduceOp, Result};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::watchdog::{bounded, quickest};

/// A rank that is late for a call that the others have finished learns that it is not to blame.
#[test]
fn a_call_before_the_one_that_differs_is_said_to_match() {
    for arrangement in [Arrangement::Tcp, Arrangement::Shm] {
        bounded(&format!("{arrangement:?}"), move || {
            let all_have_called = std::sync::Barrier::new(3);
            arrangement.run(3, |comm| {
                // This call makes the connections of the next one, which then needs no help from rank 2.
                comm.broadcast(&mut [0_u8; 10], 0).expect("all call it");
                all_have_called.wait();
                if comm.rank() == 2 {
                    let until = Instant::now() + Duration::from_secs(10);
                    while comm.error().is_none() {
                        assert!(Instant::now() < until, "it is not told of the mismatch");
                        std::thread::yield_now();
                    }
                    let text = comm.broadcast(&mut [0_u8; 10], 0).expect_err("it comes late").to_string();
                    assert!(text.contains("operation #2: ") && text.contains("in operation #3, "), "{text}");
                    assert!(text.contains("this call came earlier and matched"), "{text}");
                    assert!(text.contains("rank 0") && text.contains("rank 1"), "{text}");
                    return;
                }
                comm.broadcast(&mut [0_u8; 10], 0).expect("rank 2 is not needed");
                let elements = if comm.rank() == 0 { 7 } else { 8 };
                comm.all_reduce(&mut vec![1_u32; elements], ReduceOp::Sum).expect_err("they differ");
                while comm.error().is_none() {
                    std::thread::yield_now();
                }
            });
        });
    }
}

/// Time limit from a rank's call, which the others may make seconds later on a busy machine. The time-out is 60 s.
const SOON: Duration = Duration::from_secs(10);

/// The call of one rank.
#[derive(Clone, Copy, Debug)]
enum Does {
    AllReduce(usize, ReduceOp),
    AllReduceF64(usize),
    AllReduceAsync(usize),
    AllGather(usize),
    Broadcast(usize, u32),
    Reduce(usize, u32),
    AllToAll(usize),
    Barrier,
    /// Nothing: the communicator is dropped.
    Leaves,
}

use Does::{
    AllGather, AllReduce, AllReduceAsync, AllReduceF64, AllToAll, Barrier, Broadcast, Leaves, Reduce,
};

impl Does {
    fn run(self, comm: &Communicator) -> Result<()> {
        let ranks = comm.world_size() as usize;
        match self {
            AllReduce(n, op) => comm.all_reduce(&mut vec![1_i32; n], op),
            AllReduceF64(n) => comm.all_reduce(&mut vec![1_f64; n], ReduceOp::Sum),
            AllReduceAsync(n) => {
                comm.all_reduce_start(vec![1_i32; n], ReduceOp::Sum).and_then(|work| work.wait().map(drop))
            }
            AllGather(n) => comm.all_gather(&vec![1_i32; n], &mut vec![0; n * ranks]),
            Broadcast(n, root) => comm.broadcast(&mut vec![1_i32; n], root),
            Reduce(n, root) => comm.reduce(&vec![1_i32; n], &mut vec![0; n], ReduceOp::Sum, root),
            AllToAll(n) => comm.all_to_all(&vec![1_i32; n * ranks], &mut vec![0; n * ranks]),
            Barrier => comm.barrier(),
            Leaves => Ok(()),
        }
    }

    /// Returns its name in error texts.
    fn name(self) -> &'static str {
        match self {
            AllReduce(..) | AllReduceF64(_) | AllReduceAsync(_) => "all_reduce",
            AllGather(_) => "all_gather",
            Broadcast(..) => "broadcast",
            Reduce(..) => "reduce(",
            AllToAll(_) => "all_to_all",
            Barrier => "barrier",
            Leaves => "",
        }
    }
}

/// Runs three good calls, then the mismatched ones, then a barrier. Ranks whose part of a mismatched call needs no
/// data from the others learn of the mismatch in the barrier.
fn clash(arrangement: Arrangement, calls: &'static [Does]) {
    let name = format!("{arrangement:?} {calls:?}");
    bounded(&name.clone(), move || {
        let results = arrangement.run(calls.len() as u32, |comm| {
            // A late rank may get the news in the last of these calls, which the others have left.
            let good = (0..3).try_for_each(|_| comm.barrier());
            let start = Instant::now();
            let does = calls[comm.rank() as usize];
            let result = if matches!(does, Leaves) {
                drop(comm);
                return (Ok(()), start.elapsed(), true);
            } else {
                good.and_then(|()| does.run(&comm)).and_then(|()| comm.barrier())
            };
            let took = start.elapsed();
            // The cause is kept, and returned at once.
            let mut stays = true;
            let again = quickest(|| stays &= comm.barrier().is_err());
            stays &= again < Duration::from_millis(50);
            (result, took, stays)
        });
        check(&name, calls, &results);
    });
}

fn check(name: &str, calls: &[Does], results: &[(Result<()>, Duration, bool)]) {
    let mut seen_by_both = 0;
    for (rank, (result, took, stays)) in results.iter().enumerate() {
        if matches!(calls[rank], Leaves) {
            continue;
        }
        let Err(error) = result else { panic!("{name}: rank {rank} noticed nothing") };
        let text = error.to_string();
        assert!(*took < SOON, "{name}: rank {rank} took {took:?}: {text}");
        assert!(*stays, "{name}: rank {rank} could go on after {text}");
        assert!(text.starts_with(&format!("rank {rank}, ")), "{name}: {text}");
        assert!(text.contains("operation #"), "{name}: no operation number: {text}");
        assert!(!text.contains('\n'), "{name}: more than a paragraph: {text}");
        if calls.iter().any(|c| matches!(c, Leaves)) {
            let Error::PeerLost { peer, .. } = error else { panic!("{name}: rank {rank}: {text}") };
            assert!(matches!(calls[*peer as usize], Leaves), "{name}: {text}");
            continue;
        }
        match error {
            Error::Mismatch { context, peer, theirs } => {
                assert_ne!(*peer as usize, rank, "{name}: {text}");
                let theirs = theirs.to_string();
                assert!(theirs.contains(calls[*peer as usize].name()), "{name}: {text}");
                assert!(context.operation != theirs, "{name}: the same on both sides: {text}");
                seen_by_both += 1;
            }
            // Ranks that made the same call as the reporting rank get the whole report.
            Error::Aborted { reason, .. } => {
                let told = calls.iter().filter(|call| reason.contains(call.name())).count();
                assert!(told >= 2 && reason.contains("called"), "{name}: rank {rank}: {text}");
            }
            _ => panic!("{name}: rank {rank}: {text}"),
        }
    }
    if !calls.iter().any(|c| matches!(c, Leaves)) {
        assert!(seen_by_both >= 2, "{name}: one side only: {results:?}");
    }
}

fn everywhere(calls: &'static [Does]) {
    for arrangement in Arrangement::ALL {
        clash(arrangement, calls);
    }
}

const SUM: ReduceOp = ReduceOp::Sum;

#[test]
fn another_collective() {
    everywhere(&[AllReduce(10, SUM), AllGather(10)]);
    everywhere(&[Broadcast(100, 0), AllReduce(100, SUM), AllReduce(100, SUM)]);
    everywhere(&[AllReduce(100, SUM), AllReduce(100, SUM), Barrier, AllReduce(100, SUM)]);
    everywhere(&[AllToAll(5), AllToAll(5), AllGather(5)]);
}

#[test]
fn another_length() {
    everywhere(&[AllReduce(10, SUM), AllReduce(11, SUM)]);
    everywhere(&[AllReduce(100_000, SUM), AllReduce(100_001, SUM), AllReduce(100_000, SUM)]);
    everywhere(&[Broadcast(1, 1), Broadcast(1, 1), Broadcast(2, 1), Broadcast(1, 1)]);
}

#[test]
fn another_length_class() {
    everywhere(&[AllReduce(1, SUM), AllReduce(1_000_000, SUM)]);
    everywhere(&[AllReduce(1_000_000, SUM), AllReduce(1, SUM), AllReduce(1_000_000, SUM)]);
    everywhere(&[Broadcast(3_000_000, 0), Broadcast(10, 0), Broadcast(10, 0), Broadcast(10, 0)]);
}

#[test]
fn another_type_of_the_same_size() {
    everywhere(&[AllReduce(16, SUM), AllReduceF64(8)]);
    everywhere(&[AllReduce(200_000, SUM), AllReduceF64(100_000), AllReduce(200_000, SUM)]);
}

#[test]
fn another_operator() {
    everywhere(&[AllReduce(16, SUM), AllReduce(16, ReduceOp::Max)]);
    everywhere(&[AllReduce(100_000, SUM), AllReduce(100_000, SUM), AllReduce(100_000, ReduceOp::Prod)]);
}

#[test]
fn another_root() {
    everywhere(&[Broadcast(16, 0), Broadcast(16, 1)]);
    everywhere(&[Broadcast(100_000, 0), Broadcast(100_000, 2), Broadcast(100_000, 0)]);
    everywhere(&[Reduce(16, 0), Reduce(16, 0), Reduce(16, 1), Reduce(16, 0)]);
}

#[test]
fn blocking_and_asynchronous() {
    everywhere(&[AllReduce(16, SUM), AllReduceAsync(16)]);
    everywhere(&[AllReduceAsync(300_000), AllReduce(300_000, SUM), AllReduceAsync(300_000)]);
}

#[test]
fn a_rank_that_leaves_instead() {
    everywhere(&[AllReduce(16, SUM), Leaves]);
    everywhere(&[Leaves, AllReduce(16, SUM), AllReduce(16, SUM)]);
    everywhere(&[AllReduce(1_000_000, SUM), AllReduce(1_000_000, SUM), Leaves, AllReduce(1_000_000, SUM)]);
    everywhere(&[Barrier, Leaves, Barrier]);
}

#[test]
fn messages_that_do_not_fit() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            for (send, recv) in [(10, 11), (0, 1), (300_000, 1), (1, 300_000)] {
                let texts = arrangement.run(2, |comm| {
                    let start = Instant::now();
                    let result = if comm.rank() == 0 {
                        comm.send(&vec![1_u8; send], 1)
                    } else {
                        comm.recv(&mut vec![1_u8; recv], 0)
                    };
                    // The sender may be done before; then the next call fails.
                    let error = result.and_then(|()| comm.barrier()).expect_err("does not fit");
                    assert!(start.elapsed() < SOON, "{error}");
                    error
                });
                let Error::Mismatch { peer: 0, .. } = &texts[1] else {
                    panic!("{arrangement:?}: {}", texts[1])
                };
                let text = texts[1].to_string();
                assert!(
                    text.contains(&format!("{send} bytes")) && text.contains(&recv.to_string()),
                    "{text}"
                );
                let other = texts[0].to_string();
                assert!(other.contains("rank 1") && other.contains(&send.to_string()), "{other}");
            }
            let errors = arrangement.run(2, |comm| {
                let result = if comm.rank() == 0 {
                    comm.send(&[1_i32; 2], 1)
                } else {
                    comm.recv(&mut [1.0_f64; 1], 0)
                };
                result.and_then(|()| comm.barrier()).expect_err("another type")
            });
            assert!(matches!(errors[1], Error::Mismatch { peer: 0, .. }), "{}", errors[1]);
        });
    }
}

#[test]
fn asynchronous_calls_in_another_order() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            for elements in [10, 200_000] {
                let errors = arrangement.run(3, |comm| {
                    let start = Instant::now();
                    let reduce = || comm.all_reduce_start(vec![1_u8; elements], ReduceOp::Sum);
                    let send = || comm.broadcast_start(vec![1_u8; elements], 0);
                    let works = if comm.rank() == 2 { [send(), reduce()] } else { [reduce(), send()] };
                    let ended: Result<()> = works.into_iter().try_for_each(|work| work?.wait().map(drop));
                    let error = ended.and_then(|()| comm.barrier()).expect_err("another order");
                    assert!(start.elapsed() < SOON, "{:?}: {error}", start.elapsed());
                    error
                });
                for error in &errors {
                    let text = error.to_string();
                    assert!(
                        text.contains("all_reduce_start(") && text.contains("broadcast_start("),
                        "{arrangement:?}: {text}"
                    );
                    assert!(text.contains("#1"), "{arrangement:?}: {text}");
                }
            }
        });
    }
}

#[test]
fn a_blocking_call_behind_a_started_one_that_does_not_match() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let errors = arrangement.run(3, |comm| {
                let start = Instant::now();
                let elements = if comm.rank() == 1 { 70_000 } else { 3 };
                // A late rank learns of the others' mismatch when it starts its call.
                let started = comm.all_reduce_start(vec![1_i32; elements], ReduceOp::Sum);
                let error = started
                    .and_then(|work| comm.barrier().and_then(|()| work.wait()))
                    .expect_err("another length");
                assert!(start.elapsed() < SOON, "{:?}: {error}", start.elapsed());
                error
            });
            for error in &errors {
                let text = error.to_string();
                assert!(
                    text.contains("70000") && text.contains("all_reduce_start"),
                    "{arrangement:?}: {text}"
                );
            }
        });
    }
}
