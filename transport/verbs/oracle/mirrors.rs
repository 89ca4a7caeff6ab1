//! Compares every size, offset and constant that `kolo_verbs::sys` mirrors with those that the crate rdma-sys takes
//! from the installed headers. Without `--cfg kolo_rdma_sys` this crate is empty.
#![cfg(all(test, kolo_rdma_sys))]

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use rdma_sys::*;

/// `grows` marks a structure that is longer in newer libraries, so that the mirror has slack and its size is not
/// compared. `a = b` means that rdma-sys names the field `b`.
macro_rules! structures {
    ($rows:ident: $($type:ident $($grows:ident)? { $($field:ident $(= $theirs:ident)?),* $(,)? })*) => {
        $(structures!(@size $rows $type $($grows)?);
        $($rows.push((
            concat!(stringify!($type), ".", stringify!($field)),
            structures!(@offset $type $field $($theirs)?) as u64,
        ));)*)*
    };
    (@size $rows:ident $type:ident grows) => {};
    (@size $rows:ident $type:ident) => { $rows.push((stringify!($type), size_of::<$type>() as u64)); };
    (@offset $type:ident $field:ident) => { offset_of!($type, $field) };
    (@offset $type:ident $field:ident $theirs:ident) => { offset_of!($type, $theirs) };
}

/// Constants in a module, of a newtype, or of a Rust enumeration.
macro_rules! constants {
    ($rows:ident: $(mod $module:ident [$($of_module:ident)*])* $(bits $bits:ident [$($of_bits:ident)*])*
        $(enum $enum:ident [$($of_enum:ident)*])*) => {
        $($($rows.push((stringify!($of_module), $module::$of_module as u64));)*)*
        $($($rows.push((stringify!($of_bits), u64::from($bits::$of_bits.0)));)*)*
        $($($rows.push((stringify!($of_enum), $enum::$of_enum as u64));)*)*
    };
}

/// Constants of enumerations without a name, which rdma-sys leaves out; `tests/layout.rs` of kolo-verbs compares
/// them.
const LEFT_OUT: [&str; 2] = ["IBV_LINK_LAYER_INFINIBAND", "IBV_LINK_LAYER_ETHERNET"];

fn theirs() -> Vec<(&'static str, u64)> {
    let mut rows = Vec::new();
    structures! { rows:
        ibv_gid {}
        ibv_device { node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
        ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
        ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver,
            max_qp, max_qp_wr, device_cap_flags, max_sge, max_cq, max_cqe, max_mr, max_qp_rd_atom,
            max_qp_init_rd_atom, atomic_cap, max_ee, max_srq, max_pkeys, local_ca_ack_delay, phys_port_cnt,
        }
        ibv_port_attr grows {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr,
            pkey_tbl_len, lid, sm_lid, lmc, active_width, active_speed, phys_state, link_layer, flags,
            port_cap_flags2,
        }
        ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        ibv_pd { context, handle }
        ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        ibv_comp_channel { context, fd, refcnt }
        ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond, comp_events_completed, async_events_completed,
        }
        ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state, qp_type, mutex, cond,
            events_completed,
        }
        ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags,
            cap, ah_attr, alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining,
            max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
            alt_port_num, alt_timeout, rate_limit,
        }
        ibv_sge { addr, length, lkey }
        ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data = imm_data_invalidated_rkey_union, wr,
            qp_type,
        }
        ibv_recv_wr { wr_id, next, sg_list, num_sge }
        ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data = imm_data_invalidated_rkey_union, qp_num,
            src_qp, wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        ibv_async_event { element, event_type }
    }
    constants! { rows:
        mod ibv_qp_type [IBV_QPT_RC]
        mod ibv_qp_state [IBV_QPS_RESET IBV_QPS_INIT IBV_QPS_RTR IBV_QPS_RTS IBV_QPS_ERR]
        mod ibv_wr_opcode [
            IBV_WR_RDMA_WRITE IBV_WR_RDMA_WRITE_WITH_IMM IBV_WR_SEND IBV_WR_SEND_WITH_IMM IBV_WR_RDMA_READ
        ]
        mod ibv_wc_opcode [
            IBV_WC_SEND IBV_WC_RDMA_WRITE IBV_WC_RDMA_READ IBV_WC_RECV IBV_WC_RECV_RDMA_WITH_IMM
        ]
        mod ibv_wc_status [IBV_WC_TM_RNDV_INCOMPLETE]
        mod ibv_port_state [IBV_PORT_ACTIVE]
        mod ibv_transport_type [IBV_TRANSPORT_IB IBV_TRANSPORT_IWARP]
        bits ibv_qp_attr_mask [
            IBV_QP_STATE IBV_QP_ACCESS_FLAGS IBV_QP_PKEY_INDEX IBV_QP_PORT IBV_QP_AV IBV_QP_PATH_MTU
            IBV_QP_TIMEOUT IBV_QP_RETRY_CNT IBV_QP_RNR_RETRY IBV_QP_RQ_PSN IBV_QP_MAX_QP_RD_ATOMIC
            IBV_QP_MIN_RNR_TIMER IBV_QP_SQ_PSN IBV_QP_MAX_DEST_RD_ATOMIC IBV_QP_CAP IBV_QP_DEST_QPN
        ]
        bits ibv_send_flags [IBV_SEND_FENCE IBV_SEND_SIGNALED IBV_SEND_SOLICITED IBV_SEND_INLINE]
        bits ibv_access_flags [
            IBV_ACCESS_LOCAL_WRITE IBV_ACCESS_REMOTE_WRITE IBV_ACCESS_REMOTE_READ IBV_ACCESS_REMOTE_ATOMIC
            IBV_ACCESS_ON_DEMAND IBV_ACCESS_RELAXED_ORDERING
        ]
        bits ibv_wc_flags [IBV_WC_WITH_IMM]
        enum ibv_event_type [
            IBV_EVENT_CQ_ERR IBV_EVENT_QP_FATAL IBV_EVENT_QP_REQ_ERR IBV_EVENT_QP_ACCESS_ERR IBV_EVENT_DEVICE_FATAL
            IBV_EVENT_PORT_ACTIVE IBV_EVENT_PORT_ERR IBV_EVENT_WQ_FATAL
        ]
    }
    rows
}

#[test]
fn mirrors_agree_with_rdma_sys() {
    let rows = theirs();
    let theirs: BTreeMap<&str, u64> = rows.iter().copied().collect();
    assert_eq!(theirs.len(), rows.len(), "a name stands twice");
    let mut ours = kolo_verbs::sys::layout_table();
    ours.retain(|(name, _)| !LEFT_OUT.contains(&name.as_str()));
    for (name, number) in &ours {
        assert_eq!(theirs.get(name.as_str()), Some(number), "{name}");
    }
    assert_eq!(theirs.len(), ours.len(), "{}", {
        let missing = |name: &&&str| !ours.iter().any(|(known, _)| known == *name);
        theirs.keys().filter(missing).copied().collect::<Vec<_>>().join(", ")
    });
    assert!(theirs.len() > 200, "only {} rows", theirs.len());
    println!("{} sizes, offsets and constants agree with rdma-sys", theirs.len());
}
