//! Loops over `f16` that use the conversions of F16C and AVX-512F, which the compiler does not generate by itself.
//!
//! The intrinsics convert whole blocks of a register, and the portable conversions convert the rest. Both give the same
//! bits (test `half_types_exhaustively`).

#[cfg(target_arch = "x86_64")]
macro_rules! f16_blocks {
    ($module:ident, $features:literal, $lanes:literal, $halves:ident, $floats:ident, $load:ident, $widen:ident,
        $narrow:ident, $store:ident) => {
        pub(super) mod $module {
            use std::arch::x86_64::{
                _MM_FROUND_TO_NEAREST_INT, $floats, $halves, $load, $narrow, $store, $widen,
            };
            use std::mem::transmute;

            use super::super::loops::{self, Unary};
            use super::super::operators::{F16, Operator};

            const LANES: usize = $lanes;
            const BLOCK_BYTES: usize = LANES * size_of::<F16>();

            /// Reads a block at any address.
            ///
            /// # Safety
            /// A block is readable.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn load(from: *const u8) -> [f32; LANES] {
                // SAFETY: the caller vouches for the block. The load needs no alignment. A register of floats and an
                // array of as many floats have the same size, and every bit pattern is valid for both.
                unsafe { transmute::<$floats, [f32; LANES]>($widen($load(from.cast::<$halves>()))) }
            }

            /// Writes a block at any address.
            ///
            /// # Safety
            /// A block is writable.
            #[inline]
            #[target_feature(enable = $features)]
            unsafe fn store(to: *mut u8, values: [f32; LANES]) {
                // SAFETY: as for `load`.
                unsafe {
                    let floats = transmute::<[f32; LANES], $floats>(values);
                    $store(to.cast::<$halves>(), $narrow::<_MM_FROUND_TO_NEAREST_INT>(floats));
                }
            }

            /// `dst = a op b` for `f16`.
            ///
            /// # Safety
            /// As for [`Combine`](super::super::Combine).
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn combine<O: Operator<f32> + Operator<F16>>(
                dst: *mut u8,
                a: *const u8,
                b: *const u8,
                count: usize,
            ) {
                let blocks = count / LANES;
                // SAFETY: the whole blocks and the rest together are the caller's elements. A block is read in full
                // before it is written, so `dst` may be an operand.
                unsafe {
                    for at in (0..blocks).map(|block| block * BLOCK_BYTES) {
                        let (x, y) = (load(a.add(at)), load(b.add(at)));
                        let mut z = x;
                        for lane in 0..LANES {
                            z[lane] = <O as Operator<f32>>::apply(x[lane], y[lane]);
                        }
                        store(dst.add(at), z);
                    }
                    let at = blocks * BLOCK_BYTES;
                    loops::combine::<F16, O>(dst.add(at), a.add(at), b.add(at), count % LANES);
                }
            }

            /// `dst = f(src)` for `f16`.
            ///
            /// # Safety
            /// As for [`loops::map`].
            #[target_feature(enable = $features)]
            pub(in super::super) unsafe fn map<F: Unary<f32> + Unary<F16>>(
                dst: *mut u8,
                src: *const u8,
                count: usize,
                f: F,
            ) {
                let blocks = count / LANES;
                // SAFETY: as for `combine`.
                unsafe {
                    for at in (0..blocks).map(|block| block * BLOCK_BYTES) {
                        let mut z = load(src.add(at));
                        for x in &mut z {
                            *x = <F as Unary<f32>>::apply(f, *x);
                        }
                        store(dst.add(at), z);
                    }
                    let at = blocks * BLOCK_BYTES;
                    loops::map::<F16, F>(dst.add(at), src.add(at), count % LANES, f);
                }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
f16_blocks!(
    avx2,
    "avx2,f16c",
    8,
    __m128i,
    __m256,
    _mm_loadu_si128,
    _mm256_cvtph_ps,
    _mm256_cvtps_ph,
    _mm_storeu_si128
);
#[cfg(target_arch = "x86_64")]
f16_blocks!(
    avx512,
    "avx2,f16c,avx512f,avx512bw,avx512dq,avx512vl",
    16,
    __m256i,
    __m512,
    _mm256_loadu_si256,
    _mm512_cvtph_ps,
    _mm512_cvtps_ph,
    _mm256_storeu_si256
);
