//! Send and receive.

use std::ffi::{c_int, c_void};

use kolo_rs::{Batch, DataType};

use crate::abi::Transfer;
use crate::checked;
use crate::comm::Comm;
use crate::guard::{Outcome, usage, with_comm};

/// `koloTransferKind_t`
const SEND: c_int = 0;
const RECV: c_int = 1;

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSend(
    comm: *const Comm,
    input: *const c_void,
    count: usize,
    data_type: c_int,
    to: c_int,
) -> c_int {
    let send = Transfer { kind: SEND, peer: to, buffer: input.cast_mut(), count, data_type };
    // SAFETY: the header's promise.
    unsafe { with_comm("koloSend", comm, |comm| run(comm, &[send])) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloRecv(
    comm: *const Comm,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    from: c_int,
) -> c_int {
    let recv = Transfer { kind: RECV, peer: from, buffer: output, count, data_type };
    // SAFETY: the header's promise.
    unsafe { with_comm("koloRecv", comm, |comm| run(comm, &[recv])) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSendRecv(
    comm: *const Comm,
    input: *const c_void,
    send_count: usize,
    to: c_int,
    output: *mut c_void,
    recv_count: usize,
    from: c_int,
    data_type: c_int,
) -> c_int {
    let send = Transfer { kind: SEND, peer: to, buffer: input.cast_mut(), count: send_count, data_type };
    let recv = Transfer { kind: RECV, peer: from, buffer: output, count: recv_count, data_type };
    // SAFETY: the header's promise.
    unsafe { with_comm("koloSendRecv", comm, |comm| run(comm, &[send, recv])) }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloBatch(comm: *const Comm, transfers: *const Transfer, count: usize) -> c_int {
    // SAFETY: the header's promise, for the list and all its buffers.
    unsafe {
        with_comm("koloBatch", comm, |comm| {
            if count == 0 {
                return Ok(());
            }
            if transfers.is_null() {
                return Err(usage(format!("{count} transfers are announced, but transfers is NULL")));
            }
            run(comm, std::slice::from_raw_parts(transfers, count))
        })
    }
}

/// Checks all transfers, then runs them.
///
/// # Safety
/// The buffers are as long as the transfers say, and nobody else uses them until this returns.
unsafe fn run(comm: &Comm, transfers: &[Transfer]) -> Outcome {
    let mut batch = comm.communicator.batch();
    for (number, transfer) in transfers.iter().enumerate() {
        // SAFETY: the caller's promise.
        batch = unsafe { add(batch, number, transfer) }?;
    }
    Ok(batch.run()?)
}

/// # Safety
/// As [`run`].
unsafe fn add<'a>(batch: Batch<'a>, number: usize, transfer: &Transfer) -> Outcome<Batch<'a>> {
    let Transfer { kind, peer, buffer, count, .. } = *transfer;
    let data_type: DataType = checked::data_type(transfer.data_type)?;
    let peer = checked::number("the other rank", peer)?;
    if buffer.is_null() && count > 0 {
        return Err(usage(format!("transfer {number} has {count} elements, but its buffer is NULL")));
    }
    let bytes = count.checked_mul(data_type.size()).ok_or_else(|| {
        usage(format!("transfer {number}: {count} elements are more than can be addressed"))
    })?;
    match kind {
        // SAFETY: the caller's promise.
        SEND => Ok(unsafe { batch.send_raw(buffer.cast(), bytes, data_type, peer) }),
        // SAFETY: the caller's promise.
        RECV => Ok(unsafe { batch.recv_raw(buffer.cast(), bytes, data_type, peer) }),
        _ => Err(usage(format!("transfer {number} is of kind {kind}; use KOLO_SEND or KOLO_RECV"))),
    }
}
