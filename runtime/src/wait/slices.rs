//! Short time slices for threads that wait.
//!
//! Under the scheduler of Linux 6.12 and later (EEVDF), a thread that wakes up takes the processor from one with a
//! longer slice. Otherwise it waits until the slice of a busy neighbour is over, once per message. The slice does not
//! change a thread's share of the processor. Without busy neighbours it changes nothing (docs/measurements.md, "Alongside
//! busy processes").

use std::cell::Cell;

/// The slice that threads ask for: the shortest that the kernel grants.
const SLICE_NS: u64 = 100_000;

thread_local! {
    static HAS_ASKED: Cell<bool> = const { Cell::new(false) };
}

/// Asks the scheduler, once per thread, for short slices. Threads of the real-time classes, and kernels that do not know
/// slices, are left as they are.
pub(super) fn ask() {
    if HAS_ASKED.replace(true) {
        return;
    }
    match attributes() {
        Some(attributes) if is_long(&attributes) => {
            let asked = libc::sched_attr { sched_runtime: SLICE_NS, ..attributes };
            if !set(&asked) {
                let error = std::io::Error::last_os_error();
                tracing::debug!(%error, "the scheduler does not grant short time slices");
            }
        }
        _ => {}
    }
}

/// Returns whether the thread has a slice that may be shortened. Kernels that do not know slices report zero.
fn is_long(attributes: &libc::sched_attr) -> bool {
    attributes.sched_policy == libc::SCHED_OTHER.unsigned_abs() && attributes.sched_runtime > SLICE_NS
}

/// Returns the calling thread's scheduling attributes.
fn attributes() -> Option<libc::sched_attr> {
    let bytes = size_of::<libc::sched_attr>();
    let mut attributes = std::mem::MaybeUninit::<libc::sched_attr>::zeroed();
    // SAFETY: the kernel writes at most `bytes` bytes, which the structure has; test `a_thread_gets_short_slices_once`.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, attributes.as_mut_ptr(), bytes, 0) };
    // SAFETY: all bytes were zero before the call, which is a value of every field.
    (result == 0).then(|| unsafe { attributes.assume_init() })
}

/// Sets the calling thread's scheduling attributes. Returns whether the kernel accepted them.
fn set(attributes: &libc::sched_attr) -> bool {
    // SAFETY: the kernel only reads the structure, whose first field is its size; the same test.
    unsafe { libc::syscall(libc::SYS_sched_setattr, 0, std::ptr::from_ref(attributes), 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_gets_short_slices_once() {
        let before = attributes().filter(is_long);
        let Some(before) = before else {
            println!(
                "skipped: this kernel does not tell the slices of threads, or this thread has no ordinary one"
            );
            return;
        };
        ask();
        let after = attributes().unwrap();
        assert_eq!(after.sched_runtime, SLICE_NS);
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        // A later choice of the program's stays.
        assert!(set(&before));
        ask();
        assert_eq!(attributes().unwrap().sched_runtime, before.sched_runtime);
    }

    #[test]
    fn threads_without_ordinary_slices_are_left_as_they_are() {
        let Some(own) = attributes() else { return };
        let with = |sched_policy, sched_runtime| libc::sched_attr { sched_policy, sched_runtime, ..own };
        let [other, fifo] = [libc::SCHED_OTHER, libc::SCHED_FIFO].map(i32::unsigned_abs);
        assert!(is_long(&with(other, 3_000_000)));
        assert!(!is_long(&with(other, 0)) && !is_long(&with(other, SLICE_NS)));
        assert!(!is_long(&with(fifo, 3_000_000)));
    }
}
