//! Tests of every instruction set against independent definitions and against the other sets.
//!
//! `cargo test` builds without vectorisation, so only `cargo test --release` tests the vectorised loops.

use half::{bf16, f16};

use super::scale::{divide_for, scale_for};
use super::{Isa, Kernel, Unsupported, half_bits, kernel, kernel_for};
use crate::types::{DataType, ReduceOp};

fn isas() -> impl Iterator<Item = Isa> {
    Isa::ALL.into_iter().filter(|isa| isa.is_available())
}

fn supported() -> impl Iterator<Item = (DataType, ReduceOp)> {
    let all = DataType::ALL.into_iter().flat_map(|data_type| ReduceOp::ALL.map(|op| (data_type, op)));
    all.filter(|(data_type, op)| op.supports(*data_type))
}

/// A fixed stream of random bits (splitmix64).
struct Bits(u64);

impl Bits {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, data_type: DataType, count: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..count * data_type.size()).map(|_| self.next() as u8).collect();
        if data_type == DataType::Bool {
            bytes.iter_mut().for_each(|b| *b &= 1);
        }
        bytes
    }
}

/// Computes `a op b` into a new buffer.
fn combined(kernel: Kernel, a: &[u8], b: &[u8]) -> Vec<u8> {
    assert_eq!(a.len(), b.len());
    let mut out = vec![0x55; a.len()];
    // SAFETY: three separate buffers of the same length.
    unsafe { kernel.combine(out.as_mut_ptr(), a.as_ptr(), b.as_ptr(), a.len() / kernel.element_bytes()) };
    out
}

/// A Rust type for each of the runtime's types, which states the operators plainly.
trait Value: Copy + PartialEq + std::fmt::Debug + 'static {
    const TYPE: DataType;
    fn to_bits(self) -> u64;
    /// Returns the operator's result for two values, from its definition and the type's own arithmetic.
    fn expect(op: ReduceOp, a: Self, b: Self) -> Self;
}

fn logical(op: ReduceOp, a: bool, b: bool) -> bool {
    match op {
        ReduceOp::LogicalAnd => a && b,
        ReduceOp::LogicalOr => a || b,
        ReduceOp::LogicalXor => a != b,
        _ => panic!("{op:?} is not logical"),
    }
}

macro_rules! integer_value {
    ($($rust:ty => $kolo:ident),*) => {$(
        impl Value for $rust {
            const TYPE: DataType = DataType::$kolo;
            fn to_bits(self) -> u64 {
                self as u64 & (u64::MAX >> (64 - 8 * size_of::<Self>()))
            }
            fn expect(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => a.wrapping_add(b),
                    ReduceOp::Prod => a.wrapping_mul(b),
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::BitAnd => a & b,
                    ReduceOp::BitOr => a | b,
                    ReduceOp::BitXor => a ^ b,
                    _ => Self::from(logical(op, a != 0, b != 0)),
                }
            }
        }
    )*};
}
integer_value!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64);

impl Value for bool {
    const TYPE: DataType = DataType::Bool;
    fn to_bits(self) -> u64 {
        u64::from(self)
    }
    fn expect(op: ReduceOp, a: Self, b: Self) -> Self {
        match op {
            ReduceOp::Sum | ReduceOp::Max | ReduceOp::BitOr | ReduceOp::LogicalOr => a | b,
            ReduceOp::Prod | ReduceOp::Min | ReduceOp::BitAnd | ReduceOp::LogicalAnd => a & b,
            _ => a ^ b,
        }
    }
}

macro_rules! float_value {
    ($($rust:ty => $kolo:ident, $nan:expr, $sum:expr, $prod:expr);*) => {$(
        impl Value for $rust {
            const TYPE: DataType = DataType::$kolo;
            fn to_bits(self) -> u64 {
                u64::from(<$rust>::to_bits(self))
            }
            fn expect(op: ReduceOp, a: Self, b: Self) -> Self {
                let nan = Self::from_bits($nan);
                let either = a.is_nan() || b.is_nan();
                let zero = Self::from_bits(0);
                let result = match op {
                    ReduceOp::Sum | ReduceOp::Avg | ReduceOp::PremulSum(_) => $sum(a, b),
                    ReduceOp::Prod => $prod(a, b),
                    ReduceOp::Min | ReduceOp::Max if either => nan,
                    // Values are compared by value, and by sign if they are equal.
                    ReduceOp::Min if a < b || (a == b && a.is_sign_negative()) => a,
                    ReduceOp::Min => b,
                    ReduceOp::Max if a > b || (a == b && a.is_sign_positive()) => a,
                    ReduceOp::Max => b,
                    _ if logical(op, a != zero, b != zero) => <$rust>::from(1_u8),
                    _ => zero,
                };
                if result.is_nan() { nan } else { result }
            }
        }
    )*};
}
float_value!(
    f16 => F16, 0x7e00, |a: f16, b: f16| f16::from_f32_const(a.to_f32_const() + b.to_f32_const()),
        |a: f16, b: f16| f16::from_f32_const(a.to_f32_const() * b.to_f32_const());
    bf16 => BF16, 0x7fc0, |a: bf16, b: bf16| bf16::from_f32_const(a.to_f32_const() + b.to_f32_const()),
        |a: bf16, b: bf16| bf16::from_f32_const(a.to_f32_const() * b.to_f32_const());
    f32 => F32, 0x7fc0_0000, |a, b| a + b, |a, b| a * b;
    f64 => F64, 0x7ff8_0000_0000_0000, |a, b| a + b, |a, b| a * b
);

fn pack<T: Value>(values: &[T]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_bits().to_le_bytes().into_iter().take(T::TYPE.size())).collect()
}

/// Checks all pairs of two lists of values, for all operators and instruction sets.
fn check_pairs<T: Value>(left: &[T], right: &[T]) {
    let a = pack(left);
    for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(T::TYPE)) {
        let kernels: Vec<_> = isas().map(|isa| kernel_for(isa, T::TYPE, op).unwrap()).collect();
        for &value in right {
            let b = pack(&vec![value; left.len()]);
            let want: Vec<_> = left.iter().map(|&x| T::expect(op, x, value)).collect();
            let want = pack(&want);
            for &kernel in &kernels {
                let got = combined(kernel, &a, &b);
                if got != want {
                    let size = T::TYPE.size();
                    let at = (0..left.len()).find(|i| got[i * size..][..size] != want[i * size..][..size]);
                    let at = at.unwrap();
                    panic!(
                        "{kernel:?}: {:?} and {value:?} give {:02x?}, not {:02x?}",
                        left[at],
                        &got[at * size..][..size],
                        &want[at * size..][..size]
                    );
                }
            }
        }
    }
}

/// Returns right operands for the exhaustive tests; all values are left operands. They have every exponent with the
/// least, the greatest and a middling significand, in both signs, hence all zeros, infinities, the edges of the
/// subnormals, quiet and signalling NaN. Some random ones are added.
fn right_operands(significand_bits: u32) -> Vec<u16> {
    let ones = (1_u16 << significand_bits) - 1;
    let mut operands = Vec::new();
    for upper in 0..(1_u32 << (16 - significand_bits)) {
        let upper = (upper << significand_bits) as u16;
        operands.extend([upper, upper | 1, upper | ones]);
        if significand_bits > 8 {
            operands.extend([upper | (ones >> 1), upper | (ones / 3)]);
        }
    }
    let mut bits = Bits(16);
    operands.resize_with(700.max(operands.len()), || bits.next() as u16);
    // The vectorised loops need every operand. Without optimisation the same arithmetic is only slower.
    if cfg!(debug_assertions) { operands.into_iter().step_by(7).collect() } else { operands }
}

#[test]
fn half_types_exhaustively() {
    let all: Vec<_> = (0..=u16::MAX).map(f16::from_bits).collect();
    let some: Vec<_> = right_operands(10).into_iter().map(f16::from_bits).collect();
    check_pairs(&all, &some);
    let all: Vec<_> = (0..=u16::MAX).map(bf16::from_bits).collect();
    let some: Vec<_> = right_operands(7).into_iter().map(bf16::from_bits).collect();
    check_pairs(&all, &some);
}

#[test]
fn conversions_exhaustively() {
    for bits in 0..=u16::MAX {
        let (ours, theirs) = (half_bits::f16_to_f32(bits), f16::from_bits(bits).to_f32_const());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "f16 {bits:#06x}");
        let (ours, theirs) = (half_bits::bf16_to_f32(bits), bf16::from_bits(bits).to_f32_const());
        assert!(ours.to_bits() == theirs.to_bits() || (ours.is_nan() && theirs.is_nan()), "bf16 {bits:#06x}");
    }
    // These are all upper halves of an `f32`, with lower halves near the places where the rounding changes.
    for upper in 0..=u16::MAX {
        for lower in [0, 1, 0x0fff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let x = f32::from_bits(u32::from(upper) << 16 | lower);
            if x.is_nan() {
                assert_eq!(half_bits::f32_to_f16(x), 0x7e00);
            } else {
                assert_eq!(half_bits::f32_to_f16(x), f16::from_f32_const(x).to_bits(), "{x:e} as f16");
                assert_eq!(half_bits::f32_to_bf16(x), bf16::from_f32_const(x).to_bits(), "{x:e} as bf16");
            }
        }
    }
}

#[test]
fn all_pairs_of_bytes() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    check_pairs(&all, &all);
    let all: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    check_pairs(&all, &all);
    check_pairs(&[false, true], &[false, true]);
}

#[test]
fn special_values() {
    let floats = [0.0, 1.0, 1.5, 3.0, f32::MAX, f32::MIN_POSITIVE, f32::INFINITY, f32::EPSILON];
    let mut bits: Vec<u32> = floats.map(f32::to_bits).to_vec();
    // These are the least and the greatest subnormal, and quiet and signalling NaN with payloads.
    bits.extend([1, 2, 0x007f_ffff, 0x7fc0_0000, 0x7fc1_2345, 0x7f80_0001, 0x7fbf_ffff, 0x7fff_ffff]);
    let mut random = Bits(32);
    bits.extend((0..100).map(|_| random.next() as u32));
    let signed: Vec<_> = bits.iter().flat_map(|b| [*b, b ^ (1 << 31)]).map(f32::from_bits).collect();
    check_pairs(&signed, &signed);

    let doubles = [0.0, 1.0, 1.5, 3.0, f64::MAX, f64::MIN_POSITIVE, f64::INFINITY, f64::EPSILON];
    let mut bits: Vec<u64> = doubles.map(f64::to_bits).to_vec();
    bits.extend([
        1,
        2,
        (1 << 52) - 1,
        0x7ff8 << 48,
        (0x7ff8 << 48) | 0x12345,
        (0x7ff0 << 48) | 1,
        u64::MAX >> 1,
    ]);
    bits.extend((0..100).map(|_| random.next()));
    let signed: Vec<_> = bits.iter().flat_map(|b| [*b, b ^ (1 << 63)]).map(f64::from_bits).collect();
    check_pairs(&signed, &signed);

    let edges = |bits: u32| (0..bits).flat_map(|b| [(1_u64 << b) - 1, 1 << b, !(1 << b)]).collect::<Vec<_>>();
    let words: Vec<u32> = edges(32).iter().map(|&x| x as u32).collect();
    check_pairs(&words, &words);
    let words: Vec<i32> = edges(32).iter().map(|&x| x as i32).collect();
    check_pairs(&words, &words);
    let words: Vec<u64> = edges(64);
    check_pairs(&words, &words);
    let words: Vec<i64> = edges(64).iter().map(|&x| x as i64).collect();
    check_pairs(&words, &words);
}

#[test]
fn instruction_sets_agree_and_commute_in_bits() {
    let mut bits = Bits(1);
    for (data_type, op) in supported() {
        let (a, b) = (bits.bytes(data_type, 5000), bits.bytes(data_type, 5000));
        let want = combined(kernel_for(Isa::Baseline, data_type, op).unwrap(), &a, &b);
        for isa in isas() {
            let kernel = kernel_for(isa, data_type, op).unwrap();
            assert!(combined(kernel, &a, &b) == want, "{kernel:?} differs from {}", Isa::Baseline);
            assert!(combined(kernel, &b, &a) == want, "{kernel:?} does not commute");
        }
    }
}

/// Position of the destination.
#[derive(Clone, Copy, Debug)]
enum Destination {
    Apart,
    First,
    Second,
    Both,
}

#[test]
fn any_alignment_and_length() {
    let mut bits = Bits(2);
    for (data_type, op) in supported() {
        let size = data_type.size();
        let (a, b) = (bits.bytes(data_type, 140), bits.bytes(data_type, 140));
        for isa in isas() {
            let kernel = kernel_for(isa, data_type, op).unwrap();
            let plain = combined(kernel, &a, &b);
            let doubled = combined(kernel, &a, &a);
            for count in 0..=130 {
                // The destination has every offset, and the operands have others.
                let offset = count % 17;
                for to in [Destination::Apart, Destination::First, Destination::Second, Destination::Both] {
                    check_placement(kernel, (&a, &b), (&plain, &doubled), count * size, offset, to);
                }
            }
        }
    }
}

fn check_placement(
    kernel: Kernel,
    (a, b): (&[u8], &[u8]),
    (plain, doubled): (&[u8], &[u8]),
    bytes: usize,
    offset: usize,
    to: Destination,
) {
    const GUARD: u8 = 0xa5;
    let place = |data: &[u8], offset: usize| {
        let mut memory = vec![GUARD; offset];
        memory.extend(&data[..bytes]);
        memory.extend([GUARD; 70]);
        memory
    };
    let (at_a, at_b) = (offset + 3, offset + 5);
    let (mut first, mut second) = (place(a, at_a), place(b, at_b));
    let mut third = vec![GUARD; offset + bytes + 70];
    let (a, b) = (first.as_mut_ptr().wrapping_add(at_a), second.as_mut_ptr().wrapping_add(at_b));
    let count = bytes / kernel.element_bytes();
    // SAFETY: the pointers lie at least `bytes` before the ends of their buffers.
    unsafe {
        match to {
            Destination::Apart => kernel.combine(third.as_mut_ptr().add(offset), a, b, count),
            Destination::First => kernel.combine(a, a, b, count),
            Destination::Second => kernel.combine(b, a, b, count),
            Destination::Both => kernel.combine(a, a, a, count),
        }
    }
    let (memory, at) = match to {
        Destination::Apart => (third, offset),
        Destination::First | Destination::Both => (first, at_a),
        Destination::Second => (second, at_b),
    };
    let want = if matches!(to, Destination::Both) { doubled } else { plain };
    assert!(memory[at..at + bytes] == want[..bytes], "{kernel:?}, {bytes} bytes at {offset}, {to:?}");
    let outside = memory[..at].iter().chain(&memory[at + bytes..]);
    assert!(
        outside.copied().all(|b| b == GUARD),
        "{kernel:?} wrote outside, {bytes} bytes at {offset}, {to:?}"
    );
}

#[test]
fn many_sources_from_the_left() {
    let mut bits = Bits(5);
    for (data_type, op) in supported() {
        let kernel = kernel(data_type, op).unwrap();
        for (sources, count) in [(1, 10), (2, 5000), (5, 1), (5, 0), (7, 2345)] {
            let values: Vec<_> = (0..sources).map(|_| bits.bytes(data_type, count)).collect();
            let want = values[1..].iter().fold(values[0].clone(), |acc, x| combined(kernel, &acc, x));
            for to in [Destination::Apart, Destination::First, Destination::Second] {
                let (mut values, mut out) = (values.clone(), vec![0; count * data_type.size()]);
                let into = match to {
                    Destination::First => &mut values[0],
                    Destination::Second if sources > 1 => &mut values[1],
                    _ => &mut out,
                };
                let dst = into.as_mut_ptr();
                let pointers: Vec<_> = values.iter().map(|v| v.as_ptr()).collect();
                // SAFETY: all buffers hold `count` elements.
                unsafe { kernel.combine_many(dst, &pointers, count) };
                let got = match to {
                    Destination::First => &values[0],
                    Destination::Second if sources > 1 => &values[1],
                    _ => &out,
                };
                assert!(*got == want, "{kernel:?}, {sources} sources, {to:?}");
            }
        }
    }
}

#[test]
fn streaming_is_the_same() {
    let mut bits = Bits(3);
    for (data_type, op) in supported() {
        let kernel = kernel(data_type, op).unwrap();
        let size = data_type.size();
        for (bytes, offset) in
            [(0, 0), (64, 0), (4096, 0), (4160, 16), (20_000, 8), (30_000, 1), (12_288, 63)]
        {
            let count = bytes / size;
            let (a, b) = (bits.bytes(data_type, count), bits.bytes(data_type, count));
            let mut out = vec![0xa5; count * size + 128];
            // SAFETY: the buffers hold `count` elements.
            unsafe { kernel.combine_streaming(out.as_mut_ptr().add(offset), a.as_ptr(), b.as_ptr(), count) };
            assert!(
                out[offset..][..count * size] == combined(kernel, &a, &b)[..],
                "{kernel:?}, {bytes} bytes"
            );
            assert!(out[offset + count * size..].iter().all(|&b| b == 0xa5), "{kernel:?} wrote outside");
        }
    }
}

#[test]
fn bool_stays_bool() {
    let all: Vec<u8> = (0..=u8::MAX).collect();
    for (data_type, op) in supported().filter(|(data_type, _)| *data_type == DataType::Bool) {
        for isa in isas() {
            let kernel = kernel_for(isa, data_type, op).unwrap();
            for value in 0..=u8::MAX {
                let got = combined(kernel, &all, &[value; 256]);
                assert!(got.iter().all(|&b| b <= 1), "{kernel:?} made something else of {value}");
            }
        }
    }
}

#[test]
fn unsupported_is_said() {
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            assert_eq!(kernel(data_type, op).is_ok(), op.supports(data_type), "{} of {data_type}", op.name());
        }
    }
    let error = kernel(DataType::F32, ReduceOp::BitXor).unwrap_err();
    assert_eq!(error, Unsupported::Operator { op: ReduceOp::BitXor, data_type: DataType::F32 });
    assert_eq!(error.to_string(), "bit_xor is not defined for f32; use an integer type of the same size");
}

/// Applies a function to all elements, apart and in place, at an odd address, and checks it against another function.
fn check_unary<T: Value>(
    values: &[T],
    apply: impl Fn(Isa, *mut u8, *const u8, usize),
    expect: impl Fn(T) -> T,
    what: &str,
) {
    let want: Vec<_> = values.iter().map(|&x| expect(x)).collect();
    let want = pack(&want);
    let source = [&[0][..], &pack(values)].concat();
    for isa in isas() {
        let mut apart = vec![0; want.len() + 1];
        apply(isa, apart.as_mut_ptr().wrapping_add(1), source.as_ptr().wrapping_add(1), values.len());
        let mut in_place = source.clone();
        let buffer = in_place.as_mut_ptr().wrapping_add(1);
        apply(isa, buffer, buffer, values.len());
        for got in [apart, in_place] {
            let size = T::TYPE.size();
            let wrong = (0..values.len()).find(|i| got[1 + i * size..][..size] != want[i * size..][..size]);
            assert!(wrong.is_none(), "{what} of {:?} on {isa}", values[wrong.unwrap()]);
        }
    }
}

macro_rules! check_scaling {
    ($rust:ty, $values:expr, $scale:expr, $divide:expr) => {
        let values: Vec<$rust> = $values;
        for factor in [1.0, 2.0, -1.5, 0.3, 1e9, -1e30] {
            check_unary(
                &values,
                // SAFETY: `check_unary` gives buffers of that length.
                |isa, dst, src, count| unsafe {
                    scale_for(isa, <$rust as Value>::TYPE, dst, src, count, factor)
                },
                |x: $rust| $scale(x, factor),
                "scale",
            );
        }
        for by in [1_u32, 2, 3, 7, 8, 100, 4096, 1 << 31] {
            let divide = |isa, dst: *mut u8, src: *const u8, count: usize| {
                // SAFETY: `check_unary` gives buffers of that length.
                unsafe {
                    std::ptr::copy(src, dst, count * size_of::<$rust>());
                    divide_for(isa, <$rust as Value>::TYPE, dst, count, by);
                }
            };
            check_unary(&values, divide, |x: $rust| $divide(x, by), "divide");
        }
    };
}

#[test]
fn scales_and_divides() {
    let mut random = Bits(4);
    let mut bits = |n: usize| (0..n).map(|_| random.next()).collect::<Vec<u64>>();
    macro_rules! integers {
        ($($rust:ty),*) => {$(
            let edges = [0, 1, <$rust>::MAX, <$rust>::MIN, <$rust>::MAX - 1, <$rust>::MIN + 1, 2, 3, 99, 100];
            let values = edges.into_iter().chain(bits(1001).into_iter().map(|b| b as $rust)).collect();
            check_scaling!($rust, values, |x: $rust, factor| x.wrapping_mul(factor as $rust), |x: $rust, by| {
                (i128::from(x) / i128::from(by)) as $rust
            });
        )*};
    }
    integers!(u8, i8, u16, i16, u32, i32, u64, i64);

    let quiet = |x: f32| if x.is_nan() { f32::from_bits(0x7fc0_0000) } else { x };
    let values = bits(1003).into_iter().map(|b| f32::from_bits(b as u32)).collect();
    check_scaling!(f32, values, |x, factor| quiet(x * factor as f32), |x, by| quiet(x / by as f32));
    let values = bits(1003).into_iter().map(f64::from_bits).filter(|x| !x.is_nan()).collect();
    check_scaling!(f64, values, |x, factor| x * factor, |x, by| x / f64::from(by));
    let narrow = |x: f32| if x.is_nan() { f16::from_bits(0x7e00) } else { f16::from_f32_const(x) };
    let values = (0..=u16::MAX).map(f16::from_bits).collect();
    check_scaling!(f16, values, |x: f16, factor| narrow(x.to_f32_const() * factor as f32), |x: f16, by| {
        narrow(x.to_f32_const() / by as f32)
    });
    let narrow = |x: f32| if x.is_nan() { bf16::from_bits(0x7fc0) } else { bf16::from_f32_const(x) };
    let values = (0..=u16::MAX).map(bf16::from_bits).collect();
    check_scaling!(
        bf16,
        values,
        |x: bf16, factor| narrow(x.to_f32_const() * factor as f32),
        |x: bf16, by| narrow(x.to_f32_const() / by as f32)
    );
}
