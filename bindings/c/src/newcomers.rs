//! Groups whose members change: invitations, joining by them, admitting newcomers, their state, and survivors (`survivors.rs`).

use std::ffi::{c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, TryLockError};

use kolo_rs::internal::Unpoisoned;
use kolo_rs::state::{Part, State};
use kolo_rs::{Change, Collective, Communicator, Invitation, RawCall};

use crate::abi::{self, UNSET};
use crate::checked;
use crate::comm::{Comm, known as known_comm, limit};
use crate::config;
use crate::guard::{Failure, Outcome, guard, place, take, usage, with_comm};
use crate::survivors::Group;
use crate::text::give_text;

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommAccept(
    comm: *const Comm,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloCommAccept", comm, |comm| {
            give_text(&comm.communicator.accept()?.to_string(), text, bytes, needed)
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommInitInvitation(
    comm: *mut *mut Comm,
    invitation: *const c_char,
    slot: c_int,
    wait_ms: i64,
    config: *const abi::Config,
) -> c_int {
    guard("koloCommInitInvitation", None, || {
        // SAFETY: the header's promise, for all pointers.
        let (comm, text, config) = unsafe {
            let comm = place("comm", comm)?;
            comm.write(null_mut());
            (comm, checked::text("invitation", invitation)?, config::resolve(config)?)
        };
        let text = text.ok_or_else(|| usage("invitation is NULL"))?;
        let mut builder = Communicator::builder().config(config).invitation(text.parse::<Invitation>()?);
        if i64::from(slot) != UNSET {
            builder = builder.slot(checked::number("slot", slot)?);
        }
        if wait_ms != UNSET {
            builder = builder.wait_at_most(limit("wait_ms", wait_ms)?);
        }
        comm.write(Comm::handle(builder.connect()?));
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommWaiting(comm: *const Comm, count: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommWaiting", comm, |comm| {
            place("count", count)?.write(comm.communicator.waiting() as c_int);
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommGrow(comm: *const Comm, most: c_int, result: *mut *mut Comm) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommGrow", comm, |comm| {
            // All ranks must hear of a number that makes no sense, so it is not refused here.
            take_in(result, || comm.communicator.grow(u32::try_from(most).unwrap_or(u32::MAX)))
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommReplace(comm: *const Comm, result: *mut *mut Comm) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe { with_comm("koloCommReplace", comm, |comm| take_in(result, || comm.communicator.replace())) }
}

/// # Safety
/// `result` is null or valid for writing, and nothing else uses it during the call.
unsafe fn take_in(result: *mut *mut Comm, make: impl FnOnce() -> kolo_rs::Result<Communicator>) -> Outcome {
    // SAFETY: the caller's promise.
    let result = unsafe { place("result", result) }?;
    result.write(null_mut());
    result.write(Comm::handle(make()?));
    Ok(())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSlots(comm: *const Comm, slots: *mut c_int) -> c_int {
    // SAFETY: the header's promise: `slots` has room for one int per rank.
    unsafe {
        with_comm("koloCommSlots", comm, |comm| {
            place("slots", slots)?;
            for (rank, slot) in comm.communicator.slots().into_iter().enumerate() {
                slots.add(rank).write(slot as c_int);
            }
            Ok(())
        })
    }
}

/// Target of a `koloState_t`.
type Handle = Mutex<State>;

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateCreate(comm: *const Comm, state: *mut *mut Handle) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloStateCreate", comm, |comm| {
            let state = place("state", state)?;
            state.write(Box::into_raw(Box::new(Mutex::new(State::of(&comm.communicator)))));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateDestroy(state: *mut *mut Handle) -> c_int {
    guard("koloStateDestroy", None, || {
        // SAFETY: the header's promise: the handle is from `koloStateCreate`, and no other call uses it any more.
        drop(unsafe { take("state", state) }?);
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateGetVersion(state: *const Handle, version: *mut i64) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_state("koloStateGetVersion", state, |state| {
            let known = state.version().map_or(UNSET, |version| i64::try_from(version).unwrap_or(i64::MAX));
            place("version", version)?.write(known);
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateSetVersion(state: *const Handle, version: i64) -> c_int {
    // SAFETY: the header's promise.
    unsafe {
        with_state("koloStateSetVersion", state, |state| {
            let number = u64::try_from(version);
            state.set_version(
                number.map_err(|_| usage(format!("version is {version}, but must be 0 or more")))?,
            );
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateAdvance(state: *const Handle) -> c_int {
    // SAFETY: the header's promise.
    unsafe {
        with_state("koloStateAdvance", state, |state| {
            state.advance();
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateShare(
    state: *const Handle,
    comm: *const Comm,
    parts: *const abi::Part,
    count: usize,
    received: *mut u64,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloStateShare", comm, |comm| {
            let state = state.as_ref().ok_or_else(no_state)?;
            let shared = with_parts(parts, count, |parts| {
                let mut state = state.lock().unpoisoned();
                Ok(state.share(&comm.communicator, parts)?)
            })?;
            if let Some(received) = received.as_mut() {
                *received = shared.received;
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateOffer(
    state: *const Handle,
    group: *const Members,
    parts: *const abi::Part,
    count: usize,
    offered: *mut c_int,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_group("koloStateOffer", group, |group| {
            let state = state.as_ref().ok_or_else(no_state)?;
            let has_taken =
                with_parts(parts, count, |parts| group.offer(&mut state.lock().unpoisoned(), parts))?;
            if let Some(offered) = offered.as_mut() {
                *offered = c_int::from(has_taken);
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStateFetch(
    state: *mut *mut Handle,
    invitation: *const c_char,
    limit_ms: i64,
    parts: *const abi::Part,
    count: usize,
    received: *mut u64,
) -> c_int {
    guard("koloStateFetch", None, || {
        // SAFETY: the header's promise, for all pointers; a state that is not null is from this call or `koloStateCreate`.
        unsafe {
            let state = state.as_mut().ok_or_else(|| usage("state is NULL"))?;
            // The state is made even if the call fails, so that the next attempt continues where this one ends.
            if state.is_null() {
                *state = Box::into_raw(Box::new(Mutex::new(State::new())));
            }
            let text = checked::text("invitation", invitation)?.ok_or_else(|| usage("invitation is NULL"))?;
            let (invitation, limit) = (text.parse::<Invitation>()?, limit("limit_ms", limit_ms)?);
            let fetched = with_parts(parts, count, |parts| {
                let state = state.as_ref().ok_or_else(no_state)?;
                let mut state = state.lock().unpoisoned();
                Ok(state.fetch(&invitation, parts, limit)?)
            })?;
            if let Some(received) = received.as_mut() {
                *received = fetched.received;
            }
            Ok(())
        }
    })
}

/// # Safety
/// `parts` is null or valid for `count`; the memory of each part is valid, and nothing else uses it meanwhile.
unsafe fn with_parts<R>(
    parts: *const abi::Part,
    count: usize,
    body: impl FnOnce(&mut [Part<'_>]) -> Outcome<R>,
) -> Outcome<R> {
    // SAFETY: the caller's promise; `apart` refuses parts that overlap.
    unsafe {
        let parts = match (parts.is_null(), count) {
            (_, 0) => &[],
            (true, _) => return Err(usage("parts is NULL")),
            (false, count) => std::slice::from_raw_parts(parts, count),
        };
        let known = parts.iter().map(|part| known(part)).collect::<Outcome<Vec<_>>>()?;
        apart(&known)?;
        let mut named: Vec<_> = known.iter().map(|part| (part.name, part.memory())).collect();
        let mut parts: Vec<_> = named.iter_mut().map(|(name, data)| Part::new(name, data)).collect();
        body(&mut parts)
    }
}

/// A checked part.
struct Known<'a> {
    name: &'a str,
    at: *mut u8,
    bytes: usize,
}

impl<'a> Known<'a> {
    /// # Safety
    /// The memory is valid, and nothing else uses it, not even as another part, as long as the result lives.
    unsafe fn memory(&self) -> &'a mut [u8] {
        // SAFETY: `known` has checked that the address is not null and the length fits a slice; the rest is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.bytes) }
    }
}

/// # Safety
/// The name is null or a C string.
unsafe fn known(part: &abi::Part) -> Outcome<Known<'_>> {
    // SAFETY: the caller's promise.
    let name = unsafe { checked::text("a part's name", part.name) }?;
    let (name, bytes) = (name.ok_or_else(|| usage("a part's name is NULL"))?, part.bytes);
    if bytes > isize::MAX as usize {
        return Err(usage(format!("part '{name}' of {bytes} bytes is longer than PTRDIFF_MAX")));
    }
    let at = match (part.memory.is_null(), bytes) {
        (_, 0) => std::ptr::NonNull::dangling().as_ptr(),
        (true, _) => return Err(usage(format!("the memory of part '{name}' is NULL"))),
        (false, _) => part.memory.cast(),
    };
    Ok(Known { name, at, bytes })
}

/// Refuses parts that overlap, since each is filled independently.
fn apart(parts: &[Known<'_>]) -> Outcome {
    let mut sorted: Vec<_> = parts.iter().filter(|part| part.bytes > 0).collect();
    sorted.sort_by_key(|part| part.at.addr());
    match sorted.windows(2).find(|pair| pair[0].at.addr().saturating_add(pair[0].bytes) > pair[1].at.addr()) {
        Some(pair) => Err(usage(format!("parts '{}' and '{}' overlap", pair[0].name, pair[1].name))),
        None => Ok(()),
    }
}

/// # Safety
/// `state` is null or from [`koloStateCreate`].
unsafe fn with_state(
    function: &str,
    state: *const Handle,
    body: impl FnOnce(&mut State) -> Outcome,
) -> c_int {
    guard(function, None, || {
        // SAFETY: the caller's promise.
        let state = unsafe { state.as_ref() }.ok_or_else(no_state)?;
        body(&mut state.lock().unpoisoned())
    })
}

fn no_state() -> Failure {
    usage("the state is NULL; was it made, and not destroyed?")
}

/// Target of a `koloSurvivors_t`.
type Members = Mutex<Group>;

/// `koloStep_t`
type Step = unsafe extern "C" fn(comm: *const Comm, context: *mut c_void) -> c_int;

/// `koloWatcher_t`
type Watcher = unsafe extern "C" fn(change: *const abi::Change, context: *mut c_void);

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsCreate(comm: *mut *mut Comm, group: *mut *mut Members) -> c_int {
    guard("koloSurvivorsCreate", None, || {
        // SAFETY: the header's promise, for both pointers and for the handle, which no other call uses any more.
        unsafe {
            let group = place("group", group)?;
            group.write(null_mut());
            match known_comm(comm) {
                None => return Err(usage("the communicator is NULL; was it made, and not destroyed?")),
                Some(comm) if comm.is_of_group() => {
                    return Err(usage("the communicator already belongs to a group"));
                }
                Some(comm) => comm.communicator.check_process()?,
            }
            if let Some(comm) = take("comm", comm)? {
                group.write(Box::into_raw(Box::new(Mutex::new(Group::new(*comm)?))));
            }
        }
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsDestroy(group: *mut *mut Members) -> c_int {
    guard("koloSurvivorsDestroy", None, || {
        // SAFETY: the header's promise: the handle is from `koloSurvivorsCreate`, and only a step or watcher calls this while another
        // call uses it. Tested by `tests/c/survivors.c`.
        unsafe {
            if let Some(group) = group.as_ref().and_then(|group| group.as_ref()) {
                drop(lock(group)?);
            }
            drop(take("group", group)?);
        }
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsAtLeast(group: *const Members, ranks: c_int) -> c_int {
    // SAFETY: the header's promise.
    unsafe {
        with_group("koloSurvivorsAtLeast", group, |group| {
            let ranks = checked::number("ranks", ranks)?;
            group.set_up(|survivors| survivors.at_least(ranks))
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsUpTo(group: *const Members, ranks: c_int) -> c_int {
    // SAFETY: the header's promise.
    unsafe {
        with_group("koloSurvivorsUpTo", group, |group| {
            let ranks = checked::number("ranks", ranks)?;
            group.set_up(|survivors| survivors.up_to(ranks))
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsOnChange(
    group: *const Members,
    watcher: Option<Watcher>,
    context: *mut c_void,
) -> c_int {
    // Kept as a number, so that the closure may go to the thread that runs the step.
    let context = context.expose_provenance();
    let tell = move |change: &Change| {
        let Some(watcher) = watcher else { return };
        let numbers = |ranks: &[u32]| ranks.iter().map(|rank| *rank as c_int).collect::<Vec<_>>();
        let (left, came) = (numbers(&change.left), numbers(&change.came));
        let told = abi::Change {
            epoch: change.epoch,
            left: left.as_ptr(),
            left_count: left.len(),
            came: came.as_ptr(),
            came_count: came.len(),
            rank: change.rank as c_int,
            size: change.world_size as c_int,
        };
        // SAFETY: the header's promise, for the function and its context; all other arguments live until it has returned. Tested by
        // `tests/c/survivors.c`.
        unsafe { watcher(&raw const told, std::ptr::with_exposed_provenance_mut(context)) }
    };
    // SAFETY: the header's promise.
    unsafe {
        with_group("koloSurvivorsOnChange", group, |group| {
            group.set_up(|survivors| survivors.on_change(tell))
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsComm(group: *const Members, comm: *mut *const Comm) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_group("koloSurvivorsComm", group, |group| {
            place("comm", comm)?.write(group.comm()?);
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsAdmit(group: *const Members) -> c_int {
    // SAFETY: the header's promise.
    unsafe { with_group("koloSurvivorsAdmit", group, Group::admit) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsRun(
    group: *const Members,
    limit_ms: i64,
    step: Option<Step>,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header's promise, for all pointers and the function.
    unsafe {
        with_group("koloSurvivorsRun", group, |group| {
            let step = step.ok_or_else(|| usage("step is NULL"))?;
            group.run(step_limit(limit_ms)?, |comm| step(comm, context))
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSurvivorsAllReduce(
    group: *const Members,
    limit_ms: i64,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
) -> c_int {
    let call = || {
        if input == output.cast_const() && count > 0 {
            return Err(usage(
                "input and output are the same, but a step that is repeated needs its input unchanged",
            ));
        }
        let (data_type, op) = (checked::data_type(data_type)?, checked::op(op, None)?);
        let (input, output) = (input.cast(), output.cast());
        Ok(RawCall { collective: Collective::AllReduce, input, output, count, data_type, op, root: 0 })
    };
    // SAFETY: the header's promise, for the group and for the buffers until the call is over.
    unsafe {
        with_group("koloSurvivorsAllReduce", group, |group| {
            // Wrong arguments fail inside the step, so that the other ranks learn of them as of any step that fails.
            group.run(step_limit(limit_ms)?, |comm| {
                with_comm("koloAllReduce", comm, |comm| Ok(comm.communicator.call_raw(&call()?)?))
            })
        })
    }
}

fn step_limit(limit_ms: i64) -> Outcome<Option<std::time::Duration>> {
    (limit_ms != UNSET).then(|| limit("limit_ms", limit_ms)).transpose()
}

/// # Safety
/// `group` is null or from [`koloSurvivorsCreate`].
unsafe fn with_group(
    function: &str,
    group: *const Members,
    body: impl FnOnce(&mut Group) -> Outcome,
) -> c_int {
    // SAFETY: the caller's promise.
    let Some(group) = (unsafe { group.as_ref() }) else {
        return guard(function, None, || Err(usage("the group is NULL; was it made, and not destroyed?")));
    };
    match lock(group) {
        Ok(mut group) => {
            let last_error = group.last_error();
            guard(function, Some(&last_error), || body(&mut group))
        }
        Err(failure) => guard(function, None, || Err(failure)),
    }
}

/// Locks the group, unless a call on it is in progress.
fn lock(group: &Members) -> Outcome<MutexGuard<'_, Group>> {
    match group.try_lock() {
        Ok(group) => Ok(group),
        Err(TryLockError::Poisoned(group)) => Ok(group.into_inner()),
        Err(TryLockError::WouldBlock) => {
            Err(usage("another call on the group is in progress; steps and watchers must not call it"))
        }
    }
}
