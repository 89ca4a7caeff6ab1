//! The attributes that the library sets on every communicator, and the hints of communicators.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError};

use super::Comm;
use crate::constants::*;
use crate::error::{self, Outcome};
use crate::hints;
use crate::info::Pairs;

/// Returns the value of a predefined attribute: an address, or `Some(None)` if it is not set. `None` for all other keyvals.
pub(crate) fn predefined_attribute(_: &Arc<Comm>, keyval: c_int) -> Outcome<Option<Option<usize>>> {
    static TAG_UB_VALUE: c_int = TAG_MAX;
    static ANY_PROCESS: c_int = ANY_SOURCE;
    static NO_HOST: c_int = PROC_NULL;
    static NOT_GLOBAL: c_int = 0;
    static FIRST_APP: c_int = 0;
    static LAST_CODE: AtomicI32 = AtomicI32::new(0);
    let address = |value: &'static c_int| Some(Some(&raw const *value as usize));
    Ok(match keyval {
        TAG_UB => address(&TAG_UB_VALUE),
        IO => address(&ANY_PROCESS),
        HOST => address(&NO_HOST),
        WTIME_IS_GLOBAL => address(&NOT_GLOBAL),
        APPNUM => address(&FIRST_APP),
        LASTUSEDCODE => {
            LAST_CODE.store(crate::flavor::code_out(error::last_used()), Ordering::Relaxed);
            Some(Some(LAST_CODE.as_ptr() as usize))
        }
        UNIVERSE_SIZE => Some(None),
        _ => None,
    })
}

impl Comm {
    pub(super) fn hints(&self) -> Pairs {
        self.info.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_hints(&self, new: Pairs) {
        hints::merge(&mut self.info.lock().unwrap_or_else(PoisonError::into_inner), new);
    }
}
