//! Ranks by host, as the hierarchical forms see them.

use crate::group::Group;
use crate::task::Task;

/// The ranks of each host, in rank order; hosts in order of their first rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hosts {
    members: Vec<Vec<u32>>,
}

impl Hosts {
    /// # Errors
    /// Why there is no hierarchy to speak of, for users.
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
            // Neighbours mostly share a host; else look the host up.
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

    /// Ranks per host, if it is the same on all.
    pub(crate) fn even(&self) -> Option<u32> {
        let first = self.members[0].len();
        self.members.iter().all(|host| host.len() == first).then_some(first as u32)
    }

    /// The ranks of `rank`'s host.
    pub(crate) fn local(&self, rank: u32) -> Group {
        Group::of(self.members[self.host_of(rank)].clone(), rank)
    }

    /// The ranks at `rank`'s place on every host; for even hosts.
    pub(crate) fn rail(&self, rank: u32) -> Group {
        let place = self.local(rank).me() as usize;
        Group::of(self.members.iter().map(|host| host[place]).collect(), rank)
    }

    /// One rank of each host: the first, or `root` on its host.
    pub(crate) fn leaders(&self, root: u32) -> Vec<u32> {
        self.members.iter().map(|host| if host.contains(&root) { root } else { host[0] }).collect()
    }

    /// Number of hosts.
    pub(crate) fn count(&self) -> u32 {
        self.members.len() as u32
    }

    /// The ranks of host `index`.
    pub(crate) fn host(&self, index: u32) -> &[u32] {
        &self.members[index as usize]
    }

    /// The host of a rank.
    pub(crate) fn index_of(&self, rank: u32) -> u32 {
        self.host_of(rank) as u32
    }

    /// Ranks of the host that has fewest.
    pub(crate) fn least(&self) -> u32 {
        self.members.iter().map(Vec::len).min().unwrap_or(0) as u32
    }

    /// The ranks at `place` on every host.
    pub(crate) fn rail_at(&self, place: u32) -> Vec<u32> {
        self.members.iter().map(|host| host[place as usize]).collect()
    }

    fn host_of(&self, rank: u32) -> usize {
        self.members.iter().position(|host| host.binary_search(&rank).is_ok()).expect("every rank has a host")
    }
}
