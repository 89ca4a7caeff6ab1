//! The schedules of collectives that reduce.
//!
//! All of them combine the ranks' values in one order, whatever their length: first in pairs of neighbours until a power of two is left,
//! then neighbours again, and so on. A result thus does not depend on the length, and operators need not commute.

use std::ops::Range;

use kolo::Collective;

use super::algorithms::{FEW, exchange, give_to_all, scatter};
use super::buffers::{Buffer, Scratch};
use super::schedule::{Memory, Schedule};
use crate::op::Reducer;

/// The number of bytes from which on each rank reduces a part of the vector.
const LONG: usize = 64 << 10;

/// Divides elements evenly among ranks.
fn even_parts(count: usize, ranks: u32) -> impl Iterator<Item = Range<usize>> {
    let ranks = ranks as usize;
    let start = move |rank: usize| count / ranks * rank + rank.min(count % ranks);
    (0..ranks).map(move |rank| start(rank)..start(rank + 1))
}

/// The power of two that a reduction works on: a place stands for one rank, or for two neighbours.
#[derive(Clone, Copy)]
struct Places {
    count: u32,
    /// The first places, which stand for two ranks each.
    pairs: u32,
}

impl Places {
    fn of(ranks: u32) -> Self {
        let count = 1 << ranks.ilog2();
        Self { count, pairs: ranks - count }
    }

    /// Returns the rank that works for a place: the first of two.
    fn rank(self, place: u32) -> u32 {
        place + place.min(self.pairs)
    }

    /// Returns the place for which a rank works. `None` for the second of two ranks.
    fn of_rank(self, rank: u32) -> Option<u32> {
        match rank < 2 * self.pairs {
            true => rank.is_multiple_of(2).then_some(rank / 2),
            false => Some(rank - self.pairs),
        }
    }
}

/// Combines two values. The result is in the memory of the later ranks' value.
fn combine(s: &mut Schedule, op: &Reducer, earlier: &Scratch, later: &Scratch) {
    let (op, earlier, later) = (op.clone(), earlier.clone(), later.clone());
    // MPI's operators take the earlier ranks' value first and write the result over the second argument, the later ranks' value.
    let calls = op.is_user();
    let apply = move || op.apply(earlier.address(), later.address(), earlier.count, &earlier.of);
    if calls { s.call(apply) } else { s.run(apply) }
}

/// Receives the value of later ranks, and combines it with this one.
fn add(s: &mut Schedule, op: &Reducer, sum: &Scratch, from: u32) -> Scratch {
    let more = sum.alike(s);
    s.recv(from, more.memory);
    s.fence();
    combine(s, op, sum, &more);
    more
}

/// Combines the values of two ranks that share a place on the first of them. Returns the place of this rank, unless it is the second.
fn pair_up(s: &mut Schedule, op: &Reducer, places: Places, own: Scratch) -> (Option<u32>, Scratch) {
    let rank = s.rank();
    let place = places.of_rank(rank);
    match place {
        None => {
            s.send(rank - 1, own.memory);
            s.fence();
            (None, own)
        }
        Some(at) if at < places.pairs => (place, add(s, op, &own, rank + 1)),
        Some(_) => (place, own),
    }
}

/// Reduces to rank 0 along a binomial tree. On rank 0, the returned memory has the result.
pub fn reduce_to_first(s: &mut Schedule, op: &Reducer, own: Scratch) -> Scratch {
    let places = Places::of(s.size());
    let (place, mut sum) = pair_up(s, op, places, own);
    let Some(place) = place else { return sum };
    let mut step = 1;
    while step < places.count {
        if place & step != 0 {
            s.send(places.rank(place - step), sum.memory);
            s.fence();
            break;
        }
        sum = add(s, op, &sum, places.rank(place + step));
        step *= 2;
    }
    sum
}

/// Whether all ranks are to reduce a part each.
fn is_long(s: &Schedule, own: &Scratch) -> bool {
    s.size() > 2 && own.memory.len >= LONG && own.is_divisible()
}

/// Exchanges parts of the ranks' values: each rank gets all values of its own part, and combines them. Returns the result.
fn reduce_part(s: &mut Schedule, op: &Reducer, own: &Scratch, parts: &[Range<usize>]) -> Scratch {
    let (rank, size) = (s.rank(), s.size());
    let mine = &parts[rank as usize];
    let values: Vec<Scratch> = (0..size)
        .map(|from| match from == rank {
            true => own.piece(mine),
            false => Scratch::new(s, &own.of, mine.len()),
        })
        .collect();
    exchange(s, |to| own.piece(&parts[to as usize]).memory, |from| values[from as usize].memory);
    let places = Places::of(size);
    let mut sum = |both: &[Scratch]| {
        combine(s, op, &both[0], &both[1]);
        both[1].clone()
    };
    let (pairs, others) = values.split_at(2 * places.pairs as usize);
    let mut values: Vec<Scratch> = pairs.chunks(2).map(&mut sum).chain(others.to_vec()).collect();
    while values.len() > 1 {
        values = values.chunks(2).map(&mut sum).collect();
    }
    values.swap_remove(0)
}

/// Reduces to a root. Of long values, each rank reduces a part and sends it to the root.
pub fn reduce(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer, root: u32) {
    let rank = s.rank();
    if is_long(s, &own) {
        let parts: Vec<_> = even_parts(own.count, s.size()).collect();
        let part = reduce_part(s, op, &own, &parts);
        if rank != root {
            s.send(root, part.memory);
            return s.fence();
        }
        s.copy(part.memory, own.piece(&parts[rank as usize]).memory);
        for from in (0..s.size()).filter(|from| *from != rank) {
            s.recv(from, own.piece(&parts[from as usize]).memory);
        }
        s.fence();
        return own.store(s, into);
    }
    let sum = reduce_to_first(s, op, own);
    if root == 0 {
        if rank == 0 {
            sum.store(s, into);
        }
    } else if rank == 0 {
        s.send(root, sum.memory);
        s.fence();
    } else if rank == root {
        let result = sum.alike(s);
        s.recv(0, result.memory);
        s.fence();
        result.store(s, into);
    }
}

/// Reduces to all ranks: short values by recursive doubling; of long ones, each rank reduces a part and gives it to all.
pub fn all_reduce(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer) {
    if is_long(s, &own) {
        let parts: Vec<_> = even_parts(own.count, s.size()).collect();
        let part = reduce_part(s, op, &own, &parts);
        let places: Vec<Memory> = parts.iter().map(|part| own.piece(part).memory).collect();
        s.copy(part.memory, places[s.rank() as usize]);
        give_to_all(s, &places);
        return own.store(s, into);
    }
    let (rank, places) = (s.rank(), Places::of(s.size()));
    let (place, sum) = pair_up(s, op, places, own);
    let sum = match place {
        Some(place) => {
            let sum = double(s, op, places, place, sum);
            if place < places.pairs {
                s.send(rank + 1, sum.memory);
                s.fence();
            }
            sum
        }
        None => {
            s.recv(rank - 1, sum.memory);
            s.fence();
            sum
        }
    };
    sum.store(s, into);
}

/// Exchanges values with the place at twice the distance in every round, and combines them.
fn double(s: &mut Schedule, op: &Reducer, places: Places, place: u32, mut sum: Scratch) -> Scratch {
    let mut distance = 1;
    while distance < places.count {
        let (other, more) = (places.rank(place ^ distance), sum.alike(s));
        s.recv(other, more.memory);
        s.send(other, sum.memory);
        s.fence();
        if place & distance == 0 {
            combine(s, op, &sum, &more);
            sum = more;
        } else {
            combine(s, op, &more, &sum);
        }
        distance *= 2;
    }
    sum
}

/// Reduces, and gives each rank its block of the result. If the blocks are long or the ranks few, each rank reduces its own.
pub fn reduce_scatter(s: &mut Schedule, op: &Reducer, own: Scratch, counts: &[usize], into: &Buffer) {
    if s.size() > 1 && own.is_divisible() && (s.size() <= FEW || own.memory.len >= LONG) {
        let parts: Vec<_> = block_ranges(counts).collect();
        return reduce_part(s, op, &own, &parts).store(s, into);
    }
    let sum = reduce_to_first(s, op, own);
    scatter_elements(s, &sum, counts, into);
}

/// Returns the elements of consecutive blocks.
fn block_ranges(counts: &[usize]) -> impl Iterator<Item = Range<usize>> {
    counts.iter().scan(0, |next, count| {
        *next += count;
        Some(*next - count..*next)
    })
}

/// Gives each rank its block of rank 0's elements.
pub fn scatter_elements(s: &mut Schedule, sum: &Scratch, counts: &[usize], into: &Buffer) {
    let parts: Vec<Memory> = block_ranges(counts).map(|block| sum.piece(&block).memory).collect();
    let result = Scratch::new(s, &sum.of, counts[s.rank() as usize]);
    scatter(s, &parts, result.memory, 0);
    result.store(s, into);
}

/// Scans along the chain of ranks: each receives the result of the ranks before it, and sends its own to the next.
pub fn scan(s: &mut Schedule, op: &Reducer, own: Scratch, into: &Buffer, scan: Collective) {
    let is_exclusive = scan == Collective::ExScan;
    let (rank, size) = (s.rank(), s.size());
    let mut sum = own.clone();
    if rank > 0 {
        let before = own.alike(s);
        s.recv(rank - 1, before.memory);
        s.fence();
        if is_exclusive {
            before.store(s, into);
        }
        combine(s, op, &before, &own);
        sum = own;
    }
    if rank + 1 < size {
        s.send(rank + 1, sum.memory);
        s.fence();
    }
    if !is_exclusive {
        sum.store(s, into);
    }
}
