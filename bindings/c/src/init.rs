//! The entries that make a process's first communicator.

use std::ffi::{c_char, c_int};

use kolo_rs::Communicator;
use kolo_rs::JoinSpec;

use crate::abi::{self, UniqueId};
use crate::cancel::Uncancelled;
use crate::comm::Comm;
use crate::guard::{Outcome, guard, place, usage};
use crate::{checked, config, unique_id};

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommInitEnv(comm: *mut *mut Comm, config: *const abi::Config) -> c_int {
    // Without a join specification, the environment says where to join, also as a newcomer.
    // SAFETY: the header's promise.
    unsafe { init("koloCommInitEnv", comm, config, || Ok(None)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommInitUrl(
    comm: *mut *mut Comm,
    url: *const c_char,
    world_size: c_int,
    rank: c_int,
    config: *const abi::Config,
) -> c_int {
    let spec = || {
        // SAFETY: the header's promise.
        let url = unsafe { checked::text("url", url) }?.ok_or_else(|| usage("url is NULL"))?;
        Ok(Some(JoinSpec::parse_url(&numbered(url, world_size, rank)?)?))
    };
    // SAFETY: the header's promise.
    unsafe { init("koloCommInitUrl", comm, config, spec) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommInitRank(
    comm: *mut *mut Comm,
    world_size: c_int,
    id: *const UniqueId,
    rank: c_int,
    config: *const abi::Config,
) -> c_int {
    // Closing the reserved port is a cancellation point.
    let _whole = Uncancelled::new();
    let mut reserved = None;
    let spec = || {
        // SAFETY: the header's promise.
        let id = unsafe { id.as_ref() }.ok_or_else(|| usage("id is NULL"))?;
        let (world_size, rank) = (checked::number("nranks", world_size)?, checked::number("rank", rank)?);
        let spec = unique_id::join_spec(id, world_size, rank)?;
        if rank == 0 {
            // Kept until the runtime itself listens, and released in any case, since an id serves only once.
            reserved = unique_id::take_reservation(id);
        }
        Ok(Some(spec))
    };
    // SAFETY: the header's promise.
    let code = unsafe { init("koloCommInitRank", comm, config, spec) };
    drop(reserved);
    code
}

/// # Safety
/// As for the entries that call it.
unsafe fn init(
    function: &str,
    comm: *mut *mut Comm,
    config: *const abi::Config,
    spec: impl FnOnce() -> Outcome<Option<JoinSpec>>,
) -> c_int {
    guard(function, None, || {
        // SAFETY: the caller's promise, for both pointers.
        let comm = unsafe { place("comm", comm) }?;
        comm.write(std::ptr::null_mut());
        // SAFETY: as above.
        let config = unsafe { config::resolve(config) }?;
        let builder = Communicator::builder().config(config);
        let builder = match spec()? {
            Some(spec) => builder.join(spec),
            None => builder,
        };
        comm.write(Comm::handle(builder.connect()?));
        Ok(())
    })
}

/// Adds rank and number of ranks to the URL, if they are given.
fn numbered(url: &str, world_size: c_int, rank: c_int) -> Outcome<String> {
    if (world_size, rank) == (-1, -1) {
        return Ok(url.to_owned());
    }
    let (world_size, rank) = (checked::number("nranks", world_size)?, checked::number("rank", rank)?);
    if url.starts_with("env:") {
        return Err(usage("env:// takes rank and nranks from the environment; pass -1 for both"));
    }
    let joint = if url.contains('?') { '&' } else { '?' };
    Ok(format!("{url}{joint}rank={rank}&world_size={world_size}"))
}
