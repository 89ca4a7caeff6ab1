//! The calls of MPI's fault-tolerance working group: `MPIX_Comm_revoke`, `MPIX_Comm_shrink` and so on.
//!
//! These calls work on communicators of all live ranks only: `MPI_COMM_WORLD`, its duplicates, and communicators shrunk from them. After
//! a loss, and after a revoke, calls on every communicator fail until the survivors have shrunk one.

use std::ffi::c_int;
use std::sync::Arc;

use kolo::Communicator;
use kolo_transport::Unpoisoned;

use super::{Comm, intra};
use crate::args::put;
use crate::constants::*;
use crate::error::{Class, Outcome, fail};
use crate::group::{self, Group};
use crate::{net, world};

/// Returns Kolo's communicator of the live ranks, and their world ranks; `None` if the process is alone.
fn whole(comm: &Comm) -> Outcome<Option<(Arc<Communicator>, Group)>> {
    let alive = world::alive();
    if !alive.iter().all(|rank| comm.members.contains(rank)) {
        return fail(
            Class::UnsupportedOperation,
            "this call is for communicators of all remaining ranks, not for parts of them",
        );
    }
    Ok(world::joined().map(|kolo| (kolo, alive)))
}

/// Returns the members' ranks in Kolo's communicator of the live ranks.
pub(super) fn places(members: &[u32]) -> Outcome<Vec<u32>> {
    let alive = world::alive();
    let place = |member: &u32| alive.iter().position(|other| other == member).map(|at| at as u32);
    match members.iter().map(place).collect() {
        Some(places) => Ok(places),
        None => fail(Class::ProcFailed, "the communicator has ranks that are lost: use MPIX_Comm_shrink"),
    }
}

/// Returns the world ranks that are lost, in the order of the communicator.
fn failed(comm: &Comm) -> Outcome<Vec<u32>> {
    net::poll_once();
    let (lost, alive) = (net::net()?.lost(), world::alive());
    let is_lost = |rank: &&u32| lost.contains(rank) || !alive.contains(rank);
    Ok(comm.members.iter().filter(is_lost).copied().collect())
}

pub unsafe fn comm_revoke(comm: c_int) -> Outcome {
    if let Some((kolo, _)) = whole(&*intra(comm)?)? {
        kolo.revoke();
    }
    Ok(())
}

pub unsafe fn comm_is_revoked(comm: c_int, flag: *mut c_int) -> Outcome {
    let revoked = whole(&*intra(comm)?)?.is_some_and(|(kolo, _)| kolo.is_revoked());
    // SAFETY: the caller's promise.
    unsafe { put(flag, revoked.into()) }
}

pub unsafe fn comm_shrink(comm: c_int, new: *mut c_int) -> Outcome {
    let comm = intra(comm)?;
    let Some((kolo, alive)) = whole(&comm)? else {
        // SAFETY: the caller's promise.
        return unsafe { put(new, comm.create(Arc::clone(&comm.members), None)?) };
    };
    let _absent = net::Absence::begin();
    let next = Arc::new(kolo.shrink()?);
    let ranks: Group = next.ranks_before().iter().flatten().map(|before| alive[*before as usize]).collect();
    let mut number = [if next.rank() == 0 { world::new_context()? } else { 0 }];
    next.broadcast(&mut number, 0)?;
    world::go_on_with(Arc::clone(&next), Arc::clone(&ranks));
    {
        // The transports may not have noticed the losses yet, but nothing should wait for these ranks any more.
        let mut net = net::net()?;
        for rank in alive.iter().filter(|rank| !ranks.contains(rank)) {
            net.abandon(*rank, &format!("rank {rank} of the world was left behind by MPIX_Comm_shrink"));
        }
    }
    let members: Group = comm.members.iter().filter(|rank| ranks.contains(rank)).copied().collect();
    let child = comm.child(number[0], Arc::clone(&members), None)?;
    if members == ranks {
        let _ = child.kolo.set(next);
    }
    // SAFETY: the caller's promise.
    unsafe { put(new, child.register()) }
}

/// Returns the bitwise AND of the flags of all live ranks. If ranks are lost that this one has not acknowledged, it fails, but still
/// writes the result.
pub unsafe fn comm_agree(comm: c_int, flag: *mut c_int) -> Outcome {
    let comm = intra(comm)?;
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let own = unsafe { *flag };
    let mut agreed = own;
    let mut others = failed(&comm)?;
    if let Some((kolo, alive)) = whole(&comm)? {
        let _absent = net::Absence::begin();
        let answer = kolo.agree(u64::from(own as u32))?;
        agreed = answer.flags as u32 as c_int;
        let took_part: Vec<u32> = answer.ranks.iter().map(|rank| alive[*rank as usize]).collect();
        others = comm.members.iter().filter(|rank| !took_part.contains(rank)).copied().collect();
        // The transports may not have noticed these losses yet, but the program may acknowledge what this call reports.
        let mut net = net::net()?;
        let noticed = net.lost();
        for rank in others.iter().filter(|rank| !noticed.contains(rank)) {
            net.abandon(*rank, &format!("rank {rank} of the world took no part in MPIX_Comm_agree"));
        }
    }
    // SAFETY: as above.
    unsafe { put(flag, agreed)? };
    let known = comm.acknowledged.lock().unpoisoned();
    match others.iter().find(|rank| !known.contains(rank)) {
        Some(rank) => {
            fail(Class::ProcFailed, format!("rank {rank} of the world is lost, and not acknowledged"))
        }
        None => Ok(()),
    }
}

pub unsafe fn comm_failure_ack(comm: c_int) -> Outcome {
    let comm = intra(comm)?;
    let lost = failed(&comm)?;
    *comm.acknowledged.lock().unpoisoned() = lost;
    Ok(())
}

pub unsafe fn comm_failure_get_acked(comm: c_int, into: *mut c_int) -> Outcome {
    let comm = intra(comm)?;
    let known = comm.acknowledged.lock().unpoisoned().clone();
    // SAFETY: the caller's promise.
    unsafe { put(into, if known.is_empty() { GROUP_EMPTY } else { group::register(known.into()) }) }
}

pub unsafe fn comm_get_failed(comm: c_int, into: *mut c_int) -> Outcome {
    let lost = failed(&*intra(comm)?)?;
    // SAFETY: the caller's promise.
    unsafe { put(into, if lost.is_empty() { GROUP_EMPTY } else { group::register(lost.into()) }) }
}
