//! Types as nested loops over runs of bytes, from which packing and unpacking work.
//!
//! A list of the runs of a vector is longer than the vector's data if its blocks are short. A loop takes some words, whatever its length.

use super::layout::Run;
use super::{Blocks, Type};

/// Equal runs of bytes at equal distances, a loop, or a list of runs.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `count` runs of `len` bytes each, one every `stride` bytes.
    Strip { len: usize, count: usize, stride: i64 },
    /// The nodes of `body`, `count` times, `stride` bytes apart.
    Loop { body: Body, count: usize, stride: i64 },
    /// Runs without a pattern. A run ends where the data of the next one begins; the last entry is only an end.
    List(Box<[Place]>),
}

/// A run in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Offset in memory.
    pub(super) offset: i64,
    /// Bytes of data before the run.
    pub(super) start: usize,
}

/// A part of an element.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Node {
    /// Bytes of data in front of the node.
    pub(super) start: usize,
    /// Bytes of data.
    pub(super) size: usize,
    /// Offset in memory.
    pub(super) offset: i64,
    pub(super) kind: Kind,
}

/// Nodes in the order of their data.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Body {
    pub(super) nodes: Box<[Node]>,
    pub(super) size: usize,
    /// Whether the nodes are a few single runs.
    pub(super) is_plain: bool,
}

/// As many single runs as a plain body may have.
const PLAIN_RUNS: usize = 16;
/// As many runs or nodes as make a loop of their own.
const REPEATS: usize = 3;

impl Node {
    pub(super) fn new(offset: i64, kind: Kind) -> Self {
        let size = match &kind {
            Kind::Strip { len, count, .. } => len * count,
            Kind::Loop { body, count, .. } => body.size * count,
            Kind::List(places) => places.last().map_or(0, |end| end.start),
        };
        Self { start: 0, size, offset, kind }
    }

    pub(super) fn run(offset: i64, len: usize) -> Self {
        Self::new(offset, Kind::Strip { len, count: 1, stride: 0 })
    }

    /// Returns the length of a single run.
    pub(super) const fn single(&self) -> Option<usize> {
        match self.kind {
            Kind::Strip { len, count: 1, .. } => Some(len),
            _ => None,
        }
    }

    fn copy_at(&self, offset: i64) -> Self {
        let kind = match &self.kind {
            Kind::Strip { len, count, stride } => Kind::Strip { len: *len, count: *count, stride: *stride },
            Kind::Loop { body, count, stride } => {
                let nodes = body.nodes.iter().map(|node| node.copy_at(node.offset)).collect();
                Kind::Loop { body: Body::new(nodes), count: *count, stride: *stride }
            }
            Kind::List(places) => Kind::List(places.clone()),
        };
        Self::new(offset, kind)
    }
}

impl Body {
    pub(super) fn new(mut nodes: Vec<Node>) -> Self {
        let mut size = 0;
        for node in &mut nodes {
            node.start = size;
            size += node.size;
        }
        let is_plain = nodes.len() <= PLAIN_RUNS && nodes.iter().all(|node| node.single().is_some());
        Self { nodes: nodes.into(), size, is_plain }
    }
}

/// Appends a node; a run that follows the last one in memory extends it.
fn append(nodes: &mut Vec<Node>, node: Node) {
    if node.size == 0 {
        return;
    }
    if let (Some(last), Some(more)) = (nodes.last_mut(), node.single())
        && let Some(len) = last.single()
        && last.offset + len as i64 == node.offset
    {
        *last = Node::run(last.offset, len + more);
        return;
    }
    nodes.push(node);
}

/// Returns `nodes` repeated `count` times, `stride` bytes apart.
pub(super) fn repeated(mut nodes: Vec<Node>, count: usize, stride: i64) -> Vec<Node> {
    if count == 0 {
        return Vec::new();
    }
    if count == 1 || nodes.is_empty() {
        return nodes;
    }
    if let [node] = nodes.as_mut_slice()
        && let Kind::Strip { len, count: inner, stride: step } = node.kind
    {
        let kind = match inner {
            1 if stride == len as i64 => Some(Kind::Strip { len: len * count, count: 1, stride: 0 }),
            1 => Some(Kind::Strip { len, count, stride }),
            _ if stride == step.saturating_mul(inner as i64) => {
                Some(Kind::Strip { len, count: inner * count, stride: step })
            }
            _ => None,
        };
        if let Some(kind) = kind {
            return vec![Node::new(node.offset, kind)];
        }
    }
    let offset = nodes[0].offset;
    nodes.iter_mut().for_each(|node| node.offset -= offset);
    vec![Node::new(offset, Kind::Loop { body: Body::new(nodes), count, stride })]
}

/// Returns how many nodes from `from` on are alike and at equal distances, and that distance.
fn alike(nodes: &[Node], from: usize) -> (usize, i64) {
    let Some(second) = nodes.get(from + 1) else { return (1, 0) };
    let (first, stride) = (&nodes[from], second.offset - nodes[from].offset);
    let is_next =
        |at: usize| nodes[at].kind == first.kind && nodes[at].offset - nodes[at - 1].offset == stride;
    let count = 1 + (from + 1..nodes.len()).take_while(|at| is_next(*at)).count();
    (count, stride)
}

/// Makes loops of nodes that are alike, and lists of runs that are not.
fn compressed(nodes: Vec<Node>) -> Vec<Node> {
    let mut looped: Vec<Node> = Vec::new();
    let mut at = 0;
    while at < nodes.len() {
        let (count, stride) = alike(&nodes, at);
        let count = if count < REPEATS { 1 } else { count };
        looped.extend(repeated(vec![nodes[at].copy_at(nodes[at].offset)], count, stride));
        at += count;
    }
    let mut listed: Vec<Node> = Vec::new();
    let mut rest = looped.into_iter().peekable();
    while let Some(node) = rest.next() {
        if node.single().is_none() {
            listed.push(node);
            continue;
        }
        let mut runs = vec![node];
        while let Some(run) = rest.next_if(|next| next.single().is_some()) {
            runs.push(run);
        }
        if runs.len() <= PLAIN_RUNS {
            listed.extend(runs);
        } else {
            let of_node = |node: &Node| Run { offset: node.offset, len: node.size };
            listed.push(list(runs[0].offset, runs.iter().map(of_node)));
        }
    }
    listed
}

/// Makes a list of runs, whose offsets in the list count from `offset`.
pub(super) fn list(offset: i64, runs: impl Iterator<Item = Run>) -> Node {
    let (mut places, mut start) = (Vec::with_capacity(runs.size_hint().0 + 1), 0);
    for run in runs {
        places.push(Place { offset: run.offset.wrapping_sub(offset), start });
        start += run.len;
    }
    places.push(Place { offset: 0, start });
    Node::new(offset, Kind::List(places.into()))
}

impl Type {
    /// Returns the loops of an element.
    pub(super) fn loops(&self) -> &Body {
        self.loops.get_or_init(|| Body::new(self.nodes()))
    }

    /// Computes the loops, unless packing does without.
    pub(super) fn prepare(&self) {
        if !self.dense {
            self.loops();
        }
    }

    pub(super) fn copies(&self) -> Vec<Node> {
        self.loops().nodes.iter().map(|node| node.copy_at(node.offset)).collect()
    }

    fn nodes(&self) -> Vec<Node> {
        let mut nodes = Vec::new();
        match &self.made.blocks {
            Blocks::Basic(parts) => {
                parts.iter().for_each(|part| append(&mut nodes, Node::run(part.offset, part.len())));
            }
            Blocks::Within(whole) => return whole.copies(),
            Blocks::Even { count, length, stride } => {
                let of = &self.made.types[0];
                let block = repeated(of.copies(), *length as usize, of.extent);
                return repeated(block, *count as usize, *stride);
            }
            Blocks::Listed(blocks) => {
                for (at, count, which) in blocks {
                    let of = &self.made.types[*which as usize];
                    if of.dense {
                        append(&mut nodes, Node::run(at + of.true_lower, *count as usize * of.size));
                        continue;
                    }
                    for node in repeated(of.copies(), *count as usize, of.extent) {
                        let offset = node.offset + at;
                        append(&mut nodes, Node { offset, ..node });
                    }
                }
            }
        }
        if nodes.len() < REPEATS { nodes } else { compressed(nodes) }
    }
}
