//! Steps that survive losses: the ranks that live repeat a step that failed.

use std::fmt;
use std::time::{Duration, Instant};

use super::{Agreement, Communicator};
use crate::error::{AbortReason, Error, Result};
use crate::job::deadline_after;
use crate::types::{Element, ReduceOp};

/// Flag: this rank's step succeeded.
const DONE: u64 = 1;

/// Flag: this rank's step succeeded, or failed because the communicator did. It may be repeated.
const MAY_REPEAT: u64 = 2;

/// Flag: no newcomer waits at this rank's port.
const NOBODY_WAITS: u64 = 4;

/// Flag: this rank has reached the end of the step. Ranks that ran out of time may not have.
const IS_HERE: u64 = 8;

/// Flag: no newcomer waits at this rank's port for a copy of its state.
const NOBODY_ASKS: u64 = 16;

/// Flag: this rank's time for the step was not over when it reached the end. Otherwise no time is left to repeat it.
const IS_IN_TIME: u64 = 32;

/// Flags of all ranks if a step with a limit is to be repeated.
const REPEATS: u64 = MAY_REPEAT | IS_HERE | IS_IN_TIME;

/// A change of a group's members: see [`Survivors::on_change`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Change {
    /// Number of changes of the group, this one included.
    pub epoch: u64,
    /// Ranks of the previous communicator that have left. Empty on a newcomer, which does not know them.
    pub left: Vec<u32>,
    /// Ranks of the new communicator that are newcomers.
    pub came: Vec<u32>,
    /// This rank in the new communicator.
    pub rank: u32,
    /// World size of the new communicator.
    pub world_size: u32,
}

type Watcher = Box<dyn FnMut(&Change) + Send>;

/// A group of ranks that goes on when some of them die: a communicator of the ranks that live replaces the previous
/// one.
///
/// A step that [`Survivors::run`] or a variant of it calls succeeds either on all ranks that live or on none. If a
/// rank was lost, those that live repeat the step among themselves, from the same inputs, until it succeeds. The
/// results are therefore those of the members that [`Survivors::comm`] then has, and they are the same on all
/// members.
///
/// All ranks of the communicator make a `Survivors`, and call the same methods in the same order. After a step they
/// agree ([`Communicator::agree`]), which costs one round among all members over TCP. Where calls are short, put
/// several into one step of [`Survivors::run`].
///
/// ```no_run
/// use kolo::{Communicator, ReduceOp, Result, Survivors};
///
/// fn train(comm: Communicator, mut weights: Vec<f32>) -> Result<Vec<f32>> {
///     let mut group = Survivors::new(comm);
///     let mut gradients = vec![0.0_f32; weights.len()];
///     for step in 0..1000 {
///         // 64 micro-batches, whoever computes them: the same bits for any number of ranks, and after any deaths.
///         group.run(|comm| {
///             let own: Vec<f32> = comm.own_shards(64).flat_map(|shard| gradient(step, shard, &weights)).collect();
///             comm.all_reduce_shards(&own, &mut gradients, 64, ReduceOp::Avg)
///         })?;
///         weights.iter_mut().zip(&gradients).for_each(|(x, g)| *x -= 0.1 * g);
///     }
///     Ok(weights)
/// }
/// # fn gradient(_step: u32, _shard: u32, weights: &[f32]) -> Vec<f32> { weights.to_vec() }
/// ```
pub struct Survivors {
    comm: Communicator,
    at_least: u32,
    up_to: u32,
    /// Newcomers wait, as all members agreed after the last step.
    is_due: bool,
    /// Newcomers wait for a copy of the state, as all members agreed after the last step.
    is_asked: bool,
    watcher: Option<Watcher>,
    /// A change that the watcher has not been told of.
    news: Option<Change>,
    /// A step was given up at its time limit: the members make another communicator before the next.
    is_spent: bool,
}

impl fmt::Debug for Survivors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Survivors").field("comm", &self.comm).finish_non_exhaustive()
    }
}

impl Survivors {
    /// Makes a group of the ranks of a communicator. A newcomer does so with the communicator that it has joined, and
    /// goes on like the others. If `kolo run --elastic MIN:MAX` has started the job, [`Survivors::at_least`] is MIN
    /// and [`Survivors::up_to`] is MAX by default.
    #[must_use]
    pub fn new(comm: Communicator) -> Self {
        let is_newcomer = comm.ranks_before()[comm.rank() as usize].is_none();
        let news = is_newcomer.then(|| change(0, &comm));
        comm.watch_hosts();
        let (at_least, up_to) = comm.elastic_bounds().unwrap_or((1, 0));
        Self { comm, at_least, up_to, is_due: false, is_asked: false, watcher: None, news, is_spent: false }
    }

    /// Sets the largest number of ranks to which [`Survivors::admit`] lets the group grow. It is the same on all ranks,
    /// including newcomers.
    #[must_use]
    pub const fn up_to(mut self, ranks: u32) -> Self {
        self.up_to = ranks;
        self
    }

    /// Calls `watcher` when the members have changed: before the step begins (again), on the thread that calls
    /// [`Survivors::run`], and on a newcomer before its first step. It is meant for logs and the like. A step that
    /// gives newcomers their state does so by itself, since it may be repeated; it sees from [`Communicator::epoch`]
    /// that the members have changed.
    #[must_use]
    pub fn on_change(mut self, watcher: impl FnMut(&Change) + Send + 'static) -> Self {
        self.watcher = Some(Box::new(watcher));
        self
    }

    /// Sets the number of ranks below which the group gives up. It is the same on all ranks.
    #[must_use]
    pub const fn at_least(mut self, ranks: u32) -> Self {
        self.at_least = ranks;
        self
    }

    /// Returns the communicator of the members of the last step. Calls on it are not repeated: they may fail on some
    /// ranks and succeed on others.
    #[must_use]
    pub const fn comm(&self) -> &Communicator {
        &self.comm
    }

    /// Gives the communicator of the members of the last step back.
    #[must_use]
    pub fn into_comm(self) -> Communicator {
        self.comm
    }

    /// Runs `step` on the members until it has succeeded on all that live. After a loss it runs again on a new
    /// communicator, so it must not change its inputs: calls in it are out of place, or on copies. Messages and
    /// started operations in it must be over when it returns.
    ///
    /// Blocks as the calls in `step` do, and then until all members have reached its end, at most
    /// [`Config::join_timeout`](crate::Config::join_timeout). If `step` panics, the communicator is
    /// [revoked](Communicator::revoke), so that no member waits for this rank in the step.
    ///
    /// # Errors
    /// Either all ranks that live return an error, or none does. Two kinds of failure are not repeated: an error that
    /// is not [fatal](Error::is_fatal), such as [`Error::Usage`], and one after which no rank is missing. The rank
    /// returns it, and the others return [`Error::Aborted`] with [`AbortReason::Revoked`]. The members can go on with
    /// further steps. [`AbortReason::Minority`] if fewer than [`Survivors::at_least`] ranks are left. Where the ranks
    /// could not agree, each returns the error of [`Communicator::agree`] or [`Communicator::shrink`]:
    /// [`AbortReason::Fenced`] on a rank that the others have left behind.
    pub fn run<R>(&mut self, step: impl FnMut(&Communicator) -> Result<R>) -> Result<R> {
        self.run_until(None, step)
    }

    /// Like [`Survivors::run`], but the step ends after `limit` on all ranks: its calls fail then, and no rank waits
    /// longer for one that has not reached the end. A rank that is late, or a call that hangs, thus costs no more
    /// than this step. A rank that comes later gets an error for the step too, even though its own part might have
    /// succeeded, and goes on with the others. All ranks give the same limit.
    ///
    /// Blocks for `limit` at most, besides the program's own work in `step`, and for some
    /// [`Config::silent_after`](crate::Config::silent_after) longer where a rank does not answer at all. After a step
    /// that was given up, the members make a new communicator at the beginning of the next one, which takes some
    /// milliseconds and waits for late ranks.
    ///
    /// # Errors
    /// As [`Survivors::run`]. A step whose time is over fails on all ranks: with [`Error::Timeout`] on those that
    /// have waited for others, and with [`AbortReason::Timeout`] or their own errors on the rest. If a rank has not
    /// come back by the end of the next step's time, that step fails too, before it begins.
    pub fn run_within<R>(
        &mut self,
        limit: Duration,
        step: impl FnMut(&Communicator) -> Result<R>,
    ) -> Result<R> {
        self.run_until(Some(deadline_after(limit)), step)
    }

    fn run_until<R>(
        &mut self,
        limit: Option<Instant>,
        mut step: impl FnMut(&Communicator) -> Result<R>,
    ) -> Result<R> {
        if self.is_spent {
            let before = self.comm.world_size();
            self.become_those(self.comm.shrink_until(self.comm.until(limit))?);
            self.check_number(before)?;
        }
        loop {
            self.tell();
            let done = within(&self.comm, limit, &mut step);
            let agreed = self.vote(&done, limit)?;
            if agreed.flags & DONE != 0 {
                return done;
            }
            let before = self.comm.world_size();
            if limit.is_some() && (agreed.flags & REPEATS != REPEATS || agreed.ranks.len() as u32 == before) {
                // A late rank comes to the next step too, so no rank waits for it here. All ranks see the same bits.
                self.is_spent = true;
                let is_late =
                    agreed.flags & IS_HERE == 0 || agreed.flags & (MAY_REPEAT | IS_IN_TIME) == MAY_REPEAT;
                let (kind, why) =
                    if is_late { (AbortReason::Timeout, LATE) } else { (AbortReason::Revoked, FAILED) };
                return Err(done.err().unwrap_or_else(|| self.gave_up(kind, why)));
            }
            self.is_spent = limit.is_some();
            let next = self.comm.shrink_until(self.comm.until(limit));
            if limit.is_some() && done.is_err() && is_out_of_time(&next) {
                // The time ran out while the members agreed. The step's own error says more.
                return done;
            }
            self.become_those(next?);
            let left = self.comm.world_size();
            if agreed.flags & MAY_REPEAT == 0 || left == before {
                return Err(done.err().unwrap_or_else(|| self.gave_up(AbortReason::Revoked, FAILED)));
            }
            self.check_number(before)?;
            tracing::info!(rank = self.comm.rank(), before, left, "a rank was lost; repeating the step");
        }
    }

    /// Admits newcomers between two steps, if some wait and there are fewer ranks than [`Survivors::up_to`] says.
    /// Newcomers take the slots of lost ranks first. Costs nothing without newcomers, since the agreement after the
    /// last step has told; otherwise some milliseconds, and the time for which [`Communicator::grow`] blocks.
    ///
    /// All members call it at the same point of the program. A newcomer begins at that point, so its own first call
    /// does nothing. A failure leaves the members as they are, and is logged; newcomers that wait come in later.
    ///
    /// # Errors
    /// [`AbortReason::Fenced`] and [`AbortReason::Minority`], as [`Communicator::agree`].
    pub fn admit(&mut self) -> Result<()> {
        if self.is_spent || !std::mem::take(&mut self.is_due) {
            return Ok(());
        }
        match self.comm.admit_up_to(self.up_to) {
            Ok(next) => {
                let (before, now) = (self.comm.world_size(), next.world_size());
                tracing::info!(rank = next.rank(), before, now, "newcomers were admitted");
                self.become_those(next);
                Ok(())
            }
            Err(error @ Error::Aborted { kind: AbortReason::Fenced | AbortReason::Minority, .. }) => {
                Err(error)
            }
            Err(error) => {
                tracing::warn!(rank = self.comm.rank(), %error, "newcomers were not admitted; they may try again");
                Ok(())
            }
        }
    }

    /// Returns whether newcomers wait for a copy of the members' state, as all members agreed after the last step.
    pub(super) const fn is_asked_for_state(&self) -> bool {
        self.is_asked
    }

    /// Runs [`Communicator::all_reduce_into`] as a step: reduces over the members, with the same result on all of
    /// them.
    ///
    /// # Errors
    /// See [`Survivors::run`].
    pub fn all_reduce<T: Element>(&mut self, input: &[T], output: &mut [T], op: ReduceOp) -> Result<()> {
        self.run(|comm| comm.all_reduce_into(input, output, op))
    }

    /// Agrees with the other members on whether all have succeeded, and on their other flags.
    fn vote<R>(&mut self, done: &Result<R>, limit: Option<Instant>) -> Result<Agreement> {
        let vote = match done {
            Ok(_) => DONE | MAY_REPEAT,
            Err(error) if error.is_fatal() => MAY_REPEAT,
            Err(_) => 0,
        };
        if done.is_err() {
            // Others may be waiting for ranks that have come here.
            self.comm.revoke();
        }
        let is_full = self.comm.world_size() >= self.up_to;
        let nobody_waits = if is_full || !self.comm.has_candidates() { NOBODY_WAITS } else { 0 };
        let nobody_asks = if self.comm.is_asked_for_state() { 0 } else { NOBODY_ASKS };
        let in_time = if limit.is_none_or(|limit| Instant::now() < limit) { IS_IN_TIME } else { 0 };
        let vote = vote | nobody_waits | nobody_asks | IS_HERE | in_time;
        let agreed = self.comm.agree_until(vote, self.comm.until(limit))?;
        self.is_due = agreed.flags & (NOBODY_WAITS | IS_HERE) == IS_HERE;
        self.is_asked = agreed.flags & (NOBODY_ASKS | IS_HERE) == IS_HERE;
        Ok(agreed)
    }

    /// Like [`Survivors::all_reduce`], with a time limit.
    ///
    /// # Errors
    /// See [`Survivors::run_within`].
    pub fn all_reduce_within<T: Element>(
        &mut self,
        limit: Duration,
        input: &[T],
        output: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        self.run_within(limit, |comm| comm.all_reduce_into(input, output, op))
    }

    fn become_those(&mut self, next: Communicator) {
        self.is_spent = false;
        self.news = Some(change(self.comm.world_size(), &next));
        self.comm = next;
    }

    fn tell(&mut self) {
        if let (Some(news), Some(watcher)) = (self.news.take(), &mut self.watcher) {
            watcher(&news);
        }
    }

    /// Fails if fewer ranks are left than have to go on.
    fn check_number(&self, before: u32) -> Result<()> {
        let (left, least) = (self.comm.world_size(), self.at_least);
        if left >= least {
            return Ok(());
        }
        let reason =
            format!("only {left} of {before} ranks are left, and at least {least} are needed to go on");
        Err(self.gave_up(AbortReason::Minority, &reason))
    }

    fn gave_up(&self, kind: AbortReason, reason: &str) -> Error {
        let context = self.comm.context("run");
        Error::Aborted { context, by: self.comm.rank(), kind, reason: reason.to_owned() }
    }
}

/// Runs a step whose calls end at `limit`.
fn within<R>(
    comm: &Communicator,
    limit: Option<Instant>,
    step: &mut impl FnMut(&Communicator) -> Result<R>,
) -> Result<R> {
    /// Only unwinding drops it.
    struct Stepping<'a>(&'a Communicator);

    impl Drop for Stepping<'_> {
        fn drop(&mut self) {
            self.0.limit_calls(None);
            // Others may be waiting for this rank in the step, and it does not come back to it.
            self.0.revoke();
        }
    }

    comm.limit_calls(limit);
    let stepping = Stepping(comm);
    let done = step(comm);
    std::mem::forget(stepping);
    comm.limit_calls(None);
    done
}

/// Reason given on a rank whose step succeeded while it failed on another.
const FAILED: &str = "the step failed on another rank; see that rank's own error for the reason";
const LATE: &str = "the step was abandoned: a live rank did not finish it in time";

/// Whether the time was over on this rank or another.
const fn is_out_of_time<T>(outcome: &Result<T>) -> bool {
    matches!(outcome, Err(Error::Aborted { kind: AbortReason::Timeout, .. }))
}

/// Describes the change from a communicator of `before` ranks.
fn change(before: u32, now: &Communicator) -> Change {
    let (epoch, rank, world_size, ranks_before) =
        (now.epoch(), now.rank(), now.world_size(), now.ranks_before());
    let came = (0..world_size).filter(|rank| ranks_before[*rank as usize].is_none()).collect();
    let left = (0..before).filter(|rank| !ranks_before.contains(&Some(*rank))).collect();
    Change { epoch, left, came, rank, world_size }
}
