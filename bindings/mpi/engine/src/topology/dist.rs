//! Distributed graph topologies.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Topology, put_all};
use crate::args::{put, slice};
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::error::{Class, Outcome, fail};

/// Returns the weights of edges; `None` for `MPI_UNWEIGHTED`.
unsafe fn weights(ptr: *const c_int, n: c_int) -> Outcome<Option<Vec<c_int>>> {
    match ptr {
        UNWEIGHTED => Ok(None),
        WEIGHTS_EMPTY => Ok(Some(Vec::new())),
        // SAFETY: the caller's promise.
        _ => Ok(Some(unsafe { slice(ptr, n)? }.to_vec())),
    }
}

fn checked(comm: &Comm, ranks: &[c_int]) -> Outcome<Vec<c_int>> {
    match ranks.iter().find(|rank| **rank != PROC_NULL && !(0..comm.size() as c_int).contains(*rank)) {
        Some(rank) => {
            fail(Class::Rank, format!("rank {rank} is out of range for a communicator of {}", comm.size()))
        }
        None => Ok(ranks.to_vec()),
    }
}

pub unsafe fn dist_graph_create_adjacent(
    comm: c_int,
    indegree: c_int,
    sources: *const c_int,
    sourceweights: *const c_int,
    outdegree: c_int,
    targets: *const c_int,
    targetweights: *const c_int,
    info: c_int,
    _reorder: c_int,
    new: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    crate::info::pairs(info)?;
    // SAFETY: the caller's promise.
    let (sources, targets, source_weights, target_weights) = unsafe {
        let (sources, targets) = (slice(sources, indegree)?, slice(targets, outdegree)?);
        let weights = (weights(sourceweights, indegree)?, weights(targetweights, outdegree)?);
        (checked(&comm, sources)?, checked(&comm, targets)?, weights.0, weights.1)
    };
    let weighted = source_weights.is_some() || target_weights.is_some();
    let (source_weights, target_weights) =
        (source_weights.unwrap_or_default(), target_weights.unwrap_or_default());
    let topology = Topology::Dist { sources, source_weights, targets, target_weights, weighted };
    // SAFETY: the caller's promise.
    unsafe { put(new, comm.create(Arc::clone(&comm.members), Some(topology))?) }
}

pub unsafe fn dist_graph_create(
    comm: c_int,
    n: c_int,
    sources: *const c_int,
    degrees: *const c_int,
    targets: *const c_int,
    edgeweights: *const c_int,
    info: c_int,
    _reorder: c_int,
    new: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    crate::info::pairs(info)?;
    // SAFETY: the caller's promise.
    let (sources, degrees, targets, weights) = unsafe {
        let degrees = slice(degrees, n)?;
        if degrees.iter().any(|degree| *degree < 0) {
            return fail(Class::Arg, "a degree is negative");
        }
        let edges = degrees.iter().sum();
        (
            checked(&comm, slice(sources, n)?)?,
            degrees,
            checked(&comm, slice(targets, edges)?)?,
            weights(edgeweights, edges)?,
        )
    };
    let weighted = weights.is_some();
    // Every rank receives all edges, and keeps its own.
    let mut own = Vec::new();
    let mut next = 0;
    for (source, degree) in sources.iter().zip(degrees) {
        for _ in 0..*degree {
            let weight = weights.as_ref().and_then(|weights| weights.get(next)).copied().unwrap_or(0);
            own.push([*source, targets[next], weight]);
            next += 1;
        }
    }
    let all = shared_edges(&comm, &own)?;
    let rank = comm.rank as c_int;
    let from: Vec<&[c_int; 3]> = all.iter().filter(|edge| edge[1] == rank).collect();
    let to: Vec<&[c_int; 3]> = all.iter().filter(|edge| edge[0] == rank).collect();
    let topology = Topology::Dist {
        sources: from.iter().map(|edge| edge[0]).collect(),
        source_weights: from.iter().map(|edge| edge[2]).collect(),
        targets: to.iter().map(|edge| edge[1]).collect(),
        target_weights: to.iter().map(|edge| edge[2]).collect(),
        weighted,
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, comm.create(Arc::clone(&comm.members), Some(topology))?) }
}

/// Exchanges edges; returns those of all ranks, in the order of ranks.
fn shared_edges(comm: &Arc<Comm>, own: &[[c_int; 3]]) -> Outcome<Vec<[c_int; 3]>> {
    let counts = crate::collective::share(comm, &(own.len() as u32).to_le_bytes())?;
    let number = |bytes: &[u8]| [bytes[0], bytes[1], bytes[2], bytes[3]];
    let lengths: Vec<usize> =
        counts.chunks_exact(4).map(|count| u32::from_le_bytes(number(count)) as usize * 12).collect();
    let bytes: Vec<u8> = own.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    let all = crate::collective::share_uneven(comm, &bytes, &lengths)?;
    let edge = |bytes: &[u8]| [0, 4, 8].map(|at| c_int::from_le_bytes(number(&bytes[at..])));
    Ok(all.chunks_exact(12).map(edge).collect())
}

pub unsafe fn dist_graph_neighbors_count(
    comm: c_int,
    indegree: *mut c_int,
    outdegree: *mut c_int,
    is_weighted: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let Some(Topology::Dist { sources, targets, weighted, .. }) = &comm.topology else {
        return fail(Class::Topology, "the communicator has no distributed graph");
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(indegree, sources.len() as c_int)?;
        put(outdegree, targets.len() as c_int)?;
        put(is_weighted, (*weighted).into())
    }
}

pub unsafe fn dist_graph_neighbors(
    comm: c_int,
    maxin: c_int,
    into_sources: *mut c_int,
    into_source_weights: *mut c_int,
    maxout: c_int,
    into_targets: *mut c_int,
    into_target_weights: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let Some(Topology::Dist { sources, source_weights, targets, target_weights, weighted }) = &comm.topology
    else {
        return fail(Class::Topology, "the communicator has no distributed graph");
    };
    let wants = |place: *mut c_int| *weighted && !matches!(place.cast_const(), UNWEIGHTED | WEIGHTS_EMPTY);
    // SAFETY: the caller's promise.
    unsafe {
        put_all(sources.iter().copied(), into_sources, maxin)?;
        put_all(targets.iter().copied(), into_targets, maxout)?;
        if wants(into_source_weights) {
            put_all(source_weights.iter().copied(), into_source_weights, maxin)?;
        }
        if wants(into_target_weights) {
            put_all(target_weights.iter().copied(), into_target_weights, maxout)?;
        }
    }
    Ok(())
}
