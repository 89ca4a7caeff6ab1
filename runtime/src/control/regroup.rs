//! Regrouping of a communicator's survivors: a new control plane for them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::abort::AbortCause;
use super::coordinator::Coordinator;
use super::invitation::Invitation;
use super::peers::acceptor::Opening;
use super::peers::detours::{ASK_AFTER, Detours, are_parted};
use super::peers::listener::{ConnectError, Listener, ListenerAddress, Locality, Reached, RegroupId};
use super::peers::rounds::RoundKey;
use super::peers::snapshots::SnapshotServer;
use super::peers::waiting_list::{GroupId, MemberAddress, WaitingList};
use super::{Control, OnSilence};
use crate::error::{Error, JoinFailure, Result};
use crate::job::limits::CONNECT_TIMEOUT;
use crate::join::{self, JoinSpec, Locator};

impl Control {
    /// Returns the address of this rank's listener, for calls without the coordinator. `None` for a job of one rank, or
    /// without a port.
    fn listener(&self) -> Option<ListenerAddress> {
        self.inner.listener.get().map(|listener| listener.address().clone())
    }

    /// Opens a listener if there is none, for a job of one rank that lets others join.
    pub(crate) fn open_listener(&self) -> Result<()> {
        if self.inner.listener.get().is_some() {
            return Ok(());
        }
        let (report, opened) = std::sync::mpsc::sync_channel(1);
        let spec = self.inner.spec.clone();
        self.inner.runtime.spawn(async move {
            let _ = report.send(Listener::open(&spec).await);
        });
        let opened = opened.recv().map_err(|_| Error::Join {
            rank: Some(self.rank()),
            kind: JoinFailure::Interrupted,
            problem: "the control thread ended".to_owned(),
            remedy: "Keep the ControlRuntime alive as long as its communicators".to_owned(),
        })?;
        let _ = self.inner.listener.set(Arc::new(opened?));
        Ok(())
    }

    /// Returns the waiting list in which newcomers wait for this group, and makes it if there is none. `None` without a
    /// listener.
    pub(crate) fn waiting_list(
        &self,
        group: GroupId,
        make: impl FnOnce() -> WaitingList,
    ) -> Option<Arc<WaitingList>> {
        self.inner.listener.get().map(|listener| listener.waiting_list(group, make))
    }

    /// Returns the snapshot server from which newcomers fetch the state of this group, and makes it if there is none.
    /// `None` without a listener.
    pub(crate) fn open_snapshot_server(&self, group: GroupId) -> Option<Arc<SnapshotServer>> {
        self.inner.listener.get().map(|listener| listener.open_snapshot_server(group))
    }

    /// Returns the snapshot server of this group, if it was opened.
    pub(crate) fn snapshot_server(&self, group: GroupId) -> Option<Arc<SnapshotServer>> {
        self.inner.listener.get()?.snapshot_server(group)
    }

    /// Whether this process has lacked descriptors for connections to other members at some time since `since`.
    pub(crate) fn lacked_descriptors(&self, since: Instant) -> bool {
        self.inner.listener.get().is_some_and(|listener| listener.lacked_descriptors(since))
    }

    /// Returns the known listeners of some ranks, with the other facts that newcomers need.
    pub(crate) fn member_addresses(&self, ranks: &[u32]) -> Vec<MemberAddress> {
        ranks.iter().filter_map(|rank| self.member_address(*rank)).collect()
    }

    /// Returns the listener of a rank.
    pub(crate) fn member_address(&self, rank: u32) -> Option<MemberAddress> {
        let peers = || {
            self.inner
                .peers
                .as_ref()?
                .listener(rank)
                .filter(|listener| *listener != ListenerAddress::default())
        };
        let listener = if rank == self.rank() { self.listener() } else { peers() }?;
        Some(MemberAddress { listener, host_key: self.peer_info()[rank as usize].host_key })
    }

    /// Makes an invitation, which leads newcomers to the living members.
    pub(crate) fn invitation(&self, waiting_list: &WaitingList) -> Option<Invitation> {
        let secret =
            self.inner.spec.secret.as_ref().and_then(|secret| secret.for_newcomers()).map(<[u8]>::to_vec);
        Some(Invitation::new(
            waiting_list.group(),
            self.member_address(self.rank())?,
            waiting_list.addresses(),
            secret,
        ))
    }

    /// Returns the rank at whose port this one and another meet if neither can dial the other, and that port: rank 0's,
    /// or that of the member by which one of the two has reached rank 0.
    pub(crate) fn relay_to(&self, rank: u32) -> (u32, Option<SocketAddr>) {
        let usual = (0, self.coordinator_at());
        let (own, info) = (self.rank(), self.peer_info());
        let by = |rank: u32| info[rank as usize].relayed_by;
        let Some(id) = by(own.min(rank)).or_else(|| by(own.max(rank))) else { return usual };
        let listeners = self.inner.peers.as_ref().map_or(&[][..], |peers| peers.listeners());
        match listeners.iter().position(|listener| listener.id() == id).map(|place| place as u32) {
            Some(third) if third != own && third != rank => {
                // This rank knows an address that leads there if it has reached rank 0 by it.
                let known = self.coordinator_at().filter(|_| by(own) == Some(id));
                (third, known.or_else(|| listeners[third as usize].addresses().first().copied()))
            }
            _ => usual,
        }
    }

    /// Whether this rank and another one have met only by a third member.
    pub(crate) fn is_parted_from(&self, rank: u32) -> bool {
        are_parted(self.peer_info(), self.rank(), rank)
    }

    /// Tells members that a communicator is aborted, if there is no coordinator to do it.
    pub(super) fn tell_members(&self, members: &Arc<[u32]>, communicator: u64, cause: AbortCause) {
        if let Some(peers) = &self.inner.peers {
            peers.abort(members, communicator, cause);
        }
    }

    /// Tells members that a communicator is aborted, if the coordinator does not show soon that it has told them.
    pub(super) fn tell_members_unless_echoed(
        &self,
        members: &Arc<[u32]>,
        communicator: u64,
        cause: AbortCause,
    ) {
        if let Some(peers) = &self.inner.peers {
            peers.abort_unless_echoed(members, communicator, cause);
        }
    }

    /// Makes a control plane for some ranks, and possibly newcomers, all of which call this. The rank that becomes rank
    /// 0 runs the coordinator. Blocks until all have come, one of them is gone or silent, an alarm sounds, or the
    /// deadline passes.
    pub(crate) fn regroup(&self, new: RegroupSpec<'_>) -> Result<Self> {
        let RegroupSpec { ranks, place, world_size, at, regroup_id, later, silent_after, deadline, alarm } =
            new;
        let (spec, runtime) = (&self.inner.spec, &self.inner.runtime);
        let missing = |problem: &str| Error::Join {
            rank: Some(spec.rank),
            kind: JoinFailure::Survivors,
            problem: problem.to_owned(),
            remedy: "Call shrink or grow again".to_owned(),
        };
        let Some(listener) = self.inner.listener.get() else {
            if world_size > 1 {
                return Err(missing("this rank has no connection to the others"));
            }
            let locator = Locator::Local(join::LocalRendezvous::default());
            return Self::join(&JoinSpec { rank: 0, world_size: 1, locator, ..spec.clone() }, runtime);
        };
        if !ranks.contains(&spec.rank) {
            return Err(missing("this rank is not among those that are left"));
        }
        let at = at.ok_or_else(|| missing("the address of the lowest rank is not known"))?;
        let center = ranks
            .iter()
            .find(|rank| self.member_address(**rank).is_some_and(|own| own.listener.is_of(&at.listener)));
        let locality = Locality::of_hosts(self.peer_info()[spec.rank as usize].host_key, at.host_key);
        let detours = center.and_then(|center| {
            let peers = self.inner.peers.as_ref()?;
            let is_left = |rank: u32| ranks.contains(&rank);
            Detours::new(&self.inner.shared, spec, peers.listeners(), *center, is_left)
        });
        let (listener, began) = (listener.clone(), Instant::now());
        let regroup = Regroup {
            listener,
            at: at.listener,
            locality,
            regroup_id,
            detours,
            began,
            reach_within: None,
            was_reached: false.into(),
        };
        let left = deadline.saturating_duration_since(Instant::now());
        let next = JoinSpec {
            rank: place,
            world_size,
            locator: Locator::Survivors(join::SurvivorRendezvous(Arc::new(regroup))),
            timeout: left,
            source: "what is left of a communicator".to_owned(),
            ..spec.clone()
        };
        // The rank that runs the coordinator watches all other ranks, and they watch it. The alarm watches newcomers.
        let others = || ranks.iter().copied().filter(|rank| *rank != spec.rank).collect();
        let watched: Vec<u32> = if place == 0 { others() } else { center.into_iter().copied().collect() };
        let watch = self.inner.peers.as_ref().filter(|_| !watched.is_empty());
        let watch = watch.map(|peers| peers.watch(watched, later, silent_after));
        Self::join_watching(&next, runtime, watch.into_iter().chain(alarm).collect())
    }
}

/// The facts about a regrouping.
pub(crate) struct RegroupSpec<'a> {
    /// Ranks of the existing members until now.
    pub(crate) ranks: &'a [u32],
    /// This rank's new rank.
    pub(crate) place: u32,
    /// The new world size, newcomers included.
    pub(crate) world_size: u32,
    /// The listener of the new rank 0.
    pub(crate) at: Option<MemberAddress>,
    pub(crate) regroup_id: RegroupId,
    /// The next agreement of a member that has given up this regrouping.
    pub(crate) later: RoundKey,
    pub(crate) silent_after: Duration,
    pub(crate) deadline: Instant,
    /// Reports that another rank will not come.
    pub(crate) alarm: Option<oneshot::Receiver<Absence>>,
}

/// The news that a process will not come to a regrouping.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Absence {
    /// Its rank in the communicator that regroups. `None` for a newcomer, or if the reason names it.
    pub(crate) rank: Option<u32>,
    pub(crate) why: String,
}

impl std::fmt::Display for Absence {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rank {
            Some(rank) => write!(f, "rank {rank} cannot take part: {}", self.why),
            None => f.write_str(&self.why),
        }
    }
}

/// A regrouping of survivors, as one of them sees it.
pub(super) struct Regroup {
    pub(super) listener: Arc<Listener>,
    /// The listener of the rank that runs the coordinator.
    pub(super) at: ListenerAddress,
    pub(super) locality: Locality,
    pub(super) regroup_id: RegroupId,
    /// The members that may connect this one to that rank.
    pub(super) detours: Option<Detours>,
    pub(super) began: Instant,
    /// Time after which this process gives up because it does not reach that rank. `None` for a member, which has been
    /// reached by the others and is watched by them.
    pub(super) reach_within: Option<Duration>,
    /// Whether that rank has been reached. If it is not reached again, it has most likely ended, and the alarm says so.
    pub(super) was_reached: AtomicBool,
}

impl Regroup {
    pub(super) fn of(opaque: &join::SurvivorRendezvous) -> Option<Arc<Self>> {
        opaque.0.clone().downcast().ok()
    }

    /// Returns what silence on connections means. Between threads of one process it means nothing.
    pub(super) fn on_silence(&self) -> OnSilence {
        if self.listener.is_local() { OnSilence::Ignore } else { OnSilence::Fail }
    }

    /// Whether this process has tried for long enough to reach the rank that runs the coordinator.
    pub(super) fn is_out_of_reach(&self) -> bool {
        let is_late = self.reach_within.is_some_and(|limit| self.began.elapsed() >= limit);
        is_late && !self.was_reached.load(Ordering::Relaxed)
    }

    /// Connects to the rank that runs the coordinator, perhaps by a third member. If that rank has given up
    /// this regrouping, a retry is useless. If its process has ended, the refusals are no proof, since nothing is known
    /// about its addresses here; the watch or the alarm reports the end.
    pub(super) async fn connect(&self, spec: &JoinSpec) -> std::result::Result<Reached, ConnectError> {
        let credentials = self.at.credentials(spec);
        let opening = Opening::Join { regroup_id: self.regroup_id };
        let after = ASK_AFTER.saturating_sub(self.began.elapsed());
        let detours = self.detours.clone().map(|detours| detours.asked_after(after));
        let (at, locality) = (&self.at, self.locality);
        let reaching =
            self.listener.reach(at, locality, credentials, &opening, CONNECT_TIMEOUT, detours.as_ref());
        reaching.await.inspect(|_| self.was_reached.store(true, Ordering::Relaxed))
    }

    /// Hands survivors that come to this listener to the coordinator, until the result is dropped.
    pub(super) fn receive(&self, coordinator: &Coordinator) -> Box<dyn Send> {
        self.listener.receive(self.regroup_id, coordinator)
    }
}
