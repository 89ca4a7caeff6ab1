//! Intercommunicators: a local group, a remote group, and a hidden communicator of both, over which collectives run.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Comm, intra, lookup, own, release};
use crate::collective::{share, tell};
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::group::{self, Group};
use crate::world;

/// The parts that an intercommunicator has in addition to those of a communicator of its local group.
#[derive(Debug)]
pub(crate) struct Inter {
    /// Communicator of both groups; the group with the lower first rank comes first. It has the intercommunicator's number.
    pub(crate) union: Arc<Comm>,
    /// First rank of the local group in the union.
    pub(crate) local: u32,
    /// First rank of the remote group in the union.
    pub(crate) remote: u32,
}

/// Bytes that each rank contributes to a split.
const TOLD: usize = 12;
/// The rank gives no color.
const NO_COLOR: c_int = 0;
const COLOR: c_int = 1;
/// The rank's arguments are wrong.
const WRONG: c_int = -1;

fn union_of(local: &[u32], remote: &[u32]) -> Group {
    let (low, high) = if local[0] < remote[0] { (local, remote) } else { (remote, local) };
    low.iter().chain(high).copied().collect()
}

fn told(what: c_int, color: c_int, key: c_int) -> [u8; TOLD] {
    let mut bytes = [0; TOLD];
    bytes[..4].copy_from_slice(&what.to_le_bytes());
    bytes[4..8].copy_from_slice(&color.to_le_bytes());
    bytes[8..].copy_from_slice(&key.to_le_bytes());
    bytes
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[4 * at..4 * at + 4].try_into().map_or(0, u32::from_le_bytes)
}

/// Returns the members that gave this color, ordered by key and place.
fn chosen(all: &[u8], color: c_int, members: &[u32]) -> Group {
    let entries = all.chunks_exact(TOLD).zip(members);
    let mut found: Vec<(c_int, usize)> = entries
        .enumerate()
        .filter(|(_, (entry, _))| word(entry, 0) as c_int == COLOR && word(entry, 1) as c_int == color)
        .map(|(at, (entry, _))| (word(entry, 2) as c_int, at))
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, at)| members[at]).collect()
}

/// Returns the members of an intracommunicator with the given color, ordered by key and rank.
pub(super) fn split_members(comm: &Arc<Comm>, color: Option<c_int>, key: c_int) -> Outcome<Option<Group>> {
    let what = if color.is_some() { COLOR } else { NO_COLOR };
    let all = share(comm, &told(what, color.unwrap_or(0), key))?;
    Ok(color.map(|color| chosen(&all, color, &comm.members)))
}

impl Comm {
    /// Makes an intercommunicator of two groups; this process is in the first.
    pub(super) fn pair(&self, number: u32, local: Group, remote: Group) -> Outcome<Self> {
        let union = self.child(number, union_of(&local, &remote), None)?;
        let is_first = local[0] < remote[0];
        let (local_at, remote_at) = if is_first { (0, local.len()) } else { (remote.len(), 0) };
        let mut comm = self.child(number, local, None)?;
        comm.peers = remote;
        let inter = Inter { union: Arc::new(union), local: local_at as u32, remote: remote_at as u32 };
        comm.inter = Some(inter);
        Ok(comm)
    }

    /// Returns this communicator; for an intercommunicator, the union of both groups.
    #[must_use]
    pub fn whole(self: &Arc<Self>) -> &Arc<Self> {
        self.inter.as_ref().map_or(self, |inter| &inter.union)
    }
}

impl Inter {
    /// Makes intercommunicators of ranks with the same color, for colors that occur in both groups. All ranks call it.
    fn split(&self, comm: &Comm, own: [u8; TOLD], color: Option<c_int>) -> Outcome<c_int> {
        let all = share(&self.union, &own)?;
        if all.chunks_exact(TOLD).any(|entry| word(entry, 0) as c_int == WRONG) {
            return fail(Class::Group, "a rank gave a group that is not part of its local group");
        }
        let tag = self.union.next_creation();
        let Some(color) = color else { return Ok(COMM_NULL) };
        let side = |first: u32, members: &[u32]| chosen(&all[first as usize * TOLD..], color, members);
        let (local, remote) = (side(self.local, &comm.members), side(self.remote, &comm.peers));
        if local.is_empty() || remote.is_empty() {
            return Ok(COMM_NULL);
        }
        let number = self.union.agree(&union_of(&local, &remote), tag)?;
        Ok(comm.pair(number, local, remote)?.register())
    }

    pub(super) fn split_by_color(&self, comm: &Comm, color: Option<c_int>, key: c_int) -> Outcome<c_int> {
        let what = if color.is_some() { COLOR } else { NO_COLOR };
        self.split(comm, told(what, color.unwrap_or(0), key), color)
    }

    /// Carries out `MPI_Comm_create`: each rank gives a part of its local group.
    pub(super) fn create(&self, comm: &Comm, group: &[u32]) -> Outcome<c_int> {
        let is_part = group.iter().all(|member| comm.members.contains(member));
        let place = group.iter().position(|member| *member == world::rank());
        let what = match place {
            _ if !is_part => WRONG,
            Some(_) => COLOR,
            None => NO_COLOR,
        };
        self.split(comm, told(what, 0, place.unwrap_or(0) as c_int), place.map(|_| 0))
    }
}

/// Carries out `MPI_Intercomm_merge`: the group that passes `high` comes second.
pub(super) fn merge(comm: c_int, high: bool) -> Outcome<c_int> {
    let comm = lookup(comm)?;
    let Some(inter) = &comm.inter else { return fail(Class::Comm, "this is not an intercommunicator") };
    let said = share(&inter.union, &[u8::from(high)])?;
    let first = inter.local.max(inter.remote) as usize;
    let (low_side, high_side) = said.split_at(first);
    let differ = |side: &[u8]| side.iter().any(|said| *said != side[0]);
    if differ(low_side) || differ(high_side) {
        return fail(Class::Arg, "the ranks of a group disagree on which group comes first (high)");
    }
    let mut members = inter.union.members.to_vec();
    if low_side[0] > high_side[0] {
        members.rotate_left(first);
    }
    let handle = inter.union.create(members.into(), None)?;
    lookup(handle)?.set_handler(comm.handler());
    Ok(handle)
}

/// The result of a meeting of two groups' leaders: a number for the intercommunicator, and the other group.
type Found = (u32, Group);

/// Lets the two leaders exchange their groups, over a communicator that contains both.
fn meet(outside: &Comm, local: &[u32], remote_leader: u32, tag: c_int) -> Outcome<Found> {
    let own = world::rank();
    if own == remote_leader {
        return fail(
            Class::Comm,
            format!("rank {own} of the world leads both groups; they must not overlap"),
        );
    }
    let handle =
        outside.create_tagged(Arc::from([own.min(remote_leader), own.max(remote_leader)]), None, tag)?;
    let bridge = lookup(handle)?;
    release(handle);
    let lengths = share(&bridge, &(local.len() as u32).to_le_bytes())?;
    let mine: Vec<u8> = local.iter().flat_map(|member| member.to_le_bytes()).collect();
    let mut remote = Vec::new();
    for leader in 0..2 {
        let told = tell(&bridge, &mine, 4 * word(&lengths, leader as usize) as usize, leader)?;
        if leader != bridge.rank {
            remote = told;
        }
    }
    let number = bridge.agree(&bridge.members, bridge.next_creation())?;
    Ok((number, (0..remote.len() / 4).map(|at| word(&remote, at)).collect()))
}

/// Makes an intercommunicator from the result of the local group's leader. All ranks of the group call it; if the leader fails, all of
/// them fail.
fn connect(local: &Arc<Comm>, leader: u32, lead: impl FnOnce() -> Outcome<Found>) -> Outcome<c_int> {
    let (mut head, mut bytes, mut error) = ([0_u32; 3], Vec::new(), None);
    if local.rank == leader {
        match lead() {
            Ok((number, remote)) => {
                head = [0, number, remote.len() as u32];
                bytes = remote.iter().flat_map(|member| member.to_le_bytes()).collect();
            }
            Err(failure) => {
                head[0] = failure.class as u32;
                error = Some(failure);
            }
        }
    }
    let own: Vec<u8> = head.iter().flat_map(|word| word.to_le_bytes()).collect();
    let head = tell(local, &own, own.len(), leader)?;
    if let Some(error) = error {
        return Err(error);
    }
    if word(&head, 0) != 0 {
        let text = format!("the arguments of the leader, rank {leader} of the local group, are wrong");
        return Err(Fail { class: word(&head, 0) as c_int, text: text.into(), object: None });
    }
    let bytes = tell(local, &bytes, 4 * word(&head, 2) as usize, leader)?;
    let remote: Group = (0..bytes.len() / 4).map(|at| word(&bytes, at)).collect();
    if let Some(both) = remote.iter().find(|member| local.members.contains(member)) {
        return fail(
            Class::Comm,
            format!("rank {both} of the world is in both groups; they must not overlap"),
        );
    }
    Ok(local.pair(word(&head, 1), Arc::clone(&local.members), remote)?.register())
}

fn leader_of(local: &Comm, leader: c_int) -> Outcome<u32> {
    let found = u32::try_from(leader).ok().filter(|leader| *leader < local.size());
    found.map_or_else(
        || {
            fail(
                Class::Rank,
                format!("leader {leader} is out of range for a local group of {}", local.size()),
            )
        },
        Ok,
    )
}

fn named(group: &[u32], rank: c_int) -> Outcome<u32> {
    let found = usize::try_from(rank).ok().and_then(|at| group.get(at));
    found.map_or_else(
        || fail(Class::Rank, format!("remote leader {rank} is out of range for {} ranks", group.len())),
        |at| Ok(*at),
    )
}

/// Carries out `MPI_Intercomm_create`.
pub(super) fn create(comm: c_int, leader: c_int, peer: c_int, remote: c_int, tag: c_int) -> Outcome<c_int> {
    let local = intra(comm)?;
    let leader = leader_of(&local, leader)?;
    connect(&local, leader, || {
        let peer = lookup(peer)?;
        if !(0..=TAG_MAX).contains(&tag) {
            return fail(Class::Tag, format!("the tag is {tag}"));
        }
        // This call's tags differ from those of `MPI_Comm_create_group`.
        meet(peer.whole(), &local.members, named(&peer.peers, remote)?, (3 << 28) | (tag & (TAG_MAX >> 2)))
    })
}

/// Carries out `MPI_Intercomm_create_from_groups`; the tag is below 2^28. `prepare` gets the communicator from which the new one inherits.
pub(crate) fn from_groups(
    (local, leader): (c_int, c_int),
    (remote, remote_leader): (c_int, c_int),
    tag: c_int,
    prepare: impl FnOnce(&Comm),
) -> Outcome<c_int> {
    let members = group::lookup(local)?;
    if !members.contains(&world::rank()) {
        return fail(Class::Group, "this process is not in the local group");
    }
    let outside = own()?;
    let handle = outside.create_tagged(members, None, (2 << 28) | tag)?;
    let local = lookup(handle)?;
    release(handle);
    prepare(&local);
    let leader = leader_of(&local, leader)?;
    connect(&local, leader, || {
        let remote = named(&group::lookup(remote)?, remote_leader)?;
        meet(&outside, &local.members, remote, (3 << 28) | tag)
    })
}
