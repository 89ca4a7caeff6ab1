//! Initialization and finalization of MPI: the life of the world and of sessions.

use std::ffi::{c_char, c_int, c_void};
use std::io::Write as _;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use kolo::internal::wait::Policy;
use kolo::{Communicator, Config};
use kolo_transport::Unpoisoned;

use crate::args::{put, put_text};
use crate::collective::schedule::{self, Schedule};
use crate::comm;
use crate::constants::*;
use crate::error::{Class, Fail, Outcome, fail};
use crate::{handlers, net};

const BEFORE: u8 = 0;
/// Between Init and Finalize.
const RUNNING: u8 = 1;
/// Sessions only: the ranks have met, but the predefined communicators are not available, or no longer.
const SESSIONS: u8 = 2;
const FINALIZED: u8 = 3;

static STATE: AtomicU8 = AtomicU8::new(BEFORE);
/// The state of Init and Finalize alone, without sessions: before, running or finalized.
static MODEL: AtomicU8 = AtomicU8::new(BEFORE);
/// The number of open sessions. Its lock is held while any of the states above changes.
static OPEN_SESSIONS: std::sync::Mutex<usize> = std::sync::Mutex::new(0);
static LEVEL: AtomicI32 = AtomicI32::new(THREAD_SINGLE);
/// The number of contexts that this rank has assigned; the first two are those of the predefined communicators.
static CONTEXTS: AtomicU32 = AtomicU32::new(2);
static WORLD: OnceLock<World> = OnceLock::new();

struct World {
    kolo: std::sync::Mutex<Option<Arc<Communicator>>>,
    /// World ranks of the members of `kolo`: all, or those that a shrink has kept.
    alive: std::sync::Mutex<Arc<[u32]>>,
    rank: u32,
    size: u32,
    /// Host of each rank.
    hosts: Vec<u32>,
    policy: Policy,
    main: ThreadId,
}

/// Variables that launchers set. A process without any of them runs alone. Slurm's batch scripts have SLURM_PROCID, but
/// are no tasks.
const LAUNCHED: [&str; 9] = [
    "KOLO_RENDEZVOUS",
    "KOLO_RANK",
    "RANK",
    "OMPI_COMM_WORLD_RANK",
    "PALS_RANKID",
    "PMI_RANK",
    "PMI_ID",
    "PMIX_RANK",
    "SLURM_STEP_NUM_TASKS",
];

/// The time-out of Kolo's calls, in effect none: in MPI, a rank may compute for any time while others wait in a collective.
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
    OPEN_SESSIONS.lock().unpoisoned()
}

/// Carries out `MPI_Init`.
fn start(level: c_int) -> Outcome {
    let _open = sessions();
    match MODEL.load(Ordering::Acquire) {
        BEFORE => {}
        FINALIZED => return fail(Class::Other, "MPI has been finalized and cannot be initialized again"),
        _ => return fail(Class::Other, "MPI is already initialized"),
    }
    if STATE.load(Ordering::Acquire) == BEFORE {
        // The program cannot have set an error handler yet, and the default one ends the job.
        meet().unwrap_or_else(|failure| abort(&format!("MPI_Init: {}", failure.text), 1));
        net::expect_threads(level == THREAD_MULTIPLE);
    }
    MODEL.store(RUNNING, Ordering::Release);
    STATE.store(RUNNING, Ordering::Release);
    Ok(())
}

/// Opens a session.
///
/// # Errors
/// If the ranks have met before and left each other.
pub(crate) fn open_session() -> Outcome {
    let mut open = sessions();
    net::expect_threads(true);
    match STATE.load(Ordering::Acquire) {
        BEFORE => {
            meet()?;
            extern "C" fn leave() {
                part();
            }
            // No call marks the end of the last session, so the process leaves at exit. Otherwise the others would take its end for a
            // crash.
            // SAFETY: the function takes no arguments, and exists for as long as the library is loaded.
            unsafe { libc::atexit(leave) };
            STATE.store(SESSIONS, Ordering::Release);
        }
        FINALIZED => {
            return fail(
                Class::Other,
                "MPI has been finalized and the ranks have disconnected: open the session before \
                 MPI_Finalize",
            );
        }
        _ => {}
    }
    *open += 1;
    Ok(())
}

/// Closes a session.
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
        world.kolo.lock().unpoisoned().take();
    }
}

/// Meets the other ranks.
fn meet() -> Outcome {
    if WORLD.get().is_some() {
        return fail(
            Class::Other,
            "the ranks have met before, but messages between them could not be opened",
        );
    }
    let kolo = join()?.map(Arc::new);
    let (rank, size) = kolo.as_ref().map_or((0, 1), |kolo| (kolo.rank(), kolo.world_size()));
    let hosts = kolo.as_ref().map_or_else(|| vec![0], |kolo| kolo.hosts().to_vec());
    let policy = kolo.as_ref().map_or(Policy::OWN_PROCESSOR, |kolo| kolo.waiting_policy());
    let world = World {
        kolo: std::sync::Mutex::new(kolo.clone()),
        alive: std::sync::Mutex::new(world_members(size)),
        rank,
        size,
        hosts,
        policy,
        main: std::thread::current().id(),
    };
    let _ = WORLD.set(world);
    net::open(kolo.as_deref())?;
    crate::window::prepare();
    comm::predefine(rank, size, kolo);
    wtime();
    Ok(())
}

/// Returns whether MPI may be used, at least by sessions.
#[must_use]
pub fn is_running() -> bool {
    matches!(STATE.load(Ordering::Acquire), RUNNING | SESSIONS)
}

/// Returns whether the predefined communicators may be used.
#[must_use]
pub(crate) fn has_world() -> bool {
    STATE.load(Ordering::Acquire) == RUNNING
}

/// Returns the failure of a call on a predefined communicator that is not available.
#[cold]
pub(crate) fn no_world<T>() -> Outcome<T> {
    match MODEL.load(Ordering::Acquire) {
        BEFORE => fail(Class::Comm, "MPI_COMM_WORLD and MPI_COMM_SELF exist only after MPI_Init"),
        _ => fail(Class::Comm, "MPI has been finalized: MPI_COMM_WORLD and MPI_COMM_SELF are gone"),
    }
}

/// Fails unless MPI may be used.
///
/// # Errors
/// [`Class::Other`], with the reason.
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

/// Returns the world rank of this process.
#[must_use]
pub fn rank() -> u32 {
    WORLD.get().map_or(0, |world| world.rank)
}

/// Returns the number of ranks of the world.
#[must_use]
pub fn size() -> u32 {
    WORLD.get().map_or(1, |world| world.size)
}

/// Returns the number of a rank's host.
#[must_use]
pub fn host(rank: u32) -> u32 {
    WORLD.get().and_then(|world| world.hosts.get(rank as usize).copied()).unwrap_or(0)
}

/// Returns the policy by which threads wait.
#[must_use]
pub fn policy() -> Policy {
    WORLD.get().map_or(Policy::OVERSUBSCRIBED, |world| world.policy)
}

fn kolo() -> Option<Arc<Communicator>> {
    WORLD.get()?.kolo.lock().unpoisoned().clone()
}

/// Returns the Kolo communicator of all live ranks.
pub(crate) fn joined() -> Option<Arc<Communicator>> {
    kolo()
}

/// Returns the world ranks of the members of [`joined`], in its order.
pub(crate) fn alive() -> Arc<[u32]> {
    let world = WORLD.get();
    world.map_or_else(|| world_members(1), |world| Arc::clone(&world.alive.lock().unpoisoned()))
}

/// Makes the ranks that a shrink has kept the job from now on.
pub(crate) fn go_on_with(kolo: Arc<Communicator>, ranks: Arc<[u32]>) {
    let Some(world) = WORLD.get() else { return };
    *world.alive.lock().unpoisoned() = ranks;
    *world.kolo.lock().unpoisoned() = Some(kolo);
}

/// Returns Kolo's settings, one per line.
pub(crate) fn settings() -> String {
    match kolo() {
        Some(kolo) => kolo.config().settings(),
        None => Config::from_env().map(|config| config.settings()).unwrap_or_default(),
    }
}

/// Returns whether this rank has heard that the job has failed. Never waits for a call of Kolo, so it may be called under the lock of the
/// messages, unlike [`check_job`].
pub(crate) fn has_failed() -> bool {
    kolo().is_some_and(|kolo| kolo.is_aborted())
}

/// Fails if the job has failed. Waits while another thread is inside a call of Kolo.
///
/// # Errors
/// Kolo's error, which has the reason.
pub fn check_job() -> Outcome {
    kolo().and_then(|kolo| kolo.error()).map_or(Ok(()), |error| Err(error.into()))
}

/// Fails if a wait that began at this time has reached the limit that the user has set.
///
/// # Errors
/// [`Class::Other`], with the limit.
pub fn check_time(began: Instant) -> Outcome {
    let limit = kolo().map_or(NO_TIMEOUT, |kolo| kolo.config().timeout);
    if began.elapsed() < limit {
        return Ok(());
    }
    let after = limit.as_secs_f64();
    let pending = net::net().ok().and_then(|net| net.overdue());
    let pending = pending.unwrap_or_else(|| "what the call waits for has not come".to_owned());
    let remedy = "Raise the limit (KOLO_TIMEOUT) if the ranks are merely slow";
    fail(Class::Other, format!("not finished after {after:.1} s: {pending}. {remedy}"))
}

/// Returns a unique number for a communicator whose first rank is this one. The number holds the rank and a count.
///
/// # Errors
/// If there are no more numbers.
pub fn new_context() -> Outcome<u32> {
    let size = WORLD.get().map_or(1, |world| world.size);
    let rank_bits = u32::BITS - (size - 1).leading_zeros();
    let room = 1_u32 << (29 - rank_bits);
    let number = CONTEXTS.fetch_add(1, Ordering::Relaxed);
    if number >= room {
        return fail(
            Class::Other,
            format!("this rank has made {room} communicators, and their numbers cannot be reused"),
        );
    }
    Ok(rank() * room + number)
}

/// The longest time that a process which ends the job waits for its own output.
const FLUSH_TIME: Duration = Duration::from_millis(500);

/// Writes what the program has printed and C's streams still hold, which is lost otherwise. A thread of its own does so, since another
/// thread may be inside of a call on a stream. Returns the receiver that learns of the end.
fn flush_output() -> std::sync::mpsc::Receiver<()> {
    let (ended, end) = std::sync::mpsc::channel();
    let flush = move || {
        // SAFETY: null means all streams; C's library locks each.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let _ = ended.send(());
    };
    // Without a thread, the channel ends at once.
    let _ = std::thread::Builder::new().name("kolo-flush".to_owned()).spawn(flush);
    end
}

/// Ends the job.
pub fn abort(reason: &str, code: c_int) -> ! {
    let flushed = flush_output();
    // The rank is not known before the ranks have met.
    let who = WORLD
        .get()
        .map_or_else(|| "this rank".to_owned(), |world| format!("rank {} of the world", world.rank));
    // One write, since other ranks may write to the same place at the same moment.
    let line = format!("kolo: {who} ends the job: {reason}\n");
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(kolo) = kolo() {
        kolo.abort(&format!("MPI_Abort with code {code} on rank {}: {reason}", rank()));
        // Wait, so that the other ranks learn the reason and not only that this process has ended.
        std::thread::sleep(Duration::from_millis(50));
    }
    let _ = flushed.recv_timeout(FLUSH_TIME);
    // The system keeps eight bits of the code, and 0 would count as success.
    let code = if code != 0 && code & 0xff == 0 { 1 } else { code };
    // SAFETY: ends the process without running any of its exit handlers, since it may be in any state.
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
    // Libraries clean up in the delete functions of these attributes, while MPI is still usable.
    comm::lookup(COMM_SELF)?.attributes.delete_all(COMM_SELF)?;
    comm::lookup(COMM_WORLD)?.attributes.delete_all(COMM_WORLD)?;
    let agreed = match await_all() {
        Err(failure) if failure.is_loss() && handlers::lets_go_on() => agree_to_leave(),
        awaited => awaited.map(|()| Ok(()))?,
    };
    let open = sessions();
    MODEL.store(FINALIZED, Ordering::Release);
    STATE.store(if *open == 0 { FINALIZED } else { SESSIONS }, Ordering::Release);
    if *open == 0 {
        drop(open);
        part();
    }
    agreed
}

/// Waits until all ranks finalize; after a shrink, all those that it has kept.
fn await_all() -> Outcome {
    let all = comm::lookup(COMM_WORLD)?;
    flush()?;
    if alive().len() < all.size() as usize {
        let _absent = net::Absence::begin();
        return joined().map_or(Ok(()), |kolo| Ok(kolo.barrier()?));
    }
    let mut last = Schedule::new(&all);
    crate::collective::algorithms::barrier(&mut last);
    schedule::complete(last)
}

/// Waits until all live ranks finalize. No message or collective can do that after a loss. Otherwise the first to leave would end the
/// agreements of those that still recover.
fn agree_to_leave() -> Outcome {
    let _absent = net::Absence::begin();
    joined().map_or(Ok(()), |kolo| Ok(kolo.agree(0).map(drop)?))
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

/// Carries out `MPI_Abort`.
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
    // SAFETY: by the standard, the program gives this much room.
    unsafe { put_text(shown, text, 8192, length) }
}

pub unsafe fn get_processor_name(name: *mut c_char, length: *mut c_int) -> Outcome {
    check_running()?;
    let mut host = [0_u8; MAX_PROCESSOR_NAME as usize];
    // SAFETY: the array has room for the name; a longer name is cut, and the last byte stays zero.
    unsafe { libc::gethostname(host.as_mut_ptr().cast(), host.len() - 1) };
    let len = host.iter().position(|byte| *byte == 0).unwrap_or(0);
    // SAFETY: by the standard, the program gives this much room.
    unsafe { put_text(&String::from_utf8_lossy(&host[..len]), name, host.len(), length) }
}

pub unsafe fn alloc_mem(size: i64, info: c_int, pointer: *mut c_void) -> Outcome {
    crate::info::pairs(info)?;
    let Ok(size) = usize::try_from(size) else { return fail(Class::Arg, format!("the size is {size}")) };
    // SAFETY: needs no promise. Large blocks are aligned to pages, since messages may be sent from and to them.
    let memory = unsafe { libc::memalign(if size < 4096 { 64 } else { 4096 }, size.max(1)) };
    if memory.is_null() {
        return Err(Fail::new(Class::NoMem, format!("{size} bytes are not available")));
    }
    // SAFETY: the caller's promise: a place for an address.
    unsafe { put(pointer.cast(), memory) }
}

pub unsafe fn free_mem(pointer: *mut c_void) -> Outcome {
    // SAFETY: by the standard, the program passes memory of `alloc_mem`; null is permitted.
    unsafe { libc::free(pointer) };
    Ok(())
}

pub unsafe fn pcontrol(_level: c_int) -> Outcome {
    Ok(())
}

/// Returns the seconds since some moment before the first call.
pub fn wtime() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Returns the resolution of [`wtime`] in seconds.
#[must_use]
pub const fn wtick() -> f64 {
    1e-9
}

/// Returns the group of all ranks.
pub(crate) fn world_members(size: u32) -> Arc<[u32]> {
    (0..size).collect()
}
