//! Arithmetic on C's `long double` on x86-64: the x87's 80-bit format, for which Rust has no type.

use std::cmp::Ordering;

use crate::op::Builtin;

/// The bytes of a value in memory.
const WIDTH: usize = 16;

#[cfg(target_arch = "x86_64")]
mod x87 {
    use std::arch::asm;

    use super::WIDTH;

    macro_rules! binary {
        ($name:ident, $instruction:literal) => {
            /// Computes one operation; the padding of the result is zero.
            pub(super) fn $name(a: &[u8; WIDTH], b: &[u8; WIDTH]) -> [u8; WIDTH] {
                let mut result = [0_u8; WIDTH];
                // SAFETY: loads ten bytes of each operand and stores ten, all within the arrays; leaves the x87's stack as it was.
                unsafe {
                    asm!(
                        "fld tbyte ptr [{a}]",
                        "fld tbyte ptr [{b}]",
                        $instruction,
                        "fstp tbyte ptr [{result}]",
                        a = in(reg) a.as_ptr(),
                        b = in(reg) b.as_ptr(),
                        result = in(reg) result.as_mut_ptr(),
                        out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                        out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                        options(nostack),
                    );
                }
                result
            }
        };
    }
    binary!(add, "faddp st(1), st");
    binary!(subtract, "fsubp st(1), st");
    binary!(multiply, "fmulp st(1), st");
}

#[cfg(not(target_arch = "x86_64"))]
mod x87 {
    use super::WIDTH;

    /// A placeholder that is never called: on other processors, `numbers` refuses these types.
    pub(super) fn add(a: &[u8; WIDTH], _: &[u8; WIDTH]) -> [u8; WIDTH] {
        *a
    }
    pub(super) use {add as multiply, add as subtract};
}

use x87::{add, multiply, subtract};

/// Compares two values by their bits: sign, then exponent and mantissa as one number. Returns `None` if one is NaN.
#[must_use]
pub fn compare(a: &[u8; WIDTH], b: &[u8; WIDTH]) -> Option<Ordering> {
    let key = |bytes: &[u8; WIDTH]| {
        let bits = u128::from_le_bytes(*bytes) & ((1 << 80) - 1);
        let magnitude = (bits & ((1 << 79) - 1)) as i128;
        let is_nan = bits >> 64 & 0x7fff == 0x7fff && bits << 65 != 0;
        (!is_nan).then_some(if bits >> 79 == 1 { -magnitude } else { magnitude })
    };
    Some(key(a)?.cmp(&key(b)?))
}

fn combine(op: Builtin, a: &[u8; WIDTH], b: &[u8; WIDTH]) -> [u8; WIDTH] {
    match op {
        Builtin::Sum => add(a, b),
        Builtin::Prod => multiply(a, b),
        Builtin::Max if compare(a, b) == Some(Ordering::Greater) => *a,
        Builtin::Min if compare(a, b) == Some(Ordering::Less) => *a,
        _ => *b,
    }
}

/// Computes `inout = input op inout` for `count` values.
///
/// # Safety
/// `input` and `inout` point to `count` values each.
pub unsafe fn apply(op: Builtin, input: *const u8, inout: *mut u8, count: usize) {
    let (input, inout) = (input.cast::<[u8; WIDTH]>(), inout.cast::<[u8; WIDTH]>());
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe { *inout.add(at) = combine(op, &*input.add(at), &*inout.add(at)) };
    }
}

/// Computes `inout = input op inout` for `count` complex values.
///
/// # Safety
/// `input` and `inout` point to `count` complex values each.
pub unsafe fn apply_complex(op: Builtin, input: *const u8, inout: *mut u8, count: usize) {
    type Complex = [[u8; WIDTH]; 2];
    let (input, inout) = (input.cast::<Complex>(), inout.cast::<Complex>());
    for at in 0..count {
        // SAFETY: the caller's promise.
        let (a, b) = unsafe { (&*input.add(at), &mut *inout.add(at)) };
        *b = match op {
            Builtin::Sum => [add(&a[0], &b[0]), add(&a[1], &b[1])],
            _ => [
                subtract(&multiply(&a[0], &b[0]), &multiply(&a[1], &b[1])),
                add(&multiply(&a[0], &b[1]), &multiply(&a[1], &b[0])),
            ],
        };
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Returns a small integer.
    fn long(value: u32) -> [u8; WIDTH] {
        let mut sum = [0; WIDTH];
        // 1.0: exponent 16383, mantissa 2^63.
        let mut one = [0; WIDTH];
        one[7] = 0x80;
        one[8..10].copy_from_slice(&16383_u16.to_le_bytes());
        for _ in 0..value {
            sum = add(&sum, &one);
        }
        sum
    }

    #[test]
    fn the_x87_computes() {
        assert_eq!(add(&long(2), &long(3)), long(5));
        assert_eq!(subtract(&long(7), &long(3)), long(4));
        assert_eq!(multiply(&long(6), &long(7)), long(42));
        assert_eq!(compare(&long(6), &long(7)), Some(Ordering::Less));
        let negative = subtract(&long(0), &long(3));
        assert_eq!(compare(&negative, &long(2)), Some(Ordering::Less));
        assert_eq!(compare(&negative, &subtract(&long(0), &long(4))), Some(Ordering::Greater));
    }
}
