//! Structs of the program in started calls, sent as bytes.

use bytemuck::Pod;

use super::stable::StableBuffer;

/// A buffer of plain structs that is sent as bytes: `comm.broadcast_start(Plain(particles), 0)`. All ranks must lay
/// the struct out alike (`#[repr(C)]`, and processors of one byte order). Blocking calls take
/// `bytemuck::cast_slice_mut::<_, u8>(&mut particles)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plain<B>(pub B);

// SAFETY: the bytes lie where the elements do, and `B` promises that these do not move.
unsafe impl<B: StableBuffer<Item: Pod>> StableBuffer for Plain<B> {
    type Item = u8;
    fn elements(&mut self) -> &mut [u8] {
        bytemuck::cast_slice_mut(self.0.elements())
    }
    fn elements_ref(&self) -> &[u8] {
        bytemuck::cast_slice(self.0.elements_ref())
    }
}
