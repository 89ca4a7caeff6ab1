//! The form in which a host's leader tells all ranks which hosts it reaches.
//!
//! The attempts of all hosts of a large cluster at all addresses do not fit into an exchange. A leader tells the state of
//! each host in two bits. It adds details as far as there is room, first those of connections that are not as they should
//! be. Findings of all ranks therefore name the same pairs, however large the cluster is.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use kolo::internal::control::{MAX_BLOB_BYTES, MAX_GATHERED_BYTES};
use kolo_transport::foreign::printable;
use serde::{Deserialize, Serialize};

use super::reach::{Carries, Reach, Try};
use super::report::Host;

/// Most bytes of the reason of a stall for which there are no details.
const STALL_BYTES: usize = 256;

/// Problem of an address for which there are no details.
const NO_DETAILS: &str = "no connection; so many fail that this one's reason was left out";

/// The hosts that one host reaches. Ranks that are no leaders send an empty one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    /// The states of all hosts, two in a hexadecimal digit.
    states: String,
    /// Of the first connection that carries small segments only: whether full ones are lost on the way out, and their length.
    small_only: Option<(bool, u32)>,
    /// The reason of the first stall.
    stall: Option<String>,
    details: Vec<Reach>,
}

/// Returns the two bits for a connection.
const fn state(carries: &Carries) -> u32 {
    match carries {
        Carries::All => 0,
        Carries::Nothing => 1,
        Carries::SmallOnly { .. } => 2,
        Carries::Stalls(_) => 3,
    }
}

fn length(value: &impl Serialize) -> usize {
    serde_json::to_vec(value).map_or(usize::MAX, |json| json.len())
}

impl Summary {
    /// Sums up the attempts of one host of so many.
    pub(crate) fn new(reaches: &[Reach], hosts: usize) -> Self {
        if reaches.is_empty() {
            return Self::default();
        }
        let of: BTreeMap<usize, &Reach> = reaches.iter().map(|reach| (reach.to as usize, reach)).collect();
        let bits = |host: usize| of.get(&host).map_or(0, |reach| state(&reach.carries));
        let digit = |low: usize| char::from_digit(bits(low) | bits(low + 1) << 2, 16);
        let mut summary =
            Self { states: (0..hosts).step_by(2).filter_map(digit).collect(), ..Self::default() };
        for reach in reaches {
            match &reach.carries {
                Carries::SmallOnly { outward, segment_bytes } => {
                    summary.small_only.get_or_insert((*outward, *segment_bytes));
                }
                Carries::Stalls(why) => {
                    summary.stall.get_or_insert_with(|| printable(why, STALL_BYTES));
                }
                Carries::All | Carries::Nothing => {}
            }
        }
        // A quarter is for the ranks that are no leaders.
        let share = MAX_BLOB_BYTES.min(MAX_GATHERED_BYTES / 4 * 3 / hosts.max(1));
        let mut room = share.saturating_sub(length(&summary));
        let mut sorted: Vec<&Reach> = reaches.iter().collect();
        sorted.sort_by_key(|reach| (reach.carries == Carries::All, reach.in_vain().next().is_none()));
        for reach in sorted {
            let Some(left) = room.checked_sub(length(reach).saturating_add(1)) else {
                break;
            };
            room = left;
            summary.details.push(reach.clone());
        }
        summary
    }

    /// Returns the attempts of a host, with one address each where there are no details.
    fn reaches(self, from: u32, hosts: &[Host]) -> Vec<Reach> {
        let details = self.details.iter().filter(|reach| reach.from == from);
        let known: BTreeMap<u32, &Reach> = details.map(|reach| (reach.to, reach)).collect();
        let others = (0..hosts.len() as u32).filter(|to| *to != from);
        let all = others
            .map(|to| known.get(&to).map_or_else(|| self.brief(from, to, hosts), |reach| (*reach).clone()));
        all.collect()
    }

    fn brief(&self, from: u32, to: u32, hosts: &[Host]) -> Reach {
        let digit = self.states.chars().nth(to as usize / 2).and_then(|digit| digit.to_digit(16));
        // A host of which its leader says nothing is not reached.
        let carries = match digit.map(|digit| digit >> (to % 2 * 2) & 3) {
            Some(0) => Carries::All,
            Some(2) => {
                let (outward, segment_bytes) = self.small_only.unwrap_or_default();
                Carries::SmallOnly { outward, segment_bytes }
            }
            Some(3) => Carries::Stalls(self.stall.clone().unwrap_or_default()),
            _ => Carries::Nothing,
        };
        let first = hosts.get(to as usize).and_then(|host| host.facts.networks.first().cloned());
        let (interface, address, _) =
            first.unwrap_or_else(|| (String::new(), IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0));
        let problem = (carries == Carries::Nothing).then(|| NO_DETAILS.to_owned());
        let tried = Try { address, interface, distance: 0, local: None, problem, black_hole: false };
        Reach { from, to, tries: vec![tried], carries }
    }
}

/// Returns the attempts of all hosts from what all ranks tell. This rank knows its `own` attempts, if it is a leader.
pub(crate) fn reaches(told: Vec<Summary>, hosts: &[Host], own: Vec<Reach>) -> Vec<Reach> {
    let mut told: Vec<Option<Summary>> = told.into_iter().map(Some).collect();
    let dialled = own.first().map(|reach| reach.from);
    let mut own = Some(own);
    let mut all = Vec::new();
    for (from, host) in (0..).zip(hosts) {
        let leader = host.ranks.first().and_then(|leader| told.get_mut(*leader as usize)?.take());
        match own.take_if(|_| dialled == Some(from)) {
            Some(own) => all.extend(own),
            None => all.extend(leader.unwrap_or_default().reaches(from, hosts)),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(count: u32) -> Vec<Host> {
        (0..count).map(|rank| Host { ranks: vec![rank], ..Host::default() }).collect()
    }

    /// Returns the attempts of a host at eight addresses of each other one, with all kinds of outcomes.
    fn attempts(from: u32, count: u32) -> Vec<Reach> {
        let kind = |to: u32| match (from + to) % 4 {
            0 => Carries::All,
            1 => Carries::Nothing,
            2 => Carries::SmallOnly { outward: true, segment_bytes: 9000 },
            _ => Carries::Stalls("no data for 2 s".to_owned()),
        };
        let others = (0..count).filter(|to| *to != from);
        let attempt = |to: u32| {
            let carries = kind(to);
            let try_one = |at: u8| Try {
                address: IpAddr::from([10, at, (to / 256) as u8, (to % 256) as u8]),
                interface: format!("eth{at}"),
                distance: at,
                local: Some(IpAddr::from([10, at, 0, 1])),
                problem: (at > 0 || carries == Carries::Nothing).then(|| "no answer within 2.5 s".to_owned()),
                black_hole: false,
            };
            Reach { from, to, tries: (0..8).map(try_one).collect(), carries: carries.clone() }
        };
        others.map(attempt).collect()
    }

    #[test]
    fn what_the_leaders_of_a_large_cluster_tell_fits_into_an_exchange() {
        for count in [69, 512, 4096] {
            let blob = serde_json::to_vec(&Summary::new(&attempts(1, count), count as usize)).unwrap();
            assert!(blob.len() <= MAX_BLOB_BYTES, "{count} hosts: {} bytes", blob.len());
            assert!(blob.len() * count as usize <= MAX_GATHERED_BYTES, "{count} hosts: {} bytes", blob.len());
            let told: Summary = serde_json::from_slice(&blob).unwrap();
            for (sent, told) in attempts(1, count).iter().zip(told.reaches(1, &hosts(count))) {
                assert_eq!((sent.from, sent.to, &sent.carries), (told.from, told.to, &told.carries));
                assert_eq!((sent.way().is_some(), sent.works()), (told.way().is_some(), told.works()));
            }
        }
    }

    #[test]
    fn nothing_is_left_out_in_a_small_cluster() {
        let told = |from| Summary::new(&attempts(from, 5), 5);
        let all: Vec<Reach> = (0..5).flat_map(|from| attempts(from, 5)).collect();
        let mut known = reaches((0..5).map(told).collect(), &hosts(5), Vec::new());
        assert_eq!(known, all);
        // A leader believes no other rank about its own attempts.
        known = reaches(vec![Summary::default(); 5], &hosts(5), attempts(2, 5));
        for reach in known {
            let own = reach.from == 2;
            assert_eq!(
                reach.carries,
                if own { all_of(&all, &reach).carries.clone() } else { Carries::Nothing }
            );
        }
    }

    fn all_of<'a>(all: &'a [Reach], wanted: &Reach) -> &'a Reach {
        all.iter().find(|reach| (reach.from, reach.to) == (wanted.from, wanted.to)).unwrap()
    }
}
