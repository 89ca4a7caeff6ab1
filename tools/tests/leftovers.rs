//! Checks that nothing of a job is left when it has ended, however it ends: no process that a rank has started,
//! and no folder.
//!
//! The launcher's descendants inherit its standard output, a pipe of the test: its end of file marks the end of
//! all of them. Their programs end by themselves after a while, so that a failed test leaves nothing for long.

mod common;
mod terminal;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use common::{KOLO, command};
use rustix::process::{Pid, Signal, kill_process};
use terminal::as_from_a_terminal;

/// Time limit for processes that others must end: long compared to the grace of a second, and short compared to
/// [`DEAF`].
const LIMIT: Duration = Duration::from_secs(40);

/// These processes ignore requests to end; only SIGKILL ends them early.
const DEAF: &str = "sh -c 'trap \"\" TERM HUP INT QUIT; echo deaf; exec sleep 100'";

struct Job {
    launcher: Child,
    output: BufReader<ChildStdout>,
    folder: tempfile::TempDir,
}

impl Job {
    /// Runs `kolo` with `arguments`, and with `script` as the last one, which may contain blanks.
    fn start(arguments: &str, script: Option<&str>) -> Self {
        Self::start_with(arguments, script, Stdio::null())
    }

    fn start_with(arguments: &str, script: Option<&str>, stderr: Stdio) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut command = command(KOLO);
        command.args(arguments.split_whitespace()).args(script);
        command.env("TMPDIR", folder.path());
        // The launcher gets a process group of its own, as from a shell with job control.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr).process_group(0);
        let mut launcher = as_from_a_terminal(&mut command).spawn().unwrap();
        let output = BufReader::new(launcher.stdout.take().unwrap());
        Self { launcher, output, folder }
    }

    fn shells(ranks: u32, script: &str) -> Self {
        Self::start(&format!("run -n {ranks} --grace 1 -- sh -c"), Some(script))
    }

    /// Waits for lines that begin with a word; returns the rest of the last one.
    fn expect(&mut self, word: &str, times: usize) -> String {
        let mut rest = String::new();
        for _ in 0..times {
            loop {
                let mut line = String::new();
                assert!(self.output.read_line(&mut line).unwrap() > 0, "no line {word}");
                if let Some(found) = line.strip_prefix(word) {
                    rest = found.trim().to_owned();
                    break;
                }
            }
        }
        rest
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.launcher), signal).unwrap();
    }

    /// Waits for the end of the launcher, after which nothing may be left.
    fn leaves_nothing(mut self, what: &str) -> ExitStatus {
        let status = self.launcher.wait().unwrap();
        let (sender, ended) = mpsc::channel();
        std::thread::spawn(move || {
            let mut rest = Vec::new();
            let _ = sender.send(self.output.read_to_end(&mut rest).map(|_| rest));
        });
        assert!(ended.recv_timeout(LIMIT).is_ok(), "{what}: processes are left");
        let left: Vec<_> =
            std::fs::read_dir(self.folder.path()).unwrap().flatten().map(|e| e.file_name()).collect();
        assert!(left.is_empty(), "{what}: {left:?} is left");
        status
    }
}

#[test]
fn after_a_rank_that_ends() {
    for code in [0, 3] {
        let job = Job::shells(2, &format!("{DEAF} & exit {code}"));
        assert_eq!(job.leaves_nothing("a rank's end").code(), Some(code));
    }
}

#[test]
fn after_a_rank_that_is_killed() {
    let job = Job::shells(2, &format!("{DEAF} & [ $RANK = 1 ] && kill -9 $$; wait"));
    assert_eq!(job.leaves_nothing("a rank's death").code(), Some(128 + 9));
}

#[test]
fn of_a_rank_that_ends_while_others_go_on() {
    // Rank 1 goes on for as long as any process holds the pipe.
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let pipe = pipe.display();
    let script = format!("if [ $RANK = 0 ]; then {DEAF} > {pipe} & exit 0; fi; cat {pipe}; echo over");
    let mut job = Job::shells(2, &script);
    job.expect("deaf", 1);
    job.expect("over", 1);
    assert_eq!(job.leaves_nothing("one of two").code(), Some(0));
}

#[test]
fn after_signals() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT] {
        // The shell ends at once, but the process that it has started does not.
        let mut job = Job::shells(2, &format!("{DEAF} & wait"));
        job.expect("deaf", 2);
        job.signal(signal);
        let status = job.leaves_nothing(&format!("{signal:?}"));
        assert_eq!(status.code(), Some(128 + signal.as_raw()), "{signal:?}");
    }
}

#[test]
fn what_ends_by_itself_is_given_the_time() {
    // The filter reads what the rank has written, and goes on for a moment after the rank's end.
    let mut job = Job::shells(1, "(cat; sleep 0.2; echo whole) <<. & exit 0\n.\n");
    job.expect("whole", 1);
    assert_eq!(job.leaves_nothing("a filter").code(), Some(0));
}

/// A script that starts one ignoring process in its group, and one in a session of its own.
fn family() -> String {
    format!("echo supervisor $PPID; {DEAF} & setsid {DEAF} & sleep 100; true")
}

/// A rank that fails ends the others although nobody reads what the launcher says, and a signal ends the launcher.
#[test]
fn of_a_job_whose_outputs_are_not_read() {
    let (unread, mut full) = std::io::pipe().unwrap();
    rustix::io::ioctl_fionbio(&full, true).unwrap();
    while full.write(&[b'x'; 4096]).is_ok() {}
    rustix::io::ioctl_fionbio(&full, false).unwrap();
    let other = "trap \"echo ended; exit 1\" TERM; echo lost >&2; : > $TMPDIR/set; \
                 for i in $(seq 1000); do sleep 0.1; done";
    let fails = "until [ -e $TMPDIR/set ]; do sleep 0.02; done; rm $TMPDIR/set; exit 3";
    let script = format!("if [ $RANK = 0 ]; then {other}; else {fails}; fi");
    let mut job = Job::start_with("run -n 2 --grace 1 --prefix -- sh -c", Some(&script), full.into());
    let (launcher, (sender, ended)) = (Pid::from_child(&job.launcher), mpsc::channel());
    std::thread::spawn(move || {
        job.expect("[0] ended", 1);
        job.signal(Signal::TERM);
        let _ = sender.send(job.leaves_nothing("unread outputs").code());
    });
    let code = ended.recv_timeout(LIMIT);
    if code.is_err() {
        let _ = kill_process(launcher, Signal::KILL);
    }
    assert_eq!(code, Ok(Some(3)), "the launcher waits for nobody");
    drop(unread);
}

/// A signal that the launcher was started to ignore, as under nohup, does not end the job.
#[test]
fn what_is_ignored_stays_ignored() {
    let run = format!("trap '' HUP; exec {KOLO} run -n 1 -- sh -c");
    let script = "echo ready; until [ -e $TMPDIR/go ]; do sleep 0.02; done; rm $TMPDIR/go; exit 7";
    let folder = tempfile::tempdir().unwrap();
    let mut command = command("sh");
    command.args(["-c", &format!("{run} '{script}'")]).stdout(Stdio::piped()).env("TMPDIR", folder.path());
    let mut launcher = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(launcher.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    kill_process(Pid::from_child(&launcher), Signal::HUP).unwrap();
    std::fs::write(folder.path().join("go"), "").unwrap();
    assert_eq!(launcher.wait().unwrap().code(), Some(7));
}

/// A terminal that stops processes in its background which write to it does not stop ranks.
#[test]
fn ranks_write_to_a_terminal_that_stops_its_background() {
    if Command::new("script").arg("--version").output().is_err() {
        eprintln!("skipped: there is no `script`, which makes a terminal");
        return;
    }
    let limit = LIMIT.as_secs();
    let job =
        format!("stty tostop; timeout --foreground -s KILL {limit} {KOLO} run -n 1 -- sh -c 'echo written'");
    let mut command = command("script");
    let output = command.args(["-qec", &job, "/dev/null"]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("written"), "{} {said}", output.status);
}

#[test]
fn of_a_launcher_that_is_killed() {
    let mut job = Job::shells(2, &family());
    job.expect("deaf", 4);
    job.signal(Signal::KILL);
    assert_eq!(job.leaves_nothing("the launcher's death").signal(), Some(9));
}

#[test]
fn of_a_supervisor_that_is_killed() {
    let mut job = Job::shells(1, &family());
    let supervisor = Pid::from_raw(job.expect("supervisor", 1).parse().unwrap()).unwrap();
    job.expect("deaf", 2);
    assert_ne!(supervisor, Pid::from_child(&job.launcher));
    kill_process(supervisor, Signal::KILL).unwrap();
    assert_eq!(job.leaves_nothing("the supervisor's death").code(), Some(128 + 9));
}

#[test]
fn of_a_launcher_that_is_killed_at_any_moment() {
    // Moments spread over the duration of a start, by a fixed sequence.
    for trial in 0..24_u64 {
        let job = Job::shells(2, &family());
        std::thread::sleep(Duration::from_micros(trial * trial * 97));
        job.signal(Signal::KILL);
        job.leaves_nothing(&format!("killed after {} us", trial * trial * 97));
    }
}

#[test]
fn of_a_measurement_that_is_killed() {
    let mut job = Job::start("perf all_reduce -b 8 -e 8 -N 0 --ranks 2", None);
    job.expect("#  Rank  1", 1);
    job.signal(Signal::KILL);
    assert_eq!(job.leaves_nothing("a measurement").signal(), Some(9));
}

#[test]
fn of_what_left_its_session_when_the_job_ends() {
    // The rank ends once the other process ignores signals.
    let deaf = DEAF.replace("echo deaf", "echo deaf; touch $TMPDIR/is-deaf");
    let wait = "until [ -e $TMPDIR/is-deaf ]; do sleep 0.02; done; rm $TMPDIR/is-deaf";
    let mut job = Job::shells(1, &format!("setsid {deaf} & setsid sleep 100 & {wait}; exit 0"));
    job.expect("deaf", 1);
    assert_eq!(job.leaves_nothing("sessions").code(), Some(0));
}

/// The numbers in such a /proc belong to other processes here, and none of these may be signalled.
#[test]
fn where_proc_is_of_another_namespace_it_is_not_believed() {
    let run = |arguments: &[&str]| command("unshare").args(["--pid", "--fork"]).args(arguments).output();
    if !run(&["true"]).is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no new PID namespace can be made here");
        return;
    }
    let output = run(&[KOLO, "run", "-n", "2", "--", "true"]).unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("/proc belongs to another PID namespace"), "{said}");
}

/// Seven stacks fit into the address space, of which the launcher needs three, and each rank two.
#[test]
fn a_rank_for_which_there_is_no_thread_is_not_started() {
    let mut command = command("/bin/sh");
    let limited = format!("ulimit -v {}; exec {KOLO} run -n 16 --prefix -- sleep 100", 8 << 20);
    let ended = command.args(["-c", &limited]).env("RUST_MIN_STACK", (1 << 30).to_string()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(3), "{said}");
    assert!(said.contains("could not be started") && !said.contains("panicked"), "{said}");
}
