//! Finds out whether the memory that is left suffices for ranks that ask for some of it at the same time.
//!
//! When processes use more pages than there are, the kernel kills one of them, perhaps an unrelated one. Ranks
//! therefore tell each other how much memory their host has available, and how much is left to their control groups,
//! before any of them takes a page. All ranks reach the same verdict.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::mix::mix;

/// Memory that processes draw from: that of a host or of a control group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    /// Identifies the pool: equal for processes that draw from the same one.
    id: u64,
    is_group: bool,
    /// Bytes left when the pool was last read.
    bytes: u64,
}

/// One part in this many of the requested memory must be left over for page tables, of which each rank needs some for
/// all of the memory.
const SPARE: u64 = 32;

/// Bytes backed between two checks of the clock, the other ranks and the memory left: a few hundredths of a second.
const PIECE_BYTES: usize = 64 << 20;

/// Returns the pools that this process draws from, without those about which the system says nothing.
pub(crate) fn pools() -> Vec<Pool> {
    pools_by(Path::new("/proc"))
}

/// Returns the bytes that this process can still take, by its host and its control groups, including those that the kernel
/// would reclaim from files; `None` if the system says nothing.
#[must_use]
pub fn bytes_left() -> Option<u64> {
    least(&pools())
}

fn least(pools: &[Pool]) -> Option<u64> {
    pools.iter().map(|pool| pool.bytes).min()
}

/// Returns why there is not enough for ranks that ask for `bytes_each` each; `named` has the pools of each of them.
///
/// Ranks read the pools at different times, before any of them has taken anything. The last one to read sees memory
/// that others have given back meanwhile. The most that any of them has seen therefore counts.
pub(crate) fn shortage(bytes_each: u64, named: &[Vec<Pool>]) -> Option<String> {
    let mut totals: BTreeMap<u64, (u64, Pool)> = BTreeMap::new();
    for pool in named.iter().flatten() {
        let (ranks, seen) = totals.entry(pool.id).or_insert_with(|| (0, pool.clone()));
        *ranks += 1;
        seen.bytes = seen.bytes.max(pool.bytes);
    }
    let lacks = |(ranks, pool): &&(u64, Pool)| {
        let wanted = u128::from(bytes_each) * u128::from(*ranks);
        wanted + wanted / u128::from(SPARE) > u128::from(pool.bytes)
    };
    let (ranks, pool) = totals.values().filter(lacks).min_by_key(|(_, pool)| (pool.bytes, pool.id))?;
    let wanted = u128::from(bytes_each) * u128::from(*ranks);
    let of =
        if pool.is_group { "their control group (memory.max) has" } else { "their host (MemAvailable) has" };
    Some(format!(
        "{ranks} rank(s) need {wanted} bytes together, {bytes_each} each, but {of} {} available; use less, \
         or fewer ranks per host",
        pool.bytes
    ))
}

/// Returns the shortage, if there is one, while ranks take their memory: from the present state of this process's pools,
/// for all ranks that named these pools.
pub(crate) fn shortage_meanwhile(bytes_each: u64, named: &[Vec<Pool>]) -> Option<String> {
    shortage(bytes_each, &shared_with(&pools(), named))
}

/// Returns for each rank those of this rank's pools that it has named too.
fn shared_with(own: &[Pool], named: &[Vec<Pool>]) -> Vec<Vec<Pool>> {
    let common = |theirs: &Vec<Pool>| {
        own.iter().filter(|pool| theirs.iter().any(|other| other.id == pool.id)).cloned().collect()
    };
    named.iter().map(common).collect()
}

/// Backs `total` bytes piece by piece. Before each piece it calls `look` with the bytes done and the length of the
/// piece; an error ends the work, and so does a reason to stop. The inner error says why not all is backed.
pub(crate) fn back_in_pieces(
    total: usize,
    mut look: impl FnMut(usize, usize) -> Result<Option<String>>,
    mut back: impl FnMut(usize, usize) -> std::io::Result<()>,
) -> Result<std::result::Result<(), String>> {
    for done in (0..total).step_by(PIECE_BYTES) {
        let piece = PIECE_BYTES.min(total - done);
        if let Some(why) = look(done, piece)? {
            return Ok(Err(format!("after {done} of {total} bytes: {why}")));
        }
        if let Err(error) = back(done, piece) {
            return Ok(Err(format!("after {done} of {total} bytes: {error}")));
        }
    }
    Ok(Ok(()))
}

fn pools_by(proc: &Path) -> Vec<Pool> {
    let boot = fs::read(proc.join("sys/kernel/random/boot_id")).unwrap_or_default();
    let host = boot.iter().fold(0, |hash, byte| mix(hash ^ u64::from(*byte)));
    let available = fs::read_to_string(proc.join("meminfo")).ok().and_then(|text| available(&text));
    let mut pools: Vec<Pool> =
        available.map(|bytes| Pool { id: host, is_group: false, bytes }).into_iter().collect();
    let text = |name: &str| fs::read_to_string(proc.join("self").join(name)).unwrap_or_default();
    for (folder, top, files) in groups(&text("cgroup"), &text("mountinfo")) {
        for folder in folder.ancestors().take_while(|folder| folder.starts_with(&top)) {
            let Some(bytes) = files.left(folder) else { continue };
            let Ok(about) = fs::metadata(folder) else { continue };
            pools.push(Pool { id: mix(mix(host ^ about.dev()) ^ about.ino()), is_group: true, bytes });
        }
    }
    pools
}

/// Returns `MemAvailable` in bytes: the memory that can be had without swapping.
fn available(meminfo: &str) -> Option<u64> {
    number_after(meminfo, "MemAvailable:")?.checked_mul(1024)
}

fn number_after(text: &str, name: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()?.parse().ok()
}

/// File names of a version of control groups.
#[derive(Clone, Copy)]
struct Files {
    limit: &'static str,
    used: &'static str,
    inactive: &'static str,
    active: &'static str,
}

const VERSION_1: Files = Files {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file",
    active: "total_active_file",
};

const VERSION_2: Files =
    Files { limit: "memory.max", used: "memory.current", inactive: "inactive_file", active: "active_file" };

impl Files {
    /// Returns the bytes that the group may still take, including those that the kernel would reclaim from its files;
    /// `None` if it has no limit.
    fn left(self, folder: &Path) -> Option<u64> {
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        // "max", and the greatest number of version 1, mean that there is no limit.
        let limit: u64 = text(self.limit)?.trim().parse().ok().filter(|limit| *limit < 1 << 62)?;
        let used: u64 = text(self.used)?.trim().parse().ok()?;
        let stat = text("memory.stat").unwrap_or_default();
        let files = |name| number_after(&stat, name).unwrap_or(0);
        // Half of the active files count, as in the kernel's MemAvailable.
        Some(
            limit
                .saturating_sub(used)
                .saturating_add(files(self.inactive))
                .saturating_add(files(self.active) / 2),
        )
    }
}

/// Returns the folders of the control groups that limit this process's memory, each with the topmost visible folder.
fn groups(cgroup: &str, mountinfo: &str) -> Vec<(PathBuf, PathBuf, Files)> {
    let mut found = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
            continue;
        };
        let files = match (number, controllers) {
            ("0", "") => VERSION_2,
            (_, controllers) if controllers.split(',').any(|name| name == "memory") => VERSION_1,
            _ => continue,
        };
        let is_v2 = controllers.is_empty();
        found.extend(
            mountinfo.lines().find_map(|line| mounted(line, path, is_v2)).map(|(at, top)| (at, top, files)),
        );
    }
    found
}

/// Returns the folder of a group, and the mount point above it, from a line of mountinfo(5).
fn mounted(line: &str, path: &str, is_v2: bool) -> Option<(PathBuf, PathBuf)> {
    let (mount, system) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (root, point) = (mount.next()?, PathBuf::from(mount.next()?));
    let mut system = system.split(' ');
    let (kind, options) = (system.next()?, system.nth(1)?);
    let fits = match is_v2 {
        true => kind == "cgroup2",
        false => kind == "cgroup" && options.split(',').any(|option| option == "memory"),
    };
    // In a container the mount may begin at the group, while the group's path is that of the host.
    let inside = Path::new(path).strip_prefix(root).unwrap_or(Path::new(""));
    fits.then(|| (point.join(inside), point))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    const GIB: u64 = 1 << 30;

    fn host(id: u64, bytes: u64) -> Pool {
        Pool { id, is_group: false, bytes }
    }

    fn group(id: u64, bytes: u64) -> Pool {
        Pool { id, is_group: true, bytes }
    }

    #[test]
    fn what_all_ranks_want_is_compared_with_what_they_share() {
        let two_hosts = [vec![host(1, 10 * GIB)], vec![host(1, 10 * GIB)], vec![host(2, 5 * GIB)]];
        assert_eq!(shortage(4 * GIB, &two_hosts), None);
        let text = shortage(5 * GIB, &two_hosts).unwrap();
        // 5 GiB of 5 leave no spare part on the second host, which has less.
        assert!(
            text.contains("1 rank(s) need 5368709120 bytes") && text.contains("has 5368709120"),
            "{text}"
        );
        let text = shortage(1 << 40, &two_hosts[..2]).unwrap();
        assert!(text.contains("2 rank(s) need 2199023255552 bytes together, 1099511627776 each"), "{text}");
        assert!(text.contains("MemAvailable") && text.contains("10737418240 available"), "{text}");
        assert!(shortage(u64::MAX, &two_hosts).is_some());
        assert_eq!(shortage(1 << 40, &[vec![], vec![]]), None, "the system says nothing");
        assert_eq!(shortage(0, &[vec![host(1, 0)]]), None);
    }

    #[test]
    fn groups_inside_a_host_count_by_themselves() {
        let in_two = [vec![host(1, 10 * GIB), group(7, 3 * GIB)], vec![host(1, 10 * GIB), group(8, GIB)]];
        assert_eq!(shortage(GIB / 2, &in_two), None);
        let text = shortage(2 * GIB, &in_two).unwrap();
        assert!(
            text.contains("1 rank(s)") && text.contains("memory.max") && text.contains("1073741824 av"),
            "{text}"
        );
    }

    #[test]
    fn the_tightest_pool_limits_a_process() {
        assert_eq!(least(&[host(1, 10 * GIB), group(7, 3 * GIB), group(8, 4 * GIB)]), Some(3 * GIB));
        assert_eq!(least(&[]), None);
    }

    #[test]
    fn while_ranks_take_theirs_those_of_other_groups_do_not_count() {
        let named = [vec![host(1, 10 * GIB), group(7, GIB)], vec![host(1, 10 * GIB), group(8, GIB)]];
        let now = [host(1, 9 * GIB), group(7, GIB / 2)];
        let shared = shared_with(&now, &named);
        assert_eq!(shared, [now.to_vec(), vec![host(1, 9 * GIB)]]);
        assert_eq!(shortage(GIB / 4, &shared), None);
        assert!(shortage(GIB, &shared).unwrap().contains("1 rank(s) need 1073741824"));
    }

    #[test]
    fn who_looks_last_sees_what_was_given_back() {
        assert_eq!(shortage(4 * GIB, &[vec![host(1, 5 * GIB)], vec![host(1, 10 * GIB)]]), None);
    }

    #[test]
    fn pieces_end_where_there_is_a_reason() {
        let total = 5 * PIECE_BYTES / 2;
        let mut backed = Vec::new();
        let all = back_in_pieces(
            total,
            |_, _| Ok(None),
            |at, len| {
                backed.push((at, len));
                Ok(())
            },
        );
        assert_eq!(all.unwrap(), Ok(()));
        assert_eq!(
            backed,
            [(0, PIECE_BYTES), (PIECE_BYTES, PIECE_BYTES), (2 * PIECE_BYTES, PIECE_BYTES / 2)]
        );
        let late = |done, _| Ok((done > 0).then(|| "time is up".to_owned()));
        let mut pieces = 0;
        let stopped = back_in_pieces(total, late, |_, _| {
            pieces += 1;
            Ok(())
        });
        let text = stopped.unwrap().unwrap_err();
        assert!(pieces == 1 && text.contains("after 67108864 of 167772160 bytes: time is up"), "{text}");
        let aborted = |_, _| Err(Error::configuration("a", "b", "c"));
        back_in_pieces(total, aborted, |_, _| panic!("backed after an abort")).unwrap_err();
        let refused = back_in_pieces(total, |_, _| Ok(None), |_, _| Err(std::io::Error::other("no pages")));
        assert!(refused.unwrap().unwrap_err().contains("after 0 of"));
    }

    /// Makes a system with files of the given texts.
    fn system(cgroup: &str, mountinfo: &str, files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<u64>) {
        let root = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = root.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text.replace("ROOT", root.path().to_str().unwrap())).unwrap();
        };
        put("proc/sys/kernel/random/boot_id", "x");
        put("proc/meminfo", "MemTotal: 99 kB\nMemFree:  1 kB\nMemAvailable:   2048 kB\n");
        put("proc/self/cgroup", cgroup);
        put("proc/self/mountinfo", mountinfo);
        files.iter().for_each(|(name, text)| put(name, text));
        let found = pools_by(&root.path().join("proc"));
        let mut ids: Vec<u64> = found.iter().map(|pool| pool.id).collect();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), found.len(), "pools have names of their own");
        assert!(found.iter().skip(1).all(|pool| pool.is_group));
        let bytes = found.iter().map(|pool| pool.bytes).collect();
        (root, bytes)
    }

    #[test]
    fn control_groups_of_both_versions_are_found_with_those_above() {
        let (_root, bytes) = system(
            "0::/job/rank0\n",
            "30 20 0:26 / ROOT/cg rw,nosuid - cgroup2 cgroup2 rw\n",
            &[
                ("cg/job/rank0/memory.max", "max\n"),
                ("cg/job/rank0/memory.current", "5\n"),
                ("cg/job/memory.max", "1000\n"),
                ("cg/job/memory.current", "400\n"),
                ("cg/job/memory.stat", "anon 1\ninactive_file 50\nactive_file 20\n"),
            ],
        );
        assert_eq!(bytes, [2048 * 1024, 660]);
        // Version 1, in a container that sees its own group as the top, besides version 2 without memory.
        let (_root, bytes) = system(
            "5:cpu:/\n4:memory:/docker/abc\n0::/\n",
            "1 2 0:3 / ROOT/cpu rw - cgroup cgroup rw,cpu\n\
             1 2 0:3 /docker/abc ROOT/memory rw - cgroup cgroup rw,memory\n\
             1 2 0:3 / ROOT/unified rw - cgroup2 cgroup2 rw\n",
            &[
                ("memory/memory.limit_in_bytes", "1000\n"),
                ("memory/memory.usage_in_bytes", "1200\n"),
                ("memory/memory.stat", "inactive_file 9\ntotal_inactive_file 30\n"),
                ("unified/cgroup.procs", ""),
            ],
        );
        assert_eq!(bytes, [2048 * 1024, 30]);
    }

    #[test]
    fn a_system_that_tells_nothing_limits_nothing() {
        let unlimited = [
            ("memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("memory/memory.usage_in_bytes", "5"),
        ];
        let (_root, bytes) = system(
            "4:memory:/\nnonsense\n",
            "1 2 0:3 / ROOT/memory rw - cgroup cgroup rw,memory\nx\n",
            &unlimited,
        );
        assert_eq!(bytes, [2048 * 1024]);
        assert_eq!(pools_by(Path::new("/nonexistent")), []);
        assert!(pools().iter().any(|pool| !pool.is_group && pool.bytes > 0), "this system tells");
    }
}
