//! Tests of the control plane between processes, with real deaths and with ends in any order.
//!
//! A parent test starts copies of this test program that run only the test `child`, and variables tell them what to do.
//! Children report lines that begin with "@".

use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo::JoinSpec;
use kolo::internal::control::{Control, ControlRuntime};
use kolo_tests::processes::{Job, LONG};
use rustix::process::Signal;

/// Starts the processes of a job.
fn job(ranks: u32, settings: &[(&'static str, &str)]) -> Job {
    let program = std::env::current_exe().unwrap();
    let settings = |_| settings.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Job::start(program.to_str().unwrap(), ranks, ranks, &["--exact", "child", "--nocapture"], settings)
}

/// Ends all processes, of which none has failed.
fn end(job: &mut Job) {
    job.ranks.iter_mut().for_each(|rank| rank.tell("return"));
    assert!(job.ended().iter().all(|okay| *okay));
}

/// Acts as a process of a job: joins, then obeys its standard input.
#[test]
fn child() {
    if std::env::var_os("KOLO_RANK").is_none() {
        return; // not a child
    }
    let spec = JoinSpec::from_process_env().unwrap();
    let begin = Instant::now();
    let control = match Control::join(&spec, &ControlRuntime::new().unwrap()) {
        Ok(control) => control,
        Err(error) => return println!("\n@failed {error}"),
    };
    println!("\n@joined {}", begin.elapsed().as_micros());
    let members: Arc<[u32]> = (0..spec.world_size).collect();
    let world = control.register(1, members);
    let flag = world.abort_flag().clone();
    world.abort_flag().on_raise(Box::new(move || {
        if let Some(cause) = flag.cause() {
            println!("\n@aborted {} {cause}", cause.by);
        }
    }));
    println!("\n@ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "leave" => control.leave(),
            "exit" => std::process::exit(0),
            "return" => return,
            other => match other.strip_prefix("departed ").and_then(|rank| rank.parse().ok()) {
                Some(rank) => println!("\n@departed {}", world.departed(rank)),
                None => println!("\n@failed: cannot {other}"),
            },
        }
    }
}

#[test]
fn eight_processes_join_fast_and_leave_together() {
    let begin = Instant::now();
    let mut job = job(8, &[]);
    let joined = job.expect_all("@joined");
    let last = begin.elapsed();
    let inside = joined.iter().map(|micros| micros.parse::<u64>().unwrap()).max().unwrap();
    println!("8 processes: the last joined {last:?} after the first was started; longest join {inside} us");
    // An idle machine takes 200 ms. The bound is for one with other work, which may pause for seconds.
    assert!(last < Duration::from_secs(10), "{last:?}");
    let begin = Instant::now();
    end(&mut job);
    println!("8 processes: all ended {:?} after they were told", begin.elapsed());
}

#[test]
fn a_killed_process_is_noticed_by_all_soon() {
    for victim in [2usize, 0] {
        let mut job = job(4, &[]);
        job.expect_all("@ready");
        let begin = Instant::now();
        job.ranks[victim].signal(Signal::KILL);
        job.ranks.remove(victim);
        for cause in job.expect_all("@aborted") {
            let after = begin.elapsed();
            println!("rank {victim} killed: another knows after {after:?}: {cause}");
            assert!(cause.starts_with(&victim.to_string()), "{cause}");
            // A silent process is given up after a minute only.
            assert!(after < Duration::from_secs(6), "{after:?}");
        }
        end(&mut job);
    }
}

#[test]
fn a_stopped_process_is_given_up_after_the_limit_only() {
    let given_up = |victim: usize| {
        let mut job = job(3, &[("KOLO_DEAD_AFTER", "4")]);
        job.expect_all("@ready");
        let begin = Instant::now();
        job.ranks[victim].signal(Signal::STOP);
        let cause = job.ranks[2].expect("@aborted");
        let after = begin.elapsed();
        println!("rank {victim} stopped: rank 2 gives it up after {after:?}: {cause}");
        assert!(after > Duration::from_secs(3), "{after:?}");
        assert!(cause.starts_with(&victim.to_string()) && cause.contains("silent for"), "{cause}");
        // Once it runs again, the process learns that it was given up, and ends like the others.
        job.ranks[victim].signal(Signal::CONT);
        job.ranks[victim].expect("@aborted");
        end(&mut job);
    };
    // Most of the time is spent waiting for the limit.
    std::thread::scope(|scope| [1, 0].map(|victim| drop(scope.spawn(move || given_up(victim)))));
}

#[test]
fn processes_end_in_any_order() {
    for order in [[0usize, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let mut job = job(3, &[]);
        job.expect_all("@ready");
        // Each rank says goodbye while the others are still there. None of this is a failure.
        for (n, &i) in order.iter().enumerate() {
            job.ranks[i].tell("return");
            if n == 0 && i != 0 {
                let until = Instant::now() + LONG;
                loop {
                    job.ranks[0].tell(&format!("departed {i}"));
                    if job.ranks[0].expect("@departed") == "true" {
                        break;
                    }
                    assert!(Instant::now() < until);
                }
            }
        }
        for rank in &mut job.ranks {
            assert!(rank.ended());
            assert!(!rank.has_said("@aborted"), "{order:?}");
        }
    }
}

#[test]
fn an_exit_without_goodbye_is_a_loss() {
    let mut job = job(3, &[]);
    job.expect_all("@ready");
    job.ranks[1].tell("exit");
    for rank in [0, 2] {
        let cause = job.ranks[rank].expect("@aborted");
        assert!(cause.starts_with('1') && cause.contains("without a goodbye"), "{cause}");
    }
    let mut exited = job.ranks.remove(1);
    assert!(exited.ended());
    end(&mut job);
}
