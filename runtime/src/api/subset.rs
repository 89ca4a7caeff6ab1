//! Communicators of some or all of the ranks: split, group and duplicate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_transport::foreign::printable;
use serde::{Serialize, de::DeserializeOwned};

use super::Communicator;
use crate::call::{Waited, out_of_range};
use crate::communicator::{Making, child_id, patience, renumbered};
use crate::config::Config;
use crate::control::{GatherKey, Round};
use crate::drive;
use crate::error::{Error, Result};

/// A rank's request to a split: its color and key, or the problem with its call.
type SplitRequest = std::result::Result<(Option<u32>, i64), String>;

/// Longest text of another rank that an error repeats, in bytes.
const MOST_BYTES: usize = 500;

/// # Communicators of some or all of the ranks
impl Communicator {
    /// Splits the communicator: ranks that give the same `color` form a new one, ordered by `key`, which may be
    /// negative, and then by rank. A rank that gives `None` gets no communicator. Every rank of this communicator
    /// calls it. Blocks until all have.
    ///
    /// # Errors
    /// As [`Communicator::from_env`]; [`Error::Usage`] on every rank if one of them took part by
    /// [`refuse_split`](Self::refuse_split).
    pub fn split(&self, color: Option<u32>, key: impl Into<i64>) -> Result<Option<Self>> {
        self.split_as(Ok((color, key.into())))
    }

    /// Takes part in a split in place of an invalid call, for bindings. Every rank, including this one, gets an
    /// [`Error::Usage`] with `problem`, and the communicator stays usable. Otherwise the other ranks would wait for
    /// this one, and its later splits would match their earlier ones. Blocks as [`split`](Self::split).
    pub fn refuse_split(&self, problem: &str) -> Error {
        let request = Err(printable(problem, MOST_BYTES));
        match self.split_as(request) {
            Err(error) => error,
            Ok(_) => self.usage("split", problem.to_owned()),
        }
    }

    fn split_as(&self, request: SplitRequest) -> Result<Option<Self>> {
        let number = self.next_child()?;
        let shared = &self.shared;
        let deadline = shared.deadline_after(patience(&shared.config));
        let entries = self.all_gather_values(Round::Split(number), &request, deadline)?;
        let mut requests: Vec<(Option<u32>, i64)> = Vec::with_capacity(entries.len());
        for (rank, entry) in entries.into_iter().enumerate() {
            match entry {
                SplitRequest::Ok(request) => requests.push(request),
                SplitRequest::Err(problem) => {
                    // The text comes from another rank, so it is bounded and freed of control characters.
                    let shown = printable(&problem, MOST_BYTES);
                    return Err(self.usage("split", format!("rank {rank} cannot take part: {shown}")));
                }
            }
        }
        let Some(color) = requests[self.rank() as usize].0 else { return Ok(None) };
        let alike = requests.iter().enumerate().filter(|(_, (theirs, _))| *theirs == Some(color));
        let mut group: Vec<(i64, u32)> = alike.map(|(rank, (_, key))| (*key, rank as u32)).collect();
        group.sort_unstable();
        let ranks: Vec<u32> = group.into_iter().map(|(_, rank)| rank).collect();
        self.subset(&ranks, number, u64::from(color), deadline).map(Some)
    }

    /// Makes a communicator of the listed ranks, in this order. Only these ranks call it, with the same list. Blocks
    /// until all have.
    ///
    /// # Errors
    /// [`Error::Usage`] if this rank is not in the list, or if a rank in it is out of range or listed twice;
    /// otherwise as [`Communicator::from_env`].
    pub fn group(&self, ranks: &[u32]) -> Result<Self> {
        self.group_within(ranks, None, patience(&self.shared.config))
    }

    /// As [`group`](Self::group), but waits at most `limit` for the ranks, for bindings with time-outs of their own.
    ///
    /// `number`, if given, is one on which the binding's ranks have agreed. It identifies the communicator, so several threads
    /// may make communicators at the same time, in any order. No number may be used twice.
    ///
    /// # Errors
    /// As [`group`](Self::group).
    #[doc(hidden)]
    pub fn group_within(&self, ranks: &[u32], number: Option<u32>, limit: Duration) -> Result<Self> {
        if let Some(rank) = ranks.iter().find(|rank| **rank >= self.world_size()) {
            return Err(self.usage("group", out_of_range("rank", *rank, self.world_size())));
        }
        if let Some(twice) = ranks.iter().enumerate().find(|(i, rank)| ranks[..*i].contains(rank)) {
            return Err(self.usage("group", format!("rank {} is listed twice", twice.1)));
        }
        if !ranks.contains(&self.rank()) {
            return Err(self.usage(
                "group",
                "this rank is not in the list; only listed ranks may make this call".to_owned(),
            ));
        }
        self.shared.check_process(|| Waited::Other("group"))?;
        // Ranks outside the list do not count this call, so the common counter cannot number the group. The list
        // itself, and how often it was used, identify it.
        self.check_may_make("group")?;
        let mut core = self.shared.core();
        let list = ranks.iter().fold(0, |hash, rank| crate::mix::mix(hash ^ u64::from(*rank)));
        let number = match number {
            Some(number) => GIVEN_NUMBERS + u64::from(number),
            None => {
                let uses = core.calls.groups.entry(list).or_insert(0_u64);
                *uses += 1;
                GROUP_NUMBERS + *uses
            }
        };
        drop(core);
        self.subset(ranks, number, list, self.shared.deadline_after(limit))
    }

    /// Makes a communicator of the same ranks with other settings, for comparisons. All ranks call it, with settings
    /// that agree. Blocks until all have.
    ///
    /// # Errors
    /// See [`Communicator::from_env`].
    pub fn duplicate(&self, config: Config) -> Result<Self> {
        let number = self.next_child()?;
        let shared = &self.shared;
        shared.note_relayed();
        let id = child_id(shared.group.id, number, u64::MAX);
        let deadline = shared.deadline_after(patience(&config));
        let ranks: Vec<u32> = (0..self.world_size()).collect();
        self.make_child(id, &ranks, self.rank(), config, deadline)
    }

    fn subset(&self, ranks: &[u32], number: u64, color: u64, deadline: Instant) -> Result<Self> {
        let shared = &self.shared;
        shared.note_relayed();
        let id = child_id(shared.group.id, number, color);
        let Some(own) = ranks.iter().position(|rank| *rank == self.rank()) else {
            return Err(self.usage("split", "this rank is not in its own group".to_owned()));
        };
        self.make_child(id, ranks, own as u32, shared.config.clone(), deadline)
    }

    /// Makes a communicator of the listed ranks, in which this rank is `rank`.
    fn make_child(
        &self,
        id: u64,
        ranks: &[u32],
        rank: u32,
        config: Config,
        deadline: Instant,
    ) -> Result<Self> {
        let shared = &self.shared;
        let members: Arc<[u32]> = ranks.iter().map(|rank| shared.group.members[*rank as usize]).collect();
        let (world, ancestors) = (Arc::clone(&shared.world), shared.membership.ancestors_of_children());
        let child = Self::make(Making { world, id, members, rank, config, deadline, ancestors });
        let is_given_up = || shared.membership.abort_flag().is_given_up();
        // A child that has failed with this communicator, while it was made, is of no use.
        let child = child.and_then(|child| match child.error() {
            Some(error) if is_given_up() && child.is_aborted() => {
                drive::give_up_after(&child.shared, &error);
                Err(error)
            }
            _ => Ok(child),
        });
        let child = child.map_err(|error| {
            if !error.is_fatal() {
                return error;
            }
            // If a member has given this communicator up, the child has failed for the same cause.
            let own = is_given_up().then(|| drive::known_error(shared, Waited::Other("group"))).flatten();
            let error = own.unwrap_or_else(|| renumbered(error, self.rank(), ranks));
            drive::give_up_after(shared, &error);
            error
        })?;
        shared.take_in(&child.shared);
        Ok(child)
    }

    /// Sends a value to all ranks over the control plane, and returns the values of all, in rank order. Gives the
    /// communicator up after a fatal error, as every call does.
    pub(super) fn all_gather_values<T: Serialize + DeserializeOwned>(
        &self,
        round: Round,
        value: &T,
        deadline: Instant,
    ) -> Result<Vec<T>> {
        let shared = &self.shared;
        let key = GatherKey { communicator: shared.group.id, round };
        let told = shared.world.control.all_gather(key, &shared.group.members, value, deadline);
        told.inspect_err(|error| drive::give_up_after(shared, error))
    }

    /// Fails if the communicator cannot be used any more. Gives it up then, since others may wait for this rank in the
    /// communicator to be made.
    fn check_may_make(&self, operation: &'static str) -> Result<()> {
        let usable = drive::check_usable(&self.shared, &self.shared.core(), Waited::Other(operation));
        usable.inspect_err(|error| drive::give_up_after(&self.shared, error))
    }

    fn next_child(&self) -> Result<u64> {
        self.shared.check_process(|| Waited::Other("split"))?;
        self.check_may_make("split")?;
        let mut core = self.shared.core();
        core.calls.children += 1;
        Ok(core.calls.children)
    }
}

/// First number of groups. Splits never reach it.
const GROUP_NUMBERS: u64 = 1 << 48;

/// First of the numbers that bindings give. The counts above never reach it.
const GIVEN_NUMBERS: u64 = 1 << 56;
