//! Devices: how they are listed, opened and closed, and their own events.

use std::collections::HashMap;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{LazyLock, Mutex};

use kolo_verbs::sys::*;

use crate::knob::Knob;
use crate::posting::{post_recv, post_send};
use crate::queues::{poll_cq, req_notify_cq};
use crate::{fail, free, leak, read_from, world};

pub(crate) fn name_of<const N: usize>(text: &str) -> [c_char; N] {
    let mut chars = [0; N];
    for (to, from) in chars.iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    chars
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let (devices, errno, transport) = {
        let knobs = &world().knobs;
        (knobs.of(Knob::Devices, 1), knobs.of(Knob::ListErrno, 0), knobs.of(Knob::Transport, 0))
    };
    if errno != 0 {
        fail(errno as c_int);
        return ptr::null_mut();
    }
    let mut list: Vec<*mut ibv_device> = (0..devices)
        .map(|index| {
            let mut device = ibv_device::zeroed();
            device.node_type = 1;
            device.transport_type = transport as u32;
            device.name = name_of(&format!("fake{index}"));
            device.ibdev_path = name_of(&format!("/sys/class/infiniband/no-such-fake{index}"));
            // The device is never freed: contexts may outlive the list, and there are few devices.
            Box::into_raw(Box::new(device))
        })
        .collect();
    list.push(ptr::null_mut());
    // SAFETY: the pointer leads to the caller's int.
    unsafe { *count = devices as c_int };
    let list = leak(list);
    // SAFETY: the vector was just made. The user sees its first entry; `LISTS` finds the vector again.
    let head = unsafe { (*list).as_mut_ptr() };
    LISTS.lock().expect("as above").insert(head as usize, list as usize);
    head
}

static LISTS: LazyLock<Mutex<HashMap<usize, usize>>> = LazyLock::new(Mutex::default);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_free_device_list(list: *mut *mut ibv_device) {
    let vector = LISTS.lock().expect("as above").remove(&(list as usize)).expect("a live list");
    // SAFETY: the vector was made above, and is freed once.
    unsafe { free(vector as *mut Vec<*mut ibv_device>) };
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_get_device_guid(_: *mut ibv_device) -> u64 {
    0x0123_4567_89ab_cdef_u64.to_be()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context {
    let errno = world().knobs.of(Knob::OpenErrno, 0);
    if errno != 0 {
        fail(errno as c_int);
        return ptr::null_mut();
    }
    let mut ops = ibv_context_ops::zeroed();
    ops.poll_cq = Some(poll_cq);
    ops.req_notify_cq = Some(req_notify_cq);
    ops.post_send = Some(post_send);
    ops.post_recv = Some(post_recv);
    let async_fd = {
        let mut world = world();
        let fd = world.pipe();
        world.async_fds.push(fd);
        fd
    };
    leak(ibv_context {
        device,
        ops,
        cmd_fd: -1,
        async_fd,
        num_comp_vectors: 1,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        abi_compat: ptr::null_mut(),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the context is live until freed below.
    let fd = unsafe { (*context).async_fd };
    let mut world = world();
    world.async_fds.retain(|&other| other != fd);
    world.close(fd);
    drop(world);
    // SAFETY: the context was opened above, and is closed once.
    unsafe { free(context) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    let mut bytes = [0; 8];
    // SAFETY: the context is live, and the event is the caller's.
    unsafe {
        if !read_from((*context).async_fd, &mut bytes) {
            return -1;
        }
        let message = u64::from_ne_bytes(bytes);
        let (element, event_type) = (message >> 8, message as u32 & 0xff);
        *event = ibv_async_event { element, event_type };
    }
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_async_event(_: *mut ibv_async_event) {}
