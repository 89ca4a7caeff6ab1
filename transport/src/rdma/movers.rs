//! Memory that the CPU cannot read, and the component that copies from and to it: a GPU's driver.

use std::sync::Arc;

use super::NAME;
use crate::error::{Error, ErrorKind};
use crate::memory::Mover;

/// Ranges of such memory. An operation keeps the list as it was when it was posted.
#[derive(Clone, Debug, Default)]
pub(super) struct Movers(Vec<(usize, usize, Arc<dyn Mover>)>);

impl Movers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, start: usize, len: usize, mover: &Arc<dyn Mover>) {
        self.0.push((start, start + len, Arc::clone(mover)));
    }

    pub(super) fn remove(&mut self, start: usize, len: usize) {
        if let Some(at) = self.0.iter().position(|(from, to, _)| (*from, *to) == (start, start + len)) {
            self.0.remove(at);
        }
    }

    /// Copies, by whoever can.
    ///
    /// # Safety
    /// Both are valid for so many bytes and do not overlap; what is not in a range of the list the processor may touch.
    pub(super) unsafe fn copy(
        this: Option<&Self>,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        let find = |at: usize| {
            let ranges = this.map_or(&[][..], |movers| &movers.0);
            ranges.iter().find(|(start, end, _)| (*start..*end).contains(&at)).map(|(.., mover)| mover)
        };
        // SAFETY: for the whole block: the caller's promise.
        unsafe {
            if let Some(mover) = find(from.addr()) {
                return mover.load(from, to, len).map_err(failed);
            }
            if let Some(mover) = find(to.addr()) {
                return mover.store(from, to, len).map_err(failed);
            }
            from.copy_to_nonoverlapping(to, len);
        }
        Ok(())
    }
}

/// It is the one message's affair: the peer has no part in it.
fn failed(words: String) -> Error {
    Error::new(ErrorKind::System, NAME, None, format!("a GPU's driver: {words}"))
}
