//! The coordinator's all-gathers: it collects the blobs of all members, then sends all blobs to every member.
//!
//! An all-gather ends in the same way for all members: complete, or failed with a reason. A failed all-gather is remembered
//! for a while, so that a latecomer learns the reason instead of waiting alone.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;

use super::abort::Loss;
use super::ranks;
use super::wire::{FromCoordinator, GatherFailure, GatherKey, encode, remember};
use crate::job::limits::{MAX_BLOB_BYTES, MAX_GATHERED_BYTES, MAX_OPEN_GATHERS};

/// State of a rank with respect to an all-gather.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Here,
    Departed,
    Lost(Loss),
}

/// A message to send.
#[derive(Debug)]
pub(crate) enum Delivery {
    /// To one rank.
    To(u32, Bytes),
    /// All blobs of an all-gather, for its members in the order of their positions.
    Completed { key: GatherKey, members: Vec<u32>, frame: Bytes },
}

/// A rank's part of an all-gather.
#[derive(Debug)]
pub(crate) struct Contribution {
    pub(crate) key: GatherKey,
    pub(crate) members: Vec<u32>,
    pub(crate) blob: Vec<u8>,
}

#[derive(Debug)]
struct Collecting {
    members: Vec<u32>,
    blobs: Vec<Option<Vec<u8>>>,
    bytes: usize,
}

impl Collecting {
    fn missing(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().zip(&self.blobs).filter(|(_, blob)| blob.is_none()).map(|(&rank, _)| rank)
    }

    fn arrived(&self) -> impl Iterator<Item = u32> + '_ {
        self.members.iter().zip(&self.blobs).filter(|(_, blob)| blob.is_some()).map(|(&rank, _)| rank)
    }
}

/// All all-gathers of a job.
#[derive(Debug, Default)]
pub(crate) struct Gathers {
    open: HashMap<GatherKey, Collecting>,
    open_of_rank: HashMap<u32, usize>,
    failed: VecDeque<(GatherKey, GatherFailure)>,
}

impl Gathers {
    /// Takes the blob of a rank. Returns the messages to send in consequence.
    pub(crate) fn contribute(
        &mut self,
        rank: u32,
        contribution: Contribution,
        world_size: u32,
        standing: &dyn Fn(u32) -> Standing,
    ) -> Vec<Delivery> {
        let Contribution { key, members, blob } = contribution;
        let refuse =
            |failure| vec![Delivery::To(rank, encode(&FromCoordinator::GatherFailed { key, failure }))];
        if let Some((_, failure)) = self.failed.iter().find(|(failed, _)| *failed == key) {
            return refuse(failure.clone());
        }
        if let Err(problem) = check(rank, &members, &blob, world_size) {
            return refuse(GatherFailure::Disagreement { problem });
        }
        if self.open_of_rank.get(&rank).is_some_and(|&open| open >= MAX_OPEN_GATHERS) {
            let problem = format!("rank {rank} already has {MAX_OPEN_GATHERS} other all-gathers open");
            return refuse(GatherFailure::Disagreement { problem });
        }
        let collecting = self.open.entry(key).or_insert_with(|| Collecting {
            blobs: members.iter().map(|_| None).collect(),
            members: members.clone(),
            bytes: 0,
        });
        if collecting.members != members {
            let problem = format!(
                "rank {rank} names the members {}, but others name {}",
                ranks::compact(&members),
                ranks::compact(&collecting.members)
            );
            let failure = GatherFailure::Disagreement { problem };
            let mut deliveries = refuse(failure.clone());
            deliveries.extend(self.fail(key, failure));
            return deliveries;
        }
        let place = members.iter().position(|&member| member == rank).unwrap_or_default();
        if collecting.blobs[place].is_some() {
            let problem = format!("rank {rank} took part twice in the {key}");
            return refuse(GatherFailure::Disagreement { problem });
        }
        collecting.bytes += blob.len();
        collecting.blobs[place] = Some(blob);
        *self.open_of_rank.entry(rank).or_default() += 1;
        if collecting.bytes > MAX_GATHERED_BYTES {
            let problem = format!("the blobs together are longer than {MAX_GATHERED_BYTES} bytes");
            return self.fail(key, GatherFailure::Disagreement { problem });
        }
        self.settle(key, standing)
    }

    /// Withdraws a rank whose deadline has passed. The all-gather fails for all who came, and the failure names those who
    /// did not.
    pub(crate) fn withdraw(&mut self, by: u32, key: GatherKey) -> Vec<Delivery> {
        let Some(collecting) = self.open.get(&key) else { return Vec::new() };
        let missing = collecting.missing().collect();
        self.fail(key, GatherFailure::Timeout { by, missing })
    }

    /// Forgets the all-gathers of an aborted communicator. The abort message itself releases the ranks that wait in them.
    pub(crate) fn forget(&mut self, communicator: u64) {
        let keys: Vec<_> = self.open.keys().filter(|key| key.communicator == communicator).copied().collect();
        for key in keys {
            if let Some(collecting) = self.open.remove(&key) {
                self.release(&collecting);
            }
        }
    }

    /// Fails the all-gathers that wait for a rank that has left or is lost.
    pub(crate) fn settle_all(&mut self, standing: &dyn Fn(u32) -> Standing) -> Vec<Delivery> {
        let keys: Vec<_> = self.open.keys().copied().collect();
        keys.into_iter().flat_map(|key| self.settle(key, standing)).collect()
    }

    /// Completes an all-gather if all blobs are there, or fails it if one can no longer come.
    fn settle(&mut self, key: GatherKey, standing: &dyn Fn(u32) -> Standing) -> Vec<Delivery> {
        let Some(collecting) = self.open.get(&key) else { return Vec::new() };
        let doomed = collecting.missing().find_map(|rank| match standing(rank) {
            Standing::Here => None,
            Standing::Departed => Some(GatherFailure::Departed { rank }),
            Standing::Lost(loss) => Some(GatherFailure::Lost { rank, loss }),
        });
        if let Some(failure) = doomed {
            return self.fail(key, failure);
        }
        if collecting.missing().next().is_some() {
            return Vec::new();
        }
        let Some(collecting) = self.open.remove(&key) else { return Vec::new() };
        self.release(&collecting);
        let blobs = collecting.blobs.into_iter().flatten().collect();
        let frame = encode(&FromCoordinator::Gathered { key, blobs });
        vec![Delivery::Completed { key, members: collecting.members, frame }]
    }

    fn fail(&mut self, key: GatherKey, failure: GatherFailure) -> Vec<Delivery> {
        let Some(collecting) = self.open.remove(&key) else { return Vec::new() };
        self.release(&collecting);
        let frame = encode(&FromCoordinator::GatherFailed { key, failure: failure.clone() });
        remember(&mut self.failed, (key, failure));
        collecting.arrived().map(|rank| Delivery::To(rank, frame.clone())).collect()
    }

    fn release(&mut self, collecting: &Collecting) {
        for rank in collecting.arrived() {
            if let Some(open) = self.open_of_rank.get_mut(&rank) {
                *open = open.saturating_sub(1);
            }
        }
    }
}

fn check(rank: u32, members: &[u32], blob: &[u8], world_size: u32) -> Result<(), String> {
    let mut sorted = members.to_vec();
    sorted.sort_unstable();
    let distinct = sorted.windows(2).all(|pair| pair[0] < pair[1]);
    if !distinct || !members.contains(&rank) || sorted.last().is_none_or(|&last| last >= world_size) {
        let shown = ranks::compact(&sorted);
        return Err(format!(
            "the members {shown} are not distinct ranks of this job that include rank {rank}"
        ));
    }
    if blob.len() > MAX_BLOB_BYTES {
        return Err(format!("{} bytes; at most {MAX_BLOB_BYTES} are allowed", blob.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::wire::Round;
    use crate::control::wire::decode;
    use crate::error::LossCause;

    const KEY: GatherKey = GatherKey { communicator: 1, round: Round::Split(2) };

    fn bring(gathers: &mut Gathers, rank: u32, members: &[u32], blob: &[u8]) -> Vec<Delivery> {
        let contribution = Contribution { key: KEY, members: members.to_vec(), blob: blob.to_vec() };
        gathers.contribute(rank, contribution, 8, &|_| Standing::Here)
    }

    fn told(deliveries: &[Delivery]) -> Vec<(u32, FromCoordinator)> {
        let each = deliveries.iter().flat_map(|delivery| match delivery {
            Delivery::To(rank, frame) => vec![(*rank, frame)],
            Delivery::Completed { members, frame, .. } => members.iter().map(|rank| (*rank, frame)).collect(),
        });
        each.map(|(rank, frame)| (rank, decode(&frame[4..]).unwrap())).collect()
    }

    #[test]
    fn the_last_blob_completes() {
        let mut gathers = Gathers::default();
        assert!(bring(&mut gathers, 5, &[5, 1], b"five").is_empty());
        let done = told(&bring(&mut gathers, 1, &[5, 1], b"one"));
        let all = FromCoordinator::Gathered { key: KEY, blobs: vec![b"five".to_vec(), b"one".to_vec()] };
        assert_eq!(done, [(5, all.clone()), (1, all)]);
        assert!(gathers.open.is_empty() && gathers.open_of_rank.values().all(|&open| open == 0));
    }

    #[test]
    fn a_lost_member_fails_it_now_and_for_latecomers() {
        let mut gathers = Gathers::default();
        assert!(bring(&mut gathers, 0, &[0, 1, 2], b"").is_empty());
        let loss = Loss::new(LossCause::Closed, "killed");
        let standing = |rank| if rank == 2 { Standing::Lost(loss.clone()) } else { Standing::Here };
        let failure = GatherFailure::Lost { rank: 2, loss: loss.clone() };
        let failed = FromCoordinator::GatherFailed { key: KEY, failure };
        assert_eq!(told(&gathers.settle_all(&standing)), [(0, failed.clone())]);
        assert_eq!(told(&bring(&mut gathers, 1, &[0, 1, 2], b"")), [(1, failed)]);
        assert!(gathers.open.is_empty());
    }

    #[test]
    fn open_all_gathers_and_memories_are_bounded() {
        let mut gathers = Gathers::default();
        for round in 0..3 * MAX_OPEN_GATHERS as u64 {
            let key = GatherKey { communicator: 1, round: Round::Split(round) };
            let contribution = Contribution { key, members: vec![0, 1], blob: vec![] };
            let refused = gathers.contribute(0, contribution, 8, &|_| Standing::Here);
            assert_eq!(refused.is_empty(), round < MAX_OPEN_GATHERS as u64);
        }
        assert_eq!(gathers.open.len(), MAX_OPEN_GATHERS);
        gathers.forget(1);
        assert!(gathers.open.is_empty());
        for round in 0..5000 {
            let key = GatherKey { communicator: 2, round: Round::Split(round) };
            let contribution = Contribution { key, members: vec![0, 1], blob: vec![] };
            assert!(gathers.contribute(0, contribution, 8, &|_| Standing::Here).is_empty());
            assert_eq!(gathers.withdraw(0, key).len(), 1);
        }
        assert!(gathers.failed.len() <= crate::job::limits::MAX_REMEMBERED);
    }
}
