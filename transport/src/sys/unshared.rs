//! Descriptors that forked children do not keep.
//!
//! A child inherits every descriptor, since close-on-exec acts on exec only, and the kernel ends a connection or a
//! listener when the last process closes it. While a child lives, the peers of a killed parent would therefore not
//! notice its end, and its ports would stay taken.
//!
//! # Rules
//!
//! 1. A descriptor is in the table from shortly after it is opened until shortly before it is closed, so the table
//!    never holds the number of somebody else's file. Only a fork of another thread in these moments gives a child a
//!    copy.
//! 2. The handlers of `fork` hold the table's lock around the fork. The child's table is therefore whole, and matches
//!    the child's descriptors, which the child keeps until it has run for the first time.
//! 3. In the child, each number refers to an event counter from then on. The number stays taken, so that a value which
//!    the child drops closes nobody else's file.

use std::cell::UnsafeCell;
use std::collections::BTreeSet;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, Once};

use crate::Unpoisoned;

type Table = BTreeSet<RawFd>;

static TABLE: Mutex<Table> = Mutex::new(Table::new());

/// The lock of the table while a fork is under way.
struct Held(UnsafeCell<Option<MutexGuard<'static, Table>>>);

// SAFETY: only the handlers of `fork` access the cell, and only while their thread holds the lock (rule 2).
unsafe impl Sync for Held {}

static HELD: Held = Held(UnsafeCell::new(None));

/// A file that children which are forked from now on do not keep.
#[derive(Debug)]
pub struct Unshared<F> {
    // Fields are dropped in this order (rule 1).
    entry: Entry,
    file: F,
}

#[derive(Debug)]
struct Entry(RawFd);

impl<F: AsFd> Unshared<F> {
    /// Takes a file, whose descriptor stays the same until it is dropped.
    #[must_use]
    pub fn new(file: F) -> Self {
        handle_forks();
        let number = file.as_fd().as_raw_fd();
        table().insert(number);
        Self { entry: Entry(number), file }
    }
}

impl<F> Unshared<F> {
    /// Returns the file, which further children keep.
    #[must_use]
    pub fn into_inner(self) -> F {
        drop(self.entry);
        self.file
    }
}

impl<F> Deref for Unshared<F> {
    type Target = F;

    fn deref(&self) -> &F {
        &self.file
    }
}

impl<F> DerefMut for Unshared<F> {
    fn deref_mut(&mut self) -> &mut F {
        &mut self.file
    }
}

impl<F: AsFd> AsFd for Unshared<F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        table().remove(&self.0);
    }
}

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unpoisoned()
}

/// Registers the handlers of `fork`, once.
fn handle_forks() {
    static ONCE: Once = Once::new();
    extern "C" fn before() {
        let held = table();
        // SAFETY: this thread has the lock, so no other handler is between `before` and the end of its fork.
        unsafe { *HELD.0.get() = Some(held) };
    }
    extern "C" fn in_parent() {
        // SAFETY: this thread took the lock in `before`.
        drop(unsafe { (*HELD.0.get()).take() });
    }
    extern "C" fn in_child() {
        // SAFETY: this thread is the copy of the one that took the lock in `before`.
        let held = unsafe { (*HELD.0.get()).take() };
        held.iter().for_each(|table| replace(table));
    }
    ONCE.call_once(|| {
        // SAFETY: the handlers neither allocate nor wait for anything that the forking thread holds: the lock is held for
        // a change of the table only. The C library forgets them if this library is unloaded. Registration fails only
        // for lack of memory; children then keep the files. Tested by `a_child_keeps_the_number_but_not_the_file`.
        let _ = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
}

/// Makes all descriptors of the table refer to a new event counter. Makes system calls only, as a child must.
fn replace(table: &Table) {
    if table.is_empty() {
        return;
    }
    // SAFETY: this makes a descriptor.
    let counter = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
    for &number in table {
        // SAFETY: the number is of a file in the table (rule 1), and this is the child's copy, which no thread uses: the
        // child has only the one that forked. Without a free descriptor for the counter, the number is given up.
        unsafe {
            match counter {
                -1 => libc::close(number),
                counter => libc::dup3(counter, number, libc::O_CLOEXEC),
            };
        }
    }
    if counter != -1 {
        // SAFETY: this descriptor was made above.
        unsafe { libc::close(counter) };
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;

    /// Forks a child that answers with one byte and then lives until it is told.
    fn forked(answer: impl FnOnce() -> u8) -> (i32, UnixStream) {
        let (mut near, far) = UnixStream::pair().expect("a pair");
        near.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
        // SAFETY: the child makes system calls only, and ends without running destructors.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "cannot fork");
        if child == 0 {
            let answer = [answer()];
            let mut end = [0_u8];
            // SAFETY: the buffers are of one byte, and the alarm ends a child that hangs.
            unsafe {
                libc::alarm(25);
                libc::close(near.as_raw_fd());
                libc::write(far.as_raw_fd(), answer.as_ptr().cast(), 1);
                libc::read(far.as_raw_fd(), end.as_mut_ptr().cast(), 1);
                libc::_exit(0)
            }
        }
        drop(far);
        let mut answer = [0];
        near.read_exact(&mut answer).expect("the child answers");
        near.set_nonblocking(false).expect("as it was");
        assert_eq!(answer, [1], "the child");
        (child, near)
    }

    fn end((child, line): (i32, UnixStream)) {
        drop(line);
        let mut status = 0;
        // SAFETY: this waits for the child that was made in `forked`.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }

    fn is_socket(number: RawFd) -> Option<bool> {
        // SAFETY: a status of zeros is valid, and the call writes one to the given address.
        let (rc, status) = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(number, &raw mut status), status)
        };
        (rc == 0).then_some(status.st_mode & libc::S_IFMT == libc::S_IFSOCK)
    }

    #[test]
    fn a_child_keeps_the_number_but_not_the_file() {
        let (own, mut peer) = UnixStream::pair().expect("a pair");
        peer.set_read_timeout(Some(Duration::from_secs(10))).expect("a timeout");
        let own = Unshared::new(own);
        let number = own.as_raw_fd();
        let child = forked(|| u8::from(is_socket(number) == Some(false)));
        assert_eq!(is_socket(number), Some(true), "the parent keeps it");
        drop(own);
        assert_eq!(peer.read(&mut [0]).expect("the end, though the child lives"), 0);
        end(child);
    }

    #[test]
    fn a_child_keeps_a_file_that_has_left_the_table() {
        let (own, mut peer) = UnixStream::pair().expect("a pair");
        peer.set_nonblocking(true).expect("a socket");
        let own = Unshared::new(own).into_inner();
        let number = own.as_raw_fd();
        let child = forked(|| u8::from(is_socket(number) == Some(true)));
        drop(own);
        assert_eq!(peer.read(&mut [0]).expect_err("open").kind(), ErrorKind::WouldBlock);
        end(child);
    }
}
