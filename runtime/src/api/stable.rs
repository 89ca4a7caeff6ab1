//! Buffers whose elements stay in place when their owner moves, so that operations can own them.

use bytes::BytesMut;

/// An owner of elements that do not move while it is kept. Started calls and
/// [`Communicator::register`](super::Communicator::register) take such owners.
///
/// # Safety
/// Until the owner is dropped, `elements` and `elements_ref` return the same address and length each time, even after
/// the owner was moved. Their memory holds valid elements, is valid until then, and nobody reaches it other than through
/// this owner: operations read and write it from other threads. While an operation runs, Kolo keeps the owner in one
/// place and does not touch it.
pub unsafe trait StableBuffer {
    /// Type of an element.
    type Item;
    /// Returns the elements.
    fn elements(&mut self) -> &mut [Self::Item];
    /// Returns the elements for reading.
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

// SAFETY: moving a box does not move its contents.
unsafe impl<T> StableBuffer for Box<[T]> {
    type Item = T;
    fn elements(&mut self) -> &mut [T] {
        self
    }
    fn elements_ref(&self) -> &[T] {
        self
    }
}

// SAFETY: the bytes lie on the heap, and move only when some are added or removed.
unsafe impl StableBuffer for BytesMut {
    type Item = u8;
    fn elements(&mut self) -> &mut [u8] {
        self
    }
    fn elements_ref(&self) -> &[u8] {
        self
    }
}
