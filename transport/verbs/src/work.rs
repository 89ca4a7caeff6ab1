//! Work requests, as the caller names them.

use crate::sys;

/// A piece of this side's registered memory.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Local(sys::ibv_sge);

impl Local {
    /// `len` bytes at `address`, by the region's local key. The device checks all three.
    #[must_use]
    pub fn new(address: u64, len: u32, key: u32) -> Self {
        Self(sys::ibv_sge { addr: address, length: len, lkey: key })
    }

    /// Length in bytes.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.0.length
    }
}

/// A place in a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// Address in the peer's terms.
    pub address: u64,
    /// The region's remote key.
    pub key: u32,
}

/// Operation on the local pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Into the peer's next receive.
    Send,
    /// Into the peer's next receive, with 32 bits for its completion.
    SendWithImmediate(u32),
    /// Into the peer's memory; the peer is not told.
    Write(Remote),
    /// Into the peer's memory; then takes one of its receives, with 32 bits for the completion.
    WriteWithImmediate(Remote, u32),
    /// From the peer's memory into the local pieces.
    Read(Remote),
}

/// Whether a success is reported. Failures always are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// By a completion.
    Yes,
    /// Not. The queue's slot is free again only when a later request that is reported has completed, so one in
    /// every queue's length must be.
    No,
}

/// A request to send, write or read.
#[derive(Clone, Copy, Debug)]
pub struct Send<'a> {
    /// Comes back in the completion.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// This side's memory. May be empty.
    pub local: &'a [Local],
    /// Whether a success is reported.
    pub report: Report,
    /// Bits of [`Flags`].
    pub flags: Flags,
}

/// Rarely needed variations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Flags(u32);

impl Flags {
    /// None.
    pub const NONE: Self = Self(0);
    /// Starts only after all reads posted before have completed.
    pub const FENCE: Self = Self(sys::IBV_SEND_FENCE);
    /// Wakes a peer that asked to be woken by solicited messages only.
    pub const SOLICITED: Self = Self(sys::IBV_SEND_SOLICITED);
    /// The bytes are copied into the request: they need no registration, and may be reused at once. Up to the
    /// queue pair's `inline_bytes`.
    pub const INLINE: Self = Self(sys::IBV_SEND_INLINE);

    /// Both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

impl Send<'_> {
    /// As libibverbs wants it; `next` is still null. The pieces are pointed to, not copied.
    #[inline]
    pub(crate) fn raw(&self) -> sys::ibv_send_wr {
        let mut raw = sys::ibv_send_wr::zeroed();
        raw.wr_id = self.id;
        // `Local` is transparent over the mirror; the library reads only.
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
