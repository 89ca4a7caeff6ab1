//! What tests set, and ask.

use std::collections::HashMap;

use crate::knob::Knob;
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
    world.knobs.set(knob, value);
}

#[unsafe(no_mangle)]
pub extern "C" fn fake_live() -> i64 {
    world().live
}
