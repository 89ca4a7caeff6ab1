//! Work requests, as the caller specifies them.

use crate::sys;

/// A piece of this side's registered memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local(sys::ibv_sge);

impl Local {
    /// Returns `len` bytes at `address`, with the region's local key. The device checks all three.
    #[must_use]
    pub fn new(address: u64, len: u32, key: u32) -> Self {
        Self(sys::ibv_sge { addr: address, length: len, lkey: key })
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.0.length
    }
}

/// A location in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's address space.
    pub address: u64,
    /// The region's remote key.
    pub key: u32,
}

/// Operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Sends to the peer's next receive.
    Send,
    /// Sends to the peer's next receive, with 32 bits for its completion.
    SendWithImmediate(u32),
    /// Writes to the peer's memory; the peer is not notified.
    Write(Remote),
    /// Writes to the peer's memory, then consumes one of its receives, with 32 bits for the completion.
    WriteWithImmediate(Remote, u32),
    /// Reads from the peer's memory into the local pieces.
    Read(Remote),
}

/// Whether a successful request is reported. Failures always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A completion reports it.
    Yes,
    /// It is not reported. Its place in the queue becomes free only when a later, reported request has completed, so
    /// at least one request in every queue length must be reported.
    No,
}

/// A request to send, write or read.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// Number that the completion returns.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// This side's memory; may be empty.
    pub local: &'a [Local],
    /// Whether a success is reported.
    pub report: Report,
    /// Variations of the operation.
    pub flags: Flags,
}

/// Rarely needed variations of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(u32);

impl Flags {
    /// No variation.
    pub const NONE: Self = Self(0);
    /// The request starts only after all reads posted before have completed.
    pub const FENCE: Self = Self(sys::IBV_SEND_FENCE);
    /// It wakes a peer that wants to be woken only by solicited messages.
    pub const SOLICITED: Self = Self(sys::IBV_SEND_SOLICITED);
    /// The bytes are copied into the request, up to the queue pair's `inline_bytes`: they need no registration, and
    /// may be reused at once.
    pub const INLINE: Self = Self(sys::IBV_SEND_INLINE);

    /// Returns both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Send<'_> {
    /// Returns the request in libibverbs' form, with `next` still null. It points to the pieces and does not copy
    /// them.
    #[inline]
    pub(crate) fn raw(&self) -> sys::ibv_send_wr {
        let mut raw = sys::ibv_send_wr::zeroed();
        raw.wr_id = self.id;
        // `Local` is transparent over the mirror; the library only reads.
        raw.sg_list = self.local.as_ptr().cast_mut().cast();
        raw.num_sge = self.local.len() as i32;
        raw.send_flags = self.flags.0
            | match self.report {
                Report::Yes => sys::IBV_SEND_SIGNALED,
                Report::No => 0,
            };
        let (opcode, remote, immediate) = match self.operation {
            Operation::Send => (sys::IBV_WR_SEND, None, 0),
            Operation::SendWithImmediate(bits) => (sys::IBV_WR_SEND_WITH_IMM, None, bits),
            Operation::Write(remote) => (sys::IBV_WR_RDMA_WRITE, Some(remote), 0),
            Operation::WriteWithImmediate(remote, bits) => {
                (sys::IBV_WR_RDMA_WRITE_WITH_IMM, Some(remote), bits)
            }
            Operation::Read(remote) => (sys::IBV_WR_RDMA_READ, Some(remote), 0),
        };
        raw.opcode = opcode;
        raw.imm_data = immediate.to_be();
        if let Some(remote) = remote {
            raw.wr.rdma = sys::ibv_wr_rdma { remote_addr: remote.address, rkey: remote.key };
        }
        raw
    }
}
