//! Binds ranks to processors.

use std::collections::BTreeSet;
use std::path::Path;

use clap::ValueEnum;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::{Deserialize, Serialize};

/// The unit that ranks are bound to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(super) enum Bind {
    /// Nothing: the system places them, which suits ranks that share processors.
    #[default]
    None,
    /// A core each, with all its hardware threads; cores are shared in turn where there are fewer.
    Core,
    /// A NUMA node each; neighbouring ranks share one.
    Numa,
}

/// Returns the processors of each of `ranks` ranks of this host and then of each of the newcomers, among those that this
/// process may use; `None` for one that is not bound.
pub(super) fn places(bind: Bind, ranks: usize, newcomers: usize) -> Vec<Option<CpuSet>> {
    let all = ranks + newcomers;
    let Ok(own) = sched_getaffinity(None) else { return vec![None; all] };
    let allowed: BTreeSet<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| own.is_set(*cpu)).collect();
    let groups = match bind {
        Bind::None => return vec![None; all],
        Bind::Core => cores(Path::new("/sys/devices/system/cpu"), &allowed),
        Bind::Numa => nodes(Path::new("/sys/devices/system/node"), &allowed),
    };
    (0..all).map(|rank| Some(set(&groups[chosen(bind, rank, ranks, groups.len())]))).collect()
}

fn chosen(bind: Bind, rank: usize, ranks: usize, groups: usize) -> usize {
    match bind {
        Bind::Numa if rank < ranks => rank * groups / ranks,
        // Newcomers have no neighbours yet.
        Bind::None | Bind::Core | Bind::Numa => rank % groups,
    }
}

fn set(cpus: &BTreeSet<usize>) -> CpuSet {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    set
}

/// Returns the hardware threads of each core. Without information from the system, each processor is a core.
fn cores(folder: &Path, allowed: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let mut cores: Vec<BTreeSet<usize>> = Vec::new();
    for cpu in allowed {
        if cores.iter().any(|core| core.contains(cpu)) {
            continue;
        }
        let told = |name: &str| {
            let text = std::fs::read_to_string(folder.join(format!("cpu{cpu}/topology/{name}"))).ok()?;
            Some(&cpu_list(&text)? & allowed).filter(|core| core.contains(cpu))
        };
        let threads = told("core_cpus_list").or_else(|| told("thread_siblings_list"));
        cores.push(threads.unwrap_or_else(|| BTreeSet::from([*cpu])));
    }
    cores
}

/// Returns the processors of each NUMA node. Without information from the system, there is one node.
fn nodes(folder: &Path, allowed: &BTreeSet<usize>) -> Vec<BTreeSet<usize>> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers: Vec<usize> =
        entries.filter_map(|entry| entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()).collect();
    numbers.sort_unstable();
    let told = |number: &usize| {
        let text = std::fs::read_to_string(folder.join(format!("node{number}/cpulist"))).ok()?;
        Some(&cpu_list(&text)? & allowed).filter(|node| !node.is_empty())
    };
    let found: Vec<_> = numbers.iter().filter_map(told).collect();
    if found.is_empty() { vec![allowed.clone()] } else { found }
}

/// Parses a list such as `0-3,8`.
fn cpu_list(text: &str) -> Option<BTreeSet<usize>> {
    let mut cpus = BTreeSet::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        cpus.extend(first..=last.min(CpuSet::MAX_CPU));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file(path: &Path, text: &str) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn cores_are_told_by_their_threads() {
        let folder = tempfile::tempdir().unwrap();
        for cpu in 0..4 {
            file(
                &folder.path().join(format!("cpu{cpu}/topology/core_cpus_list")),
                &format!("{},{}\n", cpu % 2, cpu % 2 + 2),
            );
        }
        let sets = |allowed: &[usize]| cores(folder.path(), &allowed.iter().copied().collect());
        assert_eq!(sets(&[0, 1, 2, 3]), [BTreeSet::from([0, 2]), BTreeSet::from([1, 3])]);
        // Ranks do not get processors that this process may not use. The system has no information on processor 7.
        assert_eq!(sets(&[1, 2, 7]), [BTreeSet::from([1]), BTreeSet::from([2]), BTreeSet::from([7])]);
    }

    #[test]
    fn nodes_are_shared_by_neighbours() {
        let folder = tempfile::tempdir().unwrap();
        file(&folder.path().join("node0/cpulist"), "0-1,4\n");
        file(&folder.path().join("node1/cpulist"), "2-3\n");
        file(&folder.path().join("node2/cpulist"), "\n");
        let all: BTreeSet<usize> = (0..5).collect();
        assert_eq!(nodes(folder.path(), &all), [BTreeSet::from([0, 1, 4]), BTreeSet::from([2, 3])]);
        assert_eq!(nodes(Path::new("/nowhere"), &all), [all]);
        let places: Vec<_> = (0..7).map(|rank| chosen(Bind::Numa, rank, 4, 2)).collect();
        assert_eq!(places, [0, 0, 1, 1, 0, 1, 0], "newcomers take turns");
        assert_eq!((0..4).map(|rank| chosen(Bind::Core, rank, 4, 3)).collect::<Vec<_>>(), [0, 1, 2, 0]);
    }

    #[test]
    fn every_rank_gets_a_place_here() {
        assert!(places(Bind::None, 2, 1).iter().all(Option::is_none));
        for bind in [Bind::Core, Bind::Numa] {
            let found = places(bind, 2, 1);
            assert!(
                found.len() == 3 && found.iter().all(|set| set.as_ref().is_some_and(|set| set.count() > 0))
            );
        }
        assert_eq!(cpu_list("1-x"), None);
    }
}
