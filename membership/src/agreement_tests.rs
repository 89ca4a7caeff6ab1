use super::*;

#[test]
fn a_decided_agreement_keeps_the_decision_only() {
    const MEMBERS: u32 = 1000;
    let second = Duration::from_secs(1);
    let settings =
        Settings { members: MEMBERS, me: 0, beat: second, silent_after: second, stranded_after: second };
    let vote = Vote { kinds: 1, flags: 1, seed: [0; 32] };
    let mut agreement = Agreement::new(settings, Duration::ZERO);
    agreement.vote(vote, Duration::ZERO);
    for from in 1..MEMBERS {
        agreement.receive(from, Message::Vote(vote), Duration::ZERO);
    }
    for (to, message) in agreement.take_messages() {
        if let Message::Prepare { ballot, gone } = message {
            agreement.receive(to, Message::Promise { ballot, gone, accepted: None }, Duration::ZERO);
        }
    }
    for (to, message) in agreement.take_messages() {
        if let Message::Accept { ballot, gone, .. } = message {
            agreement.receive(to, Message::Accepted { ballot, gone }, Duration::ZERO);
        }
    }
    agreement.take_messages();
    let State::Decided(decision) = agreement.state(Duration::ZERO) else { panic!("not decided") };
    assert_eq!(decision.members.len(), MEMBERS as usize);
    let (text, decision) = (format!("{agreement:?}"), format!("{decision:?}"));
    assert!(text.len() < decision.len() + 1000, "{} characters are left", text.len());
}

/// A caller gives up on a member that calls later. Both learn that from the same decision.
#[test]
fn the_mark_of_a_caller_that_gives_up_reaches_the_late_member() {
    const MARK: u8 = 128;
    let second = Duration::from_secs(1);
    let settings = |me| Settings {
        members: 2,
        me,
        beat: second,
        silent_after: 10 * second,
        stranded_after: 40 * second,
    };
    let [mut waits, mut late] = [0, 1].map(|me| Agreement::new(settings(me), Duration::ZERO));
    let vote = Vote { kinds: 1, flags: 1, seed: [0; 32] };
    waits.vote(vote, Duration::ZERO);
    waits.wait_no_longer(MARK, second);
    loop {
        let (questions, answers) = (waits.take_messages(), late.take_messages());
        if questions.is_empty() && answers.is_empty() {
            break;
        }
        questions.into_iter().for_each(|(_, message)| late.receive(0, message, second));
        answers.into_iter().for_each(|(_, message)| waits.receive(1, message, second));
    }
    late.vote(vote, second);
    for (member, is_proxy) in [(&waits, false), (&late, true)] {
        let State::Decided(decision) = member.state(second) else { panic!("not decided") };
        assert_eq!((decision.kinds, decision.flags, decision.members.len()), (1 | MARK, 0, 2));
        assert_eq!(member.has_voted_by_proxy(), is_proxy);
    }
}
