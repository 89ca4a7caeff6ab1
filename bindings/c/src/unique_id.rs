//! Unique ids, which a program passes on by its own means.

use std::ffi::{c_char, c_int};

use kolo_rs::Error;
use kolo_rs::JoinSpec;
use kolo_rs::internal::join::{self, Reservation};

use crate::abi::UniqueId;
use crate::checked;
use crate::guard::{Failure, Outcome, guard, place, usage};

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGetUniqueId(id: *mut UniqueId, host: *const c_char) -> c_int {
    guard("koloGetUniqueId", None, || {
        // SAFETY: the header's promise, for both pointers.
        let (to, host) = unsafe { (place("id", id)?, checked::text("host", host)?) };
        to.write(UniqueId { bytes: join::UniqueId::new(host).map_err(argument)?.bytes });
        Ok(())
    })
}

/// Returns the join specification of a rank that joins by an id.
pub(crate) fn join_spec(id: &UniqueId, world_size: u32, rank: u32) -> Outcome<JoinSpec> {
    join::UniqueId { bytes: id.bytes }.join_spec(world_size, rank).map_err(argument)
}

/// Takes the reservation that keeps the port of an id free, if this process made the id. It can be taken once.
pub(crate) fn take_reservation(id: &UniqueId) -> Option<Reservation> {
    join::UniqueId { bytes: id.bytes }.take_reservation()
}

/// Turns a configuration error about an id into a usage error, since an id is an argument here and not a setting.
fn argument(error: Error) -> Failure {
    match &error {
        Error::Configuration { setting, .. } if setting == "unique id" => usage(error.to_string()),
        _ => error.into(),
    }
}
