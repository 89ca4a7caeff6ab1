//! Tests on networks of several hosts. This is a program, not a set of test functions, because a laboratory must begin
//! in a process with one thread.
//!
//! `cargo test` runs the short tests, and `-- --all` all of them; words choose tests by parts of their names. If the
//! machine permits no network, the program says why, and succeeds.

/// Lists the tests of a module.
macro_rules! tests {
    ($($length:ident $name:ident),* $(,)?) => {
        &[$($crate::Test { name: concat!(module_path!(), "::", stringify!($name)), run: $name, length: $crate::Length::$length }),*]
    };
}

mod bare;
mod conformance;
mod doctor;
mod elastic;
mod failures;
mod job;
mod joins;
mod long_ways;
mod mpi;
mod pacing;
mod paths;
mod placed;
mod rails;
mod verified;

use std::process::ExitCode;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use kolo_netlab::inside::{Entry, enter};
use kolo_transport::conformance::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// One test.
struct Test {
    name: &'static str,
    run: fn(),
    length: Length,
}

/// Length of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Length {
    /// A few seconds.
    Moment,
    /// Longer.
    Long,
}

/// Longer than any test takes, even on a busy machine.
const DEADLINE: Duration = Duration::from_secs(240);

const TESTS: [&[Test]; 12] = [
    bare::TESTS,
    conformance::TESTS,
    verified::TESTS,
    joins::TESTS,
    paths::TESTS,
    pacing::TESTS,
    rails::TESTS,
    long_ways::TESTS,
    mpi::TESTS,
    failures::TESTS,
    elastic::TESTS,
    doctor::TESTS,
];

fn main() -> ExitCode {
    match enter() {
        Entry::Inside => {}
        Entry::Ended(code) => return code,
        Entry::Unavailable(why) => {
            println!("skipped: {why}");
            return ExitCode::SUCCESS;
        }
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has_all = arguments.iter().any(|argument| argument == "--all");
    let words: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let chosen = |test: &&Test| {
        let is_named = words.iter().any(|word| test.name.contains(word.as_str()));
        is_named || words.is_empty() && (has_all || test.length == Length::Moment)
    };
    let mut failed = Vec::new();
    let mut passed = 0;
    for test in TESTS.iter().flat_map(|tests| tests.iter()).filter(chosen) {
        let began = Instant::now();
        let is_ok = (0..attempts(test)).any(|_| passes(test));
        let word = if is_ok { "ok" } else { "FAILED" };
        println!("test {} ... {word}, {:.1} s", test.name, began.elapsed().as_secs_f64());
        if is_ok {
            passed += 1;
        } else {
            failed.push(test.name);
        }
    }
    println!("{passed} passed, {} failed {failed:?}", failed.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns how often a test may be tried. Measurements of rates, delays and times are repeated, because other programs
/// may have had the CPUs. A result that is really wrong stays wrong.
fn attempts(test: &Test) -> u32 {
    let measures = [
        "::bare::",
        "::doctor::",
        "::long_ways::",
        "::pacing::",
        "::paths::",
        "::rails::",
        "_within_1300_ms_",
    ];
    if measures.iter().any(|part| test.name.contains(part)) { 3 } else { 1 }
}

/// Runs a test in a thread of its own. A test that hangs ends the program.
fn passes(test: &Test) -> bool {
    let (over, wait) = mpsc::channel::<()>();
    let run = test.run;
    let thread = std::thread::spawn(move || {
        let _over = over;
        run();
    });
    // The end of the channel is also dropped if the thread panics.
    if wait.recv_timeout(DEADLINE) == Err(mpsc::RecvTimeoutError::Timeout) {
        println!("test {} ... FAILED: hangs", test.name);
        std::process::exit(1);
    }
    thread.join().is_ok()
}
