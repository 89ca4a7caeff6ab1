//! Which function reduces which type with which operator.

#[cfg(target_arch = "x86_64")]
use super::f16_blocks;
use super::operators::{
    Bf16, BitAnd, BitOr, BitXor, F16, LogicalAnd, LogicalOr, LogicalXor, Max, Min, Operator, Prod, Sum,
};
use super::{Combine, Isa, loops};
use crate::types::{DataType, ReduceOp};

/// The instance of a loop for an instruction set.
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

/// The same for sums and products of `f16`.
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

/// The function for an instruction set, a type and an operator, if the operator is defined for the type.
pub(super) fn combine(isa: Isa, data_type: DataType, op: ReduceOp) -> Option<Combine> {
    use ReduceOp as Op;
    match data_type {
        DataType::Bool => boolean(isa, op),
        DataType::U8 => order::<u8>(isa, op).or_else(|| integer::<u8>(isa, op)),
        DataType::I8 => order::<i8>(isa, op).or_else(|| integer::<u8>(isa, op)),
        DataType::U32 => order::<u32>(isa, op).or_else(|| integer::<u32>(isa, op)),
        DataType::I32 => order::<i32>(isa, op).or_else(|| integer::<u32>(isa, op)),
        DataType::U64 => order::<u64>(isa, op).or_else(|| integer::<u64>(isa, op)),
        DataType::I64 => order::<i64>(isa, op).or_else(|| integer::<u64>(isa, op)),
        DataType::F16 => match op {
            Op::Sum | Op::Avg | Op::PremulSum(_) => Some(f16_instance!(isa, Sum)),
            Op::Prod => Some(f16_instance!(isa, Prod)),
            _ => order::<F16>(isa, op).or_else(|| logical::<F16>(isa, op)),
        },
        DataType::BF16 => match op {
            Op::Sum | Op::Avg | Op::PremulSum(_) => Some(instance!(isa, combine_pairs::<Sum>)),
            Op::Prod => Some(instance!(isa, combine_pairs::<Prod>)),
            _ => order::<Bf16>(isa, op).or_else(|| logical::<Bf16>(isa, op)),
        },
        DataType::F32 => order::<f32>(isa, op).or_else(|| arithmetic::<f32>(isa, op)),
        DataType::F64 => order::<f64>(isa, op).or_else(|| arithmetic::<f64>(isa, op)),
    }
}

/// For `bool` the operators are few, and logical, so that whatever bytes come in, 0 or 1 goes out.
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
