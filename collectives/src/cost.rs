//! Closed-form costs: what the simulator would say, in a handful of operations.
//!
//! An algorithm is described as a sequence of exchanges, each priced with the constants of the [`Model`]. Two
//! things are summed up for one segment: the *path*, the time from start to end with nothing else going on; and
//! what each shared resource (link, interface, memory bus, processor) is *busy*. Segments in flight overlap, so
//! S segments with W in flight take
//!
//! > max(path, busy) + (S - 1) max(busy, path / W)
//!
//! (without the last term where data goes one way only).
//!
//! All inputs are the same on all ranks. So nothing here looks at where a rank's buffers lie: they are taken to lie apart.

use crate::Algorithm;
use crate::meeting::{LONG_BYTES, Meeting, Weight};
use crate::model::{LinkClass, Model};
use crate::plan::Collective;
use crate::rounds::{ceil_log2, floor_log2, halvings};
use crate::task::Task;

/// How the data of one operation is run through a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Bytes of the vector, or of the longest block where the collective has a block per rank.
    pub bytes: u64,
    /// Bytes of it per segment.
    pub segment_bytes: u64,
    /// Segments in flight, at least 1.
    pub window: u32,
}

/// Seconds that `algorithm` takes for `task`, which it must support.
#[must_use]
pub fn seconds(algorithm: Algorithm, task: &Task, flow: Flow, model: &Model) -> f64 {
    let segment = flow.segment_bytes.clamp(1, flow.bytes.max(1));
    let segments = flow.bytes.div_ceil(segment).max(1);
    let mut bill = Bill::new(task, model);
    bill.algorithm(algorithm, task, segment.min(flow.bytes) as f64);
    if segment as f64 > LONG_BYTES && reads_twice(task, flow.bytes, model) {
        bill.copy(segment as f64);
    }
    let busy = bill.link.max(bill.interface).max(bill.memory).max(bill.processor);
    let path = bill.path;
    // Where data goes one way only, a rank is done with a segment long before the last rank is, and the window
    // holds nobody up.
    let one_way =
        task.collective.is_rooted() || matches!(task.collective, Collective::Scan | Collective::ExScan);
    let turn = if one_way { 0.0 } else { path / f64::from(flow.window.max(1)) };
    model.call_seconds + path.max(busy) + (segments - 1) as f64 * busy.max(turn)
}

/// Whether a rank's own block, which it sends and puts into its output, comes from memory both times where segments are long:
/// all-gathers of 32 and 128 MiB between two ranks over loopback TCP take 1.1 to 1.2 times as long in segments of 4 MiB as in
/// those of 512 KiB. With buffers that the caches hold it makes no difference, and between hosts no copy counts.
fn reads_twice(task: &Task, bytes: u64, model: &Model) -> bool {
    let p = f64::from(task.world_size);
    // Of the outputs: ranks need not agree on whether they are in place.
    let held = p * p * bytes as f64 <= HELD_BYTES;
    task.collective == Collective::AllGather && !task.has_several_hosts() && model.has_system_calls() && !held
}

/// Bytes of buffers that a large processor's caches hold.
const HELD_BYTES: f64 = 32e6;

/// Bytes that the buffers of a host's ranks take for a call of `bytes`: of the vector, or of the longest block.
#[must_use]
pub fn footprint_bytes(task: &Task, bytes: u64) -> f64 {
    use Collective as C;
    let p = f64::from(task.world_size);
    let (input, output) = match task.collective {
        C::AllGather => (1.0, p),
        C::ReduceScatter => (p, 1.0),
        C::AllToAll => (p, p),
        // Blocks of all ranks on the root, one on the others.
        C::Gather | C::Scatter => (1.0, 1.0),
        C::Barrier => (0.0, 0.0),
        C::AllReduce | C::Broadcast | C::Reduce | C::Scan | C::ExScan => (1.0, 1.0),
    };
    let each = if task.collective == C::Broadcast { f64::max(input, output) } else { input + output };
    let hosts = task.host_count();
    each * bytes as f64 * f64::from(task.world_size.div_ceil(hosts))
}

/// Bytes of scratch that the plan takes per byte of a segment, on the rank that needs most.
#[must_use]
pub fn scratch_factor(algorithm: Algorithm, task: &Task) -> f64 {
    let p = f64::from(task.world_size);
    match (algorithm, task.collective) {
        (Algorithm::Circulant | Algorithm::Halving, Collective::ReduceScatter) => p / 2.0,
        (Algorithm::Ring, Collective::ReduceScatter) => p,
        // Where it is in place; ranks need not agree on that.
        (Algorithm::Direct, Collective::AllToAll) => p,
        (Algorithm::Bruck, Collective::AllToAll) => 2.0 * p,
        (Algorithm::Binomial, Collective::Gather | Collective::Scatter) => p / 2.0,
        // A block per host, and a host has two ranks at least.
        (Algorithm::Hierarchical, Collective::ReduceScatter) => p / 2.0,
        (Algorithm::OneShot, _) => f64::from(ceil_log2(task.world_size)).max(1.0),
        (Algorithm::RecursiveDoubling, _) => 3.0,
        (Algorithm::Chain, Collective::ExScan) => 2.0,
        (Algorithm::Ring | Algorithm::Halving | Algorithm::Tree, _) => 0.0,
        _ => 1.0,
    }
}

/// How far the messages of an exchange go.
#[derive(Clone, Copy, Debug)]
enum Reach {
    /// To a rank of the same host.
    Host,
    /// To another host: for this share of a host's ranks at the same time.
    Network(f64),
    /// To another host for this share of the ranks, to the same host for the others. A chain of such exchanges
    /// meets both kinds in that proportion.
    Mixed(f64),
}

struct Bill {
    /// Inside a host processors do the moving: ranks that share one share the speed of the link too.
    model: Model,
    /// Ranks, hosts, and ranks on a host.
    p: u32,
    hosts: u32,
    local: u32,
    width: f64,
    path: f64,
    link: f64,
    interface: f64,
    memory: f64,
    processor: f64,
}

impl Bill {
    fn new(task: &Task, model: &Model) -> Self {
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
            path: 0.0,
            link: 0.0,
            interface: 0.0,
            memory: 0.0,
            processor: 0.0,
        }
    }

    fn algorithm(&mut self, algorithm: Algorithm, task: &Task, n: f64) {
        use Algorithm as A;
        use Collective as C;
        let p = self.p;
        if p == 1 {
            return self.copy(n);
        }
        let share = n / f64::from(p);
        let parts = task.params.parts.max(1);
        let channels = f64::from(task.params.channels.max(1));
        let rounds = ceil_log2(p);
        match (algorithm, task.collective) {
            (A::OneShot, C::Reduce) => self.fan(n, true),
            (A::OneShot, _) => {
                self.wave(p - 1, n, true, f64::INFINITY);
                // The order is fixed, so that what arrives is put down first and reduced later.
                self.copy(n * f64::from(p - 1));
            }
            (A::RecursiveDoubling, C::AllReduce) => self.doubling(n, n, true),
            (A::RecursiveDoubling, C::Barrier) => self.doubling(0.0, 0.0, false),
            (A::RecursiveDoubling, _) => {
                for round in 0..rounds {
                    self.exchange(Meeting::Circle, self.circle(1 << round), 1.0, n, true);
                }
            }
            (A::Halving, C::ReduceScatter | C::AllGather) => {
                for round in 0..rounds {
                    let blocks = f64::from(1_u32 << round);
                    let reduces = task.collective == C::ReduceScatter;
                    self.exchange(Meeting::Pairs, self.partner(1 << round), 1.0, n * blocks, reduces);
                }
            }
            (A::Halving, _) => {
                self.doubling(n, n / 2.0, true);
                self.doubling(0.0, n / 2.0, false);
            }
            (A::Circulant, C::AllReduce) => {
                self.circulant(p, share, true, None);
                self.circulant(p, share, false, None);
            }
            (A::Circulant, C::ReduceScatter) => self.circulant(p, n, true, None),
            (A::Circulant | A::Bruck, C::AllGather) => self.circulant(p, n, false, None),
            // Two ranks have no rounds: all blocks go one after the other.
            (A::Circulant, collective) if p == 2 => {
                self.exchange(Meeting::Pairs, self.circle(1), f64::from(parts), n, collective == C::Reduce);
            }
            (A::Circulant, collective) => {
                let skips = halvings(p);
                for round in (0..parts - 1 + rounds).rev() {
                    let reach = self.circle(skips[(round % rounds) as usize + 1]);
                    self.exchange(
                        Meeting::Pipeline,
                        reach,
                        1.0,
                        n / f64::from(parts),
                        collective == C::Reduce,
                    );
                }
            }
            (A::Ring, C::AllReduce) => {
                self.ring(p - 1, channels, share, true);
                self.ring(p - 1, channels, share, false);
            }
            (A::Ring, collective) => self.ring(p - 1, 1.0, n, collective == C::ReduceScatter),
            (A::Tree, _) => self.tree(n),
            (A::Binomial, C::Broadcast | C::Reduce) => {
                for round in 0..rounds {
                    let (meeting, reach) = (Meeting::OneWay(self.branches(round)), self.branch(1 << round));
                    self.exchange(meeting, reach, 1.0, n, task.collective == C::Reduce);
                }
            }
            (A::Binomial, _) => {
                for round in 0..rounds {
                    let blocks = (1_u32 << round).min(p - (1 << round));
                    // The longer the messages, the fewer they are.
                    let meeting = Meeting::OneWay(self.branches(rounds - 1 - round));
                    self.exchange(meeting, self.branch(1 << round), 1.0, n * f64::from(blocks), false);
                }
                self.copy(n);
            }
            (A::Direct, C::AllReduce) => {
                self.wave(p - 1, share, true, f64::INFINITY);
                self.wave(p - 1, share, false, f64::INFINITY);
            }
            (A::Direct, C::ReduceScatter) => self.wave(p - 1, n, true, f64::INFINITY),
            (A::Direct, C::Broadcast | C::Gather | C::Scatter) => self.fan(n, false),
            (A::Direct, _) => {
                self.wave(p - 1, n, false, self.width);
                self.copy(n);
            }
            (A::Bruck, _) => {
                let moved = n * f64::from(p / 2);
                self.copy(2.0 * n * f64::from(p));
                for round in 0..rounds {
                    self.copy(2.0 * moved);
                    self.exchange(Meeting::Circle, self.circle(1 << round), 1.0, moved, false);
                }
            }
            (A::Dissemination, _) => {
                for round in 0..rounds {
                    self.exchange(Meeting::Circle, self.circle(1 << round), 1.0, 0.0, false);
                }
            }
            (A::Chain, collective) => {
                let busy = (self.link, self.interface, self.memory, self.processor);
                for _ in 0..p - 1 {
                    (self.link, self.interface, self.memory, self.processor) = busy;
                    self.exchange(Meeting::Pipeline, self.circle(1), 1.0, n, collective != C::Broadcast);
                }
            }
            (A::Hierarchical, C::AllReduce) => {
                let slice = n / f64::from(self.local);
                self.local_wave(self.local - 1, slice, true);
                let piece = slice / f64::from(self.hosts);
                self.circulant(self.hosts, piece, true, Some(1.0));
                self.circulant(self.hosts, piece, false, Some(1.0));
                self.local_wave(self.local - 1, slice, false);
            }
            (A::Hierarchical, C::ReduceScatter) => {
                self.local_wave((self.local - 1) * self.hosts, n, true);
                for _ in 0..self.hosts - 1 {
                    self.exchange(Meeting::Pairs, Reach::Network(1.0), 1.0, n, true);
                }
            }
            (A::Hierarchical, _) => {
                for _ in 0..self.hosts - 1 {
                    self.exchange(Meeting::Pairs, Reach::Network(1.0), 1.0, n, false);
                }
                self.local_wave((self.local - 1) * self.hosts, n, false);
            }
            (A::Leader, collective) => {
                let one = Reach::Network(1.0 / f64::from(self.local));
                let reduces = matches!(collective, C::AllReduce | C::Reduce);
                let both = matches!(collective, C::AllReduce | C::Barrier);
                let n = if collective == C::Barrier { 0.0 } else { n };
                for _ in 0..ceil_log2(self.local) {
                    self.exchange(Meeting::Pairs, Reach::Host, 1.0, n, reduces);
                    if both {
                        self.exchange(Meeting::Pairs, Reach::Host, 1.0, n, false);
                    }
                }
                let fold = if self.hosts.is_power_of_two() || collective != C::AllReduce { 0 } else { 1 };
                for _ in 0..ceil_log2(self.hosts) + fold {
                    self.exchange(Meeting::Pairs, one, 1.0, n, reduces);
                }
            }
        }
    }

    /// How far `distance` places round the circle go, ranks being consecutive on hosts.
    fn circle(&self, distance: u32) -> Reach {
        if self.hosts == 1 {
            Reach::Host
        } else if distance >= self.local {
            Reach::Network(1.0)
        } else {
            Reach::Mixed(f64::from(distance) / f64::from(self.local))
        }
    }

    /// How far the edge of a binomial tree goes, of which there is one at a time on a host.
    fn branch(&self, distance: u32) -> Reach {
        if self.hosts == 1 || distance < self.local {
            Reach::Host
        } else {
            Reach::Network(1.0 / f64::from(self.local))
        }
    }

    /// The share of the ranks that a round of a binomial tree concerns, when `round` rounds were before it.
    fn branches(&self, round: u32) -> f64 {
        (f64::from(2_u32 << round) / f64::from(self.p)).min(1.0)
    }

    /// How far partners are whose numbers differ in one bit: they share a host if that bit is low.
    fn partner(&self, distance: u32) -> Reach {
        if self.hosts == 1 || distance < self.local { Reach::Host } else { Reach::Network(1.0) }
    }

    /// All ranks send and receive `messages` messages, `bytes` in all, and go on when they have.
    fn exchange(&mut self, meeting: Meeting, reach: Reach, messages: f64, bytes: f64, reduces: bool) {
        let Weight { turns, processors, links } = self.weight(meeting, reach, bytes, reduces);
        let latency = turns * self.weigh(reach, |class| self.model.latency_seconds(class));
        let transfer = self.transfer(reach, bytes * links);
        let work = self.work(reach, turns * processors * messages, processors * bytes, reduces);
        self.path += latency + transfer + work;
    }

    fn weight(&self, meeting: Meeting, reach: Reach, bytes: f64, reduces: bool) -> Weight {
        match reach {
            Reach::Host => meeting.weight(&self.model, self.p, bytes, reduces),
            Reach::Network(_) | Reach::Mixed(_) => Weight::ONE,
        }
    }

    /// The processor's part of sending and receiving.
    fn work(&mut self, reach: Reach, messages: f64, bytes: f64, reduces: bool) -> f64 {
        let overhead = 2.0 * messages * self.weigh(reach, |class| class.overhead_seconds);
        let reduce = if reduces { bytes / self.model.reduce_bytes_per_second } else { 0.0 };
        let work = (overhead + reduce) * self.model.oversubscription.max(1.0);
        self.processor += work;
        work
    }

    /// The network's part; the most used resource tells how long it takes.
    fn transfer(&mut self, reach: Reach, bytes: f64) -> f64 {
        let link = bytes * self.weigh(reach, LinkClass::seconds_per_byte);
        // Some rank is always on the slower kind.
        self.link += match reach {
            Reach::Host => link,
            Reach::Network(_) | Reach::Mixed(_) => bytes * self.model.inter.seconds_per_byte(),
        };
        let ranks = f64::from(self.local);
        let crossing = match reach {
            Reach::Host => 0.0,
            Reach::Network(share) | Reach::Mixed(share) => share,
        };
        let interface = if crossing > 0.0 {
            (ranks * crossing).max(1.0) * bytes / self.model.nic_bytes_per_second
        } else {
            0.0
        };
        let memory = 2.0 * ranks * (1.0 - crossing) * bytes / self.model.memory_bytes_per_second;
        let memory = if self.local > 1 { memory } else { 0.0 };
        self.interface += interface;
        self.memory += memory;
        if matches!(reach, Reach::Host) {
            // Inside a host processors do the moving, and reduce nothing meanwhile.
            self.processor += link.max(memory);
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

    fn copy(&mut self, bytes: f64) {
        let work = bytes / self.model.copy_bytes_per_second * self.model.oversubscription.max(1.0);
        self.processor += work;
        self.path += work;
    }

    /// `messages` messages of `bytes` each to and from different ranks of the world, `width` at a time; between
    /// hosts never more than `params.width`, since networks do not bear many senders to one receiver.
    fn wave(&mut self, messages: u32, bytes: f64, reduces: bool, width: f64) {
        let near = f64::from(self.local - 1).min(f64::from(messages));
        let far = f64::from(messages) - near;
        let mut time = 0.0;
        for (reach, count) in [(Reach::Host, near), (Reach::Network(1.0), far)] {
            if count > 0.0 {
                let width = if matches!(reach, Reach::Host) { width } else { width.min(self.width) };
                let crowd = Meeting::Crowd(count.min(width));
                let Weight { turns, links, .. } = self.weight(crowd, reach, bytes, reduces);
                let transfer = self.transfer(reach, count * bytes * links);
                // The processor works while the link does; only the last message's work is in the open.
                let work = self.work(reach, count * turns, count * bytes, reduces);
                let waits = (count / width).ceil().max(1.0)
                    * self.weigh(reach, |class| self.model.latency_seconds(class));
                time += waits + together(reach, transfer, work, count);
            }
        }
        self.path += time;
    }

    /// One rank sends to, or receives from, all others; the others have next to nothing to do.
    fn fan(&mut self, bytes: f64, reduces: bool) {
        let near = f64::from(self.local - 1);
        let far = f64::from(self.p) - 1.0 - near;
        let (mut time, mut latency) = (0.0, 0.0_f64);
        for (reach, count) in [(Reach::Host, near), (Reach::Network(1.0 / f64::from(self.local)), far)] {
            if count > 0.0 {
                let Weight { processors, links, .. } = self.weight(Meeting::Fan, reach, bytes, reduces);
                let transfer = self.transfer(reach, count * bytes * links);
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
    fn local_wave(&mut self, messages: u32, bytes: f64, reduces: bool) {
        let count = f64::from(messages);
        if messages > 0 {
            let transfer = self.transfer(Reach::Host, count * bytes);
            let work = self.work(Reach::Host, count, count * bytes, reduces);
            self.path +=
                self.model.latency_seconds(&self.model.intra) + together(Reach::Host, transfer, work, count);
        }
    }

    /// Exchanges with partners at doubling distance of messages that halve from `first`, if it is less than
    /// `whole`, after folding ranks that have no partner.
    fn doubling(&mut self, whole: f64, first: f64, reduces: bool) {
        if !self.p.is_power_of_two() && whole > 0.0 {
            self.exchange(Meeting::Pairs, self.partner(1), 1.0, whole, reduces);
            // In and out are different directions of the link, and the way back is taken by some ranks only.
            let busy = (self.link, self.interface, self.memory, self.processor);
            self.exchange(Meeting::Pairs, self.partner(1), 1.0, whole, false);
            (self.link, self.interface, self.memory, self.processor) = busy;
        }
        let halves = first < whole || whole == 0.0;
        for round in 0..floor_log2(self.p) {
            let bytes = if halves { first / f64::from(1_u32 << round) } else { first };
            self.exchange(Meeting::Pairs, self.partner(1 << round), 1.0, bytes, reduces);
        }
    }

    /// The circulant exchange among `p` ranks or hosts; `share` of a host's ranks cross, if given.
    fn circulant(&mut self, p: u32, block: f64, reduces: bool, share: Option<f64>) {
        for active in halvings(p).windows(2) {
            let reach = share.map_or_else(|| self.circle(active[1]), Reach::Network);
            // A range that wraps is two messages, on some rank of every round.
            let messages = if active[0] - active[1] > 1 { 2.0 } else { 1.0 };
            let bytes = f64::from(active[0] - active[1]) * block;
            self.exchange(Meeting::Circle, reach, messages, bytes, reduces);
        }
    }

    fn ring(&mut self, rounds: u32, channels: f64, block: f64, reduces: bool) {
        let reach = self.circle(1);
        for _ in 0..rounds {
            self.exchange(Meeting::Neighbours, reach, channels, block, reduces);
        }
    }

    /// Up and down two trees at once. A level moves half of the vector; where both children come at the same
    /// time, or are served one after the other, twice that: three quarters are typical. Over a segment, each rank
    /// passes on every byte twice.
    fn tree(&mut self, n: f64) {
        let (inner, outer) = if self.hosts == 1 {
            (floor_log2(self.p), 0)
        } else {
            (floor_log2(self.local), floor_log2(self.hosts))
        };
        let one = Reach::Network(1.0 / f64::from(self.local));
        let busy = (self.link, self.interface, self.memory, self.processor);
        for (reach, levels) in [(Reach::Host, inner), (one, outer)] {
            for _ in 0..levels {
                self.exchange(Meeting::Pairs, reach, 1.5, 0.75 * n, true);
                self.exchange(Meeting::Pairs, reach, 1.5, 0.75 * n, false);
            }
        }
        (self.link, self.interface, self.memory, self.processor) = busy;
        let reach = if outer > 0 { one } else { Reach::Host };
        let full = if self.p > 2 { 2.0 } else { 1.0 };
        self.transfer(reach, full * n);
        self.work(reach, 2.0 * full, n, true);
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
