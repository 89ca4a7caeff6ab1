//! Tests of the diagnosis.

use super::Suspicion::{HasFinished, HasLeft};
use std::sync::Arc;

use kolo_collectives::plan::Collective;
use kolo_transport::{Error, ErrorKind};

use super::{
    Carrier, Cause, Diagnosis, Evidence, Judgement, Presence, Question, WrongMessage, adopt, diagnose, judge,
};
use crate::call;
use crate::call::{Summary, Waited};
use crate::control::{AbortCause, AbortKind, Past, Status};
use crate::error::PeerCall;
use crate::types::{DataType, ReduceOp};

const COMMUNICATOR: u64 = 7;

fn sum(count: usize) -> Summary {
    let (collective, data_type) = (Collective::AllReduce, DataType::F32);
    let op = Some(ReduceOp::Sum);
    Summary { collective, count: Some(count), data_type, op, root: None, shards: None, asynchronous: false }
}

/// Returns evidence of rank 2, which has made call 4 and waits in call 5.
fn evidence() -> Evidence {
    Evidence {
        rank: 2,
        communicator: COMMUNICATOR,
        waited: Waited::Call(sum(5), Some(5)),
        calls: vec![(4, sum(4)), (5, sum(5))],
        is_closed: false,
        wrong: None,
        failure: None,
        how: "10.0.0.1:7".to_owned(),
        report: None,
        report_had_time: false,
        presence: None,
        status: None,
        shown: None,
    }
}

fn failed(kind: ErrorKind, peer: Option<u32>) -> Evidence {
    let error = Error { kind, transport: "tcp", peer, detail: "reset".to_owned(), source: None };
    Evidence { failure: Some(error), ..evidence() }
}

fn known(evidence: &Evidence) -> Cause {
    match diagnose(evidence) {
        Diagnosis::Known(cause) => cause,
        Diagnosis::Needs(question) => panic!("{question:?}"),
    }
}

fn needed(evidence: &Evidence) -> Question {
    match diagnose(evidence) {
        Diagnosis::Needs(question) => question,
        Diagnosis::Known(cause) => panic!("{cause:?}"),
    }
}

fn status(recent: &[(u64, Summary)]) -> Status {
    let past = |(sequence, summary): &(u64, Summary)| Past {
        sequence: *sequence,
        signature: summary.signature(),
        description: summary.to_string(),
    };
    Status {
        started: 5,
        finished: 4,
        signature: 0,
        description: String::new(),
        waits_in: None,
        recent: recent.iter().map(past).collect(),
        unchanged_ms: 0,
        unheard_by: Vec::new(),
    }
}

fn tag(sequence: u64, summary: Summary) -> u64 {
    call::tag(COMMUNICATOR, sequence, summary.signature())
}

#[test]
fn what_is_reported_comes_before_what_was_seen_here() {
    let mut seen = failed(ErrorKind::PeerLost, Some(1));
    seen.report = Some(AbortCause::new(3, AbortKind::PeerLost, "killed"));
    assert!(matches!(known(&seen), Cause::PeerLost { peer: 3, .. }));
}

#[test]
fn a_broken_connection_is_not_yet_a_lost_peer() {
    let mut seen = failed(ErrorKind::PeerLost, Some(1));
    assert_eq!(needed(&seen), Question::Report);
    seen.report_had_time = true;
    assert_eq!(needed(&seen), Question::Presence(1));
    let mut with = |answers, has_left, carrier| {
        seen.presence = Some(Presence { answers, has_left, carrier });
        known(&seen)
    };
    let text = |cause: &Cause| cause.to_string();
    let lost = with(false, false, Carrier::Answers);
    assert!(matches!(lost, Cause::PeerLost { peer: 1, .. }), "{lost:?}");
    let left = with(true, true, Carrier::Answers);
    assert!(matches!(left, Cause::PeerLost { peer: 1, .. }) && text(&left).contains("exited"), "{left:?}");
    let alive = with(true, false, Carrier::Answers);
    assert!(matches!(alive, Cause::Transport(_)) && text(&alive).contains("is alive"), "{alive:?}");
    assert!(text(&alive).contains("rank 2 lost its connection to rank 1 (10.0.0.1:7)"), "{alive:?}");
    let silent = with(false, false, Carrier::Silent);
    assert!(matches!(silent, Cause::Transport(_)) && text(&silent).contains("rank 0"), "{silent:?}");
    assert!(matches!(with(false, false, Carrier::Gone), Cause::PeerLost { peer: 1, .. }));
}

#[test]
fn a_mismatch_names_both_calls() {
    let (expected_tag, theirs) = (tag(5, sum(5)), tag(5, sum(6)));
    let kind = ErrorKind::Mismatch { expected_tag, tag: theirs, expected_len: 20, len: 24 };
    let mut seen = failed(kind, Some(1));
    assert_eq!(needed(&seen), Question::Status(1));
    // If the peer remembers it, the first call that differs; otherwise the call of the message.
    seen.status = Some(Some(status(&[(4, sum(9)), (5, sum(6))])));
    let Cause::Mismatch { peer: 1, theirs, ours, sequence: Some(4) } = known(&seen) else { panic!() };
    let called = PeerCall::Operation { description: sum(9).to_string(), sequence: None };
    assert_eq!((theirs, ours), (called, sum(4).to_string()));
    seen.status = Some(Some(status(&[(6, sum(6))])));
    let Cause::Mismatch { sequence: Some(5), .. } = known(&seen) else { panic!() };
    // Without an answer, another rank's report counts, or the call that the peer shows.
    seen.status = Some(None);
    let Question::Shown { peer: 1, sequence: 5, .. } = needed(&seen) else { panic!() };
    seen.shown = Some(Some("a barrier".to_owned()));
    let Cause::Mismatch { theirs, .. } = known(&seen) else { panic!() };
    assert_eq!(theirs.to_string(), "a barrier");
    seen.shown = Some(None);
    let Cause::Mismatch { theirs, .. } = known(&seen) else { panic!() };
    assert!(matches!(&theirs, PeerCall::Unknown { detail } if detail == "something else"), "{theirs}");
}

#[test]
fn a_message_of_another_length_or_type_needs_nobodys_word() {
    let receive = call::transfer_tag(COMMUNICATOR, DataType::F32, 3);
    let other = call::transfer_tag(COMMUNICATOR, DataType::I64, 3);
    let wrong = |tag, len| {
        let wrong = WrongMessage { peer: 0, tag, len, expected: Some((receive, 8)) };
        let Cause::Mismatch { peer: 0, theirs, ours, .. } =
            known(&Evidence { wrong: Some(wrong), ..evidence() })
        else {
            panic!()
        };
        (ours, theirs)
    };
    let (ours, theirs) = wrong(receive, 16);
    assert_eq!(ours, "recv of 8 bytes of f32 with tag 3");
    assert!(matches!(theirs, PeerCall::Length { bytes: 16, expected: 8, .. }), "{theirs:?}");
    assert!(theirs.to_string().ends_with("with a message of 16 bytes where 8 were expected"), "{theirs}");
    let sent = wrong(other, 8).1;
    assert_eq!(sent, PeerCall::Send { bytes: 8, data_type: DataType::I64, tag: 3 });
    assert_eq!(sent.to_string(), "send of 8 bytes of i64 with tag 3");
}

#[test]
fn another_ranks_mismatch_is_ours_if_we_called_something_else_too() {
    let own = |sequence| (sequence == 4).then(|| sum(4));
    let report = |operation: Summary| {
        let reason = "rank 1 called x, rank 2 called y";
        AbortCause::new(1, AbortKind::Mismatch, reason).during(operation.to_string(), 4)
    };
    assert!(matches!(adopt(&report(sum(9)), own), Cause::Mismatch { peer: 1, sequence: Some(4), .. }));
    assert!(matches!(adopt(&report(sum(4)), own), Cause::MismatchOfOthers { by: 1, sequence: 4, .. }));
}

#[test]
fn nothing_known_is_an_abort_and_anything_else_the_transports() {
    assert!(matches!(known(&evidence()), Cause::Aborted { by: 2, .. }));
    assert!(known(&Evidence { is_closed: true, ..evidence() }).to_string().contains("dropped"));
    let error = Error { source: Some(Arc::new(std::io::Error::other("x"))), ..system() };
    let seen = Evidence { failure: Some(error), ..evidence() };
    assert!(matches!(known(&seen), Cause::Transport(_)));
}

fn system() -> Error {
    let detail = "no buffers".to_owned();
    Error { kind: ErrorKind::System, transport: "tcp", peer: None, detail, source: None }
}

#[test]
fn answers_are_judged_peer_by_peer() {
    let own = |sequence| (sequence == 4).then(|| sum(4));
    let same = || Some(status(&[(4, sum(4))]));
    let other = || Some(status(&[(4, sum(5))]));
    let judged = |answers: &[_], gone: &[u32], suspected| {
        judge(answers, own, None, |peer| gone.contains(&peer), suspected)
    };
    assert!(matches!(judged(&[(0, same()), (1, None)], &[], None), Judgement::Nothing));
    let Judgement::Over(Cause::Mismatch { peer: 1, .. }) = judged(&[(0, same()), (1, other())], &[], None)
    else {
        panic!()
    };
    assert!(matches!(judged(&[(0, same()), (1, None)], &[1], None), Judgement::Suspects(HasLeft)));
    let Judgement::Over(Cause::PeerLost { peer: 1, .. }) =
        judged(&[(0, same()), (1, None)], &[1], Some(HasLeft))
    else {
        panic!()
    };
    // A call that differs is the cause even if the peer has left.
    assert!(matches!(judged(&[(1, other())], &[1], None), Judgement::Over(Cause::Mismatch { .. })));
}

/// Call 5 has blocks of unequal length. Only a peer that is surely done with it has nothing more to send.
#[test]
fn a_peer_that_has_finished_a_call_in_which_it_is_awaited_has_other_counts() {
    let uneven = Summary { collective: Collective::AllToAll, count: None, op: None, ..sum(0) };
    let started = Summary { asynchronous: true, ..uneven };
    let at = |finished| (1, Some(Status { started: 7, finished, ..status(&[(4, sum(4))]) }));
    let judged = |call, answers: &[_], gone: &[u32], suspected| {
        judge(answers, |_| None, Some(Waited::Call(call, Some(5))), |peer| gone.contains(&peer), suspected)
    };
    let long = Some(HasFinished);
    assert!(matches!(judged(uneven, &[at(4)], &[], long), Judgement::Nothing), "it is inside");
    assert!(
        matches!(judged(sum(5), &[at(5)], &[], long), Judgement::Nothing),
        "its counts are known to agree"
    );
    assert!(
        matches!(judged(uneven, &[at(5)], &[], None), Judgement::Suspects(HasFinished)),
        "blocks may be on their way"
    );
    let Judgement::Over(cause) = judged(uneven, &[at(5)], &[], long) else { panic!() };
    assert!(matches!(cause, Cause::Mismatch { peer: 1, sequence: Some(5), .. }), "{cause}");
    assert!(cause.to_string().contains("all_to_all_v(f32) with other counts"), "{cause}");
    assert!(matches!(judged(started, &[at(5)], &[], long), Judgement::Over(_)));
    // Later calls may be over before it.
    assert!(matches!(judged(uneven, &[at(7)], &[], long), Judgement::Nothing));
    // The suspicion that has lasted is the one that is believed.
    let both = [at(5), (2, None)];
    assert!(matches!(
        judged(uneven, &both, &[2], Some(HasLeft)),
        Judgement::Over(Cause::PeerLost { peer: 2, .. })
    ));
    assert!(matches!(judged(uneven, &both, &[2], long), Judgement::Suspects(HasLeft)));
}

/// The message of an earlier call that both ranks have made: only its counts can have differed.
#[test]
fn surplus_elements_are_blamed_on_their_call() {
    let uneven = Summary { collective: Collective::AllToAll, count: None, op: None, ..sum(0) };
    let mut seen = Evidence { calls: vec![(4, uneven), (5, sum(5))], ..evidence() };
    seen.wrong =
        Some(WrongMessage { peer: 1, tag: tag(4, uneven), len: 8, expected: Some((tag(5, sum(5)), 20)) });
    seen.status = Some(Some(status(&[(4, uneven), (5, sum(5))])));
    let Cause::Mismatch { theirs, sequence: Some(5), .. } = known(&seen) else { panic!() };
    let text = theirs.to_string();
    assert!(text.contains("more elements") && text.ends_with("as operation #4"), "{text}");
}
