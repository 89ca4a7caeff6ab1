//! Tests of the control plane within one process: many ranks on threads, one control thread.

use std::sync::mpsc;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use kolo::JoinSpec;
use kolo::error::Error;
use kolo::internal::control::{
    AbortCause, AbortKind, Control, ControlRuntime, GatherKey, Liveness, MAX_BLOB_BYTES, Membership, Round,
};
use kolo::{Collective, DataType, LossCause, Summary};

/// Time limit beyond any test's needs on a busy machine. It is reached only if a test fails.
const LONG: Duration = Duration::from_secs(30);

fn soon() -> Instant {
    Instant::now() + LONG
}

/// Runs one closure per rank, each on a thread of its own. Fails if it takes too long.
fn try_cluster<T: Send + 'static>(
    ranks: u32,
    body: impl Fn(Control) -> T + Send + Sync + 'static,
) -> Vec<std::thread::Result<T>> {
    let runtime = ControlRuntime::new().unwrap();
    let body = Arc::new(body);
    let threads: Vec<_> = JoinSpec::local(ranks)
        .into_iter()
        .map(|mut spec| {
            spec.timeout = LONG;
            let (runtime, body) = (runtime.clone(), body.clone());
            let (done, finished) = mpsc::channel::<()>();
            let thread = std::thread::Builder::new().name(format!("rank{}", spec.rank)).spawn(move || {
                let _done = done;
                let control = Control::join(&spec, &runtime).unwrap();
                drop(runtime);
                body(control)
            });
            (thread.unwrap(), finished)
        })
        .collect();
    drop(runtime);
    threads
        .into_iter()
        .map(|(thread, finished)| {
            let ended = finished.recv_timeout(2 * LONG);
            assert_eq!(ended, Err(mpsc::RecvTimeoutError::Disconnected), "a rank hangs");
            thread.join()
        })
        .collect()
}

fn cluster<T: Send + 'static>(ranks: u32, body: impl Fn(Control) -> T + Send + Sync + 'static) -> Vec<T> {
    try_cluster(ranks, body).into_iter().map(Result::unwrap).collect()
}

fn all(ranks: u32) -> Arc<[u32]> {
    (0..ranks).collect()
}

fn key(communicator: u64, round: u64) -> GatherKey {
    GatherKey { communicator, round: Round::Numbered(round) }
}

fn wait_raised(membership: &Membership) -> AbortCause {
    let (wake, woken) = mpsc::channel();
    membership.abort_flag().on_raise(Box::new(move || {
        let _ = wake.send(());
    }));
    woken.recv_timeout(LONG).expect("the abort flag is raised");
    membership.abort_flag().cause().unwrap()
}

fn threads_named(name: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .filter(|comm| comm.trim_end() == name)
        .count()
}

#[test]
fn ranks_know_each_other_and_exchange_blobs() {
    let cookies = cluster(5, |control| {
        assert_eq!(control.peer_info().len(), 5);
        for (rank, peer) in control.peer_info().iter().enumerate() {
            assert_eq!((peer.rank as usize, peer.pid), (rank, std::process::id()));
        }
        let rank = control.rank();
        for round in 0..3 {
            let blobs =
                control.all_gather(key(1, round), &all(5), &vec![rank as u8; rank as usize], soon()).unwrap();
            let expected: Vec<Vec<u8>> = (0..5).map(|r| vec![r as u8; r]).collect();
            assert_eq!(blobs, expected);
        }
        // This subgroup has its own order.
        if rank % 2 == 0 {
            let blobs = control.all_gather(key(2, 0), &[4, 0, 2], &vec![rank as u8], soon()).unwrap();
            assert_eq!(blobs, [[4], [0], [2]]);
        }
        control.job_cookie()
    });
    assert!(cookies.iter().all(|cookie| *cookie == cookies[0] && *cookie != [0; 16]));
}

#[test]
fn many_thread_ranks_join_fast() {
    let start = Instant::now();
    let joined = cluster(128, move |control| {
        let joined = start.elapsed();
        let blobs =
            control.all_gather(key(1, 0), &all(128), &vec![control.rank() as u8; 200], soon()).unwrap();
        assert_eq!(blobs.len(), 128);
        joined
    });
    let slowest = joined.into_iter().max().unwrap();
    println!(
        "128 thread ranks: joined in {slowest:?}; with an exchange and all goodbyes {:?}",
        start.elapsed()
    );
    assert!(slowest < Duration::from_secs(10), "{slowest:?}");
}

#[test]
fn bad_exchanges_are_errors_for_those_concerned() {
    cluster(3, |control| {
        let rank = control.rank();
        let too_long = control.all_gather(key(1, 0), &all(3), &vec![0; MAX_BLOB_BYTES + 1], soon());
        assert!(matches!(too_long, Err(Error::Usage { .. })), "{too_long:?}");
        let foreign = control.all_gather(key(1, 0), &[(rank + 1) % 3], &(), soon());
        assert!(matches!(foreign, Err(Error::Usage { .. })), "{foreign:?}");
        let twice = control.all_gather(key(1, 1), &[rank, rank], &(), soon());
        assert!(twice.unwrap_err().to_string().contains("distinct"));
        let members: &[u32] = if rank == 2 { &[0, 2, 1] } else { &[0, 1, 2] };
        let differing = control.all_gather(key(1, 2), members, &(), soon());
        assert!(matches!(differing, Err(Error::Usage { .. })), "{differing:?}");
    });
}

#[test]
fn a_missing_member_is_named_at_the_deadline() {
    let barrier = Arc::new(Barrier::new(3));
    cluster(3, move |control| {
        let rank = control.rank();
        if rank != 1 {
            let deadline = Instant::now() + Duration::from_millis(if rank == 0 { 50 } else { 20_000 });
            match control.all_gather(key(9, 0), &all(3), &(), deadline) {
                Err(Error::Timeout { waiting_for, .. }) => {
                    // Rank 2 may have come after rank 0 gave up.
                    assert!(waiting_for.iter().any(|awaited| awaited.rank == 1), "{waiting_for:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        barrier.wait();
        if rank == 1 {
            let late = control.all_gather(key(9, 0), &all(3), &(), soon());
            assert!(matches!(late, Err(Error::Timeout { .. })), "a latecomer learns of it: {late:?}");
        }
        barrier.wait();
    });
}

#[test]
fn an_abort_reaches_members_only_and_releases_waiters() {
    let barrier = Arc::new(Barrier::new(4));
    cluster(4, move |control| {
        let rank = control.rank();
        let world = control.register(1, all(4));
        let pair = (rank < 2).then(|| control.register(2, [1, 0].into()));
        barrier.wait();
        if rank == 0 {
            let pair = pair.as_ref().unwrap();
            let cause = AbortCause::new(1, AbortKind::User, "enough").during("barrier()", 7);
            pair.abort(cause.clone());
            pair.abort(AbortCause::new(1, AbortKind::User, "again"));
            assert_eq!(pair.abort_flag().cause(), Some(cause));
        } else if rank == 1 {
            let waiting = control.all_gather(key(2, 0), &[1, 0], &(), soon());
            assert!(matches!(waiting, Err(Error::Aborted { by: 1, .. })), "{waiting:?}");
            let cause = wait_raised(pair.as_ref().unwrap());
            assert_eq!((cause.reason.as_str(), cause.sequence), ("enough", Some(7)));
        }
        barrier.wait();
        assert!(!world.abort_flag().is_raised());
        barrier.wait();
    });
}

#[test]
fn an_abort_before_registration_is_not_lost() {
    let barrier = Arc::new(Barrier::new(2));
    cluster(2, move |control| {
        if control.rank() == 0 {
            control.register(5, all(2)).abort(AbortCause::new(0, AbortKind::Timeout, "slow"));
        }
        // An exchange goes through the coordinator after the abort, so the abort has arrived by then.
        control.all_gather(key(6, 0), &all(2), &(), soon()).unwrap();
        if control.rank() == 1 {
            let membership = control.register(5, all(2));
            assert_eq!(membership.abort_flag().cause().unwrap().kind, AbortKind::Timeout);
        }
        barrier.wait();
    });
}

#[test]
fn a_panicking_rank_is_lost_and_a_leaving_one_is_not() {
    let (barrier, survivors) = (Arc::new(Barrier::new(4)), Arc::new(Barrier::new(2)));
    let results = try_cluster(4, move |control| {
        let rank = control.rank();
        let world = control.register(1, all(4));
        let others = (rank > 1).then(|| control.register(2, [2, 3].into()));
        barrier.wait();
        match rank {
            0 => {
                assert_eq!(wait_raised(&world).by, 1);
                // After an abort, rank 0 would close the coordinator at once.
                survivors.wait();
            }
            1 => panic!("on purpose"),
            2 => {
                let others = others.as_ref().unwrap();
                let cause = wait_raised(&world);
                assert_eq!((cause.by, cause.kind), (1, AbortKind::PeerLost));
                assert_eq!(cause.loss, Some(LossCause::Panicked));
                assert!(cause.reason.contains("panicked"), "{cause}");
                assert!(!others.abort_flag().is_raised());
                // Rank 3 leaves, which ends an exchange but aborts nothing.
                let gone = control.all_gather(key(2, 0), &[2, 3], &(), soon());
                assert!(
                    matches!(gone, Err(Error::PeerLost { peer: 1, cause: LossCause::Left, .. })),
                    "{gone:?}"
                );
                assert!(!others.abort_flag().is_raised());
                survivors.wait();
            }
            _ => {
                wait_raised(&world);
                control.leave();
            }
        }
    });
    let panics: Vec<bool> = results.iter().map(Result::is_err).collect();
    assert_eq!(panics, [false, true, false, false]);
}

#[test]
fn a_computing_member_answers_what_it_does() {
    let barrier = Arc::new(Barrier::new(2));
    let call = Summary {
        collective: Collective::Broadcast,
        count: Some(7),
        data_type: DataType::F32,
        op: None,
        root: Some(1),
        shards: None,
        asynchronous: false,
    };
    cluster(2, move |control| {
        let world = control.register(1, all(2));
        if control.rank() == 1 {
            world.board().start(3, call.label());
        }
        barrier.wait();
        if control.rank() == 0 {
            let status = world.ask(1, LONG).unwrap();
            assert_eq!((status.started, status.finished, status.signature), (3, 0, call.label().signature()));
            assert_eq!(status.to_string(), "is in #3 broadcast(7 x f32, root 1)");
            assert_eq!(world.ask(7, LONG), None, "no such member");
        }
        barrier.wait();
    });
}

#[test]
fn the_others_go_on_when_rank_0_has_left() {
    let runtime = ControlRuntime::new().unwrap();
    let mut specs = JoinSpec::local(2);
    for spec in &mut specs {
        spec.liveness = Liveness { linger: Duration::from_millis(50), ..Liveness::default() };
    }
    let (one, zero) = (specs.pop().unwrap(), specs.pop().unwrap());
    let zeros_runtime = runtime.clone();
    let leaving = std::thread::spawn(move || Control::join(&zero, &zeros_runtime).unwrap().leave());
    let control = Control::join(&one, &runtime).unwrap();
    let world = control.register(1, all(2));
    leaving.join().unwrap();
    let after = control.all_gather(key(1, 0), &all(2), &(), soon());
    assert!(matches!(after, Err(Error::PeerLost { peer: 0, cause: LossCause::Left, .. })), "{after:?}");
    assert!(world.departed(0) && !world.abort_flag().is_raised());
    assert_eq!(world.ask(0, LONG), None);
    control.leave();
    control.leave();
}

#[test]
fn the_control_thread_ends_with_its_last_handle() {
    // Other tests of this process have threads of the same name, so a child process runs this one alone.
    if std::env::var_os("KOLO_TEST_ALONE").is_none() {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "the_control_thread_ends_with_its_last_handle"]).env("KOLO_TEST_ALONE", "1");
        let output = child.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        return;
    }
    cluster(8, |control| {
        assert_eq!(threads_named("kolo-control"), 1);
        control.all_gather(key(1, 0), &all(8), &(), soon()).unwrap();
    });
    assert_eq!(threads_named("kolo-control"), 0);
}
