//! Processes of this machine and their relations, as found in /proc.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, getpid, pidfd_open, pidfd_send_signal};

/// Flag of a process in /proc: it is exiting (PF_EXITING in the kernel).
const EXITING: u64 = 4;

/// A process that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Process {
    pid: Pid,
    /// Start time in ticks, which together with the number identifies the process.
    started: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stat {
    parent: i32,
    group: i32,
    ended: bool,
    /// Whether the program no longer runs in it.
    ending: bool,
    started: u64,
}

impl Process {
    /// Sends a signal to this process, and never to another one that has taken over its number.
    pub(super) fn signal(self, signal: Signal) {
        let Ok(descriptor) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        // The descriptor's process cannot change any more, so either it is the process that was seen, or the start time
        // differs.
        if read(&folder(self.pid.as_raw_pid())).is_some_and(|stat| stat.started == self.started) {
            let _ = pidfd_send_signal(&descriptor, signal);
        }
    }

    /// Returns the number of the process.
    pub(super) fn pid(self) -> Pid {
        self.pid
    }
}

/// Returns the process groups with at least one member that has not ended.
pub(super) fn living_groups() -> HashSet<Pid> {
    let living = all().into_values().filter(|stat| !stat.ended);
    living.filter_map(|stat| Pid::from_raw(stat.group)).collect()
}

/// Returns whether a process is exiting or has ended. This holds before the first of its connections is closed, and
/// thus before other processes react to their loss.
pub(super) fn is_ending(pid: Pid) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    // A thread that has disappeared meanwhile has ended.
    are_seen() && threads.flatten().all(|thread| read(&thread.path()).is_none_or(|stat| stat.ending))
}

/// Returns all descendants of this process, without those that have ended.
pub(super) fn descendants() -> Vec<Process> {
    let (all, own) = (all(), getpid().as_raw_pid());
    let descends = |mut at: i32| {
        // A chain is no longer than the number of processes, even if it changed while it was read.
        for _ in 0..all.len() {
            match all.get(&at) {
                Some(stat) if stat.parent == own => return true,
                Some(stat) => at = stat.parent,
                None => return false,
            }
        }
        false
    };
    let living = all.iter().filter(|(pid, stat)| !stat.ended && descends(**pid));
    living
        .filter_map(|(pid, stat)| Some(Process { pid: Pid::from_raw(*pid)?, started: stat.started }))
        .collect()
}

/// Returns whether /proc numbers processes as this process does. In a PID namespace without a /proc of its own, those
/// numbers belong to other processes here.
pub(super) fn are_seen() -> bool {
    fs::read_to_string("/proc/self/status").is_ok_and(|status| is_of_own_namespace(&status))
}

/// Returns whether the status shows a single number: a process has one in each namespace from that of /proc down to its
/// own.
fn is_of_own_namespace(status: &str) -> bool {
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    // Kernels without this line (before 4.1) are older than pidfds, without which no process is signalled.
    numbers.is_none_or(|numbers| numbers.split_ascii_whitespace().count() == 1)
}

fn all() -> HashMap<i32, Stat> {
    if !are_seen() {
        return HashMap::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return HashMap::new() };
    let numbers = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    numbers.filter_map(|pid| Some((pid, read(&folder(pid))?))).collect()
}

fn folder(pid: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}"))
}

fn read(folder: &Path) -> Option<Stat> {
    // The name of a program may hold any bytes, even invalid text.
    parse(&String::from_utf8_lossy(&fs::read(folder.join("stat")).ok()?))
}

fn parse(text: &str) -> Option<Stat> {
    // The name stands in parentheses and may itself contain some.
    let fields: Vec<&str> = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace().collect();
    let ended = matches!(*fields.first()?, "Z" | "X");
    Some(Stat {
        ended,
        ending: ended || fields.get(6)?.parse::<u64>().ok()? & EXITING != 0,
        parent: fields.get(1)?.parse().ok()?,
        group: fields.get(2)?.parse().ok()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn numbers_of_another_namespace_are_no_numbers_here() {
        assert!(is_of_own_namespace("Name:\tkolo\nNSpid:\t4021\n"));
        assert!(!is_of_own_namespace("Name:\tkolo\nNSpid:\t4021\t7\nNSpgid:\t7\n"));
        assert!(are_seen() == (fs::read_link("/proc/self").unwrap().to_str() == Some(&getpid().to_string())));
    }

    #[test]
    fn names_do_not_confuse() {
        let line = "42 (a) Z 1 (b\n) S 7 9 9 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 1234 0 0";
        let stat = Stat { parent: 7, group: 9, ended: false, ending: false, started: 1234 };
        assert_eq!(parse(line), Some(stat));
        let leaving = line.replacen("-1 0", "-1 4194564", 1);
        assert_eq!(parse(&leaving), Some(Stat { ending: true, ..stat }));
        assert_eq!(parse(&line.replacen("S", "Z", 1)), Some(Stat { ending: true, ended: true, ..stat }));
        assert_eq!(parse("42 (x) S 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn children_and_their_children_are_found_and_signalled() {
        let script = "tail -f /dev/null & echo $!; wait";
        let mut shell = Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        // The output stays open: tail ends when nobody reads what it writes.
        let mut output = BufReader::new(shell.stdout.take().unwrap());
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let grandchild = Pid::from_raw(line.trim().parse().unwrap()).unwrap();
        let found = descendants();
        assert!(found.iter().any(|process| process.pid() == Pid::from_child(&shell)));
        let process = *found.iter().find(|process| process.pid() == grandchild).unwrap();
        // Another process with the same number is not signalled.
        Process { started: process.started + 1, ..process }.signal(Signal::KILL);
        assert!(descendants().contains(&process));
        process.signal(Signal::KILL);
        shell.wait().unwrap();
        assert!(!descendants().contains(&process));
    }
}
