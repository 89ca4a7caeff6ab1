//! The attributes that the library sets on every communicator, and the hints of communicators.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use kolo_transport::Unpoisoned;

use super::Comm;
use crate::constants::*;
use crate::error::{self, Outcome};
use crate::flavor;
use crate::hints;
use crate::info::Pairs;

/// Returns the value of a predefined attribute: an address, or `Some(None)` if it is not set. `None` for all other keyvals.
pub(crate) fn predefined_attribute(_: &Arc<Comm>, keyval: c_int) -> Outcome<Option<Option<usize>>> {
    // A program may write to the values, though it must not: that changes neither the limits nor what the next call returns.
    static VALUES: [AtomicI32; 6] = [const { AtomicI32::new(0) }; 6];
    let (at, value) = match keyval {
        TAG_UB => (0, TAG_MAX),
        IO => (1, flavor::rank_out(ANY_SOURCE)),
        HOST => (2, flavor::rank_out(PROC_NULL)),
        WTIME_IS_GLOBAL => (3, 0),
        APPNUM => (4, 0),
        LASTUSEDCODE => (5, flavor::code_out(error::last_used())),
        UNIVERSE_SIZE => return Ok(Some(None)),
        _ => return Ok(None),
    };
    VALUES[at].store(value, Ordering::Relaxed);
    Ok(Some(Some(VALUES[at].as_ptr() as usize)))
}

impl Comm {
    pub(super) fn hints(&self) -> Pairs {
        self.info.lock().unpoisoned().clone()
    }

    pub(super) fn set_hints(&self, new: Pairs) {
        hints::merge(&mut self.info.lock().unpoisoned(), new);
    }
}
