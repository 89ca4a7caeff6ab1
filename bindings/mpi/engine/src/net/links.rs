//! Connects the ranks for messages. They exchange addresses by collectives of the Kolo communicator that has joined them.

use std::sync::Mutex;
use std::time::Instant;

use kolo::internal::wait::yield_now;
use kolo::{Communicator, TransportKind, Transports};
use kolo_transport::shm::SingleCopy;
use kolo_transport::{Endpoint, Options, Reach, ShmOptions, Unpoisoned};

use super::wire::SHORT_BYTES;
use super::{NET, Net, rest, servant};
use crate::error::{Class, Fail, Outcome, fail};

/// The transports that can probe, in order of preference.
const KINDS: [TransportKind; 2] = [TransportKind::Shm, TransportKind::Tcp];
/// Room for an address; a transport's addresses have at most 1 KiB.
const ADDRESS_BYTES: usize = 1024 + 8;

/// Opens the messages of a process that is alone.
fn open_alone() -> Net {
    Net::new(0, Vec::new(), vec![None])
}

/// Opens the messages of this process. All ranks call it; blocks until all have.
///
/// # Errors
/// If no transport reaches some rank.
pub fn open(world: Option<&Communicator>) -> Outcome {
    let net = match world {
        Some(world) if world.world_size() > 1 => connect(world)?,
        _ => open_alone(),
    };
    let size = net.via.len();
    if NET.set(Mutex::new(net)).is_err() {
        return fail(Class::Other, "MPI was already initialized");
    }
    if size > 1 {
        servant::start();
    }
    Ok(())
}

/// Closes the messages of this process.
pub(crate) fn close() {
    servant::stop();
    let Some(net) = NET.get() else { return };
    loop {
        let mut net = net.lock().unpoisoned();
        if !rest::anybody_sleeps() {
            return net.close();
        }
        drop(net);
        yield_now();
    }
}

fn connect(world: &Communicator) -> Outcome<Net> {
    let (rank, size) = (world.rank(), world.world_size());
    let options = options(world);
    let allowed = |kind: TransportKind| match &world.config().transports {
        Transports::Only(list) => list.contains(&kind),
        _ => true,
    };
    let mut ends: Vec<Option<Box<dyn Endpoint>>> = KINDS
        .into_iter()
        .map(|kind| if allowed(kind) { kind.open(rank, size, &options).ok() } else { None })
        .collect();
    let mut reached = vec![0_u8; size as usize];
    for (at, end) in ends.iter_mut().enumerate() {
        introduce(world, end.as_deref_mut(), 1 << at, &mut reached)?;
    }
    let mut all = vec![0_u8; (size * size) as usize];
    world.all_gather(&reached, &mut all)?;
    let both = |peer: u32| all[(rank * size + peer) as usize] & all[(peer * size + rank) as usize];
    let reaching = |peer: u32| (0..KINDS.len()).find(|kind| both(peer) & 1 << kind != 0);
    let chosen: Vec<Option<usize>> =
        (0..size).map(|peer| if peer == rank { None } else { reaching(peer) }).collect();
    if let Some(peer) = (0..size).find(|peer| *peer != rank && chosen[*peer as usize].is_none()) {
        return fail(
            Class::Other,
            format!(
                "messages: neither shared memory nor TCP reaches rank {peer} of the world; see KOLO_TRANSPORT"
            ),
        );
    }
    let deadline = Instant::now() + world.config().join_timeout;
    for (at, end) in ends.iter_mut().enumerate() {
        // Establishing an endpoint concerns all peers that were introduced, so all of them take part.
        let used = all.iter().any(|bits| bits & 1 << at != 0);
        if let Some(end) = end.as_mut().filter(|_| used) {
            end.establish(&|| false, deadline).map_err(|error| Fail::new(Class::Other, error))?;
        }
    }
    world.barrier()?;
    // An endpoint that serves no peer would only cost polls. The peers make the same choice.
    for (at, end) in ends.iter_mut().enumerate() {
        if !chosen.contains(&Some(at)) {
            *end = None;
        }
    }
    let places: Vec<Option<usize>> =
        (0..ends.len()).map(|at| ends[at].is_some().then(|| ends[..at].iter().flatten().count())).collect();
    let via =
        (0..size).map(|peer| if peer == rank { None } else { places[chosen[peer as usize]?] }).collect();
    Ok(Net::new(rank, ends.into_iter().flatten().collect(), via))
}

/// Introduces the other ranks to an endpoint, and records which of them it reaches.
fn introduce(
    world: &Communicator,
    end: Option<&mut (dyn Endpoint + 'static)>,
    bit: u8,
    reached: &mut [u8],
) -> Outcome {
    let size = world.world_size() as usize;
    let mut own = [0_u8; ADDRESS_BYTES];
    if let Some(end) = &end {
        let address = end.address();
        let length = address.len().min(ADDRESS_BYTES - 8);
        own[..8].copy_from_slice(&(length as u64 + 1).to_le_bytes());
        own[8..8 + length].copy_from_slice(&address[..length]);
    }
    let mut all = vec![0_u8; ADDRESS_BYTES * size];
    world.all_gather(&own, &mut all)?;
    let Some(end) = end else { return Ok(()) };
    for (peer, entry) in all.chunks_exact(ADDRESS_BYTES).enumerate() {
        let length = u64::from_le_bytes([entry[0], entry[1], 0, 0, 0, 0, 0, 0]) as usize;
        let Some(length) = length.checked_sub(1).filter(|_| peer != world.rank() as usize) else { continue };
        let address = entry.get(8..8 + length).unwrap_or_default();
        let reach = end.introduce(peer as u32, address).map_err(|error| Fail::new(Class::Other, error))?;
        if matches!(reach, Reach::Yes { .. }) {
            reached[peer] |= bit;
        }
    }
    Ok(())
}

fn options(world: &Communicator) -> Options {
    let config = world.config();
    let shm = ShmOptions {
        host_key: config.host_id.clone(),
        stores: config.shm_stores,
        single_copy: SingleCopy::allowed(config.shm_single_copy),
        // A rank takes whatever arrives while it waits for a send, so no two sends wait for each other.
        tried_min: SHORT_BYTES + 1,
        ..ShmOptions::default()
    };
    Options { shm, tcp: world.tcp_options(), ..Options::default() }
}
