//! Hosts for one trial: network namespaces whose only interface is a TUN device, and a switch between them in this
//! process, which loses, delays and blocks packets as instructed.
//!
//! This file uses `unsafe` only for the ioctl that makes a device.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use kolo_transport::Unpoisoned;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use kolo_tests::random::Random;

/// Rule for packets from one rank's host to another's. `None` means all hosts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub from: Option<u32>,
    pub to: Option<u32>,
    pub lose_percent: u64,
    pub delay: Duration,
}

/// A change of the network.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    /// These rules, and no others.
    Rules(Vec<Rule>),
    /// Largest packet of all hosts, in bytes.
    Mtu(u32),
}

impl Change {
    /// Blocks all packets between a rank's host and the others.
    pub(crate) fn cut_off(rank: u32) -> Self {
        Self::Rules(vec![Rule::cut(Some(rank), None), Rule::cut(None, Some(rank))])
    }

    /// Blocks all packets between two hosts.
    pub(crate) fn cut_pair(a: u32, b: u32) -> Self {
        Self::Rules(vec![Rule::cut(Some(a), Some(b)), Rule::cut(Some(b), Some(a))])
    }

    /// Removes all rules.
    pub(crate) const fn heal() -> Self {
        Self::Rules(Vec::new())
    }

    /// Treats all packets alike.
    pub(crate) fn everywhere(lose_percent: u64, delay: Duration) -> Self {
        Self::Rules(vec![Rule { from: None, to: None, lose_percent, delay }])
    }
}

impl Rule {
    pub(crate) const fn cut(from: Option<u32>, to: Option<u32>) -> Self {
        Self { from, to, lose_percent: 100, delay: Duration::ZERO }
    }
}

/// The hosts of a trial. They are deleted when this is dropped.
#[derive(Debug)]
pub(crate) struct Net {
    base: String,
    hosts: u32,
    /// Number of namespaces that were made. A namespace of the same name that existed before belongs to somebody else.
    made: u32,
    rules: Arc<Mutex<Vec<Rule>>>,
    over: Arc<AtomicBool>,
    switch: Option<JoinHandle<()>>,
}

impl Net {
    /// Makes `hosts` hosts, with addresses from 192.0.2.1 on.
    pub(crate) fn new(hosts: u32, seed: u64) -> Result<Self, String> {
        let base = format!("kolo-faults-{:x}", std::process::id());
        let rules = Arc::new(Mutex::new(Vec::new()));
        let over = Arc::new(AtomicBool::new(false));
        let mut net =
            Self { base, hosts, made: 0, rules: Arc::clone(&rules), over: Arc::clone(&over), switch: None };
        let mut ports = Vec::new();
        for host in 0..hosts {
            let (name, device) = (net.namespace(host), format!("kolo{host}"));
            run(&format!("ip netns add {name}"))?;
            net.made = host + 1;
            ports.push(tun(&device).map_err(|error| format!("no TUN device: {error}"))?);
            run(&format!("ip link set {device} netns {name}"))?;
            run(&format!("ip -n {name} link set lo up"))?;
            // The switch only forwards IPv4.
            run(&format!("ip -n {name} link set {device} addrgenmode none up"))?;
            // This range is reserved for documentation (RFC 5737).
            run(&format!("ip -n {name} address add {}/24 dev {device}", address(host)))?;
        }
        let switch = move || forward(&ports, &rules, &over, Random::new(seed));
        net.switch = Some(std::thread::spawn(switch));
        Ok(net)
    }

    /// Returns the namespace of a rank.
    pub(crate) fn namespace(&self, rank: u32) -> String {
        format!("{}-{rank}", self.base)
    }

    pub(crate) fn change(&self, change: &Change) -> Result<(), String> {
        match change {
            Change::Rules(rules) => {
                self.rules.lock().unpoisoned().clone_from(rules);
                Ok(())
            }
            Change::Mtu(bytes) => (0..self.hosts).try_for_each(|host| {
                run(&format!("ip -n {} link set kolo{host} mtu {bytes}", self.namespace(host))).map(drop)
            }),
        }
    }

    /// Resets the connections between two hosts, as seen from the first: those with port `control`, if it is given, or
    /// otherwise all without port `not`. Returns how many there were.
    pub(crate) fn reset(
        &self,
        rank: u32,
        peer: u32,
        control: Option<u16>,
        not: u16,
    ) -> Result<usize, String> {
        let ports = match control {
            Some(port) => format!("( sport = :{port} or dport = :{port} )"),
            None => format!("not ( sport = :{not} or dport = :{not} )"),
        };
        let filter = format!("dst {} and {ports}", address(peer));
        let said =
            run(&format!("ip netns exec {} ss -K -H -t state established {filter}", self.namespace(rank)))?;
        Ok(said.lines().filter(|line| !line.trim().is_empty()).count())
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(switch) = self.switch.take() {
            let _ = switch.join();
        }
        for host in 0..self.made {
            let _ = run(&format!("ip netns delete {}", self.namespace(host)));
        }
    }
}

/// Returns the address of a rank's host.
pub(crate) fn address(rank: u32) -> String {
    format!("192.0.2.{}", rank + 1)
}

/// Runs a command and returns its output.
pub(crate) fn run(line: &str) -> Result<String, String> {
    let mut words = line.split_whitespace();
    let program = words.next().unwrap_or_default();
    let output = Command::new(program).args(words).output().map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(format!("{line}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn tun(name: &str) -> std::io::Result<File> {
    const TUNSETIFF: libc::c_ulong = 0x4004_54ca;
    const IFF_TUN: i16 = 1;
    const IFF_NO_PI: i16 = 0x1000;
    #[repr(C)]
    struct Request {
        name: [u8; 16],
        flags: i16,
        rest: [u8; 22],
    }
    let file = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: IFF_TUN | IFF_NO_PI, rest: [0; 22] };
    request.name[..name.len()].copy_from_slice(name.as_bytes());
    // SAFETY: the request is as large as the kernel's ifreq (40 bytes) and outlives the call.
    if unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF, &raw mut request) } < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let flags = rustix::fs::fcntl_getfl(&file)?;
    rustix::fs::fcntl_setfl(&file, flags | rustix::fs::OFlags::NONBLOCK)?;
    Ok(file)
}

/// Packets in flight: time of arrival, order of sending, destination, and contents.
type OnTheirWay = BinaryHeap<Reverse<(Instant, u64, usize, Vec<u8>)>>;

fn forward(ports: &[File], rules: &Mutex<Vec<Rule>>, over: &AtomicBool, mut draw: Random) {
    let mut on_their_way = OnTheirWay::new();
    let (mut packet, mut sent) = (vec![0_u8; 65536], 0);
    while !over.load(Ordering::Relaxed) {
        let now = Instant::now();
        while on_their_way.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
            let Some(Reverse((_, _, to, bytes))) = on_their_way.pop() else { break };
            // If a device's queue is full, the packet is lost, as in a real network.
            let _ = (&ports[to]).write(&bytes);
        }
        let next = on_their_way.peek().map_or(Duration::from_millis(20), |Reverse((at, ..))| {
            at.saturating_duration_since(now).min(Duration::from_millis(20))
        });
        let wait = Timespec { tv_sec: 0, tv_nsec: next.as_nanos() as i64 };
        let mut polled: Vec<_> = ports.iter().map(|port| PollFd::new(port, PollFlags::IN)).collect();
        if poll(&mut polled, Some(&wait)).is_err() {
            continue;
        }
        let ready: Vec<usize> =
            (0..ports.len()).filter(|at| polled[*at].revents().contains(PollFlags::IN)).collect();
        let rules = rules.lock().unpoisoned().clone();
        for from in ready {
            // A limited number is read at a time, so that no port starves.
            for _ in 0..64 {
                let Ok(len) = (&ports[from]).read(&mut packet) else { break };
                let Some(to) = destination(&packet[..len], ports.len()) else { continue };
                let Some(delay) = fate(&rules, from as u32, to as u32, &mut draw) else { continue };
                sent += 1;
                on_their_way.push(Reverse((Instant::now() + delay, sent, to, packet[..len].to_vec())));
            }
        }
    }
}

/// Returns the port of an IPv4 packet's destination.
fn destination(packet: &[u8], ports: usize) -> Option<usize> {
    let header = packet.get(..20).filter(|header| header[0] >> 4 == 4)?;
    let host = usize::from(header[19]).checked_sub(1)?;
    (header[16..19] == [192, 0, 2] && host < ports).then_some(host)
}

/// Returns the delay of a packet, or `None` if it is lost.
fn fate(rules: &[Rule], from: u32, to: u32, draw: &mut Random) -> Option<Duration> {
    let concerns =
        |rule: &&Rule| rule.from.is_none_or(|rank| rank == from) && rule.to.is_none_or(|rank| rank == to);
    let mut delay = Duration::ZERO;
    for rule in rules.iter().filter(concerns) {
        if draw.below(100) < rule.lose_percent {
            return None;
        }
        delay = delay.max(rule.delay);
    }
    Some(delay)
}
