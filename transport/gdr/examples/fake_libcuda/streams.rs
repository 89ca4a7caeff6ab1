//! Streams and events: copies that wait in their stream until somebody asks.

use std::collections::VecDeque;
use std::ffi::{c_int, c_uint, c_ulonglong};

use crate::{ILLEGAL_ADDRESS, INVALID_CONTEXT, INVALID_VALUE, NOT_READY, State, has_context, state};

pub(crate) enum Item {
    Copy { to: usize, from: usize, bytes: usize },
    Record(usize),
}

impl State {
    /// Executes the next item of a stream; returns whether there was one.
    fn step(&mut self, stream: usize) -> bool {
        let Some(item) = self.streams.get_mut(&stream).and_then(VecDeque::pop_front) else { return false };
        match item {
            Item::Copy { to, from, bytes } => {
                if let Some(left) = &mut self.fails_after {
                    *left -= 1;
                    if *left < 0 {
                        self.fails_after = None;
                        self.failed = true;
                        self.failed_streams.push(stream);
                    }
                }
                // If the memory was freed since, the copy fails, as with a real driver.
                let (Some(to), Some(from)) = (self.reach(to, bytes), self.reach(from, bytes)) else {
                    self.failed = true;
                    return true;
                };
                if !self.failed {
                    // SAFETY: both are mapped, as just looked up.
                    unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
                }
            }
            Item::Record(event) => {
                let result = if std::mem::take(&mut self.failed) { ILLEGAL_ADDRESS } else { 0 };
                self.events.insert(event, Some(result));
            }
        }
        true
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuMemcpyAsync(to: c_ulonglong, from: c_ulonglong, bytes: usize, stream: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let (to, from) = (to as usize, from as usize);
    let mut state = state();
    if state.reach(to, bytes).is_none() || state.reach(from, bytes).is_none() {
        return INVALID_VALUE;
    }
    match state.streams.get_mut(&stream) {
        Some(stream) => stream.push_back(Item::Copy { to, from, bytes }),
        None => return INVALID_VALUE,
    }
    0
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    let name = state.name();
    state.streams.insert(name, VecDeque::new());
    // SAFETY: the caller's promise.
    unsafe { stream.write(name) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(stream: usize) -> c_int {
    match state().streams.remove(&stream) {
        Some(left) => c_int::from(!left.is_empty()),
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(stream: usize) -> c_int {
    let mut state = state();
    while state.step(stream) {}
    let before = state.failed_streams.len();
    state.failed_streams.retain(|failed| *failed != stream);
    if state.failed_streams.len() < before { ILLEGAL_ADDRESS } else { 0 }
}

/// # Safety
/// As for the driver's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> c_int {
    let mut state = state();
    let name = state.name();
    state.events.insert(name, Some(0));
    // SAFETY: the caller's promise.
    unsafe { event.write(name) };
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(event: usize) -> c_int {
    match state().events.remove(&event) {
        Some(_) => 0,
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
extern "C" fn cuEventRecord(event: usize, stream: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    let Some(queue) = state.streams.get_mut(&stream) else { return INVALID_VALUE };
    queue.push_back(Item::Record(event));
    state.events.insert(event, None);
    0
}

#[unsafe(no_mangle)]
extern "C" fn cuEventQuery(event: usize) -> c_int {
    if !has_context() {
        return INVALID_CONTEXT;
    }
    let mut state = state();
    match state.events.get(&event) {
        None => return INVALID_VALUE,
        Some(Some(result)) => return *result,
        Some(None) => {}
    }
    let holds = |queue: &VecDeque<Item>| queue.iter().any(|i| matches!(i, Item::Record(e) if *e == event));
    let found = state.streams.iter().find(|(_, queue)| holds(queue)).map(|(name, _)| *name);
    if let Some(stream) = found {
        state.step(stream);
    }
    NOT_READY
}
