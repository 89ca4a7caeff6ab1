//! Processes are killed, and the others go on: they shrink and sum right again, whichever rank died.

use std::time::Duration;

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::random::Random;
use kolo_tests::watchdog::within;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_elastic");

const LIMIT: Duration = Duration::from_secs(100);

fn start(arrangement: Arrangement, ranks: u32, elements: &str) -> Job {
    start_with(arrangement, ranks, &[elements], &[])
}

fn start_with(
    arrangement: Arrangement,
    ranks: u32,
    arguments: &[&str],
    settings: &[(&'static str, &str)],
) -> Job {
    let mut job = Job::start(PROGRAM, ranks, ranks, arguments, |rank| {
        let more = settings.iter().map(|(name, value)| (*name, (*value).to_owned()));
        environment(arrangement, rank).into_iter().chain(more).collect()
    });
    job.expect_all("@running");
    job
}

/// Waits until these ranks sum without the others, whatever happened in between.
fn sum_without_the_others(job: &mut Job, left: &[usize], what: &str) {
    let bits: u32 = left.iter().map(|rank| 1 << rank).sum();
    for rank in left {
        loop {
            let line = job.ranks[*rank].expect("@again ");
            let of = line.split(' ').nth(1).and_then(|word| word.parse::<u32>().ok()).expect("bits");
            if of == bits {
                break;
            }
            assert!(of & bits == bits, "{what}: rank {rank} sums with {of:b} and not with {bits:b}");
        }
    }
}

/// Waits until every rank of `left` reports its first good sum; checks that the sum is of these ranks in their order,
/// and returns the times.
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

/// Ends the job; no rank may have seen a wrong sum.
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

/// Kills the victims one after another, each when the others sum again.
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

#[test]
fn several_die_at_once() {
    let deaths: [(Arrangement, u32, &[usize]); 4] = [
        (Arrangement::Exchange, 8, &[0, 1, 2, 3, 4]),
        (Arrangement::Tcp, 4, &[0, 1]),
        (Arrangement::Hosts(2), 4, &[0, 3]),
        (Arrangement::Shm, 3, &[1, 2]),
    ];
    for (arrangement, ranks, victims) in deaths {
        let what = format!("{arrangement:?}, {ranks} ranks, {victims:?} killed at once");
        within(LIMIT, &what.clone(), move || {
            let mut job = start(arrangement, ranks, "1000");
            for victim in victims {
                job.ranks[*victim].signal(Signal::KILL);
            }
            let left: Vec<usize> = (0..ranks as usize).filter(|rank| !victims.contains(rank)).collect();
            sum_without_the_others(&mut job, &left, &what);
            stop(&mut job, &left, &what);
        });
    }
}

#[test]
fn a_rank_may_die_at_any_moment_of_a_shrink() {
    for (i, delay) in [0, 200, 500, 1000, 1500, 2000, 3000, 4000, 6000, 9000].into_iter().enumerate() {
        // Among the victims are the rank that runs the survivors' coordinator, and the one that ran the first
        // coordinator.
        let (victim, second) = [(3, 0), (0, 1), (2, 1), (1, 4)][i % 4];
        let arrangement = Arrangement::ALL[(i + i / 4) % 4];
        let what = format!("{arrangement:?}: {victim} killed, {second} dies {delay} us into the shrink");
        within(LIMIT, &what.clone(), move || {
            let second_dies = format!("{second}:{delay}");
            let mut job = start_with(arrangement, 5, &["1000", &second_dies], &[]);
            job.ranks[victim].signal(Signal::KILL);
            let left: Vec<usize> = (0..5).filter(|rank| ![victim, second].contains(rank)).collect();
            sum_without_the_others(&mut job, &left, &what);
            stop(&mut job, &left, &what);
        });
    }
}

/// Settings with limits on silence that are short, and longer than a busy machine keeps a healthy rank from its
/// processors.
const IMPATIENT: [(&str, &str); 2] = [("KOLO_DEAD_AFTER", "3"), ("KOLO_SILENT_AFTER", "2")];

/// Runs cases in parallel, since each waits some seconds for the limits on silence.
fn side_by_side<T: Sync>(cases: &[T], body: impl Fn(&T) + Sync) {
    std::thread::scope(|scope| {
        for case in cases {
            let body = &body;
            scope.spawn(move || body(case));
        }
    });
}

#[test]
fn a_stopped_rank_that_comes_back_is_told_that_it_is_out() {
    side_by_side(&[(Arrangement::Exchange, 2), (Arrangement::Tcp, 0)], |&(arrangement, stopped)| {
        let what = format!("{arrangement:?}: rank {stopped} stopped");
        within(LIMIT, &what.clone(), move || {
            let mut job = start_with(arrangement, 4, &["1000"], &IMPATIENT);
            let since = job.ranks[stopped].signal(Signal::STOP);
            let left: Vec<usize> = (0..4).filter(|rank| *rank != stopped).collect();
            let times = all_sum_again(&mut job, &left, 1, &what);
            let worst = times.iter().max().expect("three").saturating_sub(since);
            println!("{what}, all sum again after {:.1} ms", worst.as_secs_f64() * 1e3);
            job.ranks[stopped].signal(Signal::CONT);
            job.ranks[stopped].expect("@fenced");
            stop(&mut job, &left, &what);
        });
    });
}

/// When the rank continues, the others may have gone on without it, or it meets them again: no rank has an error either
/// way.
#[test]
fn a_rank_may_pause_at_any_moment_of_a_shrink() {
    // The rank that pauses runs the survivors' coordinator, or is one of the others.
    let cases = [(3, 0, [0, 1500]), (0, 1, [300, 3000]), (1, 2, [800, 5000])];
    for (victim, pauses, delays) in cases {
        let arranged = [Arrangement::Exchange, Arrangement::Tcp].into_iter().zip(delays);
        side_by_side(&arranged.collect::<Vec<_>>(), |&(arrangement, delay)| {
            pause(arrangement, victim, pauses, delay);
        });
    }
}

fn pause(arrangement: Arrangement, victim: usize, pauses: usize, delay: u32) {
    let what = format!("{arrangement:?}: {victim} killed, {pauses} pauses {delay} us into the shrink");
    within(LIMIT, &what.clone(), move || {
        let when = format!("{pauses}~{delay}");
        let mut job = start_with(arrangement, 4, &["1000", &when], &[("KOLO_SILENT_AFTER", "2")]);
        job.ranks[victim].signal(Signal::KILL);
        job.ranks[pauses].expect_stopped();
        // The pause is longer than the silence that the others accept, and ends while they find out the reason.
        std::thread::sleep(Duration::from_millis(2250));
        job.ranks[pauses].signal(Signal::CONT);
        let left: Vec<usize> = (0..4).filter(|rank| *rank != victim).collect();
        let fates: Vec<usize> = left
            .iter()
            .map(|rank| job.ranks[*rank].expect_any(&["@again ", "@fenced", "@error "]).0)
            .collect();
        println!("{what}: {fates:?}");
        let goes_on: Vec<usize> =
            left.iter().zip(&fates).filter(|(_, fate)| **fate == 0).map(|(rank, _)| *rank).collect();
        for (rank, fate) in left.iter().zip(&fates) {
            assert!(*fate == 0 || (*fate == 1 && *rank == pauses), "{what}: rank {rank}, {fates:?}");
        }
        stop(&mut job, &goes_on, &what);
    });
}

#[test]
fn too_few_do_not_go_on_while_the_others_may() {
    // Of two halves, the one with the first rank may go on, and the other may not.
    let cases: [(u32, &[usize], &[usize]); 3] = [(2, &[0], &[1]), (3, &[0, 1], &[2]), (4, &[0, 2], &[1, 3])];
    side_by_side(&cases, |&(ranks, stopped, left)| {
        let what = format!("{stopped:?} of {ranks} stopped");
        within(LIMIT, &what.clone(), move || {
            let mut job = start_with(Arrangement::Tcp, ranks, &["1000"], &IMPATIENT);
            for rank in stopped {
                job.ranks[*rank].signal(Signal::STOP);
            }
            for rank in left {
                job.ranks[*rank].expect("@minority");
            }
            for rank in stopped {
                job.ranks[*rank].signal(Signal::KILL);
            }
        });
    });
    within(LIMIT, "the second of two stopped", || {
        let mut job = start_with(Arrangement::Tcp, 2, &["1000"], &IMPATIENT);
        job.ranks[1].signal(Signal::STOP);
        sum_without_the_others(&mut job, &[0], "the second of two stopped");
        job.ranks[1].signal(Signal::KILL);
        stop(&mut job, &[0], "the second of two stopped");
    });
}

/// Ranks are killed one after another at random moments, most of them in the middle of a shrink, until one or two are
/// left. `KOLO_ELASTIC_ROUNDS` sets the number of rounds, and `KOLO_ELASTIC_SEED` the seed.
#[test]
fn ranks_die_at_random_moments() {
    let number = |name: &str, usual: u64| {
        std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok()).unwrap_or(usual)
    };
    let (first, rounds) = (number("KOLO_ELASTIC_SEED", 1), number("KOLO_ELASTIC_ROUNDS", 8));
    for seed in first..first + rounds {
        let mut random = Random::new(seed);
        let arrangement = Arrangement::ALL[random.below(4) as usize];
        let ranks = [3, 4, 8][random.below(3) as usize];
        let elements = ["3", "1000", "100000"][random.below(3) as usize];
        let last = 1 + random.below(2) as usize;
        let what = format!("seed {seed}: {arrangement:?}, {ranks} ranks, {elements} elements");
        within(LIMIT, &what.clone(), move || {
            let mut job = start(arrangement, ranks, elements);
            let mut left: Vec<usize> = (0..ranks as usize).collect();
            while left.len() > last {
                let victim = left.remove(random.below(left.len() as u64) as usize);
                job.ranks[victim].signal(Signal::KILL);
                std::thread::sleep(Duration::from_micros(random.below(25_000)));
            }
            sum_without_the_others(&mut job, &left, &what);
            stop(&mut job, &left, &what);
        });
    }
}
