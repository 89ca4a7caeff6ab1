//! Processes that are killed, stopped, or end without notice: the others notice soon and name the lost rank.

use std::time::Duration;

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::system::machine_time;
use kolo_tests::watchdog::within;
use rustix::process::Signal;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_rank");

/// Time limit from the death of a process to the error of each other one, on one machine that may pause for seconds.
/// Without the notice, the error would come with the time-out after 30 s.
const NOTICED: Duration = Duration::from_secs(6);

const LIMIT: Duration = Duration::from_secs(50);

fn start(arrangement: Arrangement, ranks: u32, arguments: &[&str]) -> Job {
    Job::start(PROGRAM, ranks, ranks, arguments, |rank| environment(arrangement, rank))
}

/// Returns the error that a rank reports, which must come soon after `killed`.
fn error_soon(job: &mut Job, rank: usize, killed: Duration) -> String {
    let line = job.ranks[rank].expect("@error ");
    let (at, text) = line.split_once(' ').expect("a time and a text");
    let took = Duration::from_nanos(at.parse().expect("a time")).saturating_sub(killed);
    assert!(took < NOTICED, "rank {rank} took {took:?}: {text}");
    text.to_owned()
}

/// Kills `victim` and checks the reports of the others; prints how long each took.
fn kill(job: &mut Job, what: &str, victim: usize, check: impl Fn(&str, &str)) {
    let killed = job.ranks[victim].signal(Signal::KILL);
    let mut times = Vec::new();
    for rank in (0..job.ranks.len()).filter(|rank| *rank != victim) {
        let line = job.ranks[rank].expect("@error ");
        let (at, text) = line.split_once(' ').expect("a time and a text");
        let at = Duration::from_nanos(at.parse().expect("a time"));
        let took = at.saturating_sub(killed);
        assert!(took < NOTICED, "{what}: rank {rank} took {took:?}: {text}");
        assert!(text.starts_with(&format!("rank {rank}, ")), "{what}: {text}");
        assert!(text.contains(&format!("rank {victim} is lost")), "{what}: {text}");
        check(text, what);
        times.push(format!("{:.1} ms", took.as_secs_f64() * 1e3));
    }
    println!("{what}, rank {victim} killed: the others' errors after {}", times.join(", "));
    let ended = job.ended();
    assert!(!ended[victim] && ended.iter().filter(|e| **e).count() == ended.len() - 1, "{what}: {ended:?}");
}

fn names_the_operation(text: &str, what: &str) {
    assert!(text.contains("all_reduce(") && text.contains("operation #"), "{what}: {text}");
}

fn kill_in_a_sequence(arrangement: Arrangement, elements: &'static str) {
    let name = format!("{arrangement:?}, all_reduce of {elements} x f32");
    within(LIMIT, &name.clone(), move || {
        for victim in [2, 0, 3] {
            let mut job = start(arrangement, 4, &["loop", elements]);
            job.expect_all("@running");
            kill(&mut job, &name, victim, names_the_operation);
            assert!(victim == 0 || job.files_left() == 0, "{name}: rank 0 left its file");
        }
    });
}

#[test]
fn killed_in_collectives_by_exchange() {
    kill_in_a_sequence(Arrangement::Exchange, "16");
}

#[test]
fn killed_in_short_messages() {
    kill_in_a_sequence(Arrangement::Shm, "1000");
    kill_in_a_sequence(Arrangement::Tcp, "1000");
}

#[test]
fn killed_in_long_messages() {
    kill_in_a_sequence(Arrangement::Shm, "8000000");
    kill_in_a_sequence(Arrangement::Tcp, "8000000");
    kill_in_a_sequence(Arrangement::Hosts(2), "4000000");
}

#[test]
fn killed_in_symmetric_buffers() {
    for elements in ["10000", "10000000"] {
        within(LIMIT, elements, move || {
            for victim in [2, 0, 3] {
                let mut job = start(Arrangement::Exchange, 4, &["direct", elements]);
                job.expect_all("@running");
                kill(&mut job, &format!("symmetric, {elements} x f32"), victim, names_the_operation);
            }
        });
    }
}

#[test]
fn killed_while_idle() {
    within(LIMIT, "idle", || {
        for arrangement in Arrangement::ALL {
            for victim in [1_usize, 0] {
                let mut job = start(arrangement, 3, &["idle", "1000"]);
                job.expect_all("@running");
                job.ranks[victim].signal(Signal::KILL);
                assert!(!job.ranks[victim].ended());
                for rank in (0..3).filter(|rank| *rank != victim) {
                    job.ranks[rank].tell("go");
                    let took: u64 = job.ranks[rank].expect("@took ").parse().expect("a number");
                    let text = job.ranks[rank].expect("@error ");
                    assert!(text.contains(&format!("rank {victim} is lost")), "{arrangement:?}: {text}");
                    names_the_operation(&text, "idle");
                    assert!(
                        u128::from(took) < NOTICED.as_micros(),
                        "{arrangement:?}: rank {rank} took {took} us: {text}"
                    );
                    println!(
                        "{arrangement:?}: rank {victim} killed before a call; the call failed after {took} us"
                    );
                }
                job.ended();
            }
        }
    });
}

#[test]
fn killed_with_asynchronous_operations() {
    within(LIMIT, "asynchronous", || {
        for arrangement in Arrangement::ALL {
            let mut job = start(arrangement, 3, &["async", "500000"]);
            job.expect_all("@running");
            kill(&mut job, &format!("{arrangement:?}, asynchronous"), 2, |text, what| {
                assert!(text.contains("all_reduce_start(") && text.contains("operation #"), "{what}: {text}");
            });
        }
    });
}

#[test]
fn killed_with_receives_posted() {
    within(LIMIT, "receives", || {
        for arrangement in Arrangement::ALL {
            for elements in ["10", "300000"] {
                let mut job = start(arrangement, 3, &["receives", elements]);
                job.expect_all("@running");
                kill(&mut job, &format!("{arrangement:?}, receives of {elements} x f32"), 2, |text, what| {
                    assert!(
                        text.contains("recv #4") && text.contains("from any rank with tag 3"),
                        "{what}: {text}"
                    );
                });
            }
        }
    });
}

#[test]
fn killed_between_messages_of_two_ranks() {
    within(LIMIT, "messages", || {
        for arrangement in Arrangement::ALL {
            for elements in ["10", "1000000"] {
                let mut job = start(arrangement, 4, &["ring", elements]);
                job.expect_all("@running");
                kill(&mut job, &format!("{arrangement:?}, ring of {elements} x f32"), 2, |text, what| {
                    assert!(text.contains("send #") || text.contains("recv #"), "{what}: {text}");
                    assert!(
                        text.contains("bytes of")
                            && (text.contains(" to rank") || text.contains(" from rank")),
                        "{what}: {text}"
                    );
                });
            }
        }
    });
}

#[test]
fn killed_beside_a_busy_pair() {
    within(LIMIT, "pairs", || {
        for arrangement in Arrangement::ALL {
            let mut job = start(arrangement, 3, &["pair", "100"]);
            job.expect_all("@running");
            kill(&mut job, &format!("{arrangement:?}, a pair that does not need it"), 2, |_, _| ());
        }
    });
}

#[test]
fn killed_in_a_part_and_outside_of_it() {
    within(LIMIT, "parts", || {
        for arrangement in Arrangement::ALL {
            // World rank 2 is rank 1 of the part.
            let mut job = start(arrangement, 4, &["child", "1000"]);
            job.expect_all("@running");
            let killed = job.ranks[2].signal(Signal::KILL);
            for rank in [1, 3] {
                let text = error_soon(&mut job, rank, killed);
                assert!(text.contains("rank 1 is lost"), "{arrangement:?}: {text}");
                names_the_operation(&text, "part");
            }
            job.ranks[0].tell("enough");
            let ended = job.ended();
            assert_eq!(ended, [true, true, false, true], "{arrangement:?}");

            // World rank 0 is in no part, but carries the control plane.
            let mut job = start(arrangement, 4, &["child", "1000"]);
            job.expect_all("@running");
            let killed = job.ranks[0].signal(Signal::KILL);
            for rank in 1..4 {
                let text = error_soon(&mut job, rank, killed);
                assert!(text.contains("world rank 0") && text.contains("is lost"), "{arrangement:?}: {text}");
                names_the_operation(&text, "part");
            }
            job.ended();
        }
    });
}

#[test]
fn a_rank_that_panics_says_so() {
    within(LIMIT, "panic", || {
        for arrangement in Arrangement::ALL {
            for victim in [2, 0] {
                let mut job = start(arrangement, 4, &["told", "1000"]);
                job.expect_all("@running");
                let since = machine_time();
                job.ranks[victim].tell("panic");
                for rank in (0..4).filter(|rank| *rank != victim) {
                    let text = error_soon(&mut job, rank, since);
                    assert!(text.contains(&format!("rank {victim} is lost")), "{arrangement:?}: {text}");
                    // Rank 0's end also ends the connection over which it could report its reason.
                    let why = if victim == 0 { "" } else { "its thread 'main' panicked" };
                    assert!(text.contains(why), "{arrangement:?}: {text}");
                    names_the_operation(&text, "panic");
                }
                job.ended();
            }
        }
    });
}

/// Limit of a call, in seconds: more than a pause of the machine, and much less than the usual limit.
const CALL_LIMIT_S: u64 = 5;

fn with_limit(arrangement: Arrangement, rank: u32) -> Vec<(&'static str, String)> {
    let mut settings = environment(arrangement, rank);
    settings.push(("KOLO_TIMEOUT", CALL_LIMIT_S.to_string()));
    settings
}

/// Runs a test in all arrangements at once, since most of its time is spent waiting for a limit.
fn everywhere_at_once(test: impl Fn(Arrangement) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for arrangement in Arrangement::ALL {
            scope.spawn(move || test(arrangement));
        }
    });
}

#[test]
fn with_rank_0_stopped_nobody_else_is_blamed() {
    within(LIMIT, "rank 0 stopped", || {
        everywhere_at_once(|arrangement| {
            let mut job = Job::start(PROGRAM, 4, 4, &["loop", "1000"], |rank| with_limit(arrangement, rank));
            job.expect_all("@running");
            job.ranks[0].signal(Signal::STOP);
            for rank in 1..4 {
                let text = job.ranks[rank].expect("@error ");
                println!("{arrangement:?}, rank {rank}: {text}");
                assert!(!text.contains("is lost"), "{arrangement:?}: {text}");
                assert!(!text.contains("no answer from it"), "{arrangement:?}: {text}");
                let first = text.contains("waiting for rank 0 (it is silent");
                let broken = text.contains("rank 0, which would know it, is silent");
                assert!(first || broken, "{arrangement:?}: {text}");
            }
            job.ranks[0].signal(Signal::CONT);
            job.ended();
        });
    });
}

/// Starts a job whose rank 0 has left in good order while the others go on in a communicator of their own.
fn orphaned(task: &'static str, elements: &str) -> Job {
    let mut job = start(Arrangement::Exchange, 4, &[task, elements]);
    job.expect_all("@running");
    job.ranks[0].tell("leave");
    job.ranks[0].expect("@gone");
    assert!(job.ranks[0].ended());
    job
}

/// Returns the error of a rank whose control plane is gone, which must come soon.
fn error_of_an_orphan(job: &mut Job, rank: usize, since: Duration) -> String {
    let line = job.ranks[rank].expect("@error ");
    let (at, text) = line.split_once(' ').expect("a time and a text");
    let took = Duration::from_nanos(at.parse().expect("a time")).saturating_sub(since);
    println!("rank {rank} after {took:.1?}: {text}");
    assert!(took < NOTICED, "rank {rank} took {took:?}: {text}");
    text.to_owned()
}

#[test]
fn after_rank_0_has_left_a_death_is_noticed() {
    within(LIMIT, "orphans", || {
        let tasks = ["orphans", "orphans-await"].into_iter();
        for (task, elements) in tasks.flat_map(|task| ["1000", "2000000"].map(|elements| (task, elements))) {
            let mut job = orphaned(task, elements);
            let since = job.ranks[2].signal(Signal::KILL);
            // World rank 2 is rank 1 of the part.
            for rank in [1, 3] {
                let text = error_of_an_orphan(&mut job, rank, since);
                assert!(text.contains("rank 1 is lost"), "{task}, {elements}: {text}");
                if task == "orphans" {
                    names_the_operation(&text, elements);
                }
            }
            assert_eq!(job.ended(), [true, true, false, true]);
        }
    });
}

#[test]
fn after_rank_0_has_left_a_departure_is_noticed() {
    within(LIMIT, "orphans", || {
        for elements in ["1000", "2000000"] {
            let mut job = orphaned("orphans", elements);
            let since = machine_time();
            job.ranks[2].tell("leave");
            for rank in [1, 3] {
                let text = error_of_an_orphan(&mut job, rank, since);
                assert!(text.contains("rank 1 is lost"), "{elements}: {text}");
                names_the_operation(&text, elements);
            }
            assert_eq!(job.ended(), [true; 4]);
        }
    });
}

#[test]
fn after_rank_0_has_left_a_mismatch_names_both_calls() {
    within(LIMIT, "orphans", || {
        for elements in ["1000", "2000000"] {
            let mut job = orphaned("orphans", elements);
            let since = machine_time();
            job.ranks[2].tell("other");
            for rank in 1..4 {
                let text = error_of_an_orphan(&mut job, rank, since);
                let (own, other) = if rank == 2 { ("max", "sum") } else { ("sum", "max") };
                let call = |op| format!("all_reduce({elements} x f32, {op})");
                assert!(text.contains(&call(own)), "rank {rank}: {text}");
                assert!(text.contains(&format!("called {}", call(other))), "rank {rank}: {text}");
            }
            assert_eq!(job.ended(), [true; 4]);
        }
    });
}

#[test]
fn killed_while_joining() {
    within(LIMIT, "joining", || {
        // Rank 2 is never started, so the others are still joining.
        let mut job = Job::start(PROGRAM, 3, 2, &["ready"], |_| vec![("KOLO_JOIN_TIMEOUT", "2".to_owned())]);
        job.ranks[1].signal(Signal::KILL);
        assert!(!job.ranks[1].ended());
        let text = job.ranks[0].expect("@error ");
        println!("a rank killed while joining: {text}");
        assert!(text.contains("could not join") && text.contains('2'), "{text}");
        job.ranks[0].ended();

        // Rank 0 dies: the others give up at the deadline and name the rank that they looked for.
        let mut job = Job::start(PROGRAM, 3, 2, &["ready"], |_| vec![("KOLO_JOIN_TIMEOUT", "2".to_owned())]);
        job.ranks[0].signal(Signal::KILL);
        let text = job.ranks[1].expect("@error ");
        println!("rank 0 killed while joining: {text}");
        assert!(text.contains("rank 1 could not join"), "{text}");
    });
}

#[test]
fn a_stopped_process_is_a_timeout() {
    within(LIMIT, "stopped", || {
        everywhere_at_once(|arrangement| {
            let mut job = Job::start(PROGRAM, 3, 3, &["loop", "1000"], |rank| with_limit(arrangement, rank));
            job.expect_all("@running");
            let stopped = job.ranks[2].signal(Signal::STOP);
            for rank in [0, 1] {
                let line = job.ranks[rank].expect("@error ");
                let (at, text) = line.split_once(' ').expect("a time and a text");
                let took = Duration::from_nanos(at.parse().expect("a time")).saturating_sub(stopped);
                println!(
                    "{arrangement:?}: rank 2 stopped, limit {CALL_LIMIT_S} s: rank {rank} after {took:.1?}: {text}"
                );
                let most = Duration::from_secs(CALL_LIMIT_S + 10);
                assert!(took > Duration::from_secs(CALL_LIMIT_S - 1) && took < most, "{took:?}: {text}");
                assert!(text.contains("rank 2"), "{arrangement:?}: {text}");
                names_the_operation(text, "stopped");
            }
            // The process continues, finds its communicator aborted, and ends.
            job.ranks[2].signal(Signal::CONT);
            let text = job.ranks[2].expect("@error ");
            assert!(text.contains("rank 0") || text.contains("rank 1"), "{text}");
            assert_eq!(job.ended(), [true; 3]);
        });
    });
}

#[test]
fn processes_that_exit_after_the_last_call_harm_nobody() {
    within(LIMIT, "exit", || {
        for arrangement in Arrangement::ALL {
            for elements in ["4", "30000", "500000"] {
                let mut job = start(arrangement, 4, &["exit", elements]);
                for (rank, process) in job.ranks.iter_mut().enumerate() {
                    process.expect("@finished");
                    assert!(process.ended(), "{arrangement:?}, {elements} elements: rank {rank}");
                }
            }
        }
    });
}

#[test]
fn a_rank_that_waits_for_the_living_outlasts_a_pause_of_theirs() {
    within(LIMIT, "a pause", || {
        for arrangement in Arrangement::ALL {
            while !outlasts_a_pause(arrangement) {}
        }
    });
}

/// Lets rank 1 keep rank 0 waiting, while rank 2 is lost. Returns false if it took longer than rank 0 needs to bear.
fn outlasts_a_pause(arrangement: Arrangement) -> bool {
    /// Time for which a busy host may keep a rank from its processors: longer than the grace where no living rank is
    /// needed, which is 50 ms.
    const PAUSE: Duration = Duration::from_millis(80);
    /// The longest time that counts, which is shorter than the grace of 200 ms.
    const COUNTS: Duration = Duration::from_millis(150);
    let time = |line: &str| {
        let word = line.split(' ').next().expect("a word");
        Duration::from_nanos(word.parse().expect("a time"))
    };
    let mut job = start(arrangement, 3, &["slow", "500"]);
    let [began, _] = [0, 1].map(|rank| time(&job.ranks[rank].expect("@running ")));
    assert!(job.ranks[2].ended(), "{arrangement:?}");
    std::thread::sleep(PAUSE);
    job.ranks[1].tell("go");
    let [(fails, _), (_, sent)] = [0, 1].map(|rank| job.ranks[rank].expect_any(&["@finished ", "@error "]));
    let took = time(&sent).saturating_sub(began);
    if took > COUNTS {
        println!("{arrangement:?}: sent after {took:?}, which does not count");
        return false;
    }
    assert_eq!(fails, 0, "{arrangement:?}: {took:?}");
    assert_eq!(job.ended(), [true; 3], "{arrangement:?}");
    true
}

#[test]
fn what_a_process_sent_before_its_end_arrives() {
    within(LIMIT, "early end", || {
        // By the exchange, a broadcast ends only when all ranks have called it.
        for arrangement in [Arrangement::Shm, Arrangement::Tcp, Arrangement::Hosts(2)] {
            let mut job = start(arrangement, 3, &["early", "500"]);
            assert!(job.ranks[0].ended(), "{arrangement:?}");
            for rank in [1, 2] {
                job.ranks[rank].expect("@running");
                job.ranks[rank].tell("go");
            }
            for rank in [1, 2] {
                job.ranks[rank].expect("@finished");
                assert!(job.ranks[rank].ended());
            }
        }
    });
}
