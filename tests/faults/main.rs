//! Fault injection: ranks are killed, stopped, starved, cut off or put out of step, and the others' reactions are
//! judged.
//!
//! Each kind of trial states the required outcome: which rank may be blamed, with which errors, and how soon. Wrong
//! blame is therefore a failure, not a matter of opinion. A trial follows from its seed.
//!
//! `cargo test -p kolo-tests --test faults` makes a short run. `cargo test -p kolo-tests --test faults -- --trials 300`
//! makes a long one, and ends with the table. With root, network namespaces and TUN devices, trials with a failing
//! network are made too. The output says which trials are left out.
//!
//! This file uses `unsafe` only for the network namespace that a worker makes for itself.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Instant;

use kinds::{Kind, Needs};
use kolo_tests::random::Random;
use table::Record;

mod acts;
mod judge;
mod kinds;
mod kinds_net;
mod launcher;
mod leaks;
mod net;
mod plan;
mod rank;
mod table;
mod trial;

const HELP: &str = "\
--trials N    so many, of all kinds by their weights; without it, the short run
--kind TEXT   only kinds whose name contains this
--seed N      another choice of trials; the record says which one was made
--again N     the trial with this seed, of the one kind that --kind names
--jobs N      trials at a time [default: 3]
--record FILE where to write one line of JSON for each trial
--list        name the kinds";

#[derive(Clone, Debug)]
struct Options {
    trials: Option<usize>,
    kind: String,
    seed: u64,
    again: Option<u64>,
    jobs: usize,
    record: Option<String>,
    list: bool,
    /// Number of this worker.
    worker: Option<usize>,
}

fn options(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options {
        trials: None,
        kind: String::new(),
        seed: 1,
        again: None,
        jobs: 3,
        record: None,
        list: false,
        worker: None,
    };
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().cloned().ok_or_else(|| format!("{word} needs a value\n{HELP}"));
        let number =
            |text: String| text.parse::<u64>().map_err(|_| format!("{text} is not a number\n{HELP}"));
        match word.as_str() {
            "--trials" => options.trials = Some(number(value()?)? as usize),
            "--kind" => options.kind = value()?,
            "--seed" => options.seed = number(value()?)?,
            "--again" => options.again = Some(number(value()?)?),
            "--jobs" => options.jobs = number(value()?)?.clamp(1, 16) as usize,
            "--record" => options.record = Some(value()?),
            "--worker" => options.worker = Some(number(value()?)? as usize),
            "--list" => options.list = true,
            "--help" | "-h" => return Err(HELP.into()),
            // `cargo test WORD` passes its filter of tests in this way. The name of this one is "faults".
            filter if !filter.starts_with('-') && !"faults".contains(filter) => options.trials = Some(0),
            // Other options of the usual test harness are ignored.
            _ => {}
        }
    }
    Ok(options)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|word| word == "rank") {
        rank::main(&arguments[1..]);
        return ExitCode::SUCCESS;
    }
    match options(&arguments) {
        Ok(options) if options.worker.is_some() => work(&options),
        Ok(options) => supervise(&options, &arguments),
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}

fn all_kinds() -> Vec<Kind> {
    let mut kinds = kinds::all();
    kinds.extend(kinds_net::all());
    kinds
}

/// Returns the trials of a run: places of kinds, and seeds. Equal options give equal trials.
fn trials(options: &Options, kinds: &[Kind]) -> Vec<(usize, u64)> {
    let chosen: Vec<usize> =
        (0..kinds.len()).filter(|at| kinds[*at].name.contains(options.kind.as_str())).collect();
    if let Some(seed) = options.again {
        return chosen.into_iter().map(|at| (at, seed)).collect();
    }
    let weight: usize = chosen.iter().map(|at| kinds[*at].weight).sum();
    let mut trials = Vec::new();
    for at in chosen {
        let count = match options.trials {
            Some(0) => 0,
            Some(count) => (kinds[at].weight * count).div_ceil(weight.max(1)),
            None => usize::from(kinds[at].quick),
        };
        let mut draw = Random::new(options.seed ^ (at as u64) << 32);
        // The seed is short enough to be typed.
        trials.extend((0..count).map(|_| (at, draw.number() >> 32)));
    }
    // The trials are shuffled, so that long and short ones run side by side.
    let mut draw = Random::new(options.seed);
    for at in (1..trials.len()).rev() {
        trials.swap(at, draw.below(at as u64 + 1) as usize);
    }
    trials
}

/// Makes every n-th trial, in its own network namespace if that is permitted. Prints a record for each.
fn work(options: &Options) -> ExitCode {
    rank::tie_to_parent();
    // SAFETY: this only changes where this process makes sockets from now on. It has one thread and has made no sockets
    // yet.
    let own_network =
        unsafe { libc::unshare(libc::CLONE_NEWNET) } == 0 && net::run("ip link set lo up").is_ok();
    // As a subreaper, this process sees the processes that ranks leave behind.
    let adopts = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let kinds = all_kinds();
    let worker = options.worker.unwrap_or(0);
    for (at, seed) in trials(options, &kinds).into_iter().skip(worker).step_by(options.jobs) {
        let kind = &kinds[at];
        let plan = (kind.plan)(&mut Random::new(seed));
        let began = Instant::now();
        let report = match (kind.needs, &plan.launched) {
            _ if adopts.is_err() => trial::skipped("orphans cannot be adopted here".into()),
            (Needs::Network, _) if !own_network => {
                trial::skipped("network namespaces need root and the tool ip".into())
            }
            (Needs::Launcher, Some(launched)) => launcher::run(&plan, launched, own_network),
            _ => trial::run(&plan, seed, own_network),
        };
        let record = Record {
            kind: kind.name.clone(),
            seed,
            ranks: plan.ranks,
            way: plan.way.name().to_owned(),
            took_s: began.elapsed().as_secs_f64(),
            report,
        };
        rank::report(&serde_json::to_string(&record).expect("a record is plain data"));
    }
    ExitCode::SUCCESS
}

fn supervise(options: &Options, arguments: &[String]) -> ExitCode {
    judge::check_itself();
    let kinds = all_kinds();
    if options.list {
        kinds.iter().for_each(|kind| println!("{:4} {}", kind.weight, kind.name));
        return ExitCode::SUCCESS;
    }
    let expected = trials(options, &kinds).len();
    if expected == 0 {
        println!("no trials asked for");
        return ExitCode::SUCCESS;
    }
    println!("{expected} trials, seed {}", options.seed);
    let (sender, lines) = mpsc::channel();
    let program = std::env::current_exe().expect("this program's own path");
    let mut workers: Vec<_> = (0..options.jobs)
        .map(|worker| {
            let mut command = Command::new(&program);
            command
                .args(arguments)
                .args(["--jobs", &options.jobs.to_string()])
                .args(["--worker", &worker.to_string()]);
            let mut child = command.stdout(Stdio::piped()).spawn().expect("a worker starts");
            let (output, sender) = (child.stdout.take().expect("piped"), sender.clone());
            std::thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).for_each(|line| drop(sender.send(line)));
            });
            child
        })
        .collect();
    drop(sender);
    let mut file =
        options.record.as_ref().map(|path| std::fs::File::create(path).expect("the record can be written"));
    let mut records: Vec<Record> = Vec::new();
    for line in lines {
        let Ok(record) = serde_json::from_str::<Record>(&line) else {
            println!("{line}");
            continue;
        };
        if let Some(file) = &mut file {
            let _ = writeln!(file, "{line}");
        }
        tell(&record);
        records.push(record);
    }
    let worked = workers.iter_mut().all(|worker| worker.wait().is_ok_and(|status| status.success()));
    conclude(&kinds, &records, worked && records.len() == expected)
}

/// Prints a line for a trial, and more if something is wrong.
fn tell(record: &Record) {
    let Record { kind, seed, ranks, way, took_s, report } = record;
    let verdict = match &report.skipped {
        Some(why) => format!("skipped: {why}"),
        None if report.problems.is_empty() => "ok".to_owned(),
        None => "FAILED".to_owned(),
    };
    println!("{kind}, seed {seed}, {ranks} ranks, {way}: {verdict} ({took_s:.1} s)");
    if report.problems.is_empty() {
        return;
    }
    let problems = &report.problems;
    for (what, lines) in [
        ("hang", &problems.hangs),
        ("blame", &problems.blame),
        ("leak", &problems.leaks),
        ("other", &problems.others),
    ] {
        lines.iter().for_each(|line| println!("    {what}: {line}"));
    }
    report.said.iter().for_each(|line| println!("    {line}"));
}

fn conclude(kinds: &[Kind], records: &[Record], complete: bool) -> ExitCode {
    let names: Vec<String> = kinds.iter().map(|kind| kind.name.clone()).collect();
    println!("\n{}", table::render(&names, records));
    let skipped: BTreeSet<_> = records
        .iter()
        .filter_map(|record| record.report.skipped.as_ref().map(|why| format!("{}: {why}", record.kind)))
        .collect();
    skipped.iter().for_each(|line| println!("skipped: {line}"));
    let failed = records.iter().filter(|record| !record.report.problems.is_empty()).count();
    println!(
        "{} trials, {} skipped, {failed} failed",
        records.len(),
        records.iter().filter(|r| r.report.skipped.is_some()).count()
    );
    if !complete {
        println!("not all trials were made: a worker ended early");
    }
    if failed == 0 && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
