//! Groups: ordered sets of ranks of the world.

use std::ffi::c_int;
use std::sync::Arc;

use crate::args::{put, slice};
use crate::comm;
use crate::constants::*;
use crate::error::{Class, Outcome, fail};
use crate::handle::Table;
use crate::world;

/// World ranks, in the order of the group.
pub(crate) type Group = Arc<[u32]>;

static GROUPS: Table<Group> = Table::new(0x2);

pub(crate) fn lookup(handle: c_int) -> Outcome<Group> {
    world::check_running()?;
    if handle == GROUP_EMPTY {
        return Ok(Arc::from([]));
    }
    GROUPS.get(handle).map_or_else(|| fail(Class::Group, format!("{handle:#x} is not a group")), Ok)
}

pub(crate) fn register(group: Group) -> c_int {
    if group.is_empty() { GROUP_EMPTY } else { GROUPS.insert(group) }
}

unsafe fn give(group: Vec<u32>, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(into, register(group.into())) }
}

fn place(group: &[u32], rank: u32) -> Option<usize> {
    // In most groups, a member's place equals its world rank.
    if group.get(rank as usize) == Some(&rank) {
        return Some(rank as usize);
    }
    group.iter().position(|member| *member == rank)
}

pub unsafe fn group_size(group: c_int, size: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(size, lookup(group)?.len() as c_int) }
}

pub unsafe fn group_rank(group: c_int, rank: *mut c_int) -> Outcome {
    let found = place(&lookup(group)?, world::rank()).map_or(UNDEFINED, |at| at as c_int);
    // SAFETY: the caller's promise.
    unsafe { put(rank, found) }
}

pub unsafe fn group_translate_ranks(
    from: c_int,
    n: c_int,
    ranks: *const c_int,
    to: c_int,
    translated: *mut c_int,
) -> Outcome {
    let (from, to) = (lookup(from)?, lookup(to)?);
    // SAFETY: the caller's promise: `n` ranks in both arrays.
    unsafe {
        for (at, rank) in slice(ranks, n)?.iter().enumerate() {
            let found = match *rank {
                PROC_NULL => PROC_NULL,
                rank => {
                    let member = usize::try_from(rank).ok().and_then(|rank| from.get(rank));
                    let Some(member) = member else {
                        return fail(
                            Class::Rank,
                            format!("rank {rank} is out of range for a group of {}", from.len()),
                        );
                    };
                    place(&to, *member).map_or(UNDEFINED, |at| at as c_int)
                }
            };
            put(translated.wrapping_add(at), found)?;
        }
    }
    Ok(())
}

pub(crate) fn compare(one: &[u32], other: &[u32]) -> c_int {
    if one == other {
        return IDENT;
    }
    let (mut one, mut other) = (one.to_vec(), other.to_vec());
    one.sort_unstable();
    other.sort_unstable();
    if one == other { SIMILAR } else { UNEQUAL }
}

pub unsafe fn group_compare(one: c_int, other: c_int, result: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(result, compare(&lookup(one)?, &lookup(other)?)) }
}

pub unsafe fn comm_group(of: c_int, group: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(group, register(Arc::clone(&comm::lookup(of)?.members))) }
}

pub unsafe fn group_union(one: c_int, other: c_int, new: *mut c_int) -> Outcome {
    let (one, other) = (lookup(one)?, lookup(other)?);
    let more = other.iter().filter(|rank| !one.contains(rank));
    // SAFETY: the caller's promise.
    unsafe { give(one.iter().chain(more).copied().collect(), new) }
}

pub unsafe fn group_intersection(one: c_int, other: c_int, new: *mut c_int) -> Outcome {
    let (one, other) = (lookup(one)?, lookup(other)?);
    // SAFETY: the caller's promise.
    unsafe { give(one.iter().filter(|rank| other.contains(rank)).copied().collect(), new) }
}

pub unsafe fn group_difference(one: c_int, other: c_int, new: *mut c_int) -> Outcome {
    let (one, other) = (lookup(one)?, lookup(other)?);
    // SAFETY: the caller's promise.
    unsafe { give(one.iter().filter(|rank| !other.contains(rank)).copied().collect(), new) }
}

/// Checks that ranks are distinct places in a group.
fn distinct(group: &[u32], ranks: &[c_int]) -> Outcome<Vec<usize>> {
    let mut seen = vec![false; group.len()];
    let mut places = Vec::with_capacity(ranks.len());
    for rank in ranks {
        match usize::try_from(*rank).ok().and_then(|at| seen.get_mut(at)) {
            None => {
                return fail(
                    Class::Rank,
                    format!("rank {rank} is out of range for a group of {}", group.len()),
                );
            }
            Some(true) => return fail(Class::Rank, format!("rank {rank} is listed twice")),
            Some(seen) => *seen = true,
        }
        places.push(*rank as usize);
    }
    Ok(places)
}

fn ranges(ranges: &[c_int]) -> Outcome<Vec<c_int>> {
    let mut ranks = Vec::new();
    for range in ranges.chunks_exact(3) {
        let (first, last, stride) = (i64::from(range[0]), i64::from(range[1]), i64::from(range[2]));
        if stride == 0 {
            return fail(Class::Arg, "a range has stride 0");
        }
        if first < 0 || last < 0 {
            return fail(Class::Rank, format!("a range cannot go from {first} to {last}"));
        }
        let steps = (last - first) / stride;
        if (last - first) * stride.signum() >= 0 {
            ranks.extend((0..=steps).map(|step| (first + step * stride) as c_int));
        }
    }
    Ok(ranks)
}

unsafe fn include(group: c_int, ranks: &[c_int], new: *mut c_int) -> Outcome {
    let group = lookup(group)?;
    let places = distinct(&group, ranks)?;
    // SAFETY: the caller's promise.
    unsafe { give(places.into_iter().map(|at| group[at]).collect(), new) }
}

unsafe fn exclude(group: c_int, ranks: &[c_int], new: *mut c_int) -> Outcome {
    let group = lookup(group)?;
    let places = distinct(&group, ranks)?;
    let rest = group.iter().enumerate().filter(|(at, _)| !places.contains(at)).map(|(_, rank)| *rank);
    // SAFETY: the caller's promise.
    unsafe { give(rest.collect(), new) }
}

pub unsafe fn group_incl(group: c_int, n: c_int, ranks: *const c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { include(group, slice(ranks, n)?, new) }
}

pub unsafe fn group_excl(group: c_int, n: c_int, ranks: *const c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { exclude(group, slice(ranks, n)?, new) }
}

pub unsafe fn group_range_incl(group: c_int, n: c_int, triples: *const c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise: `n` triples of numbers.
    unsafe { include(group, &ranges(slice(triples, n.saturating_mul(3))?)?, new) }
}

pub unsafe fn group_range_excl(group: c_int, n: c_int, triples: *const c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise: `n` triples of numbers.
    unsafe { exclude(group, &ranges(slice(triples, n.saturating_mul(3))?)?, new) }
}

pub unsafe fn group_free(group: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        if *group != GROUP_EMPTY && GROUPS.remove(*group).is_none() {
            return fail(Class::Group, format!("{:#x} is not a group", *group));
        }
        *group = GROUP_NULL;
    }
    Ok(())
}
