//! The survivors of a communicator meet anew: agreements among its members, and a control plane of their own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kolo_membership::{Decision, Part};
use tokio::sync::oneshot;

use super::abort::AbortCause;
use super::coordinator::{BoxedStream, Coordinator};
use super::invitation::Invitation;
use super::peers::Agreed;
use super::peers::door::{Door, DoorAddress, NoAnswer, Tag};
use super::peers::lobby::{Entrance, GroupId, Lobby};
use super::peers::rounds::RoundKey;
use super::peers::snapshots::Desk;
use super::{Control, Membership};
use crate::error::{Error, JoinFailure, Result};
use crate::job::limits::{CONNECT_TIMEOUT, STRANDED_SILENCES};
use crate::join::{self, JoinSpec, Locator};

/// Longest time for a decision, beside silences, on a busy host.
const DECIDING: Duration = Duration::from_secs(2);

/// The call for which members agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// The user's own flags.
    Agree = 1,
    /// The survivors.
    Shrink = 2,
    /// Whether the survivors have met.
    Confirm = 4,
    /// The survivors, before newcomers join them.
    Grow = 8,
    /// Whether all members, old and new, are there.
    Enter = 16,
}

/// Until when members that live and have not called are waited for, and what then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    /// This member gives up.
    GivingUp(Instant),
    /// All decide, as if those had called with no flag set; they get that decision when they call.
    Deciding(Instant),
}

impl Until {
    pub(crate) const fn deadline(self) -> Instant {
        match self {
            Self::GivingUp(deadline) | Self::Deciding(deadline) => deadline,
        }
    }
}

/// Reason why a member has not decided with the others.
#[derive(Clone, Debug)]
pub(crate) enum Disagreement {
    /// The others have gone on without it; one of them.
    Fenced { by: u32 },
    /// No quorum answers.
    Minority { silent: Vec<u32> },
    /// Too late.
    Timeout { late: Vec<u32>, silent: Vec<u32> },
    /// The members called different things.
    Mismatch,
    /// This rank has no way to the others.
    NoDoor,
}

impl Control {
    /// Address of this rank's door, for calls without the coordinator; none for a job of one rank, or without a port.
    fn door(&self) -> Option<DoorAddress> {
        self.inner.door.get().map(|door| door.address().clone())
    }

    /// Opens a door, if there is none: for a job of one rank that would have others join it.
    pub(crate) fn open_door(&self) -> Result<()> {
        if self.inner.door.get().is_some() {
            return Ok(());
        }
        let (report, opened) = std::sync::mpsc::sync_channel(1);
        let spec = self.inner.spec.clone();
        self.inner.runtime.spawn(async move {
            let _ = report.send(Door::open(&spec).await);
        });
        let opened = opened.recv().map_err(|_| Error::Join {
            rank: Some(self.rank()),
            kind: JoinFailure::Interrupted,
            problem: "the control thread ended".to_owned(),
            remedy: "Keep the ControlRuntime as long as its communicators".to_owned(),
        })?;
        let _ = self.inner.door.set(Arc::new(opened?));
        Ok(())
    }

    /// The lobby in which newcomers wait for this group, or a new one. None without a door.
    pub(crate) fn lobby(&self, group: GroupId, make: impl FnOnce() -> Lobby) -> Option<Arc<Lobby>> {
        self.inner.door.get().map(|door| door.lobby(group, make))
    }

    /// The desk from which newcomers fetch the state of this group, or a new one. None without a door.
    pub(crate) fn open_desk(&self, group: GroupId) -> Option<Arc<Desk>> {
        self.inner.door.get().map(|door| door.open_desk(group))
    }

    /// The same, if it was opened.
    pub(crate) fn desk(&self, group: GroupId) -> Option<Arc<Desk>> {
        self.inner.door.get()?.desk(group)
    }

    /// Whether this process had no descriptors for lines to other members at some time since then.
    pub(crate) fn lacked_descriptors(&self, since: Instant) -> bool {
        self.inner.door.get().is_some_and(|door| door.lacked_descriptors(since))
    }

    /// The doors of some ranks, as far as they are known, and what newcomers must know beside them.
    pub(crate) fn entrances(&self, ranks: &[u32]) -> Vec<Entrance> {
        ranks.iter().filter_map(|rank| self.entrance(*rank)).collect()
    }

    /// The door of a rank.
    pub(crate) fn entrance(&self, rank: u32) -> Option<Entrance> {
        let peers = || self.inner.peers.as_ref()?.door(rank).filter(|door| *door != DoorAddress::default());
        let door = if rank == self.rank() { self.door() } else { peers() }?;
        Some(Entrance { door, host_key: self.peer_info()[rank as usize].host_key })
    }

    /// For newcomers: the way to the members who live.
    pub(crate) fn invitation(&self, lobby: &Lobby) -> Option<Invitation> {
        let secret =
            self.inner.spec.secret.as_ref().and_then(|secret| secret.for_newcomers()).map(<[u8]>::to_vec);
        Some(Invitation::new(lobby.group(), self.entrance(self.rank())?, lobby.entrances(), secret))
    }

    /// Tells members that a communicator is aborted, where there is no coordinator to do it.
    pub(super) fn tell_members(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        if let Some(peers) = &self.inner.peers {
            peers.abort(members, communicator, cause);
        }
    }

    /// Makes a control plane of some ranks, and of newcomers perhaps, all of which come. The one that is rank 0 from now on runs its
    /// coordinator.
    /// Blocks until all have come, one of them is gone or silent, an alarm sounds, or the deadline.
    pub(crate) fn reunite(&self, meeting: Meeting<'_>) -> Result<Self> {
        let Meeting { ranks, place, world_size, at, tag, later, silent_after, deadline, alarm } = meeting;
        let (spec, runtime) = (&self.inner.spec, &self.inner.runtime);
        let missing = |problem: &str| Error::Join {
            rank: Some(spec.rank),
            kind: JoinFailure::Survivors,
            problem: problem.to_owned(),
            remedy: "Call shrink, or grow, again".to_owned(),
        };
        let Some(door) = self.inner.door.get() else {
            if world_size > 1 {
                return Err(missing("this rank has no way to the others"));
            }
            let locator = Locator::Local(join::LocalMeeting::default());
            return Self::join(&JoinSpec { rank: 0, world_size: 1, locator, ..spec.clone() }, runtime);
        };
        if !ranks.contains(&spec.rank) {
            return Err(missing("this rank is not among those that are left"));
        }
        let at = at.ok_or_else(|| missing("the way to the lowest rank is not known"))?;
        let center = ranks.iter().find(|rank| self.entrance(**rank).is_some_and(|own| own.door == at.door));
        let near = at.host_key == self.peer_info()[spec.rank as usize].host_key;
        let reunion = Reunion { door: door.clone(), at: at.door, near, tag };
        let left = deadline.saturating_duration_since(Instant::now());
        let next = JoinSpec {
            rank: place,
            world_size,
            locator: Locator::Survivors(join::Reunion(Arc::new(reunion))),
            timeout: left,
            source: "what is left of a communicator".to_owned(),
            ..spec.clone()
        };
        // The rank that runs the coordinator looks after all; the others look after it. The alarm looks after newcomers.
        let others = || ranks.iter().copied().filter(|rank| *rank != spec.rank).collect();
        let watched: Vec<u32> = if place == 0 { others() } else { center.into_iter().copied().collect() };
        let watch = self.inner.peers.as_ref().filter(|_| !watched.is_empty());
        let watch = watch.map(|peers| peers.watch(watched, later, silent_after));
        Self::join_watching(&next, runtime, watch.into_iter().chain(alarm).collect())
    }
}

/// Members that come together anew.
pub(crate) struct Meeting<'a> {
    /// Newcomers, by their ranks until now.
    pub(crate) ranks: &'a [u32],
    /// This one's rank from now on.
    pub(crate) place: u32,
    /// World size from then on, newcomers included.
    pub(crate) world_size: u32,
    /// The door of rank 0 from now on.
    pub(crate) at: Option<Entrance>,
    pub(crate) tag: Tag,
    /// The agreement to which a member goes that has given this meeting up.
    pub(crate) later: RoundKey,
    pub(crate) silent_after: Duration,
    pub(crate) deadline: Instant,
    /// Reports that another rank will not come.
    pub(crate) alarm: Option<oneshot::Receiver<(u32, String)>>,
}

impl Membership {
    /// Agrees with the members that live. Blocks until all of these have called it, or for so long; and for some silences longer where the
    /// others decide and some do not answer.
    pub(crate) fn agree(
        &self,
        purpose: Purpose,
        flags: u64,
        silent_after: Duration,
        until: Until,
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
        let grace = match until {
            Until::GivingUp(_) => None,
            Until::Deciding(_) => Some(silent_after * (STRANDED_SILENCES + 1) + DECIDING),
        };
        match peers.agree(key, self.members(), part, silent_after, until.deadline(), grace) {
            Agreed::Decided(decision) if !decision.members.contains(own) => {
                let by = decision.members.iter().next().unwrap_or_default();
                Err(Disagreement::Fenced { by })
            }
            Agreed::Decided(decision) if decision.kinds != purpose as u8 => Err(Disagreement::Mismatch),
            Agreed::Decided(decision) => Ok(decision),
            Agreed::LeftBehind { by } => Err(Disagreement::Fenced { by }),
            Agreed::Stranded { silent } => Err(Disagreement::Minority { silent }),
            Agreed::Late { late, silent } => Err(Disagreement::Timeout { late, silent }),
        }
    }
}

/// Meeting of survivors.
pub(super) struct Reunion {
    pub(super) door: Arc<Door>,
    /// The door of the one that runs the coordinator.
    pub(super) at: DoorAddress,
    pub(super) near: bool,
    pub(super) tag: Tag,
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
    /// Also at which port that is.
    pub(super) async fn knock(
        &self,
        spec: &JoinSpec,
    ) -> std::result::Result<(BoxedStream, Option<SocketAddr>), NoAnswer> {
        let credentials = self.at.credentials(spec);
        self.door.join_at(&self.at, self.near, credentials, self.tag, CONNECT_TIMEOUT).await
    }

    /// Survivors are for this coordinator, until the result is dropped.
    pub(super) fn receive(&self, coordinator: &Coordinator) -> Box<dyn Send> {
        self.door.receive(self.tag, coordinator)
    }
}
