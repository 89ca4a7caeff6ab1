//! Reduction kernels: `dst = a op b`, element by element, at the speed of memory.
//!
//! # Shape
//! * `operators` defines each operator once, for one pair of elements, in safe code.
//! * `half_bits` converts the 16-bit floating-point types to and from `f32`, in safe integer code.
//! * `loops` has the one loop over elements, which the compiler vectorises once per instruction set.
//! * `f16_blocks` is the one exception: its conversions of `f16` need intrinsics.
//! * `table` maps types and operators to functions; `isa` says which of them this processor can run.
//! * `fold` has the arithmetic of a call. It reduces many operands to one, in their order or along the canonical `tree`.
//! * `floats` gives the calling thread the default floating-point mode. Every executor enters it before it reduces.
//! * `scale` multiplies before a reduction, for PreMulSum, and divides after it, for Avg.
//!
//! # Rules
//! 1. **One result.** For given operands every instruction set writes the same bits, so in a cluster of unequal
//!    processors the result does not depend on which rank reduces. There is no fused multiply-add and no reassociation,
//!    and the 16-bit types round in the same way everywhere, subnormals included. Tests: `half_types_exhaustively` and
//!    `instruction_sets_agree_and_commute_in_bits`.
//! 2. **Commutative in bits.** `a op b` and `b op a` are the same bits, so two ranks that exchange their values and
//!    reduce get the same result. Therefore every floating-point operator writes one NaN, the positive quiet one with
//!    an empty payload, whatever payloads the operands have; and -0 is less than +0 for `Min` and `Max`. Test:
//!    `instruction_sets_agree_and_commute_in_bits`.
//! 3. **No alignment.** Pointers may have any alignment. Aligned ones are faster.
//! 4. **The default floating-point mode.** Values are rounded to the nearest, to even in a tie, and subnormals are kept,
//!    whatever mode the program has given its threads. Test: `a_rank_that_flushes_subnormals_gets_the_bits_of_the_others`.

mod f16_blocks;
mod floats;
mod fold;
mod half_bits;
mod isa;
mod loops;
mod operators;
mod scale;
mod stream;
mod table;
#[cfg(test)]
mod tests;
mod tree;

use std::fmt;

pub(crate) use floats::DefaultFloats;
#[cfg(test)]
pub(crate) use floats::flush_subnormals;
pub(crate) use fold::Arithmetic;
pub(crate) use half_bits::f32_to_f16;
pub use isa::Isa;
pub use scale::{divide, scale};
pub(crate) use tree::tree;

use crate::types::{DataType, ReduceOp};

/// Alignment of the parts of a block: two cache lines, and a whole number of elements of any type.
pub(crate) const GRAIN: usize = 128;

/// Function that computes `dst = a op b` over `count` elements.
///
/// # Safety
/// `a` and `b` are readable and `dst` is writable for `count` elements; `dst` equals `a`, or equals `b`, or overlaps
/// neither. Alignment does not matter. The processor has the instructions that the function was compiled for.
pub type Combine = unsafe fn(dst: *mut u8, a: *const u8, b: *const u8, count: usize);

/// Does nothing. Used where a function is needed but nothing is reduced.
///
/// # Safety
/// No requirements, since it does nothing.
pub(crate) unsafe fn combine_nothing(_: *mut u8, _: *const u8, _: *const u8, _: usize) {}

/// The function that reduces elements of one type with one operator on this processor.
#[derive(Clone, Copy)]
pub struct Kernel {
    combine: Combine,
    data_type: DataType,
    op: ReduceOp,
    isa: Isa,
}

/// Reason why there is no kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Unsupported {
    /// The operator is not defined for the type.
    Operator {
        /// The requested operator.
        op: ReduceOp,
        /// The requested type.
        data_type: DataType,
    },
    /// The processor lacks the instruction set.
    Processor {
        /// The requested instruction set.
        isa: Isa,
    },
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Operator { op, data_type } if data_type.is_float() => {
                write!(
                    f,
                    "{} is not defined for {data_type}; use an integer type of the same size",
                    op.name()
                )
            }
            Self::Operator { op, data_type } => {
                write!(f, "{} is not defined for {data_type}; use u8 instead", op.name())
            }
            Self::Processor { isa } => write!(f, "this processor does not support {isa}"),
        }
    }
}

impl std::error::Error for Unsupported {}

/// Returns the best kernel for a type and an operator on this processor.
///
/// # Errors
/// [`Unsupported::Operator`] if [`ReduceOp::supports`] returns false.
pub fn kernel(data_type: DataType, op: ReduceOp) -> Result<Kernel, Unsupported> {
    look_up(Isa::best(), data_type, op)
}

/// Returns the function of the best kernel.
///
/// # Panics
/// If the operator is not defined for the type. Calls are checked for that when they are made.
pub(crate) fn combine_fn(data_type: DataType, op: ReduceOp) -> Combine {
    table::combine(Isa::best(), data_type, op).expect("a kernel for each operator that the type supports")
}

/// Returns the kernel compiled for one instruction set, for tests and benchmarks.
///
/// # Errors
/// [`Unsupported::Operator`] if [`ReduceOp::supports`] returns false, [`Unsupported::Processor`] if the processor
/// cannot run it.
pub fn kernel_for(isa: Isa, data_type: DataType, op: ReduceOp) -> Result<Kernel, Unsupported> {
    if !isa.is_available() {
        return Err(Unsupported::Processor { isa });
    }
    look_up(isa, data_type, op)
}

/// Returns the kernel for an instruction set that this processor has.
fn look_up(isa: Isa, data_type: DataType, op: ReduceOp) -> Result<Kernel, Unsupported> {
    if !op.supports(data_type) {
        return Err(Unsupported::Operator { op, data_type });
    }
    let combine = table::combine(isa, data_type, op).ok_or(Unsupported::Operator { op, data_type })?;
    Ok(Kernel { combine, data_type, op, isa })
}

impl Kernel {
    /// Computes `dst = a op b` over `count` elements.
    ///
    /// # Safety
    /// As for [`Combine`], without the last sentence: a `Kernel` exists only if the processor can run it.
    #[inline]
    pub unsafe fn combine(&self, dst: *mut u8, a: *const u8, b: *const u8, count: usize) {
        // SAFETY: the caller vouches for the pointers, and `kernel_for` has checked the processor.
        unsafe { (self.combine)(dst, a, b, count) }
    }

    /// Computes `dst = sources[0] op sources[1] op ...` from the left. All sources are reduced in one pass over `dst`,
    /// instead of one pass each.
    ///
    /// # Safety
    /// `dst` is writable and each source readable for `count` elements. `dst` equals one of the first two sources, or
    /// overlaps none; it overlaps no other source.
    ///
    /// # Panics
    /// If there are no sources.
    pub unsafe fn combine_many(&self, dst: *mut u8, sources: &[*const u8], count: usize) {
        /// Bytes that stay in the first-level cache while the sources pass through it.
        const PIECE_BYTES: usize = 4096;
        let piece = PIECE_BYTES / self.element_bytes();
        let (first, rest) = sources.split_first().expect("a reduction of nothing");
        for start in (0..count).step_by(piece) {
            let (count, at) = (piece.min(count - start), start * self.element_bytes());
            // SAFETY: the pieces are parts of the caller's buffers. Before a piece of `dst` is written, the pieces of the
            // first two sources are read or are it; the others do not overlap it. Test: `many_sources_from_the_left`.
            unsafe {
                let mut left = first.add(at);
                if rest.is_empty() {
                    std::ptr::copy(left, dst.add(at), count * self.element_bytes());
                }
                for source in rest {
                    self.combine(dst.add(at), left, source.add(at), count);
                    left = dst.add(at);
                }
            }
        }
    }

    /// Computes `dst = a op b` with stores that bypass the caches. This suits a `dst` that is neither `a` nor `b`, is
    /// larger than the last-level cache, and is not read soon. For anything else it is slower than
    /// [`combine`](Self::combine).
    ///
    /// # Safety
    /// As for [`combine`](Self::combine).
    pub unsafe fn combine_streaming(&self, dst: *mut u8, a: *const u8, b: *const u8, count: usize) {
        // SAFETY: the caller vouches for the pointers, and `kernel_for` has checked the processor.
        unsafe { stream::combine(self.combine, self.data_type.size(), dst, a, b, count) }
    }

    /// Computes `acc = acc op other` for bytes in slices.
    ///
    /// # Panics
    /// If the lengths differ, or are not whole elements.
    pub fn accumulate(&self, acc: &mut [u8], other: &[u8]) {
        assert_eq!(acc.len(), other.len(), "operands of different lengths");
        assert_eq!(acc.len() % self.element_bytes(), 0, "not a whole number of elements");
        let count = acc.len() / self.element_bytes();
        // SAFETY: the slices are valid for their lengths, which hold `count` elements, and cannot overlap.
        unsafe { self.combine(acc.as_mut_ptr(), acc.as_ptr(), other.as_ptr(), count) }
    }

    /// Returns the function itself, for a caller that keeps its own table.
    #[must_use]
    pub fn as_fn(&self) -> Combine {
        self.combine
    }

    /// Returns the type of the elements.
    #[must_use]
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// Returns the requested operator. `Avg` and `PremulSum` combine like `Sum`.
    #[must_use]
    pub fn op(&self) -> ReduceOp {
        self.op
    }

    /// Returns the size of an element in bytes.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        self.data_type.size()
    }

    /// Returns the instruction set that the function was compiled for.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kernel({} of {} for {})", self.op.name(), self.data_type, self.isa)
    }
}
