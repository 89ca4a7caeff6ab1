//! Jobs of shells, one after another.

use std::fs::{File, OpenOptions};
use std::path::Path;

use rustix::process::{getpid, kill_process};

use super::super::output::Captured;
use super::*;

fn shell(script: &str, ranks: u32) -> Job {
    Job {
        program: "/bin/sh".into(),
        arg0: None,
        arguments: vec!["-c".into(), script.into()],
        ranks: (0..ranks)
            .map(|rank| Rank::new(rank, vec![("RANK".into(), rank.to_string().into())]))
            .collect(),
        prefix: Prefix::Rank,
        destinations: Destinations::default(),
        grace: Duration::from_secs(60),
        quiet_exit_code: None,
        orders: Orders::None,
        least: None,
        again: None,
    }
}

fn run_captured(job: &Job) -> (u8, String, String) {
    let captured = Captured::default();
    let code = run(job, &captured.outputs(), None).unwrap();
    (code, captured.stdout(), captured.stderr())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn lines_say_which_rank_they_are_from() {
    let (code, stdout, stderr) = run_captured(&shell("echo one; echo two >&2; printf three", 2));
    assert_eq!(code, 0);
    assert_eq!(sorted(&stdout), ["[0] one", "[0] three", "[1] one", "[1] three"]);
    assert_eq!(sorted(&stderr), ["[0] two", "[1] two"]);
    assert!(stdout.find("[0] one").unwrap() < stdout.find("[0] three").unwrap());
}

#[test]
fn a_failing_rank_ends_the_job_and_is_named() {
    // The other ranks would wait forever.
    let (code, _, stderr) = run_captured(&shell("[ $RANK = 2 ] && exit 7; exec tail -f /dev/null", 4));
    assert_eq!(code, 7);
    assert!(stderr.starts_with("kolo: rank 2 (pid "), "{stderr}");
    assert!(stderr.contains("ended with exit code 7; ending the other 3 ranks"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}

#[test]
fn an_elastic_job_goes_on_while_enough_ranks_live() {
    let script = "[ $RANK = 2 ] && exit 7; [ $RANK = 1 ] && kill -KILL $$; echo on";
    let (code, stdout, stderr) = run_captured(&Job { least: Some(2), ..shell(script, 4) });
    assert_eq!((code, sorted(&stdout)), (0, vec!["[0] on", "[3] on"]), "{stderr}");
    assert!(stderr.contains("ended with exit code 7; the other") && stderr.contains("(SIGKILL)"), "{stderr}");
    // With a minimum that is one higher, the job ends.
    let script = "[ $RANK = 2 ] && exit 7; exec tail -f /dev/null";
    let (code, _, stderr) = run_captured(&Job { least: Some(4), ..shell(script, 4) });
    assert_eq!(code, 7);
    assert!(stderr.contains("ending the other 3 ranks"), "{stderr}");
}

#[test]
fn a_rank_that_dies_is_started_again_as_a_newcomer() {
    let folder = tempfile::tempdir().unwrap();
    let there = folder.path().join("there").display().to_string();
    let again = |times, in_its_slot| {
        Some(Again { times, environment: vec![("KOLO_JOIN".into(), "file://x".into())], in_its_slot })
    };
    // The other ranks end when the newcomer has joined.
    let script = format!(
        "if [ -n \"$KOLO_JOIN\" ]; then echo slot $KOLO_SLOT; touch {there}; exit 0; fi
         [ $RANK = 1 ] && kill -KILL $$
         while [ ! -e {there} ]; do sleep 0.01; done"
    );
    let job = Job { least: Some(1), again: again(3, true), ..shell(&script, 3) };
    let (code, stdout, stderr) = run_captured(&job);
    assert_eq!((code, sorted(&stdout)), (0, vec!["[1] slot 1"]), "{stderr}");
    assert!(stderr.contains("the other 2 go on; restarting it as a newcomer (1 of 3 times)"), "{stderr}");
    // A rank that dies again and again is given up. The other one ends when the launcher has reaped the third
    // attempt.
    let script = format!(
        "[ $RANK = 1 ] && {{ echo $$ >>{there}; [ $(wc -l <{there}) = 3 ] && mv {there} {there}2; exit 3; }}
         while [ ! -e {there}2 ]; do sleep 0.01; done
         while kill -0 $(tail -n 1 {there}2); do sleep 0.01; done 2>/dev/null"
    );
    let job = Job { least: Some(1), again: again(2, false), ..shell(&script, 2) };
    let (code, _, stderr) = run_captured(&job);
    assert_eq!(code, 0, "{stderr}");
    let told: Vec<&str> = stderr.lines().filter_map(|line| line.rsplit("; ").next()).collect();
    let expected = [
        "restarting it as a newcomer (1 of 2 times)",
        "restarting it as a newcomer (2 of 2 times)",
        "not restarting it, since it was already restarted 2 times",
    ];
    assert_eq!(told, expected);
}

#[test]
fn a_signal_is_named() {
    let (code, _, stderr) = run_captured(&shell("[ $RANK = 0 ] && kill -SEGV $$; exec tail -f /dev/null", 2));
    assert_eq!(code, 128 + 11);
    assert!(stderr.contains("rank 0") && stderr.contains("killed by signal 11 (SIGSEGV)"), "{stderr}");
}

#[test]
fn who_does_not_listen_is_killed() {
    // Rank 0 fails once rank 1 ignores SIGTERM, which its children inherit.
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "cd {} && if [ $RANK = 1 ]; then trap '' TERM; echo > pipe; tail -f /dev/null; fi; read line < pipe; exit 3",
        directory.path().display()
    );
    let made = std::process::Command::new("mkfifo").arg(directory.path().join("pipe")).status().unwrap();
    assert!(made.success());
    let mut job = shell(&script, 2);
    job.grace = Duration::from_millis(1);
    assert_eq!(run_captured(&job).0, 3);
}

#[test]
fn what_ranks_started_ends_with_them() {
    // The shell waits for a child of its own, which only a signal to the group reaches.
    let script = "if [ $RANK = 0 ]; then tail -f /dev/null & wait; fi; exit 4";
    assert_eq!(run_captured(&shell(script, 2)).0, 4);
}

#[test]
fn quiet_codes_are_passed_on_without_a_word() {
    let mut job = shell("exit 1", 1);
    job.quiet_exit_code = Some(1);
    assert_eq!(run_captured(&job), (1, String::new(), String::new()));
}

#[test]
fn a_rank_without_a_reader_ends_the_others_without_a_word() {
    let mut job = shell("[ $RANK = 0 ] && exit 141; exec tail -f /dev/null", 3);
    job.quiet_exit_code = Some(1);
    assert_eq!(run_captured(&job), (141, String::new(), String::new()));
}

#[test]
fn outputs_can_be_dropped() {
    let mut job = shell("echo $RANK", 2);
    job.ranks[1].stdout = Stdout::Drop;
    assert_eq!(run_captured(&job).1, "[0] 0\n");
}

#[test]
fn a_program_that_is_not_there_is_an_error() {
    let mut job = shell("", 2);
    job.program = "/no/such/program".into();
    let error = run(&job, &Captured::default().outputs(), None).unwrap_err();
    assert!(
        error.message.contains("rank 0 could not be started") && error.message.contains("/no/such/program")
    );
}

/// Runs a job whose rank 1 is killed, and whose rank 0 fails as soon as a connection of rank 1 is closed.
fn part_of_a_job(folder: &Path) -> ! {
    // The kernel may close a process's first or last descriptor first.
    let ends = ["first", "last"].map(|name| folder.join(name));
    if std::env::var("RANK").is_ok_and(|rank| rank == "0") {
        for end in ends.map(|end| File::open(end).unwrap()) {
            thread::spawn(move || {
                let _ = io::copy(&mut &end, &mut io::sink());
                std::process::exit(3);
            });
        }
        loop {
            thread::park();
        }
    }
    let open = |end| OpenOptions::new().write(true).open(end).unwrap();
    let _first = open(&ends[0]);
    // Further descriptors, so that the kernel takes some time to close them.
    let mut between: Vec<_> = (0..4_000).map_while(|_| io::pipe().ok()).collect();
    // Leaves room for one more, if the process has reached its limit.
    between.pop();
    let _last = open(&ends[1]);
    kill_process(getpid(), Signal::KILL).unwrap();
    unreachable!("it has been killed");
}

#[test]
fn a_rank_that_was_killed_is_named_though_another_ended_sooner_because_of_it() {
    if let Some(folder) = std::env::var_os("KOLO_TEST_FOLDER") {
        part_of_a_job(Path::new(&folder));
    }
    for _ in 0..5 {
        let folder = tempfile::tempdir().unwrap();
        for name in ["first", "last"] {
            let made = std::process::Command::new("mkfifo").arg(folder.path().join(name)).status().unwrap();
            assert!(made.success());
        }
        let mut job = shell("", 2);
        job.program = std::env::current_exe().unwrap().into();
        let name = concat!(
            "launch::job::tests::",
            "a_rank_that_was_killed_is_named_though_another_ended_sooner_because_of_it"
        );
        job.arguments = ["--exact", name, "--nocapture"].map(OsString::from).into();
        for rank in &mut job.ranks {
            rank.environment.push(("KOLO_TEST_FOLDER".into(), folder.path().into()));
        }
        let (code, _, stderr) = run_captured(&job);
        assert_eq!(code, 128 + 9, "{stderr}");
        assert!(stderr.contains("kolo: rank 1 (pid ") && stderr.contains("(SIGKILL)"), "{stderr}");
        assert!(!stderr.contains("kolo: rank 0"), "{stderr}");
    }
}
