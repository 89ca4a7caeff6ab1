//! Communicators: the public face of the runtime.

mod agreement;
mod batch;
mod bounce;
mod card;
mod collectives;
mod create;
mod direct;
mod failure;
mod familiar;
mod forked;
mod gpu_direct;
mod gpu_memory;
mod gpu_regions;
mod helper;
mod irregular;
mod lent;
#[cfg(test)]
mod lent_tests;
mod line;
mod messages;
mod model;
mod orphans;
mod point_to_point;
mod raw;
mod registration;
mod run;
mod run_direct;
mod scope;
mod scope_messages;
mod shared;
mod start;
mod start_irregular;
mod start_messages;
mod subset;
mod symmetric;
mod timed_out;
mod tiny;
mod typed;
mod waited;
mod watch;

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

pub use batch::Batch;
pub use create::Builder;
#[cfg(any(test, fuzzing))]
pub(crate) use create::fuzz_card;
pub(crate) use forked::leak_in_child;
pub use gpu_memory::GpuCounters;
pub use messages::RawMessage;
pub use registration::{RegisteredBuffer, Registration, Stable, Standing};
pub(crate) use run::Ticket;
pub use scope::Scope;
pub(crate) use shared::Shared;
pub use symmetric::Symmetric;

use kolo_collectives::model::Model;
use kolo_collectives::select::Choice;

use crate::call::RawCall;
use crate::config::Config;
use crate::control::PeerInfo;
use crate::engine::Route;
use crate::error::{Error, Result};
use crate::recorder::Record;

/// A group of ranks that communicate.
///
/// Every rank makes the same collective calls in the same order. A communicator may be used from several threads, if
/// the program makes sure that this order is the same on all ranks. Blocking and asynchronous calls do not match
/// each other.
///
/// A collective blocks until this rank's part is done: its output is complete and its input may be changed. That says
/// nothing about the other ranks, but for [`Communicator::barrier`].
///
/// # Errors of calls
/// [`crate::Error::Usage`] and [`crate::Error::Unsupported`] come before anything is sent, if lengths, root or operator
/// make no sense; the communicator is as it was. After every other error ([`crate::Error::Mismatch`],
/// [`crate::Error::PeerLost`], [`crate::Error::Timeout`], [`crate::Error::Aborted`], [`crate::Error::Transport`])
/// the communicator cannot be used any more, on any rank.
///
/// # Dropping
/// Dropping it waits (for a short time) until what was sent has left, and tells the others.
///
/// # Fork
/// A communicator belongs to the process that made it. In a child made by `fork`, calls on it and on what was made from it
/// fail with [`crate::Error::Usage`] and do nothing, [`Communicator::abort`] does nothing, and dropping it is without effect
/// and returns at once; the parent and the other ranks go on. The child may make communicators of its own. See
/// [`Communicator::check_process`].
#[derive(Debug)]
pub struct Communicator {
    pub(crate) shared: Arc<Shared>,
}

/// How long dropping a communicator waits for asynchronous operations and for data to leave.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

impl Communicator {
    /// Joins the other ranks as the environment says: `KOLO_*`, `RANK` and `MASTER_ADDR` and so on as torchrun sets
    /// them, or the variables of Open MPI, MPICH, Cray PALS or Slurm. Blocks until all ranks are there.
    ///
    /// # Errors
    /// [`crate::Error::Configuration`] or [`crate::Error::Join`], with what was looked for and what to do.
    pub fn from_env() -> Result<Self> {
        Self::builder().connect()
    }

    /// Joins with explicit settings.
    #[must_use]
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// This process's (or thread's) rank.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.shared.rank
    }

    /// Number of ranks.
    #[must_use]
    pub fn world_size(&self) -> u32 {
        self.shared.world_size
    }

    /// Rank among the ranks of this host.
    #[must_use]
    pub fn local_rank(&self) -> u32 {
        let host = self.shared.hosts[self.rank() as usize];
        self.shared.hosts[..self.rank() as usize].iter().filter(|h| **h == host).count() as u32
    }

    /// Host index of each rank; ranks with the same index share memory.
    #[must_use]
    pub fn hosts(&self) -> &[u32] {
        &self.shared.hosts
    }

    /// How each other rank is reached, and why so.
    #[must_use]
    pub fn routes(&self) -> &[Route] {
        &self.shared.routes
    }

    /// Process, host and version of each rank.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        let all = self.shared.world.control.peer_info();
        self.shared.members.iter().map(|rank| all[*rank as usize].clone()).collect()
    }

    /// The settings in force.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The constants that algorithms are chosen by: built-in ones, or those of `KOLO_PROFILE`; the same on all ranks.
    #[must_use]
    pub fn model(&self) -> Model {
        self.shared.look(|core| *core.planner.model())
    }

    /// In a line, for each transport which ranks are reached by it and why; and what becomes of registrations of buffers.
    #[must_use]
    pub fn summary(&self) -> String {
        let shared = &self.shared;
        let mut out = format!("rank {} of {}", shared.rank, shared.world_size);
        let mut transports: Vec<&str> = shared.routes.iter().map(|r| r.transport).collect();
        transports.sort_unstable();
        transports.dedup();
        for transport in transports {
            let routes: Vec<&Route> = shared.routes.iter().filter(|r| r.transport == transport).collect();
            let _ = write!(out, "; {transport} to {} rank(s) ({})", routes.len(), routes[0].how);
            if let Some((other, why)) = routes[0].declined.first() {
                let _ = write!(out, ", not {other}: {why}");
            }
        }
        if let Some(policy) = self.registration_policy() {
            let _ = write!(out, "; registrations of buffers are {policy}");
        }
        out
    }

    /// The last collectives, oldest first.
    #[must_use]
    pub fn recent(&self) -> Vec<Record> {
        self.shared.look(|core| core.recorder.records())
    }

    /// Bytes of staging that operations hold now, without that of the transports.
    #[must_use]
    pub fn staging_bytes(&self) -> usize {
        self.shared.look(|core| core.engine.staging_bytes())
    }

    /// The algorithm chosen for a call, the losers and the reasons, as text.
    ///
    /// # Errors
    /// [`crate::Error::Usage`] or [`crate::Error::Unsupported`] as the call itself.
    pub fn explain(&self, call: &RawCall) -> Result<String> {
        self.check_process()?;
        let call = self.checked(call)?;
        let core = self.shared.core();
        let memory = match self.shared.foreseen(&core, &call) {
            Some(path) => format!("\n  memory: {path}"),
            None => String::new(),
        };
        let direct = core.direct.describe(&call).map_or_else(String::new, |direct| direct + "\n");
        if let Some(tiny) = core.tiny.as_ref().and_then(|tiny| tiny.describe(&call)) {
            return Ok(direct + &tiny + &memory);
        }
        let constants = self.config().profile.as_ref().map_or_else(
            || "built-in".to_owned(),
            |loaded| format!("profile {} ({})", loaded.path.display(), loaded.profile.digest()),
        );
        let choice = core.planner.explain(&call)?;
        Ok(format!("{direct}{}\n  constants: {constants}{memory}", describe(&choice)))
    }

    /// Why the communicator cannot be used any more, if that is so: the error that its next call would give. For programs
    /// that are not inside a call and want to hear of a failure elsewhere. Moves nothing; returns within a second, and at
    /// once while all is well.
    #[must_use]
    pub fn error(&self) -> Option<Error> {
        self.shared.standing_error()
    }

    /// Gives up: every call in progress on any rank, and every later one, fails with `reason`. Returns at once.
    pub fn abort(&self, reason: &str) {
        self.shared.abort(reason);
    }
}

fn describe(choice: &Choice) -> String {
    let mut out = format!(
        "{}: {}; segments of {} bytes, {} in flight",
        choice.algorithm, choice.reason, choice.segment_bytes, choice.window
    );
    for (algorithm, cost) in &choice.losers {
        let _ = match cost {
            Ok(seconds) => write!(out, "\n  {algorithm}: {:.1} us", seconds * 1e6),
            Err(because) => write!(out, "\n  {algorithm}: {because}"),
        };
    }
    out
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !leak_in_child(&self.shared) {
            // After a panic nobody waits for what was started: the others should hear why first.
            self.shared.close(if std::thread::panicking() { Duration::ZERO } else { CLOSE_LIMIT });
        }
    }
}

impl Shared {
    /// Ends the helper, lets what was started finish and leave, and gives the connections up.
    fn close(&self, limit: Duration) {
        self.stop_helper();
        let deadline = Instant::now() + limit;
        let mut pacer = crate::wait::Pacer::new(self.policy);
        loop {
            let mut core = self.core();
            let done = core.engine.outstanding() == 0 && core.engine.is_flushed();
            let failed = core.engine.failure().is_some() || self.membership.abort_flag().is_raised();
            if core.closed || done || failed || Instant::now() >= deadline {
                core.closed = true;
                if done && !failed {
                    core.engine.leave();
                }
                let cause = kolo_transport::Error::new(
                    kolo_transport::ErrorKind::Aborted,
                    "kolo",
                    None,
                    "the communicator was dropped",
                );
                core.abort(&cause);
                drop(core);
                self.release_links(&cause);
                return;
            }
            if core.turn() {
                pacer.moved();
            } else {
                drop(core);
                if pacer.idle() == crate::wait::Next::Sleep {
                    crate::wait::sleep(Duration::from_micros(200));
                }
            }
        }
    }

    /// Drops the links once no thread (that waits for a handle) can be asleep on them. Such a thread finds the abort at
    /// its next turn; if it does not come back, the links live as long as the handle does.
    fn release_links(&self, cause: &kolo_transport::Error) {
        let deadline = Instant::now() + CLOSE_LIMIT;
        while self.drivers.load(Ordering::Acquire) > 0 {
            if Instant::now() >= deadline {
                return;
            }
            crate::wait::sleep(Duration::from_micros(200));
        }
        self.core().engine.close(cause);
    }

    /// The handle of an asynchronous operation is gone: its slot is freed when it is done.
    pub(crate) fn forget(&self, ticket: Ticket) {
        let mut core = self.core();
        core.engine.forget(ticket.id);
    }
}
