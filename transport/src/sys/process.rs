//! Identity of the process, to distinguish a child made by `fork` from its parent. A child has its parent's memory
//! but none of its threads, and it shares sockets and shared memory with the parent.
//!
//! A word lies on a page that the kernel zeroes in every child, however the child is made (`MADV_WIPEONFORK`, Linux
//! 4.14). Where the kernel does not support that, a handler of `pthread_atfork` zeroes the word. The first query in a
//! process where the word is 0 gives it a number that none of its ancestors had. A comparison is thus one load,
//! without a system call.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};

use super::map::Mapping;

/// A reference to the process in which it was made.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    word: &'static AtomicU32,
    number: u32,
}

/// The last number given, by this process or an ancestor.
static LAST: AtomicU32 = AtomicU32::new(0);

impl Process {
    /// Returns the running process.
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
            // Another thread was faster.
            Err(known) => known,
        };
        Self { word, number }
    }

    /// Returns whether the running process is this one, and not a child of it.
    #[inline]
    #[must_use]
    pub fn is_current(self) -> bool {
        self.word.load(Ordering::Relaxed) == self.number
    }
}

/// Maps a page that the kernel zeroes in children.
fn wiped_page() -> std::io::Result<Mapping> {
    let page = Mapping::private(rustix::param::page_size())?;
    page.wipe_on_fork()?;
    Ok(page)
}

/// Returns a word that the C library's `fork` zeroes in children.
fn handled_word() -> &'static AtomicU32 {
    static WORD: AtomicU32 = AtomicU32::new(0);
    static ONCE: Once = Once::new();
    extern "C" fn in_child() {
        WORD.store(0, Ordering::Relaxed);
    }
    ONCE.call_once(|| {
        // SAFETY: the handler only stores to an atomic, as a signal handler may, and the C library forgets it if this
        // library is unloaded. Registration fails only for lack of memory; forks then go unnoticed. Tested below.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
    &WORD
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Forks, and returns the child's answers.
    fn in_child(questions: impl FnOnce() -> [bool; 4]) -> [bool; 4] {
        // SAFETY: the child only loads and stores atomics and ends without running destructors.
        match unsafe { libc::fork() } {
            0 => {
                let answers = questions();
                let bits = (0..).zip(answers).map(|(bit, answer)| i32::from(answer) << bit).sum::<i32>();
                // SAFETY: this ends the process.
                unsafe { libc::_exit(bits) }
            }
            child => {
                assert!(child > 0, "cannot fork");
                let mut status = 0;
                // SAFETY: this waits for the child that was just made.
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
