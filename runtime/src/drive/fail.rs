//! Gives a communicator up: finds out why, tells the other ranks, and makes the caller's error. A thread that holds the
//! core must not call anything here.

use std::time::{Duration, Instant};

use kolo_transport::{ErrorKind, StageMismatch};

use super::asking::{ANSWER_MAX, ask_through};
use super::orphans;
use crate::call::Waited;
use crate::communicator::{Core, Shared};
use crate::control::AbortCause;
use crate::error::{AbortReason, Error, Result};
use crate::failure::{
    Cause, Diagnosis, Evidence, Presence, Question, WrongMessage, adopt, diagnose, is_loss,
};
use crate::wait;

/// Time after a call has first seen the loss of a peer in which later calls still check for it. Ranks that do not need
/// the lost peer, such as pairs that exchange messages, would otherwise go on until their first pause.
const LOSS_CALLS: Duration = Duration::from_millis(250);

/// Longest wait for the control plane to report the fate of a peer whose connection broke.
const REPORT_MAX: Duration = Duration::from_millis(300);

/// Longest wait for the answer of such a peer, or for its fate. Control threads answer within a millisecond, unless
/// their processes or hosts pause.
const PRESENCE_MAX: Duration = Duration::from_secs(3);

/// Longest wait for a peer to name its call.
const STATUS_MAX: Duration = Duration::from_millis(500);

/// Fails if the communicator cannot be used any more.
pub(crate) fn check_usable(shared: &Shared, core: &Core, waited: Waited) -> Result<()> {
    if shared.is_well(core) {
        return Ok(());
    }
    let rank = shared.group.rank;
    if core.closed {
        let reason = "the communicator was dropped".to_owned();
        let (context, kind) = (shared.context(waited), AbortReason::Dropped);
        return Err(Error::Aborted { context, by: rank, kind, reason });
    }
    // Data that a lost peer had sent before may still be enough for this call.
    let may_go_on = |cause: &AbortCause| {
        let since = shared.fault.loss_seen.get_or_init(Instant::now);
        is_loss(cause) && !shared.membership.abort_flag().is_revoked() && since.elapsed() < LOSS_CALLS
    };
    let news = || shared.membership.abort_flag().cause().filter(|cause| !may_go_on(cause));
    match shared.fault.cause().or_else(|| news().map(|cause| adopted(core, &cause))) {
        Some(cause) => Err(cause.error(shared.context(waited), rank)),
        None => Ok(()),
    }
}

/// Returns the error that the next call would give, once data sent before has had its time.
pub(crate) fn standing_error(shared: &Shared) -> Option<Error> {
    const ASKED: Waited = Waited::Other("");
    if let Err(forked) = shared.check_process(|| ASKED) {
        return Some(forked);
    }
    let known = shared.fault.cause();
    let core = shared.core();
    let cause = match (known, shared.membership.abort_flag().cause()) {
        (Some(cause), _) => cause,
        (None, Some(report)) => adopted(&core, &report),
        (None, None) => {
            let failed = core.engine.failure().is_some();
            drop(core);
            return failed.then(|| fail(shared, ASKED));
        }
    };
    Some(cause.error(shared.context(ASKED), shared.group.rank))
}

/// Returns the error of a call that meets the failure of the communicator, if its cause is known.
pub(crate) fn known_error(shared: &Shared, waited: Waited) -> Option<Error> {
    let report = || shared.membership.abort_flag().cause().map(|report| adopted(&shared.core(), &report));
    let cause = shared.fault.cause().or_else(report)?;
    Some(cause.error(shared.context(waited), shared.group.rank))
}

fn adopted(core: &Core, report: &AbortCause) -> Cause {
    adopt(report, |sequence| core.calls.recorder.find(sequence))
}

/// Aborts the communicator at the program's request.
pub(crate) fn abort(shared: &Shared, reason: &str) {
    if shared.is_ours() {
        let (by, kind) = (shared.group.rank, AbortReason::Requested);
        poison(shared, &Cause::Aborted { by, kind, reason: reason.to_owned() });
    }
}

/// Ends the communicator so that the ranks that live may make a new one.
pub(crate) fn revoke(shared: &Shared) {
    if shared.is_ours() {
        let (by, kind) = (shared.group.rank, AbortReason::Revoked);
        let reason = "revoked: the live ranks may shrink it".to_owned();
        let cause = Cause::Aborted { by, kind, reason };
        shared.membership.revoke(cause.report(by));
        poison(shared, &cause);
    }
}

/// Makes the communicator unusable for the cause at hand, tells the other ranks, and returns the error to report.
pub(crate) fn fail(shared: &Shared, waited: Waited) -> Error {
    let find_out = || {
        // Shown for ranks that have met each other's calls, for example on the stage, without a control plane to name
        // them.
        orphans::show_call(&shared.core(), waited);
        find_out(shared, evidence(shared, waited))
    };
    let cause = shared.fault.cause().unwrap_or_else(find_out);
    poison(shared, &cause);
    cause.error(shared.context(waited), shared.group.rank)
}

/// Gives up for a known cause, unless there was one before.
pub(super) fn give_up(shared: &Shared, cause: Cause, waited: Waited) -> Error {
    poison(shared, &cause);
    fail(shared, waited)
}

/// Gives up if an error of the control plane is fatal. Its ranks are those of the communicator.
pub(crate) fn give_up_after(shared: &Shared, error: &Error) {
    if let Some(cause) = Cause::of(error) {
        poison(shared, &cause);
    }
}

/// Gives up because a member of the exchange made another call.
pub(super) fn mismatch(shared: &Shared, found: StageMismatch, waited: Waited) -> Error {
    let wrong = WrongMessage { peer: found.member as u32, tag: found.tag, len: 0, expected: None };
    let cause = find_out(shared, Evidence { wrong: Some(wrong), ..evidence(shared, waited) });
    give_up(shared, cause, waited)
}

/// Makes the communicator unusable, here and on all ranks. The first cause stays.
pub(super) fn poison(shared: &Shared, cause: &Cause) {
    shared.fault.note(cause);
    shared.membership.abort(cause.report(shared.group.rank));
    let error = kolo_transport::Error::new(ErrorKind::Aborted, "kolo", None, cause.to_string());
    let mut core = shared.core();
    orphans::leave_word(&core, cause, shared.group.rank);
    core.abort(&error);
}

/// Collects the evidence at hand.
fn evidence(shared: &Shared, waited: Waited) -> Evidence {
    let report = shared.membership.abort_flag().cause();
    let core = shared.core();
    let failure = core.engine.failure().cloned();
    let route = failure.as_ref().and_then(|failure| shared.group.route(failure.peer?));
    Evidence {
        rank: shared.group.rank,
        communicator: shared.group.id,
        waited,
        calls: core.calls.recorder.calls().collect(),
        is_closed: core.closed,
        wrong: None,
        how: route.map_or_else(String::new, |route| route.how.clone()),
        failure,
        report,
        report_had_time: false,
        presence: None,
        status: None,
        shown: None,
    }
}

/// Finds the cause of a call's failure. Asks for all evidence that is needed to tell it.
fn find_out(shared: &Shared, mut evidence: Evidence) -> Cause {
    let is_mismatch = |failure: &kolo_transport::Error| matches!(failure.kind, ErrorKind::Mismatch { .. });
    if evidence.wrong.is_some() || evidence.failure.as_ref().is_some_and(is_mismatch) {
        orphans::show_call(&shared.core(), evidence.waited);
    }
    loop {
        match diagnose(&evidence) {
            Diagnosis::Known(cause) => return cause,
            Diagnosis::Needs(question) => answer(shared, question, &mut evidence),
        }
    }
}

fn answer(shared: &Shared, question: Question, evidence: &mut Evidence) {
    let membership = &shared.membership;
    match question {
        Question::Report => {
            let until = Instant::now() + REPORT_MAX;
            while !membership.abort_flag().is_raised() && Instant::now() < until {
                wait::sleep(Duration::from_millis(1));
            }
            evidence.report_had_time = true;
            evidence.report = membership.abort_flag().cause();
        }
        Question::Presence(peer) => {
            evidence.presence = Some(ask_presence(shared, peer));
            // A rank that fails says why before it leaves, and before it answers.
            evidence.report = membership.abort_flag().cause();
        }
        Question::Status(peer) => {
            let status = membership.ask(peer, STATUS_MAX);
            if status.is_none() {
                evidence.report = membership.abort_flag().cause();
            }
            evidence.status = Some(status);
        }
        Question::Shown { peer, tag, sequence } => {
            evidence.shown = Some(orphans::shown_by(shared, peer, tag, sequence));
        }
    }
}

/// Asks whether a peer is alive, until something is known.
fn ask_presence(shared: &Shared, peer: u32) -> Presence {
    let until = Instant::now() + PRESENCE_MAX;
    loop {
        let asked = Instant::now();
        let (answers, carrier) = ask_through(shared, &[peer], ANSWER_MAX);
        let answers = matches!(answers.first(), Some((_, Some(_))));
        let presence = Presence { answers, has_left: shared.membership.departed(peer), carrier };
        // Earlier than that, all questions are answered, or nobody carries them.
        let is_answered = answers || asked.elapsed() < ANSWER_MAX;
        let is_known = presence.has_left || shared.membership.abort_flag().is_raised();
        if is_answered || is_known || Instant::now() >= until {
            return presence;
        }
    }
}
