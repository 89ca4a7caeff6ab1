//! Runs random legal programs: `search FROM COUNT` looks for seeds whose programs fail, `shrink PROGRAM` makes a failing
//! program smaller, and `run PROGRAM` runs one. `rank PROGRAM` is one rank of a job of processes.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kolo::Communicator;
use kolo_tests::processes::{Job, Process};
use kolo_tests::programs::{Program, Setup, run_cluster, run_rank};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let argument = |at: usize| arguments.get(at).map_or("", String::as_str);
    let number = |at: usize| argument(at).parse::<u64>().expect("a number");
    let program = || argument(1).parse::<Program>().expect("a program");
    match argument(0) {
        "search" => search(number(1), number(2)),
        "shrink" => shrink(program(), if argument(2).is_empty() { 1 } else { number(2) }),
        "show" => println!("{:#?}", Setup::of(&program())),
        "rank" => rank(&program()),
        "run" => {
            let program = program();
            let result = if program.processes { run_job(&program) } else { run_cluster(&program) };
            if let Err(error) = result {
                println!("{program}: {error}");
                std::process::exit(1);
            }
        }
        other => panic!("unknown action {other:?}"),
    }
}

/// One rank of a job of processes.
fn rank(program: &Program) {
    let rank = std::env::var("KOLO_RANK").expect("a job").parse().expect("a number");
    let comm = Communicator::builder().config(Setup::of(program).config(rank)).connect();
    let result = comm.map_err(|error| error.to_string()).and_then(|comm| run_rank(program, comm));
    match result {
        Ok(()) => println!("@done"),
        Err(error) => println!("@done {}", error.replace('\n', " ")),
    }
}

fn run_job(program: &Program) -> Result<(), String> {
    let own = std::env::current_exe().expect("this program").display().to_string();
    let ranks = Setup::of(program).ranks;
    let mut job = Job::start(&own, ranks, ranks, &["rank", &program.to_string()], |_| Vec::new());
    job.wait_at_most(Duration::from_secs(100));
    let end = |rank: &mut Process| match rank.expect_any(&["@done", "@killed"]) {
        (0, text) => text,
        _ => String::new(),
    };
    let errors: Vec<String> = job.ranks.iter_mut().map(end).filter(|text| !text.is_empty()).collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n  ")) }
}

/// Runs a program in a process of its own; returns what it said if it fails.
fn failure(program: &Program, show: bool) -> Option<String> {
    let own = std::env::current_exe().expect("this program");
    let mut command = Command::new(own);
    command.args(["run", &program.to_string()]);
    if !show {
        command.stderr(Stdio::null());
    }
    let output = command.output().expect("it starts");
    (!output.status.success()).then(|| {
        format!(
            "{}: {}\n{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
    })
}

fn search(from: u64, count: u64) {
    for seed in from..from + count {
        let losses = [0, 1, 0, 2, 1, 0][seed as usize % 6];
        let program = Program { seed, losses, processes: seed % 5 == 4, ..Program::default() };
        let begin = Instant::now();
        if let Some(said) = failure(&program, true) {
            println!("FAILED {program} after {:.1?}: {said}", begin.elapsed());
        } else if begin.elapsed() > Duration::from_secs(15) {
            println!("slow: {program} took {:.1?}", begin.elapsed());
        }
    }
    println!("{count} programs from seed {from}");
}

/// Takes away what a failure does not need. `tries` is how often each smaller program may pass before it counts as good.
fn shrink(mut program: Program, tries: u64) {
    let fails = |program: &Program| (0..tries).any(|_| failure(program, false).is_some());
    let attempt = |program: &mut Program, change: &dyn Fn(&mut Program)| {
        let mut smaller = program.clone();
        change(&mut smaller);
        let is_smaller = smaller != *program && fails(&smaller);
        if is_smaller {
            println!("{smaller}");
            *program = smaller;
        }
        is_smaller
    };
    let mut steps = Setup::of(&program).steps;
    let mut part = steps.len().div_ceil(2);
    while part > 0 {
        let mut at = 0;
        while at < steps.len() {
            let mut fewer = steps.clone();
            fewer.drain(at..(at + part).min(steps.len()));
            if attempt(&mut program, &|program| program.steps = Some(fewer.clone())) {
                steps = fewer;
            } else {
                at += part;
            }
        }
        part /= 2;
    }
    for ranks in 1..Setup::of(&program).ranks {
        if attempt(&mut program, &|program| program.ranks = Some(ranks)) {
            break;
        }
    }
    while attempt(&mut program, &|program| program.halved += 1) && program.halved < 20 {}
    while attempt(&mut program, &|program| program.losses = program.losses.saturating_sub(1)) {}
    attempt(&mut program, &|program| program.processes = false);
    println!("{}", failure(&program, true).unwrap_or_else(|| "it passes now".to_owned()));
}
