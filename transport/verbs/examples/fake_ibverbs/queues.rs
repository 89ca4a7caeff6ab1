//! Completion queues and channels.

use std::ffi::{c_int, c_void};
use std::ptr;

use kolo_verbs::sys::*;

use crate::{Queue, fail, free, leak, read_from, world};

#[unsafe(no_mangle)]
pub extern "C" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let fd = world().pipe();
    leak(ibv_comp_channel { context, fd, refcnt: 0 })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the channel was made above, and is live until freed here.
    unsafe {
        world().close((*channel).fd);
        free(channel)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if cqe > 4096 {
        fail(libc::EINVAL);
        return ptr::null_mut();
    }
    let queue = leak(ibv_cq {
        context,
        channel,
        cq_context,
        handle: 0,
        cqe,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        comp_events_completed: 0,
        async_events_completed: 0,
    });
    // SAFETY: the channel is live, or the pointer null.
    let event_fd = unsafe { channel.as_ref() }.map(|channel| channel.fd);
    // SAFETY: the context is live.
    let async_fd = unsafe { (*context).async_fd };
    world().queues.insert(queue as usize, Queue { event_fd, async_fd, ..Queue::default() });
    queue
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int {
    let found = world().queues.remove(&(queue as usize)).expect("a live queue");
    assert_eq!(found.unacknowledged, 0, "the real one would wait here for ever");
    // SAFETY: the queue was made above, and is freed once.
    unsafe { free(queue) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_get_cq_event(
    channel: *mut ibv_comp_channel,
    queue: *mut *mut ibv_cq,
    cookie: *mut *mut c_void,
) -> c_int {
    let mut bytes = [0; 8];
    loop {
        // SAFETY: the channel is live.
        if !unsafe { read_from((*channel).fd, &mut bytes) } {
            return -1;
        }
        let found = usize::from_ne_bytes(bytes);
        // The kernel drops the events of a queue that is destroyed before they are read.
        let mut world = world();
        let Some(live) = world.queues.get_mut(&found) else { continue };
        live.unacknowledged += 1;
        // SAFETY: the pointers are the caller's; the queue is live, since its event was not acknowledged.
        unsafe {
            *queue = found as *mut ibv_cq;
            *cookie = (**queue).cq_context;
        }
        return 0;
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ibv_ack_cq_events(queue: *mut ibv_cq, count: u32) {
    world().queues.get_mut(&(queue as usize)).expect("a live queue").unacknowledged -= count;
}

pub(crate) unsafe extern "C" fn poll_cq(queue: *mut ibv_cq, room: c_int, out: *mut ibv_wc) -> c_int {
    let mut world = world();
    let entries = &mut world.queues.get_mut(&(queue as usize)).expect("a live queue").entries;
    let count = entries.len().min(room as usize);
    for (index, entry) in entries.drain(..count).enumerate() {
        // SAFETY: the caller's array has `room` entries.
        unsafe { *out.add(index) = entry };
    }
    count as c_int
}

pub(crate) unsafe extern "C" fn req_notify_cq(queue: *mut ibv_cq, _: c_int) -> c_int {
    world().queues.get_mut(&(queue as usize)).expect("a live queue").armed = true;
    0
}
