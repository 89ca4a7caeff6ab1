//! The probe: a test whether RDMA works on this machine.
//!
//! The probe tests every step: on some machines, a device opens and provides a protection domain and a completion
//! queue, and only then refuses the queue pair.

use std::fmt;

use crate::connection::Path;
use crate::context::Context;
use crate::error::{Absence, Error};
use crate::gid::GidEntry;
use crate::library::{Device, Library, Transport};
use crate::memory::Access;
use crate::port::{LinkLayer, Mtu, Port, PortState};
use crate::queue_pair::QueuePairSpec;

/// Result of the probe.
#[derive(Clone, Debug)]
#[must_use]
pub enum Probe {
    /// At least one device works. The list includes those that do not, with the reasons.
    Ready(Vec<DeviceReport>),
    /// There is no RDMA here, for this reason.
    Absent(Absence),
}

/// Report on a device: its properties, and the result of trying it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// The kernel's name.
    pub name: String,
    /// Its world-wide name.
    pub node_guid: u64,
    /// Kind of network below.
    pub transport: Transport,
    /// The NUMA node to which it is attached.
    pub numa_node: Option<u32>,
    /// Its ports, as far as they could be queried.
    pub ports: Vec<PortReport>,
    /// The reason why it cannot be used, if it cannot.
    pub trouble: Option<Trouble>,
}

/// Report on a port and its addresses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PortReport {
    /// The port.
    pub port: Port,
    /// The used entries of its table of GIDs.
    pub gids: Vec<GidEntry>,
}

impl PortReport {
    /// Returns the default route from this port; `None` if the port carries no traffic or has no address.
    #[must_use]
    pub fn path(&self) -> Option<Path> {
        if !self.port.is_active() {
            return None;
        }
        let ethernet = self.port.link_layer == LinkLayer::Ethernet;
        let gid = GidEntry::best(&self.gids);
        Some(Path {
            port: self.port.number,
            gid_index: match gid {
                Some(gid) => gid.index,
                None if ethernet => return None,
                None => 0,
            },
            global: ethernet,
            mtu: self.port.active_mtu.unwrap_or(Mtu::Bytes1024),
            traffic_class: 0,
            service_level: 0,
            partition_index: 0,
        })
    }
}

/// Reason why a device cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Trouble {
    /// Its connections need the RDMA connection manager, which this crate does not use.
    NotConnectable(Transport),
    /// A call failed while the device was tried: opening it, or making the objects that a transport needs.
    Failed(Error),
    /// No port carries traffic. Holds the states of all ports.
    PortsDown(Vec<PortState>),
    /// A port is active but has no address.
    NoAddress {
        /// The port.
        port: u8,
    },
}

impl Trouble {
    /// Returns the remedy.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::NotConnectable(_) => "use it through TCP",
            Self::Failed(error) => match error.remedy() {
                "" => "see the kernel log",
                remedy => remedy,
            },
            Self::PortsDown(_) => "plug the cable, or bring the network interface up (`ip link set ... up`)",
            Self::NoAddress { .. } => "give its network interface an IP address",
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotConnectable(Transport::Iwarp) => {
                f.write_str("it is iWARP, whose connections need the RDMA connection manager")
            }
            Self::NotConnectable(_) => f.write_str("it has no reliable connected queue pairs"),
            Self::Failed(error) => error.fmt(f),
            Self::PortsDown(states) if states.is_empty() => f.write_str("it has no port"),
            Self::PortsDown(states) => {
                f.write_str("no port is active:")?;
                for (index, state) in states.iter().enumerate() {
                    write!(f, "{} port {} {state}", if index == 0 { "" } else { "," }, index + 1)?;
                }
                Ok(())
            }
            Self::NoAddress { port } => write!(f, "port {port} is active but has no GID"),
        }
    }
}

/// Loads libibverbs as [`Library::open`] does, and tries every device.
pub fn probe() -> Probe {
    match Library::open() {
        Ok(library) => probe_library(&library),
        Err(absence) => Probe::Absent(absence),
    }
}

/// Tries every device of this library. Leaves nothing open.
pub fn probe_library(library: &Library) -> Probe {
    let devices = match library.devices() {
        Ok(list) => list.iter().map(|device| report(&device)).collect::<Vec<_>>(),
        Err(absence) => return Probe::Absent(absence),
    };
    if devices.iter().any(|device| device.trouble.is_none()) {
        Probe::Ready(devices)
    } else {
        Probe::Absent(Absence::NoUsableDevice { devices })
    }
}

fn report(device: &Device) -> DeviceReport {
    let mut report = DeviceReport {
        name: device.name(),
        node_guid: device.node_guid(),
        transport: device.transport(),
        numa_node: device.numa_node(),
        ports: Vec::new(),
        trouble: None,
    };
    report.trouble = match device.open() {
        Ok(context) => examine(&context, &mut report).err(),
        Err(error) => Some(Trouble::Failed(error)),
    };
    report
}

fn examine(context: &Context, report: &mut DeviceReport) -> Result<(), Trouble> {
    for number in 1..=context.attributes().map_err(Trouble::Failed)?.ports {
        let port = context.port(number).map_err(Trouble::Failed)?;
        let gids = context.gids(&port).map_err(Trouble::Failed)?;
        report.ports.push(PortReport { port, gids });
    }
    if report.transport != Transport::Infiniband {
        return Err(Trouble::NotConnectable(report.transport));
    }
    let Some(path) = report.ports.iter().find_map(PortReport::path) else {
        return Err(match report.ports.iter().find(|report| report.port.is_active()) {
            Some(report) => Trouble::NoAddress { port: report.port.number },
            None => Trouble::PortsDown(report.ports.iter().map(|report| report.port.state).collect()),
        });
    };
    try_out(context, &path).map_err(Trouble::Failed)
}

/// Makes one of every object that a transport makes, and moves the queue pair as far as possible without a peer.
fn try_out(context: &Context, path: &Path) -> Result<(), Error> {
    let domain = context.protection_domain()?;
    let memory = domain.allocate(1, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let channel = context.completion_channel()?;
    let queue = context.completion_queue(2, Some(&channel), 0)?;
    let pair = domain.queue_pair(&QueuePairSpec {
        send_queue: &queue,
        receive_queue: &queue,
        send_depth: 1,
        receive_depth: 1,
        send_pieces: 1,
        receive_pieces: 1,
        inline_bytes: 0,
    })?;
    pair.initialize(path, Access::REMOTE_WRITE)?;
    drop(pair);
    drop(memory);
    Ok(())
}
