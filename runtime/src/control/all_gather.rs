//! A rank's side of an all-gather.

use std::collections::hash_map::Entry;
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Serialize, de::DeserializeOwned};

use super::abort::{AbortKind, Loss};
use super::member::{CoordinatorStanding, OpenGather, Shared};
use super::ranks;
use super::wire::{GatherFailure, GatherKey, ToCoordinator, decode};
use crate::error::{
    AbortReason, AwaitedRank, Error, ErrorContext, JoinFailure, LossCause, PeerState, Result,
};
use crate::job::limits::{MAX_BLOB_BYTES, VERDICT_TIMEOUT};

/// See [`Control::all_gather`](super::Control::all_gather).
pub(crate) fn all_gather<T: Serialize + DeserializeOwned>(
    shared: &Shared,
    key: GatherKey,
    members: &[u32],
    value: &T,
    deadline: Instant,
) -> Result<Vec<T>> {
    let unreadable = |problem: &dyn fmt::Display| Error::Join {
        rank: Some(place(members, shared.rank)),
        kind: JoinFailure::Version,
        problem: format!("a rank's part of the {key} could not be read: {problem}"),
        remedy: "Use the same version of Kolo on all ranks".to_owned(),
    };
    let blob = postcard::to_stdvec(value).map_err(|error| unreadable(&error))?;
    let blobs = gather_blobs(shared, key, members, blob, deadline)?;
    blobs.iter().map(|blob| decode(blob).map_err(|error| unreadable(&error))).collect()
}

/// Returns the position of a rank among the members.
fn place(members: &[u32], rank: u32) -> u32 {
    members.iter().position(|&member| member == rank).unwrap_or_default() as u32
}

fn gather_blobs(
    shared: &Shared,
    key: GatherKey,
    members: &[u32],
    blob: Vec<u8>,
    deadline: Instant,
) -> Result<Vec<Vec<u8>>> {
    let started = Instant::now();
    let place = |rank: u32| place(members, rank);
    let context = ErrorContext::unnumbered(place(shared.rank), key.to_string());
    let usage = |problem: String| Error::Usage { context: context.clone(), problem };
    let late = |by: u32, missing: &[u32]| {
        let missing = missing.iter().map(|&rank| (rank, place(rank))).collect();
        timeout(&context, started, shared, place(by), missing)
    };
    if let Some(problem) = objection(blob.len(), members, shared.rank) {
        return Err(usage(problem));
    }
    if members.len() == 1 {
        return Ok(vec![blob]);
    }
    let mut state = shared.lock();
    let Entry::Vacant(vacant) = state.gathers.entry(key) else {
        return Err(usage("another thread of this rank makes the same call".into()));
    };
    vacant.insert(OpenGather { members: members.into(), outcome: None });
    drop(state);
    shared.send(&ToCoordinator::AllGather { key, members: members.to_vec(), blob });

    let mut withdrawn: Option<Instant> = None;
    state = shared.lock();
    let outcome = loop {
        if let Some(outcome) = state.gathers.get_mut(&key).and_then(|open| open.outcome.take()) {
            break match outcome {
                Ok(blobs) if blobs.len() != members.len() => {
                    let text = format!("the answer has {} blobs for {} members", blobs.len(), members.len());
                    Err(without_coordinator(&context, members, &Loss::new(LossCause::Protocol, text)))
                }
                outcome => outcome.map_err(|failure| verdict(failure, &context, place, late)),
            };
        }
        if let Some(cause) = Shared::abort_cause(&state, key.communicator) {
            let (context, by) = (context.clone(), cause.by);
            break Err(match cause.kind {
                AbortKind::PeerLost => cause.loss().error(context, by),
                kind => Error::Aborted { context, by, kind: kind.reason(), reason: cause.reason },
            });
        }
        if let Some(error) = ended(&state.coordinator, &context, members) {
            break Err(error);
        }
        let now = Instant::now();
        let until = match withdrawn {
            Some(since) => since + VERDICT_TIMEOUT,
            None => deadline,
        };
        if now < until {
            state = shared.wait(state, until);
        } else if withdrawn.is_none() {
            withdrawn = Some(now);
            drop(state);
            shared.send(&ToCoordinator::Withdraw { key });
            state = shared.lock();
        } else {
            break Err(unanswered(context.clone(), started.elapsed(), members));
        }
    };
    state.gathers.remove(&key);
    outcome
}

/// Returns the reason why a rank cannot give a blob of this length, if there is one.
fn objection(bytes: usize, members: &[u32], rank: u32) -> Option<String> {
    if bytes > MAX_BLOB_BYTES {
        return Some(format!("a value of {bytes} bytes; at most {MAX_BLOB_BYTES} are allowed"));
    }
    (!members.contains(&rank)).then(|| format!("rank {rank} is not among the members"))
}

/// Translates the coordinator's verdict on an all-gather into an error for this rank.
fn verdict(
    failure: GatherFailure,
    context: &ErrorContext,
    place: impl Fn(u32) -> u32,
    late: impl Fn(u32, &[u32]) -> Error,
) -> Error {
    match failure {
        GatherFailure::Timeout { by, missing } => late(by, &missing),
        GatherFailure::Lost { rank, loss } => loss.error(context.clone(), place(rank)),
        GatherFailure::Departed { rank } => {
            Loss::new(LossCause::Left, "it has left the job").error(context.clone(), place(rank))
        }
        GatherFailure::Disagreement { problem } => Error::Usage { context: context.clone(), problem },
    }
}

/// Returns the error if no answer will come because the coordinator is gone.
fn ended(standing: &CoordinatorStanding, context: &ErrorContext, members: &[u32]) -> Option<Error> {
    match standing {
        CoordinatorStanding::Open => None,
        CoordinatorStanding::Lost(loss) => Some(without_coordinator(context, members, loss)),
        CoordinatorStanding::Closed => {
            let text = "it has left the job and closed its control plane";
            Some(without_coordinator(context, members, &Loss::new(LossCause::Left, text)))
        }
        CoordinatorStanding::Left { .. } => {
            let problem = "this rank has left the job".to_owned();
            Some(Error::Usage { context: context.clone(), problem })
        }
    }
}

/// Makes the error for the absence of world rank 0: a lost peer if it is a member, and otherwise an abort, because the
/// control plane is missing.
fn without_coordinator(context: &ErrorContext, members: &[u32], loss: &Loss) -> Error {
    let context = context.clone();
    match members.iter().position(|&member| member == 0) {
        Some(place) => loss.clone().error(context, place as u32),
        None => Error::Aborted {
            by: context.rank.unwrap_or_default(),
            kind: AbortReason::CoordinatorLost,
            reason: format!("world rank 0 carries the control plane that this step needs: {loss}"),
            context,
        },
    }
}

/// Makes the error if the coordinator does not even say who is missing.
fn unanswered(mut context: ErrorContext, after: Duration, members: &[u32]) -> Error {
    let place = members.iter().position(|&member| member == 0);
    if place.is_none() {
        context.operation += " (world rank 0, which runs the control plane, does not answer)";
    }
    let silent = |place| {
        let why = "it runs the control plane and does not answer".to_owned();
        AwaitedRank::new(place as u32, PeerState::Silent, why)
    };
    Error::Timeout { context, after, waiting_for: place.map(silent).into_iter().collect() }
}

fn timeout(
    context: &ErrorContext,
    started: Instant,
    shared: &Shared,
    by: u32,
    missing: Vec<(u32, u32)>,
) -> Error {
    let after: Duration = started.elapsed();
    tracing::debug!(
        by,
        missing = ranks::compact(&missing.iter().map(|m| m.0).collect::<Vec<_>>()),
        "timeout"
    );
    let waiting_for = missing
        .into_iter()
        .map(|(rank, place)| {
            let who = shared
                .peers
                .get(rank as usize)
                .map(|peer| format!("process {} on {} has not reached this step", peer.pid, peer.hostname));
            AwaitedRank::new(place, PeerState::Late, who.unwrap_or_default())
        })
        .collect();
    Error::Timeout { context: context.clone(), after, waiting_for }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_all_gather_without_an_answer_blames_world_rank_0() {
        let context = || ErrorContext { operation: "all-gather 0".to_owned(), ..ErrorContext::default() };
        let told = |members: &[u32]| unanswered(context(), Duration::from_secs(1), members).to_string();
        let with = told(&[3, 0]);
        assert!(with.contains("waiting for rank 1 (it runs the control plane"), "{with}");
        let without = told(&[3, 4]);
        assert!(without.contains("world rank 0, which runs the control plane, does not answer"), "{without}");
    }
}
