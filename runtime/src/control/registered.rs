//! The communicators that a rank has registered, and what ends them.

use std::sync::{Arc, Weak};

use super::abort::{AbortCause, AbortFlag, AbortKind, Loss};
use super::board::StatusBoard;
use super::member::{Raise, Shared, State};

/// A communicator of this rank.
#[derive(Debug)]
pub(super) struct Registered {
    pub(super) members: Arc<[u32]>,
    /// The communicators that this one was split off, directly or not.
    pub(super) ancestors: Arc<[u64]>,
    /// Whether its members have yet to come together. Until then it ends with the one that it is split off.
    pub(super) in_making: bool,
    pub(super) flag: Arc<AbortFlag>,
    pub(super) board: Weak<StatusBoard>,
}

impl Shared {
    /// Ends the communicators below one which this rank revokes or gives up.
    pub(crate) fn end_below(&self, communicator: u64, cause: &AbortCause) {
        self.change(|state| state.end_below(communicator, self.rank, cause));
    }

    /// Records that the members of a communicator have come together.
    pub(crate) fn note_made(&self, communicator: u64) {
        if let Some(registered) = self.lock().communicators.get_mut(&communicator) {
            registered.in_making = false;
        }
    }
}

impl State {
    /// Returns the flags of the communicators that end because a member has given up one above them, to be raised: all
    /// that were split off it, if it is revoked, and otherwise those in the making, which that member cannot make any
    /// more.
    pub(super) fn end_below(&self, communicator: u64, me: u32, cause: &AbortCause) -> Vec<Raise> {
        let by = self.communicators.get(&communicator).and_then(|r| r.members.get(cause.by as usize));
        let is_revoked = cause.kind == AbortKind::Revoked;
        let ends = |r: &&Registered| match is_revoked {
            true => r.ancestors.contains(&communicator),
            false => r.in_making && r.ancestors.last() == Some(&communicator),
        };
        let raise = |r: &Registered| {
            // The members of one in the making have yet to hear that this rank gives it up.
            if is_revoked {
                r.flag.note_given_up();
                r.flag.note_revoked();
            }
            (r.flag.clone(), r.ended_above(by.copied(), me, cause))
        };
        self.communicators.values().filter(ends).map(raise).collect()
    }

    /// Returns the cause that ends a communicator in the making, because one above it is revoked, or because a member has
    /// given up the one that it is split off.
    pub(super) fn ended_above(&self, registered: &Registered, me: u32) -> Option<AbortCause> {
        self.revoked_above(registered, me).or_else(|| self.given_up_above(registered, me))
    }

    fn given_up_above(&self, registered: &Registered, me: u32) -> Option<AbortCause> {
        let above = self.communicators.get(registered.ancestors.last()?)?;
        let cause = above.flag.cause().filter(|_| above.flag.is_given_up())?;
        Some(registered.ended_above(above.members.get(cause.by as usize).copied(), me, &cause))
    }

    fn revoked_above(&self, registered: &Registered, me: u32) -> Option<AbortCause> {
        let is_revoked = |id: &u64| match self.communicators.get(id) {
            Some(above) => above.flag.is_revoked(),
            None => Shared::abort_cause(self, *id).is_some_and(|cause| cause.kind == AbortKind::Revoked),
        };
        let own = registered.index(me).unwrap_or_default();
        let cause =
            || AbortCause::new(own, AbortKind::Revoked, "the communicator that it was split off is revoked");
        registered.ancestors.iter().any(is_revoked).then(cause)
    }
}

impl Registered {
    pub(super) fn new(
        members: Arc<[u32]>,
        ancestors: Arc<[u64]>,
        flag: &Arc<AbortFlag>,
        board: &Arc<StatusBoard>,
    ) -> Self {
        let (flag, board) = (Arc::clone(flag), Arc::downgrade(board));
        Self { members, in_making: !ancestors.is_empty(), ancestors, flag, board }
    }

    /// Returns the cause of an end that comes from above. It names this rank if the rank at fault is not a member.
    fn ended_above(&self, by: Option<u32>, me: u32, cause: &AbortCause) -> AbortCause {
        let (by, own) = (by.and_then(|by| self.index(by)), self.index(me).unwrap_or_default());
        if cause.kind == AbortKind::PeerLost && by.is_none() {
            let reason = format!("the communicator that it is split off has failed: {cause}");
            return AbortCause::new(own, AbortKind::Transport, reason);
        }
        AbortCause { by: by.unwrap_or(own), ..cause.clone() }
    }

    pub(super) fn index(&self, rank: u32) -> Option<u32> {
        self.members.iter().position(|&member| member == rank).map(|i| i as u32)
    }

    pub(super) fn loss_of(&self, rank: u32, loss: &Loss) -> Option<AbortCause> {
        self.index(rank).map(|member| AbortCause::lost(member, loss))
    }

    pub(super) fn coordinator_lost(&self, me: u32, loss: &Loss) -> Option<AbortCause> {
        Some(match self.index(0) {
            Some(member) => AbortCause::lost(member, loss),
            None => AbortCause::new(
                self.index(me).unwrap_or_default(),
                AbortKind::CoordinatorLost,
                format!("world rank 0, which carries the control plane, is lost: {loss}"),
            ),
        })
    }
}
