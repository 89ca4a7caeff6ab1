//! Memory that the CPU cannot read, and the component that copies from and to it: a GPU's driver.

use std::sync::Arc;

use super::NAME;
use crate::error::{Error, ErrorKind};
use crate::memory::DeviceCopier;

/// Ranges of such memory. An operation keeps the list as it was when it was posted.
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
            let ranges = this.map_or(&[][..], |device_copiers| &device_copiers.0);
            ranges.iter().find(|(start, end, _)| (*start..*end).contains(&at)).map(|(.., copier)| copier)
        };
        // SAFETY: for the whole block: the caller's promise.
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

/// It is the one message's affair: the peer has no part in it.
fn failed(words: String) -> Error {
    Error::new(ErrorKind::System, NAME, None, format!("a GPU's driver: {words}"))
}
