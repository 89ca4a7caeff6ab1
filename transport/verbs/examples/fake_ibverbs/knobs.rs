//! Settings of the stand-in for tests, and its answers to their questions.

use std::collections::HashMap;
use std::ffi::c_int;

use kolo_verbs::sys::*;

use crate::knob::{Count, Knob};
use crate::{World, world};

/// Values by the number of a [`Knob`].
#[derive(Default)]
pub(crate) struct Knobs {
    values: HashMap<u32, i64>,
}

impl Knobs {
    pub(crate) fn of(&self, knob: Knob, default: i64) -> i64 {
        *self.values.get(&(knob as u32)).unwrap_or(&default)
    }

    /// Takes a value that applies only once.
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
        world.befall(value as u32);
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
        c if c == Count::Inline as u32 => world.inline,
        _ => -1,
    }
}

impl World {
    /// Reports an event: that of a queue pair or completion queue to the user of its device, others to all users.
    fn befall(&self, event_type: u32) {
        let place = self.knobs.of(Knob::EventPlace, 0) as usize;
        let (object, only) = match event_type {
            IBV_EVENT_CQ_ERR => {
                let mut queues: Vec<usize> = self.queues.keys().copied().collect();
                queues.sort_unstable();
                (queues[place], Some(self.queues[&queues[place]].async_fd))
            }
            IBV_EVENT_QP_FATAL..=IBV_EVENT_QP_ACCESS_ERR => {
                let pair = &self.pairs[&self.pair_at(place)];
                (pair.object, Some(pair.async_fd))
            }
            // An event of a port carries the port's number.
            _ => (1, None),
        };
        let message = (object as u64) << 8 | u64::from(event_type);
        for &fd in self.async_fds.iter().filter(|fd| only.is_none_or(|only| only == **fd)) {
            self.tell(fd, &message.to_ne_bytes());
        }
    }
}

/// Prepares nothing; tests check whether it was called in time.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_fork_init() -> c_int {
    let mut world = world();
    world.fork_calls += 1;
    world.regions_at_fork = world.regions.len() as i64;
    world.knobs.of(Knob::ForkErrno, 0) as c_int
}

/// Answers as if the kernel copied pinned pages.
#[unsafe(no_mangle)]
pub extern "C" fn ibv_is_fork_initialized() -> c_int {
    2
}
