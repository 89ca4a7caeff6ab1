//! Collectives with equal blocks, blocking and started.

use std::ffi::{c_char, c_int, c_void};

use kolo_rs::{Collective, DataType, RawCall, ReduceOp};

use crate::abi::{self, Versioned};
use crate::checked;
use crate::comm::Comm;
use crate::guard::{Outcome, place, usage, with_comm, with_comm_quick};
use crate::request::{Request, start_call};
use crate::text::give_text;

/// The arguments of a collective as C gives them.
struct Arguments {
    collective: Collective,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
    root: c_int,
}

impl Arguments {
    fn call(self) -> Outcome<RawCall> {
        Ok(RawCall {
            collective: self.collective,
            input: self.input.cast(),
            output: self.output.cast(),
            count: self.count,
            data_type: checked::data_type(self.data_type)?,
            op: checked::op(self.op, None)?,
            root: checked::number("root", self.root)?,
        })
    }
}

/// Defines the blocking and the started form of a collective. The arguments that its signature lacks have the values given last.
macro_rules! collective {
    (
        $blocking:ident, $started:ident,
        $collective:ident ($($argument:ident: $kind:ty),*), $($left_out:ident: $value:expr),*
    ) => {
        /// See `kolo.h`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $blocking(
            comm: *const Comm,
            input: *const c_void,
            output: *mut c_void,
            count: usize,
            data_type: c_int,
            $($argument: $kind),*
        ) -> c_int {
            let collective = Collective::$collective;
            let arguments =
                Arguments { collective, input, output, count, data_type, $($argument,)* $($left_out: $value),* };
            // SAFETY: the header's promise, for the communicator and for the buffers until the call is over.
            unsafe {
                with_comm_quick(stringify!($blocking), comm, |comm| {
                    Ok(comm.communicator.call_raw(&arguments.call()?)?)
                })
            }
        }

        /// See `kolo.h`.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $started(
            comm: *const Comm,
            input: *const c_void,
            output: *mut c_void,
            count: usize,
            data_type: c_int,
            $($argument: $kind,)*
            request: *mut *mut Request,
        ) -> c_int {
            let collective = Collective::$collective;
            let arguments =
                Arguments { collective, input, output, count, data_type, $($argument,)* $($left_out: $value),* };
            // SAFETY: the header's promise, for the communicator and for the buffers until the request is over.
            unsafe { with_comm(stringify!($started), comm, |comm| start_call(comm, &arguments.call()?, request)) }
        }
    };
}

collective!(koloAllReduce, koloAllReduceStart, AllReduce(op: c_int), root: 0);
collective!(koloReduce, koloReduceStart, Reduce(op: c_int, root: c_int),);
collective!(koloBroadcast, koloBroadcastStart, Broadcast(root: c_int), op: 0);
collective!(koloAllGather, koloAllGatherStart, AllGather(), op: 0, root: 0);
collective!(koloReduceScatter, koloReduceScatterStart, ReduceScatter(op: c_int), root: 0);
collective!(koloAllToAll, koloAllToAllStart, AllToAll(), op: 0, root: 0);
collective!(koloGather, koloGatherStart, Gather(root: c_int), op: 0);
collective!(koloScatter, koloScatterStart, Scatter(root: c_int), op: 0);
collective!(koloScan, koloScanStart, Scan(op: c_int), root: 0);
collective!(koloExScan, koloExScanStart, ExScan(op: c_int), root: 0);

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloAllReduceShards(
    comm: *const Comm,
    input: *const c_void,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    op: c_int,
    shards: c_int,
) -> c_int {
    let arguments =
        Arguments { collective: Collective::AllReduce, input, output, count, data_type, op, root: 0 };
    // SAFETY: the header's promise, for the communicator and for the buffers until the call is over.
    unsafe {
        with_comm("koloAllReduceShards", comm, |comm| {
            let shards = checked::number("shards", shards)?;
            Ok(comm.communicator.call_raw_shards(&arguments.call()?, shards, None)?)
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloCommOwnShards(
    comm: *const Comm,
    shards: c_int,
    first: *mut c_int,
    count: *mut c_int,
) -> c_int {
    // SAFETY: the header's promise, for all pointers.
    unsafe {
        with_comm("koloCommOwnShards", comm, |comm| {
            let own = comm.communicator.own_shards(checked::number("shards", shards)?);
            place("first", first)?.write(own.start as c_int);
            place("count", count)?.write(own.len() as c_int);
            Ok(())
        })
    }
}

const BARRIER: RawCall = RawCall {
    collective: Collective::Barrier,
    input: std::ptr::null(),
    output: std::ptr::null_mut(),
    count: 0,
    data_type: DataType::U8,
    op: ReduceOp::Sum,
    root: 0,
};

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloBarrier(comm: *const Comm) -> c_int {
    // SAFETY: the header's promise; there are no buffers.
    unsafe { with_comm_quick("koloBarrier", comm, |comm| Ok(comm.communicator.call_raw(&BARRIER)?)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloBarrierStart(comm: *const Comm, request: *mut *mut Request) -> c_int {
    // SAFETY: the header's promise; there are no buffers.
    unsafe { with_comm("koloBarrierStart", comm, |comm| start_call(comm, &BARRIER, request)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloRun(comm: *const Comm, call: *const abi::Call) -> c_int {
    // SAFETY: the header's promise, for the communicator, the call and its buffers.
    unsafe { with_comm("koloRun", comm, |comm| Ok(comm.communicator.call_raw(&parse(call)?)?)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloStart(
    comm: *const Comm,
    call: *const abi::Call,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: the header's promise, for the communicator, the call and its buffers.
    unsafe { with_comm("koloStart", comm, |comm| start_call(comm, &parse(call)?, request)) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloExplain(
    comm: *const Comm,
    call: *const abi::Call,
    text: *mut c_char,
    bytes: usize,
    needed: *mut usize,
) -> c_int {
    // SAFETY: the header's promise, for all pointers; buffers are not touched.
    unsafe {
        with_comm("koloExplain", comm, |comm| {
            give_text(&comm.communicator.explain(&parse(call)?)?, text, bytes, needed)
        })
    }
}

/// Reads a `koloCall_t`.
///
/// # Safety
/// `call` is null or points to a struct that begins with a `Versioned`, and is a `koloCall_t` if that head is right.
unsafe fn parse(call: *const abi::Call) -> Outcome<RawCall> {
    if call.is_null() {
        return Err(usage("call is NULL"));
    }
    // SAFETY: the caller's promise; only the head is read before it has been checked.
    checked::head("koloCall_t", unsafe { call.cast::<Versioned>().read() }, abi::Call::HEAD)?;
    // SAFETY: the checked head shows that the whole struct is there.
    let call = unsafe { call.read() };
    Ok(RawCall {
        collective: checked::collective(call.collective)?,
        input: call.input.cast(),
        output: call.output.cast(),
        count: call.count,
        data_type: checked::data_type(call.data_type)?,
        op: checked::op(call.op, Some(call.factor))?,
        root: checked::number("root", call.root)?,
    })
}
