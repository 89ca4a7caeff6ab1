//! Circulant reduce-scatter, all-gather and all-reduce: ceil(log2 p) rounds for any p, and optimal volume.
//!
//! Träff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms" (2024). Block (me + i) mod p is called
//! "index i". While a > 1 indices are active, let a' = ceil(a/2): send indices a'..a to rank me + a', receive as many
//! from rank me - a', and reduce them into indices 0..a-a'. Index 0 is the result. The all-gather runs the same list
//! backwards. Each phase moves (p-1)/p of the vector. The order of summation is one fixed tree relative to the owner of
//! a block.

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::contention::Pattern;
use crate::cost::{Bill, Reach};
use crate::generator::Generator;
use crate::generators::{circulant_pipelined, copy_own};
use crate::group::{Group, Span};
use crate::model::Model;
use crate::plan::{Blocks, Collective, Cut, Like, Plan, Space};
use crate::rounds::halvings;
use crate::task::Task;

pub(crate) struct Circulant;

impl Generator for Circulant {
    fn name(&self) -> &'static str {
        "circulant"
    }

    fn source(&self) -> &'static str {
        "Träff 2023 and 2024"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        match task.collective {
            Collective::AllReduce | Collective::ReduceScatter | Collective::AllGather => Ok(()),
            Collective::Broadcast | Collective::Reduce => Ok(()),
            other => Err(format!("the circulant exchange does not support {other}")),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        if matches!(task.collective, Collective::Broadcast | Collective::Reduce) {
            return circulant_pipelined::plan(task, rank);
        }
        let p = task.world_size;
        let group = Group::world(p, rank);
        let cut = match task.collective {
            Collective::AllReduce => Cut::Vector { parts: p },
            _ => Cut::PerRank,
        };
        let mut b = PlanBuilder::new(task, Algorithm::Circulant, rank, cut);
        b.lane(0);
        match task.collective {
            _ if p == 1 => copy_own(&mut b, task, 0, 1),
            Collective::AllReduce => {
                reduce_scatter_core(&mut b, &group, Span::BLOCKS, task.own());
                all_gather_core(&mut b, &group, Span::BLOCKS, None);
            }
            Collective::ReduceScatter => reduce_scatter(&mut b, task, &group),
            _ => {
                let input = task.out_of_place().then_some(Blocks::one(Space::Input, 0));
                all_gather_core(&mut b, &group, Span::BLOCKS, input);
            }
        }
        b.finish()
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let p = task.world_size;
        match task.collective {
            Collective::AllReduce => {
                let share = bytes / f64::from(p);
                phase_cost(bill, p, share, true, None);
                phase_cost(bill, p, share, false, None);
            }
            Collective::ReduceScatter => phase_cost(bill, p, bytes, true, None),
            Collective::AllGather => phase_cost(bill, p, bytes, false, None),
            _ => circulant_pipelined::cost(task, bytes, bill),
        }
    }

    fn scratch_factor(&self, task: &Task) -> f64 {
        match task.collective {
            Collective::ReduceScatter => f64::from(task.world_size) / 2.0,
            _ => 1.0,
        }
    }

    fn parts(&self, task: &Task, bytes: u64, model: &Model) -> u32 {
        match task.collective {
            Collective::Broadcast | Collective::Reduce => circulant_pipelined::parts(task, bytes, model),
            _ => task.params.parts,
        }
    }
}

/// Adds the cost of one phase among `p` ranks or hosts, with blocks of `block` bytes. `share` is the share of a host's
/// ranks that send to other hosts, if all messages do.
pub(crate) fn phase_cost(bill: &mut Bill, p: u32, block: f64, reduces: bool, share: Option<f64>) {
    for active in halvings(p).windows(2) {
        let reach = share.map_or_else(|| bill.circle(active[1]), Reach::Network);
        // A range that wraps takes two messages; in every round this happens on some rank.
        let messages = if active[0] - active[1] > 1 { 2.0 } else { 1.0 };
        let bytes = f64::from(active[0] - active[1]) * block;
        bill.exchange(Pattern::Circle, reach, messages, bytes, reduces);
    }
}

/// Cuts the range `low..high` at those of `cuts` that lie inside it. A message is contiguous at both ends, so both ends
/// cut wherever either of them is not contiguous; the callers make sure that both know these places.
fn pieces(low: u32, high: u32, cuts: [u32; 2]) -> impl Iterator<Item = (u32, u32)> {
    let [first, second] = [cuts[0].min(cuts[1]).clamp(low, high), cuts[0].max(cuts[1]).clamp(low, high)];
    [(low, first), (first, second), (second, high)].into_iter().filter(|(from, to)| from < to)
}

/// Leaves the reduction of piece `me` of all members' `own` in the output. Partial sums lie in the output too.
pub(crate) fn reduce_scatter_core(b: &mut PlanBuilder, group: &Group, span: Span, own: Space) {
    let p = group.len();
    let wrap = p - group.me();
    // Indices 0..summed have moved from `own` to the output. After the first round these are floor(p/2) indices, which
    // for an odd p leaves one active index out: the second round sends it as a message of its own. This rank does so in
    // place too, since other ranks may not be in place.
    let mut summed = 0;
    for active in halvings(p).windows(2) {
        let (all, keep) = (active[0], active[1]);
        let (to, from) = (group.rank(group.ahead(keep)), group.rank(group.behind(keep)));
        let at = |space: Space, low: u32, high: u32| span.pieces(space, group.ahead(low), high - low);
        for (low, high) in pieces(keep, all, [summed, wrap]) {
            let space = if low < summed { Space::Output } else { own };
            b.send(to, at(space, low, high));
        }
        for (low, high) in pieces(0, all - keep, [summed.saturating_sub(keep), wrap]) {
            let space = if low < summed { Space::Output } else { own };
            b.recv_reduce(from, at(space, low, high), at(Space::Output, low, high));
        }
        summed = summed.max(all - keep);
    }
}

/// Distributes piece `me` of each member's output to all members. If `input` is given, the piece lies there instead.
pub(crate) fn all_gather_core(b: &mut PlanBuilder, group: &Group, span: Span, input: Option<Blocks>) {
    let p = group.len();
    let wrap = p - group.me();
    let mut input = input;
    for active in halvings(p).windows(2).rev() {
        let (all, keep) = (active[0], active[1]);
        let (to, from) = (group.rank(group.behind(keep)), group.rank(group.ahead(keep)));
        if let Some(input) = input.take() {
            // The first round sends only this rank's piece, directly from where it lies, so that the copy is off the
            // critical path.
            b.send(to, input);
            b.copy(input, span.piece(Space::Output, group.me()));
        } else {
            for (low, high) in pieces(0, all - keep, [0, wrap]) {
                b.send(to, span.pieces(Space::Output, group.ahead(low), high - low));
            }
        }
        for (low, high) in pieces(keep, all, [0, wrap]) {
            b.recv(from, span.pieces(Space::Output, group.ahead(low), high - low));
        }
    }
    if let Some(input) = input {
        b.copy(input, span.piece(Space::Output, group.me()));
    }
}

/// Reduce-scatter of one block per rank. Partial sums lie in scratch, index i in scratch block i, without a wrap.
fn reduce_scatter(b: &mut PlanBuilder, task: &Task, group: &Group) {
    let p = group.len();
    let me = group.me();
    let wrap = p - me;
    let output = Blocks::one(Space::Output, 0);
    let own = if task.out_of_place() { Blocks::one(Space::Input, me) } else { output };
    let scratch = b.scratch_range((0..p / 2).map(|index| Like::Input(group.ahead(index))));
    let mut summed = 0;
    for active in halvings(p).windows(2) {
        let (all, keep) = (active[0], active[1]);
        let (to, from) = (group.rank(group.ahead(keep)), group.rank(group.behind(keep)));
        // Sums go as one message; input blocks are cut where they wrap.
        if keep < summed {
            b.send(to, Blocks::range(Space::Scratch, scratch.first + keep, summed.min(all) - keep));
        }
        for (low, high) in pieces(keep.max(summed), all.max(summed), [0, wrap]) {
            b.send(to, Blocks::range(Space::Input, group.ahead(low), high - low));
        }
        if keep == 1 {
            b.recv_reduce(from, if summed == 0 { own } else { Blocks::one(Space::Scratch, 0) }, output);
        } else if summed == 0 {
            for (low, high) in pieces(0, all - keep, [0, wrap]) {
                let with = Blocks::range(Space::Input, group.ahead(low), high - low);
                b.recv_reduce(from, with, Blocks::range(Space::Scratch, low, high - low));
            }
        } else {
            for (low, high) in pieces(0, all - keep, [summed.saturating_sub(keep), 0]) {
                let sum = Blocks::range(Space::Scratch, low, high - low);
                b.recv_reduce(from, sum, sum);
            }
        }
        summed = summed.max(all - keep);
    }
}
