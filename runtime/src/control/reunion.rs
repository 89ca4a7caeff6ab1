//! What is left of a communicator meets anew: agreements among its members, and a control plane of the survivors.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_membership::{Decision, Part};

use super::abort::AbortCause;
use super::coordinator::{BoxedStream, Coordinator};
use super::peers::Agreed;
use super::peers::door::{Door, DoorAddress, NoAnswer, Tag};
use super::peers::rounds::RoundKey;
use super::{Control, Membership};
use crate::error::{Error, JoinFailure, Result};
use crate::job::limits::CONNECT_TIMEOUT;
use crate::join::{self, JoinSpec, Locator};

/// What a member calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// The user's own flags.
    Agree = 1,
    /// Who is left.
    Shrink = 2,
    /// Whether those who are left have met.
    Confirm = 4,
}

/// Why a member has not come to a decision with the others.
#[derive(Clone, Debug)]
pub(crate) enum Disagreement {
    /// The others have gone on without it; one of them.
    Fenced { by: u32 },
    /// No quorum answers.
    Minority { silent: Vec<u32> },
    /// Not in time.
    Timeout { late: Vec<u32>, silent: Vec<u32> },
    /// The members called different things.
    Mismatch,
    /// This rank has no way to the others.
    NoDoor,
}

impl Control {
    /// Where others reach this rank without the coordinator; none for a job of one rank, or if no port was to be had.
    pub(crate) fn door(&self) -> Option<DoorAddress> {
        self.inner.door.as_ref().map(|door| door.address().clone())
    }

    /// The doors of all ranks are known. Later calls change nothing.
    pub(crate) fn meet(&self, doors: Vec<Option<DoorAddress>>) {
        let (Some(door), inner) = (&self.inner.door, &self.inner) else { return };
        let doors = doors.into_iter().map(Option::unwrap_or_default).collect();
        if let Some(peers) = &inner.peers {
            peers.start(&inner.runtime, &inner.spec, inner.shared.clone(), door.clone(), doors);
        }
    }

    /// Tells members that a communicator is aborted, where there is no coordinator to do it.
    pub(super) fn tell_members(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        if let Some(peers) = &self.inner.peers {
            peers.abort(members, communicator, cause);
        }
    }

    /// Makes a control plane of some ranks, all of which call it. The first of `ranks` runs its coordinator. Blocks until all have come,
    /// one of them is gone or silent, or the deadline.
    pub(crate) fn reunite(
        &self,
        ranks: &[u32],
        tag: Tag,
        silent_after: Duration,
        deadline: Instant,
    ) -> Result<Self> {
        let (spec, runtime) = (&self.inner.spec, &self.inner.runtime);
        let missing = |problem: &str| Error::Join {
            rank: Some(spec.rank),
            kind: JoinFailure::Survivors,
            problem: problem.to_owned(),
            remedy: "Call shrink again".to_owned(),
        };
        if ranks.len() == 1 && self.inner.door.is_none() {
            let locator = Locator::Local(join::LocalMeeting::default());
            return Self::join(&JoinSpec { rank: 0, world_size: 1, locator, ..spec.clone() }, runtime);
        }
        let (Some(door), Some(peers)) = (&self.inner.door, &self.inner.peers) else {
            return Err(missing("this rank has no way to the others"));
        };
        let own = ranks.iter().position(|rank| *rank == spec.rank);
        let (Some(own), Some(center)) = (own, ranks.first()) else {
            return Err(missing("this rank is not among those that are left"));
        };
        let info = self.peer_info();
        let near = info[*center as usize].host_key == info[spec.rank as usize].host_key;
        let at = peers.door(*center).ok_or_else(|| missing("the way to the lowest rank is not known"))?;
        let reunion = Reunion { door: door.clone(), at, near, tag };
        let left = deadline.saturating_duration_since(Instant::now());
        let next = JoinSpec {
            rank: own as u32,
            world_size: ranks.len() as u32,
            locator: Locator::Survivors(join::Reunion(Arc::new(reunion))),
            timeout: left,
            source: "what is left of a communicator".to_owned(),
            ..spec.clone()
        };
        // Who runs the coordinator looks after all; the others look after it.
        let watched: Vec<u32> = match own {
            0 => ranks[1..].to_vec(),
            _ => vec![*center],
        };
        let alarm = (ranks.len() > 1).then(|| peers.watch(watched, silent_after));
        Self::join_watching(&next, runtime, alarm)
    }
}

impl Membership {
    /// Agrees with the members that live. Blocks until all of these have called it, at most until the deadline.
    pub(crate) fn agree(
        &self,
        purpose: Purpose,
        flags: u64,
        silent_after: Duration,
        deadline: Instant,
    ) -> std::result::Result<Decision, Disagreement> {
        let shared = self.control().shared();
        let number = self.next_round();
        let mut part = Part { kinds: purpose as u8, flags, seed: [0; 32] };
        // Without randomness a meeting has a name that others might guess, and still none without the key of its door.
        let _ = getrandom::fill(&mut part.seed);
        let own = self.members().iter().position(|rank| *rank == shared.rank).unwrap_or_default() as u32;
        if self.members().len() == 1 {
            let members = std::iter::once(own).collect();
            return Ok(Decision { members, flags, kinds: part.kinds, seed: part.seed });
        }
        if let Some(by) = shared.fenced_by(self.communicator()) {
            return Err(Disagreement::Fenced { by });
        }
        let Some(peers) = &self.control().inner.peers else { return Err(Disagreement::NoDoor) };
        let key = RoundKey { communicator: self.communicator(), number };
        match peers.agree(key, self.members(), part, silent_after, deadline) {
            Agreed::Decided(decision) if !decision.members.contains(own) => {
                let by = decision.members.iter().next().unwrap_or_default();
                Err(Disagreement::Fenced { by })
            }
            Agreed::Decided(decision) if decision.kinds != purpose as u8 => Err(Disagreement::Mismatch),
            Agreed::Decided(decision) => Ok(decision),
            Agreed::Stranded { silent } => Err(Disagreement::Minority { silent }),
            Agreed::Late { late, silent } => Err(Disagreement::Timeout { late, silent }),
        }
    }
}

/// Where survivors meet.
pub(super) struct Reunion {
    pub(super) door: Arc<Door>,
    /// The door of the one that runs the coordinator.
    at: DoorAddress,
    near: bool,
    tag: Tag,
}

impl Reunion {
    pub(super) fn of(opaque: &join::Reunion) -> Option<Arc<Self>> {
        opaque.0.clone().downcast().ok()
    }

    /// Whether silence on connections means anything: not between threads of one process.
    pub(super) fn is_judged(&self) -> bool {
        !self.door.is_local()
    }

    /// Goes to the one that runs the coordinator. If it is gone, or has given this meeting up, there will be no other answer.
    pub(super) async fn knock(&self, spec: &JoinSpec) -> std::result::Result<BoxedStream, NoAnswer> {
        let credentials = self.at.credentials(spec);
        self.door.join_at(&self.at, self.near, credentials, self.tag, CONNECT_TIMEOUT).await
    }

    /// Survivors are for this coordinator, until the result is dropped.
    pub(super) fn receive(&self, coordinator: &Coordinator) -> Box<dyn Send> {
        self.door.receive(self.tag, coordinator)
    }
}
