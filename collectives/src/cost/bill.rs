//! The cost of a plan, added up exchange by exchange: the words in which generators state their price.

use crate::contention::{Pattern, Weight};
use crate::model::{LinkClass, Model};
use crate::rounds::floor_log2;
use crate::task::Task;

/// How far the messages of an exchange go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// To a rank of the same host.
    Host,
    /// To another host: for this share of a host's ranks at the same time.
    Network(f64),
    /// To another host for this share of the ranks, to the same host for the others. A chain of such exchanges
    /// meets both kinds in that proportion.
    Mixed(f64),
}

/// The work of the resources that ranks share, in seconds each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    link: f64,
    interface: f64,
    memory: f64,
    processor: f64,
}

impl Busy {
    /// Of the one that has most to do.
    pub(crate) fn most(&self) -> f64 {
        self.link.max(self.interface).max(self.memory).max(self.processor)
    }
}

/// The cost of one segment. A generator enters the exchanges of its plan, in order.
pub(crate) struct Bill {
    /// Inside a host processors do the moving: ranks that share one share the speed of the link too.
    model: Model,
    p: u32,
    /// Hosts.
    pub(crate) hosts: u32,
    /// Ranks on a host.
    pub(crate) local: u32,
    width: f64,
    /// Bytes that a rank receives in one phase of the whole call.
    inbound: f64,
    /// Whether ranks send so much at a time as the links of the receivers carry.
    pub(crate) suits_links: bool,
    /// From start to end with nothing else going on, in seconds.
    pub(crate) path: f64,
    /// The work of shared resources meanwhile. A generator puts back what it read before where exchanges use a resource that the
    /// exchanges before them leave alone.
    pub(crate) busy: Busy,
}

impl Bill {
    pub(super) fn new(task: &Task, model: &Model, inbound: f64) -> Self {
        let mut model = *model;
        model.intra.bytes_per_second /= model.oversubscription.max(1.0);
        let p = task.world_size;
        let hosts = task.host_count();
        Self {
            model,
            p,
            hosts,
            local: p.div_ceil(hosts),
            width: f64::from(task.params.width.max(1)),
            inbound,
            suits_links: false,
            path: 0.0,
            busy: Busy::default(),
        }
    }

    /// How far `distance` places round the circle go, ranks being consecutive on hosts.
    pub(crate) fn circle(&self, distance: u32) -> Reach {
        if self.hosts == 1 {
            Reach::Host
        } else if distance >= self.local {
            Reach::Network(1.0)
        } else {
            Reach::Mixed(f64::from(distance) / f64::from(self.local))
        }
    }

    /// How far the edge of a binomial tree goes, of which there is one at a time on a host.
    pub(crate) fn branch(&self, distance: u32) -> Reach {
        if self.hosts == 1 || distance < self.local { Reach::Host } else { self.one_per_host() }
    }

    /// One rank of each host at a time sends to another host.
    pub(crate) fn one_per_host(&self) -> Reach {
        Reach::Network(1.0 / f64::from(self.local))
    }

    /// The share of the ranks that a round of a binomial tree concerns, when `round` rounds were before it.
    pub(crate) fn branches(&self, round: u32) -> f64 {
        (f64::from(2_u32 << round) / f64::from(self.p)).min(1.0)
    }

    /// How far partners are whose numbers differ in one bit: they share a host if that bit is low.
    pub(crate) fn partner(&self, distance: u32) -> Reach {
        if self.hosts == 1 || distance < self.local { Reach::Host } else { Reach::Network(1.0) }
    }

    /// All ranks send and receive `messages` messages, `bytes` in all, and go on when they have.
    pub(crate) fn exchange(
        &mut self,
        pattern: Pattern,
        reach: Reach,
        messages: f64,
        bytes: f64,
        reduces: bool,
    ) {
        let Weight { turns, processors, links } = self.weight(pattern, reach, bytes, reduces);
        let latency = turns * self.weigh(reach, |class| self.model.latency_seconds(class));
        let transfer = self.transfer(reach, messages, bytes * links);
        let work = self.work(reach, turns * processors * messages, processors * bytes, reduces);
        self.path += latency + transfer + work;
    }

    fn weight(&self, pattern: Pattern, reach: Reach, bytes: f64, reduces: bool) -> Weight {
        match reach {
            Reach::Host => pattern.weight(&self.model, self.p, bytes, reduces),
            Reach::Network(_) | Reach::Mixed(_) => {
                // Where hosts have several ranks, the connections of one are busy while another's are not.
                let hosts = if self.local == 1 && !self.suits_links { self.hosts } else { 2 };
                let unsteadiness = |senders| self.model.unsteadiness(hosts, senders, self.inbound);
                let links = match pattern {
                    Pattern::Neighbours | Pattern::Pipeline => 1.0,
                    Pattern::AllAtOnce(senders) => unsteadiness(senders),
                    _ => unsteadiness(1.0),
                };
                Weight { links, ..Weight::ONE }
            }
        }
    }

    /// The processor's part of sending and receiving. Ranks that take no part leave the processors to the others.
    pub(crate) fn work(&mut self, reach: Reach, messages: f64, bytes: f64, reduces: bool) -> f64 {
        let overhead = 2.0 * messages * self.weigh(reach, |class| class.overhead_seconds);
        let reduce = if reduces { bytes / self.model.reduce_bytes_per_second } else { 0.0 };
        let share = if let Reach::Network(share) = reach { share } else { 1.0 };
        let sharers = (self.model.oversubscription * share).max(1.0);
        // A rank that shares a processor comes to its turn for each message that a network brings.
        let turns = match reach {
            Reach::Network(_) if sharers > 1.0 => messages * self.model.switch_seconds,
            _ => 0.0,
        };
        let work = (overhead + turns + reduce) * sharers;
        self.busy.processor += work;
        work
    }

    /// The network's part; the most used resource tells how long it takes.
    pub(crate) fn transfer(&mut self, reach: Reach, messages: f64, bytes: f64) -> f64 {
        let link = bytes * self.weigh(reach, LinkClass::seconds_per_byte);
        // Some rank is always on the slower kind.
        self.busy.link += match reach {
            Reach::Host => link,
            Reach::Network(_) | Reach::Mixed(_) => bytes * self.model.inter.seconds_per_byte(),
        };
        let ranks = f64::from(self.local);
        let crossing = match reach {
            Reach::Host => 0.0,
            Reach::Network(share) | Reach::Mixed(share) => share,
        };
        let interface = if crossing > 0.0 {
            let each = bytes / self.model.nic_bytes_per_second + messages * self.model.nic_message_seconds;
            (ranks * crossing).max(1.0) * each
        } else {
            0.0
        };
        let memory = 2.0 * ranks * (1.0 - crossing) * bytes / self.model.memory_bytes_per_second;
        let memory = if self.local > 1 { memory } else { 0.0 };
        self.busy.interface += interface;
        self.busy.memory += memory;
        if matches!(reach, Reach::Host) {
            // Inside a host processors do the moving, and reduce nothing meanwhile.
            self.busy.processor += link.max(memory);
        }
        match reach {
            Reach::Mixed(share) => link.max(interface * share).max(memory),
            _ => link.max(interface).max(memory),
        }
    }

    /// A constant of the class of links that the exchange uses, or of both in proportion.
    fn weigh(&self, reach: Reach, constant: impl Fn(&LinkClass) -> f64) -> f64 {
        match reach {
            Reach::Host => constant(&self.model.intra),
            Reach::Network(_) => constant(&self.model.inter),
            Reach::Mixed(share) => {
                share * constant(&self.model.inter) + (1.0 - share) * constant(&self.model.intra)
            }
        }
    }

    /// A copy from memory to memory.
    pub(crate) fn copy(&mut self, bytes: f64) {
        let work = bytes / self.model.copy_bytes_per_second * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += work;
    }

    /// A reduction of so many bytes from memory to memory.
    pub(crate) fn reduce(&mut self, bytes: f64) {
        let work = bytes / self.model.reduce_bytes_per_second * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += work;
    }

    /// `ranks` ranks of each host copy so much into memory that the others read.
    pub(crate) fn publish(&mut self, ranks: u32, bytes: f64) {
        self.share(ranks, bytes, 0.0);
    }

    /// `ranks` ranks of each host copy so many bytes that others have published.
    pub(crate) fn take(&mut self, ranks: u32, bytes: f64) {
        self.share(ranks, bytes, 0.0);
    }

    /// `ranks` ranks of each host reduce the contributions of so many ranks, `bytes` each, their own included.
    pub(crate) fn fold(&mut self, ranks: u32, contributions: u32, bytes: f64) {
        let bytes = f64::from(contributions - 1) * bytes;
        self.share(ranks, bytes, bytes / self.model.reduce_bytes_per_second);
    }

    /// `ranks` ranks of each host reduce `sources` blocks of so many bytes into `targets` others, all of them where they lie. That is
    /// one pass, which reduces while it moves: see docs/tuning.md, "Symmetric buffers beside private ones".
    pub(crate) fn spread(&mut self, ranks: u32, sources: u32, targets: u32, bytes: f64) {
        let others = f64::from(sources - 1);
        // The first of the results is written by the reduction, where there is one.
        let copies = f64::from(targets) - if sources > 1 { 1.0 } else { 0.0 };
        let moved = (others + copies) * bytes;
        let reduced = others * bytes / self.model.reduce_bytes_per_second;
        self.share(ranks, moved, (reduced - moved / self.model.move_bytes_per_second).max(0.0));
    }

    /// `ranks` ranks of each host move so much to or from memory that all share, and work so long beside. The others leave the
    /// processors to them.
    fn share(&mut self, ranks: u32, bytes: f64, more: f64) {
        let share = f64::from(ranks) / f64::from(self.local);
        let turns = (self.model.oversubscription.max(1.0) * share).max(1.0);
        let moved = bytes / self.model.move_bytes_per_second;
        let memory = f64::from(ranks) * bytes / self.model.memory_bytes_per_second;
        let work = ((moved + more) * turns).max(memory);
        self.busy.memory += memory;
        self.busy.processor += work;
        self.path += work;
    }

    /// Every rank waits for so many others of its host to publish.
    pub(crate) fn meet(&mut self, others: u32) {
        let intra = &self.model.intra;
        let work = f64::from(others + 1) * intra.overhead_seconds * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += self.model.latency_seconds(intra) + work;
    }

    /// `messages` messages of `bytes` each to and from different ranks of the world, `width` at a time; between
    /// hosts never more than `params.width`, since networks do not bear many senders to one receiver.
    pub(crate) fn wave(&mut self, messages: u32, bytes: f64, reduces: bool, width: f64) {
        let near = f64::from(self.local - 1).min(f64::from(messages));
        let far = f64::from(messages) - near;
        let near = self.side(Reach::Host, near, bytes, reduces, width);
        self.path += near + self.side(Reach::Network(1.0), far, bytes, reduces, width.min(self.width));
    }

    /// The same with ranks of other hosts only.
    pub(crate) fn far_wave(&mut self, messages: u32, bytes: f64) {
        self.path += self.side(Reach::Network(1.0), messages.into(), bytes, false, self.width);
    }

    /// Time of the messages of a wave that go so far.
    fn side(&mut self, reach: Reach, count: f64, bytes: f64, reduces: bool, width: f64) -> f64 {
        if count <= 0.0 {
            return 0.0;
        }
        let pattern = Pattern::AllAtOnce(count.min(width));
        let Weight { turns, links, .. } = self.weight(pattern, reach, bytes, reduces);
        let transfer = self.transfer(reach, count, count * bytes * links);
        // The processor works while the link does; only the last message's work is in the open.
        let work = self.work(reach, count * turns, count * bytes, reduces);
        let waits =
            (count / width).ceil().max(1.0) * self.weigh(reach, |class| self.model.latency_seconds(class));
        waits + together(reach, transfer, work, count)
    }

    /// One rank sends to, or receives from, all others; the others have next to nothing to do.
    pub(crate) fn fan(&mut self, bytes: f64, reduces: bool) {
        let near = f64::from(self.local - 1);
        let far = f64::from(self.p) - 1.0 - near;
        let (mut time, mut latency) = (0.0, 0.0_f64);
        for (reach, count) in [(Reach::Host, near), (self.one_per_host(), far)] {
            if count > 0.0 {
                let Weight { processors, links, .. } = self.weight(Pattern::Fan, reach, bytes, reduces);
                let transfer = self.transfer(reach, count, count * bytes * links);
                // One end of each message only, but for the last one.
                let messages = (count + 1.0) / 2.0;
                let work = self.work(reach, messages * processors, count * bytes * processors, reduces);
                time += together(reach, transfer, work, count);
                latency = latency.max(self.weigh(reach, |class| self.model.latency_seconds(class)));
            }
        }
        self.path += time + latency;
    }

    /// A wave within each host.
    pub(crate) fn local_wave(&mut self, messages: u32, bytes: f64, reduces: bool) {
        let count = f64::from(messages);
        if messages > 0 {
            let transfer = self.transfer(Reach::Host, count, count * bytes);
            let work = self.work(Reach::Host, count, count * bytes, reduces);
            self.path +=
                self.model.latency_seconds(&self.model.intra) + together(Reach::Host, transfer, work, count);
        }
    }

    /// Exchanges with partners at doubling distance of messages that halve from `first`, if it is less than
    /// `whole`, after folding ranks that have no partner.
    pub(crate) fn doubling(&mut self, whole: f64, first: f64, reduces: bool) {
        if !self.p.is_power_of_two() && whole > 0.0 {
            self.exchange(Pattern::Pairs, self.partner(1), 1.0, whole, reduces);
            // In and out are different directions of the link, and the way back is taken by some ranks only.
            let busy = self.busy;
            self.exchange(Pattern::Pairs, self.partner(1), 1.0, whole, false);
            self.busy = busy;
        }
        let halves = first < whole || whole == 0.0;
        for round in 0..floor_log2(self.p) {
            let bytes = if halves { first / f64::from(1_u32 << round) } else { first };
            self.exchange(Pattern::Pairs, self.partner(1 << round), 1.0, bytes, reduces);
        }
    }
}

/// Time of `count` messages one behind the other. Between hosts the processor works while the link does, and only the last
/// message's work is in the open; inside a host the processor is the link.
fn together(reach: Reach, transfer: f64, work: f64, count: f64) -> f64 {
    match reach {
        Reach::Host => transfer + work,
        Reach::Network(_) | Reach::Mixed(_) => transfer.max(work) + transfer.min(work) / count,
    }
}
