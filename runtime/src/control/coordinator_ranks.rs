//! The ranks of a job as the coordinator sees them, and the rules for admitting a process as a rank.

use std::time::{Duration, Instant};

use super::OnSilence;
use super::abort::Loss;
use super::coordinator_exchange::Standing;
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
}

impl RankState {
    pub(crate) fn present(&self) -> Option<&Present> {
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

/// Returns the state of a rank with respect to an exchange.
pub(crate) fn standing(states: &[RankState], rank: u32) -> Standing {
    match states.get(rank as usize) {
        Some(RankState::Lost { loss }) => Standing::Lost(loss.clone()),
        Some(RankState::Departed) => Standing::Departed,
        Some(RankState::Absent { .. } | RankState::Present(_)) | None => Standing::Here,
    }
}

/// Returns the reason for refusing a process, if there is one. `ending`: rank 0 has left, or the job was given up.
pub(crate) fn objection(
    settings: &CoordinatorSettings,
    states: &[RankState],
    ending: bool,
    hello: &Hello,
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
    if ending {
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
    let Some(state) = states.get(hello.peer.rank as usize) else {
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
            false,
        ),
        RankState::Departed => {
            refuse(format!("{newcomer}: this rank has already left the job"), remedy, false)
        }
        RankState::Lost { loss } => {
            refuse(format!("{newcomer}: this rank was already lost ({loss})"), remedy, false)
        }
    }
}
