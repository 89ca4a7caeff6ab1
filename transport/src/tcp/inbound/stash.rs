//! Bytes that were read too far, because a header differs from the expected one.

use super::super::link::{SCRATCH_BYTES, Workspace};
use super::super::wire::HEADER_BYTES;
use super::{Front, Inbound, Landing};
use crate::pieces::Cursor;

impl Inbound {
    /// Returns whether bytes wait in the stash.
    pub(super) fn has_stash(&self) -> bool {
        self.stash_start < self.stash.len()
    }

    /// Collects `left` bytes that were put behind a mismatched header, the `at`th of this call.
    pub(super) fn stash_rest(&mut self, at: usize, mut left: usize, work: &mut Workspace) {
        self.stash.clear();
        self.stash_start = 0;
        for (behind, recv) in self.queue.iter().enumerate() {
            if left == 0 {
                return;
            }
            if behind > 0 {
                let bytes = left.min(HEADER_BYTES);
                self.stash.extend_from_slice(&work.headers[at + behind][..bytes]);
                left -= bytes;
            }
            let bytes = left.min(recv.len);
            match &recv.landing {
                Landing::Place(pieces) => pieces.copy_out(Cursor::default(), bytes, &mut self.stash),
                Landing::Eat(_) => self.stash.extend_from_slice(&work.scratch()[..bytes]),
            }
            left -= bytes;
        }
    }

    /// Takes bytes from the stash; returns how many.
    pub(super) fn unstash(&mut self, work: &mut Workspace) -> usize {
        let there = self.stash.len() - self.stash_start;
        let start = self.stash_start;
        let bytes;
        if let Front::Dropped(left) = self.front {
            bytes = usize::try_from(left).unwrap_or(usize::MAX).min(there);
            self.drop_next(left - bytes as u64);
        } else if self.header_bytes < HEADER_BYTES {
            bytes = there.min(HEADER_BYTES - self.header_bytes);
            self.header[self.header_bytes..][..bytes].copy_from_slice(&self.stash[start..start + bytes]);
            self.header_bytes += bytes;
        } else {
            let Some(front) = self.queue.front() else { return 0 };
            let left = front.len - self.payload_bytes;
            match &front.landing {
                Landing::Place(pieces) => {
                    bytes = there.min(left);
                    pieces.fill(&mut self.cursor, &self.stash[start..start + bytes]);
                    self.payload_bytes += bytes;
                }
                Landing::Eat(_) => {
                    bytes = there.min(left).min(SCRATCH_BYTES - self.grain_bytes);
                    let scratch = work.scratch();
                    scratch[..self.grain_bytes].copy_from_slice(&self.grain[..self.grain_bytes]);
                    scratch[self.grain_bytes..][..bytes].copy_from_slice(&self.stash[start..start + bytes]);
                    self.eat(bytes, work);
                }
            }
        }
        self.leave_stash(bytes);
        bytes
    }

    /// Marks bytes of the stash as taken.
    pub(super) fn leave_stash(&mut self, bytes: usize) {
        self.stash_start += bytes;
        if !self.has_stash() {
            // The stash may be large, and is rarely needed again.
            self.stash = Vec::new();
            self.stash_start = 0;
        }
    }
}
