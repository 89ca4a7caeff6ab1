//! Sizes and offsets of the mirrors on x86-64, as printed by `c/layout.c` with the real headers.
//!
//! A wrong mirror does not compile. 64-bit ARM has the same integers but another `pthread_mutex_t`; there, the
//! comparison in `tests/layout.rs` is the check. `oracle/` compares with the crate rdma-sys.

use std::mem::{offset_of, size_of};

use super::constants;
use super::mirror::*;

macro_rules! layout {
    ($($type:ident $size:tt { $($field:ident $offset:literal),* $(,)? })*) => {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        const _: () = {
            $(layout!(@size $type $size);
            $(assert!(offset_of!($type, $field) == $offset, concat!(stringify!($type), ".", stringify!($field)));)*)*
        };

        fn structures(rows: &mut Vec<(String, u64)>) {
            $(layout!(@row rows $type $size);
            $(rows.push((concat!(stringify!($type), ".", stringify!($field)).into(), offset_of!($type, $field) as u64));)*)*
        }
    };
    // `_` marks a structure that grows, of which only the known fields are compared.
    (@size $type:ident _) => {};
    (@size $type:ident $size:literal) => { assert!(size_of::<$type>() == $size, stringify!($type)); };
    (@row $rows:ident $type:ident _) => {};
    (@row $rows:ident $type:ident $size:literal) => {
        $rows.push((stringify!($type).into(), size_of::<$type>() as u64));
    };
}

/// Returns name and number of every mirrored size, offset and constant, in the order and spelling of `c/layout.c`.
#[must_use]
pub fn layout_table() -> Vec<(String, u64)> {
    let mut rows = Vec::new();
    structures(&mut rows);
    rows.extend(constants::ALL.iter().map(|&(name, value)| (name.to_owned(), u64::from(value))));
    rows
}

layout! {
    ibv_gid 16 {  }
    ibv_device 664 { node_type 16, transport_type 20, name 24, dev_name 88, dev_path 152, ibdev_path 408 }
    ibv_context_ops 256 { poll_cq 88, req_notify_cq 96, post_srq_recv 160, post_send 200, post_recv 208 }
    ibv_context 328 { device 0, ops 8, cmd_fd 264, async_fd 268, num_comp_vectors 272, mutex 280, abi_compat 320 }
    ibv_device_attr 232 { fw_ver 0, node_guid 64, sys_image_guid 72, max_mr_size 80, page_size_cap 88, vendor_id 96, vendor_part_id 100, hw_ver 104, max_qp 108, max_qp_wr 112, device_cap_flags 116, max_sge 120, max_cq 128, max_cqe 132, max_mr 136, max_qp_rd_atom 144, max_qp_init_rd_atom 156, atomic_cap 164, max_ee 168, max_srq 212, max_pkeys 224, local_ca_ack_delay 226, phys_port_cnt 227 }
    ibv_port_attr _ { state 0, max_mtu 4, active_mtu 8, gid_tbl_len 12, port_cap_flags 16, max_msg_sz 20, bad_pkey_cntr 24, qkey_viol_cntr 28, pkey_tbl_len 32, lid 34, sm_lid 36, lmc 38, active_width 43, active_speed 44, phys_state 45, link_layer 46, flags 47, port_cap_flags2 48 }
    ibv_gid_entry 32 { gid 0, gid_index 16, port_num 20, gid_type 24, ndev_ifindex 28 }
    ibv_pd 16 { context 0, handle 8 }
    ibv_mr 48 { context 0, pd 8, addr 16, length 24, handle 32, lkey 36, rkey 40 }
    ibv_comp_channel 16 { context 0, fd 8, refcnt 12 }
    ibv_cq 128 { context 0, channel 8, cq_context 16, handle 24, cqe 28, mutex 32, cond 72, comp_events_completed 120, async_events_completed 124 }
    ibv_qp 160 { context 0, qp_context 8, pd 16, send_cq 24, recv_cq 32, srq 40, handle 48, qp_num 52, state 56, qp_type 60, mutex 64, cond 104, events_completed 152 }
    ibv_qp_cap 20 { max_send_wr 0, max_recv_wr 4, max_send_sge 8, max_recv_sge 12, max_inline_data 16 }
    ibv_qp_init_attr 64 { qp_context 0, send_cq 8, recv_cq 16, srq 24, cap 32, qp_type 52, sq_sig_all 56 }
    ibv_global_route 24 { dgid 0, flow_label 16, sgid_index 20, hop_limit 21, traffic_class 22 }
    ibv_ah_attr 32 { grh 0, dlid 24, sl 26, src_path_bits 27, static_rate 28, is_global 29, port_num 30 }
    ibv_qp_attr 144 { qp_state 0, cur_qp_state 4, path_mtu 8, path_mig_state 12, qkey 16, rq_psn 20, sq_psn 24, dest_qp_num 28, qp_access_flags 32, cap 36, ah_attr 56, alt_ah_attr 88, pkey_index 120, alt_pkey_index 122, en_sqd_async_notify 124, sq_draining 125, max_rd_atomic 126, max_dest_rd_atomic 127, min_rnr_timer 128, port_num 129, timeout 130, retry_cnt 131, rnr_retry 132, alt_port_num 133, alt_timeout 134, rate_limit 136 }
    ibv_sge 16 { addr 0, length 8, lkey 12 }
    ibv_send_wr 128 { wr_id 0, next 8, sg_list 16, num_sge 24, opcode 28, send_flags 32, imm_data 36, wr 40, qp_type 72 }
    ibv_recv_wr 32 { wr_id 0, next 8, sg_list 16, num_sge 24 }
    ibv_wc 48 { wr_id 0, status 8, opcode 12, vendor_err 16, byte_len 20, imm_data 24, qp_num 28, src_qp 32, wc_flags 36, pkey_index 40, slid 42, sl 44, dlid_path_bits 45 }
    ibv_async_event 16 { element 0, event_type 8 }
}
