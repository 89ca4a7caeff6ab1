//! What tests set, and ask.

use std::collections::HashMap;
use std::ffi::c_int;

use kolo_verbs::sys::*;

use crate::knob::{Count, Knob};
use crate::world;

/// Values by number of a [`Knob`].
#[derive(Default)]
pub(crate) struct Knobs {
    values: HashMap<u32, i64>,
}

impl Knobs {
    pub(crate) fn of(&self, knob: Knob, default: i64) -> i64 {
        *self.values.get(&(knob as u32)).unwrap_or(&default)
    }

    /// A value that counts once.
    pub(crate) fn take(&mut self, knob: Knob) -> Option<i64> {
        self.values.remove(&(knob as u32))
    }

    fn set(&mut self, knob: u32, value: i64) {
        self.values.insert(knob, value);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_set(knob: u32, value: i64) {
    let mut world = world();
    if knob == Knob::AsyncEvent as u32 {
        for &fd in &world.async_fds {
            world.tell(fd, &(value as u32).to_ne_bytes());
        }
        return;
    }
    if knob == Knob::FailPair as u32 {
        let number = world.pair_at(value as usize);
        world.pairs.get_mut(&number).expect("a live pair").state = IBV_QPS_ERR;
        world.flush(number);
        return;
    }
    world.knobs.set(knob, value);
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_get(count: u32) -> i64 {
    let world = world();
    match count {
        c if c == Count::Live as u32 => world.live,
        c if c == Count::ForkCalls as u32 => world.fork_calls,
        c if c == Count::RegionsAtFork as u32 => world.regions_at_fork,
        c if c == Count::Registrations as u32 => world.registrations,
        c if c == Count::Registered as u32 => world.registered() as i64,
        c if c == Count::Pairs as u32 => world.pairs.len() as i64,
        _ => -1,
    }
}

/// Prepares nothing; tests ask whether it was called in time.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    let mut world = world();
    world.fork_calls += 1;
    world.regions_at_fork = world.regions.len() as i64;
    world.knobs.of(Knob::ForkErrno, 0) as c_int
}

/// As where the kernel copies pinned pages.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
