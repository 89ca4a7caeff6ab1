//! The schedules of collectives that move data.

use super::schedule::{Memory, Schedule};

/// The most ranks that exchange short parts directly.
pub const FEW: u32 = 16;

/// The longest part that is short, in bytes.
const SHORT: usize = 2 << 10;

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

/// Gives all ranks' parts to all ranks: short parts directly, others around a ring, in which each rank passes on the part that it has
/// just received.
pub fn all_gather(s: &mut Schedule, parts: &[Memory]) {
    let (rank, size) = (s.rank(), s.size());
    if size <= FEW && parts.iter().all(|part| part.len <= SHORT) {
        return give_to_all(s, parts);
    }
    for step in 1..size {
        let (out, into) = ((rank + size + 1 - step) % size, (rank + size - step) % size);
        s.send((rank + 1) % size, parts[out as usize]);
        s.recv((rank + size - 1) % size, parts[into as usize]);
        s.fence();
    }
}

/// Sends this rank's part to every other rank, and receives theirs.
pub fn give_to_all(s: &mut Schedule, parts: &[Memory]) {
    let own = parts[s.rank() as usize];
    exchange(s, |_| own, |from| parts[from as usize]);
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
    let rank = s.rank() as usize;
    exchange(s, |to| out[to as usize], |from| into[from as usize]);
    s.copy(out[rank], into[rank]);
}

/// Exchanges messages with every other rank: `out` is for a rank, `into` for what comes from one.
pub fn exchange(s: &mut Schedule, out: impl Fn(u32) -> Memory, into: impl Fn(u32) -> Memory) {
    let (rank, size) = (s.rank(), s.size());
    for step in 1..size {
        let (to, from) = ((rank + step) % size, (rank + size - step) % size);
        s.recv(from, into(from));
        s.send(to, out(to));
    }
    s.fence();
}
