//! Growing a group: members invite newcomers and admit them.

use std::time::{Duration, Instant};

use super::Communicator;
use super::elastic::may_be_theirs;
use crate::call::Waited;
use crate::communicator::{Left, Places, WORLD, grow, join_admitted, patience, settings};
use crate::config::{Config, Elastic};
use crate::control::{Applicant, ControlRuntime, Invitation, Purpose, Until, first_invitation};
use crate::error::{Error, JoinFailure, Result};
use crate::files::keep_secret;
use crate::job::deadline_after;
use crate::join::JoinSpec;

/// # Growing a group
impl Communicator {
    /// Returns an invitation to this communicator's group, for newcomers. It is text, which may be passed on in any
    /// way: a file, a variable (`KOLO_JOIN`), a launcher. Newcomers join with it
    /// ([`CommunicatorBuilder::invitation`](crate::CommunicatorBuilder::invitation)) and wait at this rank's port, or
    /// at another's if this rank dies, until the members admit them by [`Communicator::grow`] or
    /// [`Communicator::replace`]. The group goes on meanwhile.
    ///
    /// Local; returns at once. Any rank may call it, at any time. An invitation names up to 16 ranks of this
    /// communicator. It serves any number of newcomers, as long as one of these ranks lives. Its holder can become a
    /// member: keep it secret.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this rank has no port at which others reach it; [`Error::Join`] or [`Error::System`]
    /// if a rank that was alone cannot open one; [`Error::Usage`] after a fork.
    pub fn accept(&self) -> Result<Invitation> {
        self.shared.check_process(|| Waited::Other("accept"))?;
        let waiting_list = self.shared.open_waiting_list()?;
        let invitation = waiting_list.and_then(|list| self.shared.world.control.invitation(list));
        invitation.ok_or_else(|| Error::Unsupported {
            context: self.context("accept"),
            problem: "newcomers cannot reach this rank, because it has no port for them; see its log and \
                      KOLO_PORT_RANGE"
                .to_owned(),
        })
    }

    /// Returns the number of newcomers that wait at this rank's port. Others may wait at the ports of other ranks. A
    /// program that needs to know whether any newcomer waits includes this number in a reduction of its own, or asks
    /// [`Communicator::agree`]. Local; costs a lock.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        let waiting_list = if self.shared.is_ours() { self.shared.waiting_list() } else { None };
        waiting_list.map_or(0, |list| list.newcomers().len() as u32)
    }

    /// Returns the least and the greatest number of ranks (0: not given) that the launcher has set by `KOLO_ELASTIC`,
    /// if any. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn elastic_bounds(&self) -> Option<(u32, u32)> {
        self.shared.world.elastic.bounds
    }

    /// Lets newcomers know the addresses of this communicator's members from now on, and writes an invitation where the
    /// launcher wants one.
    pub(super) fn publish_members(&self) {
        let shared = &self.shared;
        shared.publish_members();
        // Every rank writes one. Ranks of other hosts, or of other launchers on this host, may use other paths, and no
        // rank knows which ranks use the same.
        let is_whole = shared.group.id == WORLD;
        let Some(path) = shared.world.elastic.invite.as_ref().filter(|_| is_whole) else { return };
        let (rank, file) = (self.rank(), path.clone());
        let failed = move |error: &dyn std::fmt::Display| {
            tracing::warn!(
                rank,
                path = %file.display(),
                %error,
                "the invitation for newcomers (KOLO_INVITE) could not be written"
            );
        };
        let later = failed.clone();
        let kept = self.accept().and_then(|invitation| {
            keep_secret(path, invitation.to_string(), move |error| later(error))
                .map_err(|error| Error::system("writing the invitation", error))
        });
        if let Err(error) = kept {
            failed(&error);
        }
    }

    /// Admits newcomers, first into free slots and then behind all others. For Kolo's own bindings.
    ///
    /// # Errors
    /// See [`Communicator::grow`].
    #[doc(hidden)]
    pub fn admit_up_to(&self, most: u32) -> Result<Self> {
        let until = Until::Deciding(Instant::now() + patience(self.config()));
        self.take_in(Places::FreeThenLast { most }, until)
    }

    /// Returns whether a newcomer that can be given a slot waits at this rank's port. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn has_candidates(&self) -> bool {
        let slots = self.shared.slots();
        let fits = |slot: Option<u32>| slot.is_none_or(|slot| !slots.contains(&slot));
        self.shared
            .waiting_list()
            .is_some_and(|list| list.newcomers().iter().any(|newcomer| fits(newcomer.slot)))
    }

    /// Returns whether a newcomer waits at this rank's port for a copy of its state. For Kolo's own bindings.
    #[doc(hidden)]
    #[must_use]
    pub fn is_asked_for_state(&self) -> bool {
        let snapshot_server = || self.shared.world.control.snapshot_server(self.shared.group_id());
        self.shared.is_ours() && snapshot_server().is_some_and(|server| server.is_asked())
    }

    /// Makes a communicator of the ranks that live and of the newcomers that wait at their ports, of at most `most`
    /// ranks; further newcomers keep waiting. Ranks keep their order. Newcomers follow, in the order of the ranks at
    /// whose ports they wait. Without newcomers, the new communicator has the ranks that live, as after
    /// [`Communicator::shrink`]. This communicator stays as it is.
    ///
    /// All ranks that live call it with the same `most`, and the newcomers return from
    /// [`CommunicatorBuilder::connect`](crate::CommunicatorBuilder::connect). Blocks until all have come, at most
    /// [`Config::join_timeout`](crate::Config::join_timeout). Members that die meanwhile are left out.
    ///
    /// # Errors
    /// As [`Communicator::agree`]. After [`AbortReason::Fenced`](crate::AbortReason::Fenced) or
    /// [`AbortReason::Minority`](crate::AbortReason::Minority) this rank must stop: the others may have gone on without
    /// it, also on the new communicator.
    ///
    /// All other errors come to all ranks that live or to none, and leave this communicator as it was. The call may
    /// then be repeated: newcomers that live wait again. Such errors are [`Error::Usage`] if `most` is below the number
    /// of ranks that live, above the 4096 that are supported, or not the same on all ranks; and the errors if newcomers
    /// die while all come together, three times in a row, or do not fit.
    pub fn grow(&self, most: u32) -> Result<Self> {
        self.take_in(Places::Last { most }, self.until(None))
    }

    /// Like [`Communicator::grow`], but newcomers take the places of lost ranks: slots ([`Communicator::slots`]) that
    /// no rank has. Ranks are in the order of their slots, so a group that is full again has the same ranks as at
    /// first.
    ///
    /// # Errors
    /// As [`Communicator::grow`]; [`Error::Usage`] if no slot is free.
    pub fn replace(&self) -> Result<Self> {
        self.take_in(Places::Free, self.until(None))
    }

    /// Returns the slot of each rank: its rank in the first communicator of the group, or the slot of the rank that
    /// it has replaced. Slots stay the same when the group shrinks, and ranks are in their order. A communicator made
    /// by a split begins a group of its own.
    #[must_use]
    pub fn slots(&self) -> Vec<u32> {
        self.shared.slots()
    }

    fn take_in(&self, places: Places, until: Until) -> Result<Self> {
        self.shared.check_process(|| Waited::Other("grow"))?;
        self.form_again(Purpose::Grow, "grow", until, |ranks, seed| {
            let growth = grow(&self.shared, &Left { ranks, seed }, places, until.deadline())?;
            Ok((self.make_next(growth.making)?, growth.admitted))
        })
    }
}

/// Returns whether no transport reaches a member, unless the attempt before ended alike. A member that has just ended is out of
/// reach too, and the next attempt is without it.
fn newly_unreached(before: &mut Option<String>, error: &Error) -> bool {
    let is_apart = matches!(error, Error::Join { kind: JoinFailure::NoTransport, .. });
    let text = error.to_string();
    is_apart && before.replace(text.clone()) != Some(text)
}

/// Returns whether a newcomer's error is its own matter. The members reach the new rank 0, or they would have given up.
const fn is_own(error: &Error) -> bool {
    matches!(error, Error::Join { kind: JoinFailure::Unreachable, .. }) || !may_be_theirs(error)
}

/// Settings of a newcomer that joins.
pub(super) struct Joining<'a> {
    /// Returns the invitation. It is asked for again when no member answers.
    pub(super) invite: &'a dyn Fn() -> Result<Invitation>,
    pub(super) slot: Option<u32>,
    pub(super) elastic: Elastic,
    /// Longest time to wait until the members call.
    pub(super) wait_at_most: Option<Duration>,
}

/// Waits at a member's port, and becomes a member when the members admit it. Blocks at most as long as the group lives.
pub(super) fn join(
    how: &Joining<'_>,
    config: &Config,
    spec: JoinSpec,
    runtime: ControlRuntime,
) -> Result<Communicator> {
    let until = how.wait_at_most.map(deadline_after);
    let reach = patience(config);
    let invitation = first_invitation(how.invite, reach)?;
    let own = settings(config)?;
    let applicant = Applicant::new(&invitation, spec, own, how.slot, config.silent_after, runtime)?;
    let mut unreached = None;
    loop {
        let mut offer = applicant.wait(how.invite, reach, until)?;
        let deadline = deadline_after(offer.admission.patience);
        let made = join_admitted(&applicant, &mut offer, config, &how.elastic).and_then(Communicator::make);
        match made {
            Ok(made) => match made.all_enter(deadline) {
                Ok(true) => {
                    made.publish_members();
                    return Ok(made);
                }
                outcome => tracing::info!(
                    ?outcome,
                    "not all ranks have entered the new communicator; this newcomer waits for the next attempt"
                ),
            },
            // This rank caused the failure, so it would occur again.
            Err(error) if is_own(&error) && !newly_unreached(&mut unreached, &error) => {
                return Err(error);
            }
            Err(error) => {
                tracing::info!(%error, "the members have abandoned the attempt; this newcomer waits for the next one")
            }
        }
    }
}
