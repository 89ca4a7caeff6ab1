//! The processor's floating-point mode while data is reduced.
//!
//! A program may make its threads flush subnormals, round otherwise or trap (`torch.set_flush_denormal`, `-ffast-math`,
//! `feenableexcept`). The ranks of one call would then write different bits, and Rust's own arithmetic assumes the
//! default mode.

use std::marker::PhantomData;

/// Gives this thread the default mode until it is dropped. Costs a few nanoseconds if the thread has that mode.
#[derive(Debug)]
#[must_use = "the mode lasts until this is dropped"]
pub(crate) struct DefaultFloats {
    /// The thread's own mode, if it is another one.
    own: Option<control::Word>,
    /// The mode belongs to the thread.
    _here: PhantomData<*const ()>,
}

impl DefaultFloats {
    #[inline]
    pub(crate) fn enter() -> Self {
        let word = control::read();
        let own = (control::mode(word) != control::DEFAULT).then_some(word);
        if own.is_some() {
            control::write(control::DEFAULT);
        }
        Self { own, _here: PhantomData }
    }
}

impl Drop for DefaultFloats {
    #[inline]
    fn drop(&mut self) {
        if let Some(own) = self.own {
            control::write(own);
        }
    }
}

/// MXCSR. Intel, Software Developer's Manual, volume 1, section 10.2.3.
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod control {
    pub(super) type Word = u32;

    /// All exceptions are masked; nothing is flushed; rounding is to nearest.
    pub(super) const DEFAULT: Word = 0x1f80;
    /// Subnormal results and operands are zero.
    #[cfg(test)]
    pub(super) const FLUSHING: Word = DEFAULT | 0x8040;

    /// Leaves out the six flags of exceptions that have occurred.
    #[inline]
    pub(super) const fn mode(word: Word) -> Word {
        word & !0x3f
    }

    #[inline]
    pub(super) fn read() -> Word {
        let mut word: Word = 0;
        // SAFETY: the instruction writes four bytes to the address of a variable of that size.
        unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut word, options(nostack, preserves_flags)) };
        word
    }

    /// The compiler moves no access to memory across this, so no reduction either.
    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: the word is the default mode or was read from the register, so it has no reserved bits, which would
        // trap. `DefaultFloats` writes another mode than the default only to restore the one that its caller had.
        // Test: `a_thread_gets_its_own_mode_back`.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const word, options(nostack)) };
    }
}

/// FPCR. Arm, Architecture Reference Manual for A-profile, C5.2.
#[cfg(all(target_arch = "aarch64", not(miri)))]
mod control {
    pub(super) type Word = u64;

    /// All exceptions are masked; nothing is flushed; rounding is to nearest.
    pub(super) const DEFAULT: Word = 0;
    /// Subnormal results and operands are zero.
    #[cfg(test)]
    pub(super) const FLUSHING: Word = 1 << 24;

    /// The flags of exceptions are in another register.
    #[inline]
    pub(super) const fn mode(word: Word) -> Word {
        word
    }

    #[inline]
    pub(super) fn read() -> Word {
        let word: Word;
        // SAFETY: programs may read the register.
        unsafe { std::arch::asm!("mrs {}, fpcr", out(reg) word, options(nostack, preserves_flags)) };
        word
    }

    /// The compiler moves no access to memory across this, so no reduction either.
    #[inline]
    pub(super) fn write(word: Word) {
        // SAFETY: programs may write the register. `DefaultFloats` writes another mode than the default only to restore
        // the one that its caller had. Test: `a_thread_gets_its_own_mode_back`.
        unsafe { std::arch::asm!("msr fpcr, {}", in(reg) word, options(nostack)) };
    }
}

/// On other processors, and under Miri, the mode stays the thread's own.
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod control {
    pub(super) type Word = u32;

    pub(super) const DEFAULT: Word = 0;
    #[cfg(test)]
    pub(super) const FLUSHING: Word = 0;

    pub(super) const fn mode(word: Word) -> Word {
        word
    }

    pub(super) fn read() -> Word {
        DEFAULT
    }

    pub(super) fn write(_: Word) {}
}

/// Makes this thread flush subnormals, for tests, which must not compute with them afterwards.
#[cfg(test)]
pub(crate) fn flush_subnormals() {
    control::write(control::FLUSHING);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_its_own_mode_back() {
        // In a thread of its own, so that the mode ends with it.
        std::thread::spawn(|| {
            let mode = || control::mode(control::read());
            drop(DefaultFloats::enter());
            assert_eq!(mode(), control::DEFAULT);
            flush_subnormals();
            let outer = DefaultFloats::enter();
            drop(DefaultFloats::enter());
            assert_eq!(mode(), control::DEFAULT, "within the outer one");
            drop(outer);
            assert_eq!(mode(), control::FLUSHING);
        })
        .join()
        .expect("no assertion fails");
    }
}
