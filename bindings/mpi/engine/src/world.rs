//! From Init to Finalize.

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use kolo::internal::wait::{Policy, usable_processors};
use kolo::{Communicator, Config};

use crate::args::{put, put_text};
use crate::collective::schedule::{self, Schedule};
use crate::comm;
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::net;

const BEFORE: u8 = 0;
/// Between Init and Finalize.
const RUNNING: u8 = 1;
/// For sessions only: the ranks have met, but there are no predefined communicators, or no longer.
const SESSIONS: u8 = 2;
const FINALIZED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(BEFORE);
/// Of Init and Finalize alone: before, running or finalized.
static MODEL: AtomicU8 = AtomicU8::new(BEFORE);
/// Sessions that are not finalized; the lock is held while anything above changes.
static OPEN_SESSIONS: std::sync::Mutex<usize> = std::sync::Mutex::new(0);
static LEVEL: AtomicI32 = AtomicI32::new(THREAD_SINGLE);
/// Contexts that this rank has given away; the first two are those of the predefined communicators.
static CONTEXTS: AtomicU32 = AtomicU32::new(2);
static WORLD: OnceLock<World> = OnceLock::new();

struct World {
    kolo: std::sync::Mutex<Option<Arc<Communicator>>>,
    /// Ranks of the world that are in it: all, or those that a shrink has left.
    alive: std::sync::Mutex<Arc<[u32]>>,
    rank: u32,
    size: u32,
    /// Host of each rank.
    hosts: Vec<u32>,
    policy: Policy,
    main: ThreadId,
}

/// Variables that launchers set. A process without any of them is alone.
const LAUNCHED: [&str; 9] = [
    "KOLO_RENDEZVOUS",
    "KOLO_RANK",
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PALS_RANKID",
    "PMI_RANK",
    "PMI_ID",
    "PMIX_RANK",
    "SLURM_PROCID",
];

/// MPI knows no time-out: a rank may compute for as long as it likes while others wait in a collective.
const NO_TIMEOUT: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

fn join() -> Outcome<Option<Communicator>> {
    if !LAUNCHED.iter().any(|name| std::env::var_os(name).is_some()) {
        return Ok(None);
    }
    let mut config = Config::from_env()?;
    if std::env::var_os("KOLO_TIMEOUT").is_none() {
        config.timeout = NO_TIMEOUT;
    }
    let spec = kolo::JoinSpec::from_process_env()?;
    Ok(Some(Communicator::builder().config(config).join(spec).connect()?))
}

fn sessions() -> std::sync::MutexGuard<'static, usize> {
    OPEN_SESSIONS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Init.
fn start(level: c_int) -> Outcome {
    let _open = sessions();
    match MODEL.load(Ordering::Acquire) {
        BEFORE => {}
        FINALIZED => return fail(Class::Other, "MPI has been finalized, and cannot be initialized again"),
        _ => return fail(Class::Other, "MPI is initialized already"),
    }
    if STATE.load(Ordering::Acquire) == BEFORE {
        meet("MPI_Init")?;
        net::expect_threads(level == THREAD_MULTIPLE);
    }
    MODEL.store(RUNNING, Ordering::Release);
    STATE.store(RUNNING, Ordering::Release);
    Ok(())
}

/// A session begins.
///
/// # Errors
/// If the ranks have met and parted before.
pub(crate) fn open_session() -> Outcome {
    let mut open = sessions();
    net::expect_threads(true);
    match STATE.load(Ordering::Acquire) {
        BEFORE => {
            meet("MPI_Session_init")?;
            extern "C" fn leave() {
                part();
            }
            // Nobody says when the last session ends, and the others should not take this process's end for a crash.
            // SAFETY: a function without arguments, which the library keeps for as long as it is loaded.
            unsafe { libc::atexit(leave) };
            STATE.store(SESSIONS, Ordering::Release);
        }
        FINALIZED => {
            return fail(
                Class::Other,
                "MPI has been finalized, and the ranks have parted: open the session before MPI_Finalize",
            );
        }
        _ => {}
    }
    *open += 1;
    Ok(())
}

/// A session ends.
///
/// # Errors
/// If the job has failed.
pub(crate) fn close_session() -> Outcome {
    let mut open = sessions();
    flush()?;
    *open = open.saturating_sub(1);
    if *open == 0 && MODEL.load(Ordering::Acquire) == FINALIZED {
        STATE.store(FINALIZED, Ordering::Release);
        drop(open);
        part();
    }
    Ok(())
}

fn flush() -> Outcome {
    net::wait_until(|| net::net().is_ok_and(|net| net.is_flushed()))
}

/// Leaves the other ranks in good order.
fn part() {
    net::close();
    comm::forget_all();
    if let Some(world) = WORLD.get() {
        world.kolo.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
    }
}

/// Meets the other ranks.
fn meet(call: &str) -> Outcome {
    // No program has a handler for errors yet, and the default one ends the process.
    let kolo = match join() {
        Ok(kolo) => kolo.map(Arc::new),
        Err(failure) => abort(&format!("{call}: {}", failure.text), 1),
    };
    let (rank, size) = kolo.as_ref().map_or((0, 1), |kolo| (kolo.rank(), kolo.world_size()));
    let hosts = kolo.as_ref().map_or_else(|| vec![0], |kolo| kolo.hosts().to_vec());
    let local = hosts.iter().filter(|host| **host == hosts[rank as usize]).count();
    let spin = kolo.as_ref().and_then(|kolo| kolo.config().spin);
    let policy = Policy::for_host(local, usable_processors(), spin);
    let world = World {
        kolo: std::sync::Mutex::new(kolo.clone()),
        alive: std::sync::Mutex::new(world_members(size)),
        rank,
        size,
        hosts,
        policy,
        main: std::thread::current().id(),
    };
    if WORLD.set(world).is_err() {
        return fail(Class::Other, "MPI is being initialized by another thread");
    }
    net::open(kolo.as_deref())?;
    crate::window::prepare();
    comm::predefine(rank, size, kolo);
    wtime();
    Ok(())
}

/// Whether MPI may be used, by sessions at least.
#[must_use]
pub fn is_running() -> bool {
    matches!(STATE.load(Ordering::Acquire), RUNNING | SESSIONS)
}

/// Whether the predefined communicators may be used.
#[must_use]
pub(crate) fn has_world() -> bool {
    STATE.load(Ordering::Acquire) == RUNNING
}

/// Fails as for the predefined communicators where there are none.
#[cold]
pub(crate) fn no_world<T>() -> Outcome<T> {
    match MODEL.load(Ordering::Acquire) {
        BEFORE => fail(Class::Comm, "MPI_COMM_WORLD and MPI_COMM_SELF are there from MPI_Init on only"),
        _ => fail(Class::Comm, "MPI has been finalized: MPI_COMM_WORLD and MPI_COMM_SELF are gone"),
    }
}

/// Fails unless MPI may be used.
///
/// # Errors
/// [`Class::Other`], with what is wrong.
#[inline]
pub fn check_running() -> Outcome {
    if is_running() { Ok(()) } else { not_running() }
}

#[cold]
fn not_running() -> Outcome {
    match STATE.load(Ordering::Acquire) {
        BEFORE => fail(Class::Other, "MPI is not initialized: call MPI_Init first"),
        _ => fail(Class::Other, "MPI has been finalized"),
    }
}

/// World rank of this process.
#[must_use]
pub fn rank() -> u32 {
    WORLD.get().map_or(0, |world| world.rank)
}

/// Number of ranks of the world.
#[must_use]
pub fn size() -> u32 {
    WORLD.get().map_or(1, |world| world.size)
}

/// Host of a rank, by number.
#[must_use]
pub fn host(rank: u32) -> u32 {
    WORLD.get().and_then(|world| world.hosts.get(rank as usize).copied()).unwrap_or(0)
}

/// How threads wait.
#[must_use]
pub fn policy() -> Policy {
    WORLD.get().map_or(Policy::OVERSUBSCRIBED, |world| world.policy)
}

fn kolo() -> Option<Arc<Communicator>> {
    WORLD.get()?.kolo.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

/// The communicator that joined the ranks.
pub(crate) fn joined() -> Option<Arc<Communicator>> {
    kolo()
}

/// Ranks of the world that are in [`joined`], in its order.
pub(crate) fn alive() -> Arc<[u32]> {
    let world = WORLD.get();
    world.map_or_else(
        || world_members(1),
        |world| Arc::clone(&world.alive.lock().unwrap_or_else(std::sync::PoisonError::into_inner)),
    )
}

/// From now on, the ranks that a shrink has left are the job.
pub(crate) fn go_on_with(kolo: Arc<Communicator>, ranks: Arc<[u32]>) {
    let Some(world) = WORLD.get() else { return };
    *world.alive.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = ranks;
    *world.kolo.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(kolo);
}

/// Kolo's settings, one a line.
pub(crate) fn settings() -> String {
    match kolo() {
        Some(kolo) => kolo.config().settings(),
        None => Config::from_env().map(|config| config.settings()).unwrap_or_default(),
    }
}

/// Fails if the job has.
///
/// # Errors
/// Kolo's, which says why.
pub fn check_job() -> Outcome {
    kolo().and_then(|kolo| kolo.error()).map_or(Ok(()), |error| Err(error.into()))
}

/// A number for a communicator, of which this rank is the first: no other has it. It holds the rank and a count.
///
/// # Errors
/// If there are no more.
pub fn new_context() -> Outcome<u32> {
    let size = WORLD.get().map_or(1, |world| world.size);
    let rank_bits = u32::BITS - (size - 1).leading_zeros();
    let room = 1_u32 << (29 - rank_bits);
    let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
    if number >= room {
        return fail(
            Class::Other,
            format!("this rank has made {room} communicators, and numbers are not used again"),
        );
    }
    Ok(rank() * room + number)
}

/// Ends the job.
pub fn abort(reason: &str, code: c_int) -> ! {
    eprintln!("kolo: rank {} of the world ends the job: {reason}", rank());
    if let Some(kolo) = kolo() {
        kolo.abort(&format!("MPI_Abort with code {code} on rank {}: {reason}", rank()));
        // The other ranks should hear why, and not only that this process has ended.
        std::thread::sleep(Duration::from_millis(50));
    }
    // SAFETY: ends the process without running anything else of it, which may be in any state.
    unsafe { libc::_exit(code) }
}

pub unsafe fn init(_count: *mut c_int, _values: *mut c_void) -> Outcome {
    start(THREAD_SINGLE)
}

pub unsafe fn init_thread(
    _count: *mut c_int,
    _values: *mut c_void,
    required: c_int,
    provided: *mut c_int,
) -> Outcome {
    let level = required.clamp(THREAD_SINGLE, THREAD_MULTIPLE);
    start(level)?;
    LEVEL.store(level, Ordering::Relaxed);
    // SAFETY: the caller's promise.
    unsafe { put(provided, level) }
}

pub unsafe fn finalize() -> Outcome {
    check_running()?;
    if !has_world() {
        return fail(Class::Other, "MPI_Finalize without MPI_Init");
    }
    // Libraries hook their own ends here, and MPI is still there for them.
    comm::lookup(COMM_SELF)?.attributes.delete_all(COMM_SELF)?;
    comm::lookup(COMM_WORLD)?.attributes.delete_all(COMM_WORLD)?;
    let all = comm::lookup(COMM_WORLD)?;
    flush()?;
    if alive().len() < all.size() as usize {
        // Those that a shrink has left wait for each other only.
        let _absent = net::Absence::begin();
        joined().map_or(Ok(()), |kolo| kolo.barrier())?;
    } else {
        let mut last = Schedule::new(&all);
        crate::collective::algorithms::barrier(&mut last);
        schedule::complete(last)?;
    }
    drop(all);
    let open = sessions();
    MODEL.store(FINALIZED, Ordering::Release);
    STATE.store(if *open == 0 { FINALIZED } else { SESSIONS }, Ordering::Release);
    if *open == 0 {
        drop(open);
        part();
    }
    Ok(())
}

pub unsafe fn initialized(flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(flag, (MODEL.load(Ordering::Acquire) != BEFORE).into()) }
}

pub unsafe fn finalized(flag: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { put(flag, (MODEL.load(Ordering::Acquire) == FINALIZED).into()) }
}

pub unsafe fn query_thread(level: *mut c_int) -> Outcome {
    check_running()?;
    // SAFETY: the caller's promise.
    unsafe { put(level, LEVEL.load(Ordering::Relaxed)) }
}

pub unsafe fn is_thread_main(flag: *mut c_int) -> Outcome {
    check_running()?;
    let main = WORLD.get().is_some_and(|world| world.main == std::thread::current().id());
    // SAFETY: the caller's promise.
    unsafe { put(flag, main.into()) }
}

/// `MPI_Abort`.
pub unsafe fn abort_call(_comm: c_int, code: c_int) -> Outcome {
    abort("MPI_Abort", code)
}

pub unsafe fn get_version(version: *mut c_int, subversion: *mut c_int) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe {
        put(version, 3)?;
        put(subversion, 1)
    }
}

pub unsafe fn get_library_version(text: *mut c_char, length: *mut c_int) -> Outcome {
    let shown = concat!("Kolo ", env!("CARGO_PKG_VERSION"), ", an MPI library in Rust");
    // SAFETY: the standard's room for it.
    unsafe { put_text(shown, text, 8192, length) }
}

pub unsafe fn get_processor_name(name: *mut c_char, length: *mut c_int) -> Outcome {
    check_running()?;
    let mut host = [0_u8; MAX_PROCESSOR_NAME as usize];
    // SAFETY: room for the name; a longer one is cut, and the last byte stays zero.
    unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
    let len = host.iter().position(|byte| *byte == 0).unwrap_or(0);
    // SAFETY: the standard's room for it.
    unsafe { put_text(&String::from_utf8_lossy(&host[..len]), name, host.len(), length) }
}

pub unsafe fn alloc_mem(size: i64, info: c_int, pointer: *mut c_void) -> Outcome {
    crate::info::pairs(info)?;
    let Ok(size) = usize::try_from(size) else { return fail(Class::Arg, format!("{size} bytes")) };
    // SAFETY: no promise is needed; a page-aligned block, since some will be sent from and to it.
    let memory = unsafe { libc::memalign(if size < 4096 { 64 } else { 4096 }, size.max(1)) };
    if memory.is_null() {
        return Err(Fail::new(Class::NoMem, format!("{size} bytes")));
    }
    // SAFETY: the caller's promise: a place for an address.
    unsafe { put(pointer.cast(), memory) }
}

pub unsafe fn free_mem(pointer: *mut c_void) -> Outcome {
    // SAFETY: the program says that it is from `alloc_mem`; null is nothing.
    unsafe { libc::free(pointer) };
    Ok(())
}

pub unsafe fn pcontrol(_level: c_int) -> Outcome {
    Ok(())
}

/// Seconds since some moment before the first call.
pub fn wtime() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Resolution of [`wtime`].
#[must_use]
pub const fn wtick() -> f64 {
    1e-9
}

/// All ranks, for communicators.
pub(crate) fn world_members(size: u32) -> Arc<[u32]> {
    (0..size).collect()
}
