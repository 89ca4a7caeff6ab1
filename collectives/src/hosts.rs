//! Ranks by host, for the hierarchical algorithms.

use crate::group::Group;
use crate::task::Task;

/// The ranks of each host, in rank order; hosts in order of their first rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    members: Vec<Vec<u32>>,
}

impl Hosts {
    /// Sorts the ranks of `task` by host.
    ///
    /// # Errors
    /// A sentence for users that says why there is no hierarchy.
    pub(crate) fn of(task: &Task) -> Result<Self, String> {
        let Some(hosts) = &task.hosts else {
            return Err("it is not known which ranks share a host".to_owned());
        };
        if hosts.len() != task.world_size as usize {
            return Err(format!("hosts are given for {} of {} ranks", hosts.len(), task.world_size));
        }
        let mut names: Vec<u32> = Vec::new();
        let mut members: Vec<Vec<u32>> = Vec::new();
        for (rank, host) in hosts.iter().enumerate() {
            // Neighbours mostly share a host, so the search begins with the latest one.
            let index = names.iter().rposition(|name| name == host).unwrap_or_else(|| {
                names.push(*host);
                members.push(Vec::new());
                names.len() - 1
            });
            members[index].push(rank as u32);
        }
        if members.len() < 2 {
            return Err("all ranks share one host".to_owned());
        }
        if members.iter().all(|host| host.len() == 1) {
            return Err("every rank is alone on its host".to_owned());
        }
        Ok(Self { members })
    }

    /// Returns the number of ranks per host, if it is the same on all hosts.
    pub(crate) fn even(&self) -> Option<u32> {
        let first = self.members[0].len();
        self.members.iter().all(|host| host.len() == first).then_some(first as u32)
    }

    /// Returns the ranks of `rank`'s host.
    pub(crate) fn local(&self, rank: u32) -> Group {
        Group::of(self.members[self.host_of(rank)].clone(), rank)
    }

    /// Returns the ranks at `rank`'s position on every host; for hosts of equal size.
    pub(crate) fn rail(&self, rank: u32) -> Group {
        let place = self.local(rank).me() as usize;
        Group::of(self.members.iter().map(|host| host[place]).collect(), rank)
    }

    /// Returns one rank of each host: the first, or `root` on its host.
    pub(crate) fn leaders(&self, root: u32) -> Vec<u32> {
        self.members.iter().map(|host| if host.contains(&root) { root } else { host[0] }).collect()
    }

    /// Returns the number of hosts.
    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the ranks of host `index`.
    pub(crate) fn host(&self, index: u32) -> &[u32] {
        &self.members[index as usize]
    }

    /// Returns the index of the host of a rank.
    pub(crate) fn index_of(&self, rank: u32) -> u32 {
        self.host_of(rank) as u32
    }

    /// Returns the number of ranks of the smallest host.
    pub(crate) fn least(&self) -> u32 {
        self.members.iter().map(Vec::len).min().unwrap_or(0) as u32
    }

    /// Returns the ranks at position `place` on every host.
    pub(crate) fn rail_at(&self, place: u32) -> Vec<u32> {
        self.members.iter().map(|host| host[place as usize]).collect()
    }

    fn host_of(&self, rank: u32) -> usize {
        self.members.iter().position(|host| host.binary_search(&rank).is_ok()).expect("every rank has a host")
    }
}
