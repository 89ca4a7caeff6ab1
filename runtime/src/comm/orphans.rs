//! What ranks of one host do where there is no control plane any more: world rank 0 has left in good order.
//!
//! Messages are carried by links, whose ends show by themselves. An exchange has no link, so who waits in one for long
//! looks whether those that it waits for are still there. Ranks that give up leave word on the board of the host: the cause
//! in one word, and for mismatches, each its own call beside it.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use kolo_transport::ErrorKind;

use super::failure::Poison;
use super::shared::{Core, Shared};
use super::waited::Waited;
use crate::call;
use crate::control::{AbortCause, AbortKind, Loss};
use crate::error::{LossCause, Result};
use crate::summary::{Label, Summary};
use crate::wait;

/// How long a rank that has met another call waits for the name of it: the other rank meets this one's within a sleep.
const NAME_MAX: Duration = Duration::from_millis(500);

/// Operations by which ranks that call different things may be apart, and still find each other's call.
const APART_MAX: u64 = 64;

/// A reason to give up, in one word that is not 0: kind | rank that gave up << 4 | rank that it is about << 18.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastWord {
    kind: AbortKind,
    by: u32,
    about: u32,
}

/// Ranks that a word has room for: more than share memory.
const RANK_MAX: u32 = (1 << 14) - 1;

impl LastWord {
    fn of(poison: &Poison, rank: u32) -> Self {
        let (kind, about) = match poison {
            Poison::PeerLost { peer, .. } => (AbortKind::PeerLost, *peer),
            Poison::Mismatch { peer, .. } => (AbortKind::Mismatch, *peer),
            Poison::Timeout { .. } => (AbortKind::Timeout, rank),
            Poison::Aborted { by, .. } | Poison::MismatchOfOthers { by, .. } => (AbortKind::User, *by),
            Poison::Transport(_) => (AbortKind::User, rank),
        };
        Self { kind, by: rank, about }
    }

    fn encode(self) -> u32 {
        let kind = match self.kind {
            AbortKind::PeerLost => 1,
            AbortKind::Mismatch => 2,
            AbortKind::Timeout => 3,
            AbortKind::User | AbortKind::HubLost | AbortKind::Transport => 4,
        };
        kind | self.by.min(RANK_MAX) << 4 | self.about.min(RANK_MAX) << 18
    }

    fn decode(word: u32) -> Self {
        let kind = match word & 0xf {
            1 => AbortKind::PeerLost,
            2 => AbortKind::Mismatch,
            3 => AbortKind::Timeout,
            _ => AbortKind::User,
        };
        Self { kind, by: word >> 4 & RANK_MAX, about: word >> 18 }
    }
}

impl Shared {
    /// Leaves word of a failure for ranks that no control plane tells.
    pub(super) fn leave_word(&self, core: &Core, poison: &Poison) {
        if let Some(tiny) = &core.tiny {
            tiny.board().abort(LastWord::of(poison, self.rank).encode());
        }
    }

    /// Shows the other ranks of the host what this one called.
    pub(super) fn show_call(&self, core: &Core, waited: Waited) {
        if let (Some(tiny), Some(summary)) = (&core.tiny, waited.summary()) {
            let Label { kind, count } = summary.label();
            tiny.board().announce(kind, count);
        }
    }

    /// Takes in what another rank has left word of, if no control plane will tell.
    #[inline]
    pub(super) fn hear_last_words(&self, core: &Core, waited: Waited) {
        let word = core.tiny.as_ref().map_or(0, |tiny| tiny.board().aborted());
        if word != 0 && !self.membership.abort_flag().is_raised() && self.world.control.is_closed() {
            self.take_last_words(core, LastWord::decode(word), waited);
        }
    }

    #[cold]
    fn take_last_words(&self, core: &Core, word: LastWord, waited: Waited) {
        self.show_call(core, waited);
        let LastWord { kind, by, about } = word;
        if by >= self.world_size || by == self.rank {
            return;
        }
        let cause = match kind {
            AbortKind::PeerLost => {
                AbortCause::lost(about, &Loss::new(LossCause::Closed, format!("rank {by} found it gone")))
            }
            AbortKind::Mismatch => self.mismatch_of_others(core, (by, about), waited),
            AbortKind::Timeout => AbortCause::new(by, kind, "it did not finish in time"),
            AbortKind::User | AbortKind::HubLost | AbortKind::Transport => {
                AbortCause::new(about, AbortKind::User, "it gave up")
            }
        };
        self.membership.abort_flag().raise(cause);
    }

    /// A mismatch that `by` has met with `about`, which may be this rank, as it looks from here.
    fn mismatch_of_others(&self, core: &Core, (by, about): (u32, u32), waited: Waited) -> AbortCause {
        let own = waited.summary().map(Summary::label);
        // Who called the same as the one is shown the other's call.
        let other = if own == self.shown_call(core, by) { about } else { by };
        let until = Instant::now() + NAME_MAX;
        loop {
            // It has shown an earlier call, or none, until it meets the mismatch too.
            let theirs = self.shown_call(core, other).filter(|theirs| Some(*theirs) != own);
            if let Some(theirs) = theirs {
                return AbortCause::new(other, AbortKind::Mismatch, theirs.to_string());
            }
            if Instant::now() >= until {
                return AbortCause::new(other, AbortKind::Mismatch, "something else");
            }
            wait::sleep(Duration::from_millis(1));
        }
    }

    /// What a rank of the host has shown of its call.
    fn shown_call(&self, core: &Core, rank: u32) -> Option<Label> {
        let board = core.tiny.as_ref()?.board();
        let (kind, count) = ((rank as usize) < board.members()).then(|| board.announced(rank as usize))?;
        (kind != 0).then_some(Label { kind, count })
    }

    /// The call of a peer whose message has this tag, in words, if it shows it; this rank's own is number `sequence`.
    pub(super) fn shown_by(&self, peer: u32, tag: u64, sequence: u64) -> Option<String> {
        if !self.world.control.is_closed() {
            return None;
        }
        let until = Instant::now() + NAME_MAX;
        loop {
            if let Some(label) = self.shown_call(&self.core(), peer) {
                let is_it = |number: &u64| call::tag(self.id, *number, label.signature()) == tag;
                let numbers = sequence.saturating_sub(APART_MAX)..sequence + APART_MAX;
                match numbers.into_iter().find(is_it) {
                    Some(number) if number == sequence => return Some(label.to_string()),
                    Some(number) => return Some(format!("{label} as operation #{number}")),
                    None => {}
                }
            }
            if Instant::now() >= until {
                return None;
            }
            wait::sleep(Duration::from_millis(1));
        }
    }

    /// Fails if a rank is gone that the exchange at hand waits for, and no control plane would say so.
    pub(super) fn look_for_the_gone<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        waited: Waited,
    ) -> Result<MutexGuard<'a, Core>> {
        if !self.world.control.is_closed() {
            return Ok(core);
        }
        let late = |core: &Core| {
            let tiny = core.tiny.as_ref().filter(|tiny| tiny.is_under_way());
            tiny.map_or_else(Vec::new, |tiny| tiny.waiting_for())
        };
        for peer in late(&core) {
            let Err(error) = core.engine.look_for(peer) else { continue };
            if error.kind != ErrorKind::PeerLost {
                tracing::warn!(peer, %error, "nothing will tell of this rank's end");
                continue;
            }
            // What it published before its end has come by now.
            if late(&core).contains(&peer) {
                drop(core);
                self.poison_with(Poison::PeerLost {
                    peer,
                    cause: Loss::new(LossCause::Closed, error.detail),
                });
                return Err(self.fail(waited));
            }
        }
        Ok(core)
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
