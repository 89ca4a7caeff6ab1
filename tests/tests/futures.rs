//! Handles of started operations as futures, without an executor and under tokio; and the buffers that started calls
//! accept.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use kolo::{AbortReason, Communicator, Config, Error, ReduceOp, Work};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::futures::{run, unpark};
use kolo_tests::watchdog::{Gate, bounded};

const SUM: ReduceOp = ReduceOp::Sum;

fn everywhere(ranks: u32, body: impl Fn(&Communicator) + Send + Sync + Copy + 'static) {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(ranks, |comm| body(&comm));
        });
    }
}

fn poll_once<B: 'static>(work: &mut Work<B>, waker: &Waker) -> Poll<kolo::Result<B>> {
    Pin::new(work).poll(&mut Context::from_waker(waker))
}

#[test]
fn awaited_one_after_the_other() {
    everywhere(3, |comm| {
        for n in [0, 1, 1000, 300_001] {
            let reduced = comm.all_reduce_start(vec![1.0_f32; n], SUM).expect("starts");
            let gathered = comm.all_gather_start(vec![comm.rank(); n]).expect("starts");
            let barrier = comm.barrier_start().expect("starts");
            let (right, left) = ((comm.rank() + 1) % 3, (comm.rank() + 2) % 3);
            let sent = comm.send_start(vec![comm.rank(); n], right).expect("starts");
            let received = comm.recv_start(vec![9_u32; n], left).expect("starts");
            let all = async {
                assert_eq!(received.await?, vec![left; n]);
                assert_eq!(sent.await?, vec![comm.rank(); n]);
                barrier.await?;
                assert_eq!(gathered.await?, [vec![0; n], vec![1; n], vec![2; n]].concat());
                assert_eq!(reduced.await?, vec![3.0; n]);
                Ok::<_, Error>(())
            };
            run(all).0.expect("done");
        }
    });
}

#[test]
fn a_task_sleeps_until_its_operation_is_over() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let (started, is_started) = mpsc::channel();
            let (started, is_started) = (Mutex::new(started), Mutex::new(is_started));
            arrangement.run(2, |comm| {
                if comm.rank() == 0 {
                    let mut work = comm.all_reduce_start(vec![1_u64; 1000], SUM).expect("starts");
                    let waker = unpark();
                    assert!(poll_once(&mut work, &waker.clone().into()).is_pending());
                    assert_eq!(
                        waker.wakes.load(Ordering::SeqCst),
                        0,
                        "{arrangement:?}: nothing has happened"
                    );
                    started.lock().expect("no panic").send(()).expect("rank 1 waits");
                    // One poll that waits, and one that finds the operation done; the system may end a park without a
                    // reason.
                    let (result, polls) = run(work);
                    assert_eq!(result.expect("done"), vec![2; 1000]);
                    assert!(polls <= 4, "{arrangement:?}: polled {polls} times");
                } else {
                    let told = is_started.lock().expect("no panic").recv_timeout(Duration::from_secs(20));
                    told.expect("rank 0 starts");
                    let work = comm.all_reduce_start(vec![1_u64; 1000], SUM).expect("starts");
                    assert_eq!(work.wait().expect("done"), vec![2; 1000]);
                }
            });
        });
    }
}

#[test]
fn many_tasks_are_woken_while_another_thread_blocks() {
    // The calls of the thread make progress for the tasks, and the helper stands back meanwhile.
    everywhere(2, |comm| {
        let ranks: Vec<u32> = vec![0, 1];
        let quiet = comm.group(&ranks).expect("a group of all");
        for round in 0..20_u64 {
            let works: Vec<_> =
                (0..40).map(|i| comm.all_reduce_start(vec![round + i; 100], SUM).expect("starts")).collect();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    for _ in 0..20 {
                        comm.barrier().expect("a blocking call");
                    }
                });
                for (i, work) in works.into_iter().enumerate().rev() {
                    let wanted = 2 * (round + i as u64);
                    assert_eq!(run(work).0.expect("done"), vec![wanted; 100]);
                }
            });
            quiet.barrier().expect("the rounds stay together");
        }
    });
}

#[test]
fn a_dropped_future_leaves_its_operation_alone() {
    everywhere(2, |comm| {
        let waker = Waker::from(unpark());
        for i in 0..50_u32 {
            let mut dropped = comm.all_reduce_start(vec![i; 10_000], SUM).expect("starts");
            if comm.rank() == 0 {
                let _ = poll_once(&mut dropped, &waker);
                drop(dropped);
            } else {
                assert_eq!(dropped.wait().expect("rank 0 takes part"), vec![2 * i; 10_000]);
            }
        }
        comm.barrier().expect("all is well");
    });
}

#[test]
fn a_result_is_given_once() {
    everywhere(1, |comm| {
        let mut work = comm.all_reduce_start(vec![7_u8], SUM).expect("starts");
        let waker = Waker::from(unpark());
        while poll_once(&mut work, &waker).is_pending() {
            std::thread::park();
        }
        let again = poll_once(&mut work, &waker);
        assert!(matches!(again, Poll::Ready(Err(Error::Usage { .. }))), "{again:?}");
        comm.barrier().expect("all is well");
    });
}

#[test]
fn an_abort_elsewhere_wakes_the_task() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            arrangement.run(2, |comm| {
                if comm.rank() == 1 {
                    gate.wait();
                    comm.abort("not a number");
                    return;
                }
                let mut work = comm.all_reduce_start(vec![1.0_f64; 10], SUM).expect("starts");
                assert!(poll_once(&mut work, &unpark().into()).is_pending());
                gate.wait();
                let error = run(work).0.unwrap_err();
                let is_theirs = matches!(error, Error::Aborted { by: 1, kind: AbortReason::Requested, .. });
                assert!(is_theirs, "{arrangement:?}: {error}");
            });
        });
    }
}

#[test]
fn an_end_of_the_communicator_wakes_the_task() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            arrangement.run(2, |comm| {
                if comm.rank() == 1 {
                    gate.wait();
                    comm.abort("the other rank need not wait for this one");
                    gate.wait();
                    return;
                }
                let work = comm.recv_start(vec![0_u8; 8], 1).expect("starts");
                std::thread::scope(|scope| {
                    let awaiting = scope.spawn(|| run(work).0);
                    drop(comm);
                    let error = awaiting.join().expect("no panic").unwrap_err();
                    assert!(matches!(error, Error::Aborted { .. }), "{error}");
                });
                gate.wait();
                gate.wait();
            });
        });
    }
}

#[test]
fn the_time_out_counts_for_tasks_too() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            let change = |config: Config| config.with(|config| config.timeout = Duration::from_millis(700));
            arrangement.run_with(2, change, |comm| {
                if comm.rank() == 0 {
                    let work = comm.all_reduce_start(vec![1.0_f32; 10], SUM).expect("starts");
                    match run(work).0.unwrap_err() {
                        Error::Timeout { waiting_for, after, context, .. } => {
                            assert_eq!(waiting_for[0].rank, 1);
                            assert_eq!(after, Duration::from_millis(700));
                            assert!(context.operation.contains("all_reduce_start"), "{context}");
                        }
                        other => panic!("{arrangement:?}: {other}"),
                    }
                }
                gate.wait();
            });
        });
    }
}

/// A task that only its own waker keeps alive, as in executors whose queue has ended.
struct Orphan(Mutex<Option<Vec<Work<Vec<u8>>>>>);

impl Wake for Orphan {
    fn wake(self: Arc<Self>) {}
}

#[test]
fn a_waker_may_be_the_last_to_hold_handles() {
    everywhere(2, |comm| {
        let waker = Arc::new(Orphan(Mutex::default()));
        let mut works: Vec<_> =
            (0..5_u8).map(|i| comm.all_reduce_start(vec![i; 10_000], SUM).expect("starts")).collect();
        let _ = poll_once(&mut works[0], &waker.clone().into());
        *waker.0.lock().expect("no panic") = Some(works);
        drop(waker);
        comm.barrier().expect("whoever drives does not wait for itself");
    });
}

#[test]
fn under_tokio() {
    for arrangement in Arrangement::ALL {
        bounded(&format!("{arrangement:?}"), move || {
            let gate = Gate::new(2);
            arrangement.run(2, |comm| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                let (first, second) = runtime.expect("a runtime").block_on(async {
                    let first = comm.all_reduce_start(vec![1_u32; 100_000], SUM).expect("starts");
                    let second = comm.broadcast_start(vec![comm.rank(); 3], 1).expect("starts");
                    let third = comm.recv_start(vec![0_u8], 1 - comm.rank()).expect("starts");
                    // This message is not sent before both have given up.
                    assert!(tokio::time::timeout(Duration::from_millis(1), third).await.is_err());
                    gate.wait();
                    tokio::join!(first, second)
                });
                assert_eq!(first.expect("done"), vec![2; 100_000]);
                assert_eq!(second.expect("done"), vec![1; 3]);
                comm.send(&[1_u8], 1 - comm.rank()).expect("the receive goes on by itself");
                comm.barrier().expect("all is well");
            });
        });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Particle {
    place: [f64; 3],
    id: u64,
}

#[test]
fn buffers_of_many_kinds() {
    everywhere(2, |comm| {
        let boxed = comm.all_reduce_start(vec![1_i16; 9].into_boxed_slice(), SUM).expect("starts");
        let bytes =
            comm.broadcast_start(bytes::BytesMut::from(&[comm.rank() as u8; 9][..]), 1).expect("starts");
        let gathered = comm.all_gather_start(Box::<[u32]>::from([comm.rank()])).expect("starts");
        let sent = comm.send_start(bytes::BytesMut::from(&b"hello"[..]), 1 - comm.rank()).expect("starts");
        let came = comm.recv_any_start(bytes::BytesMut::zeroed(5)).expect("starts");
        assert_eq!(*boxed.wait().expect("done"), [2; 9]);
        assert_eq!(*bytes.wait().expect("done"), [1; 9]);
        assert_eq!(gathered.wait().expect("done"), [0, 1]);
        assert_eq!(came.wait().expect("done"), (bytes::BytesMut::from(&b"hello"[..]), 1 - comm.rank()));
        assert_eq!(*sent.wait().expect("done"), b"hello"[..]);
    });
}

#[test]
fn plain_structs() {
    everywhere(2, |comm| {
        let own = Particle { place: [1.0, 2.0, f64::from(comm.rank())], id: u64::from(comm.rank()) };
        let kolo::Plain(all) =
            comm.broadcast_start(kolo::Plain(vec![own; 100]), 1).expect("starts").wait().expect("done");
        assert_eq!(all, [Particle { place: [1.0, 2.0, 1.0], id: 1 }; 100]);
        let mut one = [own];
        comm.broadcast(bytemuck::cast_slice_mut::<_, u8>(&mut one), 0).expect("a blocking call");
        assert_eq!(one[0].id, 0);
    });
}

#[test]
fn arrays_of_ndarray() {
    everywhere(2, |comm| {
        let row_by_row = ndarray::Array2::from_shape_fn((3, 4), |(i, j)| (10 * i + j) as i64);
        // On one rank the memory layout is the other one, which makes no difference.
        let column_by_column = row_by_row.t().as_standard_layout().into_owned().reversed_axes();
        assert!(!column_by_column.is_standard_layout());
        let own = if comm.rank() == 0 { row_by_row.clone() } else { column_by_column };
        let work = comm.all_reduce_start(kolo::DenseArray::from(own), SUM).expect("starts");
        assert_eq!(work.wait().expect("done").into_inner(), &row_by_row * 2);
        let sliced = row_by_row.clone().slice_move(ndarray::s![.., ..;2]);
        let work = comm.broadcast_start(kolo::DenseArray::from(sliced.clone()), 1).expect("starts");
        assert_eq!(work.wait().expect("done").into_inner(), sliced);
        let none = kolo::DenseArray::from(ndarray::Array1::<f32>::zeros(0));
        assert_eq!(
            comm.all_reduce_start(none, SUM).expect("starts").wait().expect("done").into_inner().len(),
            0
        );
    });
}

#[test]
fn a_cluster_gives_the_cause() {
    let error = kolo::Cluster::try_local(3, |comm| {
        if comm.rank() == 2 {
            comm.broadcast(&mut [0_u8], 3)?;
        }
        comm.barrier()
    })
    .unwrap_err();
    assert!(matches!(&error, Error::Usage { context, .. } if context.rank == Some(2)), "{error}");
}
