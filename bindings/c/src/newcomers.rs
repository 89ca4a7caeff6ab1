//! Newcomers: invitations, joining by one, taking in, and state for those that have come.

use std::ffi::{c_char, c_int};
use std::sync::{Mutex, PoisonError};

use kolo_rs::state::{Part, State};
use kolo_rs::{Communicator, Invitation};

use crate::abi::{self, UNSET};
use crate::checked;
use crate::comm::{Comm, limit};
use crate::config;
use crate::guard::{Failure, Outcome, guard, place, take, usage, with_comm};
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
            comm.write(std::ptr::null_mut());
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
            let most = checked::number("most", most)?;
            take_in(result, || comm.communicator.grow(most))
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
/// `result` is null or valid for writing.
unsafe fn take_in(result: *mut *mut Comm, make: impl FnOnce() -> kolo_rs::Result<Communicator>) -> Outcome {
    // SAFETY: the caller's promise.
    let result = unsafe { place("result", result) }?;
    result.write(std::ptr::null_mut());
    result.write(Comm::handle(make()?));
    Ok(())
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSlots(comm: *const Comm, slots: *mut c_int) -> c_int {
    // SAFETY: the header's promise: room for as many as there are ranks.
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

/// What a `koloState_t` points to.
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
        // SAFETY: the header's promise: from `koloStateCreate`, and nobody else uses it any more.
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
            let parts = match (parts.is_null(), count) {
                (_, 0) => &[],
                (true, _) => return Err(usage("parts is NULL")),
                (false, count) => std::slice::from_raw_parts(parts, count),
            };
            let known = parts.iter().map(|part| known(part)).collect::<Outcome<Vec<_>>>()?;
            apart(&known)?;
            let mut named: Vec<_> = known.iter().map(|part| (part.name, part.memory())).collect();
            let mut parts: Vec<_> = named.iter_mut().map(|(name, data)| Part::new(name, data)).collect();
            let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
            let shared = state.share(&comm.communicator, &mut parts)?;
            if let Some(received) = received.as_mut() {
                *received = shared.received;
            }
            Ok(())
        })
    }
}

/// A part that makes sense.
struct Known<'a> {
    name: &'a str,
    at: *mut u8,
    bytes: usize,
}

impl<'a> Known<'a> {
    /// # Safety
    /// The memory is valid, and nobody else uses it, also as another part, as long as the result lives.
    unsafe fn memory(&self) -> &'a mut [u8] {
        // SAFETY: not null, of a length that a slice may have (`known`), and the caller's promise.
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

/// Refuses parts that overlap: each is filled on its own.
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
        body(&mut state.lock().unwrap_or_else(PoisonError::into_inner))
    })
}

fn no_state() -> Failure {
    usage("the state is NULL; was it made, and not yet destroyed?")
}
