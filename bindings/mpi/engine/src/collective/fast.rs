//! Blocking collectives that Kolo's own collectives carry out.
//!
//! Most calls work on runs of a predefined type. [`members`], [`run_of`] and [`operand`] recognise them without counting references, which
//! would take a tenth of the time of an 8-byte call. All other calls take the general path, which also has the error texts.

use std::ffi::{c_int, c_void};

use kolo::{Collective, DataType, RawCall, RawCallV, ReduceOp};

use super::schedule::Memory;
use super::{How, is_in_place};
use crate::comm::{self, Comm};
use crate::datatype::{self, Basic, Type};
use crate::error::Outcome;
use crate::handle::Held;
use crate::net::Absence;
use crate::op;

/// The input or output of a rank that has none.
pub(super) const NOTHING: Memory = Memory { at: std::ptr::null_mut(), len: 0 };

/// Kolo's operator and type for a reduction, and how many numbers of that type an element has.
#[derive(Clone, Copy)]
pub(super) struct Form {
    op: ReduceOp,
    data_type: DataType,
    numbers: usize,
}

fn run(comm: &Comm, call: &RawCall) -> Outcome {
    let kolo = comm.kolo()?;
    let _absent = Absence::begin();
    // SAFETY: the program's buffers are as long as its arguments say, and lent until this returns.
    unsafe { kolo.call_raw(call)? };
    Ok(())
}

/// Returns the communicator of a call that Kolo may serve.
#[inline]
pub(super) fn members(how: How, comm: c_int) -> Option<Held<Comm>> {
    let comm = comm::held(comm).ok()?;
    (how == How::Blocking && comm.size() > 1 && comm.inter.is_none()).then_some(comm)
}

/// Returns the memory of elements of a predefined type, if it is one run of bytes.
#[inline]
pub(super) fn run_of(at: *const c_void, n: i64, of: c_int) -> Option<Memory> {
    let of = datatype::builtin(of)?;
    let len = usize::try_from(n).ok()?.checked_mul(of.size())?;
    // NULL for data is an error: the general path reports it.
    let is_given = !is_in_place(at) && (!at.is_null() || len == 0);
    (of.is_flat() && is_given).then_some(Memory { at: at.cast_mut().cast(), len })
}

/// Returns the input of a reduction on elements of a predefined type, with their number and Kolo's form.
#[inline]
pub(super) fn operand(
    sendbuf: *const c_void,
    recvbuf: *const c_void,
    (n, of): (i64, c_int),
    op: c_int,
) -> Option<(*const u8, usize, Form)> {
    let input = if is_in_place(sendbuf) { recvbuf } else { sendbuf };
    // This may be an error: the general path checks it.
    if sendbuf == recvbuf || is_in_place(recvbuf) || input.is_null() {
        return None;
    }
    let kolo = reducible(op, datatype::builtin(of)?)?;
    Some((input.cast(), usize::try_from(n).ok()?, kolo))
}

/// Waits for all ranks.
pub(super) fn barrier(comm: &Comm) -> Outcome {
    run(comm, &moving(Collective::Barrier, NOTHING, NOTHING, 0, 0))
}

fn moving(collective: Collective, input: Memory, output: Memory, bytes: usize, root: u32) -> RawCall {
    let (input, output) = (input.at.cast_const(), output.at);
    RawCall { collective, input, output, count: bytes, data_type: DataType::U8, op: ReduceOp::Sum, root }
}

/// Moves blocks of `bytes` bytes.
pub(super) fn transfer(
    comm: &Comm,
    collective: Collective,
    input: Memory,
    output: Memory,
    bytes: usize,
    root: u32,
) -> Outcome {
    // All ranks agree on the length, so if it is 0, none waits for another.
    if bytes == 0 { Ok(()) } else { run(comm, &moving(collective, input, output, bytes, root)) }
}

/// Gathers blocks of unequal length to all ranks, one after another.
pub(super) fn all_gather_v(comm: &Comm, input: Memory, output: Memory, bytes: &[usize]) -> Outcome {
    if bytes.iter().sum::<usize>() == 0 {
        return Ok(());
    }
    let kolo = comm.kolo()?;
    let call = RawCallV {
        collective: Collective::AllGather,
        input: input.at,
        input_counts: &[input.len],
        output: output.at,
        output_counts: bytes,
        data_type: DataType::U8,
        op: ReduceOp::Sum,
        root: 0,
    };
    let _absent = Absence::begin();
    // SAFETY: as above.
    unsafe { kolo.call_raw_v(&call)? };
    Ok(())
}

/// Returns Kolo's form of a reduction, if it has one. All ranks get the same answer.
#[inline]
pub(super) fn reducible(handle: i32, of: &Type) -> Option<Form> {
    let (op, basic) = (op::builtin(handle)?, of.basic()?);
    // The sum of complex numbers is that of their parts.
    let (basic, numbers) = match (op, basic) {
        (op::Builtin::Sum, Basic::C32) => (Basic::F32, 2),
        (op::Builtin::Sum, Basic::C64) => (Basic::F64, 2),
        _ => (basic, 1),
    };
    let form = || op::for_kolo(op, basic).map(|(op, data_type)| Form { op, data_type, numbers });
    // The standard defines logical operators for integers only, and bitwise operators not for floating point.
    if matches!(op, op::Builtin::Sum | op::Builtin::Prod | op::Builtin::Max | op::Builtin::Min) {
        return if basic == Basic::Byte { None } else { form() };
    }
    let is_logical = matches!(op, op::Builtin::Land | op::Builtin::Lor | op::Builtin::Lxor);
    if basic.is_float() || basic == Basic::Byte && is_logical { None } else { form() }
}

/// Reduces vectors or blocks of `count` elements.
#[inline]
pub(super) fn reduction(
    comm: &Comm,
    collective: Collective,
    buffers: (*const u8, *mut u8),
    count: usize,
    Form { op, data_type, numbers }: Form,
    root: u32,
) -> Outcome {
    if count == 0 {
        return Ok(());
    }
    let ((input, output), count) = (buffers, count.saturating_mul(numbers));
    run(comm, &RawCall { collective, input, output, count, data_type, op, root })
}

/// Reduces, and gives each rank a block; the lengths of the blocks differ.
pub(super) fn reduce_scatter_v(
    comm: &Comm,
    (input, output): (*const u8, *mut u8),
    counts: &[usize],
    Form { op, data_type, numbers }: Form,
) -> Outcome {
    if counts.iter().sum::<usize>() == 0 {
        return Ok(());
    }
    let counts: Vec<usize> = counts.iter().map(|count| count.saturating_mul(numbers)).collect();
    let kolo = comm.kolo()?;
    let own = [counts[comm.rank as usize]];
    let call = RawCallV {
        collective: Collective::ReduceScatter,
        input,
        input_counts: &counts,
        output,
        output_counts: &own,
        data_type,
        op,
        root: 0,
    };
    let _absent = Absence::begin();
    // SAFETY: as above.
    unsafe { kolo.call_raw_v(&call)? };
    Ok(())
}
