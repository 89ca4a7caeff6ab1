//! The schedules of collectives.

use super::buffers::{Buffer, Scratch};
use super::schedule::{Memory, Schedule};
use crate::op::Reducer;

/// Waits until all ranks have entered: in round k, each rank sends a token to the rank 2^k further on.
pub fn barrier(s: &mut Schedule) {
    let (rank, size) = (s.rank(), s.size());
    let (token, sink) = (s.keep(1), s.keep(1));
    let mut step = 1;
    while step < size {
        s.send((rank + step) % size, token);
        s.recv((rank + size - step) % size, sink);
        s.fence();
        step *= 2;
    }
}

/// Broadcasts down a binomial tree.
pub fn broadcast(s: &mut Schedule, data: Memory, root: u32) {
    let size = s.size();
    let own = (s.rank() + size - root) % size;
    let mut step = 1;
    while step < size {
        if own & step != 0 {
            s.recv((own - step + root) % size, data);
            s.fence();
            break;
        }
        step *= 2;
    }
    step /= 2;
    while step > 0 {
        if own + step < size {
            s.send((own + step + root) % size, data);
        }
        step /= 2;
    }
    s.fence();
}

/// Sends each rank's part to the root. Only the root has `parts`.
pub fn gather(s: &mut Schedule, own: Memory, parts: &[Memory], root: u32) {
    if s.rank() != root {
        s.send(root, own);
        return s.fence();
    }
    for rank in 0..s.size() {
        if rank == root {
            s.copy(own, parts[rank as usize]);
        } else {
            s.recv(rank, parts[rank as usize]);
        }
    }
    s.fence();
}

/// Sends a part of the root's to each rank. Only the root has `parts`.
pub fn scatter(s: &mut Schedule, parts: &[Memory], own: Memory, root: u32) {
    if s.rank() != root {
        s.recv(root, own);
        return s.fence();
    }
    s.copy(parts[root as usize], own);
    for rank in (0..s.size()).filter(|rank| *rank != root) {
        s.send(rank, parts[rank as usize]);
    }
    s.fence();
}

/// Gives all ranks' parts to all ranks, around a ring: each rank passes on the part that it has just received.
pub fn all_gather(s: &mut Schedule, parts: &[Memory]) {
    let (rank, size) = (s.rank(), s.size());
    for step in 1..size {
        let (out, into) = ((rank + size + 1 - step) % size, (rank + size - step) % size);
        s.send((rank + 1) % size, parts[out as usize]);
        s.recv((rank + size - 1) % size, parts[into as usize]);
        s.fence();
    }
}

/// Gives all ranks' blocks of `len` bytes to all ranks, of which each has twice as many after every round. The memory begins with the
/// rank's own block; behind it come those of the ranks after it, in their order and round the end.
pub fn all_gather_blocks(s: &mut Schedule, all: Memory, len: usize) {
    let (rank, size) = (s.rank(), s.size());
    let mut there = 1;
    while there < size {
        let more = there.min(size - there);
        s.send((rank + size - there) % size, all.part(0, more as usize * len));
        s.recv((rank + there) % size, all.part(there as usize * len, more as usize * len));
        s.fence();
        there += more;
    }
}

/// Sends each rank its part directly.
pub fn all_to_all(s: &mut Schedule, out: &[Memory], into: &[Memory]) {
    let (rank, size) = (s.rank(), s.size());
    for step in 1..size {
        s.recv((rank + size - step) % size, into[((rank + size - step) % size) as usize]);
        s.send((rank + step) % size, out[((rank + step) % size) as usize]);
    }
    s.copy(out[rank as usize], into[rank as usize]);
    s.fence();
}

fn combine(s: &mut Schedule, op: &Reducer, earlier: &Scratch, later: &Scratch) {
    let (op, earlier, later) = (op.clone(), earlier.clone(), later.clone());
    // MPI's operators take the earlier ranks' value first and write the result over the second argument, the later ranks' value.
    let calls = op.is_user();
    let apply = move || op.apply(earlier.address(), later.address(), earlier.count, &earlier.of);
    if calls { s.call(apply) } else { s.run(apply) }
}

/// Reduces to rank 0 along a binomial tree, in the order of ranks, so that operators need not commute. On rank 0, the returned memory
/// has the result.
pub fn reduce_to_first(s: &mut Schedule, op: &Reducer, own: Scratch) -> Scratch {
    let (rank, size) = (s.rank(), s.size());
    let mut sum = own;
    let mut step = 1;
    while step < size {
        if rank & step != 0 {
            s.send(rank - step, sum.memory);
            s.fence();
            break;
        }
        if rank + step < size {
            let more = sum.alike(s);
            s.recv(rank + step, more.memory);
            s.fence();
            combine(s, op, &sum, &more);
            sum = more;
        }
        step *= 2;
    }
    sum
}

/// Reduces to a root.
pub fn reduce(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer, root: u32) {
    let sum = reduce_to_first(s, op, own);
    if root == 0 {
        if s.rank() == 0 {
            sum.store(s, into);
        }
    } else if s.rank() == 0 {
        s.send(root, sum.memory);
        s.fence();
    } else if s.rank() == root {
        let result = sum.alike(s);
        s.recv(0, result.memory);
        s.fence();
        result.store(s, into);
    }
}

/// Reduces to all ranks.
pub fn all_reduce(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer) {
    let sum = reduce_to_first(s, op, own);
    broadcast(s, sum.memory, 0);
    sum.store(s, into);
}

/// Reduces, and gives each rank its block of the result.
pub fn reduce_scatter(s: &mut Schedule, op: &Reducer, own: Scratch, counts: &[usize], into: &Buffer) {
    let sum = reduce_to_first(s, op, own);
    scatter_elements(s, &sum, counts, into);
}

/// Gives each rank its block of rank 0's elements.
pub fn scatter_elements(s: &mut Schedule, sum: &Scratch, counts: &[usize], into: &Buffer) {
    let mut next = 0;
    let parts: Vec<Memory> = counts
        .iter()
        .map(|count| {
            next += count;
            sum.elements(next - count, *count)
        })
        .collect();
    let result = Scratch::new(s, &sum.of, counts[s.rank() as usize]);
    scatter(s, &parts, result.memory, 0);
    result.store(s, into);
}

/// Scans along the chain of ranks: each receives the result of the ranks before it, and sends its own to the next.
pub fn scan(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer, exclusive: bool) {
    let (rank, size) = (s.rank(), s.size());
    let mut sum = own.clone();
    if rank > 0 {
        let before = own.alike(s);
        s.recv(rank - 1, before.memory);
        s.fence();
        if exclusive {
            before.store(s, into);
        }
        combine(s, op, &before, &own);
        sum = own;
    }
    if rank + 1 < size {
        s.send(rank + 1, sum.memory);
        s.fence();
    }
    if !exclusive {
        sum.store(s, into);
    }
}
