//! Collectives with blocks of unequal length.
//!
//! The runtime offers them on typed slices. Python's memory may be of any alignment, so the slices made here are of plain
//! bytes that say which type they stand for.

use kolo_rs::{Collective, Communicator, Context, DataType, Element, Error, ReduceOp, Result};

/// The arguments; counts are in elements. Where a rank has one block, its list has one entry; where it has none, none.
#[derive(Debug)]
pub(crate) struct Irregular {
    pub(crate) collective: Collective,
    pub(crate) input: usize,
    pub(crate) input_counts: Vec<usize>,
    pub(crate) output: usize,
    pub(crate) output_counts: Vec<usize>,
    pub(crate) data_type: DataType,
    pub(crate) op: ReduceOp,
    pub(crate) root: u32,
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

/// Runs the call.
///
/// # Safety
/// The buffers are as long as the counts add up to, and nobody else uses them until this returns.
pub(crate) unsafe fn run(communicator: &Communicator, call: &Irregular) -> Result<()> {
    // SAFETY: handed on.
    unsafe {
        match call.data_type {
            DataType::Bool => typed::<cells::Bool>(communicator, call),
            DataType::U8 => typed::<cells::U8>(communicator, call),
            DataType::I8 => typed::<cells::I8>(communicator, call),
            DataType::U32 => typed::<cells::U32>(communicator, call),
            DataType::I32 => typed::<cells::I32>(communicator, call),
            DataType::U64 => typed::<cells::U64>(communicator, call),
            DataType::I64 => typed::<cells::I64>(communicator, call),
            DataType::F16 => typed::<cells::F16>(communicator, call),
            DataType::BF16 => typed::<cells::BF16>(communicator, call),
            DataType::F32 => typed::<cells::F32>(communicator, call),
            DataType::F64 => typed::<cells::F64>(communicator, call),
        }
    }
}

/// # Safety
/// As [`run`].
unsafe fn typed<T: Element>(communicator: &Communicator, call: &Irregular) -> Result<()> {
    let usage = |problem: &str| {
        let context = Context {
            rank: communicator.rank(),
            operation: format!("{}_v", call.collective.name()),
            sequence: 0,
        };
        Error::Usage { context, problem: problem.to_owned() }
    };
    let sum = |counts: &[usize]| {
        let fits = |elements: usize| {
            elements.checked_mul(size_of::<T>()).is_some_and(|b| isize::try_from(b).is_ok())
        };
        let add = |sum: usize, count: &usize| sum.checked_add(*count).filter(|sum| fits(*sum));
        counts.iter().try_fold(0, add).ok_or_else(|| usage("the counts add up to more than can be addressed"))
    };
    let (reads, writes) = (sum(&call.input_counts)?, sum(&call.output_counts)?);
    let (from_end, to_end) = (call.input + reads * size_of::<T>(), call.output + writes * size_of::<T>());
    if reads > 0 && writes > 0 && call.input < to_end && call.output < from_end {
        return Err(usage("input and output overlap, which is not possible with blocks of unequal length"));
    }
    if (reads > 0 && call.input == 0) || (writes > 0 && call.output == 0) {
        return Err(usage("a null pointer was given for a buffer that is not empty"));
    }
    // SAFETY: not null where there are elements, not too long, apart from each other; `T` is plain bytes, so there is no
    // alignment and no invalid value; the rest is the caller's promise.
    let (input, output): (&[T], &mut [T]) = unsafe {
        let input = if reads == 0 { &[] } else { std::slice::from_raw_parts(call.input as *const T, reads) };
        let output =
            if writes == 0 { &mut [] } else { std::slice::from_raw_parts_mut(call.output as *mut T, writes) };
        (input, output)
    };
    match call.collective {
        Collective::AllGather => communicator.all_gather_v(input, output, &call.output_counts),
        Collective::ReduceScatter => {
            communicator.reduce_scatter_v(input, output, &call.input_counts, call.op)
        }
        Collective::Gather => communicator.gather_v(input, output, &call.output_counts, call.root),
        Collective::Scatter => communicator.scatter_v(input, output, &call.input_counts, call.root),
        Collective::AllToAll => {
            communicator.all_to_all_v(input, &call.input_counts, output, &call.output_counts)
        }
        _ => Err(usage("this collective has no form with blocks of unequal length")),
    }
}
