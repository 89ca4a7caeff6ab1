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
    pub(super) flag: Arc<AbortFlag>,
    pub(super) board: Weak<StatusBoard>,
}

impl State {
    /// If a communicator is revoked, marks those split off it as revoked too, and returns their flags, to be raised.
    pub(super) fn revoke_below(&self, communicator: u64, me: u32, cause: &AbortCause) -> Vec<Raise> {
        if cause.kind != AbortKind::Revoked {
            return Vec::new();
        }
        let by = self.communicators.get(&communicator).and_then(|r| r.members.get(cause.by as usize));
        let below = self.communicators.values().filter(|r| r.ancestors.contains(&communicator));
        let raise = |r: &Registered| {
            r.flag.note_given_up();
            r.flag.note_revoked();
            (r.flag.clone(), r.revoked(by.copied(), me, cause))
        };
        below.map(raise).collect()
    }

    /// Returns the cause that ends a communicator which was split off a revoked one.
    pub(super) fn revoked_above(&self, registered: &Registered, me: u32) -> Option<AbortCause> {
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
    /// Returns the cause of a revocation from above. It names this rank if the rank that revoked is not a member.
    fn revoked(&self, by: Option<u32>, me: u32, cause: &AbortCause) -> AbortCause {
        let by = by.and_then(|by| self.index(by)).or_else(|| self.index(me)).unwrap_or_default();
        AbortCause { by, ..cause.clone() }
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
