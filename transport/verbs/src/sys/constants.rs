//! The used values of libibverbs' enumerations. `tests/layout.rs` compares them with the headers.

macro_rules! constants {
    ($($name:ident = $value:expr;)*) => {
        $(#[doc = concat!("`", stringify!($name), "`.")] pub const $name: u32 = $value;)*
        /// All constants, for that comparison.
        pub(super) const ALL: &[(&str, u32)] = &[$((stringify!($name), $name)),*];
    };
}

constants! {
    IBV_QPT_RC = 2;
    IBV_QPS_RESET = 0;
    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;
    IBV_QP_STATE = 1;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_CAP = 1 << 19;
    IBV_QP_DEST_QPN = 1 << 20;
    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_RDMA_WRITE_WITH_IMM = 1;
    IBV_WR_SEND = 2;
    IBV_WR_SEND_WITH_IMM = 3;
    IBV_WR_RDMA_READ = 4;
    IBV_SEND_FENCE = 1;
    IBV_SEND_SIGNALED = 1 << 1;
    IBV_SEND_SOLICITED = 1 << 2;
    IBV_SEND_INLINE = 1 << 3;
    IBV_ACCESS_LOCAL_WRITE = 1;
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    IBV_ACCESS_REMOTE_READ = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;
    IBV_ACCESS_ON_DEMAND = 1 << 6;
    IBV_ACCESS_RELAXED_ORDERING = 1 << 20;
    IBV_WC_SEND = 0;
    IBV_WC_RDMA_WRITE = 1;
    IBV_WC_RDMA_READ = 2;
    IBV_WC_RECV = 1 << 7;
    IBV_WC_RECV_RDMA_WITH_IMM = (1 << 7) + 1;
    IBV_WC_WITH_IMM = 1 << 1;
    IBV_WC_TM_RNDV_INCOMPLETE = 23;
    IBV_LINK_LAYER_INFINIBAND = 1;
    IBV_LINK_LAYER_ETHERNET = 2;
    IBV_PORT_ACTIVE = 4;
    IBV_TRANSPORT_IB = 0;
    IBV_TRANSPORT_IWARP = 1;
    IBV_EVENT_CQ_ERR = 0;
    IBV_EVENT_QP_FATAL = 1;
    IBV_EVENT_QP_REQ_ERR = 2;
    IBV_EVENT_QP_ACCESS_ERR = 3;
    IBV_EVENT_DEVICE_FATAL = 8;
    IBV_EVENT_PORT_ACTIVE = 9;
    IBV_EVENT_PORT_ERR = 10;
    IBV_EVENT_WQ_FATAL = 19;
}

/// Range of optional access flags, which a device ignores if it does not know them. Only `ibv_reg_mr_iova2` takes
/// them.
pub const IBV_ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000;
