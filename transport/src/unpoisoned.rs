//! Locks whose holders may have panicked.

use std::sync::PoisonError;

/// Takes what a lock or a wait returns even if a holder of the lock has panicked. The panic itself is reported where it
/// happens, and the other threads must still be able to leave.
pub trait Unpoisoned {
    /// The result of the lock or wait, such as a guard.
    type Taken;

    /// Returns it, whether or not the lock is poisoned.
    fn unpoisoned(self) -> Self::Taken;
}

impl<T> Unpoisoned for Result<T, PoisonError<T>> {
    type Taken = T;

    #[inline]
    fn unpoisoned(self) -> T {
        self.unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn a_poisoned_lock_is_taken() {
        let lock = Mutex::new(1);
        let holder = std::panic::AssertUnwindSafe(|| {
            let _held = lock.lock();
            panic!("with the lock");
        });
        assert!(std::panic::catch_unwind(holder).is_err() && lock.is_poisoned());
        *lock.lock().unpoisoned() += 1;
        assert_eq!(lock.into_inner().unpoisoned(), 2);
    }
}
