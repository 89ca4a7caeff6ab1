//! Jobs of `kolo perf` on the hosts of a laboratory.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use kolo_netlab::{Lab, ranks};
use rustix::process::{Pid, Signal, kill_process};

/// A rank's process.
pub(crate) struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    /// Lines of both outputs, with the times at which they arrived.
    lines: Receiver<(Instant, String)>,
    /// All lines of both outputs that have been read so far.
    pub(crate) said: String,
}

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) is_ok: bool,
    /// Its exit code; `None` if a signal ended it.
    pub(crate) code: Option<i32>,
    pub(crate) said: String,
    /// Time of the end, since the first rank was started.
    pub(crate) at: Duration,
}

/// Returns the path of the program `kolo`, if it was built in the same folder as this program.
pub(crate) fn kolo() -> Option<PathBuf> {
    built("kolo", "kolo-cli")
}

/// Returns the path of a program of some package, if it was built in the same folder as this program.
pub(crate) fn built(name: &str, package: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let program = own.parent()?.parent()?.join(name);
    if program.exists() {
        return Some(program);
    }
    println!("skipped: {} is not there; cargo build -p {package} makes it", program.display());
    None
}

/// Makes commands of `kolo perf` for all ranks, with settings.
pub(crate) fn perf(
    lab: &Lab,
    per_host: usize,
    words: &str,
    settings: &[(&str, &str)],
) -> Option<Vec<Command>> {
    command(lab, per_host, "perf", words, settings)
}

/// Makes commands of `kolo` for all ranks, with settings.
pub(crate) fn command(
    lab: &Lab,
    per_host: usize,
    name: &str,
    words: &str,
    settings: &[(&str, &str)],
) -> Option<Vec<Command>> {
    let mut line = vec![kolo()?.into_os_string(), name.into()];
    line.extend(words.split_whitespace().map(Into::into));
    Some(commands(lab, per_host, &line, settings))
}

/// Makes commands for all ranks, with these settings of Kolo and no others.
pub(crate) fn commands(
    lab: &Lab,
    per_host: usize,
    line: &[OsString],
    settings: &[(&str, &str)],
) -> Vec<Command> {
    let mut commands = ranks::commands(lab, per_host, line);
    for command in &mut commands {
        for (name, _) in
            std::env::vars().filter(|(name, _)| name.starts_with("KOLO_") && !name.contains("NETLAB"))
        {
            command.env_remove(name);
        }
        command.env("KOLO_JOB_SECRET", "a secret for tests on networks").envs(settings.iter().copied());
    }
    commands
}

impl Rank {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a rank starts");
        let (sender, lines) = mpsc::channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().expect("piped")), Box::new(child.stderr.take().expect("piped"))];
        for output in outputs {
            let sender = sender.clone();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    let _ = sender.send((Instant::now(), line));
                }
            });
        }
        let input = child.stdin.take();
        Self { child, input, lines, said: String::new() }
    }

    /// Waits for a line with this text. Returns the time of the line, and the line.
    pub(crate) fn expect(&mut self, text: &str, patience: Duration) -> (Instant, String) {
        let (_, at, line) = self.expect_any(&[text], patience);
        (at, line)
    }

    /// Waits for a line with one of these texts. Returns which one, the time of the line, and the line.
    pub(crate) fn expect_any(&mut self, texts: &[&str], patience: Duration) -> (usize, Instant, String) {
        let until = Instant::now() + patience;
        while let Ok((at, line)) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.said += &format!("{line}\n");
            if let Some(which) = texts.iter().position(|text| line.contains(text)) {
                return (which, at, line);
            }
        }
        panic!("no line with one of {texts:?}; it said:\n{}", self.said);
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it has not ended");
    }

    /// Sends a line to the rank.
    pub(crate) fn tell(&mut self, line: &str) {
        if let Err(error) = writeln!(self.input.as_mut().expect("piped"), "{line}") {
            self.said.extend(self.lines.try_iter().map(|(_, line)| line + "\n"));
            panic!("it does not read ({error}); it said:\n{}", self.said);
        }
    }

    /// Waits until the rank ends, and kills it if it does not end in time.
    pub(crate) fn end(mut self, began: Instant, patience: Duration) -> End {
        let until = Instant::now() + patience;
        // Both outputs end when the process does.
        while let Ok((_, line)) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            self.said += &format!("{line}\n");
        }
        if Instant::now() >= until {
            self.said += "(killed: it did not end in time)\n";
            let _ = self.child.kill();
        }
        let status = self.child.wait().expect("a child can be waited for");
        End { is_ok: status.success(), code: status.code(), said: self.said, at: began.elapsed() }
    }
}

/// Runs commands at the same time, until all have ended.
pub(crate) fn run(commands: Vec<Command>, patience: Duration) -> Vec<End> {
    let began = Instant::now();
    let ranks: Vec<Rank> = commands.into_iter().map(Rank::start).collect();
    ends(ranks, began, patience)
}

/// Waits until all ranks have ended.
pub(crate) fn ends(ranks: Vec<Rank>, began: Instant, patience: Duration) -> Vec<End> {
    std::thread::scope(|scope| {
        let waits: Vec<_> =
            ranks.into_iter().map(|rank| scope.spawn(move || rank.end(began, patience))).collect();
        waits.into_iter().map(|wait| wait.join().expect("it waits")).collect()
    })
}

/// Panics unless all ranks have succeeded.
pub(crate) fn succeed(ends: &[End], what: &str) {
    for (end, rank) in ends.iter().zip(0..) {
        assert!(end.is_ok, "{what}: rank {rank} failed after {:?}:\n{}", end.at, end.said);
    }
}
