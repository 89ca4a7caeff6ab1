//! Search for processes, sockets and files that a trial must not leave behind.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, wait};

/// Longest wait for leftovers to go. The kernel needs moments to close the descriptors of a killed process.
const PATIENCE: Duration = Duration::from_secs(5);

/// Waits until nothing is left, or for a while, and returns what is left. Kills processes that are left. Sockets are
/// only checked if no other process has any here.
pub(crate) fn look(folder: &Path, own_network: bool, may_leave_files: bool) -> Vec<String> {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut left = Vec::new();
        let processes = children();
        left.extend(processes.iter().map(|(pid, what)| format!("process {pid} {what}")));
        if own_network {
            left.extend(sockets());
        }
        if !may_leave_files {
            left.extend(files(folder));
        }
        if left.is_empty() {
            return left;
        }
        if Instant::now() >= until {
            for (pid, _) in processes {
                // Only this process reaps its children, so no other process has got the child's number since.
                if let Some(pid) = Pid::from_raw(pid) {
                    let _ = kill_process(pid, Signal::KILL);
                }
            }
            return left;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns processes that this one has started or adopted and that still run. Reaps those that have ended.
fn children() -> Vec<(i32, String)> {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    let own = getpid().as_raw_pid();
    // In a PID namespace without its own /proc, the numbers in /proc are not those of this namespace.
    if fs::read_link("/proc/self").ok().and_then(|link| link.to_str()?.parse().ok()) != Some(own) {
        return Vec::new();
    }
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let parent = |pid: i32| -> Option<i32> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 1..)?.split_whitespace().collect();
        if fields.first() == Some(&"Z") { None } else { fields.get(1)?.parse().ok() }
    };
    let what =
        |pid: i32| fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default().replace('\0', " ");
    pids.filter(|pid| parent(*pid) == Some(own)).map(|pid| (pid, what(pid))).collect()
}

/// Returns sockets of this network namespace that still wait for peers.
fn sockets() -> Vec<String> {
    let mut found = Vec::new();
    for (path, kind) in [("tcp", "TCP"), ("tcp6", "TCP"), ("udp", "UDP"), ("udp6", "UDP"), ("unix", "UNIX")] {
        let text = fs::read_to_string(format!("/proc/self/net/{path}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // State 0A is listening. Closed connections linger in other states.
            let counts = match kind {
                "TCP" => fields.get(3) == Some(&"0A"),
                _ => true,
            };
            if counts {
                found.push(format!("{kind} socket {}", line.trim()));
            }
        }
    }
    found
}

fn files(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.flatten().map(|entry| format!("file {}", entry.file_name().display())).collect()
}
