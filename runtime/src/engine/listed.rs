//! The list of pieces of one message.

use kolo_transport::Piece;

/// A piece of memory in a list to which an endpoint keeps a pointer while the message is posted.
///
/// The list is a vector of one, so that its owner may be moved and borrowed meanwhile: moving a `Box` asserts that no
/// other pointer accesses its contents (seen by Miri on `engine::tests`).
#[derive(Debug)]
pub(super) struct Listed(Vec<Piece>);

impl Listed {
    pub(super) fn new(piece: Piece) -> Self {
        Self(vec![piece])
    }

    /// Names other memory. Allowed only while nothing is posted.
    pub(super) fn set(&mut self, piece: Piece) {
        self.0[0] = piece;
    }

    pub(super) fn get(&self) -> Piece {
        self.0[0]
    }

    /// Returns the posted pieces: none for an empty message.
    pub(super) fn pieces(&self) -> &[Piece] {
        &self.0[..usize::from(self.0[0].len > 0)]
    }
}
