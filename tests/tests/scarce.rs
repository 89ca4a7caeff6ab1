//! Descriptors run out on one rank, at every point of a job's life: all ranks end, with right results or with
//! an error that names the reason.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::{Job, environment};
use kolo_tests::watchdog::within;
use kolo_transport::Unpoisoned;

const PROGRAM: &str = env!("CARGO_BIN_EXE_kolo_scarce");

const RANKS: usize = 4;

const JOBS_AT_ONCE: usize = 4;

const LIMIT: Duration = Duration::from_secs(100);

/// The points, and whether the last rank is dead then.
const POINTS: [(&str, bool); 7] = [
    ("join", false),
    ("split", false),
    ("collective", false),
    ("shrink", true),
    ("grow", false),
    ("state", false),
    ("close", false),
];

/// Texts of which some rank must report one if calls fail.
const SAYS: [&str; 3] = ["descriptors", "open files", "os error 24"];

fn ends(arrangement: Arrangement, point: &str, is_last_dead: bool, victim: u64, left: u64) {
    let what = format!("{point}, {arrangement:?}, {left} descriptors left to rank {victim}");
    let arguments = [point, &victim.to_string(), &left.to_string()];
    let began = Instant::now();
    let mut job = Job::start(PROGRAM, RANKS as u32, RANKS as u32, &arguments, |rank| {
        let mut settings = environment(arrangement, rank);
        settings.extend([("KOLO_TIMEOUT", "10".to_owned()), ("KOLO_JOIN_TIMEOUT", "10".to_owned())]);
        settings
    });
    let living = RANKS - usize::from(is_last_dead);
    let told: Vec<String> = job.ranks[..living].iter_mut().map(|rank| rank.expect("@end ")).collect();
    assert!(!job.ranks.iter().any(|rank| rank.has_said("@wrong")), "{what}");
    let failed: Vec<&String> = told.iter().filter(|text| *text != "ok").collect();
    println!(
        "{what}: {} of {living} failed, {:.1} s {:?}",
        failed.len(),
        began.elapsed().as_secs_f64(),
        told
    );
    let is_told = failed.iter().any(|text| SAYS.iter().any(|word| text.contains(word)));
    assert!(failed.is_empty() || is_told, "{what}: nobody says why: {told:#?}");
    drop(job);
}

#[test]
fn a_rank_without_descriptors_is_an_error_that_says_so_or_none() {
    within(LIMIT, "descriptors", || {
        let at = |arrangement| POINTS.map(|(point, is_last_dead)| (arrangement, point, is_last_dead));
        let cases = [at(Arrangement::Exchange), at(Arrangement::Tcp)].concat();
        let next = &Mutex::new(cases.iter().flat_map(|case| [(case, 1, 0), (case, 0, 1)]));
        let take = || next.lock().unpoisoned().next();
        std::thread::scope(|scope| {
            // Some cases wait for limits, but healthy ranks must not be late.
            for _ in 0..JOBS_AT_ONCE {
                scope.spawn(|| {
                    while let Some((&(arrangement, point, is_last_dead), victim, left)) = take() {
                        ends(arrangement, point, is_last_dead, victim, left);
                    }
                });
            }
        });
    });
}
