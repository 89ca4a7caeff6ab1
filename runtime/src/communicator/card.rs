//! Cards: facts that ranks exchange when they make a communicator, and decisions that follow from them alike on all
//! ranks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kolo_transport::Features;
use serde::{Deserialize, Serialize};

use super::agreement::Agreed;
use super::model::Facts;
use crate::affinity::{self, Assigned, ProcessorSet, Sharers};
use crate::config::{Config, TransportKind};
use crate::wait::Policy;

/// A rank's facts for the others when a communicator is made.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Card {
    /// Address of each transport, or the reason why there is none.
    pub(super) transports: Vec<(String, Result<Vec<u8>, String>)>,
    /// Ranks with equal keys share a kernel and a network namespace, unless a setting says otherwise.
    pub(super) host: (u64, Option<String>),
    /// Number of processors that this rank may use.
    pub(super) processors: u32,
    /// The processors on which it may run: more, if a control group has a quota.
    pub(super) processor_set: ProcessorSet,
    /// Ranks with the same number may run on the same processors.
    pub(super) affinity: u64,
    /// Channels per peer that all transports of this rank offer.
    pub(super) channels: u16,
    /// Whether this rank has a GPU driver, so that its buffers may be GPU memory.
    pub(super) has_gpus: bool,
    pub(super) agreed: Agreed,
}

/// Bound on the number of processors; no host has more.
const PROCESSORS_MAX: u32 = 1 << 16;

impl Card {
    /// Checks another rank's card. The error says what is wrong with it. Divisors and indices of the code behind are
    /// bounded here.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.channels == 0 {
            return Err("it offers no channels".to_owned());
        }
        if !(1..=PROCESSORS_MAX).contains(&self.processors) {
            return Err(format!("it has {} processors", self.processors));
        }
        if self.processor_set.len() > PROCESSORS_MAX as usize / 64 {
            return Err(format!("its set of processors has {} words", self.processor_set.len()));
        }
        if self.transports.len() > TransportKind::ALL.len() {
            return Err(format!("it has {} transports", self.transports.len()));
        }
        Ok(())
    }

    /// Returns the transports that the rank has.
    pub(super) fn offers(&self) -> impl Iterator<Item = TransportKind> {
        self.transports.iter().filter(|(_, at)| at.is_ok()).filter_map(|(name, _)| TransportKind::named(name))
    }
}

/// Returns the host index of each rank. Hosts are numbered in order of first appearance.
pub(super) fn host_indices(cards: &[Card]) -> Arc<[u32]> {
    let mut keys: Vec<&(u64, Option<String>)> = Vec::new();
    cards
        .iter()
        .map(|card| {
            keys.iter().position(|key| **key == card.host).unwrap_or_else(|| {
                keys.push(&card.host);
                keys.len() - 1
            }) as u32
        })
        .collect()
}

/// Returns the waiting policy. All ranks follow the host with most ranks per processor, since the algorithms must
/// agree.
pub(super) fn policy(hosts: &[u32], cards: &[Card], config: &Config) -> Policy {
    let (ranks, processors) = fullest(hosts, cards);
    let mut policy = Policy::for_host(ranks, processors, config.spin);
    if hosts.iter().any(|host| *host != hosts[0]) && !outnumber_processors(hosts, cards) {
        policy = policy.for_network();
    }
    Policy { short_slices: config.short_slices, ..policy }
}

/// Returns the number of hosts whose ranks run on each set of processors.
fn hosts_by_processors(hosts: &[u32], cards: &[Card]) -> BTreeMap<u64, usize> {
    let mut pools: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for (host, card) in hosts.iter().zip(cards) {
        pools.entry(card.affinity).or_default().insert(*host);
    }
    pools.into_iter().map(|(processors, hosts)| (processors, hosts.len())).collect()
}

/// Returns whether ranks of more hosts than processors share the processors.
fn outnumber_processors(hosts: &[u32], cards: &[Card]) -> bool {
    let counts = hosts_by_processors(hosts, cards);
    cards.iter().any(|card| counts[&card.affinity] > card.processors as usize)
}

/// Returns the processor that this rank comes back to, given the ranks that may run on the same processors.
pub(super) fn assign_processor(rank: usize, hosts: &[u32], cards: &[Card]) -> Option<Assigned> {
    let (place, sharers) = place_among(rank, hosts, cards);
    affinity::assign(place, sharers)
}

/// Returns the place of a rank among those that may run on the same processors, and the numbers of these.
///
/// Ranks of several hosts (containers of one machine) take turns host by host, since ranks with the same number within
/// their hosts work at the same time: the first ones talk to the network. In each round the hosts begin one place
/// later, so that a host's own ranks are spread too. Without this, both first ranks of 2 hosts x 4 ranks on 2
/// processors were on one processor, and all-reduces of 8 bytes took 1.6 times as long.
fn place_among(rank: usize, hosts: &[u32], cards: &[Card]) -> (usize, Sharers) {
    let same: Vec<usize> =
        (0..cards.len()).filter(|other| cards[*other].affinity == cards[rank].affinity).collect();
    let mut members: BTreeMap<u32, usize> = BTreeMap::new();
    let within: Vec<(usize, u32)> = same
        .iter()
        .map(|other| {
            let count = members.entry(hosts[*other]).or_default();
            *count += 1;
            (*count - 1, hosts[*other])
        })
        .collect();
    let indices: Vec<u32> = members.into_keys().collect();
    let turn = |(number, host): (usize, u32)| {
        let index = indices.iter().position(|other| *other == host).unwrap_or(0);
        (number, (index + number) % indices.len())
    };
    let own = same.iter().position(|other| *other == rank).map(|at| turn(within[at]));
    let place = within.iter().filter(|other| Some(turn(**other)) < own).count();
    (place, Sharers { ranks: same.len(), hosts: indices.len() })
}

/// Returns whether there are more ranks than processors where this rank runs.
pub(super) fn shares_processors(rank: usize, cards: &[Card]) -> bool {
    let same = cards.iter().filter(|card| card.affinity == cards[rank].affinity).count();
    same > cards[rank].processors as usize
}

/// Returns the ranks and processors of the host with most ranks per processor. Since hosts may be containers of one
/// machine, sets of processors that serve several hosts count like a host.
fn fullest(hosts: &[u32], cards: &[Card]) -> (usize, usize) {
    let mut pools: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
    for card in cards {
        let (ranks, processors) = pools.entry(card.affinity).or_insert((0, 1));
        *ranks += 1;
        *processors = (*processors).max(card.processors as usize);
    }
    let host_count = hosts.iter().max().map_or(0, |max| *max as usize + 1);
    let by_host = (0..host_count).map(|host| {
        let on_host = hosts.iter().zip(cards).filter(|(h, _)| **h as usize == host);
        let on_host: Vec<&Card> = on_host.map(|(_, card)| card).collect();
        (on_host.len(), processors_of(&on_host))
    });
    // Of equals the last one counts.
    pools.into_values().chain(by_host).max_by(|a, b| (a.0 * b.1).cmp(&(b.0 * a.1))).unwrap_or((1, 1))
}

/// Returns the number of processors that ranks of one host may use together. Each may be bound to some of them.
fn processors_of(cards: &[&Card]) -> usize {
    let mut all = ProcessorSet::new();
    for card in cards {
        all.resize(all.len().max(card.processor_set.len()), 0);
        all.iter_mut().zip(&card.processor_set).for_each(|(all, own)| *all |= own);
    }
    let size = |set: &ProcessorSet| set.iter().map(|word| word.count_ones() as usize).sum::<usize>();
    let widest = cards.iter().map(|card| card.processors as usize).max().unwrap_or(1);
    // A quota holds for all ranks together.
    let has_quota = cards.iter().any(|card| (card.processors as usize) < size(&card.processor_set));
    if has_quota { widest } else { widest.max(size(&all)) }
}

/// Facts that decide the constants of the selection.
pub(super) fn facts(hosts: &[u32], cards: &[Card]) -> Facts {
    let (ranks, processors) = fullest(hosts, cards);
    let all_have = |is: fn(&Features) -> bool| {
        let offered_by_all =
            |kind: &TransportKind| cards.iter().all(|card| card.offers().any(|own| own == *kind));
        TransportKind::ALL.iter().filter(|kind| is(kind.features())).any(offered_by_all)
    };
    Facts {
        shm: all_have(|features| features.shares_memory),
        rdma: all_have(|features| features.uses_adapters),
        oversubscription: (ranks as f64 / processors as f64).max(1.0),
        software_network: share_processors(hosts, cards),
    }
}

/// Returns whether ranks of several hosts run on the same processors, because the hosts are containers of one machine.
fn share_processors(hosts: &[u32], cards: &[Card]) -> bool {
    hosts_by_processors(hosts, cards).values().any(|count| *count > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card() -> Card {
        Card {
            transports: vec![("tcp".to_owned(), Ok(vec![1, 2]))],
            host: (7, None),
            processors: 2,
            processor_set: vec![0b11],
            affinity: 0,
            channels: 16,
            has_gpus: false,
            agreed: Agreed::of(&Config::from_lookup(&|_| None).unwrap()),
        }
    }

    #[test]
    fn hosts_may_share_the_processors_of_one_machine() {
        let cards = |processors: &[(u64, u32)]| -> Vec<Card> {
            let of = |(affinity, processors): &(u64, u32)| Card {
                affinity: *affinity,
                processors: *processors,
                processor_set: vec![0, ((1_u64 << processors) - 1) << (8 * (affinity % 8))],
                ..card()
            };
            processors.iter().map(of).collect()
        };
        // Four containers with one rank each, on two processors.
        assert_eq!(fullest(&[0, 1, 2, 3], &cards(&[(5, 2); 4])), (4, 2));
        assert!(share_processors(&[0, 0, 1, 1], &cards(&[(5, 2); 4])));
        assert!(!outnumber_processors(&[0, 0, 1, 1], &cards(&[(5, 2); 4])));
        assert!(outnumber_processors(&[0, 1, 2], &cards(&[(5, 2); 3])));
        let yields_until = |hosts: &[u32]| {
            let config = Config::from_lookup(&|_| None).unwrap();
            policy(hosts, &cards(&vec![(5, 2); hosts.len()]), &config).yield_until
        };
        assert_eq!(yields_until(&[0, 0, 1, 1]), Policy::OWN_PROCESSOR.yield_until);
        assert_eq!(yields_until(&[0; 4]), Policy::OVERSUBSCRIBED.yield_until);
        assert_eq!(yields_until(&[0, 1, 2, 3]), Policy::OVERSUBSCRIBED.yield_until);
        assert!(!outnumber_processors(&[0, 1, 2], &cards(&[(5, 2), (6, 2), (5, 2)])));
        let sharers = |hosts: &[u32], pools: &[(u64, u32)]| place_among(0, hosts, &cards(pools)).1;
        assert_eq!(sharers(&[0, 0, 1, 1], &[(5, 2); 4]), Sharers { ranks: 4, hosts: 2 });
        assert_eq!(sharers(&[0, 0, 1, 1], &[(5, 2), (5, 2), (6, 2), (6, 2)]), Sharers { ranks: 2, hosts: 1 });
        assert!(!share_processors(&[0, 0, 1, 1], &cards(&[(5, 2), (5, 2), (6, 2), (6, 2)])));
        // Two hosts, each with processors of its own.
        assert_eq!(fullest(&[0, 1], &cards(&[(5, 2), (6, 2)])), (1, 2));
        // One host, with ranks that are bound to different processors.
        assert_eq!(fullest(&[0, 0], &cards(&[(5, 1), (6, 1)])), (2, 2));
        // The same with several processors each, and one rank that is not bound.
        assert_eq!(fullest(&[0; 4], &cards(&[(4, 2), (5, 2), (6, 2), (7, 2)])), (4, 8));
        let mut unbound = cards(&[(4, 8), (4, 1), (4, 2)]);
        assert_eq!(fullest(&[0; 3], &unbound), (3, 8));
        // A control group grants less time than there are processors.
        unbound.iter_mut().for_each(|card| card.processors = 1);
        assert_eq!(fullest(&[0; 3], &unbound), (3, 1));
        let shared = cards(&[(5, 2); 4]);
        assert_eq!(
            assign_processor(0, &[0; 4], &shared).is_some(),
            affinity::assign(0, Sharers { ranks: 4, hosts: 1 }).is_some()
        );
    }

    #[test]
    fn ranks_of_several_hosts_on_the_same_processors_take_turns_host_by_host() {
        let places = |hosts: &[u32], pools: &[u64]| -> Vec<(usize, usize)> {
            let cards: Vec<Card> =
                pools.iter().map(|affinity| Card { affinity: *affinity, ..card() }).collect();
            let places = (0..hosts.len()).map(|rank| place_among(rank, hosts, &cards));
            places.map(|(place, sharers)| (place, sharers.ranks)).collect()
        };
        let alone: Vec<_> = (0..4).map(|place| (place, 4)).collect();
        assert_eq!(places(&[0; 4], &[5; 4]), alone);
        assert_eq!(places(&[0, 1, 2, 3], &[5; 4]), alone);
        // The first ranks of both hosts are on different processors, and so are the first and second rank of one host.
        let two_hosts = places(&[0, 0, 0, 0, 1, 1, 1, 1], &[5; 8]);
        assert_eq!(two_hosts, [0, 3, 4, 7, 1, 2, 5, 6].map(|place| (place, 8)));
        // Ranks dealt out round robin, and hosts of different size.
        assert_eq!(places(&[0, 1, 0, 1, 0], &[5; 5]), [0, 1, 3, 2, 4].map(|place| (place, 5)));
        // Hosts on different processors.
        assert_eq!(places(&[0, 0, 1, 1], &[5, 5, 6, 6]), [(0, 2), (1, 2), (0, 2), (1, 2)]);
    }

    #[test]
    fn odd_cards_are_refused() {
        let card = |change: &dyn Fn(&mut Card)| {
            let mut card = card();
            change(&mut card);
            card.check()
        };
        assert_eq!(card(&|_| ()), Ok(()));
        let many = || vec![("tcp".to_owned(), Ok(vec![])); 99];
        for (problem, change) in [
            ("no channels", &(|card: &mut Card| card.channels = 0) as &dyn Fn(&mut Card)),
            ("0 processors", &|card| card.processors = 0),
            ("4294967295 processors", &|card| card.processors = u32::MAX),
            ("99 transports", &|card| card.transports = many()),
            ("9999 words", &|card| card.processor_set = vec![0; 9999]),
        ] {
            let told = card(change).unwrap_err();
            assert!(told.contains(problem), "{told}");
        }
    }
}
