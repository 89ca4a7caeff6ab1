//! The opened adapters of this side (rails): the selection of ports and addresses, and the reasons against the
//! others.

use std::ffi::OsStr;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};

use kolo_verbs::{
    Absence, CompletionChannel, Context, DeviceReport, Gid, GidEntry, GidKind, Library, LinkLayer, Path,
    Port, PortReport, Probe, ProtectionDomain, probe_library,
};

use super::NAME;
use super::options::RdmaOptions;
use crate::error::{Error, ErrorKind};
use crate::tcp::prefix_of;

/// Maximum number of ports used, which fit into an address: the fastest and nearest.
pub(super) const RAILS_MAX: usize = 4;

/// Ports slower than the fastest divided by this are left out, unless they are listed by name. Channels are dealt out
/// evenly, so a slower port would hold the others up.
const SLOWER_MAX: u32 = 2;

/// One opened port of one adapter. Rails of one adapter share only the kernel's device.
#[derive(Debug)]
pub(super) struct Rail {
    pub(super) device: String,
    pub(super) domain: ProtectionDomain,
    pub(super) channel: CompletionChannel,
    pub(super) path: Path,
    pub(super) lid: u16,
    pub(super) gid: Gid,
    pub(super) kind: GidKind,
    /// Length in bits of the prefix of the network of the GID's address, if it is one of this host's addresses.
    pub(super) prefix: Option<u8>,
    pub(super) rate_mbps: Option<u32>,
    pub(super) numa_node: Option<u32>,
    /// Whether the device reports no more events, because it is gone.
    pub(super) mute: bool,
}

impl Rail {
    pub(super) fn context(&self) -> &Context {
        self.domain.context()
    }

    /// Returns a line for the summary: "rxe0 port 1, 10.77.0.1 (GID 1, RoCE v2), MTU 4096, 2.5 Gbit/s".
    pub(super) fn describe(&self) -> String {
        let Path { port, gid_index, mtu, .. } = self.path;
        let rate =
            self.rate_mbps.map(|rate| format!(", {} Gbit/s", f64::from(rate) / 1e3)).unwrap_or_default();
        let node = self.numa_node.map(|node| format!(", NUMA node {node}")).unwrap_or_default();
        format!(
            "{} port {port}, {} (GID {gid_index}, {}), MTU {}{rate}{node}",
            self.device,
            self.gid,
            self.kind,
            mtu.bytes()
        )
    }
}

/// Opens all ports that are admitted and usable. Returns the rails, and the reasons against the other ports.
pub(super) fn open(options: &RdmaOptions) -> Result<(Vec<Rail>, Vec<String>), Error> {
    let refuse = |detail: String| Error::new(ErrorKind::System, NAME, None, detail);
    let absent = |absence: Absence| refuse(format!("{absence}; {}", absence.remedy()));
    let name = options.library.as_deref().unwrap_or(OsStr::new(kolo_verbs::LIBRARY_NAME));
    let library = Library::open_file(name).map_err(absent)?;
    let reports = match probe_library(&library) {
        Probe::Ready(reports) => reports,
        Probe::Absent(absence) => return Err(absent(absence)),
    };
    let filter = Filter::new(options.adapters.as_deref().unwrap_or(""));
    let (mut rails, mut passed) = (Vec::new(), Vec::new());
    let devices = library.devices().map_err(absent)?;
    for report in &reports {
        if let Some(trouble) = &report.trouble {
            passed.push(format!("{}: {trouble}; {}", report.name, trouble.remedy()));
            continue;
        }
        for port in &report.ports {
            let number = port.port.number;
            if !filter.admits(&report.name, number) {
                passed.push(format!("{} port {number}: excluded by KOLO_IB_HCA", report.name));
                continue;
            }
            let opened = choose(port, options).and_then(|(path, entry)| {
                let device = devices.find(&report.name).ok_or("the device is gone")?;
                rail(report, &port.port, device.open().map_err(words)?, path, &entry)
            });
            match opened {
                Ok(rail) => rails.push(rail),
                Err(because) => passed.push(format!("{} port {number}: {because}", report.name)),
            }
        }
    }
    if rails.is_empty() {
        return Err(refuse(format!("no usable RDMA adapter: {}", passed.join("; "))));
    }
    let distances = node_distances();
    let facts: Vec<_> =
        rails.iter().map(|rail| (rail.rate_mbps, distance(rail.numa_node, &distances))).collect();
    let (chosen, left) = select(&facts, filter.names_ports());
    passed.extend(
        left.into_iter().map(|(at, why)| format!("{} port {}: {why}", rails[at].device, rails[at].path.port)),
    );
    let mut rails: Vec<_> = rails.into_iter().map(Some).collect();
    Ok((chosen.into_iter().filter_map(|at| rails[at].take()).collect(), passed))
}

/// Rate and distance of a port.
type Facts = (Option<u32>, u32);

/// Selects ports by their rate, then by their distance, then in the order of the list. Returns their places, and those of
/// the others with the reason. `named` ports are used however slow they are.
fn select(ports: &[Facts], named: bool) -> (Vec<usize>, Vec<(usize, String)>) {
    let rate = |at: usize| ports[at].0.unwrap_or(0);
    let mut order: Vec<usize> = (0..ports.len()).collect();
    order.sort_by_key(|&at| (std::cmp::Reverse(rate(at)), ports[at].1));
    let fastest = order.first().map_or(0, |&at| rate(at));
    let (mut chosen, mut left) = (Vec::new(), Vec::new());
    for at in order {
        if !named && rate(at) > 0 && rate(at) < fastest / SLOWER_MAX {
            left.push((at, format!("slower than half of {} Gbit/s", f64::from(fastest) / 1e3)));
        } else if chosen.len() == RAILS_MAX {
            left.push((at, format!("{RAILS_MAX} others are used")));
        } else {
            chosen.push(at);
        }
    }
    (chosen, left)
}

/// Returns the distances of this thread's NUMA node to all nodes, as the system gives them; none if it does not.
fn node_distances() -> Vec<u32> {
    let of =
        |node: u32| std::fs::read_to_string(format!("/sys/devices/system/node/node{node}/distance")).ok();
    let Some(cpu) = processor() else { return Vec::new() };
    let is_here =
        |node: &u32| std::path::Path::new(&format!("/sys/devices/system/cpu/cpu{cpu}/node{node}")).exists();
    let text = (0..NODES_MAX).find(is_here).and_then(of).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// Returns the processor that this thread runs on. Not by getcpu of the vDSO, which user-mode Linux does not have.
fn processor() -> Option<u32> {
    const FIELDS_AFTER_NAME: usize = 36;
    let stat = std::fs::read_to_string("/proc/thread-self/stat").ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(FIELDS_AFTER_NAME)?.parse().ok()
}

/// Number of NUMA nodes among which this thread's is looked for.
const NODES_MAX: u32 = 64;

/// Returns the distance of a node; that of the farthest if its place is not known.
fn distance(node: Option<u32>, distances: &[u32]) -> u32 {
    let known = node.and_then(|node| distances.get(node as usize)).copied();
    known.or(distances.iter().max().copied()).unwrap_or(0)
}

fn words(error: kolo_verbs::Error) -> String {
    error.to_string()
}

fn rail(
    report: &DeviceReport,
    port: &Port,
    context: Context,
    path: Path,
    entry: &GidEntry,
) -> Result<Rail, String> {
    let channel = context.completion_channel().map_err(words)?;
    Ok(Rail {
        device: report.name.clone(),
        domain: context.protection_domain().map_err(words)?,
        channel,
        path,
        lid: port.lid,
        gid: entry.gid,
        kind: entry.kind,
        prefix: prefix_of(ip(entry.gid)),
        rate_mbps: port.rate_mbps,
        numa_node: report.numa_node,
        mute: false,
    })
}

/// Chooses the address of a port: the requested one, or the best one that belongs to this network namespace.
fn choose(report: &PortReport, options: &RdmaOptions) -> Result<(Path, GidEntry), String> {
    let Some(mut path) = report.path() else {
        let state = report.port.state;
        return Err(match report.port.is_active() {
            true => "it is active but has no address; give its network interface an address".into(),
            false => format!("it is {state}; bring its network interface up, or plug the cable"),
        });
    };
    let entry = match options.gid_index {
        Some(index) => {
            let known = || {
                let used: Vec<String> =
                    report.gids.iter().map(|e| format!("{} ({}, {})", e.index, e.gid, e.kind)).collect();
                format!("its GID {index} is empty; KOLO_IB_GID_INDEX may be one of {}", used.join(", "))
            };
            let entry = report.gids.iter().find(|entry| entry.index == index).ok_or_else(known)?;
            is_here(entry).map_err(|why| format!("GID {index} ({}): {why}", entry.gid))?;
            entry
        }
        None => {
            let here: Vec<GidEntry> =
                report.gids.iter().filter(|entry| is_here(entry).is_ok()).cloned().collect();
            let best = GidEntry::best(&here).map(|best| best.index);
            let found = report.gids.iter().find(|entry| Some(entry.index) == best);
            found.ok_or("its network interface is in another network namespace, or has no IP address")?
        }
    };
    path.gid_index = entry.index;
    path.global = report.port.link_layer == LinkLayer::Ethernet;
    path.traffic_class = options.traffic_class;
    path.service_level = options.service_level;
    Ok((path, entry.clone()))
}

/// Checks that packets can leave from this address: RDMA devices are visible in every network namespace, but work
/// only in that of their network interface.
fn is_here(entry: &GidEntry) -> Result<(), String> {
    if entry.kind == GidKind::Infiniband {
        return Ok(());
    }
    let address = ip(entry.gid);
    if let IpAddr::V6(address) = address
        && (address.segments()[0] & 0xffc0) == 0xfe80
    {
        return entry.netdev.as_ref().map(|_| ()).ok_or_else(|| "its interface is not on this host".into());
    }
    UdpSocket::bind((address, 0)).map(|_| ()).map_err(|_| "not an address of this network namespace".into())
}

/// Returns the IP address that a RoCE GID represents.
pub(super) fn ip(gid: Gid) -> IpAddr {
    match gid.ipv4() {
        Some(address) => IpAddr::V4(address),
        None => IpAddr::V6(Ipv6Addr::from(gid.0)),
    }
}

/// The parsed list of `KOLO_IB_HCA`.
struct Filter {
    exact: bool,
    exclude: bool,
    entries: Vec<(String, Option<u8>)>,
}

impl Filter {
    fn new(text: &str) -> Self {
        let text = text.trim();
        let (exclude, text) = text.strip_prefix('^').map_or((false, text), |rest| (true, rest));
        let (exact, text) = text.strip_prefix('=').map_or((false, text), |rest| (true, rest));
        let entries = text.split(',').map(str::trim).filter(|entry| !entry.is_empty());
        let entries = entries
            .map(|entry| match entry.split_once(':') {
                Some((name, port)) => (name.to_owned(), port.parse().ok()),
                None => (entry.to_owned(), None),
            })
            .collect();
        Self { exact, exclude, entries }
    }

    /// Returns whether the user has listed the adapters to use.
    fn names_ports(&self) -> bool {
        !self.entries.is_empty() && !self.exclude
    }

    fn admits(&self, name: &str, port: u8) -> bool {
        let listed = self.entries.iter().any(|(entry, wanted)| {
            let same = if self.exact { name == entry } else { name.starts_with(entry.as_str()) };
            same && wanted.is_none_or(|wanted| wanted == port)
        });
        self.entries.is_empty() || listed != self.exclude
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_and_nearest_ports_are_used() {
        let (fast, slow) = (Some(100_000), Some(40_000));
        let ports = [(slow, 10), (fast, 20), (fast, 10), (None, 10), (Some(50_000), 10), (fast, 20)];
        let (chosen, left) = select(&ports, false);
        assert_eq!(chosen, [2, 1, 5, 4]);
        assert_eq!(left.iter().map(|(at, _)| *at).collect::<Vec<_>>(), [0, 3]);
        assert!(left[0].1.contains("slower than half of 100 Gbit/s"), "{left:?}");
        assert_eq!(select(&[(slow, 0), (fast, 0)], true).0, [1, 0], "both are listed");
        assert_eq!(select(&[(None, 0), (None, 0)], false).0, [0, 1]);
        assert_eq!([Some(1), Some(9), None].map(|node| distance(node, &[10, 21])), [21; 3]);
    }

    #[test]
    fn adapters_are_chosen_as_users_of_nccl_expect() {
        let admits = |list: &str, name: &str, port| Filter::new(list).admits(name, port);
        assert!(admits("", "mlx5_0", 1));
        assert!(admits("mlx5", "mlx5_0", 1) && !admits("mlx5", "rxe0", 1));
        assert!(admits("=mlx5_1", "mlx5_1", 1) && !admits("=mlx5_1", "mlx5_10", 1));
        assert!(!admits("^mlx5_3", "mlx5_3", 1) && admits("^mlx5_3", "mlx5_4", 1));
        assert!(admits("mlx5_0:2", "mlx5_0", 2) && !admits("mlx5_0:2", "mlx5_0", 1));
        assert!(!admits("^=mlx5_1,rxe", "mlx5_1", 1) && admits("^=mlx5_1,rxe", "rxe0", 1));
    }
}
