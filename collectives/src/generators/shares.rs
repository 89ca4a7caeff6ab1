//! All-reduce among hosts of unequal speed: a direct exchange in which each rank reduces a share of the vector that
//! suits its link.
//!
//! This is the two-shot direct exchange, with pieces of different lengths. Of a vector of n bytes among p ranks, a rank
//! with share w sends and receives n (1 + (p - 2) w) bytes: the other ranks' pieces to their owners, and its own share
//! to all. If links differ, equal shares make all ranks wait while the slowest moves 2 (p - 1) / p of the vector each
//! way; without a share it moves the vector once. The shares minimize the longest of these times ("water-filling"), so
//! a rank that is slow enough has no share. See [`Task::with_speeds`].

use crate::Algorithm;
use crate::builder::PlanBuilder;
use crate::cost::Bill;
use crate::generator::Generator;
use crate::generators::direct::{Pieces, gather_pieces, reduce_pieces};
use crate::group::Group;
use crate::plan::{Blocks, Collective, Cut, Plan, Space};
use crate::task::Task;

pub(crate) struct Shares;

/// Blocks that the vector is cut into; shares are multiples of a block. For the most unequal pair of eight hosts, a
/// hundredth of the vector is a twentieth of the faster host's time.
const PARTS: u32 = 128;

/// Excess of the simulator's time over the closed form, with few exceptions: pieces of different lengths wait for each
/// other.
const MARGIN: f64 = 1.15;

/// With more ranks, there would be too many messages to all others at once.
const RANKS_MAX: usize = 64;

impl Generator for Shares {
    fn name(&self) -> &'static str {
        "shares"
    }

    fn source(&self) -> &'static str {
        "two-shot direct exchange with shares by water-filling; Hivemind's load balancing"
    }

    fn supports(&self, task: &Task) -> Result<(), String> {
        if task.collective != Collective::AllReduce {
            return Err(format!("shares by speed do not support {}", task.collective));
        }
        match &task.speeds {
            None => Err("the hosts are not known to differ, or have several ranks".to_owned()),
            Some(speeds) if speeds.len() != task.world_size as usize => {
                Err(format!("speeds are given for {} of {} ranks", speeds.len(), task.world_size))
            }
            Some(speeds) if speeds.contains(&0) => Err("a speed is 0".to_owned()),
            Some(speeds) if !(3..=RANKS_MAX).contains(&speeds.len()) => {
                Err(format!("it is for 3 to {RANKS_MAX} ranks"))
            }
            Some(_) => Ok(()),
        }
    }

    fn plan(&self, task: &Task, rank: u32) -> Plan {
        let runs = runs(task.speeds.as_deref().unwrap_or_default());
        let cut = Cut::Vector { parts: PARTS };
        let mut b = PlanBuilder::new(task, Algorithm::Shares, rank, cut);
        b.lane(0);
        let group = Group::world(task.world_size, rank);
        let piece = |space: Space, member: u32| {
            let (first, count) = runs[member as usize];
            (count > 0).then(|| Blocks::range(space, first, count))
        };
        let pieces: Pieces<'_> = &piece;
        reduce_pieces(&mut b, task, &group, pieces, task.own());
        gather_pieces(&mut b, &group, pieces);
        b.finish()
    }

    /// The slowest rank sends one segment while it receives another; one direction is idle only during the first and
    /// the last segment.
    fn shortest_segment(&self) -> Option<u64> {
        Some(512 << 10)
    }

    /// Two segments would suffice for both directions if none ever waited for another.
    fn window(&self) -> Option<u32> {
        Some(4)
    }

    fn cost(&self, task: &Task, bytes: f64, bill: &mut Bill) {
        let speeds = task.speeds.as_deref().unwrap_or_default();
        let others = task.world_size - 1;
        // Bytes that the slowest rank could carry each way in the time that all ranks take, in both phases together.
        // Bytes that go out in the first phase come in during the second, so that with segments in flight each phase
        // uses one direction of the link.
        let carried = MARGIN * slowest_carries(speeds) * bytes / f64::from(others);
        bill.suits_links = true;
        bill.wave(others, carried, true, f64::INFINITY);
        let busy = bill.busy;
        bill.wave(others, carried, false, f64::INFINITY);
        bill.busy = busy;
    }
}

/// Returns the share of each rank.
fn shares(speeds: &[u32]) -> Vec<f64> {
    let others = speeds.len() as f64 - 2.0;
    let of = |time: f64| speeds.iter().map(move |speed| ((time * f64::from(*speed) - 1.0) / others).max(0.0));
    // The time in which all shares together make up the vector, by bisection: the sum grows with the time.
    let slowest = f64::from(speeds.iter().copied().min().unwrap_or(1).max(1));
    let (mut low, mut high) = (0.0, 2.0 * speeds.len() as f64 / slowest);
    for _ in 0..64 {
        let middle = f64::midpoint(low, high);
        if of(middle).sum::<f64>() < 1.0 { low = middle } else { high = middle }
    }
    of(high).collect()
}

/// Returns the blocks of each rank: the first one and their number.
fn runs(speeds: &[u32]) -> Vec<(u32, u32)> {
    let shares = shares(speeds);
    let wanted = |rank: usize| shares[rank] * f64::from(PARTS);
    let mut counts: Vec<u32> = (0..shares.len()).map(|rank| wanted(rank) as u32).collect();
    // The ranks that lose most by rounding down get the remaining blocks; among equals, the first rank comes first.
    let mut order: Vec<usize> = (0..shares.len()).filter(|rank| shares[*rank] > 0.0).collect();
    order.sort_by(|a, b| (wanted(*b).fract()).total_cmp(&wanted(*a).fract()).then(a.cmp(b)));
    let given: u32 = counts.iter().sum();
    for rank in order.iter().cycle().take(PARTS.saturating_sub(given) as usize) {
        counts[*rank] += 1;
    }
    let mut first = 0;
    counts
        .into_iter()
        .map(|count| {
            first += count;
            (first - count, count)
        })
        .collect()
}

/// Returns the number of vectors that the slowest rank's link could carry each way in the time that all ranks take.
fn slowest_carries(speeds: &[u32]) -> f64 {
    let others = speeds.len() as f64 - 2.0;
    let slowest = f64::from(speeds.iter().copied().min().unwrap_or(1));
    let load = |(speed, (_, count)): (&u32, (u32, u32))| {
        (1.0 + others * f64::from(count) / f64::from(PARTS)) * slowest / f64::from(*speed)
    };
    speeds.iter().zip(runs(speeds)).map(load).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_the_vector_and_slow_ranks_have_none() {
        for speeds in [&[16, 16, 160][..], &[16, 160, 160, 160], &[16, 17, 18, 300, 300], &[16; 8]] {
            let runs = runs(speeds);
            assert_eq!(runs.iter().map(|(_, count)| count).sum::<u32>(), PARTS, "{speeds:?}: {runs:?}");
            assert!(runs.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "{runs:?}");
            let most = 2.0 * (speeds.len() as f64 - 1.0) / speeds.len() as f64;
            assert!((1.0..most * 1.05).contains(&slowest_carries(speeds)), "{speeds:?}: {runs:?}");
        }
        assert_eq!(runs(&[16, 160, 160, 160])[0].1, 0);
        assert!((slowest_carries(&[16, 160, 160, 160]) - 1.0).abs() < 1e-9, "once the vector");
        let even = runs(&[16; 8]);
        assert!(even.iter().all(|(_, count)| *count == PARTS / 8), "{even:?}");
    }
}
