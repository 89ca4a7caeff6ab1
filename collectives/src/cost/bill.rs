//! Cost of a plan, summed exchange by exchange. Generators state their costs by the methods of [`Bill`].

use std::sync::Arc;

use crate::contention::{Pattern, Weight};
use crate::model::{LinkClass, Model};
use crate::rounds::{Fold, floor_log2};
use crate::task::Task;

/// Distance that the messages of an exchange go.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach {
    /// To a rank of the same host.
    Host,
    /// To another host, for this share of a host's ranks at the same time; above 1 if the busiest host has more ranks than
    /// others.
    Network(f64),
    /// To another host for this share of the ranks, within the host for the others. A chain of such exchanges meets
    /// both kinds in that proportion.
    Mixed(f64),
}

/// Time that the shared resources work, in seconds each.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Busy {
    link: f64,
    interface: f64,
    memory: f64,
    processor: f64,
}

impl Busy {
    /// Returns the time of the busiest resource.
    pub(crate) fn most(&self) -> f64 {
        self.link.max(self.interface).max(self.memory).max(self.processor)
    }

    fn since(self, before: Self) -> Self {
        self.and(before.times(-1.0))
    }

    fn times(self, times: f64) -> Self {
        let Self { link, interface, memory, processor } = self;
        let [link, interface, memory, processor] =
            [link, interface, memory, processor].map(|seconds| times * seconds);
        Self { link, interface, memory, processor }
    }

    fn and(self, more: Self) -> Self {
        Self {
            link: self.link + more.link,
            interface: self.interface + more.interface,
            memory: self.memory + more.memory,
            processor: self.processor + more.processor,
        }
    }
}

/// The cost of one segment, to which a generator adds the exchanges of its plan in order.
pub(crate) struct Bill {
    /// Inside a host processors move the data, so ranks that share a processor also share the speed of the link.
    model: Model,
    p: u32,
    /// Number of hosts.
    pub(crate) hosts: u32,
    /// Ranks per host.
    pub(crate) local: u32,
    /// The host of each rank, if the distance between two ranks does not say whether they share a host.
    pub(crate) placement: Option<Arc<[u32]>>,
    width: f64,
    /// Bytes that a rank receives in one phase of the whole call.
    inbound: f64,
    /// Whether each rank sends no more at a time than the receivers' links carry.
    pub(crate) suits_links: bool,
    /// Time from start to end with nothing else going on, in seconds.
    pub(crate) path: f64,
    /// Time that shared resources work meanwhile. A generator saves this value and restores it afterwards where
    /// exchanges use a resource that the exchanges before them leave idle.
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
            placement: placement(task, hosts),
            width: f64::from(task.params.width.max(1)),
            inbound,
            suits_links: false,
            path: 0.0,
            busy: Busy::default(),
        }
    }

    /// Returns how far a message goes over `distance` places round the circle, with consecutive ranks on each host.
    pub(crate) fn circle(&self, distance: u32) -> Reach {
        if self.hosts == 1 {
            Reach::Host
        } else if distance >= self.local {
            Reach::Network(1.0)
        } else {
            Reach::Mixed(f64::from(distance) / f64::from(self.local))
        }
    }

    /// Returns how far an edge of a binomial tree goes; at most one such edge leaves a host at a time.
    pub(crate) fn branch(&self, distance: u32) -> Reach {
        if self.hosts == 1 || distance < self.local { Reach::Host } else { self.one_per_host() }
    }

    /// Returns the factor on the bytes of whole vectors that hosts exchange in pairs which change in every round.
    pub(crate) fn interleaving(&self, bytes: f64) -> f64 {
        self.model.interleaving(self.hosts, bytes)
    }

    /// Reach of an exchange in which one rank of each host at a time sends to another host.
    pub(crate) fn one_per_host(&self) -> Reach {
        Reach::Network(1.0 / f64::from(self.local))
    }

    /// Returns the share of the ranks that take part in round `round` of a binomial tree.
    pub(crate) fn branches(&self, round: u32) -> f64 {
        (f64::from(2_u32 << round) / f64::from(self.p)).min(1.0)
    }

    /// Returns how far apart partners are whose numbers differ in one bit: they share a host if that bit is low.
    pub(crate) fn partner(&self, distance: u32) -> Reach {
        if let Some(placement) = &self.placement {
            let active = 0..1 << floor_log2(self.p);
            let first = active.filter(|index| index & distance == 0);
            let rank = |index| Fold::rank_of(index, self.p);
            return self.apart(placement, first.map(|index| (rank(index), rank(index | distance))));
        }
        if self.hosts == 1 || distance < self.local { Reach::Host } else { Reach::Network(1.0) }
    }

    /// Returns how far ranks without a partner are from the ranks that act for them.
    fn substitute(&self) -> Reach {
        let Some(placement) = &self.placement else { return self.partner(1) };
        let extras = self.p - (1 << floor_log2(self.p));
        self.apart(placement, (0..extras).map(|pair| (2 * pair, 2 * pair + 1)))
    }

    /// Returns how far the messages between these pairs of ranks go. The host that most of them leave decides.
    fn apart(&self, placement: &[u32], pairs: impl Iterator<Item = (u32, u32)>) -> Reach {
        match leaving(placement, pairs) {
            0 => Reach::Host,
            most => Reach::Network(f64::from(most) / f64::from(self.local)),
        }
    }

    /// Adds an exchange: all ranks send and receive `messages` messages, `bytes` in all, and then go on.
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
                // Where hosts have several ranks, the connections of one rank are busy while another's are idle.
                let hosts = if self.local == 1 && !self.suits_links { self.hosts } else { 2 };
                let unsteadiness = |senders| self.model.unsteadiness(hosts, senders, self.inbound);
                let links = match pattern {
                    Pattern::Neighbours | Pattern::Pipeline => 1.0,
                    Pattern::AllAtOnce(senders) => unsteadiness(senders),
                    Pattern::Fan => self.model.fan_unsteadiness(hosts, self.inbound),
                    _ => unsteadiness(1.0),
                };
                Weight { links, ..Weight::ONE }
            }
        }
    }

    /// Adds and returns the processor time of sending and receiving. Ranks that take no part leave the processors to
    /// the others.
    pub(crate) fn work(&mut self, reach: Reach, messages: f64, bytes: f64, reduces: bool) -> f64 {
        let overhead = 2.0 * messages * self.weigh(reach, |class| class.overhead_seconds);
        let reduce = if reduces { bytes / self.model.reduce_bytes_per_second } else { 0.0 };
        let share = if let Reach::Network(share) = reach { share } else { 1.0 };
        let sharers = (self.model.oversubscription * share).max(1.0);
        // A rank that shares a processor waits for its turn once for each message from the network.
        let turns = match reach {
            Reach::Network(_) if sharers > 1.0 => messages * self.model.switch_seconds,
            _ => 0.0,
        };
        let work = (overhead + turns + reduce) * sharers;
        self.busy.processor += work;
        work
    }

    /// Adds the time of link, interface and memory bus, and returns the longest of them.
    pub(crate) fn transfer(&mut self, reach: Reach, messages: f64, bytes: f64) -> f64 {
        let link = bytes * self.weigh(reach, LinkClass::seconds_per_byte);
        // Some rank always sends over the slower kind of link.
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
        let memory = 2.0 * ranks * (1.0 - crossing).max(0.0) * bytes / self.model.memory_bytes_per_second;
        let memory = if self.local > 1 { memory } else { 0.0 };
        self.busy.interface += interface;
        self.busy.memory += memory;
        if matches!(reach, Reach::Host) {
            // Inside a host, processors move the data and cannot reduce meanwhile.
            self.busy.processor += link.max(memory);
        }
        match reach {
            Reach::Mixed(share) => link.max(interface * share).max(memory),
            _ => link.max(interface).max(memory),
        }
    }

    /// Returns a constant of the class of links that the exchange uses, or the weighted mean of both classes.
    fn weigh(&self, reach: Reach, constant: impl Fn(&LinkClass) -> f64) -> f64 {
        match reach {
            Reach::Host => constant(&self.model.intra),
            Reach::Network(_) => constant(&self.model.inter),
            Reach::Mixed(share) => {
                share * constant(&self.model.inter) + (1.0 - share) * constant(&self.model.intra)
            }
        }
    }

    /// Adds a copy from memory to memory.
    pub(crate) fn copy(&mut self, bytes: f64) {
        let work = bytes / self.model.copy_bytes_per_second * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += work;
    }

    /// Adds a reduction of this many bytes from memory to memory.
    pub(crate) fn reduce(&mut self, bytes: f64) {
        let work = bytes / self.model.reduce_bytes_per_second * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += work;
    }

    /// Adds a publication: `ranks` ranks of each host copy this many bytes into shared memory.
    pub(crate) fn publish(&mut self, ranks: u32, bytes: f64) {
        self.share(ranks, bytes, 0.0);
    }

    /// Adds a copy by `ranks` ranks of each host of this many bytes that others have published.
    pub(crate) fn take(&mut self, ranks: u32, bytes: f64) {
        self.share(ranks, bytes, 0.0);
    }

    /// Adds a reduction by `ranks` ranks of each host over the contributions of this many ranks, `bytes` each, their
    /// own included.
    pub(crate) fn fold(&mut self, ranks: u32, contributions: u32, bytes: f64) {
        let bytes = f64::from(contributions - 1) * bytes;
        self.share(ranks, bytes, bytes / self.model.reduce_bytes_per_second);
    }

    /// Adds a reduction by `ranks` ranks of each host of `sources` blocks of this many bytes into `targets` others, all
    /// in place. That is one pass, which reduces while it moves: see docs/measurements.md, "Symmetric and private
    /// buffers".
    pub(crate) fn spread(&mut self, ranks: u32, sources: u32, targets: u32, bytes: f64) {
        let others = f64::from(sources - 1);
        // The reduction itself, if there is one, writes the first of the results.
        let copies = f64::from(targets) - if sources > 1 { 1.0 } else { 0.0 };
        let moved = (others + copies) * bytes;
        let reduced = others * bytes / self.model.reduce_bytes_per_second;
        self.share(ranks, moved, (reduced - moved / self.model.move_bytes_per_second).max(0.0));
    }

    /// Adds the time in which `ranks` ranks of each host move this many bytes to or from shared memory and do `more`
    /// seconds of other work. The other ranks leave the processors to them.
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

    /// Adds the wait of every rank until this many others of its host have published.
    pub(crate) fn meet(&mut self, others: u32) {
        let intra = &self.model.intra;
        let work = f64::from(others + 1) * intra.overhead_seconds * self.model.oversubscription.max(1.0);
        self.busy.processor += work;
        self.path += self.model.latency_seconds(intra) + work;
    }

    /// Adds `messages` messages of `bytes` each to and from different ranks of the world, `width` at a time. Between
    /// hosts at most `params.width` are in flight, since networks do not bear many senders to one receiver.
    pub(crate) fn wave(&mut self, messages: u32, bytes: f64, reduces: bool, width: f64) {
        let near = f64::from(self.local - 1).min(f64::from(messages));
        let far = f64::from(messages) - near;
        let near = self.side(Reach::Host, near, bytes, reduces, width);
        self.path += near + self.side(Reach::Network(1.0), far, bytes, reduces, width.min(self.width));
    }

    /// Adds a wave whose messages all go to ranks of other hosts.
    pub(crate) fn far_wave(&mut self, messages: u32, bytes: f64) {
        self.path += self.side(Reach::Network(1.0), messages.into(), bytes, false, self.width);
    }

    /// Adds two parts of a plan that run at the same time, on lanes of their own. Both use the resources.
    pub(crate) fn beside(&mut self, one: impl FnOnce(&mut Self), other: impl FnOnce(&mut Self)) {
        let begin = self.path;
        one(self);
        let end = std::mem::replace(&mut self.path, begin);
        other(self);
        self.path = self.path.max(end);
    }

    /// Repeats what has used resources after `before` was saved. Each repetition begins as soon as the busiest resource
    /// is free.
    pub(crate) fn repeat(&mut self, before: Busy, times: f64) {
        let more = self.busy.since(before).times(times);
        self.path += more.most();
        self.busy = self.busy.and(more);
    }

    /// Returns the time of those messages of a wave that have this reach.
    fn side(&mut self, reach: Reach, count: f64, bytes: f64, reduces: bool, width: f64) -> f64 {
        if count <= 0.0 {
            return 0.0;
        }
        let pattern = Pattern::AllAtOnce(count.min(width));
        let Weight { turns, links, .. } = self.weight(pattern, reach, bytes, reduces);
        let transfer = self.transfer(reach, count, count * bytes * links);
        // The processor works while the link does; only the work on the last message is not hidden.
        let work = self.work(reach, count * turns, count * bytes, reduces);
        let waits =
            (count / width).ceil().max(1.0) * self.weigh(reach, |class| self.model.latency_seconds(class));
        waits + together(reach, transfer, work, count)
    }

    /// Adds a fan: one rank sends to, or receives from, all others, which have almost nothing to do.
    pub(crate) fn fan(&mut self, bytes: f64, reduces: bool) {
        let near = f64::from(self.local - 1);
        let far = f64::from(self.p) - 1.0 - near;
        let (mut time, mut latency) = (0.0, 0.0_f64);
        for (reach, count) in [(Reach::Host, near), (self.one_per_host(), far)] {
            if count > 0.0 {
                let Weight { processors, links, .. } = self.weight(Pattern::Fan, reach, bytes, reduces);
                let transfer = self.transfer(reach, count, count * bytes * links);
                // The one rank handles a single end of each message; only the last message has both ends on the path.
                let messages = (count + 1.0) / 2.0;
                let work = self.work(reach, messages * processors, count * bytes * processors, reduces);
                time += together(reach, transfer, work, count);
                latency = latency.max(self.weigh(reach, |class| self.model.latency_seconds(class)));
            }
        }
        self.path += time + latency;
    }

    /// Adds a wave within each host.
    pub(crate) fn local_wave(&mut self, messages: u32, bytes: f64, reduces: bool) {
        let count = f64::from(messages);
        if messages > 0 {
            let transfer = self.transfer(Reach::Host, count, count * bytes);
            let work = self.work(Reach::Host, count, count * bytes, reduces);
            self.path +=
                self.model.latency_seconds(&self.model.intra) + together(Reach::Host, transfer, work, count);
        }
    }

    /// Adds exchanges with partners at doubling distance. Messages halve from `first` if it is less than `whole`. Ranks
    /// without a partner hand their contribution over first and get the result at the end.
    pub(crate) fn doubling(&mut self, whole: f64, first: f64, reduces: bool) {
        if !self.p.is_power_of_two() && whole > 0.0 {
            let reach = self.substitute();
            self.exchange(Pattern::Pairs, reach, 1.0, whole, reduces);
            // Both ways use different directions of the link, and only some ranks use the way back.
            let busy = self.busy;
            self.exchange(Pattern::Pairs, reach, 1.0, whole, false);
            self.busy = busy;
        }
        let halves = first < whole || whole == 0.0;
        for round in 0..floor_log2(self.p) {
            let bytes = if halves { first / f64::from(1_u32 << round) } else { first };
            self.exchange(Pattern::Pairs, self.partner(1 << round), 1.0, bytes, reduces);
        }
    }
}

/// Returns the host of each rank; `None` where the distance between two ranks tells whether they share one, that is, with one
/// rank per host, or with a power of two of consecutive ranks on each of as many hosts.
fn placement(task: &Task, hosts: u32) -> Option<Arc<[u32]>> {
    let (p, placement) = (task.world_size, task.hosts.as_ref()?);
    let local = p.div_ceil(hosts);
    let begins = |rank: usize| rank - rank % local as usize;
    let is_even = local.is_power_of_two()
        && p == hosts * local
        && p.is_power_of_two()
        && (0..placement.len()).all(|rank| placement[rank] == placement[begins(rank)]);
    let is_listed = placement.len() == p as usize && placement.iter().all(|host| *host < p);
    (hosts > 1 && local > 1 && !is_even && is_listed).then(|| Arc::clone(placement))
}

/// Returns how many of these pairs of ranks are parted by the border of a host: the number for the host that has the most.
pub(crate) fn leaving(placement: &[u32], pairs: impl Iterator<Item = (u32, u32)>) -> u32 {
    let mut counts = vec![0; placement.len()];
    for (one, other) in pairs {
        let [one, other] = [one, other].map(|rank| placement[rank as usize] as usize);
        if one != other {
            counts[one] += 1;
            counts[other] += 1;
        }
    }
    counts.into_iter().max().unwrap_or(0)
}

/// Returns the time of `count` messages, one after the other. Between hosts the processor works while the link does,
/// and only the work on the last message is not hidden; inside a host the processor is the link.
fn together(reach: Reach, transfer: f64, work: f64, count: f64) -> f64 {
    match reach {
        Reach::Host => transfer + work,
        Reach::Network(_) | Reach::Mixed(_) => transfer.max(work) + transfer.min(work) / count,
    }
}
