//! A communicator's knowledge of the network between its hosts, and the source of that knowledge.

use std::fmt;
use std::time::Duration;

use kolo_collectives::model::Model;

use super::Between;
use crate::profile::Loaded;

/// The knowledge on which the selection between hosts is based. It is the same on all ranks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Knowledge {
    /// All ranks are on one host, so there is no network between hosts.
    OneHost,
    /// Only the transport's built-in constants are known.
    BuiltIn {
        /// Number of hosts.
        hosts: u32,
        /// Reason why the network part of a profile is not used, if there is one.
        unused_profile: Option<String>,
    },
    /// A profile that names no hosts, whose constants are already in the model. Holds its path and digest as text.
    AnyHosts(String),
    /// A profile that knows these hosts. Holds its path and digest as text.
    Profile(Between, String),
    /// Measurements that the ranks made when they joined.
    Measured {
        between: Between,
        took: Duration,
        /// Reason why the network part of a profile is not used, if there is one.
        unused_profile: Option<String>,
    },
}

impl Knowledge {
    /// Returns the profile's entries for the network between hosts of these names, in the order of their numbers. If
    /// there are none, returns the measurements or, failing these, the built-in constants.
    pub(crate) fn of(
        profile: Option<&Loaded>,
        names: &[&str],
        measured: impl FnOnce() -> Option<(Between, Duration)>,
    ) -> Self {
        if names.len() < 2 {
            return Self::OneHost;
        }
        let known =
            profile.and_then(|loaded| loaded.profile.network.as_ref().map(|network| (loaded, network)));
        let unused_profile = match known {
            None => None,
            Some((loaded, network)) => {
                let words = format!("profile {}, {}", loaded.path.display(), loaded.profile.digest());
                if network.hosts.is_empty() {
                    return Self::AnyHosts(words);
                }
                match Between::known(network, names) {
                    Ok(between) => return Self::Profile(between, words),
                    Err(problem) => {
                        let path = loaded.path.display();
                        Some(format!("the network of profile {path} is not used: {problem}"))
                    }
                }
            }
        };
        match measured() {
            Some((between, took)) => Self::Measured { between, took, unused_profile },
            None => Self::BuiltIn { hosts: names.len() as u32, unused_profile },
        }
    }

    /// Replaces the network's description by later measurements.
    pub(crate) fn measured(self, between: Between, took: Duration) -> Self {
        let unused_profile = self.unused_profile().map(str::to_owned);
        Self::Measured { between, took, unused_profile }
    }

    /// Whether a measurement would improve this knowledge.
    pub(crate) const fn wants_measurement(&self) -> bool {
        matches!(self, Self::BuiltIn { .. })
    }

    /// Returns the reason why the network part of a profile is not used, if there is such a profile.
    pub(crate) fn unused_profile(&self) -> Option<&str> {
        match self {
            Self::BuiltIn { unused_profile, .. } | Self::Measured { unused_profile, .. } => {
                unused_profile.as_deref()
            }
            Self::OneHost | Self::AnyHosts(_) | Self::Profile(..) => None,
        }
    }

    /// Returns the facts about each host, where they are known.
    pub(crate) const fn between(&self) -> Option<&Between> {
        match self {
            Self::Profile(between, _) | Self::Measured { between, .. } => Some(between),
            Self::OneHost | Self::BuiltIn { .. } | Self::AnyHosts(_) => None,
        }
    }

    /// Replaces constants of the model by the known facts.
    pub(crate) fn apply(&self, model: Model) -> Model {
        self.between().map_or(model, |between| between.apply(model))
    }

    /// Describes the network and the source of this knowledge. `None` on one host.
    pub(crate) fn describe(&self, model: &Model) -> Option<String> {
        let constants = |from: &dyn fmt::Display| {
            let round_trip = 2.0 * (model.inter.latency_seconds + 2.0 * model.inter.overhead_seconds);
            let rate = model.nic_bytes_per_second / 1e6;
            format!("round trip {:.3} ms, {rate:.1} MB/s ({from})", round_trip * 1e3)
        };
        let words = match self {
            Self::OneHost => return None,
            Self::BuiltIn { hosts, .. } => {
                format!("{hosts} hosts, {}", constants(&"built-in constants, not measured"))
            }
            Self::AnyHosts(profile) => format!("any hosts, {}", constants(profile)),
            Self::Profile(between, profile) => between.describe(profile),
            Self::Measured { between, took, .. } => {
                between.describe(&format_args!("measured in {:.1} ms", took.as_secs_f64() * 1e3))
            }
        };
        Some(match self.unused_profile() {
            Some(problem) => format!("{words}; {problem}"),
            None => words,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{HostProfile, NetworkProfile};

    fn profile(names: &[(&str, f64)]) -> Loaded {
        let mut profile = crate::profile::tests::example();
        let host = |(name, rate): &(&str, f64)| HostProfile {
            name: (*name).to_owned(),
            out_bytes_per_second: *rate,
            in_bytes_per_second: *rate,
        };
        profile.network = Some(NetworkProfile {
            latency_seconds: 100e-6,
            overhead_seconds: 3e-6,
            bytes_per_second: 1e7,
            host_bytes_per_second: 1e7,
            hosts: names.iter().map(host).collect(),
            pairs: Vec::new(),
        });
        Loaded { path: "cluster.toml".into(), profile }
    }

    fn measured() -> Option<(Between, Duration)> {
        let network = profile(&[("a", 1e8), ("d", 1e8)]).profile.network.expect("there is one");
        Some((Between::known(&network, &["a", "d"]).expect("its hosts"), Duration::from_millis(3)))
    }

    #[test]
    fn a_profile_of_the_hosts_takes_the_place_of_a_measurement() {
        let loaded = profile(&[("a", 1e8), ("b", 1e8), ("c", 1e7)]);
        let known = Knowledge::of(Some(&loaded), &["c", "a"], measured);
        let Knowledge::Profile(between, _) = &known else { panic!("{known:?}") };
        assert_eq!(between.speeds(), Some(vec![16, 160]));
        let words = known.describe(&Model::TCP).expect("two hosts");
        let wanted = format!("(profile cluster.toml, {})", loaded.profile.digest());
        assert!(words.contains(&wanted) && words.contains("host 0 is the slowest"), "{words}");
        assert!(!known.wants_measurement());
        assert!((known.apply(Model::TCP).nic_bytes_per_second - 1e7).abs() < 1.0);
    }

    #[test]
    fn a_profile_of_other_hosts_says_why_it_does_not_count() {
        let loaded = profile(&[("a", 1e8), ("b", 1e8), ("c", 1e7)]);
        let problem = "the network of profile cluster.toml is not used: it was measured on a, b, c, not on d";
        for (known, from) in [
            (Knowledge::of(Some(&loaded), &["a", "d"], measured), "(measured in 3.0 ms)"),
            (Knowledge::of(Some(&loaded), &["a", "d"], || None), "(built-in constants, not measured)"),
        ] {
            assert_eq!(known.unused_profile(), Some(problem));
            let words = known.describe(&Model::TCP).expect("two hosts");
            assert!(words.contains(from) && words.ends_with(problem), "{words}");
        }
        let later = Knowledge::of(Some(&loaded), &["a", "d"], || None);
        assert!(later.wants_measurement());
        let (between, took) = measured().expect("measured");
        assert_eq!(later.measured(between, took), Knowledge::of(Some(&loaded), &["a", "d"], measured));
    }

    #[test]
    fn constants_for_any_hosts_stop_the_probe_and_one_host_needs_none() {
        let any = Knowledge::of(Some(&profile(&[])), &["a", "b"], measured);
        assert!(matches!(any, Knowledge::AnyHosts(_)) && !any.wants_measurement(), "{any:?}");
        assert!(any.describe(&Model::TCP).expect("two hosts").contains("any hosts, round trip"), "{any:?}");
        assert_eq!(any.apply(Model::RDMA), Model::RDMA, "the model has them");
        let one = Knowledge::of(Some(&profile(&[("a", 1e8)])), &["a"], measured);
        assert_eq!((&one, one.describe(&Model::TCP)), (&Knowledge::OneHost, None));
        let words = Knowledge::of(None, &["a", "b"], || None).describe(&Model::TCP).expect("two hosts");
        assert_eq!(words, "2 hosts, round trip 0.042 ms, 3000.0 MB/s (built-in constants, not measured)");
    }
}
