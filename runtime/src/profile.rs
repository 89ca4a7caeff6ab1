//! A profile: the cost of communication on a machine, as measured by `kolo tune`.
//!
//! `KOLO_PROFILE` names a TOML file, from which the planner takes its constants instead of the built-in ones. All ranks
//! must choose alike, so they compare digests of their profiles when they join. The file may have a different path on
//! each host.

mod network;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kolo_collectives::caches::Caches;
use kolo_collectives::model::{LinkClass, Model};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::files::text_of;

pub use kolo_collectives::caches::Curve;
pub(crate) use network::SLOW;
pub use network::{HostProfile, NetworkProfile, PairProfile, Rates};

/// Version of the format that this build writes and reads.
pub const VERSION: u32 = 2;

/// Cost of communication on a machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Version of the format: [`VERSION`].
    pub version: u32,
    /// Description of the machine that was measured, for people.
    pub machine: String,
    /// Bytes that a rank copies per second.
    pub copy_bytes_per_second: f64,
    /// Relative cost of a copied byte, by the total size of the buffers of the host's ranks: 128 KiB for the first
    /// factor, twice as much for each further one.
    pub copy_factors: Curve,
    /// Shared memory between ranks of one host.
    pub shm: TransportProfile,
    /// TCP between ranks of one host.
    pub tcp: TransportProfile,
    /// The network between hosts, as `kolo tune` measures it under a launcher. If absent, the ranks measure it when
    /// they join.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkProfile>,
}

/// Cost of a transport inside a host.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransportProfile {
    /// Seconds of a call apart from its messages.
    pub call_seconds: f64,
    /// Seconds from posting an empty message to its arrival, without the CPU time at either end.
    pub latency_seconds: f64,
    /// Seconds of CPU time per message, at each end.
    pub overhead_seconds: f64,
    /// Bytes per second of one rank's link, in one direction.
    pub bytes_per_second: f64,
    /// Bytes per second that the host moves for all its ranks. Each byte counts twice, once when sent and once when
    /// received.
    pub host_bytes_per_second: f64,
    /// Bytes per second at which a rank reduces arriving data, counting only the time beyond receiving.
    pub reduce_bytes_per_second: f64,
    /// Seconds that a message waits until its receiver gets the CPU, for each other rank that shares the CPU.
    pub switch_seconds: f64,
    /// Seconds of CPU time for each further channel to the same rank, per segment.
    pub channel_seconds: f64,
    /// Relative cost of a byte of a message, by the size of the host's buffers as in `copy_factors`.
    pub message_factors: Curve,
    /// Relative cost of a reduced byte, by the same sizes.
    pub reduce_factors: Curve,
}

/// A profile that was read from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// Path of the file.
    pub path: PathBuf,
    /// Its content.
    pub profile: Profile,
}

impl Loaded {
    /// Reads the file that `KOLO_PROFILE` names.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the file cannot be read, or for the reasons of [`Profile::parse`].
    pub fn read(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let text = text_of(&path).map_err(|error| refused(&path, &format!("it cannot be read: {error}")))?;
        let profile = Profile::parse(&text).map_err(|problem| refused(&path, &problem))?;
        Ok(Self { path, profile })
    }
}

impl Profile {
    /// Parses a profile.
    ///
    /// # Errors
    /// The problem in words: another version, a missing or unknown field, an implausible number.
    pub fn parse(text: &str) -> std::result::Result<Self, String> {
        /// Only the version, whatever else the file contains: other versions have other fields.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let in_a_line = |error: toml::de::Error| {
            let at = error.span().map_or(0, |span| text[..span.start].lines().count().max(1));
            let what = error.message().split_whitespace().collect::<Vec<_>>().join(" ");
            if at > 0 { format!("line {at}: {what}") } else { what }
        };
        let Version { version } = toml::from_str(text).map_err(in_a_line)?;
        if version != VERSION {
            return Err(format!("it has version {version}, but this build reads version {VERSION}"));
        }
        let profile: Self = toml::from_str(text).map_err(in_a_line)?;
        match profile.numbers().into_iter().find(|number| !number.is_plausible()) {
            None => match profile.network.as_ref().and_then(NetworkProfile::complaint) {
                None => Ok(profile),
                Some(complaint) => Err(complaint),
            },
            Some(number) => Err(number.complaint()),
        }
    }

    /// Formats the file, with comments and with numbers that read back exactly.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut out = format!(
            "# What communication costs on this machine, as `kolo tune` measured it. Used where KOLO_PROFILE names this \
             file,\n# which must say the same on all ranks. Times in seconds, rates in bytes per second; factors by the \
             size of the\n# buffers of all ranks of a host, from 128 KiB on, each twice the one before.\n\
             version = {}\nmachine = {}\n",
            self.version,
            serde_json::Value::String(self.machine.replace(char::is_control, " "))
        );
        let mut table = None;
        let numbers = self.numbers();
        for group in numbers.chunk_by(|one, next| (one.table, one.name) == (next.table, next.name)) {
            let Number { table: own, name, .. } = group[0];
            if own != table {
                table = own;
                let _ = writeln!(out, "\n[{}]", table.unwrap_or_default());
            }
            let values: Vec<_> = group.iter().map(|number| format!("{:e}", number.value)).collect();
            let _ = match &values[..] {
                [one] => writeln!(out, "{name} = {one}"),
                _ => writeln!(out, "{name} = [{}]", values.join(", ")),
            };
        }
        if let Some(network) = &self.network {
            network.write_hosts(&mut out);
        }
        out
    }

    /// Returns sixteen hexadecimal digits that are equal for profiles with equal constants, and only for those.
    #[must_use]
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.version.to_le_bytes());
        for number in self.numbers() {
            hash.update(number.table.unwrap_or_default());
            hash.update(number.name);
            hash.update(number.value.to_le_bytes());
        }
        if let Some(network) = &self.network {
            network.hash_hosts(&mut hash);
        }
        hash.finalize().iter().take(8).fold(String::new(), |out, byte| format!("{out}{byte:02x}"))
    }

    /// Puts the constants into a model whose ranks on one host communicate over `transport`.
    #[must_use]
    pub fn apply(&self, inside: Inside, model: Model) -> Model {
        let host = match inside {
            Inside::Shm => &self.shm,
            Inside::Tcp => &self.tcp,
        };
        let mut model = Model {
            intra: LinkClass {
                latency_seconds: host.latency_seconds,
                overhead_seconds: host.overhead_seconds,
                bytes_per_second: host.bytes_per_second,
            },
            call_seconds: host.call_seconds,
            memory_bytes_per_second: host.host_bytes_per_second,
            // The rate was measured between two ranks. Each of them moves both what it sends and what it receives.
            move_bytes_per_second: host.host_bytes_per_second / 2.0,
            reduce_bytes_per_second: host.reduce_bytes_per_second,
            copy_bytes_per_second: self.copy_bytes_per_second,
            switch_seconds: host.switch_seconds,
            channel_seconds: host.channel_seconds,
            caches: Caches {
                messages: host.message_factors,
                copies: self.copy_factors,
                reductions: host.reduce_factors,
            },
            ..model
        };
        if let Some(network) = &self.network {
            model.inter = LinkClass {
                latency_seconds: network.latency_seconds,
                overhead_seconds: network.overhead_seconds,
                bytes_per_second: network.bytes_per_second,
            };
            model.nic_bytes_per_second = network.host_bytes_per_second;
        }
        model
    }

    /// Returns all numbers in the order of the file.
    fn numbers(&self) -> Vec<Number> {
        let number = |table, name, value| Number { table, name, value };
        let numbers = |table, name, curve: &Curve| curve.0.map(|value| Number { table, name, value });
        let mut all = vec![number(None, "copy_bytes_per_second", self.copy_bytes_per_second)];
        all.extend(numbers(None, "copy_factors", &self.copy_factors));
        for (table, of) in [("shm", &self.shm), ("tcp", &self.tcp)] {
            let table = Some(table);
            all.extend([
                number(table, "call_seconds", of.call_seconds),
                number(table, "latency_seconds", of.latency_seconds),
                number(table, "overhead_seconds", of.overhead_seconds),
                number(table, "bytes_per_second", of.bytes_per_second),
                number(table, "host_bytes_per_second", of.host_bytes_per_second),
                number(table, "reduce_bytes_per_second", of.reduce_bytes_per_second),
                number(table, "switch_seconds", of.switch_seconds),
                number(table, "channel_seconds", of.channel_seconds),
            ]);
            all.extend(numbers(table, "message_factors", &of.message_factors));
            all.extend(numbers(table, "reduce_factors", &of.reduce_factors));
        }
        all.extend(self.network.iter().flat_map(NetworkProfile::numbers));
        all
    }
}

/// Transport between the ranks of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inside {
    /// Shared memory.
    Shm,
    /// TCP.
    Tcp,
}

/// A number of a profile.
#[derive(Clone, Copy, Debug)]
struct Number {
    table: Option<&'static str>,
    name: &'static str,
    value: f64,
}

/// Longest plausible time of a message or a call, in seconds. A link to the moon takes less than three.
const TIME_MAX: f64 = 10.0;

/// Plausible rates of a rank, in bytes per second: from a modem to more than any memory.
const RATES: std::ops::RangeInclusive<f64> = 1e3..=1e15;

/// Plausible cost of memory relative to caches. Only the noise of measurements brings it below 1.
const FACTORS: std::ops::RangeInclusive<f64> = 0.1..=1e3;

impl Number {
    fn allowed(&self) -> (std::ops::RangeInclusive<f64>, &'static str) {
        match self.name {
            rate if rate.ends_with("bytes_per_second") => (RATES, "bytes per second"),
            time if time.ends_with("_seconds") => (0.0..=TIME_MAX, "seconds"),
            _ => (FACTORS, "times"),
        }
    }

    fn is_plausible(&self) -> bool {
        self.allowed().0.contains(&self.value)
    }

    fn complaint(&self) -> String {
        let place = self.table.map_or_else(String::new, |table| format!("{table}."));
        let (range, unit) = self.allowed();
        format!(
            "{place}{} is {}, but must be {:e} to {:e} {unit}",
            self.name,
            self.value,
            range.start(),
            range.end()
        )
    }
}

fn refused(path: &Path, problem: &str) -> Error {
    Error::configuration(
        "KOLO_PROFILE",
        format!("{} is not a valid profile: {problem}", path.display()),
        "Write one with `kolo tune --out FILE`, or unset the variable to use the built-in constants",
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use kolo_collectives::caches::POINTS;

    use super::*;

    pub(crate) fn example() -> Profile {
        let of = |factor: f64| TransportProfile {
            call_seconds: 0.1e-6 * factor,
            latency_seconds: 0.3e-6 * factor,
            overhead_seconds: 0.1e-6 * factor,
            bytes_per_second: 1.1e10 / factor,
            host_bytes_per_second: 3e10 / factor,
            reduce_bytes_per_second: 2e10,
            switch_seconds: 3e-6,
            channel_seconds: 1e-7,
            message_factors: Curve([2.0; POINTS]),
            reduce_factors: Curve::FLAT,
        };
        Profile {
            version: VERSION,
            machine: "two \"fast\" processors".into(),
            copy_bytes_per_second: 1.0 / 3.0 * 1e10,
            copy_factors: Curve::FLAT,
            shm: of(1.0),
            tcp: of(10.0),
            network: None,
        }
    }

    #[test]
    fn what_is_written_reads_back() {
        let network = NetworkProfile {
            latency_seconds: 1e-5,
            overhead_seconds: 0.0,
            bytes_per_second: 3e9,
            host_bytes_per_second: 3e9,
            hosts: Vec::new(),
            pairs: Vec::new(),
        };
        let host = |name: &str| HostProfile {
            name: name.to_owned(),
            out_bytes_per_second: 1.0 / 3.0 * 1e9,
            in_bytes_per_second: 1e8,
        };
        let pair = PairProfile { from: "b".into(), to: "a \"host\"".into(), bytes_per_second: 2e7 };
        let cluster = NetworkProfile {
            hosts: vec![host("a \"host\""), host("b")],
            pairs: vec![pair],
            ..network.clone()
        };
        let with = |network| Profile { network: Some(network), ..example() };
        assert_ne!(with(network.clone()).digest(), with(cluster.clone()).digest());
        for profile in [example(), with(network), with(cluster)] {
            let text = profile.to_toml();
            assert_eq!(Profile::parse(&text), Ok(profile), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        let good = example().to_toml();
        for (from, to, expected) in [
            ("version = 2", "version = 7", "version 7, but this build reads version 2"),
            ("version = 2\n", "", "missing field `version`"),
            ("call_seconds = 1e-7\n", "", "missing field `call_seconds`"),
            ("machine = ", "mashine = ", "unknown field `mashine`"),
            ("bytes_per_second = 1.1e10", "bytes_per_second = -3", "shm.bytes_per_second is -3"),
            ("bytes_per_second = 1.1e10", "bytes_per_second = nan", "shm.bytes_per_second is NaN"),
            (
                "latency_seconds = 3e-7",
                "latency_seconds = 60.0",
                "shm.latency_seconds is 60, but must be 0e0 to 1e1 seconds",
            ),
            ("latency_seconds = 3e-7", "latency_seconds = \"fast\"", "invalid type: string"),
            ("factors = [2e0", "factors = [0", "shm.message_factors is 0"),
            ("[tcp]", "[udp]", "unknown field `udp`"),
            ("[tcp]", "]", "line 20: "),
            ("factors = [2e0, ", "factors = [", "invalid length 11"),
        ] {
            assert!(good.contains(from), "{from}:\n{good}");
            let problem = Profile::parse(&good.replacen(from, to, 1)).unwrap_err();
            assert!(problem.contains(expected) && !problem.contains('\n'), "{to}: {problem}");
        }
    }

    #[test]
    fn a_file_that_is_not_there_names_variable_and_remedy() {
        let text = Loaded::read("/nowhere/profile.toml").unwrap_err().to_string();
        assert!(text.contains("KOLO_PROFILE") && text.contains("kolo tune"), "{text}");
    }

    #[test]
    fn digests_tell_constants_apart_and_nothing_else() {
        let same = Profile { machine: "another".into(), ..example() };
        let other = Profile { copy_bytes_per_second: 1e10, ..example() };
        assert_eq!(example().digest(), same.digest());
        assert_ne!(example().digest(), other.digest());
        assert_eq!(example().digest().len(), 16);
    }

    #[test]
    fn each_transport_has_its_own_constants() {
        let model = example().apply(Inside::Tcp, Model::TCP);
        assert_eq!((model.intra.latency_seconds, model.inter), (3e-6, LinkClass::TCP));
        assert_eq!(example().apply(Inside::Shm, Model::RDMA).intra.latency_seconds, 0.3e-6);
    }
}
