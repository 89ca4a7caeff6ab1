//! A running network: hosts in which commands run, and cables that can be changed meanwhile.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::process::{Command, Stdio};
use std::sync::Arc;

use crate::fabric::{Counts, Fabric, Port, Rule, What};
use crate::network::{Card, Network};
use crate::switch::Switch;
use crate::system::{self, Namespace};

/// Variable that tells commands where the hosts are, for `kolo-netlab on`: `ADDRESS=NET,UTS;...`.
pub(crate) const PLACES: &str = "KOLO_NETLAB_PLACES";

/// A network of hosts. It ends when this value is dropped; processes that still run on its hosts then have no network.
#[derive(Debug)]
pub struct Lab {
    network: Network,
    hosts: Vec<Host>,
    /// Keeps the router's namespace alive.
    _router: Option<Arc<Namespace>>,
    switch: Switch,
}

/// A host of the network.
#[derive(Clone, Debug)]
pub struct Host {
    namespace: Arc<Namespace>,
    addresses: Vec<Vec<IpAddr>>,
    places: Arc<str>,
}

impl Lab {
    /// Makes the network. Only works [`inside`](crate::inside).
    ///
    /// # Errors
    /// The problem, if the description is contradictory or the system refuses something.
    pub fn new(network: &Network) -> Result<Self, String> {
        network.check()?;
        let made: Vec<_> = (0..network.hosts + usize::from(network.has_router()))
            .map(|host| make(network, host).map_err(|error| format!("host {host}: {error}")))
            .collect::<Result<_, _>>()?;
        let (mut namespaces, mut devices) = (Vec::new(), Vec::new());
        for (namespace, taps) in made {
            namespaces.push(Arc::new(namespace));
            devices.extend(taps);
        }
        let (cards, ports): (Vec<Card>, Vec<Port>) = network.ports().into_iter().unzip();
        let mut fabric = Fabric::new(ports);
        fabric.rules_mut().clone_from(&network.rules);
        let macs: Vec<_> = cards.iter().map(|card| card.mac()).collect();
        let switch = Switch::start(fabric, devices, &macs).map_err(|error| format!("the switch: {error}"))?;
        let router = (namespaces.len() > network.hosts).then(|| namespaces.remove(network.hosts));
        let addresses = |host| (0..network.nics).map(|nic| network.addresses(host, nic)).collect();
        let places: Arc<str> = places(network, &namespaces).into();
        let hosts = namespaces
            .into_iter()
            .zip(0..)
            .map(|(namespace, host)| Host {
                namespace,
                addresses: addresses(host),
                places: Arc::clone(&places),
            })
            .collect();
        Ok(Self { network: network.clone(), hosts, _router: router, switch })
    }

    /// Checks whether this machine can run a network.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn probe() -> Result<(), String> {
        Self::new(&Network::hosts(1)).map(drop)
    }

    /// Returns the hosts.
    #[must_use]
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// Returns one host.
    ///
    /// # Panics
    /// If there is no host of this number.
    #[must_use]
    pub fn host(&self, host: usize) -> &Host {
        &self.hosts[host]
    }

    /// Returns the description from which the network was made.
    #[must_use]
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Cuts all cables of a host. Frames on them are lost.
    pub fn cut(&self, host: usize) {
        self.change(host, None, |port| port.is_cut = true);
    }

    /// Restores all cables of a host.
    pub fn restore(&self, host: usize) {
        self.change(host, None, |port| port.is_cut = false);
    }

    /// Cuts or restores one cable of a host.
    pub fn cut_card(&self, host: usize, nic: usize, is_cut: bool) {
        self.change(host, Some(nic), |port| port.is_cut = is_cut);
    }

    /// Changes the rate of a host's cables in both directions.
    pub fn set_rate(&self, host: usize, bits: u64) {
        self.change(host, None, |port| {
            for link in [&mut port.up, &mut port.down] {
                let mut shape = link.shape().clone();
                shape.rate = Some(bits);
                link.reshape(shape);
            }
        });
    }

    /// Adds a rule.
    pub fn block(&self, rule: Rule) {
        self.switch.fabric().rules_mut().push(rule);
    }

    /// Keeps host `from` from dialling host `to`. Host `to` may still dial `from`.
    pub fn block_dialling(&self, from: usize, to: usize) {
        self.block(Rule { from: Some(from), to: Some(to), what: What::Syn, count: None });
    }

    /// Removes all rules.
    pub fn unblock(&self) {
        self.switch.fabric().rules_mut().clear();
    }

    /// Returns the numbers of frames so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.switch.fabric().counts()
    }

    fn change(&self, host: usize, nic: Option<usize>, mut how: impl FnMut(&mut Port)) {
        let mut fabric = self.switch.fabric();
        let concerns = |port: &&mut Port| port.host == host && nic.is_none_or(|nic| port.nic == nic);
        fabric.ports_mut().iter_mut().filter(concerns).for_each(&mut how);
    }
}

impl Host {
    /// Makes a command that will run on this host.
    #[must_use]
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = system::command_in(&self.namespace, program);
        command.env(PLACES, &*self.places);
        command
    }

    /// Runs a function in a thread on this host. Sockets made there belong to this host, wherever they are used.
    ///
    /// # Errors
    /// If the thread cannot move to the host.
    ///
    /// # Panics
    /// If the thread panics.
    pub fn on<T: Send>(&self, what: impl FnOnce() -> T + Send) -> io::Result<T> {
        let there = || self.namespace.enter().map(|()| what());
        std::thread::scope(|scope| scope.spawn(there).join()).expect("the thread on a host has panicked")
    }

    /// Moves the calling thread to this host, for good.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn move_here(&self) -> io::Result<()> {
        self.namespace.enter()
    }

    /// Returns the address of the host's first card, IPv4 if it has one.
    ///
    /// # Panics
    /// Never: each card has an address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.addresses[0][0]
    }

    /// Returns all addresses, by card.
    #[must_use]
    pub fn addresses(&self) -> &[Vec<IpAddr>] {
        &self.addresses
    }
}

fn places(network: &Network, namespaces: &[Arc<Namespace>]) -> String {
    let me = std::process::id();
    let place = |(host, namespace): (usize, &Arc<Namespace>)| {
        let fd = |fd: &dyn AsRawFd| format!("/proc/{me}/fd/{}", fd.as_raw_fd());
        let address = network.addresses(host, 0)[0];
        format!("{address}={},{}", fd(&namespace.net), fd(&namespace.uts))
    };
    namespaces.iter().enumerate().map(place).collect::<Vec<_>>().join(";")
}

/// Makes a host, or the router, in a thread of its own, because a thread changes only its own namespaces.
fn make(network: &Network, host: usize) -> Result<(Namespace, Vec<File>), String> {
    let name = if host < network.hosts { format!("host{host}") } else { "router".to_owned() };
    let there = || {
        let namespace = Namespace::unshare(&name).map_err(|error| format!("no namespaces: {error}"))?;
        let is_router = host == network.hosts;
        configure(network, is_router)?;
        let tap = |card: Card| system::tap(&card.name(), network.has_offload());
        let taps: io::Result<_> = network.cards(host).into_iter().map(tap).collect();
        let taps = taps.map_err(|error| format!("no TAP device (/dev/net/tun): {error}"))?;
        ip(&network.setup(host))?;
        Ok((namespace, taps))
    };
    std::thread::scope(|scope| scope.spawn(there).join()).expect("making a host does not panic")
}

/// Sets the kernel's parameters for this thread's namespace.
fn configure(network: &Network, is_router: bool) -> Result<(), String> {
    let set = |name: &str, value: &str| {
        let wrong = |error| format!("net.{}={value}: {error}", name.replace('/', "."));
        fs::write(format!("/proc/sys/net/{name}"), value).map_err(wrong)
    };
    // Without this, addresses that the kernel makes for itself cannot be used for a second.
    let has_v6 = fs::exists("/proc/sys/net/ipv6").unwrap_or(false);
    if has_v6 {
        set("ipv6/conf/default/accept_dad", "0")?;
    }
    if is_router {
        set("ipv4/ip_forward", "1")?;
        if has_v6 {
            set("ipv6/conf/all/forwarding", "1")?;
        }
    }
    network.congestion.as_ref().map_or(Ok(()), |name| set("ipv4/tcp_congestion_control", name))
}

/// Runs iproute2 in this thread's namespace.
fn ip(commands: &str) -> Result<(), String> {
    let mut child = Command::new("ip")
        .args(["-batch", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("the program ip (iproute2) does not start: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // If the program has ended early, its error output says why.
        let _ = input.write_all(commands.as_bytes());
    }
    let output = child.wait_with_output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("ip -batch: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
