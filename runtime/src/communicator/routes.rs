//! Chooses routes to the other ranks.

use std::collections::HashMap;
use std::time::Instant;

use kolo_transport::Reach;
use kolo_transport::foreign::printable;

use super::card::Card;
use super::connect::Making;
use super::endpoints::Candidate;
use crate::control::Round;
use crate::engine::Route;
use crate::error::{Error, ErrorContext, JoinFailure, Result};

/// Longest reason of another rank that is shown, in bytes.
const REASON_BYTES: usize = 1 << 10;

/// Longest reason that a rank tells, in bytes, and the most reasons. With a bit for each rank, those of all ranks fit
/// into an exchange.
const TOLD_BYTES: usize = 200;
const REASONS_MAX: usize = 4;

/// Told instead of further reasons.
const OTHER_REASON: &str = "another reason, which its routes show";

/// Chooses a route to each other rank. Blocks until all ranks have, at most until the deadline.
pub(super) fn choose_all(
    making: &Making,
    candidates: &mut [Candidate],
    cards: &[Card],
) -> Result<Vec<Route>> {
    let rank = making.rank;
    let mut routes = Vec::new();
    for peer in (0..making.members.len() as u32).filter(|peer| *peer != rank) {
        routes.push(choose(rank, peer, candidates, &cards[peer as usize], Vec::new())?);
    }
    let tries = |card: &Card| card.offers().any(|kind| kind.features().tries_paths);
    if cards.iter().filter(|card| tries(card)).count() > 1 {
        let failed = try_paths(rank, candidates, &routes, making.deadline);
        let told = making.tell(Round::FailedPaths, &to_tell(&failed))?;
        let failed = failed_paths(rank, failed, &told);
        for route in &mut routes {
            if let Some(why) = failed.get(&route.peer) {
                let mut declined = std::mem::take(&mut route.declined);
                declined.push((route.transport.to_owned(), why.clone()));
                *route = choose(rank, route.peer, candidates, &cards[route.peer as usize], declined)?;
            }
        }
    }
    Ok(routes)
}

/// Chooses the first transport that both ends have, that reaches the peer, and that was not declined before. Both ends
/// decide by the same facts.
fn choose(
    rank: u32,
    peer: u32,
    candidates: &mut [Candidate],
    card: &Card,
    mut declined: Vec<(String, String)>,
) -> Result<Route> {
    for candidate in candidates {
        let name = candidate.kind.name();
        if declined.iter().any(|(other, _)| other == name) {
            continue;
        }
        let theirs = card.transports.iter().find(|(theirs, _)| theirs == name).map(|(_, address)| address);
        let reach = match (&mut candidate.endpoint, theirs) {
            (Err(because), _) => Reach::No { because: because.clone() },
            (_, None) => Reach::No { because: format!("rank {peer} does not use it") },
            (_, Some(Err(because))) => {
                Reach::No { because: format!("rank {peer} has none: {}", printable(because, REASON_BYTES)) }
            }
            (Ok(endpoint), Some(Ok(address))) => {
                endpoint.introduce(peer, address).map_err(|source| Error::Transport {
                    context: ErrorContext { rank: Some(rank), ..ErrorContext::default() },
                    source: Box::new(source),
                })?
            }
        };
        match reach {
            Reach::Yes { how } => return Ok(Route { peer, transport: name, how, declined }),
            Reach::No { because } => declined.push((name.to_owned(), because)),
        }
    }
    let reasons: Vec<String> = declined.iter().map(|(name, why)| format!("{name}: {why}")).collect();
    Err(Error::Join {
        rank: Some(rank),
        kind: JoinFailure::NoTransport,
        problem: format!("no transport reaches rank {peer} ({})", reasons.join("; ")),
        remedy: "Allow more transports with KOLO_TRANSPORT=auto, or fix the reason given".to_owned(),
    })
}

/// Tries the paths that must be tried before they are relied on. Returns those that carry nothing, by peer.
fn try_paths(
    rank: u32,
    candidates: &mut [Candidate],
    routes: &[Route],
    deadline: Instant,
) -> Vec<(u32, String)> {
    let mut failed = Vec::new();
    for Candidate { kind, endpoint } in candidates {
        let Ok(endpoint) = endpoint else { continue };
        let via = routes.iter().filter(|route| route.transport == kind.name());
        let peers: Vec<u32> = via.map(|route| route.peer).collect();
        if kind.features().tries_paths && !peers.is_empty() {
            tracing::debug!(rank, ?peers, "trying paths over {}", kind.name());
            failed.extend(endpoint.try_paths(&peers, deadline));
        }
    }
    failed.into_iter().map(|(peer, error)| (peer, error.detail)).collect()
}

/// Returns a rank's failed paths as it tells them to all: each reason once, with a bit for each peer. All ranks tell at
/// once, and each may have failed to reach all others.
fn to_tell(failed: &[(u32, String)]) -> Vec<(String, Vec<u8>)> {
    let mut told: Vec<(String, Vec<u8>)> = Vec::new();
    for (peer, why) in failed {
        let mut why = printable(why, TOLD_BYTES);
        if told.len() >= REASONS_MAX && told.iter().all(|(other, _)| *other != why) {
            OTHER_REASON.clone_into(&mut why);
        }
        let known = told.iter().position(|(other, _)| *other == why);
        let place = known.unwrap_or_else(|| {
            told.push((why, Vec::new()));
            told.len() - 1
        });
        let (byte, bit) = (*peer as usize / 8, 1 << (peer % 8));
        let peers = &mut told[place].1;
        peers.resize(peers.len().max(byte + 1), 0);
        peers[byte] |= bit;
    }
    told
}

/// Returns the peers that this rank could not reach, or that could not reach this rank, from its own failed paths and
/// all ranks'.
pub(super) fn failed_paths(
    rank: u32,
    own: Vec<(u32, String)>,
    told: &[Vec<(String, Vec<u8>)>],
) -> HashMap<u32, String> {
    let mut failed: HashMap<u32, String> = own.into_iter().collect();
    for (from, told) in (0..).zip(told).filter(|(from, _)| *from != rank) {
        let has_failed =
            |peers: &[u8]| peers.get(rank as usize / 8).is_some_and(|byte| byte & (1 << (rank % 8)) != 0);
        if let Some((why, _)) = told.iter().find(|(_, peers)| has_failed(peers)) {
            let why = || format!("rank {from} says: {}", printable(why, REASON_BYTES));
            failed.entry(from).or_insert_with(why);
        }
    }
    failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::MAX_WORLD_SIZE;
    use crate::job::limits::{MAX_BLOB_BYTES, MAX_GATHERED_BYTES};

    #[test]
    fn all_ranks_may_have_failed_to_reach_all_others() {
        let most = MAX_BLOB_BYTES.min(MAX_GATHERED_BYTES / MAX_WORLD_SIZE as usize);
        for reasons in [1, 2, 10, MAX_WORLD_SIZE] {
            let why = |peer: u32| format!("reason {} is {}", peer % reasons, "long ".repeat(100));
            let failed: Vec<_> = (0..MAX_WORLD_SIZE).map(|peer| (peer, why(peer))).collect();
            let bytes = postcard::to_stdvec(&to_tell(&failed)).unwrap().len();
            assert!(bytes <= most, "{bytes} bytes for {reasons} reasons");
        }
    }

    #[test]
    fn both_ends_of_a_failed_path_know_it_and_why() {
        let failed = |peers: &[u32]| -> Vec<(u32, String)> {
            peers.iter().map(|peer| (*peer, format!("reason {peer}"))).collect()
        };
        let lists = [
            failed(&[1, 2, 3, 4, 5, 6]),
            failed(&[2]),
            failed(&[]),
            failed(&[6]),
            failed(&[]),
            failed(&[]),
            failed(&[0]),
        ];
        let told: Vec<_> = lists.iter().map(|list| to_tell(list)).collect();
        let of = |rank: u32| {
            let mut failed: Vec<_> =
                failed_paths(rank, lists[rank as usize].clone(), &told).into_iter().collect();
            failed.sort();
            failed
        };
        assert_eq!(of(0), lists[0], "the own reasons");
        assert_eq!(of(2), [(0, "rank 0 says: reason 2".into()), (1, "rank 1 says: reason 2".into())]);
        assert_eq!(of(4), [(0, "rank 0 says: reason 4".into())]);
        assert_eq!(of(5), [(0, format!("rank 0 says: {OTHER_REASON}"))]);
        assert_eq!(of(6), [(0, "reason 0".into()), (3, "rank 3 says: reason 6".into())]);
    }
}
