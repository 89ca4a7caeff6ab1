//! Which process this is: a child made by `fork` has its parent's memory, but none of its threads, and its sockets and
//! shared memory are the parent's still.
//!
//! The word that tells lies on a page that the kernel zeroes in every child (`MADV_WIPEONFORK`, Linux 4.14), however it
//! was made; where the kernel knows no such page, a handler of `pthread_atfork` zeroes it. The first that asks in a process
//! where the word is 0 gives it a number that none of its ancestors had. So to compare is one load, without a system call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use super::map::Mapping;

/// The process in which something was made.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    word: &'static AtomicU32,
    number: u32,
}

/// The last number that was given, by this process or an ancestor.
static LAST: AtomicU32 = AtomicU32::new(0);

impl Process {
    /// The one that runs now.
    #[must_use]
    pub fn current() -> Self {
        static PAGE: OnceLock<Option<Mapping>> = OnceLock::new();
        let page = PAGE.get_or_init(|| wiped_page().ok());
        Self::named_by(page.as_ref().map_or_else(handled_word, |page| page.atomic(0)))
    }

    fn named_by(word: &'static AtomicU32) -> Self {
        let known = word.load(Ordering::Relaxed);
        if known != 0 {
            return Self { word, number: known };
        }
        let fresh = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let number = match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => fresh,
            // Another thread was quicker.
            Err(known) => known,
        };
        Self { word, number }
    }

    /// Whether this process is still that one, and not a child of it.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

/// A page that the kernel zeroes in children.
fn wiped_page() -> std::io::Result<Mapping> {
    let page = Mapping::private(rustix::param::page_size())?;
    page.wipe_on_fork()?;
    Ok(page)
}

/// A word that `fork` of the C library zeroes in children.
fn handled_word() -> &'static AtomicU32 {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        WORD.store(0, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, as a signal handler may, and the C library forgets it if this
        // library is unloaded. It is refused for want of memory alone; then forks are not noticed. Tested below.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    &WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, and gives what the child found out: one bit each.
    fn in_child(questions: impl FnOnce() -> [bool; 4]) -> [bool; 4] {
        // SAFETY: the child only loads and stores atomics and ends without running destructors.
        match unsafe { libc::fork() } {
            0 => {
                let answers = questions();
                let bits = (0..).zip(answers).map(|(bit, answer)| i32::from(answer) << bit).sum::<i32>();
                // SAFETY: ends the process.
                unsafe { libc::_exit(bits) }
            }
            child => {
                assert!(child > 0, "cannot fork");
                let mut status = 0;
                // SAFETY: waits for the child that was just made.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert!(libc::WIFEXITED(status));
                std::array::from_fn(|bit| libc::WEXITSTATUS(status) >> bit & 1 == 1)
            }
        }
    }

    fn a_child_is_another_process(word: &'static AtomicU32) {
        let here = Process::named_by(word);
        assert!(here.is_current() && Process::named_by(word).is_current());
        let answers = in_child(|| {
            let inherited = here.is_current();
            let there = Process::named_by(word);
            [inherited, here.is_current(), there.is_current(), there.number > here.number]
        });
        assert_eq!(answers, [false, false, true, true]);
        assert!(here.is_current());
    }

    #[test]
    fn the_kernel_tells_a_child_from_its_parent() {
        match wiped_page() {
            Ok(page) => a_child_is_another_process(Box::leak(Box::new(page)).atomic(0)),
            Err(error) => println!("skipped: this kernel wipes no pages: {error}"),
        }
    }

    #[test]
    fn the_c_library_tells_a_child_from_its_parent() {
        a_child_is_another_process(handled_word());
    }
}
