//! Posting of requests.

use std::ffi::c_int;

use kolo_verbs::sys::*;

use crate::{Sending, world};

unsafe fn pieces(list: *mut ibv_sge, count: c_int) -> Vec<ibv_sge> {
    // SAFETY: the array is the caller's; an empty one may have any address.
    if count == 0 { Vec::new() } else { unsafe { std::slice::from_raw_parts(list, count as usize) }.to_vec() }
}

pub(crate) unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut request: *mut ibv_send_wr,
    refused: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: by the caller's promise, the pair is live and the requests are a chain.
    unsafe {
        let number = (*qp).qp_num;
        while let Some(raw) = request.as_ref() {
            let mut world = world();
            let pair = world.pairs.get_mut(&number).expect("a live pair");
            let errno = match pair.state {
                IBV_QPS_RTS | IBV_QPS_ERR if pair.sends.len() >= pair.cap.max_send_wr as usize => {
                    libc::ENOMEM
                }
                IBV_QPS_RTS | IBV_QPS_ERR if raw.num_sge as u32 <= pair.cap.max_send_sge => 0,
                _ => libc::EINVAL,
            };
            if errno != 0 {
                *refused = request;
                return errno;
            }
            let pieces = pieces(raw.sg_list, raw.num_sge);
            let inline = (raw.send_flags & IBV_SEND_INLINE != 0).then(|| {
                pieces
                    .iter()
                    .flat_map(|piece| {
                        std::slice::from_raw_parts(piece.addr as *const u8, piece.length as usize)
                    })
                    .copied()
                    .collect()
            });
            let is_inline = inline.is_some();
            pair.sends.push_back(Sending {
                id: raw.wr_id,
                opcode: raw.opcode,
                flags: raw.send_flags,
                immediate: raw.imm_data,
                remote: raw.wr.rdma.remote_addr,
                key: raw.wr.rdma.rkey,
                pieces,
                inline,
            });
            world.inline += i64::from(is_inline);
            world.progress(number);
            request = raw.next;
        }
    }
    0
}

pub(crate) unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    request: *mut ibv_recv_wr,
    refused: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the pair is live, and there is one request, as this crate's layer posts them.
    let (number, raw) = unsafe { ((*qp).qp_num, &*request) };
    let mut world = world();
    let pair = world.pairs.get_mut(&number).expect("a live pair");
    let errno = match pair.state {
        IBV_QPS_RESET => libc::EINVAL,
        _ if pair.receives.len() >= pair.cap.max_recv_wr as usize => libc::ENOMEM,
        _ => 0,
    };
    if errno != 0 {
        // SAFETY: the pointer is the caller's.
        unsafe { *refused = request };
        return errno;
    }
    // SAFETY: the array is the caller's.
    pair.receives.push_back((raw.wr_id, unsafe { pieces(raw.sg_list, raw.num_sge) }));
    let peer = pair.peer;
    if pair.state == IBV_QPS_ERR {
        world.flush(number);
    }
    world.progress(peer);
    0
}
