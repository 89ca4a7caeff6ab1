//! The one door between the tools and the runtime: what `kolo perf` needs from a communicator, and nothing else.
//!
//! Everything above this file is written against [`Comm`], so that it is tested without a cluster.

use kolo::{DataType, ReduceOp};
use kolo_collectives::plan::Collective;

use crate::error::{CliError, Result};

/// What the communicators of a run should be like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    /// Transports that may be used; `None` for all.
    pub transport: Option<String>,
    /// Algorithm to use instead of the selected one.
    pub algorithm: Option<String>,
    /// Limit of every operation; `None` for the library's own.
    pub timeout: Option<std::time::Duration>,
    /// Which of the thread ranks of this process, and how many there are.
    pub thread: (u32, u32),
}

/// One collective on raw memory; `count` is NCCL's count argument of that collective.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Which.
    pub collective: Collective,
    /// Where to read.
    pub input: *const u8,
    /// Where to write. In place as NCCL defines it, by equality of addresses.
    pub output: *mut u8,
    /// Elements.
    pub count: u64,
    /// Of this type.
    pub data_type: DataType,
    /// Combined by this.
    pub op: ReduceOp,
    /// Root, where there is one.
    pub root: u32,
}

/// Bytes to a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outgoing {
    /// To whom.
    pub to: u32,
    /// What.
    pub bytes: *const u8,
    /// How much.
    pub len: usize,
}

/// Bytes from a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Incoming {
    /// From whom.
    pub from: u32,
    /// Where to put it.
    pub bytes: *mut u8,
    /// How much.
    pub len: usize,
}

/// An operation that was started. Dropping it without waiting is a mistake of the caller.
pub(crate) trait Pending {
    /// Waits for its end.
    fn wait(self: Box<Self>) -> Result<()>;
}

/// A communicator.
pub(crate) trait Comm {
    /// Own rank.
    fn rank(&self) -> u32;
    /// Number of ranks.
    fn world_size(&self) -> u32;
    /// Own rank among those of this host.
    fn local_rank(&self) -> u32;
    /// Number of ranks on this host.
    fn local_size(&self) -> u32;
    /// Lines for people: transports, and why.
    fn summary(&self) -> Vec<String>;

    /// Runs a collective to its end.
    ///
    /// # Safety
    /// Input and output are valid for as many elements as the collective reads and writes there, and nothing
    /// else touches them until this returns.
    unsafe fn call(&self, call: &Call) -> Result<()>;

    /// Starts a collective.
    ///
    /// # Safety
    /// As for [`Comm::call`], until the returned handle has been waited for.
    unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>>;

    /// Runs sends and receives together to their end. Empty ones are skipped on both sides.
    ///
    /// # Safety
    /// All memory is valid for its length, and nothing else touches it until this returns.
    unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()>;

    /// Returns when all ranks have called.
    fn barrier(&self) -> Result<()>;

    /// Everybody's bytes, by rank. Lengths may differ.
    fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// The communicator of the ranks that pass the same colour, in the same order.
    fn split(&self, colour: u32) -> Result<Box<dyn Comm>>;
}

/// What a rank does with its communicator.
pub(crate) type Body<'a> = &'a (dyn Fn(Box<dyn Comm>) -> Result<()> + Sync);

/// Joins the ranks that a launcher started.
pub(crate) fn join(request: &Request) -> Result<Box<dyn Comm>> {
    // Wired to `kolo::Communicator::builder()` when the runtime has it.
    let _ = request;
    Err(CliError::failure("this build has no runtime yet", "Use --ranks 1 --threads"))
}

/// Runs `count` ranks as threads of this process.
pub(crate) fn threads(count: u32, request: &Request, body: Body<'_>) -> Result<()> {
    let _ = request;
    match count {
        1 => body(Box::new(solo::Solo)),
        _ => Err(CliError::failure("this build has no runtime yet", "Use --ranks 1 --threads")),
    }
}

/// Version of the library, for people.
pub(crate) fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// A cluster of one rank that copies.
mod solo {
    use super::*;

    pub(super) struct Solo;

    struct Done;

    impl Pending for Done {
        fn wait(self: Box<Self>) -> Result<()> {
            Ok(())
        }
    }

    impl Comm for Solo {
        fn rank(&self) -> u32 {
            0
        }

        fn world_size(&self) -> u32 {
            1
        }

        fn local_rank(&self) -> u32 {
            0
        }

        fn local_size(&self) -> u32 {
            1
        }

        fn summary(&self) -> Vec<String> {
            vec!["rank 0: itself, by copying".into()]
        }

        unsafe fn call(&self, call: &Call) -> Result<()> {
            if call.collective != Collective::Barrier {
                let bytes = call.count as usize * call.data_type.size();
                // SAFETY: the caller vouches for both; `copy` allows them to overlap.
                unsafe { std::ptr::copy(call.input, call.output, bytes) };
            }
            Ok(())
        }

        unsafe fn start(&self, call: &Call) -> Result<Box<dyn Pending + '_>> {
            // SAFETY: passed on.
            unsafe { self.call(call)? };
            Ok(Box::new(Done))
        }

        unsafe fn exchange(&self, sends: &[Outgoing], receives: &[Incoming]) -> Result<()> {
            for (send, receive) in sends.iter().zip(receives) {
                // SAFETY: as above.
                unsafe { std::ptr::copy(send.bytes, receive.bytes, send.len.min(receive.len)) };
            }
            Ok(())
        }

        fn barrier(&self) -> Result<()> {
            Ok(())
        }

        fn share(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>> {
            Ok(vec![bytes.to_vec()])
        }

        fn split(&self, _colour: u32) -> Result<Box<dyn Comm>> {
            Ok(Box::new(Self))
        }
    }
}
