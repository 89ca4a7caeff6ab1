//! From what the transports and the control plane report to the error a caller gets, the same on every rank.

use std::fmt;
use std::time::{Duration, Instant};

use kolo_transport::ErrorKind;

use super::shared::{Core, Shared};
use super::timed_out::Carrier;
use super::waited::Waited;
use crate::call;
use crate::control::{AbortCause, AbortKind, Loss, Past, Status};
use crate::error::{AbortReason, Context, Error, LossCause, Result};
use crate::summary::Summary;
use crate::types::DataType;
use crate::wait;

/// A control thread answers within a millisecond unless its process is stopped or its host swaps.
pub(crate) const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Where a rank is that others still need.
const HAS_LEFT: &str = "it has dropped its communicator or exited, and is not in this call";

/// Ranks that a message to the others names: a text of a few lines.
const NAMED_MAX: usize = 8;

/// Why a communicator cannot be used any more.
#[derive(Clone, Debug)]
pub(crate) enum Poison {
    /// The ranks called different things.
    Mismatch { peer: u32, theirs: String, ours: String, sequence: u64 },
    /// A peer is gone.
    PeerLost { peer: u32, cause: Loss },
    /// A deadline passed here.
    Timeout { after: Duration, waiting_for: Vec<(u32, String)>, operation: String, sequence: u64 },
    /// Somebody aborted.
    Aborted { by: u32, kind: AbortReason, reason: String },
    /// Others called different things, as operation `sequence`.
    MismatchOfOthers { by: u32, reason: String, sequence: u64 },
    /// A transport failed.
    Transport(kolo_transport::Error),
}

impl Poison {
    /// The error for a call that meets it.
    pub(crate) fn error(self, context: Context, rank: u32) -> Error {
        match self {
            // The call that does not match may be an earlier one than the call that meets the error.
            Self::Mismatch { peer, theirs, ours, sequence } if sequence > 0 => {
                Error::Mismatch { context: Context { rank, operation: ours, sequence }, peer, theirs }
            }
            Self::Mismatch { peer, theirs, .. } => Error::Mismatch { context, peer, theirs },
            Self::PeerLost { peer, cause } => cause.error(context, peer),
            Self::Timeout { after, waiting_for, sequence, .. } if sequence == context.sequence => {
                Error::Timeout { context, after, waiting_for }
            }
            Self::Timeout { ref operation, sequence, .. } => {
                let reason = format!("{operation}, operation #{sequence}, did not finish in time");
                Error::Aborted { context, by: rank, kind: AbortReason::Timeout, reason }
            }
            Self::Aborted { by, kind, reason } => Error::Aborted { context, by, kind, reason },
            Self::MismatchOfOthers { by, reason, sequence } => {
                let mut reason = format!("in operation #{sequence}, {reason}");
                if (1..sequence).contains(&context.sequence) {
                    reason.push_str(
                        "; this call comes before that and matched, but a communicator on which calls differ ends for all",
                    );
                }
                Error::Aborted { context, by, kind: AbortReason::Mismatch, reason }
            }
            Self::Transport(source) => Error::Transport { context, source: Box::new(source) },
        }
    }

    /// What the other ranks are told.
    pub(crate) fn cause(&self, rank: u32) -> AbortCause {
        match self {
            Self::Mismatch { peer, theirs, ours, sequence } => AbortCause::new(
                rank,
                AbortKind::Mismatch,
                format!("{}{ours}, rank {peer} called {theirs}", called_by(rank)),
            )
            .during(ours, *sequence),
            Self::PeerLost { peer, cause } => AbortCause::lost(*peer, cause),
            Self::Timeout { operation, sequence, .. } => {
                AbortCause::new(rank, AbortKind::Timeout, self.to_string()).during(operation, *sequence)
            }
            Self::Aborted { by, reason, .. } | Self::MismatchOfOthers { by, reason, .. } => {
                AbortCause::new(*by, AbortKind::User, reason)
            }
            Self::Transport(error) => AbortCause::new(rank, AbortKind::Transport, error.to_string()),
        }
    }
}

/// The caller's tag of a point-to-point message, for texts.
fn tagged(tag: u64) -> String {
    match crate::engine::label(tag) {
        0 => String::new(),
        label => format!(" with tag {label}"),
    }
}

fn called_by(rank: u32) -> String {
    format!("rank {rank} called ")
}

/// What asking the peers has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    None,
    /// A peer that is waited for has left.
    HasLeft,
}

/// A message that came where another was expected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Meeting {
    pub(crate) tag: u64,
    pub(crate) len: u64,
    /// What was expected here; the call that is waited for, if not said.
    pub(crate) expected: Option<(u64, u64)>,
}

impl fmt::Display for Poison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mismatch { peer, theirs, ours, .. } => {
                write!(f, "called {ours} while rank {peer} called {theirs}")
            }
            Self::PeerLost { peer, cause } => write!(f, "rank {peer} is lost ({cause})"),
            Self::Timeout { after, waiting_for, .. } => {
                let ranks: Vec<String> = waiting_for
                    .iter()
                    .take(NAMED_MAX)
                    .map(|(rank, what)| format!("rank {rank} ({what})"))
                    .collect();
                write!(f, "not finished after {:.1} s; waiting for {}", after.as_secs_f64(), ranks.join(", "))
            }
            Self::Aborted { reason, .. } | Self::MismatchOfOthers { reason, .. } => f.write_str(reason),
            Self::Transport(error) => write!(f, "{error}"),
        }
    }
}

/// Whether a cause is the loss of a peer: what it had sent before may still arrive.
pub(crate) fn is_loss(cause: &AbortCause) -> bool {
    cause.kind == AbortKind::PeerLost
}

impl Shared {
    /// Finds out why the engine failed, or what the control plane reported.
    pub(crate) fn diagnose(&self, waited: Waited) -> Poison {
        if let Some(cause) = self.membership.abort_flag().cause() {
            return self.adopt(&self.core(), &cause);
        }
        let (closed, failure) = {
            let core = self.core();
            (core.closed, core.engine.failure().cloned())
        };
        if closed {
            let reason = "the communicator was dropped".to_owned();
            return Poison::Aborted { by: self.rank, kind: AbortReason::Dropped, reason };
        }
        let Some(failure) = failure else {
            return Poison::Aborted {
                by: self.rank,
                kind: AbortReason::Requested,
                reason: "aborted".to_owned(),
            };
        };
        match (failure.kind, failure.peer) {
            (ErrorKind::Mismatch { expected_tag, tag, expected_len, len }, Some(peer)) => self.mismatch(
                peer,
                Meeting { tag, len, expected: Some((expected_tag, expected_len)) },
                waited,
            ),
            (ErrorKind::PeerLost, Some(peer)) => {
                // The control plane knows more (it left, it was killed), and within moments.
                let deadline = Instant::now() + Duration::from_millis(300);
                while Instant::now() < deadline {
                    if let Some(cause) = self.membership.abort_flag().cause() {
                        return self.adopt(&self.core(), &cause);
                    }
                    wait::sleep(Duration::from_millis(1));
                }
                // Who answers is not lost; only the way to it is.
                let (answers, carrier) = self.ask_through(&[peer], ANSWER_MAX);
                let has_left = self.membership.departed(peer);
                // A rank that fails says why before it leaves.
                if let Some(cause) = self.membership.abort_flag().cause() {
                    return self.adopt(&self.core(), &cause);
                }
                if has_left {
                    return Poison::PeerLost { peer, cause: Loss::new(LossCause::Left, HAS_LEFT) };
                }
                match answers.first() {
                    Some((_, Some(_))) => Poison::Transport(
                        self.severed(failure, "which is alive: look at what lies between the two"),
                    ),
                    _ if carrier == Carrier::Silent => {
                        let unknown = "and why is not known, since rank 0, which would tell, is silent";
                        Poison::Transport(self.severed(failure, unknown))
                    }
                    _ => Poison::PeerLost { peer, cause: Loss::new(LossCause::Closed, failure.to_string()) },
                }
            }
            _ => Poison::Transport(failure),
        }
    }

    /// The error of a connection that broke, where the rank at its other end is not known to be lost.
    fn severed(&self, failure: kolo_transport::Error, but: &str) -> kolo_transport::Error {
        let route = self.routes.iter().find(|route| Some(route.peer) == failure.peer);
        let (peer, how) = route.map_or((0, ""), |route| (route.peer, &*route.how));
        let (rank, told) = (self.rank, &failure.detail);
        let detail = format!("rank {rank} lost its connection to rank {peer} ({how}), {but} ({told})");
        kolo_transport::Error { detail, ..failure }
    }

    /// What another rank reported, as it looks from here.
    pub(crate) fn adopt(&self, core: &Core, cause: &AbortCause) -> Poison {
        let AbortCause { by, kind, reason, sequence, operation, .. } = cause.clone();
        match kind {
            AbortKind::PeerLost => Poison::PeerLost { peer: by, cause: cause.loss() },
            // The rank that is lost has no number in this communicator.
            AbortKind::Timeout | AbortKind::User | AbortKind::HubLost | AbortKind::Transport => {
                Poison::Aborted { by, kind: kind.reason(), reason }
            }
            AbortKind::Mismatch if sequence == 0 => {
                let theirs = reason.strip_prefix(&called_by(by)).unwrap_or(&reason).to_owned();
                Poison::Mismatch { peer: by, theirs, ours: String::new(), sequence }
            }
            AbortKind::Mismatch => match core.recorder.find(sequence).map(|own| own.to_string()) {
                Some(ours) if ours != operation => {
                    Poison::Mismatch { peer: by, theirs: operation, ours, sequence }
                }
                // This rank called the same as the one that reported, or has not come so far.
                _ => Poison::MismatchOfOthers { by, reason, sequence },
            },
        }
    }

    /// Puts names to a message of `peer` that did not fit.
    pub(crate) fn mismatch(&self, peer: u32, met: Meeting, waited: Waited) -> Poison {
        let (expected_tag, expected_len) = met.expected.unzip();
        let (sequence, ours) = self.own_call(expected_tag, expected_len, waited);
        let theirs = if Some(met.tag) == expected_tag {
            let expected = expected_len.unwrap_or_default();
            format!("{ours} with a message of {} bytes where {expected} were expected", met.len)
        } else if let Some(data_type) = self.transfer_type(met.tag) {
            format!("send of {} bytes of {data_type}{}", met.len, tagged(met.tag))
        } else {
            // The peer's control thread answers even while the peer waits; it may also have failed first, and left.
            match self.membership.ask(peer, Duration::from_millis(500)) {
                Some(status) => match self.first_difference(peer, &status) {
                    Some(poison) => return poison,
                    None => self.describe(&status, met.tag, sequence),
                },
                None => {
                    match (self.membership.abort_flag().cause(), self.shown_by(peer, met.tag, sequence)) {
                        (Some(cause), _) => return self.adopt(&self.core(), &cause),
                        (None, Some(shown)) => shown,
                        (None, None) => "something else".to_owned(),
                    }
                }
            }
        };
        Poison::Mismatch { peer, theirs, ours, sequence }
    }

    /// Sequence number and text of the call of this rank that expected a message.
    fn own_call(&self, tag: Option<u64>, len: Option<u64>, waited: Waited) -> (u64, String) {
        let core = self.core();
        let is_it =
            |(sequence, own): &(u64, Summary)| tag == Some(call::tag(self.id, *sequence, own.signature()));
        if let Some((sequence, own)) = core.recorder.calls().find(is_it) {
            return (sequence, own.to_string());
        }
        match (tag.and_then(|tag| self.transfer_type(tag)), len) {
            (Some(data_type), Some(len)) => {
                let tagged = tag.map_or_else(String::new, tagged);
                (0, format!("recv of {len} bytes of {data_type}{tagged}"))
            }
            _ => (waited.sequence, waited.to_string()),
        }
    }

    fn transfer_type(&self, tag: u64) -> Option<DataType> {
        DataType::ALL.into_iter().find(|data_type| call::transfer_tag(self.id, *data_type, tag as u32) == tag)
    }

    /// The first call that differs between this rank and a peer, of those that both remember.
    fn first_difference(&self, peer: u32, status: &Status) -> Option<Poison> {
        let core = self.core();
        status.recent.iter().find_map(|theirs| {
            let ours = core.recorder.find(theirs.sequence)?;
            (ours.signature() != theirs.signature).then(|| Poison::Mismatch {
                peer,
                theirs: theirs.description.clone(),
                ours: ours.to_string(),
                sequence: theirs.sequence,
            })
        })
    }

    /// What a peer called, by the tag of its message, or else at `sequence`.
    fn describe(&self, status: &Status, tag: u64, sequence: u64) -> String {
        let of_tag = |past: &&Past| call::tag(self.id, past.sequence, past.signature) == tag;
        let found = status.recent.iter().find(of_tag);
        match found.or_else(|| status.recent.iter().find(|past| past.sequence == sequence)) {
            Some(past) if past.sequence == sequence => past.description.clone(),
            Some(past) => format!("{} as operation #{}", past.description, past.sequence),
            None => format!("something else (it {status})"),
        }
    }

    /// Nothing has moved for some time: asks the peers, and fails if one of them is somewhere else for good. What a peer
    /// sent before it left may have come since; so if one has left, that is only a suspicion, which the caller comes back
    /// with if nothing moves.
    pub(crate) fn examine(&self, waited: Waited, peers: &[u32], suspected: bool) -> Result<Suspicion> {
        // Any one of them would do: it is over only if all have left.
        let departed = |peer: u32| {
            let has_left = |peer: &u32| self.membership.departed(*peer);
            if waited.is_from_any() { peers.iter().all(has_left) } else { has_left(&peer) }
        };
        for (peer, status) in self.ask(peers, ANSWER_MAX) {
            let first = status.and_then(|status| self.first_difference(peer, &status));
            let left = || {
                let cause = Loss::new(LossCause::Left, HAS_LEFT);
                departed(peer).then_some(Poison::PeerLost { peer, cause })
            };
            let gone = if first.is_none() { left() } else { None };
            if gone.is_some() && !suspected {
                return Ok(Suspicion::HasLeft);
            }
            if let Some(poison) = first.or(gone) {
                // A rank that fails says why before it leaves: that is the cause then.
                if !self.membership.abort_flag().is_raised() {
                    self.poison_with(poison);
                }
                return Err(self.fail(waited));
            }
        }
        Ok(Suspicion::None)
    }

    /// Whether one of these peers has left, and what it sent before may still come: its goodbye over the control plane
    /// overtakes bytes that are sent again because a packet was lost. The end of the connection tells, which is behind them.
    pub(crate) fn is_outrun(&self, core: &Core, peers: &[u32]) -> bool {
        peers.iter().any(|peer| core.engine.is_hearing(*peer) && self.membership.departed(*peer))
    }

    /// Gives up on purpose.
    pub(crate) fn abort(&self, reason: &str) {
        if !self.is_ours() {
            return;
        }
        let kind = AbortReason::Requested;
        self.poison_with(Poison::Aborted { by: self.rank, kind, reason: reason.to_owned() });
    }
}
