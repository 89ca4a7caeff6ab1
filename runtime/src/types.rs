//! Element types and reduction operators, as values.

use std::fmt;
use std::str::FromStr;

use half::{bf16, f16};

/// The type of an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs, reason = "the names say it all")]
#[non_exhaustive]
pub enum DataType {
    Bool,
    U8,
    I8,
    U32,
    I32,
    U64,
    I64,
    F16,
    BF16,
    F32,
    F64,
}

impl DataType {
    /// All of them. A type's place is its number in C and Python.
    pub const ALL: [Self; 11] = [
        Self::Bool,
        Self::U8,
        Self::I8,
        Self::U32,
        Self::I32,
        Self::U64,
        Self::I64,
        Self::F16,
        Self::BF16,
        Self::F32,
        Self::F64,
    ];

    /// Size of an element in bytes.
    #[must_use]
    pub const fn size(self) -> usize {
        match self {
            Self::Bool | Self::U8 | Self::I8 => 1,
            Self::F16 | Self::BF16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// Name as in Rust.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Whether it is one of the floating-point types.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F16 | Self::BF16 | Self::F32 | Self::F64)
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
            format!("unknown element type '{s}'; known are {}", names.join(", "))
        })
    }
}

/// A Rust type that Kolo can move and reduce.
///
/// # Safety
/// `TYPE` describes `Self` exactly: same size, no padding, and every bit pattern is a valid value, since other ranks may be
/// written in other languages, and send what they like. So `bool` is none: see [`Bool`].
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// Its description.
    const TYPE: DataType;
}

/// A truth value as it travels: a byte, of which 0 is false and everything else true. Rust's `bool` must be 0 or 1, and a rank
/// in C or Python may send a 2. Reductions give 0 and 1.
///
/// ```
/// let agreed = kolo::Cluster::local(2, |comm| {
///     let mut vote = [kolo::Bool::from(comm.rank() == 0)];
///     comm.all_reduce(&mut vote, kolo::ReduceOp::Min).map(|()| vote[0].get())
/// });
/// assert!(matches!(agreed?[..], [Ok(false), Ok(false)]));
/// # Ok::<(), kolo::Error>(())
/// ```
/// A `bool` is no [`Element`]:
/// ```compile_fail
/// fn vote(comm: &kolo::Communicator, votes: &mut [bool]) -> kolo::Result<()> {
///     comm.all_reduce(votes, kolo::ReduceOp::Min)
/// }
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The value.
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

macro_rules! elements {
    ($($rust:ty => $kolo:ident),*) => {$(
        const _: () = assert!(size_of::<$rust>() == DataType::$kolo.size());
        // SAFETY: the sizes are asserted above; these are plain numbers, or a byte that may be any, without padding (test
        // `zeros_are_elements`).
        unsafe impl Element for $rust {
            const TYPE: DataType = DataType::$kolo;
        }
    )*};
}
elements!(Bool => Bool, u8 => U8, i8 => I8, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f16 => F16,
    bf16 => BF16, f32 => F32, f64 => F64);

/// A vector of zeros.
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

/// How values of the ranks are combined, element by element.
///
/// Integers wrap. `f16` and `bf16` are combined in `f32` and rounded to nearest even. `Min` and `Max` of
/// floating-point values are NaN if either is.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Sum. For `bool`: or.
    Sum,
    /// Product. For `bool`: and.
    Prod,
    /// Least value.
    Min,
    /// Greatest value.
    Max,
    /// Sum divided by the number of ranks; integers truncate towards zero. Not for `bool`, nor for scans.
    Avg,
    /// Every rank's values are first multiplied by its own factor, then summed (NCCL's PreMulSum). Not for
    /// `bool`, nor for scans.
    PremulSum(f64),
    /// Bitwise and; logical for `bool`. Not for floating point.
    BitAnd,
    /// Bitwise or; logical for `bool`. Not for floating point.
    BitOr,
    /// Bitwise exclusive or; logical for `bool`. Not for floating point.
    BitXor,
    /// 1 where both are non-zero, else 0 (MPI_LAND). For every type.
    LogicalAnd,
    /// 1 where one is non-zero, else 0 (MPI_LOR). For every type.
    LogicalOr,
    /// 1 where exactly one is non-zero, else 0 (MPI_LXOR). For every type.
    LogicalXor,
}

impl ReduceOp {
    /// All of them, PremulSum with the factor 1. An operator's place is its number in C and Python.
    pub const ALL: [Self; 12] = [
        Self::Sum,
        Self::Prod,
        Self::Min,
        Self::Max,
        Self::Avg,
        Self::PremulSum(1.0),
        Self::BitAnd,
        Self::BitOr,
        Self::BitXor,
        Self::LogicalAnd,
        Self::LogicalOr,
        Self::LogicalXor,
    ];

    /// Name without the factor.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Prod => "prod",
            Self::Min => "min",
            Self::Max => "max",
            Self::Avg => "avg",
            Self::PremulSum(_) => "premul_sum",
            Self::BitAnd => "bit_and",
            Self::BitOr => "bit_or",
            Self::BitXor => "bit_xor",
            Self::LogicalAnd => "logical_and",
            Self::LogicalOr => "logical_or",
            Self::LogicalXor => "logical_xor",
        }
    }

    /// Whether the operator is defined for a type.
    #[must_use]
    pub const fn supports(self, data_type: DataType) -> bool {
        match self {
            Self::Avg | Self::PremulSum(_) => !matches!(data_type, DataType::Bool),
            Self::BitAnd | Self::BitOr | Self::BitXor => !data_type.is_float(),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_elements() {
        assert_eq!(zeros::<Bool>(3), [false; 3]);
        assert_eq!(zeros::<f64>(2), [0.0; 2]);
        assert_eq!(zeros::<bf16>(2), [bf16::ZERO; 2]);
        assert!(zeros::<u64>(0).is_empty());
    }
}
