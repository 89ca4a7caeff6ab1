//! What the handles of one communicator share, and the loop in which a thread waits.
//!
//! # Threads
//! All state that moves is in [`Core`], behind one mutex. A blocking call takes it, starts its operation and drives the
//! engine until that is done: no hand-over to another thread. The helper thread exists only once something asynchronous
//! was started, and drives only while nobody else does. A driver gives the mutex up between turns when somebody asks
//! for it, and while it sleeps. A blocking call of the exchange that waits for its turn behind another thread's sleeps without
//! the mutex until that is over.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use kolo_gdr::Driver;
use kolo_transport::{Armed, ErrorKind, ParkBy, Process};

use super::bounce::Bounce;
use super::direct::Direct;
use super::failure::Poison;
use super::familiar::Familiar;
use super::gpu_memory::GpuCounters;
use super::gpu_regions::Regions;
use super::helper::Helper;
use super::line::Line;
use super::registration::Adapters;
use super::tiny::Tiny;
use super::waited::Waited;
use super::watch::{Attended, Watch};
use crate::config::Config;
use crate::control::{AbortCause, Control, Membership};
use crate::engine::{Engine, Id, Route};
use crate::error::{AbortReason, Context, Error, Result};
use crate::home::Home;
use crate::planner::Planner;
use crate::recorder::Recorder;
use crate::wait::{self, Policy, SLEEP_MAX};

/// Everything that calls move.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) engine: Engine,
    pub(crate) planner: Planner,
    pub(crate) tiny: Option<Tiny>,
    /// Started calls that take it.
    pub(crate) line: Line,
    /// Symmetric buffers; none unless there is `tiny`.
    pub(crate) direct: Direct,
    pub(crate) recorder: Recorder,
    pub(super) familiar: Familiar,
    /// Number of the last collective that was started, from 1.
    pub(crate) sequence: u64,
    /// Number of the last send, receive or group of them, from 1.
    pub(crate) messages: u64,
    /// Splits and groups made so far.
    pub(crate) children: u64,
    /// Symmetric buffers made so far.
    pub(crate) allocations: u64,
    /// Uses of each list of ranks given to `group`.
    pub(crate) groups: std::collections::HashMap<u64, u64>,
    pub(crate) closed: bool,
    /// How adapters reach a GPU's memory, if there are any.
    /// What the adapters do with buffers, if any peer is reached by them.
    pub(crate) adapters: Option<Adapters>,
    pub(crate) gpu_direct: Option<kolo_gdr::Plan>,
    /// What of it they reach.
    pub(crate) gpu_regions: Regions,
    pub(crate) gpu_counters: GpuCounters,
    /// For calls of the tiny path on a GPU's memory: those that are not in use.
    pub(crate) bounces: Vec<Bounce>,
    /// How many of them wait for copies.
    pub(crate) bouncing: usize,
    /// Where this rank runs, if processors are shared.
    pub(crate) home: Option<Home>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    /// That made it.
    pub(crate) process: Process,
    pub(crate) rank: u32,
    pub(crate) world_size: u32,
    pub(crate) id: u64,
    /// World ranks of the members.
    pub(crate) members: Arc<[u32]>,
    /// Host index of each member.
    pub(crate) hosts: Arc<[u32]>,
    pub(crate) routes: Vec<Route>,
    pub(crate) config: Config,
    pub(crate) policy: Policy,
    pub(crate) world: Arc<World>,
    pub(crate) membership: Membership,
    /// The GPUs' driver, if there is one.
    pub(crate) driver: Option<Driver>,
    core: Mutex<Core>,
    /// Threads that want the core.
    wanting: AtomicU32,
    /// Threads that drive the engine for themselves.
    pub(crate) drivers: AtomicUsize,
    pub(crate) helper: Helper,
    poison: Mutex<Option<Poison>>,
    /// When a call first saw that a member is lost.
    loss_seen: OnceLock<Instant>,
}

/// The control plane, which a communicator shares with those split off it. The last one says goodbye.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) control: Control,
    /// That this rank comes back to, if processors are shared. Communicators split off must not have another one.
    pub(crate) processor: OnceLock<Option<usize>>,
}

impl Drop for World {
    fn drop(&mut self) {
        // A rank that goes because of a panic is lost, and its last words say so.
        self.control.leave_or_die();
    }
}

/// How long after the first call that saw the loss of a peer further calls are tried: ranks that do not need the lost one,
/// such as pairs that exchange messages, would otherwise go on until their first pause.
const LOSS_CALLS: Duration = Duration::from_millis(250);

/// Yields in which a thread that was woken up for the core should have taken it.
const YIELDS_MAX: u32 = 8;

/// Between two looks at copies that nobody tells of: about what a segment takes.
const COPY_NAP: Duration = Duration::from_micros(50);

/// Peers asked per question: enough to find a culprit, few enough to be answered at once.
pub(super) const PEERS_ASKED: usize = 4;

impl Shared {
    #[allow(clippy::too_many_arguments, reason = "plain construction from parts made in one place")]
    pub(crate) fn new(
        rank: u32,
        id: u64,
        members: Arc<[u32]>,
        hosts: Arc<[u32]>,
        routes: Vec<Route>,
        config: Config,
        policy: Policy,
        world: Arc<World>,
        membership: Membership,
        driver: Option<Driver>,
        core: Core,
    ) -> Self {
        Self {
            process: Process::current(),
            rank,
            world_size: members.len() as u32,
            id,
            members,
            hosts,
            routes,
            config,
            policy,
            world,
            membership,
            driver,
            core: Mutex::new(core),
            wanting: AtomicU32::new(0),
            drivers: AtomicUsize::new(0),
            helper: Helper::default(),
            poison: Mutex::new(None),
            loss_seen: OnceLock::new(),
        }
    }

    /// Takes the core; a driver that holds it gives way.
    #[inline]
    pub(crate) fn core(&self) -> MutexGuard<'_, Core> {
        match self.core.try_lock() {
            Ok(core) => core,
            // Whoever panicked has left the communicator unusable: see `Lent`.
            Err(TryLockError::Poisoned(core)) => core.into_inner(),
            Err(TryLockError::WouldBlock) => self.core_in_use(),
        }
    }

    #[cold]
    fn core_in_use(&self) -> MutexGuard<'_, Core> {
        self.wanting.fetch_add(1, Ordering::Relaxed);
        let core = self.core.lock().unwrap_or_else(PoisonError::into_inner);
        self.wanting.fetch_sub(1, Ordering::Relaxed);
        core
    }

    pub(crate) fn is_wanted(&self) -> bool {
        self.wanting.load(Ordering::Relaxed) > 0
    }

    /// Lets another thread have the core. A lock goes to whoever comes first, which is the thread that has just given it up
    /// unless that waits for the other to wake up.
    pub(crate) fn give_way<'a>(&'a self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        drop(core);
        for _ in 0..YIELDS_MAX {
            std::thread::yield_now();
            if !self.is_wanted() {
                break;
            }
        }
        self.core()
    }

    /// Sleeps, without the core, until the turn at hand is over, or briefly.
    pub(crate) fn sleep_until_turn<'a>(&'a self, core: MutexGuard<'a, Core>) -> MutexGuard<'a, Core> {
        let Some((over, turnstile)) = core.tiny.as_ref().map(|tiny| tiny.turns_over()) else { return core };
        let turnstile = Arc::clone(turnstile);
        turnstile.announce();
        drop(core);
        turnstile.sleep(over);
        self.core()
    }

    /// Whether nothing has happened that might keep the communicator from being used.
    #[inline]
    pub(crate) fn is_well(&self, core: &Core) -> bool {
        !core.closed && core.engine.failure().is_none() && !self.membership.abort_flag().is_raised()
    }

    /// Fails if the communicator cannot be used any more.
    pub(crate) fn check_usable(&self, core: &Core, waited: Waited) -> Result<()> {
        if self.is_well(core) {
            return Ok(());
        }
        if core.closed {
            return Err(Error::Aborted {
                context: self.context(waited),
                by: self.rank,
                kind: AbortReason::Dropped,
                reason: "the communicator was dropped".to_owned(),
            });
        }
        let poison = self.poison.lock().unwrap_or_else(PoisonError::into_inner).clone();
        // After the loss of a peer, what it had sent before may still be enough for this call.
        let may_go_on = |cause: &AbortCause| {
            let since = self.loss_seen.get_or_init(Instant::now);
            super::failure::is_loss(cause) && since.elapsed() < LOSS_CALLS
        };
        let news = || self.membership.abort_flag().cause().filter(|cause| !may_go_on(cause));
        match poison.or_else(|| news().map(|cause| self.adopt(core, &cause))) {
            Some(poison) => Err(poison.error(self.context(waited), self.rank)),
            None => Ok(()),
        }
    }

    /// The error that the next call would give, once what was sent before has had its time.
    pub(crate) fn standing_error(&self) -> Option<Error> {
        const ASKED: Waited = Waited::other("");
        if let Err(forked) = self.check_process(|| ASKED) {
            return Some(forked);
        }
        let known = self.poison.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let core = self.core();
        let poison = match (known, self.membership.abort_flag().cause()) {
            (Some(poison), _) => poison,
            (None, Some(cause)) => self.adopt(&core, &cause),
            (None, None) => {
                let failed = core.engine.failure().is_some();
                drop(core);
                return failed.then(|| self.fail(ASKED));
            }
        };
        Some(poison.error(self.context(ASKED), self.rank))
    }

    /// Drives until `id` is done. The engine no longer touches the caller's memory when this returns.
    pub(crate) fn wait_for<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        id: Id,
        waited: Waited,
        limit: Duration,
    ) -> Result<MutexGuard<'a, Core>> {
        if core.engine.is_done(id) {
            return Ok(core);
        }
        let attended = Attended::new(self);
        let mut watch = Watch::new(self, waited, limit);
        loop {
            let moved = core.turn();
            if core.engine.is_done(id) {
                drop(attended);
                return Ok(core);
            }
            if core.engine.failure().is_some() {
                drop(core);
                return Err(self.fail(waited));
            }
            core = if core.line_is_behind_a_thread(id) {
                watch.until_turn(core)?
            } else {
                watch.pause(core, moved, |core| core.waiting_for(id))?
            };
        }
    }

    /// Sleeps until an endpoint has something, or the exchange for who has this turn, or briefly.
    pub(crate) fn sleep<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        turn: Option<u64>,
    ) -> MutexGuard<'a, Core> {
        if core.engine.is_copying() || core.bouncing > 0 || core.line.is_copying() {
            // Nothing tells of the end of a copy.
            drop(core);
            wait::sleep(COPY_NAP);
            return self.core();
        }
        let by = core.engine.park_by();
        let mut words: Vec<(*const AtomicU32, u32)> = Vec::new();
        let mut fds: Vec<RawFd> = Vec::new();
        core.engine.arm(by, |armed| match armed {
            Armed::Idle => {}
            Armed::Word(word, value) => words.push((word, value)),
            Armed::Fd(fd) => fds.push(std::os::fd::AsRawFd::as_raw_fd(&fd)),
        });
        let tiny = core.tiny.as_mut().and_then(|tiny| tiny.arm());
        words.extend(tiny);
        if core.turn() || core.has_arrived(turn) {
            core.engine.disarm();
            disarm_tiny(&mut core);
            return if self.is_wanted() { self.give_way(core) } else { core };
        }
        drop(core);
        match by {
            ParkBy::Word if words.len() == 1 => {
                // SAFETY: the word lies in a mapping that the endpoint holds. The endpoint lives in the core of `self`
                // until `release_links`, which waits until no thread drives; the helper has ended before it.
                wait::sleep_on_word(unsafe { &*words[0].0 }, words[0].1, SLEEP_MAX);
            }
            ParkBy::Fd if !fds.is_empty() => {
                // SAFETY: as above: the endpoints own the descriptors.
                let fds: Vec<_> = fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect();
                wait::sleep_on_fds(&fds, SLEEP_MAX);
            }
            _ => wait::sleep(Duration::from_millis(1)),
        }
        let mut core = self.core();
        core.engine.disarm();
        disarm_tiny(&mut core);
        core
    }

    pub(crate) fn context(&self, waited: Waited) -> Context {
        Context { rank: self.rank, operation: waited.to_string(), sequence: waited.sequence }
    }

    /// Makes the communicator unusable for the reason at hand, tells the others, and returns the error to report.
    pub(crate) fn fail(&self, waited: Waited) -> Error {
        let poison = {
            let known = self.poison.lock().unwrap_or_else(PoisonError::into_inner).clone();
            known.unwrap_or_else(|| self.diagnose(waited))
        };
        self.poison_with(poison.clone());
        poison.error(self.context(waited), self.rank)
    }

    /// Makes the communicator unusable; the first reason stays.
    pub(crate) fn poison_with(&self, poison: Poison) {
        self.poison.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(|| poison.clone());
        self.membership.abort(poison.cause(self.rank));
        let cause = kolo_transport::Error::new(ErrorKind::Aborted, "kolo", None, poison.to_string());
        let mut core = self.core();
        self.leave_word(&core, &poison);
        core.abort(&cause);
    }

    /// Asks some peers what they are doing.
    pub(crate) fn ask(
        &self,
        peers: &[u32],
        patience: Duration,
    ) -> Vec<(u32, Option<crate::control::Status>)> {
        let peers = &peers[..peers.len().min(PEERS_ASKED)];
        peers.iter().copied().zip(self.membership.ask_all(peers, patience)).collect()
    }
}

impl Core {
    /// Gives everything up: nothing touches the callers' memory any more when this returns.
    pub(super) fn abort(&mut self, cause: &kolo_transport::Error) {
        self.engine.abort(cause);
        self.line.settle();
    }
}

fn disarm_tiny(core: &mut Core) {
    if let Some(tiny) = &mut core.tiny {
        tiny.disarm();
    }
}
