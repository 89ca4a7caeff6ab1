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
