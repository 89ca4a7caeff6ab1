//! Finds out whether the ranks of each host share memory, so that plans may use it.

use super::connect::Making;
use crate::control::Round;
use crate::engine::Engine;
use crate::error::Result;

/// Returns whether all ranks of the communicator on every host share memory. The answer is the same on all ranks.
///
/// Inside one host each rank sees this by itself: both ends decide by the same facts whether they share memory, and two
/// ranks that share it with a third share it with each other. Ranks of other hosts report it.
pub(super) fn is_everywhere(making: &Making, hosts: &[u32], engine: &Engine) -> Result<bool> {
    let is_here = is_shared(hosts, making.rank, engine.stage_members());
    if !has_several(hosts) {
        return Ok(is_here && hosts.len() > 1);
    }
    if !has_company(hosts) {
        return Ok(false);
    }
    let answers = making.tell(Round::SharedMemory, &is_here)?;
    Ok(answers.into_iter().all(|answer| answer))
}

/// Returns whether a rank shares memory with all other ranks of its host, if there are any, and with no rank elsewhere.
fn is_shared(hosts: &[u32], rank: u32, shared: &[u32]) -> bool {
    let host = hosts[rank as usize];
    let on_host = (0..hosts.len() as u32).filter(|other| hosts[*other as usize] == host);
    let is_alone = on_host.clone().count() == 1;
    is_alone && shared.is_empty() || on_host.eq(shared.iter().copied())
}

fn has_several(hosts: &[u32]) -> bool {
    hosts.iter().any(|host| *host != hosts[0])
}

/// Returns whether any host has several ranks.
fn has_company(hosts: &[u32]) -> bool {
    let mut sorted = hosts.to_vec();
    sorted.sort_unstable();
    sorted.windows(2).any(|pair| pair[0] == pair[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_shared_memory_must_be_the_same() {
        let hosts = [0, 1, 0, 2];
        assert!(is_shared(&hosts, 0, &[0, 2]));
        assert!(is_shared(&hosts, 1, &[]));
        assert!(!is_shared(&hosts, 0, &[]), "no memory is shared");
        assert!(!is_shared(&hosts, 2, &[0, 1, 2]), "with a rank that counts as elsewhere");
        assert!(!is_shared(&[0, 0, 0], 0, &[0, 1]), "not with all");
        assert!(has_company(&hosts) && !has_company(&[2, 0, 1]));
        assert!(has_several(&hosts) && !has_several(&[3, 3]));
    }
}
