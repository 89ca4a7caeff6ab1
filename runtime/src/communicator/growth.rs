//! Brings members together again: without newcomers, by one control plane, or with newcomers, as
//! [`Communicator::grow`](crate::Communicator::grow) does:
//!
//! 1. The members that live, on which they have agreed, make a control plane of their own. Over it they tell each other
//!    which newcomers wait at their listeners. All of them then compute the new members and their places
//!    ([`assignment`](super::assignment)).
//! 2. Each member admits the chosen newcomers at its listener. All come together under the rank that is rank 0 from now
//!    on.
//!    A member that fails, or whose newcomer is gone, says so over the first control plane, and the others stop
//!    waiting.
//! 3. They make the communicator, as all ranks do, and confirm it to each other: first the members over the old
//!    communicator, then all over the new one.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use kolo_transport::Unpoisoned;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::agreement::{self, Agreed};
use super::assignment::{Assignment, Holder, Listed, Places, assign};
use super::connect::{Making, WORLD, broken};
use super::lineage::Lineage;
use super::renumbering::renumbered;
use super::shared::{Shared, World};
use crate::config::{Config, Elastic};
use crate::control::{
    AbortCause, AbortKind, Absence, Admission, AdmittedNewcomer, Applicant, Control, GatherKey,
    MemberAddress, Membership, Offer, RegroupSpec, Round, WaitingList, derive,
};
use crate::error::{Error, ErrorContext, JoinFailure, Result};
use crate::job::{MAX_WORLD_SIZE, deadline_after};

/// Identity under which members meet before they admit newcomers.
const INTERIM: u64 = 2;

/// A member's message to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    places: Places,
    listed: Vec<Listed>,
}

/// Parts of the new communicator, with the newcomers that this member has admitted. Dropping it ends their connections.
pub(crate) struct Growth {
    pub(crate) making: Making,
    pub(crate) admitted: Vec<AdmittedNewcomer>,
}

/// The members of the communicator that live, and a number that only they know.
pub(crate) struct Left<'a> {
    pub(crate) ranks: &'a [u32],
    pub(crate) seed: [u8; 32],
}

/// Makes a control plane of these members (ranks of the communicator), and returns what is needed to make the
/// communicator on it. Its errors name ranks of this communicator.
pub(crate) fn regroup(
    shared: &Shared,
    ranks: &[u32],
    regroup_id: [u8; 32],
    deadline: Instant,
) -> Result<Making> {
    let world_ranks = shared.world_ranks(ranks);
    let control = &shared.world.control;
    let own = world_ranks.iter().position(|rank| *rank == control.rank()).unwrap_or_default();
    let next = control.regroup(RegroupSpec {
        ranks: &world_ranks,
        place: own as u32,
        world_size: world_ranks.len() as u32,
        at: world_ranks.first().and_then(|first| control.member_address(*first)),
        regroup_id,
        later: shared.membership.later(),
        silent_after: shared.config.silent_after,
        deadline,
        alarm: None,
    });
    let next = next.map_err(|error| renumbered(error, shared.group.rank, ranks))?;
    let ranks_before = ranks.iter().copied().map(Some).collect();
    let lineage = Lineage::after(shared, ranks_before, shared.slots_of(ranks));
    // The measurements still hold, and measuring again would take longer than all the rest.
    let network = shared.world.network_of(&world_ranks);
    // A rank keeps the processor to which it returns.
    let processor = shared.world.processor.clone();
    shared.note_relayed();
    let relayed = shared.world.relayed_of(&world_ranks).into_iter().collect();
    let elastic = shared.world.elastic.clone();
    let world = World::changed(next, lineage, elastic, processor, network, relayed);
    Ok(making(world, shared.config.clone(), deadline))
}

/// Brings members and newcomers together. All members that live call it. Blocks until all have come, or the attempt is
/// given up.
pub(crate) fn grow(shared: &Shared, left: &Left<'_>, places: Places, deadline: Instant) -> Result<Growth> {
    let world_ranks = shared.world_ranks(left.ranks);
    let own = left.ranks.iter().position(|rank| *rank == shared.group.rank).unwrap_or_default();
    let control = &shared.world.control;
    let silent_after = shared.config.silent_after;
    let spec = |regroup_id, place, world_size, at, alarm| {
        let ranks = &world_ranks[..];
        let later = shared.membership.later();
        RegroupSpec { ranks, place, world_size, at, regroup_id, later, silent_after, deadline, alarm }
    };
    let first = world_ranks.first().and_then(|first| control.member_address(*first));
    let count = world_ranks.len() as u32;
    let interim = control.regroup(spec(derive(&left.seed, b"interim"), own as u32, count, first, None));
    let interim = interim.map_err(|error| renumbered(error, shared.group.rank, left.ranks))?;
    let members: Arc<[u32]> = (0..count).collect();
    let watch = Arc::new(interim.register(INTERIM, members.clone()));
    let attempt = || -> Result<Growth> {
        let lists = exchange(shared, &interim, &members, places, deadline)
            .map_err(|error| renumbered(error, shared.group.rank, left.ranks))?;
        let assignment = assigned(shared, left.ranks, places, &lists)?;
        let lineage = lineage(shared, left.ranks, &assignment);
        let at = match &assignment.slots[0].1 {
            Holder::Member(member) => control.member_address(world_ranks[*member]),
            Holder::Newcomer { host, at } => Some(lists[*host][*at].address.clone()),
        };
        let regroup_id = derive(&left.seed, b"grow");
        let world_size = assignment.slots.len() as u32;
        let told = postcard::to_stdvec(&lineage).map_err(|error| broken(shared.group.rank, &error))?;
        let admission = |rank| {
            let patience = deadline.saturating_duration_since(Instant::now());
            Some(Admission { at: at.clone()?, regroup_id, rank, world_size, patience, lineage: told.clone() })
        };
        let admitted = admit(shared, own, &watch, &assignment, &lists, admission)?;
        let place = assignment.slots.iter().position(|(_, holder)| *holder == Holder::Member(own));
        let place = place.unwrap_or_default() as u32;
        let (sound, alarm) = oneshot::channel();
        // Weak, since the hook belongs to the flag.
        let ranks = left.ranks.to_vec();
        let sound = std::sync::Mutex::new(Some((sound, Arc::downgrade(watch.abort_flag()))));
        watch.abort_flag().on_raise(Box::new(move || {
            let taken = sound.lock().unpoisoned().take();
            if let Some((sound, flag)) = taken {
                let cause = flag.upgrade().and_then(|flag| flag.cause());
                let _ = cause.map(|cause| sound.send(absence(cause, &ranks)));
            }
        }));
        let next = control.regroup(spec(regroup_id, place, world_size, at, Some(alarm)));
        let next = next.map_err(|error| renumbered(error, shared.group.rank, &lineage.ranks_before))?;
        let world = World::changed(
            next,
            lineage,
            shared.world.elastic.clone(),
            shared.world.processor.clone(),
            // The newcomers know nothing of the network, so all ranks measure it, as at the start of a job.
            None,
            relayed(shared, &assignment, &world_ranks),
        );
        Ok(Growth { making: making(world, shared.config.clone(), deadline), admitted })
    };
    attempt().inspect_err(|error| {
        let reason = format!("rank {} has given up: {error}", shared.group.rank);
        watch.abort(AbortCause::new(own as u32, AbortKind::Transport, reason));
    })
}

/// Makes the news of a member's abort among the interim members, which are these ranks of the communicator.
fn absence(cause: AbortCause, ranks: &[u32]) -> Absence {
    match cause.kind {
        AbortKind::PeerLost => Absence { rank: ranks.get(cause.by as usize).copied(), why: cause.reason },
        // The reason names the rank that has given up, or the newcomer that is gone.
        _ => Absence { rank: None, why: cause.reason },
    }
}

/// Assembles the parts of the communicator, once all ranks are there.
fn making(world: World, config: Config, deadline: Instant) -> Making {
    let control = &world.control;
    control.watch_hosts(config.silent_after);
    let (rank, members): (u32, Arc<[u32]>) = (control.rank(), (0..control.world_size()).collect());
    Making { world: Arc::new(world), id: WORLD, members, rank, config, deadline, ancestors: Arc::default() }
}

/// Returns the peers that this member has met at a relay, by their new places.
fn relayed(shared: &Shared, assignment: &Assignment, world_ranks: &[u32]) -> BTreeSet<u32> {
    shared.note_relayed();
    let before = shared.world.relayed_of(world_ranks);
    let is_one = |holder: &Holder| match holder {
        Holder::Member(member) => before.contains(&(*member as u32)),
        Holder::Newcomer { .. } => false,
    };
    (0..).zip(&assignment.slots).filter(|(_, (_, holder))| is_one(holder)).map(|(place, _)| place).collect()
}

/// Returns the newcomers at each member's listener.
fn exchange(
    shared: &Shared,
    interim: &Control,
    members: &[u32],
    places: Places,
    deadline: Instant,
) -> Result<Vec<Vec<Listed>>> {
    let rank = shared.group.rank;
    let waiting = shared.waiting_list().map_or_else(Vec::new, |list| list.newcomers());
    let listed = waiting.into_iter().map(|newcomer| Listed {
        id: newcomer.id(),
        who: newcomer.who(),
        slot: newcomer.slot,
        address: MemberAddress { host_key: newcomer.host_key, listener: newcomer.listener },
    });
    let told = Told { places, listed: listed.collect() };
    let key = GatherKey { communicator: INTERIM, round: Round::Newcomers };
    let all = interim.all_gather(key, members, &told, deadline)?;
    match all.iter().find(|told| told.places != places) {
        None => Ok(all.into_iter().map(|told| told.listed).collect()),
        Some(other) => {
            let problem = format!(
                "the ranks made different calls: {} here, {} there",
                describe(places),
                describe(other.places)
            );
            Err(Error::Usage { context: context(rank), problem })
        }
    }
}

fn describe(places: Places) -> String {
    match places {
        Places::Last { most } | Places::FreeThenLast { most } => format!("grow to at most {most}"),
        Places::Free => "replace".to_owned(),
    }
}

fn context(rank: u32) -> ErrorContext {
    ErrorContext::unnumbered(rank, "grow")
}

/// Chooses the newcomers that become members. Refuses those at this rank's listener that cannot.
fn assigned(shared: &Shared, left: &[u32], places: Places, lists: &[Vec<Listed>]) -> Result<Assignment> {
    let slots = shared.slots_of(left);
    let usage = |problem: String| Error::Usage { context: context(shared.group.rank), problem };
    if let Places::Last { most } = places
        && most > MAX_WORLD_SIZE
    {
        return Err(usage(format!("{most} ranks are more than the {MAX_WORLD_SIZE} that are supported")));
    }
    if let Places::Last { most } | Places::FreeThenLast { most } = places
        && (most as usize) < slots.len()
    {
        return Err(usage(format!("the group has {} ranks, which is more than {most}", slots.len())));
    }
    if places == Places::Free && slots.len() as u32 == shared.slot_count() {
        return Err(usage(format!("none of the {} slots is free: use grow to add more", slots.len())));
    }
    let assignment = assign(places, &slots, shared.slot_count(), lists);
    for (host, at, problem) in &assignment.refused {
        if let Some(waiting_list) = shared.waiting_list().filter(|_| left[*host] == shared.group.rank) {
            waiting_list.refuse(
                lists[*host][*at].id,
                problem.clone(),
                "Start it with another slot, or without one",
            );
        }
    }
    Ok(assignment)
}

fn lineage(shared: &Shared, left: &[u32], assignment: &Assignment) -> Lineage {
    let before = |holder: &Holder| match holder {
        Holder::Member(member) => Some(left[*member]),
        Holder::Newcomer { .. } => None,
    };
    let (slots, ranks_before) = assignment.slots.iter().map(|(slot, holder)| (*slot, before(holder))).unzip();
    Lineage::after(shared, ranks_before, slots)
}

/// Admits the chosen newcomers at this member's listener. `admission` makes the offer of a rank, if the members have a
/// listener at which to meet.
fn admit(
    shared: &Shared,
    own: usize,
    watch: &Arc<Membership>,
    assignment: &Assignment,
    lists: &[Vec<Listed>],
    admission: impl Fn(u32) -> Option<Admission>,
) -> Result<Vec<AdmittedNewcomer>> {
    let gone = |who: &str| Error::Join {
        rank: Some(shared.group.rank),
        kind: JoinFailure::Survivors,
        problem: format!("a newcomer is gone: {who}"),
        remedy: "Call grow again".to_owned(),
    };
    let mut admitted = Vec::new();
    for (place, (_, holder)) in (0..).zip(&assignment.slots) {
        let Holder::Newcomer { host, at } = holder else { continue };
        if *host != own {
            continue;
        }
        let newcomer = &lists[*host][*at];
        let (Some(admission), Some(waiting_list)) = (admission(place), shared.waiting_list()) else {
            return Err(gone("no listener"));
        };
        // Weak, since the hook must not keep alive what ends with this attempt.
        let (watch, who) = (Arc::downgrade(watch), newcomer.who.clone());
        let lost = Box::new(move || {
            if let Some(watch) = watch.upgrade() {
                let reason = format!("a newcomer is gone: {who}");
                watch.abort(AbortCause::new(own as u32, AbortKind::Transport, reason));
            }
        });
        admitted.push(waiting_list.admit(newcomer.id, admission, lost).ok_or_else(|| gone(&newcomer.who))?);
    }
    Ok(admitted)
}

/// Joins the others, as a newcomer that was admitted. Blocks until all have come, or the attempt is given up.
pub(crate) fn join_admitted(
    applicant: &Applicant,
    offer: &mut Offer,
    config: &Config,
    elastic: &Elastic,
) -> Result<Making> {
    let deadline = deadline_after(offer.admission.patience);
    let lineage: Lineage = postcard::from_bytes(&offer.admission.lineage)
        .map_err(|error| broken(offer.admission.rank, &error))?;
    let size = offer.admission.world_size as usize;
    if lineage.ranks_before.len() != size || lineage.slots.len() != size {
        return Err(broken(offer.admission.rank, &"its lists have a different length"));
    }
    let control = applicant.join(offer)?;
    let world = World::changed(control, lineage, elastic.clone(), OnceLock::new(), None, BTreeSet::new());
    Ok(making(world, config.clone(), deadline))
}

/// Returns the settings of a newcomer in the form in which members compare them.
pub(crate) fn settings(config: &Config) -> Result<Vec<u8>> {
    postcard::to_stdvec(&Agreed::of(config)).map_err(|error| broken(0, &error))
}

/// Opens the waiting list of newcomers to this communicator's group at this rank's listener. `None` if there is no
/// listener.
pub(super) fn open_waiting_list(shared: &Shared) -> Option<Arc<WaitingList>> {
    let group = shared.group_id();
    let config = shared.config.clone();
    let check = move |newcomer: &crate::control::Newcomer| {
        let difference = agreement::objection(&config, &newcomer.settings)?;
        let problem = format!("the newcomer has different settings: {difference}");
        Some((problem, "Give it the group's settings, in the environment or in code".to_owned()))
    };
    let make = || WaitingList::new(group, shared.config.silent_after, Box::new(check));
    shared.world.control.waiting_list(group, make)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks 0 and 2 of the communicator are gone, so the interim member 1 is rank 3.
    const LEFT: [u32; 3] = [1, 3, 4];

    #[test]
    fn news_of_a_loss_names_the_rank_in_the_callers_communicator() {
        let lost = AbortCause::new(1, AbortKind::PeerLost, "its connection broke");
        assert_eq!(absence(lost, &LEFT).to_string(), "rank 3 cannot take part: its connection broke");
        let newcomer = AbortCause::new(1, AbortKind::Transport, "a newcomer is gone: process 7 on node1");
        assert_eq!(absence(newcomer, &LEFT).to_string(), "a newcomer is gone: process 7 on node1");
    }
}
