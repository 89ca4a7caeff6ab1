//! Brings members and newcomers together: see [`Communicator::grow`](crate::Communicator::grow).
//!
//! 1. The members that live, on which they have agreed, make a control plane of their own. Over it they tell each other
//!    which newcomers wait at their doors. All of them then compute the new members and their places
//!    ([`seating`](super::seating)).
//! 2. Each member calls the chosen newcomers at its door. All come together under the rank that is rank 0 from now on.
//!    A member that fails, or whose newcomer is gone, says so over the first control plane, and the others stop
//!    waiting.
//! 3. They make the communicator, as all ranks do, and confirm it to each other: first the members over the old
//!    communicator, then all over the new one.

use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use super::agreement::{self, Agreed};
use super::connect::{Making, WORLD, broken};
use super::seating::{Holder, Listed, Places, Seating, seat};
use super::shared::{Shared, World};
use super::survivors::{Elastic, Lineage, NEWCOMER};
use crate::config::Config;
use crate::control::{
    AbortCause, AbortKind, Applicant, Called, Control, Entrance, ExchangeKey, Lobby, Meeting, Membership,
    Offer, Seat, derive,
};
use crate::error::{Error, ErrorContext, JoinFailure, Result};

/// Identity under which members meet before they call newcomers.
const GATHERING: u64 = 2;

/// A member's message to the others.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    places: Places,
    listed: Vec<Listed>,
}

/// Parts of the new communicator, with the newcomers that this member has called. Dropping it ends their connections.
pub(crate) struct Growth {
    pub(crate) making: Making,
    pub(crate) called: Vec<Called>,
}

/// The members of the communicator that live, and a number that only they know.
pub(crate) struct Left<'a> {
    pub(crate) ranks: &'a [u32],
    pub(crate) seed: [u8; 32],
}

/// Brings members and newcomers together. All members that live call it. Blocks until all have come, or the attempt is
/// given up.
pub(crate) fn grow(shared: &Shared, left: &Left<'_>, places: Places, deadline: Instant) -> Result<Growth> {
    let world_ranks = shared.world_ranks(left.ranks);
    let own = left.ranks.iter().position(|rank| *rank == shared.group.rank).unwrap_or_default();
    let control = &shared.world.control;
    let silent_after = shared.config.silent_after;
    let meeting = |tag, place, world_size, at, alarm| {
        let ranks = &world_ranks[..];
        let later = shared.membership.later();
        Meeting { ranks, place, world_size, at, tag, later, silent_after, deadline, alarm }
    };
    let first = world_ranks.first().and_then(|first| control.entrance(*first));
    let count = world_ranks.len() as u32;
    let gathering =
        control.reunite(meeting(derive(&left.seed, b"gather"), own as u32, count, first, None))?;
    let members: Arc<[u32]> = (0..count).collect();
    let watch = Arc::new(gathering.register(GATHERING, members.clone()));
    let attempt = || -> Result<Growth> {
        let lists = exchange(shared, &gathering, &members, places, deadline)?;
        let seating = seated(shared, left.ranks, places, &lists)?;
        let lineage = lineage(shared, left.ranks, &seating);
        let at = match &seating.seats[0].1 {
            Holder::Member(member) => control.entrance(world_ranks[*member]),
            Holder::Newcomer { host, at } => Some(lists[*host][*at].entrance.clone()),
        };
        let tag = derive(&left.seed, b"grow");
        let called = call(shared, (own, &watch), &seating, &lists, &lineage, (at.clone(), tag, deadline))?;
        let place = seating.seats.iter().position(|(_, holder)| *holder == Holder::Member(own));
        let (place, world_size) = (place.unwrap_or_default() as u32, seating.seats.len() as u32);
        let (sound, alarm) = oneshot::channel();
        // Weak, since the hook belongs to the flag.
        let sound = std::sync::Mutex::new(Some((sound, Arc::downgrade(watch.abort_flag()))));
        watch.abort_flag().on_raise(Box::new(move || {
            let taken = sound.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
            if let Some((sound, flag)) = taken {
                let cause = flag.upgrade().and_then(|flag| flag.cause());
                let cause = cause.map_or_else(String::new, |cause| cause.to_string());
                let _ = sound.send((own as u32, cause));
            }
        }));
        let next = control.reunite(meeting(tag, place, world_size, at, Some(alarm)))?;
        let world = World::changed(
            next,
            lineage,
            shared.world.elastic.clone(),
            shared.world.processor.clone(),
            // The newcomers know nothing of the network, so all ranks measure it, as at the start of a job.
            None,
            relayed(shared, &seating, &world_ranks),
        );
        Ok(Growth { making: making(world, shared.config.clone(), deadline), called })
    };
    attempt().inspect_err(|error| {
        let reason = format!("rank {} has given up: {error}", shared.group.rank);
        watch.abort(AbortCause::new(own as u32, AbortKind::Transport, reason));
    })
}

/// Assembles the parts of the communicator, once all ranks are there.
fn making(world: World, config: Config, deadline: Instant) -> Making {
    let control = &world.control;
    control.watch_hosts(config.silent_after);
    let (rank, members): (u32, Arc<[u32]>) = (control.rank(), (0..control.world_size()).collect());
    Making { world: Arc::new(world), id: WORLD, members, rank, config, deadline }
}

/// Returns the peers that this member has met at a relay, by their new places.
fn relayed(shared: &Shared, seating: &Seating, world_ranks: &[u32]) -> BTreeSet<u32> {
    shared.note_relayed();
    let before = shared.world.relayed_of(world_ranks);
    let is_one = |holder: &Holder| match holder {
        Holder::Member(member) => before.contains(&(*member as u32)),
        Holder::Newcomer { .. } => false,
    };
    (0..).zip(&seating.seats).filter(|(_, (_, holder))| is_one(holder)).map(|(place, _)| place).collect()
}

/// Returns the newcomers at each member's door.
fn exchange(
    shared: &Shared,
    gathering: &Control,
    members: &[u32],
    places: Places,
    deadline: Instant,
) -> Result<Vec<Vec<Listed>>> {
    let rank = shared.group.rank;
    let waiting = shared.lobby().map_or_else(Vec::new, |lobby| lobby.waiting());
    let listed = waiting.into_iter().map(|newcomer| Listed {
        id: newcomer.id(),
        who: newcomer.who(),
        slot: newcomer.slot,
        entrance: Entrance { host_key: newcomer.host_key, door: newcomer.door },
    });
    let told = Told { places, listed: listed.collect() };
    let blob = postcard::to_stdvec(&told).map_err(|error| broken(rank, &error))?;
    let key = ExchangeKey { communicator: GATHERING, round: 0 };
    let blobs = gathering.exchange(key, members, blob, deadline)?;
    let all: std::result::Result<Vec<Told>, _> =
        blobs.iter().map(|blob| postcard::from_bytes(blob)).collect();
    let all = all.map_err(|error| broken(rank, &error))?;
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
    ErrorContext { rank, operation: "grow".to_owned(), sequence: 0 }
}

/// Chooses the newcomers that become members. Refuses those at this rank's door that cannot.
fn seated(shared: &Shared, left: &[u32], places: Places, lists: &[Vec<Listed>]) -> Result<Seating> {
    let slots = shared.slots();
    let slots: Vec<u32> = left.iter().map(|rank| slots[*rank as usize]).collect();
    let usage = |problem: String| Error::Usage { context: context(shared.group.rank), problem };
    if let Places::Last { most } | Places::FreeThenLast { most } = places
        && (most as usize) < slots.len()
    {
        return Err(usage(format!("the group has {} ranks, which is more than {most}", slots.len())));
    }
    if places == Places::Free && slots.len() as u32 == shared.slot_count() {
        return Err(usage(format!("none of the {} slots is free: use grow to add more", slots.len())));
    }
    let seating = seat(places, &slots, shared.slot_count(), lists);
    for (host, at, problem) in &seating.refused {
        if let Some(lobby) = shared.lobby().filter(|_| left[*host] == shared.group.rank) {
            lobby.refuse(lists[*host][*at].id, problem.clone(), "Start it with another slot, or without one");
        }
    }
    Ok(seating)
}

fn lineage(shared: &Shared, left: &[u32], seating: &Seating) -> Lineage {
    let before = |holder: &Holder| match holder {
        Holder::Member(member) => left[*member],
        Holder::Newcomer { .. } => NEWCOMER,
    };
    let highest = seating.seats.iter().map(|(slot, _)| slot + 1).max().unwrap_or_default();
    Lineage {
        epoch: shared.world.epoch() + 1,
        ranks_before: seating.seats.iter().map(|(_, holder)| before(holder)).collect(),
        group: shared.group_id(),
        slots: seating.seats.iter().map(|(slot, _)| *slot).collect(),
        slot_count: shared.slot_count().max(highest),
    }
}

/// Calls the chosen newcomers at this member's door.
fn call(
    shared: &Shared,
    (own, watch): (usize, &Arc<Membership>),
    seating: &Seating,
    lists: &[Vec<Listed>],
    lineage: &Lineage,
    (at, tag, deadline): (Option<Entrance>, [u8; 32], Instant),
) -> Result<Vec<Called>> {
    let rank = shared.group.rank;
    let gone = |who: &str| Error::Join {
        rank: Some(rank),
        kind: JoinFailure::Survivors,
        problem: format!("a newcomer is gone: {who}"),
        remedy: "Call grow again".to_owned(),
    };
    let lineage = postcard::to_stdvec(lineage).map_err(|error| broken(rank, &error))?;
    let mut called = Vec::new();
    for (place, (_, holder)) in seating.seats.iter().enumerate() {
        let Holder::Newcomer { host, at: number } = holder else { continue };
        let newcomer = &lists[*host][*number];
        if *host != own {
            continue;
        }
        let (Some(at), Some(lobby)) = (at.clone(), shared.lobby()) else { return Err(gone("no door")) };
        let seat = Seat {
            at,
            tag,
            rank: place as u32,
            world_size: seating.seats.len() as u32,
            patience: deadline.saturating_duration_since(Instant::now()),
            lineage: lineage.clone(),
        };
        // Weak, since the hook must not keep alive what ends with this attempt.
        let (watch, who) = (Arc::downgrade(watch), newcomer.who.clone());
        let lost = Box::new(move || {
            if let Some(watch) = watch.upgrade() {
                let reason = format!("a newcomer is gone: {who}");
                watch.abort(AbortCause::new(own as u32, AbortKind::Transport, reason));
            }
        });
        called.push(lobby.call(newcomer.id, seat, lost).ok_or_else(|| gone(&newcomer.who))?);
    }
    Ok(called)
}

/// Joins the others, as a newcomer that was called. Blocks until all have come, or the attempt is given up.
pub(crate) fn take(
    applicant: &Applicant,
    offer: &mut Offer,
    (config, elastic): (&Config, &Elastic),
) -> Result<Making> {
    let deadline = Instant::now() + offer.seat.patience;
    let lineage: Lineage =
        postcard::from_bytes(&offer.seat.lineage).map_err(|error| broken(offer.seat.rank, &error))?;
    let size = offer.seat.world_size as usize;
    if lineage.ranks_before.len() != size || lineage.slots.len() != size {
        return Err(broken(offer.seat.rank, &"its lists have a different length"));
    }
    let control = applicant.take(offer)?;
    let world = World::changed(control, lineage, elastic.clone(), OnceLock::new(), None, BTreeSet::new());
    Ok(making(world, config.clone(), deadline))
}

/// Returns the settings of a newcomer in the form in which members compare them.
pub(crate) fn settings(config: &Config) -> Result<Vec<u8>> {
    postcard::to_stdvec(&Agreed::of(config)).map_err(|error| broken(0, &error))
}

/// Opens the lobby for newcomers to this communicator's group at this rank's door. `None` if there is no door.
pub(super) fn open_lobby(shared: &Shared) -> Option<Arc<Lobby>> {
    let group = shared.group_id();
    let config = shared.config.clone();
    let check = move |newcomer: &crate::control::Newcomer| {
        let difference = agreement::objection(&config, &newcomer.settings)?;
        let problem = format!("the newcomer has different settings: {difference}");
        Some((problem, "Give it the group's settings, in the environment or in code".to_owned()))
    };
    let make = || Lobby::new(group, shared.config.silent_after, Box::new(check));
    shared.world.control.lobby(group, make)
}
