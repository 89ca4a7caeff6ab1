//! The places of a job's ranks at the coordinator (seats), and the rules for taking one.

use std::time::{Duration, Instant};

use super::abort::Loss;
use super::hub_exchange::Standing;
use super::hub_state::ConnectionId;
use super::wire::{Hello, PeerInfo, Refusal, clip};
use crate::job::Cookie;
use crate::job::limits::Liveness;

/// Facts about a hub that do not change.
#[derive(Clone, Debug)]
pub(crate) struct HubSettings {
    pub(crate) world_size: u32,
    pub(crate) cookie: Cookie,
    pub(crate) job: String,
    pub(crate) source: String,
    pub(crate) timeout: Duration,
    pub(crate) liveness: Liveness,
}

/// A rank's seat.
#[derive(Debug)]
pub(crate) enum Seat {
    Empty { last: Option<String> },
    Taken(Taken),
    Departed,
    Lost { loss: Loss },
}

/// Who sits there.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) connection: ConnectionId,
    pub(crate) peer: PeerInfo,
    /// Heartbeats are judged; an in-process connection has none.
    pub(crate) judged: bool,
    pub(crate) heard: Instant,
    pub(crate) suspected: bool,
}

impl Seat {
    pub(crate) fn taken(&self) -> Option<&Taken> {
        if let Self::Taken(taken) = self { Some(taken) } else { None }
    }

    pub(crate) fn peer(&self) -> Option<&PeerInfo> {
        self.taken().map(|taken| &taken.peer)
    }
}

/// "rank 3 (process 4711 on node7)".
pub(crate) fn describe(peer: &PeerInfo) -> String {
    format!("rank {} (process {} on {})", peer.rank, peer.pid, peer.hostname)
}

/// How a rank stands, as far as an exchange is concerned.
pub(crate) fn standing(seats: &[Seat], rank: u32) -> Standing {
    match seats.get(rank as usize) {
        Some(Seat::Lost { loss }) => Standing::Lost(loss.clone()),
        Some(Seat::Departed) => Standing::Departed,
        Some(Seat::Empty { .. } | Seat::Taken(_)) | None => Standing::Here,
    }
}

/// Why a newcomer cannot be taken, if so. `ending`: rank 0 has left or the job was given up.
pub(crate) fn objection(
    settings: &HubSettings,
    seats: &[Seat],
    ending: bool,
    hello: &Hello,
) -> Option<Refusal> {
    let refuse = |problem: String, remedy: &str, retry: bool| {
        Some(Refusal { problem: clip(problem, usize::MAX), remedy: remedy.into(), retry })
    };
    if !hello.job.is_empty() && !settings.job.is_empty() && hello.job != settings.job {
        return refuse(
            format!("job '{}' listens here, this is job '{}'", settings.job, hello.job),
            "Give each job its own port",
            true,
        );
    }
    if ending {
        return refuse("another job is just ending here".into(), "Wait for this job's rank 0", true);
    }
    if hello.world_size != settings.world_size {
        return refuse(
            format!(
                "rank {} was told that the job has {} ranks ({}), rank 0 that it has {} ({})",
                hello.peer.rank, hello.world_size, hello.source, settings.world_size, settings.source
            ),
            "Give every process of the job the same world size",
            false,
        );
    }
    let Some(seat) = seats.get(hello.peer.rank as usize) else {
        return refuse(
            format!("there is no rank {} among {}", hello.peer.rank, settings.world_size),
            "Number the ranks from 0 to world size - 1",
            false,
        );
    };
    let newcomer = describe(&hello.peer);
    let remedy = "Give every process its own rank, and every job its own rendezvous (port, file or job name)";
    match seat {
        Seat::Empty { .. } => None,
        Seat::Taken(taken) => refuse(
            format!("{} has it already; this newcomer is {newcomer}", describe(&taken.peer)),
            remedy,
            false,
        ),
        Seat::Departed => refuse(format!("{newcomer}: this rank has left the job before"), remedy, false),
        Seat::Lost { loss } => {
            refuse(format!("{newcomer}: this rank was lost before ({loss})"), remedy, false)
        }
    }
}
