//! Collectives with blocks of unequal length.
//!
//! The runtime offers them on typed slices. C's memory may be of any alignment, and its bools of any value, so the slices
//! made here are of plain bytes that say which type they stand for.

use std::ffi::{c_int, c_void};

use kolo_rs::{DataType, Element};

use crate::checked;
use crate::comm::Comm;
use crate::guard::{Outcome, usage, with_comm};

/// Runs an expression with `$cell` standing for the elements of a type.
macro_rules! with_cells {
    ($data_type:expr, $cell:ident => $run:expr) => {{
        use cells::*;
        macro_rules! run {
            ($of:ident) => {{
                type $cell = $of;
                $run
            }};
        }
        match $data_type {
            DataType::Bool => run!(Bool),
            DataType::U8 => run!(U8),
            DataType::I8 => run!(I8),
            DataType::U32 => run!(U32),
            DataType::I32 => run!(I32),
            DataType::U64 => run!(U64),
            DataType::I64 => run!(I64),
            DataType::F16 => run!(F16),
            DataType::BF16 => run!(BF16),
            DataType::F32 => run!(F32),
            DataType::F64 => run!(F64),
        }
    }};
}

/// Elements as bytes: no alignment, every value valid.
mod cells {
    use kolo_rs::{DataType, Element};

    macro_rules! cells {
        ($($name:ident),*) => {$(
            #[derive(Clone, Copy)]
            #[repr(transparent)]
            pub(super) struct $name([u8; DataType::$name.size()]);

            // SAFETY: an array of bytes as long as the type says, in which every pattern is valid.
            unsafe impl Element for $name {
                const TYPE: DataType = DataType::$name;
            }
        )*};
    }
    cells!(Bool, U8, I8, U32, I32, U64, I64, F16, BF16, F32, F64);
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloAllGatherV(
    comm: *const Comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: c_int,
) -> c_int {
    // SAFETY: the header's promise: `counts` has an entry per rank, the buffers are as long as it says.
    unsafe {
        with_comm("koloAllGatherV", comm, |comm| {
            let (data_type, counts) = (checked::data_type(data_type)?, counts_of(comm, "counts", counts)?);
            let (own, all) = (counts[comm.communicator.rank() as usize], sum(counts)?);
            with_cells!(data_type, T => {
                let (input, output) = buffers::<T>((input, own), (output, all))?;
                Ok(comm.communicator.all_gather_v(input, output, counts)?)
            })
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloReduceScatterV(
    comm: *const Comm,
    input: *const c_void,
    output: *mut c_void,
    counts: *const usize,
    data_type: c_int,
    op: c_int,
) -> c_int {
    // SAFETY: as above.
    unsafe {
        with_comm("koloReduceScatterV", comm, |comm| {
            let (data_type, op) = (checked::data_type(data_type)?, checked::op(op, None)?);
            let counts = counts_of(comm, "counts", counts)?;
            let (own, all) = (counts[comm.communicator.rank() as usize], sum(counts)?);
            with_cells!(data_type, T => {
                let (input, output) = buffers::<T>((input, all), (output, own))?;
                Ok(comm.communicator.reduce_scatter_v(input, output, counts, op)?)
            })
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloGatherV(
    comm: *const Comm,
    input: *const c_void,
    input_count: usize,
    output: *mut c_void,
    counts: *const usize,
    data_type: c_int,
    root: c_int,
) -> c_int {
    // SAFETY: as above, on the root; elsewhere neither output nor counts are looked at.
    unsafe {
        with_comm("koloGatherV", comm, |comm| {
            let (data_type, root) = (checked::data_type(data_type)?, checked::number("root", root)?);
            let at_root = comm.communicator.rank() == root;
            let counts = if at_root { counts_of(comm, "counts", counts)? } else { &[] };
            let all = sum(counts)?;
            with_cells!(data_type, T => {
                let (input, output) = buffers::<T>((input, input_count), (output, all))?;
                Ok(comm.communicator.gather_v(input, output, counts, root)?)
            })
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloScatterV(
    comm: *const Comm,
    input: *const c_void,
    counts: *const usize,
    output: *mut c_void,
    output_count: usize,
    data_type: c_int,
    root: c_int,
) -> c_int {
    // SAFETY: as above, on the root; elsewhere neither input nor counts are looked at.
    unsafe {
        with_comm("koloScatterV", comm, |comm| {
            let (data_type, root) = (checked::data_type(data_type)?, checked::number("root", root)?);
            let at_root = comm.communicator.rank() == root;
            let counts = if at_root { counts_of(comm, "counts", counts)? } else { &[] };
            let all = sum(counts)?;
            with_cells!(data_type, T => {
                let (input, output) = buffers::<T>((input, all), (output, output_count))?;
                Ok(comm.communicator.scatter_v(input, output, counts, root)?)
            })
        })
    }
}

/// See `kolo.h`.
#[unsafe(no_mangle)]
unsafe extern "C" fn koloAllToAllV(
    comm: *const Comm,
    input: *const c_void,
    send_counts: *const usize,
    output: *mut c_void,
    recv_counts: *const usize,
    data_type: c_int,
) -> c_int {
    // SAFETY: as above, for both lists.
    unsafe {
        with_comm("koloAllToAllV", comm, |comm| {
            let data_type = checked::data_type(data_type)?;
            let sends = counts_of(comm, "send_counts", send_counts)?;
            let recvs = counts_of(comm, "recv_counts", recv_counts)?;
            let (sent, received) = (sum(sends)?, sum(recvs)?);
            with_cells!(data_type, T => {
                let (input, output) = buffers::<T>((input, sent), (output, received))?;
                Ok(comm.communicator.all_to_all_v(input, sends, output, recvs)?)
            })
        })
    }
}

/// One count per rank.
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

fn sum(counts: &[usize]) -> Outcome<usize> {
    let add = |sum: usize, count: &usize| sum.checked_add(*count);
    counts
        .iter()
        .try_fold(0, add)
        .ok_or_else(|| usage("the counts add up to more than can be addressed; are they initialized?"))
}

/// The buffers as slices.
///
/// # Safety
/// Each is as long as its count says, and nobody else uses them for as long as the slices live.
unsafe fn buffers<'a, T: Element>(
    (input, reads): (*const c_void, usize),
    (output, writes): (*mut c_void, usize),
) -> Outcome<(&'a [T], &'a mut [T])> {
    for (what, buffer, count) in [("input", input, reads), ("output", output.cast_const(), writes)] {
        let bytes = count.checked_mul(size_of::<T>()).filter(|bytes| isize::try_from(*bytes).is_ok());
        if bytes.is_none() {
            return Err(usage(format!("{count} elements of {what} are more than can be addressed")));
        }
        if buffer.is_null() && count > 0 {
            return Err(usage(format!("{what} is NULL, but should hold {count} elements")));
        }
    }
    let (from, to) = (input as usize, output as usize);
    let (from_end, to_end) = (from + reads * size_of::<T>(), to + writes * size_of::<T>());
    if reads > 0 && writes > 0 && from < to_end && to < from_end {
        return Err(usage("input and output overlap, which is not possible with blocks of unequal length"));
    }
    // SAFETY: not null where there are elements, not too long, apart from each other; `T` is plain bytes, so there is no
    // alignment and no invalid value; the rest is the caller's promise.
    unsafe {
        let input = if reads == 0 { &[] } else { std::slice::from_raw_parts(input.cast(), reads) };
        let output =
            if writes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(output.cast(), writes) };
        Ok((input, output))
    }
}
