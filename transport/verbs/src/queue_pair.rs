//! Reliable connected queue pairs: their states, and posting requests.
//!
//! The states are RESET → INIT (receives may be posted) → RTR, "ready to receive" → RTS, "ready to send". Any failed
//! request moves the pair to ERROR, in which every posted request comes back as flushed.

use std::ffi::c_int;
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::completion::CompletionQueue;
use crate::connection::{Address, PACKET_MASK, Path, Reliability};
use crate::context::same;
use crate::error::{Error, code, errno};
use crate::memory::{Access, ProtectionDomain};
use crate::sys;
use crate::work::{Local, Send};

/// Maximum number of requests that [`QueuePair::post_sends`] hands to the device at a time: 2 KiB of stack.
pub const BATCH_MAX: usize = 16;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// New.
    Reset,
    /// Receives may be posted.
    Initialized,
    /// Receives are executed.
    ReadyToReceive,
    /// Sends and receives are executed.
    ReadyToSend,
    /// No request is executed; posted requests come back as flushed.
    Error,
    /// A draining state, by libibverbs' number.
    Other(u32),
}

impl State {
    fn from_raw(raw: u32) -> Self {
        match raw {
            sys::IBV_QPS_RESET => Self::Reset,
            sys::IBV_QPS_INIT => Self::Initialized,
            sys::IBV_QPS_RTR => Self::ReadyToReceive,
            sys::IBV_QPS_RTS => Self::ReadyToSend,
            sys::IBV_QPS_ERR => Self::Error,
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reset => "RESET",
            Self::Initialized => "INIT",
            Self::ReadyToReceive => "RTR",
            Self::ReadyToSend => "RTS",
            Self::Error => "ERROR",
            Self::Other(_) => "a draining state",
        })
    }
}

/// Requested capacity of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairSpec<'a> {
    /// Completion queue of sends, writes and reads.
    pub send_queue: &'a CompletionQueue,
    /// Completion queue of receives; may be the same.
    pub receive_queue: &'a CompletionQueue,
    /// Number of outstanding sends, writes and reads.
    pub send_depth: u32,
    /// Number of outstanding receives.
    pub receive_depth: u32,
    /// Number of pieces per send.
    pub send_pieces: u32,
    /// Number of pieces per receive.
    pub receive_pieces: u32,
    /// Number of bytes that a request can hold inline. Some devices have none: 0 is always granted.
    pub inline_bytes: u32,
}

/// Granted capacity of a queue pair: as requested, or more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capacity {
    /// Number of outstanding sends, writes and reads.
    pub send_depth: u32,
    /// Number of outstanding receives.
    pub receive_depth: u32,
    /// Number of pieces per send.
    pub send_pieces: u32,
    /// Number of pieces per receive.
    pub receive_pieces: u32,
    /// Number of bytes that a request can hold inline.
    pub inline_bytes: u32,
}

/// Error of posting requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostError {
    /// Number of requests of the slice that were posted before the refused one.
    pub posted: usize,
    /// The reason of the refusal.
    pub error: Error,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "request {} of this post: {}", self.posted, self.error)
    }
}

impl std::error::Error for PostError {}

/// A reliable connected queue pair. When it is dropped, the device has finished with all posted memory.
pub struct QueuePair {
    pair: NonNull<sys::ibv_qp>,
    post_send: sys::PostSend,
    post_recv: sys::PostRecv,
    number: u32,
    capacity: Capacity,
    /// libibverbs' number of the state to which this side moved it. A failure changes the state without this side.
    state: AtomicU32,
    // These are dropped after the pair.
    domain: ProtectionDomain,
    _send_queue: CompletionQueue,
    _receive_queue: CompletionQueue,
}

// SAFETY: the verbs permit posting and modifying one queue pair from several threads; providers lock.
unsafe impl std::marker::Send for QueuePair {}
// SAFETY: as for `Send`.
unsafe impl Sync for QueuePair {}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: the pair was made once and is destroyed once. An error would mean attached multicast groups, which
        // reliable connections do not have.
        unsafe { (self.domain.context().symbols().ibv_destroy_qp)(self.pair.as_ptr()) };
    }
}

impl QueuePair {
    pub(crate) fn new(domain: ProtectionDomain, spec: &QueuePairSpec<'_>) -> Result<Self, Error> {
        let context = domain.context();
        if !same(spec.send_queue.context(), context) || !same(spec.receive_queue.context(), context) {
            return Err(Error::Usage {
                detail: "a completion queue of the queue pair is of another device".into(),
            });
        }
        let ops = &context.raw().ops;
        let (Some(post_send), Some(post_recv)) = (ops.post_send, ops.post_recv) else {
            return Err(Error::Unsupported { what: "post_send or post_recv of this device's provider" });
        };
        let mut init = sys::ibv_qp_init_attr::zeroed();
        init.send_cq = spec.send_queue.as_ptr();
        init.recv_cq = spec.receive_queue.as_ptr();
        init.qp_type = sys::IBV_QPT_RC;
        init.cap = sys::ibv_qp_cap {
            max_send_wr: spec.send_depth,
            max_recv_wr: spec.receive_depth,
            max_send_sge: spec.send_pieces,
            max_recv_sge: spec.receive_pieces,
            max_inline_data: spec.inline_bytes,
        };
        // SAFETY: the domain and its device's queues are live; the call reads `init` and writes its capacities.
        let pair = unsafe { (context.symbols().ibv_create_qp)(domain.as_ptr(), &raw mut init) };
        let pair = NonNull::new(pair).ok_or_else(|| {
            let doing = format!(
                "making a queue pair for {} sends of {} pieces and {} inline bytes, and {} receives of {} pieces",
                spec.send_depth, spec.send_pieces, spec.inline_bytes, spec.receive_depth, spec.receive_pieces
            );
            Error::call("ibv_create_qp", doing, errno())
        })?;
        // SAFETY: the pair was just made; its number does not change.
        let number = unsafe { pair.as_ref().qp_num };
        let capacity = Capacity {
            send_depth: init.cap.max_send_wr,
            receive_depth: init.cap.max_recv_wr,
            send_pieces: init.cap.max_send_sge,
            receive_pieces: init.cap.max_recv_sge,
            inline_bytes: init.cap.max_inline_data,
        };
        Ok(Self {
            pair,
            post_send,
            post_recv,
            number,
            capacity,
            state: AtomicU32::new(sys::IBV_QPS_RESET),
            domain,
            _send_queue: spec.send_queue.clone(),
            _receive_queue: spec.receive_queue.clone(),
        })
    }

    /// Returns its number, by which peers and completions name it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns its capacity.
    #[must_use]
    pub fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the state to which this side moved it. It may have failed since: see [`QueuePair::query_state`].
    #[must_use]
    pub fn state(&self) -> State {
        State::from_raw(self.state.load(Ordering::Relaxed))
    }

    /// Asks the device for its state. Costs a system call.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn query_state(&self) -> Result<State, Error> {
        let mut attributes = sys::ibv_qp_attr::default();
        let mut init = sys::ibv_qp_init_attr::zeroed();
        let mask = sys::IBV_QP_STATE as c_int;
        // SAFETY: the queue pair is live; the call writes both structures.
        let returned = unsafe {
            (self.domain.context().symbols().ibv_query_qp)(
                self.pair.as_ptr(),
                &raw mut attributes,
                mask,
                &raw mut init,
            )
        };
        code(returned)
            .map_err(|errno| Error::call("ibv_query_qp", self.doing("asking for the state of"), errno))?;
        Ok(State::from_raw(attributes.qp_state))
    }

    /// RESET → INIT: binds it to a port, and sets which operations peers may execute through it. Receives may be
    /// posted from now on.
    ///
    /// # Errors
    /// If it is not in RESET, or the device refuses.
    pub fn initialize(&self, path: &Path, remote_access: Access) -> Result<(), Error> {
        self.expect("initialize", State::Reset)?;
        let attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_INIT,
            pkey_index: path.partition_index,
            port_num: path.port,
            qp_access_flags: remote_access.raw() & !sys::IBV_ACCESS_OPTIONAL_RANGE,
            ..Default::default()
        };
        let mask = sys::IBV_QP_PKEY_INDEX | sys::IBV_QP_PORT | sys::IBV_QP_ACCESS_FLAGS;
        self.modify(attributes, mask, &format!("moving to INIT on port {}", path.port))
    }

    /// INIT → RTR: connects it to its peer, and starts to execute receives and the peer's writes and reads.
    ///
    /// # Errors
    /// If it is not in INIT, the device refuses, or the peer's address cannot be resolved.
    pub fn ready_to_receive(&self, path: &Path, peer: &Address, how: &Reliability) -> Result<(), Error> {
        self.expect("ready_to_receive", State::Initialized)?;
        how.check()?;
        let mtu = path.mtu.min(peer.mtu);
        let attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTR,
            path_mtu: mtu.raw(),
            dest_qp_num: peer.number & PACKET_MASK,
            rq_psn: peer.first_packet & PACKET_MASK,
            max_dest_rd_atomic: how.read_depth_served,
            min_rnr_timer: how.receiver_not_ready_timer,
            ah_attr: sys::ibv_ah_attr {
                grh: if path.global {
                    sys::ibv_global_route {
                        dgid: sys::ibv_gid { raw: peer.gid.0 },
                        flow_label: 0,
                        sgid_index: path.gid_index,
                        // The maximum: RoCE v2 is routed like any IP packet.
                        hop_limit: 255,
                        traffic_class: path.traffic_class,
                    }
                } else {
                    sys::ibv_global_route::default()
                },
                dlid: peer.lid,
                sl: path.service_level,
                is_global: path.global.into(),
                port_num: path.port,
                ..Default::default()
            },
            ..Default::default()
        };
        let mask = sys::IBV_QP_AV
            | sys::IBV_QP_PATH_MTU
            | sys::IBV_QP_DEST_QPN
            | sys::IBV_QP_RQ_PSN
            | sys::IBV_QP_MAX_DEST_RD_ATOMIC
            | sys::IBV_QP_MIN_RNR_TIMER;
        let doing = format!(
            "moving to RTR towards {} (queue pair {}, LID {}, MTU {}) from GID index {} of port {}",
            peer.gid,
            peer.number,
            peer.lid,
            mtu.bytes(),
            path.gid_index,
            path.port
        );
        self.modify(attributes, mask, &doing)
    }

    /// RTR → RTS: sends may be posted from now on. `first_packet` is the number that this side's [`Address`] told the
    /// peer.
    ///
    /// # Errors
    /// If it is not in RTR, or the device refuses.
    pub fn ready_to_send(&self, first_packet: u32, how: &Reliability) -> Result<(), Error> {
        self.expect("ready_to_send", State::ReadyToReceive)?;
        how.check()?;
        let attributes = sys::ibv_qp_attr {
            qp_state: sys::IBV_QPS_RTS,
            sq_psn: first_packet & PACKET_MASK,
            timeout: how.timeout,
            retry_cnt: how.retries,
            rnr_retry: how.receiver_not_ready_retries,
            max_rd_atomic: how.read_depth,
            ..Default::default()
        };
        let mask = sys::IBV_QP_TIMEOUT
            | sys::IBV_QP_RETRY_CNT
            | sys::IBV_QP_RNR_RETRY
            | sys::IBV_QP_SQ_PSN
            | sys::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, mask, "moving to RTS")
    }

    /// INIT → RTR → RTS at once.
    ///
    /// # Errors
    /// As for the two steps.
    pub fn connect(
        &self,
        path: &Path,
        first_packet: u32,
        peer: &Address,
        how: &Reliability,
    ) -> Result<(), Error> {
        self.ready_to_receive(path, peer, how)?;
        self.ready_to_send(first_packet, how)
    }

    /// Any state → ERROR: every posted request comes back as flushed, at once. This gives up a peer that is known to
    /// be gone, which the device itself would notice only much later, or never.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn fail(&self) -> Result<(), Error> {
        let attributes = sys::ibv_qp_attr { qp_state: sys::IBV_QPS_ERR, ..Default::default() };
        self.modify(attributes, 0, "moving to ERROR")
    }

    /// Posts one request.
    ///
    /// # Errors
    /// If the queue is full or the request malformed.
    ///
    /// # Safety
    /// The local memory stays valid until the completion of the request, or of a later one of this queue, is polled,
    /// or until the queue pair is dropped. Meanwhile it is not written (for reads: not accessed). With
    /// [`Flags::INLINE`](crate::Flags::INLINE) it need be valid only during the call.
    #[inline]
    pub unsafe fn post_send(&self, request: &Send<'_>) -> Result<(), Error> {
        let mut raw = request.raw();
        let mut refused = ptr::null_mut();
        // SAFETY: the queue pair is live, and the request is well-formed with live pieces; the caller answers for
        // their memory. The library copies the request.
        code(unsafe { (self.post_send)(self.pair.as_ptr(), &raw mut raw, &raw mut refused) })
            .map_err(|errno| self.post_failed("ibv_post_send", errno))
    }

    /// Posts requests in order, handing up to [`BATCH_MAX`] at a time to the device.
    ///
    /// # Errors
    /// As for [`QueuePair::post_send`]; the error says how many were posted before.
    ///
    /// # Safety
    /// As for [`QueuePair::post_send`], for each request.
    pub unsafe fn post_sends(&self, requests: &[Send<'_>]) -> Result<(), PostError> {
        for (batch, requests) in requests.chunks(BATCH_MAX).enumerate() {
            let mut raws = [const { MaybeUninit::<sys::ibv_send_wr>::uninit() }; BATCH_MAX];
            let first = raws.as_mut_ptr().cast::<sys::ibv_send_wr>();
            for (index, request) in requests.iter().enumerate() {
                let mut raw = request.raw();
                if index + 1 < requests.len() {
                    raw.next = first.wrapping_add(index + 1);
                }
                raws[index].write(raw);
            }
            // The pointer is taken again, because writing through `raws` above invalidated the earlier one. The
            // addresses in `next` lie in the same array.
            let first = raws.as_mut_ptr().cast::<sys::ibv_send_wr>();
            let mut refused = ptr::null_mut();
            // SAFETY: this is a chain of initialised requests; the rest as in `post_send`.
            code(unsafe { (self.post_send)(self.pair.as_ptr(), first, &raw mut refused) }).map_err(
                |errno| {
                    let within = (refused.addr().wrapping_sub(first.addr())) / size_of::<sys::ibv_send_wr>();
                    PostError {
                        posted: batch * BATCH_MAX
                            + if refused.is_null() { 0 } else { within.min(requests.len()) },
                        error: self.post_failed("ibv_post_send", errno),
                    }
                },
            )?;
        }
        Ok(())
    }

    /// Posts a receive into these pieces, in order. For writes with immediate, no piece is needed.
    ///
    /// # Errors
    /// If the queue is full or the request malformed.
    ///
    /// # Safety
    /// The memory stays valid and is not accessed until the completion is polled, or the queue pair is dropped.
    #[inline]
    pub unsafe fn post_receive(&self, id: u64, into: &[Local]) -> Result<(), Error> {
        let mut raw = sys::ibv_recv_wr {
            wr_id: id,
            next: ptr::null_mut(),
            sg_list: into.as_ptr().cast_mut().cast(),
            num_sge: into.len() as c_int,
        };
        let mut refused = ptr::null_mut();
        // SAFETY: as in `post_send`.
        code(unsafe { (self.post_recv)(self.pair.as_ptr(), &raw mut raw, &raw mut refused) })
            .map_err(|errno| self.post_failed("ibv_post_recv", errno))
    }

    fn expect(&self, step: &'static str, needs: State) -> Result<(), Error> {
        let is = self.state();
        if is == needs { Ok(()) } else { Err(Error::State { step, is, needs }) }
    }

    fn modify(&self, mut attributes: sys::ibv_qp_attr, mask: u32, doing: &str) -> Result<(), Error> {
        let mask = (mask | sys::IBV_QP_STATE) as c_int;
        // SAFETY: the queue pair is live; the structure is only read.
        let returned = unsafe {
            (self.domain.context().symbols().ibv_modify_qp)(self.pair.as_ptr(), &raw mut attributes, mask)
        };
        code(returned).map_err(|errno| {
            Error::call("ibv_modify_qp", format!("queue pair {}: {doing}", self.number), errno)
        })?;
        self.state.store(attributes.qp_state, Ordering::Relaxed);
        Ok(())
    }

    #[cold]
    fn post_failed(&self, call: &'static str, errno: i32) -> Error {
        Error::call(call, self.doing("posting to"), errno)
    }

    fn doing(&self, what: &str) -> String {
        format!("{what} queue pair {} ({})", self.number, self.state())
    }
}

impl fmt::Debug for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueuePair")
            .field("number", &self.number)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
