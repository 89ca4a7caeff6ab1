//! Facts that each rank knows about its host.

use std::fs;
use std::net::IpAddr;

use kolo::Config;
use kolo_transport::TcpOptions;
use kolo_transport::tcp::{admitted, networks};
use rustix::process::{Resource, getrlimit};
use serde::{Deserialize, Serialize};

use crate::info::machine::{cpu_quota, hostname, read_line, usable_cpus};
use crate::info::network::{Interface, interfaces};

/// Facts of one rank.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Facts {
    /// Name of the host.
    pub hostname: String,
    /// Version of Kolo.
    pub version: String,
    /// Processors that the rank may use.
    pub processors: usize,
    /// Share of the processors that the control group allows.
    pub processor_quota: Option<f64>,
    /// Limit on open files; `None` if there is none.
    pub open_files: Option<u64>,
    /// Limit on locked memory in bytes; `None` if there is none.
    pub locked_memory: Option<u64>,
    /// RDMA adapters.
    pub adapters: Vec<String>,
    /// Congestion control of new connections.
    pub congestion: String,
    /// Congestion controls that the kernel offers.
    pub congestion_offered: String,
    /// Interfaces that lead to other hosts and that `KOLO_SOCKET_IFNAME` admits.
    pub interfaces: Vec<Interface>,
    /// Addresses by which ranks on other hosts may dial this one, as interface, address and length of its prefix.
    pub networks: Vec<(String, IpAddr, u8)>,
    /// Port at which this rank can be dialled.
    pub port: Option<u16>,
    /// Whether rank 0 relays pairs of ranks that cannot connect to each other.
    pub relays: bool,
    /// Problem with the profile or the plans of the environment, if there is one.
    pub problem: Option<String>,
}

impl Facts {
    /// Collects the facts of this process.
    pub(crate) fn collect(config: &Config, port: Option<u16>, problem: Option<String>) -> Self {
        let setting = |name: &str| read_line(format!("/proc/sys/net/ipv4/{name}")).unwrap_or_default();
        let list = config.socket_interfaces.as_deref().and_then(TcpOptions::interfaces_from);
        let leads = |interface: &Interface| {
            interface.running && !interface.loopback && admitted(&interface.name, list.as_deref())
        };
        let names = |directory: &str| {
            let entries = fs::read_dir(directory).map(|entries| entries.flatten().collect::<Vec<_>>());
            let mut names: Vec<_> = entries
                .unwrap_or_default()
                .iter()
                .map(|entry| entry.file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        Self {
            hostname: hostname(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            processors: usable_cpus(),
            processor_quota: cpu_quota(),
            open_files: getrlimit(Resource::Nofile).current,
            locked_memory: getrlimit(Resource::Memlock).current,
            adapters: names("/sys/class/infiniband"),
            congestion: setting("tcp_congestion_control"),
            congestion_offered: setting("tcp_available_congestion_control"),
            interfaces: interfaces().unwrap_or_default().into_iter().filter(leads).collect(),
            networks: networks(list.as_deref())
                .unwrap_or_default()
                .into_iter()
                .map(|network| (network.interface, network.ip, network.prefix))
                .collect(),
            port,
            relays: config.relay,
            problem,
        }
    }
}
