//! Steps that outlive losses: whichever rank is killed, the others repeat the step and end with the same bits.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use kolo::{AbortReason, Communicator, Error, ErrorContext, ReduceOp, Survivors};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, LONG, Process, environment};
use kolo_tests::random::Random;
use kolo_tests::watchdog::within;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_survivors");

const LIMIT: Duration = Duration::from_secs(100);

const STEPS: &str = "400";

fn start(arrangement: Arrangement, ranks: u32) -> Job {
    let mut job = Job::start(PROGRAM, ranks, ranks, &[STEPS], |rank| environment(arrangement, rank));
    job.expect_all("@running");
    job
}

/// Returns the final state of these ranks and the sums that they have seen, which must be the same on all.
fn end(job: &mut Job, left: &[usize], what: &str) -> String {
    let mut seen: Vec<(String, String)> = Vec::new();
    for rank in left {
        let state = job.ranks[*rank].expect("@state ");
        seen.push((state, job.ranks[*rank].expect("@history ")));
        job.ranks[*rank].expect("@gone");
        assert!(!job.ranks[*rank].has_said("@wrong"), "{what}: rank {rank}");
    }
    assert!(seen.iter().all(|of| *of == seen[0]), "{what}: {seen:?}");
    assert!(seen[0].1.ends_with(&format!(" {}", left.len())), "{what}: {seen:?}");
    seen.remove(0).0
}

fn undisturbed() -> String {
    let mut job = start(Arrangement::Exchange, 1);
    end(&mut job, &[0], "alone")
}

#[test]
fn the_state_is_the_same_for_any_number_of_ranks() {
    within(LIMIT, "undisturbed", || {
        let alone = undisturbed();
        for (arrangement, ranks) in
            [(Arrangement::Exchange, 4), (Arrangement::Tcp, 3), (Arrangement::Hosts(2), 5)]
        {
            let mut job = start(arrangement, ranks);
            let all: Vec<usize> = (0..ranks as usize).collect();
            assert_eq!(end(&mut job, &all, "undisturbed"), alone, "{arrangement:?}, {ranks} ranks");
        }
    });
}

/// Outcome of jobs whose ranks were killed.
#[derive(Clone, Copy, Debug, Default)]
struct Outcome {
    killed: usize,
    /// Errors that named a rank; all of these had been killed.
    blames: usize,
    took: Duration,
}

/// Runs a job in which ranks are killed at random moments until one to three are left. The seed determines everything.
fn disturbed(seed: u64, sizes: &[usize], patience: Duration, alone: &str) -> Outcome {
    let mut random = Random::new(seed);
    let arrangement = Arrangement::ALL[(seed % 4) as usize];
    let ranks = sizes[random.below(sizes.len() as u64) as usize];
    let last = 1 + random.below(3).min(ranks as u64 - 2) as usize;
    let what = format!("seed {seed}: {arrangement:?}, {ranks} ranks, {last} left");
    let begun = Instant::now();
    let limits = ["KOLO_TIMEOUT", "KOLO_JOIN_TIMEOUT"].map(|name| (name, patience.as_secs().to_string()));
    let settings = |rank| [environment(arrangement, rank), limits.to_vec()].concat();
    let mut job = Job::start(PROGRAM, ranks as u32, ranks as u32, &[STEPS], settings);
    job.wait_at_most(2 * patience);
    let mut left: Vec<usize> = (0..ranks).collect();
    let mut killed = vec![None; ranks];
    let mut play = || {
        job.expect_all("@running");
        while left.len() > last {
            std::thread::sleep(Duration::from_micros(random.below(8_000)));
            let victim = left.remove(random.below(left.len() as u64) as usize);
            killed[victim] = Some(job.ranks[victim].signal(Signal::KILL));
        }
        assert_eq!(end(&mut job, &left, &what), alone, "{what}");
    };
    if let Err(panic) = catch_unwind(AssertUnwindSafe(&mut play)) {
        // The state of the processes shows whether ranks hang or starve.
        let look = || job.ranks.iter().map(Process::threads).collect::<Vec<_>>().join("\n");
        let before = look();
        std::thread::sleep(Duration::from_secs(2));
        println!("{what}: {:?} left; threads of all ranks\n{before}and 2 s later\n{}", left, look());
        resume_unwind(panic);
    }
    let mut blames = 0;
    for rank in &left {
        for text in job.ranks[*rank].said_all("@blames ") {
            let mut words = text.split(' ');
            let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
            let (blamed, at) = (number() as usize, Duration::from_nanos(number()));
            let is_right = killed[blamed].is_some_and(|killed| at >= killed);
            assert!(is_right, "{what}: wrong blame: rank {rank} blames {text}");
            blames += 1;
        }
    }
    Outcome { killed: ranks - last, blames, took: begun.elapsed() }
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(usual)
}

#[test]
fn any_ranks_may_die_at_any_moment_and_the_bits_are_the_same() {
    let alone = within(LIMIT, "undisturbed", undisturbed);
    for seed in 1..=8 {
        let alone = alone.clone();
        within(LIMIT, "any ranks", move || disturbed(seed, &[3, 4, 4, 5, 8, 8], LONG, &alone));
    }
}

/// Jobs of 4 and 8 ranks. `KOLO_FAULTS` is the number of ranks to kill (10,000), `KOLO_FAULTS_SEED` the first job's
/// seed (1), `KOLO_FAULTS_AT_ONCE` the number of simultaneous jobs (4), and `KOLO_FAULTS_PATIENCE` the seconds that a
/// call waits before it fails (60); a job may be silent for twice as long. With `KOLO_FAULTS=1`, only the job of
/// one seed runs.
#[test]
#[ignore = "takes an hour"]
fn ten_thousand_ranks_die() {
    let (faults, first) = (number("KOLO_FAULTS", 10_000) as usize, number("KOLO_FAULTS_SEED", 1));
    let patience = Duration::from_secs(number("KOLO_FAULTS_PATIENCE", 60));
    let alone = undisturbed();
    let (next, sum) = (AtomicU64::new(first), Mutex::new((Outcome::default(), 0_u64, Vec::new())));
    std::thread::scope(|scope| {
        for _ in 0..number("KOLO_FAULTS_AT_ONCE", 4) {
            scope.spawn(|| {
                while sum.lock().expect("no panics while it is held").0.killed < faults {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    let job = || disturbed(seed, &[4, 8], patience, &alone);
                    let outcome = catch_unwind(AssertUnwindSafe(job));
                    let mut sum = sum.lock().expect("no panics while it is held");
                    sum.1 += 1;
                    match outcome {
                        Ok(Outcome { killed, blames, took }) => {
                            sum.0.killed += killed;
                            sum.0.blames += blames;
                            sum.0.took = sum.0.took.max(took);
                        }
                        Err(_) => sum.2.push(seed),
                    }
                    let (so_far, jobs, failed) = &*sum;
                    if jobs % 50 == 0 {
                        println!("{jobs} jobs: {so_far:?}, failed seeds {failed:?}");
                    }
                }
            });
        }
    });
    let (Outcome { killed, blames, took }, jobs, failed) =
        sum.into_inner().expect("no panics while it is held");
    println!(
        "{killed} ranks killed in {jobs} jobs from seed {first}: {} jobs hung or had wrong results or blames (seeds {failed:?}); {blames} \
         errors named a rank, and each one that was killed; the longest job took {took:.1?}",
        failed.len()
    );
    assert!(failed.is_empty(), "look above for each");
}

#[test]
fn without_a_loss_a_step_runs_once() {
    within(LIMIT, "healthy", || {
        Arrangement::Exchange.run(3, |comm| {
            let mut group = Survivors::new(comm).at_least(3);
            let mut sum = [0.0_f32; 5];
            for _ in 0..10 {
                group.all_reduce(&[1.0; 5], &mut sum, ReduceOp::Sum).expect("all live");
                assert_eq!(sum, [3.0; 5]);
            }
            assert_eq!(group.comm().epoch(), 0, "the same communicator");
        });
    });
}

#[test]
fn an_error_of_one_ranks_own_is_an_error_on_all_and_is_not_repeated() {
    within(LIMIT, "own error", || {
        for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
            let runs = AtomicU32::new(0);
            arrangement.run(3, |comm| {
                let mut group = Survivors::new(comm);
                let mut sum = [0.0_f32; 4];
                let error = group
                    .run(|comm| {
                        runs.fetch_add(1, Ordering::Relaxed);
                        // The others wait for this rank in the call, or have finished the one before.
                        comm.barrier()?;
                        let input: &[f32] = if comm.rank() == 1 { &[1.0; 3] } else { &[1.0; 4] };
                        comm.all_reduce_into(input, &mut sum, ReduceOp::Sum)
                    })
                    .expect_err("lengths differ");
                match error {
                    Error::Usage { problem, .. } => {
                        assert!(
                            group.comm().rank() == 1 && problem.contains("4 elements, but 3"),
                            "{problem}"
                        );
                    }
                    Error::Aborted { kind: AbortReason::Revoked, .. } => assert_ne!(group.comm().rank(), 1),
                    other => panic!("{other}"),
                }
                group.all_reduce(&[1.0; 4], &mut sum, ReduceOp::Sum).expect("the members go on");
                assert_eq!((sum, group.comm().world_size()), ([3.0; 4], 3));
            });
            assert_eq!(runs.into_inner(), 3, "once on each rank");
        }
    });
}

#[test]
fn a_failure_without_a_loss_is_an_error_on_all() {
    within(LIMIT, "no loss", || {
        Arrangement::Tcp.run(3, |comm| {
            let mut group = Survivors::new(comm);
            let fail = |comm: &Communicator| -> kolo::Result<()> {
                let mut context = ErrorContext::default();
                context.rank = Some(comm.rank());
                let reason = "as if a connection had broken".to_owned();
                let kind = AbortReason::Transport;
                let error = Error::Aborted { context, by: 1, kind, reason };
                if comm.rank() == 1 { Err(error) } else { Ok(()) }
            };
            let error = group.run(fail).expect_err("on all ranks");
            let wanted = if group.comm().rank() == 1 {
                "as if a connection"
            } else {
                "the step failed on another rank"
            };
            assert!(error.to_string().contains(wanted), "{error}");
            assert_eq!(group.run(|comm| comm.barrier().map(|()| comm.world_size())).expect("they go on"), 3);
        });
    });
}

#[test]
fn too_few_are_told_so() {
    within(LIMIT, "too few", || {
        Arrangement::Exchange.run(3, |comm| {
            let mut group = Survivors::new(comm).at_least(3);
            if group.comm().rank() == 0 {
                return;
            }
            let error = group.all_reduce(&[1.0_f32], &mut [0.0], ReduceOp::Sum).expect_err("two are too few");
            assert!(matches!(error, Error::Aborted { kind: AbortReason::Minority, .. }), "{error}");
            assert!(
                error.to_string().contains("only 2 of 3 ranks are left, and at least 3 are needed"),
                "{error}"
            );
        });
    });
}

#[test]
fn half_of_64_ranks_leave_and_the_others_go_on() {
    within(LIMIT, "64 ranks", || {
        let sums = Arrangement::Exchange.run(64, |comm| {
            let first = comm.rank();
            let mut group = Survivors::new(comm);
            let mut sum = [0.0_f32];
            group.all_reduce(&[1.0], &mut sum, ReduceOp::Sum).expect("all are there");
            assert_eq!(sum, [64.0]);
            if first % 2 == 1 {
                return None;
            }
            // The ranks leave one after another, so some steps may still include some of them.
            while sum != [32.0] {
                let before = sum;
                group.all_reduce(&[1.0], &mut sum, ReduceOp::Sum).expect("half of them live");
                assert!(sum[0] >= 32.0 && sum[0] <= before[0], "{sum:?} after {before:?}");
            }
            Some(group.comm().ranks_before().len())
        });
        assert_eq!(sums.iter().flatten().count(), 32);
        assert!(sums.into_iter().flatten().all(|ranks| ranks == 32));
    });
}

/// Thread ranks die of panics, which their control planes report; `target/release/recovery threads` measures the time.
#[test]
fn half_of_256_ranks_die_at_once_and_the_others_go_on() {
    within(LIMIT, "256 ranks", || {
        let all = std::sync::Barrier::new(256);
        let begun = std::sync::OnceLock::new();
        let times = Arrangement::Exchange.run(256, |comm| {
            let dies = comm.rank() % 2 == 0;
            comm.barrier().expect("all are there");
            all.wait();
            let begun = *begun.get_or_init(Instant::now);
            if dies {
                let panics = AssertUnwindSafe(|| {
                    let _of_this_rank = comm;
                    resume_unwind(Box::new("it was to die"));
                });
                assert!(catch_unwind(panics).is_err());
                return None;
            }
            let mut group = Survivors::new(comm);
            let mut sum = [0.0_f32];
            // The ranks die one after another, so some steps may still include some of them.
            while sum != [128.0] {
                group.all_reduce(&[1.0], &mut sum, ReduceOp::Sum).expect("half of them live");
                assert!(sum[0] >= 128.0, "{sum:?}");
            }
            Some(begun.elapsed())
        });
        let times: Vec<Duration> = times.into_iter().flatten().collect();
        assert_eq!(times.len(), 128);
        println!("256 ranks, 128 die at once: the others have summed again after {:?}", times.iter().max());
    });
}
