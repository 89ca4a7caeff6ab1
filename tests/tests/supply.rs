//! Requests for more symmetric memory than the system has: an error on all ranks that reports the wanted and the
//! available bytes, no process killed by the kernel, and a communicator that keeps working.

use std::fs;
use std::path::{Path, PathBuf};

use kolo::{Communicator, Error, ReduceOp};
use kolo_tests::arrangement::Arrangement;
use kolo_tests::processes::Job;
use kolo_tests::watchdog::bounded;

/// Returns all memory of the machine, in bytes.
fn total() -> usize {
    let text = fs::read_to_string("/proc/meminfo").expect("/proc");
    let line = text.lines().find(|line| line.starts_with("MemTotal:")).expect("its memory");
    let kib: usize = line.split_ascii_whitespace().nth(1).expect("a number").parse().expect("a number");
    kib * 1024
}

fn refused(comm: &Communicator, bytes: usize) {
    let error = comm.alloc_raw(bytes).map(|memory| memory.len()).expect_err("more than there is");
    assert!(matches!(error, Error::Unsupported { .. }), "{error:?}");
    let (text, ranks) = (error.to_string(), comm.world_size() as usize);
    for word in [format!("{} bytes together, {bytes} each", ranks * bytes), "available".to_owned()] {
        assert!(text.contains(&word), "no {word:?} in: {text}");
    }
}

#[test]
fn more_than_the_machine_has() {
    for arrangement in [Arrangement::Exchange, Arrangement::Tcp, Arrangement::Hosts(1)] {
        bounded(&format!("{arrangement:?}"), move || {
            arrangement.run(3, |comm| {
                for bytes in [(1 << 40).max(total()), total(), total() / 2, 1 << 60] {
                    refused(&comm, bytes);
                }
                let mut memory = comm.alloc::<i32>(100_000).expect("a little is there");
                memory.fill(2);
                comm.all_reduce(&mut memory, ReduceOp::Sum).expect("as it was");
                assert!(memory.iter().all(|value| *value == 6));
            });
        });
    }
}

/// Returns the folder of this process's control group in a hierarchy that limits memory, and the name of the file with
/// the limit.
fn own_group() -> Option<(PathBuf, &'static str)> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = |found: fn(&str) -> bool| {
        let line = groups.lines().find(|line| found(line))?;
        Some(line.splitn(3, ':').nth(2)?.trim_start_matches('/').to_owned())
    };
    let first = path(|line| line.split(':').nth(1) == Some("memory"))
        .map(|path| (Path::new("/sys/fs/cgroup/memory").join(path), "memory.limit_in_bytes"));
    let second = || {
        path(|line| line.starts_with("0::"))
            .map(|path| (Path::new("/sys/fs/cgroup").join(path), "memory.max"))
    };
    first.or_else(second).filter(|(folder, limit)| folder.join(limit).exists())
}

/// A control group with a limit, which is removed on drop.
struct Group(PathBuf);

impl Group {
    fn new(limit_bytes: usize) -> Result<Self, String> {
        let (above, limit) = own_group().ok_or("no control group limits memory here")?;
        let group = Self(above.join(format!("kolo-test-{}", std::process::id())));
        fs::create_dir(&group.0).map_err(|error| format!("{}: {error}", group.0.display()))?;
        // In cgroup version 2, a group with processes cannot have children that limit memory.
        fs::write(group.0.join(limit), limit_bytes.to_string())
            .map_err(|error| format!("{limit}: {error}"))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn more_than_a_control_group_may_have() {
    const LIMIT: usize = 128 << 20;
    let group = match Group::new(LIMIT) {
        Ok(group) => group,
        Err(why) => return println!("skipped: {why}"),
    };
    let job = |bytes: usize| {
        let entered = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.0.display());
        let arguments =
            ["-c", &entered, "sh", env!("CARGO_BIN_EXE_kolo_rank"), "allocate", &bytes.to_string()];
        Job::start("sh", 2, 2, &arguments, |_| Vec::new())
    };
    // The part of each rank alone would fit.
    let each = LIMIT / 8 * 5;
    let mut refused = job(each);
    for text in refused.expect_all("@error") {
        let wanted = format!("2 rank(s) need {} bytes together, {each} each", 2 * each);
        for word in [&wanted, "memory.max", "available", "use less"] {
            assert!(text.contains(word), "no {word:?} in: {text}");
        }
    }
    assert_eq!(refused.ended(), [true; 2]);
    // Repeated allocations, each after the last one was freed.
    let mut fits = job(LIMIT / 8);
    fits.expect_all("@memory");
    assert_eq!(fits.ended(), [true; 2]);
}
