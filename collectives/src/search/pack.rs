//! Packs trees into a network: distributes the parts of the data over trees so as to minimize the load of the busiest
//! resource.
//!
//! The resources are the sending and the receiving side of each host, and each pair of hosts with a rate below that of
//! both. Parts of the data are assigned one by one (multiplicative weights, after Garg and Könemann): a resource's
//! price grows with its load, and each part takes the tree that is cheapest at that moment. In an all-reduce, a tree's
//! edge carries a part once each way, so its price is that of both directions, and the cheapest tree is a minimum
//! spanning tree. On a network without slow pairs the trees are stars, with the shares that water-filling gives; a slow
//! pair makes trees with a relay, which reduces on the way.

use crate::plan::Collective;
use crate::simulate::Cluster;
use crate::task::Task;

/// Consecutive blocks that go along one tree of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Number of the first block.
    pub(super) first: u32,
    /// Number of blocks.
    pub(super) count: u32,
    /// The parent of each rank in the tree; the root has none.
    pub(super) parent: Vec<Option<u32>>,
}

/// All pieces of the data with their trees.
pub(super) struct Packing {
    pub(super) name: String,
    pub(super) pieces: Vec<Piece>,
}

/// Rates of the hosts' interfaces and of the pairs of hosts.
struct Rates {
    out: Vec<f64>,
    into: Vec<f64>,
    /// Rate from one host to another, by number; `None` where only the interfaces limit it.
    pairs: Vec<Option<f64>>,
}

/// A tree of hosts, as the parent of each.
type HostTree = Vec<Option<usize>>;

/// Steepness with which prices grow with load. Steep prices balance loads down to the last part; gentle ones keep to
/// shorter paths.
const STEEPNESS: [f64; 2] = [12.0, 40.0];

/// Returns packings of various depths.
pub(super) fn packings(task: &Task, cluster: &Cluster, trees_per_host: usize) -> Vec<Packing> {
    let hosts = cluster.hosts as usize;
    let rates = Rates::of(cluster);
    let mut depths = vec![1, 2, 3, hosts - 1];
    depths.retain(|depth| *depth < hosts);
    depths.dedup();
    let mut found: Vec<Packing> = Vec::new();
    for depth in depths {
        // Fewer parts make fewer and longer messages.
        for (parts, steepness) in [2 * hosts, 4 * hosts, trees_per_host * hosts]
            .into_iter()
            .flat_map(|parts| STEEPNESS.map(|steepness| (parts.max(16), steepness)))
        {
            let pieces = match task.collective {
                Collective::AllReduce | Collective::Broadcast => {
                    vector(task, cluster, Load::new(&rates, parts, steepness), (depth, parts))
                }
                _ => {
                    let load = Load::new(&rates, task.world_size as usize, steepness);
                    blocks(task, cluster, load, depth)
                }
            };
            let name = format!("trees of depth {depth} in {parts} parts");
            if !found.iter().any(|known| known.pieces == pieces) {
                found.push(Packing { name, pieces });
            }
        }
    }
    found
}

/// Distributes the parts of a vector; those of one tree are adjacent.
fn vector(task: &Task, cluster: &Cluster, mut load: Load<'_>, (depth, parts): (usize, usize)) -> Vec<Piece> {
    let root = (task.collective == Collective::Broadcast).then(|| cluster.host(task.root) as usize);
    let mut trees: Vec<(HostTree, u32)> = Vec::new();
    for _ in 0..parts {
        let tree = match root {
            Some(root) => load.grow(root, depth, false),
            None => load.cheapest(depth),
        };
        load.add(&tree, task.collective);
        match trees.iter_mut().find(|(known, _)| *known == tree) {
            Some((_, count)) => *count += 1,
            None => trees.push((tree, 1)),
        }
    }
    let per_host = cluster.ranks_per_host.max(1);
    let mut pieces = Vec::new();
    let mut first = 0;
    let mut rail = 0;
    for (tree, count) in trees {
        // The ranks of a host represent it in turn.
        let lanes = count.min(per_host);
        for lane in 0..lanes {
            let share = count / lanes + u32::from(lane < count % lanes);
            let speaker = |host: usize| match root {
                Some(of) if of == host => task.root,
                _ => host as u32 * per_host + rail % per_host,
            };
            pieces.push(Piece { first, count: share, parent: of_ranks(&tree, cluster, speaker) });
            (first, rail) = (first + share, rail + 1);
        }
    }
    pieces
}

/// Makes a tree for the block of each rank, rooted at that rank.
fn blocks(task: &Task, cluster: &Cluster, mut load: Load<'_>, depth: usize) -> Vec<Piece> {
    let per_host = cluster.ranks_per_host.max(1);
    // Blocks are assigned host by host in turn, so that no host's blocks come last.
    let mut order: Vec<u32> = (0..task.world_size).collect();
    order.sort_by_key(|rank| (rank % per_host, rank / per_host));
    let inward = task.collective == Collective::ReduceScatter;
    let mut pieces: Vec<Piece> = order
        .into_iter()
        .map(|rank| {
            let tree = load.grow(cluster.host(rank) as usize, depth, inward);
            load.add(&tree, task.collective);
            let speaker = |host: usize| host as u32 * per_host + rank % per_host;
            Piece { first: rank, count: 1, parent: of_ranks(&tree, cluster, speaker) }
        })
        .collect();
    pieces.sort_by_key(|piece| piece.first);
    pieces
}

/// Turns a tree of hosts into a tree of ranks: the hosts' speakers form the tree of hosts, and the other ranks are
/// attached to their speakers.
fn of_ranks(tree: &HostTree, cluster: &Cluster, speaker: impl Fn(usize) -> u32) -> Vec<Option<u32>> {
    let parent = |rank: u32| {
        let host = cluster.host(rank) as usize;
        if speaker(host) == rank { tree[host].map(&speaker) } else { Some(speaker(host)) }
    };
    (0..cluster.world_size()).map(parent).collect()
}

impl Rates {
    fn of(cluster: &Cluster) -> Self {
        let hosts = cluster.hosts as usize;
        let common = cluster.model.nic_bytes_per_second;
        let rate = |host: usize, out: bool| {
            cluster
                .rates
                .get(host)
                .map_or(common, |rate| if out { rate.out_bytes_per_second } else { rate.in_bytes_per_second })
        };
        let mut pairs = vec![None; hosts * hosts];
        for pair in &cluster.pairs {
            if let Some(slot) = pairs.get_mut(pair.from as usize * hosts + pair.to as usize) {
                *slot = Some(pair.bytes_per_second);
            }
        }
        Self {
            out: (0..hosts).map(|host| rate(host, true)).collect(),
            into: (0..hosts).map(|host| rate(host, false)).collect(),
            pairs,
        }
    }

    fn hosts(&self) -> usize {
        self.out.len()
    }
}

/// Seconds that each resource is busy with the parts assigned so far.
struct Load<'a> {
    rates: &'a Rates,
    out: Vec<f64>,
    into: Vec<f64>,
    pairs: Vec<f64>,
    /// The least possible load of the busiest resource, to which prices are relative.
    scale: f64,
    steepness: f64,
}

impl<'a> Load<'a> {
    fn new(rates: &'a Rates, parts: usize, steepness: f64) -> Self {
        let hosts = rates.hosts();
        let slowest = rates.out.iter().chain(&rates.into).copied().fold(f64::INFINITY, f64::min);
        let all: f64 = rates.out.iter().sum();
        let scale = parts as f64 * (1.0 / slowest).max(2.0 * (hosts as f64 - 1.0) / all);
        Self {
            rates,
            out: vec![0.0; hosts],
            into: vec![0.0; hosts],
            pairs: vec![0.0; hosts * hosts],
            scale,
            steepness,
        }
    }

    fn price(&self, busy: f64, rate: f64) -> f64 {
        (self.steepness * busy / self.scale).exp() / rate
    }

    /// Returns the price of a part that goes from one host to another.
    fn edge(&self, from: usize, to: usize) -> f64 {
        let pair = from * self.rates.hosts() + to;
        self.price(self.out[from], self.rates.out[from])
            + self.price(self.into[to], self.rates.into[to])
            + self.rates.pairs[pair].map_or(0.0, |rate| self.price(self.pairs[pair], rate))
    }

    /// Returns the cheapest tree, of at most this depth and with any root, for a part that goes along it in both
    /// directions.
    fn cheapest(&self, depth: usize) -> HostTree {
        let both = |from: usize, to: usize| self.edge(from, to) + self.edge(to, from);
        let trees = (0..self.rates.hosts()).map(|root| self.grow_by(root, depth, both));
        let best = trees.reduce(|best, next| if next.1 < best.1 * (1.0 - 1e-9) { next } else { best });
        best.map(|(tree, _)| tree).unwrap_or_default()
    }

    /// Returns the cheapest tree with this root; `inward` if data goes towards it.
    fn grow(&self, root: usize, depth: usize, inward: bool) -> HostTree {
        let edge = |parent: usize, child: usize| {
            if inward { self.edge(child, parent) } else { self.edge(parent, child) }
        };
        self.grow_by(root, depth, edge).0
    }

    /// Prim's algorithm with a bound on the depth. Returns the tree and its price; among equals, the first.
    fn grow_by(&self, root: usize, depth: usize, edge: impl Fn(usize, usize) -> f64) -> (HostTree, f64) {
        let hosts = self.rates.hosts();
        let mut parent = vec![None; hosts];
        let mut depths = vec![None; hosts];
        depths[root] = Some(0);
        let mut total = 0.0;
        for _ in 1..hosts {
            let mut best: Option<(f64, usize, usize)> = None;
            for from in (0..hosts).filter(|host| depths[*host].is_some_and(|at| at < depth)) {
                for to in (0..hosts).filter(|host| depths[*host].is_none()) {
                    let price = edge(from, to);
                    if best.is_none_or(|(least, ..)| price < least) {
                        best = Some((price, from, to));
                    }
                }
            }
            let Some((price, from, to)) = best else { break };
            (parent[to], depths[to]) = (Some(from), depths[from].map(|at| at + 1));
            total += price;
        }
        (parent, total)
    }

    /// Adds the load of a part that goes along a tree.
    fn add(&mut self, tree: &HostTree, collective: Collective) {
        let inward = matches!(collective, Collective::AllReduce | Collective::ReduceScatter);
        let outward = collective != Collective::ReduceScatter;
        for (child, parent) in tree.iter().enumerate().filter_map(|(child, parent)| Some((child, (*parent)?)))
        {
            if inward {
                self.pass(child, parent);
            }
            if outward {
                self.pass(parent, child);
            }
        }
    }

    fn pass(&mut self, from: usize, to: usize) {
        let pair = from * self.rates.hosts() + to;
        self.out[from] += 1.0 / self.rates.out[from];
        self.into[to] += 1.0 / self.rates.into[to];
        if let Some(rate) = self.rates.pairs[pair] {
            self.pairs[pair] += 1.0 / rate;
        }
    }
}
