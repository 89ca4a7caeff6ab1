//! Collectives that move data.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use kolo::Collective;

use super::buffers::{Buffer, aliased, apart, one_run};
use super::packed::Packed;
use super::schedule::{Memory, Schedule};
use super::{How, algorithms, fast, go, inter, is_in_place, root};
use crate::args::{Counts, slice};
use crate::comm::{self, Comm};
use crate::error::{Class, Outcome, fail};
use crate::staging::Staging;

pub unsafe fn barrier(how: How, comm: c_int) -> Outcome {
    if let Some(comm) = fast::members(how, comm) {
        return fast::barrier(&comm);
    }
    let comm = comm::lookup(comm)?;
    go(how, &comm, |s| {
        algorithms::barrier(s);
        Ok(())
    })
}

pub unsafe fn bcast(how: How, buf: *mut c_void, n: i64, of: c_int, from: c_int, comm: c_int) -> Outcome {
    if let Some(comm) = fast::members(how, comm)
        && let Some(data) = fast::run_of(buf, n, of)
    {
        return fast::transfer(&comm, Collective::Broadcast, data, data, data.len, root(&comm, from)?);
    }
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        return inter::broadcast(how, &comm, of_both, || Buffer::new(buf, n, of), from);
    }
    let (buffer, from) = (Buffer::new(buf, n, of)?, root(&comm, from)?);
    buffer.check()?;
    if how == How::Blocking {
        if comm.size() == 1 {
            return Ok(());
        }
        let mut packed = Packed::of(&buffer, comm.rank == from);
        let data = packed.memory();
        fast::transfer(&comm, Collective::Broadcast, data, data, data.len, from)?;
        // The root only reads its buffer, which may lie in memory that nobody may write.
        if comm.rank != from {
            packed.unpack(&buffer);
        }
        return Ok(());
    }
    go(how, &comm, |s| {
        let data = if comm.rank == from { buffer.source(s) } else { buffer.sink(s) };
        algorithms::broadcast(s, data, from);
        if comm.rank != from {
            buffer.arrived(s, data);
        }
        Ok(())
    })
}

/// Divides a buffer into blocks, one per rank.
pub(super) fn blocks(buffer: &Buffer, count: usize, ranks: u32) -> Vec<Buffer> {
    let step = count as i64 * buffer.of.extent;
    (0..i64::from(ranks)).map(|rank| buffer.moved(rank * step).of_count(count)).collect()
}

/// Makes blocks at displacements given in elements.
pub(super) unsafe fn listed(
    at: *const c_void,
    counts: Counts,
    places: Counts,
    of: c_int,
    ranks: usize,
) -> Outcome<Vec<Buffer>> {
    // SAFETY: the caller's promise.
    let (counts, places) = unsafe { (counts.list(ranks)?, places.list(ranks)?) };
    let has_data = counts.iter().any(|count| *count > 0);
    let one = Buffer::new(at, has_data.into(), of)?;
    counts
        .iter()
        .zip(places)
        .map(|(count, place)| Ok(one.moved(place * one.of.extent).of_count(crate::args::count(*count)?)))
        .collect()
}

fn sources(s: &mut Schedule, blocks: &[Buffer]) -> Vec<Memory> {
    blocks.iter().map(|block| block.source(s)).collect()
}

/// Copies the blocks, since received data will overwrite them.
fn copies(s: &mut Schedule, blocks: &[Buffer]) -> Vec<Memory> {
    blocks
        .iter()
        .map(|block| {
            let (copy, block) = (s.stage(block.bytes()), block.clone());
            s.run(move || {
                block.pack_into(copy);
                Ok(())
            });
            copy
        })
        .collect()
}

fn sinks(s: &mut Schedule, blocks: &[Buffer]) -> Vec<Memory> {
    blocks.iter().map(|block| block.sink(s)).collect()
}

fn arrived(s: &mut Schedule, blocks: &[Buffer], memories: &[Memory]) {
    blocks.iter().zip(memories).for_each(|(block, memory)| block.arrived(s, *memory));
}

/// Checks that a rank sends as many bytes to itself as it receives from itself.
fn same_bytes(out: Option<&Buffer>, into: Option<&Buffer>) -> Outcome {
    match (out.map(Buffer::bytes), into.map(Buffer::bytes)) {
        (Some(out), Some(into)) if out != into => {
            fail(Class::Count, format!("a rank sends {out} bytes to itself but receives {into}"))
        }
        _ => Ok(()),
    }
}

/// Gathers at a root. Only the root has `parts`. `own` is `None` if the root's data is already in place.
fn gather_to(how: How, comm: &Arc<Comm>, own: Option<&Buffer>, parts: &[Buffer], to: u32) -> Outcome {
    go(how, comm, |s| {
        same_bytes(own, parts.get(to as usize))?;
        let into = sinks(s, parts);
        let data = match own {
            Some(own) => own.source(s),
            None => into[to as usize],
        };
        algorithms::gather(s, data, &into, to);
        for (rank, (part, memory)) in parts.iter().zip(&into).enumerate() {
            // The root's own block may be in place already, whatever its layout.
            if own.is_some() || rank as u32 != to {
                part.arrived(s, *memory);
            }
        }
        Ok(())
    })
}

pub unsafe fn gather(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    to: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let own = || inter::buffer(sendbuf, sendcount, sendtype);
        let parts = || inter::even(recvbuf, recvcount, recvtype, &comm);
        return inter::gather(how, &comm, of_both, own, parts, to);
    }
    let to = root(&comm, to)?;
    let is_root = comm.rank == to;
    let recv = if is_root { Buffer::new(recvbuf, recvcount, recvtype)? } else { Buffer::none() };
    let in_place = is_in_place(sendbuf) && is_root;
    let own = if in_place { None } else { Some(Buffer::new(sendbuf, sendcount, sendtype)?) };
    let parts = if is_root { blocks(&recv, recv.count, comm.size()) } else { Vec::new() };
    apart(&own, &parts)?;
    let bytes = own.as_ref().map_or(recv.bytes(), Buffer::bytes);
    if how != How::Blocking || comm.size() == 1 {
        return gather_to(how, &comm, own.as_ref(), &parts, to);
    }
    same_bytes(own.as_ref(), is_root.then_some(&recv))?;
    let all = recv.of_count(recv.count * comm.size() as usize);
    let mut output = Packed::of(&all, false);
    let place = if is_root { output.memory() } else { fast::NOTHING };
    let mut input = own.as_ref().map(|own| Packed::of(own, true));
    let data = match &mut input {
        Some(input) => input.memory(),
        None => {
            let own = place.part(to as usize * bytes, bytes);
            if output.flat.is_none() {
                parts[to as usize].pack_into(own);
            }
            own
        }
    };
    fast::transfer(&comm, Collective::Gather, data, place, bytes, to)?;
    if is_root {
        output.unpack(&all);
    }
    Ok(())
}

pub unsafe fn gatherv(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcounts: Counts,
    displs: Counts,
    recvtype: c_int,
    to: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let own = || inter::buffer(sendbuf, sendcount, sendtype);
        // SAFETY: the caller's promise.
        let parts = || unsafe { listed(recvbuf, recvcounts, displs, recvtype, comm.peers.len()) };
        return inter::gather(how, &comm, of_both, own, parts, to);
    }
    let to = root(&comm, to)?;
    let is_root = comm.rank == to;
    let in_place = is_in_place(sendbuf) && is_root;
    let own = if in_place { None } else { Some(Buffer::new(sendbuf, sendcount, sendtype)?) };
    let parts = match is_root {
        // SAFETY: the caller's promise.
        true => unsafe { listed(recvbuf, recvcounts, displs, recvtype, comm.size() as usize)? },
        false => Vec::new(),
    };
    apart(&own, &parts)?;
    gather_to(how, &comm, own.as_ref(), &parts, to)
}

fn scatter_from(how: How, comm: &Arc<Comm>, parts: &[Buffer], own: Option<&Buffer>, from: u32) -> Outcome {
    go(how, comm, |s| {
        same_bytes(parts.get(from as usize), own)?;
        let out = sources(s, parts);
        let into = match own {
            Some(own) => own.sink(s),
            None => out[from as usize],
        };
        algorithms::scatter(s, &out, into, from);
        if let Some(own) = own {
            own.arrived(s, into);
        }
        Ok(())
    })
}

pub unsafe fn scatter(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    from: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let parts = || inter::even(sendbuf, sendcount, sendtype, &comm);
        let own = || inter::buffer(recvbuf, recvcount, recvtype);
        return inter::scatter(how, &comm, of_both, parts, own, from);
    }
    let from = root(&comm, from)?;
    let is_root = comm.rank == from;
    let send = if is_root { Buffer::new(sendbuf, sendcount, sendtype)? } else { Buffer::none() };
    let in_place = is_in_place(recvbuf) && is_root;
    let own = if in_place { None } else { Some(Buffer::new(recvbuf, recvcount, recvtype)?) };
    let parts = if is_root { blocks(&send, send.count, comm.size()) } else { Vec::new() };
    apart(&parts, &own)?;
    let bytes = own.as_ref().map_or(send.bytes(), Buffer::bytes);
    if how != How::Blocking || comm.size() == 1 {
        return scatter_from(how, &comm, &parts, own.as_ref(), from);
    }
    same_bytes(is_root.then_some(&send), own.as_ref())?;
    let all = send.of_count(send.count * comm.size() as usize);
    let mut input = Packed::of(&all, true);
    let data = if is_root { input.memory() } else { fast::NOTHING };
    let mut output = own.as_ref().map(|own| Packed::of(own, false));
    let place = match &mut output {
        Some(output) => output.memory(),
        None => data.part(from as usize * bytes, bytes),
    };
    fast::transfer(&comm, Collective::Scatter, data, place, bytes, from)?;
    if let (Some(own), Some(output)) = (&own, &mut output) {
        output.unpack(own);
    }
    Ok(())
}

pub unsafe fn scatterv(
    how: How,
    sendbuf: *const c_void,
    sendcounts: Counts,
    displs: Counts,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    from: c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        // SAFETY: the caller's promise.
        let parts = || unsafe { listed(sendbuf, sendcounts, displs, sendtype, comm.peers.len()) };
        let own = || inter::buffer(recvbuf, recvcount, recvtype);
        return inter::scatter(how, &comm, of_both, parts, own, from);
    }
    let from = root(&comm, from)?;
    let is_root = comm.rank == from;
    let in_place = is_in_place(recvbuf) && is_root;
    let own = if in_place { None } else { Some(Buffer::new(recvbuf, recvcount, recvtype)?) };
    let parts = match is_root {
        // SAFETY: the caller's promise.
        true => unsafe { listed(sendbuf, sendcounts, displs, sendtype, comm.size() as usize)? },
        false => Vec::new(),
    };
    apart(&parts, &own)?;
    scatter_from(how, &comm, &parts, own.as_ref(), from)
}

/// Gives all ranks' blocks to all ranks, in their places in `parts`.
fn gather_all(how: How, comm: &Arc<Comm>, own: Option<&Buffer>, parts: &[Buffer]) -> Outcome {
    let rank = comm.rank as usize;
    go(how, comm, |s| {
        same_bytes(own, parts.get(rank))?;
        let mut into = sinks(s, parts);
        match own {
            Some(own) => {
                let data = own.source(s);
                s.copy(data, into[rank]);
            }
            None => into[rank] = parts[rank].source(s),
        }
        algorithms::all_gather(s, &into);
        arrived(s, parts, &into);
        Ok(())
    })
}

pub unsafe fn allgather(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    if let Some(comm) = fast::members(how, comm)
        && let Some(own) = fast::run_of(sendbuf, sendcount, sendtype)
        && let Some(block) = fast::run_of(recvbuf, recvcount, recvtype)
        && own.len == block.len
    {
        let of_own = block.at.wrapping_add(comm.rank as usize * block.len);
        if own.len > 0 && (own.at == block.at || own.at == of_own) {
            return aliased();
        }
        return fast::transfer(&comm, Collective::AllGather, own, block, block.len, 0);
    }
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let own = inter::buffer(sendbuf, sendcount, sendtype)?;
        let parts = inter::even(recvbuf, recvcount, recvtype, &comm)?;
        return inter::all_gather(how, &comm, of_both, &own, &parts);
    }
    let recv = Buffer::new(recvbuf, recvcount, recvtype)?;
    let own = if is_in_place(sendbuf) { None } else { Some(Buffer::new(sendbuf, sendcount, sendtype)?) };
    let bytes = recv.bytes();
    apart(&own, [&recv, &recv.moved(i64::from(comm.rank) * recv.count as i64 * recv.of.extent)])?;
    if how != How::Blocking || comm.size() == 1 {
        return gather_all(how, &comm, own.as_ref(), &blocks(&recv, recv.count, comm.size()));
    }
    same_bytes(own.as_ref(), Some(&recv))?;
    let all = recv.of_count(recv.count * comm.size() as usize);
    let mut output = Packed::of(&all, own.is_none());
    let place = output.memory();
    let mut input = own.as_ref().map(|own| Packed::of(own, true));
    let data = input.as_mut().map_or_else(|| place.part(comm.rank as usize * bytes, bytes), Packed::memory);
    fast::transfer(&comm, Collective::AllGather, data, place, bytes, 0)?;
    output.unpack(&all);
    Ok(())
}

pub unsafe fn allgatherv(
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
    if let Some(of_both) = &comm.inter {
        let own = inter::buffer(sendbuf, sendcount, sendtype)?;
        // SAFETY: the caller's promise.
        let parts = unsafe { listed(recvbuf, recvcounts, displs, recvtype, comm.peers.len())? };
        return inter::all_gather(how, &comm, of_both, &own, &parts);
    }
    // SAFETY: the caller's promise.
    let parts = unsafe { listed(recvbuf, recvcounts, displs, recvtype, comm.size() as usize)? };
    let own = if is_in_place(sendbuf) { None } else { Some(Buffer::new(sendbuf, sendcount, sendtype)?) };
    apart(&own, &parts)?;
    if how != How::Blocking || comm.size() == 1 {
        return gather_all(how, &comm, own.as_ref(), &parts);
    }
    let rank = comm.rank as usize;
    let bytes: Vec<usize> = parts.iter().map(Buffer::bytes).collect();
    same_bytes(own.as_ref(), parts.get(rank))?;
    let mine = own.as_ref().unwrap_or(&parts[rank]);
    // In place, the rank's own part lies in the output, and Kolo takes buffers that lie apart.
    let mut input = if own.is_some() { Packed::of(mine, true) } else { Packed::copy_of(mine) };
    if let Some(output) = one_run(&parts) {
        return fast::all_gather_v(&comm, input.memory(), output, &bytes);
    }
    let mut together = Staging::new(bytes.iter().sum());
    let output = Memory { at: together.ptr(), len: together.len() };
    fast::all_gather_v(&comm, input.memory(), output, &bytes)?;
    let mut next = 0;
    for (part, len) in parts.iter().zip(bytes) {
        part.unpack_from(output.part(next, len));
        next += len;
    }
    Ok(())
}

/// Sends a block to each rank and receives one from each.
fn exchange(how: How, comm: &Arc<Comm>, out: Option<&[Buffer]>, into: &[Buffer]) -> Outcome {
    apart(out.unwrap_or_default(), into)?;
    let rank = comm.rank as usize;
    go(how, comm, |s| {
        same_bytes(out.and_then(|out| out.get(rank)), into.get(rank))?;
        let data = match out {
            Some(out) => sources(s, out),
            None => copies(s, into),
        };
        let places = sinks(s, into);
        algorithms::all_to_all(s, &data, &places);
        arrived(s, into, &places);
        Ok(())
    })
}

/// As [`exchange`], or with the ranks of the other group.
fn exchange_or_cross(how: How, comm: &Arc<Comm>, out: Option<Vec<Buffer>>, into: &[Buffer]) -> Outcome {
    match &comm.inter {
        Some(of_both) => inter::all_to_all(how, comm, of_both, &out.map_or_else(inter::in_place, Ok)?, into),
        None => exchange(how, comm, out.as_deref(), into),
    }
}

pub unsafe fn alltoall(
    how: How,
    sendbuf: *const c_void,
    sendcount: i64,
    sendtype: c_int,
    recvbuf: *mut c_void,
    recvcount: i64,
    recvtype: c_int,
    comm: c_int,
) -> Outcome {
    if let Some(comm) = fast::members(how, comm)
        && let Some(own) = fast::run_of(sendbuf, sendcount, sendtype)
        && let Some(block) = fast::run_of(recvbuf, recvcount, recvtype)
        && own.len == block.len
    {
        if own.len > 0 && own.at == block.at {
            return aliased();
        }
        return fast::transfer(&comm, Collective::AllToAll, own, block, block.len, 0);
    }
    let comm = comm::lookup(comm)?;
    if let Some(of_both) = &comm.inter {
        let out = inter::even(sendbuf, sendcount, sendtype, &comm)?;
        let into = inter::even(recvbuf, recvcount, recvtype, &comm)?;
        return inter::all_to_all(how, &comm, of_both, &out, &into);
    }
    let ranks = comm.size() as usize;
    let recv = Buffer::new(recvbuf, recvcount, recvtype)?;
    let send = if is_in_place(sendbuf) { None } else { Some(Buffer::new(sendbuf, sendcount, sendtype)?) };
    let bytes = recv.bytes();
    apart(&send, [&recv])?;
    if how != How::Blocking || ranks == 1 {
        let out = send.map(|send| blocks(&send, send.count, comm.size()));
        return exchange(how, &comm, out.as_deref(), &blocks(&recv, recv.count, comm.size()));
    }
    same_bytes(send.as_ref(), Some(&recv))?;
    let all = recv.of_count(recv.count * ranks);
    let mut output = Packed::of(&all, send.is_none());
    let place = output.memory();
    let mut input = send.as_ref().map(|send| Packed::of(&send.of_count(send.count * ranks), true));
    let data = input.as_mut().map_or(place, Packed::memory);
    fast::transfer(&comm, Collective::AllToAll, data, place, bytes, 0)?;
    output.unpack(&all);
    Ok(())
}

pub unsafe fn alltoallv(
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
    let ranks = comm.peers.len();
    // SAFETY: the caller's promise.
    let (out, into) = unsafe {
        let out = match is_in_place(sendbuf) {
            true => None,
            false => Some(listed(sendbuf, sendcounts, sdispls, sendtype, ranks)?),
        };
        (out, listed(recvbuf, recvcounts, rdispls, recvtype, ranks)?)
    };
    exchange_or_cross(how, &comm, out, &into)
}

/// Makes blocks of different types, at displacements in bytes.
pub(super) unsafe fn various(
    at: *const c_void,
    counts: Counts,
    places: Counts,
    types: *const c_int,
    ranks: usize,
) -> Outcome<Vec<Buffer>> {
    // SAFETY: the caller's promise.
    let (counts, places, types) =
        unsafe { (counts.list(ranks)?, places.list(ranks)?, slice(types, ranks as c_int)?) };
    (0..ranks).map(|rank| Ok(Buffer::new(at, counts[rank], types[rank])?.moved(places[rank]))).collect()
}

pub unsafe fn alltoallw(
    how: How,
    sendbuf: *const c_void,
    sendcounts: Counts,
    sdispls: Counts,
    sendtypes: *const c_int,
    recvbuf: *mut c_void,
    recvcounts: Counts,
    rdispls: Counts,
    recvtypes: *const c_int,
    comm: c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let ranks = comm.peers.len();
    // SAFETY: the caller's promise.
    let (out, into) = unsafe {
        let out = match is_in_place(sendbuf) {
            true => None,
            false => Some(various(sendbuf, sendcounts, sdispls, sendtypes, ranks)?),
        };
        (out, various(recvbuf, recvcounts, rdispls, recvtypes, ranks)?)
    };
    exchange_or_cross(how, &comm, out, &into)
}
