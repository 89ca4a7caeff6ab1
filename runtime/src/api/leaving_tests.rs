//! A rank's part in the job ends with its last communicator, even if handles remain.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Communicator;
use super::cluster::Cluster;
use crate::config::{Config, TransportKind, Transports};
use crate::control::{Control, ControlRuntime, Departure, GatherKey, Round};
use crate::drive;
use crate::error::{AbortReason, Error, LossCause, Result};
use crate::join::JoinSpec;
use crate::types::ReduceOp;

#[test]
fn who_has_dropped_its_communicators_has_left_though_it_keeps_handles() -> Result<()> {
    Cluster::local(2, |comm| {
        let work = comm.all_reduce_start(vec![1_i32; 8], ReduceOp::Sum)?;
        let world = Arc::clone(&comm.shared.world);
        let part = comm.split(Some(0), 0)?.expect("a group for all");
        drop(comm);
        assert!(!world.control.is_closed(), "one that was split off is there");
        part.barrier()?;
        drop(part);
        assert!(world.control.is_closed(), "still in the job");
        drop(work);
        Ok(())
    })?
    .into_iter()
    .collect()
}

#[test]
fn who_polls_hears_that_a_rank_has_left() {
    let config = Config { timeout: Duration::from_secs(30), ..Config::default() };
    for is_driven in [false, true] {
        Cluster::with_config(2, &config, |comm| {
            comm.barrier().expect("both are there");
            if comm.rank() == 1 {
                return;
            }
            std::thread::scope(|scope| {
                if is_driven {
                    // This thread drives in place of the helper.
                    scope.spawn(|| comm.recv(&mut [0_u8], 0).expect_err("nothing comes before the end"));
                }
                let message = comm.recv_tagged_start(vec![0_u8], 0, 7).expect("starts");
                let work = comm.all_reduce_start(vec![1_i32; 8], ReduceOp::Sum).expect("starts");
                let until = Instant::now() + Duration::from_secs(20);
                while !message.is_done() && !work.is_done() {
                    assert!(Instant::now() < until, "it is polled for ever");
                    std::thread::yield_now();
                }
                let error = work.wait().expect_err("rank 1 has left");
                let has_left = matches!(&error, Error::PeerLost { peer: 1, cause: LossCause::Left, .. });
                assert!(has_left, "{error}");
            });
        })
        .expect("the cluster");
    }
}

/// A program may receive from each of its workers while some of them leave.
#[test]
fn nobody_is_asked_about_a_message_that_is_only_polled() {
    Cluster::local(2, |comm| {
        let message = comm.recv_start(vec![0_u8], 1 - comm.rank()).expect("starts");
        assert!(!message.is_done());
        assert!(comm.shared.core().awaited_wait_for().is_empty());
        comm.barrier().expect("both come");
        comm.send(&[1_u8], 1 - comm.rank()).expect("sent");
        message.wait().expect("received");
    })
    .expect("the cluster");
}

/// As the last receive of a server, for which no client happens to have a message.
#[test]
fn a_receive_whose_message_does_not_come_holds_nobody_up() {
    const LIMIT: Duration = Duration::from_secs(20);
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let config = Config { transports: Transports::Only(vec![transport]), ..Config::default() };
        Cluster::with_config(2, &config, |comm| {
            drop(comm.recv_tagged_start(vec![0_u8], 1 - comm.rank(), 7).expect("starts"));
            comm.barrier().expect("all come");
            let leaves = Instant::now();
            let departure = drive::close(&comm.shared, LIMIT);
            let took = leaves.elapsed();
            let Departure::Orderly { patience } = departure else { panic!("{transport:?}: {departure:?}") };
            assert!(took < LIMIT / 2, "{transport:?}: {took:?}");
            // The rest of the limit is for the others' goodbyes.
            assert!(patience < LIMIT && patience + took >= LIMIT, "{transport:?}: {patience:?}, {took:?}");
        })
        .expect("the cluster");
    }
}

/// Rank 1 leaves behind messages that it has not read, and a receive whose message does not come. A connection that is
/// closed with unread bytes takes along what the kernel has not delivered.
#[test]
fn what_was_sent_arrives_from_a_rank_that_leaves_with_an_open_receive() {
    const BYTES: usize = 1 << 20;
    let config = Config {
        transports: Transports::Only(vec![TransportKind::Tcp]),
        timeout: Duration::from_secs(20),
        unexpected_bytes: 0,
        ..Config::default()
    };
    Cluster::with_config(2, &config, |comm| {
        let peer = 1 - comm.rank();
        if comm.rank() == 1 {
            drop(comm.recv_tagged_start(vec![0_u8], peer, 7).expect("starts"));
            comm.barrier().expect("all come");
            comm.send(&vec![1_u8; BYTES], peer).expect("the kernel takes it");
            return;
        }
        comm.send_tagged(&[0_u8; 8192], peer, 9).expect("the kernel takes it");
        comm.barrier().expect("all come");
        let until = Instant::now() + Duration::from_secs(60);
        while !comm.shared.membership.departed(peer) {
            assert!(Instant::now() < until, "rank 1 does not leave");
            std::thread::yield_now();
        }
        let mut received = vec![0_u8; BYTES];
        comm.recv(&mut received, peer).expect("it was reported as sent");
        assert!(received.iter().all(|byte| *byte == 1));
    })
    .expect("the cluster");
}

#[test]
fn rank_0_waits_for_goodbyes_no_longer_than_it_may() -> Result<()> {
    const LONG: Duration = Duration::from_secs(20);
    let runtime = ControlRuntime::new()?;
    let mut specs = JoinSpec::local(2);
    specs.iter_mut().for_each(|spec| spec.liveness.linger = LONG);
    let [first, second] = <[JoinSpec; 2]>::try_from(specs).expect("two ranks");
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = over;
            let control = Control::join(&first, &runtime).expect("all join");
            let leaves = Instant::now();
            control.leave_or_die(Departure::Orderly { patience: Duration::ZERO });
            assert!(leaves.elapsed() < LONG, "{:?}", leaves.elapsed());
        });
        let control = Control::join(&second, &runtime)?;
        let ended = is_over.recv_timeout(2 * LONG);
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "rank 0 waits for rank 1");
        drop(control);
        Ok(())
    })
}

/// Rank 2 stands for a stopped rank: it says no goodbye while the others leave.
#[test]
fn rank_0_stays_for_a_live_rank_and_not_for_one_left_behind() -> Result<()> {
    const LONG: Duration = Duration::from_secs(20);
    let runtime = ControlRuntime::new()?;
    let (over, is_over) = std::sync::mpsc::channel::<()>();
    let mut specs = JoinSpec::local(3);
    let exchange = |control: &Control| {
        let key = GatherKey { communicator: 6, round: Round::Numbered(0) };
        control.all_gather(key, &[1, 2], &(), Instant::now() + LONG)
    };
    specs.iter_mut().for_each(|spec| spec.liveness.linger = LONG);
    let [first, second, third] = <[JoinSpec; 3]>::try_from(specs).expect("three ranks");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _over = over;
            let control = Control::join(&first, &runtime).expect("all join");
            control.shared().leave_behind(std::iter::once(2));
            let leaves = Instant::now();
            control.leave();
            assert!(leaves.elapsed() < LONG, "{:?}", leaves.elapsed());
        });
        scope.spawn(|| {
            let control = Control::join(&second, &runtime).expect("all join");
            let part = control.register(5, [0, 1].into());
            let until = Instant::now() + LONG;
            while !part.departed(0) {
                assert!(Instant::now() < until, "rank 0 does not leave");
                std::thread::yield_now();
            }
            exchange(&control).expect("rank 0 is still there");
        });
        let control = Control::join(&third, &runtime)?;
        exchange(&control)?;
        let ended = is_over.recv_timeout(2 * LONG);
        assert_eq!(ended, Err(std::sync::mpsc::RecvTimeoutError::Disconnected), "rank 0 waits for rank 2");
        drop(control);
        Ok(())
    })
}

/// Joins as one of several threads; rank 0 does not wait for the others' goodbyes.
fn join(mut spec: JoinSpec, runtime: &ControlRuntime) -> Result<Communicator> {
    spec.liveness.linger = Duration::ZERO;
    let transports = Transports::Only(vec![TransportKind::Tcp]);
    let config = Config { transports, timeout: Duration::from_secs(20), ..Config::default() };
    Communicator::builder().config(config).join(spec).control_runtime(runtime.clone()).connect()
}

/// Over TCP no shared memory reveals the cause. Each of eight ranks tells five others, so the rest hear it from
/// these.
#[test]
fn who_gives_up_without_a_control_plane_is_heard_and_not_taken_for_lost() -> Result<()> {
    let runtime = ControlRuntime::new()?;
    let rank = |spec: JoinSpec| -> Result<Option<Error>> {
        let comm = join(spec, &runtime)?;
        let part = comm.split((comm.rank() > 0).then_some(0), 0)?;
        comm.barrier()?;
        let Some(part) = part else { return Ok(None) };
        let until = Instant::now() + Duration::from_secs(20);
        while !part.shared.world.control.is_closed() {
            assert!(Instant::now() < until, "rank 0 does not leave");
            std::thread::yield_now();
        }
        if part.rank() == 0 {
            part.abort("enough of this");
            return Ok(None);
        }
        Ok(Some(part.recv(&mut [0_u8; 4], 0).expect_err("nobody sends")))
    };
    let rank = &rank;
    let errors: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            JoinSpec::local(9).into_iter().map(|spec| scope.spawn(move || rank(spec))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<_>>()
    })?;
    for (rank, error) in errors.into_iter().enumerate().skip(2) {
        let error = error.expect("it waited");
        assert!(
            matches!(&error, Error::Aborted { by: 0, kind: AbortReason::Requested, reason, .. } if reason == "enough of this"),
            "rank {rank}: {error}"
        );
    }
    Ok(())
}

/// A rank says why it gives up before its connections end, but its control thread, which sends the word, may be held up
/// by a busy host.
#[test]
fn who_gives_up_while_its_control_thread_is_held_up_is_not_taken_for_lost() -> Result<()> {
    let rank = |spec: JoinSpec| -> Result<Option<Error>> {
        let runtime = ControlRuntime::new()?;
        let comm = join(spec, &runtime)?;
        comm.barrier()?;
        if comm.rank() == 0 {
            return Ok(Some(comm.recv(&mut [0_u8; 4], 1).expect_err("nobody sends")));
        }
        let (tell, begun) = std::sync::mpsc::channel();
        runtime.spawn(async move {
            let _ = tell.send(());
            std::thread::sleep(Duration::from_secs(1));
        });
        begun.recv().expect("the thread is held up from here on");
        comm.abort("enough of this");
        Ok(None)
    };
    let rank = &rank;
    let error = std::thread::scope(|scope| {
        let threads: Vec<_> =
            JoinSpec::local(2).into_iter().map(|spec| scope.spawn(move || rank(spec))).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    let error = error.into_iter().flatten().next().expect("rank 0 waited");
    assert!(matches!(error, Error::Aborted { by: 1, kind: AbortReason::Requested, .. }), "{error}");
    Ok(())
}
