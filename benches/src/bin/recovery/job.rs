//! Jobs of processes, one for each rank, that report their progress in lines.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;

/// Processes that meet through a file. They are killed when the job is dropped.
pub(crate) struct Job {
    ranks: Vec<Rank>,
    meeting: PathBuf,
}

struct Rank {
    process: Child,
    out: BufReader<ChildStdout>,
}

impl Job {
    /// Starts this program again for each rank, with `word` as argument.
    pub(crate) fn start(word: &str, way: &str, ranks: u32) -> Outcome<Self> {
        let name = format!("kolo-recovery-{}-{}", std::process::id(), machine_time().as_nanos());
        let mut job = Self { ranks: Vec::new(), meeting: std::env::temp_dir().join(name) };
        for rank in 0..ranks {
            let settings = settings(way, rank, ranks)?.into_iter().chain([
                ("KOLO_RENDEZVOUS", format!("file://{}", job.meeting.display())),
                ("KOLO_RANK", rank.to_string()),
                ("KOLO_WORLD_SIZE", ranks.to_string()),
            ]);
            job.add(word, settings)?;
        }
        Ok(job)
    }

    /// Adds one more process with these settings; returns its number.
    pub(crate) fn add(
        &mut self,
        word: &str,
        settings: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Outcome<usize> {
        let mut process =
            Command::new(std::env::current_exe()?).arg(word).envs(settings).stdout(Stdio::piped()).spawn()?;
        let out = BufReader::new(process.stdout.take().ok_or("its output is piped")?);
        self.ranks.push(Rank { process, out });
        Ok(self.ranks.len() - 1)
    }

    /// Returns the next line that a process prints.
    pub(crate) fn line(&mut self, number: usize) -> Outcome<String> {
        let mut text = String::new();
        self.ranks[number].out.read_line(&mut text)?;
        if text.is_empty() { Err("a rank has ended early".into()) } else { Ok(text.trim_end().to_owned()) }
    }

    /// Kills a process by `kill -9`; returns the time.
    pub(crate) fn kill(&mut self, number: usize) -> Outcome<Duration> {
        let now = machine_time();
        kill_process(Pid::from_child(&self.ranks[number].process), Signal::KILL)?;
        Ok(now)
    }

    /// Waits for all processes to end.
    pub(crate) fn end(mut self) -> Outcome<()> {
        for rank in &mut self.ranks {
            rank.process.wait()?;
        }
        Ok(())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for rank in &mut self.ranks {
            let _ = rank.process.kill();
            let _ = rank.process.wait();
        }
        let _ = std::fs::remove_file(&self.meeting);
    }
}

/// Returns the settings of a rank that `way` asks for: a transport, or a number of hosts.
pub(crate) fn settings(way: &str, rank: u32, ranks: u32) -> Outcome<Vec<(&'static str, String)>> {
    Ok(match way {
        "shm" | "tcp" => vec![("KOLO_TRANSPORT", way.to_owned())],
        hosts => {
            let per_host = ranks.div_ceil(hosts.parse::<u32>()?);
            vec![("KOLO_HOST_ID", format!("host-{}", rank / per_host))]
        }
    })
}

/// Prints a line for the process that has started this one.
pub(crate) fn say(text: &str) -> Outcome<()> {
    println!("{text}");
    Ok(std::io::stdout().flush()?)
}

/// Returns the time of a clock that all processes of this machine share.
pub(crate) fn machine_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}
