//! The receiver's side of a rendezvous: fetches a message from its sender's memory.

use super::cursor::Cursor;
use super::recv_lane::Trouble;
use super::remote::{FAR_RUNS, Far, Near, Remote, Unread};
use super::rendezvous::RTS_WORDS;
use super::ring::{Consumer as RingConsumer, Corrupt};

/// Maximum number of bytes that one call fetches: so many that the cost of the call (1 µs) and of the first look-up
/// of the pages is negligible, and so few that a poll is over within 40 µs. 4 MiB at a time was no faster.
const PLACE_BYTES: usize = 512 << 10;

/// Progress of fetching one message.
#[derive(Debug)]
pub(crate) struct Get {
    runs: [(u64, usize); FAR_RUNS],
    index: usize,
    /// Offset within the run at `index`.
    offset: usize,
}

impl Get {
    /// Parses a request of `bytes` bytes in the cell, for a message of `total` bytes. Every number in it is checked.
    pub(crate) fn checked(words: &[u64; RTS_WORDS], bytes: usize, total: u64) -> Result<Self, Corrupt> {
        let count = bytes / 16;
        if !bytes.is_multiple_of(16) || !(1..=FAR_RUNS).contains(&count) {
            return Err(Corrupt(format!("a rendezvous request of {bytes} bytes")));
        }
        let mut runs = [(0, 0); FAR_RUNS];
        let mut sum = Some(0u64);
        for (run, pair) in runs.iter_mut().zip(words.chunks_exact(2)).take(count) {
            *run = (pair[0], usize::try_from(pair[1]).unwrap_or(usize::MAX));
            sum = sum.and_then(|sum| sum.checked_add(pair[1]));
        }
        if sum != Some(total) {
            return Err(Corrupt(format!(
                "a rendezvous request of other than {total} bytes in {count} ranges"
            )));
        }
        Ok(Self { runs, index: 0, offset: 0 })
    }

    /// Returns the progress of fetching `len` bytes at one address.
    pub(crate) fn at(address: u64, len: usize) -> Self {
        let mut runs = [(0, 0); FAR_RUNS];
        runs[0] = (address, len);
        Self { runs, index: 0, offset: 0 }
    }

    /// Returns the ranges of the next `len` bytes. The request must have as many left.
    fn far(&self, mut len: usize) -> Far {
        let (mut far, mut offset) = (Far::new(), self.offset);
        for (at, run) in &self.runs[self.index..] {
            let part = len.min(run - offset);
            if part > 0 {
                let at = at.wrapping_add(offset as u64);
                far.push(std::ptr::without_provenance_mut(at as usize), part);
            }
            (len, offset) = (len - part, 0);
        }
        far
    }

    fn step(&mut self, mut len: usize) {
        while len > 0 {
            let part = len.min(self.runs[self.index].1 - self.offset);
            (len, self.offset) = (len - part, self.offset + part);
            if self.offset == self.runs[self.index].1 {
                (self.index, self.offset) = (self.index + 1, 0);
            }
        }
    }

    /// Fetches the next part of a message, of which `left` bytes remain, and places it; returns its length, or `None` if
    /// the kernel does not read that memory. Then, and after an error, neither position has moved.
    ///
    /// # Safety
    /// The promise of `post_recv` holds for `cursor`, in which `left` bytes are left.
    pub(crate) unsafe fn place(
        &mut self,
        remote: &Remote,
        ring: &RingConsumer,
        cursor: &mut Cursor,
        left: usize,
    ) -> Result<Option<usize>, Trouble> {
        let (mut near, mut ahead) = (Near::new(), cursor.clone());
        // SAFETY: the caller's promise.
        unsafe { ahead.runs(left.min(PLACE_BYTES), &mut near) };
        let len = near.bytes();
        // SAFETY: the ranges are the caller's memory, and the caller has promised that nobody else touches it.
        let read = unsafe { remote.read(&mut near, &mut self.far(len)) };
        if !believe(read, ring)? {
            return Ok(None);
        }
        *cursor = ahead;
        self.step(len);
        Ok(Some(len))
    }
}

/// Returns whether the kernel has read, once it is clear that the sender had not withdrawn the memory before. The kernel
/// does not read memory of devices and drivers, nor secret memory, nor that of a process without its main thread, which
/// programs may send all the same. The end of the stream tells of a sender that has really ended.
fn believe(read: Result<(), Unread>, ring: &RingConsumer) -> Result<bool, Trouble> {
    match read {
        _ if ring.is_withdrawn() => Err(Trouble::Gone),
        Ok(()) => Ok(true),
        Err(Unread::Gone) => Err(Trouble::Gone),
        Err(Unread::Refused(_)) => Ok(false),
    }
}
