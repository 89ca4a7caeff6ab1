//! Ranks in the errors of a communicator that is being made from another one: the caller knows only the other one's ranks.

use crate::error::{Error, JoinFailure};

/// Translates the ranks in an error to those of the communicator in which this rank is `own`. Rank r of the new
/// communicator was `ranks[r]` there, or is a newcomer.
pub(crate) fn renumbered(mut error: Error, own: u32, ranks: &[impl Into<Option<u32>> + Copy]) -> Error {
    let ranks: Vec<Option<u32>> = ranks.iter().map(|rank| (*rank).into()).collect();
    if names_newcomer(&error, &ranks) {
        return Error::Join {
            rank: Some(own),
            kind: JoinFailure::Survivors,
            problem: format!("a newcomer could not become a member ({error}{})", note(&ranks)),
            remedy: "Call grow again".to_owned(),
        };
    }
    let translate = |rank: &mut u32| *rank = ranks.get(*rank as usize).copied().flatten().unwrap_or(*rank);
    match &mut error {
        Error::PeerLost { peer, .. } | Error::Mismatch { peer, .. } => translate(peer),
        Error::Aborted { by, .. } => translate(by),
        Error::Timeout { waiting_for, .. } => {
            waiting_for.iter_mut().for_each(|awaited| translate(&mut awaited.rank));
        }
        Error::Join { rank, kind, problem, .. } => {
            *rank = Some(own);
            if is_about_new_ranks(*kind) {
                problem.push_str(&note(&ranks));
            }
        }
        _ => {}
    }
    match &mut error {
        Error::PeerLost { context, .. }
        | Error::Mismatch { context, .. }
        | Error::Aborted { context, .. }
        | Error::Timeout { context, .. }
        | Error::Usage { context, .. }
        | Error::Unsupported { context, .. }
        | Error::Transport { context, .. } => context.rank = Some(own),
        Error::Join { .. } | Error::Configuration { .. } | Error::System { .. } => {}
    }
    error
}

fn names_newcomer(error: &Error, ranks: &[Option<u32>]) -> bool {
    let is_newcomer = |rank: &u32| ranks.get(*rank as usize) == Some(&None);
    match error {
        Error::PeerLost { peer: rank, .. }
        | Error::Mismatch { peer: rank, .. }
        | Error::Aborted { by: rank, .. } => is_newcomer(rank),
        Error::Timeout { waiting_for, .. } => waiting_for.iter().any(|awaited| is_newcomer(&awaited.rank)),
        _ => false,
    }
}

/// Whether the text of such an error names ranks as those that come together have numbered them.
const fn is_about_new_ranks(kind: JoinFailure) -> bool {
    matches!(
        kind,
        JoinFailure::Absent
            | JoinFailure::Unreachable
            | JoinFailure::Disagreement
            | JoinFailure::NoTransport
            | JoinFailure::Version
    )
}

/// Says which ranks a text names, if their numbers have changed.
fn note(ranks: &[Option<u32>]) -> String {
    const SHOWN: usize = 32;
    if (0..).zip(ranks).all(|(new, old)| Some(new) == *old) {
        return String::new();
    }
    let name = |rank: &Option<u32>| rank.map_or("new".to_owned(), |rank| rank.to_string());
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(name).collect();
    let more = if ranks.len() > SHOWN { ", ..." } else { "" };
    format!(
        "; these are ranks of the new group, which in this one were, in order: {}{more}",
        shown.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{AwaitedRank, ErrorContext, LossCause, PeerState};

    /// Ranks 0 and 2 are gone, so the new rank 1 was rank 3.
    const LEFT: [Option<u32>; 4] = [Some(1), Some(3), Some(4), None];

    fn context() -> ErrorContext {
        ErrorContext::unnumbered(2, "grow")
    }

    fn lost(peer: u32) -> Error {
        let detail = "gone".to_owned();
        Error::PeerLost { context: context(), peer, cause: LossCause::Closed, detail }
    }

    #[test]
    fn errors_name_ranks_of_the_callers_communicator() {
        match renumbered(lost(0), 4, &LEFT) {
            Error::PeerLost { context, peer, .. } => assert_eq!((context.rank, peer), (Some(4), 1)),
            other => panic!("{other}"),
        }
        let waiting_for = vec![AwaitedRank::new(1, PeerState::Late, String::new())];
        let late = Error::Timeout { context: context(), after: std::time::Duration::ZERO, waiting_for };
        match renumbered(late, 4, &LEFT) {
            Error::Timeout { context, waiting_for, .. } => {
                assert_eq!((context.rank, waiting_for[0].rank), (Some(4), 3));
            }
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_newcomer_has_no_rank_in_the_callers_communicator() {
        let told = renumbered(lost(3), 4, &LEFT).to_string();
        assert!(told.starts_with("rank 4 could not join: a newcomer could not"), "{told}");
        assert!(told.contains("rank 3 is lost") && told.contains("in order: 1, 3, 4, new)"), "{told}");
    }

    #[test]
    fn a_text_with_other_numbers_says_so() {
        let missing = |kind| Error::Join {
            rank: Some(2),
            kind,
            problem: "missing: rank 1".to_owned(),
            remedy: String::new(),
        };
        let told = renumbered(missing(JoinFailure::Absent), 4, &LEFT[..3]).to_string();
        assert!(told.starts_with("rank 4 could not join: missing: rank 1; these are ranks"), "{told}");
        assert!(told.contains("in order: 1, 3, 4."), "{told}");
        for (kind, ranks) in
            [(JoinFailure::Absent, &[Some(0), Some(1)][..]), (JoinFailure::Survivors, &LEFT[..3])]
        {
            let told = renumbered(missing(kind), 4, ranks).to_string();
            assert!(told.starts_with("rank 4 could not join: missing: rank 1. "), "{told}");
        }
    }
}
