//! Buffers that may be handed over to an operation, which works on their memory wherever the handle of it goes.

use bytes::BytesMut;

/// An owner of elements whose place in memory does not change while it is kept: what started calls take, and what
/// [`Communicator::register`](super::Communicator::register) does.
///
/// # Safety
/// `elements` gives the same address and length each time, also after the owner was moved, until it is dropped.
pub unsafe trait StableBuffer {
    /// Element type.
    type Item;
    /// The elements.
    fn elements(&mut self) -> &mut [Self::Item];
    /// The elements.
    fn elements_ref(&self) -> &[Self::Item];
}

// SAFETY: a vector that is not changed does not move its elements.
unsafe impl<T> StableBuffer for Vec<T> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self
    }
    fn elements_ref(&self) -> &[T] {
        self
    }
}

// SAFETY: a box does not move what is in it.
unsafe impl<T> StableBuffer for Box<[T]> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self
    }
    fn elements_ref(&self) -> &[T] {
        self
    }
}

// SAFETY: what is in it lies on the heap, and moves only when something is added or taken away.
unsafe impl StableBuffer for BytesMut {
    type Item = u8;
    fn elements(&mut self) -> &mut [u8] {
        self
    }
    fn elements_ref(&self) -> &[u8] {
        self
    }
}
