//! Handles of communicators: splitting, aborting, destroying and querying them.

use std::ffi::{c_char, c_int};
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use kolo_rs::{Agreement, Communicator};

use crate::abi::{NEWCOMER, UNSET, result::SUCCESS};
use crate::cancel;
use crate::checked;
use crate::guard::{Failure, LastError, Outcome, guard, place, take, usage, with_comm};
use crate::memory::Lent;
use crate::text::give_text;

/// Target of a `koloComm_t`.
#[derive(Debug)]
pub(crate) struct Comm {
    pub(crate) communicator: Whose,
    /// Shared with the requests of this communicator.
    pub(crate) last_error: Arc<LastError>,
    /// Symmetric memory that C has not freed; freed with the communicator.
    pub(crate) lent: Lent,
}

/// The communicator of a handle.
#[derive(Debug)]
pub(crate) enum Whose {
    Own(Communicator),
    /// The current communicator of a group of survivors. The group stores it here whenever C may use the handle.
    OfGroup(AtomicPtr<Communicator>),
}

impl Deref for Whose {
    type Target = Communicator;

    fn deref(&self) -> &Communicator {
        match self {
            Self::Own(communicator) => communicator,
            // SAFETY: the group has stored the address, which is valid until a later call on the group. By the header's promise, such a
            // call does not run while another call uses this handle. `tests/c/survivors.c` uses it in steps and between them.
            Self::OfGroup(at) => unsafe { &*at.load(Ordering::Acquire) },
        }
    }
}

impl Comm {
    /// Makes a handle.
    pub(crate) fn handle(communicator: Communicator) -> *mut Self {
        kolo_rs::internal::cancel::hold_off_by(cancel::BY_RUNTIME);
        let communicator = Whose::Own(communicator);
        Box::into_raw(Box::new(Self { communicator, last_error: Arc::default(), lent: Lent::default() }))
    }
}

impl Comm {
    /// Returns whether a group of survivors owns the communicator.
    pub(crate) const fn is_of_group(&self) -> bool {
        matches!(self.communicator, Whose::OfGroup(_))
    }
}

/// Checks a time in milliseconds.
pub(crate) fn limit(what: &str, milliseconds: i64) -> Outcome<Duration> {
    let number = u64::try_from(milliseconds);
    let number = number.map_err(|_| usage(format!("{what} is {milliseconds}, but must be 0 or more")))?;
    // At most ten years, so that clocks do not overflow; no wait takes longer.
    Ok(Duration::from_millis(number).min(Duration::from_secs(315_360_000)))
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSplit(
    comm: *const Comm,
    color: c_int,
    key: c_int,
    result: *mut *mut Comm,
) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommSplit", comm, |comm| {
            // Report this rank's mistakes to the other ranks, which would otherwise wait for it.
            let refuse = |problem: &str| comm.communicator.refuse_split(problem);
            if result.is_null() {
                return Err(refuse("result is NULL").into());
            }
            let result = place("result", result)?;
            result.write(std::ptr::null_mut());
            let color = match u32::try_from(color) {
                Ok(color) => Some(color),
                Err(_) if i64::from(color) == UNSET => None,
                Err(_) => {
                    let problem = format!("color is {color}, but must be 0 or more, or KOLO_NO_COLOR");
                    return Err(refuse(&problem).into());
                }
            };
            let part = comm.communicator.split(color, key)?;
            result.write(part.map_or(std::ptr::null_mut(), Comm::handle));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommGroup(
    comm: *const Comm,
    ranks: *const c_int,
    count: usize,
    result: *mut *mut Comm,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloCommGroup", comm, |comm| {
            let result = place("result", result)?;
            result.write(std::ptr::null_mut());
            let size = comm.communicator.world_size() as usize;
            if count > size {
                return Err(usage(format!("{count} ranks are listed, but the communicator has {size}")));
            }
            if ranks.is_null() {
                return Err(usage("ranks is NULL"));
            }
            let ranks = std::slice::from_raw_parts(ranks, count);
            let ranks = ranks.iter().map(|rank| checked::number("a listed rank", *rank));
            let part = comm.communicator.group(&ranks.collect::<Outcome<Vec<u32>>>()?)?;
            result.write(Comm::handle(part));
            Ok(())
        })
    }
}

/// Returns the handle in C's variable, if there is one.
///
/// # Safety
/// `variable` is null or points to null or to a live handle.
pub(crate) unsafe fn known<'a>(variable: *const *mut Comm) -> Option<&'a Comm> {
    // SAFETY: the caller's promise, for both. Tested by `tests/c/survivors.c`.
    unsafe { variable.as_ref().and_then(|handle| handle.as_ref()) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommDestroy(comm: *mut *mut Comm) -> c_int {
    guard("koloCommDestroy", None, || {
        // SAFETY: the header's promise: the variable is initialized, with NULL or a handle.
        if unsafe { known(comm) }.is_some_and(Comm::is_of_group) {
            return Err(usage("this communicator belongs to a group; koloSurvivorsDestroy ends both"));
        }
        // SAFETY: the header's promise: the handle is from `Comm::handle`, and no other call uses it any more.
        drop(unsafe { take("comm", comm) }?);
        Ok(())
    })
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommAbort(comm: *const Comm, reason: *const c_char) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommAbort", comm, |comm| {
            comm.communicator.check_process()?;
            let reason = checked::text("reason", reason)?;
            comm.communicator.abort(reason.unwrap_or("koloCommAbort was called without a reason"));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommRevoke(comm: *const Comm) -> c_int {
    // SAFETY: the header's promise.
    unsafe {
        with_comm("koloCommRevoke", comm, |comm| {
            comm.communicator.check_process()?;
            comm.communicator.revoke();
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommAgree(comm: *const Comm, flags: *mut u64, takes_part: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe { agree("koloCommAgree", comm, flags, takes_part, |comm, flags| Ok(comm.agree(flags)?)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommAgreeWithin(
    comm: *const Comm,
    flags: *mut u64,
    takes_part: *mut c_int,
    limit_ms: i64,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        agree("koloCommAgreeWithin", comm, flags, takes_part, |comm, flags| {
            Ok(comm.agree_within(flags, limit("limit_ms", limit_ms)?)?)
        })
    }
}

/// # Safety
/// As for the entries that call it.
unsafe fn agree(
    function: &str,
    comm: *const Comm,
    flags: *mut u64,
    takes_part: *mut c_int,
    agree: impl FnOnce(&Communicator, u64) -> Outcome<Agreement>,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_comm(function, comm, |comm| {
            let flags = place("flags", flags)?;
            let agreed = agree(&comm.communicator, flags.assume_init_read())?;
            flags.write(agreed.flags);
            for rank in 0..comm.communicator.world_size() {
                if !takes_part.is_null() {
                    takes_part.add(rank as usize).write(c_int::from(agreed.ranks.contains(&rank)));
                }
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommShrink(comm: *const Comm, result: *mut *mut Comm) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommShrink", comm, |comm| {
            let result = place("result", result)?;
            result.write(std::ptr::null_mut());
            result.write(Comm::handle(comm.communicator.shrink()?));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommShrinkWithin(comm: *const Comm, limit_ms: i64, result: *mut *mut Comm) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommShrinkWithin", comm, |comm| {
            let result = place("result", result)?;
            result.write(std::ptr::null_mut());
            let made = comm.communicator.shrink_within(limit("limit_ms", limit_ms)?)?;
            result.write(Comm::handle(made));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommEpoch(comm: *const Comm, epoch: *mut u64) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommEpoch", comm, |comm| {
            place("epoch", epoch)?.write(comm.communicator.epoch());
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommRanksBefore(comm: *const Comm, ranks: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommRanksBefore", comm, |comm| {
            place("ranks", ranks)?;
            for (place, rank) in comm.communicator.ranks_before().into_iter().enumerate() {
                ranks.add(place).write(rank.map_or(NEWCOMER, |rank| rank as c_int));
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommGetAsyncError(comm: *const Comm, result: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloCommGetAsyncError", comm, |comm| {
            let result = place("result", result)?;
            let failure = comm.communicator.error().map(Failure::from);
            result.write(failure.as_ref().map_or(SUCCESS, Failure::code));
            if let Some(failure) = failure {
                comm.last_error.set(&failure);
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommRank(comm: *const Comm, rank: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe { ask("koloCommRank", comm, rank, Communicator::rank) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSize(comm: *const Comm, size: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe { ask("koloCommSize", comm, size, Communicator::world_size) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommLocalRank(comm: *const Comm, local_rank: *mut c_int) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe { ask("koloCommLocalRank", comm, local_rank, Communicator::local_rank) }
}

/// # Safety
/// As for the entries that call it.
unsafe fn ask(
    function: &str,
    comm: *const Comm,
    answer: *mut c_int,
    question: fn(&Communicator) -> u32,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe {
        with_comm(function, comm, |comm| {
            // The number of ranks is far below the largest int.
            let answered = c_int::try_from(question(&comm.communicator)).unwrap_or(c_int::MAX);
            place("the place for the answer", answer)?.write(answered);
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSummary(
    comm: *const Comm,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloCommSummary", comm, |comm| {
            give_text(&comm.communicator.summary(), text, bytes, needed)
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommSettings(
    comm: *const Comm,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloCommSettings", comm, |comm| {
            give_text(&comm.communicator.config().settings(), text, bytes, needed)
        })
    }
}
