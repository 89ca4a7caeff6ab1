//! Sessions: MPI without `MPI_Init`. They have the standard's two process sets: all processes, and this one.

use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use crate::args::{put, put_text, text};
use crate::bsend::Buffers;
use crate::constants::*;
use crate::error::{Class, Outcome, fail};
use crate::group::{self, Group};
use crate::handle::Table;
use crate::handlers::{self, Handler};
use crate::{comm, info, world};

/// A session.
#[derive(Debug)]
pub struct Session {
    handler: Mutex<Handler>,
    pub(crate) buffers: Buffers,
}

static SESSIONS: Table<Arc<Session>> = Table::new(0xe);

/// Values of the hint `thread_level`. Sessions have the last one, whichever is requested.
const LEVELS: [&str; 4] =
    ["MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED", "MPI_THREAD_MULTIPLE"];

const SETS: [&str; 2] = ["mpi://WORLD", "mpi://SELF"];

impl Session {
    /// Returns the error handler.
    #[must_use]
    pub fn handler(&self) -> Handler {
        self.handler.lock().unpoisoned().clone()
    }

    pub(crate) fn set_handler(&self, handler: Handler) {
        handlers::replace(&self.handler, handler);
    }
}

/// Returns the session of a handle.
///
/// # Errors
/// [`Class::Session`] for an invalid handle.
pub fn lookup(handle: c_int) -> Outcome<Arc<Session>> {
    SESSIONS.get(handle).map_or_else(|| fail(Class::Session, format!("{handle:#x} is not a session")), Ok)
}

/// Returns all open sessions.
pub(crate) fn all() -> Vec<Arc<Session>> {
    SESSIONS.all()
}

/// Returns the members of a process set.
fn members(name: &str) -> Outcome<Group> {
    match SETS.iter().position(|set| set.eq_ignore_ascii_case(name)) {
        Some(0) => Ok(world::world_members(world::size())),
        Some(_) => Ok(Arc::from([world::rank()])),
        None => fail(
            Class::Arg,
            format!("there is no process set '{name}'; there are {} and {}", SETS[0], SETS[1]),
        ),
    }
}

pub unsafe fn session_init(hints: c_int, handler: c_int, into: *mut c_int) -> Outcome {
    let hints = info::pairs(hints)?;
    if let Some((_, level)) = hints.iter().find(|(key, _)| key == "thread_level")
        && !LEVELS.contains(&level.as_str())
    {
        return fail(
            Class::InfoValue,
            format!("the thread_level is '{level}', and not one of {}", LEVELS.join(", ")),
        );
    }
    let handler = handlers::given(handler)?;
    world::open_session()?;
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        put(
            into,
            SESSIONS.insert(Arc::new(Session { handler: Mutex::new(handler), buffers: Buffers::default() })),
        )
    }
}

pub unsafe fn session_finalize(session: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        lookup(*session)?;
        world::close_session()?;
        SESSIONS.remove(*session);
        *session = SESSION_NULL;
    }
    Ok(())
}

pub unsafe fn session_get_num_psets(session: c_int, hints: c_int, number: *mut c_int) -> Outcome {
    lookup(session)?;
    info::pairs(hints)?;
    // SAFETY: the caller's promise.
    unsafe { put(number, SETS.len() as c_int) }
}

/// Writes as much of the name as there is room for, and the room that the whole name needs, including its zero.
pub unsafe fn session_get_nth_pset(
    session: c_int,
    hints: c_int,
    n: c_int,
    length: *mut c_int,
    name: *mut c_char,
) -> Outcome {
    lookup(session)?;
    info::pairs(hints)?;
    let Some(set) = usize::try_from(n).ok().and_then(|n| SETS.get(n)) else {
        return fail(Class::Arg, format!("there is no process set number {n}; there are {}", SETS.len()));
    };
    // SAFETY: the caller's promise: room for `*length` characters.
    unsafe {
        if *length > 0 {
            put_text(set, name, *length as usize, std::ptr::null_mut())?;
        }
        put(length, set.len() as c_int + 1)
    }
}

pub unsafe fn session_get_info(session: c_int, into: *mut c_int) -> Outcome {
    lookup(session)?;
    let level = ("thread_level".to_owned(), LEVELS[3].to_owned());
    // SAFETY: the caller's promise.
    unsafe { put(into, info::make(vec![level])) }
}

pub unsafe fn session_get_pset_info(session: c_int, name: *const c_char, into: *mut c_int) -> Outcome {
    lookup(session)?;
    // SAFETY: the caller's promise.
    unsafe {
        let members = members(&text(name)?)?;
        put(into, info::make(vec![("mpi_size".to_owned(), members.len().to_string())]))
    }
}

pub unsafe fn group_from_session_pset(session: c_int, name: *const c_char, new: *mut c_int) -> Outcome {
    lookup(session)?;
    // SAFETY: the caller's promise.
    unsafe { put(new, group::register(members(&text(name)?)?)) }
}

/// Hashes a string to a tag of `bits` bits, by FNV-1a. The tag is used in the context of `MPI_COMM_SELF`, which has no other messages
/// between processes.
fn hash(tag: &str, bits: u32) -> c_int {
    let hash =
        tag.bytes().fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    (hash >> (u32::BITS - bits)) as c_int
}

/// Carries out `MPI_Comm_create_from_group`. Its string tags distinguish concurrent calls, so ranks that make two such communicators at
/// once use two strings.
pub unsafe fn comm_create_from_group(
    of: c_int,
    tag: *const c_char,
    hints: c_int,
    handler: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    let tag = unsafe { text(tag) }?;
    let (members, handler) = (group::lookup(of)?, handlers::given(handler)?);
    info::pairs(hints)?;
    if members.is_empty() {
        // SAFETY: the caller's promise.
        return unsafe { put(new, COMM_NULL) };
    }
    let handle = comm::own()?.create_tagged(members, None, hash(&tag, 29))?;
    comm::lookup(handle)?.set_handler(handler);
    // SAFETY: the caller's promise.
    unsafe {
        comm::comm_set_info(handle, hints)?;
        put(new, handle)
    }
}

pub unsafe fn intercomm_create_from_groups(
    local: c_int,
    leader: c_int,
    remote: c_int,
    remote_leader: c_int,
    tag: *const c_char,
    hints: c_int,
    handler: c_int,
    new: *mut c_int,
) -> Outcome {
    // SAFETY: the caller's promise.
    let tag = hash(&unsafe { text(tag) }?, 28);
    let handler = handlers::given(handler)?;
    info::pairs(hints)?;
    let prepare = |comm: &comm::Comm| comm.set_handler(handler);
    let handle = comm::from_groups((local, leader), (remote, remote_leader), tag, prepare)?;
    // SAFETY: the caller's promise.
    unsafe {
        comm::comm_set_info(handle, hints)?;
        put(new, handle)
    }
}
