//! Cost model of a machine: the constants that the cost functions and the simulator share.

use serde::{Deserialize, Serialize};

use crate::caches::Caches;

/// Constants of messages between two ranks, of one kind of pair: on the same host, or on different hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkClass {
    /// Time from the posting of an empty message to its arrival, without the processor time at either end (alpha).
    pub latency_seconds: f64,
    /// Processor time per message, at each end (o).
    pub overhead_seconds: f64,
    /// Bandwidth of one rank's link, each direction (1 / beta).
    pub bytes_per_second: f64,
}

/// Rate of one host's network interfaces, where hosts differ.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostRate {
    /// Bytes per second that it sends.
    pub out_bytes_per_second: f64,
    /// Bytes per second that it receives.
    pub in_bytes_per_second: f64,
}

/// Rate of one connection between two hosts, where it is below the rates of both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairRate {
    /// Number of the sending host.
    pub from: u32,
    /// Number of the receiving one.
    pub to: u32,
    /// Bytes per second.
    pub bytes_per_second: f64,
}

/// The performance constants of a machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Model {
    /// Links between ranks of one host.
    pub intra: LinkClass,
    /// Links between hosts.
    pub inter: LinkClass,
    /// Bytes of operand that a rank reduces per second (1 / gamma).
    pub reduce_bytes_per_second: f64,
    /// Bytes that a rank copies per second.
    pub copy_bytes_per_second: f64,
    /// Network bandwidth of a host, each direction, shared by its ranks.
    pub nic_bytes_per_second: f64,
    /// Time that each message between hosts takes on a host's interface and in its kernel, at each end, whichever rank
    /// sends it (the gap g of LogP).
    pub nic_message_seconds: f64,
    /// Memory bandwidth of a host, shared by its ranks.
    pub memory_bytes_per_second: f64,
    /// Bytes of messages inside a host that a processor moves per second; each end moves every byte once.
    pub move_bytes_per_second: f64,
    /// Ranks per usable processor of a host, at least 1: all processor time takes that much longer.
    pub oversubscription: f64,
    /// Time that a message waits until its receiver gets the processor, for each other rank that shares the processor.
    pub switch_seconds: f64,
    /// Processor time of each further channel to the same rank, for every segment.
    pub channel_seconds: f64,
    /// Time of a call apart from its messages.
    pub call_seconds: f64,
    /// Factors on the rates inside a host where caches do not hold the buffers.
    pub caches: Caches,
}

/// Shortest processor time per message that shows that messages go through the kernel: nothing else takes as long.
const KERNEL_SECONDS: f64 = 1e-6;

/// Bytes to one receiver that queues and windows hold. With fewer bytes, the call ends before a connection has to find
/// its rate.
const QUEUED_BYTES: f64 = 8e5;

/// Longest message that the kernel passes to an adapter in one bundle of packets, less its header.
const BUNDLE_BYTES: f64 = 65_000.0;

/// Factor on the time of bytes that go to another host in each round, instead of always to the same one.
const UNSTEADY: f64 = 2.2;

/// As [`UNSTEADY`], on long ways, for bytes that one rank sends to all others or receives from them: its connections are
/// in use in every call. See docs/measurements.md, "Long paths".
const UNSTEADY_FAN: f64 = 1.5;

/// Extra time of bytes from several senders at once, for each sender beyond the first.
const INCAST: f64 = 0.25;

/// Shortest latency of a long way: a round trip of 5 ms.
const LONG_WAY_SECONDS: f64 = 2.5e-3;

impl LinkClass {
    /// Shared memory between cores of one host: passing a cache line there and back takes about half a microsecond, and
    /// each byte is copied in and out at 10 GB/s.
    pub const SHARED_MEMORY: Self =
        Self { latency_seconds: 0.3e-6, overhead_seconds: 0.1e-6, bytes_per_second: 10e9 };

    /// TCP between hosts on 25 GbE: a system call and a share of an interrupt at each end, and 15 microseconds of wire,
    /// switch and wake-up between them.
    pub const TCP: Self = Self { latency_seconds: 15e-6, overhead_seconds: 3e-6, bytes_per_second: 3e9 };

    /// RDMA at 200 Gb/s.
    pub const RDMA: Self = Self { latency_seconds: 2e-6, overhead_seconds: 0.3e-6, bytes_per_second: 25e9 };

    pub(crate) fn seconds_per_byte(&self) -> f64 {
        1.0 / self.bytes_per_second
    }
}

impl Model {
    /// Shared memory within hosts, TCP between them.
    pub const TCP: Self = Self {
        intra: LinkClass::SHARED_MEMORY,
        inter: LinkClass::TCP,
        // One core reads two operands and writes one result at about 60 GB/s of memory traffic in all.
        reduce_bytes_per_second: 20e9,
        copy_bytes_per_second: 10e9,
        nic_bytes_per_second: 3e9,
        // The acknowledgement and both interrupts, where many ranks send at once.
        nic_message_seconds: 3e-6,
        memory_bytes_per_second: 100e9,
        // The rate of a link, in both directions at the same time.
        move_bytes_per_second: 20e9,
        oversubscription: 1.0,
        // A wake-up and a context switch.
        switch_seconds: 5e-6,
        // Small compared to the network's own time; `kolo tune` measures it.
        channel_seconds: 0.0,
        // Equal for all algorithms, so it decides nothing; `kolo tune` measures it.
        call_seconds: 0.0,
        // Machines differ too much: without a measurement, the rates above are assumed to hold at all sizes.
        caches: Caches::ENDLESS,
    };

    /// Shared memory within hosts, RDMA between them.
    pub const RDMA: Self = Self {
        inter: LinkClass::RDMA,
        nic_bytes_per_second: 25e9,
        nic_message_seconds: 0.05e-6,
        ..Self::TCP
    };

    /// Returns the model for calls whose buffers take this many bytes on a host.
    #[must_use]
    pub fn with_footprint(&self, bytes: f64) -> Self {
        let Caches { messages, copies, reductions } = &self.caches;
        let mut model = *self;
        model.intra.bytes_per_second /= messages.at(bytes);
        model.memory_bytes_per_second /= messages.at(bytes);
        model.move_bytes_per_second /= messages.at(bytes);
        model.copy_bytes_per_second /= copies.at(bytes);
        model.reduce_bytes_per_second /= reductions.at(bytes);
        model
    }

    /// Returns whether messages inside a host go through the kernel.
    pub(crate) fn has_system_calls(&self) -> bool {
        self.intra.overhead_seconds >= KERNEL_SECONDS
    }

    /// Returns whether the kernel holds messages between hosts that their receiver has not reached yet.
    pub(crate) fn buffers_between_hosts(&self) -> bool {
        self.inter.overhead_seconds >= KERNEL_SECONDS
    }

    /// Returns whether messages between hosts take so long that a connection needs several round trips to find its
    /// rate.
    pub(crate) fn has_long_ways(&self) -> bool {
        self.inter.latency_seconds >= LONG_WAY_SECONDS
    }

    /// Returns the factor on the time of the bytes of `senders` senders at once, `bytes` in all for each receiver on
    /// another host, compared to a connection that always sends. A connection that idles in between must find its rate
    /// anew, and senders that meet at one link overflow its queue. See docs/measurements.md, "Rings between hosts" and
    /// "Long paths".
    pub(crate) fn unsteadiness(&self, hosts: u32, senders: f64, bytes: f64) -> f64 {
        if self.has_long_ways() {
            return UNSTEADY;
        }
        // Between two hosts each connection keeps its share, and the adapters of networks other than Ethernet hold
        // senders back.
        if hosts <= 2 || !self.buffers_between_hosts() || bytes < QUEUED_BYTES {
            return 1.0;
        }
        if senders > 1.0 { 1.0 + INCAST * (senders.min(f64::from(hosts - 1)) - 1.0) } else { UNSTEADY }
    }

    /// As [`Self::unsteadiness`], for one rank that sends to all others, or receives from them.
    pub(crate) fn fan_unsteadiness(&self, hosts: u32, bytes: f64) -> f64 {
        if self.has_long_ways() { UNSTEADY_FAN } else { self.unsteadiness(hosts, 1.0, bytes) }
    }

    /// Returns the factor on the time of whole vectors of `bytes` bytes that pairs of hosts exchange, other pairs in every
    /// round. If a vector takes several bundles of packets, those of a host that is a round ahead come between them, and
    /// the hosts wait for each other in turn. See docs/measurements.md, "Pairs of hosts that change".
    pub(crate) fn interleaving(&self, hosts: u32, bytes: f64) -> f64 {
        if hosts <= 2 || !self.buffers_between_hosts() || bytes <= BUNDLE_BYTES { 1.0 } else { UNSTEADY }
    }

    /// Returns the latency on a class of links, including the wait for a shared processor.
    pub(crate) fn latency_seconds(&self, class: &LinkClass) -> f64 {
        class.latency_seconds + (self.oversubscription - 1.0).max(0.0) * self.switch_seconds
    }
}

impl Default for Model {
    fn default() -> Self {
        Self::TCP
    }
}
