//! Collectives between neighbours of a topology.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::buffers::{Buffer, apart};
use super::transfers::listed;
use super::{How, go};
use crate::args::Counts;
use crate::comm::{self, Comm};
use crate::error::Outcome;
use crate::topology::Neighbors;

/// Sends a block to each neighbour and receives one from each. If two neighbours are the same rank, messages match in the order of
/// dimensions, with the two directions of each dimension crossed.
fn exchange(how: How, comm: &Arc<Comm>, out: &[Buffer], into: &[Buffer]) -> Outcome {
    let neighbors = Neighbors::of(comm)?;
    let sources = neighbors.receive_order();
    // Blocks of MPI_PROC_NULL are neither read nor written.
    apart(neighbors.targets().map(|(at, _)| &out[at]), sources.iter().map(|(at, _)| &into[*at]))?;
    go(how, comm, |s| {
        // All data is packed before the first receive, since an action waits for the messages before it.
        let data: Vec<_> = neighbors.targets().map(|(at, rank)| (rank, out[at].source(s))).collect();
        let mut places = Vec::new();
        for (at, rank) in sources {
            let place = into[at].sink(s);
            s.recv(rank, place);
            places.push((at, place));
        }
        data.into_iter().for_each(|(rank, data)| s.send(rank, data));
        s.fence();
        for (at, place) in places {
            into[at].arrived(s, place);
        }
        Ok(())
    })
}

fn repeated(buffer: &Buffer, times: usize) -> Vec<Buffer> {
    vec![buffer.clone(); times]
}

fn blocks(buffer: &Buffer, times: usize) -> Vec<Buffer> {
    let step = buffer.count as i64 * buffer.of.extent;
    (0..times as i64).map(|at| buffer.moved(at * step)).collect()
}

pub unsafe fn neighbor_allgather(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (ins, outs) = Neighbors::of(&comm)?.degrees();
    let out = repeated(&Buffer::new(sendbuf, sendcount, sendtype)?, outs);
    let into = blocks(&Buffer::new(recvbuf, recvcount, recvtype)?, ins);
    exchange(how, &comm, &out, &into)
}

pub unsafe fn neighbor_allgatherv(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcounts: Counts,
    displs: Counts,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (ins, outs) = Neighbors::of(&comm)?.degrees();
    let out = repeated(&Buffer::new(sendbuf, sendcount, sendtype)?, outs);
    // SAFETY: the caller's promise.
    let into = unsafe { listed(recvbuf, recvcounts, displs, recvtype, ins)? };
    exchange(how, &comm, &out, &into)
}

pub unsafe fn neighbor_alltoall(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (ins, outs) = Neighbors::of(&comm)?.degrees();
    let out = blocks(&Buffer::new(sendbuf, sendcount, sendtype)?, outs);
    let into = blocks(&Buffer::new(recvbuf, recvcount, recvtype)?, ins);
    exchange(how, &comm, &out, &into)
}

pub unsafe fn neighbor_alltoallv(
    how: How,
    sendbuf: *const c_void,
    sendcounts: Counts,
    sdispls: Counts,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcounts: Counts,
    rdispls: Counts,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (ins, outs) = Neighbors::of(&comm)?.degrees();
    // SAFETY: the caller's promise.
    let (out, into) = unsafe {
        (
            listed(sendbuf, sendcounts, sdispls, sendtype, outs)?,
            listed(recvbuf, recvcounts, rdispls, recvtype, ins)?,
        )
    };
    exchange(how, &comm, &out, &into)
}

pub unsafe fn neighbor_alltoallw(
    how: How,
    sendbuf: *const c_void,
    sendcounts: Counts,
    sdispls: *const i64,
    sendtypes: *const c_int,
    recvbuf: *mut c_void,
    recvcounts: Counts,
    rdispls: *const i64,
    recvtypes: *const c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (ins, outs) = Neighbors::of(&comm)?.degrees();
    // SAFETY: the caller's promise.
    let (out, into) = unsafe {
        let out = super::transfers::various(sendbuf, sendcounts, Counts::Longs(sdispls), sendtypes, outs)?;
        (out, super::transfers::various(recvbuf, recvcounts, Counts::Longs(rdispls), recvtypes, ins)?)
    };
    exchange(how, &comm, &out, &into)
}
