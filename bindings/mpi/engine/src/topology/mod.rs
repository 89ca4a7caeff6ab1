//! Topologies: Cartesian grids and graphs.

mod dims;
mod dist;

use std::ffi::c_int;
use std::sync::Arc;

pub use dist::*;

use crate::args::{put, slice};
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::error::{Class, Outcome, fail};

/// The topology of a communicator.
#[derive(Clone, Debug)]
pub(crate) enum Topology {
    Cart {
        dims: Vec<c_int>,
        periods: Vec<bool>,
    },
    /// A graph: the neighbours of all ranks in one list, and for each rank the end of its neighbours in it.
    Graph {
        index: Vec<c_int>,
        edges: Vec<c_int>,
    },
    /// A distributed graph: this rank's neighbours.
    Dist {
        sources: Vec<c_int>,
        source_weights: Vec<c_int>,
        targets: Vec<c_int>,
        target_weights: Vec<c_int>,
        weighted: bool,
    },
}

impl Topology {
    fn number(of: Option<&Self>) -> c_int {
        match of {
            None => UNDEFINED,
            Some(Self::Cart { .. }) => CART,
            Some(Self::Graph { .. }) => GRAPH,
            Some(Self::Dist { .. }) => DIST_GRAPH,
        }
    }
}

/// The ranks from which this rank receives, and those to which it sends; `None` beyond the edge of a grid.
#[derive(Debug)]
pub(crate) struct Neighbors {
    sources: Vec<Option<u32>>,
    targets: Vec<Option<u32>>,
    /// In a grid, receives are posted with the directions of each dimension swapped, since a message that one rank sends up comes from
    /// below at the other.
    is_grid: bool,
}

impl Neighbors {
    pub(crate) fn of(comm: &Comm) -> Outcome<Self> {
        let ranks = |list: &[c_int]| list.iter().map(|rank| u32::try_from(*rank).ok()).collect::<Vec<_>>();
        match &comm.topology {
            None => fail(Class::Topology, "the communicator has no topology"),
            Some(Topology::Cart { dims, .. }) => {
                let mut both = Vec::new();
                for dim in 0..dims.len() {
                    let (source, target) = shift(comm, dim, 1)?;
                    both.extend([u32::try_from(source).ok(), u32::try_from(target).ok()]);
                }
                Ok(Self { sources: both.clone(), targets: both, is_grid: true })
            }
            Some(Topology::Graph { .. }) => {
                let both = ranks(&neighbors(comm, comm.rank as c_int)?);
                Ok(Self { sources: both.clone(), targets: both, is_grid: false })
            }
            Some(Topology::Dist { sources, targets, .. }) => {
                Ok(Self { sources: ranks(sources), targets: ranks(targets), is_grid: false })
            }
        }
    }

    pub(crate) fn degrees(&self) -> (usize, usize) {
        (self.sources.len(), self.targets.len())
    }

    pub(crate) fn targets(&self) -> impl Iterator<Item = (usize, u32)> + Clone + '_ {
        self.targets.iter().enumerate().filter_map(|(at, rank)| Some((at, (*rank)?)))
    }

    pub(crate) fn receive_order(&self) -> Vec<(usize, u32)> {
        let exchanged = |at: usize| if self.is_grid { at ^ 1 } else { at };
        (0..self.sources.len()).map(exchanged).filter_map(|at| Some((at, self.sources[at]?))).collect()
    }
}

/// Returns the numbers of in- and out-neighbours, for front ends that convert arrays.
pub fn degrees(comm: c_int) -> (usize, usize) {
    comm::lookup(comm).and_then(|comm| Neighbors::of(&comm)).map_or((0, 0), |neighbors| neighbors.degrees())
}

fn cart(comm: &Comm) -> Outcome<(&[c_int], &[bool])> {
    match &comm.topology {
        Some(Topology::Cart { dims, periods }) => Ok((dims, periods)),
        _ => fail(Class::Topology, "the communicator has no Cartesian topology"),
    }
}

fn coordinates(dims: &[c_int], mut rank: c_int) -> Vec<c_int> {
    let mut coords = vec![0; dims.len()];
    for dim in (0..dims.len()).rev() {
        coords[dim] = rank % dims[dim];
        rank /= dims[dim];
    }
    coords
}

/// Returns the rank at coordinates; `None` beyond the edge.
fn rank_at(dims: &[c_int], periods: &[bool], coords: &[c_int]) -> Option<c_int> {
    let mut rank = 0;
    for ((dim, period), coord) in dims.iter().zip(periods).zip(coords) {
        let coord = if *period { coord.rem_euclid(*dim) } else { *coord };
        if !(0..*dim).contains(&coord) {
            return None;
        }
        rank = rank * dim + coord;
    }
    Some(rank)
}

fn shift(comm: &Comm, dim: usize, by: c_int) -> Outcome<(c_int, c_int)> {
    let (dims, periods) = cart(comm)?;
    let own = coordinates(dims, comm.rank as c_int);
    let at = |by: i64| {
        let (mut coords, all, to) = (own.clone(), i64::from(dims[dim]), i64::from(own[dim]) + by);
        let to = if periods[dim] { to.rem_euclid(all) } else { to };
        // No grid has a place for the largest number.
        coords[dim] = c_int::try_from(to).unwrap_or(c_int::MAX);
        rank_at(dims, periods, &coords).unwrap_or(PROC_NULL)
    };
    Ok((at(-i64::from(by)), at(by.into())))
}

/// Makes a communicator with a topology of the first `ranks` ranks; the topology may not have a place for all.
fn create(comm: &Arc<Comm>, ranks: usize, topology: Topology, new: *mut c_int) -> Outcome {
    let handle = if (comm.rank as usize) < ranks {
        comm.create(comm.members[..ranks].into(), Some(topology))?
    } else {
        comm.skip_creation();
        COMM_NULL
    };
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe { put(new, handle) }
}

pub unsafe fn cart_create(
    comm: c_int,
    n: c_int,
    dims: *const c_int,
    periods: *const c_int,
    _reorder: c_int,
    new: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    // SAFETY: the caller's promise.
    let (dims, periods) = unsafe { (slice(dims, n)?, slice(periods, n)?) };
    if dims.iter().any(|dim| *dim < 1) {
        return fail(Class::Dims, "a dimension is not positive");
    }
    let ranks = dims.iter().try_fold(1_usize, |ranks, dim| ranks.checked_mul(*dim as usize));
    let Some(ranks) = ranks.filter(|ranks| *ranks <= comm.size() as usize) else {
        return fail(
            Class::Dims,
            format!("a grid of {dims:?} has more places than there are ranks: {}", comm.size()),
        );
    };
    let periods = periods.iter().map(|period| *period != 0).collect();
    create(&comm, ranks, Topology::Cart { dims: dims.to_vec(), periods }, new)
}

pub unsafe fn cartdim_get(comm: c_int, n: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(n, cart(&*comm::lookup(comm)?)?.0.len() as c_int) }
}

unsafe fn put_all(values: impl IntoIterator<Item = c_int>, into: *mut c_int, room: c_int) -> Outcome {
    for (at, value) in values.into_iter().take(room.max(0) as usize).enumerate() {
        // SAFETY: the caller's promise: room for `room` values.
        unsafe { put(into.wrapping_add(at), value)? };
    }
    Ok(())
}

pub unsafe fn cart_get(
    comm: c_int,
    room: c_int,
    dims: *mut c_int,
    periods: *mut c_int,
    coords: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (found, periodic) = cart(&comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        put_all(found.iter().copied(), dims, room)?;
        put_all(periodic.iter().map(|period| (*period).into()), periods, room)?;
        put_all(coordinates(found, comm.rank as c_int), coords, room)
    }
}

pub unsafe fn cart_rank(comm: c_int, coords: *const c_int, rank: *mut c_int) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (dims, periods) = cart(&comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        let coords = slice(coords, dims.len() as c_int)?;
        match rank_at(dims, periods, coords) {
            Some(found) => put(rank, found),
            None => fail(Class::Arg, format!("{coords:?} is outside a grid of {dims:?}")),
        }
    }
}

pub unsafe fn cart_coords(comm: c_int, rank: c_int, room: c_int, coords: *mut c_int) -> Outcome {
    let comm = comm::lookup(comm)?;
    let dims = cart(&comm)?.0;
    if !(0..comm.size() as c_int).contains(&rank) {
        return fail(
            Class::Rank,
            format!("rank {rank} is out of range for a communicator of {}", comm.size()),
        );
    }
    // SAFETY: the caller's promise.
    unsafe { put_all(coordinates(dims, rank), coords, room) }
}

pub unsafe fn cart_shift(
    comm: c_int,
    dim: c_int,
    by: c_int,
    source: *mut c_int,
    target: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let dims = cart(&comm)?.0.len();
    let Some(dim) = usize::try_from(dim).ok().filter(|dim| *dim < dims) else {
        return fail(Class::Dims, format!("dimension {dim} is out of range: there are {dims}"));
    };
    let (from, to) = shift(&comm, dim, by)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(source, from)?;
        put(target, to)
    }
}

pub unsafe fn cart_sub(comm: c_int, remain: *const c_int, new: *mut c_int) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (dims, periods) = cart(&comm)?;
    // SAFETY: the caller's promise.
    let remain: Vec<bool> =
        unsafe { slice(remain, dims.len() as c_int)? }.iter().map(|flag| *flag != 0).collect();
    let own = coordinates(dims, comm.rank as c_int);
    let is_mine = |rank: &usize| {
        let coords = coordinates(dims, *rank as c_int);
        (0..dims.len()).all(|dim| remain[dim] || coords[dim] == own[dim])
    };
    let members = (0..comm.size() as usize).filter(is_mine).map(|rank| comm.members[rank]).collect();
    let kept = |dim: &usize| remain[*dim];
    let topology = Topology::Cart {
        dims: (0..dims.len()).filter(kept).map(|dim| dims[dim]).collect(),
        periods: (0..dims.len()).filter(kept).map(|dim| periods[dim]).collect(),
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, comm.create(members, Some(topology))?) }
}

pub unsafe fn cart_map(
    comm: c_int,
    n: c_int,
    dims: *const c_int,
    _periods: *const c_int,
    rank: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    // SAFETY: the caller's promise.
    let dims = unsafe { slice(dims, n)? };
    if dims.iter().any(|dim| *dim < 1) {
        return fail(Class::Dims, "a dimension is not positive");
    }
    let ranks: i64 = dims.iter().map(|dim| i64::from(*dim)).product();
    if ranks > i64::from(comm.size()) {
        return fail(Class::Dims, "the grid has more places than there are ranks");
    }
    let own = i64::from(comm.rank);
    // SAFETY: the caller's promise.
    unsafe { put(rank, if own < ranks { own as c_int } else { UNDEFINED }) }
}

pub unsafe fn dims_create(nodes: c_int, n: c_int, dims: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    let given = unsafe { slice(dims, n)? }.to_vec();
    if nodes < 1 || given.iter().any(|dim| *dim < 0) {
        return fail(Class::Dims, format!("{nodes} nodes cannot be arranged as {given:?}"));
    }
    let free = given.iter().filter(|dim| **dim == 0).count();
    let mut rest = Some(nodes);
    for dim in given.iter().filter(|dim| **dim > 0) {
        rest = rest.filter(|rest| rest % dim == 0).map(|rest| rest / dim);
    }
    let Some(rest) = rest.filter(|rest| free > 0 || *rest == 1) else {
        return fail(Class::Dims, format!("{nodes} nodes cannot be divided as {given:?} requires"));
    };
    if free == 0 {
        return Ok(());
    }
    let mut found = dims::balanced(rest as u64, free).into_iter();
    for (at, dim) in given.iter().enumerate() {
        if *dim == 0 {
            // SAFETY: as above.
            unsafe { put(dims.wrapping_add(at), found.next().unwrap_or(1) as c_int)? };
        }
    }
    Ok(())
}

unsafe fn graph(
    comm: &Comm,
    n: c_int,
    index: *const c_int,
    edges: *const c_int,
) -> Outcome<(Vec<c_int>, Vec<c_int>)> {
    if n < 0 || n > comm.size() as c_int {
        return fail(Class::Arg, format!("{n} nodes, and {} ranks", comm.size()));
    }
    // SAFETY: the caller's promise.
    let (index, edges) = unsafe {
        let index = slice(index, n)?;
        (index, slice(edges, index.last().copied().unwrap_or(0))?)
    };
    if index.windows(2).any(|pair| pair[0] > pair[1]) || index.first().is_some_and(|first| *first < 0) {
        return fail(Class::Arg, "the index of a graph decreases");
    }
    if edges.iter().any(|edge| !(0..n).contains(edge)) {
        return fail(Class::Arg, "an edge leads to a node that does not exist");
    }
    Ok((index.to_vec(), edges.to_vec()))
}

pub unsafe fn graph_create(
    comm: c_int,
    n: c_int,
    index: *const c_int,
    edges: *const c_int,
    _reorder: c_int,
    new: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    // SAFETY: the caller's promise.
    let (index, edges) = unsafe { graph(&comm, n, index, edges)? };
    if n == 0 {
        comm.skip_creation();
        // SAFETY: the caller's promise.
        return unsafe { put(new, COMM_NULL) };
    }
    create(&comm, n as usize, Topology::Graph { index, edges }, new)
}

fn graph_of(comm: &Comm) -> Outcome<(&[c_int], &[c_int])> {
    match &comm.topology {
        Some(Topology::Graph { index, edges }) => Ok((index, edges)),
        _ => fail(Class::Topology, "the communicator has no graph topology"),
    }
}

fn neighbors(comm: &Comm, rank: c_int) -> Outcome<Vec<c_int>> {
    let (index, edges) = graph_of(comm)?;
    let Some(at) = usize::try_from(rank).ok().filter(|at| *at < index.len()) else {
        return fail(Class::Rank, format!("rank {rank} is out of range for a graph of {}", index.len()));
    };
    let start = if at == 0 { 0 } else { index[at - 1] };
    Ok(edges[start as usize..index[at] as usize].to_vec())
}

pub unsafe fn graphdims_get(comm: c_int, nodes: *mut c_int, edges: *mut c_int) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (index, all) = graph_of(&comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        put(nodes, index.len() as c_int)?;
        put(edges, all.len() as c_int)
    }
}

pub unsafe fn graph_get(
    comm: c_int,
    nodes: c_int,
    room: c_int,
    index: *mut c_int,
    edges: *mut c_int,
) -> Outcome {
    let comm = comm::lookup(comm)?;
    let (found, all) = graph_of(&comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        put_all(found.iter().copied(), index, nodes)?;
        put_all(all.iter().copied(), edges, room)
    }
}

pub unsafe fn graph_map(
    comm: c_int,
    n: c_int,
    index: *const c_int,
    edges: *const c_int,
    rank: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    // SAFETY: the caller's promise.
    unsafe {
        graph(&comm, n, index, edges)?;
        let own = comm.rank as c_int;
        put(rank, if own < n { own } else { UNDEFINED })
    }
}

pub unsafe fn graph_neighbors_count(comm: c_int, rank: c_int, count: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(count, neighbors(&*comm::lookup(comm)?, rank)?.len() as c_int) }
}

pub unsafe fn graph_neighbors(comm: c_int, rank: c_int, room: c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put_all(neighbors(&*comm::lookup(comm)?, rank)?, into, room) }
}

pub unsafe fn topo_test(comm: c_int, status: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(status, Topology::number(comm::lookup(comm)?.topology.as_ref())) }
}
