//! Send, receive and probe.

use std::ffi::{c_int, c_void};
use std::time::Duration;

use kolo_rs::{Batch, DataType, RawMessage, WaitingMessage};

use crate::abi::{ANY_SOURCE, Message, Transfer, UNSET};
use crate::checked;
use crate::comm::Comm;
use crate::guard::{Outcome, place, usage, with_comm};
use crate::request::{Progress, Request, start};

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
unsafe extern "C" fn koloSendTagged(
    comm: *const Comm,
    input: *const c_void,
    count: usize,
    data_type: c_int,
    to: c_int,
    tag: u32,
) -> c_int {
    // SAFETY: the header's promise: the input stays while this blocks.
    unsafe {
        with_comm("koloSendTagged", comm, |comm| {
            let to = checked::number("the other rank", to)?;
            let message = message(input.cast_mut(), count, data_type, tag)?;
            Ok(comm.communicator.batch().send_message(message, to).run()?)
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloRecvTagged(
    comm: *const Comm,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    from: c_int,
    tag: u32,
    source: *mut c_int,
) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloRecvTagged", comm, |comm| {
            let message = message(output, count, data_type, tag)?;
            let from = self::source(from)?;
            let mut found = from.unwrap_or_default();
            let batch = comm.communicator.batch();
            match from {
                None => batch.recv_any_message(message, &mut found).run()?,
                Some(from) => batch.recv_message(message, from).run()?,
            }
            if !source.is_null() {
                place("source", source)?.write(c_int::try_from(found).unwrap_or(ANY_SOURCE));
            }
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloProbe(
    comm: *const Comm,
    from: c_int,
    first_tag: u32,
    last_tag: u32,
    timeout_ms: i64,
    message: *mut Message,
) -> c_int {
    // SAFETY: the header's promise, for both pointers.
    unsafe {
        with_comm("koloProbe", comm, |comm| {
            let (message, from) = (place("message", message)?, source(from)?);
            let found = if timeout_ms == UNSET {
                comm.communicator.probe(from, first_tag..=last_tag)?
            } else {
                let limit = u64::try_from(timeout_ms).map_err(|_| {
                    usage(format!("timeout_ms is {timeout_ms}; use KOLO_UNSET, or 0 or more"))
                })?;
                comm.communicator.probe_within(from, first_tag..=last_tag, Duration::from_millis(limit))?
            };
            message.write(described(&found));
            Ok(())
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloProbeNow(
    comm: *const Comm,
    from: c_int,
    first_tag: u32,
    last_tag: u32,
    found: *mut c_int,
    message: *mut Message,
) -> c_int {
    // SAFETY: the header's promise, for all three pointers.
    unsafe {
        with_comm("koloProbeNow", comm, |comm| {
            let (found, message) = (place("found", found)?, place("message", message)?);
            let waiting = comm.communicator.probe_now(source(from)?, first_tag..=last_tag)?;
            found.write(c_int::from(waiting.is_some()));
            if let Some(waiting) = waiting {
                message.write(described(&waiting));
            }
            Ok(())
        })
    }
}

/// Returns the source of a receive or probe; `None` for any rank.
fn source(from: c_int) -> Outcome<Option<u32>> {
    if from == ANY_SOURCE {
        return Ok(None);
    }
    checked::number("the other rank (KOLO_ANY_SOURCE for any)", from).map(Some)
}

fn described(message: &WaitingMessage) -> Message {
    let place = |of| DataType::ALL.iter().position(|known| *known == of);
    let data_type = message.data_type.and_then(place).and_then(|at| c_int::try_from(at).ok());
    Message {
        source: c_int::try_from(message.source).unwrap_or(ANY_SOURCE),
        tag: message.tag,
        bytes: message.bytes,
        data_type: data_type.unwrap_or(UNSET as c_int),
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloSendStart(
    comm: *const Comm,
    input: *const c_void,
    count: usize,
    data_type: c_int,
    to: c_int,
    tag: u32,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: the header's promise: the input stays until the request has been waited for.
    unsafe {
        with_comm("koloSendStart", comm, |comm| {
            start(comm, request, || {
                let to = checked::number("the other rank", to)?;
                let message = message(input.cast_mut(), count, data_type, tag)?;
                Ok(Progress::Plain(comm.communicator.send_raw_start(&message, to)?))
            })
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloRecvStart(
    comm: *const Comm,
    output: *mut c_void,
    count: usize,
    data_type: c_int,
    from: c_int,
    tag: u32,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: the header's promise: the output stays until the request has been waited for.
    unsafe {
        with_comm("koloRecvStart", comm, |comm| {
            start(comm, request, || {
                let message = message(output, count, data_type, tag)?;
                Ok(Progress::Recv(match source(from)? {
                    None => comm.communicator.recv_any_raw_start(&message)?,
                    Some(from) => comm.communicator.recv_raw_start(&message, from)?,
                }))
            })
        })
    }
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
            run(comm, list(transfers, count)?)
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloBatchStart(
    comm: *const Comm,
    transfers: *const Transfer,
    count: usize,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: the header's promise: the buffers stay until the request has been waited for; the list is read now.
    unsafe {
        with_comm("koloBatchStart", comm, |comm| {
            start(comm, request, || {
                let batch = batch(comm, list(transfers, count)?)?;
                Ok(Progress::Plain(batch.start()?))
            })
        })
    }
}

/// # Safety
/// `transfers` is null or points to `count` transfers.
unsafe fn list<'a>(transfers: *const Transfer, count: usize) -> Outcome<&'a [Transfer]> {
    if transfers.is_null() {
        return Err(usage(format!("transfers is NULL, but should hold {count} transfers")));
    }
    if count > isize::MAX as usize / size_of::<Transfer>() {
        return Err(usage(format!("{count} transfers are more than can be addressed")));
    }
    // SAFETY: the caller's promise; the length has been checked to fit into memory.
    Ok(unsafe { std::slice::from_raw_parts(transfers, count) })
}

/// Checks the memory of a message.
fn message(buffer: *mut c_void, count: usize, data_type: c_int, tag: u32) -> Outcome<RawMessage> {
    let data_type: DataType = checked::data_type(data_type)?;
    if buffer.is_null() && count > 0 {
        return Err(usage(format!("the buffer is NULL, but should hold {count} elements")));
    }
    let bytes = count
        .checked_mul(data_type.size())
        .ok_or_else(|| usage(format!("{count} elements are more than can be addressed")))?;
    Ok(RawMessage { data: buffer.cast(), bytes, data_type, tag })
}

/// Checks all transfers, then runs them.
///
/// # Safety
/// The buffers are as long as the transfers say, and nothing else uses them until this returns.
unsafe fn run(comm: &Comm, transfers: &[Transfer]) -> Outcome {
    // SAFETY: the caller's promise.
    Ok(unsafe { batch(comm, transfers) }?.run()?)
}

/// Checks all transfers, and makes a batch of them.
///
/// # Safety
/// The buffers are as long as the transfers say, and nothing else uses them until the batch, run or started, is complete.
unsafe fn batch<'a>(comm: &'a Comm, transfers: &[Transfer]) -> Outcome<Batch<'a>> {
    let mut batch = comm.communicator.batch();
    for (number, transfer) in transfers.iter().enumerate() {
        // SAFETY: the caller's promise.
        batch = unsafe { add(batch, transfer) }.map_err(|failure| failure.in_part(number))?;
    }
    Ok(batch)
}

/// # Safety
/// As [`batch`].
unsafe fn add<'a>(batch: Batch<'a>, transfer: &Transfer) -> Outcome<Batch<'a>> {
    let Transfer { kind, peer, buffer, count, data_type } = *transfer;
    let message = message(buffer, count, data_type, 0)?;
    let peer = checked::number("the other rank", peer)?;
    match kind {
        // SAFETY: the caller's promise.
        SEND => Ok(unsafe { batch.send_message(message, peer) }),
        // SAFETY: the caller's promise.
        RECV => Ok(unsafe { batch.recv_message(message, peer) }),
        _ => Err(usage(format!("it is of kind {kind}; use KOLO_SEND or KOLO_RECV"))),
    }
}
