//! Going on after a loss: revoke, agree and shrink, and how members make another communicator.

use std::time::{Duration, Instant};

use super::Communicator;
use crate::call::Waited;
use crate::communicator::{Making, patience, regroup, renumbered};
use crate::control::{AdmittedNewcomer, Disagreement, Missing, Purpose, Silent, Until};
use crate::drive;
use crate::error::{AbortReason, AwaitedRank, Error, JoinFailure, PeerState, Result};
use crate::job::deadline_after;

/// Result of an agreement among the ranks that live: see [`Communicator::agree`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Agreement {
    /// Bits that every rank that took part had set.
    pub flags: u64,
    /// Ranks that took part, in ascending order. The others have died, left, or did not answer.
    pub ranks: Vec<u32>,
}

/// Flag: this rank has the new communicator.
const IS_MADE: u64 = 1;

/// Flag: the regrouping succeeded on this rank, or failed because of another rank, so another attempt of the same ranks
/// may succeed.
const MAY_RETRY: u64 = 2;

/// Attempts of the same ranks before they give up. A rank costs one attempt if it stops for longer than
/// [`Config::silent_after`](crate::Config::silent_after) while the others wait for it, and resumes before they have
/// agreed. A rank that stays away costs none: it is left out. A newcomer that makes the communicator and leaves costs
/// one, because it may come again.
pub(super) const REGROUP_ATTEMPTS: u32 = 3;

/// # Going on after a loss
impl Communicator {
    /// Ends the communicator for all of its ranks: every call in progress, and every later one, fails with
    /// [`Error::Aborted`] and [`AbortReason::Revoked`], except [`Communicator::agree`] and [`Communicator::shrink`].
    /// Returns at once. A rank that is about to shrink calls it, so that ranks that wait for living ones come to the
    /// shrink at once. After a loss, calls still fail with the error of the loss. Ends the communicators that were made
    /// from this one by [`split`](Self::split), [`group`](Self::group) and [`duplicate`](Self::duplicate), too.
    pub fn revoke(&self) {
        drive::revoke(&self.shared);
    }

    /// Returns whether [`Communicator::revoke`] has ended the communicator, as far as this rank knows. Never blocks.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.shared.membership.abort_flag().is_revoked()
    }

    /// Returns whether the communicator has failed, as far as this rank has heard. Takes no lock. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.shared.membership.abort_flag().is_raised()
    }

    /// Agrees with all ranks that live on the AND of their `flags` and on the ranks that took part. All ranks that
    /// live get the same answer, even if ranks die meanwhile. Works on a communicator that has failed, and after
    /// [`Communicator::revoke`].
    ///
    /// All ranks that live call it, in the same order with [`Communicator::shrink`]. Blocks until all have, at most
    /// [`Config::join_timeout`](crate::Config::join_timeout). If a majority remains, a rank that has stopped or is
    /// cut off is left out after [`Config::silent_after`](crate::Config::silent_after).
    ///
    /// # Errors
    /// [`Error::Aborted`] with [`AbortReason::Fenced`] if the others have gone on without this rank, and with
    /// [`AbortReason::Minority`] if too few ranks answer. [`Error::Timeout`] with the ranks that did not call.
    /// [`Error::Usage`] if the ranks made different calls, or after a fork.
    pub fn agree(&self, flags: u64) -> Result<Agreement> {
        self.agree_until(flags, self.until(None))
    }

    /// Like [`Communicator::agree`], but waits at most `limit` for ranks that live and have not called. Such a rank
    /// counts as having set no flag, and gets the same answer when it calls. All ranks thus have one answer, and a
    /// rank that is minutes late delays nobody.
    ///
    /// All ranks that live call it in place of `agree`. Blocks for `limit` at most, and for
    /// [`Config::silent_after`](crate::Config::silent_after) longer where a rank does not answer.
    ///
    /// # Errors
    /// See [`Communicator::agree`].
    pub fn agree_within(&self, flags: u64, limit: Duration) -> Result<Agreement> {
        self.agree_until(flags, self.until(Some(deadline_after(limit))))
    }

    /// Returns when a call ends that begins now: at `limit` for all members or, without one, when this rank gives up.
    pub(super) fn until(&self, limit: Option<Instant>) -> Until {
        limit.map_or_else(|| Until::GivingUp(Instant::now() + patience(self.config())), Until::Deciding)
    }

    pub(super) fn agree_until(&self, flags: u64, until: Until) -> Result<Agreement> {
        self.shared.check_process(|| Waited::Other("agree"))?;
        self.agree_on(Purpose::Agree, "agree", flags, until)
    }

    /// Makes a communicator of the ranks that live, in their order. Works on a communicator that has failed, after
    /// [`Communicator::revoke`], and on a healthy one, which stays as it is. Endpoints, memory and numbers are new,
    /// so nothing of the old communicator reaches the new one. Ranks that die meanwhile are left out.
    ///
    /// All ranks that live call it. Blocks until all have, at most
    /// [`Config::join_timeout`](crate::Config::join_timeout). Once all have called, the outcome is common: if one
    /// rank's time is over, the call fails on all ranks. [`Communicator::ranks_before`] gives their old ranks. A rank
    /// may die as soon as this returns: the next call then fails as usual, and the survivors shrink again.
    ///
    /// # Errors
    /// As [`Communicator::agree`]; [`Error::Aborted`] with [`AbortReason::Timeout`] if all have called, and the time was
    /// too short for the rest. After an error this rank has no new communicator; the same agreement tells ranks that
    /// could have gone on.
    pub fn shrink(&self) -> Result<Self> {
        self.shrink_until(self.until(None))
    }

    /// Like [`Communicator::shrink`], but if a rank that lives has not called after `limit`, the call fails on all
    /// ranks, including that one when it calls. They may then call it again. Ranks that wait for a late one thus find
    /// out together.
    ///
    /// # Errors
    /// As [`Communicator::shrink`]; [`Error::Aborted`] with [`AbortReason::Timeout`] if a rank has not called in
    /// time.
    pub fn shrink_within(&self, limit: Duration) -> Result<Self> {
        self.shrink_until(self.until(Some(deadline_after(limit))))
    }

    pub(super) fn shrink_until(&self, until: Until) -> Result<Self> {
        self.shared.check_process(|| Waited::Other("shrink"))?;
        self.form_again(Purpose::Shrink, "shrink", until, |ranks, seed| {
            let making = regroup(&self.shared, ranks, seed, until.deadline())?;
            Ok((self.make_next(making)?, Vec::new()))
        })
    }

    /// Makes the next communicator. Its errors name ranks of this one.
    pub(super) fn make_next(&self, making: Making) -> Result<Self> {
        let before = making.world.ranks_before().unwrap_or_default().to_vec();
        Self::make(making).map_err(|error| renumbered(error, self.rank(), &before))
    }

    /// Makes another communicator of the members that live, by `form`. Tries again when members have died or
    /// were away, until all of them have it or it fails for another reason.
    pub(super) fn form_again(
        &self,
        purpose: Purpose,
        operation: &str,
        until: Until,
        form: impl Fn(&[u32], [u8; 32]) -> Result<(Self, Vec<AdmittedNewcomer>)>,
    ) -> Result<Self> {
        let since = Instant::now();
        self.try_to_form(purpose, operation, until, form).map_err(|error| match error {
            // The duration of the whole call, not of the last agreement.
            Error::Timeout { context, waiting_for, .. } => {
                Error::Timeout { context, after: since.elapsed(), waiting_for }
            }
            // The rank in this communicator, not the one that was offered in the next.
            Error::Join { kind, problem, remedy, .. } => {
                Error::Join { rank: Some(self.rank()), kind, problem, remedy }
            }
            other => other,
        })
    }

    fn try_to_form(
        &self,
        purpose: Purpose,
        operation: &str,
        until: Until,
        form: impl Fn(&[u32], [u8; 32]) -> Result<(Self, Vec<AdmittedNewcomer>)>,
    ) -> Result<Self> {
        let (mut in_vain, mut coming, began) = (0, until, Instant::now());
        let mut last: Option<Error> = None;
        loop {
            // A rank whose time is over has none to make a communicator, so no rank begins.
            let flags = if coming.is_over() { 0 } else { u64::MAX };
            let left = self.decide(purpose, operation, flags, coming)?;
            // All members have come. From now on, all of them decide when the time of one is over.
            coming = Until::Deciding(until.deadline());
            if left.flags == 0 {
                return Err(self.came_too_late(operation, began, last));
            }
            let ranks: Vec<u32> = left.members.iter().collect();
            let (made, admitted) = form(&ranks, left.seed)
                .map_or_else(|error| (Err(error), Vec::new()), |(made, admitted)| (Ok(made), admitted));
            let met = self.agree_in_call(Purpose::Confirm, operation, outcome_flags(&made), until.deadline());
            match (met, made) {
                (Ok(met), Ok(made)) if met.flags & IS_MADE != 0 && met.ranks == ranks => {
                    if purpose == Purpose::Shrink || made.all_enter(until.deadline())? {
                        made.publish_members();
                        return Ok(made);
                    }
                    tracing::info!(
                        rank = self.rank(),
                        "a rank was lost while the others were entering the new communicator"
                    );
                    in_vain += 1;
                    if in_vain == REGROUP_ATTEMPTS {
                        return Err(self.gave_up(operation, began, coming, None, last));
                    }
                }
                (Ok(met), made) => {
                    // Aborts it, so that no rank waits on a communicator that was never used.
                    let problem = match made {
                        Ok(made) => {
                            made.abort("another rank could not make the communicator");
                            None
                        }
                        Err(error) => Some(error),
                    };
                    tracing::info!(
                        rank = self.rank(),
                        ?problem,
                        "a rank was lost while the others were making a communicator"
                    );
                    if met.ranks == ranks {
                        // No rank has died: either a rank was away for some time, or the next attempt would end like
                        // this one. All ranks see and count the same.
                        in_vain += 1;
                        if met.flags & MAY_RETRY == 0 || in_vain == REGROUP_ATTEMPTS {
                            return Err(self.gave_up(operation, began, coming, problem, last));
                        }
                    }
                    last = problem.or(last);
                }
                (Err(error), made) => {
                    let _ = made.map(|made| made.abort("the remaining ranks could not confirm it"));
                    return Err(error);
                }
            }
            // Lets the newcomers that were admitted wait again.
            drop(admitted);
        }
    }

    /// Returns whether all ranks of this communicator, including newcomers, agree that they have it. Aborts it if they do
    /// not.
    ///
    /// # Errors
    /// As [`Communicator::agree_in_call`]. The others may have entered it, so a member must not go on with the
    /// communicator before.
    pub(super) fn all_enter(&self, deadline: Instant) -> Result<bool> {
        let met = self.agree_in_call(Purpose::Enter, "grow", IS_MADE, deadline);
        let entered = met.map(|met| met.flags & IS_MADE != 0 && met.ranks.len() as u32 == self.world_size());
        if !matches!(entered, Ok(true)) {
            self.abort("another rank did not finish making it");
        }
        entered
    }

    /// Agrees in the course of a call to which all live members have come. None of them gives up alone, because the
    /// others may count its vote and go on with it: at the deadline of one, all decide.
    ///
    /// # Errors
    /// As [`Communicator::agree`], with [`AbortReason::Minority`] in place of [`Error::Timeout`].
    pub(super) fn agree_in_call(
        &self,
        purpose: Purpose,
        operation: &str,
        flags: u64,
        deadline: Instant,
    ) -> Result<Agreement> {
        self.agree_on(purpose, operation, flags, Until::Deciding(deadline))
    }

    /// Ends all calls that begin to wait from now on at `until`, whatever their time-outs are, also on communicators
    /// that were split off this one. `None` lifts the limit. For Kolo's own bindings.
    #[doc(hidden)]
    pub fn limit_calls(&self, until: Option<Instant>) {
        self.shared.limit_calls(until);
    }

    /// Returns how often the group has changed: 0 for ranks that have joined, one more with each
    /// [`Communicator::shrink`] and [`Communicator::grow`].
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.world.epoch()
    }

    /// Returns for each rank its rank in the communicator from which [`Communicator::shrink`] or
    /// [`Communicator::grow`] made this one, or `None` if it was not in it. If neither made
    /// this communicator, nor the one that it was split off, returns its own ranks.
    #[must_use]
    pub fn ranks_before(&self) -> Vec<Option<u32>> {
        let before = self.shared.world.ranks_before();
        let members = self.shared.group.members.iter();
        members
            .zip(0..)
            .map(|(world, own)| before.map_or(Some(own), |before| before[*world as usize]))
            .collect()
    }

    fn agree_on(&self, purpose: Purpose, operation: &str, flags: u64, until: Until) -> Result<Agreement> {
        let decision = self.decide(purpose, operation, flags, until)?;
        Ok(Agreement { flags: decision.flags, ranks: decision.members.iter().collect() })
    }

    fn decide(
        &self,
        purpose: Purpose,
        operation: &str,
        flags: u64,
        until: Until,
    ) -> Result<kolo_membership::Decision> {
        let since = Instant::now();
        let silent_after = self.config().silent_after;
        self.watch_hosts();
        let agreed = self.shared.membership.agree(purpose, flags, silent_after, until);
        agreed.map_err(|disagreement| {
            let disagreement = match (purpose, disagreement) {
                (Purpose::Confirm | Purpose::Enter, Disagreement::Timeout(missing)) => {
                    Disagreement::Unheard(missing)
                }
                (_, other) => other,
            };
            self.disagreement(disagreement, operation, since)
        })
    }

    /// Watches the members' hosts, since this group goes on after a loss.
    pub(super) fn watch_hosts(&self) {
        self.shared.membership.control().watch_hosts(self.config().silent_after);
    }

    fn not_made(&self, operation: &str) -> Error {
        let reason = "another rank could not make its part of the new communicator, or not in time; see that \
                      rank's own error for the reason";
        let (context, by, kind) = (self.context(operation), self.rank(), AbortReason::Transport);
        Error::Aborted { context, by, kind, reason: reason.to_owned() }
    }

    /// Returns the error of ranks that give up although none has died. `problem` is that of the last attempt here, and
    /// `earlier` that of one before.
    fn gave_up(
        &self,
        operation: &str,
        began: Instant,
        coming: Until,
        problem: Option<Error>,
        earlier: Option<Error>,
    ) -> Error {
        // If the time was too short, no rank is to blame.
        if coming.is_over() {
            return self.came_too_late(operation, began, problem.or(earlier));
        }
        let known = self.lack_of_descriptors(operation, began).or(problem);
        known.unwrap_or_else(|| self.not_made(operation))
    }

    /// Returns the error of a call for which the time was too short. It names the cause if this rank knows one: a lack of
    /// descriptors, or the `last` attempt, which failed here.
    fn came_too_late(&self, operation: &str, began: Instant, last: Option<Error>) -> Error {
        if let Some(lack) = self.lack_of_descriptors(operation, began) {
            return lack;
        }
        let general = "a live rank did not make this call in time, or the time was too short to complete it; every \
             rank gets this error";
        let reason = match last {
            Some(last) => format!("{general}, and on this one an attempt failed before ({last})"),
            None => general.to_owned(),
        };
        let (context, by, kind) = (self.context(operation), self.rank(), AbortReason::Timeout);
        Error::Aborted { context, by, kind, reason }
    }

    /// Returns an error if this process has lacked descriptors for connections to other members since then.
    fn lack_of_descriptors(&self, operation: &str, since: Instant) -> Option<Error> {
        let doing = || {
            format!(
                "{operation}: connecting to the other members (raise this process's limit on open files, ulimit -n)"
            )
        };
        let lacked = self.shared.world.control.lacked_descriptors(since);
        lacked.then(|| Error::system(doing(), std::io::Error::from_raw_os_error(libc::EMFILE)))
    }

    fn disagreement(&self, disagreement: Disagreement, operation: &str, since: Instant) -> Error {
        let context = self.context(operation);
        let aborted =
            |by, kind, reason: String| Error::Aborted { context: context.clone(), by, kind, reason };
        // An earlier attempt of the same call may have lacked the descriptors.
        let earlier = since.checked_sub(self.config().join_timeout).unwrap_or(since);
        let lack = self.lack_of_descriptors(operation, earlier);
        let own_fault = if lack.is_some() {
            "; this process had no file descriptors left to connect to them (raise its limit on open files, \
             ulimit -n)"
        } else {
            ""
        };
        match disagreement {
            Disagreement::Fenced { by } => {
                if let Some(waiting_list) = self.shared.waiting_list() {
                    waiting_list.close();
                }
                let reason = format!(
                    "the other ranks heard nothing from this rank for longer than KOLO_SILENT_AFTER and have \
                     gone on without it; it cannot rejoin this group{own_fault}"
                );
                aborted(by, AbortReason::Fenced, reason)
            }
            Disagreement::Minority { silent } => {
                let is_alone = silent.len() as u32 + 1 == self.world_size();
                let (silent, reasons) = Silent::told(&silent);
                let whose = if is_alone { "no other rank answers, so this one is alone: " } else { "" };
                let reason = format!(
                    "{whose}too few ranks answer to go on: {silent:?} are silent but not known to have \
                     ended, so they may still be running where this rank cannot reach \
                     them{reasons}{own_fault}"
                );
                aborted(self.rank(), AbortReason::Minority, reason)
            }
            Disagreement::Unheard(missing) => {
                let ((silent, reasons), alive) = (Silent::told(&missing.silent), missing.alive());
                let reason = format!(
                    "this rank has not heard what the others have decided, and they may have gone on without \
                     it (silent: {silent:?}, alive: {alive:?}){reasons}{own_fault}"
                );
                aborted(self.rank(), AbortReason::Minority, reason)
            }
            Disagreement::Timeout(missing) => lack.unwrap_or_else(|| Error::Timeout {
                context,
                after: since.elapsed(),
                waiting_for: awaited(missing, operation),
            }),
            Disagreement::Mismatch => {
                let problem = "the ranks made different calls: all live ranks must call agree, shrink and \
                               grow in the same order";
                Error::Usage { context, problem: problem.to_owned() }
            }
            Disagreement::NoListener => {
                let problem = "the others cannot reach this rank, because it has no port for them; see its \
                               log and KOLO_PORT_RANGE";
                Error::Unsupported { context, problem: problem.to_owned() }
            }
        }
    }
}

/// Says for which ranks an agreement has waited in vain.
fn awaited(missing: Missing, operation: &str) -> Vec<AwaitedRank> {
    let late =
        |rank| AwaitedRank::new(rank, PeerState::Late, format!("it is alive but has not called {operation}"));
    let silent = |Silent { rank, why }| {
        let detail = why.map_or_else(String::new, |why| format!(": {why}"));
        AwaitedRank::new(rank, PeerState::Silent, format!("it does not answer{detail}"))
    };
    let collector = |rank| {
        let detail =
            format!("it collects the votes, and it or a rank that it waits for has not called {operation}");
        AwaitedRank::new(rank, PeerState::Unknown, detail)
    };
    let all = missing.late.into_iter().map(late).chain(missing.silent.into_iter().map(silent));
    all.chain(missing.collector.map(collector)).collect()
}

/// Returns the flags that tell the others how making a communicator has ended here.
const fn outcome_flags(made: &Result<Communicator>) -> u64 {
    match made {
        Ok(_) => IS_MADE | MAY_RETRY,
        Err(error) if may_be_theirs(error) => MAY_RETRY,
        Err(_) => 0,
    }
}

/// Returns whether a joining error may be the fault of another rank, which will be gone or back by the next attempt.
pub(super) const fn may_be_theirs(error: &Error) -> bool {
    match error {
        Error::Join { kind, .. } => {
            matches!(kind, JoinFailure::Survivors | JoinFailure::Absent | JoinFailure::Unreachable)
        }
        Error::PeerLost { .. } | Error::Timeout { .. } | Error::Aborted { .. } => true,
        _ => false,
    }
}

/// The program in docs/elastic.md, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/elastic.md")]
pub mod example {}
