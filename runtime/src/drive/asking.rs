//! Asks peers what they are doing.

use std::time::Duration;

use super::fail::{fail, poison};
use crate::call::Waited;
use crate::communicator::{Core, Shared};
use crate::control::Status;
use crate::error::Result;
use crate::failure::{Carrier, Judgement, Suspicion, judge};

/// Longest wait for an answer. A control thread answers within a millisecond unless its process is stopped or its host
/// swaps.
pub(super) const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Peers asked per question: enough to find a culprit, few enough to be answered at once.
const PEERS_ASKED: usize = 4;

/// How many of the awaited peers a wait needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaits {
    All,
    /// Any one of them is enough, as for a receive from any source.
    Any,
    /// All of them, but for operations that tasks await or the program polls, and not for the call of this thread.
    Others,
}

/// Asks some peers what they are doing.
fn ask(shared: &Shared, peers: &[u32], patience: Duration) -> Vec<(u32, Option<Status>)> {
    let peers = &peers[..peers.len().min(PEERS_ASKED)];
    peers.iter().copied().zip(shared.membership.ask_all(peers, patience)).collect()
}

/// Asks some peers what they are doing, and finds out whether the carrier of the questions answers: this rank also asks
/// itself.
pub(super) fn ask_through(
    shared: &Shared,
    peers: &[u32],
    patience: Duration,
) -> (Vec<(u32, Option<Status>)>, Carrier) {
    if shared.world.control.is_closed() {
        return (peers.iter().map(|peer| (*peer, None)).collect(), Carrier::Gone);
    }
    let mut asked = peers[..peers.len().min(PEERS_ASKED)].to_vec();
    asked.push(shared.group.rank);
    let mut answers: Vec<_> =
        asked.iter().copied().zip(shared.membership.ask_all(&asked, patience)).collect();
    let carrier = match answers.pop() {
        Some((_, None)) if !shared.membership.abort_flag().is_raised() => Carrier::Silent,
        _ => Carrier::Answers,
    };
    (answers, carrier)
}

/// Asks the peers that are awaited, after a time without progress. Fails if one of them is elsewhere for good.
pub(super) fn examine(
    shared: &Shared,
    waited: Waited,
    needs: Awaits,
    awaited: impl Fn(&Core) -> Vec<u32>,
    suspected: Option<Suspicion>,
) -> Result<Option<Suspicion>> {
    let has_left = |peer: u32| shared.membership.departed(peer);
    let mut peers = awaited(&shared.core());
    if peers.is_empty() {
        return Ok(None);
    }
    // Only the first are asked.
    peers.sort_by_cached_key(|peer| !has_left(*peer));
    let mut answers = ask(shared, &peers, ANSWER_MAX);
    // Meanwhile another thread may have ended the operation.
    let peers = awaited(&shared.core());
    answers.retain(|(peer, _)| peers.contains(peer));
    let departed = |peer| match needs {
        Awaits::All | Awaits::Others => has_left(peer),
        // Such a wait is over only if all have left.
        Awaits::Any => peers.iter().all(|peer| has_left(*peer)),
    };
    let own = |sequence| shared.core().calls.recorder.find(sequence);
    let call = (needs != Awaits::Others).then_some(waited);
    match judge(&answers, own, call, departed, suspected) {
        Judgement::Nothing => Ok(None),
        Judgement::Suspects(suspicion) => Ok(Some(suspicion)),
        Judgement::Over(cause) => {
            // A rank that fails says why before it leaves; its word is the cause then.
            if !shared.membership.abort_flag().is_raised() {
                poison(shared, &cause);
            }
            Err(fail(shared, waited))
        }
    }
}
