//! The lock on a communicator's state.

use std::ops::{Deref, DerefMut};
use std::sync::MutexGuard;

use super::Core;
use crate::engine::Owner;

/// The state of a communicator, for as long as this thread holds it.
///
/// Owners of buffers are users' code: their `drop` may call the communicator again, or take a lock of the program's. The
/// engine therefore only releases them, and they are dropped here once other threads can have the state.
#[derive(Debug)]
pub(crate) struct CoreGuard<'a> {
    // Fields are dropped in this order: the lock, then the owners.
    core: MutexGuard<'a, Core>,
    released: Vec<Owner>,
}

impl<'a> CoreGuard<'a> {
    #[inline]
    pub(super) const fn new(core: MutexGuard<'a, Core>) -> Self {
        Self { core, released: Vec::new() }
    }
}

impl Deref for CoreGuard<'_> {
    type Target = Core;

    #[inline]
    fn deref(&self) -> &Core {
        &self.core
    }
}

impl DerefMut for CoreGuard<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Core {
        &mut self.core
    }
}

impl Drop for CoreGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.core.engine.has_released() {
            self.released = self.core.engine.take_released();
        }
    }
}
