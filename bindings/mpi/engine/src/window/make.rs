//! The calls that make and free windows.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use kolo_transport::Unpoisoned;

use super::backlog::Backlog;
use super::epochs::Epochs;
use super::handle_messages::{forget, know};
use super::locks::Locks;
use super::shared::Segment;
use super::{Part, WINDOWS, Window, lookup};
use crate::args::put;
use crate::attributes::Attributes;
use crate::collective;
use crate::comm::{self, Comm};
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::flavor;
use crate::hints;
use crate::info::{self, Pairs};
use crate::net;
use crate::world;

/// A rank's contribution.
struct Own {
    base: usize,
    size: i64,
    unit: i64,
    flavor: c_int,
    info: Pairs,
    /// The owner of an allocated window's memory, and the reason: the value of [`MEMORY_KEY`].
    memory: Option<String>,
}

/// The info key by which programs learn whether the ranks share the memory of an allocated window.
const MEMORY_KEY: &str = "kolo_memory";

fn own(base: usize, size: i64, unit: i64, flavor: c_int, info: c_int) -> Outcome<Own> {
    if size < 0 {
        return fail(Class::Size, format!("a window cannot have {size} bytes"));
    }
    if unit < 1 {
        return fail(Class::Disp, format!("the displacement unit is {unit} bytes"));
    }
    Ok(Own { base, size, unit, flavor, info: info::pairs(info)?, memory: None })
}

/// Exchanges the contributions; returns the sizes and units of all ranks.
fn parts(comm: &Arc<Comm>, own: &Own) -> Outcome<Vec<Part>> {
    let mut bytes = own.size.to_le_bytes().to_vec();
    bytes.extend(own.unit.to_le_bytes());
    let all = collective::share(comm, &bytes)?;
    let long = |entry: &[u8], at: usize| entry[at..at + 8].try_into().map_or(0, i64::from_le_bytes);
    Ok(all.chunks_exact(16).map(|entry| Part { size: long(entry, 0), unit: long(entry, 8) }).collect())
}

/// Makes a window of all ranks' contributions. All ranks call it.
fn make(comm: &Arc<Comm>, own: Own, segment: Option<Segment>) -> Outcome<c_int> {
    let handle = comm.create(Arc::clone(&comm.members), None)?;
    let inner = comm::lookup(handle)?;
    comm::release(handle);
    let parts = parts(&inner, &own)?;
    let of_shared: &[hints::Hint] =
        if own.flavor == WIN_FLAVOR_SHARED { &hints::OF_SHARED_WINDOWS } else { &[] };
    let mut shown_hints = hints::defaults(hints::OF_WINDOWS.iter().chain(of_shared));
    hints::merge(&mut shown_hints, own.info);
    shown_hints.extend(own.memory.map(|memory| (MEMORY_KEY.to_owned(), memory)));
    let (shown_flavor, shown_model) = flavor::window_out(own.flavor, WIN_UNIFIED);
    let window = Arc::new(Window {
        handle: AtomicI32::new(WIN_NULL),
        locks: Mutex::new(Locks::new(parts.len())),
        comm: inner,
        base: own.base,
        size: own.size,
        shown_unit: c_int::try_from(own.unit).ok(),
        flavor: own.flavor,
        shown_flavor,
        shown_model,
        parts,
        segment,
        attached: Mutex::default(),
        epochs: Mutex::new(Epochs::default()),
        backlog: Backlog::default(),
        attributes: Attributes::default(),
        handler: Mutex::default(),
        name: Mutex::default(),
        info: Mutex::new(shown_hints),
    });
    know(&window);
    let handle = WINDOWS.insert(Arc::clone(&window));
    window.handle.store(handle, Ordering::Relaxed);
    net::serve_windows(true);
    // The barrier keeps messages from arriving before their window is known.
    window.barrier()?;
    Ok(handle)
}

pub unsafe fn win_create(
    base: *mut c_void,
    size: i64,
    unit: i64,
    info: c_int,
    comm: c_int,
    win: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    let own = collective::all_well(&comm, own(base as usize, size, unit, WIN_FLAVOR_CREATE, info))?;
    // SAFETY: the caller's promise.
    unsafe { put(win, make(&comm, own, None)?) }
}

pub unsafe fn win_allocate(
    size: i64,
    unit: i64,
    info: c_int,
    comm: c_int,
    base: *mut c_void,
    win: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    let mut own = collective::all_well(&comm, own(0, size, unit, WIN_FLAVOR_ALLOCATE, info))?;
    let segment = match allocated_segment(&comm, &own)? {
        Ok(segment) => {
            own.base = segment.address(comm.rank as usize);
            own.memory = Some("shared".to_owned());
            Some(segment)
        }
        Err(why) => {
            // A rank without memory would otherwise leave the others waiting. If making the window fails from here on, others may know it
            // already and write to the memory.
            own.base = collective::all_well(&comm, Allocation::new(size))?.keep();
            own.memory = Some(format!("each rank's own: {why}"));
            None
        }
    };
    let address = own.base;
    let window = make(&comm, own, segment)?;
    // SAFETY: the caller's promise: places for an address and a handle.
    unsafe {
        put(win, window)?;
        put(base.cast(), address)
    }
}

/// The memory of an allocated window in the making.
struct Allocation(*mut c_void);

impl Allocation {
    fn new(size: i64) -> Outcome<Self> {
        // SAFETY: a plain allocation, which is freed with the window, or here if there will be none. Test: `windows`.
        let memory = unsafe { libc::calloc(1, (size as usize).max(64)) };
        if memory.is_null() {
            return fail(Class::NoMem, format!("{size} bytes are not available"));
        }
        Ok(Self(memory))
    }

    /// Leaves the memory to the window.
    fn keep(self) -> usize {
        std::mem::ManuallyDrop::new(self).0 as usize
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // SAFETY: the memory is from `new`, and no window has it.
        unsafe { libc::free(self.0) };
    }
}

/// Returns where the ranks' parts of shared memory begin, at whole pages (`apart`) or directly behind each other; and the total length.
fn starts(parts: &[Part], apart: bool) -> (Vec<usize>, usize) {
    let mut next = 0;
    let starts = parts
        .iter()
        .map(|part| {
            let start = next;
            next += part.size as usize;
            if apart {
                next = next.next_multiple_of(4096);
            }
            start
        })
        .collect();
    (starts, next)
}

pub unsafe fn win_allocate_shared(
    size: i64,
    unit: i64,
    info: c_int,
    comm: c_int,
    base: *mut c_void,
    win: *mut c_int,
) -> Outcome {
    let comm = comm::intra(comm)?;
    let mut own = collective::all_well(&comm, own(0, size, unit, WIN_FLAVOR_SHARED, info))?;
    if !is_on_one_host(&comm) {
        return fail(Class::RmaShared, "the ranks are on several hosts; see MPI_Comm_split_type");
    }
    let apart = own.info.iter().any(|(key, value)| key == "alloc_shared_noncontig" && value == "true");
    let segment = segment(&comm, &own, apart)?;
    own.base = segment.address(comm.rank as usize);
    let address = own.base;
    // SAFETY: the caller's promise: places for an address and a handle.
    unsafe {
        put(win, make(&comm, own, Some(segment))?)?;
        put(base.cast(), address)
    }
}

fn is_on_one_host(comm: &Comm) -> bool {
    let host = world::host(comm.members[0]);
    comm.members.iter().all(|member| world::host(*member) == host)
}

/// Makes the memory that all ranks of a window share. All ranks call it, and it fails on all ranks or on none.
fn segment(comm: &Arc<Comm>, own: &Own, apart: bool) -> Outcome<Segment> {
    let (starts, len) = starts(&parts(comm, own)?, apart);
    // The first rank makes the memory, and then tells its name.
    let made = if comm.rank == 0 { create(len, starts.clone()).map(Some) } else { Ok(None) };
    let made = collective::all_well(comm, made)?;
    let own_name = made.as_ref().map_or(0, |(name, _)| *name);
    let told = collective::tell(comm, &own_name.to_le_bytes(), 8, 0)?;
    let name = told[..].try_into().map_or(0, u64::from_le_bytes);
    let mapped = made.map_or_else(|| Segment::map(name, len, starts), |(_, segment)| Ok(segment));
    let mapped = collective::all_well(comm, mapped);
    if comm.rank == 0 {
        Segment::forget(name);
    }
    mapped
}

/// Returns shared memory for an allocated window, or the reason why there is none: it may be short, as in containers with a small
/// `/dev/shm`. Each rank then allocates memory of its own, and operations are messages.
fn allocated_segment(comm: &Arc<Comm>, own: &Own) -> Outcome<Result<Segment, String>> {
    let shares = is_on_one_host(comm) && net::net()?.shares_memory(&comm.members);
    let all_share = collective::share(comm, &[u8::from(shares)])?.iter().all(|shares| *shares == 1);
    if comm.size() == 1 {
        return Ok(Err("there is a single rank".to_owned()));
    }
    if !all_share {
        return Ok(Err("the ranks share no memory".to_owned()));
    }
    match segment(comm, own, true) {
        Err(why) if why.class == Class::NoMem as c_int => Ok(Err(why.text.to_string())),
        made => made.map(Ok),
    }
}

/// Makes shared memory with a random name.
fn create(len: usize, starts: Vec<usize>) -> Outcome<(u64, Segment)> {
    let mut name = [0; 8];
    getrandom::fill(&mut name).map_err(|error| Fail::new(Class::Other, error))?;
    let name = u64::from_le_bytes(name);
    Ok((name, Segment::create(name, len, starts)?))
}

pub unsafe fn win_create_dynamic(info: c_int, comm: c_int, win: *mut c_int) -> Outcome {
    let comm = comm::intra(comm)?;
    let own = collective::all_well(&comm, own(0, 0, 1, WIN_FLAVOR_DYNAMIC, info))?;
    // SAFETY: the caller's promise.
    unsafe { put(win, make(&comm, own, None)?) }
}

pub unsafe fn win_free(win: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    let handle = unsafe { *win };
    let window = lookup(handle)?;
    window.is_idle()?;
    window.attributes.delete_all(handle)?;
    window.barrier()?;
    forget(&window);
    net::serve_windows(false);
    if window.flavor == WIN_FLAVOR_ALLOCATE && window.segment.is_none() {
        // SAFETY: the memory is from `win_allocate`, and no rank accesses it after the barrier.
        unsafe { libc::free(window.base as *mut c_void) };
    }
    // SAFETY: as above.
    unsafe { *win = WIN_NULL };
    Ok(())
}

pub unsafe fn win_attach(win: c_int, base: *mut c_void, size: i64) -> Outcome {
    let window = lookup(win)?;
    if window.flavor != WIN_FLAVOR_DYNAMIC {
        return fail(Class::RmaFlavor, "memory can be attached to dynamic windows only");
    }
    if size < 0 {
        return fail(Class::Size, format!("the size is {size}"));
    }
    window.attached.lock().unpoisoned().push((base as usize, size as usize));
    Ok(())
}

pub unsafe fn win_detach(win: c_int, base: *const c_void) -> Outcome {
    let window = lookup(win)?;
    let mut attached = window.attached.lock().unpoisoned();
    match attached.iter().position(|(at, _)| *at == base as usize) {
        Some(at) => {
            attached.remove(at);
            Ok(())
        }
        None => fail(Class::RmaAttach, "this memory is not attached"),
    }
}

pub unsafe fn win_shared_query(
    win: c_int,
    rank: c_int,
    size: *mut i64,
    unit: *mut i64,
    base: *mut c_void,
) -> Outcome {
    let window = lookup(win)?;
    if window.flavor == WIN_FLAVOR_DYNAMIC {
        return fail(Class::RmaFlavor, "a dynamic window has no memory of its own");
    }
    let own = window.comm.rank as usize;
    let at = match rank {
        // `MPI_PROC_NULL` selects the first rank that has any memory, of those whose memory this rank can reach.
        PROC_NULL if window.segment.is_none() => own,
        PROC_NULL => window.parts.iter().position(|part| part.size > 0).unwrap_or(0),
        _ => usize::try_from(rank).unwrap_or(usize::MAX),
    };
    let Some(part) = window.parts.get(at) else {
        return fail(
            Class::Rank,
            format!("rank {rank} is out of range for a window of {}", window.parts.len()),
        );
    };
    let (reachable, address) = match &window.segment {
        Some(segment) => (part.size, segment.address(at)),
        None if at == own => (part.size, window.base),
        None => (0, 0),
    };
    // SAFETY: the caller's promise.
    unsafe {
        put(size, reachable)?;
        put(unit, part.unit)?;
        put(base.cast(), if reachable == 0 { 0 } else { address })
    }
}
