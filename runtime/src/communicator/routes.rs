//! Chooses routes to the other ranks.

use std::collections::HashMap;
use std::time::Instant;

use kolo_transport::Reach;
use kolo_transport::foreign::printable;

use super::card::Card;
use super::connect::{Making, broken};
use super::endpoints::Candidate;
use crate::engine::Route;
use crate::error::{Error, ErrorContext, JoinFailure, Result};

/// Longest reason of another rank that is shown, in bytes.
const REASON_BYTES: usize = 1 << 10;

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
        let failed = failed_paths(rank, &making.tell(1, &failed)?).map_err(|error| broken(rank, &error))?;
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
                    context: ErrorContext { rank, ..ErrorContext::default() },
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

/// Returns the peers that this rank could not reach, or that could not reach this rank.
pub(super) fn failed_paths(
    rank: u32,
    blobs: &[impl AsRef<[u8]>],
) -> std::result::Result<HashMap<u32, String>, postcard::Error> {
    let mut failed = HashMap::new();
    for (from, blob) in blobs.iter().enumerate() {
        let list: Vec<(u32, String)> = postcard::from_bytes(blob.as_ref())?;
        for (peer, why) in list {
            let why = printable(&why, REASON_BYTES);
            if from as u32 == rank {
                failed.insert(peer, why);
            } else if peer == rank {
                failed.entry(from as u32).or_insert_with(|| format!("rank {from} says: {why}"));
            }
        }
    }
    Ok(failed)
}
