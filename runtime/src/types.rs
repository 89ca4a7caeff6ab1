//! Element types and reduction operators, as values.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// Table of the element types. Each row defines one type, and everything that exists once per type is generated from
/// it. A type's position is its number in C and Python (`kolo.h`, `numbers.py`; the test `numbers` compares them), so
/// rows are only ever added at the end.
///
/// Columns: the name here; the Rust type; its name; its class of numbers; the kernels that reduce, scale and divide it
/// (see `reduce`: an integer is reduced as these bits, and divided over a type that holds it); the type in which its
/// test data is computed (see `verify`); its number and name in NCCL and NCCL's tests, if it has one there.
macro_rules! data_types {
    ($make:ident) => {
        $make! {
            Bool, Bool, "bool", Boolean, [boolean], LaneU8, None;
            U8, u8, "u8", Unsigned, [integer u8 as u8, over f32 as i32], LaneU8, Some((1, "uint8"));
            I8, i8, "i8", Signed, [integer i8 as u8, over f32 as i32], LaneU8, Some((0, "int8"));
            U32, u32, "u32", Unsigned, [integer u32 as u32, over f64 as u32], LaneU32, Some((3, "uint32"));
            I32, i32, "i32", Signed, [integer i32 as u32, over f64 as i32], LaneU32, Some((2, "int32"));
            U64, u64, "u64", Unsigned, [integer u64 as u64, over u64], LaneU64, Some((5, "uint64"));
            I64, i64, "i64", Signed, [integer i64 as u64, over i64], LaneU64, Some((4, "int64"));
            F16, f16, "f16", Float, [f16], LaneF16, Some((6, "half"));
            BF16, bf16, "bf16", Float, [bf16], LaneBf16, Some((9, "bfloat16"));
            F32, f32, "f32", Float, [float f32], LaneF32, Some((7, "float"));
            F64, f64, "f64", Float, [float f64], LaneF64, Some((8, "double"));
            U16, u16, "u16", Unsigned, [integer u16 as u16, over f32 as i32], LaneU16, None;
            I16, i16, "i16", Signed, [integer i16 as u16, over f32 as i32], LaneU16, None;
        }
    };
}
pub(crate) use data_types;

/// Class of numbers that a type holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    Boolean,
    Unsigned,
    Signed,
    Float,
}

macro_rules! make_data_type {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {
        /// The type of an element.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names say it all")]
        #[non_exhaustive]
        pub enum DataType {
            $($kolo,)+
        }

        impl DataType {
            /// All element types. A type's position is its number in C and Python.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$kolo),+];

            /// Returns the size of an element in bytes.
            #[must_use]
            #[inline]
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$kolo => size_of::<$rust>(),)+
                }
            }

            /// Returns the name, as in Rust.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kolo => $name,)+
                }
            }

            /// Returns the number in NCCL and the name in NCCL's tests, if the type has one there.
            #[must_use]
            pub const fn in_nccl(self) -> Option<(u8, &'static str)> {
                match self {
                    $(Self::$kolo => $nccl,)+
                }
            }

            #[inline]
            pub(crate) const fn class(self) -> Class {
                match self {
                    $(Self::$kolo => Class::$class,)+
                }
            }
        }

        $(
            // SAFETY: these are plain numbers, or a byte with any value, without padding (test `zeros_are_elements`);
            // the size is that of the Rust type.
            unsafe impl Element for $rust {
                const TYPE: DataType = DataType::$kolo;
            }
        )+
    };
}
data_types!(make_data_type);

impl DataType {
    /// Returns whether this is a floating-point type.
    #[must_use]
    #[inline]
    pub const fn is_float(self) -> bool {
        matches!(self.class(), Class::Float)
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DataType {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|t| t.name() == s).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|t| t.name()).collect();
            format!("unknown element type '{s}'; expected one of {}", names.join(", "))
        })
    }
}

/// A Rust type that Kolo can move and reduce.
///
/// # Safety
/// `TYPE` describes `Self` exactly: the size is the same, there is no padding, and every bit pattern is a valid value.
/// Other ranks may be written in other languages, and may send any bits. `bool` is therefore not an element: see
/// [`Bool`].
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Describes the type.
    const TYPE: DataType;
}

/// Returns elements as bytes.
pub(crate) const fn bytes_of_mut<T: Element>(data: &mut [T]) -> &mut [u8] {
    // SAFETY: the bytes are the same memory for the same lifetime. Elements have no padding, so all of it is
    // initialized, and every bit pattern is a valid value, so any bytes written are elements again: the contract of
    // `Element`. Bytes need no alignment.
    unsafe { std::slice::from_raw_parts_mut(data.as_mut_ptr().cast(), size_of_val(data)) }
}

/// A truth value in a message: a byte, of which 0 is false and every other value is true. Rust's `bool` must be 0 or 1,
/// while a rank in C or Python may send a 2. Reductions give 0 and 1.
///
/// ```
/// let agreed = kolo::Cluster::local(2, |comm| {
///     let mut vote = [kolo::Bool::from(comm.rank() == 0)];
///     comm.all_reduce(&mut vote, kolo::ReduceOp::Min).map(|()| vote[0].get())
/// });
/// assert!(matches!(agreed?[..], [Ok(false), Ok(false)]));
/// # Ok::<(), kolo::Error>(())
/// ```
/// A `bool` is not an [`Element`]:
/// ```compile_fail
/// fn vote(comm: &kolo::Communicator, votes: &mut [bool]) -> kolo::Result<()> {
///     comm.all_reduce(votes, kolo::ReduceOp::Min)
/// }
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// Returns the value.
    #[must_use]
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Self(value.into())
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.get()
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl PartialEq<bool> for Bool {
    fn eq(&self, other: &bool) -> bool {
        self.get() == *other
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

/// Returns a vector of zeros.
pub(crate) fn zeros<T: Element>(len: usize) -> Vec<T> {
    let mut vec = Vec::with_capacity(len);
    // SAFETY: there is capacity for `len` elements, and zeros are a valid value by the contract of `Element` (test
    // `zeros_are_elements`).
    unsafe {
        std::ptr::write_bytes(vec.as_mut_ptr(), 0, len);
        vec.set_len(len);
    }
    vec
}

/// Types for which an operator is defined.
#[derive(Clone, Copy, PartialEq)]
enum Domain {
    All,
    /// All types except `bool`.
    Numbers,
    /// All types except floating point.
    Bits,
}

macro_rules! make_reduce_op {
    ($($(#[$doc:meta])+ $op:ident $(($factor:ty = $one:expr))?, $name:literal, $domain:ident;)+) => {
        /// Operator that combines the ranks' values, element by element.
        ///
        /// Integers wrap. `f16` and `bf16` are combined in `f32` and rounded to nearest even. `Min` and `Max` of
        /// floating-point values are NaN if either is.
        #[derive(Clone, Copy, Debug, PartialEq)]
        #[non_exhaustive]
        pub enum ReduceOp {
            $($(#[$doc])+ $op $(($factor))?,)+
        }

        enum Place {
            $($op,)+
        }

        impl ReduceOp {
            /// All operators, PremulSum with the factor 1. An operator's position is its number in C and Python.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$op $(($one))?),+];

            /// Returns the position in [`ALL`](Self::ALL).
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                match self {
                    $(Self::$op { .. } => Place::$op as u8,)+
                }
            }

            /// Returns the name without the factor.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$op { .. } => $name,)+
                }
            }

            #[inline]
            const fn domain(self) -> Domain {
                match self {
                    $(Self::$op { .. } => Domain::$domain,)+
                }
            }
        }
    };
}
// An operator's position is its number in C and Python, so rows are only ever added at the end.
make_reduce_op! {
    /// Sum. For `bool`: or.
    Sum, "sum", All;
    /// Product. For `bool`: and.
    Prod, "prod", All;
    /// Least value.
    Min, "min", All;
    /// Greatest value.
    Max, "max", All;
    /// Sum divided by the number of ranks; integers truncate towards zero. Not for `bool`, nor for scans.
    Avg, "avg", Numbers;
    /// Multiplies every rank's values by that rank's own factor, then sums them (NCCL's PreMulSum). Not for `bool`, nor
    /// for scans.
    PremulSum(f64 = 1.0), "premul_sum", Numbers;
    /// Bitwise and; logical for `bool`. Not for floating point.
    BitAnd, "bit_and", Bits;
    /// Bitwise or; logical for `bool`. Not for floating point.
    BitOr, "bit_or", Bits;
    /// Bitwise exclusive or; logical for `bool`. Not for floating point.
    BitXor, "bit_xor", Bits;
    /// 1 where both are non-zero, otherwise 0 (MPI_LAND). For every type. With one operand (on one rank, or for the first
    /// rank of a scan), the result is that operand unchanged, as in MPI. This holds for `LogicalOr` and `LogicalXor` too.
    LogicalAnd, "logical_and", All;
    /// 1 where one is non-zero, otherwise 0 (MPI_LOR). For every type.
    LogicalOr, "logical_or", All;
    /// 1 where exactly one is non-zero, otherwise 0 (MPI_LXOR). For every type.
    LogicalXor, "logical_xor", All;
}

impl ReduceOp {
    /// Returns whether the operator is defined for a type.
    #[must_use]
    #[inline]
    pub const fn supports(self, data_type: DataType) -> bool {
        match self.domain() {
            Domain::All => true,
            Domain::Numbers => !matches!(data_type.class(), Class::Boolean),
            Domain::Bits => !data_type.is_float(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_codes() {
        assert!(ReduceOp::ALL.iter().enumerate().all(|(place, op)| usize::from(op.code()) == place));
        assert!(DataType::ALL.iter().enumerate().all(|(place, data_type)| *data_type as usize == place));
    }

    #[test]
    fn zeros_are_elements() {
        assert_eq!(zeros::<Bool>(3), [false; 3]);
        assert_eq!(zeros::<f64>(2), [0.0; 2]);
        assert_eq!(zeros::<bf16>(2), [bf16::ZERO; 2]);
        assert!(zeros::<u64>(0).is_empty());
    }
}
