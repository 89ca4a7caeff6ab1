//! Performance variables: counts of messages.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::control::BIND_NO_OBJECT;
use super::{INVALID_HANDLE, INVALID_NAME, check, free, give, give_text, index, wrong};
use crate::args::{put, text};
use crate::error::Outcome;
use crate::handle::Table;
use crate::net;

const INVALID_SESSION: c_int = 67;
const NO_STARTSTOP: c_int = 70;
const NO_WRITE: c_int = 71;
const INVALID: c_int = 74;
const VERBOSITY_TUNER_BASIC: c_int = 224;
const CLASS_LEVEL: c_int = 241;
const CLASS_COUNTER: c_int = 246;
const CLASS_AGGREGATE: c_int = 247;
const TYPE_UNSIGNED_LONG_LONG: c_int = 0x4c00_0819;

static SESSIONS: Table<()> = Table::new(0x9);
static PVARS: Table<Arc<Pvar>> = Table::new(0xa);

/// A handle of a performance variable.
struct Pvar {
    session: usize,
    at: usize,
    /// The raw value that counts as zero, since the last reset or write.
    base: AtomicU64,
}

/// A performance variable.
pub(super) struct Counted {
    name: &'static str,
    about: &'static str,
    class: c_int,
    value: fn() -> u64,
}

fn of_net(look: impl FnOnce(&net::Net) -> u64) -> u64 {
    net::net().map_or(0, |net| look(&net))
}

pub(super) const COUNTED: [Counted; 8] = [
    Counted {
        name: "messages_sent",
        about: "messages that this process has sent to other ranks or to itself, not counting those inside \
                Kolo's own collectives",
        class: CLASS_COUNTER,
        value: || of_net(|net| net.counters().sent),
    },
    Counted {
        name: "bytes_sent",
        about: "their bytes",
        class: CLASS_AGGREGATE,
        value: || of_net(|net| net.counters().sent_bytes),
    },
    Counted {
        name: "messages_received",
        about: "messages that this process has received",
        class: CLASS_COUNTER,
        value: || of_net(|net| net.counters().received),
    },
    Counted {
        name: "bytes_received",
        about: "their bytes",
        class: CLASS_AGGREGATE,
        value: || of_net(|net| net.counters().received_bytes),
    },
    Counted {
        name: "unexpected_messages",
        about: "messages that arrived before a matching receive",
        class: CLASS_COUNTER,
        value: || of_net(|net| net.counters().unexpected),
    },
    Counted {
        name: "unexpected_queue",
        about: "messages that currently wait for a matching receive",
        class: CLASS_LEVEL,
        value: || of_net(|net| net.queued().1),
    },
    Counted {
        name: "posted_receives",
        about: "receives that currently wait for a message, not counting blocking ones posted to a transport",
        class: CLASS_LEVEL,
        value: || of_net(|net| net.queued().0),
    },
    Counted {
        name: "sleeps",
        about: "times that a thread went to sleep in a waiting call because nothing had arrived for a long \
                time",
        class: CLASS_COUNTER,
        value: net::sleeps,
    },
];

pub unsafe fn t_pvar_get_num(number: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(number, COUNTED.len() as c_int) }
}

pub unsafe fn t_pvar_get_info(
    at: c_int,
    name: *mut c_char,
    name_length: *mut c_int,
    verbosity: *mut c_int,
    class: *mut c_int,
    of: *mut c_int,
    values: *mut usize,
    about: *mut c_char,
    about_length: *mut c_int,
    bind: *mut c_int,
    readonly: *mut c_int,
    continuous: *mut c_int,
    atomic: *mut c_int,
) -> Outcome {
    check()?;
    let counted = &COUNTED[index(&COUNTED, at)?];
    // SAFETY: the caller's promise: the strings have room as their lengths say, and the other pointers are valid or NULL.
    unsafe {
        give_text(counted.name, name, name_length)?;
        give_text(counted.about, about, about_length)?;
        give(verbosity, VERBOSITY_TUNER_BASIC);
        give(class, counted.class);
        give(of, TYPE_UNSIGNED_LONG_LONG);
        give(values, 0);
        give(bind, BIND_NO_OBJECT);
        give(readonly, c_int::from(counted.class == CLASS_LEVEL));
        give(continuous, 1);
        give(atomic, 0);
    }
    Ok(())
}

pub unsafe fn t_pvar_get_index(name: *const c_char, class: c_int, at: *mut c_int) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }?;
    match COUNTED.iter().position(|counted| counted.name == name && counted.class == class) {
        // SAFETY: the caller's promise.
        Some(found) => unsafe { put(at, found as c_int) },
        None => wrong(INVALID_NAME),
    }
}

pub unsafe fn t_pvar_session_create(session: *mut usize) -> Outcome {
    check()?;
    // SAFETY: the caller's promise.
    unsafe { put(session, SESSIONS.insert(()) as u32 as usize) }
}

pub unsafe fn t_pvar_session_free(session: *mut usize) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe { free(&SESSIONS, session, INVALID_SESSION) }
}

pub unsafe fn t_pvar_handle_alloc(
    session: usize,
    at: c_int,
    _object: *mut c_void,
    handle: *mut usize,
    count: *mut c_int,
) -> Outcome {
    check()?;
    SESSIONS.get(session as c_int).map_or_else(|| wrong(INVALID_SESSION), Ok)?;
    let at = index(&COUNTED, at)?;
    let base = if COUNTED[at].class == CLASS_LEVEL { 0 } else { (COUNTED[at].value)() };
    let made = PVARS.insert(Arc::new(Pvar { session, at, base: AtomicU64::new(base) }));
    // SAFETY: the caller's promise.
    unsafe {
        put(handle, made as u32 as usize)?;
        put(count, 1)
    }
}

fn pvar(session: usize, handle: usize) -> Outcome<Arc<Pvar>> {
    check()?;
    SESSIONS.get(session as c_int).map_or_else(|| wrong(INVALID_SESSION), Ok)?;
    match PVARS.get(handle as c_int) {
        Some(found) if found.session == session => Ok(found),
        _ => wrong(INVALID_HANDLE),
    }
}

pub unsafe fn t_pvar_handle_free(session: usize, handle: *mut usize) -> Outcome {
    // SAFETY: the caller's promise; the front end has checked that it is not null.
    unsafe {
        pvar(session, *handle)?;
        PVARS.remove(*handle as c_int);
        *handle = 0;
    }
    Ok(())
}

/// `MPI_T_PVAR_ALL_HANDLES`. Starting and stopping all handles skips continuous variables, and all variables here are continuous.
const ALL_HANDLES: usize = 1;

fn start_or_stop(session: usize, handle: usize) -> Outcome {
    check()?;
    SESSIONS.get(session as c_int).map_or_else(|| wrong(INVALID_SESSION), Ok)?;
    if handle == ALL_HANDLES {
        return Ok(());
    }
    pvar(session, handle)?;
    wrong(NO_STARTSTOP)
}

pub unsafe fn t_pvar_start(session: usize, handle: usize) -> Outcome {
    start_or_stop(session, handle)
}

pub unsafe fn t_pvar_stop(session: usize, handle: usize) -> Outcome {
    start_or_stop(session, handle)
}

impl Pvar {
    fn read(&self) -> u64 {
        (COUNTED[self.at].value)().wrapping_sub(self.base.load(Ordering::Relaxed))
    }

    /// Sets the value from which the variable counts on.
    fn set(&self, value: u64) -> Outcome {
        if COUNTED[self.at].class == CLASS_LEVEL {
            return wrong(NO_WRITE);
        }
        self.base.store((COUNTED[self.at].value)().wrapping_sub(value), Ordering::Relaxed);
        Ok(())
    }
}

pub unsafe fn t_pvar_read(session: usize, handle: usize, into: *mut c_void) -> Outcome {
    let value = pvar(session, handle)?.read();
    // SAFETY: the caller's promise: a number of the variable's type.
    unsafe { put(into.cast(), value) }
}

pub unsafe fn t_pvar_write(session: usize, handle: usize, from: *const c_void) -> Outcome {
    let variable = pvar(session, handle)?;
    if from.is_null() {
        return wrong(INVALID);
    }
    // SAFETY: the caller's promise: a number of the variable's type.
    variable.set(unsafe { from.cast::<u64>().read_unaligned() })
}

pub unsafe fn t_pvar_reset(session: usize, handle: usize) -> Outcome {
    if handle == ALL_HANDLES {
        check()?;
        SESSIONS.get(session as c_int).map_or_else(|| wrong(INVALID_SESSION), Ok)?;
        for variable in PVARS.all().iter().filter(|variable| variable.session == session) {
            // Read-only variables stay as they are.
            let _ = variable.set(0);
        }
        return Ok(());
    }
    pvar(session, handle)?.set(0)
}

pub unsafe fn t_pvar_readreset(session: usize, handle: usize, into: *mut c_void) -> Outcome {
    // SAFETY: the caller's promise.
    unsafe { t_pvar_read(session, handle, into) }?;
    pvar(session, handle)?.set(0)
}
