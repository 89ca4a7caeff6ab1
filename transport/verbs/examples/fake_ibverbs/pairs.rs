//! Queue pairs, and the steps from state to state.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::ptr;

use kolo_verbs::sys::*;

use crate::knob::Knob;
use crate::{Pair, fail, free, leak, world};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the structure is the caller's, and the domain is live.
    let (init, context) = unsafe { (&mut *init, (*pd).context) };
    let errno = world().knobs.of(Knob::CreateQueuePairErrno, 0);
    let refused = init.qp_type != IBV_QPT_RC || init.cap.max_send_wr > 1024 || init.cap.max_send_sge > 4;
    if errno != 0 || refused {
        fail(if errno != 0 { errno as c_int } else { libc::EINVAL });
        return ptr::null_mut();
    }
    // Capacities are rounded up, as by real devices.
    init.cap.max_send_wr = init.cap.max_send_wr.next_power_of_two();
    let number = world().number();
    let pair = Pair {
        state: IBV_QPS_RESET,
        access: 0,
        peer: 0,
        endless_retry: false,
        cap: init.cap,
        send_queue: init.send_cq as usize,
        receive_queue: init.recv_cq as usize,
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        object: 0,
        // SAFETY: the context is live.
        async_fd: unsafe { (*context).async_fd },
    };
    world().pairs.insert(number, pair);
    let object = leak(ibv_qp {
        context,
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: ptr::null_mut(),
        handle: 0,
        qp_num: number,
        state: IBV_QPS_RESET,
        qp_type: IBV_QPT_RC,
        mutex: libc::PTHREAD_MUTEX_INITIALIZER,
        cond: libc::PTHREAD_COND_INITIALIZER,
        events_completed: 0,
    });
    world().pairs.get_mut(&number).expect("just made").object = object.expose_provenance();
    object
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_qp(qp: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: both structures are live.
    let (number, attributes) = unsafe { ((*qp).qp_num, &*attributes) };
    let mut world = world();
    let rtr_errno = world.knobs.of(Knob::RtrErrno, 0) as c_int;
    let pair = world.pairs.get_mut(&number).expect("a live pair");
    let init = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
    let rtr = IBV_QP_AV
        | IBV_QP_PATH_MTU
        | IBV_QP_DEST_QPN
        | IBV_QP_RQ_PSN
        | IBV_QP_MAX_DEST_RD_ATOMIC
        | IBV_QP_MIN_RNR_TIMER;
    let rts = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
    // These are exactly the attributes that the kernel requires in these steps of a reliable connection.
    match (pair.state, attributes.qp_state, mask as u32 & !IBV_QP_STATE) {
        (_, IBV_QPS_ERR, 0) => {}
        (IBV_QPS_RESET, IBV_QPS_INIT, given) if given == init && attributes.port_num == 1 => {
            pair.access = attributes.qp_access_flags;
        }
        (IBV_QPS_INIT, IBV_QPS_RTR, given) if given == rtr && attributes.ah_attr.is_global == 1 => {
            if rtr_errno != 0 {
                return rtr_errno;
            }
            pair.peer = attributes.dest_qp_num;
        }
        (IBV_QPS_RTR, IBV_QPS_RTS, given) if given == rts => {
            pair.endless_retry = attributes.rnr_retry == 7;
        }
        _ => return libc::EINVAL,
    }
    pair.state = attributes.qp_state;
    if pair.state == IBV_QPS_ERR {
        world.flush(number);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: both structures are live.
    unsafe { (*attributes).qp_state = world().pairs[&(*qp).qp_num].state };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the pair was made above, and is live until freed here.
    unsafe {
        world().pairs.remove(&(*qp).qp_num).expect("a live pair");
        free(qp)
    }
}
