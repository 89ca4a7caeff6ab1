//! A command that runs as several ranks on the hosts of a laboratory.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::lab::Lab;

/// Port at which rank 0 listens for the others. Every port is free in a new namespace; this one is torch's default.
pub const MASTER_PORT: u16 = 29500;

/// Makes a command for each rank, in the order of ranks, with the ranks of host 0 first. The ranks find each other by
/// torchrun's variables, at the first address of host 0.
#[must_use]
pub fn commands(lab: &Lab, per_host: usize, words: &[OsString]) -> Vec<Command> {
    let world = lab.hosts().len() * per_host;
    let command = |rank: usize| {
        let mut command = lab.host(rank / per_host).command(&words[0]);
        command
            .args(&words[1..])
            .env("RANK", rank.to_string())
            .env("WORLD_SIZE", world.to_string())
            .env("LOCAL_RANK", (rank % per_host).to_string())
            .env("LOCAL_WORLD_SIZE", per_host.to_string())
            .env("MASTER_ADDR", lab.host(0).address().to_string())
            .env("MASTER_PORT", MASTER_PORT.to_string());
        command
    };
    (0..world).map(command).collect()
}

/// Processes of one job.
#[derive(Debug)]
pub struct Job {
    began: Instant,
    ended: Receiver<(usize, io::Result<ExitStatus>)>,
    left: usize,
    ids: Vec<u32>,
}

/// Result of [`Job::wait`].
#[derive(Debug)]
pub enum News {
    /// A rank has ended.
    Ended(usize, ExitStatus),
    /// All have ended.
    Over,
    /// Nothing happened until the given moment.
    Due,
}

impl Job {
    /// Starts the commands. Rank 0 writes directly to this process's output; lines of other ranks are prefixed with the
    /// rank.
    ///
    /// # Errors
    /// If a command does not start. Those before it are killed.
    pub fn start(commands: Vec<Command>) -> io::Result<Self> {
        let (sender, ended) = mpsc::channel();
        let mut job = Self { began: Instant::now(), ended, left: 0, ids: Vec::new() };
        for (mut command, rank) in commands.into_iter().zip(0..) {
            if rank > 0 {
                command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let mut child = command.spawn().inspect_err(|_| job.kill())?;
            job.ids.push(child.id());
            job.left += 1;
            relay(&mut child, rank);
            let sender = sender.clone();
            std::thread::spawn(move || sender.send((rank, child.wait())));
        }
        Ok(job)
    }

    /// Returns the time since the start.
    #[must_use]
    pub fn age(&self) -> Duration {
        self.began.elapsed()
    }

    /// Waits until the next process ends, at most until the job has this age.
    ///
    /// # Errors
    /// If a process cannot be waited for.
    pub fn wait(&mut self, age: Duration) -> io::Result<News> {
        if self.left == 0 {
            return Ok(News::Over);
        }
        match self.ended.recv_timeout(age.saturating_sub(self.age())) {
            Ok((rank, status)) => {
                self.left -= 1;
                self.ids[rank] = 0;
                Ok(News::Ended(rank, status?))
            }
            Err(RecvTimeoutError::Timeout) => Ok(News::Due),
            Err(RecvTimeoutError::Disconnected) => Ok(News::Over),
        }
    }

    /// Kills all processes that are still running.
    pub fn kill(&self) {
        for id in self.ids.iter().filter(|id| **id != 0) {
            if let Some(pid) = i32::try_from(*id).ok().and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}

fn relay(child: &mut Child, rank: usize) {
    if let Some(output) = child.stdout.take() {
        std::thread::spawn(move || {
            each_line(BufReader::new(output), |line| println!("[{rank}] {line}"));
        });
    }
    if let Some(output) = child.stderr.take() {
        std::thread::spawn(move || {
            each_line(BufReader::new(output), |line| eprintln!("[{rank}] {line}"));
        });
    }
}

/// Calls `say` with each line. Bytes that are not UTF-8 are replaced: a rank whose output is not read to its end dies of
/// SIGPIPE.
fn each_line(mut from: impl BufRead, mut say: impl FnMut(&str)) {
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
        say(String::from_utf8_lossy(&line).trim_end_matches('\n'));
        line.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_after_one_that_is_no_text_are_read() {
        let mut said = Vec::new();
        each_line(&b"one\n\xff\nthree"[..], |line| said.push(line.to_owned()));
        assert_eq!(said, ["one", "\u{fffd}", "three"]);
    }
}
