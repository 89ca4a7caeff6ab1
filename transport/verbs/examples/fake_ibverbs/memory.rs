//! Protection domains and registered memory.

use std::ffi::{c_int, c_void};
use std::ptr;

use kolo_verbs::sys::*;

use crate::knob::Knob;
use crate::{Region, fail, free, leak, world};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    leak(ibv_pd { context, handle: 0 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int {
    // SAFETY: the domain was allocated above, and is freed once.
    unsafe { free(domain) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    domain: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(domain, addr, length, access as u32) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    domain: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: u32,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { register(domain, addr, length, access) }
}

unsafe fn register(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: u32) -> *mut ibv_mr {
    let key = {
        let mut world = world();
        let is_for_writing = access & IBV_ACCESS_LOCAL_WRITE != 0;
        let of_writing = if is_for_writing { world.knobs.of(Knob::WritableErrno, 0) } else { 0 };
        let errno = world.knobs.of(Knob::RegisterErrno, of_writing);
        if errno != 0 {
            fail(errno as c_int);
            return ptr::null_mut();
        }
        let lockable = world.knobs.of(Knob::Lockable, 0) as u64;
        if lockable > 0 && world.registered() + length as u64 > lockable {
            fail(libc::ENOMEM);
            return ptr::null_mut();
        }
        world.registrations += 1;
        let key = world.number();
        world.regions.insert(key, Region { start: addr as u64, len: length as u64, access });
        key
    };
    // SAFETY: the domain is live.
    let context = unsafe { (*pd).context };
    leak(ibv_mr { context, pd, addr, length, handle: 0, lkey: key, rkey: key })
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_reg_dmabuf_mr(
    _: *mut ibv_pd,
    _: u64,
    _: usize,
    _: u64,
    fd: c_int,
    _: c_int,
) -> *mut ibv_mr {
    fail(if fd < 0 { libc::EBADF } else { libc::EINVAL });
    ptr::null_mut()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int {
    // SAFETY: the region was registered above, and is live until freed here.
    unsafe {
        world().regions.remove(&(*region).lkey).expect("a live region");
        free(region)
    }
}
