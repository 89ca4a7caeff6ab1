//! All settings in one typed value, which is resolved once, can be printed and is passed explicitly.
//!
//! A value that the program sets takes precedence over its `KOLO_*` environment variable, and the variable over the
//! default. Only `Config::from_lookup` and `Elastic::from_lookup` interpret the variables, except those for joining.

mod elastic;
mod settings;

pub(crate) use elastic::Elastic;

use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::time::Duration;

use kolo_gdr::Mode;
pub use kolo_transport::TransportKind;
use kolo_transport::rdma::Keep;
use kolo_transport::shm::Stores;

use crate::error::{Error, Result};
use crate::job::{DEFAULT_JOIN_TIMEOUT, MOST_PATIENCE};
use crate::plans::LoadedPlans;
use crate::profile::Loaded;

/// Transports that may be used, in order of preference.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transports {
    /// Shared memory between ranks of one host. Between hosts, RDMA if both ends have it, otherwise TCP.
    Auto,
    /// Only these. The first one that reaches a peer is used.
    Only(Vec<TransportKind>),
}

impl Transports {
    /// Returns the transports in order of preference.
    #[must_use]
    pub fn kinds(&self) -> &[TransportKind] {
        match self {
            Self::Auto => &TransportKind::ALL,
            Self::Only(list) => list,
        }
    }
}

/// How far results may depend on the way they are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Determinism {
    /// For a given size and configuration, all ranks get the same bits and runs repeat.
    Repeatable,
    /// As `Repeatable`, and results also do not depend on algorithm, transport, chunking and message size.
    Canonical,
}

/// The settings of a communicator. Later versions may add settings, so a program starts from a complete value and
/// changes it:
///
/// ```
/// # use kolo::Config;
/// let config = Config::default().with(|config| config.window = Some(2));
/// assert_eq!(config.window, Some(2));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// `KOLO_TRANSPORT`: `auto`, or a list such as `shm,tcp`.
    pub transports: Transports,
    /// `KOLO_ALGO`: overrides of the selection, such as `ring` or `all_reduce:tree,broadcast:binomial`.
    pub algorithms: String,
    /// `KOLO_DETERMINISM`: `repeatable` or `canonical`.
    pub determinism: Determinism,
    /// `KOLO_TIMEOUT`: seconds after which a blocking call gives up, above 0. [`Duration::MAX`] sets no limit.
    pub timeout: Duration,
    /// `KOLO_JOIN_TIMEOUT`: seconds to wait for all ranks to arrive, when joining and when communicators are split; 300
    /// if not set. Wherever a communicator is made, this value also becomes
    /// [`JoinSpec::timeout`](crate::join::JoinSpec::timeout).
    pub join_timeout: Duration,
    /// `KOLO_SILENT_AFTER`: seconds after which a member counts as silent (stopped or cut off) if it does not answer
    /// while members agree ([`Communicator::shrink`](crate::Communicator::shrink),
    /// [`Communicator::agree`](crate::Communicator::agree)); 1 if not set. In groups that go on after losses, it is
    /// also the time after which a member is lost if its host's kernel acknowledges nothing, unless `KOLO_DEAD_AFTER`
    /// is set.
    pub silent_after: Duration,
    /// `KOLO_SOCKET_IFNAME`: network interfaces by prefix, `^` in front to exclude.
    pub socket_interfaces: Option<String>,
    /// `KOLO_PORT_RANGE`: TCP ports to listen at, such as `40000-40099`; unset = chosen by the system. Each process
    /// uses one port for all its communicators and for everything else that connects to it. Ranks also join at that
    /// port, unless the rendezvous names another. (Each rank of an in-process cluster over TCP uses one port per
    /// communicator.)
    pub port_range: Option<RangeInclusive<u16>>,
    /// `KOLO_HOST_ID`: name of this rank's host. Ranks with different names count as being on different hosts, even if
    /// they share one. If unset, the real host counts.
    pub host_id: Option<String>,
    /// `KOLO_SOCKET_CONGESTION`: TCP congestion control, or `system` to leave it alone.
    pub socket_congestion: Option<String>,
    /// `KOLO_SOCKET_STREAMS`: TCP connections that share a long message on each path to a peer, 1 to 8; unset = one, or
    /// several on long-distance paths if the congestion control needs them.
    pub socket_streams: Option<u8>,
    /// `KOLO_SOCKET_PACING`: whether long messages to several near hosts at the same time are paced at the rate of the
    /// link, and TCP connections to near hosts resend lost packets soon. `auto` (true) or `off`.
    pub socket_pacing: bool,
    /// `KOLO_IB_HCA`: RDMA adapters by prefix of their name, such as `mlx5_0,mlx5_1:1`; `=` in front makes names exact,
    /// `^` excludes. At most four ports are used, the fastest first; if none are listed, none that are slower than half
    /// of the fastest.
    pub ib_adapters: Option<String>,
    /// `KOLO_IB_GID_INDEX`: index into the GID tables of the RDMA ports; unset = RoCE v2 over IPv4 first.
    pub ib_gid_index: Option<u8>,
    /// `KOLO_IB_TC`: traffic class of RDMA packets, DSCP in the upper six bits.
    pub ib_traffic_class: u8,
    /// `KOLO_IB_SL`: service level of RDMA packets.
    pub ib_service_level: u8,
    /// `KOLO_IB_QPS`: RDMA queue pairs for long messages per pair of adapters.
    pub ib_queue_pairs: u8,
    /// `KOLO_GDR`: whether adapters access GPU memory directly.
    pub gdr: Mode,
    /// `KOLO_CUDA_LIBRARY`: path of libcuda, if it is not found under its usual name.
    pub cuda_library: Option<String>,
    /// `KOLO_IB_CACHE`: which memory registrations of buffers are kept after their call.
    pub ib_cache: Keep,
    /// `KOLO_SHM_STORES`: how ranks copy into memory that other ranks of their host read.
    pub shm_stores: Stores,
    /// `KOLO_SHM_SINGLE_COPY`: whether the kernel may copy long messages and blocks between ranks of a host at once.
    pub shm_single_copy: bool,
    /// `KOLO_IBVERBS_LIB`: path of libibverbs, if it is not found under its usual name.
    pub ib_library: Option<String>,
    /// `KOLO_SEGMENT_BYTES`: bytes of a vector per segment; unset = chosen by the cost model.
    pub segment_bytes: Option<usize>,
    /// `KOLO_WINDOW`: segments in flight; unset = chosen by the cost model.
    pub window: Option<usize>,
    /// `KOLO_EXCHANGE_BYTES`: a call inside one host uses the exchange over shared memory, not a plan, if each rank
    /// contributes at most this many bytes; 0 = never, unset = measured limits by collective and number of ranks.
    pub exchange_bytes: Option<usize>,
    /// `KOLO_ONE_SHOT_BYTES`: longest all-reduce inside one host in which every rank reduces the whole vector; in longer
    /// ones, every rank reduces a slice and the others copy it. Unset = measured limit by number of ranks, and by
    /// whether they share processors. The result has the same bits.
    pub one_shot_bytes: Option<usize>,
    /// `KOLO_SYMMETRIC_BYTES`: once symmetric buffers exist, a blocking call whose longer buffer has at least this many
    /// bytes checks whether all ranks' buffers are symmetric; unset = measured limits by collective.
    pub symmetric_bytes: Option<usize>,
    /// `KOLO_UNEXPECTED_BYTES`: room for unexpected messages. They are buffered so that messages with other tags behind
    /// them can be received. Beyond this limit, messages wait at their senders.
    pub unexpected_bytes: usize,
    /// `KOLO_SPIN_US`: microseconds that a waiting thread spins before it yields; unset = chosen by the number of ranks
    /// per CPU.
    pub spin: Option<Duration>,
    /// `KOLO_SHORT_SLICES`: whether threads that wait for other ranks ask the scheduler for short time slices (`auto`), so
    /// that they run soon after they are woken beside busy processes, or keep theirs (`off`).
    pub short_slices: bool,
    /// `KOLO_RELAY`: if neither of two ranks can connect to the other, they communicate through rank 0's process
    /// (`auto`), or calls between them fail (`off`).
    pub relay: bool,
    /// `KOLO_NETWORK_PROBE`: whether ranks of several hosts measure the network between them when they join (some
    /// milliseconds on a local network), and choose algorithms by the result. `auto` (true) or `off`.
    pub network_probe: bool,
    /// `KOLO_PROFILE`: file with the cost model's constants as `kolo tune` measured them; unset = built-in constants.
    pub profile: Option<Loaded>,
    /// `KOLO_PLAN`: files with plans, separated by commas. Calls that a plan serves use it. All ranks need the same
    /// plans.
    pub plans: Vec<LoadedPlans>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            transports: Transports::Auto,
            algorithms: String::new(),
            determinism: Determinism::Repeatable,
            // The default of torch.distributed: longer than a checkpoint, shorter than a night.
            timeout: Duration::from_secs(600),
            join_timeout: DEFAULT_JOIN_TIMEOUT,
            silent_after: Duration::from_secs(1),
            socket_interfaces: None,
            port_range: None,
            host_id: None,
            socket_congestion: None,
            socket_streams: None,
            socket_pacing: true,
            ib_adapters: None,
            ib_gid_index: None,
            ib_traffic_class: 0,
            ib_service_level: 0,
            ib_queue_pairs: 1,
            gdr: Mode::default(),
            cuda_library: None,
            ib_cache: Keep::default(),
            shm_stores: Stores::default(),
            shm_single_copy: true,
            ib_library: None,
            segment_bytes: None,
            window: None,
            exchange_bytes: None,
            one_shot_bytes: None,
            symmetric_bytes: None,
            // Room for a few large tensors that overtake each other, and little compared with a rank's memory.
            unexpected_bytes: 64 << 20,
            spin: None,
            short_slices: true,
            relay: true,
            network_probe: true,
            profile: None,
            plans: Vec::new(),
        }
    }
}

impl Config {
    /// Reads the `KOLO_*` variables of the process environment.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the value of a variable is invalid.
    pub fn from_env() -> Result<Self> {
        check_unicode()?;
        Self::from_lookup(&|name| std::env::var(name).ok())
    }

    /// Returns these settings with some of them changed.
    #[must_use]
    pub fn with(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    /// Reads the `KOLO_*` variables through a look-up function.
    ///
    /// # Errors
    /// As [`Config::from_env`].
    pub fn from_lookup(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let mut config = Self::default();
        let get = |name: &str| lookup(name).map(|v| v.trim().to_owned()).filter(|v| !v.is_empty());
        if let Some(value) = get("KOLO_TRANSPORT") {
            config.transports = parse_transports(&value)?;
        }
        if let Some(value) = get("KOLO_ALGO") {
            config.algorithms = value;
        }
        if let Some(value) = get("KOLO_DETERMINISM") {
            config.determinism = match value.as_str() {
                "repeatable" => Determinism::Repeatable,
                "canonical" => Determinism::Canonical,
                _ => return Err(invalid("KOLO_DETERMINISM", &value, "repeatable or canonical")),
            };
        }
        let time = |name: &str| get(name).map(|value| seconds(name, &value)).transpose();
        let number = |name: &str| get(name).map(|value| bytes(name, &value)).transpose();
        let small = |name: &str, most| get(name).map(|value| small(name, &value, most)).transpose();
        config.timeout = time("KOLO_TIMEOUT")?.unwrap_or(config.timeout);
        config.join_timeout = time("KOLO_JOIN_TIMEOUT")?.unwrap_or(config.join_timeout);
        config.silent_after = time("KOLO_SILENT_AFTER")?.unwrap_or(config.silent_after);
        config.host_id = get("KOLO_HOST_ID");
        config.socket_interfaces = get("KOLO_SOCKET_IFNAME");
        config.port_range = get("KOLO_PORT_RANGE").map(|value| parse_port_range(&value)).transpose()?;
        config.socket_congestion = get("KOLO_SOCKET_CONGESTION");
        config.socket_streams = small("KOLO_SOCKET_STREAMS", 8)?;
        config.socket_pacing = auto_or_off("KOLO_SOCKET_PACING", &get)?;
        config.ib_adapters = get("KOLO_IB_HCA");
        config.ib_library = get("KOLO_IBVERBS_LIB");
        config.cuda_library = get("KOLO_CUDA_LIBRARY");
        config.ib_gid_index = small("KOLO_IB_GID_INDEX", 255)?;
        config.ib_traffic_class = small("KOLO_IB_TC", 255)?.unwrap_or(config.ib_traffic_class);
        config.ib_service_level = small("KOLO_IB_SL", 15)?.unwrap_or(config.ib_service_level);
        config.ib_queue_pairs = small("KOLO_IB_QPS", 8)?.unwrap_or(config.ib_queue_pairs);
        if let Some(value) = get("KOLO_GDR") {
            config.gdr = value.parse().map_err(|expected| invalid("KOLO_GDR", &value, expected))?;
        }
        if let Some(value) = get("KOLO_IB_CACHE") {
            config.ib_cache = match value.as_str() {
                "watched" => Keep::Watched,
                "never" => Keep::Never,
                "always" => Keep::Always,
                _ => return Err(invalid("KOLO_IB_CACHE", &value, "watched, never or always")),
            };
        }
        if let Some(value) = get("KOLO_SHM_STORES") {
            config.shm_stores =
                value.parse().map_err(|expected| invalid("KOLO_SHM_STORES", &value, expected))?;
        }
        config.shm_single_copy = auto_or_off("KOLO_SHM_SINGLE_COPY", &get)?;
        config.segment_bytes = number("KOLO_SEGMENT_BYTES")?;
        config.window = number("KOLO_WINDOW")?;
        config.exchange_bytes = number("KOLO_EXCHANGE_BYTES")?;
        config.one_shot_bytes = number("KOLO_ONE_SHOT_BYTES")?;
        config.symmetric_bytes = number("KOLO_SYMMETRIC_BYTES")?;
        config.unexpected_bytes = number("KOLO_UNEXPECTED_BYTES")?.unwrap_or(config.unexpected_bytes);
        config.spin = number("KOLO_SPIN_US")?.map(|time| Duration::from_micros(time as u64));
        config.short_slices = auto_or_off("KOLO_SHORT_SLICES", &get)?;
        config.relay = auto_or_off("KOLO_RELAY", &get)?;
        config.network_probe = auto_or_off("KOLO_NETWORK_PROBE", &get)?;
        config.profile = get("KOLO_PROFILE").map(Loaded::read).transpose()?;
        config.plans =
            get("KOLO_PLAN").map_or_else(|| Ok(Vec::new()), |paths| LoadedPlans::read_all(&paths))?;
        config.checked()
    }
}

/// Parses `auto` or a comma-separated list of transports.
///
/// # Errors
/// [`Error::Configuration`], which names the known transports.
pub fn parse_transports(value: &str) -> Result<Transports> {
    if value == "auto" {
        return Ok(Transports::Auto);
    }
    let mut list = Vec::new();
    for name in value.split(',').map(str::trim) {
        let kind = TransportKind::named(name).ok_or_else(|| {
            let [before @ .., last] = TransportKind::ALL.map(TransportKind::name);
            invalid("KOLO_TRANSPORT", name, &format!("auto, or a list of {} and {last}", before.join(", ")))
        })?;
        if !list.contains(&kind) {
            list.push(kind);
        }
    }
    Ok(Transports::Only(list))
}

/// Checks that all `KOLO_*` variables of this process are Unicode. Otherwise they would count as unset, and a job whose
/// secret is made of random bytes would have none.
pub(crate) fn check_unicode() -> Result<()> {
    only_unicode(std::env::vars_os())
}

fn only_unicode(variables: impl IntoIterator<Item = (OsString, OsString)>) -> Result<()> {
    let is_wrong = |(name, value): &(OsString, OsString)| {
        name.as_encoded_bytes().starts_with(b"KOLO_") && value.to_str().is_none()
    };
    match variables.into_iter().find(is_wrong) {
        None => Ok(()),
        Some((name, _)) => Err(Error::configuration(
            name.to_string_lossy(),
            "its value is not valid UTF-8",
            "Use text; encode random bytes, for example with base64",
        )),
    }
}

impl Config {
    /// Refuses times of 0, as the variables do: the first call that has to wait would end the job. Brings the other
    /// values within their limits, whether they come from variables or from the program.
    pub(crate) fn checked(mut self) -> Result<Self> {
        let times = [
            ("timeout (KOLO_TIMEOUT)", self.timeout),
            ("silent_after (KOLO_SILENT_AFTER)", self.silent_after),
        ];
        if let Some((setting, _)) = times.into_iter().find(|(_, time)| time.is_zero()) {
            return Err(Error::configuration(
                setting,
                "a time of 0 leaves nothing to wait for",
                "Use a time above 0; Duration::MAX sets no limit",
            ));
        }
        // Other times are added to it.
        self.silent_after = self.silent_after.min(MOST_PATIENCE);
        self.socket_streams = self.socket_streams.map(|streams| streams.max(1));
        self.ib_queue_pairs = self.ib_queue_pairs.max(1);
        self.segment_bytes = self.segment_bytes.map(|bytes| bytes.max(1));
        self.window = self.window.map(|segments| segments.max(1));
        Ok(self)
    }
}

fn invalid(setting: &str, found: &str, expected: &str) -> Error {
    Error::configuration(setting, format!("'{found}' is not understood"), format!("Use {expected}"))
}

fn seconds(setting: &str, value: &str) -> Result<Duration> {
    value
        .parse::<f64>()
        .ok()
        .filter(|s| *s > 0.0)
        .and_then(|s| Duration::try_from_secs_f64(s).ok())
        .ok_or_else(|| invalid(setting, value, "a number of seconds above 0, such as 30 or 0.5"))
}

/// Parses a switch that is on unless it is turned off.
fn auto_or_off(name: &'static str, get: &dyn Fn(&str) -> Option<String>) -> Result<bool> {
    match get(name).as_deref() {
        None | Some("auto") => Ok(true),
        Some("off") => Ok(false),
        Some(value) => Err(invalid(name, value, "auto or off")),
    }
}

/// Parses a range of ports such as `40000-40099`.
///
/// # Errors
/// [`Error::Configuration`] for anything else, or if the first port is above the last.
pub fn parse_port_range(value: &str) -> Result<RangeInclusive<u16>> {
    let port = |text: &str| text.trim().parse::<u16>().ok().filter(|port| *port > 0);
    let ends = value.split_once('-').and_then(|(first, last)| Some((port(first)?, port(last)?)));
    match ends {
        Some((first, last)) if first <= last => Ok(first..=last),
        _ => Err(invalid(
            "KOLO_PORT_RANGE",
            value,
            "two ports joined by a hyphen, the lower first: 40000-40099",
        )),
    }
}

fn small(setting: &str, value: &str, most: u8) -> Result<u8> {
    let number = value.parse::<u8>().ok().filter(|number| *number <= most);
    number.ok_or_else(|| invalid(setting, value, &format!("a whole number up to {most}")))
}

fn bytes(setting: &str, value: &str) -> Result<usize> {
    let (digits, unit) = match value.as_bytes().last() {
        Some(b'k' | b'K') => (&value[..value.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&value[..value.len() - 1], 1 << 20),
        Some(b'g' | b'G') => (&value[..value.len() - 1], 1 << 30),
        _ => (value, 1_usize),
    };
    digits
        .parse::<usize>()
        .ok()
        .and_then(|n| n.checked_mul(unit))
        .ok_or_else(|| invalid(setting, value, "a whole number, optionally followed by K, M or G"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn with(name: &'static str, value: &'static str) -> Result<Config> {
        Config::from_lookup(&move |n| (n == name).then(|| value.to_owned()))
    }

    #[test]
    fn nothing_set_gives_the_defaults() {
        assert_eq!(Config::from_lookup(&|_| None).unwrap(), Config::default());
    }

    #[test]
    fn values_are_understood() {
        assert_eq!(
            with("KOLO_TRANSPORT", "tcp").unwrap().transports,
            Transports::Only(vec![TransportKind::Tcp])
        );
        assert_eq!(with("KOLO_PORT_RANGE", "40000-40009").unwrap().port_range, Some(40000..=40009));
        assert_eq!(with("KOLO_SEGMENT_BYTES", "64K").unwrap().segment_bytes, Some(65536));
        assert_eq!(with("KOLO_TIMEOUT", "0.5").unwrap().timeout, Duration::from_millis(500));
    }

    #[test]
    fn variables_that_are_not_unicode_are_refused() {
        let odd = |name: &str| (OsString::from(name), OsString::from_vec(vec![b'a', 0xff]));
        let fine = ("KOLO_JOB_SECRET".into(), "\u{e9}".into());
        assert!(only_unicode([fine, odd("LANG")]).is_ok());
        let text = only_unicode([odd("LANG"), odd("KOLO_JOB_SECRET")]).unwrap_err().to_string();
        assert!(text.contains("KOLO_JOB_SECRET") && text.contains("base64"), "{text}");
    }

    #[test]
    fn nonsense_names_the_setting_and_the_remedy() {
        for (name, value) in [
            ("KOLO_TRANSPORT", "rfc1149"),
            ("KOLO_RELAY", "on"),
            ("KOLO_SOCKET_PACING", "on"),
            ("KOLO_PORT_RANGE", "40000"),
            ("KOLO_PORT_RANGE", "40010-40000"),
            ("KOLO_PORT_RANGE", "0-99999"),
            ("KOLO_DETERMINISM", "maybe"),
            ("KOLO_TIMEOUT", "-1"),
            ("KOLO_SEGMENT_BYTES", "99999999999G"),
            ("KOLO_WINDOW", "x"),
            ("KOLO_IB_GID_INDEX", "256"),
            ("KOLO_IB_SL", "16"),
            ("KOLO_GDR", "yes"),
            ("KOLO_IB_CACHE", "yes"),
            ("KOLO_SHM_STORES", "fast"),
            ("KOLO_SHM_SINGLE_COPY", "on"),
            ("KOLO_SHORT_SLICES", "5"),
            ("KOLO_PROFILE", "/nowhere/profile.toml"),
            ("KOLO_PLAN", "/nowhere/plan.json"),
        ] {
            let text = with(name, value).unwrap_err().to_string();
            assert!(text.contains(name) && (text.contains("Use ") || text.contains("`kolo ")), "{text}");
        }
    }
}
