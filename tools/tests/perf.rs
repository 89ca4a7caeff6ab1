//! `kolo perf` as scripts use it: its files, its remarks, and its end before the last row.

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use common::kolo;
use rustix::process::{Pid, Signal, kill_process};

/// Makes a command whose outputs a test reads.
fn piped(line: &str) -> Command {
    let mut command = kolo(line);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn a_run_that_is_ended_early_leaves_its_rows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rows.json");
    let mut child =
        piped("perf all_reduce -b 8 -e 64 -f 2 -n 1 -N 0 --ranks 2 -J").arg(&path).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // A row is in the file before the next one is measured.
    let seen = lines.by_ref().filter(|line| !line.starts_with('#')).take(6).count();
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    lines.for_each(drop);
    child.wait().unwrap();
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).expect("the file is whole");
    let rows = json["results"].as_array().unwrap();
    assert!(seen == 6 && rows.len() >= 5, "{} rows", rows.len());
    assert_eq!(json["errors"], serde_json::json!(["the run has not ended"]));
}

#[test]
fn options_that_a_launcher_overrides_are_named() {
    let said = |line: &str, ranks: &str| {
        let mut command = kolo(&format!("perf barrier -n 1 {line}"));
        command.env("KOLO_RANK", "0").env("KOLO_WORLD_SIZE", ranks);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let remedy = "unset KOLO_RANK and KOLO_WORLD_SIZE to start ranks on this machine\n";
    for (line, expected) in [
        ("--ranks 8", "# --ranks 8 has no effect: a launcher has started one process; "),
        (
            "--ranks 8 --threads",
            "# --ranks 8 and --threads have no effect: a launcher has started one process; ",
        ),
        ("", "# Only this process measures: a launcher has started one process; "),
    ] {
        let text = said(line, "1");
        assert!(text.contains(&format!("{expected}{remedy}")), "{line}: {text}");
    }
    let own = kolo("perf barrier -n 1 --ranks 2").output().unwrap();
    assert!(!String::from_utf8(own.stdout).unwrap().contains("no effect"));
}

/// Ends like a program that SIGPIPE ends, and says nothing.
#[test]
fn a_reader_that_leaves_is_no_failure() {
    for line in
        ["perf all_reduce -b 8 -e 8 -n 1 -N 0 --ranks 3", "perf all_reduce -b 8 -e 8 -n 1 -N 0 --ranks 1"]
    {
        let mut child = piped(line).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        // The table has begun; then the reader leaves.
        assert_eq!(lines.filter(|line| !line.starts_with('#')).take(2).count(), 2, "{line}");
        let ended = child.wait_with_output().unwrap();
        let said = String::from_utf8(ended.stderr).unwrap();
        assert_eq!((ended.status.code(), said.as_str()), (Some(128 + 13), ""), "{line}");
    }
    for line in ["explain all_reduce", "info --no-probe"] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = kolo(line).stdout(writer).output().unwrap();
        assert_eq!((ended.status.code(), ended.stderr), (Some(128 + 13), Vec::new()), "{line}");
    }
}
