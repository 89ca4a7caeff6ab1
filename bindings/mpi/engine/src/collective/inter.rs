//! Collectives of intercommunicators: each group gets the data of the other. They are schedules over both groups.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use super::buffers::{Buffer, Scratch};
use super::schedule::{Memory, Schedule};
use super::transfers::blocks;
use super::{How, algorithms, go, is_in_place, reducing};
use crate::comm::{Comm, Inter};
use crate::constants::{PROC_NULL, ROOT};
use crate::error::{Class, Outcome, fail};
use crate::op::{self, Reducer};

/// A rank's role in a collective that has a root.
enum Role {
    /// The root.
    Root,
    /// Another rank of the root's group, which has nothing to do.
    Beside,
    /// A rank of the other group, with the root's rank in the union of both groups.
    Across(u32),
}

fn role(comm: &Comm, inter: &Inter, root: c_int) -> Outcome<Role> {
    match u32::try_from(root) {
        Ok(root) if (root as usize) < comm.peers.len() => Ok(Role::Across(inter.remote + root)),
        _ if root == ROOT => Ok(Role::Root),
        _ if root == PROC_NULL => Ok(Role::Beside),
        _ => fail(
            Class::Root,
            format!(
                "root {root} is neither a rank of the remote group of {}, MPI_ROOT nor MPI_PROC_NULL",
                comm.peers.len()
            ),
        ),
    }
}

/// Fails a call with `MPI_IN_PLACE`.
pub(super) fn in_place<T>() -> Outcome<T> {
    fail(Class::Buffer, "MPI_IN_PLACE has no meaning for intercommunicators")
}

/// Makes a buffer of the arguments of a call.
pub(super) fn buffer(at: *const c_void, n: i64, of: c_int) -> Outcome<Buffer> {
    if is_in_place(at) { in_place() } else { Buffer::new(at, n, of) }
}

/// Returns blocks of equal length, one per rank of the remote group.
pub(super) fn even(at: *const c_void, n: i64, of: c_int, comm: &Comm) -> Outcome<Vec<Buffer>> {
    let first = buffer(at, n, of)?;
    Ok(blocks(&first, first.count, comm.peers.len() as u32))
}

/// Adds the receives of a block from each rank of the remote group.
fn receive_each(s: &mut Schedule, inter: &Inter, into: &[Buffer]) -> Vec<Memory> {
    let memories: Vec<Memory> = into.iter().map(|part| part.sink(s)).collect();
    (inter.remote..).zip(&memories).for_each(|(rank, memory)| s.recv(rank, *memory));
    memories
}

/// Adds steps among the ranks of the local group.
fn locally<T>(s: &mut Schedule, comm: &Comm, inter: &Inter, add: impl FnOnce(&mut Schedule) -> T) -> T {
    s.among(inter.local, comm.size(), add)
}

pub(super) fn broadcast(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    data: impl FnOnce() -> Outcome<Buffer>,
    from: c_int,
) -> Outcome {
    let role = role(comm, inter, from)?;
    let buffer = if matches!(role, Role::Beside) { Buffer::none() } else { data()? };
    go(how, comm, |s| {
        match role {
            Role::Beside => {}
            Role::Root => {
                let data = buffer.source(s);
                s.send(inter.remote, data);
                s.fence();
            }
            Role::Across(from) => {
                let data = buffer.sink(s);
                if comm.rank == 0 {
                    s.recv(from, data);
                    s.fence();
                }
                locally(s, comm, inter, |s| algorithms::broadcast(s, data, 0));
                buffer.arrived(s, data);
            }
        }
        Ok(())
    })
}

pub(super) fn gather(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    own: impl FnOnce() -> Outcome<Buffer>,
    parts: impl FnOnce() -> Outcome<Vec<Buffer>>,
    to: c_int,
) -> Outcome {
    match role(comm, inter, to)? {
        Role::Beside => go(how, comm, |_| Ok(())),
        Role::Root => {
            let parts = parts()?;
            go(how, comm, |s| {
                let memories = receive_each(s, inter, &parts);
                s.fence();
                parts.iter().zip(memories).for_each(|(part, memory)| part.arrived(s, memory));
                Ok(())
            })
        }
        Role::Across(to) => {
            let own = own()?;
            go(how, comm, |s| {
                let data = own.source(s);
                s.send(to, data);
                s.fence();
                Ok(())
            })
        }
    }
}

pub(super) fn scatter(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    parts: impl FnOnce() -> Outcome<Vec<Buffer>>,
    own: impl FnOnce() -> Outcome<Buffer>,
    from: c_int,
) -> Outcome {
    match role(comm, inter, from)? {
        Role::Beside => go(how, comm, |_| Ok(())),
        Role::Root => {
            let parts = parts()?;
            go(how, comm, |s| {
                let data: Vec<Memory> = parts.iter().map(|part| part.source(s)).collect();
                (inter.remote..).zip(data).for_each(|(rank, data)| s.send(rank, data));
                s.fence();
                Ok(())
            })
        }
        Role::Across(from) => {
            let own = own()?;
            go(how, comm, |s| {
                let memory = own.sink(s);
                s.recv(from, memory);
                s.fence();
                own.arrived(s, memory);
                Ok(())
            })
        }
    }
}

/// Sends a part to each rank of the remote group, and receives one from each.
pub(super) fn all_to_all(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    out: &[Buffer],
    into: &[Buffer],
) -> Outcome {
    go(how, comm, |s| {
        let data: Vec<Memory> = out.iter().map(|part| part.source(s)).collect();
        trade(s, inter, &data, into);
        Ok(())
    })
}

/// Sends the same part to each rank of the remote group, and receives one from each.
pub(super) fn all_gather(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    own: &Buffer,
    into: &[Buffer],
) -> Outcome {
    go(how, comm, |s| {
        let data = own.source(s);
        trade(s, inter, &vec![data; into.len()], into);
        Ok(())
    })
}

fn trade(s: &mut Schedule, inter: &Inter, data: &[Memory], into: &[Buffer]) {
    let memories = receive_each(s, inter, into);
    (inter.remote..).zip(data).for_each(|(rank, data)| s.send(rank, *data));
    s.fence();
    into.iter().zip(memories).for_each(|(part, memory)| part.arrived(s, memory));
}

/// Reduces in each group, and sends each group's result to the first rank of the other.
fn cross(s: &mut Schedule, comm: &Comm, inter: &Inter, op: &Reducer, own: Scratch) -> Scratch {
    let other = own.alike(s);
    let sum = locally(s, comm, inter, |s| reducing::reduce_to_first(s, op, own));
    if comm.rank == 0 {
        s.recv(inter.remote, other.memory);
        s.send(inter.remote, sum.memory);
        s.fence();
    }
    other
}

pub(super) fn all_reduce(
    s: &mut Schedule,
    comm: &Comm,
    inter: &Inter,
    op: &Reducer,
    own: Scratch,
    into: &Buffer,
) {
    let other = cross(s, comm, inter, op, own);
    locally(s, comm, inter, |s| algorithms::broadcast(s, other.memory, 0));
    other.store(s, into);
}

pub(super) fn reduce_scatter(
    s: &mut Schedule,
    comm: &Comm,
    inter: &Inter,
    op: &Reducer,
    own: Scratch,
    (counts, into): (&[usize], &Buffer),
) {
    let other = cross(s, comm, inter, op, own);
    locally(s, comm, inter, |s| reducing::scatter_elements(s, &other, counts, into));
}

pub(super) fn reduce(
    how: How,
    comm: &Arc<Comm>,
    inter: &Inter,
    own: impl FnOnce() -> Outcome<Buffer>,
    into: impl FnOnce() -> Outcome<Buffer>,
    (op, of): (c_int, c_int),
    to: c_int,
) -> Outcome {
    match role(comm, inter, to)? {
        Role::Beside => go(how, comm, |_| Ok(())),
        Role::Root => {
            let into = into()?;
            op::reducing(op, of, &into.of)?;
            go(how, comm, |s| {
                let sum = Scratch::new(s, &into.of, into.count);
                s.recv(inter.remote, sum.memory);
                s.fence();
                sum.store(s, &into);
                Ok(())
            })
        }
        Role::Across(to) => {
            let own = own()?;
            let op = op::reducing(op, of, &own.of)?;
            go(how, comm, |s| {
                let own = Scratch::load(s, &own);
                let sum = locally(s, comm, inter, |s| reducing::reduce_to_first(s, &op, own));
                if comm.rank == 0 {
                    s.send(to, sum.memory);
                    s.fence();
                }
                Ok(())
            })
        }
    }
}
