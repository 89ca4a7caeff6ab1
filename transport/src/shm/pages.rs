//! Finds out whether memory lies in huge pages.
//!
//! To read another process's memory, the kernel looks up and pins every page. In pages of 4 KiB this may cost more than
//! the copy itself, in huge pages almost nothing. A long message whose source lies in huge pages is therefore sent by
//! rendezvous without a trial (see the `tried` module). The kernel reports huge pages since version 6.7, through
//! `/proc/self/pagemap`; on older kernels, all such messages are tried.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::endpoint::Piece;

/// `PAGEMAP_SCAN`, which is `_IOWR('f', 16, struct pm_scan_arg)`.
const PAGEMAP_SCAN: u64 = 3 << 30 | (size_of::<ScanArg>() as u64) << 16 | (b'f' as u64) << 8 | 16;
/// `PAGE_IS_HUGE`.
const HUGE: u64 = 1 << 6;

/// The kernel's `struct pm_scan_arg`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// A handle for queries about this process's pages.
#[derive(Debug)]
pub(crate) struct Pages {
    map: File,
    page_bytes: u64,
}

impl Pages {
    /// Opens the page map; `None` if the kernel does not report huge pages.
    pub(crate) fn open() -> Option<Self> {
        let pages = Self {
            map: File::open("/proc/self/pagemap").ok()?,
            page_bytes: rustix::param::page_size() as u64,
        };
        let any = 0u8;
        pages.is_huge((&raw const any).addr() as u64).map(|_| pages)
    }

    /// Returns whether at least half of the bytes lie in pieces whose middle is in a huge page. Takes half a
    /// microsecond per piece, so there should be few pieces.
    pub(crate) fn hold(&self, pieces: &[Piece], total: usize) -> bool {
        let middle = |piece: &Piece| (piece.ptr.addr() + piece.len / 2) as u64;
        let is_huge = |piece: &&Piece| piece.len > 0 && self.is_huge(middle(piece)) == Some(true);
        pieces.iter().filter(is_huge).map(|piece| piece.len).sum::<usize>() >= total.div_ceil(2)
    }

    /// Returns whether the page at an address is huge; `None` if the kernel does not report it.
    fn is_huge(&self, at: u64) -> Option<bool> {
        let start = at - at % self.page_bytes;
        // The kernel's `struct page_region`: start, end, categories.
        let mut region = [0u64; 3];
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end: start + self.page_bytes,
            vec: (&raw mut region).expose_provenance() as u64,
            vec_len: 1,
            category_mask: HUGE,
            return_mask: HUGE,
            ..ScanArg::default()
        };
        // SAFETY: the kernel reads and writes `arg`, whose size matches the request code and the first field, and
        // writes one entry at `vec`, which is `region`. Without flags it changes nothing else.
        let found = unsafe { libc::ioctl(self.map.as_raw_fd(), PAGEMAP_SCAN as _, &raw mut arg) };
        (found >= 0).then_some(found > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_small_pages_from_huge_ones() {
        // An older kernel does not report huge pages.
        let Some(pages) = Pages::open() else { return };
        let huge = 2 << 20;
        let small = vec![1u8; 4096];
        let mut bytes = Vec::<u8>::with_capacity(8 << 20);
        let skip = bytes.as_ptr().align_offset(huge);
        let inside = bytes.as_mut_ptr().wrapping_add(skip);
        // SAFETY: the range is inside the vector's memory, of which nothing is used yet.
        let advised =
            unsafe { rustix::mm::madvise(inside.cast(), 2 * huge, rustix::mm::Advice::LinuxHugepage) };
        bytes.resize(8 << 20, 1);
        let piece = |ptr: *const u8, len| Piece { ptr: ptr.cast_mut(), len };
        let (near, far) = (piece(small.as_ptr(), 4096), piece(inside, 2 * huge));
        assert!(!pages.hold(&[near], 4096));
        // Under memory pressure the kernel may have had no huge pages to grant.
        if advised.is_ok() && pages.is_huge((inside.addr() + huge) as u64) == Some(true) {
            assert!(pages.hold(&[near, far], 4096 + 2 * huge));
            assert!(!pages.hold(&[near, far], 10 * huge));
        }
    }
}
