//! The ranks of a job as the coordinator sees them, and the rules for admitting a process as a rank.

use std::time::{Duration, Instant};

use super::OnSilence;
use super::abort::Loss;
use super::coordinator_gathers::Standing;
use super::coordinator_state::ConnectionId;
use super::peers::evidence::Seen;
use super::peers::listener::ListenerAddress;
use super::wire::{Hello, PeerInfo, Refusal, clip};
use crate::error::JoinFailure;
use crate::job::Cookie;
use crate::job::limits::Liveness;

/// Facts about a coordinator that do not change.
#[derive(Clone, Debug)]
pub(crate) struct CoordinatorSettings {
    pub(crate) world_size: u32,
    pub(crate) cookie: Cookie,
    pub(crate) job: String,
    pub(crate) source: String,
    pub(crate) timeout: Duration,
    pub(crate) liveness: Liveness,
    /// Whether ranks pass messages on to each other.
    pub(crate) forwards: bool,
}

/// Heartbeats that a rank may miss while another process claims its place.
const CLAIMED_BEATS: u32 = 4;

/// Stage in the life of the coordinator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Gathering { deadline: Instant },
    Running,
    Lingering { until: Instant },
    Closing { until: Instant },
}

/// Stage in the life of a rank.
#[derive(Debug)]
pub(crate) enum RankState {
    Absent { last: Option<String> },
    Present(Present),
    Departed,
    Lost { loss: Loss },
}

/// A rank that has joined.
#[derive(Debug)]
pub(crate) struct Present {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: PeerInfo,
    pub(crate) listener: Option<ListenerAddress>,
    /// The ends of its connection.
    pub(crate) seen: Option<Seen>,
    /// Whether silence counts as a failure. In-process connections send no heartbeats, so there it does not.
    pub(crate) on_silence: OnSilence,
    pub(crate) heard: Instant,
    pub(crate) suspected: bool,
    /// When another process claimed this rank, while the job gathers. This rank's own connection may have ended without a
    /// word.
    claimed: Option<Instant>,
}

impl Present {
    pub(crate) fn new(
        connection: ConnectionId,
        peer: PeerInfo,
        listener: Option<ListenerAddress>,
        seen: Option<Seen>,
        on_silence: OnSilence,
        now: Instant,
    ) -> Self {
        Self { connection, peer, listener, seen, on_silence, heard: now, suspected: false, claimed: None }
    }

    /// Whether two processes claim this rank. This one keeps it if it sends a heartbeat in answer to one that was sent
    /// after the claim. The other one gets it if this one is silent for too long.
    pub(crate) fn is_contested(&self, heartbeat: Duration) -> bool {
        self.claimed.is_some_and(|claimed| self.heard < claimed + heartbeat)
    }

    /// Returns how long this rank may be silent.
    pub(crate) fn longest_silence(&self, liveness: &Liveness) -> Duration {
        match self.is_contested(liveness.heartbeat) {
            true => liveness.dead_after.min(CLAIMED_BEATS * liveness.heartbeat),
            false => liveness.dead_after,
        }
    }

    /// Excuses the silence up to now, which was not this rank's fault. It proves nothing about a claim that is open.
    pub(crate) fn excuse(&mut self, heartbeat: Duration, now: Instant) {
        if self.is_contested(heartbeat) {
            self.claimed = Some(now);
        }
        self.heard = now;
    }

    /// Notes that the job begins. Until the welcome has arrived, the rank only answers heartbeats, so the silence so far is
    /// excused.
    pub(crate) const fn begin(&mut self, now: Instant) {
        self.heard = now;
        self.claimed = None;
    }

    /// Handles the claim of another process. Returns whether it is open which of the two is this rank.
    fn claim(&mut self, heartbeat: Duration, now: Instant) -> bool {
        if self.on_silence == OnSilence::Ignore {
            return false;
        }
        // A claim that was settled long ago was that of a third process.
        if self.claimed.is_none_or(|claimed| now >= claimed + CLAIMED_BEATS * heartbeat) {
            self.claimed = Some(now);
        }
        self.is_contested(heartbeat)
    }
}

impl RankState {
    pub(crate) fn present(&self) -> Option<&Present> {
        if let Self::Present(present) = self { Some(present) } else { None }
    }

    pub(crate) fn present_mut(&mut self) -> Option<&mut Present> {
        if let Self::Present(present) = self { Some(present) } else { None }
    }

    pub(crate) fn peer(&self) -> Option<&PeerInfo> {
        self.present().map(|present| &present.peer)
    }
}

/// Describes a rank: "rank 3 (process 4711 on node7)".
pub(crate) fn describe(peer: &PeerInfo) -> String {
    format!("rank {} (process {} on {})", peer.rank, peer.pid, peer.hostname)
}

/// Returns the state of a rank with respect to an all-gather.
pub(crate) fn standing(states: &[RankState], rank: u32) -> Standing {
    match states.get(rank as usize) {
        Some(RankState::Lost { loss }) => Standing::Lost(loss.clone()),
        Some(RankState::Departed) => Standing::Departed,
        Some(RankState::Absent { .. } | RankState::Present(_)) | None => Standing::Here,
    }
}

/// Returns the reason for refusing a process, if there is one. If another process is that rank, notes the claim: the other
/// one has to show that it lives.
pub(crate) fn objection(
    settings: &CoordinatorSettings,
    states: &mut [RankState],
    phase: Phase,
    hello: &Hello,
    now: Instant,
) -> Option<Refusal> {
    let refuse = |problem: String, remedy: &str, retry: bool| {
        Some(Refusal {
            kind: JoinFailure::Disagreement,
            problem: clip(problem, usize::MAX),
            remedy: remedy.into(),
            retry,
        })
    };
    if !hello.job.is_empty() && !settings.job.is_empty() && hello.job != settings.job {
        return refuse(
            format!("job '{}' is listening here, but this is job '{}'", settings.job, hello.job),
            "Give each job its own port",
            true,
        );
    }
    if matches!(phase, Phase::Lingering { .. } | Phase::Closing { .. }) {
        return refuse("another job is still shutting down here".into(), "Wait for this job's rank 0", true);
    }
    if hello.world_size != settings.world_size {
        return refuse(
            format!(
                "rank {} was told that the job has {} ranks ({}), but rank 0 was told that it has {} ({})",
                hello.peer.rank, hello.world_size, hello.source, settings.world_size, settings.source
            ),
            "Give every process of the job the same world size",
            false,
        );
    }
    let Some(state) = states.get_mut(hello.peer.rank as usize) else {
        return refuse(
            format!("rank {} does not exist in a job of {} ranks", hello.peer.rank, settings.world_size),
            "Number the ranks from 0 to world size - 1",
            false,
        );
    };
    let newcomer = describe(&hello.peer);
    let remedy = "Give every process its own rank, and every job its own rendezvous (port, file or job name)";
    match state {
        RankState::Absent { .. } => None,
        RankState::Present(present) => refuse(
            format!("{} already has it; this newcomer is {newcomer}", describe(&present.peer)),
            remedy,
            matches!(phase, Phase::Gathering { .. }) && present.claim(settings.liveness.heartbeat, now),
        ),
        // Its process may be joining the next job already, whose coordinator takes this one's place once rank 0 has left too.
        RankState::Departed => {
            refuse(format!("{newcomer}: this rank has left this job, and rank 0 has not yet"), remedy, true)
        }
        RankState::Lost { loss } => {
            refuse(format!("{newcomer}: this rank was already lost ({loss})"), remedy, false)
        }
    }
}
