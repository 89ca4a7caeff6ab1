//! Communicators.

mod attributes;
mod inter;
mod survival;

use std::ffi::{c_char, c_int};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use kolo::Communicator;
use kolo_transport::Unpoisoned;

use crate::args::{put, put_text, text};
use crate::attributes::Attributes;
use crate::bsend::Buffers;
use crate::collective;
use crate::constants::*;
use crate::error::{Class, Fail, Object, Outcome, fail};
use crate::group::{self, Group};
use crate::handle::{Held, Table};
use crate::handlers::{self, Handler};
use crate::info::{self, Pairs};
use crate::net::{self, Completion, Recv, Sink, Source};
use crate::request::{self, Active};
use crate::topology::Topology;
use crate::{hints, world};
pub(crate) use attributes::predefined_attribute;
pub(crate) use inter::{Inter, from_groups};
pub use survival::*;

/// A communicator.
#[derive(Debug)]
pub struct Comm {
    handle: AtomicI32,
    /// Number of the communicator, times four. The lower two bits keep the messages of users, collectives and the library apart.
    context: AtomicU32,
    /// This process's rank.
    pub rank: u32,
    /// World ranks of all ranks; for an intercommunicator, of the local group.
    pub members: Group,
    /// World ranks of the ranks that messages may name: the same, or the remote group.
    pub peers: Group,
    /// Set for an intercommunicator.
    pub(crate) inter: Option<Inter>,
    kolo: OnceLock<Arc<Communicator>>,
    collectives: AtomicI32,
    creations: AtomicI32,
    pub(crate) attributes: Attributes,
    name: Mutex<String>,
    handler: Mutex<Handler>,
    info: Mutex<Pairs>,
    pub(crate) topology: Option<Topology>,
    pub(crate) buffers: Buffers,
    /// World ranks whose loss the program has acknowledged.
    acknowledged: Mutex<Vec<u32>>,
}

/// Context of the messages of collectives, and of the partitions of partitioned messages.
pub(crate) const COLLECTIVES: u32 = 1;
const LIBRARY: u32 = 2;
/// Context in which partitioned sends announce themselves.
pub(crate) const PARTITIONED: u32 = 3;

static COMMS: Table<Arc<Comm>> = Table::new(0x1);
static PREDEFINED: OnceLock<[Arc<Comm>; 2]> = OnceLock::new();

/// Returns the communicator of a handle.
///
/// # Errors
/// [`Class::Comm`] for an invalid handle; also before Init and after Finalize.
#[inline]
pub fn held(handle: c_int) -> Outcome<Held<Comm>> {
    world::check_running()?;
    let predefined = (handle as u32).wrapping_sub(COMM_WORLD as u32) as usize;
    if let Some(comm) = PREDEFINED.get().and_then(|both| both.get(predefined)) {
        return if world::has_world() { Ok(Held::Predefined(comm)) } else { world::no_world() };
    }
    COMMS.get(handle).map_or_else(|| invalid(handle), |comm| Ok(Held::Counted(comm)))
}

/// Returns the communicator of this process alone, which exists even if the program uses only sessions.
///
/// # Errors
/// Before Init and after Finalize.
pub fn own() -> Outcome<Held<Comm>> {
    world::check_running()?;
    match PREDEFINED.get() {
        Some([_, own]) => Ok(Held::Predefined(own)),
        None => fail(Class::Intern, "there is no communicator of this process"),
    }
}

/// As [`held`], but returns a counted reference.
///
/// # Errors
/// As [`held`].
#[inline]
pub fn lookup(handle: c_int) -> Outcome<Arc<Comm>> {
    held(handle).map(|comm| Arc::clone(&comm))
}

/// As [`lookup`], for calls that are not defined for intercommunicators.
///
/// # Errors
/// As [`held`], and for an intercommunicator.
pub fn intra(handle: c_int) -> Outcome<Arc<Comm>> {
    match lookup(handle)? {
        comm if comm.inter.is_some() => fail(Class::Comm, "the call is not for intercommunicators"),
        comm => Ok(comm),
    }
}

#[cold]
fn invalid<T>(handle: c_int) -> Outcome<T> {
    match handle {
        COMM_NULL => fail(Class::Comm, "MPI_COMM_NULL"),
        _ => fail(Class::Comm, format!("{handle:#x} is not a communicator, or was freed")),
    }
}

/// Makes the predefined communicators.
pub(crate) fn predefine(rank: u32, size: u32, kolo: Option<Arc<Communicator>>) {
    let world = Comm::new(0, rank, world::world_members(size), None);
    if let Some(kolo) = kolo {
        let _ = world.kolo.set(kolo);
    }
    let own = Comm::new(1, 0, Arc::from([rank]), None);
    for (comm, handle, name) in [(&world, COMM_WORLD, "MPI_COMM_WORLD"), (&own, COMM_SELF, "MPI_COMM_SELF")] {
        comm.handle.store(handle, Ordering::Relaxed);
        name.clone_into(&mut comm.name.lock().unpoisoned());
    }
    let _ = PREDEFINED.set([Arc::new(world), Arc::new(own)]);
}

/// Drops all remaining communicators at the end.
pub(crate) fn forget_all() {
    for comm in COMMS.all() {
        COMMS.remove(comm.handle());
    }
}

impl Comm {
    fn new(number: u32, rank: u32, members: Group, topology: Option<Topology>) -> Self {
        Self {
            handle: AtomicI32::new(COMM_NULL),
            context: AtomicU32::new(number << 2),
            rank,
            peers: Arc::clone(&members),
            members,
            inter: None,
            kolo: OnceLock::new(),
            collectives: AtomicI32::new(0),
            creations: AtomicI32::new(0),
            attributes: Attributes::default(),
            name: Mutex::default(),
            handler: Mutex::default(),
            info: Mutex::new(hints::defaults(&hints::OF_COMMUNICATORS)),
            topology,
            buffers: Buffers::default(),
            acknowledged: Mutex::default(),
        }
    }

    /// Returns the number of ranks; for an intercommunicator, of the local group.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.members.len() as u32
    }

    /// Returns the communicator's handle.
    #[must_use]
    pub fn handle(&self) -> c_int {
        self.handle.load(Ordering::Relaxed)
    }

    /// Returns one of the communicator's four contexts; 0 is that of the program's messages.
    #[must_use]
    pub fn context(&self, of: u32) -> u32 {
        self.context.load(Ordering::Acquire) | of
    }

    /// Returns the rank in this communicator, or in the remote group, of a world rank.
    #[must_use]
    pub fn rank_of(&self, world: u32) -> u32 {
        match self.peers.get(world as usize) {
            Some(member) if *member == world => world,
            _ => self.peers.iter().position(|member| *member == world).unwrap_or(0) as u32,
        }
    }

    /// Returns the context and tag of the next collective that consists of messages. The upper half of the tags is that of partitions.
    #[must_use]
    pub fn next_collective(&self) -> (u32, i32) {
        let number = self.collectives.fetch_add(1, Ordering::Relaxed);
        (self.context(COLLECTIVES), number & (TAG_MAX >> 1))
    }

    /// Returns Kolo's communicator of these ranks. The first call makes it, so all ranks must make that call.
    ///
    /// # Errors
    /// Kolo's errors.
    #[inline]
    pub fn kolo(&self) -> Outcome<&Communicator> {
        match self.kolo.get() {
            Some(kolo) => Ok(kolo),
            None => self.make_kolo(),
        }
    }

    #[cold]
    fn make_kolo(&self) -> Outcome<&Communicator> {
        let Some(world) = world::joined() else {
            return fail(Class::Intern, "a process that is alone has no collectives");
        };
        let _absent = net::Absence::begin();
        // Threads may make the first collective calls on several communicators at the same time, in an order that differs among ranks.
        let (number, limit) = (Some(self.context(0)), world.config().timeout);
        let made = world.group_within(&places(&self.members)?, number, limit)?;
        Ok(self.kolo.get_or_init(|| Arc::new(made)))
    }

    /// Returns the error handler.
    #[must_use]
    pub fn handler(&self) -> Handler {
        self.handler.lock().unpoisoned().clone()
    }

    /// Sets the error handler.
    pub fn set_handler(&self, handler: Handler) {
        handlers::replace(&self.handler, handler);
    }

    /// Makes a communicator with this one's error handler, of other members, with a number on which they have agreed.
    fn child(&self, number: u32, members: Group, topology: Option<Topology>) -> Outcome<Self> {
        let Some(rank) = members.iter().position(|member| *member == world::rank()) else {
            return fail(Class::Group, "this process is not in the group");
        };
        let child = Self::new(number, rank as u32, members, topology);
        child.set_handler(self.handler());
        Ok(child)
    }

    fn register(self) -> c_int {
        let comm = Arc::new(self);
        let handle = COMMS.insert(Arc::clone(&comm));
        comm.handle.store(handle, Ordering::Relaxed);
        handle
    }

    /// Agrees on the number of a new communicator of some members, who all call it. The first of them chooses the number.
    fn agree(&self, members: &[u32], tag: c_int) -> Outcome<u32> {
        let context = self.context(LIBRARY);
        if members.first() == Some(&world::rank()) {
            let number = world::new_context()?;
            let mut sends = Vec::new();
            for member in &members[1..] {
                let done = Completion::new();
                let data = Source::Kept(number.to_le_bytes().to_vec());
                net::net()?.send(*member, context, tag, data, false, &done);
                sends.push(done);
            }
            net::wait_until(|| sends.iter().all(|done| done.is_done()))?;
            return Ok(number);
        }
        let (done, mut bytes) = (Completion::new(), [0_u8; 4]);
        let sink = Sink::Flat { ptr: bytes.as_mut_ptr(), room: bytes.len() };
        let source = members.first().copied();
        net::net()?.recv(context, Recv { source, tag: Some(tag), sink, done: Arc::clone(&done) });
        net::wait_for(&done)?;
        let failure = done.get().and_then(|finished| finished.error.clone());
        failure.map_or(Ok(u32::from_le_bytes(bytes)), Err)
    }

    fn next_creation(&self) -> c_int {
        self.creations.fetch_add(1, Ordering::Relaxed) & (TAG_MAX >> 1)
    }

    /// Makes a communicator of some members, who all call it.
    pub(crate) fn create(&self, members: Group, topology: Option<Topology>) -> Outcome<c_int> {
        let tag = self.next_creation();
        self.create_tagged(members, topology, tag)
    }

    /// Counts a creation of communicators on a rank that is in none of them.
    pub(crate) fn skip_creation(&self) {
        self.next_creation();
    }

    /// As [`Comm::create`], with a tag that distinguishes concurrent calls.
    pub(crate) fn create_tagged(
        &self,
        members: Group,
        topology: Option<Topology>,
        tag: c_int,
    ) -> Outcome<c_int> {
        let number = self.agree(&members, tag)?;
        Ok(self.child(number, members, topology)?.register())
    }

    fn duplicate(self: &Arc<Self>, info: Pairs) -> Outcome<Self> {
        let members = Arc::clone(&self.members);
        let copy = match self.inter {
            None => self.child(0, members, self.topology.clone())?,
            Some(_) => self.pair(0, members, Arc::clone(&self.peers))?,
        };
        copy.set_hints(info);
        self.attributes.copy_to(self.handle(), &copy.attributes)?;
        Ok(copy)
    }

    /// Sets the number of a duplicate.
    fn set_number(&self, number: u32) {
        self.context.store(number << 2, Ordering::Release);
        if let Some(inter) = &self.inter {
            inter.union.context.store(number << 2, Ordering::Release);
        }
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        if let Ok(mut net) = net::net() {
            (0..4).for_each(|of| net.forget(self.context(of)));
        }
    }
}

/// Returns the number of ranks that messages may name, for front ends that convert arrays; 0 for an invalid handle.
#[must_use]
pub fn size_of_comm(handle: c_int) -> usize {
    lookup(handle).map_or(0, |comm| comm.peers.len())
}

/// Removes the handle of a communicator that the library has made for itself.
pub(crate) fn release(handle: c_int) {
    COMMS.remove(handle);
}

pub unsafe fn comm_size(comm: c_int, size: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(size, lookup(comm)?.size() as c_int) }
}

pub unsafe fn comm_rank(comm: c_int, rank: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(rank, lookup(comm)?.rank as c_int) }
}

pub unsafe fn comm_compare(one: c_int, other: c_int, result: *mut c_int) -> Outcome {
    let (one, other) = (lookup(one)?, lookup(other)?);
    let groups = [group::compare(&one.members, &other.members), group::compare(&one.peers, &other.peers)];
    let found = match groups {
        _ if one.inter.is_some() != other.inter.is_some() => UNEQUAL,
        [IDENT, IDENT] if Arc::ptr_eq(&one, &other) => IDENT,
        [IDENT, IDENT] => CONGRUENT,
        [IDENT | SIMILAR, IDENT | SIMILAR] => SIMILAR,
        _ => UNEQUAL,
    };
    // SAFETY: the caller's promise.
    unsafe { put(result, found) }
}

unsafe fn dup(comm: c_int, info: Option<c_int>, new: *mut c_int) -> Outcome {
    let comm = lookup(comm)?;
    let hints = info.map_or_else(|| Ok(comm.hints()), info::pairs)?;
    let copy = comm.duplicate(hints)?;
    let whole = comm.whole();
    copy.set_number(whole.agree(&whole.members, whole.next_creation())?);
    // SAFETY: the caller's promise.
    unsafe { put(new, copy.register()) }
}

pub unsafe fn comm_dup(comm: c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { dup(comm, None, new) }
}

pub unsafe fn comm_dup_with_info(comm: c_int, info: c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { dup(comm, Some(info), new) }
}

unsafe fn idup(comm: c_int, info: Option<c_int>, new: *mut c_int, into: *mut c_int) -> Outcome {
    let comm = lookup(comm)?;
    let hints = info.map_or_else(|| Ok(comm.hints()), info::pairs)?;
    let handle = comm.duplicate(hints)?.register();
    let copy = lookup(handle)?;
    let whole = comm.whole();
    let mut s = collective::Schedule::tagged(whole, whole.context(LIBRARY), whole.next_creation());
    let number = s.keep(4);
    if whole.rank == 0 {
        let bytes = world::new_context()?.to_le_bytes();
        // SAFETY: the schedule owns these four bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), number.at, 4) };
    }
    collective::algorithms::broadcast(&mut s, number, 0);
    s.run(move || {
        // SAFETY: as above; all steps before this one are done.
        let number = unsafe { number.ptr().cast::<u32>().read_unaligned() };
        copy.set_number(u32::from_le(number));
        Ok(())
    });
    let active = Active::Collective(collective::schedule::Started::start(s));
    // SAFETY: the caller's promise.
    unsafe {
        put(new, handle)?;
        put(into, request::register(active, &comm))
    }
}

pub unsafe fn comm_idup(comm: c_int, new: *mut c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { idup(comm, None, new, into) }
}

pub unsafe fn comm_idup_with_info(comm: c_int, info: c_int, new: *mut c_int, into: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { idup(comm, Some(info), new, into) }
}

pub unsafe fn comm_create(comm: c_int, of: c_int, new: *mut c_int) -> Outcome {
    let comm = lookup(comm)?;
    let members = group::lookup(of)?;
    if let Some(inter) = &comm.inter {
        // SAFETY: the caller's promise.
        return unsafe { put(new, inter.create(&comm, &members)?) };
    }
    if !members.iter().all(|member| comm.members.contains(member)) {
        return fail(Class::Group, "the group has ranks that are not in the communicator");
    }
    let handle = if members.contains(&world::rank()) {
        comm.create(members, None)?
    } else {
        comm.skip_creation();
        COMM_NULL
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, handle) }
}

pub unsafe fn comm_create_group(comm: c_int, of: c_int, tag: c_int, new: *mut c_int) -> Outcome {
    let comm = intra(comm)?;
    let members = group::lookup(of)?;
    if !(0..=TAG_MAX).contains(&tag) {
        return fail(Class::Tag, format!("the tag is {tag}"));
    }
    let handle = if members.contains(&world::rank()) {
        // This call's tags differ from those of calls that all members make.
        comm.create_tagged(members, None, (2 << 28) | (tag & (TAG_MAX >> 2)))?
    } else {
        COMM_NULL
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, handle) }
}

unsafe fn split(comm: &Arc<Comm>, color: Option<c_int>, key: c_int, new: *mut c_int) -> Outcome {
    let handle = match &comm.inter {
        Some(inter) => inter.split_by_color(comm, color, key)?,
        None => match inter::split_members(comm, color, key)? {
            Some(members) => comm.create(members, None)?,
            None => {
                comm.skip_creation();
                COMM_NULL
            }
        },
    };
    // SAFETY: the caller's promise.
    unsafe { put(new, handle) }
}

pub unsafe fn comm_split(comm: c_int, color: c_int, key: c_int, new: *mut c_int) -> Outcome {
    let comm = lookup(comm)?;
    if color < 0 && color != UNDEFINED {
        return fail(Class::Arg, format!("the color is {color}"));
    }
    // SAFETY: the caller's promise.
    unsafe { split(&comm, (color != UNDEFINED).then_some(color), key, new) }
}

pub unsafe fn comm_split_type(comm: c_int, kind: c_int, key: c_int, info: c_int, new: *mut c_int) -> Outcome {
    let comm = lookup(comm)?;
    let hints = info::pairs(info)?;
    let host = world::host(world::rank()) as c_int;
    let color = match kind {
        COMM_TYPE_SHARED => Some(host),
        COMM_TYPE_HW_GUIDED | COMM_TYPE_RESOURCE_GUIDED => {
            let shared = hints
                .iter()
                .any(|(key, value)| key == "mpi_hw_resource_type" && value == "mpi_shared_memory");
            shared.then_some(host)
        }
        COMM_TYPE_HW_UNGUIDED | UNDEFINED => None,
        _ => return fail(Class::Arg, format!("unknown split type {kind}")),
    };
    // SAFETY: the caller's promise.
    unsafe { split(&comm, color, key, new) }
}

pub unsafe fn comm_free(comm: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let handle = unsafe { *comm };
    let freed = lookup(handle)?;
    if handle == COMM_WORLD || handle == COMM_SELF {
        return fail(Class::Comm, "predefined communicators cannot be freed");
    }
    freed.attributes.delete_all(handle)?;
    COMMS.remove(handle);
    // SAFETY: as above.
    unsafe { *comm = COMM_NULL };
    Ok(())
}

pub unsafe fn comm_disconnect(comm: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { comm_free(comm) }
}

pub unsafe fn comm_test_inter(comm: c_int, flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(flag, lookup(comm)?.inter.is_some().into()) }
}

fn remote(comm: c_int) -> Outcome<Group> {
    let comm = lookup(comm)?;
    match comm.inter {
        Some(_) => Ok(Arc::clone(&comm.peers)),
        None => fail(Class::Comm, "this is not an intercommunicator"),
    }
}

pub unsafe fn comm_remote_size(comm: c_int, size: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(size, remote(comm)?.len() as c_int) }
}

pub unsafe fn comm_remote_group(comm: c_int, group: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(group, group::register(remote(comm)?)) }
}

pub unsafe fn intercomm_create(
    comm: c_int,
    leader: c_int,
    peer: c_int,
    remote: c_int,
    tag: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(new, inter::create(comm, leader, peer, remote, tag)?) }
}

pub unsafe fn intercomm_merge(comm: c_int, high: c_int, new: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(new, inter::merge(comm, high != 0)?) }
}

pub unsafe fn comm_get_parent(comm: *mut c_int) -> Outcome {
    world::check_running()?;
    // SAFETY: the caller's promise.
    unsafe { put(comm, COMM_NULL) }
}

pub unsafe fn comm_set_name(comm: c_int, name: *const c_char) -> Outcome {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    *lookup(comm)?.name.lock().unpoisoned() = name;
    Ok(())
}

pub unsafe fn comm_get_name(comm: c_int, name: *mut c_char, length: *mut c_int) -> Outcome {
    let comm = if comm == COMM_NULL { None } else { Some(lookup(comm)?) };
    let shown = comm.map_or_else(|| "MPI_COMM_NULL".to_owned(), |comm| comm.name.lock().unpoisoned().clone());
    // SAFETY: by the standard, the program gives this much room.
    unsafe { put_text(&shown, name, MAX_OBJECT_NAME as usize, length) }
}

pub unsafe fn comm_set_info(comm: c_int, info: c_int) -> Outcome {
    lookup(comm)?.set_hints(info::pairs(info)?);
    Ok(())
}

pub unsafe fn comm_get_info(comm: c_int, info: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(info, info::make(lookup(comm)?.hints())) }
}

/// Makes a failure go to the communicator's error handler.
pub(crate) fn on(comm: &Arc<Comm>, failure: Fail) -> Fail {
    failure.on(Object::Comm(Arc::clone(comm)))
}
