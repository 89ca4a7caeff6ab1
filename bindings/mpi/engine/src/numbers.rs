//! Element-wise application of the standard's operators to its types.

use half::{bf16, f16};

use crate::datatype::{Basic, Domain, Type};
use crate::error::{Class, Outcome, fail};
use crate::long_double;
use crate::op::Builtin;

/// Returns the kind of number, if there is arithmetic for it.
const fn domain(basic: Basic) -> Domain {
    match basic {
        Basic::Quad | Basic::CQuad | Basic::C16 => Domain::None,
        Basic::Long | Basic::CLong if !cfg!(target_arch = "x86_64") => Domain::None,
        _ => basic.domain(),
    }
}

/// Returns the types of the value and the index of a pair.
fn pair(of: &Type) -> Option<(Basic, Basic)> {
    of.builtin_handle()?;
    let parts = of.parts().ok()?;
    match &*parts {
        [value, index] if value.count == 1 => Some((value.basic, index.basic)),
        // A value and an index of the same type are flattened to one part.
        [both] if both.count == 2 => Some((both.basic, both.basic)),
        _ => None,
    }
}

/// Checks that an operator is defined for a type.
///
/// # Errors
/// [`Class::Op`] if it is not.
pub fn check(op: Builtin, of: &Type) -> Outcome {
    if matches!(op, Builtin::Minloc | Builtin::Maxloc) {
        return match pair(of) {
            Some(_) => Ok(()),
            None => fail(Class::Op, "MPI_MINLOC and MPI_MAXLOC require a type of a value and an index"),
        };
    }
    let Some(basic) = of.basic() else {
        return fail(Class::Op, "predefined operators work on predefined datatypes only");
    };
    let fits = match op {
        Builtin::Max | Builtin::Min => matches!(domain(basic), Domain::Integer | Domain::Float),
        Builtin::Sum | Builtin::Prod => {
            matches!(domain(basic), Domain::Integer | Domain::Float | Domain::Complex)
        }
        Builtin::Land | Builtin::Lor | Builtin::Lxor => {
            matches!(domain(basic), Domain::Integer | Domain::Logical)
        }
        Builtin::Band | Builtin::Bor | Builtin::Bxor => {
            matches!(domain(basic), Domain::Integer | Domain::Bytes)
        }
        _ => true,
    };
    if fits { Ok(()) } else { fail(Class::Op, format!("{op:?} is not defined for {basic:?}")) }
}

trait Number: Copy {
    fn combine(op: Builtin, a: Self, b: Self) -> Self;
}

macro_rules! integers {
    ($($type:ty),+) => {$(
        impl Number for $type {
            #[inline]
            fn combine(op: Builtin, a: Self, b: Self) -> Self {
                match op {
                    Builtin::Max => a.max(b),
                    Builtin::Min => a.min(b),
                    Builtin::Sum => a.wrapping_add(b),
                    Builtin::Prod => a.wrapping_mul(b),
                    Builtin::Land => (a != 0 && b != 0).into(),
                    Builtin::Lor => (a != 0 || b != 0).into(),
                    Builtin::Lxor => ((a != 0) != (b != 0)).into(),
                    Builtin::Band => a & b,
                    Builtin::Bor => a | b,
                    Builtin::Bxor => a ^ b,
                    _ => a,
                }
            }
        }
    )+};
}
integers!(i8, i16, i32, i64, i128, u8, u16, u32, u64);

macro_rules! floats {
    ($($type:ty),+) => {$(
        impl Number for $type {
            #[inline]
            fn combine(op: Builtin, a: Self, b: Self) -> Self {
                match op {
                    Builtin::Max => if a > b || a.is_nan() { a } else { b },
                    Builtin::Min => if a < b || a.is_nan() { a } else { b },
                    Builtin::Sum => a + b,
                    Builtin::Prod => a * b,
                    _ => a,
                }
            }
        }
    )+};
}
floats!(f32, f64);

macro_rules! short_floats {
    ($($type:ty),+) => {$(
        impl Number for $type {
            #[inline]
            fn combine(op: Builtin, a: Self, b: Self) -> Self {
                Self::from_f32(f32::combine(op, a.to_f32(), b.to_f32()))
            }
        }
    )+};
}
short_floats!(f16, bf16);

impl Number for [f32; 2] {
    fn combine(op: Builtin, a: Self, b: Self) -> Self {
        match op {
            Builtin::Sum => [a[0] + b[0], a[1] + b[1]],
            _ => [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]],
        }
    }
}

impl Number for [f64; 2] {
    fn combine(op: Builtin, a: Self, b: Self) -> Self {
        match op {
            Builtin::Sum => [a[0] + b[0], a[1] + b[1]],
            _ => [a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]],
        }
    }
}

unsafe fn each<T: Number>(op: Builtin, input: *const u8, inout: *mut u8, count: usize) {
    let (input, inout) = (input.cast::<T>(), inout.cast::<T>());
    for at in 0..count {
        // SAFETY: the caller's promise: `count` elements at both addresses.
        unsafe {
            let place = inout.add(at);
            place.write_unaligned(T::combine(op, input.add(at).read_unaligned(), place.read_unaligned()));
        }
    }
}

unsafe fn logical(op: Builtin, input: *const u8, inout: *mut u8, count: usize, width: usize) {
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let (a, b) = (input.add(at * width), inout.add(at * width));
            let truth = |ptr: *const u8| (0..width).any(|byte| *ptr.add(byte) != 0);
            let value = u8::combine(op, truth(a).into(), truth(b).into());
            std::ptr::write_bytes(b, 0, width);
            *b = value;
        }
    }
}

trait Ordered: Copy {
    fn compare(a: Self, b: Self) -> Option<std::cmp::Ordering>;
}

macro_rules! ordered {
    ($($type:ty),+) => {$(
        impl Ordered for $type {
            fn compare(a: Self, b: Self) -> Option<std::cmp::Ordering> {
                a.partial_cmp(&b)
            }
        }
    )+};
}
ordered!(i16, i32, i64, f32, f64);

/// A `long double`, as its bits.
#[derive(Clone, Copy)]
#[repr(C)]
struct Long([u8; 16]);

impl Ordered for Long {
    fn compare(a: Self, b: Self) -> Option<std::cmp::Ordering> {
        long_double::compare(&a.0, &b.0)
    }
}

/// Combines pairs: keeps the lesser or the greater value with its index; of equal values, the lower index.
unsafe fn locate<V: Ordered, I: PartialOrd + Copy>(
    op: Builtin,
    input: *const u8,
    inout: *mut u8,
    count: usize,
    of: &Type,
    at: usize,
) {
    use std::cmp::Ordering;
    let wanted = if op == Builtin::Minloc { Ordering::Less } else { Ordering::Greater };
    for element in 0..count {
        let offset = element * of.extent as usize;
        // SAFETY: the caller's promise.
        unsafe {
            let (a, b) = (input.add(offset), inout.add(offset));
            let order = V::compare(a.cast::<V>().read_unaligned(), b.cast::<V>().read_unaligned());
            let index = (a.add(at).cast::<I>().read_unaligned(), b.add(at).cast::<I>().read_unaligned());
            if order == Some(wanted) || order == Some(Ordering::Equal) && index.0 < index.1 {
                // The bytes between value and index are not part of the pair.
                std::ptr::copy_nonoverlapping(a, b, size_of::<V>());
                std::ptr::copy_nonoverlapping(a.add(at), b.add(at), size_of::<I>());
            }
        }
    }
}

/// Computes `inout = input op inout` for `count` elements.
///
/// # Errors
/// If the operator is not defined for the type.
///
/// # Safety
/// `input` and `inout` point to `count` elements of the type each.
pub unsafe fn apply(op: Builtin, input: *mut u8, inout: *mut u8, count: usize, of: &Type) -> Outcome {
    match op {
        Builtin::NoOp => return Ok(()),
        Builtin::Replace => {
            let mut bytes = Vec::new();
            // SAFETY: the caller's promise.
            unsafe {
                of.pack(input, count, &mut bytes);
                of.unpack(&bytes, inout, count);
            }
            return Ok(());
        }
        _ => check(op, of)?,
    }
    // SAFETY: the caller's promise: the elements are of this type.
    unsafe {
        if let (Builtin::Minloc | Builtin::Maxloc, Some(pair)) = (op, pair(of)) {
            match pair {
                (Basic::F32, Basic::I32) => locate::<f32, i32>(op, input, inout, count, of, 4),
                (Basic::F64, Basic::I32) => locate::<f64, i32>(op, input, inout, count, of, 8),
                (Basic::LongInt, Basic::I32) => locate::<i64, i32>(op, input, inout, count, of, 8),
                (Basic::I16, Basic::I32) => locate::<i16, i32>(op, input, inout, count, of, 4),
                (Basic::I32, Basic::I32) => locate::<i32, i32>(op, input, inout, count, of, 4),
                (Basic::F32, Basic::F32) => locate::<f32, f32>(op, input, inout, count, of, 4),
                (Basic::F64, Basic::F64) => locate::<f64, f64>(op, input, inout, count, of, 8),
                _ => locate::<Long, i32>(op, input, inout, count, of, 16),
            }
            return Ok(());
        }
        let Some(basic) = of.basic() else { return fail(Class::Op, "the datatype is not predefined") };
        match basic {
            Basic::I8 | Basic::Char => each::<i8>(op, input, inout, count),
            Basic::I16 => each::<i16>(op, input, inout, count),
            Basic::I32 => each::<i32>(op, input, inout, count),
            Basic::I64 | Basic::LongInt => each::<i64>(op, input, inout, count),
            Basic::I128 => each::<i128>(op, input, inout, count),
            Basic::U8 | Basic::Byte => each::<u8>(op, input, inout, count),
            Basic::U16 => each::<u16>(op, input, inout, count),
            Basic::U32 => each::<u32>(op, input, inout, count),
            Basic::U64 | Basic::UnsignedLong => each::<u64>(op, input, inout, count),
            Basic::F16 => each::<f16>(op, input, inout, count),
            Basic::Bf16 => each::<bf16>(op, input, inout, count),
            Basic::F32 => each::<f32>(op, input, inout, count),
            Basic::F64 => each::<f64>(op, input, inout, count),
            Basic::C32 => each::<[f32; 2]>(op, input, inout, count),
            Basic::C64 => each::<[f64; 2]>(op, input, inout, count),
            Basic::Bool => logical(op, input, inout, count, 1),
            Basic::Logical(width) => logical(op, input, inout, count, width.into()),
            Basic::Long => long_double::apply(op, input, inout, count),
            Basic::CLong => long_double::apply_complex(op, input, inout, count),
            _ => return fail(Class::Op, format!("{op:?} is not defined for {basic:?}")),
        }
    }
    Ok(())
}
