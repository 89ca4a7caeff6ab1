//! Collectives with blocks of unequal length.

use std::ffi::{c_int, c_void};

use kolo_rs::{Collective, RawCallV, ReduceOp};

use crate::checked;
use crate::comm::Comm;
use crate::guard::{Outcome, usage, with_comm};
use crate::request::{Progress, Request, start};

/// The arguments of a call as C gives them, with unread counts.
struct Uneven {
    collective: Collective,
    input: *const c_void,
    output: *mut c_void,
    reads: Counts,
    writes: Counts,
    data_type: c_int,
    op: ReduceOp,
    root: c_int,
}

/// The lengths of a buffer's blocks, in elements.
#[derive(Clone, Copy)]
enum Counts {
    /// One block per rank.
    Each(&'static str, *const usize),
    /// This rank's block, from a list with one entry per rank.
    OwnOf(*const usize),
    /// One block.
    One(usize),
    /// One block per rank on the root, none elsewhere.
    EachAtRoot(*const usize),
}

impl Counts {
    /// # Safety
    /// The pointer, if it is read, is null or points to one entry per rank.
    unsafe fn list(self, comm: &Comm, root: u32) -> Outcome<Vec<usize>> {
        // SAFETY: the caller's promise, for all of them.
        unsafe {
            Ok(match self {
                Self::Each(what, counts) => counts_of(comm, what, counts)?.to_vec(),
                Self::OwnOf(counts) => {
                    vec![counts_of(comm, "counts", counts)?[comm.communicator.rank() as usize]]
                }
                Self::One(count) => vec![count],
                Self::EachAtRoot(counts) if comm.communicator.rank() == root => {
                    counts_of(comm, "counts", counts)?.to_vec()
                }
                Self::EachAtRoot(_) => Vec::new(),
            })
        }
    }
}

impl Uneven {
    /// Checks the call, and calls `then` with it.
    ///
    /// # Safety
    /// The counts, if they are read, point to one entry per rank.
    unsafe fn with<R>(&self, comm: &Comm, then: impl FnOnce(&RawCallV<'_>) -> Outcome<R>) -> Outcome<R> {
        let (data_type, root) = (checked::data_type(self.data_type)?, checked::number("root", self.root)?);
        // SAFETY: the caller's promise.
        let (reads, writes) = unsafe { (self.reads.list(comm, root)?, self.writes.list(comm, root)?) };
        then(&RawCallV {
            collective: self.collective,
            input: self.input.cast(),
            input_counts: &reads,
            output: self.output.cast(),
            output_counts: &writes,
            data_type,
            op: self.op,
            root,
        })
    }

    /// # Safety
    /// As [`Uneven::with`]; also, the buffers are as long as the counts say, and nothing else uses them until this returns.
    unsafe fn run(&self, comm: &Comm) -> Outcome {
        // SAFETY: the caller's promise.
        unsafe { self.with(comm, |call| Ok(comm.communicator.call_raw_v(call)?)) }
    }

    /// # Safety
    /// As [`Uneven::run`], until the request has been waited for; `request` is null or valid.
    unsafe fn start(&self, comm: &Comm, request: *mut *mut Request) -> Outcome {
        // SAFETY: the caller's promise.
        unsafe {
            start(comm, request, || {
                self.with(comm, |call| Ok(Progress::Plain(comm.communicator.start_raw_v(call)?)))
            })
        }
    }
}

/// The two entries of a call, blocking and started.
macro_rules! entries {
    ($name:ident, $started:ident, ($($argument:ident: $type:ty),*) => $call:expr) => {
        /// See `kolo.h`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(comm: *const Comm, $($argument: $type),*) -> c_int {
            // SAFETY: the header's promise: the lists have one entry per rank, and the buffers are as long as the lists say.
            unsafe { with_comm(stringify!($name), comm, |comm| { let call: Uneven = $call?; call.run(comm) }) }
        }

        /// See `kolo.h`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $started(
            comm: *const Comm,
            $($argument: $type,)*
            request: *mut *mut Request,
        ) -> c_int {
            // SAFETY: as above; the buffers stay until the request has been waited for.
            unsafe {
                with_comm(stringify!($started), comm, |comm| {
                    let call: Uneven = $call?;
                    call.start(comm, request)
                })
            }
        }
    };
}

entries!(koloAllGatherV, koloAllGatherVStart,
(input: *const c_void, output: *mut c_void, counts: *const usize, data_type: c_int) => Outcome::Ok(Uneven {
    collective: Collective::AllGather,
    input,
    output,
    reads: Counts::OwnOf(counts),
    writes: Counts::Each("counts", counts),
    data_type,
    op: ReduceOp::Sum,
    root: 0,
}));

entries!(koloReduceScatterV, koloReduceScatterVStart,
(input: *const c_void, output: *mut c_void, counts: *const usize, data_type: c_int, op: c_int) =>
checked::op(op, None).map(|op| Uneven {
    collective: Collective::ReduceScatter,
    input,
    output,
    reads: Counts::Each("counts", counts),
    writes: Counts::OwnOf(counts),
    data_type,
    op,
    root: 0,
}));

entries!(koloGatherV, koloGatherVStart,
(input: *const c_void, input_count: usize, output: *mut c_void, counts: *const usize, data_type: c_int, root: c_int)
=> Outcome::Ok(Uneven {
    collective: Collective::Gather,
    input,
    output,
    reads: Counts::One(input_count),
    writes: Counts::EachAtRoot(counts),
    data_type,
    op: ReduceOp::Sum,
    root,
}));

entries!(koloScatterV, koloScatterVStart,
(input: *const c_void, counts: *const usize, output: *mut c_void, output_count: usize, data_type: c_int, root: c_int)
=> Outcome::Ok(Uneven {
    collective: Collective::Scatter,
    input,
    output,
    reads: Counts::EachAtRoot(counts),
    writes: Counts::One(output_count),
    data_type,
    op: ReduceOp::Sum,
    root,
}));

entries!(koloAllToAllV, koloAllToAllVStart,
(input: *const c_void, send_counts: *const usize, output: *mut c_void, recv_counts: *const usize, data_type: c_int)
=> Outcome::Ok(Uneven {
    collective: Collective::AllToAll,
    input,
    output,
    reads: Counts::Each("send_counts", send_counts),
    writes: Counts::Each("recv_counts", recv_counts),
    data_type,
    op: ReduceOp::Sum,
    root: 0,
}));

/// Returns the counts, one per rank.
///
/// # Safety
/// `counts` is null or has an entry per rank.
unsafe fn counts_of<'a>(comm: &Comm, what: &str, counts: *const usize) -> Outcome<&'a [usize]> {
    if counts.is_null() {
        return Err(usage(format!("{what} is NULL; it needs one entry per rank")));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(counts, comm.communicator.world_size() as usize) })
}
