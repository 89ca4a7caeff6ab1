//! Memory that the processor cannot access, and the copier that does: a GPU's driver.

use std::sync::Arc;

use super::NAME;
use crate::error::{Error, ErrorKind};
use crate::memory::DeviceCopier;

/// Ranges of such memory with their copiers. An operation keeps the list as it was when it was posted.
#[derive(Clone, Debug, Default)]
pub(super) struct DeviceCopiers(Vec<(usize, usize, Arc<dyn DeviceCopier>)>);

impl DeviceCopiers {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn add(&mut self, start: usize, len: usize, copier: &Arc<dyn DeviceCopier>) {
        self.0.push((start, start + len, Arc::clone(copier)));
    }

    pub(super) fn remove(&mut self, start: usize, len: usize) {
        if let Some(at) = self.0.iter().position(|(from, to, _)| (*from, *to) == (start, start + len)) {
            self.0.remove(at);
        }
    }

    /// Copies with the copier of either range, or with the processor if there is none.
    ///
    /// # Safety
    /// Both are valid for `len` bytes and do not overlap; the processor may access memory outside the listed ranges.
    pub(super) unsafe fn copy(
        this: Option<&Self>,
        from: *const u8,
        to: *mut u8,
        len: usize,
    ) -> Result<(), Error> {
        let find = |at: usize| {
            let ranges = this.map_or(&[][..], |device_copiers| &device_copiers.0);
            ranges.iter().find(|(start, end, _)| (*start..*end).contains(&at)).map(|(.., copier)| copier)
        };
        // SAFETY: the caller's promise, for the whole block.
        unsafe {
            if let Some(copier) = find(from.addr()) {
                return copier.load(from, to, len).map_err(failed);
            }
            if let Some(copier) = find(to.addr()) {
                return copier.store(from, to, len).map_err(failed);
            }
            from.copy_to_nonoverlapping(to, len);
        }
        Ok(())
    }
}

/// Returns an error that concerns only one message, and not the peer.
fn failed(words: String) -> Error {
    Error::new(ErrorKind::System, NAME, None, format!("the GPU driver: {words}"))
}
