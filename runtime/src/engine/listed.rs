//! The list of pieces of one message.

use kolo_transport::Piece;

/// A piece of memory, as the list that an endpoint keeps a pointer to while the message is posted.
///
/// A vector of one, so that its owner may be moved and borrowed meanwhile: moving a `Box` asserts that no other pointer is used to look
/// into it (seen by Miri on `engine::tests`).
#[derive(Debug)]
pub(super) struct Listed(Vec<Piece>);

impl Listed {
    pub(super) fn new(piece: Piece) -> Self {
        Self(vec![piece])
    }

    /// Names other memory. Nothing is posted.
    pub(super) fn set(&mut self, piece: Piece) {
        self.0[0] = piece;
    }

    pub(super) fn get(&self) -> Piece {
        self.0[0]
    }

    /// The piece that is posted: nothing for an empty message.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.0[..usize::from(self.0[0].len > 0)]
    }
}
