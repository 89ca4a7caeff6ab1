//! The helper thread: losses, panics, and operations for which nobody waits.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::work::Work;
use crate::config::{Config, TransportKind, Transports};
use crate::control::{AbortCause, AbortKind};
use crate::drive;
use crate::error::{AbortReason, Error, LossCause, Result};
use crate::types::ReduceOp;

const LONG: Duration = Duration::from_secs(20);

/// A task that tells when it is woken.
struct Tells(Mutex<mpsc::Sender<()>>);

impl Wake for Tells {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().map(|woken| woken.send(()));
    }
}

/// A task whose executor panics.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("injected");
    }
}

/// Polls a handle of an operation that is not over.
fn poll<B: 'static>(work: &mut Work<B>, task: Arc<impl Wake + Send + Sync + 'static>) {
    let waker = Waker::from(task);
    assert!(Pin::new(work).poll(&mut Context::from_waker(&waker)).is_pending());
}

/// All operations are over when a loss is heard of, so this rank needs nothing of the lost one, and the others must not
/// hear that it has given up.
#[test]
fn a_loss_after_the_last_operation_makes_nobody_give_up() -> Result<()> {
    let ranks = Cluster::local(2, |comm| {
        comm.all_reduce_start(vec![1_u8], ReduceOp::Sum)?.wait()?;
        comm.barrier()?;
        let shared = Arc::clone(&comm.shared);
        let loss = AbortCause::new(1 - comm.rank(), AbortKind::PeerLost, "a test");
        shared.membership.abort_flag().raise(loss);
        assert!(drive::call_helper(&shared), "there is a helper");
        let until = Instant::now() + Duration::from_secs(60);
        while shared.attendance.is_unattended() {
            assert!(Instant::now() < until, "the helper does not look");
            std::thread::yield_now();
        }
        // Waits for the end of the helper.
        drop(comm);
        assert!(shared.fault.cause().is_none() && !shared.membership.abort_flag().is_given_up());
        Ok(())
    })?;
    ranks.into_iter().collect()
}

#[test]
fn a_panic_in_a_waker_leaves_no_other_task_asleep() {
    let (go, goes) = mpsc::channel();
    let goes = Mutex::new(goes);
    Cluster::local(2, |comm| {
        comm.barrier().expect("all are there");
        if comm.rank() == 1 {
            goes.lock().expect("no panic").recv_timeout(LONG).expect("rank 0 has polled");
            comm.send(&[1_u8], 0).expect("sent");
            let error = comm.barrier().expect_err("rank 0 has panicked").to_string();
            assert!(error.contains("panicked"), "{error}");
            return;
        }
        let mut arrives = comm.recv_start(vec![0_u8], 1).expect("starts");
        let mut never = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
        poll(&mut arrives, Arc::new(Panics));
        let (woken, is_woken) = mpsc::channel();
        poll(&mut never, Arc::new(Tells(Mutex::new(woken))));
        go.send(()).expect("rank 1 listens");
        is_woken.recv_timeout(LONG).expect("the other task is woken");
        let error = never.wait().expect_err("the helper has panicked").to_string();
        assert!(error.contains("panicked"), "{error}");
    })
    .expect("the cluster");
}

/// A thread that waits longer drives, so the helper stands back.
#[test]
fn the_time_out_of_an_awaited_handle_holds_while_a_thread_drives() {
    let timeout = Duration::from_millis(100);
    Cluster::with_config(2, &Config { timeout, ..Config::default() }, |comm| {
        let probe = || comm.probe_within(Some(1 - comm.rank()), 0..=0, 2 * LONG);
        if comm.rank() == 1 {
            probe().expect_err("rank 0 gives up");
            return;
        }
        let mut never = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
        poll(&mut never, Arc::new(Tells(Mutex::new(mpsc::channel().0))));
        let error = probe().expect_err("the awaited receive has timed out");
        assert!(matches!(&error, Error::Aborted { kind: AbortReason::Timeout, .. }), "{error}");
        assert!(
            error.to_string().contains(" recv #1 of 1 bytes of u8 from rank 1 with tag 7 did not"),
            "{error}"
        );
    })
    .expect("the cluster");
}

/// Messages and other calls have no number by which they are told apart.
#[test]
fn only_the_call_that_has_waited_reports_its_time_out() {
    Cluster::local(2, |comm| {
        if comm.rank() == 1 {
            comm.probe(Some(0), 0..=0).expect_err("rank 0 gives up");
            return;
        }
        let never = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
        let error = never.wait_within(Duration::ZERO).expect_err("nothing comes");
        assert!(matches!(&error, Error::Timeout { after, .. } if after.is_zero()), "{error}");
        let later = [
            comm.register(vec![0_u8]).expect_err("the communicator has ended"),
            comm.send(&[0_u8], 1).expect_err("the communicator has ended"),
            comm.probe_now(None, 0..=0).expect_err("the communicator has ended"),
        ];
        for error in later {
            assert!(matches!(&error, Error::Aborted { kind: AbortReason::Timeout, .. }), "{error}");
            let told = "rank 0: recv #1 of 1 bytes of u8 from rank 1 with tag 7 did not finish in time";
            assert!(error.to_string().contains(told), "{error}");
        }
    })
    .expect("the cluster");
}

#[test]
fn a_rank_that_has_left_is_noticed_by_every_task_that_needs_it() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let (over, is_over) = mpsc::channel();
        let is_over = Mutex::new(is_over);
        Cluster::with_config(3, &only(transport, 3 * LONG), |comm| {
            comm.barrier().expect("all are there");
            if comm.rank() == 1 {
                return is_over.lock().expect("no panic").recv_timeout(3 * LONG).expect("rank 0 has ended");
            }
            if comm.rank() == 2 {
                return;
            }
            // Rank 1 may send it at any time.
            let mut control = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
            poll(&mut control, Arc::new(Tells(Mutex::new(mpsc::channel().0))));
            // The root alone has what this rank needs. Other collectives might need rank 1 first, which is in no call.
            let mut told = comm.broadcast_start(vec![1_i32; 8], 2).expect("starts");
            let (woken, is_woken) = mpsc::channel();
            poll(&mut told, Arc::new(Tells(Mutex::new(woken))));
            is_woken.recv_timeout(LONG).unwrap_or_else(|_| panic!("{transport:?}: the task sleeps"));
            let error = told.wait().expect_err("rank 2 has left");
            assert!(matches!(&error, Error::PeerLost { peer: 2, .. }), "{transport:?}: {error}");
            over.send(()).expect("rank 1 listens");
        })
        .expect("the cluster");
    }
}

#[test]
fn a_started_collective_ends_though_nobody_waits_for_it() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        let config = Config { transports: Transports::Only(vec![transport]), ..Config::default() };
        Cluster::with_config(2, &config, |comm| {
            let work = comm.all_reduce_start(vec![1_u8; 100_000], ReduceOp::Sum).expect("starts");
            let until = Instant::now() + LONG;
            while comm.shared.membership.board().finished() == 0 {
                assert!(Instant::now() < until, "{transport:?}: it seems to go on");
                std::thread::yield_now();
            }
            assert!(comm.recent()[0].took.is_some(), "{transport:?}: {}", comm.recent()[0]);
            drop(work);
        })
        .expect("the cluster");
    }
}

fn only(transport: TransportKind, timeout: Duration) -> Config {
    Config { transports: Transports::Only(vec![transport]), timeout, ..Config::default() }
}

/// Polls a handle as an executor does that has nothing else to do.
fn poll_to_the_end<B: 'static>(mut work: Work<B>) -> Result<B> {
    let until = Instant::now() + LONG;
    loop {
        if let Poll::Ready(result) = Pin::new(&mut work).poll(&mut Context::from_waker(Waker::noop())) {
            return result;
        }
        assert!(Instant::now() < until, "it is polled for ever");
        std::thread::yield_now();
    }
}

#[test]
fn without_a_helper_thread_an_operation_ends_when_a_rank_has_left() {
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        for awaits in [false, true] {
            Cluster::with_config(2, &only(transport, 3 * LONG), |comm| {
                drive::refused::from_now_on();
                comm.barrier().expect("both are there");
                if comm.rank() == 1 {
                    return;
                }
                let work = comm.all_reduce_start(vec![1_i32; 8], ReduceOp::Sum).expect("starts");
                let until = Instant::now() + LONG;
                while !awaits && !work.is_done() {
                    assert!(Instant::now() < until, "{transport:?}: it is polled for ever");
                    std::thread::yield_now();
                }
                let result = if awaits { poll_to_the_end(work) } else { work.wait() };
                let error = result.expect_err("rank 1 has left");
                let has_left = matches!(&error, Error::PeerLost { peer: 1, cause: LossCause::Left, .. });
                assert!(has_left, "{transport:?}: {error}");
            })
            .expect("the cluster");
        }
    }
}

#[test]
fn without_a_helper_thread_an_awaited_handle_times_out_and_hears_of_aborts() {
    let timeout = Duration::from_millis(100);
    for transport in [TransportKind::Shm, TransportKind::Tcp] {
        Cluster::with_config(2, &only(transport, timeout), |comm| {
            drive::refused::from_now_on();
            if comm.rank() == 1 {
                let aborted = comm.recv_tagged_start(vec![0_u8], 0, 7).expect("starts");
                comm.probe_within(Some(0), 0..=0, 2 * LONG).expect_err("rank 0 gives up");
                poll_to_the_end(aborted).expect_err("it was aborted");
                return;
            }
            let never = comm.recv_tagged_start(vec![0_u8], 1, 7).expect("starts");
            let error = poll_to_the_end(never).expect_err("nothing comes");
            assert!(
                matches!(&error, Error::Timeout { after, .. } if *after == timeout),
                "{transport:?}: {error}"
            );
        })
        .expect("the cluster");
    }
}
