//! Last words: a cause encoded in one word, which ranks of a host leave for each other where no control plane reports
//! it.

use super::Cause;
use crate::control::AbortKind;

/// A reason to give up, in one word that is never 0: kind | rank that gave up << 4 | rank that the reason is about <<
/// 18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LastWord {
    pub(crate) kind: AbortKind,
    pub(crate) by: u32,
    pub(crate) about: u32,
}

/// Greatest rank that fits into the word. Fewer ranks than that share memory.
const RANK_MAX: u32 = (1 << 14) - 1;

impl LastWord {
    pub(crate) fn of(cause: &Cause, rank: u32) -> Self {
        let (kind, about) = match cause {
            Cause::PeerLost { peer, .. } => (AbortKind::PeerLost, *peer),
            Cause::Mismatch { peer, .. } => (AbortKind::Mismatch, *peer),
            Cause::Timeout { .. } => (AbortKind::Timeout, rank),
            Cause::Aborted { by, .. } | Cause::MismatchOfOthers { by, .. } => (AbortKind::User, *by),
            Cause::Transport(_) => (AbortKind::User, rank),
        };
        Self { kind, by: rank, about }
    }

    pub(crate) fn encode(self) -> u32 {
        let kind = match self.kind {
            AbortKind::PeerLost => 1,
            AbortKind::Mismatch => 2,
            AbortKind::Timeout => 3,
            AbortKind::User
            | AbortKind::CoordinatorLost
            | AbortKind::Transport
            | AbortKind::Revoked
            | AbortKind::Fenced => 4,
        };
        kind | self.by.min(RANK_MAX) << 4 | self.about.min(RANK_MAX) << 18
    }

    pub(crate) fn decode(word: u32) -> Self {
        let kind = match word & 0xf {
            1 => AbortKind::PeerLost,
            2 => AbortKind::Mismatch,
            3 => AbortKind::Timeout,
            _ => AbortKind::User,
        };
        Self { kind, by: word >> 4 & RANK_MAX, about: word >> 18 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_words_come_back_as_they_were() {
        for kind in [AbortKind::PeerLost, AbortKind::Mismatch, AbortKind::Timeout, AbortKind::User] {
            for (by, about) in [(0, 0), (1, 63), (RANK_MAX, 7), (5, RANK_MAX)] {
                let word = LastWord { kind, by, about };
                assert_ne!(word.encode(), 0);
                assert_eq!(LastWord::decode(word.encode()), word);
            }
        }
    }
}
