//! Table of the measurements between hosts, and the model constants that follow from them.

use std::f64::consts::SQRT_2;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use kolo_collectives::model::{HostRate, LinkClass, Model};
use serde::{Deserialize, Serialize};

use crate::profile::{NetworkProfile, Rates, SLOW};

/// Measurement of the path between two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// Numbers of the two hosts.
    pub(crate) hosts: (u32, u32),
    /// Seconds for an empty message there and back, including the CPUs' time.
    pub(crate) round_trip_seconds: f64,
    /// Bytes per second in each direction, for long messages in both directions at once on one connection.
    pub(crate) bytes_per_second: f64,
    /// Whether more than one message had that rate. If not, the link may be faster.
    pub(crate) is_settled: bool,
}

impl Sample {
    /// Whether a host is one of the two.
    pub(crate) const fn touches(&self, host: u32) -> bool {
        self.hosts.0 == host || self.hosts.1 == host
    }

    /// Returns the other one of the two hosts.
    const fn beside(&self, host: u32) -> u32 {
        if self.hosts.0 == host { self.hosts.1 } else { self.hosts.0 }
    }

    /// Whether the values are plausible. Numbers from other ranks are checked before use.
    fn is_sound(&self, hosts: u32) -> bool {
        let is_sound = |value: f64, least: f64, most: f64| (least..=most).contains(&value);
        let (one, other) = self.hosts;
        one.max(other) < hosts
            && one != other
            && is_sound(self.round_trip_seconds, 1e-8, 100.0)
            && is_sound(self.bytes_per_second, 1.0, 1e13)
    }
}

/// Measurements of the network between the hosts of a job. They are the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    /// Number of the host of each rank of the job.
    host_of: Arc<[u32]>,
    hosts: u32,
    samples: Vec<Sample>,
    /// Duration of the measurements, on the slowest rank.
    pub(crate) took: Duration,
}

/// Steps per factor of 2, at most 4, to which measurements are rounded. The choice of an algorithm decides how a sum is
/// rounded, and two runs on one network should choose alike.
const ROUND_TRIP_STEPS: usize = 2;
const RATE_STEPS: usize = 4;

impl Table {
    /// Makes the table from all leaders' measurements, in an order that is the same on all ranks.
    ///
    /// # Errors
    /// A sample that is implausible, in words.
    pub(crate) fn new(host_of: Arc<[u32]>, samples: Vec<Sample>, took: Duration) -> Result<Self, String> {
        let hosts = host_of.iter().max().map_or(0, |most| most + 1);
        if let Some(odd) = samples.iter().find(|sample| !sample.is_sound(hosts)) {
            return Err(format!("{odd:?} is not a measurement between {hosts} hosts"));
        }
        Ok(Self { host_of, hosts, samples, took })
    }

    /// Returns the table for a job of some of the ranks, with its hosts numbered in the order of their first ranks. `None` if
    /// these ranks are on one host, or if the measurements between their hosts do not connect all of them.
    pub(crate) fn of(&self, ranks: &[u32]) -> Option<Self> {
        let mut numbers: Vec<u32> = Vec::new();
        let mut host_of = Vec::with_capacity(ranks.len());
        for rank in ranks {
            let host = *self.host_of.get(*rank as usize)?;
            let known = numbers.iter().position(|number| *number == host);
            host_of.push(known.unwrap_or(numbers.len()) as u32);
            if known.is_none() {
                numbers.push(host);
            }
        }
        let number = |host: u32| numbers.iter().position(|number| *number == host).map(|at| at as u32);
        let kept = self.samples.iter().filter_map(|sample| {
            Some(Sample { hosts: (number(sample.hosts.0)?, number(sample.hosts.1)?), ..*sample })
        });
        let table = Self {
            samples: kept.collect(),
            hosts: numbers.len() as u32,
            host_of: host_of.into(),
            took: self.took,
        };
        (table.hosts > 1 && table.connects_all_hosts()).then_some(table)
    }

    fn connects_all_hosts(&self) -> bool {
        let mut groups: Vec<u32> = (0..self.hosts).collect();
        for (one, other) in self.samples.iter().map(|sample| sample.hosts) {
            let (kept, gone) = (groups[one as usize], groups[other as usize]);
            if kept != gone {
                groups.iter_mut().filter(|group| **group == gone).for_each(|group| *group = kept);
            }
        }
        groups.iter().all(|group| *group == groups[0])
    }

    /// Returns the rate of the fastest link of each host.
    fn best_of_each_host(&self) -> Vec<f64> {
        let mut best = vec![0.0; self.hosts as usize];
        for sample in &self.samples {
            for host in [sample.hosts.0, sample.hosts.1] {
                best[host as usize] = sample.bytes_per_second.max(best[host as usize]);
            }
        }
        best
    }

    /// Returns the entries for the hosts of some ranks of the job. `None` if they are on one host.
    pub(crate) fn between(&self, ranks: &[u32]) -> Option<Between> {
        let mut is_used = vec![false; self.hosts as usize];
        for rank in ranks {
            is_used[*self.host_of.get(*rank as usize)? as usize] = true;
        }
        let hosts = is_used.iter().filter(|used| **used).count();
        if hosts < 2 {
            return None;
        }
        let is_inside =
            |sample: &&Sample| is_used[sample.hosts.0 as usize] && is_used[sample.hosts.1 as usize];
        let mut round_trips: Vec<f64> =
            self.samples.iter().filter(is_inside).map(|sample| sample.round_trip_seconds).collect();
        if round_trips.is_empty() {
            // The hosts of a part of the job need not have been measured with each other.
            round_trips = self.samples.iter().map(|sample| sample.round_trip_seconds).collect();
        }
        round_trips.sort_by(f64::total_cmp);
        // Of two, the shorter one counts: packets can be late, but not early.
        let round_trip = *round_trips.get(round_trips.len().checked_sub(1)? / 2)?;
        // A link is as fast as the slower of its ends, so a host is as fast as the fastest of its links. If only a
        // lower bound is known for a host, it is taken to be as fast as the others: a message that was delayed must not
        // count against it.
        let inside = self.samples.iter().filter(is_inside);
        let fastest_of_all = inside.map(|sample| sample.bytes_per_second).fold(0.0, f64::max);
        let best = self.best_of_each_host();
        let rate = |host: u32| {
            let own = || self.samples.iter().filter(|sample| sample.touches(host));
            own().next()?;
            // A host outside may be what limits its link, unless another link shows that it is faster.
            let tells = |sample: &Sample| {
                is_inside(&sample) || best[sample.beside(host) as usize] > best[host as usize]
            };
            let is_known = own().any(|sample| sample.is_settled && tells(sample));
            Some((host, best[host as usize].max(if is_known { 0.0 } else { fastest_of_all })))
        };
        let rates = (0..self.hosts).filter(|host| is_used[*host as usize]).filter_map(rate);
        let rates: Vec<(u32, f64)> = rates.collect();
        let slowest = rates.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1))?;
        let most = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
        // The order is that in which these ranks meet their hosts, since their communicator numbers hosts in this way.
        let (mut order, mut is_new) = (Vec::new(), is_used.clone());
        for host in ranks.iter().map(|rank| self.host_of[*rank as usize]) {
            if std::mem::take(&mut is_new[host as usize]) {
                order.push(host);
            }
        }
        let of_host = |host: u32| {
            let rate = stepped(rate(host)?.1, RATE_STEPS);
            Some(HostRate { out_bytes_per_second: rate, in_bytes_per_second: rate })
        };
        // Every host has a rate: the probe measures every host, and `Table::of` returns only tables that connect all hosts.
        let of_hosts: Option<Vec<HostRate>> = order.into_iter().map(of_host).collect();
        Some(Between {
            hosts: hosts as u32,
            round_trip_seconds: stepped(round_trip, ROUND_TRIP_STEPS),
            slowest_host: slowest.0,
            bytes_per_second: stepped(slowest.1, RATE_STEPS),
            fastest_bytes_per_second: stepped(most, RATE_STEPS),
            rates: Rates { hosts: of_hosts.unwrap_or_default(), pairs: Vec::new() },
        })
    }
}

/// Rounds a positive normal number to the nearest of `steps` steps per factor of 2. All ranks get the same bits, which
/// they would not from `log2` and `exp2`: libraries and processors differ in their last bit.
fn stepped(value: f64, steps: usize) -> f64 {
    // The powers of 2 with the exponents 0, 1/8, 2/8 to 1.
    const EIGHTHS: [f64; 9] = [
        1.0,
        1.090_507_732_665_257_7,
        1.189_207_115_002_721,
        1.296_839_554_651_009_6,
        SQRT_2,
        1.542_210_825_407_940_8,
        1.681_792_830_507_429,
        1.834_008_086_409_342_4,
        2.0,
    ];
    let exponent = value.to_bits() & f64::INFINITY.to_bits();
    let power = f64::from_bits(exponent);
    let eighths = 8 / steps;
    let passed = (0..steps).filter(|step| value / power >= EIGHTHS[step * eighths + eighths / 2]).count();
    EIGHTHS[passed * eighths] * power
}

/// Facts about the network between some hosts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Between {
    hosts: u32,
    round_trip_seconds: f64,
    slowest_host: u32,
    /// Rate of the slowest host, which all others wait for.
    bytes_per_second: f64,
    fastest_bytes_per_second: f64,
    /// Rate of each host, in the order in which the communicator numbers them.
    rates: Rates,
}

impl Between {
    /// Makes the facts from a profile that names its hosts, for hosts of these names in the order of their numbers.
    ///
    /// # Errors
    /// The problem in words, if the profile is of other hosts.
    pub(crate) fn known(network: &NetworkProfile, names: &[&str]) -> Result<Self, String> {
        let rates = network.rates(names)?;
        let least = |host: &HostRate| host.out_bytes_per_second.min(host.in_bytes_per_second);
        let slowest = (0..).zip(&rates.hosts).min_by(|a, b| least(a.1).total_cmp(&least(b.1)));
        let (slowest_host, slowest) = slowest.map_or((0, RATE_UNKNOWN), |(host, rate)| (host, least(rate)));
        Ok(Self {
            hosts: names.len() as u32,
            round_trip_seconds: round_trip(network),
            slowest_host,
            bytes_per_second: slowest,
            fastest_bytes_per_second: rates.hosts.iter().map(least).fold(slowest, f64::max),
            rates,
        })
    }

    /// Returns bytes per second from one host to the ranks on other hosts. `hosts` has the host of each rank.
    pub(crate) fn rates(&self, here: u32, hosts: &[u32]) -> impl Iterator<Item = (u32, f64)> {
        let ranks = (0..).zip(hosts).filter(move |(_, there)| **there != here);
        ranks.map(move |(rank, there)| (rank, self.rate(here, *there)))
    }

    /// Returns bytes per second from one host to another.
    fn rate(&self, from: u32, to: u32) -> f64 {
        let pair = self.rates.pairs.iter().find(|pair| (pair.from, pair.to) == (from, to));
        let (out, inward) = (self.rates.hosts.get(from as usize), self.rates.hosts.get(to as usize));
        match (pair, out, inward) {
            (Some(pair), ..) => pair.bytes_per_second,
            (None, Some(out), Some(inward)) => out.out_bytes_per_second.min(inward.in_bytes_per_second),
            _ => self.bytes_per_second,
        }
    }

    /// Returns the time of a message to another host and back.
    pub(crate) const fn round_trip_seconds(&self) -> f64 {
        self.round_trip_seconds
    }

    /// Returns the hosts' relative speeds: see [`Rates::speeds`].
    pub(crate) fn speeds(&self) -> Option<Vec<u32>> {
        self.rates.speeds()
    }

    /// Replaces constants of the model by measurements.
    pub(crate) fn apply(&self, model: Model) -> Model {
        let processors = 2.0 * model.inter.overhead_seconds + model.nic_message_seconds;
        let latency_seconds = (self.round_trip_seconds / 2.0 - processors).max(0.2e-6);
        Model {
            inter: LinkClass { latency_seconds, bytes_per_second: self.bytes_per_second, ..model.inter },
            nic_bytes_per_second: self.bytes_per_second,
            ..model
        }
    }

    /// Describes the network, with the source of the figures.
    pub(crate) fn describe(&self, source: &dyn fmt::Display) -> String {
        let (round_trip, rate) = (self.round_trip_seconds * 1e3, self.bytes_per_second / 1e6);
        let words = format!("{} hosts, round trip {round_trip:.3} ms, {rate:.1} MB/s ({source})", self.hosts);
        if self.bytes_per_second >= SLOW * self.fastest_bytes_per_second {
            return words;
        }
        let (slowest, fastest) = (self.slowest_host, self.fastest_bytes_per_second / 1e6);
        format!("{words}; host {slowest} is the slowest, the fastest has {fastest:.1} MB/s")
    }
}

/// Rate that is assumed where none is known.
const RATE_UNKNOWN: f64 = Model::TCP.nic_bytes_per_second;

/// Returns the round trip of a profile, from which [`Between::apply`] subtracts the same terms again.
fn round_trip(network: &NetworkProfile) -> f64 {
    2.0 * (network.latency_seconds + 2.0 * network.overhead_seconds + Model::TCP.nic_message_seconds)
}

#[cfg(test)]
mod tests {
    use super::super::probe::partners;
    use super::*;

    fn sample(one: u32, other: u32, round_trip_seconds: f64, bytes_per_second: f64) -> Sample {
        Sample { hosts: (one, other), round_trip_seconds, bytes_per_second, is_settled: true }
    }

    fn table(samples: Vec<Sample>) -> Result<Table, String> {
        Table::new([0, 0, 1, 1, 2].into(), samples, Duration::from_millis(3))
    }

    #[test]
    fn a_slow_host_decides_and_is_named() {
        let samples = vec![sample(0, 1, 64e-6, 128e6), sample(0, 2, 64e-6, 16e6)];
        let table = table(samples).unwrap();
        let all = table.between(&[0, 1, 2, 3, 4]).unwrap();
        let model = all.apply(Model::TCP);
        assert!((model.inter.bytes_per_second / 16e6 - 1.0).abs() < 0.1, "{model:?}");
        assert!((model.inter.latency_seconds - 25e-6).abs() < 4e-6, "{model:?}");
        let words = all.describe(&"a test");
        assert!(
            words.starts_with("3 hosts, round trip 0.06") && words.contains("host 2 is the slowest"),
            "{words}"
        );
        // Without the slow host, the others are faster.
        let some = table.between(&[0, 2, 3]).unwrap();
        assert!((some.apply(Model::TCP).nic_bytes_per_second / 128e6 - 1.0).abs() < 0.1);
        assert!(!some.describe(&"a test").contains("slowest"), "{some:?}");
        assert_eq!(all.speeds(), Some(vec![128, 128, 16]));
        for (from, to, rate) in [(0, 1, 128e6), (1, 2, 16e6), (2, 0, 16e6)] {
            assert!((all.rate(from, to) / rate - 1.0).abs() < 0.1, "from {from} to {to}");
        }
        // The order is that of the communicator's ranks.
        assert_eq!(table.between(&[4, 0, 3]).unwrap().speeds(), Some(vec![16, 128, 128]));
        assert_eq!(some.speeds(), None);
    }

    #[test]
    fn of_two_round_trips_the_shorter_one_counts() {
        for [first, second] in [[64e-6, 0.25], [0.25, 64e-6]] {
            let table = table(vec![sample(0, 1, first, 128e6), sample(0, 2, second, 128e6)]).unwrap();
            let found = table.between(&[0, 1, 2, 3, 4]).unwrap().round_trip_seconds();
            assert!((found / 64e-6 - 1.0).abs() < 0.2, "{found}");
        }
    }

    #[test]
    fn a_host_is_not_blamed_for_one_message_that_was_held_up() {
        let held_up = Sample { is_settled: false, ..sample(0, 2, 64e-6, 16e6) };
        let samples = vec![sample(0, 1, 64e-6, 128e6), held_up];
        let all = table(samples).unwrap().between(&[0, 1, 2, 3, 4]).unwrap();
        assert_eq!(all.speeds(), None, "{all:?}");
        assert!((all.apply(Model::TCP).nic_bytes_per_second / 128e6 - 1.0).abs() < 0.1);
        // If nothing better is known, the best rate counts.
        let table = table(vec![held_up]).unwrap();
        assert!(
            (table.between(&[0, 4]).unwrap().apply(Model::TCP).nic_bytes_per_second / 16e6 - 1.0).abs() < 0.1
        );
    }

    /// Returns the table of some hosts with a rank each, from the probe's pairs, each as fast as the slower of its ends.
    fn probed(rates: &[f64]) -> Table {
        let hosts = rates.len() as u32;
        let pairs = (0..hosts).flat_map(|one| partners(one, hosts).map(move |other| (one, other)));
        let rate = |one: u32, other: u32| rates[one as usize].min(rates[other as usize]);
        let samples = pairs.filter(|(one, other)| one < other);
        let samples = samples.map(|(one, other)| sample(one, other, 64e-6, rate(one, other))).collect();
        Table::new((0..hosts).collect(), samples, Duration::from_millis(3)).unwrap()
    }

    #[test]
    fn no_host_inherits_the_slowness_of_another() {
        for hosts in [3_u32, 5, 6, 7, 8, 9, 17] {
            for slow in 0..hosts {
                let mut rates = vec![128e6; hosts as usize];
                rates[slow as usize] = 16e6;
                let table = probed(&rates);
                let all: Vec<u32> = (0..hosts).collect();
                let whole = table.between(&all).unwrap();
                let wanted = all.iter().map(|host| if *host == slow { 16 } else { 128 }).collect();
                assert_eq!(whole.speeds(), Some(wanted), "host {slow} of {hosts}");
                assert!(whole.describe(&"a test").contains(&format!("host {slow} is the slowest")));
                let others: Vec<u32> = all.into_iter().filter(|host| *host != slow).collect();
                let without = table.between(&others).unwrap();
                assert_eq!(without.speeds(), None, "without host {slow} of {hosts}");
                let rate = without.apply(Model::TCP).nic_bytes_per_second;
                assert!((rate / 128e6 - 1.0).abs() < 0.1, "without host {slow} of {hosts}: {rate}");
            }
        }
    }

    #[test]
    fn a_host_that_is_slow_outside_a_group_is_slow_in_it() {
        let mut rates = [128e6; 8];
        rates[7] = 16e6;
        // Of these hosts, the last one has been measured with none of the others.
        assert_eq!(probed(&rates).between(&[1, 0, 7]).unwrap().speeds(), Some(vec![128, 128, 16]));
        // A group whose hosts have been measured only with a slow one takes what the others of the job have.
        let mut rates = [128e6; 8];
        rates[0] = 16e6;
        assert_eq!(probed(&rates).between(&[1, 2, 4]).unwrap().speeds(), None);
    }

    #[test]
    fn a_profile_gives_the_numbers_of_its_hosts() {
        let host = |name: &str, rate: f64| crate::profile::HostProfile {
            name: name.to_owned(),
            out_bytes_per_second: rate,
            in_bytes_per_second: rate,
        };
        let network = NetworkProfile {
            latency_seconds: 100e-6,
            overhead_seconds: 3e-6,
            bytes_per_second: 1e7,
            host_bytes_per_second: 1e7,
            hosts: vec![host("a", 1e8), host("c", 1e7)],
            pairs: Vec::new(),
        };
        let known = Between::known(&network, &["c", "a"]).unwrap();
        let model = known.apply(Model::TCP);
        assert!((model.inter.latency_seconds - 100e-6).abs() < 1e-9, "{model:?}");
        assert!((model.nic_bytes_per_second - 1e7).abs() < 1.0, "{model:?}");
        assert_eq!(known.speeds(), Some(vec![16, 160]));
        let problem = Between::known(&network, &["a", "d"]).unwrap_err();
        assert_eq!(problem, "it was measured on a, c, not on d");
    }

    #[test]
    fn survivors_keep_what_was_measured_between_their_hosts() {
        let whole = table(vec![sample(0, 1, 64e-6, 128e6), sample(0, 2, 32e-6, 16e6)]).unwrap();
        let left = whole.of(&[4, 1]).unwrap();
        assert_eq!(*left.host_of, [0, 1]);
        assert_eq!(left.samples, [sample(1, 0, 32e-6, 16e6)], "hosts 2 and 0 are hosts 0 and 1 now");
        assert!(left.between(&[0, 1]).is_some() && whole.of(&[9]).is_none());
        // Hosts 1 and 2 have not been measured with each other.
        assert_eq!(whole.of(&[2, 3, 4]), None);
        assert!(whole.of(&[0, 2, 3, 4]).is_some() && whole.of(&[0, 1]).is_none());
    }

    #[test]
    fn survivors_whose_hosts_are_not_connected_by_measurements_know_nothing() {
        // The pairs of the probe: their numbers differ in one bit.
        let pairs = (0..8).flat_map(|host| [1, 2, 4].map(|bit| (host, host ^ bit))).filter(|(a, b)| a < b);
        let samples = pairs.map(|(one, other)| sample(one, other, 64e-6, 128e6)).collect();
        let whole = Table::new((0..8).collect(), samples, Duration::from_millis(3)).unwrap();
        for (survivors, is_known) in [
            (&[0, 1, 6][..], false),
            (&[0, 1, 6, 7][..], false),
            (&[0, 1, 7, 6, 2][..], true),
            (&[6, 7][..], true),
            (&[0, 7][..], false),
        ] {
            let left = whole.of(survivors);
            assert_eq!(left.is_some(), is_known, "{survivors:?}");
            for between in left.iter().filter_map(|table| table.between(&[0, 1])) {
                assert_eq!(between.rates.hosts.len(), 2, "{survivors:?}");
            }
        }
    }

    #[test]
    fn steps_are_those_of_the_logarithm() {
        for steps in [ROUND_TRIP_STEPS, RATE_STEPS] {
            for value in (0..2000).map(|index| 1e-8 * 1.03_f64.powi(index)) {
                let wanted = ((value.log2() * steps as f64).round() / steps as f64).exp2();
                let rounded = stepped(value, steps);
                assert!(
                    (rounded / wanted - 1.0).abs() < 1e-12,
                    "{value} in {steps}: {rounded}, not {wanted}"
                );
            }
            assert_eq!([0.25, 1.0, 1024.0].map(|power| stepped(power, steps)), [0.25, 1.0, 1024.0]);
        }
    }

    #[test]
    fn ranks_of_one_host_get_nothing() {
        let table = table(vec![sample(0, 1, 64e-6, 128e6)]).unwrap();
        assert_eq!(table.between(&[2, 3]), None);
        assert_eq!(table.between(&[0, 17]), None);
    }

    #[test]
    fn two_runs_on_one_network_take_the_same_numbers() {
        for share in [0.97, 1.0, 1.03] {
            let table = table(vec![sample(0, 1, 64e-6 * share, 128e6 * share)]).unwrap();
            let model = table.between(&[0, 2]).unwrap().apply(Model::TCP);
            let once = table_of_one().between(&[0, 2]).unwrap().apply(Model::TCP);
            assert_eq!(model, once, "{share}");
        }
    }

    fn table_of_one() -> Table {
        table(vec![sample(0, 1, 64e-6, 128e6)]).unwrap()
    }

    #[test]
    fn nonsense_is_refused() {
        for odd in [
            sample(0, 0, 1e-3, 1e6),
            sample(0, 9, 1e-3, 1e6),
            sample(0, 1, f64::NAN, 1e6),
            sample(0, 1, -1.0, 1e6),
            sample(0, 1, 1e-3, 0.0),
            sample(0, 1, 1e-3, f64::INFINITY),
        ] {
            assert!(table(vec![odd]).is_err(), "{odd:?}");
        }
    }
}
