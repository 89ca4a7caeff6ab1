//! Memory of a communicator's rank: symmetric buffers that are in no call, and the memory of calls that have failed.

use std::sync::{Arc, Mutex, MutexGuard};

use kolo::SymmetricBuffer;
use kolo::internal::Unpoisoned;

use super::data::Remains;
use super::failure::Result;
use crate::random::Random;

/// Most failed calls whose memory is kept.
const REMAINS_MAX: usize = 8;

#[derive(Clone, Debug, Default)]
pub(super) struct Memory {
    buffers: Arc<Mutex<Vec<SymmetricBuffer<u8>>>>,
    remains: Arc<Mutex<Vec<Remains>>>,
}

impl Memory {
    /// Returns the buffers that are in no call.
    pub(super) fn buffers(&self) -> MutexGuard<'_, Vec<SymmetricBuffer<u8>>> {
        self.buffers.lock().unpoisoned()
    }

    /// Adds buffers that are in no call.
    pub(super) fn put(&self, buffers: impl IntoIterator<Item = SymmetricBuffer<u8>>) {
        self.buffers().extend(buffers);
    }

    /// Puts the buffers in another order.
    pub(super) fn shuffle(&self, random: &mut Random) {
        let mut buffers = self.buffers();
        (1..buffers.len()).for_each(|at| buffers.swap(at, random.index(at + 1)));
    }

    /// Frees all but so many buffers.
    pub(super) fn keep(&self, number: usize, random: &mut Random) {
        self.shuffle(random);
        self.buffers().truncate(number);
    }

    /// Keeps the memory of a failed call, which nothing may touch from now on.
    pub(super) fn note(&self, remains: Remains) {
        let mut all = self.remains.lock().unpoisoned();
        if all.len() < REMAINS_MAX {
            all.push(remains);
        }
    }

    /// Checks that the memory of failed calls is as it was when they returned.
    pub(super) fn check_remains(&self) -> Result {
        self.remains.lock().unpoisoned().iter().try_for_each(|remains| Ok(remains.check()?))
    }
}
