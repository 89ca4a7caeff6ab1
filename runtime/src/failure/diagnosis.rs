//! Diagnosis: finds why a call failed from the evidence, without waiting, asking or locking, so that each case has a
//! test.
//!
//! Some evidence takes time to get. [`diagnose`] therefore uses the evidence at hand, and returns the question without
//! whose answer it cannot go on. Its caller finds the answer and calls it again. Each question is asked once.

use kolo_transport::{Error, ErrorKind};

use super::{Cause, called_by};
use crate::call;
use crate::call::{Summary, Waited};
use crate::control::{AbortCause, AbortKind, Loss, Past, Status};
use crate::engine::label;
use crate::error::{AbortReason, LossCause, PeerCall};
use crate::types::DataType;

/// A message, or a payload in an exchange, that came where another was expected.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WrongMessage {
    pub(crate) peer: u32,
    pub(crate) tag: u64,
    pub(crate) len: u64,
    /// Expected tag and length; if `None`, those of the awaited call.
    pub(crate) expected: Option<(u64, u64)>,
}

/// State of world rank 0, which carries the questions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carrier {
    Answers,
    /// It does not even answer a rank's question about the rank itself.
    Silent,
    /// It has left in good order.
    Gone,
}

/// Answer about a peer whose connection broke.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Presence {
    pub(crate) answers: bool,
    pub(crate) has_left: bool,
    pub(crate) carrier: Carrier,
}

/// All facts that a rank knows about a failure.
#[derive(Debug)]
pub(crate) struct Evidence {
    pub(crate) rank: u32,
    pub(crate) communicator: u64,
    /// The failed call.
    pub(crate) waited: Waited,
    /// Numbers and calls that this rank remembers.
    pub(crate) calls: Vec<(u64, Summary)>,
    pub(crate) is_closed: bool,
    /// Mismatch met in an exchange.
    pub(crate) wrong: Option<WrongMessage>,
    /// The engine's failure.
    pub(crate) failure: Option<Error>,
    /// Route to the peer of that failure.
    pub(crate) how: String,
    /// The control plane's report.
    pub(crate) report: Option<AbortCause>,
    /// Whether the control plane had time to report.
    pub(crate) report_had_time: bool,
    pub(crate) presence: Option<Presence>,
    /// The peer's own account of its activity, if it answers.
    pub(crate) status: Option<Option<Status>>,
    /// The call that the peer shows on the board, if it does.
    pub(crate) shown: Option<Option<String>>,
}

/// A question that must be answered before the cause is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// Whether the control plane reports something within moments.
    Report,
    /// Whether this peer is alive.
    Presence(u32),
    /// This peer's activity and calls.
    Status(u32),
    /// The call with this tag that this peer shows on the host's board. This rank's own call is number `sequence`.
    Shown { peer: u32, tag: u64, sequence: u64 },
}

/// Result of a diagnosis.
#[derive(Debug)]
pub(crate) enum Diagnosis {
    Known(Cause),
    Needs(Question),
}

/// Diagnoses the failure of a call.
pub(crate) fn diagnose(evidence: &Evidence) -> Diagnosis {
    let aborted = |kind, reason: &str| {
        Diagnosis::Known(Cause::Aborted { by: evidence.rank, kind, reason: reason.to_owned() })
    };
    if let Some(wrong) = evidence.wrong {
        return evidence.mismatch(wrong);
    }
    if let Some(report) = &evidence.report {
        return Diagnosis::Known(evidence.adopt(report));
    }
    if evidence.is_closed {
        return aborted(AbortReason::Dropped, "the communicator was dropped");
    }
    let Some(failure) = &evidence.failure else { return aborted(AbortReason::Requested, "aborted") };
    match (failure.kind, failure.peer) {
        (ErrorKind::Mismatch { expected_tag, tag, expected_len, len }, Some(peer)) => {
            evidence.mismatch(WrongMessage { peer, tag, len, expected: Some((expected_tag, expected_len)) })
        }
        (ErrorKind::PeerLost, Some(peer)) => evidence.broken(failure, peer),
        _ => Diagnosis::Known(Cause::Transport(failure.clone())),
    }
}

/// Translates another rank's report for a rank with these calls.
pub(crate) fn adopt(cause: &AbortCause, own: impl Fn(u64) -> Option<Summary>) -> Cause {
    let AbortCause { by, kind, reason, sequence, operation, .. } = cause.clone();
    match kind {
        AbortKind::PeerLost => Cause::PeerLost { peer: by, cause: cause.loss() },
        // The lost rank has no number in this communicator.
        AbortKind::Timeout
        | AbortKind::User
        | AbortKind::CoordinatorLost
        | AbortKind::Transport
        | AbortKind::Revoked
        | AbortKind::Fenced => Cause::Aborted { by, kind: kind.reason(), reason },
        AbortKind::Mismatch => match sequence.map(|sequence| (sequence, own(sequence))) {
            None => {
                let detail = reason.strip_prefix(&called_by(by)).unwrap_or(&reason).to_owned();
                let theirs = PeerCall::Unknown { detail };
                Cause::Mismatch { peer: by, theirs, ours: String::new(), sequence }
            }
            Some((_, Some(ours))) if ours.to_string() != operation => {
                let theirs = PeerCall::Operation { description: operation, sequence: None };
                Cause::Mismatch { peer: by, theirs, ours: ours.to_string(), sequence }
            }
            // This rank made the same call as the reporting rank, or has not come so far.
            Some((sequence, _)) => Cause::MismatchOfOthers { by, reason, sequence },
        },
    }
}

/// Reason to expect nothing more from an awaited peer. Its earlier messages may still arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Suspicion {
    /// It has left.
    HasLeft,
    /// It has finished the call for which this rank waits.
    HasFinished,
}

/// Conclusion from the answers of awaited peers.
#[derive(Debug)]
pub(crate) enum Judgement {
    Nothing,
    Suspects(Suspicion),
    Over(Cause),
}

/// Judges the answers of peers that a rank with these calls waits for, in the call `waited` if it is known. A suspicion
/// is believed if it is the one that was `suspected` for long enough.
pub(crate) fn judge(
    answers: &[(u32, Option<Status>)],
    own: impl Fn(u64) -> Option<Summary>,
    waited: Option<Waited>,
    departed: impl Fn(u32) -> bool,
    suspected: Option<Suspicion>,
) -> Judgement {
    let told = || answers.iter().filter_map(|(peer, status)| Some((*peer, status.as_ref()?)));
    let because = |suspicion, cause| match suspected == Some(suspicion) {
        true => Judgement::Over(cause),
        false => Judgement::Suspects(suspicion),
    };
    if let Some(cause) = told().find_map(|(peer, status)| first_difference(peer, status, &own)) {
        return Judgement::Over(cause);
    }
    if let Some((peer, _)) = answers.iter().find(|(peer, _)| departed(*peer)) {
        return because(Suspicion::HasLeft, has_left(*peer));
    }
    let finished = waited.and_then(|waited| told().find_map(|(peer, status)| fewer(peer, status, waited)));
    finished.map_or(Judgement::Nothing, |cause| because(Suspicion::HasFinished, cause))
}

fn has_left(peer: u32) -> Cause {
    let text = "it has dropped its communicator or exited, and is not in this call";
    Cause::PeerLost { peer, cause: Loss::new(LossCause::Left, text) }
}

/// Returns the cause if a peer has finished the call with blocks of unequal length for which this rank waits. Empty blocks
/// are not sent, and signatures say nothing about the counts.
fn fewer(peer: u32, status: &Status, waited: Waited) -> Option<Cause> {
    let call = waited.summary().filter(|call| call.count.is_none())?;
    let number = waited.number()?;
    // Calls may end in any order, so a later one that has ended proves nothing.
    (status.finished == number).then(|| Cause::Mismatch {
        peer,
        theirs: PeerCall::Operation {
            description: format!(
                "{call} with other counts (it has finished the call, and this rank's counts name more elements)"
            ),
            sequence: None,
        },
        ours: call.to_string(),
        sequence: Some(number),
    })
}

/// Returns the first call that differs between this rank and a peer, among those that both remember.
fn first_difference(peer: u32, status: &Status, own: impl Fn(u64) -> Option<Summary>) -> Option<Cause> {
    status.recent.iter().find_map(|theirs| {
        let ours = own(theirs.sequence)?;
        (ours.signature() != theirs.signature).then(|| Cause::Mismatch {
            peer,
            theirs: PeerCall::Operation { description: theirs.description.clone(), sequence: None },
            ours: ours.to_string(),
            sequence: Some(theirs.sequence),
        })
    })
}

impl Evidence {
    fn own(&self, sequence: u64) -> Option<Summary> {
        self.calls.iter().find(|(number, _)| *number == sequence).map(|(_, own)| *own)
    }

    fn adopt(&self, report: &AbortCause) -> Cause {
        adopt(report, |sequence| self.own(sequence))
    }

    /// Diagnoses a broken connection to a peer.
    fn broken(&self, failure: &Error, peer: u32) -> Diagnosis {
        // The control plane knows more, for example that the peer left or was killed, and reports it within moments.
        if !self.report_had_time {
            return Diagnosis::Needs(Question::Report);
        }
        let Some(presence) = self.presence else { return Diagnosis::Needs(Question::Presence(peer)) };
        Diagnosis::Known(match presence {
            Presence { has_left: true, .. } => has_left(peer),
            // A peer that answers is not lost; only the connection to it is.
            Presence { answers: true, .. } => {
                self.severed(failure, "which is alive: check the network between the two")
            }
            Presence { carrier: Carrier::Silent, .. } => self
                .severed(failure, "and the reason is unknown, since rank 0, which would know it, is silent"),
            _ => Cause::PeerLost { peer, cause: Loss::new(LossCause::Closed, failure.to_string()) },
        })
    }

    /// Describes a broken connection to a rank that is not known to be lost.
    fn severed(&self, failure: &Error, but: &str) -> Cause {
        let (rank, how, told) = (self.rank, &self.how, &failure.detail);
        let peer = failure.peer.unwrap_or_default();
        let detail = format!("rank {rank} lost its connection to rank {peer} ({how}), {but} ({told})");
        Cause::Transport(Error { detail, ..failure.clone() })
    }

    /// Names the two calls that did not match.
    fn mismatch(&self, wrong: WrongMessage) -> Diagnosis {
        let peer = wrong.peer;
        let (expected_tag, expected_len) = wrong.expected.unzip();
        let (sequence, ours) = self.own_call(expected_tag, expected_len);
        let theirs = if Some(wrong.tag) == expected_tag {
            let expected = expected_len.unwrap_or_default();
            PeerCall::Length { description: ours.clone(), bytes: wrong.len, expected }
        } else if let Some(data_type) = self.transfer_type(wrong.tag) {
            PeerCall::Send { bytes: wrong.len, data_type, tag: label(wrong.tag) }
        } else {
            // The peer's control thread answers even while the peer waits. But the peer may have failed first, and
            // left.
            match (&self.status, &self.report, &self.shown) {
                (None, ..) => return Diagnosis::Needs(Question::Status(peer)),
                (Some(Some(status)), ..) => {
                    match first_difference(peer, status, |sequence| self.own(sequence)) {
                        Some(cause) => return Diagnosis::Known(cause),
                        None => self.describe(status, wrong.tag, sequence),
                    }
                }
                (Some(None), Some(report), _) => return Diagnosis::Known(self.adopt(report)),
                (Some(None), None, None) => {
                    let sequence = sequence.unwrap_or_default();
                    return Diagnosis::Needs(Question::Shown { peer, tag: wrong.tag, sequence });
                }
                (Some(None), None, Some(Some(shown))) => {
                    PeerCall::Operation { description: shown.clone(), sequence: None }
                }
                (Some(None), None, Some(None)) => PeerCall::Unknown { detail: "something else".to_owned() },
            }
        };
        Diagnosis::Known(Cause::Mismatch { peer, theirs, ours, sequence })
    }

    /// Returns the number, if there is one, and the text of this rank's call that expected a message.
    fn own_call(&self, tag: Option<u64>, len: Option<u64>) -> (Option<u64>, String) {
        let is_it = |(sequence, own): &&(u64, Summary)| {
            tag == Some(call::tag(self.communicator, *sequence, own.signature()))
        };
        if let Some((sequence, own)) = self.calls.iter().find(is_it) {
            return (Some(*sequence), own.to_string());
        }
        match (tag.and_then(|tag| self.transfer_type(tag)), len) {
            (Some(data_type), Some(len)) => {
                let tagged = tag.map_or_else(String::new, tagged);
                (None, format!("recv of {len} bytes of {data_type}{tagged}"))
            }
            _ => (self.waited.number(), self.waited.to_string()),
        }
    }

    fn transfer_type(&self, tag: u64) -> Option<DataType> {
        let is_it =
            |data_type: &DataType| call::transfer_tag(self.communicator, *data_type, tag as u32) == tag;
        DataType::ALL.into_iter().find(is_it)
    }

    /// Describes a call of a peer whose message came in this rank's call `sequence`. If both have made that call before,
    /// their counts differed in it.
    fn describe_past(&self, past: &Past, sequence: Option<u64>) -> String {
        let is_same = |own: Summary| own.count.is_none() && own.signature() == past.signature;
        if Some(past.sequence) < sequence && self.own(past.sequence).is_some_and(is_same) {
            format!("{} with more elements for this rank than its counts named,", past.description)
        } else {
            past.description.clone()
        }
    }

    /// Describes a peer's call, found by the tag of its message, or else by `sequence`.
    fn describe(&self, status: &Status, tag: u64, sequence: Option<u64>) -> PeerCall {
        let of_tag = |past: &&Past| call::tag(self.communicator, past.sequence, past.signature) == tag;
        let found = status.recent.iter().find(of_tag);
        match found.or_else(|| status.recent.iter().find(|past| Some(past.sequence) == sequence)) {
            Some(past) => PeerCall::Operation {
                description: self.describe_past(past, sequence),
                sequence: (Some(past.sequence) != sequence).then_some(past.sequence),
            },
            None => PeerCall::Unknown { detail: format!("something else (it {status})") },
        }
    }
}

/// Describes the caller's tag of a point-to-point message, for texts.
fn tagged(tag: u64) -> String {
    match label(tag) {
        0 => String::new(),
        label => format!(" with tag {label}"),
    }
}
