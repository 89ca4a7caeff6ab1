//! Table of the functions that reduce each type with each operator.

#[cfg(target_arch = "x86_64")]
use super::f16_blocks;
use super::operators::{
    Bf16, BitAnd, BitOr, BitXor, F16, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Operator, Prod, Sum,
};
use super::{Combine, Isa, loops};
use crate::types::{DataType, ReduceOp, data_types};

/// Selects the instance of a loop for an instruction set.
macro_rules! instance {
    ($isa:ident, $function:ident::<$($generic:ty),+>) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => loops::avx2::$function::<$($generic),+>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => loops::avx512::$function::<$($generic),+>,
            _ => loops::baseline::$function::<$($generic),+> as Combine,
        }
    };
}

/// Does the same for sums and products of `f16`.
macro_rules! f16_instance {
    ($isa:ident, $op:ty) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => f16_blocks::avx2::combine::<$op>,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => f16_blocks::avx512::combine::<$op>,
            _ => loops::baseline::combine::<F16, $op> as Combine,
        }
    };
}

/// Selects a function by the kernels that the table of types names.
macro_rules! kernels {
    ([boolean], $isa:ident, $op:ident) => {
        boolean($isa, $op)
    };
    ([integer $type:ty as $bits:ty, over $($divisor:tt)+], $isa:ident, $op:ident) => {
        order::<$type>($isa, $op).or_else(|| integer::<$bits>($isa, $op))
    };
    ([f16], $isa:ident, $op:ident) => {
        half($isa, $op)
    };
    ([bf16], $isa:ident, $op:ident) => {
        brain_half($isa, $op)
    };
    ([float $type:ty], $isa:ident, $op:ident) => {
        order::<$type>($isa, $op).or_else(|| arithmetic::<$type>($isa, $op))
    };
}

macro_rules! make_combine {
    ($($kolo:ident, $rust:ty, $name:literal, $class:ident, $kernels:tt, $lane:ident, $nccl:expr;)+) => {
        /// Returns the function for an instruction set, a type and an operator, if the operator is defined for the
        /// type.
        pub(super) fn combine(isa: Isa, data_type: DataType, op: ReduceOp) -> Option<Combine> {
            match data_type {
                $(DataType::$kolo => kernels!($kernels, isa, op),)+
            }
        }
    };
}
data_types!(make_combine);

fn half(isa: Isa, op: ReduceOp) -> Option<Combine> {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => Some(f16_instance!(isa, Sum)),
        ReduceOp::Prod => Some(f16_instance!(isa, Prod)),
        _ => order::<F16>(isa, op).or_else(|| logical::<F16>(isa, op)),
    }
}

fn brain_half(isa: Isa, op: ReduceOp) -> Option<Combine> {
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => Some(instance!(isa, combine_pairs::<Sum>)),
        ReduceOp::Prod => Some(instance!(isa, combine_pairs::<Prod>)),
        _ => order::<Bf16>(isa, op).or_else(|| logical::<Bf16>(isa, op)),
    }
}

/// Selects the function for `bool`. All its operators are logical, so the output is 0 or 1, whatever bytes are the
/// input.
fn boolean(isa: Isa, op: ReduceOp) -> Option<Combine> {
    use ReduceOp as Op;
    match op {
        Op::Sum | Op::Max | Op::BitOr | Op::LogicalOr => Some(instance!(isa, combine::<u8, LogicalOr>)),
        Op::Prod | Op::Min | Op::BitAnd | Op::LogicalAnd => Some(instance!(isa, combine::<u8, LogicalAnd>)),
        Op::BitXor | Op::LogicalXor => Some(instance!(isa, combine::<u8, LogicalXor>)),
        Op::Avg | Op::PremulSum(_) => None,
    }
}

fn order<T: Copy>(isa: Isa, op: ReduceOp) -> Option<Combine>
where
    Min: Operator<T>,
    Max: Operator<T>,
{
    match op {
        ReduceOp::Min => Some(instance!(isa, combine::<T, Min>)),
        ReduceOp::Max => Some(instance!(isa, combine::<T, Max>)),
        _ => None,
    }
}

fn logical<T: Copy>(isa: Isa, op: ReduceOp) -> Option<Combine>
where
    LogicalAnd: Operator<T>,
    LogicalOr: Operator<T>,
    LogicalXor: Operator<T>,
{
    match op {
        ReduceOp::LogicalAnd => Some(instance!(isa, combine::<T, LogicalAnd>)),
        ReduceOp::LogicalOr => Some(instance!(isa, combine::<T, LogicalOr>)),
        ReduceOp::LogicalXor => Some(instance!(isa, combine::<T, LogicalXor>)),
        _ => None,
    }
}

fn arithmetic<T: Copy>(isa: Isa, op: ReduceOp) -> Option<Combine>
where
    Sum: Operator<T>,
    Prod: Operator<T>,
    LogicalAnd: Operator<T>,
    LogicalOr: Operator<T>,
    LogicalXor: Operator<T>,
{
    match op {
        ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => Some(instance!(isa, combine::<T, Sum>)),
        ReduceOp::Prod => Some(instance!(isa, combine::<T, Prod>)),
        _ => logical::<T>(isa, op),
    }
}

fn integer<T: Copy>(isa: Isa, op: ReduceOp) -> Option<Combine>
where
    Sum: Operator<T>,
    Prod: Operator<T>,
    BitAnd: Operator<T>,
    BitOr: Operator<T>,
    BitXor: Operator<T>,
    LogicalAnd: Operator<T>,
    LogicalOr: Operator<T>,
    LogicalXor: Operator<T>,
{
    match op {
        ReduceOp::BitAnd => Some(instance!(isa, combine::<T, BitAnd>)),
        ReduceOp::BitOr => Some(instance!(isa, combine::<T, BitOr>)),
        ReduceOp::BitXor => Some(instance!(isa, combine::<T, BitXor>)),
        _ => arithmetic::<T>(isa, op),
    }
}
