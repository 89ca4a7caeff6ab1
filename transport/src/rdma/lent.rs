//! Memory of operations, which is registered as a whole once one of their messages needs it.

use super::registrations::{Registrations, Use};

/// Memory that an operation works on.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) start: usize,
    pub(super) end: usize,
    /// Number of operations that have lent it.
    times: u32,
    /// Its region, from the first message on.
    pub(super) held: Option<Use>,
    /// Whether registering it as a whole has failed.
    pub(super) refused: bool,
}

impl Registrations {
    /// Notes memory that an operation works on.
    pub(super) fn lend(&mut self, ptr: *mut u8, len: usize) {
        let (start, end) = (ptr.expose_provenance(), ptr.addr().saturating_add(len));
        match self.lent.iter_mut().find(|lent| (lent.start, lent.end) == (start, end)) {
            Some(lent) => lent.times += 1,
            None => self.lent.push(Lent { start, end, times: 1, held: None, refused: false }),
        }
    }

    /// Ends one [`Registrations::lend`] of this memory, whose operation is complete.
    pub(super) fn reclaim(&mut self, ptr: *mut u8, len: usize) {
        let (start, end) = (ptr.addr(), ptr.addr().saturating_add(len));
        let Some(at) = self.lent.iter().position(|lent| (lent.start, lent.end) == (start, end)) else {
            return;
        };
        self.lent[at].times -= 1;
        if self.lent[at].times == 0
            && let Some(held) = self.lent.swap_remove(at).held
        {
            self.release(held);
        }
    }
}
