//! Trials of the launcher: leftovers of a job after `kolo run` is killed or asked to end.

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[path = "../../tools/tests/terminal/mod.rs"]
mod terminal;

use rustix::process::{Pid, kill_process};

use crate::leaks;
use crate::plan::{Launched, Plan};
use crate::trial::{Report, clean, skipped};

/// Longest time until the launcher ends: a grace period of a second, and more for a busy machine.
const END_LIMIT: Duration = Duration::from_secs(15);

/// Returns the path of the program `kolo`, if it was built with this one.
pub(crate) fn program() -> Option<PathBuf> {
    // This program is target/debug/deps/faults-..., and the other is target/debug/kolo.
    let own = std::env::current_exe().ok()?;
    own.ancestors().skip(1).take(2).map(|folder| folder.join("kolo")).find(|path| path.is_file())
}

/// Makes a trial of the launcher.
pub(crate) fn run(plan: &Plan, launched: &Launched, own_network: bool) -> Report {
    let (Some(kolo), Ok(own)) = (program(), std::env::current_exe()) else {
        return skipped("the program kolo is not beside this one: cargo build -p kolo-cli".into());
    };
    let Ok(folder) = tempfile::Builder::new().prefix("kolo-faults-").tempdir() else {
        return skipped("no folder".into());
    };
    let rank = format!("{} rank {}", own.display(), plan.words.join(" "));
    let mut command = Command::new(kolo);
    clean(&mut command);
    command
        .args(["run", "-n", &plan.ranks.to_string(), "--grace", "1", "--", "sh", "-c"])
        .arg(launched.script.replace("RANK_PROGRAM", &rank))
        .env("TMPDIR", folder.path())
        .envs(plan.way.settings(0))
        // A shell with job control does the same.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut report = Report::default();
    let mut child = match terminal::as_from_a_terminal(&mut command).spawn() {
        Ok(child) => child,
        Err(error) => return skipped(error.to_string()),
    };
    std::thread::sleep(launched.after);
    let asked = Instant::now();
    let _ = kill_process(Pid::from_child(&child), launched.signal);
    let until = asked + END_LIMIT;
    loop {
        match child.try_wait() {
            Ok(Some(_)) => break,
            Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                report.problems.hangs.push("the launcher does not end".into());
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
        }
    }
    report.problems.leaks = leaks::look(folder.path(), own_network, false);
    report.noticed_ms.push(asked.elapsed().as_secs_f64() * 1e3);
    report.kinds.push(format!("{:?}", launched.signal));
    report
}
