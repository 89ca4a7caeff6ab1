//! Tests of the control plane between processes, with real deaths and with ends in any order.
//!
//! A parent test starts copies of this test program that run only the test `child`, and variables tell them what to do.
//! Children report lines that begin with "@".

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use kolo::JoinSpec;
use kolo::internal::control::{Control, ControlRuntime};

const LONG: Duration = Duration::from_secs(30);

/// One rank's process.
struct Rank {
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<(Instant, String)>,
}

impl Rank {
    /// Waits for a line that begins with `start`. Returns when it came, and the rest of the line.
    fn expect(&self, start: &str) -> (Instant, String) {
        let until = Instant::now() + LONG;
        loop {
            match self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((when, line)) => {
                    if let Some(rest) = line.strip_prefix(start) {
                        return (when, rest.trim().to_owned());
                    }
                    assert!(!line.starts_with("@failed"), "waiting for {start}: {line}");
                }
                Err(error) => panic!("no line {start}: {error}"),
            }
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits until the process ends, with a deadline. Returns whether it succeeded.
    fn ended(mut self) -> bool {
        drop(self.input.take());
        let until = Instant::now() + LONG;
        // The output ends when the process does.
        while self.lines.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
        assert!(Instant::now() < until, "a process hangs");
        self.child.wait().unwrap().success()
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn job(folder: &tempfile::TempDir, ranks: u32, settings: &[(&str, &str)]) -> Vec<Rank> {
    let rendezvous = format!("file://{}/job", folder.path().display());
    (0..ranks)
        .map(|rank| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command
                .args(["--exact", "child", "--nocapture"])
                .env("KOLO_RENDEZVOUS", &rendezvous)
                .env("KOLO_RANK", rank.to_string())
                .env("KOLO_WORLD_SIZE", ranks.to_string())
                .env("KOLO_JOIN_TIMEOUT", "30")
                .envs(settings.iter().copied())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null());
            let mut child = command.spawn().unwrap();
            let (output, input) = (child.stdout.take().unwrap(), child.stdin.take());
            let (sender, lines) = mpsc::channel();
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    // The test harness may have written the beginning of the line.
                    if let Some(at) = line.find('@') {
                        let _ = sender.send((Instant::now(), line[at..].to_owned()));
                    }
                }
            });
            Rank { child, input, lines }
        })
        .collect()
}

/// Acts as a process of a job: joins, then obeys its standard input.
#[test]
fn child() {
    if std::env::var_os("KOLO_RANK").is_none() {
        return; // not a child
    }
    let spec = JoinSpec::from_process_env().unwrap();
    let begin = Instant::now();
    let control = match Control::join(&spec, &ControlRuntime::new().unwrap()) {
        Ok(control) => control,
        Err(error) => return println!("\n@failed {error}"),
    };
    println!("\n@joined {}", begin.elapsed().as_micros());
    let members: Arc<[u32]> = (0..spec.world_size).collect();
    let world = control.register(1, members);
    let flag = world.abort_flag().clone();
    world.abort_flag().on_raise(Box::new(move || {
        if let Some(cause) = flag.cause() {
            println!("\n@aborted {} {cause}", cause.by);
        }
    }));
    println!("\n@ready");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "leave" => control.leave(),
            "exit" => std::process::exit(0),
            "return" => return,
            "panic" => panic!("as told"),
            other => match other.strip_prefix("departed ").and_then(|rank| rank.parse().ok()) {
                Some(rank) => println!("\n@departed {}", world.departed(rank)),
                None => println!("\n@failed: cannot {other}"),
            },
        }
    }
}

fn ready(ranks: &[Rank]) {
    for rank in ranks {
        rank.expect("@ready");
    }
}

#[test]
fn eight_processes_join_fast_and_leave_together() {
    let folder = tempfile::tempdir().unwrap();
    let begin = Instant::now();
    let mut ranks = job(&folder, 8, &[]);
    let joined: Vec<_> = ranks.iter().map(|rank| rank.expect("@joined")).collect();
    let last = joined.iter().map(|(when, _)| *when).max().unwrap() - begin;
    let inside = joined.iter().map(|(_, micros)| micros.parse::<u64>().unwrap()).max().unwrap();
    println!("8 processes: the last joined {last:?} after the first was started; longest join {inside} us");
    // An idle machine takes 200 ms. The bound is for one with other work, which may pause for seconds.
    assert!(last < Duration::from_secs(10), "{last:?}");
    for rank in &mut ranks {
        rank.tell("return");
    }
    let begin = Instant::now();
    for rank in ranks {
        assert!(rank.ended());
    }
    println!("8 processes: all ended {:?} after they were told", begin.elapsed());
}

#[test]
fn a_killed_process_is_noticed_by_all_soon() {
    for victim in [2usize, 0] {
        let folder = tempfile::tempdir().unwrap();
        let ranks = job(&folder, 4, &[]);
        ready(&ranks);
        let begin = Instant::now();
        ranks[victim].signal(rustix::process::Signal::KILL);
        for (i, rank) in ranks.iter().enumerate().filter(|(i, _)| *i != victim) {
            let (when, cause) = rank.expect("@aborted");
            let after = when - begin;
            println!("rank {victim} killed: rank {i} knows after {after:?}: {cause}");
            assert!(cause.starts_with(&victim.to_string()), "{cause}");
            // A silent process is given up after a minute only.
            assert!(after < Duration::from_secs(6), "{after:?}");
        }
        let others = ranks.into_iter().enumerate().filter(|(i, _)| *i != victim);
        for (_, mut rank) in others {
            rank.tell("return");
            assert!(rank.ended());
        }
    }
}

#[test]
fn a_stopped_process_is_given_up_after_the_limit_only() {
    let given_up = |victim: usize| {
        let folder = tempfile::tempdir().unwrap();
        let mut ranks = job(&folder, 3, &[("KOLO_DEAD_AFTER", "4")]);
        ready(&ranks);
        let begin = Instant::now();
        ranks[victim].signal(rustix::process::Signal::STOP);
        let (when, cause) = ranks[2].expect("@aborted");
        let after = when - begin;
        println!("rank {victim} stopped: rank 2 gives it up after {after:?}: {cause}");
        assert!(after > Duration::from_secs(3), "{after:?}");
        assert!(cause.starts_with(&victim.to_string()) && cause.contains("silent for"), "{cause}");
        // Once it runs again, the process learns that it was given up, and ends like the others.
        ranks[victim].signal(rustix::process::Signal::CONT);
        ranks[victim].expect("@aborted");
        for rank in &mut ranks {
            rank.tell("return");
        }
        for rank in ranks {
            assert!(rank.ended());
        }
    };
    // Most of the time is spent waiting for the limit.
    std::thread::scope(|scope| [1, 0].map(|victim| drop(scope.spawn(move || given_up(victim)))));
}

#[test]
fn processes_end_in_any_order() {
    for order in [[0usize, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let folder = tempfile::tempdir().unwrap();
        let mut ranks = job(&folder, 3, &[]);
        ready(&ranks);
        // Each rank says goodbye while the others are still there. None of this is a failure.
        for (n, &i) in order.iter().enumerate() {
            ranks[i].tell("return");
            if n == 0 && i != 0 {
                let until = Instant::now() + LONG;
                loop {
                    ranks[0].tell(&format!("departed {i}"));
                    if ranks[0].expect("@departed").1 == "true" {
                        break;
                    }
                    assert!(Instant::now() < until);
                }
            }
        }
        for mut rank in ranks {
            drop(rank.input.take());
            let until = Instant::now() + LONG;
            while let Ok((_, line)) = rank.lines.recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                assert!(!line.starts_with("@aborted"), "{order:?}: {line}");
            }
            assert!(rank.ended());
        }
    }
}

#[test]
fn an_exit_without_goodbye_is_a_loss() {
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = job(&folder, 3, &[]);
    ready(&ranks);
    ranks[1].tell("exit");
    for rank in [&ranks[0], &ranks[2]] {
        let (_, cause) = rank.expect("@aborted");
        assert!(cause.starts_with('1') && cause.contains("without a goodbye"), "{cause}");
    }
    for mut rank in ranks {
        if rank.child.try_wait().unwrap().is_none() {
            let _ = writeln!(rank.input.as_mut().unwrap(), "return");
        }
        assert!(rank.ended());
    }
}
