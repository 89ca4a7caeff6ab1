//! Facts about this machine, read from the kernel's files. Each is optional, since containers may hide any of
//! them.

use std::fs;
use std::path::Path;

/// Memory in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Memory of the machine, or the limit of the control group.
    pub total: u64,
    /// Memory that is available now, including what the kernel would reclaim from files.
    pub available: u64,
}

/// Returns the first line of a file, trimmed.
pub(crate) fn read_line(path: impl AsRef<Path>) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.lines().next()?.trim().to_owned())
}

/// Returns the name of the host.
pub(crate) fn hostname() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// Returns the name of the processor.
pub(crate) fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    cpu_field(&text, &["model name", "Model", "Hardware", "cpu model"])
        .unwrap_or_else(|| format!("{} CPU", std::env::consts::ARCH))
}

/// Returns the first of these fields that /proc/cpuinfo has.
pub(crate) fn cpu_field(cpuinfo: &str, names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| {
        cpuinfo.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == *name).then(|| value.split_whitespace().collect::<Vec<_>>().join(" "))
        })
    })
}

/// Returns the directories of this process's control groups, its own first, then its parents up to the root.
pub(crate) fn control_groups(controller: &str) -> Vec<String> {
    let text = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        if controllers.is_empty() {
            Some(("/sys/fs/cgroup".to_owned(), path.to_owned()))
        } else if controllers.split(',').any(|name| name == controller) {
            Some((format!("/sys/fs/cgroup/{controllers}"), path.to_owned()))
        } else {
            None
        }
    });
    let Some((root, path)) = found else { return vec![] };
    let mut directories = Vec::new();
    let mut path = path.trim_end_matches('/').to_owned();
    loop {
        directories.push(format!("{root}{path}"));
        match path.rfind('/') {
            Some(end) => path.truncate(end),
            None => return directories,
        }
    }
}

/// Returns the memory of the machine or of the tightest control group.
pub(crate) fn memory() -> Option<Memory> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = meminfo.lines().find(|line| line.starts_with(name))?;
        Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? << 10)
    };
    let mut memory = Memory { total: field("MemTotal:")?, available: field("MemAvailable:")? };
    for directory in control_groups("memory") {
        let limit = ["memory.max", "memory.limit_in_bytes"]
            .iter()
            .find_map(|name| read_line(format!("{directory}/{name}"))?.parse::<u64>().ok());
        memory.total = memory.total.min(limit.unwrap_or(u64::MAX));
    }
    let left = kolo::internal::supply::bytes_left().unwrap_or(memory.available);
    memory.available = left.min(memory.total);
    Some(memory)
}

/// Returns the processor time, in processors, that the tightest control group allows; `None` without a limit.
pub(crate) fn cpu_quota() -> Option<f64> {
    let mut least: Option<f64> = None;
    for directory in control_groups("cpu") {
        let quota = match read_line(format!("{directory}/cpu.max")) {
            Some(line) => {
                let mut fields = line.split_whitespace().map(str::parse::<f64>);
                match (fields.next(), fields.next()) {
                    (Some(Ok(quota)), Some(Ok(period))) => Some(quota / period),
                    _ => None,
                }
            }
            None => {
                let number = |name: &str| read_line(format!("{directory}/{name}"))?.parse::<f64>().ok();
                match (number("cpu.cfs_quota_us"), number("cpu.cfs_period_us")) {
                    (Some(quota), Some(period)) if quota > 0.0 => Some(quota / period),
                    _ => None,
                }
            }
        };
        least = [least, quota].into_iter().flatten().reduce(f64::min);
    }
    least
}

/// Returns the number of processors that this process may run on, by its affinity alone.
pub(crate) fn admitted_cpus() -> usize {
    rustix::thread::sched_getaffinity(None).map_or_else(|_| usable_cpus(), |cpus| cpus.count() as usize)
}

/// Returns the number of processors that this process can keep busy: those of its affinity, or fewer if its control group
/// allows less time.
pub(crate) fn usable_cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// Returns the bytes of this process that are resident in memory.
pub(crate) fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").ok();
    let pages = pages.and_then(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_cpuinfo() {
        let text = "processor\t: 0\nmodel name\t: Some  CPU @ 3 GHz\nflags\t\t: fpu avx2\n";
        assert_eq!(cpu_field(text, &["Model", "model name"]).unwrap(), "Some CPU @ 3 GHz");
        assert_eq!(cpu_field(text, &["Hardware"]), None);
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = memory().unwrap();
        assert!(memory.available <= memory.total && memory.total > 0);
        assert!(resident_bytes() > 0 && usable_cpus() > 0);
    }
}
