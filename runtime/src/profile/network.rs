//! The part of a profile that describes the network between hosts.

use std::fmt::Write as _;

use kolo_collectives::model::{HostRate, PairRate};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Number, RATES};

/// Cost of the network between hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkProfile {
    /// Seconds from posting an empty message to its arrival, without the CPU time at either end.
    pub latency_seconds: f64,
    /// Seconds of CPU time per message, at each end.
    pub overhead_seconds: f64,
    /// Bytes per second of one rank's link, in each direction.
    pub bytes_per_second: f64,
    /// Bytes per second of a host's interfaces, in each direction, shared by its ranks. If hosts differ, this is the
    /// slowest one's rate.
    pub host_bytes_per_second: f64,
    /// The hosts that were measured. A job on other hosts does not use this part of the profile. An empty list means
    /// that it applies to any hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostProfile>,
    /// Pairs whose rate is far below that of both their hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pairs: Vec<PairProfile>,
}

/// Measured rates of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostProfile {
    /// Name of the host.
    pub name: String,
    /// Bytes per second that it sends.
    pub out_bytes_per_second: f64,
    /// Bytes per second that it receives.
    pub in_bytes_per_second: f64,
}

/// One direction between two hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairProfile {
    /// Name of the sending host.
    pub from: String,
    /// Name of the receiving host.
    pub to: String,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// Rates of the hosts of a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Rate of each host, by its number in the job.
    pub hosts: Vec<HostRate>,
    /// Pairs of hosts that are slow.
    pub pairs: Vec<PairRate>,
}

/// A host whose rate is below this share of the fastest host's rate is reported as slow, and gets a smaller share of
/// the work.
pub(crate) const SLOW: f64 = 0.6;

impl Rates {
    /// Returns the relative speeds of the hosts in the order of their numbers, or `None` if they hardly differ. Speeds
    /// are small integers, so that small differences between measurements vanish.
    #[must_use]
    pub fn speeds(&self) -> Option<Vec<u32>> {
        const SLOWEST: f64 = 16.0;
        const MOST: f64 = 1024.0;
        let least = |host: &HostRate| host.out_bytes_per_second.min(host.in_bytes_per_second);
        let rates: Vec<f64> = self.hosts.iter().map(least).collect();
        let slowest = rates.iter().copied().reduce(f64::min)?;
        let fastest = rates.iter().copied().fold(slowest, f64::max);
        let speed = |rate: &f64| (SLOWEST * (rate / slowest).min(MOST)).round() as u32;
        (slowest < SLOW * fastest).then(|| rates.iter().map(speed).collect())
    }
}

impl NetworkProfile {
    /// Returns the entries for these hosts.
    ///
    /// # Errors
    /// The problem in words: a host that was not measured, or two hosts with one name.
    pub fn rates(&self, names: &[&str]) -> Result<Rates, String> {
        let mut rates = Rates::default();
        for (at, name) in names.iter().enumerate() {
            let Some(known) = self.hosts.iter().find(|host| host.name == *name) else {
                let known: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
                return Err(format!("it was measured on {}, not on {name}", known.join(", ")));
            };
            if names[..at].contains(name) {
                return Err(format!("two hosts of this job are called {name}"));
            }
            let HostProfile { out_bytes_per_second, in_bytes_per_second, .. } = *known;
            rates.hosts.push(HostRate { out_bytes_per_second, in_bytes_per_second });
        }
        let number = |name: &str| names.iter().position(|known| *known == name).map(|at| at as u32);
        rates.pairs = self
            .pairs
            .iter()
            .filter_map(|pair| {
                let (from, to) = (number(&pair.from)?, number(&pair.to)?);
                Some(PairRate { from, to, bytes_per_second: pair.bytes_per_second })
            })
            .collect();
        Ok(rates)
    }

    /// Returns the numbers that hold for all hosts together.
    pub(super) fn numbers(&self) -> [Number; 4] {
        let number = |name, value| Number { table: Some("network"), name, value };
        [
            number("latency_seconds", self.latency_seconds),
            number("overhead_seconds", self.overhead_seconds),
            number("bytes_per_second", self.bytes_per_second),
            number("host_bytes_per_second", self.host_bytes_per_second),
        ]
    }

    /// Returns a problem with hosts or pairs, if there is one.
    pub(super) fn complaint(&self) -> Option<String> {
        let names: Vec<&str> = self.hosts.iter().map(|host| host.name.as_str()).collect();
        let twice = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
        if let Some((_, name)) = twice {
            return Some(format!("network.hosts has {name} twice"));
        }
        let unknown = |pair: &&PairProfile| {
            pair.from == pair.to || [&pair.from, &pair.to].iter().any(|name| !names.contains(&name.as_str()))
        };
        if let Some(pair) = self.pairs.iter().find(unknown) {
            return Some(format!(
                "network.pairs has {} to {}, which are not two of the hosts",
                pair.from, pair.to
            ));
        }
        let odd = |(what, rate): &(String, f64)| !RATES.contains(rate) && !what.is_empty();
        self.rated().find(odd).map(|(what, rate)| {
            let (least, most) = (RATES.start(), RATES.end());
            format!("{what} is {rate}, but must be {least:e} to {most:e} bytes per second")
        })
    }

    /// Returns all rates, each with a description.
    fn rated(&self) -> impl Iterator<Item = (String, f64)> + '_ {
        let hosts =
            self.hosts.iter().flat_map(|HostProfile { name, out_bytes_per_second, in_bytes_per_second }| {
                [
                    (format!("network.hosts {name}: out_bytes_per_second"), *out_bytes_per_second),
                    (format!("network.hosts {name}: in_bytes_per_second"), *in_bytes_per_second),
                ]
            });
        let pairs = self.pairs.iter().map(|PairProfile { from, to, bytes_per_second }| {
            (format!("network.pairs {from} to {to}: bytes_per_second"), *bytes_per_second)
        });
        hosts.chain(pairs)
    }

    pub(super) fn write_hosts(&self, out: &mut String) {
        let quoted = |name: &str| serde_json::Value::String(name.replace(char::is_control, " "));
        for HostProfile { name, out_bytes_per_second, in_bytes_per_second } in &self.hosts {
            let _ = write!(
                out,
                "\n[[network.hosts]]\nname = {}\nout_bytes_per_second = {out_bytes_per_second:e}\nin_bytes_per_second = \
                 {in_bytes_per_second:e}\n",
                quoted(name)
            );
        }
        for PairProfile { from, to, bytes_per_second } in &self.pairs {
            let _ = write!(
                out,
                "\n[[network.pairs]]\nfrom = {}\nto = {}\nbytes_per_second = {bytes_per_second:e}\n",
                quoted(from),
                quoted(to)
            );
        }
    }

    pub(super) fn hash_hosts(&self, hash: &mut Sha256) {
        for (what, rate) in self.rated() {
            hash.update((what.len() as u64).to_le_bytes());
            hash.update(what);
            hash.update(rate.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> NetworkProfile {
        let host = |name: &str, rate: f64| HostProfile {
            name: name.to_owned(),
            out_bytes_per_second: rate,
            in_bytes_per_second: 2.0 * rate,
        };
        NetworkProfile {
            latency_seconds: 1e-5,
            overhead_seconds: 0.0,
            bytes_per_second: 1e8,
            host_bytes_per_second: 1e8,
            hosts: vec![host("near", 1e9), host("far", 1e8), host("other", 5e8)],
            pairs: vec![PairProfile { from: "near".into(), to: "other".into(), bytes_per_second: 2e7 }],
        }
    }

    #[test]
    fn hosts_are_found_by_name_in_the_order_of_the_job() {
        let rates = example().rates(&["other", "near"]).unwrap();
        assert_eq!(rates.hosts.iter().map(|host| host.out_bytes_per_second).collect::<Vec<_>>(), [5e8, 1e9]);
        assert_eq!(rates.pairs, [PairRate { from: 1, to: 0, bytes_per_second: 2e7 }]);
        assert_eq!(example().rates(&["far", "near"]).unwrap().pairs, []);
    }

    #[test]
    fn other_hosts_are_named() {
        let problem = example().rates(&["near", "new"]).unwrap_err();
        assert_eq!(problem, "it was measured on near, far, other, not on new");
        assert!(example().rates(&["far", "far"]).unwrap_err().contains("called far"));
    }

    #[test]
    fn odd_hosts_are_refused() {
        assert_eq!(example().complaint(), None);
        type Change = fn(&mut NetworkProfile);
        let changes: [(Change, &str); 4] = [
            (|odd| odd.hosts[1].name = "near".into(), "near twice"),
            (|odd| odd.pairs[0].to = "nobody".into(), "near to nobody"),
            (|odd| odd.hosts[0].in_bytes_per_second = 0.0, "near: in_bytes_per_second is 0"),
            (|odd| odd.pairs[0].bytes_per_second = f64::NAN, "near to other: bytes_per_second is NaN"),
        ];
        for (change, text) in changes {
            let mut odd = example();
            change(&mut odd);
            let complaint = odd.complaint().unwrap_or_default();
            assert!(complaint.contains(text), "{text}: {complaint}");
        }
    }
}
