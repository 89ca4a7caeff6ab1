//! Processes are killed, and the others go on: they shrink and sum right again, whoever died.

use std::time::Duration;

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::watchdog::within;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_elastic");

const LIMIT: Duration = Duration::from_secs(100);

fn start(arrangement: Arrangement, ranks: u32, elements: &str) -> Job {
    let mut job = Job::start(PROGRAM, ranks, ranks, &[elements], |rank| environment(arrangement, rank));
    job.expect_all("@running");
    job
}

/// What every rank of `left` says after its first good sum: when, and that it is of these ranks in their order.
fn all_sum_again(job: &mut Job, left: &[usize], epoch: u64, what: &str) -> Vec<Duration> {
    let bits: u32 = left.iter().map(|rank| 1 << rank).sum();
    let times = left.iter().enumerate().map(|(place, rank)| {
        let line = job.ranks[*rank].expect("@again ");
        let mut words = line.split(' ');
        let at = Duration::from_nanos(words.next().and_then(|word| word.parse().ok()).expect("a time"));
        let rest: Vec<String> = words.map(ToOwned::to_owned).collect();
        let expected = [bits.to_string(), left.len().to_string(), epoch.to_string(), place.to_string()];
        assert_eq!(rest, expected, "{what}: rank {rank}");
        at
    });
    times.collect()
}

/// Ends the job; nobody has seen a wrong sum.
fn stop(job: &mut Job, left: &[usize], what: &str) {
    for rank in left {
        job.ranks[*rank].tell("stop");
    }
    for rank in left {
        job.ranks[*rank].expect("@gone");
        assert!(job.ranks[*rank].ended(), "{what}: rank {rank}");
        assert!(!job.ranks[*rank].has_said("@wrong"), "{what}: rank {rank}");
    }
}

/// Kills these, one after another, each when the others sum again.
fn kill_in_turn(arrangement: Arrangement, ranks: u32, victims: &[usize], elements: &'static str) {
    let (what, victims) = (format!("{arrangement:?}, {ranks} ranks, {victims:?} killed"), victims.to_vec());
    within(LIMIT, &what.clone(), move || {
        let mut job = start(arrangement, ranks, elements);
        let mut left: Vec<usize> = (0..ranks as usize).collect();
        for (epoch, victim) in victims.iter().enumerate() {
            left.retain(|rank| rank != victim);
            let killed = job.ranks[*victim].signal(Signal::KILL);
            let times = all_sum_again(&mut job, &left, epoch as u64 + 1, &what);
            let worst = times.iter().max().expect("somebody is left").saturating_sub(killed);
            println!("{what}: rank {victim} killed, all sum again after {:.1} ms", worst.as_secs_f64() * 1e3);
        }
        stop(&mut job, &left, &what);
    });
}

#[test]
fn any_rank_may_die_and_the_first_too() {
    for arrangement in Arrangement::ALL {
        for victim in [0, 1, 3] {
            kill_in_turn(arrangement, 4, &[victim], "1000");
        }
    }
}

#[test]
fn of_two_ranks_either_may_die() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp] {
        for victim in [0, 1] {
            kill_in_turn(arrangement, 2, &[victim], "3");
        }
    }
}

#[test]
fn all_but_one_die_one_after_another() {
    kill_in_turn(Arrangement::Exchange, 4, &[0, 2, 1], "1000");
    kill_in_turn(Arrangement::Tcp, 4, &[0, 1, 2], "1000");
    kill_in_turn(Arrangement::Hosts(2), 3, &[1, 2], "1000000");
}
