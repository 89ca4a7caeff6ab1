//! The words that several processes use at once: the processor's atomics, or in the models (`.ci/models`) those of loom, which
//! runs every order of events that the memory model permits.

#[cfg(not(kolo_model = "transport"))]
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(not(kolo_model = "transport"))]
pub(crate) use std::sync::atomic::fence;

#[cfg(kolo_model = "transport")]
pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64};

#[cfg(kolo_model = "transport")]
pub(crate) use loom::sync::atomic::fence;

/// An atomic integer in memory that is shared.
///
/// # Safety
/// [`Atomic::at`] gives the same integer for the same address, and shared references permit mutation.
pub(crate) unsafe trait Atomic: Sized {
    /// Its length and alignment in memory.
    const BYTES: usize;

    /// The atomic at an address.
    ///
    /// # Safety
    /// The address is aligned, and inside memory that is mapped for longer than the reference lives. All who use these bytes
    /// at the same time use them as this type, or are hostile: then only the value is garbage, since every bit pattern is valid.
    unsafe fn at<'a>(address: *mut u8) -> &'a Self;
}

/// The processor's own, which are the bytes at that address.
mod in_place {
    use std::sync::atomic::{AtomicU32, AtomicU64};

    use super::Atomic;

    macro_rules! in_place {
        ($($integer:ident),*) => {$(
            // SAFETY: it is the integer at that address; atomics permit mutation through shared references.
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
