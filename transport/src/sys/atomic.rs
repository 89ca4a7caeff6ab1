//! Atomic words that several processes use at once. They are the processor's atomics, or loom's in the models
//! (`.ci/models`), which run every order of events that the memory model permits.

#[cfg(not(kolo_model))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(not(kolo_model))]
pub(crate) use std::sync::atomic::fence;

#[cfg(kolo_model)]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(kolo_model)]
pub(crate) use loom::sync::atomic::fence;

/// An atomic integer in shared memory.
///
/// # Safety
/// [`Atomic::at`] returns the same integer for the same address, and the integer permits mutation through shared
/// references.
pub(crate) unsafe trait Atomic: Sized {
    /// Its length and alignment in memory.
    const BYTES: usize;

    /// Returns the atomic at an address.
    ///
    /// # Safety
    /// The address is aligned, and inside memory that stays mapped for longer than the reference lives. All
    /// concurrent accesses to these bytes use this type. A hostile process may break that rule; then only the value
    /// is garbage, since every bit pattern is valid.
    unsafe fn at<'a>(address: *mut u8) -> &'a Self;
}

/// The processor's atomics, which are the bytes at the address themselves.
mod in_place {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::Atomic;

    macro_rules! in_place {
        ($($integer:ident),*) => {$(
            // SAFETY: `at` returns the integer at that address; atomics permit mutation through shared references.
            unsafe impl Atomic for $integer {
                const BYTES: usize = size_of::<Self>();

                #[inline(always)]
                unsafe fn at<'a>(address: *mut u8) -> &'a Self {
                    // SAFETY: the caller's promise.
                    unsafe { &*address.cast::<Self>() }
                }
            }
        )*};
    }

    in_place!(AtomicU32, AtomicU64);
}
