//! Jobs of real processes, which a test can stop and kill.
//!
//! The processes run the helper program `kolo_rank`, which follows its arguments and reports lines that begin with
//! "@". A job's processes end with it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Time limit for a line or an end: long compared to any step on a busy machine.
pub const LONG: Duration = Duration::from_secs(40);

/// A job's processes, by rank.
#[derive(Debug)]
pub struct Job {
    /// The ranks that were started.
    pub ranks: Vec<Process>,
    folder: tempfile::TempDir,
}

/// One rank's process.
#[derive(Debug)]
pub struct Process {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// All its lines, to show if it prints a wrong one.
    said: Vec<String>,
    reaped: bool,
    patience: Duration,
}

/// Returns the environment of one arrangement, with the settings of [`crate::arrangement::Arrangement::config`].
#[must_use]
pub fn environment(arrangement: crate::arrangement::Arrangement, rank: u32) -> Vec<(&'static str, String)> {
    use crate::arrangement::Arrangement as A;
    match arrangement {
        A::Exchange => vec![("KOLO_TRANSPORT", "shm".to_owned())],
        A::Shm => vec![("KOLO_TRANSPORT", "shm".to_owned()), ("KOLO_EXCHANGE_BYTES", "0".to_owned())],
        A::Tcp => vec![("KOLO_TRANSPORT", "tcp".to_owned())],
        A::Hosts(ranks) => vec![("KOLO_HOST_ID", format!("host-{}", rank / ranks))],
    }
}

impl Job {
    /// Starts ranks 0 to `started` of a job of `world_size` ranks.
    ///
    /// # Panics
    /// If a process cannot be started.
    #[must_use]
    pub fn start(
        program: &str,
        world_size: u32,
        started: u32,
        arguments: &[&str],
        settings: impl Fn(u32) -> Vec<(&'static str, String)>,
    ) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let rendezvous = format!("file://{}/job", folder.path().display());
        let ranks = (0..started)
            .map(|rank| {
                let mut command = Command::new(program);
                for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("KOLO_")) {
                    command.env_remove(name);
                }
                command
                    .args(arguments)
                    .env("KOLO_RENDEZVOUS", &rendezvous)
                    .env("KOLO_RANK", rank.to_string())
                    .env("KOLO_WORLD_SIZE", world_size.to_string())
                    .env("KOLO_JOIN_TIMEOUT", "30")
                    .env("KOLO_TIMEOUT", "30")
                    // A busy machine may keep a rank from its processors for longer than the usual second.
                    .env("KOLO_SILENT_AFTER", "10")
                    .envs(settings(rank));
                Process::start(command)
            })
            .collect();
        Self { ranks, folder }
    }

    /// Waits until every rank has printed a line that begins with `start`; returns the rests of these lines.
    ///
    /// # Panics
    /// As [`Process::expect`].
    pub fn expect_all(&mut self, start: &str) -> Vec<String> {
        self.ranks.iter_mut().map(|rank| rank.expect(start)).collect()
    }

    /// Sets the time limit for lines from now on.
    pub fn wait_at_most(&mut self, patience: Duration) {
        self.ranks.iter_mut().for_each(|rank| rank.patience = patience);
    }

    /// Waits until all processes have ended; returns whether each was successful.
    ///
    /// # Panics
    /// If one does not end in time.
    pub fn ended(&mut self) -> Vec<bool> {
        self.ranks.iter_mut().map(Process::ended).collect()
    }

    /// Returns the number of files left in the folder of the rendezvous.
    ///
    /// # Panics
    /// If the folder cannot be read.
    #[must_use]
    pub fn files_left(&self) -> usize {
        std::fs::read_dir(self.folder.path()).expect("the job's folder").count()
    }
}

impl Process {
    /// Starts a program whose lines the test waits for.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start(mut command: Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().expect("the helper program starts");
        let (output, input) = (child.stdout.take().expect("piped"), child.stdin.take());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        Self { child, input, lines, said: Vec::new(), reaped: false, patience: LONG }
    }

    /// Waits for a line that begins with `start`; returns the rest of the line.
    ///
    /// # Panics
    /// If it does not come in time.
    pub fn expect(&mut self, start: &str) -> String {
        let until = Instant::now() + self.patience;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return rest.trim().to_owned();
                    }
                    self.said.push(line);
                }
                Err(error) => panic!("no line {start} ({error}); it said {:#?}", self.said),
            }
        }
    }

    /// Waits for a line that begins with one of `starts`; returns which one, and the rest of the line.
    ///
    /// # Panics
    /// As [`Process::expect`].
    pub fn expect_any(&mut self, starts: &[&str]) -> (usize, String) {
        let until = Instant::now() + self.patience;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    let found =
                        starts.iter().enumerate().find_map(|(i, start)| Some((i, line.strip_prefix(start)?)));
                    if let Some((which, rest)) = found {
                        return (which, rest.trim().to_owned());
                    }
                    self.said.push(line);
                }
                Err(error) => panic!("none of {starts:?} ({error}); it said {:#?}", self.said),
            }
        }
    }

    /// Returns the rests of all lines that begin with `start`, among those read so far.
    pub fn said_all<'a>(&'a self, start: &'a str) -> impl Iterator<Item = &'a str> {
        self.said.iter().filter_map(move |line| line.strip_prefix(start))
    }

    /// Returns whether a line that begins with `start` was read while waiting for another one.
    #[must_use]
    pub fn has_said(&self, start: &str) -> bool {
        self.said.iter().any(|line| line.starts_with(start))
    }

    /// Returns the rest of the last line that begins with `start` and was read while waiting for another one.
    #[must_use]
    pub fn said_last(&self, start: &str) -> Option<&str> {
        self.said.iter().rev().find_map(|line| line.strip_prefix(start))
    }

    /// Sends the process a line.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("its input is open"), "{line}").expect("it reads");
    }

    /// Returns the kernel's information on its threads: where each waits, how long it has run, and how long it has
    /// waited for a processor, in ns. Empty if the process has ended.
    #[must_use]
    pub fn threads(&self) -> String {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.id())).into_iter().flatten().flatten();
        let fact = |task: &std::path::Path, name: &str| {
            std::fs::read_to_string(task.join(name)).unwrap_or_default().trim().to_owned()
        };
        let line = |task: std::path::PathBuf| {
            let facts = ["comm", "wchan", "syscall", "schedstat"].map(|name| fact(&task, name));
            format!("  {}\n", facts.join(" | "))
        };
        tasks.map(|task| line(task.path())).collect()
    }

    /// Returns its process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process has stopped itself.
    ///
    /// # Panics
    /// If it does not stop in time.
    pub fn expect_stopped(&self) {
        let until = Instant::now() + LONG;
        let stat = format!("/proc/{}/stat", self.id());
        // The state follows the name, which stands in parentheses.
        let is_stopped = || {
            std::fs::read_to_string(&stat)
                .is_ok_and(|text| text.rsplit(')').next().is_some_and(|r| r.starts_with(" T")))
        };
        while !is_stopped() {
            assert!(Instant::now() < until, "it does not stop; it said {:#?}", self.said);
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sends the process a signal; returns the time, on the clock of the machine.
    ///
    /// # Panics
    /// If the process is gone.
    pub fn signal(&self, signal: Signal) -> Duration {
        let now = crate::system::machine_time();
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("it can be signalled");
        now
    }

    /// Waits for the end of the process; returns whether it was successful.
    ///
    /// # Panics
    /// If it does not end in time.
    pub fn ended(&mut self) -> bool {
        drop(self.input.take());
        let until = Instant::now() + LONG;
        loop {
            // Its output ends when the process does.
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => self.said.push(line),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => panic!("a process hangs; it said {:#?}", self.said),
            }
        }
        self.reaped = true;
        self.child.wait().expect("a child can be waited for").success()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.reaped {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
