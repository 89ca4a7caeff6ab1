//! Schedules: the order in which the lanes of a run proceed, chosen to be adverse.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// The choice among the lanes that can proceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// The lowest rank, until it is stuck.
    LowestRank,
    /// The highest rank, until it is stuck.
    HighestRank,
    /// One step of each lane, in turn.
    RoundRobin,
    /// One step of a random lane; the seed makes the run repeatable.
    Random(u64),
}

/// The lanes that may be able to proceed. Lanes are numbered by rank.
#[derive(Debug)]
pub(super) enum Ready {
    Lowest(BinaryHeap<Reverse<usize>>),
    Highest(BinaryHeap<usize>),
    InTurn(VecDeque<usize>),
    Random(Vec<usize>, u64),
}

impl Ready {
    pub(super) fn new(schedule: Schedule) -> Self {
        match schedule {
            Schedule::LowestRank => Self::Lowest(BinaryHeap::new()),
            Schedule::HighestRank => Self::Highest(BinaryHeap::new()),
            Schedule::RoundRobin => Self::InTurn(VecDeque::new()),
            // An xorshift generator must not start at 0.
            Schedule::Random(seed) => Self::Random(Vec::new(), seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
        }
    }

    pub(super) fn push(&mut self, lane: usize) {
        match self {
            Self::Lowest(heap) => heap.push(Reverse(lane)),
            Self::Highest(heap) => heap.push(lane),
            Self::InTurn(queue) => queue.push_back(lane),
            Self::Random(lanes, _) => lanes.push(lane),
        }
    }

    pub(super) fn pop(&mut self) -> Option<usize> {
        match self {
            Self::Lowest(heap) => heap.pop().map(|Reverse(lane)| lane),
            Self::Highest(heap) => heap.pop(),
            Self::InTurn(queue) => queue.pop_front(),
            Self::Random(lanes, state) => {
                if lanes.is_empty() {
                    return None;
                }
                *state ^= *state << 13;
                *state ^= *state >> 7;
                *state ^= *state << 17;
                let at = (*state % lanes.len() as u64) as usize;
                Some(lanes.swap_remove(at))
            }
        }
    }
}
